/* test_rest.c - every REST call on the mock: what is sent, what is read, and what bad weather does.
 */
#include <math.h>

#include "support/client/api_support.h"

#define PATH "tinker://run:train:0/weights/step-1"
#define CKPT "/api/v1/training_runs/run:train:0/checkpoints/weights/step-1"

typedef struct world {
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_error err;
} world;

static void open_world(world *w)
{
    *w = (world){ 0 };
    w->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &w->err);
    w->client = mock_client(w->mock, NULL, &w->err);
    assert_true(tinkc_client_connect(w->client, PATIENCE_MS, &w->err));
    assert_ok(&w->err);
    tinkc_mock_forget(w->mock);
}

static void close_world(world *w)
{
    tinkc_client_free(w->client);
    tinkc_mock_free(w->mock);
}

/* ---- the calls ---- */

typedef tinkc_future *make_fn(tinkc_client *, tinkc_error *);
typedef void check_fn(tinkc_future *);

#define MAKE(name, expression)                                                                     \
    static tinkc_future *name(tinkc_client *c, tinkc_error *err)                                   \
    {                                                                                              \
        return expression;                                                                         \
    }
MAKE(make_run, tinkc_run_get(c, "run:train:0", TINKC_OWNED, err))
MAKE(make_run_by_path, tinkc_run_get_by_path(c, PATH, TINKC_ACCESSIBLE, err))
MAKE(make_weights, tinkc_checkpoint_get(c, PATH, err))
MAKE(make_delete, tinkc_checkpoint_delete(c, PATH, err))
MAKE(make_publish, tinkc_checkpoint_publish(c, PATH, err))
MAKE(make_unpublish, tinkc_checkpoint_unpublish(c, PATH, err))
MAKE(make_ttl, tinkc_checkpoint_set_ttl(c, PATH, 86400, err))
MAKE(make_no_ttl, tinkc_checkpoint_clear_ttl(c, PATH, err))
MAKE(make_session, tinkc_session_get(c, "s-1", TINKC_OWNED, err))
MAKE(make_assign, tinkc_session_assign(c, "s-1", "project-7", err))
MAKE(make_audit, tinkc_audit_get(c, NULL, NULL, err))
MAKE(make_audit_day, tinkc_audit_get(c, "checkpoints", "2026-02-28", err))
MAKE(make_usage, tinkc_usage_get(c, "2026-07-13T00:00:00Z", "2026-07-14T00:00:00Z", err))
MAKE(make_trace, tinkc_session_trace(c, "s-1", err))
MAKE(make_archive, tinkc_checkpoint_archive(c, PATH, err))

#define EXTERNAL "tinker://run:train:0/external_weights/hf"

static const char *const meta[] = { "team", "blue", NULL };
static const char *const projects[] = { "p-1", "p-2", NULL };
static const char *const owners[] = { "urn:a", NULL };
static const tinkc_copy_options copy_all = { .project_id = "p-1",
                                             .access_token = "tml-other",
                                             .ttl_s = 3600 };
static const tinkc_search_options search_all = {
    .session_id = "s-1",
    .display_name = "night ly",
    .project_ids = projects,
    .user_metadata = meta,
    .owners = owners,
    .states = TINKC_SESSION_ACTIVE | TINKC_SESSION_FINISHED,
    .page_size = 2,
};
static const tinkc_search_options search_wide = { .scope = TINKC_ACCESSIBLE };
MAKE(make_copy, tinkc_checkpoint_copy(c, PATH, &copy_all, err))
MAKE(make_copy_plain,
     tinkc_checkpoint_copy(c, PATH, &(tinkc_copy_options){ .project_id = "p-2" }, err))
MAKE(make_links, tinkc_checkpoint_links(c, EXTERNAL, err))
MAKE(make_storage, tinkc_storage_get(c, NULL, err))
MAKE(make_storage_project, tinkc_storage_get(c, "p 1", err))
MAKE(make_finish, tinkc_session_finish(c, "s-1", TINKC_FINISH_SUCCESS, NULL, err))
MAKE(make_finish_detail, tinkc_session_finish(c, "s-1", TINKC_FINISH_INTERRUPTED, "ctrl-c", err))

/* The first page of a search; the list may be freed while it is under way. */
static tinkc_future *search(tinkc_client *c, const tinkc_search_options *o, tinkc_error *err)
{
    tinkc_search *list = tinkc_search_list(c, o, err);
    tinkc_future *f = tinkc_search_fetch(list, err);
    tinkc_search_free(list);
    return f;
}
MAKE(make_search, search(c, NULL, err))
MAKE(make_search_wide, search(c, &search_wide, err))
MAKE(make_search_all, search(c, &search_all, err))

static void check_copy(tinkc_future *f)
{
    tinkc_error err = { 0 };
    assert_string_equal(tinkc_future_path(f, 0, &err), "tinker://new:train:0/weights/step-1");
}

static void check_links(tinkc_future *f)
{
    tinkc_error err = { 0 };
    const tinkc_links *l = tinkc_future_links(f, 0, &err);
    assert_ok(&err);
    assert_int_equal(tinkc_links_count(l), 2);
    assert_string_equal(tinkc_links_at(l, 0)->name, "config.json");
    assert_string_equal(tinkc_links_at(l, 1)->url, "https://x/b?sig=1");
    assert_null(tinkc_links_at(l, 2));
    assert_null(tinkc_links_at(NULL, 0));
    assert_int_equal(tinkc_links_expires_us(l), 1772600767000000);
    assert_int_equal(tinkc_links_count(NULL), 0);
}

static void check_storage(tinkc_future *f)
{
    tinkc_error err = { 0 };
    const tinkc_storage *s = tinkc_future_storage(f, 0, &err);
    assert_ok(&err);
    assert_int_equal(tinkc_storage_count(s), 2);
    assert_float_equal((float)tinkc_storage_usd_per_gigabyte_month(s), 0.25f, 0.0f);
    assert_string_equal(tinkc_storage_at(s, 0)->project_id, "p-1");
    assert_string_equal(tinkc_storage_at(s, 0)->user_email, "a@b.c");
    assert_int_equal(tinkc_storage_at(s, 0)->checkpoints, 3);
    assert_int_equal(tinkc_storage_at(s, 0)->size_bytes, 9007199254740993);
    assert_float_equal((float)tinkc_storage_at(s, 0)->usd_per_month, 1.5f, 0.0f);
    assert_null(tinkc_storage_at(s, 1)->project_id);
    assert_true(isnan(tinkc_storage_at(s, 1)->usd_per_month));
    assert_null(tinkc_storage_at(s, 2));
    assert_true(isnan(tinkc_storage_usd_per_gigabyte_month(NULL)));
}

static void check_run(tinkc_future *f)
{
    tinkc_error err = { 0 };
    const tinkc_run *run = tinkc_future_run(f, 0, &err);
    assert_ok(&err);
    assert_string_equal(run->id, "R");
    assert_string_equal(run->base_model, "B");
    assert_string_equal(run->owner, "ada");
    assert_true(run->is_lora);
    assert_false(run->corrupted);
    assert_int_equal(run->lora_rank, 0); /* null */
    assert_null(run->last_checkpoint);
    assert_non_null(run->last_sampler_checkpoint);
    assert_int_equal(run->last_sampler_checkpoint->kind, TINKC_CHECKPOINT_SAMPLER);
    assert_int_equal(run->last_sampler_checkpoint->size_bytes, -1);
    assert_null(run->last_sampler_checkpoint->expires);
    assert_int_equal(run->last_sampler_checkpoint->expires_us, TINKC_NO_TIME);
    assert_int_equal(run->last_request_us, 1772600767000000);
    assert_string_equal(run->user_metadata[0], "run");
    assert_string_equal(run->user_metadata[1], "b");
    assert_null(run->user_metadata[2]);
    char json[2000];
    snprintf(json, sizeof json, "%.*s", (int)run->json.len, run->json.data);
    assert_non_null(strstr(json, "\"new_field\":[1,2]"));
    assert_null(tinkc_future_session(f, 0, &err)); /* another kind */
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
}

static void check_weights(tinkc_future *f)
{
    tinkc_error err = { 0 };
    const tinkc_weights *w = tinkc_future_weights(f, 0, &err);
    assert_ok(&err);
    assert_string_equal(w->base_model, "B");
    assert_int_equal(w->lora_rank, 16);
    assert_int_equal(w->freeze, TINKC_FREEZE_MLP);
}

static void check_session(tinkc_future *f)
{
    tinkc_error err = { 0 };
    const tinkc_session *s = tinkc_future_session(f, 0, &err);
    assert_ok(&err);
    assert_string_equal(s->training_run_ids[0], "a");
    assert_string_equal(s->training_run_ids[1], "b");
    assert_null(s->training_run_ids[2]);
    assert_null(s->sampler_ids[0]);
}

static void check_audit(tinkc_future *f)
{
    tinkc_error err = { 0 };
    const tinkc_audit *a = tinkc_future_audit(f, 0, &err);
    assert_ok(&err);
    assert_int_equal(tinkc_audit_count(a), 2);
    assert_string_equal(tinkc_audit_at(a, 0)->event, "made");
    assert_string_equal(tinkc_audit_at(a, 0)->model_id, "m");
    assert_null(tinkc_audit_at(a, 0)->path);
    assert_null(tinkc_audit_at(a, 1)->model_id);
    assert_null(tinkc_audit_at(a, 2));
    assert_int_equal(tinkc_audit_count(NULL), 0);
}

static void check_usage(tinkc_future *f)
{
    tinkc_error err = { 0 };
    const tinkc_usage *u = tinkc_future_usage(f, 0, &err);
    assert_ok(&err);
    assert_int_equal(tinkc_usage_count(u), 4);
    assert_int_equal(tinkc_usage_at(u, 0)->kind, TINKC_USAGE_PREFILL);
    assert_true(tinkc_usage_at(u, 0)->cached);
    assert_int_equal(tinkc_usage_at(u, 0)->token_count, 9007199254740993);
    assert_int_equal(tinkc_usage_at(u, 1)->kind, TINKC_USAGE_STORAGE);
    assert_float_equal((float)tinkc_usage_at(u, 1)->gigabyte_hours, 2.5f, 0.0f);
    assert_int_equal(tinkc_usage_at(u, 2)->kind, TINKC_USAGE_CHECKPOINT);
    assert_int_equal(tinkc_usage_at(u, 2)->count, 3);
    assert_int_equal(tinkc_usage_at(u, 3)->kind, TINKC_USAGE_OTHER); /* not known to us */
    assert_string_equal(tinkc_usage_at(u, 3)->type, "telepathy");
    assert_int_equal(tinkc_usage_session_count(u), 2);
    assert_string_equal(tinkc_usage_session_at(u, 0)->session_id, "s-1");
    assert_string_equal(tinkc_usage_session_at(u, 0)->user_metadata[1], "v");
    assert_null(tinkc_usage_session_at(u, 1)->user_metadata);
    assert_string_equal(tinkc_usage_costs_through(u), "2026-07-13T00:00:00Z");
    assert_null(tinkc_usage_costs_through(NULL));
}

static void check_no_usage(tinkc_future *f)
{
    tinkc_error err = { 0 };
    const tinkc_usage *u = tinkc_future_usage(f, 0, &err);
    assert_ok(&err);
    assert_non_null(u);
    assert_int_equal(tinkc_usage_count(u), 0);
    assert_null(tinkc_usage_costs_through(u));
}

static void check_url(tinkc_future *f)
{
    tinkc_error err = { 0 };
    assert_string_equal(tinkc_future_url(f, 0, &err), "https://x/y");
}

static void check_archive(tinkc_future *f)
{
    tinkc_error err = { 0 };
    const tinkc_archive *a = tinkc_future_archive(f, 0, &err);
    assert_ok(&err);
    assert_string_equal(a->url, "https://x/y.tar");
    assert_int_equal(a->expires_us, 1772600767000000);
}

static const char run_json[] =
    "{\"training_run_id\":\"R\",\"base_model\":\"B\",\"model_owner\":\"ada\",\"is_lora\":true,"
    "\"lora_rank\":null,\"last_request_time\":\"2026-03-04T05:06:07Z\",\"last_checkpoint\":null,"
    "\"last_sampler_checkpoint\":{\"checkpoint_id\":\"sampler_weights/x\",\"checkpoint_type\":"
    "\"sampler\",\"time\":\"2026-03-04T05:06:07Z\",\"tinker_path\":\"tinker://R/sampler_weights/"
    "x\",\"size_bytes\":null,\"expires_at\":null},\"user_metadata\":{\"run\":\"b\"},"
    "\"new_field\":[1,2]}";
static const char usage_json[] =
    "{\"data\":["
    "{\"bucket_start\":\"2026-07-13T00:00:00Z\",\"bucket_end\":\"2026-07-13T01:00:00Z\","
    "\"base_model\":null,\"event_info\":{\"type\":\"sampling_prefill\",\"cached\":true,"
    "\"token_count\":9007199254740993}},"
    "{\"bucket_start\":\"2026-07-13T00:00:00Z\",\"bucket_end\":\"2026-07-13T01:00:00Z\","
    "\"event_info\":{\"type\":\"storage\",\"gigabyte_hours\":2.5}},"
    "{\"bucket_start\":\"2026-07-13T00:00:00Z\",\"bucket_end\":\"2026-07-13T01:00:00Z\","
    "\"event_info\":{\"type\":\"checkpoint\",\"count\":3}},"
    "{\"bucket_start\":\"2026-07-13T00:00:00Z\",\"bucket_end\":\"2026-07-13T01:00:00Z\","
    "\"event_info\":{\"type\":\"telepathy\",\"thoughts\":1}}],"
    "\"sessions\":{\"s-1\":{\"user_metadata\":{\"k\":\"v\"}},\"s-2\":{\"user_metadata\":null}},"
    "\"cost_data_through\":\"2026-07-13T00:00:00Z\"}";

static const char found_json[] =
    "{\"sessions\":[{\"session_id\":\"s-1\",\"created_at\":\"2026-03-04T05:06:07Z\",\"owner\":"
    "\"urn:a\",\"project_id\":\"p-1\",\"status\":{\"type\":\"client_finished\",\"reason\":"
    "{\"type\":\"success\"}},\"checkpoints_count\":4,\"display_name\":\"nightly\","
    "\"user_metadata\":{\"team\":\"blue\"},\"checkpoint_storage_bytes\":77},"
    "{\"session_id\":\"s-2\",\"created_at\":\"2026-03-04T05:06:07Z\",\"owner\":\"urn:a\","
    "\"project_id\":\"p-1\",\"status\":null,\"checkpoints_count\":0},"
    "{\"session_id\":\"s-3\",\"created_at\":\"2026-03-04T05:06:07Z\",\"owner\":\"urn:a\","
    "\"project_id\":\"p-1\",\"status\":{\"type\":\"asleep\"},\"checkpoints_count\":0}],"
    "\"next_cursor\":{\"last_created_at\":\"2026-03-04T05:06:07Z\",\"last_session_id\":\"s-1\","
    "\"more\":[1]}}";
static const char last_json[] =
    "{\"sessions\":[{\"session_id\":\"s-1\",\"created_at\":\"2026-03-04T05:06:07Z\",\"owner\":"
    "\"urn:a\",\"project_id\":\"p-1\",\"checkpoints_count\":0},{\"session_id\":\"s-9\","
    "\"created_at\":\"2026-03-04T05:06:06Z\",\"owner\":\"urn:a\",\"project_id\":\"p-1\","
    "\"checkpoints_count\":0}],\"next_cursor\":null}";
static const char storage_json[] =
    "{\"effective_rate_usd_per_gigabyte_month\":0.25,\"data\":[{\"project_id\":\"p-1\","
    "\"org_user_urn\":\"urn:a\",\"user_email\":\"a@b.c\",\"checkpoint_count\":3,\"size_bytes\":"
    "9007199254740993,\"size_gigabytes\":9007199.25,\"estimated_monthly_cost_usd\":1.5},"
    "{\"project_id\":null,\"checkpoint_count\":0,\"size_bytes\":0,\"size_gigabytes\":0}]}";

typedef struct row {
    const char *name;
    make_fn *make;
    const char *method, *path, *body; /* as sent; body NULL = none */
    const char *answer;               /* NULL = 204 */
    check_fn *check;
} row;

static const row rows[] = {
    { "run", make_run, "GET", "/api/v1/training_runs/run:train:0?access_scope=owned", NULL,
      run_json, check_run },
    { "run by path", make_run_by_path, "GET",
      "/api/v1/training_runs/run:train:0?access_scope=accessible", NULL, run_json, check_run },
    { "weights", make_weights, "POST", "/api/v1/weights_info", "{\"tinker_path\":\"" PATH "\"}",
      "{\"base_model\":\"B\",\"is_lora\":true,\"lora_rank\":16,\"train_mlp\":false,"
      "\"train_attn\":null,\"x\":{}}",
      check_weights },
    { "delete", make_delete, "DELETE", CKPT, NULL, NULL, NULL },
    { "publish", make_publish, "POST", CKPT "/publish", NULL, NULL, NULL },
    { "unpublish", make_unpublish, "DELETE", CKPT "/publish", NULL, NULL, NULL },
    { "ttl", make_ttl, "PUT", CKPT "/ttl", "{\"ttl_seconds\":86400}", NULL, NULL },
    { "no ttl", make_no_ttl, "PUT", CKPT "/ttl", "{\"ttl_seconds\":null}", NULL, NULL },
    { "session", make_session, "GET", "/api/v1/sessions/s-1?access_scope=owned", NULL,
      "{\"training_run_ids\":[\"a\",\"b\"],\"sampler_ids\":[]}", check_session },
    { "assign", make_assign, "PUT", "/api/v1/sessions/s-1/project",
      "{\"project_id\":\"project-7\"}", NULL, NULL },
    { "audit", make_audit, "GET", "/api/v1/audit?event_type=all", NULL,
      "{\"entries\":[{\"timestamp\":\"2026-03-04T05:06:07Z\",\"event\":\"made\",\"model_id\":\"m\"}"
      ","
      "{\"timestamp\":\"2026-03-04T05:06:08Z\",\"event\":\"gone\",\"model_id\":null}]}",
      check_audit },
    { "audit day", make_audit_day, "GET", "/api/v1/audit?event_type=checkpoints&day=2026-02-28",
      NULL,
      "{\"entries\":[{\"timestamp\":\"2026-03-04T05:06:07Z\",\"event\":\"made\",\"model_id\":\"m\"}"
      ","
      "{\"timestamp\":\"2026-03-04T05:06:08Z\",\"event\":\"gone\"}]}",
      check_audit },
    { "usage", make_usage, "GET",
      "/api/v1/billing/usage/events?starting_on=2026-07-13T00%3A00%3A00Z&ending_before="
      "2026-07-14T00%3A00%3A00Z",
      NULL, usage_json, check_usage },
    { "trace", make_trace, "GET", "/api/v1/sessions/s-1/trace_export", NULL,
      "{\"status\":\"ready\",\"url\":\"https://x/y\"}", check_url },
    { "archive", make_archive, "GET", CKPT "/archive", NULL,
      "{\"url\":\"https://x/y.tar\",\"expires\":\"2026-03-04T05:06:07Z\"}", check_archive },
    { "copy", make_copy, "POST", "/api/v1/copy_weights",
      "{\"destination_project_id\":\"p-1\",\"source_path\":\"" PATH "\",\"ttl_seconds\":3600}",
      "{\"tinker_path\":\"tinker://new:train:0/weights/step-1\"}", check_copy },
    { "plain copy", make_copy_plain, "POST", "/api/v1/copy_weights",
      "{\"destination_project_id\":\"p-2\",\"source_path\":\"" PATH "\"}",
      "{\"tinker_path\":\"tinker://new:train:0/weights/step-1\"}", check_copy },
    { "links", make_links, "GET",
      "/api/v1/training_runs/run:train:0/checkpoints/external_weights/hf/external_weights_urls",
      NULL,
      "{\"urls\":{\"config.json\":\"https://x/a\",\"model/1.safetensors\":\"https://x/b?sig=1\"},"
      "\"expires\":\"2026-03-04T05:06:07Z\"}",
      check_links },
    { "storage", make_storage, "GET", "/api/v1/billing/usage/checkpoints/current", NULL,
      storage_json, check_storage },
    { "storage of a project", make_storage_project, "GET",
      "/api/v1/billing/usage/checkpoints/current?project_id=p+1", NULL, storage_json,
      check_storage },
    { "finish", make_finish, "POST", "/api/v1/sessions/s-1/finish",
      "{\"reason\":{\"type\":\"success\"}}", NULL, NULL },
    { "finish and say why", make_finish_detail, "POST", "/api/v1/sessions/s-1/finish",
      "{\"reason\":{\"type\":\"interrupted\"},\"detail\":\"ctrl-c\"}", NULL, NULL },
    { "search", make_search, "POST", "/api/v1/sessions/search",
      "{\"user_metadata\":{},\"owner\":{\"type\":\"own\"},\"limit\":50}", found_json, NULL },
    { "search everywhere", make_search_wide, "POST", "/api/v1/sessions/search",
      "{\"user_metadata\":{},\"owner\":{\"type\":\"accessible\"},\"limit\":50}",
      "{\"sessions\":[],\"next_cursor\":null}", NULL },
    { "search with everything", make_search_all, "POST", "/api/v1/sessions/search",
      "{\"session_id\":\"s-1\",\"project_ids\":[\"p-1\",\"p-2\"],\"user_metadata\":{\"team\":"
      "\"blue\"},\"display_name\":\"night ly\",\"owner\":{\"type\":\"user\",\"owner_urns\":"
      "[\"urn:a\"]},\"statuses\":[{\"type\":\"active\"},{\"type\":\"client_finished\"}],"
      "\"limit\":2}",
      found_json, NULL },
    { "no usage", make_usage, "GET",
      "/api/v1/billing/usage/events?starting_on=2026-07-13T00%3A00%3A00Z&ending_before="
      "2026-07-14T00%3A00%3A00Z",
      NULL, "{\"data\":[],\"sessions\":{},\"cost_data_through\":null}", check_no_usage },
};
enum { N_ROWS = sizeof rows / sizeof *rows };

TEST(each_call_sends_and_reads)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        const row *r = &rows[i];
        world w;
        open_world(&w);
        tinkc_mock_once(w.mock, r->method, r->path,
                        &(tinkc_mock_answer){ .status = r->answer ? 200 : 204, .body = r->answer },
                        &w.err);
        tinkc_future *f = r->make(w.client, &w.err);
        assert_ok(&w.err);
        if (!tinkc_future_wait(f, PATIENCE_MS, &w.err))
            fail_msg("%s: %s", r->name, w.err.message);
        const tinkc_request *q = tinkc_mock_request(w.mock, 0);
        assert_string_equal(q->method, r->method);
        assert_string_equal(q->path, r->path);
        assert_int_equal(q->body.len, r->body ? strlen(r->body) : 0);
        if (r->body)
            assert_memory_equal(q->body.data, r->body, strlen(r->body));
        assert_null(request_header(q, "x-stainless-raw-response"));
        if (r->check)
            r->check(f);
        assert_int_equal(tinkc_mock_count(w.mock, NULL), 1);
        tinkc_future_free(f);
        close_world(&w);
    }
}

/* A search is a list: pages are linked by the cursor, which goes back as it came, unknown fields
 * included; a session that comes twice is given once; what was asked for is a copy. */
/* What is asked for is sent with each page, and the cursor as it came. */
TEST(a_checkpoint_search_follows_its_cursor)
{
    world w;
    static const char *const pages[] = {
        "{\"checkpoints\":[{\"checkpoint_id\":\"weights/"
        "a\",\"checkpoint_type\":\"training\",\"time\":"
        "\"2026-03-04T05:06:07Z\",\"tinker_path\":\"tinker://r/weights/a\",\"base_model\":\"m\"}],"
        "\"next_cursor\":{\"x\":[7]}}",
        "{\"checkpoints\":[{\"checkpoint_id\":\"weights/"
        "b\",\"checkpoint_type\":\"training\",\"time\":"
        "\"2026-03-04T05:06:07Z\",\"tinker_path\":\"tinker://r/weights/b\"}],\"next_cursor\":null}"
    };
    static const char *const sent[] = {
        "{\"user_metadata\":{\"k\":\"v\"},\"checkpoint_type\":\"sampler\",\"owner\":{\"type\":"
        "\"own\"},"
        "\"base_models\":[\"m\"],\"limit\":1}",
        "{\"user_metadata\":{\"k\":\"v\"},\"checkpoint_type\":\"sampler\",\"owner\":{\"type\":"
        "\"own\"},"
        "\"base_models\":[\"m\"],\"limit\":1,\"cursor\":{\"x\":[7]}}"
    };
    static const char *const pairs[] = { "k", "v", NULL }, *const models[] = { "m", NULL };
    open_world(&w);
    for (size_t i = 0; i < 2; i++)
        tinkc_mock_once(w.mock, NULL, "/api/v1/checkpoints/search",
                        &(tinkc_mock_answer){ .body = pages[i] }, &w.err);
    tinkc_checkpoints *list = tinkc_checkpoints_search(
        w.client,
        &(tinkc_checkpoint_search_options){ .user_metadata = pairs,
                                            .base_models = models,
                                            .kind = TINKC_CHECKPOINT_SAMPLER,
                                            .page_size = 1 },
        &w.err);
    assert_string_equal(tinkc_checkpoints_next(list, &w.err)->base_model, "m");
    assert_null(tinkc_checkpoints_next(list, &w.err)->base_model);
    assert_null(tinkc_checkpoints_next(list, &w.err));
    assert_ok(&w.err);
    for (size_t i = 0; i < 2; i++) {
        const tinkc_request *q = tinkc_mock_request(w.mock, i);
        assert_int_equal(q->body.len, strlen(sent[i]));
        assert_memory_equal(q->body.data, sent[i], q->body.len);
    }
    tinkc_checkpoints_free(list);
    assert_null(tinkc_checkpoints_search(
        w.client, &(tinkc_checkpoint_search_options){ .page_size = 201 }, &w.err));
    assert_int_equal(w.err.code, TINKC_E_ARGUMENT);
    close_world(&w);
}

TEST(a_search_follows_its_cursor)
{
    world w;
    open_world(&w);
    tinkc_mock_once(w.mock, NULL, "/api/v1/sessions/search",
                    &(tinkc_mock_answer){ .body = found_json }, &w.err);
    tinkc_mock_once(w.mock, NULL, "/api/v1/sessions/search",
                    &(tinkc_mock_answer){ .body = last_json }, &w.err);
    char name[] = "night";
    tinkc_search *list =
        tinkc_search_list(w.client, &(tinkc_search_options){ .display_name = name }, &w.err);
    name[0] = 'x';
    assert_int_equal(tinkc_mock_count(w.mock, NULL), 0); /* nothing is asked for yet */
    const tinkc_session_summary *s = tinkc_search_next(list, &w.err);
    assert_ok(&w.err);
    assert_string_equal(s->session_id, "s-1");
    assert_string_equal(s->owner, "urn:a");
    assert_string_equal(s->display_name, "nightly");
    assert_int_equal(s->created_us, 1772600767000000);
    assert_int_equal(s->state_bit, TINKC_SESSION_FINISHED);
    assert_string_equal(s->state, "client_finished");
    assert_int_equal(s->checkpoints, 4);
    assert_int_equal(s->storage_bytes, 77);
    assert_string_equal(s->user_metadata[1], "blue");
    assert_int_equal(tinkc_search_ready(list), 2);
    s = tinkc_search_next(list, &w.err);
    assert_null(s->state);
    assert_int_equal(s->storage_bytes, -1);
    s = tinkc_search_next(list, &w.err);
    assert_string_equal(s->state, "asleep"); /* not known to us */
    assert_int_equal(s->state_bit, 0);
    assert_string_equal(tinkc_search_next(list, &w.err)->session_id, "s-9");
    assert_null(tinkc_search_next(list, &w.err));
    assert_ok(&w.err);
    assert_int_equal(tinkc_mock_count(w.mock, NULL), 2);
    for (size_t i = 0; i < 2; i++) {
        const tinkc_request *q = tinkc_mock_request(w.mock, i);
        assert_non_null(memmem(q->body.data, q->body.len, "\"night\"", 7));
        const char *cursor = ",\"cursor\":{\"last_created_at\":\"2026-03-04T05:06:07Z\","
                             "\"last_session_id\":\"s-1\",\"more\":[1]}";
        assert_true(i == (memmem(q->body.data, q->body.len, cursor, strlen(cursor)) != NULL));
    }
    tinkc_search_free(list);
    close_world(&w);
}

TEST(answers_without_a_result_may_have_a_body)
{
    for (size_t i = 0; i < N_ROWS; i++)
        if (!rows[i].answer) {
            world w;
            open_world(&w);
            tinkc_mock_once(w.mock, NULL, rows[i].path,
                            &(tinkc_mock_answer){ .body = "not JSON at all" }, &w.err);
            tinkc_future *f = rows[i].make(w.client, &w.err);
            assert_true(tinkc_future_wait(f, PATIENCE_MS, &w.err));
            tinkc_future_free(f);
            close_world(&w);
        }
}

TEST(newer_calls_refuse_what_is_wrong)
{
    world w;
    open_world(&w);
#define WRONG(call, wanted, word)                                                                  \
    do {                                                                                           \
        w.err = (tinkc_error){ 0 };                                                                \
        assert_null(call);                                                                         \
        assert_int_equal(w.err.code, TINKC_E_##wanted);                                            \
        assert_non_null(strstr(w.err.message, word));                                              \
    } while (0)
    static const char *const odd[] = { "a", NULL };
    static const char *const none[] = { NULL };
    static const char *const many[] = { "1", "2", "3", "4",  "5",  "6",
                                        "7", "8", "9", "10", "11", NULL };
    WRONG(tinkc_checkpoint_copy(w.client, PATH, NULL, &w.err), ARGUMENT, "project_id");
    WRONG(tinkc_checkpoint_copy(w.client, "x", &copy_all, &w.err), PATH, "x");
    WRONG(tinkc_checkpoint_copy(w.client, PATH, &(tinkc_copy_options){ .ttl_s = -1 }, &w.err),
          ARGUMENT, "ttl_s");
    WRONG(tinkc_checkpoint_copy(w.client, PATH, &(tinkc_copy_options){ .reserved = { 1 } }, &w.err),
          ARGUMENT, "reserved");
    WRONG(tinkc_checkpoint_links(w.client, PATH, &w.err), PATH, "external");
    WRONG(tinkc_session_finish(w.client, "", 0, NULL, &w.err), ARGUMENT, "session_id");
    WRONG(tinkc_session_finish(w.client, "s", 3, NULL, &w.err), ARGUMENT, "how");
#define SEARCH(...) tinkc_search_list(w.client, &(tinkc_search_options){ __VA_ARGS__ }, &w.err)
    WRONG(SEARCH(.page_size = 201), ARGUMENT, "page_size");
    WRONG(SEARCH(.states = 16), ARGUMENT, "states");
    WRONG(SEARCH(.user_metadata = odd), ARGUMENT, "user_metadata");
    WRONG(SEARCH(.owners = none), ARGUMENT, "owners");
    WRONG(SEARCH(.owners = many), ARGUMENT, "owners");
    WRONG(SEARCH(.scope = 7), ARGUMENT, "scope");
    WRONG(SEARCH(.limit = -1), ARGUMENT, "limit");
    WRONG(SEARCH(.reserved = { 1 }), ARGUMENT, "reserved");
    assert_int_equal(tinkc_mock_count(w.mock, NULL), 0);
    close_world(&w);
}

/* The token of another account is a header of its own and in no body; a copy belongs to the
 * client's project if nothing else is said. */
TEST(a_copy_names_its_project_and_hides_its_token)
{
    world w = { 0 };
    w.mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &w.err);
    w.client = mock_client(w.mock, &(tinkc_client_options){ .project_id = "home" }, &w.err);
    tinkc_mock_always(w.mock, NULL, "/api/v1/copy_weights",
                      &(tinkc_mock_answer){ .body = "{\"tinker_path\":\"tinker://n/weights/a\"}" },
                      &w.err);
    tinkc_future *f[2] = { tinkc_checkpoint_copy(w.client, PATH, NULL, &w.err),
                           tinkc_checkpoint_copy(w.client, PATH, &copy_all, &w.err) };
    assert_true(tinkc_future_wait_all(f, 2, PATIENCE_MS, &w.err));
    const tinkc_request *plain = nth_request(w.mock, "/api/v1/copy_weights", 0);
    const tinkc_request *other = nth_request(w.mock, "/api/v1/copy_weights", 1);
    assert_non_null(memmem(plain->body.data, plain->body.len, "\"home\"", 6));
    assert_null(request_header(plain, "X-Tinker-Weights-Access-Token"));
    assert_string_equal(request_header(other, "X-Tinker-Weights-Access-Token"), "tml-other");
    assert_null(memmem(other->body.data, other->body.len, "tml-other", 9));
    tinkc_future_free(f[0]);
    tinkc_future_free(f[1]);
    close_world(&w);
}

/* ---- bad weather ---- */

typedef struct weather {
    int32_t status, fault;
    const char *headers[3];
    const char *body;
    int32_t code;
    bool repeats; /* tried again until the window is over */
} weather;

static const weather weathers[] = {
    { 0, TINKC_FAULT_REFUSED, { NULL }, NULL, TINKC_E_CONNECTION, true },
    { 0, TINKC_FAULT_DNS, { NULL }, NULL, TINKC_E_CONNECTION, true },
    { 0, TINKC_FAULT_TLS, { NULL }, NULL, TINKC_E_CONNECTION, true },
    { 200, TINKC_FAULT_RESET, { NULL }, "{\"a\":1}", TINKC_E_CONNECTION, true },
    { 400, 0, { NULL }, "{\"detail\":\"no\"}", TINKC_E_BAD_REQUEST, false },
    { 401, 0, { NULL }, "{}", TINKC_E_AUTH, false },
    { 403, 0, { NULL }, "{}", TINKC_E_FORBIDDEN, false },
    { 404, 0, { NULL }, "{}", TINKC_E_NOT_FOUND, false },
    { 408, 0, { NULL }, "{}", TINKC_E_REQUEST_TIMEOUT, true },
    { 410, 0, { NULL }, "{}", TINKC_E_GONE, false },
    { 418, 0, { NULL }, "{}", TINKC_E_HTTP, false },
    { 422,
      0,
      { NULL },
      "{\"detail\":[{\"loc\":[\"a\"],\"msg\":\"bad\",\"type\":\"t\"}]}",
      TINKC_E_UNPROCESSABLE,
      false },
    { 429, 0, { "retry-after", "2" }, "{}", TINKC_E_RATE_LIMITED, true },
    { 429, 0, { "retry-after-ms", "1500" }, "{}", TINKC_E_RATE_LIMITED, true },
    { 500, 0, { NULL }, "oops", TINKC_E_SERVER, true },
    { 502, 0, { NULL }, "", TINKC_E_SERVER, true },
    { 503, 0, { NULL }, "{}", TINKC_E_SERVER, true },
};

TEST(bad_weather_ends_with_its_code)
{
    for (size_t i = 0; i < N_ROWS; i++)
        for (size_t k = 0; k < sizeof weathers / sizeof *weathers; k++) {
            const weather *bad = &weathers[k];
            world w;
            open_world(&w);
            tinkc_mock_always(w.mock, NULL, rows[i].path,
                              &(tinkc_mock_answer){ .status = bad->status,
                                                    .fault = bad->fault,
                                                    .body = bad->body,
                                                    .headers = bad->headers },
                              &w.err);
            tinkc_future *f = rows[i].make(w.client, &w.err);
            if (!run_until_done(w.mock, f, 2000 * 1000))
                fail_msg("%s hangs in weather %zu", rows[i].name, k);
            tinkc_future_wait(f, 0, &w.err);
            if (w.err.code != bad->code)
                fail_msg("%s in weather %zu: %d, %s", rows[i].name, k, w.err.code, w.err.message);
            size_t n = tinkc_mock_count(w.mock, NULL);
            if (bad->repeats ? n < 3 : n != 1)
                fail_msg("%s in weather %zu: %zu requests", rows[i].name, k, n);
            tinkc_future_free(f);
            close_world(&w);
        }
}

TEST(weather_that_passes_does_no_harm)
{
    for (size_t i = 0; i < N_ROWS; i++)
        for (size_t k = 0; k < sizeof weathers / sizeof *weathers; k++) {
            const weather *bad = &weathers[k];
            world w;
            if (!bad->repeats)
                continue;
            open_world(&w);
            tinkc_mock_once(w.mock, NULL, rows[i].path,
                            &(tinkc_mock_answer){ .status = bad->status,
                                                  .fault = bad->fault,
                                                  .body = bad->body,
                                                  .headers = bad->headers },
                            &w.err);
            tinkc_mock_once(w.mock, NULL, rows[i].path,
                            &(tinkc_mock_answer){ .status = rows[i].answer ? 200 : 204,
                                                  .body = rows[i].answer },
                            &w.err);
            tinkc_future *f = rows[i].make(w.client, &w.err);
            assert_true(run_until_done(w.mock, f, 100 * 1000));
            tinkc_future_wait(f, 0, &w.err);
            assert_ok(&w.err);
            if (rows[i].check)
                rows[i].check(f);
            assert_int_equal(tinkc_mock_count(w.mock, NULL), 2);
            tinkc_future_free(f);
            close_world(&w);
        }
}

TEST(answers_that_are_no_answers)
{
    static const char *const wrong[] = {
        "", "{", "[]", "{}", "{\"a\":\"\\ud800\"}", "null", "{\"training_run_id\":17}"
    };
    for (size_t i = 0; i < N_ROWS; i++)
        for (size_t k = 0; rows[i].answer && k < sizeof wrong / sizeof *wrong; k++) {
            world w;
            open_world(&w);
            tinkc_mock_always(w.mock, NULL, rows[i].path, &(tinkc_mock_answer){ .body = wrong[k] },
                              &w.err);
            tinkc_future *f = rows[i].make(w.client, &w.err);
            assert_true(run_until_done(w.mock, f, 1000));
            tinkc_future_wait(f, 0, &w.err);
            if (w.err.code != TINKC_E_BAD_RESPONSE)
                fail_msg("%s with %s: %d %s", rows[i].name, wrong[k], w.err.code, w.err.message);
            assert_int_equal(tinkc_mock_count(w.mock, NULL), 1);
            tinkc_future_free(f);
            close_world(&w);
        }
}

TEST(a_conflict_is_final_where_it_says_so_already)
{
    static make_fn *const calls[] = { make_publish, make_unpublish, make_delete };
    for (size_t i = 0; i < 3; i++) {
        world w;
        open_world(&w);
        tinkc_mock_always(w.mock, NULL, CKPT "*", &(tinkc_mock_answer){ .status = 409 }, &w.err);
        tinkc_future *f = calls[i](w.client, &w.err);
        assert_false(tinkc_future_wait(f, PATIENCE_MS, &w.err));
        assert_int_equal(w.err.code, TINKC_E_CONFLICT);
        assert_int_equal(tinkc_mock_count(w.mock, NULL), 1);
        tinkc_future_free(f);
        close_world(&w);
    }
}

/* The other way of saying so; what else such an answer holds does not matter. */
TEST(an_unchanged_checkpoint_is_a_conflict)
{
    static make_fn *const calls[] = { make_publish, make_unpublish, make_delete };
    static const struct {
        const char *body;
        int32_t code;
    } answers[] = {
        { "{\"changed\":false}", TINKC_E_CONFLICT },
        { " { \"a\": [1, {\"changed\": true}], \"changed\" : false } ", TINKC_E_CONFLICT },
        { "{\"changed\":true}", 0 },
        { "{\"changed\":null}", 0 },
        { "{\"unchanged\":false,\"a\":{\"changed\":false}}", 0 },
        { "{}", 0 },
        { "", 0 },
        { "null", 0 },
        { "ok", 0 },
        { "{\"changed\":false", 0 },
    };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        for (size_t k = 0; k < 3; k++) {
            world w;
            open_world(&w);
            tinkc_mock_always(w.mock, NULL, CKPT "*",
                              &(tinkc_mock_answer){ .body = answers[i].body }, &w.err);
            tinkc_future *f = calls[k](w.client, &w.err);
            assert_int_equal(tinkc_future_wait(f, PATIENCE_MS, &w.err), !answers[i].code);
            assert_int_equal(w.err.code, answers[i].code);
            assert_int_equal(tinkc_mock_count(w.mock, NULL), 1);
            tinkc_future_free(f);
            close_world(&w);
        }
}

TEST(wrong_arguments_send_nothing)
{
    world w;
    open_world(&w);
#define REFUSED(call, expected)                                                                    \
    do {                                                                                           \
        tinkc_error e = { 0 };                                                                     \
        assert_null(call);                                                                         \
        assert_int_equal(e.code, expected);                                                        \
    } while (0)
    REFUSED(tinkc_run_get(w.client, NULL, 0, &e), TINKC_E_ARGUMENT);
    REFUSED(tinkc_run_get(w.client, "", 0, &e), TINKC_E_ARGUMENT);
    REFUSED(tinkc_run_get(w.client, "a", 7, &e), TINKC_E_ARGUMENT);
    REFUSED(tinkc_run_get(w.client, "a/../../b", 0, &e), TINKC_E_ARGUMENT);
    REFUSED(tinkc_run_get(w.client, "a?b", 0, &e), TINKC_E_ARGUMENT);
    REFUSED(tinkc_run_get(NULL, "a", 0, &e), TINKC_E_ARGUMENT);
    REFUSED(tinkc_run_get_by_path(w.client, "tinker://a/b/c", 0, &e), TINKC_E_PATH);
    REFUSED(tinkc_checkpoint_get(w.client, "http://a", &e), TINKC_E_PATH);
    REFUSED(tinkc_checkpoint_delete(w.client, "tinker://a/weights/", &e), TINKC_E_PATH);
    REFUSED(tinkc_checkpoint_set_ttl(w.client, PATH, 0, &e), TINKC_E_ARGUMENT);
    REFUSED(tinkc_checkpoint_set_ttl(w.client, PATH, -5, &e), TINKC_E_ARGUMENT);
    REFUSED(tinkc_checkpoint_archive(w.client, NULL, &e), TINKC_E_ARGUMENT);
    REFUSED(tinkc_session_get(w.client, "", 0, &e), TINKC_E_ARGUMENT);
    REFUSED(tinkc_session_assign(w.client, "s", "", &e), TINKC_E_ARGUMENT);
    REFUSED(tinkc_session_trace(w.client, NULL, &e), TINKC_E_ARGUMENT);
    REFUSED(tinkc_audit_get(w.client, "everything", NULL, &e), TINKC_E_ARGUMENT);
    REFUSED(tinkc_audit_get(w.client, NULL, "2026-02-30", &e), TINKC_E_ARGUMENT);
    REFUSED(tinkc_audit_get(w.client, NULL, "yesterday", &e), TINKC_E_ARGUMENT);
    REFUSED(tinkc_usage_get(w.client, "2026", "2026-07-14T00:00:00Z", &e), TINKC_E_ARGUMENT);
    REFUSED(tinkc_usage_get(w.client, "2026-07-14T00:00:00Z", NULL, &e), TINKC_E_ARGUMENT);
    REFUSED(tinkc_runs_list(w.client, &(tinkc_list_options){ .limit = -1 }, &e), TINKC_E_ARGUMENT);
    REFUSED(tinkc_runs_list(w.client, &(tinkc_list_options){ .scope = 2 }, &e), TINKC_E_ARGUMENT);
    REFUSED(tinkc_runs_list(w.client, &(tinkc_list_options){ .reserved = { 1 } }, &e),
            TINKC_E_ARGUMENT);
    assert_int_equal(tinkc_mock_count(w.mock, NULL), 0);
    close_world(&w);
}

/* An id may hold what a URL may not. */
TEST(ids_are_escaped)
{
    world w;
    open_world(&w);
    tinkc_future *f = tinkc_run_get(w.client, "a b:c%", TINKC_OWNED, &w.err);
    tinkc_future_wait(f, PATIENCE_MS, NULL);
    assert_string_equal(tinkc_mock_request(w.mock, 0)->path,
                        "/api/v1/training_runs/a%20b:c%25?access_scope=owned");
    tinkc_future_free(f);
    close_world(&w);
}

/* ---- archives and traces ---- */

static tinkc_future *ask_archive(world *w)
{
    tinkc_future *f = tinkc_checkpoint_archive(w->client, PATH, &w->err);
    assert_ok(&w->err);
    assert_true(run_until_done(w->mock, f, 400 * 1000));
    return f;
}

TEST(archive_by_redirect)
{
    static const char *const with_date[] = { "Location", "https://store/a.tar?sig=1", "Expires",
                                             "Wed, 04 Mar 2026 05:06:07 GMT", NULL };
    static const char *const without[] = { "Location", "https://store/a.tar", NULL };
    static const char *const relative[] = { "Location", "/a.tar", NULL };
    world w;
    open_world(&w);
    tinkc_mock_once(w.mock, "GET", CKPT "/archive",
                    &(tinkc_mock_answer){ .status = 302, .headers = with_date }, &w.err);
    tinkc_future *f = ask_archive(&w);
    const tinkc_archive *a = tinkc_future_archive(f, 0, &w.err);
    assert_ok(&w.err);
    assert_string_equal(a->url, "https://store/a.tar?sig=1");
    assert_int_equal(a->expires_us, 1772600767000000);
    assert_true(tinkc_mock_request(w.mock, 0)->no_redirects);
    tinkc_future_free(f);

    tinkc_mock_once(w.mock, "GET", CKPT "/archive",
                    &(tinkc_mock_answer){ .status = 302, .headers = without }, &w.err);
    f = ask_archive(&w);
    a = tinkc_future_archive(f, 0, &w.err);
    const tinkc_clock *clock = tinkc_mock_clock(w.mock);
    int64_t life = a->expires_us - clock->wall_us(clock->self);
    assert_true(life > 14LL * 60 * 1000000 && life <= 15LL * 60 * 1000000);
    tinkc_future_free(f);

    tinkc_mock_once(w.mock, "GET", CKPT "/archive",
                    &(tinkc_mock_answer){ .status = 302, .headers = relative }, &w.err);
    f = ask_archive(&w);
    assert_null(tinkc_future_archive(f, 0, &w.err));
    assert_int_equal(w.err.code, TINKC_E_BAD_RESPONSE);
    tinkc_future_free(f);

    w.err = (tinkc_error){ 0 };
    tinkc_mock_once(w.mock, "GET", CKPT "/archive", &(tinkc_mock_answer){ .status = 302 }, &w.err);
    f = ask_archive(&w);
    assert_null(tinkc_future_archive(f, 0, &w.err));
    assert_int_equal(w.err.http_status, 302);
    tinkc_future_free(f);
    close_world(&w);
}

TEST(archive_waits_while_it_is_packed)
{
    world w;
    open_world(&w);
    for (int i = 0; i < 3; i++)
        tinkc_mock_once(w.mock, "GET", CKPT "/archive", &(tinkc_mock_answer){ .status = 503 },
                        &w.err);
    tinkc_mock_once(w.mock, "GET", CKPT "/archive", &(tinkc_mock_answer){ .body = rows[14].answer },
                    &w.err);
    tinkc_future *f = ask_archive(&w);
    check_archive(f);
    tinkc_future_free(f);
    assert_int_equal(tinkc_mock_count(w.mock, NULL), 4);
    for (size_t i = 1; i < 4; i++)
        assert_int_equal(tinkc_mock_request_ms(w.mock, i) - tinkc_mock_request_ms(w.mock, i - 1),
                         30000);

    tinkc_mock_forget(w.mock); /* six rounds and no more */
    tinkc_mock_always(w.mock, "GET", CKPT "/archive", &(tinkc_mock_answer){ .status = 503 },
                      &w.err);
    f = ask_archive(&w);
    assert_false(tinkc_future_wait(f, 0, &w.err));
    assert_int_equal(w.err.http_status, 503);
    assert_int_equal(tinkc_mock_count(w.mock, NULL), 6);
    tinkc_future_free(f);
    close_world(&w);
}

TEST(trace_is_asked_for_until_it_is_there)
{
    world w;
    open_world(&w);
    for (int i = 0; i < 3; i++)
        tinkc_mock_once(w.mock, NULL, "/api/v1/sessions/s-1/trace_export",
                        &(tinkc_mock_answer){ .body = "{\"status\":\"pending\",\"url\":null}" },
                        &w.err);
    tinkc_mock_once(w.mock, NULL, "/api/v1/sessions/s-1/trace_export",
                    &(tinkc_mock_answer){ .body = rows[13].answer }, &w.err);
    tinkc_future *f = make_trace(w.client, &w.err);
    assert_true(run_until_done(w.mock, f, 60 * 1000));
    check_url(f);
    assert_int_equal(tinkc_mock_count(w.mock, NULL), 4);
    assert_int_equal(tinkc_mock_request_ms(w.mock, 3) - tinkc_mock_request_ms(w.mock, 0), 15000);
    tinkc_future_free(f);
    tinkc_mock_once(w.mock, NULL, "/api/v1/sessions/s-1/trace_export",
                    &(tinkc_mock_answer){ .body = "{\"status\":\"failed\",\"error\":\"too big\"}" },
                    &w.err);
    f = make_trace(w.client, &w.err);
    assert_true(run_until_done(w.mock, f, 60 * 1000));
    assert_false(tinkc_future_wait(f, 0, &w.err));
    assert_int_equal(w.err.code, TINKC_E_EXPORT_FAILED);
    assert_non_null(strstr(w.err.message, "too big"));
    tinkc_future_free(f);
    close_world(&w);
}

TEST(jobs_can_be_cancelled_and_closed)
{
    static make_fn *const calls[] = { make_archive, make_trace };
    for (int i = 0; i < 4; i++) {
        world w;
        open_world(&w);
        tinkc_mock_always(w.mock, NULL, CKPT "/archive", &(tinkc_mock_answer){ .status = 503 },
                          &w.err);
        tinkc_mock_always(w.mock, NULL, "/api/v1/sessions/s-1/trace_export",
                          &(tinkc_mock_answer){ .body = "{\"status\":\"pending\"}" }, &w.err);
        tinkc_future *f = calls[i % 2](w.client, &w.err);
        tinkc_mock_settle(w.mock, PATIENCE_MS, &w.err);
        assert_false(tinkc_future_done(f));
        if (i < 2)
            tinkc_future_cancel(f);
        else
            tinkc_client_close(w.client, 0, &w.err);
        tinkc_error err = { 0 };
        assert_false(tinkc_future_wait(f, PATIENCE_MS, &err));
        assert_int_equal(err.code, i < 2 ? TINKC_E_CANCELLED : TINKC_E_CLOSED);
        tinkc_future_free(f);
        close_world(&w);
    }
}
