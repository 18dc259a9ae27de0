/* test_worker_files.c - what the worker writes: images of models, checkpoints with names, and what becomes
 * of both when they are replaced, deleted, or cannot be written. */
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "service/core/base_models.h"
#include "service/core/runs.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/sessions.h"
#include "service/handlers/request_decode.h"
#include "service/store/checksums.h"
#include "service/store/journal.h"
#include "service/worker/jobs.h"
#include "service/worker/run_state.h"
#include "service/worker/worker_files.h"
#include "service/worker/worker_state.h"
#include "support/engine/tiny_model.h"
#include "support/service/bare_service.h"
#include "train/adapter.h"
#include "wire/message_codec.h"

static tke_service svc;
static char *model_folder, *folder;
static tke_device *device;
static tke_base base = { .name = (char *)(uintptr_t) "tiny", .context = 32 };
static tke_run *run;

static int make_world(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    model_folder = tiny_model_make(&(tiny_model){ .family = "llama", .vocab = 64, .context = 32 });
    device = tke_device_open("cpu", &(tke_device_options){ .n_threads = 1 }, NULL, &err);
    base.model = tke_model_open(model_folder, &err);
    assert_ok(err);
    return 0;
}

static int end_world(void **state)
{
    (void)state;
    tke_model_drop(base.model);
    tke_device_close(device);
    tiny_model_remove(model_folder);
    return 0;
}

static int setup(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    folder = tiny_folder();
    bare_open(&svc, folder);
    svc.device = device;
    svc.set.memory_bytes = svc.set.snapshot_memory_bytes = 1 << 30;
    svc.set.result_spill_bytes = svc.set.max_queued_bytes = 1 << 30;
    svc.set.durability = TINKC_DURABILITY_SNAPSHOT;
    svc.set.adapter_dtype = TKE_F32;
    run = tke_run_add(&svc, "r", "me", &err);
    run->session = tke_session_add(&svc, "s", "me", &err);
    run->base = &base;
    run->base_model = tke_copy(&svc, "tiny", &err);
    run->spec = (tke_adapter_spec){ .rank = 4, .train = 7, .alpha = 32, .seed = 7 };
    run->is.life = TKE_RUN_READY;
    assert_true(tke_work_wake(&svc, run, false, &err));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tke_adapter_free(run->adapter);
    run->adapter = NULL;
    bare_close(&svc);
    tiny_model_remove(folder);
    return 0;
}

/* Until all that was begun is written and recorded. */
static void settle(void)
{
    pthread_mutex_lock(&svc.lock);
    while (svc.worker->n_file_work)
        pthread_cond_wait(&svc.idle, &svc.lock);
    pthread_mutex_unlock(&svc.lock);
    tke_store_sync(svc.store);
}

static bool is_there(const char *path)
{
    char full[600];
    snprintf(full, sizeof full, "%s/%s", folder, path);
    return access(full, F_OK) == 0;
}

/* Nothing is left of what was written under another name first. */
static bool is_tidy(void)
{
    char full[600];
    bool empty = true;
    snprintf(full, sizeof full, "%s/tmp", folder);
    DIR *dir = opendir(full);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        empty &= e->d_name[0] == '.';
    closedir(dir);
    return empty;
}

/* From here on no folder can be written; and again. */
static void break_disk(void)
{
    char full[600];
    snprintf(full, sizeof full, "%s/tmp", folder);
    assert_int_equal(rmdir(full), 0);
    tiny_write(folder, "tmp", "");
}
static void fix_disk(void)
{
    tinkc_error err = { 0 };
    char full[600];
    snprintf(full, sizeof full, "%s/tmp", folder);
    assert_int_equal(unlink(full), 0);
    assert_true(tkc_make_dirs(full, &err));
}

static bool take_text(const tke_row *row, void *user, tinkc_error *err)
{
    tkc_buf_str(user, tke_row_text(row, 0), err);
    return tkc_buf_char(user, ' ', err);
}

static void rows_are(const char *query, const char *want)
{
    tinkc_error err = { 0 };
    tkc_buf have;
    tkc_buf_init(&have, NULL, TKC_BUF_NO_MAX);
    tke_store_sync(svc.store);
    assert_true(tke_store_query(svc.store, query, take_text, &have, &err, ""));
    assert_string_equal(tkc_buf_terminate(&have, &err), want);
    tkc_buf_free(&have);
}

static tke_job *begin_save_as(int kind, int64_t seq, const char *name, bool overwrite, int64_t ttl)
{
    tinkc_error err = { 0 };
    char id[40], body[300], rest[60] = "";
    const char *ignored;
    tkc_opt_i64 number;
    if (ttl)
        snprintf(rest, sizeof rest, ",\"ttl_seconds\":%lld", (long long)ttl);
    snprintf(body, sizeof body, "{\"model_id\":\"r\",\"seq_id\":%lld,\"path\":\"%s\",\"overwrite\":%s%s}",
             (long long)seq, name, overwrite ? "true" : "false", rest);
    snprintf(id, sizeof id, "3-r:%lld", (long long)seq);
    tke_job *job = tke_job_new(&svc, kind, id, "me", &err);
    assert_true(tke_decode_job(job, tkc_str(body), false, false, &ignored, &number, &err));
    job->run = run;
    job->seq = seq;
    tke_job_keep(job);
    tke_work_save(&svc, job);
    return job;
}

static tke_job *begin_save(int64_t seq, const char *name, bool overwrite, int64_t ttl)
{
    return begin_save_as(TKE_JOB_SAVE, seq, name, overwrite, ttl);
}

/* The error, or "" */
static const char *save(int64_t seq, const char *name, bool overwrite, int64_t ttl)
{
    static char text[500];
    tke_job *job = begin_save(seq, name, overwrite, ttl);
    settle();
    assert_int_equal(job->state, TKE_DONE);
    snprintf(text, sizeof text, "%s", job->error.message);
    tke_job_drop(job);
    return text;
}

static void save_for_sampler(int64_t seq, const char *name)
{
    tke_job *job = begin_save_as(TKE_JOB_SAVE_SAMPLER, seq, name, true, 0);
    settle();
    assert_string_equal(job->error.message, "");
    tke_job_drop(job);
}

/* ---- room ---- */

static ino_t weights_file(const char *checkpoint)
{
    char full[600];
    struct stat st;
    snprintf(full, sizeof full, "%s/runs/r/%s/adapter_model.safetensors", folder, checkpoint);
    assert_int_equal(stat(full, &st), 0);
    return st.st_ino;
}

/* Training saves each step to continue from and to sample from: the same weights take their room once, whichever comes first, and
 * others are never mistaken for them. */
TEST_WITH(equal_weights_of_one_name_are_one_file, setup, teardown)
{
    tinkc_error err = { 0 };
    char full[600];
    assert_string_equal(save(1, "one", false, 0), "");
    save_for_sampler(2, "one");
    assert_int_equal(weights_file("weights/one"), weights_file("sampler_weights/one"));
    save_for_sampler(3, "two");
    assert_string_equal(save(4, "two", false, 0), "");
    assert_int_equal(weights_file("weights/two"), weights_file("sampler_weights/two"));
    assert_int_not_equal(weights_file("weights/one"), weights_file("weights/two"));
    svc.set.adapter_dtype = TKE_BF16; /* other bytes */
    save_for_sampler(5, "one");
    assert_int_not_equal(weights_file("weights/one"), weights_file("sampler_weights/one"));
    snprintf(full, sizeof full, "%s/runs/r/weights/one", folder);
    assert_true(tke_sums_check(full, &err));
    assert_true(is_tidy());
}

/* ---- images ---- */

/* Asked for when the model is before this request, and changed. */
static void write_image(int64_t next_seq)
{
    run->next_seq = next_seq;
    run->dirty_since_ms = 5;
    run->is.image = TKE_IMAGE_WANTED;
    tke_work_image(&svc, run);
    settle();
    assert_int_equal(svc.worker->n_images, 0);
}

static void image_is(int64_t seq, int32_t slot, const char *source)
{
    assert_int_equal(run->image_seq, seq);
    assert_int_equal(run->image_slot, slot);
    assert_string_equal(strrchr(run->source, '/') + 1, source);
}

TEST_WITH(images_take_turns, setup, teardown)
{
    svc.worker->room_changes = 3;
    run->n_passes = 11;
    run->n_pass_tokens = 12;
    run->n_failed_passes = 13;
    bare_now_ms = 7000;
    write_image(4);
    image_is(4, 1, "image.0");
    assert_true(run->is.image == TKE_IMAGE_IDLE && run->dirty_since_ms == 0);
    assert_true(is_there("runs/r/image.0/checkpoint_complete") && !is_there("runs/r/image.1"));
    tkc_arena arena;
    tinkc_error err = { 0 };
    tkc_arena_init(&arena, NULL, 0);
    char *path = tkc_arena_printf(&arena, &err, "%s/train_state.json", run->source);
    tinkc_bytes text = tkc_read_file(&arena, path, 1 << 20, &err);
    assert_true(tkc_starts_with(tkc_strn((const char *)text.data, text.len),
                                "{\"format\":1,\"next_seq_id\":4,\"step\":0,\"rank\":4,\"train\":7,"
                                "\"seed\":7,\"num_fwdbwd\":11,\"num_tokens\":12,"
                                "\"num_failed_fwdbwd\":13,\"created_us\":7000000,\"alpha\":32.0,"
                                "\"base_model\":\"tiny\",\"fingerprint\":\""));
    tkc_arena_free(&arena);
    write_image(5);
    image_is(5, 0, "image.1");
    assert_true(is_there("runs/r/image.1") && !is_there("runs/r/image.0"));
    write_image(6);
    image_is(6, 1, "image.0");
    assert_true(is_there("runs/r/image.0") && !is_there("runs/r/image.1"));
    assert_true(is_tidy() && svc.worker->room_changes >= 3);
    rows_are("SELECT id FROM runs", "r "); /* its row comes with it */
    /* One that was unloaded meanwhile leaves none. */
    run->is.life = TKE_RUN_UNLOADED;
    write_image(7);
    image_is(6, 1, "image.0");
    assert_true(is_tidy());
}

static void wait_at_gate(void *gate, const tinkc_error *err)
{
    (void)err;
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
}

/* An image holds what the model was when it was begun. Steps that came while it was written are not in it: it
 * counts up to where it begins, and the model has still changed since. */
TEST_WITH(an_image_does_not_hold_what_came_after_it, setup, teardown)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    tinkc_error err = { 0 };
    pthread_mutex_lock(&gate);
    tke_txn_commit(tke_txn_new(svc.store, &err), wait_at_gate, &gate); /* holds up the store's writer */
    run->next_seq = 4;
    run->dirty_since_ms = 5;
    run->is.image = TKE_IMAGE_WANTED;
    tke_work_image(&svc, run);
    pthread_mutex_lock(&svc.lock);
    run->next_seq = 6;
    run->changed_seq = 5;
    pthread_mutex_unlock(&svc.lock);
    pthread_mutex_unlock(&gate);
    settle();
    image_is(4, 1, "image.0");
    assert_int_equal(run->dirty_since_ms, 5);
}

TEST_WITH(images_that_cannot_be_written, setup, teardown)
{
    write_image(2);
    break_disk();
    bare_now_ms = 9000;
    run->is.memory = TKE_RUN_LEAVING;
    write_image(3);
    image_is(2, 1, "image.0");
    assert_int_equal(run->is.image, TKE_IMAGE_FAILED);
    assert_int_equal(run->is.memory, TKE_RUN_AWAKE); /* without an image it stays */
    assert_int_equal(run->dirty_since_ms, 9000);
    write_image(3);
    assert_int_equal(run->is.memory, TKE_RUN_AWAKE);
    fix_disk();
    write_image(4);
    image_is(4, 0, "image.1");
    /* A run whose row is refused has no image: the next start would not know whose it is. */
    tinkc_error err = { 0 };
    tke_txn *txn = tke_txn_new(svc.store, &err);
    tke_txn_exec(txn, "DELETE FROM runs", "");
    tke_txn_exec(txn, "CREATE TRIGGER no BEFORE INSERT ON runs BEGIN SELECT RAISE(ABORT, 'no'); END", "");
    tke_txn_commit(txn, NULL, NULL);
    write_image(5);
    image_is(4, 0, "image.1");
    assert_true(run->is.image == TKE_IMAGE_FAILED && is_tidy());
}

/* A load is answered with the image that has it, or when there can be none. */
TEST_WITH(loads_wait_for_their_image, setup, teardown)
{
    tinkc_error err = { 0 };
    for (int i = 1; i <= 2; i++) {
        tke_job *job = tke_job_new(&svc, TKE_JOB_LOAD, i == 1 ? "3-r:1" : "3-r:2", "me", &err);
        job->run = run;
        job->seq = i;
        assert_true(tkc_buf_cstr(&job->result, "{}", &err));
        tke_job_keep(job);
        run->loaded = job;
        if (i == 2)
            break_disk();
        write_image(i + 1);
        assert_true(job->state == TKE_DONE && !job->failed && !run->loaded);
        assert_int_equal(run->image_seq, 2);
        tke_job_drop(job);
    }
    fix_disk();
    rows_are("SELECT seq_id || '/' || kind || '/' || state || result FROM requests", "1/7/1{} 2/7/1{} ");
}

/* Which loads wait for an image: those that a restart would repeat. */
TEST_WITH(loads_that_wait_for_an_image, setup, teardown)
{
    tinkc_error err = { 0 };
    static const struct {
        int32_t level;
        bool waits;
    } rows[] = { { TINKC_DURABILITY_CHECKPOINT, false },
                 { TINKC_DURABILITY_SNAPSHOT, false },
                 { TINKC_DURABILITY_JOURNAL, true } };
    assert_string_equal(save(1, "x", false, 0), "");
    for (int64_t i = 0; i < 3; i++) {
        char id[20];
        snprintf(id, sizeof id, "3-r:%d", (int)i + 2);
        svc.set.durability = rows[i].level;
        tke_job *job = tke_job_new(&svc, TKE_JOB_LOAD, id, "me", &err);
        job->run = run;
        job->seq = i + 2;
        job->in.load.path = tkc_arena_cstr(&job->arena, "tinker://r/weights/x", &err);
        job->in.load.optimizer = true;
        tke_job_keep(job);
        run->lost_from = 1;
        run->n_passes = run->n_pass_tokens = run->n_failed_passes = 4;
        run->dirty_since_ms = 0;
        bare_now_ms = 6000;
        tke_work_load(&svc, job);
        settle();
        assert_int_equal(run->loaded == job, rows[i].waits);
        assert_int_equal(job->state == TKE_DONE, !rows[i].waits);
        assert_int_equal(run->is.image, rows[i].waits ? TKE_IMAGE_WANTED : TKE_IMAGE_IDLE);
        assert_true(!job->failed && run->lost_from == 0 && run->dirty_since_ms == 6000);
        assert_true(run->n_passes + run->n_pass_tokens + run->n_failed_passes == 0);
        if (rows[i].waits)
            write_image(5);
        assert_true(job->state == TKE_DONE && !run->loaded);
        assert_string_equal(tkc_buf_terminate(&job->result, &err),
                            "{\"path\":\"tinker://r/weights/x\",\"model_id\":\"r\",\"type\":"
                            "\"load_weights\"}");
        tke_job_drop(job);
    }
}

/* With a journal, an image makes the records of what it contains needless. */
static bool take_seq(const tke_journal_record *r, void *user, tinkc_error *err)
{
    (void)err;
    *(int64_t *)user = 10 * *(int64_t *)user + r->seq;
    return true;
}

TEST_WITH(journals_are_trimmed, setup, teardown)
{
    tinkc_error err = { 0 };
    for (int32_t level = TINKC_DURABILITY_SNAPSHOT; level <= TINKC_DURABILITY_JOURNAL; level++) {
        svc.set.durability = level;
        int64_t left = 0;
        for (int64_t i = 1; i <= 4 && level == TINKC_DURABILITY_SNAPSHOT; i++)
            assert_true(tke_journal_append(
                svc.store, "r", &(tke_journal_record){ .seq = i, .kind = TKE_JOB_OPTIM, .body = tkc_str("{}") }, &err));
        write_image(3);
        assert_true(tke_journal_read(svc.store, "r", take_seq, &left, &err));
        assert_int_equal(left, level == TINKC_DURABILITY_JOURNAL ? 34 : 1234);
    }
}

/* ---- checkpoints ---- */

static tke_checkpoint *find(const char *name)
{
    char path[100];
    snprintf(path, sizeof path, "tinker://r/weights/%s", name);
    return tke_find_checkpoint(&svc, path, NULL);
}

TEST_WITH(checkpoints_are_saved, setup, teardown)
{
    bare_now_ms = 8000;
    assert_string_equal(save(1, "x", false, 0), "");
    tke_checkpoint *x = find("x");
    assert_true(x && x->state == TKE_CKPT_DONE && x->seq_id == 1 && x->created_us == 8000000);
    assert_true(x->bytes > 1000 && x->expires_us == 0);
    assert_string_equal(save(2, "x", false, 0), "Checkpoint 'weights/x' already exists");
    assert_ptr_equal(find("x"), x);
    assert_string_equal(save(3, "x", true, 100), "");
    tke_checkpoint *newer = find("x");
    assert_true(newer && newer != x && newer->seq_id == 3 && x->state == TKE_CKPT_GONE);
    assert_int_equal(newer->expires_us, 8000000 + 100000000);
    assert_true(is_tidy());
    break_disk();
    assert_true(strstr(save(4, "x", true, 0), "tmp"));
    assert_true(*save(5, "y", false, 0) != '\0');
    fix_disk();
    assert_ptr_equal(find("x"), newer); /* it is as before */
    assert_true(newer->state == TKE_CKPT_DONE && !find("y"));
    assert_true(is_there("runs/r/weights/x/checkpoint_complete") && !is_there("runs/r/weights/y"));
    assert_string_equal(save(3, "x", false, 0), ""); /* repeated after a crash: it is there */
    assert_ptr_equal(find("x"), newer);
    rows_are("SELECT name || seq_id || '/' || expires_us FROM checkpoints", "x3/108000000 ");
    rows_are("SELECT seq_id || '/' || state FROM requests", "1/1 2/2 3/1 4/2 5/2 ");
}

/* The row and the folder come together, or neither. */
TEST_WITH(checkpoints_without_a_row, setup, teardown)
{
    tinkc_error err = { 0 };
    assert_string_equal(save(1, "x", false, 0), "");
    tke_txn *txn = tke_txn_new(svc.store, &err);
    tke_txn_exec(txn, "CREATE TRIGGER no BEFORE INSERT ON checkpoints BEGIN SELECT RAISE(ABORT, 'no'); END", "");
    tke_txn_commit(txn, NULL, NULL);
    const tke_checkpoint *x = find("x");
    assert_true(*save(2, "x", true, 0) != '\0');
    assert_true(*save(3, "y", false, 0) != '\0');
    assert_true(find("x") == x && x->state == TKE_CKPT_DONE && !find("y"));
    assert_true(is_there("runs/r/weights/x/checkpoint_complete") && !is_there("runs/r/weights/y"));
    assert_true(is_tidy());
}

/* Of more than keep_last_k the oldest go; public ones and other kinds do not count. */
TEST_WITH(the_last_are_kept, setup, teardown)
{
    for (int64_t i = 1; i <= 3; i++) {
        char name[10];
        snprintf(name, sizeof name, "c%d", (int)i);
        bare_now_ms = 10000 - 1000 * i; /* the clock may be set back: the newest number is the oldest */
        assert_string_equal(save(i, name, false, 0), "");
    }
    find("c3")->is_public = true;
    svc.set.keep_last_k = 2;
    bare_now_ms = 20000;
    assert_string_equal(save(4, "c4", false, 0), "");
    assert_true(find("c1") && !find("c2") && find("c3") && find("c4"));
    assert_true(is_there("runs/r/weights/c1") && !is_there("runs/r/weights/c2"));
    rows_are("SELECT name FROM checkpoints ORDER BY name", "c1 c3 c4 ");
    assert_true(is_tidy());
}

static void delete_it(const char *name)
{
    tke_checkpoint *c = find(name);
    assert_non_null(c);
    pthread_mutex_lock(&svc.lock);
    tke_checkpoint_remove(&svc, c);
    pthread_mutex_unlock(&svc.lock);
    tke_checkpoint_delete(&svc, c, NULL);
    settle();
}

/* What a model continues from becomes its image; anything else is removed. */
TEST_WITH(checkpoints_are_deleted, setup, teardown)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    static const char *const names[] = { "a", "b", "c", "f", "d", "e" };
    for (int64_t i = 0; i < 6; i++)
        assert_string_equal(save(i + 1, names[i], false, 0), "");
    delete_it("a");
    assert_true(!find("a") && !is_there("runs/r/weights/a") && !is_there("runs/r/image.0"));
    static const struct {
        const char *name;
        int32_t slot;
        tke_run_life life;
        tke_run_image image;
        const char *becomes;
        int32_t next_slot;
    } rows[] = {
        { "b", 0, TKE_RUN_READY, TKE_IMAGE_IDLE, "image.0", 1 },
        { "c", 1, TKE_RUN_READY, TKE_IMAGE_WANTED, "image.1", 0 },
        { "f", 0, TKE_RUN_READY, TKE_IMAGE_IDLE, "image.0", 1 }, /* in place of the first */
        { "d", 0, TKE_RUN_UNLOADED, TKE_IMAGE_IDLE, "d", 0 },
        { "e", 0, TKE_RUN_READY, TKE_IMAGE_WRITING, "image.1", 0 }, /* beside the one being written */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (run->source)
            tkc_release_str(NULL, run->source);
        char *path = tke_checkpoint_folder(&svc, &arena, "r", TKE_CKPT_TRAINING, rows[i].name, &err);
        run->source = tke_copy(&svc, path, &err);
        run->image_slot = rows[i].slot;
        run->is.life = rows[i].life;
        run->is.image = rows[i].image;
        delete_it(rows[i].name);
        assert_false(tkc_is_dir(path));
        assert_string_equal(strrchr(run->source, '/') + 1, rows[i].becomes);
        assert_int_equal(run->image_slot, rows[i].next_slot);
        assert_int_equal(tkc_is_dir(run->source), rows[i].life == TKE_RUN_READY);
    }
    run->is.image = TKE_IMAGE_IDLE;
    rows_are("SELECT name FROM checkpoints", "");
    assert_true(is_tidy());
    tkc_arena_free(&arena);
}

/* ---- what a run continues from ---- */

static void save_at(int64_t seq, const char *name)
{
    run->next_seq = seq + 1;
    assert_string_equal(save(seq, name, true, 0), "");
}

TEST_WITH(a_saved_state_takes_the_place_of_images, setup, teardown)
{
    write_image(3);
    run->dirty_since_ms = 5;
    run->changed_seq = 3;
    save_at(4, "one");
    assert_string_equal(strrchr(run->source, '/') + 1, "one");
    assert_true(!is_there("runs/r/image.0") && !is_there("runs/r/image.1") && is_tidy());
    assert_int_equal(run->dirty_since_ms, 0);
    write_image(6); /* newer than what was saved */
    image_is(6, 0, "image.1");
    assert_false(is_there("runs/r/image.0"));
}

/* A step that came while it was written is not in it. */
TEST_WITH(a_saved_state_does_not_hold_what_came_after_it, setup, teardown)
{
    run->dirty_since_ms = 5;
    run->changed_seq = 6;
    save_at(4, "one");
    assert_string_equal(strrchr(run->source, '/') + 1, "one");
    assert_int_equal(run->dirty_since_ms, 5);
}

/* Until the new one is recorded, the old one is what the run continues from. */
TEST_WITH(a_state_that_is_replaced_is_kept_until_the_new_one_is_recorded, setup, teardown)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    tinkc_error err = { 0 };
    save_at(2, "one");
    char *before = strdup(run->source);
    pthread_mutex_lock(&gate);
    tke_txn_commit(tke_txn_new(svc.store, &err), wait_at_gate, &gate);
    run->next_seq = 5;
    tke_job *job = begin_save(4, "one", true, 0);
    wait_until(is_there("runs/r/image.0/checkpoint_complete"));
    pthread_mutex_unlock(&gate);
    settle();
    tke_job_drop(job);
    assert_string_equal(run->source, before); /* the new one of this name */
    assert_int_equal(run->image_seq, 5);
    assert_true(!is_there("runs/r/image.0") && is_tidy());
    free(before);
}

TEST_WITH(an_older_state_never_replaces_a_newer_one, setup, teardown)
{
    write_image(9);
    save_at(4, "late");
    image_is(9, 1, "image.0");
    assert_true(is_there("runs/r/image.0") && is_there("runs/r/weights/late"));
}

RUN_TESTS(make_world, end_world)
