/* multipart.c - multipart/form-data bodies. May touch: the buffer it was given. */
#include "codec/multipart.h"

#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/json_read.h"
#include "base/str.h"

void tkc_multipart_open(tkc_multipart *m, tkc_buf *out, const tinkc_clock *clock, tinkc_error *err)
{
    assert(out && clock && err);
    static const char hex[] = "0123456789abcdef";
    *m = (tkc_multipart){ .out = out, .err = err };
    for (int word = 0; word < 2; word++) {
        uint64_t bits = tkc_random(clock);
        for (int i = 0; i < 16; i++, bits >>= 4)
            m->boundary[word * 16 + i] = hex[bits & 15];
    }
}

bool tkc_multipart_type(const tkc_multipart *m, tkc_buf *out, tinkc_error *err)
{
    return tkc_buf_cstr(out, "multipart/form-data; boundary=", err) &&
           tkc_buf_cstr(out, m->boundary, err);
}

/* In quotes, as browsers write it: '"' and line ends percent-encoded. */
static void put_quoted(tkc_multipart *m, const char *text)
{
    tkc_buf_char(m->out, '"', m->err);
    for (; *text; text++) {
        if (*text == '"')
            tkc_buf_cstr(m->out, "%22", m->err);
        else if (*text == '\r')
            tkc_buf_cstr(m->out, "%0D", m->err);
        else if (*text == '\n')
            tkc_buf_cstr(m->out, "%0A", m->err);
        else
            tkc_buf_char(m->out, *text, m->err);
    }
    tkc_buf_char(m->out, '"', m->err);
}

void tkc_multipart_head(tkc_multipart *m, const char *name, const char *filename,
                        const char *content_type)
{
    assert(name && m->boundary[0]);
    if (content_type && strpbrk(content_type, "\r\n")) {
        tkc_fail(m->err, TINKC_E_ARGUMENT, "a part's content type has a line end in it");
        return;
    }
    tkc_buf_cstr(m->out, "--", m->err);
    tkc_buf_cstr(m->out, m->boundary, m->err);
    tkc_buf_cstr(m->out, "\r\nContent-Disposition: form-data; name=", m->err);
    put_quoted(m, name);
    if (filename) {
        tkc_buf_cstr(m->out, "; filename=", m->err);
        put_quoted(m, filename);
    }
    if (content_type || filename) {
        tkc_buf_cstr(m->out, "\r\nContent-Type: ", m->err);
        tkc_buf_cstr(m->out, content_type ? content_type : "application/octet-stream", m->err);
    }
    tkc_buf_cstr(m->out, "\r\n\r\n", m->err);
}

void tkc_multipart_tail(tkc_multipart *m)
{
    tkc_buf_cstr(m->out, "\r\n", m->err);
}

void tkc_multipart_text(tkc_multipart *m, const char *name, tinkc_str value)
{
    tkc_multipart_head(m, name, NULL, NULL);
    tkc_buf_str(m->out, value, m->err);
    tkc_multipart_tail(m);
}

void tkc_multipart_bytes(tkc_multipart *m, const char *name, const char *filename,
                         const char *content_type, const void *data, size_t len)
{
    const char *type = content_type ? content_type : "application/octet-stream";
    tkc_multipart_head(m, name, filename, type);
    tkc_buf_add(m->out, data, len, m->err);
    tkc_multipart_tail(m);
}

bool tkc_multipart_close(tkc_multipart *m)
{
    tkc_buf_cstr(m->out, "--", m->err);
    tkc_buf_cstr(m->out, m->boundary, m->err);
    tkc_buf_cstr(m->out, "--\r\n", m->err);
    return !tkc_failed(m->err);
}

bool tkc_multipart_collides(const tkc_multipart *m, const void *data, size_t len)
{
    char mark[sizeof m->boundary + 2];
    size_t n = strlen(m->boundary);
    assert(n + 2 <= sizeof mark);
    memcpy(mark, "--", 2);
    memcpy(mark + 2, m->boundary, n);
    return len && memmem(data, len, mark, n + 2) != NULL;
}

/* ---- JSON objects as parts ---- */

typedef struct walk {
    tkc_multipart *m;
    tkc_json *j;
    tkc_buf name;
} walk;

static void put_value(walk *w);

static void put_scalar(walk *w)
{
    tinkc_str value;
    if (tkc_json_peek(w->j) == TKC_JSON_STRING)
        value = tkc_json_string(w->j);
    else
        value = tkc_json_null(w->j) ? tkc_strn(NULL, 0) : tkc_json_skip(w->j);
    const char *name = tkc_buf_terminate(&w->name, w->m->err);
    if (name && value.len)
        tkc_multipart_text(w->m, name, value);
}

static void put_members(walk *w)
{
    tinkc_str key;
    size_t before = w->name.len;
    tkc_json_object(w->j);
    while (tkc_json_key(w->j, &key)) {
        if (before)
            tkc_buf_char(&w->name, '[', w->m->err);
        if (tkc_str_find(key, '\0') != key.len)
            tkc_json_fail(w->j, "U+0000 in a key");
        tkc_buf_str(&w->name, key, w->m->err);
        if (before)
            tkc_buf_char(&w->name, ']', w->m->err);
        put_value(w);
        assert(w->name.len >= before);
        w->name.len = before;
    }
}

static void put_items(walk *w)
{
    size_t before = w->name.len;
    tkc_buf_cstr(&w->name, "[]", w->m->err);
    tkc_json_array(w->j);
    while (tkc_json_item(w->j))
        put_value(w);
    w->name.len = before;
}

/* Recursion is bounded by the reader's depth. */
static void put_value(walk *w)
{
    switch (tkc_json_peek(w->j)) {
    case TKC_JSON_OBJECT:
        put_members(w);
        break;
    case TKC_JSON_ARRAY:
        put_items(w);
        break;
    case TKC_JSON_ERROR:
        break;
    default:
        put_scalar(w);
        break;
    }
}

bool tkc_multipart_json(tkc_multipart *m, tinkc_str object)
{
    tkc_arena arena;
    tkc_json j;
    walk w = { .m = m, .j = &j };
    tkc_arena_init(&arena, m->out->a, 0);
    tkc_buf_init(&w.name, m->out->a, TKC_BUF_NO_MAX);
    tkc_json_open(&j, object, &arena, m->err);
    j.code = TINKC_E_ARGUMENT;
    if (tkc_json_peek(&j) == TKC_JSON_OBJECT)
        put_members(&w);
    else
        tkc_json_fail(&j, "an object is needed");
    tkc_json_close(&j);
    tkc_buf_free(&w.name);
    tkc_arena_free(&arena);
    return !tkc_failed(m->err);
}
