/* sse.c - event streams: an incremental reader and a writer. May touch: the parser's own memory.
 *
 * Bytes are collected until a line is complete; only complete lines are validated and parsed.
 * A '\r' at the end of the input may be half of "\r\n", so a '\n' that follows is skipped.
 *
 *     feed -> pending bytes -> lines -> collected fields -> blank line -> event
 */
#include "codec/sse.h"

#include <assert.h>
#include <string.h>

#include "base/str.h"
#include "codec/utf8.h"

#define DEFAULT_MAX ((size_t)16 << 20)

struct tinkc_sse_parser {
    const tinkc_allocator *a;
    size_t max;
    tkc_buf pending; /* fed but not yet split into lines */
    size_t at;       /* start of the next line in it */
    size_t scanned;  /* bytes after `at` known to hold no line end */
    tkc_buf data, event, id;
    int64_t retry_ms;
    bool has_data, has_event;
    bool skip_newline; /* the last line ended with '\r' */
    bool begun;        /* the byte-order mark was checked for */
    bool ended;
    tinkc_sse out;
};

tinkc_sse_parser *tinkc_sse_new(size_t max_event_bytes, const tinkc_allocator *a, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    tinkc_sse_parser *p = tkc_zalloc(a, sizeof *p, err);
    if (!p)
        return NULL;
    p->a = a;
    p->max = max_event_bytes ? max_event_bytes : DEFAULT_MAX;
    p->retry_ms = -1;
    tkc_buf_init(&p->pending, a, TKC_BUF_NO_MAX);
    tkc_buf_init(&p->data, a, TKC_BUF_NO_MAX);
    tkc_buf_init(&p->event, a, TKC_BUF_NO_MAX);
    tkc_buf_init(&p->id, a, TKC_BUF_NO_MAX);
    return p;
}

void tinkc_sse_free(tinkc_sse_parser *p)
{
    if (!p)
        return;
    tkc_buf_free(&p->pending);
    tkc_buf_free(&p->data);
    tkc_buf_free(&p->event);
    tkc_buf_free(&p->id);
    tkc_release(p->a, p, sizeof *p);
}

/* Drops the bytes already split into lines. */
static void compact(tinkc_sse_parser *p)
{
    if (p->at == 0)
        return;
    assert(p->at <= p->pending.len);
    size_t left = p->pending.len - p->at;
    memmove(p->pending.data, p->pending.data + p->at, left);
    p->pending.len = left;
    p->at = 0;
}

bool tinkc_sse_feed(tinkc_sse_parser *p, const void *data, size_t len, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!p || (!data && len))
        return tkc_fail(err, TINKC_E_ARGUMENT, "parser or data is NULL");
    if (p->ended)
        return tkc_fail(err, TINKC_E_ARGUMENT, "the stream has ended");
    compact(p);
    return tkc_buf_add(&p->pending, data, len, err);
}

static bool too_large(tinkc_error *err)
{
    return tkc_fail(err, TINKC_E_BAD_RESPONSE, "event stream: an event is too large");
}

/* The next complete line, without its end. False if there is none yet. */
static bool next_line(tinkc_sse_parser *p, tinkc_str *line)
{
    assert(p->at + p->scanned <= p->pending.len);
    if (p->skip_newline && p->at < p->pending.len) {
        assert(p->scanned == 0); /* a line has just ended */
        p->skip_newline = false;
        if (p->pending.data[p->at] == '\n')
            p->at++;
    }
    size_t i = p->at + p->scanned;
    while (i < p->pending.len && p->pending.data[i] != '\n' && p->pending.data[i] != '\r')
        i++;
    p->scanned = i - p->at;
    if (i >= p->pending.len)
        return false;
    *line = tkc_strn(p->pending.data + p->at, i - p->at);
    p->skip_newline = p->pending.data[i] == '\r';
    p->at = i + 1;
    p->scanned = 0;
    return true;
}

static bool set_field(tkc_buf *to, tinkc_str value, tinkc_error *err)
{
    tkc_buf_clear(to);
    return tkc_buf_str(to, value, err);
}

static bool take_field(tinkc_sse_parser *p, tinkc_str name, tinkc_str value, tinkc_error *err)
{
    uint64_t retry;
    if (tkc_str_is(name, "data")) {
        if (p->has_data)
            tkc_buf_char(&p->data, '\n', err);
        p->has_data = true;
        tkc_buf_str(&p->data, value, err);
    } else if (tkc_str_is(name, "event")) {
        p->has_event = true;
        set_field(&p->event, value, err);
    } else if (tkc_str_is(name, "id") && tkc_str_find(value, '\0') == value.len) {
        set_field(&p->id, value, err);
    } else if (tkc_str_is(name, "retry") && tkc_parse_u64(value, &retry) && retry <= INT64_MAX) {
        p->retry_ms = (int64_t)retry;
    }
    if (p->data.len + p->event.len + p->id.len > p->max)
        return too_large(err);
    return !tkc_failed(err);
}

static bool take_line(tinkc_sse_parser *p, tinkc_str line, tinkc_error *err)
{
    if (!tkc_utf8_valid(line.data, line.len))
        return tkc_fail(err, TINKC_E_BAD_RESPONSE, "event stream: not UTF-8");
    if (!p->begun && tkc_starts_with(line, "\xEF\xBB\xBF"))
        line = tkc_strn(line.data + 3, line.len - 3);
    size_t colon = tkc_str_find(line, ':');
    if (line.len && colon == 0)
        return true; /* a comment */
    tinkc_str value = tkc_strn(line.data + line.len, 0);
    if (colon < line.len)
        value = tkc_strn(line.data + colon + 1, line.len - colon - 1);
    if (value.len && value.data[0] == ' ')
        value = tkc_strn(value.data + 1, value.len - 1);
    return take_field(p, tkc_strn(line.data, colon), value, err);
}

/* After a blank line: an event, if there is data or a name. The id is kept for the next one. */
static const tinkc_sse *dispatch_event(tinkc_sse_parser *p, tinkc_error *err)
{
    /* After an id the Python SDK gives an empty event for every further blank line. */
    bool something = p->has_data || p->has_event;
    assert(p->has_data || !p->data.len);
    if (!something)
        return NULL;
    const char *data = tkc_buf_terminate(&p->data, err);
    const char *event = tkc_buf_terminate(&p->event, err);
    const char *id = tkc_buf_terminate(&p->id, err);
    if (tkc_failed(err))
        return NULL;
    p->out = (tinkc_sse){ event, data, p->data.len, id, p->retry_ms };
    tkc_buf_clear(&p->data);
    tkc_buf_clear(&p->event);
    p->has_data = p->has_event = false;
    p->retry_ms = -1;
    return &p->out;
}

const tinkc_sse *tinkc_sse_next(tinkc_sse_parser *p, tinkc_error *err)
{
    tinkc_error local;
    tinkc_str line;
    if (!tkc_enter(&err, &local) || !p)
        return NULL;
    while (next_line(p, &line)) {
        bool blank = line.len == 0;
        if (!blank && !take_line(p, line, err))
            return NULL;
        p->begun = true;
        const tinkc_sse *event = blank ? dispatch_event(p, err) : NULL;
        if (event || tkc_failed(err))
            return event;
    }
    if (p->pending.len - p->at > p->max)
        too_large(err);
    return NULL;
}

bool tkc_sse_end(tinkc_sse_parser *p, bool flush, tinkc_error *err)
{
    assert(p && err);
    if (p->ended)
        return true;
    if (flush && !tinkc_sse_feed(p, "\n\n", 2, err))
        return false;
    p->ended = true;
    return true;
}

/* ---- writing ---- */

static bool one_line(const char *text, const char *what, tinkc_error *err)
{
    if (text && strpbrk(text, "\r\n"))
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s has a line end in it", what);
    return true;
}

static void put_field(tkc_buf *out, const char *name, tinkc_str value, tinkc_error *err)
{
    tkc_buf_cstr(out, name, err);
    tkc_buf_cstr(out, ": ", err);
    tkc_buf_str(out, value, err);
    tkc_buf_char(out, '\n', err);
}

/* The part before the next line end, which may be "\n", "\r" or "\r\n". */
static bool cut_line(tinkc_str *rest, tinkc_str *line)
{
    if (!rest->data)
        return false;
    size_t n = 0;
    while (n < rest->len && rest->data[n] != '\n' && rest->data[n] != '\r')
        n++;
    *line = tkc_strn(rest->data, n);
    if (n == rest->len) {
        *rest = tkc_strn(NULL, 0);
        return true;
    }
    bool pair = rest->data[n] == '\r' && n + 1 < rest->len && rest->data[n + 1] == '\n';
    n += pair ? 2 : 1;
    assert(n <= rest->len);
    *rest = tkc_strn(rest->data + n, rest->len - n);
    return true;
}

bool tkc_sse_write(tkc_buf *out, const char *event, const char *id, tinkc_str data,
                   tinkc_error *err)
{
    tinkc_str line, rest = data.data ? data : tkc_strn("", 0);
    if (tkc_failed(err) || !one_line(event, "the event's name", err) ||
        !one_line(id, "the event's id", err))
        return false;
    if (event)
        put_field(out, "event", tkc_str(event), err);
    if (id)
        put_field(out, "id", tkc_str(id), err);
    while (cut_line(&rest, &line))
        put_field(out, "data", line, err);
    tkc_buf_char(out, '\n', err);
    return !tkc_failed(err);
}
