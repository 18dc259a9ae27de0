/* test_checkpoint_copy.c - what checkpoints carry along, and copies of them: who may, what stays when
 * the original goes, what a sudden end leaves. */
#include <sys/stat.h>

#include "service/core/saved_checkpoints.h"
#include "service/core/service_state.h"
#include "service/core/tenants.h"
#include "support/service/service_world.h"

static const char *const settings[] = { "disk_reserve", "0", NULL };

/* A model with one step, saved as both kinds with metadata; its id. */
static const char *make(const tinkc_transport *t)
{
    const char *session = service_session(t);
    const char *promise = service_json(t, 200, "POST", "/api/v1/create_model",
                                       "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":"
                                       "\"tiny\",\"user_metadata\":{\"who\":"
                                       "\"me\",\"n\":3},\"lora_config\":{\"rank\":4,\"seed\":7}}",
                                       session);
    const char *model = hold(json_field(promise, "model_id"));
    service_wait(t, json_field(promise, "request_id"));
    train(t, model, 1, 1);
    static const char more[] = ",\"path\":\"one\",\"user_metadata\":{\"note\":\"a \\\"b\\\" \\u00e9\",\"k\":1.5}";
    service_wait(t, post(t, "/api/v1/save_weights", model, 3, more));
    service_wait(t, post(t, "/api/v1/save_weights_for_sampler", model, 4, more));
    service_wait(t, post(t, "/api/v1/save_weights", model, 5, ",\"path\":\"bare\""));
    return model;
}

static const char *listed(const tinkc_transport *t, const char *run)
{
    char path[200];
    snprintf(path, sizeof path, "/api/v1/training_runs/%s/checkpoints", run);
    return service_json(t, 200, "GET", path, "%s", "");
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++)
        n++;
    return n;
}

static const char noted[] = "\"user_metadata\":{\"note\":\"a \\\"b\\\" \xc3\xa9\",\"k\":\"1.5\"}";

/* A copy is refused unless all of it fits, and counts once it is there. */
TEST(copies_fit_into_the_quota)
{
    char *store = tiny_folder(), body[300];
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_CHECKPOINT, settings);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    tke_service *svc = tke_engine_service(engine);
    const char *model = make(t);
    snprintf(body, sizeof body, "tinker://%s/weights/one", model);
    pthread_mutex_lock(&svc->lock);
    const tke_checkpoint *c = tke_find_checkpoint(svc, body, NULL);
    int64_t size = c->bytes, used = tke_tenant_storage(svc, c->owner);
    pthread_mutex_unlock(&svc->lock);
    snprintf(body, sizeof body, "{\"destination_project_id\":\"p\",\"source_path\":\"tinker://%s/weights/one\"}",
             model);
    tke_service_set_quota(svc, c->owner, &(tke_quota){ .storage_bytes = used + size - 1 });
    assert_non_null(strstr(service_json(t, 403, "POST", "/api/v1/copy_weights", "%s", body), "quota_storage"));
    tke_service_set_quota(svc, c->owner, &(tke_quota){ .storage_bytes = used + size });
    service_json(t, 200, "POST", "/api/v1/copy_weights", "%s", body);
    pthread_mutex_lock(&svc->lock);
    int64_t now = tke_tenant_storage(svc, c->owner);
    pthread_mutex_unlock(&svc->lock);
    assert_int_equal(now, used + size);
    service_json(t, 403, "POST", "/api/v1/copy_weights", "%s", body);
    tke_service_set_quota(svc, c->owner, &(tke_quota){ .storage_bytes = used + 2 * size });
    service_json(t, 200, "POST", "/api/v1/copy_weights", "%s", body); /* none is counted twice */
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

/* ---- copies ---- */

static const char *copy_body(const char *run, const char *which, const char *more)
{
    static char body[600];
    snprintf(body, sizeof body, "{\"source_path\":\"tinker://%s/%s\"%s}", run, which, more);
    return body;
}

static const char to_project[] = ",\"destination_project_id\":\"proj-b\"";

/* The copy's path, behind "tinker://". */
static const char *copied(const tinkc_transport *t, const char *run, const char *which, const char *more)
{
    const char *path = json_field(
        service_json(t, 200, "POST", "/api/v1/copy_weights", "%s", copy_body(run, which, more)), "tinker_path");
    assert_memory_equal(path, "tinker://", 9);
    return hold(path + 9);
}

static void run_of(const char *path, char run[100])
{
    snprintf(run, 100, "%.*s", (int)strcspn(path, "/"), path);
}

/* The loss of a fresh model that has loaded these weights. */
static double loss_from(const tinkc_transport *t, const char *path)
{
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 99));
    char more[400];
    snprintf(more, sizeof more, ",\"path\":\"tinker://%s\",\"optimizer\":true", path);
    service_wait(t, post(t, "/api/v1/load_weights", model, 1, more));
    train(t, model, 2, 1);
    return service_loss(t, model, 4, text_a, N);
}

static void a_copy_is_a_checkpoint(const char *store)
{
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, settings);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = make(t);
    char original[200], run[100], path[400];
    snprintf(original, sizeof original, "%s/weights/one", model);
    double loss = loss_from(t, original);
    const char *copy = copied(t, model, "weights/one", to_project);
    const char *sampler = copied(t, model, "sampler_weights/one", to_project);
    assert_true(strcmp(copy, original) != 0 && strstr(copy, "/weights/one"));
    assert_non_null(strstr(sampler, "/sampler_weights/one"));
    assert_true(strcspn(copy, "/") != strlen(model) || strncmp(copy, model, strlen(model)) != 0);
    for (int i = 0; i < 2; i++) { /* with the original, and without */
        assert_true(loss_from(t, copy) == loss);
        run_of(copy, run);
        assert_int_equal(count(listed(t, run), noted), 1);
        snprintf(path, sizeof path, "/api/v1/training_runs/%s/checkpoints/%s/one", model,
                 i ? "sampler_weights" : "weights");
        answer a = service_call(t, "DELETE", path, NULL, NULL, 0);
        assert_int_equal(a.status, 204);
        answer_free(&a);
    }
    snprintf(path, sizeof path, "{\"tinker_path\":\"tinker://%s\"}", sampler);
    const char *info = service_json(t, 200, "POST", "/api/v1/weights_info", "%s", path);
    assert_true(json_number(info, "lora_rank") == 4.0);
    service_json(t, 404, "POST", "/api/v1/optim_step", "{\"model_id\":\"%s\",\"seq_id\":1}", run);
    const char *mine = service_json(t, 200, "GET", "/api/v1/training_runs?project_id=proj-b", "%s", "");
    assert_int_equal(count(mine, "\"training_run_id\""), 2);
    service_json(t, 404, "POST", "/api/v1/copy_weights", "%s", copy_body(model, "weights/one", to_project));
    tinkc_engine_free(engine);
    if (!store)
        return;
    engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, settings);
    t = tinkc_engine_transport(engine);
    assert_true(loss_from(t, copy) == loss);
    assert_int_equal(count(listed(t, run), noted), 1);
    tinkc_engine_free(engine);
}

TEST(a_copy_is_a_checkpoint_of_its_own)
{
    char *store = tiny_folder();
    a_copy_is_a_checkpoint(store);
    a_copy_is_a_checkpoint(NULL);
    tiny_model_remove(store);
}

/* A store that is copied at any moment has whole copies or none; those that were reported are
 * there. */
TEST(a_sudden_end_while_copying)
{
    enum { ROUNDS = 4, EACH = 5 };
    char *store = tiny_folder(), *ends[ROUNDS];
    const char *paths[ROUNDS * EACH];
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_CHECKPOINT, settings);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = make(t);
    char original[200];
    snprintf(original, sizeof original, "%s/weights/one", model);
    double loss = loss_from(t, original);
    for (int i = 0; i < ROUNDS * EACH; i++) {
        paths[i] = copied(t, model, "weights/one", to_project);
        if (i % EACH == EACH - 1)
            ends[i / EACH] = copy_store(store);
    }
    tinkc_engine_free(engine);
    for (int r = 0; r < ROUNDS; r++) {
        engine = world_open(ends[r], TINKC_DURABILITY_CHECKPOINT, settings);
        t = tinkc_engine_transport(engine);
        assert_true(loss_from(t, paths[(r + 1) * EACH - 1]) == loss);
        const char *all = service_json(t, 200, "GET", "/api/v1/checkpoints?limit=1000", "%s", "");
        assert_int_equal(count(all, "\"checkpoint_id\""), 3 + (r + 1) * EACH);
        tinkc_engine_free(engine);
        tiny_model_remove(ends[r]);
    }
    tiny_model_remove(store);
}

/* Saves under one name, one behind the other: the last has it, and nobody else can be seen. */
TEST(one_name_for_many)
{
    tinkc_engine *engine = world_open(NULL, 0, settings);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7)), *ids[12];
    for (int i = 0; i < 12; i++) {
        char more[120];
        snprintf(more, sizeof more, ",\"path\":\"x\",\"overwrite\":true,\"user_metadata\":{\"n\":\"%d\"}", i);
        ids[i] = post(t, "/api/v1/save_weights", model, 1 + i, more);
    }
    for (int i = 0; i < 12; i++)
        service_wait(t, ids[i]);
    const char *all = listed(t, model);
    assert_int_equal(count(all, "\"checkpoint_id\""), 1);
    assert_non_null(strstr(all, "{\"n\":\"11\"}"));
    tinkc_engine_free(engine);
}

/* An engine that ends while saves, which push out older ones, are under way. */
TEST(ends_while_saving)
{
    const char *const last[] = { "disk_reserve", "0", "keep_last_k", "1", NULL };
    for (int i = 0; i < 10; i++) {
        char *store = tiny_folder();
        tinkc_engine *engine = world_open(store, TINKC_DURABILITY_CHECKPOINT, last);
        const tinkc_transport *t = tinkc_engine_transport(engine);
        const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
        const char *first = post(t, "/api/v1/save_weights", model, 1, ",\"path\":\"a\"");
        post(t, "/api/v1/save_weights", model, 2, ",\"path\":\"b\"");
        post(t, "/api/v1/save_weights", model, 3, ",\"path\":\"c\"");
        service_wait(t, first);
        tinkc_engine_free(engine);
        engine = world_open(store, TINKC_DURABILITY_CHECKPOINT, last);
        assert_true(count(listed(tinkc_engine_transport(engine), model), "\"checkpoint_id\"") >= 1);
        tinkc_engine_free(engine);
        tiny_model_remove(store);
    }
}

RUN_TESTS(setup, teardown)
