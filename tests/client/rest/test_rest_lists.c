/* test_rest_lists.c - page iterators against services of every size and honesty. */
#include <sys/wait.h>
#include <unistd.h>

#include "support/client/api_support.h"

/* A service with n items of one kind, and its bad habits. */
typedef struct service {
    int64_t n;
    int64_t cap;     /* gives at most this many a page; 0 = as asked */
    int64_t grow_at; /* at this request (1 = the second) items appear at the front */
    int64_t grow_by;
    int64_t shrink_to; /* after the first page it has only so many; -1 = no change */
    bool no_cursor, ignores_offset, null_cursor;
    int64_t requests;
    char *body;
    char last_path[300];
} service;

static int64_t number(const char *path, const char *name)
{
    const char *at = strstr(path, name);
    return at ? strtoll(at + strlen(name), NULL, 10) : -1;
}

static void one_item(const char *kind, int64_t id, char *out, size_t cap)
{
    if (strcmp(kind, "sessions") == 0)
        snprintf(out, cap, "\"s-%lld\"", (long long)id);
    else if (strcmp(kind, "checkpoints") == 0)
        snprintf(out, cap,
                 "{\"checkpoint_id\":\"weights/%lld\",\"checkpoint_type\":\"training\",\"time\":"
                 "\"2026-03-04T05:06:07Z\",\"tinker_path\":\"tinker://R/weights/%lld\"}",
                 (long long)id, (long long)id);
    else
        snprintf(out, cap,
                 "{\"training_run_id\":\"r-%lld\",\"base_model\":\"B\",\"model_owner\":\"o\","
                 "\"is_lora\":true,\"last_request_time\":\"2026-03-04T05:06:07Z\"}",
                 (long long)id);
}

static bool serve(const tinkc_request *request, tinkc_mock_answer *answer, void *user)
{
    service *s = user;
    const char *path = request->path;
    const char *kind = strstr(path, "/sessions?")                                      ? "sessions"
                       : strstr(path, "/checkpoints?") || strstr(path, "/checkpoints") ? "checkpoints"
                       : strstr(path, "/training_runs?")                               ? "training_runs"
                                                                                       : NULL;
    char item[400];
    if (!kind)
        return false;
    snprintf(s->last_path, sizeof s->last_path, "%s", path);
    int64_t limit = number(path, "limit="), offset = number(path, "offset=");
    int64_t shift = s->grow_at && s->requests >= s->grow_at ? s->grow_by : 0;
    int64_t n = s->n + shift;
    if (s->requests > 0 && s->shrink_to >= 0)
        n = s->shrink_to;
    s->requests++;
    if (limit < 0)
        limit = n;
    if (offset < 0 || s->ignores_offset)
        offset = 0;
    if (s->cap && limit > s->cap)
        limit = s->cap;
    free(s->body);
    size_t size = (size_t)(limit > 0 ? limit : 1) * 400 + 400, len = 0;
    s->body = malloc(size);
    len += (size_t)snprintf(s->body, size, "{\"%s\":[", kind);
    for (int64_t i = offset; i < n && i < offset + limit; i++) {
        one_item(kind, i - shift, item, sizeof item); /* new ones have negative numbers */
        len += (size_t)snprintf(s->body + len, size - len, "%s%s", i > offset ? "," : "", item);
    }
    len += (size_t)snprintf(s->body + len, size - len, "]");
    if (s->null_cursor)
        len += (size_t)snprintf(s->body + len, size - len, ",\"cursor\":null");
    else if (!s->no_cursor)
        len += (size_t)snprintf(s->body + len, size - len,
                                ",\"cursor\":{\"offset\":%lld,\"limit\":%lld,\"total_count\":%lld}", (long long)offset,
                                (long long)limit, (long long)n);
    snprintf(s->body + len, size - len, "}");
    answer->body = s->body;
    return true;
}

typedef struct world {
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_error err;
    service s;
} world;

static void open_world(world *w, service s)
{
    *w = (world){ .s = s };
    w->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &w->err);
    tinkc_mock_compute(w->mock, serve, &w->s, &w->err);
    w->client = mock_client(w->mock, NULL, &w->err);
    assert_ok(&w->err);
}

static void close_world(world *w)
{
    tinkc_client_free(w->client);
    tinkc_mock_free(w->mock);
    free(w->s.body);
}

enum { RUNS, CHECKPOINTS, SESSIONS };

/* Walks a whole list; fails if an item comes twice. Returns how many came. */
static int64_t walk(world *w, int kind, const tinkc_list_options *options)
{
    static bool seen[2000];
    int64_t n = 0;
    memset(seen, 0, sizeof seen);
    tinkc_runs *runs = kind == RUNS ? tinkc_runs_list(w->client, options, &w->err) : NULL;
    tinkc_checkpoints *checkpoints = kind == CHECKPOINTS ? tinkc_checkpoints_list(w->client, options, &w->err) : NULL;
    tinkc_sessions *sessions = kind == SESSIONS ? tinkc_sessions_list(w->client, options, &w->err) : NULL;
    for (;;) {
        const char *id = NULL;
        if (runs) {
            const tinkc_run *run = tinkc_runs_next(runs, &w->err);
            id = run ? run->id + 2 : NULL;
        } else if (checkpoints) {
            const tinkc_checkpoint *c = tinkc_checkpoints_next(checkpoints, &w->err);
            id = c ? c->id + 8 : NULL;
        } else {
            id = tinkc_sessions_next(sessions, &w->err);
            id = id ? id + 2 : NULL;
        }
        assert_ok(&w->err);
        if (!id)
            break;
        long long k = strtoll(id, NULL, 10) + 1000; /* new ones have negative numbers */
        assert_true(k >= 0 && k < 2000);
        assert_false(seen[k]);
        seen[k] = true;
        n++;
    }
    tinkc_runs_free(runs);
    tinkc_checkpoints_free(checkpoints);
    tinkc_sessions_free(sessions);
    return n;
}

TEST(every_size_comes_whole)
{
    static const int64_t sizes[] = { 0, 1, 99, 100, 101, 250, 999 };
    for (int kind = RUNS; kind <= SESSIONS; kind++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int64_t cap = 0; cap <= 30; cap += 30) { /* a short page does not end it */
                world w;
                open_world(&w, (service){ .n = sizes[i], .cap = cap, .shrink_to = -1, .no_cursor = kind == SESSIONS });
                assert_int_equal(walk(&w, kind, NULL), sizes[i]);
                close_world(&w);
            }
}

TEST(requests_are_as_few_as_can_be)
{
    world w;
    open_world(&w, (service){ .n = 250, .shrink_to = -1 });
    assert_int_equal(walk(&w, RUNS, NULL), 250);
    assert_int_equal(w.s.requests, 3);
    assert_string_equal(w.s.last_path, "/api/v1/training_runs?limit=100&offset=200&access_scope=owned");
    w.s.requests = 0;
    assert_int_equal(walk(&w, CHECKPOINTS, NULL), 250);
    assert_int_equal(w.s.requests, 1);
    assert_string_equal(w.s.last_path, "/api/v1/checkpoints?limit=1000&offset=0");
    w.s.requests = 0;
    w.s.no_cursor = true;
    assert_int_equal(walk(&w, SESSIONS, NULL), 250);
    assert_int_equal(w.s.requests, 4); /* without a total only an empty page is the end */
    assert_string_equal(w.s.last_path, "/api/v1/sessions?limit=100&offset=250&access_scope=owned");
    close_world(&w);
}

TEST(options_are_kept_to)
{
    world w;
    open_world(&w, (service){ .n = 250, .shrink_to = -1 });
    assert_int_equal(walk(&w, RUNS, &(tinkc_list_options){ .limit = 130 }), 130);
    assert_string_equal(w.s.last_path, "/api/v1/training_runs?limit=30&offset=100&access_scope=owned");
    w.s.requests = 0;
    assert_int_equal(walk(&w, RUNS, &(tinkc_list_options){ .offset = 240 }), 10);
    assert_int_equal(w.s.requests, 1); /* the total counts from the beginning of the list */
    assert_int_equal(walk(&w, RUNS, &(tinkc_list_options){ .offset = 500 }), 0);
    assert_int_equal(
        walk(&w, RUNS,
             &(tinkc_list_options){ .page_size = 7, .limit = 20, .scope = TINKC_ACCESSIBLE, .project_id = "p 1" }),
        20);
    assert_string_equal(w.s.last_path, "/api/v1/training_runs?limit=6&offset=14&access_scope="
                                       "accessible&project_id=p+1");
    close_world(&w);
}

TEST(checkpoints_of_a_run_come_in_one_page)
{
    world w;
    open_world(&w, (service){ .n = 40, .shrink_to = -1, .no_cursor = true });
    assert_int_equal(walk(&w, CHECKPOINTS, &(tinkc_list_options){ .run_id = "R" }), 40);
    assert_string_equal(w.s.last_path, "/api/v1/training_runs/R/checkpoints");
    assert_int_equal(w.s.requests, 1);
    assert_int_equal(walk(&w, CHECKPOINTS, &(tinkc_list_options){ .run_id = "R", .offset = 30, .limit = 5 }), 5);
    w.s.null_cursor = true;
    assert_int_equal(walk(&w, CHECKPOINTS, &(tinkc_list_options){ .run_id = "R" }), 40);
    close_world(&w);
}

TEST(lists_that_move)
{
    world w;
    /* Runs appear at the front between two pages: nothing twice, nothing of the old ones lost. */
    open_world(&w, (service){ .n = 250, .grow_at = 1, .grow_by = 30, .shrink_to = -1 });
    assert_int_equal(walk(&w, RUNS, NULL), 250);
    close_world(&w);
    open_world(&w, (service){ .n = 250, .shrink_to = 150 });
    assert_int_equal(walk(&w, RUNS, NULL), 150);
    close_world(&w);
    open_world(&w, (service){ .n = 250, .shrink_to = 20 });
    assert_int_equal(walk(&w, RUNS, NULL), 100);
    assert_true(w.s.requests <= 3);
    close_world(&w);
}

TEST(totals_and_fetching)
{
    world w;
    open_world(&w, (service){ .n = 150, .shrink_to = -1 });
    tinkc_runs *runs = tinkc_runs_list(w.client, NULL, &w.err);
    assert_int_equal(tinkc_runs_total(runs), -1);
    assert_int_equal(tinkc_runs_ready(runs), 0);
    assert_int_equal(tinkc_mock_count(w.mock, NULL), 0); /* nothing is asked for yet */
    tinkc_future *f = tinkc_runs_fetch(runs, &w.err);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &w.err));
    tinkc_future_free(f);
    assert_int_equal(tinkc_runs_ready(runs), 100);
    assert_int_equal(tinkc_runs_total(runs), 150);
    for (int i = 0; i < 100; i++)
        assert_non_null(tinkc_runs_next(runs, &w.err));
    assert_int_equal(w.s.requests, 1);
    f = tinkc_runs_fetch(runs, &w.err);
    tinkc_future_free(f); /* cancelled, or quicker than that: either way nothing is lost */
    int n = 100;
    while (tinkc_runs_next(runs, &w.err))
        n++;
    assert_ok(&w.err);
    assert_int_equal(n, 150);
    f = tinkc_runs_fetch(runs, &w.err); /* at the end there is nothing to wait for */
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &w.err));
    tinkc_future_free(f);
    assert_int_equal(tinkc_runs_ready(runs), 0);
    tinkc_runs_free(runs);
    close_world(&w);
}

TEST(a_failed_page_is_fetched_anew)
{
    world w;
    open_world(&w, (service){ .n = 150, .shrink_to = -1 });
    tinkc_runs *runs = tinkc_runs_list(w.client, NULL, &w.err);
    for (int i = 0; i < 100; i++)
        assert_non_null(tinkc_runs_next(runs, &w.err));
    tinkc_mock_compute(w.mock, NULL, NULL, &w.err);
    tinkc_mock_once(w.mock, NULL, "/api/v1/training_runs*", &(tinkc_mock_answer){ .status = 403 }, &w.err);
    assert_null(tinkc_runs_next(runs, &w.err));
    assert_int_equal(w.err.code, TINKC_E_FORBIDDEN);
    w.err = (tinkc_error){ 0 };
    tinkc_mock_compute(w.mock, serve, &w.s, &w.err);
    int n = 0;
    while (tinkc_runs_next(runs, &w.err))
        n++;
    assert_ok(&w.err);
    assert_int_equal(n, 50);
    tinkc_runs_free(runs);
    close_world(&w);
}

TEST(lists_outlive_what_they_stand_on)
{
    world w;
    open_world(&w, (service){ .n = 150, .shrink_to = -1 });
    tinkc_runs *runs = tinkc_runs_list(w.client, NULL, &w.err);
    tinkc_future *f = tinkc_runs_fetch(runs, &w.err);
    tinkc_runs_free(runs); /* while its fetch may be under way */
    tinkc_future_wait(f, PATIENCE_MS, NULL);
    tinkc_future_free(f);
    runs = tinkc_runs_list(w.client, NULL, &w.err);
    tinkc_client_free(w.client);
    w.client = NULL;
    assert_non_null(tinkc_runs_next(runs, &w.err));
    tinkc_runs_free(runs);
    close_world(&w);
    assert_null(tinkc_runs_next(NULL, NULL));
    assert_int_equal(tinkc_runs_ready(NULL), 0);
    assert_int_equal(tinkc_runs_total(NULL), -1);
    tinkc_runs_free(NULL);
}

TEST(a_forked_child_may_only_free)
{
    world w;
    int status;
    open_world(&w, (service){ .n = 5, .shrink_to = -1 });
    tinkc_runs *runs = tinkc_runs_list(w.client, NULL, &w.err);
    tinkc_stream *stream = tinkc_stream_open(w.client, &(tinkc_http_options){ .path = "/api/v1/healthz" }, &w.err);
    tinkc_form *form = tinkc_form_new(w.client, &w.err);
    assert_non_null(tinkc_stream_head(stream, PATIENCE_MS, &w.err));
    assert_ok(&w.err);
    tinkc_client_free(w.client); /* the handles alone keep the client */
    w.client = NULL;
    pid_t child = fork();
    if (child == 0) {
        tinkc_error err = { 0 };
        char byte;
        bool ok = !tinkc_runs_next(runs, &err) && err.code == TINKC_E_FORKED;
        err = (tinkc_error){ 0 };
        ok = ok && !tinkc_stream_read(stream, &byte, 1, PATIENCE_MS, &err) && err.code == TINKC_E_FORKED;
        tinkc_stream_free(stream);
        tinkc_form_free(form);
        tinkc_runs_free(runs);
        _exit(ok ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_non_null(tinkc_runs_next(runs, &w.err));
    tinkc_stream_free(stream);
    tinkc_form_free(form);
    tinkc_runs_free(runs);
    close_world(&w);
}
