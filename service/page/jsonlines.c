/* jsonlines.c - reads complete lines of a file that another process is writing. */
#include "service/page/jsonlines.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json_read.h"
#include "base/json_write.h"
#include "base/str.h"

enum { TAIL = 64 * 1024 };

int tke_lines_open(int folder, const char *name)
{
    struct stat st;
    /* Without O_NONBLOCK a FIFO of that name would hold the page's thread until somebody writes to
     * it; a link could lead out of the folder. */
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0 && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))) {
        close(fd);
        errno = EINVAL;
        return -1;
    }
    return fd;
}

/* ---- one line ---- */

/* Bare NaN and Infinity outside of strings become null. */
static bool without_nan(tinkc_str line, tkc_buf *out, tinkc_error *err)
{
    /* Python writes them for numbers that are not finite; a JSON reader would refuse the whole
     * line. */
    static const char *const words[] = { "-Infinity", "Infinity", "NaN" };
    bool in_string = false;
    for (size_t i = 0; i < line.len;) {
        size_t n = 0;
        for (size_t w = 0; !in_string && w < 3 && !n; w++)
            if (tkc_starts_with(tkc_strn(line.data + i, line.len - i), words[w]))
                n = strlen(words[w]);
        if (n) {
            tkc_buf_cstr(out, "null", err);
            i += n;
            continue;
        }
        if (line.data[i] == '"')
            in_string = !in_string;
        if (in_string && line.data[i] == '\\' && i + 1 < line.len)
            tkc_buf_char(out, line.data[i++], err);
        tkc_buf_char(out, line.data[i++], err);
    }
    return !tkc_failed(err);
}

/* Copies only top-level numbers. */
static void copy_numbers(tkc_json *j, tkc_jsonw *w)
{
    tinkc_str key;
    size_t n = 0;
    tkc_jsonw_object(w);
    while (tkc_json_key(j, &key)) {
        int kind = tkc_json_peek(j);
        tinkc_str value = tkc_json_skip(j);
        if (kind != TKC_JSON_NUMBER || key.len > TKE_LINES_MAX_KEY_BYTES ||
            n++ >= TKE_LINES_MAX_KEYS)
            continue;
        tkc_jsonw_key_str(w, key);
        tkc_jsonw_raw(w, tkc_str_trim(value));
    }
    tkc_jsonw_end(w);
}

bool tke_line_row(tinkc_str line, bool numbers_only, tkc_arena *arena, tinkc_str *row)
{
    tinkc_error err = { 0 };
    tkc_buf fixed, out;
    tkc_json j;
    tkc_jsonw w;
    tkc_buf_init(&fixed, arena->a, TKC_BUF_NO_MAX);
    tkc_buf_init(&out, arena->a, TKC_BUF_NO_MAX);
    bool ok = without_nan(line, &fixed, &err);
    tkc_json_open(&j, tkc_buf_view(&fixed), arena, &err);
    if (ok && tkc_json_peek(&j) == TKC_JSON_OBJECT) {
        if (numbers_only && tkc_json_object(&j)) {
            tkc_jsonw_open(&w, &out, &err);
            copy_numbers(&j, &w);
        } else {
            tkc_buf_str(&out, tkc_str_trim(tkc_json_skip(&j)), &err);
        }
        char *text = tkc_json_close(&j) ? tkc_arena_str(arena, tkc_buf_view(&out), &err) : NULL;
        *row = tkc_strn(text, out.len);
        ok = text != NULL;
    } else {
        ok = false;
    }
    tkc_buf_free(&fixed);
    tkc_buf_free(&out);
    return ok;
}

/* ---- many ---- */

typedef struct line_reader {
    bool numbers_only;
    tkc_arena arena; /* of one row */
    tke_row_fn *fn;
    void *user;
    tke_lines *place;
} line_reader;

static void take_line(line_reader *r, tinkc_str line)
{
    tinkc_str row;
    tkc_arena_reset(&r->arena);
    if (tkc_str_trim(line).len == 0)
        return;
    if (line.len > TKE_LINES_MAX || !tke_line_row(line, r->numbers_only, &r->arena, &row)) {
        r->place->left_out++;
        return;
    }
    r->place->rows++;
    r->fn(row, r->user);
}

/* Takes everything up to the last line break; skips a full chunk that has none. */
static void take_lines(line_reader *r, tinkc_str chunk)
{
    const char *at = chunk.data, *end = chunk.data + chunk.len, *stop;
    while (at < end && (stop = memchr(at, '\n', (size_t)(end - at)))) {
        take_line(r, tkc_strn(at, (size_t)(stop - at)));
        at = stop + 1;
    }
    if (at == chunk.data && chunk.len == TKE_LINES_CHUNK) {
        r->place->left_out++;
        at = end;
    }
    /* What follows the last line break may be half of a line: it is read again from its
     * beginning. */
    r->place->next = r->place->from + (int64_t)(at - chunk.data);
}

static ssize_t read_at(int fd, void *to, size_t len, int64_t from)
{
    size_t got = 0;
    while (got < len) {
        ssize_t n = pread(fd, (char *)to + got, len - got, (off_t)(from + (int64_t)got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        got += (size_t)n;
    }
    return (ssize_t)got;
}

bool tke_lines_each(int fd, int64_t from, bool numbers_only, const tinkc_allocator *a,
                    tke_row_fn *fn, void *user, tke_lines *place, tinkc_error *err)
{
    struct stat st;
    line_reader r = { .numbers_only = numbers_only, .fn = fn, .user = user, .place = place };
    *place = (tke_lines){ 0 };
    if (fstat(fd, &st) != 0)
        return tkc_fail_errno(err, "a log file");
    place->size = (int64_t)st.st_size;
    /* A file that is shorter than that position was written from its start again. */
    place->from = place->next = from < 0 || from > place->size ? 0 : from;
    char *chunk = tkc_alloc(a, TKE_LINES_CHUNK, err);
    if (!chunk)
        return false;
    ssize_t n = read_at(fd, chunk, TKE_LINES_CHUNK, place->from);
    tkc_arena_init(&r.arena, a, 0);
    if (n < 0)
        tkc_fail_errno(err, "a log file");
    else
        take_lines(&r, tkc_strn(chunk, (size_t)n));
    place->more = n == TKE_LINES_CHUNK;
    tkc_arena_free(&r.arena);
    tkc_release(a, chunk, TKE_LINES_CHUNK);
    return !tkc_failed(err);
}

static void write_row(tinkc_str row, void *user)
{
    tkc_jsonw_raw(user, row);
}

bool tke_lines_read(int fd, int64_t from, bool numbers_only, tkc_buf *out, tke_lines *place,
                    tinkc_error *err)
{
    tkc_jsonw w;
    tkc_jsonw_open(&w, out, err);
    tkc_jsonw_array(&w);
    bool ok = tke_lines_each(fd, from, numbers_only, out->a, write_row, &w, place, err);
    tkc_jsonw_end(&w);
    return ok && !tkc_failed(err);
}

bool tke_lines_tail(int fd, const tinkc_allocator *a, tke_line_fn *fn, void *user, tinkc_error *err)
{
    struct stat st;
    char *chunk = tkc_alloc(a, TAIL, err);
    if (!chunk || fstat(fd, &st) != 0) {
        tkc_release(a, chunk, TAIL);
        return false;
    }
    int64_t from = st.st_size > TAIL ? (int64_t)st.st_size - TAIL : 0;
    ssize_t n = read_at(fd, chunk, TAIL, from);
    const char *at = chunk, *end = chunk + (n > 0 ? n : 0), *stop;
    if (from > 0) { /* begins inside a line */
        stop = memchr(at, '\n', (size_t)(end - at));
        at = stop ? stop + 1 : end;
    }
    for (; at < end && (stop = memchr(at, '\n', (size_t)(end - at))); at = stop + 1)
        fn(tkc_strn(at, (size_t)(stop - at)), user);
    tkc_release(a, chunk, TAIL);
    return true;
}
