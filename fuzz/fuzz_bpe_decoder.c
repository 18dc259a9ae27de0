/* fuzz_bpe_decoder.c - any row of ids, cut anywhere: the stream is the batch, and never half a
 * character. Two bytes an id; a zero high bit before an id ends a push. */
#include <stdint.h>
#include <string.h>

#include "tinkc/tinkc.h"
#include "unicode/unicode.h"

static tinkc_tokenizer *tok;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    tinkc_tokenizer_options o = { .no_compiled_cache = true };
    tinkc_error err = { 0 };
    tok = tinkc_tokenizer_open("tests/data/tokenizer/tiny", &o, &err);
    if (!tok)
        __builtin_trap();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { MOST = 512 };
    int32_t ids[MOST];
    bool cut[MOST];
    size_t n = size / 2 < MOST ? size / 2 : MOST, start = 0;
    tinkc_error err = { 0 };
    tinkc_text batch = { 0 }, stream = { 0 };
    for (size_t i = 0; i < n; i++) {
        uint32_t v = (uint32_t)data[2 * i] << 8 | data[2 * i + 1];
        ids[i] = (int32_t)(v & 0x1FF) - 2;
        cut[i] = v >> 15;
    }
    tinkc_decoder *d = tinkc_decoder_new(tok, NULL, &err);
    for (size_t i = 0; i < n; i++)
        if (cut[i] || i + 1 == n) {
            tinkc_decoder_push(d, ids + start, i + 1 - start, &stream, &err);
            if (tkc_utf8_sound((unsigned char *)stream.data, stream.len, NULL) != stream.len)
                __builtin_trap();
            start = i + 1;
        }
    tinkc_decoder_finish(d, &stream, &err);
    tinkc_decode(tok, ids, n, &batch, &err);
    if (err.code || stream.len != batch.len ||
        (batch.len && memcmp(stream.data, batch.data, batch.len) != 0))
        __builtin_trap();
    tinkc_decoder_free(d);
    tinkc_text_free(&batch);
    tinkc_text_free(&stream);
    return 0;
}
