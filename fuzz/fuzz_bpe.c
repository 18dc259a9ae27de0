/* fuzz_bpe.c - any bytes through a tokenizer and back: decode(encode(x)) = x where nothing is
 * normalised; streams in pieces give what batches give; threads, offsets and cold caches change
 * nothing. The first byte chooses how. Needs the repository as its working folder. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tinkc/tinkc.h"

static tinkc_tokenizer *tok;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    tinkc_tokenizer_options o = { .no_compiled_cache = true };
    tinkc_error err = { 0 };
    const char *path = getenv("TINKC_FUZZ_TOKENIZER");
    tok = tinkc_tokenizer_open(path ? path : "tests/data/tokenizer/tiny", &o, &err);
    if (!tok)
        __builtin_trap();
    return 0;
}

static void must(bool ok)
{
    if (!ok)
        __builtin_trap();
}

static void check_stream(const tinkc_tokens *ids, size_t step)
{
    tinkc_error err = { 0 };
    tinkc_text batch = { 0 }, stream = { 0 };
    tinkc_decode(tok, ids->data, ids->len, &batch, &err);
    tinkc_decoder *d = tinkc_decoder_new(tok, NULL, &err);
    for (size_t at = 0; at < ids->len; at += step)
        tinkc_decoder_push(d, ids->data + at, ids->len - at < step ? ids->len - at : step, &stream,
                           &err);
    must(tinkc_decoder_finish(d, &stream, &err));
    must(stream.len == batch.len &&
         (!batch.len || memcmp(stream.data, batch.data, batch.len) == 0));
    tinkc_decoder_free(d);
    tinkc_text_free(&batch);
    tinkc_text_free(&stream);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    tinkc_error err = { 0 };
    tinkc_tokens ids = { 0 }, again = { 0 };
    tinkc_sizes offsets = { 0 };
    tinkc_text back = { 0 };
    tinkc_encode_options o = { .special = data[0] % 3, .any_bytes = true };
    tinkc_decode_options raw = { .raw_bytes = true };
    const char *text = (const char *)data + 1;
    must(tinkc_encode_span(tok, text, size - 1, &o, &ids, NULL, &err));
    must(tinkc_encode_span(tok, text, size - 1, &o, &again, &offsets, &err));
    must(ids.len == again.len &&
         (!ids.len || memcmp(ids.data, again.data, ids.len * sizeof *ids.data) == 0));
    must(tinkc_decode_span(tok, ids.data, ids.len, &raw, &back, &err));
    /* One token of the tiny tokenizer swallows white space around it. */
    if (!memmem(data, size, "<|strip|>", 9))
        must(back.len == size - 1 && memcmp(back.data, text, size - 1) == 0);
    check_stream(&ids, data[0] / 3 % 5 + 1);
    tinkc_tokens_free(&ids);
    tinkc_tokens_free(&again);
    tinkc_sizes_free(&offsets);
    tinkc_text_free(&back);
    return 0;
}
