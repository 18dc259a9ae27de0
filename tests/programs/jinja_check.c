/* jinja_check.c - runs small templates over one context and compares what comes out.
 *
 *     jinja_check UNITS.json
 *
 * UNITS.json: {"context": {...}, "cases": [{"template": ..., "text": ...} or {"template": ...,
 * "error": ..., "message": ...}]}. Prints how many passed and failed and the first ten differences;
 * exits with 1 if any failed, 2 if the file cannot be used. A template that uses what tinkc leaves out
 * (docs/templates.md) is counted apart, as long as the error names it. The clock stands at 2025-07-26
 * 15:04:05.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/str.h"
#include "tinkc/tokenizer.h"

enum { SHOWN = 10 };
static const int64_t frozen_us = 1753542245000000; /* 2025-07-26T15:04:05 */

typedef struct unit {
    tinkc_str source, text, error, message;
    bool fails;
} unit;

static void show(size_t *failed, const unit *u, const char *what, tinkc_str got)
{
    if ((*failed)++ >= SHOWN)
        return;
    printf("FAIL %.*s\n  %s: %.*s\n", (int)u->source.len, u->source.data, what, (int)got.len, got.data ? got.data : "");
    if (u->fails)
        printf("  wanted an error: %.*s %.*s\n", (int)u->error.len, u->error.data, (int)u->message.len,
               u->message.data);
    else
        printf("  wanted: %.*s\n", (int)u->text.len, u->text.data);
}

/* The error names one of the functions that are left out on purpose. */
static bool is_left_out(const char *message)
{
    static const char *const names[] = { "filesizeformat", "forceescape", "pprint",   "random",     "urlize",
                                         "wordwrap",       "xmlattr",     "casefold", "expandtabs", "format_map",
                                         "isidentifier",   "isprintable", "istitle",  "maketrans",  "translate",
                                         "cycler",         "joiner",      "lipsum" };
    const char *quote = strchr(message, '\'');
    for (size_t i = 0; quote && i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i]);
        if (strncmp(quote + 1, names[i], n) == 0 && strcmp(quote + 1 + n, "' is not supported") == 0)
            return true;
    }
    return false;
}

/* Long messages are cut in a tinkc_error. */
static bool is_message(const char *got, tinkc_str want)
{
    size_t n = strlen(got);
    return n == want.len ? memcmp(got, want.data, n) == 0 : n < want.len && n >= 390 && memcmp(got, want.data, n) == 0;
}

static size_t n_left_out;

static void run(const unit *u, const char *context, size_t *passed, size_t *failed)
{
    tinkc_error err = { 0 };
    tinkc_text out = { 0 };
    tinkc_template *t = tinkc_template_parse(u->source.data, u->source.len, NULL, &err);
    tinkc_template_render(t, context, frozen_us, &out, &err);
    bool raised = tkc_str_is(u->error, "TemplateError");
    if (u->fails && !err.code)
        show(failed, u, "no error", (tinkc_str){ out.data, out.len });
    else if (u->fails && raised && !is_message(err.message, u->message))
        show(failed, u, "another error", tkc_str(err.message));
    else if (!u->fails && err.code == TINKC_E_TEMPLATE && is_left_out(err.message))
        n_left_out++;
    else if (!u->fails && err.code)
        show(failed, u, "error", tkc_str(err.message));
    else if (!u->fails && !tkc_str_eq((tinkc_str){ out.data, out.len }, u->text))
        show(failed, u, "got", (tinkc_str){ out.data, out.len });
    else
        (*passed)++;
    tinkc_text_free(&out);
    tinkc_template_free(t);
}

static unit read_unit(tkc_json *j)
{
    unit u = { 0 };
    tinkc_str key;
    if (tkc_json_object(j))
        while (tkc_json_key(j, &key)) {
            if (tkc_str_is(key, "template"))
                u.source = tkc_json_string(j);
            else if (tkc_str_is(key, "text"))
                u.text = tkc_json_string(j);
            else if (tkc_str_is(key, "error")) {
                u.error = tkc_json_string(j);
                u.fails = true;
            } else if (tkc_str_is(key, "message"))
                u.message = tkc_json_string(j);
            else
                tkc_json_skip(j);
        }
    return u;
}

static bool check(tinkc_str file, tkc_arena *arena, size_t *passed, size_t *failed, tinkc_error *err)
{
    tkc_json j;
    tinkc_str key, context = tkc_str("{}");
    tkc_json_open(&j, file, arena, err);
    if (tkc_json_object(&j)) /* the context first, wherever it stands */
        while (tkc_json_key(&j, &key)) {
            tinkc_str value = tkc_json_skip(&j);
            if (tkc_str_is(key, "context"))
                context = value;
        }
    const char *variables = tkc_arena_str(arena, context, err);
    tkc_json_open(&j, file, arena, err);
    if (variables && tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            if (!tkc_str_is(key, "cases")) {
                tkc_json_skip(&j);
                continue;
            }
            tkc_json_array(&j);
            while (tkc_json_item(&j)) {
                unit u = read_unit(&j);
                if (!tkc_failed(err))
                    run(&u, variables, passed, failed);
            }
        }
    return tkc_json_close(&j);
}

int main(int argc, char **argv)
{
    tinkc_error err = { 0 };
    tkc_arena arena = { 0 };
    size_t passed = 0, failed = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: jinja_check UNITS.json\n");
        return 2;
    }
    tinkc_bytes file = tkc_read_file(&arena, argv[1], (size_t)1 << 30, &err);
    bool ok = file.data && check((tinkc_str){ (const char *)file.data, file.len }, &arena, &passed, &failed, &err);
    if (!ok)
        fprintf(stderr, "jinja_check: %s: %s\n", argv[1], err.message);
    printf("%zu passed, %zu failed", passed, failed);
    if (n_left_out)
        printf(", %zu refused by name", n_left_out);
    printf("\n");
    tkc_arena_free(&arena);
    return !ok ? 2 : failed ? 1 : 0;
}
