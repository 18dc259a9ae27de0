/* fuzz_tokenizer.c - tokenizer.json from anybody: it is refused, or it encodes and decodes without
 * harm. What stands behind a line "----" is encoded with it. */
#include <stdint.h>
#include <string.h>

#include "tinkc/tinkc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char mark[] = "\n----\n";
    const uint8_t *cut = memmem(data, size, mark, sizeof mark - 1);
    size_t len = cut ? (size_t)(cut - data) : size;
    const char *text =
        cut ? (const char *)cut + sizeof mark - 1 : "the <|end|> cafe\xCC\x81 \xE4\xB8\xAD";
    size_t text_len = cut ? size - len - (sizeof mark - 1) : strlen(text);
    tinkc_error err = { 0 };
    tinkc_tokenizer *tok = tinkc_tokenizer_parse((const char *)data, len, (const char *)data,
                                                 len < 4000 ? len : 0, NULL, &err);
    if (!tok)
        return 0;
    tinkc_tokens ids = { 0 };
    tinkc_sizes offsets = { 0 };
    tinkc_text back = { 0 };
    tinkc_encode_options o = { .any_bytes = true, .add_special = true };
    if (tinkc_encode_span(tok, text, text_len, &o, &ids, &offsets, &err)) {
        if (offsets.len != 2 * ids.len)
            __builtin_trap();
        for (size_t i = 0; i < offsets.len; i++)
            if (offsets.data[i] > text_len)
                __builtin_trap();
        tinkc_decode(tok, ids.data, ids.len, &back, &err);
    }
    tinkc_tokens_free(&ids);
    tinkc_sizes_free(&offsets);
    tinkc_text_free(&back);
    tinkc_tokenizer_free(tok);
    return 0;
}
