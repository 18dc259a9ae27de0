/* err.c - the table of error codes, and how a tinkc_error is filled in.
 *
 * One table holds names, flags and categories; retry decisions and telemetry use only this table.
 * Touches only the caller's struct: no allocation, no locks, no globals except constants.
 */
#include "base/err.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/platform.h"
#include "base/str.h"

typedef struct code_row {
    int32_t code;
    int32_t category;
    uint32_t flags;
    const char *name;
} code_row;

#define T TINKC_RETRIABLE
#define U TINKC_USER_ERROR
#define ROW(code, by, flags)                                                                       \
    {                                                                                              \
        code, by, flags, #code                                                                     \
    }
static const code_row code_rows[] = {
    ROW(TINKC_OK, TINKC_BY_NOBODY, 0),
    ROW(TINKC_E_ARGUMENT, TINKC_BY_CALLER, U),
    ROW(TINKC_E_MEMORY, TINKC_BY_CLIENT, T),
    ROW(TINKC_E_STATE, TINKC_BY_CLIENT, 0),
    ROW(TINKC_E_PATH, TINKC_BY_CALLER, U),
    ROW(TINKC_E_UNSUPPORTED, TINKC_BY_CALLER, U),
    ROW(TINKC_E_TENSOR, TINKC_BY_CALLER, U),
    ROW(TINKC_E_CALLBACK, TINKC_BY_CALLER, U),
    ROW(TINKC_E_NOT_LORA, TINKC_BY_CALLER, U),
    ROW(TINKC_E_FILE, TINKC_BY_CLIENT, 0),
    ROW(TINKC_E_TIMEOUT, TINKC_BY_CLIENT, T),
    ROW(TINKC_E_CANCELLED, TINKC_BY_CALLER, 0),
    ROW(TINKC_E_CLOSED, TINKC_BY_CALLER, U),
    ROW(TINKC_E_DEADLINE, TINKC_BY_CLIENT, T),
    ROW(TINKC_E_THREAD, TINKC_BY_CALLER, U),
    ROW(TINKC_E_FORKED, TINKC_BY_CALLER, U),
    ROW(TINKC_E_NO_SESSION, TINKC_BY_CALLER, U),
    ROW(TINKC_E_SEQUENCE, TINKC_BY_CLIENT, 0),
    ROW(TINKC_E_CONNECTION, TINKC_BY_NETWORK, T),
    ROW(TINKC_E_BAD_RESPONSE, TINKC_BY_SERVER, 0),
    ROW(TINKC_E_NET_TIMEOUT, TINKC_BY_NETWORK, T),
    ROW(TINKC_E_NO_PROGRESS, TINKC_BY_SERVER, T),
    ROW(TINKC_E_OFFLINE, TINKC_BY_CALLER, U),
    ROW(TINKC_E_REQUEST_FAILED, TINKC_BY_NOBODY, T),
    ROW(TINKC_E_PROMISE_EXPIRED, TINKC_BY_SERVER, T | U),
    ROW(TINKC_E_EXPORT_FAILED, TINKC_BY_SERVER, 0),
    ROW(TINKC_E_NO_CREDENTIAL, TINKC_BY_CALLER, U),
    ROW(TINKC_E_BAD_CREDENTIAL, TINKC_BY_CALLER, U),
    ROW(TINKC_E_CREDENTIAL_CMD, TINKC_BY_CALLER, T | U),
    ROW(TINKC_E_TOKEN, TINKC_BY_SERVER, T),
    ROW(TINKC_E_NO_IDENTITY, TINKC_BY_CALLER, U),
    ROW(TINKC_E_TOKENIZER, TINKC_BY_CALLER, U),
    ROW(TINKC_E_TEMPLATE, TINKC_BY_CALLER, U),
    ROW(TINKC_E_EXISTS, TINKC_BY_CALLER, U),
    ROW(TINKC_E_UNSAFE_ARCHIVE, TINKC_BY_SERVER, 0),
    ROW(TINKC_E_MODEL, TINKC_BY_CALLER, U),
    ROW(TINKC_E_STORE, TINKC_BY_CLIENT, 0),
    ROW(TINKC_E_TOO_LARGE, TINKC_BY_CALLER, 0),
    ROW(TINKC_E_HTTP, TINKC_BY_SERVER, 0),
    ROW(TINKC_E_BAD_REQUEST, TINKC_BY_CALLER, U),
    ROW(TINKC_E_AUTH, TINKC_BY_CALLER, U),
    ROW(TINKC_E_BILLING, TINKC_BY_CALLER, U),
    ROW(TINKC_E_FORBIDDEN, TINKC_BY_CALLER, U),
    ROW(TINKC_E_NOT_FOUND, TINKC_BY_CALLER, U),
    ROW(TINKC_E_REQUEST_TIMEOUT, TINKC_BY_SERVER, T),
    ROW(TINKC_E_CONFLICT, TINKC_BY_CALLER, T | U),
    ROW(TINKC_E_GONE, TINKC_BY_CALLER, U),
    ROW(TINKC_E_UNPROCESSABLE, TINKC_BY_CALLER, U),
    ROW(TINKC_E_RATE_LIMITED, TINKC_BY_SERVER, T | U),
    ROW(TINKC_E_SERVER, TINKC_BY_SERVER, T),
};
#undef ROW
#undef U
#undef T

static const code_row *find_row(int32_t code)
{
    for (size_t i = 0; i < sizeof code_rows / sizeof *code_rows; i++)
        if (code_rows[i].code == code)
            return &code_rows[i];
    return NULL;
}

const char *tinkc_code_name(int32_t code)
{
    const code_row *row = find_row(code);
    return row ? row->name : "unknown";
}

uint32_t tinkc_code_flags(int32_t code)
{
    const code_row *row = find_row(code);
    return row ? row->flags : 0;
}

int32_t tkc_code_category(int32_t code)
{
    const code_row *row = find_row(code);
    return row ? row->category : TINKC_BY_NOBODY;
}

int32_t tkc_code_of_status(int32_t http_status)
{
    if (http_status >= 500)
        return TINKC_E_SERVER;
    if (http_status >= 400 && find_row(http_status))
        return http_status;
    return TINKC_E_HTTP;
}

/* Copies what fits, whole characters only, as one line of UTF-8. Messages contain names from
 * outside, so control characters become spaces and invalid bytes become '?'. They also quote what a
 * service answers, which may be the credential that it was sent: masked here, it is masked in every
 * error, log and telemetry record made of it. lines: keep line breaks and tabs. */
static void put_text(char *out, size_t cap, const char *text, size_t len, bool lines)
{
    size_t at = 0;
    assert(cap > 0);
    for (size_t i = 0, n; i < len; i += n) {
        n = tkc_utf8_length(text + i, len - i);
        if (at + (n ? n : 1) >= cap)
            break;
        bool control = (unsigned char)text[i] < 0x20 || text[i] == 0x7F;
        if (lines && (text[i] == '\n' || text[i] == '\t' || text[i] == '\r'))
            control = false;
        if (n == 0 || control)
            out[at++] = n == 0 ? '?' : ' ';
        else
            memcpy(out + at, text + i, n), at += n;
        n = n ? n : 1;
    }
    assert(at < cap);
    out[at] = '\0';
    tkc_redact(out, at);
}

static void put_message(tinkc_error *err, const char *text, size_t len)
{
    put_text(err->message, sizeof err->message, text, len, false);
}

static void put_code(tinkc_error *err, int32_t code)
{
    assert(code != TINKC_OK); /* it would read as success */
    err->code = code;
    err->category = tkc_code_category(code);
    err->flags = tinkc_code_flags(code);
}

bool tkc_enter(tinkc_error **err, tinkc_error *local)
{
    if (*err)
        return (*err)->code == TINKC_OK;
    *local = (tinkc_error){ 0 };
    *err = local;
    return true;
}

bool tkc_vfail(tinkc_error *err, int32_t code, const char *format, va_list args)
{
    if (tkc_failed(err))
        return false;
    char text[sizeof err->message + 8]; /* one character more than fits shows where to cut */
    int n = vsnprintf(text, sizeof text, format, args);
    size_t len = n < 0 ? 0 : (size_t)n;
    put_code(err, code);
    put_message(err, text, len < sizeof text ? len : sizeof text - 1);
    return false;
}

bool tkc_fail(tinkc_error *err, int32_t code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    tkc_vfail(err, code, format, args);
    va_end(args);
    return false;
}

bool tkc_fail_errno(tinkc_error *err, const char *format, ...)
{
    int why = errno;
    char what[sizeof err->message];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return tkc_fail(err, TINKC_E_FILE, "%s: %s", what, tkc_errno_text(why));
}

bool tkc_fail_before(tinkc_error *err, const char *format, ...)
{
    enum { LONGEST = 4096 }; /* of a path */
    char text[LONGEST + sizeof err->message];
    va_list args;
    if (!tkc_failed(err) || err->code == TINKC_E_MEMORY)
        return false;
    va_start(args, format);
    int n = vsnprintf(text, LONGEST, format, args);
    va_end(args);
    size_t len = n < 0 ? 0 : n < LONGEST ? (size_t)n : LONGEST - 1;
    size_t old = strlen(err->message), room = sizeof err->message - 1 - old;
    size_t skip = len > room ? len - room : 0;
    memcpy(text + len, err->message, old);
    put_message(err, text + skip, len + old - skip);
    return false;
}

bool tkc_fail_text(tinkc_error *err, int32_t code, const char *text, size_t len)
{
    if (tkc_failed(err))
        return false;
    put_code(err, code);
    put_text(err->message, sizeof err->message, text, len, true);
    return false;
}

bool tkc_fail_memory(tinkc_error *err)
{
    static const char text[] = "out of memory";
    if (tkc_failed(err))
        return false;
    put_code(err, TINKC_E_MEMORY);
    put_message(err, text, sizeof text - 1);
    return false;
}

void tkc_error_copy(tinkc_error *to, const tinkc_error *from)
{
    if (!tkc_failed(to))
        *to = *from;
}

void tinkc_error_clear(tinkc_error *err)
{
    if (err)
        *err = (tinkc_error){ 0 };
}

void tinkc_error_set(tinkc_error *err, int32_t code, const char *message)
{
    if (!err || tkc_failed(err) || code == TINKC_OK)
        return;
    put_code(err, code);
    const char *text = message ? message : "";
    put_message(err, text, strlen(text));
}

size_t tinkc_error_line(const tinkc_error *err, char *buf, size_t cap)
{
    char line[sizeof err->message + 256];
    _Static_assert(sizeof err->request_id <= 64, "no room for the parts of a line");
    size_t len = 0;
    if (err && err->code) {
        int n = snprintf(line, sizeof line, "%s (%s", err->message, tinkc_code_name(err->code));
        len = (size_t)n;
        if (err->http_status)
            len += (size_t)snprintf(line + len, sizeof line - len, ", status %d",
                                    (int)err->http_status);
        if (err->request_id[0])
            len += (size_t)snprintf(line + len, sizeof line - len, ", request %s", err->request_id);
        len += (size_t)snprintf(line + len, sizeof line - len, ")");
        assert(len < sizeof line); /* else the parts above were counted wrongly */
    }
    if (cap > 0)
        put_text(buf, cap, line, len, false);
    return len;
}

bool tkc_check_range(int64_t value, int64_t least, int64_t most, const char *name, tinkc_error *err)
{
    if (value >= least && value <= most)
        return true;
    if (most == INT64_MAX)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: must be %lld or more, not %lld", name,
                        (long long)least, (long long)value);
    return tkc_fail(err, TINKC_E_ARGUMENT, "%s: must be from %lld to %lld, not %lld", name,
                    (long long)least, (long long)most, (long long)value);
}
