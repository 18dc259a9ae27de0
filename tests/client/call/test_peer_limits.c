/* test_peer_limits.c - bounds that only a broken peer, a large job or a forgetful program reaches: both sides of each. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/download/download.h"
#include "support/client/api_support.h"
#include "support/counting.h"
#include "support/client/tar_write.h"

#define CONFIG    "/api/v1/client/config"
#define SETTINGS  "/api/v1/client/dynamic_config"
#define BEAT      "/api/v1/session_heartbeat"
#define HEALTH    "/api/v1/healthz"
#define TELEMETRY "/api/v1/telemetry"
#define CANCEL    "/api/v1/cancel_future"
#define POLL      "/api/v1/retrieve_future"
#define RUNS      "/api/v1/training_runs"
#define ARCHIVE   "/api/v1/training_runs/r/checkpoints/weights/c/archive"
#define PATH      "tinker://r/weights/c"
#define STORE     "/store/x"
#define ADDRESS   "{\"url\":\"https://files.test/store/x\",\"expires\":\"2026-01-01T01:00:00Z\"}"

static tinkc_mock *mock;
static tinkc_client *client;
static tinkc_error err;

static int setup(void **state)
{
    (void)state;
    err = (tinkc_error){ 0 };
    mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    return err.code;
}

static int teardown(void **state)
{
    (void)state;
    tinkc_client_free(client);
    client = NULL;
    tinkc_mock_free(mock);
    return 0;
}

static void connect_with(const tinkc_client_options *more)
{
    client = mock_client(mock, more, &err);
    assert_ok(&err);
}

static void settle(void)
{
    tinkc_mock_settle(mock, PATIENCE_MS, &err);
    assert_ok(&err);
}

static void pass_ms(int64_t ms)
{
    settle();
    tinkc_mock_advance(mock, ms);
    settle();
}

/* ---- events that nobody takes ---- */

static size_t n_seen;
static char first_seen[40], last_seen[40];

static void see(const tinkc_event *e, void *user)
{
    (void)user;
    if (n_seen++ == 0)
        (void)snprintf(first_seen, sizeof first_seen, "%s", e->request);
    (void)snprintf(last_seen, sizeof last_seen, "%s", e->request);
}

/* A queue that is not run keeps the newest 1024 events. */
TEST_WITH(events_that_wait, setup, teardown)
{
    static const size_t made[] = { 1024, 1025 };
    connect_with(NULL);
    assert_true(tinkc_client_connect(client, PATIENCE_MS, &err));
    tinkc_mock_always(mock, NULL, "/n/*", &(tinkc_mock_answer){ .body = "{}" }, &err);
    for (size_t k = 0; k < 2; k++) {
        char path[40], request[48];
        tinkc_queue *queue = tinkc_queue_new(client, &err);
        tinkc_client_on_event(client, queue, TINKC_EVENT_EXCHANGE, see, NULL, &err);
        for (size_t i = 0; i < made[k]; i++) {
            (void)snprintf(path, sizeof path, "/n/%zu", i);
            tinkc_future *f = tinkc_http_call(client, &(tinkc_http_options){ .path = path }, &err);
            assert_true(tinkc_future_wait(f, PATIENCE_MS, &err));
            tinkc_future_free(f);
        }
        settle();
        n_seen = 0;
        while (tinkc_queue_run(queue, 0, &err) > 0)
            ;
        assert_int_equal(n_seen, 1024);
        (void)snprintf(request, sizeof request, "GET /n/%zu", made[k] - 1024);
        assert_string_equal(first_seen, request);
        (void)snprintf(request, sizeof request, "GET /n/%zu", made[k] - 1);
        assert_string_equal(last_seen, request);
        tinkc_client_on_event(client, NULL, 0, NULL, NULL, &err);
        tinkc_queue_free(queue);
    }
}

/* ---- what the service sends with an error ---- */

TEST_WITH(the_body_of_an_error_is_kept_up_to_64_KiB, setup, teardown)
{
    enum { MOST = 64 * 1024 };
    static char body[MOST + 1];
    static const size_t sizes[] = { 1, MOST - 1, MOST, MOST + 1 };
    connect_with(NULL);
    memset(body, 'x', sizeof body);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        tinkc_error why = { 0 };
        tinkc_mock_once(mock, NULL, HEALTH, &(tinkc_mock_answer){ .status = 403, .body = body, .body_len = sizes[i] },
                        &err);
        tinkc_future *f = tinkc_health_check(client, &err);
        assert_false(tinkc_future_wait(f, PATIENCE_MS, &why));
        assert_int_equal(tinkc_future_error_body(f).len, sizes[i] < MOST ? sizes[i] : MOST);
        tinkc_future_free(f);
    }
}

/* ---- samples that are cancelled faster than the service can be informed ---- */

TEST_WITH(cancels_that_wait, setup, teardown)
{
    enum { MOST = 10000, MORE = 3 };
    static tinkc_future *f[1 + MOST + MORE];
    static const size_t n = sizeof f / sizeof *f;
    static const char *const later[] = { "Retry-After", "60", NULL };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    tinkc_mock_always(mock, NULL, CONFIG, &(tinkc_mock_answer){ .body = "{\"sample_max_concurrent_requests\":20000}" },
                      &err);
    tinkc_mock_always(mock, NULL, SETTINGS,
                      &(tinkc_mock_answer){ .body = "{\"sample_cancel_enabled\":true,"
                                                    "\"sample_cancel_max_batch_size\":1}" },
                      &err);
    connect_with(&(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_OFF });
    tinkc_mock_always(mock, NULL, POLL, &(tinkc_mock_answer){ .status = 429, .headers = later }, &err);
    tinkc_mock_once(mock, NULL, CANCEL, &(tinkc_mock_answer){ .body = "{}", .delay_ms = 1000 }, &err);
    tinkc_mock_always(mock, NULL, CANCEL, &(tinkc_mock_answer){ .body = "{}" }, &err);
    tinkc_sampler *s = tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &err);
    o.max_tokens = 1;
    for (size_t i = 0; i < n; i++)
        f[i] = tinkc_sample(s, (int32_t[]){ 1 }, 1, 1, &o, &err);
    settle();
    for (size_t i = 0; i < n; i++)
        tinkc_future_free(f[i]);
    settle();
    assert_int_equal(tinkc_mock_count(mock, CANCEL), 1); /* the others wait for its answer */
    pass_ms(1000);
    assert_int_equal(tinkc_mock_count(mock, CANCEL), 1 + MOST);
    tinkc_sampler_free(s);
}

/* ---- lists that do not move on ---- */

enum { STALE = 100 };

/* The first item again and again, the second one after `*user` pages, and a total without end. */
static bool repeat_items(const tinkc_request *r, tinkc_mock_answer *a, void *user)
{
    static char body[300];
    static size_t asked;
    size_t *after = user;
    if (!request_is_to(r, RUNS))
        return false;
    if (*after) {
        asked = *after;
        *after = 0;
    }
    bool second = asked && --asked == 0;
    (void)snprintf(body, sizeof body,
                   "{\"training_runs\":[{\"training_run_id\":\"%s\",\"base_model\":\"B\","
                   "\"model_owner\":\"o\",\"is_lora\":true,\"last_request_time\":"
                   "\"2026-03-04T05:06:07Z\"}],\"cursor\":{\"offset\":0,\"limit\":1,"
                   "\"total_count\":9000000000000000000}}",
                   second ? "two" : "one");
    a->body = body;
    return true;
}

TEST_WITH(lists_that_repeat_themselves, setup, teardown)
{
    /* The page on which the second item comes, 1 being the first page; how many items that makes. */
    static const struct {
        size_t at, items, requests;
    } rows[] = { { STALE + 1, 2, 1 + (STALE - 1) + 1 + STALE }, { STALE + 2, 1, 1 + STALE } };
    connect_with(NULL);
    for (size_t i = 0; i < 2; i++) {
        size_t after = rows[i].at, n = 0;
        tinkc_mock_compute(mock, repeat_items, &after, &err);
        tinkc_mock_forget(mock);
        tinkc_runs *runs = tinkc_runs_list(client, NULL, &err);
        while (tinkc_runs_next(runs, &err))
            n++;
        assert_ok(&err);
        assert_int_equal(n, rows[i].items);
        assert_int_equal(tinkc_mock_count(mock, RUNS), rows[i].requests);
        tinkc_runs_free(runs);
    }
}

/* ---- telemetry ---- */

enum { EVENT_MOST = 64 * 1024, QUEUE_MOST = 8 * 1024 * 1024 };

/* Reports an event with so many bytes in its data. */
static bool report(size_t len)
{
    static char data[2 * EVENT_MOST];
    assert_true(len >= 10 && len < sizeof data);
    memset(data, 'x', len);
    memcpy(data, "{\"a\":\"", 6);
    memcpy(data + len - 2, "\"}", 3);
    return tinkc_client_report(client, "e", data, TINKC_LOG_INFO, &err);
}

/* How long the event in the newest batch is: what lies between the brackets. */
static size_t length_of_event(void)
{
    size_t n = tinkc_mock_count(mock, TELEMETRY);
    const char *body = (const char *)nth_request(mock, TELEMETRY, n - 1)->body.data;
    const char *begin = strstr(body, "{\"events\":["), *end = strstr(body, "],\"platform\"");
    assert_true(begin == body && end);
    return (size_t)(end - begin) - strlen("{\"events\":[");
}

/* An event has up to 64 KiB, and the queue up to 8 MiB of them. Numbers of events have the same length
 * throughout: 100 to 999. */
TEST_WITH(sizes_of_telemetry, setup, teardown)
{
    tinkc_mock_always(mock, NULL, TELEMETRY, &(tinkc_mock_answer){ .body = "{}" }, &err);
    connect_with(&(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_ON });
    for (size_t i = 0; i < 101; i++)
        assert_true(report(10));
    pass_ms(10000);
    assert_true(report(1000));
    pass_ms(10000);
    size_t around = length_of_event() - 1000; /* what is not its data */
    assert_false(report(EVENT_MOST - around + 1));
    assert_true(report(EVENT_MOST - around));
    pass_ms(10000);
    assert_int_equal(length_of_event(), EVENT_MOST);
    for (size_t i = 0; i < QUEUE_MOST / EVENT_MOST - 1; i++)
        assert_true(report(EVENT_MOST - around));
    assert_false(report(EVENT_MOST - around + 1));
    assert_true(report(EVENT_MOST - around - (around + 10))); /* leaves room for the smallest */
    assert_false(report(11));
    assert_true(report(10));
    assert_false(report(10));
    pass_ms(10000);
    assert_true(report(EVENT_MOST - around)); /* there is room again */
    assert_ok(&err);
}

/* What the service said to a wrong call is reported if it is short: up to 4096 bytes. */
TEST_WITH(bodies_in_telemetry, setup, teardown)
{
    enum { MOST = 4096 };
    static char body[MOST + 2];
    tinkc_mock_always(mock, NULL, TELEMETRY, &(tinkc_mock_answer){ .body = "{}" }, &err);
    connect_with(&(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_ON });
    for (size_t i = 0; i < 2; i++) {
        memset(body, 'q', MOST + i);
        tinkc_mock_forget(mock);
        tinkc_mock_once(mock, NULL, HEALTH, &(tinkc_mock_answer){ .status = 422, .body = body, .body_len = MOST + i },
                        &err);
        tinkc_future *f = tinkc_health_check(client, &err);
        tinkc_error why = { 0 };
        assert_false(tinkc_future_wait(f, PATIENCE_MS, &why));
        pass_ms(10000);
        const char *sent = (const char *)nth_request(mock, TELEMETRY, 0)->body.data;
        assert_non_null(strstr(sent, "user_error"));
        const char *part = strstr(sent, "\"body\":\"");
        assert_int_equal(part != NULL, i == 0);
        if (part)
            assert_int_equal(strspn(part + strlen("\"body\":\""), "q"), MOST);
        tinkc_future_free(f);
    }
}

/* ---- settings ---- */

/* However seldom the service wants them refreshed: every million seconds. */
TEST_WITH(settings_are_refreshed_some_day, setup, teardown)
{
    static const struct {
        const char *body;
        int64_t s;
    } rows[] = { { "{\"refresh_interval_sec\":999999}", 999999 },
                 { "{\"refresh_interval_sec\":1000001}", 1000000 },
                 { "{\"refresh_interval_sec\":9223372036854775807}", 1000000 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_mock_always(mock, NULL, SETTINGS, &(tinkc_mock_answer){ .body = rows[i].body }, &err);
        tinkc_mock_always(mock, NULL, BEAT, &(tinkc_mock_answer){ .status = 410 }, &err);
        connect_with(&(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_OFF });
        assert_non_null(tinkc_client_session_id(client, PATIENCE_MS, &err));
        pass_ms(10000); /* the only heartbeat */
        tinkc_mock_forget(mock);
        pass_ms((rows[i].s - 10) * 1000 - 1);
        assert_int_equal(tinkc_mock_count(mock, SETTINGS), 0);
        pass_ms(1);
        assert_int_equal(tinkc_mock_count(mock, SETTINGS), 1);
        teardown(NULL);
        assert_int_equal(setup(NULL), 0);
    }
}

/* ---- credential commands ---- */

/* The mock's clock, which counts how often helpers look at it. */
static struct {
    const tinkc_clock *under;
    atomic_size_t looks; /* of threads that are neither this one nor the client's */
    pthread_t test, client;
    atomic_bool knows_client;
} watched;

static int64_t watched_now(void *self)
{
    (void)self;
    pthread_t me = pthread_self();
    if (atomic_load(&watched.knows_client) && !pthread_equal(me, watched.test) && !pthread_equal(me, watched.client))
        atomic_fetch_add(&watched.looks, 1);
    return watched.under->now_ms(watched.under->self);
}

/* The client's thread makes a name for each of its requests, before it looks for a credential. */
static uint64_t watched_random(void *self)
{
    if (!pthread_equal(pthread_self(), watched.test) && !atomic_load(&watched.knows_client)) {
        watched.client = pthread_self();
        atomic_store(&watched.knows_client, true);
    }
    return watched.under->random(self);
}

/* Two looks from now on, one of them begins after now. */
static void await_a_look(void)
{
    size_t before = atomic_load(&watched.looks);
    wait_until(atomic_load(&watched.looks) >= before + 2);
    assert_true(atomic_load(&watched.looks) >= before + 2);
}

TEST_WITH(commands_have_thirty_seconds, setup, teardown)
{
    static const int64_t passed[] = { 30000, 30001 };
    for (size_t i = 0; i < 2; i++) {
        counting memory = { 0 };
        tinkc_allocator allocator = counting_allocator(&memory);
        char folder[] = "/tmp/tinkc-limits-XXXXXX", fifo[60], command[120];
        assert_non_null(mkdtemp(folder));
        (void)snprintf(fifo, sizeof fifo, "%s/go", folder);
        assert_int_equal(mkfifo(fifo, 0600), 0);
        (void)snprintf(command, sizeof command, "read x < %s; echo $x", fifo);
        tinkc_mock_always(mock, NULL, CONFIG, &(tinkc_mock_answer){ .body = "{\"pjwt_auth_enabled\":true}" }, &err);
        tinkc_mock_always(mock, NULL, "/api/v1/auth/token",
                          &(tinkc_mock_answer){ .body = "{\"jwt\":\"eyJhIjoxfQ.eyJleHAiOjk5OTk5OTk5OTl9.x\"}" }, &err);
        watched.under = tinkc_mock_clock(mock);
        watched.test = pthread_self();
        atomic_store(&watched.knows_client, false);
        atomic_store(&watched.looks, 0);
        tinkc_clock clock = *watched.under;
        clock.now_ms = watched_now;
        clock.random = watched_random;
        client = tinkc_client_new(&(tinkc_client_options){ .transport = tinkc_mock_transport(mock),
                                                           .clock = &clock,
                                                           .allocator = &allocator,
                                                           .api_key = "",
                                                           .credential_cmd = command,
                                                           .telemetry = TINKC_TELEMETRY_OFF },
                                  &err);
        assert_ok(&err);
        tinkc_future *f = tinkc_health_check(client, &err);
        await_a_look(); /* it runs */
        tinkc_mock_advance(mock, passed[i]);
        if (i == 0) { /* it has not been stopped: it may still answer */
            await_a_look();
            int fd = open(fifo, O_RDWR | O_CLOEXEC);
            /* Once for the settings, once for the token. */
            assert_int_equal(write(fd, "tml-late\ntml-late\n", 18), 18);
            assert_true(tinkc_future_wait(f, PATIENCE_MS, &err));
            close(fd);
        } else {
            assert_false(tinkc_future_wait(f, PATIENCE_MS, &err));
            assert_int_equal(err.code, TINKC_E_CREDENTIAL_CMD);
            assert_non_null(strstr(err.message, "took over 30 s"));
        }
        tinkc_future_free(f);
        teardown(NULL);
        assert_true(counting_is_empty_soon(&memory)); /* then its thread needs the clock no longer */
        unlink(fifo);
        rmdir(folder);
        assert_int_equal(setup(NULL), 0);
    }
}

/* ---- downloads ---- */

TEST(names_in_archives)
{
    enum { MOST = 4096 };
    char name[MOST + 2];
    for (size_t i = 0; i < sizeof name; i++)
        name[i] = i % 200 == 199 ? '/' : 'n';
    name[MOST] = 0;
    assert_true(tkc_is_safe_name(name));
    name[MOST] = 'n';
    name[MOST + 1] = 0;
    assert_false(tkc_is_safe_name(name));
}

static char target[] = "/tmp/tinkc-limits-XXXXXX";

static int setup_folder(void **state)
{
    memcpy(target + sizeof target - 7, "XXXXXX", 6);
    return setup(state) || !mkdtemp(target);
}

static int teardown_folder(void **state)
{
    char command[80];
    teardown(state);
    (void)snprintf(command, sizeof command, "rm -r '%s'", target);
    return system(command);
}

/* What an earlier run left: file "first" and a state file that names it n times, followed by spaces up
 * to `size` bytes. */
static void leave_partial(size_t n, size_t size)
{
    char path[100];
    (void)snprintf(path, sizeof path, "%s/c.partial", target);
    assert_int_equal(mkdir(path, 0777), 0);
    (void)snprintf(path, sizeof path, "%s/c.partial/first", target);
    FILE *f = fopen(path, "w");
    assert_true(f && fputs("1", f) >= 0 && fclose(f) == 0);
    (void)snprintf(path, sizeof path, "%s/c.partial.state", target);
    f = fopen(path, "w");
    assert_non_null(f);
    int len = fprintf(f, "{\"what\":\"%s\",\"etag\":\"e\",\"total\":3072,\"offset\":1024,\"files\":[", PATH);
    for (size_t i = 0; i < n; i++)
        len += fprintf(f, "%s{\"name\":\"first\",\"sha256\":\"\",\"size\":1}", i ? "," : "");
    len += fprintf(f, "]}");
    static char spaces[1 << 16];
    memset(spaces, ' ', sizeof spaces);
    for (size_t at = (size_t)len; at < size;) {
        size_t piece = size - at < sizeof spaces ? size - at : sizeof spaces;
        assert_int_equal(fwrite(spaces, 1, piece, f), piece);
        at += piece;
    }
    assert_int_equal(fclose(f), 0);
}

/* Continues behind the first of two files. How it ends; *resumed: it asked for the rest only. */
static int32_t continue_download(bool *resumed)
{
    tinkc_error why = { 0 };
    tar t = { 0 };
    tar_raw(&t, "first", '0', NULL, "1", 1);
    tar_raw(&t, "last", '0', NULL, "2", 1);
    tar_end(&t);
    const char *const rest[] = { "ETag", "e", "Content-Range", "bytes 1024-3071/3072", NULL };
    const char *const whole[] = { "ETag", "e", NULL };
    tinkc_mock_always(mock, NULL, ARCHIVE, &(tinkc_mock_answer){ .body = ADDRESS }, &err);
    tinkc_mock_answer answer = { .status = *resumed ? 206 : 200,
                                 .headers = *resumed ? rest : whole,
                                 .body = t.data + (*resumed ? 1024 : 0),
                                 .body_len = t.len - (*resumed ? 1024 : 0) };
    tinkc_mock_once(mock, NULL, STORE, &answer, &err);
    connect_with(NULL);
    tinkc_future *f = tinkc_checkpoint_download(
        client, PATH, &(tinkc_download_options){ .dir = target, .name = "c", .no_digests = true }, &err);
    (void)tinkc_future_wait(f, PATIENCE_MS, &why);
    *resumed = request_header(nth_request(mock, STORE, 0), "Range") != NULL;
    tinkc_future_free(f);
    assert_ok(&err);
    free(t.data);
    return why.code;
}

/* Up to 100 000 files come out of an archive, those of earlier runs included. */
TEST_WITH(files_in_archives, setup_folder, teardown_folder)
{
    enum { MOST = 100000 };
    for (size_t i = 0; i < 2; i++) {
        bool resumed = true;
        leave_partial(MOST - 1 + i, 0);
        assert_int_equal(continue_download(&resumed), i ? TINKC_E_BAD_RESPONSE : 0);
        assert_true(resumed);
        assert_int_equal(teardown_folder(state), 0);
        assert_int_equal(setup_folder(state), 0);
    }
}

/* A state file of more than 64 MiB is none of ours: the download begins again. */
TEST_WITH(a_state_file_of_more_than_64_MiB_is_ignored, setup_folder, teardown_folder)
{
    enum { MOST = 64 * 1024 * 1024 };
    for (size_t i = 0; i < 2; i++) {
        bool resumed = !i, wanted = !i;
        leave_partial(1, MOST + i);
        assert_int_equal(continue_download(&resumed), 0);
        assert_int_equal(resumed, wanted);
        assert_int_equal(teardown_folder(state), 0);
        assert_int_equal(setup_folder(state), 0);
    }
}

/* ---- a transport that holds the archive's bytes back ---- */

static tinkc_reply *_Atomic held;

static void send_or_hold(void *self, const tinkc_request *r, tinkc_reply *reply)
{
    (void)self;
    const char *body = strstr(r->path, "/archive") ? ADDRESS : "{}";
    reply->status(reply, 200);
    if (strcmp(r->path, STORE) == 0) {
        reply->header(reply, "ETag", "e");
        (void)reply->write(reply, "", 0);
        atomic_store(&held, reply);
        return;
    }
    (void)reply->write(reply, body, strlen(body));
    reply->end(reply);
}

/* The client is freed after the download has ended; nothing is cancelled before. */
static const tinkc_transport holding = { .abi = TINKC_TRANSPORT_ABI, .send = send_or_hold };

static bool is_there(const char *name)
{
    char path[100];
    (void)snprintf(path, sizeof path, "%s/c.partial/%s", target, name);
    return access(path, F_OK) == 0;
}

static long saved_offset(void)
{
    char path[100], text[2000];
    (void)snprintf(path, sizeof path, "%s/c.partial.state", target);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    (void)fclose(f);
    const char *at = strstr(text, "\"offset\":");
    assert_non_null(at);
    return strtol(at + strlen("\"offset\":"), NULL, 10);
}

/* Where a crash could be taken up is written down at most once a second. */
TEST_WITH(marks_of_a_download, setup_folder, teardown_folder)
{
    static const struct {
        int64_t passes_ms;
        const char *name;
        long offset;
    } rows[] = {
        { 0, "a", 0 }, { 0, "b", 0 }, { 999, "c", 0 }, { 1, "d", 3072 }, { 999, "e", 3072 },
    };
    enum { N = sizeof rows / sizeof *rows };
    tar t = { 0 };
    for (size_t i = 0; i < N; i++)
        tar_raw(&t, rows[i].name, '0', NULL, "1", 1);
    tar_end(&t);
    client = tinkc_client_new(&(tinkc_client_options){ .transport = &holding, .clock = tinkc_mock_clock(mock) }, &err);
    tinkc_future *f =
        tinkc_checkpoint_download(client, PATH, &(tinkc_download_options){ .dir = target, .name = "c" }, &err);
    assert_ok(&err);
    wait_until(atomic_load(&held));
    tinkc_reply *reply = atomic_load(&held);
    assert_non_null(reply);
    for (size_t i = 0; i < N; i++) {
        tinkc_mock_advance(mock, rows[i].passes_ms);
        assert_true(reply->write(reply, t.data + i * 1024, 1024));
        wait_until(is_there(rows[i].name)); /* then its mark is behind it */
        assert_true(is_there(rows[i].name));
        assert_int_equal(saved_offset(), rows[i].offset);
    }
    assert_true(reply->write(reply, t.data + (size_t)N * 1024, t.len - (size_t)N * 1024));
    reply->end(reply);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &err));
    tinkc_future_free(f);
    free(t.data);
}
