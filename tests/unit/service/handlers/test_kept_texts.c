/* test_kept_texts.c - what clients have the service keep in memory has limits: of one text, of a
 * key, of all. Answers that list it come in pages. */
#include "service/core/registry.h"
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

/* Limits for texts, with room for so many sessions beside them. */
static tinkc_engine *open_kept(int per_key, int in_all, int sessions)
{
    char key[20], all[20];
    snprintf(key, sizeof key, "%d", per_key + sessions * TKE_KEPT_SESSION);
    snprintf(all, sizeof all, "%d", in_all + sessions * TKE_KEPT_SESSION);
    const char *const settings[] = { "max_kept_per_key", key, "max_kept_bytes", all, "disk_reserve", "0", NULL };
    return world_open(NULL, 0, settings);
}

/* Besides sessions. */
static size_t kept_by(tinkc_engine *engine)
{
    tke_service *svc = tke_engine_service(engine);
    pthread_mutex_lock(&svc->lock);
    size_t n_sessions = tke_count(svc, TKE_SESSIONS);
    pthread_mutex_unlock(&svc->lock);
    return tke_kept_total(svc) - n_sessions * TKE_KEPT_SESSION;
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
    tinkc_engine *engine = open_kept(5000, 1000000, 2);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    service_wait(t, hold(json_field(service_json(t, 200, "POST", "/api/v1/save_weights",
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

static const char *new_loss(const tinkc_transport *t, int32_t status, const char *session, int seq)
{
    return service_json(t, status, "POST", "/api/v1/create_custom_loss",
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
    tinkc_engine *engine = open_kept(1000000, 1000000, 1);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    new_loss(t, 200, session, 0);
    size_t one = kept_by(engine);
    new_loss(t, 200, session, 0); /* the same again */
    assert_int_equal(kept_by(engine), one);
    tke_service *svc = tke_engine_service(engine);
    assert_int_equal(one, svc->held.bytes[TKE_HELD_LOSSES]);
    svc->set.max_kept_per_key = (int64_t)(2 * one - 1) + TKE_KEPT_SESSION;
    const char *no = new_loss(t, 403, session, 1);
    assert_string_equal(json_field(no, "code"), "quota_kept");
    svc->set.max_kept_per_key = (int64_t)(2 * one) + TKE_KEPT_SESSION;
    new_loss(t, 200, session, 1);
    assert_int_equal(kept_by(engine), 2 * one);
    tinkc_engine_free(engine);
}

/* 100 sessions of 32 KiB are 3.1 MiB: four pages, although one could have 200 entries. */
TEST(a_search_answers_in_pages_of_bytes)
{
    enum { N_SESSIONS = 100 };
    tinkc_engine *engine = open_kept(8000000, 8000000, N_SESSIONS);
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
        snprintf(cursor, sizeof cursor, ",\"cursor\":%.*s", (int)(len > 14 ? len - 14 : 0), next ? next + 14 : "");
        n_pages++;
    } while (strlen(cursor) > 12 && n_pages < 50);
    assert_int_equal(n_found, N_SESSIONS);
    assert_int_equal(n_pages, 4);
    tinkc_engine_free(engine);
}

RUN_TESTS(setup, teardown)
