/* test_server_parts.c - the parts of the HTTP server one by one: what the guard refuses, what a line
 * of keys means, how many connections there may be and for how long, what is made of a head and a
 * body. libmicrohttpd is a table of functions here and time is a number, so nothing waits. */
#include <fcntl.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "service/core/service_state.h"
#include "service/core/tenants.h"
#include "service/http/http_server.h"
#include "service/http/page_gate.h"
#include "support/check.h"
#include "support/engine/tiny_model.h"
#include "support/scarce.h"
#include "support/service/raw_http.h"

static char *folder;
static tinkc_engine *engine;
static tke_service *svc;

static int setup(void **state)
{
    tinkc_error err = { 0 };
    static const char *const settings[] = { "max_body_bytes", "2097152", "jwt_auth", "on", NULL };
    (void)state;
    folder = tiny_model_make(&(tiny_model){ .family = "llama", .vocab = 64, .context = 64 });
    engine = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1, .settings = settings }, &err);
    assert_ok(err);
    assert_true(tinkc_engine_add_model(engine, "tiny", folder, &err));
    svc = tke_engine_service(engine);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tinkc_engine_free(engine);
    tiny_model_remove(folder);
    return 0;
}

/* ---- the guard ---- */

TEST(a_host_is_known_by_address_or_permission)
{
    static char *allowed[] = { "Box", "proxy:81", NULL };
    static const tke_guard guards[] = {
        { .bound = "127.0.0.1" }, { .bound = "10.0.0.5", .allowed = allowed },
        { .bound = "0.0.0.0" },   { .bound = "::" },
        { .bound = "fe80::1" },
    };
    static const struct {
        const char *host, *known; /* by which of the guards: 1 or 0 each */
    } rows[] = {
        { "localhost", "11111" },
        { "LocalHost:80", "11111" },
        { "[::1]", "11111" },
        { "[::1]:8000", "11111" },
        { "127.0.0.1", "11111" },
        { "127.9.9.9:1", "11111" },
        { "127.0.0.1:", "11111" },
        { "10.0.0.5", "01000" },
        { "10.0.0.5:8", "01000" },
        { "box", "01000" },
        { "BOX:99", "01000" },
        { "proxy:81", "01000" },
        { "proxy:82", "00000" },
        { "proxy", "00000" },
        { "[fe80::1]", "00001" },
        { "[FE80::1]:1", "00001" },
        { "[fe80::2]", "00000" },
        { "0.0.0.0", "00000" },
        { "[::]", "00000" },
        { "evil", "00000" },
        { "", "00000" },
        { "127.0.0.1.evil", "00000" },
        { "127.0.0", "00000" },
        { "128.0.0.1", "00000" },
        { "127.0.0.1.1", "00000" },
        { "127.0.0:1", "00000" },
        { "localhost:8x", "00000" },
        { "localhost/", "00000" },
        { "[::1", "00000" },
        { "[::1]x", "00000" },
        { "[::1]:8x", "00000" },
        { "local host", "00000" },
        { "127.0.0./", "00000" },
        { "127.0.0.:", "11111" },
        { "localhost\x01", "00000" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t g = 0; g < 5; g++)
            if (tke_guard_knows(&guards[g], rows[i].host) != (rows[i].known[g] == '1'))
                fail_msg("'%s' on %s", rows[i].host, guards[g].bound);
}

#define BAD(text) 400, "bad_request", text
#define TWICE     BAD("The request gives its length more than once")
#define NUMBER    BAD("Content-Length is not a number")
#define ONE_HOST  BAD("A request must have exactly one Host header")
#define OTHERS    403, "origin_not_allowed", "Requests from pages of other sites are refused"
#define PAGES(of) 403, "origin_not_allowed", "Requests from pages of '" of "' are refused; --allow-host allows them"
#define OURS      .host = "localhost", .n_host = 1

TEST(each_head_is_let_in_or_refused)
{
    static char *allowed[] = { "friend", NULL };
    static const tke_guard open = { .bound = "127.0.0.1", .allowed = allowed },
                           strict = { .bound = "127.0.0.1", .allowed = allowed, .needs_known_host = true },
                           local = { .needs_known_host = true };
    static const struct {
        const tke_guard *guard;
        tke_head_values head;
        int32_t status;
        const char *code, *detail;
    } rows[] = {
        { &strict, { OURS }, 0, NULL, "" },
        { &strict, { OURS, .bad_name = true }, BAD("A header name has invalid characters") },
        { &strict, { OURS, .n_content_length = 1, .content_length = "0" }, 0, NULL, "" },
        { &strict, { OURS, .n_content_length = 2, .content_length = "2" }, TWICE },
        { &strict, { OURS, .n_transfer_encoding = 2, .transfer_encoding = "chunked" }, TWICE },
        { &strict, { OURS, .n_transfer_encoding = 1, .n_content_length = 1, .content_length = "1" }, TWICE },
        { &strict, { OURS, .n_content_length = 1, .content_length = "" }, NUMBER },
        { &strict, { OURS, .n_content_length = 1, .content_length = "+2" }, NUMBER },
        { &strict, { OURS, .n_content_length = 1, .content_length = "2x" }, NUMBER },
        { &strict, { OURS, .n_content_length = 1, .content_length = "123456789012345678" }, 0, NULL, "" },
        { &strict, { OURS, .n_content_length = 1, .content_length = "1234567890123456789" }, NUMBER },
        { &strict, { OURS, .n_transfer_encoding = 1, .transfer_encoding = "Chunked" }, 0, NULL, "" },
        { &strict,
          { OURS, .n_transfer_encoding = 1, .transfer_encoding = "gzip" },
          BAD("Transfer-Encoding must be 'chunked'") },
        { &strict, { .version = "HTTP/1.1" }, ONE_HOST },
        { &strict, { .version = "HTTP/1.0" }, 0, NULL, "" },
        { &strict, { 0 }, 0, NULL, "" },
        { &strict, { .version = "HTTP/1.0", .host = "localhost", .n_host = 2 }, ONE_HOST },
        { &strict, { OURS, .version = "HTTP/1.1" }, 0, NULL, "" },
        { &open, { .host = "a/b", .n_host = 1 }, BAD("Host is not a name or an address") },
        { &open, { .host = "a/", .n_host = 1 }, BAD("Host is not a name or an address") },
        { &open, { .host = "/", .n_host = 1 }, BAD("Host is not a name or an address") },
        { &open, { .host = "", .n_host = 1 }, 0, NULL, "" },
        { &open, { .host = "evil", .n_host = 1 }, 0, NULL, "" },
        { &local, { .host = "evil", .n_host = 1 }, 0, NULL, "" }, /* no web page reaches a path */
        { &strict,
          { .host = "evil", .n_host = 1 },
          403,
          "host_not_allowed",
          "'evil' is not a name of this server; --allow-host allows it" },
        { &strict, { .host = "friend:8", .n_host = 1 }, 0, NULL, "" },
        { &open, { OURS, .origin = "http://localhost" }, 0, NULL, "" },
        { &open, { OURS, .origin = "https://LOCALHOST" }, 0, NULL, "" },
        { &open, { OURS, .origin = "http://friend" }, 0, NULL, "" },
        { &open, { OURS, .origin = "http://friend:99" }, 0, NULL, "" },
        { &open, { OURS, .origin = "http://localhost:1" }, PAGES("http://localhost:1") },
        { &open, { OURS, .origin = "http://evil" }, PAGES("http://evil") },
        { &open, { OURS, .origin = "null" }, PAGES("null") },
        { &open, { .origin = "http://evil" }, PAGES("http://evil") },
        { &open, { OURS, .fetch_site = "same-origin" }, 0, NULL, "" },
        { &open, { OURS, .fetch_site = "none" }, 0, NULL, "" },
        { &open, { OURS, .fetch_site = "cross-site" }, OTHERS },
        { &open, { OURS, .fetch_site = "same-site" }, OTHERS },
        { &open, { OURS, .fetch_site = "same-site", .fetch_mode = "navigate" }, 0, NULL, "" },
        { &open, { OURS, .fetch_site = "cross-site", .fetch_mode = "cors" }, OTHERS },
        { &open, { OURS, .fetch_site = "same-site", .fetch_mode = "navigate", .method = "HEAD" }, 0, NULL, "" },
        { &open, { OURS, .fetch_site = "same-site", .fetch_mode = "navigate", .method = "POST" }, OTHERS },
        { &open, { OURS, .fetch_site = "same-site", .origin = "http://friend", .method = "POST" }, 0, NULL, "" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tke_head_values head = rows[i].head;
        head.method = head.method ? head.method : "GET";
        tke_verdict v = tke_guard_check(rows[i].guard, &head);
        if (v.status != rows[i].status || strcmp(v.detail, rows[i].detail) != 0)
            fail_msg("row %zu: %d %s", i, (int)v.status, v.detail);
        if (v.status)
            assert_string_equal(v.code, rows[i].code);
    }
}

TEST(types_and_names)
{
    static const struct {
        const char *text;
        bool ok;
    } types[] = { { "application/json", true },
                  { "Application/JSON; charset=utf-8", true },
                  { "application/json ;x", true },
                  { "application/x-protobuf", true },
                  { "application/protobuf", true },
                  { "application/x+json", true },
                  { "application/+json", false },
                  { "application/xjson", false },
                  { "text/x+json", false },
                  { "text/plain", false },
                  { "", false },
                  { NULL, false } },
      names[] = { { "X-Api-Key", true }, { "!#$%&'*+-.^_`|~09azAZ", true },
                  { "", false },         { "X Y", false },
                  { "X:", false },       { "X\x7f", false },
                  { "(X)", false } };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (tke_guard_type_ok(types[i].text) != types[i].ok)
            fail_msg("%s", types[i].text);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tke_header_name_ok(names[i].text) != names[i].ok)
            fail_msg("%s", names[i].text);
}

/* ---- starting ---- */

/* A server that has no socket yet closes none: descriptor 0 is the host's. */
TEST(servers_that_do_not_start)
{
    static const char *const keys[] = { "one quota=1", NULL };
    tinkc_error err = { 0 };
    int before = fcntl(0, F_GETFD);
    assert_null(tinkc_engine_serve(engine, &(tinkc_serve_options){ .api_keys = keys }, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_int_equal(fcntl(0, F_GETFD), before);
}

/* ---- the page's gate ---- */

TEST(the_gate_opens_for_keys_and_its_own_pages)
{
    static const struct {
        tke_gate_request from;
        const char *own;
        bool keys, open;
    } rows[] = {
        { { .host = "localhost" }, "http://10.0.0.5:80", false, true },
        { { .host = "LOCALHOST:1" }, "http://10.0.0.5:80", false, true },
        { { .host = "127.0.0.1:80" }, "http://10.0.0.5:80", false, true },
        { { .host = "127.0.0.2" }, "http://10.0.0.5:80", false, false },
        { { .host = "[::1]:80" }, "http://10.0.0.5:80", false, true },
        { { .host = "[::1]" }, "http://10.0.0.5:80", false, true },
        { { .host = "[::2]" }, "http://10.0.0.5:80", false, false },
        { { .host = "10.0.0.5:99" }, "http://10.0.0.5:80", false, true },
        { { .host = "[fe80::1]" }, "http://[fe80::1]:80", false, true },
        { { .host = "[fe80::1]:8" }, "http://[fe80::1]:80", false, true },
        { { .host = "box:1" }, "http://box", false, true },
        { { .host = "bo:1" }, "http://box", false, false },
        { { .host = "evil" }, "http://10.0.0.5:80", false, false },
        { { .host = "evil" }, "http://10.0.0.5:80", true, true },
        { { .host = "evil" }, "unix:/s", false, true },
        { { 0 }, "http://10.0.0.5:80", false, false },
        { { 0 }, "unix:/s", false, true },
        { { .host = "localhost", .fetch_site = "none" }, "http://h", false, true },
        { { .host = "localhost", .fetch_site = "same-origin" }, "http://h", false, true },
        { { .host = "localhost", .fetch_site = "same-site" }, "http://h", true, false },
        { { .host = "localhost", .origin = "http://localhost" }, "http://h", false, true },
        { { .host = "localhost", .origin = "https://localhost" }, "http://h", false, true },
        { { .host = "localhost", .origin = "ftp://localhost" }, "http://h", true, false },
        { { .host = "localhost:1", .origin = "http://localhost" }, "http://h", true, false },
        { { .host = "localhost", .origin = "null" }, "http://h", true, false },
        { { .host = "ull", .origin = "null" }, "http://h", true, false },
        { { .host = "null", .origin = "null" }, "http://h", true, false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (tke_gate_allows(&rows[i].from, rows[i].own, rows[i].keys) != rows[i].open)
            fail_msg("row %zu", i);
    static const struct {
        const char *uri;
        bool ui;
    } uris[] = { { "/", true },     { "/?a", true },   { "/ui", true },   { "/ui/", true }, { "/ui/x", true },
                 { "/ui?x", true }, { "/uix", false }, { "/api", false }, { "", false },    { "/x/ui/", false } };
    for (size_t i = 0; i < sizeof uris / sizeof *uris; i++)
        if (tke_gate_is_ui(uris[i].uri) != uris[i].ui)
            fail_msg("%s", uris[i].uri);
}

/* ---- keys ---- */

static tke_identity known(tke_key_ring *ring, const char *key)
{
    tke_identity who;
    assert_true(tke_key_ring_identify(ring, key, &who));
    return who;
}

/* Several pages of keys, each as it was given. */
TEST(many_keys_are_kept_as_given)
{
    enum { N = 5000 };
    static char texts[N][8];
    static const char *lines[N + 1];
    tinkc_error err = { 0 };
    for (int i = 0; i < N; i++) {
        (void)snprintf(texts[i], sizeof texts[i], "k%04d", i % 10000);
        lines[i] = texts[i];
    }
    tke_key_ring *ring = tke_key_ring_new(svc, lines, &err);
    assert_ok(err);
    for (int i = 0; i < N; i += i < 100 || i >= N - 100 ? 1 : 100) {
        char owner[32], id[TKE_KEY_ID];
        tke_service_owner_of_key(svc, tkc_str(texts[i]), owner, id);
        assert_string_equal(known(ring, texts[i]).key_id, id);
    }
    tke_key_ring_free(ring);
}

TEST(a_key_line_holds_quotas_and_an_address)
{
    static const char *const lines[] = {
        "one requests=7 tokens=2K storage=3G email=a@b",
        "  two   storage=1M  ",
        "three email=longer@host email=c@d",
        NULL,
    };
    static const char *const fewer[] = { "three tokens=8589934591G", "one", NULL };
    static const struct {
        const char *key;
        tke_quota quota;
        const char *email;
        uint64_t generation;
    } rows[] = {
        { "one", { 7, 2048, (int64_t)3 << 30 }, "a@b", 0 },
        { "two", { 0, 0, 1 << 20 }, "", 0 },
        { "three", { 0 }, "c@d", 0 },
    };
    tinkc_error err = { 0 };
    tke_identity who, two = { 0 };
    tke_key_ring *ring = tke_key_ring_new(svc, lines, &err);
    assert_ok(err);
    assert_false(tke_key_ring_is_empty(ring));
    for (size_t i = 0; i < 3; i++) {
        char owner[32], id[TKE_KEY_ID];
        who = known(ring, rows[i].key);
        tke_service_owner_of_key(svc, tkc_str(rows[i].key), owner, id);
        assert_string_equal(who.owner, owner);
        assert_string_equal(who.key_id, id);
        assert_string_equal(who.email, rows[i].email);
        assert_int_equal(who.generation, 0);
        tke_quota q = tke_quota_of(svc, owner);
        assert_int_equal(q.requests_per_minute, rows[i].quota.requests_per_minute);
        assert_int_equal(q.tokens_per_day, rows[i].quota.tokens_per_day);
        assert_true(q.storage_bytes == rows[i].quota.storage_bytes);
        two = i == 1 ? who : two;
    }
    static const char *const strangers[] = { NULL, "", "on", "onee", "two ", "eyJ", "eyJ.x.y" };
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
        assert_false(tke_key_ring_identify(ring, strangers[i], &who));
        assert_string_equal(who.owner, "default");
        assert_string_equal(who.key_id, "");
    }
    /* Replaced: limits go with their line, generations stay with their key. */
    assert_true(tke_key_ring_replace(ring, fewer, &err));
    assert_int_equal(known(ring, "one").generation, 0);
    assert_int_equal(known(ring, "three").generation, 0);
    assert_string_equal(known(ring, "one").email, "");
    assert_false(tke_key_ring_identify(ring, "two", &who));
    assert_int_equal(tke_quota_of(svc, two.owner).requests_per_minute, 0);
    assert_int_equal(tke_quota_of(svc, two.owner).storage_bytes, 0);
    assert_int_equal(tke_quota_of(svc, known(ring, "one").owner).requests_per_minute, 0);
    assert_true(tke_quota_of(svc, known(ring, "three").owner).tokens_per_day == (int64_t)8589934591 << 30);
    assert_true(tke_key_ring_replace(ring, lines, &err));
    assert_int_equal(known(ring, "two").generation, 2);
    assert_int_equal(known(ring, "one").generation, 0);
    static const char *const last[] = { "one", "two requests=5", NULL };
    static const char *const first[] = { "one", NULL };
    assert_true(tke_key_ring_replace(ring, last, &err));
    assert_int_equal(tke_quota_of(svc, two.owner).requests_per_minute, 5);
    assert_true(tke_key_ring_replace(ring, first, &err));
    assert_int_equal(tke_quota_of(svc, two.owner).requests_per_minute, 0); /* of the last line, too */
    tke_key_ring_free(ring);
    static const char *const none[] = { NULL };
    ring = tke_key_ring_new(svc, none, &err);
    assert_true(tke_key_ring_is_empty(ring));
    assert_string_equal(known(ring, "anything").owner, "default");
    assert_string_equal(known(ring, NULL).owner, "default");
    tke_key_ring_free(ring);
}

static atomic_bool replaced;

static void *replace_often(void *arg)
{
    enum { N = 400 }; /* the time that it takes to go through them is when a limit might be missing */
    static char texts[N][24];
    static const char *lines[N + 1];
    tinkc_error err = { 0 };
    for (int i = 0; i < N; i++) {
        (void)snprintf(texts[i], sizeof texts[i], "k%03d requests=7", i);
        lines[i] = texts[i];
    }
    for (int i = 0; i < 20; i++)
        assert_true(tke_key_ring_replace(arg, lines, &err));
    atomic_store(&replaced, true);
    return NULL;
}

TEST(keys_keep_their_limits_while_they_are_read_again)
{
    static const char *const lines[] = { "k000 requests=7", NULL };
    tinkc_error err = { 0 };
    pthread_t thread;
    tke_key_ring *ring = tke_key_ring_new(svc, lines, &err);
    assert_ok(err);
    tke_identity one = known(ring, "k000");
    assert_int_equal(pthread_create(&thread, NULL, replace_often, ring), 0);
    bool limited = true;
    while (!atomic_load(&replaced))
        limited = limited && tke_quota_of(svc, one.owner).requests_per_minute == 7;
    pthread_join(thread, NULL);
    assert_true(limited);
    tke_key_ring_free(ring);
}

#define OPTIONS                                                                                                        \
    "api_keys: key 1: expected requests=N, tokens=N or storage=N, N above 0, or email=NAME@HOST "                      \
    "after the key"

TEST(bad_key_lines)
{
    static char longest[1100], email[300];
    memset(longest, 'k', sizeof longest);
    longest[1025] = '\0';
    snprintf(email, sizeof email, "k email=a@%0126d", 0); /* 128 characters */
    const struct {
        const char *line, *text;
    } rows[] = {
        { "", "api_keys: key 1 is empty" },
        { "  ", "api_keys: key 1 is empty" },
        { longest, "api_keys: key 1 is longer than 1024 bytes" },
        { email, OPTIONS },
        { "k requests", OPTIONS },
        { "k requests=", OPTIONS },
        { "k requests=0", OPTIONS },
        { "k requests=-1", OPTIONS },
        { "k requests=K", OPTIONS },
        { "k requests=1k", OPTIONS },
        { "k requests=1T", OPTIONS },
        { "k tokens=8589934592G", OPTIONS }, /* 2^63 */
        { "k tokens=9223372036854775808", OPTIONS },
        { "k Tokens=1", OPTIONS },
        { "k email=", OPTIONS },
        { "k email=@", OPTIONS },
        { "k email=@b", OPTIONS },
        { "k email=a@", OPTIONS },
        { "k email=a", OPTIONS },
        { "k requests=1 x", OPTIONS },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        assert_null(tke_key_ring_new(svc, (const char *const[]){ "good", rows[i].line, NULL }, &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
        assert_string_equal(err.message, rows[i].text);
    }
    longest[1024] = '\0';
    snprintf(email, sizeof email, "k email=a@%0125d", 0); /* 127 */
    tinkc_error err = { 0 };
    tke_key_ring *ring = tke_key_ring_new(svc, (const char *const[]){ longest, email, "m email=a@b", NULL }, &err);
    assert_ok(err);
    assert_string_equal(known(ring, "k").email, email + 8);
    assert_string_equal(known(ring, "m").email, "a@b");
    (void)known(ring, longest);
    tke_key_ring_free(ring);
}

/* A token names its key; the key must still be there, and be the same one. */
TEST(a_token_names_its_key)
{
    static const char *const lines[] = { "one email=a@b", NULL }, *const other[] = { "two", NULL };
    tinkc_error err = { 0 };
    tke_identity who;
    tke_key_ring *ring = tke_key_ring_new(svc, lines, &err), *open = tke_key_ring_new(svc, NULL, &err);
    who = known(ring, "one");
    tke_token_claims claims = { .generation = who.generation };
    snprintf(claims.owner, sizeof claims.owner, "%s", who.owner);
    snprintf(claims.key_id, sizeof claims.key_id, "%s", who.key_id);
    tkc_buf token;
    tkc_buf_init(&token, NULL, TKC_BUF_NO_MAX);
    assert_true(tke_token_make(svc->token_secret, &claims, tkc_wall_us(svc->clock), &token, &err));
    assert_true(tkc_buf_terminate(&token, &err));
    assert_string_equal(known(ring, token.data).owner, claims.owner);
    assert_string_equal(known(ring, token.data).email, "a@b");
    assert_string_equal(known(open, token.data).owner, claims.owner); /* without keys: believed */
    assert_string_equal(known(open, "eyJ").owner, "default");
    assert_true(tke_key_ring_replace(ring, other, &err));
    assert_false(tke_key_ring_identify(ring, token.data, &who));
    assert_string_equal(who.owner, "default");
    assert_true(tke_key_ring_replace(ring, lines, &err)); /* back, but younger than the token */
    assert_false(tke_key_ring_identify(ring, token.data, &who));
    (void)known(ring, "one");
    tkc_buf_free(&token);
    tke_key_ring_free(ring);
    tke_key_ring_free(open);
}

/* ---- connections ---- */

enum { MAX_PAIRS = 12 };

typedef struct connection { /* what libmicrohttpd keeps of one */
    union MHD_ConnectionInfo fd, context;
    void *socket_context;
    int client;
} connection;

static const union MHD_ConnectionInfo *fake_info(struct MHD_Connection *c, enum MHD_ConnectionInfoType what, ...)
{
    connection *one = (connection *)(void *)c;
    if (what == MHD_CONNECTION_INFO_CONNECTION_FD)
        return one->fd.connect_fd >= 0 ? &one->fd : NULL;
    one->context.socket_context = one->socket_context;
    return &one->context;
}

static const tke_mhd peers_only = { .info = fake_info };

static void http_new(tke_http *h, const tke_mhd *mhd, const tinkc_serve_options *o)
{
    tinkc_error err = { 0 };
    *h = (tke_http){ .svc = svc, .mhd = mhd, .listen_fd = -1 };
    tkc_ref_init(&h->refs);
    tkc_ref_keep(&h->refs); /* never freed here: it is on the stack */
    pthread_mutex_init(&h->lock, NULL);
    assert_true(tkc_cond_init(&h->changed, &err) && tkc_cond_init(&h->tick, &err));
    h->keys = tke_key_ring_new(svc, o->api_keys, &err);
    tke_peers_limit(h, o);
    assert_ok(err);
}

static void http_end(tke_http *h)
{
    tke_key_ring_free(h->keys);
    pthread_cond_destroy(&h->changed);
    pthread_cond_destroy(&h->tick);
    pthread_mutex_destroy(&h->lock);
}

static tke_peer *come(tke_http *h, connection *c)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    *c = (connection){ .fd = { .connect_fd = pair[0] }, .client = pair[1] };
    tke_peer_notify(h, (struct MHD_Connection *)(void *)c, &c->socket_context, MHD_CONNECTION_NOTIFY_STARTED);
    assert_non_null(c->socket_context);
    return c->socket_context;
}

static void go(tke_http *h, connection *c)
{
    tke_peer_notify(h, (struct MHD_Connection *)(void *)c, &c->socket_context, MHD_CONNECTION_NOTIFY_CLOSED);
    assert_null(c->socket_context);
    close(c->fd.connect_fd);
    close(c->client);
}

static bool is_shut(const connection *c)
{
    char byte;
    return recv(c->client, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static int64_t gauge(int32_t which)
{
    return atomic_load(&svc->gauges[which]);
}

/* The timer closes those that are late, and only those. */
TEST(only_late_peers_are_closed)
{
    tinkc_error err = { 0 };
    tke_http h;
    connection late, early;
    http_new(&h, &peers_only, &(tinkc_serve_options){ 0 });
    tke_peer *p = come(&h, &late);
    come(&h, &early);
    p->since_ns -= 31000000000;
    assert_true(tke_peers_watch(&h, &err));
    struct pollfd end = { .fd = late.client, .events = POLLIN };
    assert_int_equal(poll(&end, 1, 20000), 1);
    tke_peers_unwatch(&h);
    assert_true(is_shut(&late));
    assert_false(is_shut(&early));
    go(&h, &late);
    go(&h, &early);
    http_end(&h);
}

TEST(limits_of_connections)
{
    static const struct {
        rlim_t files;
        int32_t max, per_address;
        size_t peers, each;
    } rows[] = {
        { 8192, 0, 0, 4096, 2048 }, { 4352, 0, 0, 4096, 2048 }, { 4351, 0, 0, 4095, 2048 }, { 8192, 7, 0, 7, 4 },
        { 8192, 8, 0, 8, 4 },       { 8192, 8, 9, 8, 9 },       { 8192, 8, 1, 8, 1 },       { 513, 0, 0, 257, 129 },
        { 512, 0, 0, 256, 128 },    { 64, 0, 0, 32, 16 },       { 8192, 1, 0, 1, 1 },       { 2, 0, 0, 1, 1 },
        { 1, 0, 0, 1, 1 },          { 3, 0, 0, 1, 1 },
    };
    struct rlimit before, now;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].files > before.rlim_max)
            continue;
        tke_http h = { 0 };
        now = (struct rlimit){ rows[i].files, before.rlim_max };
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &now), 0);
        tke_peers_limit(
            &h, &(tinkc_serve_options){ .max_connections = rows[i].max, .max_per_address = rows[i].per_address });
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_int_equal(h.max_peers, rows[i].peers);
        assert_int_equal(h.max_per_address, rows[i].each);
        assert_true(h.head_ns == 30000000000);
    }
    tke_http h = { 0 };
    tke_peers_limit(&h, &(tinkc_serve_options){ .head_timeout_ms = 1 });
    assert_true(h.head_ns == 1000000);
}

/* Thirty seconds for the first head, two minutes between requests; 60 KiB of a body in each minute. */
TEST(a_peer_is_late_by_its_state)
{
    static const int64_t s = 1000000000;
    tke_http h = { .head_ns = 30 * s };
    static const struct {
        int32_t state;
        bool first;
        size_t n_body;
        int64_t age_ns;
        bool late;
    } rows[] = {
        { TKE_PEER_HEAD, true, 0, 29999999999, false },      { TKE_PEER_HEAD, true, 0, 30000000000, true },
        { TKE_PEER_HEAD, false, 0, 119999999999, false },    { TKE_PEER_HEAD, false, 0, 120000000000, true },
        { TKE_PEER_BODY, true, 0, 59999999999, false },      { TKE_PEER_BODY, true, 0, 60000000000, true },
        { TKE_PEER_BODY, true, 61439, 60000000000, true },   { TKE_PEER_BODY, true, 61440, 60999999999, false },
        { TKE_PEER_BODY, false, 61440, 61000000000, false }, { TKE_PEER_BODY, false, 1024000, 1000000000000, false },
        { TKE_PEER_BUSY, true, 0, 1000000000000, false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const tke_peer p = {
            .http = &h, .state = rows[i].state, .first = rows[i].first, .n_body = rows[i].n_body, .since_ns = 5
        };
        if (tke_peer_is_late(&p, 5 + rows[i].age_ns) != rows[i].late)
            fail_msg("row %zu", i);
    }
}

/* What came before a window does not count in it. */
TEST(each_window_of_a_body_needs_its_rate)
{
    static const int64_t s = 1000000000;
    tke_http h = { .head_ns = 30 * s };
    tke_peer p = { .http = &h, .state = TKE_PEER_BODY, .n_body = 100 << 20, .since_ns = 0 };
    tke_peer_next_window(&p, 60 * s - 1);
    assert_int_equal(p.n_body, 100 << 20);
    assert_false(tke_peer_is_late(&p, 60 * s));
    tke_peer_next_window(&p, 60 * s);
    assert_true(p.n_body == 0 && p.since_ns == 60 * s);
    assert_false(tke_peer_is_late(&p, 119 * s));
    assert_true(tke_peer_is_late(&p, 120 * s));
    p.state = TKE_PEER_BUSY;
    tke_peer_next_window(&p, 500 * s); /* only of a body that is read */
    assert_true(p.since_ns == 60 * s);
}

/* One address: half. The next: half of the rest. A body on a path is another's. */
TEST(addresses_share_the_memory_for_bodies)
{
    enum { ALL = 1600 };
    tke_http h;
    connection c[4];
    tke_peer *p[4];
    http_new(&h, &peers_only, &(tinkc_serve_options){ .max_per_address = 100 });
    for (int i = 0; i < 4; i++) {
        p[i] = come(&h, &c[i]);
        p[i]->address[0] = i < 2 ? 1 : (unsigned char)i;
    }
    const struct {
        size_t held[4]; /* of address 1, 1, 2, 3 */
        int who;
        bool may;
    } rows[] = {
        { { 800, 0, 0, 0 }, 0, true },     { { 801, 0, 0, 0 }, 0, false },     { { 500, 300, 0, 0 }, 1, true },
        { { 500, 301, 0, 0 }, 1, false },  { { 800, 0, 400, 0 }, 2, true },    { { 800, 0, 401, 0 }, 2, false },
        { { 800, 0, 400, 200 }, 3, true }, { { 800, 0, 400, 201 }, 3, false }, { { 800, 0, 900, 0 }, 2, false },
        { { 0, 0, 100, 0 }, 2, true },     { { 1000, 0, 601, 1 }, 3, false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t all = 0;
        for (int k = 0; k < 4; k++) {
            tke_peer_holds(p[k], rows[i].held[k]);
            all += rows[i].held[k];
        }
        if (tke_peer_may_hold(p[rows[i].who], all, ALL) != rows[i].may)
            fail_msg("row %zu", i);
    }
    tke_peer_is(p[0], TKE_PEER_HEAD); /* answered */
    assert_int_equal(p[0]->held, 0);
    for (int i = 0; i < 4; i++)
        go(&h, &c[i]);
    http_end(&h);
}

TEST(life_of_a_peer)
{
    tke_http h;
    connection a, b, c;
    http_new(&h, &peers_only, &(tinkc_serve_options){ 0 });
    int64_t before = gauge(TKE_GAUGE_CONNECTIONS);
    tke_peer *one = come(&h, &a), *two = come(&h, &b), *three = come(&h, &c);
    assert_int_equal(h.n_peers, 3);
    assert_int_equal(gauge(TKE_GAUGE_CONNECTIONS), before + 3);
    assert_true(h.peers == three && three->next == two && two->next == one && !one->next);
    assert_true(!three->prev && two->prev == three && one->prev == two);
    assert_true(one->first && one->state == TKE_PEER_HEAD && !one->ended && !one->local);
    assert_int_equal(one->fd, a.fd.connect_fd);
    assert_ptr_equal(tke_peer_of(&h, (struct MHD_Connection *)(void *)&a), one);
    one->since_ns = 0;
    tke_peer_is(one, TKE_PEER_BODY);
    assert_true(one->first && one->state == TKE_PEER_BODY && one->since_ns > 0);
    tke_peer_read(one, 5);
    tke_peer_read(one, 7);
    assert_int_equal(one->n_body, 12);
    tke_peer_is(one, TKE_PEER_BUSY);
    assert_true(one->first && one->n_body == 0);
    tke_peer_is(one, TKE_PEER_HEAD);
    assert_false(one->first); /* answered */
    tke_peer_is(two, TKE_PEER_BODY);
    tke_peer_is(two, TKE_PEER_HEAD); /* never answered */
    assert_true(two->first);
    go(&h, &b); /* from the middle, the end, the beginning */
    assert_true(h.peers == three && three->next == one && one->prev == three);
    go(&h, &a);
    assert_true(h.peers == three && !three->next);
    go(&h, &c);
    assert_true(!h.peers && h.n_peers == 0);
    assert_int_equal(gauge(TKE_GAUGE_CONNECTIONS), before);
    connection none = { .fd = { .connect_fd = -1 } };
    tke_peer_notify(&h, (struct MHD_Connection *)(void *)&none, &none.socket_context, MHD_CONNECTION_NOTIFY_STARTED);
    assert_null(none.socket_context);
    tke_peer_notify(&h, (struct MHD_Connection *)(void *)&none, &none.socket_context, MHD_CONNECTION_NOTIFY_CLOSED);
    assert_int_equal(gauge(TKE_GAUGE_CONNECTIONS), before);
    http_end(&h);
}

/* One too many: the one that waited longest for a request goes; if none waits, the newcomer. */
TEST(one_too_many)
{
    tke_http h;
    connection c[MAX_PAIRS];
    tke_peer *p[MAX_PAIRS];
    http_new(&h, &peers_only, &(tinkc_serve_options){ .max_connections = 4, .max_per_address = 100 });
    for (int i = 0; i < 4; i++) {
        p[i] = come(&h, &c[i]);
        p[i]->since_ns = 1000 - 100 * (i % 3); /* 1000, 900, 800, 1000 */
    }
    for (int i = 0; i < 4; i++)
        assert_false(is_shut(&c[i]));
    p[2]->state = TKE_PEER_BUSY; /* the oldest has a request */
    (void)come(&h, &c[4]);
    assert_true(is_shut(&c[1]) && p[1]->ended);
    for (int i = 0; i < 5; i++)
        assert_int_equal(is_shut(&c[i]), i == 1);
    (void)come(&h, &c[5]);       /* those that were asked to go do not count */
    assert_true(is_shut(&c[0])); /* the first of two that came at the same time */
    assert_false(is_shut(&c[3]) || is_shut(&c[5]) || is_shut(&c[4]));
    for (const tke_peer *each = h.peers; each; each = each->next)
        ((tke_peer *)(uintptr_t)each)->state = TKE_PEER_BODY;
    (void)come(&h, &c[6]);
    assert_true(is_shut(&c[6]));
    for (int i = 0; i < 7; i++)
        go(&h, &c[i]);
    http_end(&h);
}

TEST(shares_of_addresses)
{
    tke_http h;
    connection c[4];
    tke_peer *p[3];
    struct sockaddr_in four = { .sin_family = AF_INET, .sin_addr = { htonl(0x0a000005) } };
    struct sockaddr_in6 six = { .sin6_family = AF_INET6 };
    static const unsigned char mapped[16] = { [10] = 0xff, 0xff, 10, 0, 0, 5 };
    const struct sockaddr *v4 = (const struct sockaddr *)(const void *)&four,
                          *v6 = (const struct sockaddr *)(const void *)&six;
    http_new(&h, &peers_only, &(tinkc_serve_options){ .max_per_address = 2 });
    for (int i = 0; i < 2; i++) {
        p[i] = come(&h, &c[i]);
        memcpy(p[i]->address, mapped, 16);
    }
    assert_int_equal(tke_peer_accept(&h, v4, sizeof four), MHD_YES); /* an idle one makes room */
    p[0]->state = TKE_PEER_BODY;
    p[1]->state = TKE_PEER_BUSY;
    assert_int_equal(tke_peer_accept(&h, v4, sizeof four), MHD_NO);
    memcpy(&six.sin6_addr, mapped, 16); /* the same, as IPv6 writes it */
    assert_int_equal(tke_peer_accept(&h, v6, sizeof six), MHD_NO);
    for (size_t i = 0; i < 16; i++) { /* any other address */
        six.sin6_addr.s6_addr[i] ^= 1;
        assert_int_equal(tke_peer_accept(&h, v6, sizeof six), MHD_YES);
        six.sin6_addr.s6_addr[i] ^= 1;
    }
    four.sin_addr.s_addr = htonl(0x0a000006);
    assert_int_equal(tke_peer_accept(&h, v4, sizeof four), MHD_YES);
    four.sin_addr.s_addr = htonl(0x0a000005);
    assert_int_equal(tke_peer_accept(&h, NULL, 0), MHD_YES);
    four.sin_family = AF_UNIX;
    assert_int_equal(tke_peer_accept(&h, v4, sizeof four), MHD_YES);
    four.sin_family = AF_INET;
    p[0]->ended = true; /* does not count, nor does one on a path */
    assert_int_equal(tke_peer_accept(&h, v4, sizeof four), MHD_YES);
    p[0]->ended = false;
    p[0]->local = true;
    assert_int_equal(tke_peer_accept(&h, v4, sizeof four), MHD_YES);
    p[0]->local = false;
    /* Threads accept at once, so the limit is kept where a connection is listed. Addresses of a
     * socket pair are all zero. */
    come(&h, &c[2])->state = TKE_PEER_BUSY;
    memset(p[0]->address, 0, 16);
    assert_false(is_shut(&c[2]));
    (void)come(&h, &c[3]);
    assert_true(is_shut(&c[3]));
    assert_false(is_shut(&c[0]) || is_shut(&c[1]) || is_shut(&c[2]));
    for (int i = 0; i < 4; i++)
        go(&h, &c[i]);
    h.socket_path = "/s"; /* on a path there are no addresses */
    for (int i = 0; i < 4; i++)
        assert_true(come(&h, &c[i])->local);
    for (int i = 0; i < 4; i++)
        assert_false(is_shut(&c[i]));
    for (int i = 0; i < 4; i++)
        go(&h, &c[i]);
    h.socket_path = NULL;
    http_end(&h);
}

/* A client that has one address of a network has 2^64 of them. */
TEST(a_network_of_ipv6_is_one_address)
{
    tke_http h;
    connection c[2];
    struct sockaddr_in6 from = { .sin6_family = AF_INET6 };
    const struct sockaddr *at = (const struct sockaddr *)(const void *)&from;
    http_new(&h, &peers_only, &(tinkc_serve_options){ .max_per_address = 2 });
    for (int i = 0; i < 2; i++) {
        tke_peer *p = come(&h, &c[i]);
        p->state = TKE_PEER_BUSY;
        memcpy(p->address, "\x20\x01\x0d\xb8\0\0\0\1", 8);
    }
    memcpy(from.sin6_addr.s6_addr, "\x20\x01\x0d\xb8\0\0\0\1", 8);
    for (size_t i = 0; i < 16; i++) {
        from.sin6_addr.s6_addr[i] ^= 1;
        assert_int_equal(tke_peer_accept(&h, at, sizeof from), i < 8 ? MHD_YES : MHD_NO);
        from.sin6_addr.s6_addr[i] ^= 1;
    }
    go(&h, &c[0]);
    go(&h, &c[1]);
    http_end(&h);
}

TEST(a_full_address_loses_its_longest_idle_connection)
{
    tke_http h;
    connection c[7];
    tke_peer *p[7];
    http_new(&h, &peers_only, &(tinkc_serve_options){ .max_per_address = 3 });
    static const int64_t since[] = { 1, 500, 100, 300 };
    for (int i = 0; i < 4; i++) {
        p[i] = come(&h, &c[i]);
        p[i]->since_ns = since[i];
        p[i]->address[0] = i == 0 ? 7 : 0; /* the first is somebody else's */
    }
    p[2]->state = TKE_PEER_BODY;
    p[4] = come(&h, &c[4]);
    assert_true(is_shut(&c[3]));
    p[5] = come(&h, &c[5]);
    assert_true(is_shut(&c[1]));
    p[4]->state = p[5]->state = TKE_PEER_BUSY;
    p[6] = come(&h, &c[6]); /* none of them is idle */
    assert_true(is_shut(&c[6]));
    assert_false(is_shut(&c[0]) || is_shut(&c[2]) || is_shut(&c[4]) || is_shut(&c[5]));
    for (int i = 0; i < 7; i++)
        go(&h, &c[i]);
    http_end(&h);
}

/* The address is that of the other end, with IPv4 as IPv6 writes it. */
TEST(address_of_a_peer)
{
    tke_http h;
    static const unsigned char home[16] = { [10] = 0xff, 0xff, 127, 0, 0, 1 };
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t len = sizeof at;
    int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(door, (struct sockaddr *)(void *)&at, sizeof at), 0);
    assert_int_equal(listen(door, 1), 0);
    assert_int_equal(getsockname(door, (struct sockaddr *)(void *)&at, &len), 0);
    connection c = { .client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) };
    assert_int_equal(connect(c.client, (struct sockaddr *)(void *)&at, sizeof at), 0);
    c.fd.connect_fd = accept(door, NULL, NULL);
    assert_true(c.fd.connect_fd >= 0);
    http_new(&h, &peers_only, &(tinkc_serve_options){ 0 });
    tke_peer_notify(&h, (struct MHD_Connection *)(void *)&c, &c.socket_context, MHD_CONNECTION_NOTIFY_STARTED);
    const tke_peer *p = c.socket_context;
    assert_memory_equal(p->address, home, 16);
    go(&h, &c);
    close(door);
    http_end(&h);
}

/* ---- listening ---- */

static tinkc_server *serve(const tinkc_serve_options *o, tinkc_error *err)
{
    *err = (tinkc_error){ 0 };
    return tinkc_engine_serve(engine, o, err);
}

TEST(paths_to_listen_on)
{
    tinkc_error err;
    struct stat st;
    char *place = tiny_folder(), path[400], text[600], longest[200];
    snprintf(path, sizeof path, "%s/s", place);
    mode_t mask = umask(022);
    tinkc_server *server = serve(&(tinkc_serve_options){ .unix_socket = path }, &err);
    assert_ok(err);
    assert_int_equal(umask(mask), 022); /* is what it was */
    snprintf(text, sizeof text, "unix:%s", path);
    assert_string_equal(tinkc_server_url(server), text);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700); /* the owner's alone */
    assert_null(serve(&(tinkc_serve_options){ .unix_socket = path }, &err));
    snprintf(text, sizeof text, "%s: a server is listening there", path);
    assert_string_equal(err.message, text);
    assert_int_equal(err.code, TINKC_E_CONNECTION);
    assert_int_equal(stat(path, &st), 0);
    tinkc_server_free(server);
    assert_int_equal(stat(path, &st), -1);
    /* A socket that nobody listens on any more is replaced; a file is not. */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_storage at = { .ss_family = AF_UNIX };
    memcpy((char *)&at + sizeof at.ss_family, path, strlen(path) + 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(sa_family_t) + 108), 0);
    close(fd);
    server = serve(&(tinkc_serve_options){ .unix_socket = path }, &err);
    assert_ok(err);
    tinkc_server_free(server);
    tiny_write(place, "s", "mine");
    assert_null(serve(&(tinkc_serve_options){ .unix_socket = path }, &err));
    snprintf(text, sizeof text, "%s: cannot listen there", path);
    assert_string_equal(err.message, text);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 4);
    snprintf(longest, sizeof longest, "%s/%0*d", place, (int)(107 - strlen(place)), 0);
    assert_int_equal(strlen(longest), 108); /* and no room for the end */
    assert_null(serve(&(tinkc_serve_options){ .unix_socket = longest }, &err));
    assert_string_equal(err.message, "unix_socket: the path is too long");
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    longest[107] = '\0';
    server = serve(&(tinkc_serve_options){ .unix_socket = longest }, &err);
    assert_ok(err);
    tinkc_server_free(server);
    tiny_model_remove(place);
}

TEST(addresses_to_listen_on)
{
    tinkc_error err;
    char text[300];
    static const char *const keys[] = { "k", NULL };
    tinkc_server *server = serve(NULL, &err);
    assert_ok(err);
    const char *url = tinkc_server_url(server);
    assert_true(strncmp(url, "http://127.0.0.1:", 17) == 0);
    int32_t port = (int32_t)strtol(url + 17, NULL, 10);
    assert_true(port > 0);
    assert_null(serve(&(tinkc_serve_options){ .port = port }, &err));
    snprintf(text, sizeof text, "127.0.0.1:%d: the address is in use", (int)port);
    assert_string_equal(err.message, text);
    assert_int_equal(err.code, TINKC_E_CONNECTION);
    tinkc_server_free(server);
    server = serve(&(tinkc_serve_options){ .host = "localhost" }, &err);
    assert_ok(err);
    assert_non_null(strstr(tinkc_server_url(server), "localhost"));
    tinkc_server_free(server);
    assert_null(serve(&(tinkc_serve_options){ .host = "0.0.0.0" }, &err));
    assert_string_equal(err.message, "host '0.0.0.0' can be reached from other machines: api_keys are required");
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_int_equal(err.cause, TINKC_E_NO_CREDENTIAL);
    server = serve(&(tinkc_serve_options){ .host = "0.0.0.0", .api_keys = keys }, &err);
    assert_ok(err);
    assert_true(strncmp(tinkc_server_url(server), "http://0.0.0.0:", 15) == 0);
    tinkc_server_free(server);
    assert_null(serve(&(tinkc_serve_options){ .host = "no such host" }, &err));
    assert_string_equal(err.message, "host 'no such host' cannot be resolved");
    server = serve(&(tinkc_serve_options){ .host = "::1" }, &err);
    if (server) /* where the machine has IPv6 */
        assert_true(strncmp(tinkc_server_url(server), "http://[::1]:", 13) == 0);
    tinkc_server_free(server);
}

static int32_t status_for(const tinkc_server *server, const char *host, const char *head)
{
    int fd = raw_dial(tinkc_server_url(server));
    tkc_buf got = raw_talk(fd, host, head, "", 0);
    int32_t status = got.data ? (int32_t)strtol(got.data + strlen("HTTP/1.1 "), NULL, 10) : 0;
    tkc_buf_free(&got);
    close(fd);
    return status;
}

/* Each of the names that are allowed is, and no other; all memory of a server comes back. */
TEST(names_and_memory)
{
    tinkc_error err = { 0 };
    counting memory = { 0 };
    const tinkc_allocator allocator = counting_allocator(&memory);
    static const char *const hosts[] = { "one.example", "two.example", "three.example:81", NULL };
    static const char *const keys[] = { "k tokens=5", "l", NULL };
    char *place = tiny_folder(), path[400];
    snprintf(path, sizeof path, "%s/s", place);
    tinkc_engine *other = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1, .allocator = &allocator }, &err);
    assert_ok(err);
    assert_true(tinkc_engine_add_model(other, "tiny", folder, &err));
    const tinkc_serve_options options[] = { { .allow_hosts = hosts, .page = true },
                                            { .allow_hosts = hosts, .api_keys = keys },
                                            { .unix_socket = path } };
    static const struct {
        const char *host;
        int32_t status[3];
    } rows[] = { { "one.example", { 200, 200, 200 } },      { "two.example", { 200, 200, 200 } },
                 { "three.example:81", { 200, 200, 200 } }, { "three.example", { 403, 403, 200 } },
                 { "four.example", { 403, 403, 200 } },     { "localhost", { 200, 200, 200 } } };
    for (size_t k = 0; k < 3; k++) {
        tinkc_server *server = tinkc_engine_serve(other, &options[k], &err);
        assert_ok(err);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            int32_t got = status_for(server, rows[i].host, "GET /api/v1/healthz HTTP/1.1");
            if (got != rows[i].status[k])
                fail_msg("%zu %s: %d", k, rows[i].host, (int)got);
        }
        if (k == 0) { /* the page itself is for all of these names, what it shows is not */
            assert_int_equal(status_for(server, "one.example", "GET /ui HTTP/1.1"), 200);
            assert_int_equal(status_for(server, "one.example", "GET /ui/status HTTP/1.1"), 403);
            assert_int_not_equal(status_for(server, "localhost", "GET /ui/status HTTP/1.1"), 403);
        }
        tinkc_server_free(server);
    }
    tinkc_engine_free(other);
    assert_int_equal(atomic_load(&memory.bytes), 0);
    tiny_model_remove(place);
}

static size_t open_files(void)
{
    size_t n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Each allocation of a start fails once: nothing of the server is left. */
TEST(starts_without_memory)
{
    tinkc_error err = { 0 };
    scarce memory = { .thread = pthread_self() };
    const tinkc_allocator allocator = scarce_allocator(&memory);
    static const char *const hosts[] = { "one.example", "two.example", NULL };
    static const char *const keys[] = { "k tokens=5", "l", NULL };
    char *place = tiny_folder(), path[400];
    snprintf(path, sizeof path, "%s/s", place);
    tinkc_engine *other = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1, .allocator = &allocator }, &err);
    assert_ok(err);
    const tinkc_serve_options options[] = { { .allow_hosts = hosts, .page = true },
                                            { .allow_hosts = hosts, .api_keys = keys, .unix_socket = path } };
    for (size_t k = 0; k < 2; k++) {
        tinkc_server *server = tinkc_engine_serve(other, &options[k], &err);
        assert_ok(err);
        tinkc_server_free(server); /* what is made once is there */
        size_t bytes = atomic_load(&memory.all.bytes), files = open_files();
        int64_t n = 0;
        for (server = NULL; !server;) {
            memory.until = ++n;
            server = tinkc_engine_serve(other, &options[k], &err);
            memory.until = 0;
            if (server)
                break;
            assert_int_equal(err.code, TINKC_E_MEMORY);
            err = (tinkc_error){ 0 };
            assert_int_equal(atomic_load(&memory.all.bytes), bytes);
            assert_int_equal(open_files(), files);
            assert_int_not_equal(access(path, F_OK), 0);
        }
        assert_true(n > 5);
        tinkc_server_free(server);
        assert_int_equal(atomic_load(&memory.all.bytes), bytes);
    }
    tinkc_engine_free(other);
    assert_int_equal(atomic_load(&memory.all.bytes), 0);
    tiny_model_remove(place);
}

/* What the library is asked for, word for word; it refuses, and nothing of the server is left. */
static struct MHD_Daemon *refusing_start(unsigned int flags, uint16_t port, MHD_AcceptPolicyCallback accept,
                                         void *accept_user, MHD_AccessHandlerCallback handle, void *handle_user, ...)
{
    va_list o;
    const tke_http *h = handle_user;
    assert_int_equal(flags, MHD_USE_AUTO_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME);
    assert_int_equal(port, 0);
    assert_true(accept == tke_peer_accept && handle == tke_request_handle && accept_user == h);
    va_start(o, handle_user);
    assert_int_equal(va_arg(o, int), MHD_OPTION_LISTEN_SOCKET);
    assert_int_equal(va_arg(o, int), h->listen_fd);
    int reuse = 0; /* or a restart could not listen while old connections linger */
    socklen_t len = sizeof reuse;
    assert_int_equal(getsockopt(h->listen_fd, SOL_SOCKET, SO_REUSEADDR, &reuse, &len), 0);
    assert_int_equal(reuse, !h->socket_path);
    assert_int_equal(va_arg(o, int), MHD_OPTION_THREAD_POOL_SIZE);
    assert_int_equal(va_arg(o, unsigned int), 4);
    assert_int_equal(va_arg(o, int), MHD_OPTION_CONNECTION_LIMIT);
    assert_int_equal(va_arg(o, unsigned int), 10 + 4 * 8);
    assert_int_equal(va_arg(o, int), MHD_OPTION_CONNECTION_TIMEOUT);
    assert_int_equal(va_arg(o, unsigned int), 120);
    assert_int_equal(va_arg(o, int), MHD_OPTION_CONNECTION_MEMORY_LIMIT);
    assert_int_equal(va_arg(o, size_t), 65536);
    assert_int_equal(va_arg(o, int), MHD_OPTION_STRICT_FOR_CLIENT);
    assert_int_equal(va_arg(o, int), 0); /* the guard checks the head */
    assert_int_equal(va_arg(o, int), MHD_OPTION_NOTIFY_COMPLETED);
    assert_true(va_arg(o, MHD_RequestCompletedCallback) == tke_request_completed);
    assert_ptr_equal(va_arg(o, void *), h);
    assert_int_equal(va_arg(o, int), MHD_OPTION_NOTIFY_CONNECTION);
    assert_true(va_arg(o, MHD_NotifyConnectionCallback) == tke_peer_notify);
    assert_ptr_equal(va_arg(o, void *), h);
    assert_int_equal(va_arg(o, int), MHD_OPTION_URI_LOG_CALLBACK);
    assert_true(va_arg(o, void *(*)(void *, const char *, struct MHD_Connection *)) == tke_request_begin);
    assert_ptr_equal(va_arg(o, void *), h);
    assert_int_equal(va_arg(o, int), MHD_OPTION_UNESCAPE_CALLBACK);
    char text[] = "a%2fb";
    assert_int_equal(va_arg(o, size_t(*)(void *, struct MHD_Connection *, char *))(NULL, NULL, text), 5);
    assert_string_equal(text, "a%2fb"); /* the service decodes it */
    assert_null(va_arg(o, void *));
    assert_int_equal(va_arg(o, int), MHD_OPTION_END);
    va_end(o);
    assert_true(h->has_timer);
    return NULL;
}

TEST(library_that_refuses)
{
    tinkc_error err = { 0 };
    char *place = tiny_folder(), path[400];
    snprintf(path, sizeof path, "%s/s", place);
    tke_mhd *library = (tke_mhd *)(uintptr_t)tke_mhd_load(&err);
    assert_ok(err);
    const tke_mhd own = *library;
    size_t files = open_files();
    library->start = refusing_start;
    for (int k = 0; k < 2; k++) {
        err = (tinkc_error){ 0 };
        assert_null(tinkc_engine_serve(
            engine, &(tinkc_serve_options){ .max_connections = 10, .unix_socket = k ? path : NULL }, &err));
        assert_int_equal(err.code, TINKC_E_CONNECTION);
        assert_string_equal(err.message, "the HTTP server could not be started");
        assert_int_equal(open_files(), files);
        assert_int_not_equal(access(path, F_OK), 0);
    }
    *library = own;
    tiny_model_remove(place);
}

TEST(options_of_servers)
{
    tinkc_error err;
    static const struct {
        tinkc_serve_options options;
        const char *message;
    } bad[] = {
        { { .port = -1 }, "port: must be from 0 to 65535, not -1" },
        { { .port = 65536 }, "port: must be from 0 to 65535, not 65536" },
        { { .max_connections = -1 }, "max_connections: must be 0 or more, not -1" },
        { { .max_body_bytes = -1 }, "max_body_bytes: must be 0 or more, not -1" },
        { { .max_per_address = -1 }, "max_per_address: must be 0 or more, not -1" },
        { { .head_timeout_ms = -1 }, "head_timeout_ms: must be 0 or more, not -1" },
        { { .reserved = { [1] = 1 } }, "reserved fields must be zero" },
        { { .reserved_bools = { [4] = true } }, "reserved fields must be zero" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_null(serve(&bad[i].options, &err));
        assert_string_equal(err.message, bad[i].message);
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
    }
    assert_string_equal(tinkc_server_url(NULL), "");
    tinkc_server *running = serve(NULL, &err); /* nothing is done after a failure */
    assert_ok(err);
    tinkc_error before = { .code = TINKC_E_STATE, .message = "before" };
    static const char *const some[] = { "k", NULL };
    assert_null(tinkc_engine_serve(engine, NULL, &before));
    assert_false(tinkc_server_set_keys(running, some, &before));
    assert_false(tinkc_server_wait(running, 0, &before));
    assert_false(tinkc_server_stop(running, 0, &before));
    assert_string_equal(before.message, "before");
    int fd = raw_try_dial(tinkc_server_url(running));
    assert_int_not_equal(fd, -1);
    close(fd);
    tinkc_server_free(running);
    err = (tinkc_error){ 0 };
    static const char *const keys[] = { "k", NULL }, *const none[] = { NULL };
    assert_false(tinkc_server_set_keys(NULL, NULL, &err));
    assert_string_equal(err.message, "server is NULL");
    err = (tinkc_error){ 0 };
    assert_false(tinkc_server_set_keys(NULL, keys, &err));
    assert_string_equal(err.message, "server is NULL");
    err = (tinkc_error){ 0 };
    assert_false(tinkc_server_wait(NULL, 0, &err));
    assert_string_equal(err.message, "server is NULL");
    err = (tinkc_error){ 0 };
    assert_false(tinkc_server_stop(NULL, 0, &err));
    assert_string_equal(err.message, "server is NULL");
    tinkc_server *server = serve(NULL, &err);
    assert_false(tinkc_server_set_keys(server, keys, &err));
    assert_string_equal(err.message, "the server was started without keys");
    err = (tinkc_error){ 0 };
    assert_false(tinkc_server_set_keys(server, none, &err));
    assert_string_equal(err.message, "api_keys is empty: a server with keys must keep at least one");
    err = (tinkc_error){ 0 };
    assert_false(tinkc_server_set_keys(server, NULL, &err));
    assert_string_equal(err.message, "api_keys is empty: a server with keys must keep at least one");
    err = (tinkc_error){ 0 };
    assert_false(tinkc_server_wait(server, 0, &err));
    assert_int_equal(err.code, TINKC_E_TIMEOUT);
    assert_string_equal(err.message, "the server is still running");
    err = (tinkc_error){ 0 };
    assert_true(tinkc_server_stop(server, 1000, &err));
    assert_true(tinkc_server_stop(server, 0, &err)); /* again: it has ended */
    assert_true(tinkc_server_wait(server, 0, &err));
    assert_ok(err);
    tinkc_server_free(server);
}

RUN_TESTS(setup, teardown)
