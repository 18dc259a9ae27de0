/* test_rare_values.c - values at the edges of what the SDK takes, most of them without a request: long paths, saved
 * texts, headers and tags, NULL where there is no answer, forms with files, lists whose pages fail. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/call.h"
#include "api/client_priv.h"
#include "api/options.h"
#include "api/outcome.h"
#include "api/rest_priv.h"
#include "api/sample_op.h"
#include "api/trainer.h"
#include "support/api_support.h"
#include "support/scarce.h"

#define API        "/api/v1/"
#define PAIRS(...) ((const char *const[]){ __VA_ARGS__, NULL })

typedef struct fixture {
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_error err;
} fixture;

static int setup(void **state)
{
    static fixture x;
    x = (fixture){ 0 };
    x.mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x.err);
    x.client = mock_client(x.mock, NULL, &x.err);
    *state = &x;
    return x.err.code;
}

static int teardown(void **state)
{
    fixture *x = *state;
    tinkc_client_free(x->client);
    tinkc_mock_free(x->mock);
    return 0;
}

static void once(fixture *x, const char *path, int32_t status, const char *body)
{
    assert_true(tinkc_mock_once(x->mock, NULL, path,
                                &(tinkc_mock_answer){ .status = status, .body = body }, &x->err));
}

static void refused(fixture *x, bool done, int32_t code, const char *message)
{
    assert_false(done);
    assert_int_equal(x->err.code, code);
    assert_string_equal(x->err.message, message);
    x->err = (tinkc_error){ 0 };
}

/* ---- errors ---- */

/* What an answer becomes: its message is the service's own where that is part of this process. */
static void errors_of_answers(void **state)
{
    (void)state;
    static const struct {
        int32_t status;
        const char *body;
        bool local;
        int32_t code;
        bool users;
        const char *message;
    } rows[] = {
        { 400, "{\"detail\":\"no\"}", false, TINKC_E_BAD_REQUEST, true, "HTTP 400: no" },
        { 400, "{\"detail\":\"no\"}", true, TINKC_E_BAD_REQUEST, true, "no" },
        { 400, "", true, TINKC_E_BAD_REQUEST, true, "refused with status 400" },
        { 404, "", false, TINKC_E_NOT_FOUND, true, "HTTP 404" },
        { 418, " tea\npot ", false, TINKC_E_HTTP, true, "HTTP 418: tea pot" },
        { 499, "{}", true, TINKC_E_HTTP, true, "refused with status 499" },
        { 399, "x", false, TINKC_E_HTTP, false, "HTTP 399: x" },
        { 302, "", false, TINKC_E_HTTP, false, "HTTP 302" },
        { 500, "{\"detail\":\"tml-0123456789abcdef0123456789\"}", true, TINKC_E_SERVER, false,
          "tml-**************************" },
        { 599, "x", false, TINKC_E_SERVER, false, "HTTP 599: x" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tinkc_bytes body = { (const unsigned char *)rows[i].body, strlen(rows[i].body) };
        tkc_status_error(&err, rows[i].status, body, rows[i].local);
        assert_string_equal(err.message, rows[i].message);
        assert_int_equal(err.code, rows[i].code);
        assert_int_equal(err.http_status, rows[i].status);
        assert_int_equal((err.flags & TINKC_USER_ERROR) != 0, rows[i].users);
    }
    for (size_t len = 65535; len <= 65537; len++) { /* of a longer one the first 64 KiB are read */
        static char body[65538];
        tinkc_error err = { 0 };
        memset(body, ' ', sizeof body);
        memcpy(body, "{\"detail\":\"no\"", 14);
        body[len - 1] = '}';
        tkc_status_error(&err, 400, (tinkc_bytes){ (const unsigned char *)body, len }, false);
        assert_string_equal(err.message,
                            len <= 65536 ? "HTTP 400: no" : "HTTP 400: {\"detail\":\"no\"");
    }
}

/* ---- paths ---- */

static const char *path_of(char *out, size_t run, const char *kind, size_t name)
{
    size_t n = (size_t)sprintf(out, "tinker://");
    memset(out + n, 'r', run);
    n += run;
    n += (size_t)sprintf(out + n, "/%s", kind);
    memset(out + n, 'n', name);
    out[n + name] = '\0';
    return out;
}

static void long_paths(void **state)
{
    fixture *x = *state;
    enum { LAST = TKC_ID_TEXT - 1, PREFIX = sizeof "sampler_weights/" - 1 };
    char text[4 * TKC_ID_TEXT];
    tkc_path_ids ids;
    assert_true(tkc_path_ids_parse(path_of(text, LAST, "weights/", 3), &ids, &x->err));
    assert_int_equal(strlen(ids.run), LAST);
    assert_string_equal(ids.checkpoint, "weights/nnn");
    refused(x, tkc_path_ids_parse(path_of(text, LAST + 1, "weights/", 3), &ids, &x->err),
            TINKC_E_PATH, "path: a part of it is longer than 1023 bytes");
    assert_true(tkc_path_ids_parse(path_of(text, 1, "weights/", LAST - 8), &ids, &x->err));
    assert_int_equal(strlen(ids.checkpoint), LAST);
    refused(x, tkc_path_ids_parse(path_of(text, 1, "weights/", LAST - 7), &ids, &x->err),
            TINKC_E_PATH, "path: a part of it is longer than 1023 bytes");
    /* tinker://RUN/NAME stands for weights of a sampler */
    assert_true(tkc_path_ids_parse(path_of(text, 1, "", LAST - PREFIX), &ids, &x->err));
    assert_int_equal(strlen(ids.checkpoint), LAST);
    assert_memory_equal(ids.checkpoint, "sampler_weights/nnn", PREFIX + 3);
    refused(x, tkc_path_ids_parse(path_of(text, 1, "", LAST - PREFIX + 1), &ids, &x->err),
            TINKC_E_PATH, "path: longer than 1023 bytes");
    assert_false(tkc_path_ids_parse("http://x", &ids, &x->err));
    assert_int_equal(x->err.code, TINKC_E_PATH);
}

/* ---- saved texts ---- */

static void saved_texts(void **state)
{
    fixture *x = *state;
    enum { MANY = 300, KEPT = 256 };
    char text[MANY * 4 + 100];
    tkc_arena arena = { 0 };
    tkc_saved saved;
    memset(&saved, 0xEE, sizeof saved); /* what a text does not say is nothing */
    assert_true(tkc_saved_read("{\"tinkc\":1}", "snapshot", &arena, &saved, &x->err));
    assert_null(saved.base_url);
    assert_null(saved.jwt);
    assert_null(saved.api_key);
    assert_null(saved.credential_cmd);
    assert_null(saved.session_id);
    assert_null(saved.sampler_id);
    assert_null(saved.headers);
    assert_int_equal(saved.config.len, 0);
    assert_true(saved.account == 0 && saved.refresh_interval_s == 0);
    static const char *const others[] = { "{}", "{\"tinkc\":2}", "{\"tinkc\":0}", "[]", "", "x" };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        refused(x, tkc_saved_read(others[i], "snapshot", &arena, &saved, &x->err), TINKC_E_ARGUMENT,
                "snapshot: not a text that this library has made");
    for (size_t n = KEPT - 1; n <= MANY; n++) { /* of headers the first 256 texts */
        size_t len = (size_t)sprintf(text, "{\"tinkc\":1,\"headers\":[");
        for (size_t i = 0; i < n; i++)
            len += (size_t)sprintf(text + len, "%s\"%c\"", i ? "," : "", 'a' + (char)(i % 26));
        (void)sprintf(text + len, "]}");
        assert_true(tkc_saved_read(text, "snapshot", &arena, &saved, &x->err));
        size_t found = 0;
        while (saved.headers[found])
            found++;
        assert_int_equal(found, n < KEPT ? n : KEPT);
        assert_int_equal(saved.headers[found - 1][0], 'a' + (int)((found - 1) % 26));
        tkc_arena_free(&arena);
    }
}

/* ---- options ---- */

static const char *header_of(const tinkc_client *c, const char *name)
{
    for (size_t i = 0; c->headers[i]; i += 2)
        if (strcmp(c->headers[i], name) == 0)
            return c->headers[i + 1];
    return NULL;
}

static void short_headers_and_repeated_tags(void **state)
{
    fixture *x = *state;
    static const struct {
        const char *given, *kept[4];
    } rows[] = {
        { "a,b,b", { "a", "b" } },        { "a,a", { "a" } }, { "b,a,b,c,c", { "b", "a", "c" } },
        { " a , ,a b,", { "a", "a b" } }, { ",", { NULL } },  { "x", { "x" } },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(setenv("TINKER_TAGS", rows[i].given, 1), 0);
        tinkc_client *c = mock_client(x->mock, NULL, &x->err);
        assert_ok(&x->err);
        size_t n = 0;
        for (; rows[i].kept[n]; n++)
            assert_string_equal(c->tags[n], rows[i].kept[n]);
        assert_null(c->tags[n]);
        tinkc_client_free(c);
    }
    unsetenv("TINKER_TAGS");
    tinkc_client *c = mock_client(
        x->mock, &(tinkc_client_options){ .headers = PAIRS("X", "1", "Y-Z", "", "Last", "2") },
        &x->err);
    assert_ok(&x->err);
    assert_string_equal(header_of(c, "X"), "1");
    assert_string_equal(header_of(c, "Last"), "2");
    assert_null(header_of(c, "Y-Z"));
    tinkc_client_free(c);
    /* what is removed last leaves no trace, and nothing stands there twice */
    c = mock_client(
        x->mock, &(tinkc_client_options){ .headers = PAIRS("X", "1", "User-Agent", "") }, &x->err);
    assert_ok(&x->err);
    assert_null(header_of(c, "User-Agent"));
    for (size_t i = 0; c->headers[i]; i += 2)
        for (size_t k = 0; k < i; k += 2)
            assert_string_not_equal(c->headers[i], c->headers[k]);
    tinkc_client_free(c);
    static const char *const bad[][2] = {
        { "", "v" }, { "a b", "v" }, { "a:", "v" }, { "a", "v\n" }
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refused(
            x,
            mock_client(x->mock,
                        &(tinkc_client_options){ .headers = PAIRS("A", "1", bad[i][0], bad[i][1]) },
                        &x->err) != NULL,
            TINKC_E_ARGUMENT, "headers: a name or value that no header can have");
}

/* A letter is a name. */
static void names_of_a_letter(void **state)
{
    fixture *x = *state;
    tinkc_client *c = mock_client(
        x->mock, &(tinkc_client_options){ .project_id = "p", .display_name = "d" }, &x->err);
    assert_ok(&x->err);
    assert_string_equal(c->project_id, "p");
    assert_string_equal(c->display_name, "d");
    tinkc_client_free(c);
    refused(x,
            tinkc_sampler_open(x->client, &(tinkc_sampler_options){ .model_path = "x" }, &x->err) !=
                NULL,
            TINKC_E_PATH, "model_path: must begin with tinker://");
    tinkc_future *f =
        tinkc_sampler_open(x->client, &(tinkc_sampler_options){ .base_model = "b" }, &x->err);
    assert_ok(&x->err);
    tinkc_future_free(f);
    /* an address inside a query does not make a path an address */
    once(x, "/q?u=http://x", 200, "ok");
    f = tinkc_http_call(x->client, &(tinkc_http_options){ .path = "/q?u=http://x" }, &x->err);
    assert_ok(&x->err);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    tinkc_future_free(f);
    refused(x,
            tinkc_http_call(x->client, &(tinkc_http_options){ .path = "/q", .query = PAIRS("a") },
                            &x->err) != NULL,
            TINKC_E_ARGUMENT, "query: \"a\" has no value");
    refused(x,
            tinkc_http_call(x->client, &(tinkc_http_options){ .path = "/q", .headers = PAIRS("a") },
                            &x->err) != NULL,
            TINKC_E_ARGUMENT, "headers: \"a\" has no value");
}

/* Whichever allocation of a new client fails, there is none; large texts need blocks of their own. */
static void no_memory_for_a_client(void **state)
{
    fixture *x = *state;
    char large[3000];
    memset(large, 'x', sizeof large - 1);
    large[sizeof large - 1] = '\0';
    const tinkc_client_options all = { .project_id = large,
                                       .display_name = large,
                                       .tags = PAIRS(large, "b"),
                                       .user_metadata = PAIRS("a", large),
                                       .headers = PAIRS("A", large, "B", large),
                                       .query = PAIRS("q", large) };
    for (int texts = 0; texts < 2; texts++) {
        tinkc_client_options o = texts ? all : (tinkc_client_options){ .user_agent = large };
        bool made = false;
        for (int64_t n = 1; !made; n++) {
            scarce s = { .thread = pthread_self(), .until = n };
            tinkc_allocator allocator = scarce_allocator(&s);
            o.allocator = &allocator;
            tinkc_client *c = mock_client(x->mock, &o, &x->err);
            made = c != NULL;
            assert_int_equal(x->err.code, made ? 0 : TINKC_E_MEMORY);
            assert_int_equal(s.failed, !made);
            x->err = (tinkc_error){ 0 };
            s.until = 0;
            tinkc_client_free(c);
            assert_true(counting_is_empty_soon(&s.all));
        }
    }
}

/* ---- answers ---- */

static void answers_that_are_not_there(void **state)
{
    fixture *x = *state;
    assert_int_equal(tinkc_response_status(NULL), 0);
    assert_int_equal(tinkc_response_body(NULL).len, 0);
    assert_string_equal(tinkc_response_url(NULL), "");
    assert_string_equal(tinkc_response_http_version(NULL), "");
    assert_null(tinkc_response_header(NULL, "a"));
    assert_null(tinkc_response_headers(NULL)[0]);
    assert_int_equal(tinkc_response_elapsed_ms(NULL), 0);
    assert_int_equal(tinkc_response_retries(NULL), 0);
    assert_int_equal(tinkc_samples_count(NULL), 0);
    assert_null(tinkc_samples_at(NULL, 0));
    assert_int_equal(tinkc_samples_prompt_logprobs(NULL).len, 0);
    assert_int_equal(tinkc_samples_cached_tokens(NULL), 0);
    assert_int_equal(tinkc_samples_topk(NULL, 0, NULL, NULL), 0);
    assert_int_equal(tinkc_samples_sampled_topk(NULL, 0, 0, NULL, NULL), 0);
    assert_int_equal(tinkc_samples_target_logprobs(NULL).len, 0);
    assert_int_equal(tinkc_samples_alt_tokens(NULL, 1, NULL, NULL), 0);
    assert_int_equal(tinkc_batch_count(NULL), 0);
    assert_int_equal(tinkc_batch_bytes(NULL), 0);
    assert_string_equal(tinkc_trainer_id(NULL), "");
    assert_string_equal(tinkc_sampler_id(NULL), "");
    assert_int_equal(tinkc_runs_total(NULL), -1);
    assert_int_equal(tinkc_runs_ready(NULL), 0);
    tinkc_form_free(NULL);
    tinkc_batch_free(NULL);
    tinkc_batch_clear(NULL);
    tinkc_trainer_free(NULL);
    tinkc_sampler_free(NULL);
    tinkc_runs_free(NULL);
    tinkc_search_free(NULL);
    tinkc_deltas_free(NULL);
    refused(x, tinkc_sampler_import(NULL, NULL, &x->err) != NULL, TINKC_E_ARGUMENT,
            "exported: must not be NULL");
    static const char *const parts[] = { "", ",\"sampler_id\":\"s\"",
                                         ",\"sampler_id\":\"s\",\"session_id\":\"t\"",
                                         ",\"session_id\":\"t\",\"config\":{}",
                                         ",\"sampler_id\":\"s\",\"config\":{}" };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char text[100];
        (void)snprintf(text, sizeof text, "{\"tinkc\":1%s}", parts[i]);
        refused(x, tinkc_sampler_import(text, NULL, &x->err) != NULL, TINKC_E_ARGUMENT,
                "exported: not from tinkc_sampler_export");
    }
    refused(x, tinkc_checkpoint_copy(NULL, "tinker://r/weights/c", NULL, &x->err) != NULL,
            TINKC_E_ARGUMENT, "client: must not be NULL");
    refused(x, tinkc_client_report(NULL, "e", NULL, TINKC_LOG_INFO, &x->err), TINKC_E_ARGUMENT,
            "client: must not be NULL");
    refused(x, tinkc_tokenizer_fetch(NULL, "m", NULL, NULL, &x->err) != NULL, TINKC_E_ARGUMENT,
            "client: must not be NULL");
}

/* A sample has as many sequences as it has; notes of the transport are not headers of the answer. */
static void the_last_and_the_next(void **state)
{
    static const int32_t ids[] = { 1, 2, 3 };
    fixture *x = *state;
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 2;
    tinkc_sampler *s = tinkc_sampler_new(
        x->client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &x->err);
    tinkc_future *f = tinkc_sample(s, ids, 3, 2, &o, &x->err);
    const tinkc_samples *r = tinkc_future_samples(f, PATIENCE_MS, &x->err);
    assert_ok(&x->err);
    assert_non_null(tinkc_samples_at(r, 1));
    assert_null(tinkc_samples_at(r, 2));
    tinkc_future_free(f);
    f = tinkc_sample(s, ids, 3, INT32_MAX, &o, &x->err); /* as many as there may be */
    assert_ok(&x->err);
    tinkc_future_cancel(f);
    tinkc_future_free(f);
    refused(x, tinkc_sample_input(s, NULL, 1, &o, &x->err) != NULL, TINKC_E_ARGUMENT,
            "prompt: must not be empty");
    static const size_t numbers[] = { 0, (size_t)INT32_MAX + 1 };
    for (size_t i = 0; i < 2; i++)
        refused(x, tinkc_sample(s, ids, 3, numbers[i], &o, &x->err) != NULL, TINKC_E_ARGUMENT,
                "n_samples: must be from 1 to 2^31 - 1");
    tinkc_sampler_free(s);
    assert_true(tinkc_mock_once(
        x->mock, NULL, "/own",
        &(tinkc_mock_answer){ .headers = PAIRS("A", "1", ":note", "2", "::", "3", "B", "4"),
                              .body = "x" },
        &x->err));
    f = tinkc_http_call(x->client, &(tinkc_http_options){ .path = "/own" }, &x->err);
    const tinkc_response *a = tinkc_future_response(f, PATIENCE_MS, &x->err);
    assert_ok(&x->err);
    assert_string_equal(tinkc_response_header(a, "a"), "1");
    assert_string_equal(tinkc_response_header(a, "b"), "4");
    assert_null(tinkc_response_header(a, ":note"));
    assert_null(tinkc_response_header(a, "::"));
    tinkc_future_free(f);
}

/* Candidates for the tokens of a prompt: both lists have a cell for each. */
static void candidates_of_a_prompt(void **state)
{
    fixture *x = *state;
    static const int32_t prompt[] = { 1, 2, 3 };
    static const float logprobs[8] = { -1, -2, -3, -4 };
    static const int64_t good_ids[8] = { 5, 6, 7, INT32_MAX },
                         large[8] = { 0, 0, 0, (int64_t)INT32_MAX + 1 }, negative[8] = { -1 };
    static const struct {
        tkc_tensor logprobs, ids;
        const char *why; /* NULL: it is taken */
    } rows[] = {
#define T(values, n, type, is_sparse)                                                              \
    { .data = values, .count = n, .dtype = type, .sparse = is_sparse }
#define LOGPROBS  T(logprobs, 4, TINKC_F32, false)
#define IDS       T(good_ids, 4, TINKC_I64, false)
#define LAYOUT(n) "sample result: prompt_alt_tokens: " n " cells of another layout where 4 are due"
#define NUMBER(n) "sample result: prompt_alt_tokens: " n " ids where 4 are due"
        { LOGPROBS, IDS, NULL },
        { T(logprobs, 4, 0, false), IDS,
          "sample result: nothing for prompt_alt_tokens; the service may not know it" },
        { T(logprobs, 4, TINKC_I64, false), IDS, LAYOUT("4") },
        { T(logprobs, 4, TINKC_F32, true), IDS, LAYOUT("4") },
        { T(logprobs, 5, TINKC_F32, false), IDS, LAYOUT("5") },
        { LOGPROBS, T(good_ids, 4, TINKC_F32, false), NUMBER("4") },
        { LOGPROBS, T(good_ids, 4, TINKC_I64, true), NUMBER("4") },
        { LOGPROBS, T(good_ids, 3, TINKC_I64, false), NUMBER("3") },
        { LOGPROBS, T(good_ids, 5, TINKC_I64, false), NUMBER("5") },
        { LOGPROBS, T(large, 4, TINKC_I64, false),
          "sample result: prompt_alt_tokens: an id is out of range" },
        { LOGPROBS, T(negative, 4, TINKC_I64, false),
          "sample result: prompt_alt_tokens: an id is out of range" },
    };
    tinkc_chunk chunk = { .kind = TINKC_CHUNK_TOKENS, .tokens = { prompt, 3 } };
    tkc_sample_request q = { .prompt_alt_tokens_k = TKC_SOME(2) };
    q.prompt.chunks.data = &chunk;
    q.prompt.chunks.len = 1;
    assert_int_equal(tkc_prompt_tokens(&q), 3);
    chunk.kind = TINKC_CHUNK_IMAGE; /* how many those are only the service knows */
    assert_int_equal(tkc_prompt_tokens(&q), 0);
    chunk.kind = TINKC_CHUNK_TOKENS;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tkc_arena arena = { 0 };
        tinkc_samples s = { 0 };
        s.r.alt_logprobs = rows[i].logprobs;
        s.r.alt_tokens = rows[i].ids;
        tkc_samples_check(&s, &q, &arena, &x->err);
        if (rows[i].why) {
            refused(x, !x->err.code, TINKC_E_BAD_RESPONSE, rows[i].why);
        } else {
            const int32_t *ids;
            const float *p;
            assert_ok(&x->err);
            assert_int_equal(tinkc_samples_alt_tokens(&s, 2, &ids, &p), 2);
            assert_true(ids[0] == 7 && ids[1] == INT32_MAX && p[0] == -3 && p[1] == -4);
            assert_int_equal(tinkc_samples_alt_tokens(&s, 0, &ids, &p), 0);
            assert_null(ids);
            assert_int_equal(tinkc_samples_alt_tokens(&s, 3, &ids, &p), 0);
            assert_null(p);
        }
        tkc_arena_free(&arena);
    }
}

/* A stream of which nothing comes: a wait ends. */
static void streams_without_a_token(void **state)
{
    fixture *x = *state;
    static const int32_t ids[] = { 1, 2, 3 };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    tinkc_sampler *s = tinkc_sampler_new(
        x->client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &x->err);
    assert_true(tinkc_mock_once(x->mock, NULL, API "stream_sample",
                                &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &x->err));
    tinkc_deltas *d = tinkc_sample_stream(s, ids, 3, &o, &x->err);
    assert_ok(&x->err);
    for (int64_t ms = 0; ms < 3; ms++)
        refused(x, tinkc_deltas_next(d, ms, &x->err) != NULL, TINKC_E_TIMEOUT, "no token yet");
    tinkc_deltas_free(d);
    tinkc_sampler_free(s);
}

static void take_wait(const tinkc_event *e, void *user)
{
    *(int64_t *)user = e->wait_ms;
}

/* How long samples are held back: longer after a large prompt. */
static void held_back(void **state)
{
    fixture *x = *state;
    static const int32_t ids[200000];
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 1;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    tinkc_sampler *s = tinkc_sampler_new(
        x->client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &x->err);
    int64_t wait_ms = 0;
    assert_true(
        tinkc_client_on_event(x->client, queue, TINKC_EVENT_BACKOFF, take_wait, &wait_ms, &x->err));
    for (int large = 0; large < 2; large++) {
        wait_ms = 0;
        tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
        tinkc_mock_advance(x->mock, 100000); /* an earlier one is over */
        once(x, API "asample", 429, "");
        tinkc_future *f = tinkc_sample(s, ids, large ? 200000 : 3, 1, &o, &x->err);
        assert_true(run_until_done(x->mock, f, 600000));
        while (tinkc_queue_run(queue, 0, &x->err) > 0)
            ;
        assert_ok(&x->err);
        assert_int_equal(wait_ms, large ? 5000 : 1000);
        tinkc_future_free(f);
    }
    tinkc_sampler_free(s);
    tinkc_queue_free(queue);
}

/* ---- names of tokenizers ---- */

static void variants_of_a_model(void **state)
{
    fixture *x = *state;
    static const char *const rows[][2] = {
        { "a/b", "a/b" },         { "a/b/", "a/b" }, { "a/b/c", "a/b" },
        { "a/b/c/d", "a/b/c/d" }, { "a", "a" },
    };
    tinkc_text repo = { 0 }, revision = { 0 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_true(tinkc_tokenizer_resolve(rows[i][0], NULL, &repo, &revision, &x->err));
        assert_string_equal(repo.data, rows[i][1]);
    }
    tinkc_error first = { .code = TINKC_E_STATE };
    assert_false(tinkc_tokenizer_resolve("a/b", NULL, &repo, &revision, &first));
    assert_false(tinkc_tokenizer_register(x->client, "a/b", NULL, &first));
    assert_int_equal(first.code, TINKC_E_STATE);
    tinkc_text_free(&repo);
    tinkc_text_free(&revision);
}

/* ---- forms ---- */

static void forms_word_for_word(void **state)
{
    fixture *x = *state;
    char file[] = "/tmp/tinkc-rare-XXXXXX", want[900];
    int fd = mkstemp(file);
    assert_true(fd >= 0 && write(fd, "file bytes", 10) == 10);
    close(fd);
    tinkc_form *form = tinkc_form_new(x->client, &x->err);
    assert_true(tinkc_form_add_file(form, "f", file, NULL, &x->err));
    assert_true(tinkc_form_add_text(form, "t", "text", &x->err));
    assert_true(tinkc_form_add_bytes(form, "b", "by", 2, "n", "a/b", &x->err));
    static const char *const bad[][3] = { { "a\nb", "n", "t" },
                                          { "a", "n\r", "t" },
                                          { "a", "n", "t\n" } };
    static const char *const why[] = { "name holds a line break", "filename holds a line break",
                                       "content_type holds a line break" };
    for (size_t i = 0; i < 3; i++)
        refused(x, tinkc_form_add_bytes(form, bad[i][0], "x", 1, bad[i][1], bad[i][2], &x->err),
                TINKC_E_ARGUMENT, why[i]);
    refused(x, tinkc_form_add_file(form, "x", NULL, NULL, &x->err), TINKC_E_ARGUMENT,
            "file is NULL");
    tinkc_error first = { .code = TINKC_E_STATE };
    assert_false(tinkc_form_add_file(form, "x", file, NULL, &first));
    once(x, "/form", 200, "ok");
    tinkc_future *f =
        tinkc_http_call(x->client, &(tinkc_http_options){ .path = "/form", .form = form }, &x->err);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    const tinkc_request *r = nth_request(x->mock, "/form", 0);
    const char *mark = strstr(request_header(r, "Content-Type"), "boundary=") + 9;
    (void)snprintf(want, sizeof want,
                   "--%s\r\nContent-Disposition: form-data; name=\"f\"; filename=\"%s\"\r\n"
                   "Content-Type: application/octet-stream\r\n\r\nfile bytes\r\n"
                   "--%s\r\nContent-Disposition: form-data; name=\"t\"\r\n\r\ntext\r\n"
                   "--%s\r\nContent-Disposition: form-data; name=\"b\"; filename=\"n\"\r\n"
                   "Content-Type: a/b\r\n\r\nby\r\n--%s--\r\n",
                   mark, file + 5, mark, mark, mark);
    assert_int_equal(r->body.len, strlen(want));
    assert_memory_equal(r->body.data, want, r->body.len);
    tinkc_future_free(f);
    tinkc_form_free(form);
    (void)unlink(file);
    refused(x,
            tinkc_http_call(x->client, &(tinkc_http_options){ .path = "/x", .body_len = 1 },
                            &x->err) != NULL,
            TINKC_E_ARGUMENT, "body is NULL but body_len is not 0");
    refused(x,
            tinkc_http_call(x->client,
                            &(tinkc_http_options){ .path = "/x", .body = "", .body_file = "y" },
                            &x->err) != NULL,
            TINKC_E_ARGUMENT, "body, body_file and form: more than one is given");
}

/* ---- lists ---- */

#define RUN(id)                                                                                    \
    "{\"training_run_id\":\"" id "\",\"base_model\":\"m\",\"model_owner\":\"o\",\"is_lora\":true," \
    "\"last_request_time\":\"2026-01-01T00:00:00Z\"}"

#define CHECKPOINT(id)                                                                             \
    "{\"checkpoint_id\":\"weights/" id "\",\"checkpoint_type\":\"training\",\"time\":"             \
    "\"2026-03-04T05:06:07Z\",\"tinker_path\":\"tinker://r/weights/" id "\"}"

/* A page that failed has nothing ready and no total, and is asked for again. */
static void pages_that_fail(void **state)
{
    fixture *x = *state;
    tinkc_runs *list = tinkc_runs_list(x->client, &(tinkc_list_options){ .page_size = 2 }, &x->err);
    once(x, API "training_runs", 404, "{\"detail\":\"no\"}");
    tinkc_future *f = tinkc_runs_fetch(list, &x->err);
    assert_true(run_until_done(x->mock, f, 60000));
    tinkc_future_free(f);
    assert_int_equal(tinkc_runs_total(list), -1);
    assert_int_equal(tinkc_runs_ready(list), 0);
    /* a fetch of the caller's that failed is the caller's to see */
    assert_null(tinkc_runs_next(list, &x->err));
    assert_int_equal(x->err.code, TINKC_E_NOT_FOUND);
    x->err = (tinkc_error){ 0 };
    assert_int_equal(tinkc_mock_count(x->mock, API "training_runs"), 1);
    once(x, API "training_runs", 200,
         "{\"training_runs\":[" RUN("a") "," RUN(
             "b") "],\"cursor\":{\"offset\":0,\"limit\":2,\"total_count\":3}}");
    once(x, API "training_runs", 200,
         "{\"training_runs\":[" RUN(
             "c") "],\"cursor\":{\"offset\":0,\"limit\":2,\"total_count\":3}}");
    static const char *const wanted[] = { "a", "b", "c" };
    for (size_t i = 0; i < 3; i++) {
        const tinkc_run *run = tinkc_runs_next(list, &x->err);
        assert_ok(&x->err);
        assert_non_null(run);
        assert_string_equal(run->id, wanted[i]);
    }
    assert_int_equal(tinkc_runs_total(list), 3);
    assert_null(tinkc_runs_next(list, &x->err));
    assert_ok(&x->err);
    tinkc_runs_free(list);
    /* a run's checkpoints come all at once: as many as there are is the total */
    once(x, API "training_runs/r/checkpoints", 200, "{\"checkpoints\":[" CHECKPOINT("1") "]}");
    tinkc_checkpoints *all =
        tinkc_checkpoints_list(x->client, &(tinkc_list_options){ .run_id = "r" }, &x->err);
    assert_non_null(tinkc_checkpoints_next(all, &x->err));
    assert_int_equal(tinkc_checkpoints_total(all), 1);
    assert_null(tinkc_checkpoints_next(all, &x->err));
    assert_ok(&x->err);
    tinkc_checkpoints_free(all);
    once(x, API "training_runs/r/checkpoints", 200,
         "{\"checkpoints\":[" CHECKPOINT(
             "1") "],\"cursor\":{\"offset\":0,\"limit\":1,\"total_count\":0}}");
    all = tinkc_checkpoints_list(x->client, &(tinkc_list_options){ .run_id = "r" }, &x->err);
    assert_non_null(tinkc_checkpoints_next(all, &x->err));
    assert_int_equal(tinkc_checkpoints_total(all), 0); /* what the service says is believed */
    tinkc_checkpoints_free(all);
    once(x, API "training_runs/r/checkpoints", 200,
         "{\"checkpoints\":[" CHECKPOINT("1") "," CHECKPOINT("2") "," CHECKPOINT("3") "]}");
    all = tinkc_checkpoints_list(x->client, &(tinkc_list_options){ .run_id = "r", .offset = 1 },
                                 &x->err);
    f = tinkc_checkpoints_fetch(all, &x->err);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    tinkc_future_free(f);
    assert_int_equal(tinkc_checkpoints_ready(all), 2); /* the service skips none for us */
    assert_string_equal(tinkc_checkpoints_next(all, &x->err)->id, "weights/2");
    assert_int_equal(tinkc_checkpoints_ready(all), 1);
    tinkc_checkpoints_free(all);
}

/* ---- clients of copies ---- */

/* They have a session of somebody else. */
static void clients_of_copies_open_nothing(void **state)
{
    fixture *x = *state;
    tinkc_client *c = mock_client(x->mock, NULL, &x->err);
    c->imported = true;
    refused(x,
            tinkc_sampler_open(c, &(tinkc_sampler_options){ .base_model = "m" }, &x->err) != NULL,
            TINKC_E_NO_SESSION, "the client of an imported sampler opens no others");
    refused(x, tinkc_trainer_open(c, &(tinkc_lora_options){ .base_model = "m" }, &x->err) != NULL,
            TINKC_E_NO_SESSION, "the client of an imported sampler makes no trainers");
    tinkc_client_free(c);
}

/* ---- what the service says of a model ---- */

static void models(void **state)
{
    fixture *x = *state;
    tinkc_trainer *t =
        tinkc_trainer_new(x->client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &x->err);
    assert_ok(&x->err);
    assert_string_equal(t->base_model, "mock/nano");
    static const struct {
        const char *given, *kept;
    } rows[] = { { "t/x:rev", "t/x" }, { "t/x", "t/x" }, { ":", "" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[200];
        (void)snprintf(body, sizeof body,
                       "{\"model_id\":\"m\",\"model_data\":{\"tokenizer_id\":\"%s\"},"
                       "\"optimizer_config\":{\"type\":\"adamw\"}}",
                       rows[i].given);
        once(x, API "get_info", 200, body);
        tinkc_future *f = tinkc_trainer_info(t, &x->err);
        const tinkc_model_info *info = tinkc_future_model_info(f, PATIENCE_MS, &x->err);
        assert_ok(&x->err);
        assert_string_equal(info->tokenizer_id, rows[i].kept);
        assert_string_equal(info->model_name, "");
        assert_int_equal(info->json.len, strlen(body)); /* with what we do not know */
        assert_memory_equal(info->json.data, body, strlen(body));
        tinkc_future_free(f);
    }
    once(x, API "retrieve_future", 200,
         "{\"path\":null,\"sampling_session_id\":\"s\",\"type\":\"save_weights_for_sampler\"}");
    tinkc_sampler *sampler = tinkc_trainer_sampler(t, &x->err);
    assert_ok(&x->err);
    assert_string_equal(tinkc_sampler_id(sampler), "s");
    tinkc_sampler_free(sampler);
    const char *recipients[12] = { 0 }; /* ten at most, none of them empty */
    for (size_t i = 0; i < 11; i++)
        recipients[i] = "age1x";
    tinkc_external_options o = { .recipients = recipients };
    refused(x, tinkc_trainer_save_external(t, "a", &o, &x->err) != NULL, TINKC_E_ARGUMENT,
            "recipients: more than 10");
    recipients[10] = NULL;
    recipients[9] = "";
    refused(x, tinkc_trainer_save_external(t, "a", &o, &x->err) != NULL, TINKC_E_ARGUMENT,
            "recipients: one is empty");
    recipients[9] = "y";
    tinkc_future_free(tinkc_trainer_save_external(t, "a", &o, &x->err));
    assert_ok(&x->err);
    tinkc_trainer_free(t);
#define MODEL(members) "{\"model_id\":\"m\",\"next_seq_id\":4," members "}"
    static const char *const named[] = {
        MODEL("\"model_data\":{\"model_name\":\"inner\"},\"model_name\":\"outer\""),
        MODEL("\"model_data\":{},\"model_name\":\"outer\""),
        MODEL("\"model_data\":{}"),
    };
    static const char *const bases[] = { "inner", "outer", "" };
    for (size_t i = 0; i < 3; i++) {
        once(x, API "get_info", 200, named[i]);
        t = tinkc_trainer_new_live(x->client, "m", &x->err);
        assert_ok(&x->err);
        assert_string_equal(t->base_model, bases[i]);
        tinkc_trainer_free(t);
    }
}

/* ---- copies of checkpoints, days ---- */

static void copies_and_days(void **state)
{
    fixture *x = *state;
    static const char *const paths[] = { "", "x", "tinker://r/weights/d" };
    for (size_t i = 0; i < 3; i++) {
        char body[100];
        (void)snprintf(body, sizeof body, "{\"tinker_path\":\"%s\"}", paths[i]);
        once(x, API "copy_weights", 200, body);
        tinkc_future *f = tinkc_checkpoint_copy(
            x->client, "tinker://r/weights/c", &(tinkc_copy_options){ .project_id = "p" }, &x->err);
        assert_ok(&x->err);
        assert_true(run_until_done(x->mock, f, 60000));
        const char *path = tinkc_future_path(f, 0, &x->err);
        if (i)
            assert_string_equal(path, paths[i]);
        else
            refused(x, path != NULL, TINKC_E_BAD_RESPONSE,
                    "checkpoint_copy: the answer names no path");
        tinkc_future_free(f);
    }
    /* a sampler's archive is asked for by its whole id and by its name, and then no more */
    once(x, API "training_runs/r/checkpoints/sampler_weights/c/archive", 404,
         "{\"detail\":\"whole\"}");
    once(x, API "training_runs/r/checkpoints/c/archive", 404, "{\"detail\":\"name\"}");
    tinkc_future *f = tinkc_checkpoint_archive(x->client, "tinker://r/sampler_weights/c", &x->err);
    assert_true(run_until_done(x->mock, f, 60000));
    refused(x, tinkc_future_wait(f, 0, &x->err), TINKC_E_NOT_FOUND, "HTTP 404: whole");
    tinkc_future_free(f);
    /* an archive that is waited for may be cancelled */
    once(x, API "training_runs/r/checkpoints/weights/c/archive", 503, "");
    f = tinkc_checkpoint_archive(x->client, "tinker://r/weights/c", &x->err);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    assert_false(tinkc_future_done(f));
    tinkc_future_cancel(f);
    assert_true(run_until_done(x->mock, f, 0));
    tinkc_future_free(f);
    once(x, API "training_runs/r/checkpoints/external_weights/c/external_weights_urls", 200,
         "{\"urls\":{\"a\":\"https://u\",\"b\":\"http://v\",\"c\":\"https://"
         "w\"},\"expires\":\"2026-01-01T00:00:00Z\"}");
    f = tinkc_checkpoint_links(x->client, "tinker://r/external_weights/c", &x->err);
    const tinkc_links *links = tinkc_future_links(f, PATIENCE_MS, &x->err);
    assert_ok(&x->err);
    assert_int_equal(tinkc_links_count(links), 3);
    assert_string_equal(tinkc_links_at(links, 1)->name, "b");
    assert_string_equal(tinkc_links_at(links, 2)->url, "https://w");
    assert_null(tinkc_links_at(links, 3));
    assert_null(tinkc_links_at(NULL, 0));
    assert_true(tinkc_links_count(NULL) == 0 && tinkc_links_expires_us(NULL) == TINKC_NO_TIME);
    tinkc_future_free(f);
    static const char *const bad[] = { "2026-01x02", "2026x01-02", "2026-01-0", "2026-01-022" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_null(tinkc_audit_get(x->client, NULL, bad[i], &x->err));
        assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
        x->err = (tinkc_error){ 0 };
    }
}

/* ---- the end of a client ---- */

/* Telemetry that is queued, under way, or waits for its next attempt ends with its client: nothing is left of it. */
static void reports_at_the_end(void **state)
{
    fixture *x = *state;
    static const tinkc_mock_answer answers[] = {
        { .body = "{}" },
        { .fault = TINKC_FAULT_SILENT },
        { .status = 500 },
    };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        for (int waits = 0; waits < 2; waits++) {
            counting memory = { 0 };
            tinkc_allocator allocator = counting_allocator(&memory);
            tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x->err);
            tinkc_client *c = mock_client(mock,
                                          &(tinkc_client_options){ .allocator = &allocator,
                                                                   .telemetry = TINKC_TELEMETRY_ON,
                                                                   .max_retries = TINKC_ZERO,
                                                                   .retry_window_ms = TINKC_ZERO },
                                          &x->err);
            assert_true(tinkc_mock_always(mock, NULL, API "telemetry", &answers[i], &x->err));
            assert_true(tinkc_client_report(c, "first", "{\"a\":1}", TINKC_LOG_INFO, &x->err));
            tinkc_mock_settle(mock, PATIENCE_MS, &x->err);
            if (waits)
                tinkc_mock_advance(mock, 10000);
            tinkc_mock_settle(mock, PATIENCE_MS, &x->err);
            assert_int_equal(tinkc_mock_count(mock, API "telemetry"), waits);
            assert_true(tinkc_client_report(c, "second", NULL, TINKC_LOG_DEBUG, &x->err));
            tinkc_mock_settle(mock, PATIENCE_MS, &x->err);
            assert_ok(&x->err);
            (void)tinkc_client_close(c, 0, &x->err);
            x->err = (tinkc_error){ 0 };
            if (waits && answers[i].status) /* what waits for its next attempt is not hurried */
                assert_int_equal(tinkc_mock_count(mock, API "telemetry"), 1);
            tinkc_mock_advance(mock, 20000); /* no timer is left */
            tinkc_client_free(c);
            assert_true(counting_is_empty_soon(&memory));
            tinkc_mock_free(mock);
        }
}

/* The answer that caused a user's error is reported with it, up to 4096 bytes. */
static void reports_of_large_answers(void **state)
{
    fixture *x = *state;
    tinkc_client *c =
        mock_client(x->mock, &(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_ON }, &x->err);
    for (size_t n = 4095; n <= 4097; n++) {
        char body[4100];
        memset(body, 'x', n);
        body[n] = '\0';
        size_t sent = tinkc_mock_count(x->mock, API "telemetry");
        once(x, API "get_server_capabilities", 403, body);
        tinkc_future *f = tinkc_capabilities_get(c, &x->err);
        assert_ok(&x->err);
        assert_true(run_until_done(x->mock, f, 60000));
        tinkc_future_free(f);
        tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
        assert_int_equal(tinkc_mock_count(x->mock, API "telemetry"), sent + 1);
        const tinkc_request *r = nth_request(x->mock, API "telemetry", sent);
        assert_non_null(memmem(r->body.data, r->body.len, "user_error", 10));
        assert_int_equal(memmem(r->body.data, r->body.len, "\"body\":\"xxxx", 12) != NULL,
                         n <= 4096);
    }
    tinkc_client_free(c);
}

/* ---- metrics ---- */

static char lines[2000];

static void keep_line(int32_t level, const char *line, void *user)
{
    (void)level, (void)user;
    (void)snprintf(lines + strlen(lines), sizeof lines - strlen(lines), "%s\n", line);
}

static tinkc_fwdbwd part_with(tkc_arena *arena, const char *const *names)
{
    tinkc_error err = { 0 };
    static const char *none[1];
    tinkc_fwdbwd p = { .type = "", .n = 1, .names = none };
    for (size_t i = 0; names[i]; i++)
        assert_true(tkc_metrics_put(&p.metrics, names[i], (double)i, arena, &err));
    return p;
}

/* What cannot be combined is left out, and the log says so. */
static void metrics_that_are_left_out(void **state)
{
    fixture *x = *state;
    tkc_arena arena = { 0 };
    tinkc_client *c = mock_client(
        x->mock, &(tinkc_client_options){ .log = keep_line, .log_level = TINKC_LOG_DEBUG },
        &x->err);
    tinkc_fwdbwd all,
        p = part_with(&arena, PAIRS("plain", "a:sum", "b:unheard_of", "c:d:sum", "e:mean"));
    const tinkc_fwdbwd *parts[] = { &p, &p };
    lines[0] = '\0';
    assert_true(tkc_fwdbwd_combine(&all, parts, 2, &arena, c, &x->err));
    assert_int_equal(tinkc_metrics_count(&all.metrics), 2);
    assert_string_equal(tinkc_metrics_name(&all.metrics, 0), "a:sum");
    assert_string_equal(tinkc_metrics_name(&all.metrics, 1), "e:mean");
    assert_null(tinkc_metrics_name(&all.metrics, 2));
    static const char *const left_out[] = { "plain", "b:unheard_of", "c:d:sum" };
    for (size_t i = 0; i < 3; i++) {
        char want[100];
        (void)snprintf(want, sizeof want, "metric %s is left out: no known reduction", left_out[i]);
        assert_non_null(strstr(lines, want));
    }
    assert_null(strstr(lines, "a:sum"));
    assert_null(strstr(lines, "e:mean"));
    lines[0] = '\0';
    assert_true(tkc_fwdbwd_combine(&all, parts, 1, &arena, c, &x->err)); /* one part keeps all */
    assert_true(tinkc_metrics_get(&all.metrics, "plain", 9) == 0);
    assert_null(strstr(lines, "metric plain"));
    /* Memory that ends in the middle of a metric that becomes several. */
    tinkc_fwdbwd u = part_with(&arena, PAIRS("u:unique"));
    const tinkc_fwdbwd *many[] = { &u, &u, &u, &u };
    bool done = false;
    for (size_t max = 16; !done; max += 16) {
        tkc_arena small;
        tkc_arena_init(&small, NULL, max);
        x->err = (tinkc_error){ 0 };
        done = tkc_fwdbwd_combine(&all, many, 4, &small, c, &x->err);
        assert_int_equal(x->err.code, done ? 0 : TINKC_E_MEMORY);
        tkc_arena_free(&small);
    }
    tkc_arena_free(&arena);
    tinkc_client_free(c);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(errors_of_answers),
        TEST(long_paths),
        TEST(saved_texts),
        TEST(short_headers_and_repeated_tags),
        TEST(names_of_a_letter),
        TEST(no_memory_for_a_client),
        TEST(answers_that_are_not_there),
        TEST(the_last_and_the_next),
        TEST(candidates_of_a_prompt),
        TEST(streams_without_a_token),
        TEST(held_back),
        TEST(variants_of_a_model),
        TEST(forms_word_for_word),
        TEST(pages_that_fail),
        TEST(clients_of_copies_open_nothing),
        TEST(models),
        TEST(copies_and_days),
        TEST(metrics_that_are_left_out),
        TEST(reports_at_the_end),
        TEST(reports_of_large_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
