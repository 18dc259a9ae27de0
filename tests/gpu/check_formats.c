/* check_formats.c - packed base weights on the card: unpacked to the reference's numbers, multiplied to the bits of their unpacked twin.
 *
 *     cuda_check formats [speed]
 */
#include "check_formats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cuda/cuda_codes.h"
#include "gpu_world.h"
#include "math/format.h"

static tcu_device *card;
static tinkc_error err;
static int failures;

#define CK(x)                                                                                      \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            printf("FAILED %s: %s\n", #x, err.message);                                            \
            exit(2);                                                                               \
        }                                                                                          \
    } while (0)
#define RC(x) CK(tcu_ok(card, (x), #x, &err))

static void *room(size_t bytes)
{
    void *p = tcu_take(card, bytes, TCU_FOR_OTHER, &err);
    CK(p);
    return p;
}

static void *sent(const void *from, size_t bytes)
{
    void *p = room(bytes);
    CK(tcu_upload(card, p, from, bytes, &err) && tcu_wait(card, &err));
    return p;
}

static uint64_t differing(bool wide, const void *a, const void *b, int64_t n)
{
    uint64_t *count, r;
    cudaMallocHost((void **)&count, 8);
    *count = 0;
    RC(tcu_differ(wide, a, b, n, count, card->stream));
    CK(tcu_wait(card, &err));
    r = *count;
    cudaFreeHost(count);
    return r;
}

static void verdict(const char *format, bool wild, int out, int in, const char *what, uint64_t off)
{
    if (off)
        printf("FAIL %s %s %d x %d: %s: %llu differ\n", format, wild ? "wild" : "mild", out, in, what,
               (unsigned long long)off);
    failures += off != 0;
}

/* ---- numbers ---- */

static const tke_dtype all[] = { TKE_Q4_0, TKE_Q4_1, TKE_Q4_K, TKE_IQ4_NL, TKE_NF4,  TKE_MXFP4, TKE_MXFP4_BLOCKS,
                                 TKE_Q8_0, TKE_Q5_0, TKE_Q5_1, TKE_Q5_K,   TKE_Q6_K, TKE_FP8 };
enum { FORMATS = sizeof all / sizeof *all };

static void free_matrix(tke_matrix *m)
{
    free((void *)(uintptr_t)m->data), free((void *)(uintptr_t)m->scales), free((void *)(uintptr_t)m->factors);
}

/* In two pieces, as a large matrix is loaded. */
static tcu_coded pack(const tke_matrix *m, int out, int in)
{
    tcu_coded p = { .format = tcu_format_of(m->dtype), .out = out, .in = in };
    size_t row = tke_format_bytes(tke_format_of(m->dtype), (size_t)in);
    p.tiles = room(tcu_coded_bytes(p.format, out, in));
    RC(cudaMemsetAsync(p.tiles, 0xee, tcu_coded_bytes(p.format, out, in), card->stream));
    for (int at = 0, n; at < out; at += n) {
        n = at || out <= 16 ? out - at : 16;
        tcu_apart apart = tcu_factors_apart(m, (size_t)at, (size_t)n);
        uint8_t *codes = sent((const uint8_t *)m->data + (size_t)at * row, (size_t)n * row),
                *factors = apart.bytes ? sent(apart.from, apart.bytes) : NULL;
        tcu_stored s = { codes, (int64_t)row, factors, apart.row_bytes, at, n };
        RC(tcu_pack_tiles(&p, &s, card->stream));
        CK(tcu_wait(card, &err));
        tcu_give(card, codes, 0, TCU_FOR_OTHER), tcu_give(card, factors, 0, TCU_FOR_OTHER);
    }
    return p;
}

/* ---- checks ---- */

static void check_product(const char *name, bool wild, const tcu_coded *p, const tcu_bf16 *w)
{
    static const int rows[] = { 1, 2, 5, 8, 9, 16, 17, 33, 64 };
    enum { MOST = 64 };
    size_t bytes = (size_t)MOST * (size_t)p->out * 4;
    tcu_bf16 *x = room((size_t)MOST * (size_t)p->in * 2);
    void *y = room(bytes), *z = room(bytes);
    RC(tcu_random(x, (int64_t)MOST * p->in, 3, 1, card->stream));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool wide = i % 2;
        char what[64];
        int64_t count = (int64_t)rows[i] * p->out * (wide ? 2 : 1); /* of 16 bits */
        RC(cudaMemsetAsync(y, 0xee, bytes, card->stream));
        RC(cudaMemsetAsync(z, 0xdd, bytes, card->stream));
        RC(tcu_chain(false, wide, false, x, p->in, w, p->in, y, p->out, rows[i], p->out, p->in, card->stream));
        RC(tcu_small_coded(wide, x, p, z, p->out, rows[i], card->stream));
        snprintf(what, sizeof what, "product of %d rows", rows[i]);
        verdict(name, wild, p->out, p->in, what, differing(false, y, z, count));
    }
    tcu_give(card, x, 0, TCU_FOR_OTHER), tcu_give(card, y, 0, TCU_FOR_OTHER), tcu_give(card, z, 0, TCU_FOR_OTHER);
}

static void check_embedding(const char *name, bool wild, const tcu_coded *p, const tcu_bf16 *w)
{
    enum { N = 9 };
    const int32_t host[N] = { 0, -1, p->out - 1, p->out / 2, 1 % p->out, 7 % p->out, 8 % p->out, p->out / 3, 0 };
    int32_t *ids = sent(host, sizeof host);
    size_t bytes = (size_t)N * (size_t)p->in * 4;
    float *h = room(bytes), *other = room(bytes);
    RC(cudaMemsetAsync(h, 0xee, bytes, card->stream));
    RC(cudaMemsetAsync(other, 0xdd, bytes, card->stream));
    RC(tcu_embed(ids, w, h, N, p->in, card->stream));
    RC(tcu_embed_coded(ids, p, other, N, card->stream));
    verdict(name, wild, p->out, p->in, "embedding", differing(true, h, other, (int64_t)N * p->in));
    tcu_give(card, ids, 0, TCU_FOR_OTHER), tcu_give(card, h, 0, TCU_FOR_OTHER), tcu_give(card, other, 0, TCU_FOR_OTHER);
}

static void check_one(int which, int out, int in, bool wild)
{
    const tke_format *f = tke_format_of(all[which]);
    tke_matrix m = random_packed(all[which], (size_t)out, (size_t)in, wild, (uint64_t)(which * 1000 + out + in));
    size_t n = (size_t)out * (size_t)in, off = 0;
    uint16_t *want = malloc(n * 2), *got = malloc(n * 2);
    tcu_coded p = pack(&m, out, in);
    tcu_bf16 *w = room(n * 2);
    for (int r = 0; r < out; r++)
        f->unpack[TKE_UNPACK_REF](&m, r, 0, in, want + (size_t)r * (size_t)in);
    RC(cudaMemsetAsync(w, 0xee, n * 2, card->stream));
    RC(tcu_unpack_tiles(&p, w, card->stream));
    CK(tcu_download(card, got, w, n * 2, &err));
    for (size_t i = 0; i < n; i++) {
        if (off < 3 && want[i] != got[i])
            printf("  %s: row %zu column %zu is %04x, not %04x\n", f->name, i / (size_t)in, i % (size_t)in, got[i], want[i]);
        off += want[i] != got[i];
    }
    verdict(f->name, wild, out, in, "unpacked", off);
    check_embedding(f->name, wild, &p, w);
    check_product(f->name, wild, &p, w);
    tcu_give(card, w, 0, TCU_FOR_OTHER), tcu_give(card, p.tiles, 0, TCU_FOR_OTHER);
    free(want), free(got), free_matrix(&m);
}

/* ---- speed ---- */

static double microseconds(const tcu_coded *p, size_t copies, int m, const tcu_bf16 *x, tcu_bf16 *y, bool whole)
{
    enum { TIMES = 40 };
    float ms = 0;
    cudaEvent_t a, b;
    cudaEventCreate(&a), cudaEventCreate(&b);
    for (size_t i = 0; i < TIMES + 4; i++) {
        tcu_coded q = *p;
        q.tiles += i % copies * tcu_coded_bytes(p->format, p->out, p->in);
        if (i == 4)
            cudaEventRecord(a, card->stream);
        RC(whole ? tcu_unpack_tiles(&q, y, card->stream) : tcu_small_coded(false, x, &q, y, p->out, m, card->stream));
    }
    cudaEventRecord(b, card->stream);
    cudaEventSynchronize(b);
    cudaEventElapsedTime(&ms, a, b);
    cudaEventDestroy(a), cudaEventDestroy(b);
    return 1e3 * ms / TIMES;
}

static void speed(void)
{
    static const int shapes[][2] = { { 6144, 4096 }, { 4096, 4096 }, { 24576, 4096 }, { 4096, 12288 } };
    static const int rows[] = { 1, 4, 16, 64 };
    tcu_bf16 *x = room((size_t)256 * 12288 * 2), *y = room((size_t)24576 * 4096 * 2);
    RC(tcu_random(x, 256 * 12288, 3, 1, card->stream));
    for (int which = 0; which < FORMATS; which++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            int out = shapes[s][0], in = shapes[s][1];
            const tke_format *f = tke_format_of(all[which]);
            tke_matrix m = random_packed(all[which], 256, (size_t)in, false, 1); /* its rows repeat */
            tcu_coded small = pack(&m, 256, in), p = { .format = small.format, .out = out, .in = in };
            size_t one = tcu_coded_bytes(p.format, out, in), part = tcu_coded_bytes(p.format, 256, in), copies = (size_t)200e6 / one + 1;
            p.tiles = room(one * copies);
            for (size_t at = 0; at < one * copies; at += part)
                RC(cudaMemcpyAsync(p.tiles + at, small.tiles, part < one * copies - at ? part : one * copies - at,
                                   cudaMemcpyDeviceToDevice, card->stream));
            printf("%-6s %5d x %5d floor %5.1f:", f->name, out, in, (double)one / 4.3e6);
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
                printf(" %d: %.1f", rows[r], microseconds(&p, copies, rows[r], x, y, false));
            printf(" unpack: %.1f us\n", microseconds(&p, copies, 0, x, y, true));
            tcu_give(card, p.tiles, 0, TCU_FOR_OTHER), tcu_give(card, small.tiles, 0, TCU_FOR_OTHER), free_matrix(&m);
        }
}

int check_formats(tcu_device *d, bool fast)
{
    card = d;
    for (int which = 0; which < FORMATS; which++)
        for (int wild = 0; wild < 2; wild++) {
            int block = tke_format_of(all[which])->block;
            int step = block < 8 ? 8 : block;
            check_one(which, 1, step, wild);
            check_one(which, 37, step * (step == 256 ? 3 : 7), wild);
            check_one(which, 300, step * (step == 256 ? 9 : step == 8 ? 77 : 33), wild);
        }
    printf("%s formats: unpacked, embedded and multiplied like the reference: %d differ\n", failures ? "FAIL" : "ok  ", failures);
    if (fast)
        speed();
    return failures;
}
