/* test_store_repair.c - what happens to a store after it was written: bits that flip, a database
 * that is lost; and who may read it. */
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "service/core/runs.h"
#include "service/core/service_state.h"
#include "service/core/sessions.h"
#include "service/handlers/handler_call.h"
#include "support/service/service_world.h"

static int32_t mode_of(const char *folder, const char *name)
{
    char path[600];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(stat(path, &st), 0);
    return st.st_mode & 0777;
}

static void save_as(const tinkc_transport *t, const char *model, int seq, const char *name)
{
    const char *promise = service_json(t, 200, "POST", "/api/v1/save_weights",
                                       "{\"model_id\":\"%s\",\"seq_id\":%d,\"path\":\"%s\"}", model, seq, name);
    service_wait(t, hold(json_field(promise, "request_id")));
}

static const char *load(const tinkc_transport *t, const char *model, int seq, const char *path)
{
    return hold(json_field(service_json(t, 200, "POST", "/api/v1/load_weights",
                                        "{\"model_id\":\"%s\",\"seq_id\":%d,\"path\":\"%s\","
                                        "\"optimizer\":true}",
                                        model, seq, path),
                           "request_id"));
}

/* The n-th byte from the end of a file turns into another. */
static void flip(const char *path, long from_end)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, -from_end, SEEK_END);
    int byte = fgetc(f);
    fseek(f, -from_end, SEEK_END);
    fputc(byte ^ 1, f);
    fclose(f);
}

typedef struct seen {
    size_t n_bad;
    bool lost_log; /* one of the bad lines says so */
    char last[700];
} seen;

static void note(const char *line, bool bad, void *user)
{
    seen *s = user;
    s->n_bad += bad;
    s->lost_log |= bad && strstr(line, "last commits are missing");
    if (bad)
        snprintf(s->last, sizeof s->last, "%s", line);
}

/* A check creates nothing: a folder that is not a store is not made one. */
TEST(other_folders_are_refused)
{
    for (int repair = 0; repair < 2; repair++) {
        tinkc_error err = { 0 };
        seen s = { 0 };
        char *folder = tiny_folder();
        assert_false(tinkc_store_check(folder, &(tinkc_store_check_options){ .repair = repair }, note, &s, &err));
        assert_int_equal(err.code, TINKC_E_NOT_FOUND);
        assert_non_null(strstr(err.message, "is not a store"));
        assert_int_equal(rmdir(folder), 0); /* empty as before */
        free(folder);
    }
    /* After an error nothing is begun. */
    tinkc_error before = { .code = TINKC_E_ARGUMENT, .message = "before" };
    char *folder = tiny_folder();
    assert_false(tinkc_store_check(folder, NULL, NULL, NULL, &before));
    assert_string_equal(before.message, "before");
    tiny_model_remove(folder);
}

TEST(flipped_bits_are_noticed)
{
    tinkc_error err = { 0 };
    char *store = tiny_folder(), path[700], checkpoint[300];
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 1);
    save_as(t, model, 3, "good");
    save_as(t, model, 4, "bad");
    snprintf(path, sizeof path, "%s/runs/%s/weights/bad/adapter_model.safetensors", store, model);
    flip(path, 5); /* the last bits of a weight: it would load, and be wrong */
    snprintf(checkpoint, sizeof checkpoint, "tinker://%s/weights/bad", model);
    service_wait_failure(t, load(t, model, 5, checkpoint), "user", "is damaged");
    snprintf(checkpoint, sizeof checkpoint, "tinker://%s/weights/good", model);
    service_wait(t, load(t, model, 6, checkpoint));
    seen s = { 0 };
    assert_false(tinkc_store_check(store, NULL, note, &s, &err)); /* it is open */
    assert_int_equal(err.cause, TINKC_E_CONFLICT);
    err = (tinkc_error){ 0 };
    assert_false(/* nor is it put aside, whatever it looks like */
                 tinkc_store_check(store, &(tinkc_store_check_options){ .repair = true }, note, &s, &err));
    assert_int_equal(err.cause, TINKC_E_CONFLICT);
    assert_int_equal(s.n_bad, 0);
    tinkc_engine_free(engine);
    const struct {
        const char *folder;
        tinkc_store_check_options o;
    } wrong[] = { { NULL, { 0 } },
                  { "", { 0 } },
                  { store, { .reserved = { 0, 0, 0, 1 } } },
                  { store, { .reserved_bools = { [6] = true } } } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        err = (tinkc_error){ 0 };
        assert_false(tinkc_store_check(wrong[i].folder, &wrong[i].o, note, &s, &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
    }

    err = (tinkc_error){ 0 };
    assert_false(tinkc_store_check(store, NULL, note, &s, &err));
    assert_int_equal(err.code, TINKC_E_STORE);
    assert_int_equal(s.n_bad, 1);
    assert_non_null(strstr(s.last, "weights/bad"));
    err = (tinkc_error){ 0 };
    assert_true(tinkc_store_check(store, &(tinkc_store_check_options){ .repair = true }, note, &s, &err));
    s = (seen){ 0 };
    (void)tinkc_store_check(store, NULL, note, &s, &err); /* its row is taken out at the next start */
    engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, NULL);
    t = tinkc_engine_transport(engine);
    const char *list = service_json(t, 200, "GET", "/api/v1/checkpoints", "%s", "");
    assert_non_null(strstr(list, "weights/good"));
    assert_null(strstr(list, "weights/bad"));
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

TEST(a_lost_database_is_noticed)
{
    tinkc_error err = { 0 };
    char *store = tiny_folder(), command[700], path[300];
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 2);
    save_as(t, model, 5, "kept");
    double loss = service_loss(t, model, 6, text_a, N);
    tinkc_engine_free(engine);
    snprintf(command, sizeof command, "rm -f '%s'/meta.db*", store);
    assert_int_equal(system(command), 0);
    assert_null(tinkc_engine_new(&(tinkc_engine_options){ .store = store }, &err));
    assert_int_equal(err.code, TINKC_E_STORE);
    assert_non_null(strstr(err.message, "tinkc store repair"));
    seen s = { 0 };
    err = (tinkc_error){ 0 };
    assert_false(tinkc_store_check(store, NULL, note, &s, &err));
    assert_int_equal(s.n_bad, 1); /* the folders are checked all the same */
    assert_string_equal(err.message, "1 entry is damaged or missing");
    err = (tinkc_error){ 0 };
    assert_true(tinkc_store_check(store, &(tinkc_store_check_options){ .repair = true }, note, &s, &err));
    /* The checkpoint is there, and what it loads is what was saved. */
    engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, NULL);
    t = tinkc_engine_transport(engine);
    const char *other = hold(service_model(t, service_session(t), 0, "tiny", 4, 8));
    snprintf(path, sizeof path, "tinker://%s/weights/kept", model);
    service_wait(t, load(t, other, 1, path));
    assert_true(service_loss(t, other, 2, text_a, N) == loss);
    tinkc_engine_free(engine);
    /* A database that is not one is put aside. */
    snprintf(command, sizeof command, "echo rubbish > '%s'/meta.db; rm -f '%s'/meta.db-*", store, store);
    assert_int_equal(system(command), 0);
    err = (tinkc_error){ 0 };
    s = (seen){ 0 };
    assert_true(tinkc_store_check(store, &(tinkc_store_check_options){ .repair = true }, note, &s, &err));
    assert_ok(err);
    assert_int_equal(s.n_bad, 1); /* the database */
    tiny_model_remove(store);
}

/* ---- what a repair leaves is intact ---- */

static bool check_store(const char *store, bool repair, seen *s, tinkc_error *err)
{
    *s = (seen){ 0 };
    *err = (tinkc_error){ 0 };
    return tinkc_store_check(store, &(tinkc_store_check_options){ .repair = repair }, note, s, err);
}

static void assert_repaired(const char *store)
{
    tinkc_error err;
    seen s;
    if (!check_store(store, true, &s, &err))
        fail_msg("repair: %s; %s", err.message, s.last);
    if (!check_store(store, false, &s, &err) || s.n_bad)
        fail_msg("after the repair: %s; %s", err.message, s.last);
}

static void shell(const char *format, ...)
{
    char command[1500];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    assert_int_equal(system(command), 0);
}

/* A store with one run and the checkpoint "kept", closed; returns the run. */
static const char *saved_store(const char *store)
{
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 1);
    save_as(t, model, 3, "kept");
    tinkc_engine_free(engine);
    return model;
}

static void assert_lists(const char *store, const char *model)
{
    char path[300];
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, NULL);
    const char *list = service_json(tinkc_engine_transport(engine), 200, "GET", "/api/v1/checkpoints", "%s", "");
    snprintf(path, sizeof path, "tinker://%s/weights/kept", model);
    assert_non_null(strstr(list, path));
    tinkc_engine_free(engine);
}

TEST(an_empty_database_is_a_lost_one)
{
    tinkc_error err = { 0 };
    seen s;
    char *store = tiny_folder();
    const char *model = saved_store(store);
    shell("rm -f '%s'/meta.db-*; : > '%s'/meta.db", store, store);
    assert_null(tinkc_engine_new(&(tinkc_engine_options){ .store = store }, &err));
    assert_non_null(strstr(err.message, "tinkc store repair"));
    assert_false(check_store(store, false, &s, &err));
    assert_string_equal(s.last, "meta.db is empty");
    assert_repaired(store);
    assert_lists(store, model);
    tiny_model_remove(store);
}

/* The log of a store that was open when its process ended holds its last commits. */
TEST(a_removed_log_is_noticed)
{
    tinkc_error err;
    seen s;
    char *store = tiny_folder(), *copy = tiny_folder();
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    save_as(t, model, 1, "kept");
    shell("cp -r '%s'/. '%s'", store, copy); /* as a sudden end leaves it */
    tinkc_engine_free(engine);
    assert_true(check_store(store, false, &s, &err)); /* closed: it needs no log */
    shell("rm '%s'/meta.db-wal", copy);
    for (int i = 0; i < 2; i++) { /* looking at it does not hide it */
        assert_false(check_store(copy, false, &s, &err));
        assert_true(s.lost_log);
    }
    assert_repaired(copy);
    assert_lists(copy, model);
    tiny_model_remove(store);
    tiny_model_remove(copy);
}

/* Rows that are missing from a database of good appearance: files show it. */
TEST(an_older_database_is_noticed)
{
    tinkc_error err;
    seen s;
    char *store = tiny_folder();
    tinkc_engine_free(world_open(store, TINKC_DURABILITY_SNAPSHOT, NULL));
    shell("cp '%s'/meta.db '%s'/older", store, store);
    const char *model = saved_store(store);
    shell("mv '%s'/older '%s'/meta.db", store, store);
    assert_false(check_store(store, false, &s, &err));
    assert_int_equal(s.n_bad, 2); /* the database, and the run that it does not have */
    assert_repaired(store);
    assert_lists(store, model);
    tiny_model_remove(store);
}

TEST(a_repair_of_one_flipped_bit_converges)
{
    tinkc_error err;
    seen s;
    char *store = tiny_folder(), path[700];
    const char *model = saved_store(store);
    static const char *const files[] = { "weights/kept/adapter_model.safetensors", "weights/kept/train_state.json",
                                         "weights/kept/optimizer.safetensors" };
    for (int i = 0; i < 2; i++) { /* the second time, damaged/ has one of this name */
        shell("cp -r '%s/runs/%s/weights/kept' '%s/good'", store, model, store);
        snprintf(path, sizeof path, "%s/runs/%s/%s", store, model, files[i]);
        flip(path, 5);
        assert_false(check_store(store, false, &s, &err));
        assert_repaired(store);
        shell("mv '%s/good' '%s/runs/%s/weights/kept'", store, store, model);
        assert_repaired(store);
    }
    shell("test -d '%s/damaged/%s/weights/kept' -a -d '%s/damaged/%s/weights/kept.2'", store, model, store, model);
    assert_lists(store, model);
    tiny_model_remove(store);
}

/* The type of one page of the database, for several. What can still be read stays, also the owner. */
TEST(a_damaged_database_is_replaced)
{
    tinkc_error err;
    seen s;
    struct stat st;
    char *store = tiny_folder(), path[800], copy[700];
    const char *model = saved_store(store);
    snprintf(path, sizeof path, "%s/meta.db", store);
    assert_int_equal(stat(path, &st), 0);
    int n_noticed = 0, n_tried = 0, n_pages = (int)(st.st_size / 4096);
    for (int i = 1; i < n_pages; i += 1 + n_pages / 6, n_tried++) {
        snprintf(copy, sizeof copy, "%s-%d", store, i);
        shell("cp -r '%s' '%s'", store, copy);
        snprintf(path, sizeof path, "%s/meta.db", copy);
        flip(path, st.st_size - (long)i * 4096);
        n_noticed += !check_store(copy, false, &s, &err);
        assert_repaired(copy);
        assert_lists(copy, model);
        shell("rm -r '%s'", copy);
    }
    assert_true(n_tried > 4 && n_noticed == n_tried);
    tiny_model_remove(store);
}

/* ---- journals ---- */

static void journal_store(const char *store, char journal[700])
{
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_JOURNAL, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 3);
    snprintf(journal, 700, "%s/runs/%s/journal", store, model);
    shell("cp '%s' '%s'/kept", journal, store); /* a clean end writes an image and trims it */
    tinkc_engine_free(engine);
    shell("mv '%s'/kept '%s'", store, journal);
}

TEST(a_damaged_journal_is_noticed)
{
    static const struct {
        const char *name;
        long from_start;
    } rows[] = { { "length", 2 }, { "checksum", 5 }, { "number", 9 }, { "body", 60 } };
    tinkc_error err;
    seen s;
    char *store = tiny_folder(), journal[700];
    struct stat st;
    journal_store(store, journal);
    assert_int_equal(stat(journal, &st), 0);
    assert_true(check_store(store, false, &s, &err));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        shell("cp '%s' '%s'/kept", journal, store);
        flip(journal, st.st_size - rows[i].from_start);
        if (check_store(store, false, &s, &err) || !strstr(s.last, "journal: damaged"))
            fail_msg("%s of the first record: %s", rows[i].name, s.last);
        assert_repaired(store);
        shell("mv '%s'/kept '%s'", store, journal);
    }
    /* An append that was interrupted is not damage: it was not acknowledged. */
    shell("truncate -s -3 '%s'", journal);
    if (!check_store(store, false, &s, &err))
        fail_msg("%s", s.last);
    tiny_model_remove(store);
}

/* Starting with it cuts it off, but what was acknowledged does not vanish without a trace. */
TEST(a_start_keeps_a_damaged_journal)
{
    char *store = tiny_folder(), journal[700];
    struct stat st, kept;
    journal_store(store, journal);
    assert_int_equal(stat(journal, &st), 0);
    flip(journal, st.st_size - 60);
    shell("cp '%s' '%s'/as-damaged", journal, store);
    tinkc_engine_free(world_open(store, TINKC_DURABILITY_JOURNAL, NULL));
    shell("cmp '%s'/as-damaged '%s.damaged'", store, journal);
    assert_int_not_equal(stat(journal, &kept) == 0 ? kept.st_size : 0, st.st_size);
    tiny_model_remove(store);
}

typedef struct lines {
    char text[20][400];
    size_t n;
} lines;

static void keep_line(const char *line, bool bad, void *user)
{
    lines *l = user;
    assert_true(l->n < 20);
    snprintf(l->text[l->n++], sizeof l->text[0], "%s %s", bad ? "bad" : "ok", line);
}

static bool has_line(const lines *l, const char *text)
{
    bool has = false;
    for (size_t i = 0; i < l->n; i++)
        has |= strcmp(l->text[i], text) == 0;
    return has;
}

/* What a lost database is made of: the newest description of each run, or that of any adapter. */
TEST(runs_are_made_again)
{
    tinkc_error err = { 0 };
    char *store = tiny_folder(), text[900];
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t)), *models[3];
    for (int i = 0; i < 3; i++)
        models[i] = hold(service_model(t, session, i, "tiny", i + 3, 7));
    save_as(t, models[0], 1, "a");
    service_wait(t, post(t, "/api/v1/save_weights_external", models[1], 1, ",\"path\":\"b\""));
    service_wait(t, post(t, "/api/v1/save_weights_external", models[2], 1, ",\"path\":\"c\""));
    tinkc_engine_free(engine);
    /* Runs without a base model, without any folder, and of a name that is not ours. */
    snprintf(text, sizeof text,
             "cd '%s' && rm meta.db* && echo '{}' > runs/%s/external_weights/c/adapter_config.json "
             "&& rm runs/%s/external_weights/c/checksums && mkdir -p runs/%s:train:9 && "
             "cp -r runs/%s runs/elsewhere && mkdir runs/.hidden && mkdir runs/%s/weights/.x",
             store, models[2], models[2], session, models[0], models[0]);
    assert_int_equal(system(text), 0);
    /* Without a rank, without a base model, and without a number in its name. */
    static const char *const states[][2] = { { "5", "{\"base_model\":\"tiny\"}" },
                                             { "6", "{\"rank\":3}" },
                                             { "x", "{\"base_model\":\"tiny\",\"rank\":3}" } };
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text,
                 "cd '%s/runs' && mkdir -p %s:train:%s/weights/a && cd %s:train:%s/weights/a && "
                 "touch checkpoint_complete && echo '%s' > train_state.json",
                 store, session, states[i][0], session, states[i][0], states[i][1]);
        assert_int_equal(system(text), 0);
    }
    /* Looking at it shows what the folders hold, and makes no database. */
    lines looked = { 0 };
    assert_false(tinkc_store_check(store, NULL, keep_line, &looked, &err));
    assert_string_equal(err.message, "1 entry is damaged or missing");
    snprintf(text, sizeof text, "ok %s/weights/a: whole", models[0]);
    assert_true(has_line(&looked, "bad meta.db is missing") && has_line(&looked, text));
    snprintf(text, sizeof text, "test ! -e '%s/meta.db'", store);
    assert_int_equal(system(text), 0);
    err = (tinkc_error){ 0 };
    lines l = { 0 };
    const tinkc_store_check_options repair = { .repair = true, .owner_key = "key" };
    assert_false(tinkc_store_check(store, &repair, keep_line, &l, &err));
    assert_string_equal(err.message, "6 entries are damaged or missing and could not be repaired");
    const struct {
        const char *format, *of;
    } rows[] = {
        { "bad meta.db is missing%s", "" },
        { "ok %s/weights/a: whole", models[0] },
        { "ok %s: made again from its files (base model tiny, rank 3)", models[0] },
        { "ok %s/external_weights/b: whole", models[1] },
        { "ok %s: made again from its files (base model tiny, rank 4)", models[1] },
        { "ok %s/external_weights/c: no checksums to hold it against", models[2] },
        { "bad %s: its folders do not name its base model; it cannot be rebuilt", models[2] },
        { "bad %s:train:9: its folders do not name its base model; it cannot be rebuilt", session },
        { "ok %s:train:5/weights/a: no checksums to hold it against", session },
        { "bad %s:train:5: its folders do not name its base model; it cannot be rebuilt", session },
        { "ok %s:train:6/weights/a: no checksums to hold it against", session },
        { "bad %s:train:6: its folders do not name its base model; it cannot be rebuilt", session },
        { "ok %s:train:x/weights/a: no checksums to hold it against", session },
        { "bad %s:train:x: its folders do not name its base model; it cannot be rebuilt", session },
        { "ok %s/weights/a: whole", "elsewhere" },
        { "bad %s: its folders do not name its base model; it cannot be rebuilt", "elsewhere" },
        { "ok meta.db: made again%s", "" },
    };
    assert_int_equal(l.n, sizeof rows / sizeof *rows);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(text, sizeof text, rows[i].format, rows[i].of);
        if (!has_line(&l, text))
            fail_msg("no line: %s", text);
    }
    /* They belong to the owner of the key. */
    char owner[TKE_OWNER_TEXT];
    tke_owner_of_key(&(tke_owner_salt){ { 0 } }, tkc_str("key"), owner);
    engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, NULL);
    tke_service *svc = tke_engine_service(engine);
    pthread_mutex_lock(&svc->lock);
    for (int i = 0; i < 2; i++) {
        const tke_run *run = tke_find_run(svc, models[i]);
        assert_non_null(run);
        assert_string_equal(run->owner, owner);
        assert_string_equal(run->session->owner, owner);
        assert_int_equal(run->spec.rank, i + 3);
        assert_int_equal(run->spec.seed, i ? 0 : 7); /* only a state to train from has it */
        assert_int_equal(run->spec.train, 7);
        assert_int_equal(run->model_seq, i);
    }
    assert_null(tke_find_run(svc, models[2]));
    pthread_mutex_unlock(&svc->lock);
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

/* A damaged folder that cannot be moved away is counted as left. */
TEST(what_cannot_be_put_aside)
{
    tinkc_error err = { 0 };
    char *store = tiny_folder(), text[900];
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    save_as(t, model, 1, "a");
    tinkc_engine_free(engine);
    snprintf(text, sizeof text,
             "cd '%s' && rm runs/*/weights/a/checkpoint_complete && "
             "touch damaged",
             store);
    assert_int_equal(system(text), 0);
    lines l = { 0 };
    assert_false(tinkc_store_check(store, &(tinkc_store_check_options){ .repair = true }, keep_line, &l, &err));
    assert_string_equal(err.message, "1 entry is damaged or missing and could not be repaired");
    assert_int_equal(l.n, 3);
    snprintf(text, sizeof text, "ok %s/weights/a: could not be moved to %s/damaged/%s/weights/a: ", model, store,
             model);
    assert_true(strncmp(l.text[1], text, strlen(text)) == 0);
    if (!strstr(l.text[1], "damaged: File exists"))
        fail_msg("%s", l.text[1]);
    /* It can be once there is room for it; so can a file among the folders. */
    snprintf(text, sizeof text, "cd '%s' && rm damaged && touch runs/%s/weights/b", store, model);
    assert_int_equal(system(text), 0);
    err = (tinkc_error){ 0 };
    l = (lines){ 0 };
    assert_true(tinkc_store_check(store, &(tinkc_store_check_options){ .repair = true }, keep_line, &l, &err));
    for (const char *name = "ab"; *name; name++) {
        snprintf(text, sizeof text, "ok %s/weights/%c: moved to %s/damaged/%s/weights/%c", model, *name, store, model,
                 *name);
        if (!has_line(&l, text))
            fail_msg("no line: %s", text);
    }
    tiny_model_remove(store);
}

TEST(nobody_else_reads_it)
{
    char *store = tiny_folder(), path[600];
    mode_t before = umask(0);
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, NULL);
    service_session(tinkc_engine_transport(engine));
    assert_int_equal(mode_of(store, "meta.db"), 0600);
    assert_int_equal(mode_of(store, "meta.db-wal"), 0600);
    snprintf(path, sizeof path, "%s/runs", store); /* from the start: it must survive a power loss */
    assert_true(tkc_is_dir(path));
    assert_int_equal(mode_of(store, "unrecorded"), 0600);
    tinkc_engine_free(engine);
    snprintf(path, sizeof path, "%s/meta.db", store); /* one from before */
    assert_int_equal(chmod(path, 0644), 0);
    tinkc_engine_free(world_open(store, TINKC_DURABILITY_SNAPSHOT, NULL));
    assert_int_equal(mode_of(store, "meta.db"), 0600);
    umask(before);
    tiny_model_remove(store);
}

/* Clients learn what is wrong, not where our files are. */
TEST(paths_stay_here)
{
    static const struct {
        int32_t code;
        const char *said, *shown;
    } rows[] = {
        { TINKC_E_FILE, "/srv/store/tmp/3/a.json: No space left", "a.json: No space left" },
        { TINKC_E_STORE, "the file '/a/b/c' is bad", "the file 'c' is bad" },
        { TINKC_E_MODEL, "tinker://run/weights/a: damaged", "tinker://run/weights/a: damaged" },
        { TINKC_E_BAD_REQUEST, "POST /api/v1/x: no", "POST /api/v1/x: no" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { .code = rows[i].code };
        snprintf(err.message, sizeof err.message, "%s", rows[i].said);
        tke_hide_paths(&err);
        assert_string_equal(err.message, rows[i].shown);
    }
}

RUN_TESTS(setup, teardown)
