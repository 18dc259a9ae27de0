/* input.c - what a model reads: a chain of chunks.
 *
 * May touch: its own memory. One thread at a time.
 */
#include <string.h>

#include "client/train/train_batch.h"
#include "base/str.h"
#include "codec/dmel.h"
#include "codec/utf8.h"

static bool check_input(tinkc_input *input, tinkc_error *err)
{
    if (!input)
        return tkc_fail(err, TINKC_E_ARGUMENT, "input: must not be NULL");
    return !input->client || tkc_client_check(input->client, err);
}

tinkc_input *tinkc_input_new(tinkc_client *client, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_client_check(client, err))
        return NULL;
    tinkc_input *input = tkc_zalloc(client->a, sizeof *input, err);
    if (!input)
        return NULL;
    input->client = client;
    tkc_client_keep(client);
    tkc_arena_init(&input->arena, client->a, 0);
    input->open.a = client->a;
    return input;
}

void tinkc_input_clear(tinkc_input *input)
{
    if (!input || !input->client)
        return;
    tkc_arena_reset(&input->arena);
    input->n_chunks = 0;
    input->open.len = 0;
    input->is_open = false;
}

void tinkc_input_free(tinkc_input *input)
{
    if (!input || !input->client || tkc_client_forked(input->client))
        return;
    tinkc_client *client = input->client;
    tkc_arena_free(&input->arena);
    tinkc_tokens_free(&input->open);
    tkc_release(client->a, input->chunks, input->cap_chunks * sizeof *input->chunks);
    tkc_release(client->a, input, sizeof *input);
    tkc_client_drop(client);
}

static tinkc_chunk *new_chunk(tinkc_input *input, int32_t kind, tinkc_error *err)
{
    tinkc_chunk *grown = tkc_grow(input->client->a, input->chunks, &input->cap_chunks,
                                  input->n_chunks + 1, sizeof *grown, err);
    if (!grown)
        return NULL;
    input->chunks = grown;
    grown += input->n_chunks;
    *grown = (tinkc_chunk){ .kind = kind, .expected_tokens = -1, .format = "", .location = "" };
    return grown;
}

/* The open tokens become a finished chunk. */
static bool close_tokens(tinkc_input *input, tinkc_error *err)
{
    if (!input->is_open)
        return true;
    size_t len = input->open.len;
    int32_t *ids = tkc_arena_array(&input->arena, len, sizeof *ids, err);
    if (!ids)
        return false;
    if (len)
        memcpy(ids, input->open.data, len * sizeof *ids);
    input->chunks[input->n_chunks - 1].tokens = (tinkc_i32s){ ids, len };
    input->open.len = 0;
    input->is_open = false;
    return true;
}

static bool check_ids(const int32_t *ids, size_t len, tinkc_error *err)
{
    if (!ids && len)
        return tkc_fail(err, TINKC_E_ARGUMENT, "ids: must not be NULL");
    for (size_t i = 0; i < len; i++)
        if (ids[i] < 0)
            return tkc_fail(err, TINKC_E_ARGUMENT, "ids: token %zu is negative", i);
    return true;
}

/* The last chunk stays open: tokens that are added one by one would otherwise be a chunk each,
 * as they are in the Python SDK. */
bool tinkc_input_add_tokens(tinkc_input *input, const int32_t *ids, size_t len, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_input(input, err) || !check_ids(ids, len, err))
        return false;
    if (!input->is_open) {
        if (!new_chunk(input, TINKC_CHUNK_TOKENS, err))
            return false;
        input->n_chunks++;
        input->is_open = true;
    }
    bool ok = tinkc_tokens_append(&input->open, ids, len, err);
    /* The buffer may have moved. */
    input->chunks[input->n_chunks - 1].tokens = (tinkc_i32s){ input->open.data, input->open.len };
    return ok;
}

bool tinkc_input_cut(tinkc_input *input, tinkc_error *err)
{
    tinkc_error local;
    return tkc_enter(&err, &local) && check_input(input, err) && close_tokens(input, err);
}

static bool check_format(const char *format, tinkc_error *err)
{
    if (format && (strcmp(format, "png") == 0 || strcmp(format, "jpeg") == 0))
        return true;
    return tkc_fail(err, TINKC_E_ARGUMENT, "format: must be \"png\" or \"jpeg\"");
}

static bool check_expected(int32_t expected_tokens, tinkc_error *err)
{
    return expected_tokens >= -1 ||
           tkc_fail(err, TINKC_E_ARGUMENT, "expected_tokens: must be 0 or more, or -1");
}

/* Begins a chunk that carries bytes; the caller fills in the rest and counts it. */
static tinkc_chunk *bytes_chunk(tinkc_input *input, int32_t kind, const void *data, size_t len,
                                tinkc_error *err)
{
    if (!data || len == 0) {
        tkc_fail(err, TINKC_E_ARGUMENT, "data: must not be empty");
        return NULL;
    }
    if (!close_tokens(input, err))
        return NULL;
    tinkc_chunk *chunk = new_chunk(input, kind, err);
    void *copy = chunk ? tkc_arena_alloc(&input->arena, len, err) : NULL;
    if (!copy)
        return NULL;
    memcpy(copy, data, len);
    chunk->bytes = (tinkc_bytes){ copy, len };
    return chunk;
}

bool tinkc_input_add_image(tinkc_input *input, const void *data, size_t len, const char *format,
                           int32_t expected_tokens, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_input(input, err) || !check_format(format, err) ||
        !check_expected(expected_tokens, err))
        return false;
    tinkc_chunk *chunk = bytes_chunk(input, TINKC_CHUNK_IMAGE, data, len, err);
    if (!chunk)
        return false;
    chunk->format = format[0] == 'p' ? "png" : "jpeg";
    chunk->expected_tokens = expected_tokens;
    input->n_chunks++;
    return true;
}

bool tinkc_input_add_image_pointer(tinkc_input *input, const char *location, const char *format,
                                   int32_t expected_tokens, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_input(input, err) || !check_format(format, err) ||
        !check_expected(expected_tokens, err))
        return false;
    if (!location || !location[0])
        return tkc_fail(err, TINKC_E_ARGUMENT, "location: must not be empty");
    if (!close_tokens(input, err))
        return false;
    tinkc_chunk *chunk = new_chunk(input, TINKC_CHUNK_IMAGE_POINTER, err);
    const char *copy = chunk ? tkc_arena_cstr(&input->arena, location, err) : NULL;
    if (!copy)
        return false;
    chunk->location = copy;
    chunk->format = format[0] == 'p' ? "png" : "jpeg";
    chunk->expected_tokens = expected_tokens;
    input->n_chunks++;
    return true;
}

bool tinkc_input_add_dmel(tinkc_input *input, const void *data, size_t len, tinkc_error *err)
{
    tinkc_error local;
    tkc_dmel head;
    if (!tkc_enter(&err, &local) || !check_input(input, err))
        return false;
    if (!data || !len)
        return tkc_fail(err, TINKC_E_TENSOR, "data: an empty dmel chunk");
    if (!tkc_dmel_read(data, len, &head, err) ||
        !bytes_chunk(input, TINKC_CHUNK_DMEL, data, len, err))
        return false;
    input->n_chunks++;
    return true;
}

static int64_t chunk_length(const tinkc_chunk *chunk)
{
    tkc_dmel head;
    tinkc_error bad = { 0 };
    switch (chunk->kind) {
    case TINKC_CHUNK_TOKENS:
        return (int64_t)chunk->tokens.len;
    case TINKC_CHUNK_DMEL:
        return tkc_dmel_read(chunk->bytes.data, chunk->bytes.len, &head, &bad) ? head.dims[0] : -1;
    default:
        return chunk->expected_tokens;
    }
}

int64_t tinkc_input_length(const tinkc_input *input)
{
    int64_t sum = 0;
    for (size_t i = 0; input && i < input->n_chunks; i++) {
        int64_t n = chunk_length(&input->chunks[i]);
        if (n < 0 || __builtin_add_overflow(sum, n, &sum))
            return -1;
    }
    return sum;
}

size_t tinkc_input_count(const tinkc_input *input)
{
    return input ? input->n_chunks : 0;
}

const tinkc_chunk *tinkc_input_at(const tinkc_input *input, size_t i)
{
    return input && i < input->n_chunks ? &input->chunks[i] : NULL;
}

const tinkc_chunk *tkc_input_chunks(const tinkc_input *input, size_t *n)
{
    *n = input->n_chunks;
    return input->chunks;
}

bool tinkc_input_tokens(const tinkc_input *input, tinkc_tokens *out, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!input || !out)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: must not be NULL", input ? "out" : "input");
    for (size_t i = 0; i < input->n_chunks; i++)
        if (input->chunks[i].kind != TINKC_CHUNK_TOKENS)
            return tkc_fail(err, TINKC_E_UNSUPPORTED, "input: chunk %zu is not text", i);
    for (size_t i = 0; i < input->n_chunks; i++)
        if (!tinkc_tokens_append(out, input->chunks[i].tokens.data, input->chunks[i].tokens.len,
                                 err))
            return false;
    return true;
}
