/* test_adapter_import.c - an adapter from elsewhere becomes a run with two checkpoints: its names, rows and
 * files, what is refused, and that the same adapter is imported once. */
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/file.h"
#include "service/core/base_models.h"
#include "service/core/registry.h"
#include "service/core/runs.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/service_state.h"
#include "service/core/sessions.h"
#include "service/store/checksums.h"
#include "support/service/service_world.h"

static tinkc_engine *engine;
static const tinkc_transport *t;
static char *store, *adapter;

/* An adapter as PEFT has it: saved by a run of another engine. */
static char *make_adapter(int rank)
{
    char *other = tiny_folder(), *copy = tiny_folder(), command[1000];
    const char *const settings[] = { "disk_reserve", "0", NULL };
    tinkc_engine *e = world_open(other, 0, settings);
    const tinkc_transport *at = tinkc_engine_transport(e);
    const char *model = hold(service_model(at, service_session(at), 0, "tiny", rank, 7));
    service_wait(at, post(at, "/api/v1/save_weights_external", model, 1, ",\"path\":\"x\""));
    tinkc_engine_free(e);
    snprintf(command, sizeof command, "cp '%s'/runs/*/external_weights/x/adapter_* '%s'/", other, copy);
    assert_int_equal(system(command), 0);
    tiny_model_remove(other);
    return copy;
}

static void start(void)
{
    const char *const settings[] = { "disk_reserve", "0", "max_lora_rank", "4", NULL };
    engine = world_open(store, 0, settings);
    t = tinkc_engine_transport(engine);
}

static int open_all(void **state)
{
    setup(state);
    adapter = make_adapter(4);
    store = tiny_folder();
    start();
    return 0;
}

static int close_all(void **state)
{
    tinkc_engine_free(engine);
    tiny_model_remove(store);
    tiny_model_remove(adapter);
    return teardown(state);
}

/* The name of the run: another version must find what this one has imported. */
static void name_of(const char *base, const char *name, char out[100])
{
    static const char *const files[] = { "adapter_config.json", "adapter_model.safetensors" };
    tinkc_error err = { 0 };
    unsigned char sum[TKC_SHA256_BYTES];
    char path[700];
    tkc_digest d;
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    tke_service *svc = tke_engine_service(engine);
    pthread_mutex_lock(&svc->lock);
    const tke_base *of = tke_find_base(svc, base);
    pthread_mutex_unlock(&svc->lock);
    tkc_sha256_init(&d);
    tkc_digest_add(&d, base, strlen(base) + 1);
    tkc_digest_add(&d, of->model->fingerprint, sizeof of->model->fingerprint);
    tkc_digest_add(&d, name, strlen(name) + 1);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", adapter, files[i]);
        tinkc_bytes bytes = tkc_read_file(&arena, path, 1 << 24, &err);
        tkc_digest_add(&d, bytes.data, bytes.len);
    }
    tkc_arena_free(&arena);
    assert_ok(err);
    (void)tkc_digest_bytes(&d, sum);
    size_t n = 0;
    for (int i = 0; i < 16; i++) {
        const char *mark = i == 4 || i == 10 ? "-" : i == 6 ? "-8" : i == 8 ? "-a" : "";
        int nibble = i == 6 || i == 8;
        n += (size_t)snprintf(out + n, 100 - n, nibble ? "%s%x" : "%s%02x", mark, nibble ? sum[i] & 15 : sum[i]);
    }
    snprintf(out + n, 100 - n, ":train:0");
}

TEST(an_import_makes_a_run_and_its_checkpoints)
{
    tinkc_error err = { 0 };
    tinkc_text weights = { 0 }, sampler = { 0 }, again = { 0 };
    char run[200], path[700];
    struct stat one, two;
    const tinkc_import_options o = { .adapter = adapter, .base_model = "tiny" };
    assert_true(tinkc_engine_import(engine, &o, &weights, &sampler, &err));
    assert_ok(err);
    assert_true(strncmp(weights.data, "tinker://", 9) == 0);
    snprintf(run, sizeof run, "%.*s", (int)strcspn(weights.data + 9, "/"), weights.data + 9);
    /* A UUID of version 8, made of the files. */
    assert_int_equal(strlen(run), 36 + strlen(":train:0"));
    assert_true(run[14] == '8' && run[19] == 'a' && strcmp(run + 36, ":train:0") == 0);
    snprintf(path, sizeof path, "tinker://%s/weights/imported", run);
    assert_string_equal(weights.data, path);
    snprintf(path, sizeof path, "tinker://%s/sampler_weights/imported", run);
    assert_string_equal(sampler.data, path);
    name_of("tiny", "imported", path);
    assert_string_equal(run, path);
    /* Once. */
    struct stat folder;
    snprintf(path, sizeof path, "%s/runs/%s/weights/imported", store, run);
    assert_int_equal(stat(path, &folder), 0);
    assert_true(tinkc_engine_import(engine, &o, &again, NULL, &err));
    assert_string_equal(again.data, weights.data);
    assert_true(tinkc_engine_import(engine, &o, NULL, &again, &err));
    assert_string_equal(again.data, sampler.data);
    assert_int_equal(stat(path, &one), 0);
    assert_true(one.st_ino == folder.st_ino);
    /* Its files are the same in both places, and marked as complete. */
    snprintf(path, sizeof path, "%s/runs/%s/weights/imported/adapter_model.safetensors", store, run);
    assert_int_equal(stat(path, &one), 0);
    snprintf(path, sizeof path, "%s/runs/%s/sampler_weights/imported/adapter_model.safetensors", store, run);
    assert_int_equal(stat(path, &two), 0);
    assert_true(one.st_ino == two.st_ino);
    snprintf(path, sizeof path, "%s/runs/%s/weights/imported/checkpoint_complete", store, run);
    assert_int_equal(stat(path, &one), 0);
    snprintf(path, sizeof path, "/api/v1/training_runs/%s/checkpoints", run);
    answer a = service_call(t, "GET", path, NULL, NULL, 0);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body.data, "\"checkpoint_id\":\"weights/imported\""));
    assert_non_null(strstr(a.body.data, "\"checkpoint_id\":\"sampler_weights/imported\""));
    snprintf(path, sizeof path, "%s/runs/%s/weights/imported", store, run);
    assert_int_equal(json_number(a.body.data, "size_bytes"), tke_folder_bytes(path));
    answer_free(&a);
    snprintf(path, sizeof path, "/api/v1/training_runs/%s", run);
    a = service_call(t, "GET", path, NULL, NULL, 0);
    assert_non_null(strstr(a.body.data, "\"base_model\":\"tiny\",\"model_owner\":\"tml:organization_"
                                        "user:default\",\"is_lora\":true,\"corrupted\":false,"
                                        "\"lora_rank\":4"));
    answer_free(&a);
    snprintf(path, sizeof path, "%.36s", run);
    pthread_mutex_lock(&tke_engine_service(engine)->lock);
    const tke_session *session = tke_find_session(tke_engine_service(engine), path);
    const tke_run *made = tke_find_run(tke_engine_service(engine), run);
    assert_true(session && made && made->session == session && session->n_runs == 1);
    assert_string_equal(made->owner, "default");
    char request[300];
    snprintf(request, sizeof request, "1-%s:0", run);
    assert_string_equal(made->create_request_id, request);
    pthread_mutex_unlock(&tke_engine_service(engine)->lock);
    /* Training continues from it, and it can be sampled. */
    const char *session_id = hold(service_session(t));
    const char *promise = service_json(t, 200, "POST", "/api/v1/load_weights",
                                       "{\"session_id\":\"%s\",\"model_seq_id\":0,\"path\":\"%s\",\"optimizer\":false}",
                                       session_id, weights.data);
    service_wait(t, hold(json_field(promise, "request_id")));
    service_json(t, 200, "POST", "/api/v1/create_sampling_session",
                 "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"model_path\":\"%s\"}", session_id,
                 sampler.data);
    /* Another name is another run, and so are other files. */
    const tinkc_import_options named = { .adapter = adapter, .base_model = "tiny", .name = "b-1" };
    assert_true(tinkc_engine_import(engine, &named, &again, NULL, &err));
    assert_string_not_equal(again.data, weights.data);
    assert_string_equal(strrchr(again.data, '/'), "/b-1");
    static const char *const files[] = { "adapter_config.json", "adapter_model.safetensors" };
    for (size_t i = 0; i < 2; i++) {
        char *changed = make_adapter(4), command[1000];
        snprintf(command, sizeof command,
                 i ? "printf '\\377' | dd of='%s/%s' bs=1 seek=20000 conv=notrunc status=none"
                   : "printf ' ' >> '%s/%s'",
                 changed, files[i]);
        assert_int_equal(system(command), 0);
        assert_true(
            tinkc_engine_import(engine, &(tinkc_import_options){ changed, "tiny", NULL, { 0 } }, &again, NULL, &err));
        assert_ok(err);
        assert_string_not_equal(again.data, weights.data);
        tiny_model_remove(changed);
    }
    tinkc_text_free(&weights);
    tinkc_text_free(&sampler);
    tinkc_text_free(&again);
}

static void refused(const tinkc_import_options *o, int32_t code, const char *text)
{
    tinkc_error err = { 0 };
    tinkc_text weights = { 0 };
    assert_false(tinkc_engine_import(engine, o, &weights, NULL, &err));
    assert_int_equal(err.code, code);
    if (!strstr(err.message, text))
        fail_msg("%s, not %s", err.message, text);
    tinkc_text_free(&weights);
}

/* What is on the disk is compared with what was imported, as with any other checkpoint. */
TEST(an_import_that_changed_on_the_disk_is_not_used)
{
    tinkc_error err = { 0 };
    tinkc_text weights = { 0 };
    char path[700];
    const tinkc_import_options o = { .adapter = adapter, .base_model = "tiny" };
    assert_true(tinkc_engine_import(engine, &o, &weights, NULL, &err));
    snprintf(path, sizeof path, "%s/runs/%.*s/weights/imported", store, (int)strcspn(weights.data + 9, "/"),
             weights.data + 9);
    assert_true(tke_sums_check(path, &err));
    strcat(path, "/adapter_model.safetensors");
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    int last = fgetc(f);
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    assert_int_equal(fputc(last ^ 1, f), last ^ 1);
    fclose(f);
    *strrchr(path, '/') = '\0';
    assert_false(tke_sums_check(path, &err));
    assert_non_null(strstr(err.message, "is damaged"));
    tinkc_text_free(&weights);
}

TEST(an_import_without_sense_is_refused)
{
    char *large = make_adapter(5), *empty = tiny_folder();
    refused(NULL, TINKC_E_ARGUMENT, "adapter and base_model are required");
    refused(&(tinkc_import_options){ .adapter = adapter }, TINKC_E_ARGUMENT, "adapter and base_model are required");
    refused(&(tinkc_import_options){ .base_model = "tiny" }, TINKC_E_ARGUMENT, "adapter and base_model are required");
    refused(&(tinkc_import_options){ adapter, "tiny", NULL, { [4] = 1 } }, TINKC_E_ARGUMENT,
            "import options: reserved must be zero");
    refused(&(tinkc_import_options){ .adapter = "/nonexistent", .base_model = "tiny" }, TINKC_E_FILE,
            "/nonexistent: no such folder");
    refused(&(tinkc_import_options){ .adapter = adapter, .base_model = "none" }, TINKC_E_NOT_FOUND,
            "no base model 'none' is registered");
    refused(&(tinkc_import_options){ .adapter = adapter, .base_model = "tiny", .name = "a/b" }, TINKC_E_PATH,
            "Invalid path");
    refused(&(tinkc_import_options){ .adapter = large, .base_model = "tiny" }, TINKC_E_ARGUMENT,
            "its rank 5 is above the engine's limit of 4 (max_lora_rank)");
    tinkc_error err = { 0 };
    assert_false(tinkc_engine_import(engine, &(tinkc_import_options){ .adapter = empty, .base_model = "tiny" }, NULL,
                                     NULL, &err));
    tiny_model_remove(large);
    tiny_model_remove(empty);
}

/* A change of the database, between an end and a start. */
static void change(const char *sql)
{
    char path[600];
    sqlite3 *db = NULL;
    tinkc_engine_free(engine);
    snprintf(path, sizeof path, "%s/meta.db", store);
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    start();
}

static void no_file_stays_mapped(void)
{
    char line[1000];
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps))
        assert_null(strstr(line, adapter));
    fclose(maps);
}

/* One of the two checkpoints is gone: it is made again. */
TEST(half_of_it)
{
    static const char *const kinds[] = { "weights", "sampler_weights" };
    for (int i = 0; i < 2; i++) {
        tinkc_error err = { 0 };
        tinkc_text paths[2] = { { 0 }, { 0 } };
        const tinkc_import_options o = { .adapter = adapter, .base_model = "tiny", .name = "half" };
        char url[400];
        assert_true(tinkc_engine_import(engine, &o, &paths[0], &paths[1], &err));
        const char *run = paths[i].data + strlen("tinker://");
        snprintf(url, sizeof url, "/api/v1/training_runs/%.*s/checkpoints/%s/half", (int)strcspn(run, "/"), run,
                 kinds[i]);
        answer gone = service_call(t, "DELETE", url, NULL, "", 0);
        assert_int_equal(gone.status, 204);
        answer_free(&gone);
        assert_true(tinkc_engine_import(engine, &o, NULL, NULL, &err));
        const char *list = service_json(t, 200, "GET", "/api/v1/checkpoints", "%s", "");
        assert_true(strstr(list, paths[0].data) && strstr(list, paths[1].data));
        tinkc_text_free(&paths[0]);
        tinkc_text_free(&paths[1]);
    }
    no_file_stays_mapped();
}

/* Is any checkpoint about to be written? Samples would wait for it. */
static bool one_is_pending(void)
{
    tke_service *svc = tke_engine_service(engine);
    const tke_checkpoint *c;
    bool any = false;
    pthread_mutex_lock(&svc->lock);
    for (size_t at = 0; (c = tke_next_checkpoint(svc, &at));)
        any |= c->state == TKE_CKPT_PENDING;
    pthread_mutex_unlock(&svc->lock);
    return any;
}

/* A row that is refused: nothing is imported, and the next attempt imports all of it. */
TEST(a_refused_row_imports_nothing)
{
    static const char *const tables[] = { "sessions", "runs", "checkpoints" };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        tinkc_error err = { 0 };
        tinkc_text weights = { 0 };
        char sql[200], name[40], temp[600];
        const tinkc_import_options o = { .adapter = adapter, .base_model = "tiny", .name = name };
        snprintf(name, sizeof name, "into_%s", tables[i]);
        snprintf(sql, sizeof sql, "CREATE TRIGGER no BEFORE INSERT ON %s BEGIN SELECT RAISE(ABORT, 'refused'); END",
                 tables[i]);
        change(sql);
        refused(&o, TINKC_E_STORE, "refused");
        assert_false(one_is_pending());
        snprintf(temp, sizeof temp, "%s/tmp", store);
        assert_int_equal(rmdir(temp), 0); /* nothing is left in it */
        assert_int_equal(mkdir(temp, 0700), 0);
        assert_null(strstr(service_json(t, 200, "GET", "/api/v1/checkpoints", "%s", ""), name));
        change("DROP TRIGGER no");
        assert_null(strstr(service_json(t, 200, "GET", "/api/v1/checkpoints", "%s", ""), name));
        assert_true(tinkc_engine_import(engine, &o, &weights, NULL, &err));
        assert_ok(err);
        change("SELECT 1");
        assert_non_null(strstr(service_json(t, 200, "GET", "/api/v1/checkpoints", "%s", ""), weights.data));
        tinkc_text_free(&weights);
    }
}

RUN_TESTS(open_all, close_all)
