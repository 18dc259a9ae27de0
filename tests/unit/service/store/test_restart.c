/* test_restart.c - what is there again after an engine was closed, or copied while it ran
 * (which is what a sudden end leaves behind). */
#include <sqlite3.h>
#include <unistd.h>

#include "support/service/service_world.h"

static tinkc_engine *open_engine(const char *store, int32_t durability)
{
    const char *const settings[] = { "disk_reserve", "0", NULL };
    return world_open(store, durability, settings);
}

TEST(closed_in_good_order)
{
    char *store = tiny_folder();
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_SNAPSHOT);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 3);
    const char *step = hold(service_step(t, model, 7, 1e-2)); /* its result is not fetched */
    service_pass(t, model, 8, text_a, N, false);              /* a gradient is pending */
    char body[300];
    snprintf(body, sizeof body, "{\"model_id\":\"%s\",\"path\":\"kept\",\"seq_id\":9}", model);
    const char *save = hold(json_field(service_json(t, 200, "POST", "/api/v1/save_weights", "%s", body), "request_id"));
    service_wait(t, save);
    tinkc_engine_free(engine);

    engine = open_engine(store, TINKC_DURABILITY_SNAPSHOT);
    t = tinkc_engine_transport(engine);
    assert_true(json_number(service_wait(t, step), "optim/step") == 4.0);
    assert_non_null(strstr(service_wait(t, save), "/weights/kept\""));
    const char *again = json_field(service_json(t, 200, "POST", "/api/v1/save_weights", "%s", body), "request_id");
    assert_string_equal(again, save);                  /* a replay across the restart */
    service_wait(t, service_step(t, model, 10, 1e-2)); /* takes the pending gradient */
    double after = service_loss(t, model, 11, text_a, N);
    tinkc_engine_free(engine);
    tiny_model_remove(store);

    engine = open_engine(NULL, 0);
    t = tinkc_engine_transport(engine);
    const char *plain = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, plain, 1, 3);
    service_wait(t, service_step(t, plain, 7, 1e-2));
    service_pass(t, plain, 8, text_a, N, false);
    service_wait(t, service_step(t, plain, 9, 1e-2));
    assert_true(service_loss(t, plain, 10, text_a, N) == after);
    tinkc_engine_free(engine);
}

TEST(sudden_end_with_a_journal)
{
    char *store = tiny_folder();
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_JOURNAL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 2);
    tinkc_error err = { 0 };
    assert_true(tinkc_engine_flush(engine, PATIENCE_MS, &err)); /* an image, then more requests */
    train(t, model, 5, 2);
    const char *pass = hold(service_pass(t, model, 9, text_a, N, false));
    const char *step = hold(service_step(t, model, 10, 1e-2));
    char *copy = copy_store(store);
    tinkc_engine_free(engine);

    engine = open_engine(copy, TINKC_DURABILITY_JOURNAL);
    t = tinkc_engine_transport(engine);
    service_wait(t, pass); /* promised before the end, delivered after it */
    assert_true(json_number(service_wait(t, step), "optim/step") == 5.0);
    assert_string_equal(step, service_step(t, model, 10, 1e-2));
    assert_true(service_loss(t, model, 11, text_a, N) == undisturbed(5));
    tinkc_engine_free(engine);
    tiny_model_remove(copy);
    tiny_model_remove(store);
}

/* Numbers 3 and 6 are refused. 3 is passed before the end comes; 6 is the last, so that its sender
 * may use it again after the start. */
static void refused_numbers(int32_t durability)
{
    static const char half[] = "{\"model_id\":\"%s\",\"seq_id\":%d,\"adam";
    char *store = tiny_folder();
    tinkc_engine *engine = open_engine(store, durability);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 1);
    service_json(t, 422, "POST", "/api/v1/optim_step", half, model, 3);
    train(t, model, 4, 1);
    service_json(t, 422, "POST", "/api/v1/optim_step", half, model, 6);
    tinkc_error err = { 0 };
    if (durability != TINKC_DURABILITY_JOURNAL)
        assert_true(tinkc_engine_flush(engine, PATIENCE_MS, &err));
    char *copy = copy_store(store);
    tinkc_engine_free(engine);
    tiny_model_remove(store);

    engine = open_engine(copy, durability);
    t = tinkc_engine_transport(engine);
    service_wait_failure(t, service_pass(t, model, 3, text_a, N, false), "user", "3 expired");
    train(t, model, 6, 1);
    assert_true(service_loss(t, model, 8, text_a, N) == undisturbed(3));
    /* A number is passed, too, by one that was only accepted when the end came. */
    service_json(t, 422, "POST", "/api/v1/optim_step", half, model, 9);
    const char *last = hold(service_step(t, model, 11, 1e-2));
    char *second = copy_store(copy);
    tinkc_engine_free(engine);
    tiny_model_remove(copy);
    if (durability == TINKC_DURABILITY_JOURNAL) {
        engine = open_engine(second, durability);
        t = tinkc_engine_transport(engine);
        service_wait_failure(t, service_pass(t, model, 9, text_a, N, false), "user", "9 expired");
        service_pass(t, model, 10, text_a, N, false);
        service_wait(t, last);
        assert_true(service_loss(t, model, 12, text_a, N) == undisturbed(4));
        tinkc_engine_free(engine);
    }
    tiny_model_remove(second);
}

TEST(refused_numbers_and_a_sudden_end)
{
    refused_numbers(TINKC_DURABILITY_JOURNAL);
    refused_numbers(TINKC_DURABILITY_SNAPSHOT);
}

TEST(sudden_end_without_one)
{
    char *store = tiny_folder();
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_CHECKPOINT);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    const char *model = hold(service_model(t, session, 0, "tiny", 4, 7));
    train(t, model, 1, 2);
    const char *save = service_json(t, 200, "POST", "/api/v1/save_weights",
                                    "{\"model_id\":\"%s\",\"path\":\"two\",\"seq_id\":5}", model);
    const char *path = hold(json_field(service_wait(t, json_field(save, "request_id")), "path"));
    train(t, model, 6, 1);
    const char *lost = hold(service_step(t, model, 8, 1e-2));
    service_wait(t, lost);
    char *copy = copy_store(store);
    tinkc_engine_free(engine);

    engine = open_engine(copy, TINKC_DURABILITY_CHECKPOINT);
    t = tinkc_engine_transport(engine);
    answer a = service_result(t, lost, false);
    assert_int_equal(a.status, 410);
    answer_free(&a);
    assert_string_equal(lost, service_step(t, model, 8, 1e-2)); /* never executed twice */
    service_wait_failure(t, service_pass(t, model, 9, text_a, N, false), "user", "load a checkpoint");
    char run_path[200];
    snprintf(run_path, sizeof run_path, "/api/v1/training_runs/%s", model);
    answer run = service_call(t, "GET", run_path, NULL, NULL, 0);
    assert_non_null(strstr(run.body.data, "\"corrupted\":true"));
    answer_free(&run);
    const char *load = service_json(t, 200, "POST", "/api/v1/load_weights",
                                    "{\"model_id\":\"%s\",\"seq_id\":10,\"path\":\"%s\","
                                    "\"optimizer\":true}",
                                    model, path);
    service_wait(t, json_field(load, "request_id"));
    train(t, model, 11, 3);
    assert_true(service_loss(t, model, 17, text_a, N) == undisturbed(5));
    tinkc_engine_free(engine);
    tiny_model_remove(copy);
    tiny_model_remove(store);
}

/* A request that was accepted and had not run when the end came leaves no hole behind. */
TEST(what_never_ran_is_not_waited_for)
{
    char *store = tiny_folder();
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_SNAPSHOT);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 1);
    const char *never = hold(service_step(t, model, 4, 1e-2)); /* waits for 3 */
    tinkc_engine_free(engine);
    engine = open_engine(store, TINKC_DURABILITY_SNAPSHOT);
    t = tinkc_engine_transport(engine);
    answer a = service_result(t, never, false);
    assert_int_equal(a.status, 410);
    answer_free(&a);
    service_pass(t, model, 3, text_a, N, false);
    service_wait(t, service_step(t, model, 5, 1e-2)); /* 4 is known to be lost */
    assert_true(service_loss(t, model, 6, text_a, N) == undisturbed(2));
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

TEST(samplers_come_back)
{
    char *store = tiny_folder();
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_SNAPSHOT);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 2);
    const char *promise = service_json(t, 200, "POST", "/api/v1/save_weights_for_sampler",
                                       "{\"model_id\":\"%s\",\"seq_id\":5,"
                                       "\"sampling_session_seq_id\":0}",
                                       model);
    const char *sampler = hold(json_field(service_wait(t, json_field(promise, "request_id")), "sampling_session_id"));
    const char *body = "{\"sampling_session_id\":\"%s\",\"seq_id\":%d,\"prompt\":{\"chunks\":[{"
                       "\"type\":\"encoded_text\",\"tokens\":[1,5]}]},\"sampling_params\":{"
                       "\"max_tokens\":8,\"seed\":3}}";
    char text[400];
    snprintf(text, sizeof text, body, sampler, 0);
    const char *before =
        hold(service_wait(t, json_field(service_json(t, 200, "POST", "/api/v1/asample", "%s", text), "request_id")));
    tinkc_engine_free(engine);
    engine = open_engine(store, TINKC_DURABILITY_SNAPSHOT);
    t = tinkc_engine_transport(engine);
    const char *after =
        service_wait(t, json_field(service_json(t, 200, "POST", "/api/v1/asample", "%s", text), "request_id"));
    assert_string_equal(before, after);
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

/* A run that was rolled back saves nothing under a name that means later weights, and being refused
 * survives the next end, whether it comes suddenly or in good order. */
TEST(rolled_back_runs_save_nothing)
{
    char *store = tiny_folder();
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_SNAPSHOT);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 2); /* no image yet: all of this is lost */
    char *copy = copy_store(store);
    tinkc_engine_free(engine);
    tiny_model_remove(store);
    for (int boot = 0; boot < 2; boot++) {
        int seq = 5 + 3 * boot;
        engine = open_engine(copy, TINKC_DURABILITY_SNAPSHOT);
        t = tinkc_engine_transport(engine);
        const char *save = service_json(t, 200, "POST", "/api/v1/save_weights",
                                        "{\"model_id\":\"%s\",\"path\":\"x\",\"seq_id\":%d}", model, seq);
        service_wait_failure(t, json_field(save, "request_id"), "user", "load a checkpoint");
        save = service_json(t, 200, "POST", "/api/v1/save_weights_for_sampler",
                            "{\"model_id\":\"%s\",\"seq_id\":%d,"
                            "\"sampling_session_seq_id\":%d}",
                            model, seq + 1, boot);
        service_wait_failure(t, json_field(save, "request_id"), "user", "load a checkpoint");
        service_wait_failure(t, service_pass(t, model, seq + 2, text_a, N, false), "user", "load a checkpoint");
        tinkc_engine_free(engine);
    }
    tiny_model_remove(copy);
}

/* A loop that makes a sampler at every step, as reinforcement learning does, does not fill the
 * memory: those on disk give way, and come back when they are asked. */
TEST(samplers_give_way)
{
    enum { SAMPLERS = 5 };
    tinkc_error err = { 0 };
    char *store = tiny_folder();
    const char *const settings[] = { "disk_reserve", "0", "snapshot_memory_bytes", "1", NULL };
    tinkc_engine *engine =
        tinkc_engine_new(&(tinkc_engine_options){ .threads = 1, .store = store, .settings = settings }, &err);
    assert_ok(err);
    assert_true(tinkc_engine_add_model(engine, "tiny", model_folder, &err));
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    const char *samplers[SAMPLERS], *first[SAMPLERS];
    double bytes[SAMPLERS];
    for (int i = 0; i < SAMPLERS; i++) {
        train(t, model, 1 + 3 * i, 1);
        const char *saved = service_json(t, 200, "POST", "/api/v1/save_weights_for_sampler",
                                         "{\"model_id\":\"%s\",\"seq_id\":%d,"
                                         "\"sampling_session_seq_id\":%d}",
                                         model, 3 + 3 * i, i);
        samplers[i] = hold(json_field(service_wait(t, json_field(saved, "request_id")), "sampling_session_id"));
        bytes[i] = status_of(engine, "snapshot_bytes");
    }
    assert_true(bytes[0] > 0 && bytes[SAMPLERS - 1] == bytes[0]); /* one of them at a time */
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < SAMPLERS; i++) {
            const char *asked =
                service_json(t, 200, "POST", "/api/v1/asample",
                             "{\"sampling_session_id\":\"%s\",\"seq_id\":%d,\"prompt\":{\"chunks\":[{\"type\":"
                             "\"encoded_text\",\"tokens\":[1,5]}]},\"sampling_params\":{\"max_tokens\":4,"
                             "\"seed\":3}}",
                             samplers[i], round);
            const char *got = hold(service_wait(t, json_field(asked, "request_id")));
            if (round == 0)
                first[i] = got;
            else
                assert_string_equal(strstr(got, "\"sequences\""), strstr(first[i], "\"sequences\""));
        }
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

TEST(sleep_and_wake)
{
    tinkc_error err = { 0 };
    char *store = tiny_folder();
    /* Room for one adapter and a half: two models must take turns in memory. */
    tinkc_engine *engine = open_engine(NULL, 0);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    service_model(t, service_session(t), 0, "tiny", 4, 7);
    double one = status_of(engine, "adapter_bytes");
    tinkc_engine_free(engine);
    const char *const settings[] = { "disk_reserve", "0", "train_memory_bytes", "200000000", NULL };
    const tinkc_engine_options options = {
        .threads = 1, .store = store, .memory_bytes = (int64_t)(one * 1.5), .settings = settings
    };
    engine = tinkc_engine_new(&options, &err);
    assert_ok(err);
    assert_true(tinkc_engine_add_model(engine, "tiny", model_folder, &err));
    t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    const char *a = hold(service_model(t, session, 0, "tiny", 4, 7));
    train(t, a, 1, 2);
    const char *b = hold(service_model(t, session, 1, "tiny", 4, 7));
    train(t, b, 1, 3);
    train(t, a, 5, 3);
    train(t, b, 7, 2);
    double expected = undisturbed(5);
    assert_true(service_loss(t, a, 11, text_a, N) == expected);
    assert_true(service_loss(t, b, 11, text_a, N) == expected);
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

TEST(a_store_in_use_or_of_another_kind_is_refused)
{
    tinkc_error err = { 0 };
    char *store = tiny_folder(), path[300];
    tinkc_engine *engine = open_engine(store, 0);
    assert_null(tinkc_engine_new(&(tinkc_engine_options){ .store = store }, &err));
    assert_int_equal(err.code, TINKC_E_STORE);
    assert_non_null(strstr(err.message, "another process has it open"));
    tinkc_engine_free(engine);

    /* Tables that cannot be read: what was started before is ended again. */
    sqlite3 *db = NULL;
    snprintf(path, sizeof path, "%s/meta.db", store);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "DROP TABLE runs; CREATE VIEW runs AS SELECT 1 AS id", NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    err = (tinkc_error){ 0 };
    assert_null(tinkc_engine_new(&(tinkc_engine_options){ .store = store }, &err));
    assert_int_equal(err.code, TINKC_E_STORE);

    err = (tinkc_error){ 0 };
    tiny_write(store, "meta.db",
               "not a database, and long enough that its first page is read ....."
               "................................................................");
    snprintf(path, sizeof path, "%s/meta.db-wal", store);
    unlink(path);
    assert_null(tinkc_engine_new(&(tinkc_engine_options){ .store = store }, &err));
    assert_int_equal(err.code, TINKC_E_STORE);
    assert_non_null(strstr(err.message, "damaged"));

    err = (tinkc_error){ 0 };
    snprintf(path, sizeof path, "%s/meta.db/below-a-file", store);
    assert_null(tinkc_engine_new(&(tinkc_engine_options){ .store = path }, &err));
    assert_int_equal(err.code, TINKC_E_FILE);
    tiny_model_remove(store);
}

static void count_gone(int32_t level, const char *line, void *user)
{
    (void)level;
    *(int *)user += strstr(line, "its files are gone") != NULL;
}

/* A checkpoint whose folder was taken away is said once, and then forgotten. */
TEST(a_lost_folder_is_reported_once)
{
    char *store = tiny_folder();
    char command[400];
    tinkc_engine *engine = open_engine(store, 0);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    const char *save = service_json(t, 200, "POST", "/api/v1/save_weights",
                                    "{\"model_id\":\"%s\",\"path\":\"x\",\"seq_id\":1}", model);
    service_wait(t, json_field(save, "request_id"));
    tinkc_engine_free(engine);
    snprintf(command, sizeof command, "rm -r '%s/runs/%s/weights/x'", store, model);
    assert_int_equal(system(command), 0);
    for (int boot = 0; boot < 2; boot++) {
        tinkc_error err = { 0 };
        int n = 0;
        tinkc_engine_free(tinkc_engine_new(
            &(tinkc_engine_options){ .threads = 1, .store = store, .log = count_gone, .log_user = &n }, &err));
        assert_ok(err);
        assert_int_equal(n, boot == 0);
    }
    tiny_model_remove(store);
}

RUN_TESTS(setup, teardown)
