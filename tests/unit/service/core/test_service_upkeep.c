/* test_service_upkeep.c - what the service forgets, releases and asks for, and exactly when: sessions,
 * checkpoints and their names, weights in memory, images, keys, held polls. */
#include <unistd.h>

#include "base/file.h"
#include "service/chat/chat_paths.h"
#include "service/core/housekeeping.h"
#include "service/core/runs.h"
#include "service/core/samplers.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/sessions.h"
#include "service/handlers/downloads.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/idempotency.h"
#include "service/store/unrecorded.h"
#include "service/worker/jobs.h"
#include "service/worker/run_queue.h"
#include "service/worker/run_state.h"
#include "service/worker/worker_state.h"
#include "support/engine/tiny_model.h"
#include "support/service/bare_service.h"
#include "train/adapter_state.h"

static tke_service svc;
static char *folder;

static int setup(void **state)
{
    (void)state;
    folder = tiny_folder();
    bare_open(&svc, folder);
    svc.set.session_timeout_ms = svc.set.session_keep_ms = INT64_MAX / 4;
    svc.set.ephemeral_idle_ms = svc.set.autosave_ms = INT64_MAX / 4;
    svc.set.idle_release_ms = INT64_MAX / 4;
    svc.set.max_idle_sessions = svc.set.max_ephemeral = 100;
    svc.set.result_ttl_ms = svc.set.result_grace_ms = INT64_MAX / 4;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    bare_close(&svc);
    tiny_model_remove(folder);
    return 0;
}

static tke_session *new_session(const char *id)
{
    tinkc_error err = { 0 };
    tke_session *s = tke_session_add(&svc, id, "me", &err);
    assert_ok(err);
    return s;
}

static tke_run *new_run(const char *id)
{
    tinkc_error err = { 0 };
    tke_run *run = tke_run_add(&svc, id, "me", &err);
    assert_ok(err);
    return run;
}

/* All that the housekeeper does, at this time. */
static int64_t upkeep(int64_t now_ms)
{
    bare_now_ms = now_ms;
    return tke_housekeep(&svc, &(tke_due){ 0 });
}

static bool count_row(const tke_row *row, void *user, tinkc_error *err)
{
    (void)row;
    (void)err;
    ++*(int *)user;
    return true;
}

/* ---- when ---- */

TEST_WITH(what_is_due, setup, teardown)
{
    tke_due due = { 0 };
    bare_now_ms = 5000;
    assert_int_equal(tke_housekeep(&svc, &due), 1000);
    assert_true(due.second == 6000 && due.flush == 10000 && due.minute == 65000);
    bare_now_ms = 5999;
    tke_housekeep(&svc, &due);
    assert_true(due.second == 6000 && due.flush == 10000 && due.minute == 65000);
    bare_now_ms = 6000;
    tke_housekeep(&svc, &due);
    assert_true(due.second == 7000 && due.flush == 10000 && due.minute == 65000);
    bare_now_ms = 10000;
    tke_housekeep(&svc, &due);
    assert_true(due.second == 11000 && due.flush == 15000 && due.minute == 65000);
    bare_now_ms = 65000;
    tke_housekeep(&svc, &due);
    assert_true(due.second == 66000 && due.flush == 70000 && due.minute == 125000);
}

/* OpenAI's paths are served if a setting or the server's option asks for it. */
TEST_WITH(who_asks_for_openai, setup, teardown)
{
    tinkc_error err = { 0 };
    bool possible = tke_openai_possible(&err);
    for (int i = 0; i < 4; i++) {
        bool on = !i;
        err = (tinkc_error){ 0 };
        svc.set.openai = i & 1;
        assert_int_equal(tke_service_openai(&svc, i & 2, &on, &err), i == 0 || possible);
        assert_int_equal(on, i != 0);
    }
}

/* ---- sessions ---- */

/* Models of an expired session go to sleep, if nothing keeps them awake. */
TEST_WITH(models_of_expired_sessions_sleep, setup, teardown)
{
    static const struct {
        bool expired, queued;
        tke_run_memory memory, after;
        tke_run_image image;
    } rows[] = {
        { true, false, TKE_RUN_AWAKE, TKE_RUN_LEAVING, TKE_IMAGE_IDLE },
        { true, false, TKE_RUN_AWAKE, TKE_RUN_LEAVING, TKE_IMAGE_WANTED },
        { false, false, TKE_RUN_AWAKE, TKE_RUN_AWAKE, TKE_IMAGE_IDLE },
        { true, true, TKE_RUN_AWAKE, TKE_RUN_AWAKE, TKE_IMAGE_IDLE },
        { true, false, TKE_RUN_ASLEEP, TKE_RUN_ASLEEP, TKE_IMAGE_IDLE },
        { true, false, TKE_RUN_WAITING, TKE_RUN_WAITING, TKE_IMAGE_IDLE },
        { true, false, TKE_RUN_YIELDING, TKE_RUN_YIELDING, TKE_IMAGE_IDLE },
        { true, false, TKE_RUN_AWAKE, TKE_RUN_AWAKE, TKE_IMAGE_WRITING },
        { true, false, TKE_RUN_AWAKE, TKE_RUN_AWAKE, TKE_IMAGE_WRITING_AGAIN },
        { true, false, TKE_RUN_AWAKE, TKE_RUN_AWAKE, TKE_IMAGE_FAILED },
    };
    enum { N_ROWS = sizeof rows / sizeof *rows };
    tke_run *runs[N_ROWS];
    tke_job waits = { .seq = 1, .kind = TKE_JOB_PASS };
    for (size_t i = 0; i < N_ROWS; i++) {
        char id[20];
        snprintf(id, sizeof id, "r%zu", i);
        runs[i] = new_run(id);
        runs[i]->session = new_session(id);
        runs[i]->session->expired = rows[i].expired;
        runs[i]->session->n_runs = 1;
        runs[i]->is.memory = rows[i].memory;
        runs[i]->is.image = rows[i].image;
        runs[i]->queue = rows[i].queued ? &waits : NULL;
    }
    tke_run *alone = new_run("alone"); /* its session's row is gone */
    alone->is.memory = TKE_RUN_AWAKE;
    upkeep(1000);
    for (size_t i = 0; i < N_ROWS; i++) {
        if (runs[i]->is.memory != rows[i].after)
            fail_msg("row %zu: %d", i, (int)runs[i]->is.memory);
        runs[i]->queue = NULL;
    }
    assert_int_equal(alone->is.memory, TKE_RUN_AWAKE);
}

static bool is_known(const char *id)
{
    return tke_find_session(&svc, id) != NULL;
}

/* A client that went away may come back; its run is finished when it was silent for run_keep_s. What a
 * client saved by name is not an image. */
TEST_WITH(images_of_silent_runs_go, setup, teardown)
{
    enum { KEEP = 1000000 };
    static const struct {
        int64_t keep_ms, silent_ms;
        bool expired, queued;
        tke_run_life life;
        const char *source;
        bool finished;
    } rows[] = {
        { KEEP, KEEP + 1, true, false, TKE_RUN_READY, "runs/r/image.1", true },
        { KEEP, KEEP, true, false, TKE_RUN_READY, "runs/r/image.1", false },
        { 0, KEEP + 1, true, false, TKE_RUN_READY, "runs/r/image.1", false },
        { KEEP, KEEP + 1, false, false, TKE_RUN_READY, "runs/r/image.0", false },
        { KEEP, KEEP + 1, true, true, TKE_RUN_READY, "runs/r/image.0", false },
        { KEEP, KEEP + 1, true, false, TKE_RUN_UNLOADED, "runs/r/image.0", false },
        { KEEP, KEEP + 1, true, false, TKE_RUN_READY, "runs/r/weights/final", false },
        { KEEP, KEEP + 1, true, false, TKE_RUN_READY, NULL, false },
    };
    tinkc_error err = { 0 };
    tke_run *run = new_run("r");
    run->session = new_session("s");
    tke_job *waiting = tke_job_new(&svc, TKE_JOB_SAVE, "w", "me", &err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        svc.set.run_keep_ms = rows[i].keep_ms;
        run->session->expired = rows[i].expired;
        run->last_request_us = 5000000;
        run->is.life = rows[i].life;
        run->source = tke_copy(&svc, rows[i].source, &err);
        run->queue = rows[i].queued ? waiting : NULL;
        upkeep(5000 + rows[i].silent_ms);
        if ((run->is.life == TKE_RUN_UNLOADING) != rows[i].finished)
            fail_msg("row %zu", i);
        if (rows[i].finished) { /* the worker would take it */
            tke_job *unload = tke_run_take(run);
            assert_int_equal(unload->kind, TKE_JOB_UNLOAD);
            tke_take_job(&svc, unload->request_id);
            tke_job_drop(unload);
            tke_job_drop(unload);
        }
        run->queue = NULL;
        if (run->source)
            tkc_release_str(NULL, run->source);
        run->source = NULL;
    }
    tke_job_drop(waiting);
}

/* Sessions that never trained are forgotten, with their samplers, after long or when they are many. */
TEST_WITH(idle_sessions_are_forgotten, setup, teardown)
{
    tinkc_error err = { 0 };
    svc.set.session_keep_ms = 10000;
    static const char *const names[] = { "b", "a", "young", "active", "trained", "pinned" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        tke_session *s = new_session(names[i]);
        s->expired = i != 3;
        s->n_runs = i == 4;
        s->pins = i == 5;
        s->seen_ms = i == 2 ? 2000 : 1000;
        tke_sampler *sampler = tke_sampler_add(&svc, names[i], "me", &err);
        assert_non_null(sampler);
        sampler->session = s;
    }
    tke_sessions_forget(&svc, 11000); /* not yet */
    assert_true(is_known("a") && is_known("b") && is_known("young"));
    svc.set.max_idle_sessions = 2; /* one too many: of the two oldest the first by name */
    tke_sessions_forget(&svc, 11000);
    assert_true(!is_known("a") && is_known("b") && is_known("young"));
    assert_null(tke_find_sampler(&svc, "a"));
    assert_non_null(tke_find_sampler(&svc, "b"));
    tke_sessions_forget(&svc, 11001);
    assert_true(!is_known("b") && is_known("young"));
    assert_null(tke_find_sampler(&svc, "b"));
    tke_sessions_forget(&svc, 1000000);
    assert_false(is_known("young"));
    assert_true(is_known("active") && is_known("trained") && is_known("pinned"));
    assert_non_null(tke_find_sampler(&svc, "active"));
    tke_find_session(&svc, "pinned")->pins = 0;
}

static int n_losses(const char *session)
{
    int n = 0;
    tinkc_error err = { 0 };
    assert_true(tke_store_query(svc.store, "SELECT seq FROM custom_losses WHERE session_id = ?", count_row, &n, &err,
                                "t", session));
    return n;
}

/* With a session go the rows of its custom losses, those that do not compile any more included. */
TEST_WITH(losses_go_with_their_session, setup, teardown)
{
    tinkc_error err = { 0 };
    svc.set.session_keep_ms = 10000;
    static const char *const names[] = { "silent", "active" };
    tke_txn *txn = tke_txn_new(svc.store, &err);
    for (size_t i = 0; i < 2; i++) {
        tke_session *s = new_session(names[i]);
        s->expired = i == 0;
        s->seen_ms = 1000;
        for (int64_t seq = 0; seq < 2; seq++)
            tke_txn_exec(txn, "INSERT INTO custom_losses VALUES(?, ?, 'r', '{}')", "ti", names[i], seq);
    }
    tke_txn_commit(txn, NULL, NULL);
    tke_store_sync(svc.store);
    assert_true(n_losses("silent") == 2 && n_losses("active") == 2);
    tke_sessions_forget(&svc, 11001);
    tke_store_sync(svc.store);
    assert_false(is_known("silent"));
    assert_true(n_losses("silent") == 0 && n_losses("active") == 2);
}

/* ---- images ---- */

TEST_WITH(images_are_asked_for, setup, teardown)
{
    svc.set.autosave_ms = 5000;
    svc.set.durability = TINKC_DURABILITY_SNAPSHOT;
    static tke_adapter *const there = (tke_adapter *)(void *)&svc;
    static const struct {
        bool adapter;
        int64_t dirty_ms;
        tke_run_image image, after;
    } rows[] = {
        { true, 1000, TKE_IMAGE_IDLE, TKE_IMAGE_WANTED },   { true, 1000, TKE_IMAGE_FAILED, TKE_IMAGE_WANTED },
        { true, 1001, TKE_IMAGE_IDLE, TKE_IMAGE_IDLE },     { true, 0, TKE_IMAGE_IDLE, TKE_IMAGE_IDLE },
        { false, 1000, TKE_IMAGE_IDLE, TKE_IMAGE_IDLE },    { true, 1000, TKE_IMAGE_WRITING, TKE_IMAGE_WRITING },
        { true, 1000, TKE_IMAGE_WANTED, TKE_IMAGE_WANTED },
    };
    enum { N_ROWS = sizeof rows / sizeof *rows };
    tke_run *runs[N_ROWS];
    for (size_t i = 0; i < N_ROWS; i++) {
        char id[20];
        snprintf(id, sizeof id, "r%zu", i);
        runs[i] = new_run(id);
        runs[i]->adapter = rows[i].adapter ? there : NULL;
        runs[i]->dirty_since_ms = rows[i].dirty_ms;
        runs[i]->is.image = rows[i].image;
    }
    svc.set.durability = TINKC_DURABILITY_CHECKPOINT; /* keeps no images */
    upkeep(6000);
    assert_int_equal(runs[0]->is.image, TKE_IMAGE_IDLE);
    svc.set.durability = TINKC_DURABILITY_SNAPSHOT;
    upkeep(6000);
    for (size_t i = 0; i < N_ROWS; i++) {
        if (runs[i]->is.image != rows[i].after)
            fail_msg("row %zu: %d", i, (int)runs[i]->is.image);
        runs[i]->adapter = NULL;
    }
}

/* A flush asks for all images that are missing, and waits for those that are being written. */
TEST_WITH(a_flush_waits_for_all_images, setup, teardown)
{
    static tke_adapter *const there = (tke_adapter *)(void *)&svc;
    static const struct {
        bool adapter;
        int64_t dirty_ms;
        tke_run_image image, after;
        bool waits;
    } rows[] = {
        { true, 0, TKE_IMAGE_IDLE, TKE_IMAGE_IDLE, false },
        { false, 5, TKE_IMAGE_IDLE, TKE_IMAGE_IDLE, false },
        { true, 5, TKE_IMAGE_IDLE, TKE_IMAGE_WANTED, true },
        { true, 5, TKE_IMAGE_WANTED, TKE_IMAGE_WANTED, true },
        { true, 0, TKE_IMAGE_WANTED, TKE_IMAGE_WANTED, true },
        { true, 5, TKE_IMAGE_WRITING, TKE_IMAGE_WRITING, true },
        { true, 0, TKE_IMAGE_WRITING, TKE_IMAGE_WRITING, true },
        { true, 5, TKE_IMAGE_FAILED, TKE_IMAGE_WANTED, true },
        { true, 0, TKE_IMAGE_FAILED, TKE_IMAGE_IDLE, false },
    };
    tke_run *run = new_run("r");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        run->adapter = rows[i].adapter ? there : NULL;
        run->dirty_since_ms = rows[i].dirty_ms;
        run->is.image = rows[i].image;
        if (tke_service_flush(&svc, 0, &err) == rows[i].waits || run->is.image != rows[i].after)
            fail_msg("row %zu: %d, %s", i, (int)run->is.image, err.message);
        assert_int_equal(err.code, rows[i].waits ? TINKC_E_TIMEOUT : 0);
        run->adapter = NULL;
    }
    tinkc_error err = { 0 };
    run->is.image = TKE_IMAGE_IDLE;
    svc.worker->n_images = 1; /* of a sampler */
    assert_false(tke_service_flush(&svc, 0, &err));
    assert_string_equal(err.message, "not all images were written in time");
    err = (tinkc_error){ 0 };
    svc.stop = true; /* nobody writes any more */
    assert_true(tke_service_flush(&svc, 0, &err));
    svc.worker->n_images = 0;
}

/* Of old requests a restart knows that they ran, not what they were answered. */
TEST_WITH(old_answers_are_not_kept, setup, teardown)
{
    tinkc_error err = { 0 };
    tke_run *run = new_run("r");
    tke_txn *txn = tke_txn_new(svc.store, &err);
    tke_txn_exec(txn,
                 "INSERT INTO requests(run_id, seq_id, result) VALUES('r', 1, 'a'), ('r', 2, 'b'), "
                 "('r', 2001, 'c'), ('q', 1, 'd')",
                 "");
    tke_job *job = tke_job_new(&svc, TKE_JOB_OPTIM, "3-r:1001", "me", &err);
    job->run = run;
    job->seq = 1001;
    tke_job_add_row(txn, job);
    assert_int_equal(job->state, TKE_COMMITTING);
    tke_txn_commit(txn, NULL, NULL);
    tke_store_sync(svc.store);
    int n = 0;
    assert_true(tke_store_query(svc.store,
                                "SELECT 1 FROM requests WHERE (run_id = 'r' AND seq_id = 1) = (result "
                                "IS NULL) AND seq_id <> 1001",
                                count_row, &n, &err, ""));
    assert_int_equal(n, 4);
    tke_job_drop(job);
}

static bool take_unrecorded(const tke_unrecorded *r, void *user, tinkc_error *err)
{
    (void)err;
    tke_unrecorded *all = user;
    all[r->seq] = *r;
    return true;
}

/* A request whose row cannot be written is answered, and noted elsewhere for the next start. */
TEST_WITH(requests_without_a_row, setup, teardown)
{
    tinkc_error err = { 0 };
    tke_unrecorded all[4] = { 0 };
    tke_run *run = new_run("r");
    tke_unrecorded_clear(svc.store);
    tke_txn *txn = tke_txn_new(svc.store, &err);
    tke_txn_exec(txn, "CREATE TRIGGER no BEFORE INSERT ON requests BEGIN SELECT RAISE(ABORT, 'no'); END", "");
    tke_txn_commit(txn, NULL, NULL);
    svc.set.result_spill_bytes = 1 << 20;
    for (int64_t i = 0; i < 4; i++) {
        char id[20];
        snprintf(id, sizeof id, "27-r:%d", (int)i);
        tke_job *job = tke_job_new(&svc, i == 3 ? TKE_JOB_SAVE : TKE_JOB_OPTIM, id, "me", &err);
        job->run = run;
        job->seq = i; /* 0: it has no number, and no row */
        job->hash.lo = 100 + (uint64_t)i;
        job->touched = i == 3;
        tke_job_keep(job);
        if (i < 2)
            tke_job_succeed(job, tkc_str("{}"));
        else
            tke_job_fail(job, &(tinkc_error){ .code = TINKC_E_ARGUMENT, .message = "no" });
        tke_store_sync(svc.store);
        assert_int_equal(job->state, TKE_DONE);
        tke_job_drop(job);
    }
    assert_true(tke_unrecorded_each(svc.store, take_unrecorded, all, &err));
    assert_int_equal(all[0].seq, 0);
    for (int64_t i = 1; i < 4; i++) {
        assert_true(all[i].seq == i && all[i].epoch == 27 && all[i].hash.lo == 100 + (uint64_t)i);
        assert_int_equal(all[i].kind, i == 3 ? TKE_JOB_SAVE : TKE_JOB_OPTIM);
        assert_int_equal(all[i].failed, i == 2); /* one that failed and changed the run counts */
        assert_true(tke_hash_eq(all[i].run, tke_unrecorded_run("r")));
    }
}

/* ---- memory that only work needs ---- */

/* ---- keys and links ---- */

/* ---- ephemeral samplers ---- */

/* With a folder and a row. */
static tke_sampler *new_ephemeral(const char *id, tke_session *session, int64_t used_ms)
{
    tinkc_error err = { 0 };
    char path[500];
    tke_sampler *s = tke_sampler_add(&svc, id, "me", &err);
    assert_non_null(s);
    snprintf(path, sizeof path, "%s/%s", folder, id);
    assert_true(tkc_make_dirs(path, &err));
    s->session = session;
    s->ephemeral = true;
    s->spill = tke_copy(&svc, path, &err);
    s->used_ms = used_ms;
    tke_txn *txn = tke_txn_new(svc.store, &err);
    tke_txn_exec(txn, "INSERT INTO samplers(id) VALUES(?)", "t", id);
    tke_txn_commit(txn, NULL, NULL);
    return s;
}

/* Too many of a session: those that a minute passed over, when as many as may stay were used later. */
TEST_WITH(many_weights_of_a_session, setup, teardown)
{
    svc.set.max_ephemeral = 2;
    tke_session *session = new_session("s"), *other = new_session("o");
    tke_sampler *a = new_ephemeral("a", session, 1000), *b = new_ephemeral("b", session, 2000);
    tke_sampler *c = new_ephemeral("c", session, 2000), *d = new_ephemeral("d", other, 1500);
    tke_sampler *named = new_ephemeral("named", session, 3000);
    named->ephemeral = false; /* does not count */
    upkeep(61000);
    assert_true(a->spill && b->spill && c->spill && d->spill);
    c->used_ms = 1000; /* only one was used later than the others */
    upkeep(61001);
    assert_true(a->spill && b->spill && c->spill && d->spill);
    c->used_ms = 2000;
    upkeep(61001);
    assert_true(!a->spill && b->spill && c->spill && d->spill);
    upkeep(1000000); /* what was dropped does not count either */
    assert_true(b->spill && c->spill && d->spill);
}

/* ---- checkpoints ---- */

static tke_checkpoint *new_checkpoint(const char *name)
{
    tinkc_error err = { 0 };
    tke_checkpoint *c = tke_checkpoint_add(&svc, "r", TKE_CKPT_TRAINING, name, &err);
    assert_ok(err);
    return c;
}

#define PATH "tinker://r/weights/"

/* A name goes to a new save, and back to what had it when that fails. */
TEST_WITH(names_are_taken_and_given_back, setup, teardown)
{
    new_run("r");
    tke_checkpoint *first = new_checkpoint("c");
    assert_true(first->state == TKE_CKPT_PENDING && first->created_us == 1000000);
    assert_string_equal(first->path, PATH "c");
    assert_string_equal(first->owner, "me");
    assert_non_null(first->run);
    tke_checkpoint_written(first);
    assert_int_equal(first->state, TKE_CKPT_DONE);
    tke_checkpoint *second = new_checkpoint("c"), *third = new_checkpoint("c");
    assert_int_equal(first->state, TKE_CKPT_GONE);
    assert_int_equal(second->state, TKE_CKPT_GONE);
    assert_ptr_equal(tke_find_checkpoint(&svc, PATH "c", NULL), third);
    assert_int_equal(tke_count(&svc, TKE_CHECKPOINTS), 3);
    tke_checkpoint_restore(&svc, second, first); /* it has not the name any more */
    assert_ptr_equal(tke_find_checkpoint(&svc, PATH "c", NULL), third);
    assert_int_equal(first->state, TKE_CKPT_GONE);
    assert_int_equal(second->disk, TKE_DISK_FAILED);
    tke_checkpoint_restore(&svc, third, second); /* that one had failed */
    assert_int_equal(third->state, TKE_CKPT_GONE);
    assert_int_equal(second->state, TKE_CKPT_GONE);
    assert_null(tke_find_checkpoint(&svc, PATH "c", NULL));
    tke_checkpoint *fourth = new_checkpoint("c");
    tke_checkpoint *fifth = new_checkpoint("c");
    tke_checkpoint_restore(&svc, fifth, fourth); /* still being written */
    assert_ptr_equal(tke_find_checkpoint(&svc, PATH "c", NULL), fourth);
    assert_int_equal(fourth->state, TKE_CKPT_PENDING);
    tke_checkpoint_written(fourth);
    tke_checkpoint *sixth = new_checkpoint("c");
    tke_checkpoint_restore(&svc, sixth, fourth);
    assert_ptr_equal(tke_find_checkpoint(&svc, PATH "c", NULL), fourth);
    assert_int_equal(fourth->state, TKE_CKPT_DONE);
    assert_int_equal(tke_count(&svc, TKE_CHECKPOINTS), 6); /* all of them are kept */
    tke_checkpoint *seventh = new_checkpoint("d");
    tke_checkpoint_restore(&svc, seventh, NULL); /* there was none before */
    assert_null(tke_find_checkpoint(&svc, PATH "d", NULL));
    /* One that is written after its name was taken is on disk, and stays unseen. */
    tke_checkpoint *old = new_checkpoint("e"), *newer = new_checkpoint("e");
    tke_checkpoint_written(old);
    assert_true(old->state == TKE_CKPT_GONE && old->disk == TKE_DISK_THERE);
    assert_ptr_equal(tke_find_checkpoint(&svc, PATH "e", NULL), newer);
}

TEST_WITH(names_that_may_be, setup, teardown)
{
    char longest[258];
    memset(longest, 'x', sizeof longest);
    longest[256] = '\0';
    assert_false(tke_name_ok(longest));
    longest[255] = '\0';
    assert_true(tke_name_ok(longest));
    static const char *const good[] = { "a", "z", "A", "Z", "0", "9", "_", "a.b", "a-b", "_-.", "a." };
    static const char *const bad[] = { "",  ".", "-", ".a", "-a", "a..b",     "a/b", "a b", "@",  "[",
                                       "`", "{", "/", ":",  "a@", "\xc3\xa4", "..",  "a..", "a\n" };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(tke_name_ok(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (tke_name_ok(bad[i]))
            fail_msg("'%s' is taken for a name", bad[i]);
    assert_false(tke_name_ok(NULL));
}

TEST_WITH(paths_that_may_be, setup, teardown)
{
    static const struct {
        const char *path, *run, *name; /* run NULL: refused */
        int32_t kind;
    } rows[] = {
        { "tinker://r/weights/n", "r", "n", TKE_CKPT_TRAINING },
        { "tinker://r/sampler_weights/n", "r", "n", TKE_CKPT_SAMPLER },
        { "tinker://a:train:0/external_weights/x.y", "a:train:0", "x.y", TKE_CKPT_EXTERNAL },
        { "tinker://r/other/n", NULL, NULL, 0 },
        { "tinker://r/weights", NULL, NULL, 0 },
        { "tinker://r/weights/", NULL, NULL, 0 },
        { "tinker:///weights/n", NULL, NULL, 0 },
        { "tinker://r/weights/n/m", NULL, NULL, 0 },
        { "tinker://r/weights/n/", NULL, NULL, 0 },
        { "tinker://", NULL, NULL, 0 },
        { "file://r/weights/n", NULL, NULL, 0 },
        { "", NULL, NULL, 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tkc_arena arena;
        tinkc_error err = { 0 };
        const char *run = NULL, *name = NULL;
        int32_t kind = -1;
        tkc_arena_init(&arena, NULL, 0);
        bool ok = tke_path_split(&arena, rows[i].path, &run, &kind, &name, &err);
        if (ok != (rows[i].run != NULL))
            fail_msg("%s: %d", rows[i].path, ok);
        if (ok) {
            assert_string_equal(run, rows[i].run);
            assert_string_equal(name, rows[i].name);
            assert_int_equal(kind, rows[i].kind);
            assert_string_equal(
                tke_checkpoint_folder(&svc, &arena, run, kind, name, &err),
                tkc_arena_printf(&arena, &err, "%s/runs/%s/%s/%s", folder, run, tke_kind_name(kind), name));
        } else {
            assert_int_equal(err.code, TINKC_E_PATH);
        }
        tkc_arena_free(&arena);
    }
}
