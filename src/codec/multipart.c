/* multipart.c - multipart/form-data bodies. May touch: the buffer it was given. */
#include "codec/multipart.h"

#include <assert.h>
#include <string.h>

#include "base/clock.h"
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
