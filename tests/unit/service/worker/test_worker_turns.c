/* test_worker_turns.c - what the worker does next: whose turn it is, which passes share one work item,
 * and who must wait for what. The worker takes one step at a time, on the test's own thread. */
#include "base/file.h"
#include "infer/infer.h"
#include "service/core/registry_state.h"
#include "service/core/base_models.h"
#include "service/core/runs.h"
#include "service/core/samplers.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/sessions.h"
#include "service/handlers/futures_poll.h"
#include "service/handlers/request_decode.h"
#include "service/worker/jobs.h"
#include "service/worker/results.h"
#include "service/worker/run_queue.h"
#include "service/worker/run_state.h"
#include "service/worker/worker.h"
#include "service/worker/worker_files.h"
#include "service/worker/worker_memory.h"
#include "service/worker/worker_state.h"
#include "support/engine/tiny_model.h"
#include "support/service/bare_service.h"
#include "train/adapter.h"
#include "train/adapter_state.h"
#include "train/training.h"
#include "wire/message_codec.h"

static tke_service svc;
static char *folder;
static tke_device *device;
static tke_model *model;
static tke_base base = { .name = (char *)(uintptr_t) "tiny" }, other_base;
static tke_run *a, *b, *c;

static int make_world(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    folder = tiny_model_make(&(tiny_model){ .family = "llama", .vocab = 64, .context = 32 });
    device = tke_device_open("cpu", &(tke_device_options){ .n_threads = 1 }, NULL, &err);
    model = tke_model_open(folder, &err);
    assert_ok(err);
    return 0;
}

static int end_world(void **state)
{
    (void)state;
    tke_model_drop(model);
    tke_device_close(device);
    tiny_model_remove(folder);
    return 0;
}

static tke_run *new_run(const char *id)
{
    tinkc_error err = { 0 };
    tke_run *run = tke_run_add(&svc, id, "me", &err);
    assert_ok(err);
    run->session = tke_find_session(&svc, "s");
    run->base = &base;
    run->base_model = tke_copy(&svc, "tiny", &err);
    run->spec = (tke_adapter_spec){ .rank = 4, .train = 7, .alpha = 32, .seed = 7 };
    run->is.life = TKE_RUN_READY;
    return run;
}

static int setup(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    bare_open(&svc, NULL);
    svc.device = device;
    svc.stop = true; /* after one step */
    svc.set.memory_bytes = 1 << 30;
    svc.set.train_memory_bytes = 1 << 26;
    svc.set.microbatch_tokens = 1000;
    svc.set.result_store_bytes = svc.set.result_spill_bytes = 1 << 30;
    svc.set.max_queued_bytes = svc.set.max_queued_tokens = 1 << 24;
    svc.set.durability = TINKC_DURABILITY_CHECKPOINT;
    base.model = other_base.model = model;
    base.context = other_base.context = 32;
    assert_true(tkc_map_set(&svc.registry->of[TKE_BASES], tkc_str("tiny"), &base, NULL, &err));
    assert_non_null(tke_session_add(&svc, "s", "me", &err));
    a = new_run("a");
    b = new_run("b");
    c = new_run("c");
    return 0;
}

static void end_base(tke_base *one)
{
    tke_infer_free(one->infer);
    one->infer = NULL;
    tke_trainer_free(one->trainer);
    if (one->loaded)
        device->ops->model_free(one->loaded);
    one->trainer = NULL;
    one->loaded = NULL;
}

static int teardown(void **state)
{
    (void)state;
    tke_run *run;
    for (size_t at = 0; (run = tke_next_run(&svc, &at));) {
        while (run->queue) {
            tke_job *job = run->queue;
            run->queue = job->next;
            tke_job_drop(job);
        }
        tke_adapter_free(run->adapter);
        run->adapter = NULL;
    }
    (void)tkc_map_remove(&svc.registry->of[TKE_BASES], tkc_str("tiny"));
    end_base(&base);
    end_base(&other_base);
    bare_close(&svc);
    return 0;
}

/* A request as it arrives: kind 'p' (a pass over three tokens), 'f' (the same, forward only), 'o', 'l' */
static tke_job *put(tke_run *run, char kind, int64_t seq)
{
    tinkc_error err = { 0 };
    char id[40], body[500];
    const char *ignored;
    tkc_opt_i64 number;
    static const char data[] =
        "{\"loss_fn\":\"cross_entropy\",\"data\":[{\"model_input\":{\"chunks\":[{\"type\":"
        "\"encoded_text\","
        "\"tokens\":[1,2,3]}]},\"loss_fn_inputs\":{\"target_tokens\":{\"data\":[2,3,4],\"dtype\":"
        "\"int64\"},\"weights\":{\"data\":[1,1,1],\"dtype\":\"float32\"}}}]}";
    int n = snprintf(body, sizeof body, "{\"model_id\":\"%s\",\"seq_id\":%lld,", run->id, (long long)seq);
    if (kind == 'p' || kind == 'f')
        snprintf(body + n, sizeof body - (size_t)n, "\"%s\":%s}",
                 kind == 'f' ? "forward_input" : "forward_backward_input", data);
    else
        snprintf(body + n, sizeof body - (size_t)n, "%s}",
                 kind == 'o' ? "\"adam_params\":{\"learning_rate\":0.01}"
                             : "\"path\":\"tinker://a/weights/w\",\"optimizer\":true");
    snprintf(id, sizeof id, "3-%s:%lld", run->id, (long long)seq);
    tke_job *job = tke_job_new(&svc,
                               kind == 'p'   ? TKE_JOB_PASS
                               : kind == 'f' ? TKE_JOB_FORWARD
                               : kind == 'o' ? TKE_JOB_OPTIM
                                             : TKE_JOB_LOAD,
                               id, "me", &err);
    assert_true(tke_decode_job(job, tkc_str(body), false, kind == 'f', &ignored, &number, &err));
    job->run = run;
    job->seq = seq;
    if (atomic_load(&run->base))
        tke_check_job(job, run);
    assert_string_equal(job->invalid.message, "");
    assert_true(tke_job_publish(job, &err));
    tke_run_insert(run, job);
    return job;
}

static void put_all(tke_run *run, const char *kinds, int64_t from)
{
    for (size_t i = 0; kinds[i]; i++)
        put(run, kinds[i], from + (int64_t)i);
}

/* One step; then the next number of each run. */
static void step(int64_t next_a, int64_t next_b, int64_t next_c)
{
    tke_worker_main(&svc);
    if (a->next_seq != next_a || b->next_seq != next_b || c->next_seq != next_c)
        fail_msg("next are %lld, %lld, %lld", (long long)a->next_seq, (long long)b->next_seq, (long long)c->next_seq);
}

/* ---- whose turn it is ---- */

/* The run that was served least recently; of one run in the order of its numbers. */
TEST_WITH(turns_go_around, setup, teardown)
{
    put_all(c, "ooo", 1);
    put_all(a, "oo", 1);
    put_all(b, "ooo", 1);
    step(2, 1, 1);
    step(2, 2, 1);
    step(2, 2, 2);
    step(3, 2, 2);
    step(3, 3, 2);
    put_all(a, "o", 3);
    step(3, 3, 3);
    step(4, 3, 3);
    step(4, 4, 3);
    step(4, 4, 4);
    step(4, 4, 4); /* nothing is left */
}

/* ---- passes that share a work item ---- */

TEST_WITH(passes_share_a_work_item, setup, teardown)
{
    svc.set.microbatch_tokens = 6; /* two passes */
    put_all(a, "pppppop", 1);
    step(3, 1, 1);
    step(5, 1, 1);
    step(6, 1, 1); /* up to what is not a pass */
    step(7, 1, 1);
    step(8, 1, 1);
    svc.set.microbatch_tokens = 7; /* what is begun is taken whole */
    put_all(a, "pppp", 8);
    step(11, 1, 1);
    svc.set.microbatch_tokens = 1;
    put_all(a, "pf", 12);
    step(12, 1, 1);
    step(13, 1, 1);
    svc.set.microbatch_tokens = 1000;
    put_all(a, "fp", 14);
    step(16, 1, 1);                   /* passes with and without gradients */
    assert_int_equal(a->n_passes, 7); /* since the step */
}

/* One that is refused before they run takes nobody else's result. */
TEST_WITH(a_refused_pass_leaves_the_others_theirs, setup, teardown)
{
    tke_job *jobs[4];
    for (int i = 0; i < 4; i++)
        tke_job_keep(jobs[i] = put(a, i % 2 ? 'f' : 'p', i + 1));
    tkc_fail(&jobs[1]->invalid, TINKC_E_BAD_REQUEST, "refused");
    step(5, 1, 1);
    for (int i = 0; i < 4; i++) {
        assert_true(jobs[i]->state == TKE_DONE && jobs[i]->failed == (i == 1));
        tke_job_drop(jobs[i]);
    }
    assert_int_equal(a->n_passes, 2);
    assert_int_equal(a->n_failed_passes, 0); /* it had no gradients */
}

/* Runs have even shares, and none less than one pass. */
TEST_WITH(runs_share_a_work_item, setup, teardown)
{
    tinkc_error err = { 0 };
    for (int i = 0; i < 3; i++)
        assert_true(tke_work_wake(&svc, i == 0 ? a : i == 1 ? b : c, false, &err));
    svc.set.microbatch_tokens = 12;
    put_all(a, "pppp", 1);
    put_all(b, "pppp", 1);
    put_all(c, "op", 1);
    step(3, 3, 1); /* two of each; the step of c is not one of them */
    step(3, 3, 2);
    svc.set.microbatch_tokens = 9; /* now there are three */
    step(4, 4, 3);
    svc.set.microbatch_tokens = 1;
    put_all(c, "p", 3);
    step(5, 5, 4);
    /* What cannot run has no share. */
    svc.set.microbatch_tokens = 6;
    put_all(a, "pp", 5);
    put_all(b, "pp", 5);
    tke_job waits = { .seq = 0 };
    b->loaded = &waits;
    step(7, 5, 4);
    b->loaded = NULL;
    step(7, 7, 4);
}

/* Those of another base model, and of models that sleep, come in a work item of their own. */
TEST_WITH(base_models_do_not_share, setup, teardown)
{
    tinkc_error err = { 0 };
    b->base = &other_base;
    assert_true(tke_work_wake(&svc, a, false, &err));
    assert_true(tke_work_wake(&svc, b, false, &err));
    put_all(a, "p", 1);
    put_all(b, "p", 1);
    put_all(c, "p", 1);
    step(2, 1, 1);
    step(2, 2, 1);
    step(2, 2, 2); /* it was asleep */
    assert_non_null(c->adapter);
}

TEST_WITH(a_work_item_is_full, setup, teardown)
{
    tinkc_error err = { 0 };
    assert_true(tke_work_wake(&svc, a, false, &err));
    assert_true(tke_work_wake(&svc, b, false, &err));
    for (int64_t i = 1; i <= 70; i++)
        put(a, 'p', i);
    put_all(b, "p", 1);
    step(65, 1, 1);
    step(71, 2, 1);
    for (int64_t i = 71; i <= 133; i++)
        put(a, 'p', i);
    svc.set.microbatch_tokens = 100000;
    put_all(b, "pp", 2);
    c->served = 0;
    b->served = 1; /* before a */
    step(133, 4, 1);
    for (int64_t i = 134; i <= 195; i++)
        put(a, 'p', i);
    put_all(b, "p", 4); /* the last place is for it */
    a->served = 0;
    step(196, 5, 1);
}

/* ---- who must wait ---- */

TEST_WITH(who_must_wait, setup, teardown)
{
    tke_job load = { .seq = 0 };
    put_all(a, "ooooooo", 1);
    a->loaded = &load; /* an image of what was loaded is being written */
    step(1, 1, 1);
    a->loaded = NULL;
    a->queue->held = true;
    step(1, 1, 1);
    a->queue->held = false;
    a->is.image = TKE_IMAGE_WRITING; /* of a model that has left: its state is not on disk yet */
    step(1, 1, 1);
    a->is.image = TKE_IMAGE_IDLE;
    a->is.memory = TKE_RUN_WAITING; /* for room, which has not changed */
    svc.worker->room_changes = a->room_seen = 5;
    a->room_retry_ns = INT64_MAX;
    step(1, 1, 1);
    svc.worker->room_changes = 6;
    step(2, 1, 1);
    assert_int_equal(a->is.memory, TKE_RUN_AWAKE);
    a->is.image = TKE_IMAGE_WRITING; /* it is in memory: no matter */
    step(3, 1, 1);
    a->is.image = TKE_IMAGE_IDLE;
    a->room_seen = 6;
    step(4, 1, 1);
    a->is.memory = TKE_RUN_YIELDING;
    a->dirty_since_ms = 0; /* all of it is on disk: it goes */
    step(4, 1, 1);
    assert_true(!a->adapter && a->is.memory == TKE_RUN_ASLEEP && a->queue);
    a->base = NULL;
    a->queue->replayed = true; /* its base model comes later */
    step(4, 1, 1);
    a->queue->replayed = false; /* a new request says so */
    tke_job *job = a->queue;
    tke_job_keep(job);
    step(5, 1, 1);
    assert_string_equal(job->error.message, "the base model 'tiny' is not available here now");
    tke_job_drop(job);
    a->base = &base;
    a->queue->replayed = true;
    step(6, 1, 1);
}

/* An unload needs no model in memory, and leaves none. */
TEST_WITH(models_are_unloaded, setup, teardown)
{
    tinkc_error err = { 0 };
    assert_true(tke_work_wake(&svc, a, false, &err));
    for (int i = 0; i < 2; i++) {
        tke_run *run = i ? b : a;
        tke_job *job = tke_job_new(&svc, TKE_JOB_UNLOAD, run->id, "me", &err);
        job->run = run;
        tke_job_keep(job);
        run->is.life = TKE_RUN_UNLOADING;
        run->dirty_since_ms = 5;
        tke_run_insert(run, job);
        step(1, 1, 1);
        tke_store_sync(svc.store);
        assert_true(job->state == TKE_DONE && !job->failed);
        assert_string_equal(tkc_buf_terminate(&job->result, &err),
                            i ? "{\"model_id\":\"b\",\"type\":\"unload_model\"}"
                              : "{\"model_id\":\"a\",\"type\":\"unload_model\"}");
        assert_true(!run->adapter && run->is.life == TKE_RUN_UNLOADED && !run->dirty_since_ms);
        assert_int_equal(svc.held.bytes[TKE_HELD_ADAPTERS], 0);
        tke_job_drop(job);
    }
}

/* A load of a checkpoint that is being written. */
TEST_WITH(loads_wait_for_files, setup, teardown)
{
    tinkc_error err = { 0 };
    tke_checkpoint *w = tke_checkpoint_add(&svc, "a", TKE_CKPT_TRAINING, "w", &err);
    put_all(b, "l", 1);
    step(1, 1, 1);
    tke_checkpoint_restore(&svc, w, NULL); /* it could not be */
    tke_job *job = b->queue;
    tke_job_keep(job);
    step(1, 2, 1);
    assert_string_equal(job->error.message, "Checkpoint 'tinker://a/weights/w' does not exist");
    tke_job_drop(job);
}

/* Passes wait while results that were not fetched fill the room for them; other requests do not. */
TEST_WITH(passes_wait_for_results, setup, teardown)
{
    svc.set.result_store_bytes = 100;
    svc.results->bytes = 101;
    put_all(a, "p", 1);
    put_all(b, "o", 1);
    step(1, 2, 1);
    assert_true(a->queue->paused);
    assert_string_equal(a->queue->reason, "results that were not fetched yet take all the room there is for results");
    svc.results->bytes = 100;
    tke_job *job = a->queue;
    step(2, 2, 1);
    assert_true(!job->paused && !job->reason);
    svc.results->bytes -= 100;
}

/* A request that finds no room says so, and the next step is another's. */
TEST_WITH(requests_without_room, setup, teardown)
{
    tinkc_error err = { 0 };
    assert_true(tke_work_wake(&svc, b, false, &err));
    svc.set.max_models = 1;
    put_all(a, "o", 1);
    put_all(b, "oo", 1);
    tke_job *job = a->queue;
    step(1, 1, 1);
    assert_true(job->paused && job->reason && a->is.memory == TKE_RUN_WAITING);
    a->room_retry_ns = INT64_MAX; /* however long the test takes */
    step(1, 2, 1);
    step(1, 3, 1); /* b is idle now; a looks again soon */
    a->room_retry_ns = 0;
    step(1, 3, 1);
    assert_int_equal(b->is.memory, TKE_RUN_LEAVING);
    b->dirty_since_ms = 0;
    a->room_retry_ns = INT64_MAX;
    step(1, 3, 1);
    assert_true(!b->adapter && b->is.memory == TKE_RUN_ASLEEP);
    step(2, 3, 1);
    assert_true(!job->paused && !job->reason && a->adapter);
}

/* A state that cannot be read: a load may replace it, and only a load. */
TEST_WITH(states_that_cannot_be_read, setup, teardown)
{
    tinkc_error err = { 0 };
    a->source = tke_copy(&svc, "/nowhere", &err);
    put_all(a, "olo", 1);
    tke_job *job = a->queue;
    tke_job_keep(job);
    step(2, 1, 1);
    assert_true(job->failed && !a->adapter && !a->corrupted);
    assert_true(strstr(job->error.message, "the stored state of this run cannot be read"));
    tke_job_drop(job);
    step(3, 1, 1); /* its checkpoint does not exist either */
    assert_true(a->adapter && a->corrupted && a->lost_from == 2 && a->lost_after == 0);
    job = a->queue;
    tke_job_keep(job);
    step(4, 1, 1);
    assert_string_equal(job->error.message, "the server stopped suddenly and requests from seq_id 2 on were lost; this "
                                            "run is back at its state after seq_id 0; load a checkpoint (load_weights) "
                                            "to continue");
    tke_job_drop(job);
}

/* ---- samples ---- */

/* Of a prompt of three tokens, in the queue; the caller has a reference. */
static tke_job *sample(const char *id, size_t max_tokens)
{
    static const int32_t prompt[] = { 1, 2, 3 };
    tinkc_error err = { 0 };
    tke_job *job = tke_job_new(&svc, TKE_JOB_SAMPLE, id, "me", &err);
    assert_ok(err);
    tke_job_keep(job);
    job->in.sample.base = &base;
    job->in.sample.gen = (tke_gen_request){ .prompt = prompt,
                                            .n_prompt = 3,
                                            .n_samples = 1,
                                            .max_tokens = max_tokens,
                                            .rule = { .temperature = 1, .top_p = 1 },
                                            .never_stop = true };
    svc.worker->n_samples++;
    svc.worker->n_sample_tokens += 3;
    *svc.worker->samples_end = job;
    svc.worker->samples_end = &job->next;
    return job;
}

static void is_sampled(tke_job *job, const char *error)
{
    assert_int_equal(job->state, TKE_DONE);
    assert_string_equal(job->error.message, error);
    assert_int_equal(job->failed, *error != '\0');
    assert_true(job->failed || (job->result_is_pb && job->result.len > 0));
    tke_job_drop(job);
    assert_true(svc.worker->n_samples == 0 && svc.worker->n_sample_tokens == 0 && !svc.worker->generating &&
                !svc.worker->samples);
}

static void prepare_samples(void)
{
    svc.set.kv_bytes = 1 << 22;
    svc.set.prefill_chunk = 64;
    svc.set.snapshot_memory_bytes = 1 << 28;
    svc.set.train_share = 0.5;
}

#define STOPPING "the server is stopping"

TEST_WITH(samples_are_drawn, setup, teardown)
{
    prepare_samples();
    tke_job *one = sample("1", 1), *many = sample("2", 20), *cancelled = sample("3", 1);
    cancelled->in.sample.cancelled = true;
    svc.polls->n_samples_done = 7;
    step(1, 1, 1);
    uint64_t tenant = one->in.sample.gen.tenant; /* the same for all of an owner */
    assert_true(tenant != 0 && many->in.sample.gen.tenant == tenant);
    is_sampled(cancelled, "the sample was cancelled");
    assert_true(svc.counters.sample_steps > 0);
    is_sampled(one, "");
    assert_true(many->failed); /* it was under way when the worker ended */
    is_sampled(many, "the sample was cancelled");
    assert_true(svc.counters.tokens_sampled >= 1 && svc.counters.tokens_prefilled >= 3);
    assert_int_equal(svc.polls->n_samples_done, 10);
}

/* Which weights a sample is drawn from, and why it cannot be. */
TEST_WITH(weights_of_samples, setup, teardown)
{
    tinkc_error err = { 0 };
    char path[500];
    prepare_samples();
    tke_checkpoint *w = tke_checkpoint_add(&svc, "a", TKE_CKPT_SAMPLER, "w", &err);
    tke_job *job = sample("1", 1);
    job->in.sample.checkpoint = w;
    step(1, 1, 1); /* it is being written: the sample waits, here to the end */
    is_sampled(job, STOPPING);
    w->state = TKE_CKPT_GONE;
    job = sample("2", 1);
    job->in.sample.checkpoint = w;
    step(1, 1, 1);
    is_sampled(job, "Checkpoint 'tinker://a/sampler_weights/w' was deleted");
    w->state = TKE_CKPT_DONE;
    job = sample("3", 1);
    job->in.sample.checkpoint = w;
    step(1, 1, 1); /* its folder is not there */
    assert_true(job->failed && !w->snapshot && svc.held.bytes[TKE_HELD_SNAPSHOTS] == 0);
    tke_job_drop(job);
    tke_sampler *s = tke_sampler_add(&svc, "x", "me", &err);
    s->session = tke_find_session(&svc, "s");
    s->ephemeral = true;
    bare_now_ms = 7000;
    for (int i = 0; i < 2; i++) {
        job = sample("4", 1);
        job->in.sample.sampler = s;
        s->session->pins++;
        step(1, 1, 1);
        if (i == 0)
            is_sampled(job, "the weights of this sampling session are gone: it was not used for long, "
                            "or many newer ones were made; save under a name what is needed for "
                            "longer");
        assert_int_equal(s->used_ms, 7000);
        if (i == 1)
            is_sampled(job, "");
        assert_int_equal(s->session->pins, 0);
        /* On disk: they are read once, and kept. */
        assert_true(i || tke_work_wake(&svc, a, false, &err));
        tke_snapshot *taken = tke_snapshot_take(a->adapter, &err);
        snprintf(path, sizeof path, "%s/saved", folder);
        assert_true(i || tkc_make_dirs(path, &err));
        assert_true(i || tke_snapshot_write(taken, path, &(tke_adapter_save){ .base_name = "tiny" }, &err));
        assert_ok(err);
        if (i == 0)
            s->spill = tke_copy(&svc, path, &err);
        else
            assert_int_equal(svc.held.bytes[TKE_HELD_SNAPSHOTS], tke_snapshot_bytes(taken));
        assert_int_equal(s->snapshot != NULL, i == 1);
        tke_snapshot_drop(taken);
        if (i == 1)
            break;
    }
    tkc_release_str(NULL, s->spill); /* from memory, then */
    s->spill = NULL;
    job = sample("5", 1);
    job->in.sample.sampler = s;
    s->session->pins++;
    step(1, 1, 1);
    is_sampled(job, "");
}

/* Training and sampling have their shares of the time; what one leaves unused is not kept for it. */
TEST_WITH(training_and_sampling_take_turns, setup, teardown)
{
    prepare_samples();
    put_all(a, "ooo", 1);
    tke_job *job = sample("1", 1);
    step(2, 1, 1); /* training first */
    assert_true(svc.worker->train_ns > 0 && svc.worker->sample_ns == 0);
    is_sampled(job, "the sample was cancelled"); /* it has begun, at least */
    job = sample("2", 1);
    svc.worker->train_ns = 1000;
    svc.worker->sample_ns = 999;
    step(2, 1, 1); /* training has had more */
    is_sampled(job, "");
    assert_true(svc.worker->train_ns == 1000 && svc.worker->sample_ns > 999);
    job = sample("3", 1);
    svc.worker->train_ns = svc.worker->sample_ns = INT64_MAX / 4;
    step(3, 1, 1);
    tke_job_drop(job);
    assert_true(svc.worker->train_ns > INT64_MAX / 4 && svc.worker->sample_ns == INT64_MAX / 4);
    step(4, 1, 1); /* nothing to sample: from the beginning */
    assert_true(svc.worker->train_ns < INT64_MAX / 4 && svc.worker->sample_ns == 0);
    svc.worker->train_ns = svc.worker->sample_ns = 500;
    job = sample("4", 1);
    step(4, 1, 1); /* nothing to train */
    assert_true(svc.worker->train_ns == 0 && svc.worker->sample_ns == 0);
    is_sampled(job, "");
}

/* A sample waits for a microbatch, not for the passes of a work item; training that has had less
 * than its share continues. */
TEST_WITH(samples_come_between_microbatches, setup, teardown)
{
    prepare_samples();
    svc.set.microbatch_tokens = 5; /* two passes in two microbatches */
    put_all(a, "pppp", 1);
    tke_job *job = sample("1", 1);
    step(3, 1, 1);
    is_sampled(job, "");                        /* as it would not be, had it waited for the end */
    assert_int_equal(svc.worker->sample_ns, 0); /* the second had the device alone */
    assert_int_equal(a->n_passes, 2);
    job = sample("2", 1);
    svc.set.train_share = 1; /* what training has had is never more than its share */
    step(5, 1, 1);
    is_sampled(job, "the sample was cancelled");
    assert_int_equal(a->n_passes, 4);
}

/* ---- memory ---- */

/* The pool is what the weights leave; a pass takes it from the cache, samples take it back. */
TEST_WITH(memory_is_shared, setup, teardown)
{
    tinkc_error err = { 0 };
    prepare_samples();
    svc.set.kv_bytes = svc.set.train_memory_bytes = 0;
    assert_true(tke_work_wake(&svc, a, false, &err));
    tke_job *job = sample("1", 1);
    step(1, 1, 1);
    is_sampled(job, "");
    size_t cache = tke_infer_bytes(base.infer), adapters = svc.held.bytes[TKE_HELD_ADAPTERS];
    assert_true(cache > 0 && adapters > 0);
    svc.set.memory_bytes = (int64_t)(model->n_bytes + adapters + (256 << 20));
    size_t pool = tke_work_plan(&svc, &base).pool;
    assert_int_equal(pool, 256 << 20);
    put_all(a, "p", 1);
    step(2, 1, 1);
    size_t work = tke_trainer_held(base.trainer);
    assert_true(work > 0 && tke_infer_bytes(base.infer) == cache); /* there was enough for both */
    assert_true(tke_work_cache_room(&svc, pool - cache - work));
    assert_int_equal(tke_trainer_held(base.trainer), work);
    assert_true(tke_work_cache_room(&svc, pool - cache - work + 1)); /* training gives way */
    assert_int_equal(tke_trainer_held(base.trainer), 0);
    assert_false(tke_work_cache_room(&svc, pool - cache + 1));
    svc.worker->training = &base;
    svc.worker->training_bytes = pool - cache;
    tke_work_train_room(&svc);
    assert_int_equal(tke_infer_bytes(base.infer), cache);
    svc.worker->training_bytes++;
    tke_work_train_room(&svc); /* the cache gives way */
    assert_int_equal(tke_infer_bytes(base.infer), 0);
    svc.worker->training = NULL;
}

/* A pass and samples run where only one of them has room at a time. */
TEST_WITH(nothing_is_refused_that_could_wait, setup, teardown)
{
    tinkc_error err = { 0 };
    prepare_samples();
    svc.set.kv_bytes = svc.set.train_memory_bytes = 0;
    assert_true(tke_work_wake(&svc, a, false, &err));
    put_all(a, "p", 1);
    step(2, 1, 1);
    size_t work = tke_trainer_held(base.trainer);
    svc.set.memory_bytes = (int64_t)(model->n_bytes + svc.held.bytes[TKE_HELD_ADAPTERS] + work + 1000);
    for (int64_t i = 2; i < 5; i++) {
        tke_job *job = sample("1", 1), *pass = put(a, 'p', i);
        tke_job_keep(pass);
        svc.worker->train_ns = svc.worker->sample_ns = 0;
        step(i + 1, 1, 1); /* training first */
        assert_string_equal(pass->error.message, "");
        tke_job_drop(pass);
        assert_true(job->failed); /* the worker has ended; it was begun */
        is_sampled(job, "the sample was cancelled");
        job = sample("2", 1);
        step(i + 1, 1, 1);
        is_sampled(job, "");
    }
}

RUN_TESTS(make_world, end_world)
