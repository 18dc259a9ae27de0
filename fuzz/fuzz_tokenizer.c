/* fuzz_tokenizer.c - tokenizer.json from anybody: it is refused, or it encodes and decodes without
 * harm. What stands behind a line "----" is encoded with it; what stands behind a second one is its
 * tokenizer_config.json. */
#include <stdint.h>
#include <string.h>

#include "base/str.h"
#include "tinkc/tinkc.h"

/* Cuts *from before a line "----"; *rest is what stands behind it. */
static bool cut_at_mark(tinkc_str *from, tinkc_str *rest)
{
    static const char mark[] = "\n----\n";
    const char *cut = memmem(from->data, from->len, mark, sizeof mark - 1);
    if (!cut)
        return false;
    size_t len = (size_t)(cut - from->data);
    *rest = tkc_strn(cut + sizeof mark - 1, from->len - len - (sizeof mark - 1));
    from->len = len;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tinkc_str json = { (const char *)data, size }, text, config;
    bool has_text = cut_at_mark(&json, &text), has_config = has_text && cut_at_mark(&text, &config);
    if (!has_text)
        text = tkc_str("the <|end|> cafe\xCC\x81 \xE4\xB8\xAD");
    if (!has_config)
        config = size < 4000 ? json : (tinkc_str){ NULL, 0 };
    tinkc_error err = { 0 };
    tinkc_tokenizer *tok =
        tinkc_tokenizer_parse(json.data, json.len, config.data, config.len, NULL, &err);
    if (!tok) {
        if (!err.message[0] || strchr(err.message, '\n'))
            __builtin_trap(); /* one line that says why */
        return 0;
    }
    tinkc_tokens ids = { 0 };
    tinkc_sizes offsets = { 0 };
    tinkc_text back = { 0 };
    tinkc_encode_options o = { .any_bytes = true, .add_special = true };
    if (tinkc_encode_span(tok, text.data, text.len, &o, &ids, &offsets, &err)) {
        if (offsets.len != 2 * ids.len)
            __builtin_trap();
        for (size_t i = 0; i < offsets.len; i++)
            if (offsets.data[i] > text.len)
                __builtin_trap();
        tinkc_decode(tok, ids.data, ids.len, &back, &err);
    }
    tinkc_tokens_free(&ids);
    tinkc_sizes_free(&offsets);
    tinkc_text_free(&back);
    tinkc_tokenizer_free(tok);
    return 0;
}
