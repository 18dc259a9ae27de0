/* test_futures_poll.c - requests of a run as they arrive, and polls for their results, on a service that
 * no thread works on: what each is answered, and in which order polls end. */
#include <math.h>

#include "service/core/housekeeping.h"
#include "service/core/runs.h"
#include "service/core/samplers.h"
#include "service/core/sessions.h"
#include "service/handlers/futures_poll.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/handlers.h"
#include "service/worker/jobs.h"
#include "service/worker/results.h"
#include "service/worker/run_queue.h"
#include "service/worker/run_state.h"
#include "support/service/bare_service.h"
#include "tinkc/sample.h"
#include "wire/endpoint.h"
#include "wire/message_codec.h"
#include "wire/sample_message.h"

static tke_service svc;

static int setup(void **state)
{
    (void)state;
    bare_open(&svc, NULL);
    svc.set.long_poll_ms = 5000;
    svc.set.pending_status = 408;
    svc.set.metadata_only_threshold = 10;
    svc.set.result_spill_bytes = 1 << 20;
    svc.set.seq_gap_timeout_ms = 7000;
    svc.set.durability = TINKC_DURABILITY_CHECKPOINT;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    bare_close(&svc);
    return 0;
}

/* ---- answers ---- */

/* "STATUS BODY", and " (ID)" if a header names the request; "" = none yet */
typedef struct answered {
    tinkc_reply reply;
    char text[600], id[60];
    size_t len;
    int32_t status;
    int ends;
} answered;

static void on_status(tinkc_reply *r, int32_t status)
{
    ((answered *)(void *)r)->status = status;
}
static void on_header(tinkc_reply *r, const char *name, const char *value)
{
    if (strcmp(name, TKE_FUTURE_HEADER) == 0)
        snprintf(((answered *)(void *)r)->id, sizeof((answered *)0)->id, " (%s)", value);
}
static bool on_write(tinkc_reply *r, const void *data, size_t len)
{
    answered *a = (answered *)(void *)r;
    assert_true(a->len + len < sizeof a->text);
    memcpy(a->text + a->len, data, len);
    a->text[a->len += len] = '\0';
    return true;
}
static void on_end(tinkc_reply *r)
{
    ((answered *)(void *)r)->ends++;
}
static void on_fail(tinkc_reply *r, int32_t code, const char *message)
{
    on_status(r, -code);
    on_write(r, message, strlen(message));
    on_end(r);
}

static void answered_init(answered *a)
{
    *a = (answered){
        .reply = { .status = on_status, .header = on_header, .write = on_write, .end = on_end, .fail = on_fail }
    };
}

static void is_answered(const answered *a, const char *want)
{
    char have[700] = "";
    if (a->ends)
        snprintf(have, sizeof have, "%d %s%s", (int)a->status, a->text, a->id);
    assert_true(a->ends <= 1);
    assert_string_equal(have, want);
}

/* ---- requests ---- */

static void begin_call(tke_call *call, answered *a, const tinkc_request *request)
{
    answered_init(a);
    *call = (tke_call){ .svc = &svc,
                        .request = request,
                        .reply = &a->reply,
                        .owner = "me",
                        .body = tkc_strn((const char *)request->body.data, request->body.len) };
    tkc_arena_init(&call->arena, NULL, 0);
}

/* body: what the poll says */
static void poll_with(answered *a, void (*how)(tke_call *), const char *owner, const char *format, const char *id)
{
    tke_call call;
    char body[300];
    snprintf(body, sizeof body, format, id);
    const tinkc_request request = { .method = "POST", .body = { (const unsigned char *)body, strlen(body) } };
    begin_call(&call, a, &request);
    call.owner = owner;
    how(&call);
    tkc_arena_free(&call.arena);
}

static void poll_for(answered *a, const char *id)
{
    poll_with(a, tke_retrieve_future, "me", "{\"request_id\":\"%s\"}", id);
}

static tke_run *new_run(const char *id)
{
    tinkc_error err = { 0 };
    tke_run *run = tke_run_add(&svc, id, "me", &err);
    assert_ok(err);
    return run;
}

/* In the map; the code that ends it has the other reference. */
static tke_job *new_job(int32_t kind, const char *id)
{
    tinkc_error err = { 0 };
    tke_job *job = tke_job_new(&svc, kind, id, "me", &err);
    assert_true(tke_job_publish(job, &err));
    return job;
}

#define NEVER(id) "404 {\"detail\":\"No request with the id '" id "' was ever made\",\"code\":\"unknown_request\"}"
#define GONE(id)                                                                                                       \
    "410 {\"detail\":\"The result of '" id                                                                             \
    "' is no longer here: it expired or was lost in a restart\",\"code\":\"gone\"}"

/* ---- ids without a request ---- */

TEST_WITH(ids_without_a_request, setup, teardown)
{
    tinkc_error err = { 0 };
    static const struct {
        const char *id, *want;
    } rows[] = {
        { "", NEVER("") },
        { "x", NEVER("x") },
        { "-", NEVER("-") },
        { "x-r:1", NEVER("x-r:1") },
        { "3", NEVER("3") },
        { "3-", NEVER("3-") },
        { "3-r", NEVER("3-r") }, /* no number: "" is the name */
        { "3-:1", NEVER("3-:1") },
        { "0-r:1", NEVER("0-r:1") },
        { "-1-r:1", NEVER("-1-r:1") },
        { "4-r:1", NEVER("4-r:1") }, /* of a start that is to come */
        { "1-r:9", GONE("1-r:9") },
        { "2-none", GONE("2-none") },
        { "3-none:1", NEVER("3-none:1") },
        { "3-r:0", GONE("3-r:0") }, /* how it was made */
        { "3-r:1", GONE("3-r:1") },
        { "3-r:2", GONE("3-r:2") },
        { "3-r:3", GONE("3-r:3") },
        { "3-r:4", GONE("3-r:4") },
        { "3-r:5", NEVER("3-r:5") },
        { "3-r:6", NEVER("3-r:6") },
        { "3-r:7", NEVER("3-r:7") },
        { "3-r:-1", NEVER("3-r:-1") },
        { "3-r:x", GONE("3-r:x") },
        { "3-a:sample:0:5", GONE("3-a:sample:0:5") },
        { "3-a:sample:1:5", NEVER("3-a:sample:1:5") },
    };
    static const uint8_t states[] = { TKE_SEEN_PENDING,   TKE_SEEN_DONE, TKE_SEEN_LOST,
                                      TKE_SEEN_ABANDONED, TKE_SEEN_NOT,  TKE_SEEN_REFUSED };
    tke_run *run = new_run("r");
    for (int64_t i = 0; i < 6; i++)
        tke_run_see(&svc, run, i + 1, TKE_JOB_PASS, (tke_hash128){ 0 }, 3, states[i], &err);
    run->next_seq = 5;
    assert_non_null(tke_sampler_add(&svc, "a:sample:0", "me", &err));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        answered a;
        poll_for(&a, rows[i].id);
        is_answered(&a, rows[i].want);
    }
    /* A request that was lost in a restart is not waited for any more; of others' runs nothing changes. */
    assert_int_equal(tke_run_seen(run, 9)->state, TKE_SEEN_REFUSED);
    answered a;
    poll_with(&a, tke_retrieve_future, "you", "{\"request_id\":\"%s\"}", "1-r:10");
    is_answered(&a, GONE("1-r:10"));
    poll_for(&a, "1-r:0");
    is_answered(&a, GONE("1-r:0"));
    assert_int_equal(run->n_seen, 9);
}

/* ---- results ---- */

TEST_WITH(results_are_delivered, setup, teardown)
{
    answered a;
    tinkc_error why = { 0 };
    tke_job *job = new_job(TKE_JOB_OPTIM, "3-r:1");
    tke_job *bad = new_job(TKE_JOB_OPTIM, "3-r:2");
    svc.held.bytes[TKE_HELD_QUEUED] = 70;
    job->queued_bytes = 60;
    bare_now_ms = 2000;
    tke_job_keep(job);
    tke_job_succeed(job, tkc_str("{\"a\":12345}"));
    assert_true(job->state == TKE_DONE && job->done_ms == 2000 && !job->delivered);
    assert_true(svc.held.bytes[TKE_HELD_QUEUED] == 10 && svc.results->bytes == 11 && svc.results->memory == 11);
    bare_now_ms = 3000;
    poll_with(&a, tke_retrieve_future, "you", "{\"request_id\":\"%s\"}", "3-r:1");
    is_answered(&a, "403 {\"detail\":\"You do not have access to this request\",\"code\":\"forbidden\"}");
    poll_with(&a, tke_retrieve_future, "me", "{\"request_id\":\"%s\",\"allow_metadata_only\":true}", "3-r:1");
    is_answered(&a, "200 {\"status\":\"complete_metadata\","
                    "\"response_payload_size\":11}");
    assert_false(job->delivered);
    svc.set.metadata_only_threshold = 11; /* it is not larger */
    poll_with(&a, tke_retrieve_future, "me", "{\"request_id\":\"%s\",\"allow_metadata_only\":true}", "3-r:1");
    is_answered(&a, "200 {\"a\":12345} (3-r:1)");
    assert_true(job->delivered && job->delivered_ms == 3000);
    bare_now_ms = 4000;
    poll_for(&a, "3-r:1"); /* again */
    is_answered(&a, "200 {\"a\":12345} (3-r:1)");
    assert_int_equal(job->delivered_ms, 3000);
    tke_job_drop(job);
    tkc_fail(&why, TINKC_E_ARGUMENT, "no such thing");
    tke_job_keep(bad);
    tke_job_fail(bad, &why);
    poll_with(&a, tke_retrieve_future, "me", "{\"request_id\":\"%s\",\"allow_metadata_only\":true}", "3-r:2");
    is_answered(&a, "200 {\"error\":\"no such thing\",\"category\":\"user\"} (3-r:2)");
    assert_true(bad->delivered && bad->delivered_ms == 4000);
    tke_job_drop(bad);
    tke_job *odd = new_job(TKE_JOB_OPTIM, "3-r:3");
    tke_job_fail(odd, &(tinkc_error){ 0 });
    poll_for(&a, "3-r:3");
    is_answered(&a, "200 {\"error\":\"the request failed for an unknown reason\",\"category\":"
                    "\"server\"} (3-r:3)");
}

/* Results of samples are protobuf; a client that wants JSON gets that, if it can hold the numbers. */
TEST_WITH(results_as_json, setup, teardown)
{
    static const int32_t tokens[] = { 5, 6 };
    static const char *const proto[] = { "Accept", "application/x-protobuf", NULL };
    for (int bad = 0; bad < 2; bad++) {
        answered a;
        tinkc_error err = { 0 };
        tke_call call;
        const float logprobs[] = { -0.5f, bad ? INFINITY : -0.25f };
        const tinkc_sequence one = { .tokens = { tokens, 2 }, .logprobs = { logprobs, 2 }, .stop_reason = TINKC_STOP };
        tkc_sample_response r = { .prompt_cache_hit_tokens = 3 };
        r.sequences.data = &one;
        r.sequences.len = 1;
        char id[20], body[60];
        snprintf(id, sizeof id, "3-s:%d", bad);
        tke_job *job = new_job(TKE_JOB_SAMPLE, id);
        job->result_is_pb = true;
        assert_true(tkc_sample_response_to_pb(&r, &job->result, &err));
        size_t len = job->result.len;
        tke_job_keep(job);
        tke_job_succeed(job, (tinkc_str){ 0 });
        assert_int_equal(job->done_number, bad + 1);
        poll_for(&a, id);
        is_answered(&a, bad ? "200 {\"error\":\"the result has numbers that JSON cannot hold\","
                              "\"category\":\"server\"} (3-s:1)"
                            : "200 {\"sequences\":[{\"stop_reason\":\"stop\",\"tokens\":[5,6],"
                              "\"logprobs\":[-0.5,-0.25]}],\"prompt_cache_hit_tokens\":3} (3-s:0)");
        snprintf(body, sizeof body, "{\"request_id\":\"%s\"}", id);
        const tinkc_request request = { .method = "POST",
                                        .headers = proto,
                                        .body = { (const unsigned char *)body, strlen(body) } };
        begin_call(&call, &a, &request);
        tke_retrieve_future(&call);
        tkc_arena_free(&call.arena);
        assert_true(a.ends == 1 && a.status == 200 && a.len == len);
        assert_memory_equal(a.text, job->result.data, len);
        tke_job_drop(job);
    }
}

/* The end of a request is the end of its number, the first as any other. */
TEST_WITH(numbers_end_with_their_requests, setup, teardown)
{
    tinkc_error err = { 0 };
    tke_run *run = new_run("r");
    static const uint8_t before[] = { TKE_SEEN_PENDING, TKE_SEEN_PENDING, TKE_SEEN_LOST };
    static const uint8_t after[] = { TKE_SEEN_DONE, TKE_SEEN_DONE, TKE_SEEN_LOST };
    for (int64_t i = 0; i < 3; i++) {
        char id[20];
        snprintf(id, sizeof id, "3-r:%d", (int)i + 1);
        tke_job *job = new_job(TKE_JOB_OPTIM, id);
        job->run = run;
        job->seq = i + 1;
        tke_run_see(&svc, run, i + 1, TKE_JOB_OPTIM, job->hash, 3, before[i], &err);
        tke_job_succeed(job, tkc_str("{}"));
        assert_int_equal(tke_run_seen(run, i + 1)->state, after[i]);
    }
    tke_job *made = new_job(TKE_JOB_CREATE, "3-r:0"); /* has no number */
    made->run = run;
    tke_job_succeed(made, tkc_str("{}"));
    assert_int_equal(made->done_number, 0);
}

static bool memory_is_out;
static void *scarce_get(size_t size, void *user)
{
    (void)user;
    return memory_is_out ? NULL : malloc(size);
}
static void *scarce_resize(void *ptr, size_t old_size, size_t new_size, void *user)
{
    (void)old_size;
    (void)user;
    return memory_is_out ? NULL : realloc(ptr, new_size);
}
static void scarce_put(void *ptr, size_t size, void *user)
{
    (void)size;
    (void)user;
    free(ptr);
}

/* A result that finds no room in memory is a failure, not an empty result. */
TEST_WITH(results_without_memory, setup, teardown)
{
    static const tinkc_allocator scarce = { scarce_get, scarce_resize, scarce_put, NULL };
    answered a;
    svc.a = &scarce;
    tke_job *job = new_job(TKE_JOB_OPTIM, "3-r:1");
    memory_is_out = true;
    tke_job_succeed(job, tkc_str("{\"a\":1}"));
    memory_is_out = false;
    poll_for(&a, "3-r:1");
    is_answered(&a, "200 {\"error\":\"out of memory\",\"category\":\"server\"} (3-r:1)");
    tke_results_reap(&svc, INT64_MAX / 2);
    svc.a = NULL;
}

TEST_WITH(whose_fault_it_is, setup, teardown)
{
    static const int32_t users[] = { TINKC_E_BAD_REQUEST, TINKC_E_ARGUMENT,  TINKC_E_TENSOR,    TINKC_E_PATH,
                                     TINKC_E_MODEL,       TINKC_E_NOT_FOUND, TINKC_E_FORBIDDEN, TINKC_E_EXISTS,
                                     TINKC_E_UNSUPPORTED, TINKC_E_CANCELLED, TINKC_E_TOO_LARGE };
    for (int32_t code = 1; code <= 500; code++) {
        bool user = false;
        for (size_t i = 0; i < sizeof users / sizeof *users; i++)
            user |= users[i] == code;
        assert_string_equal(tke_category(&(tinkc_error){ .code = code }), user ? "user" : "server");
    }
}

/* ---- polls ---- */

#define STOPPING "503 {\"detail\":\"The server is stopping\",\"code\":\"stopping\"}"

static void says_why(const char *id, const char *state, const char *reason)
{
    char want[500];
    answered a;
    poll_for(&a, id);
    tke_poll_expire(&svc, bare_now_ms + svc.set.long_poll_ms);
    snprintf(want, sizeof want, "408 {\"type\":\"try_again\",\"request_id\":\"%s\",\"queue_state\":\"%s\"%s%s%s}", id,
             state, *reason ? ",\"queue_state_reason\":\"" : "", reason, *reason ? "\"" : "");
    is_answered(&a, want);
}

/* What a request waits for: an earlier one that waits for room, or one that never arrived. */
TEST_WITH(why_requests_wait, setup, teardown)
{
    static const char hole[] =
        "request 1 of this model (its seq_id) has not arrived; if its sender "
        "failed, later ones fail after 7 s, or continue without it after POST /api/v1/skip_request";
    tke_run *run = new_run("r");
    tke_job *made = new_job(TKE_JOB_CREATE, "3-r:0");
    tke_job *two = new_job(TKE_JOB_PASS, "3-r:2"), *three = new_job(TKE_JOB_PASS, "3-r:3");
    made->run = two->run = three->run = run;
    two->seq = 2;
    three->seq = 3;
    tke_run_insert(run, two);
    tke_run_insert(run, three);
    says_why("3-r:3", "paused_capacity", hole);
    says_why("3-r:2", "paused_capacity", hole);
    run->create = made; /* its model comes first */
    says_why("3-r:3", "active", "");
    made->paused = true;
    made->reason = "no room";
    says_why("3-r:3", "paused_capacity", "no room");
    says_why("3-r:0", "paused_capacity", "no room");
    made->paused = false;
    run->create = NULL;
    run->next_seq = 2;
    says_why("3-r:3", "active", "");
    two->paused = true;
    two->reason = "no room either";
    says_why("3-r:3", "paused_capacity", "no room either");
    three->state = TKE_RUNNING; /* it waits for nothing any more */
    says_why("3-r:3", "active", "");
    run->next_seq = 1;
    says_why("3-r:3", "active", "");
    run->queue = two->next = three->next = NULL;
    tke_job_drop(made);
    tke_job_drop(two);
    tke_job_drop(three);
}

/* ---- arrivals ---- */

static const tkc_endpoint step_endpoint = { .id = TKC_EP_OPTIM_STEP };

/* number < -5: without one */
static void arrive(answered *a, tke_run *run, int32_t kind, int64_t number, uint64_t contents)
{
    static const tinkc_request request = { .method = "POST" };
    tke_call call;
    begin_call(&call, a, &request);
    call.route.endpoint = &step_endpoint;
    tke_job *job = tke_job_new(&svc, kind, NULL, "me", &call.err);
    assert_non_null(tkc_arena_alloc(&job->arena, 1000, &call.err));
    job->hash.lo = contents;
    tkc_opt_i64 seq = { .value = number, .is = number < -5 ? 0 : TKC_GIVEN };
    tke_run_accept(&call, run, job, seq, (tinkc_str){ 0 });
    tkc_arena_free(&call.arena);
}

static void arrives_as(tke_run *run, int64_t number, uint64_t contents, const char *want)
{
    answered a;
    arrive(&a, run, TKE_JOB_OPTIM, number, contents);
    is_answered(&a, want);
}

static void end_queue(tke_run *run)
{
    while (run->queue) {
        tke_job *job = run->queue;
        run->queue = job->next;
        job->next = NULL;
        tke_job_drop(job);
    }
}

#define TAKEN(n) "200 {\"request_id\":\"3-r:" #n "\",\"model_id\":\"r\"}"
#define REUSED(n)                                                                                                      \
    "400 {\"detail\":\"seq_id " #n " was already used for a different request\",\"code\":"                             \
    "\"seq_id_reused\"}"

TEST_WITH(an_arrival_is_noted_in_its_run_and_session, setup, teardown)
{
    answered a;
    tinkc_error err = { 0 };
    enum { NONE = -10 };
    tke_run *run = new_run("r");
    run->session = tke_session_add(&svc, "s", "me", &err);
    bare_now_ms = 1234;
    arrives_as(run, NONE, 1, TAKEN(1));
    assert_true(run->session->seen_ms == 1234 && run->last_request_us == 1234000 && run->last_arrival_ms == 1234);
    size_t each = svc.held.bytes[TKE_HELD_QUEUED];
    assert_true(each >= 1000 && each == run->queue->queued_bytes);
    arrives_as(run, 1, 1, TAKEN(1)); /* the same request again */
    assert_true(!run->queue->next && svc.held.bytes[TKE_HELD_QUEUED] == each);
    arrives_as(run, 1, 2, REUSED(1));
    arrive(&a, run, TKE_JOB_PASS, 1, 1);
    is_answered(&a, REUSED(1));
    arrives_as(run, NONE, 2, TAKEN(2));
    arrives_as(run, 5, 5, TAKEN(5));
    arrives_as(run, NONE, 6, TAKEN(6)); /* behind the newest */
    arrives_as(run, 0, 1, "400 {\"detail\":\"seq_id must be positive, not 0\",\"code\":\"bad_request\"}");
    arrives_as(run, -1, 1, "400 {\"detail\":\"seq_id must be positive, not -1\",\"code\":\"bad_request\"}");
    arrives_as(run, 100002, 1,
               "400 {\"detail\":\"seq_id 100002 is too far ahead: 1 is the next\",\"code\":"
               "\"bad_request\"}");
    arrives_as(run, 100001, 1, TAKEN(100001));
    assert_int_equal(svc.held.bytes[TKE_HELD_QUEUED], 5 * each);
    end_queue(run);
}
