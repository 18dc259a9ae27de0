/* test_sudden_end.c - ends at the worst moments: between a folder and its row, between a
 * row and its answer, and again while the service starts. The store is copied while the engine
 * runs, which is what kill -9 leaves, and rows that would not have been written yet are taken out.
 */
#include <unistd.h>

#include "base/file.h"
#include "service/store/store.h"
#include "support/service/service_world.h"

static const char *const usual[] = { "disk_reserve", "0", NULL };

static tinkc_engine *open_bare(const char *store, int32_t durability)
{
    return world_open_bare(store, durability, usual);
}

static tinkc_engine *open_engine(const char *store, int32_t durability)
{
    return world_open(store, durability, usual);
}

/* As if the last rows had not been written. */
static void forget_rows(const char *store, const char *sql)
{
    tinkc_error err = { 0 };
    tkc_log log = { 0 };
    tke_store *s = tke_store_open(NULL, &log, store, &err);
    assert_ok(err);
    tke_txn *txn = tke_txn_new(s, &err);
    tke_txn_exec(txn, sql, "");
    tke_txn_commit(txn, NULL, NULL);
    tke_store_close(s);
}

static bool is_listed(const tinkc_transport *t, const char *name)
{
    answer a = service_call(t, "GET", "/api/v1/checkpoints", NULL, NULL, 0);
    bool listed = strstr(a.body.data, name) != NULL;
    answer_free(&a);
    return listed;
}

static bool is_corrupted(const tinkc_transport *t, const char *model)
{
    char path[200];
    snprintf(path, sizeof path, "/api/v1/training_runs/%s", model);
    answer a = service_call(t, "GET", path, NULL, NULL, 0);
    bool corrupted = strstr(a.body.data, "\"corrupted\":true") != NULL;
    answer_free(&a);
    return corrupted;
}

/* As if it had been written before the store was copied. */
static void copy_checkpoint(const char *from, const char *to, const char *model, const char *name)
{
    tinkc_error err = { 0 };
    char source[600], target[600];
    snprintf(source, sizeof source, "%s/runs/%s/%s", from, model, name);
    snprintf(target, sizeof target, "%s/runs/%s/%s", to, model, name);
    assert_true(tkc_make_dirs(target, &err) && tke_link_folder(source, target, &err));
}

/* A checkpoint's folder is there, its row and those of the requests before it are not; and the
 * first start after that is cut short, having taken the folder in. */
TEST(a_start_that_is_cut_short)
{
    tinkc_error err = { 0 };
    char *store = tiny_folder();
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_JOURNAL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 2);
    assert_true(tinkc_engine_flush(engine, PATIENCE_MS, &err));
    const char *pass = hold(service_pass(t, model, 5, text_a, N, false));
    const char *step = hold(service_step(t, model, 6, 1e-2));
    const char *sampler = post(t, "/api/v1/save_weights_for_sampler", model, 7, ",\"path\":\"y\"");
    service_wait(t, sampler);
    char *first = copy_store(store);
    service_wait(t, post(t, "/api/v1/save_weights", model, 8, ",\"path\":\"x\""));
    copy_checkpoint(store, first, model, "weights/x");
    tinkc_engine_free(engine);
    forget_rows(first, "DELETE FROM requests WHERE seq_id >= 6");
    forget_rows(first, "DELETE FROM checkpoints");
    for (int starts = 0; starts < 2; starts++) {
        engine = open_bare(first, TINKC_DURABILITY_JOURNAL); /* nothing can run: no base model */
        assert_true(is_listed(tinkc_engine_transport(engine), "weights/x"));
        char *next = copy_store(first);
        tinkc_engine_free(engine);
        tiny_model_remove(first);
        first = next;
    }
    engine = open_engine(first, TINKC_DURABILITY_JOURNAL);
    t = tinkc_engine_transport(engine);
    service_wait(t, pass);
    assert_true(json_number(service_wait(t, step), "optim/step") == 3.0);
    assert_non_null(strstr(service_wait(t, sampler), "/sampler_weights/y\""));
    const char *save = post(t, "/api/v1/save_weights", model, 8, ",\"path\":\"x\"");
    assert_non_null(strstr(service_wait(t, save), "/weights/x\""));
    assert_true(service_loss(t, model, 9, text_a, N) == undisturbed(3));
    assert_false(is_corrupted(t, model));
    tinkc_engine_free(engine);
    tiny_model_remove(first);
    tiny_model_remove(store);
}

static void delete_and_restart(int32_t durability, const char *endpoint, const char *kind)
{
    char *store = tiny_folder(), path[300], id[60];
    tinkc_engine *engine = open_engine(store, durability);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 1);
    service_wait(t, post(t, endpoint, model, 3, ",\"path\":\"x\""));
    snprintf(id, sizeof id, "\"%s/x\"", kind);
    snprintf(path, sizeof path, "/api/v1/training_runs/%s/checkpoints/%s/x", model, kind);
    answer a = service_call(t, "DELETE", path, NULL, NULL, 0);
    assert_int_equal(a.status, 204);
    answer_free(&a);
    char *copy = copy_store(store);
    tinkc_engine_free(engine);
    engine = open_engine(copy, durability);
    t = tinkc_engine_transport(engine);
    service_wait(t, post(t, endpoint, model, 3, ",\"path\":\"x\""));
    assert_false(is_listed(t, id));
    tinkc_engine_free(engine);
    tiny_model_remove(copy);
    tiny_model_remove(store);
}

TEST(deleted_checkpoints_stay_deleted)
{
    static const int32_t levels[] = { TINKC_DURABILITY_JOURNAL, TINKC_DURABILITY_SNAPSHOT };
    for (size_t i = 0; i < 2; i++) {
        delete_and_restart(levels[i], "/api/v1/save_weights", "weights");
        delete_and_restart(levels[i], "/api/v1/save_weights_for_sampler", "sampler_weights");
    }
}

/* The name can be used again at once: the files of the new one are not taken for the old one's. */
TEST(saved_again_after_deleting)
{
    char *store = tiny_folder(), path[300];
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_SNAPSHOT);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 1);
    snprintf(path, sizeof path, "/api/v1/training_runs/%s/checkpoints/weights/x", model);
    for (int i = 0; i < 10; i++) {
        service_wait(t, post(t, "/api/v1/save_weights", model, 3 + i, ",\"path\":\"x\""));
        answer a = service_call(t, "DELETE", path, NULL, NULL, 0);
        assert_int_equal(a.status, 204);
        answer_free(&a);
    }
    service_wait(t, post(t, "/api/v1/save_weights", model, 13, ",\"path\":\"x\""));
    char body[300];
    snprintf(body, sizeof body, ",\"path\":\"tinker://%s/weights/x\",\"optimizer\":true", model);
    service_wait(t, post(t, "/api/v1/load_weights", model, 14, body));
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

/* A run that continues from a named checkpoint does not lose its weights with it. */
TEST(the_state_of_a_run_outlives_its_checkpoint)
{
    char *store = tiny_folder(), path[300];
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_CHECKPOINT);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 2);
    service_wait(t, post(t, "/api/v1/save_weights", model, 5, ",\"path\":\"x\""));
    tinkc_engine_free(engine);
    for (int boot = 0; boot < 2; boot++) {
        engine = open_engine(store, TINKC_DURABILITY_CHECKPOINT);
        t = tinkc_engine_transport(engine);
        snprintf(path, sizeof path, "/api/v1/training_runs/%s/checkpoints/weights/x", model);
        answer a = service_call(t, "DELETE", path, NULL, NULL, 0);
        assert_int_equal(a.status, boot ? 404 : 204);
        answer_free(&a);
        assert_true(service_loss(t, model, 6 + boot, text_a, N) == undisturbed(2));
        tinkc_engine_free(engine);
    }
    tiny_model_remove(store);
}

/* What a load has read may change at once; a journal must not read it again. */
TEST(loads_are_not_repeated_from_other_weights)
{
    char *store = tiny_folder(), body[300];
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_JOURNAL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 1);
    service_wait(t, post(t, "/api/v1/save_weights", model, 3, ",\"path\":\"x\""));
    train(t, model, 4, 1);
    snprintf(body, sizeof body, ",\"path\":\"tinker://%s/weights/x\",\"optimizer\":true", model);
    service_wait(t, post(t, "/api/v1/load_weights", model, 6, body));
    train(t, model, 7, 1);
    service_wait(t, post(t, "/api/v1/save_weights", model, 9, ",\"path\":\"x\",\"overwrite\":true"));
    train(t, model, 10, 1);
    char *copy = copy_store(store);
    tinkc_engine_free(engine);
    forget_rows(copy, "DELETE FROM requests WHERE seq_id >= 9"); /* not yet answered */
    engine = open_engine(copy, TINKC_DURABILITY_JOURNAL);
    t = tinkc_engine_transport(engine);
    assert_true(service_loss(t, model, 12, text_a, N) == undisturbed(3));
    tinkc_engine_free(engine);
    tiny_model_remove(copy);
    tiny_model_remove(store);
}

TEST(a_model_made_from_a_checkpoint)
{
    static const int32_t levels[] = { TINKC_DURABILITY_CHECKPOINT, TINKC_DURABILITY_SNAPSHOT,
                                      TINKC_DURABILITY_JOURNAL };
    for (size_t i = 0; i < 3; i++) {
        char *store = tiny_folder();
        tinkc_engine *engine = open_engine(store, levels[i]);
        const tinkc_transport *t = tinkc_engine_transport(engine);
        const char *session = hold(service_session(t));
        const char *model = hold(service_model(t, session, 0, "tiny", 4, 7));
        train(t, model, 1, 2);
        service_wait(t, post(t, "/api/v1/save_weights", model, 5, ",\"path\":\"x\""));
        const char *made = service_json(t, 200, "POST", "/api/v1/load_weights",
                                        "{\"session_id\":\"%s\",\"model_seq_id\":1,\"path\":\"tinker://%s/weights/x\","
                                        "\"optimizer\":true}",
                                        session, model);
        const char *second = hold(json_field(made, "model_id"));
        service_wait(t, json_field(made, "request_id")); /* from here on it must be there */
        char *copy = copy_store(store);
        tinkc_engine_free(engine);
        engine = open_engine(copy, levels[i]);
        t = tinkc_engine_transport(engine);
        train(t, second, 1, 1);
        assert_true(service_loss(t, second, 3, text_a, N) == undisturbed(3));
        tinkc_engine_free(engine);
        tiny_model_remove(copy);
        tiny_model_remove(store);
    }
}

/* Requests that failed changed nothing: that they came after the image loses nothing; and with a
 * journal they fail again rather than succeed now. */
TEST(failures_are_no_losses)
{
    static const int32_t levels[] = { TINKC_DURABILITY_SNAPSHOT, TINKC_DURABILITY_JOURNAL };
    static const int beyond[] = { 1, 63, 99, 3 };
    tinkc_error err = { 0 };
    for (size_t i = 0; i < 2; i++) {
        char *store = tiny_folder();
        tinkc_engine *engine = open_engine(store, levels[i]);
        const tinkc_transport *t = tinkc_engine_transport(engine);
        const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
        train(t, model, 1, 2);
        assert_true(tinkc_engine_flush(engine, PATIENCE_MS, &err));
        const char *bad = hold(service_pass(t, model, 5, beyond, 4, false));
        service_wait_failure(t, bad, "user", "99");
        const char *load =
            post(t, "/api/v1/load_weights", model, 6, ",\"path\":\"tinker://a/weights/b\",\"optimizer\":true");
        service_wait_failure(t, load, "user", "does not exist");
        char *copy = copy_store(store);
        tinkc_engine_free(engine);
        engine = open_engine(copy, levels[i]);
        t = tinkc_engine_transport(engine);
        service_wait_failure(t, bad, "user", "99");
        service_wait_failure(t, load, "user", "does not exist");
        assert_false(is_corrupted(t, model));
        service_pass(t, model, 7, text_a, N, false);
        const char *step = service_wait(t, service_step(t, model, 8, 1e-2));
        if (levels[i] == TINKC_DURABILITY_JOURNAL) /* it knows of the one that failed */
            assert_true(json_number(step, "failed_fwdbwd_since_last_step") == 1.0);
        assert_true(service_loss(t, model, 9, text_a, N) == undisturbed(3));
        tinkc_engine_free(engine);
        tiny_model_remove(copy);
        tiny_model_remove(store);
    }
}

/* A number that was reported lost to its client is not waited for after the next sudden end either.
 * */
TEST(what_is_known_to_be_lost_stays_so)
{
    char *store = tiny_folder();
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_SNAPSHOT);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 1);
    const char *lost = hold(service_step(t, model, 4, 1e-2)); /* waits for 3 */
    tinkc_engine_free(engine);
    engine = open_engine(store, TINKC_DURABILITY_SNAPSHOT);
    t = tinkc_engine_transport(engine);
    answer a = service_result(t, lost, false);
    assert_int_equal(a.status, 410);
    answer_free(&a);
    char *copy = copy_store(store);
    tinkc_engine_free(engine);
    engine = open_engine(copy, TINKC_DURABILITY_SNAPSHOT);
    t = tinkc_engine_transport(engine);
    service_pass(t, model, 3, text_a, N, false);
    service_wait(t, service_step(t, model, 5, 1e-2));
    assert_true(service_loss(t, model, 6, text_a, N) == undisturbed(2));
    tinkc_engine_free(engine);
    tiny_model_remove(copy);
    tiny_model_remove(store);
}

static bool has_file(const char *store, const char *model, const char *name)
{
    char path[600];
    snprintf(path, sizeof path, "%s/runs/%s/%s", store, model, name);
    return access(path, F_OK) == 0;
}

/* A run of a finished session keeps its checkpoints and nothing else, also where the service ended
 * before it had removed them. */
TEST(a_finished_session_keeps_checkpoints_and_no_images)
{
    tinkc_error err = { 0 };
    char *store = tiny_folder(), path[200];
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_JOURNAL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    const char *model = hold(service_model(t, session, 0, "tiny", 4, 7));
    service_wait(t, post(t, "/api/v1/save_weights", model, 1, ",\"path\":\"x\""));
    train(t, model, 2, 1);
    assert_true(tinkc_engine_flush(engine, PATIENCE_MS, &err));
    assert_true(has_file(store, model, "image.0") && has_file(store, model, "journal"));
    snprintf(path, sizeof path, "/api/v1/sessions/%s/finish", session);
    service_json(t, 200, "POST", path, "{\"reason\":{\"type\":\"success\"}}");
    char *early = copy_store(store); /* before or after they are removed */
    tinkc_engine_free(engine);
    const char *stores[] = { early, store };
    for (size_t i = 0; i < 2; i++) {
        engine = open_engine(stores[i], TINKC_DURABILITY_JOURNAL);
        assert_true(is_listed(tinkc_engine_transport(engine), "weights/x"));
        tinkc_engine_free(engine);
        assert_false(has_file(stores[i], model, "image.0") || has_file(stores[i], model, "journal"));
        assert_true(has_file(stores[i], model, "weights/x/checkpoint_complete"));
    }
    tiny_model_remove(early);
    tiny_model_remove(store);
}

TEST(unloaded_is_unloaded)
{
    tinkc_error err = { 0 };
    char *store = tiny_folder(), path[400];
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_JOURNAL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 1);
    assert_true(tinkc_engine_flush(engine, PATIENCE_MS, &err));
    train(t, model, 3, 1);
    service_wait(t, json_field(service_json(t, 200, "POST", "/api/v1/unload_model", "{\"model_id\":\"%s\"}", model),
                               "request_id"));
    snprintf(path, sizeof path, "%s/runs/%s/journal", store, model);
    assert_false(tkc_is_file(path));
    snprintf(path, sizeof path, "%s/runs/%s/image.0", store, model);
    assert_false(tkc_is_dir(path));
    char *copy = copy_store(store);
    tinkc_engine_free(engine);
    engine = open_engine(copy, TINKC_DURABILITY_JOURNAL);
    t = tinkc_engine_transport(engine);
    service_json(t, 404, "POST", "/api/v1/get_info", "{\"model_id\":\"%s\"}", model);
    tinkc_engine_free(engine);
    tiny_model_remove(copy);
    tiny_model_remove(store);
}

RUN_TESTS(setup, teardown)
