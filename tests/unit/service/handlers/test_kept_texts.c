/* test_kept_texts.c - what clients have the service keep in memory has limits: of one text, of a
 * key, of all. Answers that list it come in pages. */
#include "service/core/service_state.h"
#include "service/core/tenants.h"
#include "support/service/service_world.h"

enum { KIB = 1024 };

static const char *note_of(size_t bytes)
{
    static char text[64 * KIB];
    memset(text, 'n', bytes);
    text[bytes] = '\0';
    return text;
}

/* {"k":"..."} of so many bytes in all. */
static const char *new_session(const tinkc_transport *t, int32_t status, size_t metadata_bytes)
{
    const char *out = service_json(t, status, "POST", "/api/v1/create_session",
                                   "{\"tags\":[],\"sdk_version\":\"x\",\"user_metadata\":"
                                   "{\"k\":\"%s\"}}",
                                   note_of(metadata_bytes - 8));
    return status == 200 ? hold(json_field(out, "session_id")) : out;
}

static tinkc_engine *open_kept(const char *per_key, const char *in_all)
{
    const char *const settings[] = {
        "max_kept_per_key", per_key, "max_kept_bytes", in_all, "disk_reserve", "0", NULL
    };
    return world_open(NULL, 0, settings);
}

static size_t kept_by(tinkc_engine *engine)
{
    tke_service *svc = tke_engine_service(engine);
    return tke_kept_total(svc);
}

TEST(a_text_has_a_limit)
{
    tinkc_engine *engine = open_kept("1000000", "1000000");
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = new_session(t, 200, 32 * KIB);
    assert_int_equal(kept_by(engine), 32 * KIB);
    const char *no = new_session(t, 400, 32 * KIB + 1);
    assert_string_equal(json_field(no, "code"), "metadata_too_large");
    assert_non_null(strstr(no, "32769 bytes; at most 32768"));
    const struct {
        const char *path, *format;
    } rows[] = {
        { "/api/v1/create_session", "{\"tags\":[],\"sdk_version\":\"x\",\"display_name\":\"%s\"}" },
        { "/api/v1/create_session", "{\"tags\":[],\"sdk_version\":\"x\",\"project_id\":\"%s\"}" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[40 * KIB];
        snprintf(body, sizeof body, rows[i].format, note_of(32 * KIB + 1));
        service_json(t, 400, "POST", rows[i].path, "%s", body);
    }
    service_json(t, 400, "POST", "/api/v1/create_model",
                 "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"tiny\","
                 "\"lora_config\":{\"rank\":4},\"user_metadata\":{\"k\":\"%s\"}}",
                 session, note_of(32 * KIB));
    const char *model = hold(service_model(t, session, 1, "tiny", 4, 7));
    const char *save = hold(json_field(
        service_json(t, 200, "POST", "/api/v1/save_weights",
                     "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"a\",\"user_metadata\":"
                     "{\"k\":\"%s\"}}",
                     model, note_of(32 * KIB)),
        "request_id"));
    service_wait_failure(t, save, "user", "at most 32768 are kept");
    assert_int_equal(kept_by(engine), 32 * KIB); /* what is refused is not counted */
    tinkc_engine_free(engine);
}

TEST(a_key_has_a_limit)
{
    tinkc_engine *engine = open_kept("3000", "1000000");
    const tinkc_transport *t = tinkc_engine_transport(engine);
    new_session(t, 200, 2000);
    const char *no = new_session(t, 403, 1001);
    assert_string_equal(json_field(no, "code"), "quota_kept");
    assert_non_null(strstr(no, "max_kept_per_key"));
    const char *session = new_session(t, 200, 1000);
    service_model(t, session, 0, "tiny", 4, 7); /* without metadata nothing more is kept */
    service_json(t, 403, "POST", "/api/v1/create_model",
                 "{\"session_id\":\"%s\",\"model_seq_id\":1,\"base_model\":\"tiny\","
                 "\"lora_config\":{\"rank\":4},\"user_metadata\":{\"k\":\"v\"}}",
                 session);
    answer a = service_call(t, "GET", "/api/v1/status", NULL, NULL, 0);
    assert_true(json_number(a.body.data, "kept_bytes_used") == 3000);
    answer_free(&a);
    /* Each owner has a share of its own. */
    tke_service *svc = tke_engine_service(engine);
    tinkc_error err = { 0 };
    size_t one = 0, two = 0;
    pthread_mutex_lock(&svc->lock);
    assert_int_equal(tke_kept_take(svc, "one", 2999, &one, &err), 0);
    assert_int_equal(tke_kept_take(svc, "two", 3000, &two, &err), 0);
    assert_int_equal(tke_kept_take(svc, "one", 2, &one, &err), 403);
    assert_int_equal(tke_kept_take(svc, "one", 1, &one, &(tinkc_error){ 0 }), 0);
    tke_kept_give(svc, "one", &one);
    tke_kept_give(svc, "two", &two);
    pthread_mutex_unlock(&svc->lock);
    assert_int_equal(kept_by(engine), 3000);
    tinkc_engine_free(engine);
}

TEST(what_a_session_is_called_has_a_limit)
{
    tinkc_engine *engine = open_kept("1000000", "1000000");
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *no = service_json(t, 400, "POST", "/api/v1/create_session",
                                  "{\"tags\":[\"%s\"],\"sdk_version\":\"x\"}", note_of(32 * KIB));
    assert_string_equal(json_field(no, "code"), "metadata_too_large");
    service_json(t, 200, "POST", "/api/v1/create_session",
                 "{\"tags\":[\"%s\"],\"sdk_version\":\"x\"}", note_of(31 * KIB));
    static const char body[] = "{\"tags\":[],\"sdk_version\":\"x\"}";
    for (size_t bytes = 256; bytes <= 257; bytes++) {
        const char *const headers[] = { "X-Idempotency-Key", note_of(bytes), NULL };
        answer a = service_call(t, "POST", "/api/v1/create_session", headers, body, strlen(body));
        assert_int_equal(a.status, bytes == 256 ? 200 : 400);
        answer_free(&a);
    }
    tinkc_engine_free(engine);
}

/* GET of an archive's link: the status. */
static int32_t ask_link(const tinkc_transport *t, const char *model)
{
    char path[300];
    snprintf(path, sizeof path, "/api/v1/training_runs/%s/checkpoints/weights/one/archive", model);
    answer a = service_call(t, "GET", path, NULL, NULL, 0);
    int32_t status = a.status;
    answer_free(&a);
    return status;
}

TEST(links_and_copies_count_for_their_key)
{
    tinkc_engine *engine = open_kept("5000", "1000000");
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    service_wait(
        t, hold(json_field(
               service_json(t, 200, "POST", "/api/v1/save_weights",
                            "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"one\",\"user_metadata\":"
                            "{\"k\":\"%s\"}}",
                            model, note_of(1992)),
               "request_id")));
    assert_int_equal(kept_by(engine), 2000);
    int links = 0;
    for (; links < 1000 && ask_link(t, model) == 302; links++)
        ;
    assert_in_range(links, 2, 100);
    assert_int_equal(ask_link(t, model), 403);
    tke_service_end_links(tke_engine_service(engine), "default");
    assert_int_equal(kept_by(engine), 2000);
    static const char copy[] = "{\"source_path\":\"tinker://%s/weights/one\","
                               "\"destination_project_id\":\"p\"}";
    service_json(t, 200, "POST", "/api/v1/copy_weights", copy, model);
    assert_int_equal(kept_by(engine), 4000);
    const char *no = service_json(t, 403, "POST", "/api/v1/copy_weights", copy, model);
    assert_string_equal(json_field(no, "code"), "quota_kept");
    assert_int_equal(kept_by(engine), 4000);
    tinkc_engine_free(engine);
}

TEST(all_keys_together_have_a_limit)
{
    tinkc_engine *engine = open_kept("3000", "2500");
    const tinkc_transport *t = tinkc_engine_transport(engine);
    new_session(t, 200, 2000);
    const char *no = new_session(t, 503, 501);
    assert_non_null(strstr(no, "max_kept_bytes"));
    new_session(t, 200, 500);
    tinkc_engine_free(engine);
}

static const char *new_loss(const tinkc_transport *t, int32_t status, const char *session, int seq)
{
    return service_json(
        t, status, "POST", "/api/v1/create_custom_loss",
        "{\"session_id\":\"%s\",\"custom_loss_seq_id\":%d,\"name\":\"mine\",\"inputs\":[{"
        "\"name\":\"logprobs\",\"rank\":1}],\"graph\":{\"format\":1,\"nodes\":[{\"op\":"
        "\"placeholder\",\"name\":\"logprobs\",\"target\":\"logprobs\"},{\"op\":"
        "\"call_method\",\"name\":\"l\",\"target\":\"sum\",\"args\":[{\"ref\":\"logprobs\"}]},"
        "{\"op\":\"output\",\"name\":\"o\",\"target\":\"o\",\"args\":[{\"tuple\":[{\"ref\":"
        "\"l\"},{\"dict\":{}}]}]}]}}",
        session, seq);
}

/* As compiled: that is more than the request, and what stays in memory. */
TEST(custom_losses_count)
{
    tinkc_engine *engine = open_kept("1000000", "1000000");
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    new_loss(t, 200, session, 0);
    size_t one = kept_by(engine);
    new_loss(t, 200, session, 0); /* the same again */
    assert_int_equal(kept_by(engine), one);
    tke_service *svc = tke_engine_service(engine);
    assert_int_equal(one, svc->held.bytes[TKE_HELD_LOSSES]);
    svc->set.max_kept_per_key = (int64_t)(2 * one - 1);
    const char *no = new_loss(t, 403, session, 1);
    assert_string_equal(json_field(no, "code"), "quota_kept");
    svc->set.max_kept_per_key = (int64_t)(2 * one);
    new_loss(t, 200, session, 1);
    assert_int_equal(kept_by(engine), 2 * one);
    tinkc_engine_free(engine);
}

TEST(what_is_gone_is_not_counted)
{
    tinkc_engine *engine = open_kept("1000000", "1000000");
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    size_t before = kept_by(engine);
    for (int i = 1; i <= 3; i++) { /* each takes the place of the one before */
        service_wait(t, post(t, "/api/v1/save_weights", model, i,
                             ",\"path\":\"a\",\"overwrite\":true,\"user_metadata\":{\"k\":\"v\"}"));
        assert_int_equal(kept_by(engine), before + strlen("{\"k\":\"v\"}"));
    }
    char path[300];
    snprintf(path, sizeof path, "/api/v1/training_runs/%s/checkpoints/weights/a", model);
    answer a = service_call(t, "DELETE", path, NULL, NULL, 0);
    assert_int_equal(a.status, 204);
    answer_free(&a);
    assert_int_equal(kept_by(engine), before);
    tinkc_engine_free(engine);
}

/* A start counts what is there, but refuses nothing of it. */
TEST(a_restart_counts_what_is_there)
{
    char *store = tiny_folder();
    const char *const wide[] = { "disk_reserve", "0", NULL };
    const char *const tight[] = { "max_kept_per_key", "10", "disk_reserve", "0", NULL };
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, wide);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, new_session(t, 200, 1000), 0, "tiny", 4, 7));
    service_wait(t, post(t, "/api/v1/save_weights", model, 1,
                         ",\"path\":\"a\",\"user_metadata\":{\"k\":\"v\"}"));
    size_t kept = kept_by(engine);
    tinkc_engine_free(engine);
    engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, tight);
    t = tinkc_engine_transport(engine);
    assert_int_equal(kept_by(engine), kept);
    service_wait(t, post(t, "/api/v1/save_weights", model, 2, ",\"path\":\"b\""));
    new_session(t, 403, 10);
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

/* 100 sessions of 32 KiB are 3.1 MiB: four pages, although one could have 200 entries. */
TEST(a_search_answers_in_pages_of_bytes)
{
    enum { N_SESSIONS = 100 };
    tinkc_engine *engine = open_kept("8000000", "8000000");
    const tinkc_transport *t = tinkc_engine_transport(engine);
    for (int i = 0; i < N_SESSIONS; i++)
        new_session(t, 200, 32 * KIB);
    size_t n_pages = 0, n_found = 0;
    char cursor[400] = "";
    do {
        const char *page = service_json(t, 200, "POST", "/api/v1/sessions/search",
                                        "{\"limit\":200,\"owner\":{\"type\":\"own\"}%s}", cursor);
        assert_true(strlen(page) < 1100 * KIB);
        for (const char *at = page; (at = strstr(at, "\"session_id\"")); at++)
            n_found++;
        const char *next = strstr(page, "\"next_cursor\":{");
        size_t len = next ? strcspn(next, "}") + 1 : 0;
        snprintf(cursor, sizeof cursor, ",\"cursor\":%.*s", (int)(len > 14 ? len - 14 : 0),
                 next ? next + 14 : "");
        n_pages++;
    } while (strlen(cursor) > 12 && n_pages < 50);
    assert_int_equal(n_found, N_SESSIONS);
    assert_int_equal(n_pages, 4);
    tinkc_engine_free(engine);
}

RUN_TESTS(setup, teardown)
