/* url.c - URLs parsed, normalised, joined; ids as path segments. May touch: the arena or buffer it
 * was given. Must not put the part before an '@' into a message: it may be a password. */
#include "codec/url.h"

#include <assert.h>
#include <string.h>

#include "base/str.h"
#include "codec/utf8.h"

static bool is_alnum(unsigned char c)
{
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

static char *lower_copy(tinkc_str s, tkc_arena *arena, tinkc_error *err)
{
    char *copy = tkc_arena_str(arena, s, err);
    for (size_t i = 0; copy && i < s.len; i++)
        copy[i] = lower(copy[i]);
    return copy;
}

static bool bad_url(tinkc_error *err, const char *why)
{
    return tkc_fail(err, TINKC_E_ARGUMENT, "URL: %s", why);
}

/* ---- parsing ---- */

static bool parse_scheme(tinkc_str *rest, tkc_url *out, tinkc_error *err)
{
    size_t colon = tkc_str_find(*rest, ':');
    tinkc_str scheme = tkc_strn(rest->data, colon);
    if (colon + 2 >= rest->len || memcmp(rest->data + colon, "://", 3) != 0)
        return bad_url(err, "it needs a scheme, http:// or https://");
    out->scheme = tkc_str_is_nocase(scheme, "https") ? "https" : "http";
    if (!tkc_str_is_nocase(scheme, out->scheme))
        return bad_url(err, "its scheme must be http or https");
    *rest = tkc_strn(rest->data + colon + 3, rest->len - colon - 3);
    return true;
}

static bool parse_port(tinkc_str digits, tkc_url *out, tinkc_error *err)
{
    int64_t port;
    if (!tkc_parse_i64(digits, &port) || port < 1 || port > 65535)
        return bad_url(err, "its port must be a number from 1 to 65535");
    out->port = (int32_t)port;
    return true;
}

static bool host_char(unsigned char c, bool brackets)
{
    if (brackets)
        return is_alnum(c) || strchr(":.%-_~", c);
    return is_alnum(c) || c >= 0x80 || strchr("-._~%!$&'()*+,;=", c);
}

static bool parse_host(tinkc_str host, bool brackets, tkc_arena *arena, tkc_url *out,
                       tinkc_error *err)
{
    if (host.len == 0)
        return bad_url(err, "it has no host");
    for (size_t i = 0; i < host.len; i++)
        if (host.data[i] == '\0' || !host_char((unsigned char)host.data[i], brackets))
            return bad_url(err, "its host has a character that hosts cannot have");
    out->host = lower_copy(host, arena, err);
    return out->host != NULL;
}

static bool parse_authority(tinkc_str auth, tkc_arena *arena, tkc_url *out, tinkc_error *err)
{
    /* From the end: a password may have an '@' in it. */
    for (size_t i = auth.len; i-- > 0;)
        if (auth.data[i] == '@') {
            out->has_userinfo = true;
            auth = tkc_strn(auth.data + i + 1, auth.len - i - 1);
            break;
        }
    bool brackets = auth.len && auth.data[0] == '[';
    size_t close = brackets ? tkc_str_find(auth, ']') : 0;
    if (brackets && close == auth.len)
        return bad_url(err, "the bracket of its address is not closed");
    tinkc_str tail = tkc_strn(auth.data + close, auth.len - close); /* from ']', or all */
    size_t colon = tkc_str_find(tail, ':');
    if (brackets && colon > 1 && tail.len > 1)
        return bad_url(err, "something stands between its address and its port");
    tinkc_str host = brackets ? tkc_strn(auth.data + 1, close - 1) : tkc_strn(tail.data, colon);
    if (!parse_host(host, brackets, arena, out, err))
        return false;
    out->port = strcmp(out->scheme, "https") == 0 ? 443 : 80;
    return colon + 1 >= tail.len ||
           parse_port(tkc_strn(tail.data + colon + 1, tail.len - colon - 1), out, err);
}

static bool make_texts(tkc_arena *arena, tkc_url *out, tinkc_error *err)
{
    assert(out->scheme && out->host && out->path[0] == '/');
    bool usual = out->port == (strcmp(out->scheme, "https") == 0 ? 443 : 80);
    bool ipv6 = strchr(out->host, ':') != NULL;
    char port[16] = "";
    if (!usual) {
        const char *digits = tkc_arena_printf(arena, err, ":%d", (int)out->port);
        if (!digits)
            return false;
        assert(strlen(digits) < sizeof port);
        memcpy(port, digits, strlen(digits) + 1);
    }
    out->origin = tkc_arena_printf(arena, err, "%s://%s%s%s%s", out->scheme, ipv6 ? "[" : "",
                                   out->host, ipv6 ? "]" : "", port);
    if (!out->origin)
        return false;
    out->text = tkc_arena_printf(arena, err, "%s%s%s%s", out->origin, out->path,
                                 out->query ? "?" : "", out->query ? out->query : "");
    return out->text != NULL;
}

bool tkc_url_parse(tinkc_str text, tkc_arena *arena, tkc_url *out, tinkc_error *err)
{
    *out = (tkc_url){ 0 };
    for (size_t i = 0; i < text.len; i++)
        if ((unsigned char)text.data[i] <= ' ' || text.data[i] == 0x7F)
            return bad_url(err, "it has a space or a control character in it");
    if (!tkc_utf8_valid(text.data, text.len))
        return bad_url(err, "it is not UTF-8");
    tinkc_str rest = tkc_strn(text.data, tkc_str_find(text, '#'));
    if (!parse_scheme(&rest, out, err))
        return false;
    size_t mark = tkc_str_find(rest, '?'), slash = tkc_str_find(tkc_strn(rest.data, mark), '/');
    if (!parse_authority(tkc_strn(rest.data, slash), arena, out, err))
        return false;
    assert(slash <= mark && mark <= rest.len);
    tinkc_str path = tkc_strn(rest.data + slash, mark - slash);
    out->path = path.len ? tkc_arena_str(arena, path, err) : "/";
    if (mark < rest.len)
        out->query = tkc_arena_str(arena, tkc_strn(rest.data + mark + 1, rest.len - mark - 1), err);
    return !tkc_failed(err) && make_texts(arena, out, err);
}

/* ---- joining ---- */

/* Removes "." and ".." segments from a path that begins with '/', in place. */
static void remove_dots(char *path)
{
    char *out = path;
    const char *in = path;
    assert(path[0] == '/');
    while (*in) {
        size_t n = 1 + strcspn(in + 1, "/"); /* '/' and a segment */
        bool last = in[n] == '\0';
        if (n == 2 && in[1] == '.') {
            if (last)
                *out++ = '/';
        } else if (n == 3 && in[1] == '.' && in[2] == '.') {
            while (out > path && *--out != '/')
                ;
            if (last)
                *out++ = '/';
        } else {
            memmove(out, in, n);
            out += n;
        }
        in += n;
    }
    assert(out > path && out <= in);
    *out = '\0';
}

/* A path relative to that of `from`, without dots; `location` may have a query. */
static const char *resolve_path(const tkc_url *from, const char *location, tkc_arena *arena,
                                tinkc_error *err)
{
    size_t n = strcspn(location, "?#");
    const char *slash = strrchr(from->path, '/');
    assert(slash && location[0]); /* paths begin with one; nothing relative is empty */
    int keep = location[0] == '/' ? 0 : (int)(slash - from->path + 1);
    char *path = tkc_arena_printf(arena, err, "%.*s%.*s", keep, from->path, (int)n, location);
    if (!path)
        return NULL;
    remove_dots(path);
    return tkc_arena_printf(arena, err, "%s%s%s", from->origin, path, location + n);
}

const char *tkc_url_resolve(const char *from, const char *location, tkc_arena *arena,
                            tinkc_error *err)
{
    tkc_url base, target;
    const char *text = location;
    if (!tkc_url_parse(tkc_str(from), arena, &base, err))
        return NULL;
    if (strlen(location) > 65536) {
        bad_url(err, "a redirect leads to more than 64 KiB of text");
        return NULL;
    }
    if (strncmp(location, "//", 2) == 0)
        text = tkc_arena_printf(arena, err, "%s:%s", base.scheme, location);
    else if (location[0] == '?')
        text = tkc_arena_printf(arena, err, "%s%s%s", base.origin, base.path, location);
    else if (location[0] == '\0' || location[0] == '#')
        text = base.text;
    else if (strncmp(location + strcspn(location, ":/?#"), "://", 3) != 0) /* has no scheme */
        text = resolve_path(&base, location, arena, err);
    if (!text || !tkc_url_parse(tkc_str(text), arena, &target, err))
        return NULL;
    return target.text;
}

/* Whether a credential may go along depends on this, so both sides go through the one parser. */
bool tkc_url_same_origin(const char *a, const char *b)
{
    tkc_arena arena;
    tkc_url x, y;
    tinkc_error err = { 0 };
    tkc_arena_init(&arena, NULL, 0);
    bool same = tkc_url_parse(tkc_str(a), &arena, &x, &err) &&
                tkc_url_parse(tkc_str(b), &arena, &y, &err) && strcmp(x.origin, y.origin) == 0;
    tkc_arena_free(&arena);
    return same;
}

/* ---- segments ---- */

/* An id must not change the query or lead to another path. The Python SDK inserts ids as they
 * are. */
static bool check_id(const char *id, tinkc_error *err)
{
    if (!id || !*id)
        return tkc_fail(err, TINKC_E_ARGUMENT, "an id is empty");
    for (const char *p = id; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7F || *p == '?' || *p == '#')
            return tkc_fail(err, TINKC_E_ARGUMENT,
                            "an id has a control character, '?' or '#' in it");
    tinkc_str rest = tkc_str(id), part;
    while (tkc_str_cut(&rest, '/', &part))
        if (part.len == 0 || tkc_str_is(part, ".") || tkc_str_is(part, ".."))
            return tkc_fail(err, TINKC_E_ARGUMENT,
                            "an id has an empty part, \".\" or \"..\" in it");
    return true;
}

bool tkc_segment_escape(const char *id, bool slashes, tkc_buf *out, tinkc_error *err)
{
    static const char hex[] = "0123456789ABCDEF";
    if (tkc_failed(err) || !check_id(id, err))
        return false;
    for (const char *p = id; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (is_alnum(c) || strchr("-._~:", c) || (slashes && c == '/')) {
            tkc_buf_char(out, *p, err);
        } else {
            char text[3] = { '%', hex[c >> 4], hex[c & 15] };
            tkc_buf_add(out, text, sizeof text, err);
        }
    }
    return !tkc_failed(err);
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = lower(c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static const char *decode_escapes(tinkc_str text, bool plus, tkc_arena *arena, tinkc_error *err)
{
    char *out = tkc_arena_alloc(arena, text.len + 1, err);
    size_t n = 0;
    if (!out)
        return NULL;
    for (size_t i = 0; i < text.len; i++) {
        char c = plus && text.data[i] == '+' ? ' ' : text.data[i];
        if (c == '%') {
            if (text.len - i <= 2)
                return NULL;
            int high = hex_value(text.data[i + 1]), low = hex_value(text.data[i + 2]);
            if (high < 0 || low < 0)
                return NULL;
            c = (char)(high * 16 + low);
            i += 2;
        }
        if (c == '\0')
            return NULL;
        out[n++] = c;
    }
    assert(n <= text.len);
    out[n] = '\0';
    return tkc_utf8_valid(out, n) ? out : NULL;
}

const char *tkc_percent_decode(tinkc_str text, tkc_arena *arena, tinkc_error *err)
{
    return decode_escapes(text, false, arena, err);
}

const char *tkc_form_decode(tinkc_str text, tkc_arena *arena, tinkc_error *err)
{
    return decode_escapes(text, true, arena, err);
}
