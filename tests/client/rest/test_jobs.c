/* test_jobs.c - work of the service that a call waits for: archives that are packed, traces that are written; and lists that come page
 * by page. */
#include "support/client/client_scene.h"

#define RUN     API "training_runs/r"
#define ARCHIVE RUN "/checkpoints/weights/c/archive"
#define TRACE   API "sessions/s/trace_export"
#define PATH    "tinker://r/weights/c"
#define GOOD    "{\"url\":\"https://files.test/a\",\"expires\":\"2026-01-01T01:00:00Z\"}"

static scene *begin(const tinkc_client_options *o)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, o);
    complete(s, "", tinkc_health_check(scene_client(s), scene_err(s)));
    scene_forget(s);
    return s;
}

static void show_archive(scene *s, tinkc_future *f)
{
    const tinkc_archive *a = tinkc_future_archive(f, 0, NULL);
    const tinkc_clock *clock = tinkc_mock_clock(scene_mock(s));
    if (a)
        note(s, "%s for %lld s", a->url, (long long)(a->expires_us - clock->wall_us(clock->self)) / 1000000);
}

/* Asked for every 30 s while it is packed; failures are repeated in the window; a redirect is the address, for the time that it says
 * or 15 min. */
TEST(an_archive_is_asked_for_until_it_is_packed)
{
    static const struct {
        outcome o[4];
        const char *seen;
    } rows[] = {
        { { { 503, 0, "Retry-After", "1", "{\"detail\":\"packing\"}" },
            { 503, 0, NULL, NULL, "" },
            { 200, 0, NULL, NULL, GOOD } },
          "archive; +30000 archive; +30000 archive; done; https://files.test/a for 3540 s" },
        { { { 500, 0, NULL, NULL, "" },
            { 429, 0, "Retry-After", "9", "" },
            { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL },
            { 200, 0, NULL, NULL, GOOD } },
          "archive; +1000 archive; +9000 archive; +4000 archive; done; https://files.test/a for "
          "3526 s" },
        { { { 302, 0, "Location", "https://files.test/b", "" } }, "archive; done; https://files.test/b for 900 s" },
        { { { 302, 0, "Location", "b", "" } }, "archive; BAD_RESPONSE 302 \"the archive's address is not absolute\"" },
        { { { 302, 0, NULL, NULL, "" } }, "archive; HTTP 302 \"HTTP 302\"" },
        { { { 403, 0, NULL, NULL, "{\"detail\":\"no\"}" } }, "archive; FORBIDDEN 403 \"HTTP 403: no\"" },
    };
    scene *s = begin(NULL);
    for (size_t i = 0; i < LEN(rows); i++) {
        for (size_t k = 0; k < 4 && (rows[i].o[k].status || rows[i].o[k].fault); k++)
            answer_with(s, ARCHIVE, &rows[i].o[k]);
        tinkc_future *f = follow(s, "", tinkc_checkpoint_archive(scene_client(s), PATH, scene_err(s)));
        finish(s, f, 400000);
        show_archive(s, f);
        EXPECT_ROW(s, i, rows[i].seen);
    }
    answer_headers(s, ARCHIVE, 302,
                   PAIRS("Location", "https://files.test/b", "Expires", "Thu, 01 Jan 2026 10:00:00 GMT"), "");
    tinkc_future *f = follow(s, "", tinkc_checkpoint_archive(scene_client(s), PATH, scene_err(s)));
    show_archive(s, f);
    EXPECT(s, "archive; done; https://files.test/b for 35926 s");
    scene_end(s);
}

/* A service that does not know the kind in a path knows the bare name; the first error counts where neither is there. */
TEST(archives_by_name)
{
    scene *s = begin(NULL);
    answer(s, RUN "/checkpoints/sampler_weights/d/archive", 404, "{\"detail\":\"first\"}");
    answer(s, RUN "/checkpoints/d/archive", 200, GOOD);
    complete(s, "", tinkc_checkpoint_archive(scene_client(s), "tinker://r/sampler_weights/d", scene_err(s)));
    EXPECT(s, "training_runs/r/checkpoints/sampler_weights/d/archive; "
              "training_runs/r/checkpoints/d/archive; done");
    answer(s, RUN "/checkpoints/sampler_weights/d/archive", 404, "{\"detail\":\"first\"}");
    answer(s, RUN "/checkpoints/d/archive", 403, "{\"detail\":\"second\"}");
    complete(s, "", tinkc_checkpoint_archive(scene_client(s), "tinker://r/sampler_weights/d", scene_err(s)));
    EXPECT(s, "training_runs/r/checkpoints/sampler_weights/d/archive; "
              "training_runs/r/checkpoints/d/archive; NOT_FOUND 404 \"HTTP 404: first\"");
    answer(s, RUN "/checkpoints/d/archive", 404, "{\"detail\":\"only\"}");
    complete(s, "", tinkc_checkpoint_archive(scene_client(s), "tinker://r/d", scene_err(s)));
    EXPECT(s, "training_runs/r/checkpoints/d/archive; NOT_FOUND 404 \"HTTP 404: only\"");
    answer(s, RUN "/checkpoints/sampler_weights/d/archive", 405, "{}"); /* SkyRL 0.3.0 deletes there */
    answer(s, RUN "/checkpoints/d/archive", 200, GOOD);
    complete(s, "", tinkc_checkpoint_archive(scene_client(s), "tinker://r/sampler_weights/d", scene_err(s)));
    EXPECT(s, "training_runs/r/checkpoints/sampler_weights/d/archive; "
              "training_runs/r/checkpoints/d/archive; done");
    answer(s, RUN "/checkpoints/weights/d/archive", 404, "{}"); /* only samplers have two names */
    complete(s, "", tinkc_checkpoint_archive(scene_client(s), "tinker://r/weights/d", scene_err(s)));
    EXPECT(s, "training_runs/r/checkpoints/weights/d/archive; NOT_FOUND 404 \"HTTP 404\"");
    scene_end(s);
}

/* How long it is asked for: failures as the window says, packing without end but for the caller's own limit. */
TEST(archives_without_end)
{
    static const struct {
        tinkc_client_options o;
        int32_t status;
        const char *seen;
    } rows[] = {
        { { .retry_window_ms = 5000 },
          500,
          "archive; +1000 archive; +2000 archive; +4000 archive; SERVER 500 \"HTTP 500\"" },
        { { .retry_window_ms = 5000, .operation_timeout_ms = 70000 },
          503,
          "archive; +30000 archive; +30000 archive; +10000 DEADLINE \"checkpoint_archive: not "
          "complete within its time\"" },
        { { .no_retries = true }, 503, "archive; SERVER 503 \"HTTP 503\"" },
        { { .retry_window_ms = TINKC_FOREVER, .operation_timeout_ms = 40000 },
          502,
          "archive; +1000 archive; +2000 archive; +4000 archive; +8000 archive; +16000 archive; "
          "+9000 DEADLINE \"checkpoint_archive: not complete within its time\"" },
    };
    for (size_t i = 0; i < LEN(rows); i++) {
        scene *s = begin(&rows[i].o);
        answer_always(s, ARCHIVE, rows[i].status, "");
        complete(s, "", tinkc_checkpoint_archive(scene_client(s), PATH, scene_err(s)));
        EXPECT_ROW(s, i, rows[i].seen);
        scene_end(s);
    }
}

TEST(a_trace_is_asked_for_until_it_is_ready)
{
    scene *s = begin(NULL);
    for (int i = 0; i < 3; i++)
        answer(s, TRACE, 200, "{\"status\":\"pending\"}");
    answer(s, TRACE, 200, "{\"status\":\"ready\",\"url\":\"https://x.test/t\"}");
    tinkc_future *f = follow(s, "", tinkc_session_trace(scene_client(s), "s", scene_err(s)));
    finish(s, f, 100000);
    note(s, "%s", tinkc_future_url(f, 0, scene_err(s)));
    EXPECT(s, "trace; +5000 trace; +5000 trace; +5000 trace; done; https://x.test/t");
    answer_always(s, TRACE, 200, "{\"status\":\"pending\"}");
    f = follow(s, "", tinkc_session_trace(scene_client(s), "s", scene_err(s)));
    tinkc_future_cancel(f);
    live(s, 40000);
    EXPECT(s, "trace; CANCELLED \"session_trace: cancelled\"");
    scene_end(s);
}

/* ---- lists ---- */

#define ONE(id)                                                                                                        \
    "{\"training_run_id\":\"" id "\",\"base_model\":\"m\",\"model_owner\":\"o\",\"is_lora\":true,"                     \
    "\"last_request_time\":\"2026-01-03T00:00:00Z\"}"
#define PAGE(items, total)                                                                                             \
    "{\"training_runs\":[" items "],\"cursor\":{\"offset\":0,\"limit\":2,\"total_count\":" total "}}"

static void take_runs(scene *s, tinkc_runs *l)
{
    note(s, "%zu of %lld", tinkc_runs_ready(l), (long long)tinkc_runs_total(l));
    while (tinkc_runs_ready(l))
        note(s, "%s", tinkc_runs_next(l, scene_err(s))->id);
    assert_ok(scene_err(s));
}

/* A page at a time, from the offset to the limit; one that fails is fetched again by the next call; what is there stays. */
TEST(a_list_is_fetched_page_by_page_up_to_its_limit)
{
    static const struct {
        tinkc_list_options o;
        const char *seen;
    } rows[] = {
        { { 0 },
          "training_runs?limit=100&offset=0&access_scope=owned; page: done; 2 of 4; a; b; "
          "training_runs?limit=100&offset=2&access_scope=owned; +500 "
          "training_runs?limit=100&offset=2&access_scope=owned (1); page: done; page: done; 1 of "
          "4; c; page: done; 0 of 4; page: done; 0 of 4" },
        { { .limit = 3, .offset = 4, .project_id = "p", .scope = TINKC_ACCESSIBLE },
          "training_runs?limit=3&offset=4&access_scope=accessible&project_id=p; page: done; 2 of "
          "4; a; b; page: done; page: done; 0 of 4; page: done; 0 of 4; page: done; 0 of 4" },
        { { .limit = 1, .page_size = 2, .project_id = "" },
          "training_runs?limit=1&offset=0&access_scope=owned; page: done; 1 of 4; a; page: done; "
          "page: done; 0 of 4; page: done; 0 of 4; page: done; 0 of 4" },
        { { .page_size = 2 },
          "training_runs?limit=2&offset=0&access_scope=owned; page: done; 2 of 4; a; b; "
          "training_runs?limit=2&offset=2&access_scope=owned; +500 "
          "training_runs?limit=2&offset=2&access_scope=owned (1); page: done; page: done; 1 of 4; "
          "c; page: done; 0 of 4; page: done; 0 of 4" },
    };
    scene *s = begin(NULL);
    for (size_t i = 0; i < LEN(rows); i++) {
        answer(s, API "training_runs", 200, PAGE(ONE("a") "," ONE("b"), "4"));
        answer(s, API "training_runs", 500, "");
        answer(s, API "training_runs", 200, PAGE(ONE("b") "," ONE("c"), "4"));
        answer(s, API "training_runs", 403, "{\"detail\":\"no\"}");
        answer(s, API "training_runs", 200, PAGE("", "5"));
        tinkc_runs *l = tinkc_runs_list(scene_client(s), &rows[i].o, scene_err(s));
        for (int k = 0; k < 5; k++) {
            complete(s, "page", tinkc_runs_fetch(l, scene_err(s)));
            if (k != 1)
                take_runs(s, l);
        }
        tinkc_runs_free(l);
        EXPECT_ROW(s, i, rows[i].seen);
        use_up(s, API "training_runs");
    }
    scene_end(s);
}

/* The same session twice in two pages: the list moved on, and shows it once. */
TEST(a_session_in_two_pages_is_shown_once)
{
    scene *s = begin(NULL);
    tinkc_sessions *q =
        tinkc_sessions_list(scene_client(s), &(tinkc_list_options){ .page_size = 2, .scope = 1 }, scene_err(s));
    answer(s, API "sessions", 200, "{\"sessions\":[\"a\",\"b\"]}");
    answer(s, API "sessions", 200, "{\"sessions\":[\"b\"]}");
    answer(s, API "sessions", 200, "{\"sessions\":[]}");
    for (int i = 0; i < 3; i++) {
        complete(s, "page", tinkc_sessions_fetch(q, scene_err(s)));
        while (tinkc_sessions_ready(q))
            note(s, "%s", tinkc_sessions_next(q, scene_err(s)));
    }
    EXPECT(s, "sessions?limit=2&offset=0&access_scope=accessible; page: done; a; b; "
              "sessions?limit=2&offset=2&access_scope=accessible; page: done; page: done");
    tinkc_sessions_free(q);
    scene_end(s);
}

#define SUMMARY(id, how)                                                                                               \
    "{\"session_id\":\"" id "\",\"created_at\":\"2026-01-01T00:00:00Z\",\"owner\":\"o\",\"project_id\":\"p\","         \
    "\"checkpoints_count\":0,\"status\":{\"type\":\"" how "\"}}"

/* A search sends its conditions and follows the cursor of each page; a state that is not known has a name and no bit. */
TEST(a_search_sends_its_conditions_and_follows_the_cursor)
{
    const tinkc_search_options o = { .session_id = "s",
                                     .display_name = "n",
                                     .project_ids = PAIRS("p", "q"),
                                     .user_metadata = PAIRS("k", "v", "l", "w"),
                                     .owners = PAIRS("o", "u"),
                                     .limit = 3,
                                     .scope = TINKC_ACCESSIBLE,
                                     .states = TINKC_SESSION_ACTIVE | TINKC_SESSION_FAILED,
                                     .page_size = 2 };
    scene *s = begin(NULL);
    scene_shows(s, SHOW_BODIES);
    for (size_t full = 0; full < 2; full++) {
        tinkc_search *l = tinkc_search_list(scene_client(s), full ? &o : NULL, scene_err(s));
        answer(s, API "sessions/search", 200,
               "{\"sessions\":[" SUMMARY("s", "active") "," SUMMARY("t", "odd") "],\"next_cursor\":{\"a\":[1]}}");
        answer(s, API "sessions/search", 403, "");
        answer(s, API "sessions/search", 200,
               "{\"sessions\":[" SUMMARY("u", "finished") "," SUMMARY("v", "failed") "]}");
        for (int i = 0; i < 4; i++) {
            complete(s, "page", tinkc_search_fetch(l, scene_err(s)));
            while (tinkc_search_ready(l)) {
                const tinkc_session_summary *q = tinkc_search_next(l, scene_err(s));
                note(s, "%s %s %d", q->session_id, q->state, (int)q->state_bit);
            }
        }
        if (full)
            EXPECT(s, "sessions/search "
                      "{\"session_id\":\"s\",\"project_ids\":[\"p\",\"q\"],\"user_metadata\":{\"k\":"
                      "\"v\",\"l\":\"w\"},\"display_name\":\"n\",\"owner\":{\"type\":\"user\",\"owner_"
                      "urns\":[\"o\",\"u\"]},\"statuses\":[{\"type\":\"active\"},{\"type\":\"failed\"}"
                      "],\"limit\":2}; page: done; s active 1; t odd 0; sessions/search "
                      "{\"session_id\":\"s\",\"project_ids\":[\"p\",\"q\"],\"user_metadata\":{\"k\":"
                      "\"v\",\"l\":\"w\"},\"display_name\":\"n\",\"owner\":{\"type\":\"user\",\"owner_"
                      "urns\":[\"o\",\"u\"]},\"statuses\":[{\"type\":\"active\"},{\"type\":\"failed\"}"
                      "],\"limit\":1,\"cursor\":{\"a\":[1]}}; page: FORBIDDEN 403 \"HTTP 403\"; "
                      "sessions/search "
                      "{\"session_id\":\"s\",\"project_ids\":[\"p\",\"q\"],\"user_metadata\":{\"k\":"
                      "\"v\",\"l\":\"w\"},\"display_name\":\"n\",\"owner\":{\"type\":\"user\",\"owner_"
                      "urns\":[\"o\",\"u\"]},\"statuses\":[{\"type\":\"active\"},{\"type\":\"failed\"}"
                      "],\"limit\":1,\"cursor\":{\"a\":[1]}}; page: done; u finished 0; page: done");
        else
            EXPECT(s, "sessions/search {\"user_metadata\":{},\"owner\":{\"type\":\"own\"},\"limit\":50}; "
                      "page: done; s active 1; t odd 0; sessions/search "
                      "{\"user_metadata\":{},\"owner\":{\"type\":\"own\"},\"limit\":50,\"cursor\":{\"a\":"
                      "[1]}}; page: FORBIDDEN 403 \"HTTP 403\"; sessions/search "
                      "{\"user_metadata\":{},\"owner\":{\"type\":\"own\"},\"limit\":50,\"cursor\":{\"a\":"
                      "[1]}}; page: done; u finished 0; v failed 4; page: done");
        tinkc_search_free(l);
        scene_shows(s, 0);
        use_up(s, API "sessions/search");
        scene_shows(s, SHOW_BODIES);
    }
    scene_end(s);
}

/* The same of checkpoints. */
TEST(a_search_of_checkpoints_sends_its_conditions_and_follows_the_cursor)
{
#define FOUND(id, more)                                                                                                \
    "{\"checkpoint_id\":\"weights/" id "\",\"checkpoint_type\":\"training\",\"time\":"                                 \
    "\"2026-01-01T00:00:00Z\",\"tinker_path\":\"tinker://r/weights/" id "\"" more "}"
    const tinkc_checkpoint_search_options o = {
        .user_metadata = PAIRS("k", "v"), .base_models = PAIRS("m"), .kind = TINKC_CHECKPOINT_SAMPLER, .page_size = 1
    };
    scene *s = begin(NULL);
    scene_shows(s, SHOW_BODIES);
    answer(s, API "checkpoints/search", 200,
           "{\"checkpoints\":[" FOUND("a", ",\"base_model\":\"m\"") "],\"next_cursor\":{\"x\":[7]}}");
    answer(s, API "checkpoints/search", 200, "{\"checkpoints\":[" FOUND("b", "") "],\"next_cursor\":null}");
    tinkc_checkpoints *l = tinkc_checkpoints_search(scene_client(s), &o, scene_err(s));
    for (const tinkc_checkpoint *c; (c = tinkc_checkpoints_next(l, scene_err(s)));)
        note(s, "%s of %s", c->id, c->base_model ? c->base_model : "none");
    assert_ok(scene_err(s));
    EXPECT(s, "weights/a of m; weights/b of none; checkpoints/search "
              "{\"user_metadata\":{\"k\":\"v\"},\"checkpoint_type\":\"sampler\",\"owner\":{"
              "\"type\":\"own\"},\"base_models\":[\"m\"],\"limit\":1}; checkpoints/search "
              "{\"user_metadata\":{\"k\":\"v\"},\"checkpoint_type\":\"sampler\",\"owner\":{"
              "\"type\":\"own\"},\"base_models\":[\"m\"],\"limit\":1,\"cursor\":{\"x\":[7]}}");
    tinkc_checkpoints_free(l);
    assert_null(tinkc_checkpoints_search(scene_client(s), &(tinkc_checkpoint_search_options){ .page_size = 201 },
                                         scene_err(s)));
    assert_int_equal(scene_err(s)->code, TINKC_E_ARGUMENT);
    *scene_err(s) = (tinkc_error){ 0 };
    scene_end(s);
}
