/* test_run_queue.c - the order of a run's requests, on runs that no thread works on: which request is
 * next, which numbers are used up, and what becomes of requests that wait behind a missing one. */
#include "service/core/runs.h"
#include "service/core/sessions.h"
#include "service/worker/jobs.h"
#include "service/worker/run_queue.h"
#include "support/service/bare_service.h"

static tke_service svc;

static int setup(void **state)
{
    (void)state;
    bare_open(&svc, NULL);
    svc.set.seq_gap_timeout_ms = 5000;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    bare_close(&svc);
    return 0;
}

static tke_run *new_run(const char *id)
{
    tinkc_error err = { 0 };
    tke_run *run = tke_run_add(&svc, id, "me", &err);
    assert_ok(err);
    assert_int_equal(run->next_seq, 1);
    return run;
}

/* A request of the run, in its queue; the map's reference is the caller's to drop. */
static tke_job *put(tke_run *run, int32_t kind, int64_t seq)
{
    tinkc_error err = { 0 };
    char id[60];
    snprintf(id, sizeof id, "3-%s:%d:%lld", run->id, (int)kind, (long long)seq);
    tke_job *job = tke_job_new(&svc, kind, id, "me", &err);
    assert_ok(err);
    job->run = run;
    job->seq = seq;
    tke_job_keep(job);
    tke_run_insert(run, job);
    if (kind != TKE_JOB_UNLOAD)
        assert_true(tke_run_see(&svc, run, seq, kind, (tke_hash128){ 1, 2 }, 3, TKE_SEEN_PENDING, &err));
    return job;
}

static void see(tke_run *run, int64_t seq, uint8_t state)
{
    tinkc_error err = { 0 };
    assert_true(tke_run_see(&svc, run, seq, TKE_JOB_PASS, (tke_hash128){ 7, 8 }, 2, state, &err));
}

/* The numbers in the queue, and of an unload "u". */
static const char *queued(const tke_run *run)
{
    static char text[200];
    size_t n = 0;
    text[0] = '\0';
    for (const tke_job *job = run->queue; job; job = job->next)
        n += (size_t)(job->kind == TKE_JOB_UNLOAD ? snprintf(text + n, sizeof text - n, "u ")
                                                  : snprintf(text + n, sizeof text - n, "%lld ", (long long)job->seq));
    return text;
}

/* What is known of the numbers from 1 on, a letter for each. */
static const char *known(tke_run *run)
{
    static char text[200];
    size_t n = 0;
    for (const tke_seen *seen; (seen = tke_run_seen(run, (int64_t)n + 1)); n++)
        text[n] = "-pdltr"[seen->state];
    text[n] = '\0';
    return text;
}

static void drop_all(tke_run *run)
{
    while (run->queue) {
        tke_job *job = run->queue;
        run->queue = job->next;
        job->next = NULL;
        tke_job_drop(job);
        tke_job_drop(job);
    }
}

static void done_with(tke_job *job)
{
    tke_job_drop(job);
    tke_job_drop(job);
}

/* ---- what is known of a number ---- */

TEST_WITH(numbers_that_were_seen, setup, teardown)
{
    tke_run *run = new_run("r");
    assert_null(tke_run_seen(run, 1));
    see(run, 3, TKE_SEEN_DONE);
    assert_null(tke_run_seen(run, 0));
    assert_null(tke_run_seen(run, -1));
    assert_null(tke_run_seen(run, 4));
    assert_string_equal(known(run), "--d");
    const tke_seen *seen = tke_run_seen(run, 3);
    assert_true(seen->hash.lo == 7 && seen->hash.hi == 8 && seen->epoch == 2);
    assert_int_equal(seen->kind, TKE_JOB_PASS);
    assert_false(seen->failed);
    see(run, 1, TKE_SEEN_LOST);
    see(run, 300, TKE_SEEN_PENDING); /* the list has grown; what is between is not known */
    assert_int_equal(run->n_seen, 300);
    assert_int_equal(tke_run_seen(run, 1)->state, TKE_SEEN_LOST);
    for (int64_t i = 4; i < 300; i++)
        assert_int_equal(tke_run_seen(run, i)->state, TKE_SEEN_NOT);
}

/* ---- turns ---- */

TEST_WITH(turns_come_in_order, setup, teardown)
{
    tke_run *run = new_run("r");
    assert_null(tke_run_head(run));
    assert_int_equal(tke_run_next_number(run), 1);
    tke_job *three = put(run, TKE_JOB_PASS, 3);
    assert_null(tke_run_head(run)); /* its turn has not come */
    assert_int_equal(tke_run_next_number(run), 0);
    tke_job *one = put(run, TKE_JOB_PASS, 1), *two = put(run, TKE_JOB_OPTIM, 2);
    assert_string_equal(queued(run), "1 2 3 ");
    assert_int_equal(tke_run_next_number(run), 4);
    assert_ptr_equal(tke_run_head(run), one);
    one->held = true; /* not in the journal yet */
    assert_null(tke_run_head(run));
    one->held = false;
    run->create = two; /* whatever: the model is not there yet */
    assert_null(tke_run_head(run));
    run->create = NULL;
    assert_ptr_equal(tke_run_take(run), one);
    assert_int_equal(one->state, TKE_RUNNING);
    assert_int_equal(run->next_seq, 2);
    assert_string_equal(queued(run), "2 3 ");
    assert_ptr_equal(tke_run_take(run), two);
    assert_ptr_equal(tke_run_take(run), three);
    assert_int_equal(run->next_seq, 4);
    assert_int_equal(tke_run_next_number(run), 4);
    assert_null(tke_run_head(run));
    done_with(one);
    done_with(two);
    done_with(three);
}

/* An unload has no number and runs before all that has one. */
TEST_WITH(an_unload_comes_first, setup, teardown)
{
    tke_run *run = new_run("r");
    put(run, TKE_JOB_PASS, 1);
    tke_job *unload = put(run, TKE_JOB_UNLOAD, 0);
    put(run, TKE_JOB_PASS, 2);
    assert_string_equal(queued(run), "u 1 2 ");
    assert_int_equal(tke_run_next_number(run), 3);
    assert_ptr_equal(tke_run_head(run), unload);
    assert_ptr_equal(tke_run_take(run), unload);
    assert_int_equal(run->next_seq, 1); /* no number is used up */
    assert_int_equal(unload->state, TKE_RUNNING);
    assert_string_equal(queued(run), "1 2 ");
    done_with(unload);
    drop_all(run);
}

/* Of the same number the one that came first is first. */
TEST_WITH(equal_numbers_keep_their_order, setup, teardown)
{
    tke_run *run = new_run("r");
    tke_job *first = put(run, TKE_JOB_PASS, 2), *second = put(run, TKE_JOB_OPTIM, 2);
    assert_ptr_equal(run->queue, first);
    assert_ptr_equal(first->next, second);
    drop_all(run);
}

/* known before, next, in the queue -> next after */
TEST_WITH(settled_numbers_are_passed_over, setup, teardown)
{
    static const struct {
        const char *seen;
        int64_t queue, next;
    } rows[] = {
        { "", 0, 1 },     { "d", 0, 2 },    { "t", 0, 2 },    { "l", 0, 2 },    { "p", 0, 1 },
        { "r", 0, 1 },    { "-", 0, 1 },    { "dtld", 0, 5 }, { "dt-d", 0, 3 }, { "dtrd", 0, 3 },
        { "dtpd", 0, 3 }, { "dddd", 3, 3 }, { "dddd", 1, 1 }, { "ddd", 4, 4 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char id[20];
        snprintf(id, sizeof id, "r%zu", i);
        tke_run *run = new_run(id);
        if (rows[i].queue)
            put(run, TKE_JOB_PASS, rows[i].queue);
        for (size_t k = 0; rows[i].seen[k]; k++)
            see(run, (int64_t)k + 1, (uint8_t)(strchr("-pdltr", rows[i].seen[k]) - "-pdltr"));
        tke_run_skip_settled(run);
        if (run->next_seq != rows[i].next)
            fail_msg("%s: %lld is next", rows[i].seen, (long long)run->next_seq);
        drop_all(run);
    }
}

/* A request runs, and numbers behind it that never will are passed over with it. */
TEST_WITH(a_turn_passes_over_settled_numbers, setup, teardown)
{
    tke_run *run = new_run("r");
    tke_job *one = put(run, TKE_JOB_PASS, 1);
    see(run, 2, TKE_SEEN_ABANDONED);
    see(run, 3, TKE_SEEN_DONE);
    assert_ptr_equal(tke_run_take(run), one);
    assert_int_equal(run->next_seq, 4);
    done_with(one);
}

/* ---- refused numbers ---- */

TEST_WITH(a_number_that_was_seen_is_refused, setup, teardown)
{
    tke_run *run = new_run("r");
    run->next_seq = 5;
    see(run, 6, TKE_SEEN_PENDING);
    see(run, 8, TKE_SEEN_DONE);
    assert_null(tke_run_refused(&svc, run, 4)); /* below the next: nothing to say */
    assert_string_equal(known(run), "-----p-d");
    assert_null(tke_run_refused(&svc, run, 6)); /* it was accepted */
    assert_null(tke_run_refused(&svc, run, 8));
    assert_string_equal(known(run), "-----p-d");
    assert_null(tke_run_refused(&svc, run, 9)); /* no row: this store is in memory */
    assert_string_equal(known(run), "-----p-dr");
    assert_int_equal(run->next_seq, 5);
    tke_run_refused(&svc, run, 7); /* a higher one was accepted: it will never run */
    assert_string_equal(known(run), "-----ptdr");
    tke_run_refused(&svc, run, 9); /* again */
    assert_string_equal(known(run), "-----ptdr");
    tke_run_refused(&svc, run, 5);
    assert_string_equal(known(run), "----tptdr");
    assert_int_equal(run->next_seq, 6);
    tke_run_refused(&svc, run, 6 + 1001); /* too far ahead to keep */
    assert_int_equal(run->n_seen, 9);
    tke_run_refused(&svc, run, 6 + 1000);
    assert_int_equal(run->n_seen, 1006);
    assert_int_equal(tke_run_seen(run, 1006)->state, TKE_SEEN_REFUSED);
    /* One that was refused and one that was never seen pass no other. */
    tke_run_refused(&svc, run, 10);
    assert_int_equal(tke_run_seen(run, 10)->state, TKE_SEEN_REFUSED);
    see(run, 12, TKE_SEEN_LOST);
    tke_run_refused(&svc, run, 11);
    assert_int_equal(tke_run_seen(run, 11)->state, TKE_SEEN_ABANDONED);
}

/* An arrival settles the refused numbers below it, and no others. */
TEST_WITH(arrivals_settle_refused_numbers, setup, teardown)
{
    tke_run *run = new_run("r");
    for (int64_t i = 1; i <= 6; i++)
        see(run, i, i == 4 ? TKE_SEEN_NOT : TKE_SEEN_REFUSED);
    run->next_seq = 2;
    tke_run_settle_refused(run, 2);
    assert_string_equal(known(run), "rrr-rr");
    tke_run_settle_refused(run, 3);
    assert_string_equal(known(run), "rtr-rr");
    assert_int_equal(run->next_seq, 3);
    tke_run_settle_refused(run, 6);
    assert_string_equal(known(run), "rtt-tr");
    assert_int_equal(run->next_seq, 4);
    see(run, 4, TKE_SEEN_ABANDONED);
    tke_run_settle_refused(run, 100); /* more than is known */
    assert_string_equal(known(run), "rttttt");
    assert_int_equal(run->next_seq, 7);
}

/* ---- holes ---- */

TEST_WITH(what_waits_behind_a_hole_is_given_up, setup, teardown)
{
    tke_run *run = new_run("r");
    run->next_seq = 2;
    put(run, TKE_JOB_PASS, 4);
    put(run, TKE_JOB_OPTIM, 5);
    put(run, TKE_JOB_PASS, 8);
    see(run, 3, TKE_SEEN_REFUSED);
    see(run, 7, TKE_SEEN_DONE);
    see(run, 9, TKE_SEEN_ABANDONED);
    see(run, 10, TKE_SEEN_REFUSED);
    tke_job *failed = tke_run_give_up(run);
    assert_null(run->queue);
    /* The missing ones are used up, others as before; and the next is behind all of them. */
    assert_string_equal(known(run), "-ttpptdptr");
    assert_int_equal(run->next_seq, 10);
    int64_t numbers[] = { 4, 5, 8 };
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(failed->seq, numbers[i]);
        assert_int_equal(failed->invalid.code, TINKC_E_SERVER);
        assert_string_equal(failed->invalid.message, "seq_id 2 was never received; requests 3..8 were dropped without "
                                                     "being applied");
        tke_job *next = failed->next;
        done_with(failed);
        failed = next;
    }
    assert_null(failed);
}

/* After how long, of which runs, and what their clients get. */
TEST_WITH(a_hole_in_the_numbers_ends_after_its_time, setup, teardown)
{
    tinkc_error err = { 0 };
    tke_run *run = new_run("r");
    tke_session *session = tke_session_add(&svc, "s", "me", &err);
    run->session = session;
    run->last_arrival_ms = 1000;
    tke_job *job = put(run, TKE_JOB_PASS, 2);
    svc.held.bytes[TKE_HELD_QUEUED] = job->queued_bytes = 100;
    tke_gaps_expire(&svc, 5999);
    assert_string_equal(queued(run), "2 ");
    run->create = job; /* the model is not there yet: no hole */
    tke_gaps_expire(&svc, 6000);
    run->create = NULL;
    run->next_seq = 2; /* its turn: no hole */
    tke_gaps_expire(&svc, 6000);
    assert_string_equal(queued(run), "2 ");
    run->next_seq = 1;
    tke_gaps_expire(&svc, 6000);
    assert_string_equal(queued(run), "");
    assert_true(job->failed && job->state == TKE_DONE && !job->touched);
    assert_string_equal(job->error.message, "seq_id 1 was never received; requests 2..2 were dropped without being "
                                            "applied");
    assert_int_equal(tke_run_seen(run, 2)->state, TKE_SEEN_DONE);
    assert_int_equal(svc.held.bytes[TKE_HELD_QUEUED], 0);
    assert_int_equal(run->next_seq, 3);
    tke_job_drop(job);
    /* Of a session that has expired at once. */
    job = put(run, TKE_JOB_PASS, 4);
    tke_gaps_expire(&svc, 1000);
    assert_string_equal(queued(run), "4 ");
    session->expired = true;
    tke_gaps_expire(&svc, 1000);
    assert_string_equal(queued(run), "");
    tke_job_drop(job);
    /* An unload waits for nothing. */
    tke_job *unload = put(run, TKE_JOB_UNLOAD, 0);
    put(run, TKE_JOB_PASS, 9);
    tke_gaps_expire(&svc, 100000);
    assert_string_equal(queued(run), "u 9 ");
    (void)unload;
    drop_all(run);
}
