/* test_handlers_upload.c - adapters that clients send: what comes back is what was sent, and nothing
 * else becomes a checkpoint. */
#include "../../../../service/handlers/handlers_upload.c"

#include "service/core/tenants.h"
#include "service/handlers/uploads.h"
#include "support/service/service_world.h"

static const char *const settings[] = { "disk_reserve", "0", NULL };
static tinkc_engine *engine;
static const tinkc_transport *t;
static const char *original; /* path of the weights that were sent */
static answer config, tensors;

#define START  "/api/v1/external_weights_upload_start"
#define FINISH "/api/v1/external_weights_upload_finish"

/* The file of a link, which is given with or without the address of the server. */
static answer fetch(const char *url)
{
    const char *path = strstr(url, "/api/v1/");
    assert_non_null(path);
    return service_call(t, "GET", path, NULL, NULL, 0);
}

static int open_world(void **state)
{
    char path[300];
    setup(state);
    engine = world_open(NULL, 0, settings);
    t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 1);
    service_wait(t, post(t, "/api/v1/save_weights", model, 3, ",\"path\":\"one\""));
    service_wait(t, post(t, "/api/v1/save_weights_external", model, 4, ",\"path\":\"out\""));
    snprintf(path, sizeof path, "tinker://%s/weights/one", model);
    original = hold(path);
    snprintf(path, sizeof path, "/api/v1/training_runs/%s/checkpoints/external_weights/out/external_weights_urls",
             model);
    const char *links = service_json(t, 200, "GET", path, "%s", "");
    config = fetch(json_field(links, "adapter_config.json"));
    tensors = fetch(json_field(links, "adapter_model.safetensors"));
    return config.status == 200 && tensors.status == 200 ? 0 : 1;
}

static int close_world(void **state)
{
    answer_free(&config);
    answer_free(&tensors);
    tinkc_engine_free(engine);
    return teardown(state);
}

static int64_t stored(tke_service *svc)
{
    pthread_mutex_lock(&svc->lock);
    int64_t bytes = tke_tenant_storage(svc, "default");
    pthread_mutex_unlock(&svc->lock);
    return bytes;
}

static const char *start(int rank, const char *more)
{
    return hold(json_field(service_json(t, 200, "POST", START,
                                        "{\"base_model\":\"tiny\",\"lora_config\":{\"rank\":%d%s},"
                                        "\"destination_project_id\":\"p-up\"}",
                                        rank, more),
                           "upload_id"));
}

static int put(const char *id, const char *file, tkc_buf body, const char *const *headers)
{
    char path[200];
    snprintf(path, sizeof path, "/api/v1/uploads/%s/%s", id, file);
    answer a = service_call(t, "PUT", path, headers, body.data, body.len);
    int status = a.status;
    answer_free(&a);
    return status;
}

static void send_both(const char *id)
{
    assert_int_equal(put(id, "adapter_config.json", config.body, NULL), 200);
    assert_int_equal(put(id, "adapter_model.safetensors", tensors.body, NULL), 200);
}

static const char *finish(const char *id, int status)
{
    return service_json(t, status, "POST", FINISH, "{\"upload_id\":\"%s\"}", id);
}

static double loss_of(const char *path)
{
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 99));
    char more[400];
    snprintf(more, sizeof more, ",\"path\":\"%s\",\"optimizer\":false", path);
    service_wait(t, post(t, "/api/v1/load_weights", model, 1, more));
    return service_loss(t, model, 2, text_a, N);
}

TEST(what_was_sent_can_be_trained)
{
    const char *id = start(4, "");
    send_both(id);
    const char *path = hold(json_field(finish(id, 200), "tinker_path"));
    assert_memory_equal(path, "tinker://", 9);
    assert_non_null(strstr(path, "/weights/uploaded"));
    assert_true(loss_of(path) == loss_of(original));
    const char *runs = service_json(t, 200, "GET", "/api/v1/training_runs?project_id=p-up", "%s", "");
    assert_non_null(strstr(runs, "\"lora_rank\":4"));
}

TEST(finishing_twice_makes_one_checkpoint)
{
    const char *id = start(4, "");
    send_both(id);
    const char *path = hold(json_field(finish(id, 200), "tinker_path"));
    const char *events = hold(service_json(t, 200, "GET", "/api/v1/audit", "%s", ""));
    assert_non_null(strstr(events, path));
    assert_string_equal(json_field(finish(id, 200), "tinker_path"), path);
    assert_string_equal(service_json(t, 200, "GET", "/api/v1/audit", "%s", ""), events);
    assert_int_equal(put(id, "adapter_config.json", config.body, NULL), 409);
}

TEST(starts_that_are_refused)
{
    static const struct {
        const char *body, *says;
    } rows[] = {
        { "{\"base_model\":\"none\",\"lora_config\":{\"rank\":4}}", "Unknown base model 'none'" },
        { "{\"base_model\":\"tiny\",\"lora_config\":{\"rank\":0}}", "rank must be from 1" },
        { "{\"base_model\":\"tiny\",\"lora_config\":{\"rank\":99999}}", "rank must be from 1" },
        { "{\"base_model\":\"tiny\",\"lora_config\":{\"rank\":4,\"train_mlp\":false,"
          "\"train_attn\":false,\"train_unembed\":false}}",
          "nothing is trained" },
        { "{\"base_model\":\"tiny\",\"lora_config\":{\"rank\":4},\"ttl\":5}", "ttl" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_non_null(strstr(service_json(t, 400, "POST", START, "%s", rows[i].body), rows[i].says));
    start(4, ",\"train_unembed\":false"); /* something is */
}

TEST(files_that_are_refused)
{
    static const char *const packed[] = { "Content-Encoding", "zstd", NULL };
    const char *id = start(4, "");
    assert_int_equal(put("0123456789abcdef0123456789abcdef", "adapter_config.json", config.body, NULL), 404);
    assert_int_equal(put(id, "config.json", config.body, NULL), 404);
    assert_int_equal(put(id, "../adapter_config.json", config.body, NULL), 404);
    assert_int_equal(put(id, "adapter_config.json/x", config.body, NULL), 404);
    assert_int_equal(put(id, "", config.body, NULL), 404);
    assert_int_equal(put(id, "adapter_config.json", config.body, packed), 415);
}

/* Each message names what is wrong, and no folder of the server. */
TEST(adapters_that_are_refused)
{
    tkc_buf cut = tensors.body, text = config.body;
    cut.len /= 2;
    text.len /= 2;
    const struct {
        int rank;
        const char *more;
        tkc_buf config, tensors;
        const char *says;
    } rows[] = {
        { 8, "", config.body, tensors.body, "rank 4, and lora_config says 8" },
        { 4, ",\"train_mlp\":false", config.body, tensors.body, "train_mlp is false" },
        { 4, "", config.body, cut, "adapter_model.safetensors" },
        { 4, "", text, tensors.body, "adapter_config.json" },
        { 4, "", config.body, config.body, "adapter_model.safetensors" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *id = start(rows[i].rank, rows[i].more);
        assert_int_equal(put(id, "adapter_config.json", rows[i].config, NULL), 200);
        assert_non_null(strstr(finish(id, 400), "adapter_model.safetensors was not sent"));
        assert_int_equal(put(id, "adapter_model.safetensors", rows[i].tensors, NULL), 200);
        const char *why = finish(id, 400);
        assert_non_null(strstr(why, rows[i].says));
        assert_null(strstr(why, "/tmp"));
        send_both(id); /* a file that was wrong may be sent again */
        finish(id, rows[i].rank == 4 && !rows[i].more[0] ? 200 : 400);
    }
}

TEST(an_upload_ends_with_its_time_or_its_owner)
{
    tke_service *svc = tke_engine_service(engine);
    int64_t lasts_ms = svc->set.archive_ms;
    svc->set.archive_ms = 0;
    const char *late = start(4, "");
    svc->set.archive_ms = lasts_ms;
    const char *gone = start(4, "");
    assert_int_equal(put(late, "adapter_config.json", config.body, NULL), 404);
    assert_true(tke_upload_is_open(svc, tkc_str(gone)) && !tke_upload_is_open(svc, tkc_str(late)));
    finish(late, 404);
    tke_service_end_links(svc, "somebody");
    assert_int_equal(put(gone, "adapter_config.json", config.body, NULL), 200);
    tke_service_end_links(svc, "default");
    assert_int_equal(put(gone, "adapter_config.json", config.body, NULL), 404);
}

/* The thread that writes a file keeps the folder: the upload ends with the next look at it. */
TEST(an_upload_in_use_ends_after_its_use)
{
    tke_service *svc = tke_engine_service(engine);
    tinkc_str id = tkc_str(start(4, ""));
    upload *u = tkc_map_get(&svc->uploads->by_id, id);
    int64_t end_ms = u->expires_ms;
    for (int i = 0; i < 3; i++) {
        u->busy = i == 0;
        tke_uploads_expire(svc, i == 1 ? end_ms - 1 : end_ms, NULL);
        assert_int_equal(tkc_map_get(&svc->uploads->by_id, id) != NULL, i < 2);
    }
}

TEST(uploads_in_progress_are_bounded)
{
    tke_service_end_links(tke_engine_service(engine), "default");
    for (int i = 0; i < 8; i++)
        start(4, "");
    service_json(t, 429, "POST", START, "%s", "{\"base_model\":\"tiny\",\"lora_config\":{\"rank\":4}}");
    tke_service_end_links(tke_engine_service(engine), "default");
    start(4, "");
}

TEST(an_upload_fits_into_the_quota)
{
    tke_service *svc = tke_engine_service(engine);
    const char *id = start(4, "");
    send_both(id);
    int64_t used = stored(svc);
    int64_t size = (int64_t)(config.body.len + tensors.body.len);
    tke_service_set_quota(svc, "default", &(tke_quota){ .storage_bytes = used + size - 1 });
    assert_non_null(strstr(finish(id, 403), "quota_storage"));
    tke_service_set_quota(svc, "default", &(tke_quota){ .storage_bytes = used + size });
    finish(id, 200);
    tke_service_set_quota(svc, "default", &(tke_quota){ 0 });
}

TEST(files_that_were_sent_count_towards_the_quota)
{
    tke_service *svc = tke_engine_service(engine);
    int64_t size = (int64_t)(config.body.len + tensors.body.len);
    tke_service_end_links(svc, "default");
    int64_t used = stored(svc);
    const char *one = start(4, ""), *two = start(4, "");
    tke_service_set_quota(svc, "default", &(tke_quota){ .storage_bytes = used + size });
    send_both(one);
    send_both(one); /* in the place of the first ones */
    assert_int_equal(put(two, "adapter_config.json", config.body, NULL), 403);
    tke_service_set_quota(svc, "default", &(tke_quota){ .storage_bytes = used + size + 1 });
    tke_service_end_links(svc, "default");
    const char *three = start(4, "");
    send_both(three);
    finish(three, 200);
    int64_t now = stored(svc);
    tke_service_set_quota(svc, "default", &(tke_quota){ .storage_bytes = now + size });
    send_both(start(4, "")); /* nothing is held twice */
    tke_service_set_quota(svc, "default", &(tke_quota){ 0 });
}

TEST(a_finished_upload_leaves_no_files)
{
    tke_service *svc = tke_engine_service(engine);
    tkc_arena arena;
    tinkc_error err = { 0 };
    tkc_arena_init(&arena, NULL, 0);
    const char *before = tke_store_temp(svc->store, &arena, &err); /* folders are numbered */
    const char *number = strrchr(before, '/') + 1;
    char *folder = tkc_arena_printf(&arena, &err, "%.*s%lld", (int)(number - before), before, atoll(number) + 1);
    const char *id = start(4, "");
    assert_true(tkc_is_dir(folder));
    send_both(id);
    finish(id, 200);
    tke_store_sync(svc->store);
    assert_false(tkc_is_dir(folder));
    tkc_arena_free(&arena);
}

RUN_TESTS(open_world, close_world)
