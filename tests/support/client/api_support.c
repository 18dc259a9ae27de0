/* api_support.c - helpers of the tests over the mock. */
#include "support/client/api_support.h"

#include <strings.h>

#include "codec/base64.h"
#include "support/guarded.h"

void assert_ok_at(const tinkc_error *err, const char *file, int line)
{
    if (err->code == TINKC_OK)
        return;
    char text[600];
    tinkc_error_line(err, text, sizeof text);
    print_error("%s\n", text);
    _fail(file, line);
}

tinkc_client *mock_client(tinkc_mock *mock, const tinkc_client_options *more, tinkc_error *err)
{
    static const tinkc_allocator guarded = { guarded_alloc, guarded_resize, guarded_release, NULL };
    tinkc_client_options options = { 0 };
    if (more)
        options = *more;
    if (!options.allocator)
        options.allocator = &guarded;
    options.transport = tinkc_mock_transport(mock);
    options.clock = tinkc_mock_clock(mock);
    return tinkc_client_new(&options, err);
}

const char *token_of(const char *claims, const char *signature)
{
    static char out[600];
    char coded[400];
    size_t len = tkc_base64_length(strlen(claims));
    assert_true(len <= sizeof coded);
    tkc_base64_encode(claims, strlen(claims), coded);
    for (size_t i = 0; i < len; i++)
        coded[i] = coded[i] == '+' ? '-' : coded[i] == '/' ? '_' : coded[i];
    while (len && coded[len - 1] == '=')
        len--;
    (void)snprintf(out, sizeof out, "eyJhIjoxfQ.%.*s.%s", (int)len, coded, signature);
    return out;
}

const char *token_answer_of(const char *claims, const char *signature)
{
    static char out[650];
    (void)snprintf(out, sizeof out, "{\"jwt\":\"%s\"}", token_of(claims, signature));
    return out;
}

bool run_until_done(tinkc_mock *mock, tinkc_future *f, int64_t limit_ms)
{
    tinkc_error err = { 0 };
    while (true) {
        int64_t next = tinkc_mock_settle(mock, PATIENCE_MS, &err);
        if (tinkc_future_done(f))
            return true;
        if (err.code || next == TINKC_FOREVER || next > limit_ms)
            return false;
        tinkc_mock_advance(mock, next);
        limit_ms -= next;
    }
}

const char *request_header(const tinkc_request *request, const char *name)
{
    for (size_t i = 0; request->headers[i]; i += 2)
        if (strcasecmp(request->headers[i], name) == 0)
            return request->headers[i + 1];
    return NULL;
}

bool request_is_to(const tinkc_request *request, const char *path)
{
    size_t len = strchr(path, '?') ? strlen(request->path) : strcspn(request->path, "?");
    return len == strlen(path) && strncmp(request->path, path, len) == 0;
}

static bool find_nth(tinkc_mock *mock, const char *path, size_t i, size_t *at)
{
    for (size_t k = 0; tinkc_mock_request(mock, k); k++)
        if (request_is_to(tinkc_mock_request(mock, k), path) && i-- == 0) {
            *at = k;
            return true;
        }
    return false;
}

const tinkc_request *nth_request(tinkc_mock *mock, const char *path, size_t i)
{
    size_t at;
    return find_nth(mock, path, i, &at) ? tinkc_mock_request(mock, at) : NULL;
}

int64_t nth_request_ms(tinkc_mock *mock, const char *path, size_t i)
{
    size_t at;
    return find_nth(mock, path, i, &at) ? tinkc_mock_request_ms(mock, at) : -1;
}
