/* test_sequence.c - the numbers of a trainer's requests when operations are cancelled, refused or fail half way: nothing is blocked,
 * nothing is forgotten, nothing stays behind. What becomes of lost requests: test_trainer_order.c. */
#include <pthread.h>
#include <stdatomic.h>

#include "support/client/client_scene.h"

#define PASS     API "forward_backward"
#define STEP     API "optim_step"
#define TOGETHER "{\"fwdbwd_max_chunk_len\":2}"
#define SERIAL   "{\"fwdbwd_max_chunk_len\":2,\"parallel_fwdbwd_chunks\":false}"
#define SILENT                                                                                                         \
    {                                                                                                                  \
        0, TINKC_FAULT_SILENT, NULL, NULL, NULL                                                                        \
    }
#define LOST                                                                                                           \
    {                                                                                                                  \
        200, TINKC_FAULT_RESET, NULL, NULL, "{}"                                                                       \
    }
#define ACCEPTED                                                                                                       \
    {                                                                                                                  \
        200, 0, NULL, NULL, "{\"request_id\":\"a\"}"                                                                   \
    }
#define STATUS(n)                                                                                                      \
    {                                                                                                                  \
        n, 0, NULL, NULL, "{\"detail\":\"no\"}"                                                                        \
    }

typedef struct row {
    const char *config;
    struct {
        const char *path;
        outcome o;
    } answers[5];
    /* P: a pass of three parts; S: a step; c: the first is cancelled; C: the last; l: the first has 3 s; e: to the last one's end */
    const char *calls;
    const char *seen;
} row;

static void play(scene *s, const row *r, size_t nr)
{
    answer_always(s, CONFIG, 200, r->config);
    scene_renew(s, NULL);
    tinkc_trainer *t = open_trainer(s);
    tinkc_batch *b = make_batch(s, 6);
    tinkc_future *all[8];
    size_t n = 0;
    for (size_t i = 0; i < LEN(r->answers) && r->answers[i].path; i++)
        answer_with(s, r->answers[i].path, &r->answers[i].o);
    for (const char *c = r->calls; *c; c++) {
        if (*c == 'P')
            all[n++] = follow(s, "pass", tinkc_forward_backward(t, b, TINKC_CROSS_ENTROPY, NULL, scene_err(s)));
        else if (*c == 'S')
            all[n++] = follow(s, "step", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
        else if (*c == 'l')
            assert_true(tinkc_future_limit(all[0], 3000, scene_err(s)));
        else if (*c == 'e')
            finish(s, all[n - 1], 600000);
        settle(s);
        if (*c == 'c' || *c == 'C')
            tinkc_future_cancel(all[*c == 'c' ? 0 : n - 1]);
        settle(s);
    }
    EXPECT_ROW(s, nr, r->seen);
    use_up(s, PASS);
    use_up(s, STEP);
    use_up(s, POLL);
    tinkc_batch_free(b);
    tinkc_trainer_free(t);
}

/* What may have arrived keeps its number and is sent again for the next caller; what never left gives its number back. */
TEST(what_is_cancelled_while_it_is_sent_does_not_hold_up_what_follows)
{
    static const row rows[] = {
        { TOGETHER,
          { { PASS, SILENT }, { PASS, SILENT } },
          "Pc",
          "pass #2; pass #3; pass: CANCELLED, may have run \"forward_backward: cancelled\"" },
        { TOGETHER,
          { { STEP, SILENT } },
          "Sc",
          "optim_step #1; step: CANCELLED, may have run \"optim_step: cancelled\"" },
        { TOGETHER,
          { { PASS, SILENT }, { PASS, SILENT } },
          "PScee",
          "pass #2; pass #3; pass #1; pass #2; pass #3; optim_step #4; poll; pass: CANCELLED, may "
          "have run \"forward_backward: cancelled\"; step: done" },
        /* one of two parts was accepted, the other was on its way */
        { TOGETHER,
          { { PASS, ACCEPTED }, { PASS, SILENT }, { POLL, SILENT } },
          "PcSe",
          "pass #2; pass #3; poll; pass: CANCELLED, may have run \"forward_backward: cancelled\"; "
          "pass #1; pass #3; optim_step #4; poll; step: done" },
        { TOGETHER,
          { { STEP, SILENT } },
          "ScSe",
          "optim_step #1; step: CANCELLED, may have run \"optim_step: cancelled\"; optim_step #1; "
          "optim_step #2; poll; step: done" },
        { TOGETHER,
          { { STEP, SILENT }, { STEP, STATUS(503) }, { STEP, STATUS(503) } },
          "ScSe",
          "optim_step #1; step: CANCELLED, may have run \"optim_step: cancelled\"; optim_step #1; "
          "+500 optim_step #1 again (1); +1000 optim_step #1 again (2); optim_step #2; poll; step: "
          "done" },
        /* what could not be cleared up is tried once for each that comes after */
        { TOGETHER,
          { { STEP, SILENT }, { STEP, STATUS(403) }, { STEP, STATUS(503) } },
          "ScSeSe",
          "optim_step #1; step: CANCELLED, may have run \"optim_step: cancelled\"; optim_step #1; "
          "step: SEQUENCE, cause CANCELLED \"an earlier request of this model was not confirmed: "
          "optim_step: cancelled\"; optim_step #1; step: SEQUENCE, cause CANCELLED \"an earlier "
          "request of this model was not confirmed: optim_step: cancelled\"" },
        { SERIAL,
          { { POLL, SILENT }, { POLL, SILENT }, { POLL, SILENT } },
          "Pc",
          "pass #1; pass #2; poll; pass #3; poll; poll; pass: CANCELLED, may have run "
          "\"forward_backward: cancelled\"" },
        { TOGETHER,
          { { STEP, SILENT } },
          "SSlee",
          "optim_step #1; +3000 optim_step #1; optim_step #2; poll; step: DEADLINE, may have run "
          "\"optim_step: not complete within its time\"; step: done" },
        { SERIAL,
          { { PASS, SILENT } },
          "PcSe",
          "pass #1; pass: CANCELLED, may have run \"forward_backward: cancelled\"; pass #1; "
          "optim_step #2; poll; step: done" },
        /* the service has no such call, or will not have this one: then it has no such number either */
        { TOGETHER,
          { { STEP, SILENT }, { STEP, STATUS(404) } },
          "ScSe",
          "optim_step #1; step: CANCELLED, may have run \"optim_step: cancelled\"; optim_step #1; "
          "optim_step #1; poll; step: done" },
    };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(rows); i++)
        play(s, &rows[i], i);
    scene_end(s);
}

/* The one for whose sake the lost request is sent again changes his mind too. */
TEST(a_request_that_nobody_waits_for_is_not_sent)
{
    static const row lost = { TOGETHER,
                              { { STEP, SILENT }, { STEP, SILENT } },
                              "ScSC",
                              "optim_step #1; step: CANCELLED, may have run \"optim_step: cancelled\"; optim_step #1; "
                              "step: CANCELLED \"optim_step: cancelled\"" };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    play(s, &lost, 0);
    scene_end(s);
}

TEST(a_part_that_fails_ends_its_pass_at_once)
{
    static const row rows[] = {
        { SERIAL,
          { { PASS, ACCEPTED }, { PASS, STATUS(422) }, { POLL, SILENT } },
          "PSe",
          "pass #1; pass #2; poll; pass: UNPROCESSABLE 422 \"HTTP 422: no\"; optim_step #2; poll; "
          "step: done" },
        /* the second is refused while the third waits for its next attempt: nobody needs that any more */
        { TOGETHER,
          { { PASS, STATUS(422) }, { PASS, STATUS(503) } },
          "PS",
          "pass #2; pass #3; pass: UNPROCESSABLE 422 \"HTTP 422: no\"; step: SEQUENCE, cause "
          "UNPROCESSABLE \"an earlier request of this model was not confirmed: HTTP 422: no\"" },
        /* the service takes the first and fails it while the second is tried again: the third stays here */
        { SERIAL,
          { { PASS, ACCEPTED },
            { PASS, STATUS(503) },
            { POLL, { 200, 0, NULL, NULL, "{\"error\":\"no\",\"category\":\"user\"}" } } },
          "PSe",
          "pass #1; pass #2; poll; pass: REQUEST_FAILED 200, by the caller, not retriable \"no\"; "
          "pass #2; optim_step #3; poll; step: done" },
    };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(rows); i++)
        play(s, &rows[i], i);
    scene_end(s);
}

/* The third part is on its way when the second is refused: its answer is still waited for, but no second attempt is made. */
TEST(what_is_on_its_way_may_arrive)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    answer_always(s, CONFIG, 200, TOGETHER);
    tinkc_trainer *t = open_trainer(s);
    tinkc_batch *b = make_batch(s, 6);
    answer(s, PASS, 422, "{\"detail\":\"no\"}");
    tinkc_mock_always(scene_mock(s), NULL, PASS, &(tinkc_mock_answer){ .status = 503, .delay_ms = 2000 }, scene_err(s));
    follow(s, "pass", tinkc_forward_backward(t, b, TINKC_CROSS_ENTROPY, NULL, scene_err(s)));
    complete(s, "step", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
    EXPECT(s, "pass #2; pass #3; pass: UNPROCESSABLE 422 \"HTTP 422: no\"; +2000 step: SEQUENCE, cause "
              "UNPROCESSABLE \"an earlier request of this model was not confirmed: HTTP 422: no\"");
    tinkc_batch_free(b);
    tinkc_trainer_free(t);
    scene_end(s);
}

/* One attempt for all that wait then, not one for each. The next to come has one of its own. */
TEST(all_that_wait_fail_with_one_attempt)
{
    const tinkc_client_options o = { .max_retries = 1, .retry_window_ms = 1500 };
    scene *s = scene_new(TINKC_MOCK_SERVICE, &o);
    tinkc_trainer *t = open_trainer(s);
    scene_shows(s, HIDE_MESSAGES);
    answer_always_with(s, STEP, &(outcome)LOST);
    for (int i = 0; i < 4; i++)
        follow(s, "step", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
    live(s, 60000);
    follow(s, "later", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
    EXPECT(s, "optim_step #1; +500 optim_step #1 again (1); +1000 optim_step #1 again; optim_step "
              "#1; step: CONNECTION, may have run; step: SEQUENCE, cause CONNECTION; step: "
              "SEQUENCE, cause CONNECTION; step: SEQUENCE, cause CONNECTION; +58500 optim_step #1; "
              "later: SEQUENCE, cause CONNECTION");
    tinkc_trainer_free(t);
    scene_end(s);
}

/* The first attempt may have got through, and that the second is refused says nothing about it: unless the refusal says that the
 * request itself is wrong, so that no attempt before can have been accepted. */
TEST(a_refusal_behind_a_lost_attempt_frees_its_number_if_the_request_is_wrong)
{
    static const struct {
        int32_t status;
        bool frees;
    } rows[] = { { 400, true },  { 401, false }, { 403, false }, { 404, true },  { 405, true }, { 406, false },
                 { 410, false }, { 413, true },  { 418, false }, { 421, false }, { 422, true }, { 423, false } };
    static const outcome first[] = { LOST, STATUS(408), STATUS(500), STATUS(599) };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    scene_shows(s, HIDE_MESSAGES);
    for (size_t i = 0; i < LEN(rows) + LEN(first); i++) {
        scene_renew(s, NULL);
        tinkc_trainer *t = open_trainer(s);
        size_t nr = i < LEN(rows) ? i : 1;
        answer_with(s, STEP, &first[i < LEN(rows) ? 0 : i - LEN(rows)]);
        answer(s, STEP, rows[nr].status, "{\"detail\":\"no\"}");
        size_t before = tinkc_mock_count(scene_mock(s), STEP);
        complete(s, "step", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
        complete(s, "next", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
        assert_int_equal(tinkc_mock_count(scene_mock(s), STEP) - before, rows[nr].frees ? 3 : 4);
        scene_forget(s);
        tinkc_trainer_free(t);
    }
    scene_end(s);
}

/* A refusal that is repeated to the end of the window leaves the number taken. */
TEST(a_repeated_refusal_behind_a_lost_attempt_keeps_its_number)
{
    const tinkc_client_options o = { .max_retries = 1, .retry_window_ms = 1500 };
    static const struct {
        int32_t status;
        const char *seen;
    } rows[] = { { 409, "optim_step #1; +500 optim_step #1 again (1); +1000 optim_step #1 again; step: "
                        "CONFLICT 409, may have run \"HTTP 409: no\"; optim_step #1; next: SEQUENCE, cause "
                        "CONFLICT \"an earlier request of this model was not confirmed: HTTP 409: no\"" },
                 { 429, "optim_step #1; +500 optim_step #1 again (1); +1000 optim_step #1 again; step: "
                        "RATE_LIMITED 429, may have run \"HTTP 429: no\"; optim_step #1; next: SEQUENCE, cause "
                        "RATE_LIMITED \"an earlier request of this model was not confirmed: HTTP 429: no\"" } };
    scene *s = scene_new(TINKC_MOCK_SERVICE, &o);
    for (size_t i = 0; i < LEN(rows); i++) {
        scene_renew(s, &o);
        tinkc_trainer *t = open_trainer(s);
        answer_with(s, STEP, &(outcome)LOST);
        for (int k = 0; k < 4; k++)
            answer(s, STEP, rows[i].status, "{\"detail\":\"no\"}");
        complete(s, "step", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
        complete(s, "next", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
        EXPECT_ROW(s, i, rows[i].seen);
        use_up(s, STEP);
        tinkc_trainer_free(t);
    }
    scene_end(s);
}

/* ---- a chunk that is being written when another one fails ---- */

typedef struct gate { /* memory: threads other than the test's wait here for large pieces */
    pthread_t test;
    atomic_int closed, waiting;
} gate;

static void pass_gate(gate *g, size_t size)
{
    if (size < 200 * 1024 || pthread_equal(g->test, pthread_self()))
        return;
    atomic_fetch_add(&g->waiting, 1);
    wait_until(!atomic_load(&g->closed));
}

static void *gate_alloc(size_t size, void *user)
{
    pass_gate(user, size);
    return malloc(size);
}

static void *gate_resize(void *ptr, size_t old_size, size_t new_size, void *user)
{
    (void)old_size;
    pass_gate(user, new_size);
    return realloc(ptr, new_size);
}

static void gate_release(void *ptr, size_t size, void *user)
{
    (void)size;
    (void)user;
    free(ptr);
}

TEST(a_chunk_being_written_is_not_sent_any_more)
{
    enum { LONG = 30000 };
    static int32_t ids[LONG];
    gate g = { .test = pthread_self() };
    tinkc_allocator a = { gate_alloc, gate_resize, gate_release, &g };
    tinkc_error err = { 0 }, refused = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_mock_always(mock, NULL, "/api/v1/client/config",
                      &(tinkc_mock_answer){ .body = "{\"fwdbwd_max_chunk_len\":1}" }, &err);
    tinkc_mock_always(mock, NULL, PASS, &(tinkc_mock_answer){ .status = 400, .body = "{\"detail\":\"no\"}" }, &err);
    tinkc_client *client = mock_client(mock, &(tinkc_client_options){ .allocator = &a }, &err);
    tinkc_trainer *t = tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &err);
    tinkc_batch *batch = tinkc_batch_new(client, &err);
    for (size_t i = 0; i < 3; i++) /* the third is written by a helper */
        tinkc_batch_add_sft(batch, ids, i == 2 ? LONG : 6, 1, &err);
    atomic_store(&g.closed, 1);
    tinkc_future *f = tinkc_forward_backward(t, batch, TINKC_CROSS_ENTROPY, NULL, &err);
    assert_ok(&err);
    (void)tinkc_future_wait(f, PATIENCE_MS, &refused);
    wait_until(atomic_load(&g.waiting) > 0);
    atomic_store(&g.closed, 0);
    (void)tinkc_mock_settle(mock, PATIENCE_MS, &err);
    size_t sent = tinkc_mock_count(mock, PASS);
    tinkc_adam adam = TINKC_ADAM_INIT;
    tinkc_future *after = tinkc_optim_step(t, &adam, &err);
    bool ok = tinkc_future_wait(after, PATIENCE_MS, &err);
    tinkc_future_free(f);
    tinkc_future_free(after);
    tinkc_batch_free(batch);
    tinkc_trainer_free(t);
    bool first = strstr((const char *)nth_request(mock, STEP, 0)->body.data, "\"seq_id\":1,");
    tinkc_client_free(client);
    tinkc_mock_free(mock);
    assert_int_equal(refused.code, TINKC_E_BAD_REQUEST);
    assert_int_equal(sent, 1);
    assert_true(ok);
    assert_true(first);
}
