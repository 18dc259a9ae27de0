/* test_hub_session.c - a hub's session: where each setting comes from and what it is without one, which failures
 * are tried again and after which pause, what a status is called. Nothing is sent and nothing is waited for: a
 * session that is stopped says its pause in the log and sleeps no moment of it. */
#include <unistd.h>

#include "hub/hub_priv.h"
#include "support/client/api_support.h"

static const char *const variables[] = {
    "HF_HOME",       "XDG_CACHE_HOME",         "HOME",           "HF_HUB_CACHE",         "HF_ENDPOINT",  "HF_TOKEN",
    "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "SSL_CERT_FILE"
};
enum { N_VARIABLES = sizeof variables / sizeof *variables };
static char *kept[N_VARIABLES];
static char folder[] = "/tmp/tinkc-session-XXXXXX";

static int keep_environment(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_VARIABLES; i++)
        kept[i] = getenv(variables[i]) ? strdup(getenv(variables[i])) : NULL;
    return mkdtemp(folder) ? 0 : -1;
}

static int restore_environment(void **state)
{
    char command[80];
    (void)state;
    for (size_t i = 0; i < N_VARIABLES; i++) {
        if (kept[i])
            setenv(variables[i], kept[i], 1);
        else
            unsetenv(variables[i]);
        free(kept[i]);
    }
    (void)snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* "NAME=VALUE NAME=VALUE", and no other variable of the hub. */
static void set_environment(const char *text)
{
    char copy[300], *rest = copy, *at;
    for (size_t i = 0; i < N_VARIABLES; i++)
        unsetenv(variables[i]);
    (void)snprintf(copy, sizeof copy, "%s", text);
    while ((at = strsep(&rest, " "))) {
        char *value = strchr(at, '=');
        if (value) {
            *value = 0;
            setenv(at, value + 1, 1);
        }
    }
}

static void write_file(const char *name, char *path, size_t cap, const char *text, size_t len)
{
    (void)snprintf(path, cap, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static tinkc_hub *make(const char *environment, const tinkc_hub_options *o)
{
    tinkc_error err = { 0 };
    set_environment(environment);
    tinkc_hub *h = tinkc_hub_new(o, &err);
    assert_ok(&err);
    return h;
}

static void expect(const char *what, const char *got, const char *want, size_t row)
{
    if ((got == NULL) != (want == NULL) || (got && strcmp(got, want) != 0))
        fail_msg("row %zu: %s is %s, not %s", row, what, got ? got : "none", want ? want : "none");
}

/* ---- where settings come from ---- */

TEST(places_and_tokens)
{
#define OPTIONS(...)                                                                                                   \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }
    static const struct {
        const char *environment;
        tinkc_hub_options o;
        const char *url, *token, *cache, *ca;
    } rows[] = {
        { "", OPTIONS(0), "https://huggingface.co", NULL, "./.cache/huggingface/hub", NULL },
        { "HOME=/h", OPTIONS(0), "https://huggingface.co", NULL, "/h/.cache/huggingface/hub", NULL },
        { "HOME=/h XDG_CACHE_HOME=/x", OPTIONS(0), "https://huggingface.co", NULL, "/x/huggingface/hub", NULL },
        { "HOME=/h XDG_CACHE_HOME=/x HF_HOME=/f", OPTIONS(0), "https://huggingface.co", NULL, "/f/hub", NULL },
        { "HF_HOME=/f HF_HUB_CACHE=/c", OPTIONS(0), "https://huggingface.co", NULL, "/c", NULL },
        { "HF_HOME=/f HF_HUB_CACHE=/c", OPTIONS(.cache_dir = "/o"), "https://huggingface.co", NULL, "/o", NULL },
        { "HF_HOME= XDG_CACHE_HOME= HF_HUB_CACHE= HF_ENDPOINT= HF_TOKEN= SSL_CERT_FILE= HOME=/h",
          OPTIONS(.cache_dir = "", .url = "", .ca_file = ""), "https://huggingface.co", NULL,
          "/h/.cache/huggingface/hub", NULL },
        { "HF_HOME=/f HF_ENDPOINT=http://e/", OPTIONS(0), "http://e", NULL, "/f/hub", NULL },
        { "HF_HOME=/f HF_ENDPOINT=http://e", OPTIONS(.url = "https://o/p//"), "https://o/p", NULL, "/f/hub", NULL },
        { "HF_HOME=/f HF_TOKEN=one HUGGING_FACE_HUB_TOKEN=two", OPTIONS(0), "https://huggingface.co", "one", "/f/hub",
          NULL },
        { "HF_HOME=/f HUGGING_FACE_HUB_TOKEN=two", OPTIONS(0), "https://huggingface.co", "two", "/f/hub", NULL },
        { "HF_HOME=/f HF_TOKEN=\tone\n", OPTIONS(0), "https://huggingface.co", "one", "/f/hub", NULL },
        { "HF_HOME=/f HF_TOKEN=one", OPTIONS(.token = "mine"), "https://huggingface.co", "mine", "/f/hub", NULL },
        { "HF_HOME=/f HF_TOKEN=one", OPTIONS(.token = ""), "https://huggingface.co", NULL, "/f/hub", NULL },
        { "HF_HOME=/f SSL_CERT_FILE=/s", OPTIONS(0), "https://huggingface.co", NULL, "/f/hub", "/s" },
        { "HF_HOME=/f SSL_CERT_FILE=/s", OPTIONS(.ca_file = "/o"), "https://huggingface.co", NULL, "/f/hub", "/o" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_hub *h = make(rows[i].environment, &rows[i].o);
        expect("url", tinkc_hub_url(h), rows[i].url, i);
        expect("token", h->token, rows[i].token, i);
        expect("cache", tinkc_hub_cache(h), rows[i].cache, i);
        expect("ca_file", h->fetch.ca_file, rows[i].ca, i);
        expect("proxy", h->fetch.proxy, NULL, i);
        assert_int_equal(tinkc_hub_has_token(h), rows[i].token != NULL);
        tinkc_hub_free(h);
    }
    assert_string_equal(tinkc_hub_url(NULL), "");
    assert_string_equal(tinkc_hub_cache(NULL), "");
    assert_false(tinkc_hub_has_token(NULL));
}

/* The file with the token: at $HF_TOKEN_PATH, otherwise in $HF_HOME; 64 KiB at most. */
TEST(the_token_is_read_from_its_file)
{
    enum { MOST = 64 * 1024 };
    static char text[MOST + 1];
    char path[100], environment[300];
    write_file("token", path, sizeof path, "  inside\n", 9);
    (void)snprintf(environment, sizeof environment, "HF_HOME=%s", folder);
    tinkc_hub *h = make(environment, NULL);
    assert_string_equal(h->token, "inside");
    tinkc_hub_free(h);
    write_file("other", path, sizeof path, "elsewhere", 9);
    (void)snprintf(environment, sizeof environment, "HF_HOME=%s HF_TOKEN_PATH=%s", folder, path);
    h = make(environment, NULL);
    assert_string_equal(h->token, "elsewhere");
    tinkc_hub_free(h);
    (void)snprintf(environment, sizeof environment, "HF_HOME=%s HF_TOKEN_PATH=%s HF_TOKEN=first", folder, path);
    h = make(environment, NULL);
    assert_string_equal(h->token, "first");
    tinkc_hub_free(h);
    memset(text, 't', sizeof text);
    (void)snprintf(environment, sizeof environment, "HF_HOME=%s HF_TOKEN_PATH=%s", folder, path);
    for (size_t more = 0; more < 2; more++) {
        write_file("other", path, sizeof path, text, MOST + more);
        h = make(environment, NULL);
        assert_int_equal(h->token ? strlen(h->token) : 0, more ? 0 : MOST);
        tinkc_hub_free(h);
    }
    write_file("other", path, sizeof path, " \n", 2);
    h = make(environment, NULL);
    assert_null(h->token);
    tinkc_hub_free(h);
}

TEST(offline_by_option_or_variable)
{
    static const struct {
        const char *value;
        bool on;
    } rows[] = { { "1", true },      { "true", true }, { "TRUE", true }, { "yes", true },  { "Yes", true },
                 { "on", true },     { "ON", true },   { "0", false },   { "off", false }, { "no", false },
                 { "false", false }, { "", false },    { "11", false } };
    static const char *const names[] = { "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE" };
    char environment[100];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < 2; k++) {
            (void)snprintf(environment, sizeof environment, "%s=%s", names[k], rows[i].value);
            tinkc_hub *h = make(environment, NULL);
            if (h->offline != rows[i].on)
                fail_msg("%s", environment);
            tinkc_hub_free(h);
        }
    tinkc_hub *h = make("", &(tinkc_hub_options){ .offline = true });
    assert_true(h->offline);
    tinkc_hub_free(h);
}

static void on_log(int32_t level, const char *line, void *user)
{
    (void)level;
    (void)snprintf(user, 300, "%s", line);
}

TEST(a_pause_is_in_milliseconds)
{
    tinkc_hub *h = make("", NULL);
    int64_t begun = tkc_monotonic_ns();
    assert_true(tkc_hub_sleep(h, 30));
    assert_true(tkc_monotonic_ns() - begun >= 30 * 1000000);
    tinkc_hub_free(h);
}

TEST(numbers_and_their_defaults)
{
    tinkc_error err = { 0 };
    char said[300] = "";
    tinkc_hub *h = make("", NULL);
    assert_int_equal(h->jobs, 4);
    assert_int_equal(h->fetch.connect_ms, 10000);
    assert_int_equal(h->fetch.idle_ms, 60000);
    assert_int_equal(h->retry_window_ms, 30000);
    assert_int_equal(h->unreached_window_ms, 2000);
    assert_int_equal(h->log.level, TINKC_LOG_WARN);
    assert_false(h->no_retries || h->offline);
    assert_ptr_equal(h->fetch.stop, &h->stop);
    tinkc_hub_free(h);
    h = make("", &(tinkc_hub_options){ .jobs = 64,
                                       .connect_timeout_ms = 11,
                                       .idle_timeout_ms = 12,
                                       .retry_window_ms = 13,
                                       .no_retries = true,
                                       .log = on_log,
                                       .log_user = said,
                                       .log_level = TINKC_LOG_DEBUG,
                                       .proxy = "http://p" });
    assert_int_equal(h->jobs, 64);
    assert_int_equal(h->fetch.connect_ms, 11);
    assert_int_equal(h->fetch.idle_ms, 12);
    assert_int_equal(h->retry_window_ms, 13);
    assert_int_equal(h->unreached_window_ms, 13);
    assert_int_equal(h->log.level, TINKC_LOG_DEBUG);
    assert_true(h->no_retries);
    assert_true(h->log.fn == on_log && h->log.user == said);
    assert_string_equal(h->fetch.proxy, "http://p");
    tinkc_hub_free(h);
    h = make("", &(tinkc_hub_options){ .connect_timeout_ms = 11 });
    assert_int_equal(h->fetch.idle_ms, 60000);
    tinkc_hub_free(h);
    h = make("", &(tinkc_hub_options){ .idle_timeout_ms = 12 });
    assert_int_equal(h->fetch.idle_ms, 12);
    assert_int_equal(h->fetch.connect_ms, 10000);
    tinkc_hub_free(h);
    h = make("HTTPS_PROXY=http://q", &(tinkc_hub_options){ .proxy = "", .jobs = 1 });
    unsetenv("HTTPS_PROXY");
    assert_string_equal(h->fetch.proxy, ""); /* none at all, which NULL is not */
    assert_int_equal(h->jobs, 1);
    tinkc_hub_free(h);
    static const struct {
        tinkc_hub_options o;
        const char *message;
    } refused[] = {
        { { .jobs = 65 }, "hub options: jobs must be 1 to 64" },
        { { .jobs = -1 }, "hub options: jobs must be 1 to 64" },
        { { .connect_timeout_ms = -1 }, "hub options: connect_timeout_ms must not be negative" },
        { { .idle_timeout_ms = -1 }, "hub options: idle_timeout_ms must not be negative" },
        { { .retry_window_ms = -3 }, "hub options: retry_window_ms must not be negative" },
        { { .retry_window_ms = TINKC_ZERO }, "hub options: retry_window_ms must not be negative" },
        { { .reserved_bools[5] = true }, "hub options: reserved must be zero" },
        { { .reserved[6] = 1 }, "hub options: reserved must be zero" },
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_null(tinkc_hub_new(&refused[i].o, &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
        assert_string_equal(err.message, refused[i].message);
        err = (tinkc_error){ 0 };
    }
    static const tinkc_pull_options pulls[] = { { .repo = "a/b", .reserved[3] = 1 },
                                                { .repo = "a/b", .reserved_bools[2] = true } };
    static const tinkc_push_options pushes[] = {
        { .repo = "a/b", .folder = ".", .dry_run = true, .reserved[3] = 1 },
        { .repo = "a/b", .folder = ".", .dry_run = true, .reserved_bools[4] = true }
    };
    h = make("", &(tinkc_hub_options){ .offline = true });
    for (size_t i = 0; i < 2; i++) {
        assert_null(tinkc_hub_pull(h, &pulls[i], &err));
        assert_string_equal(err.message, "pull options: reserved must be zero");
        err = (tinkc_error){ 0 };
        assert_null(tinkc_hub_push(h, &pushes[i], &err));
        assert_string_equal(err.message, "push options: reserved must be zero");
        err = (tinkc_error){ 0 };
    }
    tinkc_hub_free(h);
    assert_null(tinkc_hub_new(&(tinkc_hub_options){ .url = "ftp://x" }, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_memory_equal(err.message, "the hub's address: ", 19);
}

/* A session of a single call: what is given replaces, the rest is the same. */
TEST(sessions_of_a_call)
{
    tinkc_error err = { 0 };
    tinkc_hub *base =
        make("HF_HOME=/f",
             &(tinkc_hub_options){ .url = "http://u", .token = "t", .proxy = "http://p", .ca_file = "/ca", .jobs = 3 });
    tinkc_hub_stop(base);
    atomic_store(&base->answered, true);
    tinkc_hub *h = tkc_hub_with(base, NULL, "", "", false, &err);
    assert_ok(&err);
    assert_string_equal(h->url, "http://u");
    assert_string_equal(h->token, "t");
    assert_string_equal(h->cache, "/f/hub");
    assert_string_equal(h->fetch.proxy, "http://p");
    assert_string_equal(h->fetch.ca_file, "/ca");
    assert_int_equal(h->jobs, 3);
    assert_false(h->offline || atomic_load(&h->stop) || atomic_load(&h->answered));
    assert_ptr_equal(h->fetch.stop, &h->stop);
    tinkc_hub_free(h);
    set_environment("HF_ENDPOINT=http://late HF_TOKEN=late");
    h = tkc_hub_with(base, "http://v/", "s", "/c", true, &err);
    assert_ok(&err);
    assert_string_equal(h->url, "http://v");
    assert_string_equal(h->token, "s");
    assert_string_equal(h->cache, "/c");
    assert_true(h->offline);
    tinkc_hub_free(h);
    base->offline = true;
    h = tkc_hub_with(base, "", NULL, NULL, false, &err);
    assert_ok(&err);
    assert_string_equal(h->url, "http://u");
    assert_true(h->offline);
    tinkc_hub_free(h);
    assert_null(tkc_hub_with(base, "x:", NULL, NULL, false, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    tinkc_hub_free(base);
}

/* ---- trying again ---- */

/* The pause before the next attempt after so many failures, or -1 if there is none. The session is stopped, so the
 * attempt ends as cancelled instead of sleeping. */
static int64_t pause_after(tinkc_hub *h, const char *said, tkc_hub_patience p, tinkc_error err, const char *header,
                           const char *value)
{
    tinkc_error bad = { 0 };
    tkc_fetch r;
    tkc_fetch_init(&r, NULL);
    if (header) {
        tkc_buf_add(&r.pairs, header, strlen(header) + 1, &bad);
        tkc_buf_add(&r.pairs, value, strlen(value) + 1, &bad);
    }
    assert_ok(&bad);
    (void)snprintf(err.message, sizeof err.message, "it fails");
    tinkc_hub_stop(h);
    int32_t code = err.code;
    bool again = tkc_hub_try_again(h, &p, &r, &err);
    tkc_fetch_end(&r);
    assert_false(again);
    if (err.code == code) {
        assert_string_equal(err.message, "it fails");
        return -1;
    }
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    assert_string_equal(err.message, "the transfer was stopped");
    assert_int_equal(err.http_status, 0);
    const char *text = strstr(said, "hub: it fails; trying again in ");
    assert_non_null(text);
    return strtoll(text + 31, NULL, 10);
}

TEST(failures_worth_another_attempt)
{
    static const struct {
        int32_t code, status;
        bool again;
    } rows[] = {
        { TINKC_E_CONNECTION, 0, true },      { TINKC_E_NET_TIMEOUT, 0, true },   { TINKC_E_FILE, 0, false },
        { TINKC_E_BAD_RESPONSE, 0, false },   { TINKC_E_SERVER, 408, true },      { TINKC_E_RATE_LIMITED, 429, true },
        { TINKC_E_SERVER, 500, true },        { TINKC_E_SERVER, 503, true },      { TINKC_E_SERVER, 599, true },
        { TINKC_E_NOT_FOUND, 404, false },    { TINKC_E_AUTH, 401, false },       { TINKC_E_FORBIDDEN, 403, false },
        { TINKC_E_BAD_RESPONSE, 499, false }, { TINKC_E_CONNECTION, 404, false },
    };
    char said[300] = "";
    tinkc_hub_options o = { .log = on_log, .log_user = said, .log_level = TINKC_LOG_INFO };
    tinkc_hub *h = make("", &o);
    o.no_retries = true;
    tinkc_hub *once = make("", &o);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { .code = rows[i].code, .http_status = rows[i].status };
        tkc_hub_patience none = { 0 };
        if ((pause_after(h, said, none, err, NULL, NULL) >= 0) != rows[i].again)
            fail_msg("code %d, status %d", (int)rows[i].code, (int)rows[i].status);
        assert_int_equal(pause_after(once, said, none, err, NULL, NULL), -1);
    }
    tinkc_hub_free(h);
    tinkc_hub_free(once);
}

/* 200 ms, doubled with each failure, 10 s at most, each a quarter shorter or longer by chance. */
TEST(pauses_grow_and_vary)
{
    enum { DRAWS = 300 };
    static const int64_t usual[] = { 200, 400, 800, 1600, 3200, 6400, 10000, 10000, 10000 };
    char said[300] = "";
    tinkc_hub *h =
        make("", &(tinkc_hub_options){
                     .log = on_log, .log_user = said, .log_level = TINKC_LOG_INFO, .retry_window_ms = TINKC_FOREVER });
    tinkc_error err = { .code = TINKC_E_CONNECTION };
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        int64_t least = INT64_MAX, most = 0;
        tkc_hub_patience p = { .failures = (int32_t)i, .since_ms = 1 };
        for (int k = 0; k < DRAWS; k++) {
            int64_t ms = pause_after(h, said, p, err, NULL, NULL);
            least = ms < least ? ms : least;
            most = ms > most ? ms : most;
        }
        /* All of 300 draws on one side of a tenth of the range: once in 10^13 runs. */
        assert_in_range(least, usual[i] * 3 / 4, usual[i] * 4 / 5);
        assert_in_range(most, usual[i] * 6 / 5, usual[i] * 5 / 4);
    }
    tkc_hub_patience p = { 0 };
    assert_int_equal(pause_after(h, said, p, err, "retry-after-ms", "1234"), 1234);
    assert_int_equal(pause_after(h, said, p, err, "retry-after", "7"), 7000);
    assert_in_range(pause_after(h, said, p, err, "retry-after", "0"), 150, 250);
    tinkc_hub_free(h);
}

/* ---- what a status is called ---- */

TEST(statuses_in_words)
{
    static const struct {
        int32_t status;
        const char *token, *header, *value;
        int32_t code;
        const char *message;
    } rows[] = {
        { 401, "", NULL, NULL, TINKC_E_AUTH,
          "org/m: the hub refuses access without a token (HTTP 401): check the name, or set "
          "HF_TOKEN to a token that may read it" },
        { 401, "t", NULL, NULL, TINKC_E_AUTH,
          "org/m: the hub does not accept the token, or the name is wrong (HTTP 401): check "
          "HF_TOKEN" },
        { 403, "", "x-error-code", "GatedRepo", TINKC_E_FORBIDDEN,
          "org/m: access is restricted (HTTP 403): ask for it on http://u/org/m, and set "
          "HF_TOKEN" },
        { 403, "t", "x-error-code", "GatedRepo", TINKC_E_FORBIDDEN,
          "org/m: access is restricted (HTTP 403): ask for it on http://u/org/m" },
        { 403, "t", NULL, NULL, TINKC_E_FORBIDDEN,
          "org/m: access is forbidden (HTTP 403): the token ($HF_TOKEN) does not allow this" },
        { 403, "t", "x-error-message", "Not today", TINKC_E_FORBIDDEN,
          "org/m: access is forbidden (HTTP 403): Not today" },
        { 404, "t", "x-error-code", "RevisionNotFound", TINKC_E_NOT_FOUND,
          "no such revision on the hub: org/m (HTTP 404)" },
        { 404, "t", "x-error-code", "RepoNotFound", TINKC_E_NOT_FOUND, "not found on the hub: org/m (HTTP 404)" },
        { 429, "t", NULL, NULL, TINKC_E_RATE_LIMITED,
          "org/m: the hub limits the rate of requests (HTTP 429): try again later" },
        { 429, "", NULL, NULL, TINKC_E_RATE_LIMITED,
          "org/m: the hub limits the rate of requests (HTTP 429): try again later, or set "
          "HF_TOKEN" },
        { 500, "t", NULL, NULL, TINKC_E_SERVER, "org/m: the hub answers HTTP 500" },
        { 503, "t", "x-error-message", "Too busy", TINKC_E_SERVER, "org/m: the hub answers HTTP 503: Too busy" },
        { 300, "t", NULL, NULL, 0, "org/m: the hub answers HTTP 300" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 }, bad = { 0 };
        tkc_fetch r;
        tinkc_hub *h = make("", &(tinkc_hub_options){ .url = "http://u", .token = rows[i].token });
        tkc_fetch_init(&r, NULL);
        r.status = rows[i].status;
        if (rows[i].header) {
            tkc_buf_add(&r.pairs, rows[i].header, strlen(rows[i].header) + 1, &bad);
            tkc_buf_add(&r.pairs, rows[i].value, strlen(rows[i].value) + 1, &bad);
        }
        assert_ok(&bad);
        tkc_hub_explain(h, &r, "org/m", &err);
        assert_string_equal(err.message, rows[i].message);
        assert_int_equal(err.http_status, rows[i].status);
        assert_true(err.code && (!rows[i].code || err.code == rows[i].code));
        assert_true(atomic_load(&h->answered));
        tkc_fetch_end(&r);
        tinkc_hub_free(h);
    }
}

TEST(failures_without_an_answer)
{
    static const struct {
        int32_t code;
        const char *message;
    } rows[] = { { TINKC_E_CONNECTION, "the hub could not be reached (http://u): why" },
                 { TINKC_E_NET_TIMEOUT, "the hub could not be reached (http://u): why" },
                 { TINKC_E_FILE, "why" } };
    tinkc_hub *h = make("", &(tinkc_hub_options){ .url = "http://u" });
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { .code = rows[i].code, .message = "why" };
        tkc_hub_explain(h, &(tkc_fetch){ 0 }, "org/m", &err);
        assert_string_equal(err.message, rows[i].message);
        assert_int_equal(err.code, rows[i].code);
        assert_false(atomic_load(&h->answered));
    }
    /* An answer that broke off keeps its own error; one below 300 is none. */
    tinkc_error err = { .code = TINKC_E_CONNECTION, .message = "why" };
    tkc_hub_explain(h, &(tkc_fetch){ .status = 404 }, "org/m", &err);
    assert_string_equal(err.message, "why");
    assert_true(atomic_load(&h->answered));
    err = (tinkc_error){ 0 };
    tkc_hub_explain(h, &(tkc_fetch){ .status = 299 }, "org/m", &err);
    assert_ok(&err);
    tinkc_hub_free(h);
}

TEST(names_in_addresses)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    assert_string_equal(tkc_hub_quote(&arena, "aZ09-_.~/ %\x80\xff{", true, &err), "aZ09-_.~/%20%25%80%FF%7B");
    assert_string_equal(tkc_hub_quote(&arena, "a/b@`[", false, &err), "a%2Fb%40%60%5B");
    assert_string_equal(tkc_hub_quote(&arena, "", false, &err), "");
    assert_ok(&err);
    tkc_arena_free(&arena);
}

RUN_TESTS(keep_environment, restore_environment)
