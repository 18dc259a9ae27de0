/* wire - how fast a forward_backward chunk becomes bytes, and bytes a chunk. One core.
 *
 *     build/bench/wire [MEGABYTES [ROUNDS]]
 *
 * Encoding is compared with a bare memcpy of the same payload, zstd with libzstd alone on the same
 * bytes: on a shared machine the ratios say more than the speeds. Each figure is the best round.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/clock.h"
#include "base/str.h"
#include "codec/zstd.h"
#include "wire/train_message.h"

enum { TOKENS = 1024 }; /* of one datum: 4 + 8 + 4 bytes each */

typedef struct scene {
    tkc_arena arena;
    tkc_forward_backward_request request;
    size_t payload; /* bytes of tokens and tensors */
    char *copy;     /* as large as the payload */
    tkc_buf pb, packed;
    char *bare; /* what libzstd alone writes into */
    size_t bare_size;
} scene;

static void stop_if(const tinkc_error *err)
{
    if (err->code) {
        fprintf(stderr, "wire: %s\n", err->message);
        exit(1);
    }
}

/* Token ids as text has them: skewed, so that zstd finds something to do. */
static int32_t next_token(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    uint64_t r = *seed >> 33;
    return (int32_t)(r % 7 ? r % 2000 : r % 128000);
}

static void fill_datum(scene *s, tkc_datum *d, uint64_t *seed, tinkc_error *err)
{
    int32_t *tokens = tkc_arena_array(&s->arena, TOKENS, sizeof *tokens, err);
    int64_t *targets = tkc_arena_array(&s->arena, TOKENS, sizeof *targets, err);
    float *weights = tkc_arena_array(&s->arena, TOKENS, sizeof *weights, err);
    int64_t *shape = tkc_arena_array(&s->arena, 1, sizeof *shape, err);
    tinkc_chunk *chunk = tkc_arena_array(&s->arena, 1, sizeof *chunk, err);
    tkc_named_tensor *inputs = tkc_arena_array(&s->arena, 2, sizeof *inputs, err);
    stop_if(err);
    for (int i = 0; i < TOKENS; i++) {
        tokens[i] = next_token(seed);
        targets[i] = i ? tokens[i - 1] : 0;
        weights[i] = i < TOKENS / 3 ? 0.0f : 1.0f;
    }
    *shape = TOKENS;
    *chunk = (tinkc_chunk){ .kind = TINKC_CHUNK_TOKENS,
                            .expected_tokens = -1,
                            .tokens = { tokens, TOKENS } };
    inputs[0] = (tkc_named_tensor){
        "target_tokens",
        { .data = targets, .count = TOKENS, .shape = { shape, 1 }, .dtype = TINKC_I64 }
    };
    inputs[1] = (tkc_named_tensor){
        "weights", { .data = weights, .count = TOKENS, .shape = { shape, 1 }, .dtype = TINKC_F32 }
    };
    d->chunks.data = chunk;
    d->chunks.len = 1;
    d->inputs.data = inputs;
    d->inputs.len = 2;
}

static void build(scene *s, size_t megabytes, tinkc_error *err)
{
    uint64_t seed = 1;
    size_t n = megabytes * 1000000 / (16 * TOKENS) + 1;
    tkc_arena_init(&s->arena, NULL, 0);
    tkc_datum *data = tkc_arena_array(&s->arena, n, sizeof *data, err);
    stop_if(err);
    for (size_t i = 0; i < n; i++)
        fill_datum(s, &data[i], &seed, err);
    s->request = (tkc_forward_backward_request){ .model_id = "9d2c61f0:train:0",
                                                 .seq_id = 1,
                                                 .loss_fn = "cross_entropy" };
    s->request.data.data = data;
    s->request.data.len = n;
    s->payload = n * 16 * TOKENS;
    s->copy = tkc_alloc(NULL, s->payload, err);
    tkc_buf_init(&s->pb, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&s->packed, NULL, TKC_BUF_NO_MAX);
    s->bare_size = ZSTD_compressBound(tkc_forward_backward_pb_size(&s->request));
    s->bare = tkc_alloc(NULL, s->bare_size, err);
    stop_if(err);
}

/* ---- what is measured ---- */

static void do_memcpy(scene *s, tinkc_error *err)
{
    char *at = s->copy;
    (void)err;
    for (size_t i = 0; i < s->request.data.len; i++) {
        const tkc_datum *d = &s->request.data.data[i];
        memcpy(at, d->chunks.data[0].tokens.data, 4 * TOKENS);
        memcpy(at + 4 * TOKENS, d->inputs.data[0].tensor.data, 8 * TOKENS);
        memcpy(at + 12 * TOKENS, d->inputs.data[1].tensor.data, 4 * TOKENS);
        at += 16 * TOKENS;
    }
}

static void do_encode(scene *s, tinkc_error *err)
{
    tkc_buf_clear(&s->pb);
    tkc_forward_backward_to_pb(&s->request, &s->pb, err);
}

/* A fresh buffer each time, as the client has it: the allocation and its page faults included. */
static void do_encode_fresh(scene *s, tinkc_error *err)
{
    tkc_buf_free(&s->pb);
    tkc_forward_backward_to_pb(&s->request, &s->pb, err);
}

static void do_decode(scene *s, tinkc_error *err)
{
    tkc_arena arena;
    tkc_forward_backward_request read;
    tkc_arena_init(&arena, NULL, 0);
    tkc_forward_backward_from_pb((tinkc_bytes){ (const unsigned char *)s->pb.data, s->pb.len },
                                 TINKC_E_UNPROCESSABLE, &arena, &read, err);
    tkc_arena_free(&arena);
}

static void do_bare_zstd(scene *s, tinkc_error *err)
{
    (void)err;
    (void)ZSTD_compress(s->bare, s->bare_size, s->pb.data, s->pb.len, TKC_ZSTD_LEVEL);
}

static void do_zstd(scene *s, tinkc_error *err)
{
    tkc_buf_clear(&s->packed);
    tkc_zstd_compress(s->pb.data, s->pb.len, &s->packed, err);
}

static void do_encode_and_zstd(scene *s, tinkc_error *err)
{
    do_encode(s, err);
    do_zstd(s, err);
}

static double measure(const char *name, void (*run)(scene *, tinkc_error *), scene *s, int rounds)
{
    double best = 1e9;
    for (int i = 0; i < rounds; i++) {
        tinkc_error err = { 0 };
        int64_t start = tkc_monotonic_ns();
        run(s, &err);
        double seconds = (double)(tkc_monotonic_ns() - start) / 1e9;
        stop_if(&err);
        if (seconds < best)
            best = seconds;
    }
    printf("%-28s %8.2f ms   %7.2f GB/s\n", name, best * 1e3, (double)s->payload / best / 1e9);
    return best;
}

static int64_t argument(int argc, char **argv, int i, int64_t otherwise)
{
    int64_t value;
    return argc > i && tkc_parse_i64(tkc_str(argv[i]), &value) && value > 0 ? value : otherwise;
}

int main(int argc, char **argv)
{
    static scene s;
    tinkc_error err = { 0 };
    int rounds = (int)argument(argc, argv, 2, 20);
    build(&s, (size_t)argument(argc, argv, 1, 5), &err);
    printf("%zu datums of %d tokens, %.1f MB of tokens and tensors\n", s.request.data.len, TOKENS,
           (double)s.payload / 1e6);
    double plain = measure("memcpy of the payload", do_memcpy, &s, rounds);
    double fresh = measure("encode, new buffer", do_encode_fresh, &s, rounds);
    double encode = measure("encode, buffer kept", do_encode, &s, rounds);
    measure("decode", do_decode, &s, rounds);
    double bare = measure("libzstd alone, level 3", do_bare_zstd, &s, rounds);
    double zstd = measure("zstd through us", do_zstd, &s, rounds);
    double both = measure("encode and zstd", do_encode_and_zstd, &s, rounds);
    printf("encoding costs %.2f memcpys (%.2f with a new buffer); zstd through us %.2f of libzstd "
           "alone, encode and zstd %.2f\n",
           encode / plain, fresh / plain, zstd / bare, both / bare);
    printf("packed to %.1f %%\n", 100.0 * (double)s.packed.len / (double)s.pb.len);
    tkc_release(NULL, s.copy, s.payload);
    tkc_release(NULL, s.bare, s.bare_size);
    tkc_buf_free(&s.pb);
    tkc_buf_free(&s.packed);
    tkc_arena_free(&s.arena);
    return 0;
}
