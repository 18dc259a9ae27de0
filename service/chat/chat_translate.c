/* chat_translate.c - see chat_translate.h. Touches only its arguments. */
#include "service/chat/chat_translate.h"

#include "base/str.h"

bool tke_chat_wrong(tinkc_error *err, const char *what)
{
    return tkc_failed(err) ? false : tkc_fail(err, TINKC_E_BAD_REQUEST, "%s", what);
}

bool tke_chat_wrong_member(tinkc_error *err, const char *where, tinkc_str key)
{
    if (tkc_failed(err))
        return false;
    return tkc_fail(err, TINKC_E_BAD_REQUEST, "%s: this server does not support '%.*s'", where,
                    (int)(key.len < 60 ? key.len : 60), key.data ? key.data : "");
}

tkc_json tke_chat_reader(tinkc_str text, tkc_arena *arena, tinkc_error *err)
{
    tkc_json j;
    tkc_json_open(&j, text, arena, err);
    j.code = TINKC_E_BAD_REQUEST;
    return j;
}

/* A copy in the arena; data NULL: err says why. */
static tinkc_str keep_text(tkc_arena *arena, const tkc_buf *b, tinkc_error *err)
{
    const char *copy = tkc_failed(err) ? NULL : tkc_arena_str(arena, tkc_buf_view(b), err);
    return copy ? tkc_strn(copy, b->len) : (tinkc_str){ 0 };
}

bool tke_chat_texts(tinkc_str value, const char *where, tkc_arena *arena, tke_chat_part_fn *part,
                    tkc_buf *out, tinkc_error *err)
{
    tkc_json j = tke_chat_reader(value, arena, err);
    if (!value.data || tkc_json_null(&j))
        return !tkc_failed(err);
    if (tkc_json_peek(&j) == TKC_JSON_STRING) {
        tinkc_str s = tkc_json_string(&j);
        return tkc_buf_add(out, s.data, s.len, err);
    }
    (void)tkc_json_array(&j);
    while (tkc_json_item(&j)) {
        tinkc_str text = part(&j, where);
        if (!tkc_failed(err))
            tkc_buf_add(out, text.data, text.len, err);
    }
    return !tkc_failed(err);
}

/* ---- messages ---- */

void tke_chat_writer_open(tke_chat_writer *t, tkc_arena *arena, tinkc_error *err)
{
    *t = (tke_chat_writer){ .arena = arena, .err = err };
    tkc_buf *const all[] = { &t->out, &t->text, &t->thought, &t->calls };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tkc_buf_init(all[i], arena->a, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&t->w, &t->out, err);
    tkc_jsonw_array(&t->w);
}

tinkc_str tke_chat_writer_close(tke_chat_writer *t)
{
    tkc_jsonw_end(&t->w);
    tinkc_str made = keep_text(t->arena, &t->out, t->err);
    tkc_buf *const all[] = { &t->out, &t->text, &t->thought, &t->calls };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tkc_buf_free(all[i]);
    return made;
}

static void begin_message(tke_chat_writer *t, const char *role, tinkc_str text)
{
    tkc_jsonw_object(&t->w);
    tkc_jsonw_key(&t->w, "role");
    tkc_jsonw_cstr(&t->w, role);
    tkc_jsonw_key(&t->w, "content");
    tkc_jsonw_str(&t->w, tkc_strn(text.data ? text.data : "", text.len));
}

void tke_chat_flush(tke_chat_writer *t, const char *role)
{
    if (!t->any)
        return;
    begin_message(t, role, tkc_buf_view(&t->text));
    if (t->thought.len) {
        tkc_jsonw_key(&t->w, "reasoning_content");
        tkc_jsonw_str(&t->w, tkc_buf_view(&t->thought));
    }
    if (t->calls.len) {
        tkc_jsonw_key(&t->w, "tool_calls");
        tkc_jsonw_array(&t->w);
        tkc_jsonw_raw(&t->w, tkc_buf_view(&t->calls));
        tkc_jsonw_end(&t->w);
    }
    tkc_jsonw_end(&t->w);
    tkc_buf_clear(&t->text);
    tkc_buf_clear(&t->thought);
    tkc_buf_clear(&t->calls);
    t->any = false;
}

void tke_chat_message(tke_chat_writer *t, const char *role, tinkc_str call_id, tinkc_str text)
{
    begin_message(t, role, text);
    if (call_id.data) {
        tkc_jsonw_key(&t->w, "tool_call_id");
        tkc_jsonw_str(&t->w, call_id);
    }
    tkc_jsonw_end(&t->w);
}

void tke_chat_call(tke_chat_writer *t, tinkc_str id, tinkc_str name, tinkc_str arguments,
                   bool is_text)
{
    tkc_jsonw w;
    if (t->calls.len)
        tkc_buf_cstr(&t->calls, ",", t->err);
    tkc_jsonw_open(&w, &t->calls, t->err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "id");
    tkc_jsonw_str(&w, id);
    tkc_jsonw_key(&w, "type");
    tkc_jsonw_cstr(&w, "function");
    tkc_jsonw_key(&w, "function");
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "name");
    tkc_jsonw_str(&w, name);
    tkc_jsonw_key(&w, "arguments");
    if (is_text)
        tkc_jsonw_str(&w, arguments);
    else
        tkc_jsonw_raw(&w, arguments);
    tkc_jsonw_end(&w);
    tkc_jsonw_end(&w);
    t->any = true;
}

/* ---- tools ---- */

tinkc_str tke_chat_tools(tinkc_str tools, tkc_arena *arena, tke_chat_tool_fn *fn, tinkc_error *err)
{
    tkc_buf out;
    tkc_jsonw w;
    tkc_json j = tke_chat_reader(tools, arena, err);
    tkc_buf_init(&out, arena->a, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&w, &out, err);
    tkc_jsonw_array(&w);
    if (tkc_json_array(&j))
        while (tkc_json_item(&j))
            fn(&j, &w, err);
    tkc_jsonw_end(&w);
    tinkc_str made = keep_text(arena, &out, err);
    tkc_buf_free(&out);
    return made;
}

void tke_chat_tool(tkc_jsonw *w, tinkc_str name, tinkc_str about, tinkc_str schema)
{
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "type");
    tkc_jsonw_cstr(w, "function");
    tkc_jsonw_key(w, "function");
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "name");
    tkc_jsonw_str(w, name);
    if (about.data) {
        tkc_jsonw_key(w, "description");
        tkc_jsonw_str(w, about);
    }
    tkc_jsonw_key(w, "parameters");
    tkc_jsonw_raw(w, schema.data ? schema : tkc_str("{}"));
    tkc_jsonw_end(w);
    tkc_jsonw_end(w);
}

tinkc_str tke_chat_named_choice(tinkc_str name, tkc_arena *arena, tinkc_error *err)
{
    tkc_buf b;
    tkc_jsonw w;
    tkc_buf_init(&b, arena->a, TKC_BUF_NO_MAX);
    tkc_buf_cstr(&b, "{\"type\":\"function\",\"function\":{\"name\":", err);
    tkc_jsonw_open(&w, &b, err);
    tkc_jsonw_str(&w, name);
    tkc_buf_cstr(&b, "}}", err);
    tinkc_str made = keep_text(arena, &b, err);
    tkc_buf_free(&b);
    return made;
}
