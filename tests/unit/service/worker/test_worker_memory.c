/* test_worker_memory.c - who gets memory, and who must give it back: weights that are kept for samples,
 * models in training, and models that wait for room. */
#include "base/file.h"
#include "service/core/base_models.h"
#include "service/core/housekeeping.h"
#include "service/core/runs.h"
#include "service/core/samplers.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/sessions.h"
#include "service/handlers/request_decode.h"
#include "service/worker/jobs.h"
#include "service/worker/run_state.h"
#include "service/worker/worker.h"
#include "service/worker/worker_files.h"
#include "service/worker/worker_memory.h"
#include "service/worker/worker_state.h"
#include "support/engine/tiny_model.h"
#include "support/service/bare_service.h"
#include "train/adapter.h"
#include "train/adapter_state.h"

static tke_service svc;
static char *folder;
static tke_device *device;
static tke_base base = { .name = (char *)(uintptr_t) "tiny" };
static const tke_adapter_spec spec = { .rank = 4, .train = 7, .alpha = 32, .seed = 7 };
static tke_adapter *source;   /* of all weights */
static size_t bytes, adapter; /* of one snapshot, of one model in training */

static int make_world(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    tke_device_reason why;
    folder = tiny_model_make(&(tiny_model){ .family = "llama", .vocab = 64, .context = 32 });
    device = tke_device_open("cpu", &(tke_device_options){ .n_threads = 1 }, &why, &err);
    base.model = tke_model_open(folder, &err);
    assert_ok(err);
    source = tke_adapter_new(device, base.model, &spec, &err);
    assert_ok(err);
    adapter = tke_adapter_bytes(base.model, &spec);
    return 0;
}

static int end_world(void **state)
{
    (void)state;
    tke_adapter_free(source);
    tke_model_drop(base.model);
    tke_device_close(device);
    tiny_model_remove(folder);
    return 0;
}

static int setup(void **state)
{
    (void)state;
    bare_open(&svc, NULL);
    svc.device = device;
    svc.set.memory_bytes = svc.set.snapshot_memory_bytes = 1 << 30;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    bare_close(&svc);
    return 0;
}

static tke_snapshot *weights(void)
{
    tinkc_error err = { 0 };
    tke_snapshot *taken = tke_snapshot_take(source, &err);
    assert_ok(err);
    bytes = tke_snapshot_bytes(taken);
    svc.held.bytes[TKE_HELD_SNAPSHOTS] += bytes;
    return taken;
}

static tke_checkpoint *kept_checkpoint(const char *name, int32_t at, int64_t used_ms)
{
    tinkc_error err = { 0 };
    tke_checkpoint *c = tke_checkpoint_add(&svc, "r", TKE_CKPT_SAMPLER, name, &err);
    c->state = at;
    c->snapshot = weights();
    c->used_ms = used_ms;
    return c;
}

static tke_sampler *kept_sampler(const char *id, bool on_disk, int64_t used_ms)
{
    tinkc_error err = { 0 };
    tke_sampler *s = tke_sampler_add(&svc, id, "me", &err);
    s->snapshot = weights();
    s->spill = on_disk ? tke_copy(&svc, "somewhere", &err) : NULL;
    s->used_ms = used_ms;
    return s;
}

static tke_run *new_run(const char *id)
{
    tinkc_error err = { 0 };
    tke_run *run = tke_run_add(&svc, id, "me", &err);
    assert_ok(err);
    run->base = &base;
    run->base_model = tke_copy(&svc, "tiny", &err);
    run->spec = spec;
    run->is.life = TKE_RUN_READY;
    return run;
}

/* A device that fails a number of times to take numbers in, after some that it takes. */
static int n_writes, n_taken, n_failures;
static bool failing_write(tke_device *d, tke_block *to, const tke_real *from, size_t n, tinkc_error *err)
{
    n_writes++;
    return n_writes > n_taken && n_writes <= n_taken + n_failures ? tkc_fail(err, TINKC_E_SERVER, "not now")
                                                                  : tke_cpu_device.block_write(d, to, from, n, err);
}

static tke_real *no_host(tke_device *d, const tke_block *b)
{
    (void)d, (void)b;
    return NULL;
}

/* ---- weights of samples ---- */

/* The least recently used goes first; what is not on disk stays. */
TEST_WITH(weights_give_way, setup, teardown)
{
    tke_checkpoint *a = kept_checkpoint("a", TKE_CKPT_DONE, 30);
    tke_checkpoint *b = kept_checkpoint("b", TKE_CKPT_DONE, 20);
    tke_checkpoint *pending = kept_checkpoint("c", TKE_CKPT_PENDING, 1);
    tke_sampler *x = kept_sampler("x", true, 25), *y = kept_sampler("y", true, 35);
    tke_sampler *only = kept_sampler("z", false, 2);
    svc.held.bytes[TKE_HELD_ADAPTERS] = 100;
    svc.set.memory_bytes = (int64_t)(100 + 6 * bytes + 10);
    assert_true(tke_work_room(&svc, 10)); /* just fits */
    assert_int_equal(svc.held.bytes[TKE_HELD_SNAPSHOTS], 6 * bytes);
    assert_true(tke_work_room(&svc, 11));
    assert_true(a->snapshot && !b->snapshot && x->snapshot && y->snapshot);
    assert_int_equal(svc.held.bytes[TKE_HELD_SNAPSHOTS], 5 * bytes);
    assert_true(tke_work_room(&svc, 10 + 2 * bytes));
    assert_true(a->snapshot && !x->snapshot && y->snapshot);
    assert_false(tke_work_room(&svc, 10 + 5 * bytes)); /* all that can go is not enough */
    assert_true(!a->snapshot && !y->snapshot && pending->snapshot && only->snapshot);
    assert_int_equal(svc.held.bytes[TKE_HELD_SNAPSHOTS], 2 * bytes);
    pending->state = TKE_CKPT_DONE;
    tke_work_forget_snapshots(&svc);
    assert_true(!pending->snapshot && only->snapshot);
    assert_int_equal(svc.held.bytes[TKE_HELD_SNAPSHOTS], bytes);
}

/* In the order of their last use, whichever the map lists first. */
TEST_WITH(samplers_give_way_in_order, setup, teardown)
{
    enum { N = 6 };
    tke_sampler *all[N];
    tke_checkpoint *last = kept_checkpoint("a", TKE_CKPT_DONE, 90), *checkpoints[N];
    char name[8];
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "s%d", i);
        all[i] = kept_sampler(name, true, i % 2 ? 10 + i : 30 - i);
        snprintf(name, sizeof name, "c%d", i);
        checkpoints[i] = kept_checkpoint(name, TKE_CKPT_DONE, i % 2 ? 50 + i : 70 - i);
    }
    static const int order[N] = { 1, 3, 5, 4, 2, 0 };
    for (int n = 0; n < 2 * N; n++) {
        svc.set.snapshot_memory_bytes = (int64_t)svc.held.bytes[TKE_HELD_SNAPSHOTS];
        tke_work_snapshot_room(&svc, 1);
        for (int i = 0; i < 2 * N; i++)
            assert_true(!(i < N ? all[order[i]]->snapshot : checkpoints[order[i - N]]->snapshot) == (i <= n));
    }
    assert_non_null(last->snapshot);
}

/* Weights have a limit of their own, beside the one of all memory. */
TEST_WITH(weights_have_a_limit, setup, teardown)
{
    tke_checkpoint *a = kept_checkpoint("a", TKE_CKPT_DONE, 1);
    tke_checkpoint *b = kept_checkpoint("b", TKE_CKPT_DONE, 2);
    tke_checkpoint *c = kept_checkpoint("c", TKE_CKPT_DONE, 3);
    svc.set.snapshot_memory_bytes = (int64_t)(4 * bytes);
    tke_work_snapshot_room(&svc, bytes);
    assert_int_equal(svc.held.bytes[TKE_HELD_SNAPSHOTS], 3 * bytes);
    tke_work_snapshot_room(&svc, bytes + 1);
    assert_true(!a->snapshot && b->snapshot && c->snapshot);
    svc.set.memory_bytes = (int64_t)(2 * bytes);
    tke_work_snapshot_room(&svc, 1); /* all memory counts, too */
    assert_true(!b->snapshot && c->snapshot);
    assert_int_equal(svc.held.bytes[TKE_HELD_SNAPSHOTS], bytes);
}

/* Weights that only their session needs go when it has not used them for long; models that wait look again. */
TEST_WITH(unused_weights_make_room, setup, teardown)
{
    tinkc_error err = { 0 };
    tke_sampler *s = kept_sampler("x", false, 1000), *named = kept_sampler("y", true, 0);
    s->session = tke_session_add(&svc, "s", "me", &err);
    s->session->n_runs = 1;
    s->ephemeral = true;
    svc.set.session_timeout_ms = svc.set.max_ephemeral = 1 << 20;
    svc.set.ephemeral_idle_ms = 5000;
    svc.worker->room_changes = 4;
    bare_now_ms = 6000;
    tke_housekeep(&svc, &(tke_due){ 0 });
    assert_true(s->snapshot && svc.worker->room_changes == 4);
    bare_now_ms = 6001;
    tke_housekeep(&svc, &(tke_due){ 0 });
    assert_true(!s->snapshot && named->snapshot);
    assert_true(svc.held.bytes[TKE_HELD_SNAPSHOTS] == bytes && svc.worker->room_changes == 5);
}

/* ---- models ---- */

/* Of those that are idle the one that was served least recently is asked to sleep. */
TEST_WITH(idle_models_are_asked_to_sleep, setup, teardown)
{
    tke_job waits = { .seq = 1 };
    tke_run *busy = new_run("busy"), *made = new_run("made"), *gone = new_run("gone");
    tke_run *late = new_run("late"), *early = new_run("early"), *last = new_run("last");
    busy->is.memory = made->is.memory = late->is.memory = early->is.memory = last->is.memory = TKE_RUN_AWAKE;
    busy->queue = made->create = &waits;
    late->served = 20;
    early->served = 10;
    last->served = 30;
    svc.set.memory_bytes = 5;
    assert_true(tke_work_room(&svc, 5));
    assert_int_equal(early->is.memory, TKE_RUN_AWAKE);
    assert_false(tke_work_room(&svc, 6));
    assert_int_equal(early->is.memory, TKE_RUN_LEAVING);
    assert_int_equal(late->is.memory, TKE_RUN_AWAKE);
    assert_false(tke_work_room(&svc, 6)); /* one more each time */
    assert_int_equal(late->is.memory, TKE_RUN_LEAVING);
    assert_int_equal(last->is.memory, TKE_RUN_AWAKE);
    assert_true(busy->is.memory == TKE_RUN_AWAKE && made->is.memory == TKE_RUN_AWAKE);
    assert_int_equal(gone->is.memory, TKE_RUN_ASLEEP);
    busy->queue = made->create = NULL;
}

TEST_WITH(how_many_models_fit, setup, teardown)
{
    tke_adapter *there = source;
    tke_run *one = new_run("one"), *two = new_run("two");
    new_run("asleep");
    one->adapter = two->adapter = there;
    one->is.memory = two->is.memory = TKE_RUN_AWAKE;
    assert_false(tke_models_full(&svc, false)); /* no limit */
    svc.set.max_models = 3;
    assert_false(tke_models_full(&svc, false));
    svc.set.max_models = 2;
    assert_true(tke_models_full(&svc, false));
    assert_true(tke_models_full(&svc, true));
    one->is.memory = TKE_RUN_LEAVING;
    assert_true(tke_models_full(&svc, false));
    assert_false(tke_models_full(&svc, true)); /* soon there is room */
    one->is.memory = TKE_RUN_YIELDING;
    assert_false(tke_models_full(&svc, true));
    one->adapter = two->adapter = NULL;
}

/* ---- waking ---- */

static void end_run(tke_run *run)
{
    tke_adapter_free(run->adapter);
    run->adapter = NULL;
}

TEST_WITH(models_wake_and_sleep, setup, teardown)
{
    tinkc_error err = { 0 };
    tke_job waits = { .seq = 1 };
    tke_run *run = new_run("r");
    svc.set.memory_bytes = (int64_t)adapter;
    svc.worker->room_changes = 4;
    run->is.image = TKE_IMAGE_WANTED;
    assert_true(tke_work_wake(&svc, run, false, &err));
    assert_true(run->adapter && run->is.memory == TKE_RUN_AWAKE);
    assert_true(run->adapter_bytes == adapter && svc.held.bytes[TKE_HELD_ADAPTERS] == adapter);
    run->is.memory = TKE_RUN_LEAVING;
    run->queue = &waits; /* it has work again */
    tke_work_sleep(&svc, run);
    assert_true(run->adapter && run->is.memory == TKE_RUN_AWAKE);
    run->queue = NULL;
    run->create = &waits;
    run->is.memory = TKE_RUN_LEAVING;
    tke_work_sleep(&svc, run);
    assert_true(run->adapter && run->is.memory == TKE_RUN_AWAKE);
    run->create = NULL;
    run->queue = &waits; /* one that yields goes nevertheless */
    run->is.memory = TKE_RUN_YIELDING;
    tke_work_sleep(&svc, run);
    assert_true(!run->adapter && run->is.memory == TKE_RUN_ASLEEP);
    assert_true(run->adapter_bytes == 0 && svc.held.bytes[TKE_HELD_ADAPTERS] == 0 && svc.worker->room_changes == 5);
    assert_int_equal(run->is.image, TKE_IMAGE_IDLE);
    run->queue = NULL;
}

TEST_WITH(models_that_cannot_wake, setup, teardown)
{
    tinkc_error err = { 0 };
    tke_run *run = new_run("r");
    run->base = NULL;
    assert_false(tke_work_wake(&svc, run, false, &err));
    assert_int_equal(err.code, TINKC_E_SERVER);
    assert_string_equal(err.message, "the base model 'tiny' is not available here now");
    tke_job *job = tke_job_new(&svc, TKE_JOB_SAVE, "1-r:1", "me", &(tinkc_error){ 0 });
    tke_check_job(job, run); /* nor is a request accepted, even if its base comes before its turn */
    assert_int_equal(job->invalid.code, TINKC_E_SERVER);
    assert_string_equal(job->invalid.message, "the base model 'tiny' is not available here now");
    tke_job_drop(job);
    err = (tinkc_error){ 0 };
    run->base = &base;
    run->is.life = TKE_RUN_FAILED;
    assert_false(tke_work_wake(&svc, run, false, &err));
    assert_int_equal(err.code, TINKC_E_BAD_REQUEST);
    assert_string_equal(err.message, "this model could not be made: ");
    err = (tinkc_error){ 0 };
    run->error = tke_copy(&svc, "no reason", &err);
    assert_false(tke_work_wake(&svc, run, false, &err));
    assert_string_equal(err.message, "this model could not be made: no reason");
    /* A state that is not there. */
    err = (tinkc_error){ 0 };
    run->is.life = TKE_RUN_READY;
    run->source = tke_copy(&svc, "/nowhere", &err);
    assert_false(tke_work_wake(&svc, run, false, &err));
    assert_int_equal(err.code, TINKC_E_STORE);
    assert_true(strstr(err.message, "the stored state of this run cannot be read: ") &&
                strstr(err.message, "; load a checkpoint (load_weights) to continue"));
    assert_true(!run->adapter && svc.held.bytes[TKE_HELD_ADAPTERS] == 0);
    err = (tinkc_error){ 0 };
    assert_true(tke_work_wake(&svc, run, true, &err)); /* without it */
    end_run(run);
}

/* Its state is read a second time if the first time fails: the folder may have been moved. */
TEST_WITH(models_try_twice, setup, teardown)
{
    const tke_device_ops *own = device->ops;
    char *saved = tiny_folder();
    for (int failures = 0; failures < 3; failures++) {
        char name[8];
        tinkc_error err = { 0 };
        tke_state *kept = tke_state_take(source, &err);
        const tke_adapter_save how = { .base_name = "tiny", .dtype = TKE_F32 };
        assert_true(kept && tke_state_write(kept, saved, &how, &err));
        tke_state_free(kept);
        snprintf(name, sizeof name, "t%d", failures);
        tke_run *run = new_run(name);
        run->source = tke_copy(&svc, saved, &err);
        tke_device_ops ops = *own;
        ops.block_write = failing_write;
        ops.block_host = no_host;
        device->ops = &ops;
        n_writes = n_failures = n_taken = 0;
        tke_adapter_free(tke_adapter_new(device, base.model, &spec, &err));
        n_taken = n_writes; /* a new one needs these */
        n_failures = failures;
        n_writes = 0;
        bool awake = tke_work_wake(&svc, run, false, &err);
        device->ops = own;
        assert_int_equal(awake, failures < 2);
        assert_int_equal(err.code, failures < 2 ? TINKC_OK : TINKC_E_STORE);
        if (awake)
            end_run(run);
    }
    tiny_model_remove(saved);
}

/* No room: false without an error, and an idle model is asked to sleep, one for each that waits. */
TEST_WITH(models_without_room, setup, teardown)
{
    tinkc_error err = { 0 };
    tke_run *run = new_run("r"), *idle = new_run("idle"), *other = new_run("other");
    idle->adapter = other->adapter = source;
    idle->is.memory = other->is.memory = TKE_RUN_AWAKE;
    idle->served = 1;
    other->served = 2;
    svc.set.max_models = 2;
    assert_false(tke_work_wake(&svc, run, false, &err));
    assert_int_equal(err.code, 0);
    assert_int_equal(idle->is.memory, TKE_RUN_LEAVING);
    assert_false(tke_work_wake(&svc, run, false, &err));
    assert_int_equal(other->is.memory, TKE_RUN_AWAKE); /* one is enough */
    idle->is.memory = TKE_RUN_AWAKE;
    svc.set.max_models = 0;
    svc.set.memory_bytes = (int64_t)adapter - 1;
    assert_false(tke_work_wake(&svc, run, false, &err));
    assert_int_equal(idle->is.memory, TKE_RUN_LEAVING);
    assert_int_equal(err.code, 0);
    idle->adapter = other->adapter = NULL;
}

static const int64_t second_ns = 1000000000;

/* A model that has waited for long makes one that has work yield: the one that was served least recently,
 * unless another is about to sleep anyway. */
TEST_WITH(models_with_work_yield, setup, teardown)
{
    tinkc_error err = { 0 };
    tke_job work = { .seq = 1 };
    tke_run *waits = new_run("waits"), *made = new_run("made"), *loaded = new_run("loaded");
    tke_run *failed = new_run("failed"), *early = new_run("early"), *late = new_run("late");
    tke_run *asleep = new_run("asleep");
    tke_run *const busy[] = { made, loaded, failed, early, late };
    for (size_t i = 0; i < 5; i++) {
        busy[i]->adapter = source;
        busy[i]->queue = &work;
        busy[i]->is.memory = TKE_RUN_AWAKE;
        busy[i]->served = i;
    }
    asleep->served = 0;
    asleep->queue = &work;
    made->create = loaded->loaded = &work;
    failed->is.image = TKE_IMAGE_FAILED;
    svc.set.max_models = 5;
    waits->room_since_ns = tkc_monotonic_ns() - 3 * second_ns;
    assert_false(tke_work_wake(&svc, waits, false, &err)); /* it does not wait yet */
    assert_int_equal(early->is.memory, TKE_RUN_AWAKE);
    waits->is.memory = TKE_RUN_WAITING;
    waits->room_since_ns = tkc_monotonic_ns() + 1000 * second_ns;
    assert_false(tke_work_wake(&svc, waits, false, &err)); /* not for long */
    assert_int_equal(early->is.memory, TKE_RUN_AWAKE);
    waits->room_since_ns = tkc_monotonic_ns() - 3 * second_ns;
    late->is.memory = TKE_RUN_LEAVING;
    assert_false(tke_work_wake(&svc, waits, false, &err));
    assert_int_equal(early->is.memory, TKE_RUN_AWAKE);
    late->is.memory = TKE_RUN_AWAKE;
    assert_false(tke_work_wake(&svc, waits, false, &err));
    assert_int_equal(err.code, 0);
    assert_int_equal(early->is.memory, TKE_RUN_YIELDING);
    for (size_t i = 0; i < 5; i++) {
        if (busy[i] != early)
            assert_int_equal(busy[i]->is.memory, TKE_RUN_AWAKE);
        busy[i]->adapter = NULL;
        busy[i]->queue = busy[i]->create = busy[i]->loaded = NULL;
    }
    asleep->queue = NULL;
}

/* What a request says that waits for room, and since when. */
TEST_WITH(waiting_for_room, setup, teardown)
{
    tke_job job = { .seq = 1 };
    tke_run *run = new_run("r"), *other = new_run("other");
    svc.worker->room_changes = 7;
    tke_work_wait_room(&svc, run, &job);
    assert_true(run->is.memory == TKE_RUN_WAITING && run->room_seen == 7 && job.paused);
    assert_string_equal(job.reason, "the server's memory is taken by other models; its turn comes when one of "
                                    "them is idle or has had a while");
    int64_t since = run->room_since_ns, retry = run->room_retry_ns;
    assert_true(since > 0 && retry > since);
    run->room_since_ns = 5;
    svc.worker->room_changes = 8;
    svc.set.max_models = 1;
    other->adapter = source;
    tke_work_wait_room(&svc, run, &job);
    assert_int_equal(run->room_since_ns, 5); /* since it began */
    assert_int_equal(run->room_seen, 8);
    assert_string_equal(job.reason, "the server keeps no more models in memory (its setting max_models), and "
                                    "those have work; its turn comes when one of them is idle or has had a "
                                    "while");
    other->adapter = NULL;
}

RUN_TESTS(make_world, end_world)
