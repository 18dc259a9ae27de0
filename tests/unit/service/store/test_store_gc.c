/* test_store_gc.c - what tinkc_store_gc lists and removes, what it never touches, and ends in the middle of
 * it; and DELETE of a run. */
#include <unistd.h>

#include "base/file.h"
#include "service/store/store.h"
#include "support/service/service_world.h"

static const char *const usual[] = { "disk_reserve", "0", NULL };

typedef struct listing {
    char goes[4000], stays[4000]; /* "PATH PATH " behind the run's id */
    const char *store;
    char *copies[20]; /* of the store, taken before each thing goes; with take_copies */
    size_t n_copies;
    int64_t bytes;
    bool take_copies;
} listing;

static void note(const tinkc_store_item *item, void *user)
{
    listing *l = user;
    const char *name = item->run_id ? strrchr(item->path, ':') + 3 : item->path;
    char *into = item->goes ? l->goes : l->stays;
    snprintf(into + strlen(into), sizeof l->goes - strlen(into), "%s ", name);
    assert_true(item->goes == (item->why != NULL) && item->bytes >= 0);
    l->bytes += item->goes ? item->bytes : 0;
    if (item->goes && l->take_copies)
        l->copies[l->n_copies++] = copy_store(l->store);
}

static void gc(const char *store, tinkc_store_gc_options o, listing *out)
{
    tinkc_error err = { 0 };
    out->store = store;
    if (!tinkc_store_gc(store, &o, note, out, &err))
        fail_msg("%s", err.message);
}

static void change_rows(const char *store, const char *sql)
{
    tinkc_error err = { 0 };
    static const tkc_log log;
    tke_store *s = tke_store_open(NULL, &log, store, &err);
    assert_ok(err);
    tke_txn *txn = tke_txn_new(s, &err);
    tke_txn_exec(txn, sql, "");
    tke_txn_commit(txn, NULL, NULL);
    tke_store_close(s);
}

/* A run with checkpoints 000001, final and mine, a sampler's 000001, and an image that is newer; its engine has ended. */
static const char *make_store(const char *store)
{
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_JOURNAL, usual);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    static const char *const names[] = { "000001", "final", "mine" };
    for (int i = 0; i < 3; i++) {
        char rest[40];
        snprintf(rest, sizeof rest, ",\"path\":\"%s\"", names[i]);
        service_wait(t, post(t, "/api/v1/save_weights", model, i + 1, rest));
    }
    service_wait(t, post(t, "/api/v1/save_weights_for_sampler", model, 4, ",\"path\":\"000001\""));
    train(t, model, 5, 1);
    tinkc_engine_free(engine);
    return model;
}

TEST(what_goes_is_decided_by_rows_and_options)
{
    static const struct {
        const char *sql;
        tinkc_store_gc_options options;
        const char *goes;
    } rows[] = {
        { NULL, { 0 }, "" },
        { NULL, { .silent_s = 86400 }, "" },
        { "UPDATE runs SET last_request_us = 5", { .silent_s = 86400 }, "image.0 journal " },
        { "UPDATE runs SET last_request_us = last_request_us - 86000000000", { .silent_s = 86400 }, "" },
        { "UPDATE runs SET last_request_us = 5", { 0 }, "" },
        { "DELETE FROM runs", { .silent_s = 86400, .steps = true }, "" },
        { "UPDATE runs SET state = 2", { 0 }, "image.0 journal " },
        { NULL, { .steps = true }, "weights/000001 " },
        { "UPDATE checkpoints SET public = 1", { .steps = true }, "" },
        { "DELETE FROM checkpoints WHERE name = 'final'", { .steps = true }, "" },
        { "UPDATE checkpoints SET expires_us = 5 WHERE name = 'mine'", { 0 }, "weights/mine " },
    };
    char *store = tiny_folder();
    (void)make_store(store);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *copy = copy_store(store);
        listing l = { .bytes = 0 };
        if (rows[i].sql)
            change_rows(copy, rows[i].sql);
        gc(copy, rows[i].options, &l);
        if (strcmp(l.goes, rows[i].goes) != 0)
            fail_msg("row %zu: %s", i, l.goes);
        assert_true((l.bytes > 0) == (rows[i].goes[0] != '\0'));
        tiny_model_remove(copy);
    }
    tiny_model_remove(store);
}

/* It looks while another process has the store, but does not remove. */
TEST(a_store_in_use_is_only_looked_at)
{
    tinkc_error err = { 0 };
    char *store = tiny_folder();
    (void)make_store(store);
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_JOURNAL, usual);
    listing l = { .bytes = 0 };
    gc(store, (tinkc_store_gc_options){ .steps = true }, &l);
    assert_string_equal(l.goes, "weights/000001 ");
    assert_false(tinkc_store_gc(store, &(tinkc_store_gc_options){ .remove = true }, NULL, NULL, &err));
    assert_int_equal(err.cause, TINKC_E_CONFLICT);
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

/* Are requests of the run refused as those of an unloaded model? */
static bool is_unloaded(const tinkc_transport *t, const char *model)
{
    char body[200];
    snprintf(body, sizeof body, "{\"model_id\":\"%s\"}", model);
    answer a = service_call(t, "POST", "/api/v1/get_info", NULL, body, strlen(body));
    bool unloaded = a.status == 404 && strstr(a.body.data, "unloaded");
    answer_free(&a);
    return unloaded;
}

static bool is_listed(const tinkc_transport *t, const char *name)
{
    answer a = service_call(t, "GET", "/api/v1/checkpoints", NULL, NULL, 0);
    bool listed = strstr(a.body.data, name) != NULL;
    answer_free(&a);
    return listed;
}

/* At every point the store starts, what was kept is there and whole, and the next gc finishes the work. */
TEST(an_end_in_the_middle_loses_nothing)
{
    tinkc_error err = { 0 };
    char *store = tiny_folder();
    const char *model = make_store(store);
    listing l = { .take_copies = true };
    tinkc_store_gc_options all = { .silent_s = 86400, .steps = true, .remove = true };
    change_rows(store, "UPDATE runs SET last_request_us = 5");
    gc(store, all, &l);
    assert_string_equal(l.goes, "image.0 journal weights/000001 ");
    for (size_t i = 0; i < l.n_copies; i++) {
        tinkc_engine *engine = world_open(l.copies[i], TINKC_DURABILITY_JOURNAL, usual);
        const tinkc_transport *t = tinkc_engine_transport(engine);
        assert_true(is_listed(t, "weights/final") && is_listed(t, "weights/mine"));
        assert_true(is_unloaded(t, model)); /* before anything of it goes */
        tinkc_engine_free(engine);
        assert_true(tinkc_store_check(l.copies[i], NULL, NULL, NULL, &err));
        listing rest = { .bytes = 0 };
        gc(l.copies[i], all, &rest);
        listing none = { .bytes = 0 };
        gc(l.copies[i], all, &none);
        assert_string_equal(none.goes, "");
        tiny_model_remove(l.copies[i]);
    }
    assert_true(tinkc_store_check(store, NULL, NULL, NULL, &err));
    tiny_model_remove(store);
}

/* An image that was left beside a newer state goes; not while a request without an answer may need it, and of two
 * that are as new neither. */
TEST(an_image_goes_if_a_newer_state_is_whole)
{
    static const char *const rows[][2] = {
        { "cp -r weights/final image.1 && : > journal", "image.1 " },
        { "cp -r weights/final image.1 && echo x > journal", "" },
        { "cp -r image.0 image.1 && : > journal", "" },
        { "cp -r image.0 weights/late && : > journal", "image.0 " },
        { "cp -r image.0 weights/late && rm weights/late/checkpoint_complete && : > journal", "" },
        { "cp -r image.0 weights/late && for i in 1 2 3 4 5; do cp -r weights/final weights/x$i; done && "
          ": > journal",
          "image.0 " },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *store = tiny_folder(), command[700];
        const char *model = make_store(store);
        snprintf(command, sizeof command, "cd '%s/runs/%s' && %s", store, model, rows[i][0]);
        assert_int_equal(system(command), 0);
        listing l = { .bytes = 0 };
        gc(store, (tinkc_store_gc_options){ 0 }, &l);
        if (strcmp(l.goes, rows[i][1]) != 0)
            fail_msg("%s: %s", rows[i][0], l.goes);
        tiny_model_remove(store);
    }
}

/* ---- DELETE of a run ---- */

static int32_t delete (const tinkc_transport *t, const char *path)
{
    answer a = service_call(t, "DELETE", path, NULL, NULL, 0);
    int32_t status = a.status;
    bool unloading = a.body.data && strstr(a.body.data, "\"unloading\"");
    answer_free(&a);
    return unloading ? 0 : status;
}

TEST(a_run_without_checkpoints_is_deleted_for_good)
{
    char *store = tiny_folder(), run[200], checkpoint[300], folder[600];
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_JOURNAL, usual);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    const char *other = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    snprintf(run, sizeof run, "/api/v1/training_runs/%s", model);
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoints/weights/mine", run);
    snprintf(folder, sizeof folder, "%s/runs/%s", store, model);
    service_wait(t, post(t, "/api/v1/save_weights", model, 1, ",\"path\":\"mine\""));
    train(t, model, 2, 1);
    assert_int_equal(delete (t, run), 409); /* what somebody named is deleted by name */
    assert_int_equal(delete (t, checkpoint), 204);
    int32_t status = 0;
    wait_until((status = delete (t, run)) != 0);
    assert_int_equal(status, 204);
    assert_int_equal(access(folder, F_OK), -1);
    assert_int_equal(delete (t, run), 404);
    tinkc_engine_free(engine);
    engine = world_open(store, TINKC_DURABILITY_JOURNAL, usual);
    answer a = service_call(tinkc_engine_transport(engine), "GET", "/api/v1/training_runs", NULL, NULL, 0);
    assert_true(!strstr(a.body.data, model) && strstr(a.body.data, other));
    answer_free(&a);
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

RUN_TESTS(setup, teardown)
