/* test_recovery.c - what a start makes of rows, folders and journals: where each run continues, what it
 * repeats, what it has lost. Each case is a store written by hand; what is read from it is compared as
 * text (tests/data/service_boot.txt; TINKC_UPDATE=1 writes it again). */
#include <unistd.h>

#include "base/file.h"
#include "service/core/base_models.h"
#include "service/core/runs.h"
#include "service/core/samplers.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/sessions.h"
#include "service/store/journal.h"
#include "service/store/recovery.h"
#include "service/store/unrecorded.h"
#include "service/worker/jobs.h"
#include "service/worker/results.h"
#include "service/worker/run_queue.h"
#include "service/worker/run_state.h"
#include "support/engine/tiny_model.h"
#include "support/service/bare_service.h"

static tke_service svc;
static char *folder;
static tke_txn *rows; /* that the next start finds */

static void open_world(int32_t durability)
{
    folder = tiny_folder();
    bare_open(&svc, folder);
    tinkc_error err = { 0 };
    rows = tke_txn_new(svc.store, &err);
    svc.set.lora_alpha = 24;
    svc.set.durability = durability;
}

static void close_world(void)
{
    tke_run *run;
    for (size_t at = 0; (run = tke_next_run(&svc, &at));) {
        while (run->queue) {
            tke_job *job = run->queue;
            run->queue = job->next;
            tke_job_drop(job);
        }
    }
    bare_close(&svc);
    tiny_model_remove(folder);
}

/* Rows are written together, when the service starts. */
static void sql(const char *text)
{
    tke_txn_exec(rows, text, "");
}

static void boot(void)
{
    tinkc_error err = { 0 };
    tke_txn_commit(rows, NULL, NULL);
    tke_store_sync(svc.store);
    bool ok = tke_boot(&svc, &err);
    assert_ok(err);
    assert_true(ok);
    tke_store_sync(svc.store);
    int64_t bytes = 0; /* of the results that can be fetched, and no others */
    const tke_job *job;
    for (size_t at = 0; (job = tke_next_job(&svc, &at));)
        bytes += job->result_bytes;
    assert_int_equal(svc.results->bytes, bytes);
}

static bool take_text(const tke_row *row, void *user, tinkc_error *err)
{
    (void)err;
    tinkc_str text = tke_row_text(row, 0);
    tkc_buf_str(user, text, err);
    tkc_buf_char(user, ' ', err);
    return true;
}

/* The first column of all rows, with a space behind each. */
static void rows_are(const char *query, const char *want)
{
    tinkc_error err = { 0 };
    tkc_buf have;
    tkc_buf_init(&have, NULL, TKC_BUF_NO_MAX);
    assert_true(tke_store_query(svc.store, query, take_text, &have, &err, ""));
    assert_string_equal(tkc_buf_terminate(&have, &err), want);
    tkc_buf_free(&have);
}

/* A complete folder below the store, with this text in train_state.json; NULL = without one. */
static void put_folder(const char *path, const char *text)
{
    tinkc_error err = { 0 };
    char full[600];
    snprintf(full, sizeof full, "%s/%s", folder, path);
    assert_true(tkc_make_dirs(full, &err));
    tiny_write(full, "checkpoint_complete", "");
    if (text)
        tiny_write(full, "train_state.json", text);
}

/* ---- where a run continues ---- */

enum { EPOCH = 7 }; /* in which its requests were accepted: part of their ids, also after a restart */

static const char one_session[] = "INSERT INTO sessions(id, owner, created_us) VALUES('s', 'me', 5)";

static void put_run(const char *id)
{
    char created[30];
    snprintf(created, sizeof created, "%d-%s:0", EPOCH, id);
    tke_txn_exec(rows,
                 "INSERT INTO runs(id, session_id, model_seq, base_model, rank, seed, flags, state, "
                 "corrupted, request_id) VALUES(?, 's', 0, 'tiny', 4, 7, 7, 1, 0, ?)",
                 "tt", id, created);
}

static const char kinds[] = "?cpfosSlu?x"; /* TKE_JOB_* */

static int32_t kind_of(char letter)
{
    return (int32_t)(strchr(kinds, letter) - kinds);
}

/* "2o1" = request 2, an optimizer step, whose row has state 1 */
static void put_rows(const char *run, const char *text)
{
    int seq, state, used;
    char kind, id[20], result[40];
    for (; sscanf(text, "%d%c%d%n", &seq, &kind, &state, &used) == 3; text += used) {
        const unsigned char hash[sizeof(tke_hash128)] = { (unsigned char)seq };
        snprintf(id, sizeof id, "%d-%s:%d", EPOCH, run, seq);
        snprintf(result, sizeof result, "{\"path\":\"p%d\"}", seq);
        tke_txn_exec(rows,
                     "INSERT INTO requests(run_id, seq_id, kind, hash, request_id, state, result) "
                     "VALUES(?, ?, ?, ?, ?, ?, ?)",
                     "tiibtit", run, (int64_t)seq, (int64_t)kind_of(kind), (tinkc_bytes){ hash, sizeof hash }, id,
                     (int64_t)state, result);
    }
}

/* "0:4@7" = image 0 is the state before request 4, written at time 7; "w": a named checkpoint */
static void put_states(const char *run, const char *text)
{
    char slot, path[60], state[200];
    int next, at, used;
    for (; sscanf(text, " %c:%d@%d%n", &slot, &next, &at, &used) == 3; text += used) {
        if (slot == 'w')
            snprintf(path, sizeof path, "runs/%s/weights/w", run);
        else
            snprintf(path, sizeof path, "runs/%s/image.%c", run, slot);
        snprintf(state, sizeof state,
                 "{\"next_seq_id\":%d,\"created_us\":%d,\"num_fwdbwd\":%d,\"num_tokens\":%d,"
                 "\"num_failed_fwdbwd\":%d,\"other\":[1]}",
                 next, at, 10 * next, 20 * next, 30 * next);
        put_folder(path, state);
    }
}

/* "3o" = a step with the number 3 */
static void put_journal(const char *run, const char *text)
{
    int seq, used;
    char kind, body[300];
    for (; sscanf(text, "%d%c%n", &seq, &kind, &used) == 2; text += used) {
        tinkc_error err = { 0 };
        snprintf(body, sizeof body, "{\"model_id\":\"r\",\"seq_id\":%d,%s}", seq,
                 kind == 'o'   ? "\"adam_params\":{\"learning_rate\":0.01}"
                 : kind == 'f' ? "\"forward_input\":{\"loss_fn\":\"cross_entropy\",\"data\":[]}"
                               : "\"path\":\"p\"");
        const tke_journal_record record = { .seq = seq,
                                            .kind = kind_of(kind),
                                            .epoch = EPOCH,
                                            .forward = kind == 'f',
                                            .hash = { 5, 6 },
                                            .body = tkc_str(body) };
        assert_true(tke_journal_append(svc.store, run, &record, &err));
    }
}

/* The state of a run as one line. */
static const char *state_of(tke_run *run)
{
    static char text[1000];
    size_t n = 0, room = sizeof text;
    n += (size_t)snprintf(text + n, room - n, "next %lld, image %lld, slot %d, from %s, passes %lld %lld %lld",
                          (long long)run->next_seq, (long long)run->image_seq, (int)run->image_slot,
                          run->source ? strrchr(run->source, '/') + 1 : "seed", (long long)run->n_passes,
                          (long long)run->n_pass_tokens, (long long)run->n_failed_passes);
    n += (size_t)snprintf(text + n, room - n, ", seen ");
    for (int64_t i = 1; tke_run_seen(run, i); i++)
        text[n++] = "-pdltr"[tke_run_seen(run, i)->state];
    n += (size_t)snprintf(text + n, room - n, ", queue");
    for (const tke_job *job = run->queue; job; job = job->next)
        n += (size_t)snprintf(text + n, room - n, " %lld%c%s", (long long)job->seq, kinds[job->kind],
                              job->invalid.code ? "!" : "");
    if (run->lost_from || run->corrupted)
        n += (size_t)snprintf(text + n, room - n, ", lost from %lld after %lld%s", (long long)run->lost_from,
                              (long long)run->lost_after, run->corrupted ? ", corrupted" : "");
    n += (size_t)snprintf(text + n, room - n, ", results");
    for (int64_t i = 0; i <= (int64_t)run->n_seen; i++) {
        char id[40];
        snprintf(id, sizeof id, "%d-%s:%lld", EPOCH, run->id, (long long)i);
        const tke_job *job = tke_find_job(&svc, id);
        if (job && job->state == TKE_DONE)
            n += (size_t)snprintf(text + n, room - n, " %lld", (long long)i);
    }
    return text;
}

enum {
    CHECKPOINT = TINKC_DURABILITY_CHECKPOINT,
    SNAPSHOT = TINKC_DURABILITY_SNAPSHOT,
    JOURNAL = TINKC_DURABILITY_JOURNAL
};

TEST(where_a_run_continues)
{
    static const struct {
        int32_t durability;
        const char *rows, *states, *journal;
    } cases[] = {
        /* nothing, or only a state */
        { SNAPSHOT, "", "", "" },
        { SNAPSHOT, "", "0:1@1", "" },
        { SNAPSHOT, "", "1:3@1", "" },
        { SNAPSHOT, "", "w:3@1", "" },
        { SNAPSHOT, "", "0:0@1", "" },
        { SNAPSHOT, "", "0:-1@1", "" },
        /* the newest of several */
        { SNAPSHOT, "", "0:3@9 1:4@1", "" },
        { SNAPSHOT, "", "0:4@1 1:3@9", "" },
        { SNAPSHOT, "", "0:3@1 1:3@2", "" },
        { SNAPSHOT, "", "0:3@2 1:3@2", "" },
        { SNAPSHOT, "", "0:3@2 1:3@1 w:3@3", "" },
        { SNAPSHOT, "", "0:5@2 1:3@1 w:4@3", "" },
        /* all is in the image */
        { SNAPSHOT, "1p1 2o1", "0:3@1", "" },
        { SNAPSHOT, "1p1 2o1 3s1", "0:3@1", "" },
        { SNAPSHOT, "1p1 2o1 3f1 4S1 5x1", "0:3@1", "" },
        /* without a journal: what ran after it is lost */
        { SNAPSHOT, "1p1 2o1 3p1", "0:3@1", "" },
        { SNAPSHOT, "1p1 2o1 3f1 4o1 5f1 6s1 7S1 8x1", "0:3@1", "" },
        { SNAPSHOT, "1p1 2o1 3l1", "0:3@1", "" },
        { SNAPSHOT, "1p1 2o1 3p2", "0:3@1", "" }, /* failed, and changed nothing */
        { SNAPSHOT, "1p1 2o1 3o4", "0:3@1", "" }, /* failed, and changed it */
        { SNAPSHOT, "1p1 2o1", "", "" },          /* no state at all */
        { SNAPSHOT, "1o2", "", "" },
        { SNAPSHOT, "1p1 2o1 3o1", "0:4@1", "" },
        { CHECKPOINT, "1p1 2o1 3o1", "0:3@1", "" },
        /* numbers that never ran, and refused ones */
        { SNAPSHOT, "1s1 4s1", "", "" },
        { SNAPSHOT, "1s1 2s5 3s1", "", "" },
        { SNAPSHOT, "1s1 2s5", "", "" },
        { SNAPSHOT, "2s5", "", "" },
        { SNAPSHOT, "1s1 3s5 4s5", "0:2@1", "" },
        /* with a journal they are repeated */
        { JOURNAL, "1o1 2o1", "0:2@1", "1o 2o" },
        { JOURNAL, "1o1 2o1", "", "1o 2o" },
        { JOURNAL, "1o1 2o1", "0:3@1", "1o 2o" },
        { JOURNAL, "1o1", "0:2@1", "2o" },
        { JOURNAL, "1o1", "0:3@1 1:2@1", "1o 2o" }, /* 2 has no answer: from before it */
        { JOURNAL, "1o1", "0:3@1", "1o 2o" },
        { JOURNAL, "1o1", "0:2@1", "2o 3o 5o" },
        { JOURNAL, "1o1 2s5", "0:2@1", "3o" },
        { JOURNAL, "1o1 2s5", "0:2@1", "2o" },
        { JOURNAL, "1o1 2s1 3f1 4x1 5S1 6o1", "0:2@1", "2s 3f 4x 5S 6o" },
        { JOURNAL, "1o1 2o2 3o4", "0:2@1", "2o 3o" },
        { JOURNAL, "1o1 2o1", "0:2@1", "2o 2o" },
        { JOURNAL, "1o1 2o1 3o1", "0:2@1", "3o" }, /* the record of 2 is gone */
        { JOURNAL, "", "0:2@1", "1o" },            /* the first has no answer */
        { SNAPSHOT, "1o1", "0:2@1", "2o" },        /* a journal that is not read */
    };
    enum { N_CASES = sizeof cases / sizeof *cases };
    FILE *out = getenv("TINKC_UPDATE") ? fopen("tests/data/service_boot.txt", "w") : NULL;
    FILE *in = out ? NULL : fopen("tests/data/service_boot.txt", "r");
    assert_true(out || in);
    for (int32_t level = CHECKPOINT; level <= JOURNAL; level++) {
        char id[20], line[1200], want[1200];
        open_world(level);
        sql(one_session);
        for (size_t i = 0; i < N_CASES; i++) {
            if (cases[i].durability != level)
                continue;
            snprintf(id, sizeof id, "r%zu", i);
            put_run(id);
            put_rows(id, cases[i].rows);
            put_states(id, cases[i].states);
            put_journal(id, cases[i].journal);
        }
        boot();
        for (size_t i = 0; i < N_CASES; i++) {
            if (cases[i].durability != level)
                continue;
            snprintf(id, sizeof id, "r%zu", i);
            for (const tke_job *job = tke_find_run(&svc, id)->queue; job; job = job->next)
                assert_true(job->hash.lo == 5 && job->hash.hi == 6 && job->replayed &&
                            tke_run_seen(job->run, job->seq)->epoch == EPOCH);
            snprintf(line, sizeof line, "level %d, rows %s, states %s, journal %s: %s\n", (int)level, cases[i].rows,
                     cases[i].states, cases[i].journal, state_of(tke_find_run(&svc, id)));
            if (out) {
                fputs(line, out);
                continue;
            }
            assert_non_null(fgets(want, sizeof want, in));
            assert_string_equal(line, want);
        }
        close_world();
    }
    fclose(out ? out : in);
}

/* What was accepted is repeated, whatever this version would say to it: its step was acknowledged. */
TEST(a_field_that_this_version_does_not_know_is_no_reason_to_lose_a_step)
{
    tinkc_error err = { 0 };
    open_world(JOURNAL);
    sql(one_session);
    put_run("r");
    put_states("r", "0:2@1");
    put_rows("r", "1o1 2o1");
    const tke_journal_record record = {
        .seq = 2,
        .kind = kind_of('o'),
        .epoch = EPOCH,
        .hash = { 5, 6 },
        .body = tkc_str("{\"model_id\":\"r\",\"seq_id\":2,\"adam_params\":{\"learning_rate\":0.01},\"of_later\":1}")
    };
    assert_true(tke_journal_append(svc.store, "r", &record, &err));
    boot();
    const tke_job *job = tke_find_run(&svc, "r")->queue;
    assert_true(job && job->seq == 2 && !job->next);
    assert_string_equal(job->invalid.message, "");
    close_world();
}

/* ---- rows ---- */

static const char one_run[] =
    "INSERT INTO runs(id, session_id, model_seq, base_model, rank, seed, flags, state, corrupted, "
    "hash, request_id, error, user_metadata, last_request_us) VALUES('r', 's', 3, 'tiny', 4, 9, "
    "259, 1, 1, x'0100000000000000020000000000000a', '1-r:0', 'why', '{}', 77)";

TEST(rows_of_runs)
{
    open_world(SNAPSHOT);
    sql(one_session);
    sql(one_run);
    sql("INSERT INTO runs(id, session_id, base_model, state) VALUES('lost', 'none', 'tiny', 1)");
    sql("INSERT INTO runs(id, session_id, base_model, state, hash, flags) VALUES('plain', 's', "
        "'tiny', 3, x'01', 7)");
    put_folder("runs/r/image.0", "{\"next_seq_id\":1}");
    boot();
    const tke_session *s = tke_find_session(&svc, "s");
    const tke_run *run = tke_find_run(&svc, "r"), *plain = tke_find_run(&svc, "plain");
    assert_true(s && s->created_us == 5 && s->n_runs == 2 && !s->expired && !s->project_id);
    assert_string_equal(s->owner, "me");
    assert_null(tke_find_run(&svc, "lost"));
    assert_true(run && run->session == s && run->model_seq == 3 && run->spec.rank == 4);
    assert_true(run->spec.seed == 9 && run->spec.train == 3 && run->by_load && run->corrupted);
    assert_true(run->spec.alpha == 24 && run->last_request_us == 77);
    assert_true(run->hash.lo == 1 && run->hash.hi == 0x0a00000000000002);
    assert_int_equal(run->is.life, TKE_RUN_READY);
    assert_string_equal(run->error, "why");
    assert_string_equal(run->user_metadata, "{}");
    assert_int_equal(run->kept, 2);
    assert_string_equal(run->owner, "me");
    assert_true(plain && plain->hash.lo == 0 && !plain->by_load && !plain->corrupted);
    assert_int_equal(plain->is.life, TKE_RUN_FAILED);
    assert_null(plain->create_request_id);
    close_world();
}

/* A model that was to be made from a checkpoint has none without a state. */
TEST(runs_that_were_never_loaded)
{
    open_world(SNAPSHOT);
    sql(one_session);
    sql("INSERT INTO runs(id, session_id, base_model, state, flags) VALUES('r', 's', 'tiny', 1, "
        "263)");
    sql("INSERT INTO runs(id, session_id, base_model, state, flags) VALUES('q', 's', 'tiny', 0, "
        "7)");
    sql("INSERT INTO runs(id, session_id, base_model, state, flags) VALUES('u', 's', 'tiny', 2, "
        "7)");
    put_folder("runs/u/image.0", "{\"next_seq_id\":1}");
    put_folder("runs/q/image.0", "{\"next_seq_id\":1}");
    boot();
    const tke_run *run = tke_find_run(&svc, "r");
    char path[600];
    assert_int_equal(run->is.life, TKE_RUN_FAILED);
    assert_string_equal(run->error, "the server stopped before it was loaded");
    assert_int_equal(tke_find_run(&svc, "q")->is.life, TKE_RUN_READY); /* it has been made */
    assert_int_equal(tke_find_run(&svc, "u")->is.life, TKE_RUN_UNLOADED);
    snprintf(path, sizeof path, "%s/runs/u/image.0", folder);
    assert_false(tkc_is_dir(path)); /* what an unload would have removed */
    snprintf(path, sizeof path, "%s/runs/q/image.0", folder);
    assert_true(tkc_is_dir(path));
    close_world();
}

TEST(rows_of_requests)
{
    open_world(SNAPSHOT);
    sql(one_session);
    sql(one_run);
    put_folder("runs/r/image.0", "{\"next_seq_id\":9}");
    sql("INSERT INTO requests(run_id, seq_id, kind, request_id, state) VALUES('r', 0, 4, '1-r:0', "
        "1), "
        "('r', -1, 4, '1-r:-1', 1), ('r', 2147483648, 4, '1-r:2147483648', 1), "
        "('none', 1, 4, '1-none:1', 1), ('r', 4, 4, NULL, 1)");
    sql("INSERT INTO requests(run_id, seq_id, kind, hash, request_id, state, result) VALUES('r', "
        "1, 4, "
        "x'0100000000000000020000000000000a', '27-r:1', 2, 'text'), ('r', 2, 5, x'01', 'odd', 1, "
        "NULL), ('r', 3, 2, NULL, '1-r:3', 3, NULL), ('r', 5, 2, NULL, '1-r:5', 1, 'x')");
    boot();
    tke_run *run = tke_find_run(&svc, "r");
    assert_int_equal(run->n_seen, 5);
    assert_false(tke_find_job(&svc, "1-r:3")); /* the file of its result is gone */
    assert_true(tke_find_job(&svc, "1-r:5"));
    tke_job *made = tke_find_job(&svc, "1-r:0");
    assert_true(made && made->kind == TKE_JOB_CREATE && made->seq == 0 && !made->result_is_pb);
    assert_string_equal(tkc_buf_terminate(&made->result, &(tinkc_error){ 0 }),
                        "{\"model_id\":\"r\",\"type\":\"create_model\"}");
    const tke_seen *seen = tke_run_seen(run, 1);
    assert_true(seen->epoch == 27 && seen->failed && seen->kind == TKE_JOB_OPTIM);
    assert_true(seen->hash.lo == 1 && seen->hash.hi == 0x0a00000000000002);
    seen = tke_run_seen(run, 2);
    assert_true(seen->epoch == 0 && !seen->failed && seen->hash.lo == 0);
    const tke_job *job = tke_find_job(&svc, "27-r:1");
    assert_true(job && job->run == run && job->seq == 1 && job->done_ms == 1000);
    assert_true(job->result.len == 4 && svc.results->bytes >= 4 && !job->result_is_pb);
    assert_false(tke_find_job(&svc, "odd")); /* its answer is not known */
    close_world();
}

TEST(rows_of_checkpoints)
{
    open_world(SNAPSHOT);
    sql(one_session);
    sql(one_run);
    put_folder("runs/r/weights/a", "{\"next_seq_id\":5}");
    put_folder("runs/r/sampler_weights/b", NULL);
    put_folder("runs/r/external_weights/c", NULL);
    put_folder("runs/r/weights/adopted", "{\"next_seq_id\":8}");
    put_folder("runs/r/weights/.hidden", NULL);
    put_folder("runs/r/sampler_weights/adopted", NULL);
    put_folder("runs/r/external_weights/adopted", NULL);
    put_folder("runs/r/other/adopted", NULL);
    tiny_write(folder, "runs/r/weights/a/user_metadata.json", "{\"k\":1}");
    tiny_write(folder, "runs/r/weights/adopted/user_metadata.json", "{\"k\":2}");
    tiny_write(folder, "runs/r/weights/adopted/tensors", "12345");
    sql("INSERT INTO checkpoints(run_id, kind, name, created_us, bytes, public, expires_us, "
        "seq_id) "
        "VALUES('r', 0, 'a', 11, 12, 1, 9000000000, 4), ('r', 1, 'b', 21, 22, 0, 0, 5), "
        "('r', 2, 'c', 31, 32, 0, 0, 6), ('r', 0, 'gone', 1, 1, 0, 0, 1), "
        "('r', 3, 'a', 1, 1, 0, 0, 1), ('r', -1, 'a', 1, 1, 0, 0, 1)");
    boot();
    int64_t expired;
    const tke_checkpoint *a = tke_find_checkpoint(&svc, "tinker://r/weights/a", &expired);
    assert_true(a && a->created_us == 11 && a->bytes == 12 && a->is_public && a->seq_id == 4);
    assert_true(a->expires_us == 9000000000 && a->state == TKE_CKPT_DONE);
    assert_string_equal(a->user_metadata, "{\"k\":1}");
    const tke_checkpoint *b = tke_find_checkpoint(&svc, "tinker://r/sampler_weights/b", &expired);
    assert_true(b && b->created_us == 21 && !b->is_public && !b->user_metadata);
    const tke_checkpoint *c = tke_find_checkpoint(&svc, "tinker://r/external_weights/c", &expired);
    assert_true(c && c->bytes == 32 && c->seq_id == 6);
    /* A folder without a row is taken for what it is, and gets one. */
    const tke_checkpoint *x = tke_find_checkpoint(&svc, "tinker://r/weights/adopted", &expired);
    assert_true(x && x->seq_id == 7 && x->state == TKE_CKPT_DONE && x->created_us > 1000000000);
    assert_true(x->bytes == 5 + 7 + 17 && x->expires_us == 0);
    assert_string_equal(x->user_metadata, "{\"k\":2}");
    x = tke_find_checkpoint(&svc, "tinker://r/sampler_weights/adopted", &expired);
    assert_true(x && x->seq_id == 0 && x->bytes == 0 && !x->user_metadata);
    assert_int_equal(tke_count(&svc, TKE_CHECKPOINTS), 6);
    rows_are("SELECT name || kind FROM checkpoints ORDER BY kind, name", "a-1 a0 adopted0 adopted1 b1 adopted2 c2 a3 ");
    close_world();
}

/* Files beside a state that are torn or far too large are as if they were not there. */
TEST(files_that_cannot_be)
{
    enum { LIMIT = 1 << 20 };
    static const char start[] = "{\"next_seq_id\":5,\"x\":\"";
    char *large = calloc(1, LIMIT + 2);
    open_world(SNAPSHOT);
    sql(one_session);
    static const char *const runs[] = { "torn", "large", "fits" };
    for (size_t i = 0; i < 3; i++) {
        char path[60];
        put_run(runs[i]);
        snprintf(path, sizeof path, "runs/%s/weights/w", runs[i]);
        size_t len = i == 0 ? 40 : i == 1 ? LIMIT + 1 : LIMIT;
        memset(large, 'x', len);
        memcpy(large, start, strlen(start));
        memcpy(large + len - 2, i ? "\"}" : "\",", 2);
        large[len] = '\0';
        put_folder(path, large);
        memcpy(path + strlen(path), "/user_metadata.json", 20);
        tiny_write(folder, path, large);
    }
    char mark[600]; /* a state that was never finished */
    put_run("begun");
    put_folder("runs/begun/image.0", "{\"next_seq_id\":5}");
    snprintf(mark, sizeof mark, "%s/runs/begun/image.0/checkpoint_complete", folder);
    assert_int_equal(unlink(mark), 0);
    boot();
    assert_int_equal(tke_find_run(&svc, "begun")->next_seq, 1);
    assert_null(tke_find_run(&svc, "begun")->source);
    assert_int_equal(tke_find_run(&svc, "torn")->next_seq, 1);
    assert_int_equal(tke_find_run(&svc, "large")->next_seq, 1);
    assert_int_equal(tke_find_run(&svc, "fits")->next_seq, 5);
    const tke_checkpoint *c = tke_checkpoint_named(&svc, "tinker://large/weights/w");
    assert_null(c->user_metadata);
    c = tke_checkpoint_named(&svc, "tinker://fits/weights/w");
    assert_int_equal(strlen(c->user_metadata), LIMIT);
    close_world();
    free(large);
}

/* A journal that is a folder takes no record, and says so. */
TEST(journals_that_cannot_be)
{
    tinkc_error err = { 0 };
    open_world(JOURNAL);
    put_folder("runs/r/journal", NULL);
    const tke_journal_record record = { .seq = 1, .kind = TKE_JOB_OPTIM, .body = tkc_str("{}") };
    assert_false(tke_journal_append(svc.store, "r", &record, &err));
    assert_true(err.code != 0 && strstr(err.message, "/runs/r/journal"));
    boot();
    close_world();
}

/* Of an ephemeral one the folder counts that is in this store, wherever the store was before. */
TEST(rows_of_samplers)
{
    open_world(SNAPSHOT);
    char path[700];
    sql(one_session);
    sql(one_run);
    put_folder("runs/r/ephemeral/1", NULL);
    put_folder("runs/r/sampler_weights/b", NULL);
    sql("INSERT INTO checkpoints(run_id, kind, name) VALUES('r', 1, 'b')");
    sql("INSERT INTO samplers(id, session_id, base_model, model_path, ephemeral, hash) VALUES("
        "'moved', 's', 'tiny', '/old/runs/x/runs/r/ephemeral/1', 1, x'00'), "
        "('gone', 's', 'tiny', '/old/runs/r/ephemeral/2', 1, NULL), "
        "('odd', 's', 'tiny', NULL, 1, NULL), ('lost', 'none', 'tiny', NULL, 0, NULL), "
        "('bare', 's', 'tiny', NULL, 0, x'0100000000000000020000000000000a'), "
        "('named', 's', 'tiny', 'tinker://r/sampler_weights/b', 0, NULL)");
    boot();
    const tke_sampler *s = tke_find_sampler(&svc, "moved");
    snprintf(path, sizeof path, "%s/runs/r/ephemeral/1", folder);
    assert_true(s && s->ephemeral && !s->model_path && s->used_ms == 1000 && s->hash.lo == 0);
    assert_string_equal(s->spill, path);
    assert_string_equal(s->owner, "me");
    assert_null(tke_find_sampler(&svc, "gone"));
    assert_null(tke_find_sampler(&svc, "odd"));
    assert_null(tke_find_sampler(&svc, "lost"));
    s = tke_find_sampler(&svc, "bare");
    assert_true(s && !s->ephemeral && !s->spill && !s->model_path && !s->checkpoint);
    assert_true(s->hash.lo == 1 && s->hash.hi == 0x0a00000000000002);
    s = tke_find_sampler(&svc, "named");
    assert_string_equal(s->model_path, "tinker://r/sampler_weights/b");
    assert_ptr_equal(s->checkpoint, tke_checkpoint_named(&svc, s->model_path));
    assert_non_null(s->checkpoint);
    close_world();
}

/* Requests that were answered while no row could be written. */
TEST(unrecorded_requests_are_recovered)
{
    open_world(SNAPSHOT);
    sql(one_session);
    sql(one_run);
    put_folder("runs/r/image.0", "{\"next_seq_id\":9}");
    put_rows("r", "2o1 3o5");
    tke_unrecorded_clear(svc.store);
    for (int64_t i = 1; i <= 4; i++)
        assert_true(tke_unrecorded_add(svc.store, &(tke_unrecorded){ .run = tke_unrecorded_run("r"),
                                                                     .hash = { (uint64_t)i, 0 },
                                                                     .seq = i,
                                                                     .kind = TKE_JOB_SAVE,
                                                                     .epoch = 2,
                                                                     .failed = i == 4 }));
    assert_true(tke_unrecorded_add(
        svc.store, &(tke_unrecorded){ .run = tke_unrecorded_run("other"), .seq = 5, .kind = TKE_JOB_SAVE }));
    assert_true(tke_unrecorded_add(
        svc.store,
        &(tke_unrecorded){ .run = tke_unrecorded_run("r"), .seq = (int64_t)INT32_MAX + 1, .kind = TKE_JOB_SAVE }));
    boot();
    tke_run *run = tke_find_run(&svc, "r");
    assert_int_equal(run->n_seen, 4);
    assert_int_equal(tke_run_seen(run, 2)->kind, TKE_JOB_OPTIM); /* it has a row */
    for (int64_t i = 1; i <= 4; i += i == 1 ? 2 : 1) {
        const tke_seen *seen = tke_run_seen(run, i);
        assert_true(seen->state == TKE_SEEN_DONE && seen->kind == TKE_JOB_SAVE && seen->epoch == 2);
        assert_true(seen->hash.lo == (uint64_t)i && seen->failed == (i == 4));
    }
    /* A row that says that its body was refused stays as it is. */
    rows_are("SELECT seq_id || '/' || kind || '/' || state || '/' || request_id FROM requests ORDER BY "
             "seq_id",
             "1/5/1/2-r:1 2/4/1/7-r:2 3/4/5/7-r:3 4/5/2/2-r:4 ");
    close_world();
}

/* Runs and samplers find the base model that is registered later. */
TEST(base_models_come_later)
{
    tinkc_error err = { 0 };
    open_world(SNAPSHOT);
    boot();
    tke_base base = { .name = (char *)(uintptr_t) "tiny" }, second = base;
    tke_run *run = tke_run_add(&svc, "r", "me", &err), *other = tke_run_add(&svc, "o", "me", &err);
    tke_sampler *s = tke_sampler_add(&svc, "s", "me", &err), *t = tke_sampler_add(&svc, "t", "me", &err);
    run->base_model = tke_copy(&svc, "tiny", &err);
    s->base_model = tke_copy(&svc, "tiny", &err);
    other->base_model = tke_copy(&svc, "large", &err);
    t->base_model = tke_copy(&svc, "large", &err);
    tke_boot_base(&svc, &base);
    assert_true(run->base == &base && s->base == &base && !other->base && !t->base);
    tke_boot_base(&svc, &second); /* once set it stays */
    assert_true(run->base == &base && s->base == &base);
    close_world();
}
