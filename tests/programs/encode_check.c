/* encode_check.c - encode_check MODEL_DIR VECTORS.jsonl: holds the tokenizer against expected ids.
 *
 * One {"text": ..., "ids": [...], "special": false} a line; special: added tokens in the text are
 * understood; "add_special": begin and end marks are added. Without special the ids may be those
 * with no added token understood (tiktoken's ordinary encoding), or those with only the added
 * tokens that are not marked special (tokenizers' encode_special_tokens). Prints how many passed
 * and failed, and the first ten differences; ends with 1 if there is one. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/str.h"
#include "tinkc/tinkc.h"

enum { MOST_SHOWN = 10 };

typedef struct vector {
    tinkc_str text;
    tinkc_i32s ids;
    bool special, add_special;
} vector;

static bool read_vector(tinkc_str line, vector *v, tkc_arena *arena, tinkc_error *err)
{
    tkc_json j;
    tinkc_str key;
    *v = (vector){ .text = { "", 0 } };
    tkc_json_open(&j, line, arena, err);
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            if (tkc_str_is(key, "text"))
                v->text = tkc_json_string(&j);
            else if (tkc_str_is(key, "ids"))
                v->ids = tkc_json_i32s(&j);
            else if (tkc_str_is(key, "special"))
                v->special = tkc_json_bool(&j);
            else if (tkc_str_is(key, "add_special"))
                v->add_special = tkc_json_bool(&j);
            else
                tkc_json_skip(&j);
        }
    return tkc_json_close(&j);
}

static void show(size_t number, const vector *v, const tinkc_tokens *got, size_t at)
{
    printf("line %zu: %zu ids expected, %zu found; first difference at %zu:", number, v->ids.len, got->len, at);
    for (size_t i = at; i < at + 4 && i < v->ids.len; i++)
        printf(" %d", v->ids.data[i]);
    fputs(" expected,", stdout);
    for (size_t i = at; i < at + 4 && i < got->len; i++)
        printf(" %d", got->data[i]);
    printf(" found; text begins: %.*s\n", (int)(v->text.len < 60 ? v->text.len : 60), v->text.data);
}

/* Encodes; true if the ids are the wanted ones, else *at is the place of the first difference. */
static bool agrees(const tinkc_tokenizer *tok, const vector *v, int32_t special, tinkc_tokens *got, size_t *at,
                   tinkc_error *err)
{
    tinkc_encode_options o = { .special = special, .add_special = v->add_special };
    *at = got->len = 0;
    tinkc_encode_span(tok, v->text.data, v->text.len, &o, got, NULL, err);
    while (*at < got->len && *at < v->ids.len && got->data[*at] == v->ids.data[*at])
        ++*at;
    return !err->code && *at == got->len && *at == v->ids.len;
}

static bool check(const tinkc_tokenizer *tok, const vector *v, size_t number, bool print)
{
    tinkc_error err = { 0 };
    tinkc_tokens got = { 0 };
    size_t at;
    bool ok = !v->special && agrees(tok, v, TINKC_SPECIAL_SOME, &got, &at, &err);
    ok = ok || agrees(tok, v, v->special ? TINKC_SPECIAL_ALL : TINKC_SPECIAL_NONE, &got, &at, &err);
    if (!ok && print && err.code)
        printf("line %zu: %s\n", number, err.message);
    else if (!ok && print)
        show(number, v, &got, at);
    tinkc_tokens_free(&got);
    return ok;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fputs("usage: encode_check MODEL_DIR VECTORS.jsonl\n", stderr);
        return 2;
    }
    tinkc_error err = { 0 };
    tkc_arena arena = { 0 };
    tinkc_tokenizer_options o = { .no_compiled_cache = true };
    tinkc_tokenizer *tok = tinkc_tokenizer_open(argv[1], &o, &err);
    tinkc_bytes file = { NULL, 0 };
    if (tok)
        file = tkc_read_file(&arena, argv[2], (size_t)1 << 32, &err);
    tinkc_str rest = { (const char *)file.data, file.len }, line;
    size_t passed = 0, failed = 0, number = 0;
    while (file.data && tkc_str_cut(&rest, '\n', &line)) {
        vector v;
        number++;
        line = tkc_str_trim(line);
        if (line.len == 0)
            continue;
        if (!read_vector(line, &v, &arena, &err)) {
            printf("line %zu: ", number);
            break;
        }
        if (check(tok, &v, number, failed < MOST_SHOWN))
            passed++;
        else
            failed++;
    }
    if (err.code)
        printf("%s\n", err.message);
    printf("%zu passed, %zu failed\n", passed, failed);
    tinkc_tokenizer_free(tok);
    tkc_arena_free(&arena);
    return failed > 0 || err.code != 0 || passed == 0;
}
