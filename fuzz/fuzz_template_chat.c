/* fuzz_template_chat.c - the training view of hostile conversations under hostile templates: a byte
 * that chooses the rule, the template, a NUL, the messages.
 *
 * Whatever comes: tokens and weights are as many, examples end in order, and the tokens of a whole
 * conversation are the text that the template writes. */
#include <stdlib.h>
#include <string.h>

#include "base/json_write.h"
#include "tinkc/tokenizer.h"
#include "chat/template.h"

static const char talk[] =
    "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
    "\"content\": \"b\", \"reasoning_content\": \"r\"}, {\"role\": \"user\", "
    "\"content\": \"c\"}, {\"role\": \"assistant\", \"content\": \"d\"}]";

/* One token a byte and three marks. Kept for all inputs. */
static tinkc_tokenizer *tokenizer(void)
{
    static tinkc_tokenizer *tok;
    static const char config[] = "{\"eos_token\": \"<e>\", \"bos_token\": \"<s>\"}";
    tinkc_error err = { 0 };
    tkc_buf json;
    if (tok)
        return tok;
    tkc_buf_init(&json, NULL, TKC_BUF_NO_MAX);
    tkc_buf_cstr(
        &json,
        "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": 256, \"content\": \"<e>\", "
        "\"special\": true}, {\"id\": 257, \"content\": \"<s>\", \"special\": true}, {\"id\": "
        "258, \"content\": \"<think>\", \"special\": false, \"normalized\": false}], "
        "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
        "\"trim_offsets\": false, \"use_regex\": false}, \"decoder\": {\"type\": "
        "\"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {",
        &err);
    unsigned other = 0x100;
    for (unsigned b = 0; b < 256; b++) {
        bool plain = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        tkc_buf_printf(&json, &err, "%s\"\\u%04x\": %u", b ? ", " : "", plain ? b : other++, b);
    }
    tkc_buf_cstr(&json, "}}}", &err);
    tok = tinkc_tokenizer_parse(json.data, json.len, config, sizeof config - 1, NULL, &err);
    tkc_buf_free(&json);
    if (!tok)
        abort();
    return tok;
}

static void check(const tinkc_tokenizer *tok, const char *messages, const tinkc_chat_options *o)
{
    tinkc_tokens ids = { 0 };
    tinkc_floats weights = { 0 };
    tinkc_sizes ends = { 0 };
    tinkc_text text = { 0 }, back = { 0 };
    tinkc_error err = { 0 }, none = { 0 };
    bool ok = tinkc_chat_train(tok, messages, o, &ids, &weights, &ends, &err);
    if (ids.len != weights.len || (!ok && (ids.len || ends.len || !err.code)))
        abort();
    for (size_t i = 0; i < ends.len; i++)
        if (ends.data[i] > ids.len || (i && ends.data[i] < ends.data[i - 1]))
            abort();
    tinkc_decode_options raw = { .raw_bytes = true };
    if (ok && !o->split_turns && o->train_on != TINKC_TRAIN_MARKED &&
        tinkc_decode_span(tok, ids.data, ids.len, &raw, &back, &none)) {
        tinkc_chat_options same = *o;
        same.variables_json = "{\"tinkc_training\": true}";
        if (!tinkc_chat_render(tok, messages, &same, &text, &none) || text.len != back.len ||
            (text.len && memcmp(text.data, back.data, text.len) != 0))
            abort();
    }
    tinkc_tokens_free(&ids);
    tinkc_floats_free(&weights);
    tinkc_sizes_free(&ends);
    tinkc_text_free(&text);
    tinkc_text_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    const uint8_t *text = data + 1, *nul = memchr(text, 0, size - 1);
    size_t len = nul ? (size_t)(nul - text) : size - 1;
    tinkc_error err = { 0 };
    tkc_arena arena = { 0 };
    const char *messages =
        nul ? tkc_arena_str(&arena, tkc_strn((const char *)nul + 1, size - len - 2), &err) : talk;
    tinkc_template *t = tinkc_template_parse((const char *)text, len, NULL, &err);
    if (t) {
        tinkc_chat_options o = { .chat_template = t,
                                 .train_on = data[0] % 7,
                                 .split_turns = (data[0] & 0x40) != 0,
                                 .max_steps = 20000,
                                 .max_bytes = 1 << 14,
                                 .now_us = 1 };
        check(tokenizer(), messages, &o);
    }
    tinkc_template_free(t);
    tkc_arena_free(&arena);
    return 0;
}
