/* template_check.c - renders every template over every case and compares with what is wanted.
 *
 *     template_check TEMPLATE_DIR CASES.json GOLDEN.json
 *
 * CASES.json: {name: {"messages": [...], "tools": ..., "kwargs": {...}}}. GOLDEN.json: {file:
 * {"bos_token", "eos_token", "results": {case: {"text": ...} or {"error": ...}}}}; or, for
 * conversations whose last message continues, {"cases": {name: messages}, "results": {file: {case:
 * {"text"} or {"error"}}}}, which takes the marks of begin and end from golden.json beside it.
 * Prints how many passed and failed and the first ten differences; exits with 1 if any failed, 2 if
 * a file cannot be used. The clock stands at 2025-07-26 15:04:05.
 */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json_read.h"
#include "base/json_write.h"
#include "base/str.h"
#include "tinkc/tokenizer.h"
#include "chat/chat.h"

enum { SHOWN = 10, MAX_FILE = 1 << 28 };
static const int64_t frozen_us = 1753542245000000; /* 2025-07-26T15:04:05 */

typedef struct checker {
    tkc_arena arena;
    tinkc_error err; /* of the files, not of the templates */
    const char *dir;
    tinkc_str cases, golden;
    size_t passed, failed;
} checker;

typedef struct wanted {
    tinkc_str text, error;
    bool fails;
} wanted;

/* The raw text of a member; data NULL if it is not there. */
static tinkc_str member(checker *c, tinkc_str object, tinkc_str name)
{
    tkc_json j;
    tinkc_str key, found = { 0 };
    tkc_json_open(&j, object, &c->arena, &c->err);
    if (object.data && tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            tinkc_str value = tkc_json_skip(&j);
            if (tkc_str_eq(key, name))
                found = value;
        }
    return found;
}

static tinkc_str string_member(checker *c, tinkc_str object, const char *name)
{
    tinkc_str raw = member(c, object, tkc_str(name));
    tkc_json j;
    if (!raw.data || raw.data[0] != '"')
        return (tinkc_str){ 0 };
    tkc_json_open(&j, raw, &c->arena, &c->err);
    return tkc_json_string(&j);
}

static const char *terminated(checker *c, tinkc_str s)
{
    return s.data ? tkc_arena_str(&c->arena, s, &c->err) : NULL;
}

static void show(checker *c, const char *file, tinkc_str name, const char *what, tinkc_str got, const wanted *w)
{
    if (c->failed++ >= SHOWN)
        return;
    tinkc_str want = w->fails ? w->error : w->text;
    size_t same = 0;
    while (same < got.len && same < want.len && got.data[same] == want.data[same])
        same++;
    size_t from = same > 40 ? same - 40 : 0;
    printf("FAIL %s, %.*s: %s (first difference at byte %zu)\n", file, (int)name.len, name.data, what, same);
    printf("  got:    ...%.*s\n", (int)(got.len - from > 160 ? 160 : got.len - from), got.data ? got.data + from : "");
    printf("  wanted: ...%.*s\n", (int)(want.len - from > 160 ? 160 : want.len - from),
           want.data ? want.data + from : "");
}

static void compare(checker *c, const char *file, tinkc_str name, const wanted *w, const tinkc_text *out,
                    const tinkc_error *err)
{
    static const char raised[] = "TemplateError: ";
    tinkc_str got = { out->data ? out->data : "", out->len };
    if (w->fails && !err->code) {
        show(c, file, name, "no error", got, w);
    } else if (w->fails && tkc_starts_with(w->error, raised)) {
        tinkc_str text = { w->error.data + sizeof raised - 1, w->error.len - sizeof raised + 1 };
        size_t n = strlen(err->message); /* long messages are cut */
        if (text.len < n || (text.len > n && n < 390) || memcmp(text.data, err->message, n) != 0)
            show(c, file, name, "another error", tkc_str(err->message), w);
        else
            c->passed++;
    } else if (!w->fails && err->code) {
        show(c, file, name, "error", tkc_str(err->message), w);
    } else if (!w->fails && !tkc_str_eq(got, w->text)) {
        show(c, file, name, "other text", got, w);
    } else {
        c->passed++;
    }
}

/* The kwargs of a case as the options that stand for them; the rest are variables. */
static void read_kwargs(checker *c, tinkc_str kwargs, tinkc_chat_options *o)
{
    tkc_buf buf;
    tkc_jsonw w;
    tkc_json j;
    tinkc_str key;
    tkc_buf_init(&buf, NULL, MAX_FILE);
    tkc_jsonw_open(&w, &buf, &c->err);
    tkc_jsonw_object(&w);
    tkc_json_open(&j, kwargs.data ? kwargs : tkc_str("{}"), &c->arena, &c->err);
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            tinkc_str value = tkc_json_skip(&j);
            if (tkc_str_is(key, "add_generation_prompt")) {
                o->generation_prompt = tkc_str_is(value, "true");
            } else if (tkc_str_is(key, "documents")) {
                o->documents_json = tkc_str_is(value, "null") ? NULL : terminated(c, value);
            } else {
                tkc_jsonw_key_str(&w, key);
                tkc_jsonw_raw(&w, value);
            }
        }
    tkc_jsonw_end(&w);
    o->variables_json = terminated(c, tkc_buf_view(&buf));
    tkc_buf_free(&buf);
}

/* One template, one case. `whole` has messages, tools, kwargs; or it is the messages themselves. */
static void run_case(checker *c, const char *file, const tinkc_template *t, tinkc_str bos, tinkc_str eos,
                     tinkc_str name, tinkc_str whole, const wanted *w, bool continues)
{
    tinkc_chat_options o = { .now_us = frozen_us };
    tinkc_error err = { 0 };
    tinkc_text out = { 0 };
    tinkc_str messages = whole, tools = { 0 };
    if (continues) {
        o.continue_field = "content";
    } else {
        messages = member(c, whole, tkc_str("messages"));
        tools = member(c, whole, tkc_str("tools"));
        read_kwargs(c, member(c, whole, tkc_str("kwargs")), &o);
    }
    o.tools_json = !tools.data || tkc_str_is(tools, "null") ? NULL : terminated(c, tools);
    tkc_chat_source source = { .t = t, .n_names = 0 };
    if (bos.data)
        source.names[source.n_names++] = (tkc_chat_name){ "bos_token", bos };
    if (eos.data)
        source.names[source.n_names++] = (tkc_chat_name){ "eos_token", eos };
    const char *text = terminated(c, messages);
    if (text && !tkc_failed(&c->err)) {
        tkc_chat_text(&source, text, &o, &out, &err);
        compare(c, file, name, w, &out, &err);
    }
    tinkc_text_free(&out);
}

/* All results of one template. */
static void run_template(checker *c, const char *file, tinkc_str marks, tinkc_str results, tinkc_str cases,
                         bool continues)
{
    tinkc_error err = { 0 };
    char *path = tkc_path_join(&c->arena, c->dir, file, &c->err);
    tinkc_bytes text = path ? tkc_read_file(&c->arena, path, MAX_FILE, &c->err) : (tinkc_bytes){ 0 };
    if (!text.data)
        return;
    tinkc_template *t = tinkc_template_parse((const char *)text.data, text.len, NULL, &err);
    tinkc_str bos = string_member(c, marks, "bos_token"), eos = string_member(c, marks, "eos_token");
    tinkc_str name;
    tkc_json j;
    tkc_json_open(&j, results, &c->arena, &c->err);
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &name)) {
            tinkc_str result = tkc_json_skip(&j);
            wanted w = { .error = string_member(c, result, "error"), .text = string_member(c, result, "text") };
            w.fails = w.error.data != NULL;
            if (!t) {
                tinkc_text none = { 0 };
                compare(c, file, name, &w, &none, &err);
                continue;
            }
            run_case(c, file, t, bos, eos, name, member(c, cases, name), &w, continues);
        }
    tinkc_template_free(t);
}

static bool run_all(checker *c)
{
    tinkc_str results = member(c, c->golden, tkc_str("results"));
    tinkc_str own_cases = member(c, c->golden, tkc_str("cases"));
    bool continues = own_cases.data != NULL && results.data != NULL;
    tinkc_str marks = c->golden, cases = continues ? own_cases : c->cases;
    if (continues) {
        char *path = tkc_path_join(&c->arena, c->dir, "golden.json", &c->err);
        tinkc_bytes b = path ? tkc_read_file(&c->arena, path, MAX_FILE, &c->err) : (tinkc_bytes){ 0 };
        marks = (tinkc_str){ (const char *)b.data, b.len };
    }
    tkc_json j;
    tinkc_str file;
    tkc_json_open(&j, continues ? results : c->golden, &c->arena, &c->err);
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &file)) {
            tinkc_str entry = tkc_json_skip(&j);
            const char *name = terminated(c, file);
            tinkc_str inner = continues ? entry : member(c, entry, tkc_str("results"));
            if (name && inner.data)
                run_template(c, name, continues ? member(c, marks, file) : entry, inner, cases, continues);
        }
    return !tkc_failed(&c->err);
}

int main(int argc, char **argv)
{
    checker c = { 0 };
    if (argc != 4) {
        fprintf(stderr, "usage: template_check TEMPLATE_DIR CASES.json GOLDEN.json\n");
        return 2;
    }
    c.dir = argv[1];
    tinkc_bytes cases = tkc_read_file(&c.arena, argv[2], MAX_FILE, &c.err);
    tinkc_bytes golden = tkc_read_file(&c.arena, argv[3], MAX_FILE, &c.err);
    c.cases = (tinkc_str){ (const char *)cases.data, cases.len };
    c.golden = (tinkc_str){ (const char *)golden.data, golden.len };
    bool ok = cases.data && golden.data && run_all(&c);
    if (!ok)
        fprintf(stderr, "template_check: %s\n", c.err.message);
    printf("%zu passed, %zu failed\n", c.passed, c.failed);
    tkc_arena_free(&c.arena);
    return !ok ? 2 : c.failed ? 1 : 0;
}
