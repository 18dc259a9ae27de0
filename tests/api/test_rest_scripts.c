/* test_rest_scripts.c - the account's side of a client, word for word: lists, runs, checkpoints, sessions,
 * calls of one's own, streams; and new trainers on every way. Records as in test_client_scripts.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/client_script.h"

#define PAIRS(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define API        "/api/v1/"
#define RUN        API "training_runs/r"
#define CKPT       RUN "/checkpoints/weights/c"
#define PATH       "tinker://r/weights/c"

static const char *text(const char *t)
{
    return t ? t : "NULL";
}

static void show_list(script *s, const char *name, const char *const *list)
{
    char line[600] = "";
    size_t n = 0;
    for (size_t i = 0; list && list[i]; i++)
        n += (size_t)snprintf(line + n, sizeof line - n, " %s", list[i]);
    note(s, "  %s:%s", name, list ? line : " NULL");
}

static void show_checkpoint(script *s, const tinkc_checkpoint *c)
{
    if (!c) {
        note(s, "  no checkpoint");
        return;
    }
    note(s, "  checkpoint %s, %s, %s, %s, %lld, %lld, %lld bytes, kind %d, public %d, json %zu",
         text(c->id), text(c->path), text(c->created), text(c->expires), (long long)c->created_us,
         (long long)c->expires_us, (long long)c->size_bytes, (int)c->kind, c->is_public,
         c->json.len);
    show_list(s, "metadata", c->user_metadata);
}

static void show_run(script *s, const tinkc_run *r)
{
    note(s, "  run %s, %s, %s, %s, %lld, rank %d, lora %d, corrupted %d, json %zu", text(r->id),
         text(r->base_model), text(r->owner), text(r->last_request), (long long)r->last_request_us,
         (int)r->lora_rank, r->is_lora, r->corrupted, r->json.len);
    show_checkpoint(s, r->last_checkpoint);
    show_checkpoint(s, r->last_sampler_checkpoint);
    show_list(s, "metadata", r->user_metadata);
}

static void show_usage(script *s, const tinkc_usage *u)
{
    for (size_t i = 0; i <= tinkc_usage_count(u); i++) {
        const tinkc_usage_event *e = tinkc_usage_at(u, i);
        if (e)
            note(s, "  usage %s %s %lld %lld %s %s %s %s %s %s %d %d %lld %lld %g", text(e->starts),
                 text(e->ends), (long long)e->starts_us, (long long)e->ends_us, text(e->base_model),
                 text(e->user_id), text(e->user_name), text(e->session_id), text(e->project_id),
                 text(e->type), (int)e->kind, e->cached, (long long)e->token_count,
                 (long long)e->count, e->gigabyte_hours);
    }
    for (size_t i = 0; i <= tinkc_usage_session_count(u); i++) {
        const tinkc_usage_session *q = tinkc_usage_session_at(u, i);
        if (q) {
            note(s, "  session %s", text(q->session_id));
            show_list(s, "metadata", q->user_metadata);
        }
    }
}

static void show_storage(script *s, const tinkc_storage *t)
{
    for (size_t i = 0; i <= tinkc_storage_count(t); i++) {
        const tinkc_storage_item *e = tinkc_storage_at(t, i);
        if (e)
            note(s, "  storage %s %s %s %s %lld %lld %g %g", text(e->project_id), text(e->user_urn),
                 text(e->user_email), text(e->user_name), (long long)e->checkpoints,
                 (long long)e->size_bytes, e->gigabytes, e->usd_per_month);
    }
    note(s, "  %g a gigabyte", tinkc_storage_usd_per_gigabyte_month(t));
}

/* What the future holds, whatever it is. */
static void show(script *s, tinkc_future *f)
{
    const char *what = tinkc_future_operation(f);
    tinkc_error e = { 0 };
    if (!tinkc_future_wait(f, 0, &e))
        return;
    if (strncmp(what, "run_get", 7) == 0) {
        show_run(s, tinkc_future_run(f, 0, &e));
    } else if (strcmp(what, "checkpoint_get") == 0) {
        const tinkc_weights *w = tinkc_future_weights(f, 0, &e);
        note(s, "  weights %s, rank %d, freeze %u, lora %d, json %zu", text(w->base_model),
             (int)w->lora_rank, (unsigned)w->freeze, w->is_lora, w->json.len);
    } else if (strcmp(what, "session_get") == 0) {
        const tinkc_session *q = tinkc_future_session(f, 0, &e);
        show_list(s, "runs", q->training_run_ids);
        show_list(s, "samplers", q->sampler_ids);
        show_list(s, "metadata", q->user_metadata);
        note(s, "  %s, json %zu", text(q->display_name), q->json.len);
    } else if (strcmp(what, "audit_get") == 0) {
        const tinkc_audit *a = tinkc_future_audit(f, 0, &e);
        for (size_t i = 0; i <= tinkc_audit_count(a); i++) {
            const tinkc_audit_entry *x = tinkc_audit_at(a, i);
            if (x)
                note(s, "  audit %s %lld %s %s %s %s %zu", text(x->time), (long long)x->time_us,
                     text(x->event), text(x->model_id), text(x->path), text(x->purpose),
                     x->json.len);
        }
    } else if (strcmp(what, "usage_get") == 0) {
        show_usage(s, tinkc_future_usage(f, 0, &e));
    } else if (strcmp(what, "storage_get") == 0) {
        show_storage(s, tinkc_future_storage(f, 0, &e));
    } else if (strcmp(what, "checkpoint_archive") == 0) {
        const tinkc_archive *a = tinkc_future_archive(f, 0, &e);
        note(s, "  archive %s, %s, %lld", a->url, text(a->expires), (long long)a->expires_us);
    } else if (strcmp(what, "checkpoint_links") == 0) {
        const tinkc_links *l = tinkc_future_links(f, 0, &e);
        for (size_t i = 0; i <= tinkc_links_count(l); i++)
            if (tinkc_links_at(l, i))
                note(s, "  link %s %s", tinkc_links_at(l, i)->name, tinkc_links_at(l, i)->url);
        note(s, "  until %lld", (long long)tinkc_links_expires_us(l));
    } else if (strcmp(what, "checkpoint_copy") == 0) {
        note(s, "  copy %s", tinkc_future_path(f, 0, &e));
    } else if (strcmp(what, "session_trace") == 0) {
        note(s, "  trace %s", tinkc_future_url(f, 0, &e));
    } else if (strcmp(what, "get_server_capabilities") == 0 ||
               strcmp(what, "capabilities_get") == 0) {
        const tinkc_capabilities *c = tinkc_future_capabilities(f, 0, &e);
        for (size_t i = 0; i <= tinkc_capabilities_count(c); i++) {
            const tinkc_model *m = tinkc_capabilities_at(c, i);
            if (m)
                note(s, "  model %s, %lld, json %zu, found %d", m->name,
                     (long long)m->max_context_length, m->json.len,
                     tinkc_capabilities_find(c, m->name) == m);
        }
        note(s, "  absent %d", tinkc_capabilities_find(c, "absent") != NULL);
    } else if (strcmp(what, "sampler_get") == 0) {
        const tinkc_sampler_record *r = tinkc_future_sampler_record(f, 0, &e);
        note(s, "  sampler %s %s %s %zu", r->sampler_id, r->base_model, text(r->model_path),
             r->json.len);
    }
    assert_ok(&e);
}

static tinkc_future *call_nr(script *s, size_t nr)
{
    tinkc_client *c = script_client(s);
    tinkc_error *e = script_err(s);
    switch (nr) {
    case 0:
        return tinkc_run_get(c, "r", TINKC_OWNED, e);
    case 1:
        return tinkc_run_get_by_path(c, PATH, TINKC_ACCESSIBLE, e);
    case 2:
        return tinkc_checkpoint_get(c, PATH, e);
    case 3:
        return tinkc_checkpoint_delete(c, PATH, e);
    case 4:
        return tinkc_checkpoint_publish(c, PATH, e);
    case 5:
        return tinkc_checkpoint_unpublish(c, PATH, e);
    case 6:
        return tinkc_checkpoint_set_ttl(c, PATH, 1, e);
    case 7:
        return tinkc_checkpoint_clear_ttl(c, PATH, e);
    case 8:
        return tinkc_checkpoint_archive(c, PATH, e);
    case 9:
        return tinkc_checkpoint_links(c, "tinker://r/external_weights/c", e);
    case 10:
        return tinkc_checkpoint_copy(
            c, PATH, &(tinkc_copy_options){ .project_id = "p", .access_token = "t", .ttl_s = 5 },
            e);
    case 11:
        return tinkc_session_get(c, "s", TINKC_ACCESSIBLE, e);
    case 12:
        return tinkc_session_finish(c, "s", TINKC_FINISH_ERRORED, "a detail", e);
    case 13:
        return tinkc_session_trace(c, "s", e);
    case 14:
        return tinkc_audit_get(c, "checkpoints", "2026-02-28", e);
    case 15:
        return tinkc_usage_get(c, "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", e);
    case 16:
        return tinkc_storage_get(c, "p", e);
    case 17:
        return tinkc_capabilities_get(c, e);
    case 18:
        return tinkc_sampler_get(c, "q", e);
    default:
        return NULL;
    }
}
enum { N_CALLS = 19 };

#define C1                                                                                         \
    "{\"checkpoint_id\":\"weights/"                                                                \
    "c\",\"checkpoint_type\":\"training\",\"time\":\"2026-01-01T00:00:01Z\","                      \
    "\"tinker_path\":\"tinker://r/weights/c\",\"size_bytes\":12,\"public\":true,"                  \
    "\"expires_at\":\"2026-02-01T00:00:00+00:00\",\"user_metadata\":{\"k\":\"v\"}}"
#define C2                                                                                         \
    "{\"checkpoint_id\":\"sampler_weights/"                                                        \
    "d\",\"checkpoint_type\":\"sampler\",\"time\":\"2026-01-01T00:00:02Z\","                       \
    "\"tinker_path\":\"tinker://r/sampler_weights/d\"}"
#define C3                                                                                         \
    "{\"checkpoint_id\":\"odd/d\",\"checkpoint_type\":\"unheard "                                  \
    "of\",\"time\":\"yesterday\",\"tinker_path\":\"x\","                                           \
    "\"size_bytes\":null,\"expires_at\":null}"
#define RUN_1                                                                                      \
    "{\"training_run_id\":\"r\",\"base_model\":\"m\",\"model_owner\":\"o\",\"is_lora\":true,"      \
    "\"lora_rank\":1,"                                                                             \
    "\"corrupted\":true,\"last_request_time\":\"2026-01-03T00:00:00Z\",\"last_checkpoint\":" C1    \
    ",\"last_sampler_checkpoint\":" C2 ",\"user_metadata\":{\"a\":\"b\"}}"
#define RUN_2                                                                                      \
    "{\"training_run_id\":\"q\",\"base_model\":\"m\",\"model_owner\":\"o\",\"is_lora\":false,"     \
    "\"lora_rank\":null,"                                                                          \
    "\"last_request_time\":\"2026-01-03T00:00:00Z\",\"last_checkpoint\":null}"
#define RUN_3                                                                                      \
    "{\"training_run_id\":\"p\",\"base_model\":\"m\",\"model_owner\":\"o\",\"is_lora\":true,"      \
    "\"lora_rank\":2147483648,"                                                                    \
    "\"last_request_time\":\"2026-01-03T00:00:00Z\",\"last_checkpoint\":" C3 "}"

static const struct {
    size_t nr;
    const char *path, *body;
} answers[] = {
    { 0, RUN, RUN_1 },
    { 0, RUN, RUN_2 },
    { 0, RUN, RUN_3 },
    { 0, RUN, "{\"training_run_id\":\"r\"}" },
    { 1, RUN, RUN_1 },
    { 2, API "weights_info",
      "{\"base_model\":\"m\",\"is_lora\":true,\"lora_rank\":2147483647,\"train_mlp\":false,"
      "\"train_attn\":true,\"train_unembed\":true}" },
    { 2, API "weights_info",
      "{\"base_model\":\"m\",\"is_lora\":true,\"lora_rank\":0,\"train_mlp\":true,\"train_"
      "attn\":false}" },
    { 2, API "weights_info", "{\"base_model\":\"m\",\"is_lora\":false,\"train_unembed\":false}" },
    { 2, API "weights_info", "{}" },
    { 3, CKPT, "" },
    { 4, CKPT "/publish", "" },
    { 5, CKPT "/publish", "" },
    { 6, CKPT "/ttl", "{}" },
    { 7, CKPT "/ttl", "{}" },
    { 8, CKPT "/archive",
      "{\"url\":\"https://files.test/a\",\"expires\":\"2026-01-01T01:00:00Z\"}" },
    { 8, CKPT "/archive", "{\"url\":\"/a\",\"expires\":\"2026-01-01T01:00:00Z\"}" },
    { 8, CKPT "/archive", "{}" },
    { 9, RUN "/checkpoints/external_weights/c/external_weights_urls",
      "{\"urls\":{\"a\":\"https://x.test/a\",\"b/c\":\"https://x.test/"
      "b\"},\"expires\":\"2026-01-01T01:00:00Z\"}" },
    { 9, RUN "/checkpoints/external_weights/c/external_weights_urls", "{}" },
    { 10, API "copy_weights", "{\"path\":\"tinker://n/weights/c\",\"type\":\"copy_weights\"}" },
    { 10, API "copy_weights", "{\"tinker_path\":\"tinker://n/weights/c\"}" },
    { 10, API "copy_weights", "{}" },
    { 11, API "sessions/s",
      "{\"training_run_ids\":[\"r\",\"q\"],\"sampler_ids\":[\"a\"],\"user_metadata\":{\"k\":"
      "\"v\"},\"display_name\":\"d\"}" },
    { 11, API "sessions/s", "{}" },
    { 12, API "sessions/s/finish", "{}" },
    { 13, API "sessions/s/trace_export", "{\"status\":\"ready\",\"url\":\"https://x.test/t\"}" },
    { 13, API "sessions/s/trace_export", "{\"status\":\"ready\"}" },
    { 13, API "sessions/s/trace_export", "{\"status\":\"ready\",\"url\":\"ftp://x\"}" },
    { 13, API "sessions/s/trace_export", "{\"status\":\"failed\"}" },
    { 13, API "sessions/s/trace_export", "{\"status\":\"failed\",\"error\":\"why\"}" },
    { 13, API "sessions/s/trace_export", "{\"status\":\"odd\"}" },
    { 13, API "sessions/s/trace_export", "{}" },
    { 14, API "audit",
      "{\"entries\":[{\"timestamp\":\"2026-01-01T00:00:00Z\",\"event\":\"e\",\"model_id\":"
      "\"m\",\"tinker_path\":\"t\",\"purpose\":\"p\"},{\"timestamp\":\"2026-01-01T00:00:01Z\","
      "\"event\":\"f\"}]}" },
    { 14, API "audit", "{\"entries\":[]}" },
    { 14, API "audit", "[]" },
    { 15, API "billing/usage/events",
      "{\"data\":[{\"bucket_start\":\"2026-01-01T00:00:00Z\",\"bucket_end\":\"2026-01-01T01:00:"
      "00Z\",\"base_model\":\"m\",\"user_id\":\"u\",\"user_name\":\"n\",\"session_id\":\"s\","
      "\"project_id\":\"p\",\"event_info\":{\"type\":\"prefill\",\"cached\":true,\"token_"
      "count\":7}},{\"bucket_start\":\"2026-01-01T00:00:00Z\",\"bucket_end\":\"2026-01-01T01:"
      "00:00Z\",\"event_info\":{\"type\":\"storage\",\"gigabyte_hours\":0.5}},{\"bucket_"
      "start\":\"2026-01-01T00:00:00Z\",\"bucket_end\":\"2026-01-01T01:00:00Z\",\"event_info\":"
      "{\"type\":\"checkpoint\",\"count\":3}},{\"bucket_start\":\"2026-01-01T00:00:00Z\","
      "\"bucket_end\":\"2026-01-01T01:00:00Z\",\"event_info\":{\"type\":\"odd\",\"cached\":"
      "false}}],\"sessions\":{\"s\":{\"user_metadata\":{\"k\":\"v\"}},\"t\":{}}}" },
    { 15, API "billing/usage/events", "{\"data\":[]}" },
    { 16, API "billing/usage/checkpoints/current",
      "{\"data\":[{\"project_id\":\"p\",\"org_user_urn\":\"u\",\"user_email\":\"e\",\"user_"
      "name\":\"n\",\"checkpoint_count\":2,\"size_bytes\":5,\"size_gigabytes\":0.25,"
      "\"estimated_monthly_cost_usd\":1.5}],\"effective_rate_usd_per_gigabyte_month\":0.125}" },
    { 16, API "billing/usage/checkpoints/current",
      "{\"data\":[{\"checkpoint_count\":0,\"size_bytes\":0,\"size_gigabytes\":0}]}" },
    { 17, API "get_server_capabilities",
      "{\"supported_models\":[{\"model_name\":\"a\",\"max_context_length\":5},{\"model_name\":"
      "null},{}]}" },
    { 17, API "get_server_capabilities", "{}" },
    { 18, API "samplers/q",
      "{\"sampler_id\":\"q\",\"base_model\":\"m\",\"model_path\":\"tinker://r/sampler_weights/"
      "d\"}" },
    { 18, API "samplers/q", "{}" },
};
enum { N_ANSWERS = sizeof answers / sizeof *answers };

static void refuse_next(script *s, size_t nr, int32_t status, const char *body)
{
    for (size_t i = 0; i < N_ANSWERS; i++)
        if (answers[i].nr == nr) {
            answer_once(s, answers[i].path, status, NULL, body);
            return;
        }
}

/* Each call once with a full answer, once with a bare one, once with one that cannot be read. */
static void reads(void **state)
{
    (void)state;
    static const struct {
        int32_t status;
        const char *body;
    } refusals[] = { { 409, "{\"detail\":\"so already\"}" }, { 404, "no" }, { 200, "no" } };
    script *s =
        script_begin("reads", TINKC_MOCK_SERVICE, &(tinkc_client_options){ .project_id = "mine" });
    for (size_t i = 0; i < N_ANSWERS; i++) {
        note(s, "row %zu: %s", i, answers[i].body);
        answer_once(s, answers[i].path, 200, NULL, answers[i].body);
        tinkc_future *f = follow(s, "call", call_nr(s, answers[i].nr));
        finish_it(s, f, 30000);
        show(s, f);
        let_go(s, f);
    }
    note(s, "refused, and no JSON");
    for (size_t nr = 0; nr < N_CALLS; nr++)
        for (int k = 0; k < 3; k++) {
            refuse_next(s, nr, refusals[k].status, refusals[k].body);
            tinkc_future *f = follow(s, "call", call_nr(s, nr));
            finish_it(s, f, 30000);
            let_go(s, f);
        }
    script_end(s);
}

static void refuse_reads(script *s)
{
    tinkc_client *c = script_client(s);
    tinkc_error *e = script_err(s);
    static char far[400];
    memset(far, 'a', sizeof far - 1);
    char path[500];
    (void)snprintf(path, sizeof path, "tinker://%s/weights/x", far);
    follow(s, "run", tinkc_run_get(c, "", 0, e));
    follow(s, "run", tinkc_run_get(c, NULL, 0, e));
    follow(s, "run", tinkc_run_get(c, "..", 0, e));
    follow(s, "run", tinkc_run_get(c, "a/b", 0, e));
    follow(s, "run", tinkc_run_get(c, far, 0, e));
    follow(s, "run", tinkc_run_get(c, "r", 2, e));
    follow(s, "run", tinkc_run_get(c, "r", -1, e));
    follow(s, "run", tinkc_run_get_by_path(c, "http://x", 0, e));
    follow(s, "run", tinkc_run_get_by_path(c, path, 0, e));
    follow(s, "get", tinkc_checkpoint_get(c, "x", e));
    follow(s, "get", tinkc_checkpoint_get(c, NULL, e));
    follow(s, "ttl", tinkc_checkpoint_set_ttl(c, PATH, 0, e));
    follow(s, "ttl", tinkc_checkpoint_set_ttl(c, PATH, -1, e));
    follow(s, "delete", tinkc_checkpoint_delete(c, path, e));
    follow(s, "publish", tinkc_checkpoint_publish(c, NULL, e));
    follow(s, "unpublish", tinkc_checkpoint_unpublish(c, "", e));
    follow(s, "archive", tinkc_checkpoint_archive(c, "tinker://", e));
    follow(s, "links", tinkc_checkpoint_links(c, PATH, e));
    follow(s, "copy", tinkc_checkpoint_copy(c, PATH, NULL, e));
    follow(
        s, "copy",
        tinkc_checkpoint_copy(c, PATH, &(tinkc_copy_options){ .ttl_s = -1, .project_id = "p" }, e));
    follow(s, "copy",
           tinkc_checkpoint_copy(c, PATH,
                                 &(tinkc_copy_options){ .reserved = { 1 }, .project_id = "p" }, e));
    follow(s, "session", tinkc_session_get(c, "", 0, e));
    follow(s, "session", tinkc_session_get(c, "s", 3, e));
    follow(s, "assign", tinkc_session_assign(c, "s", "", e));
    follow(s, "assign", tinkc_session_assign(c, "", "p", e));
    follow(s, "finish", tinkc_session_finish(c, "s", 3, NULL, e));
    follow(s, "finish", tinkc_session_finish(c, "s", -1, NULL, e));
    follow(s, "finish", tinkc_session_finish(c, NULL, 0, NULL, e));
    follow(s, "trace", tinkc_session_trace(c, "", e));
    follow(s, "audit", tinkc_audit_get(c, "some", NULL, e));
    static const char *const days[] = { "2026-02-30", "2026-2-3", "2026-02-3x", "2026/02/03",
                                        "2026-02-031" };
    for (size_t i = 0; i < 5; i++)
        follow(s, "audit", tinkc_audit_get(c, NULL, days[i], e));
    follow(s, "usage", tinkc_usage_get(c, "2026-01-01", "2026-01-02T00:00:00Z", e));
    follow(s, "usage", tinkc_usage_get(c, "2026-01-01T00:00:00Z", NULL, e));
    follow(s, "sampler", tinkc_sampler_get(c, "", e));
    follow(s, "sampler", tinkc_sampler_info(NULL, e));
}

static void refuse_handles(script *s)
{
    tinkc_client *c = script_client(s);
    tinkc_error *e = script_err(s);
    follow(s, "open", tinkc_sampler_open(c, NULL, e));
    follow(s, "open", tinkc_sampler_open(c, &(tinkc_sampler_options){ 0 }, e));
    follow(s, "open", tinkc_sampler_open(c, &(tinkc_sampler_options){ .model_path = "x" }, e));
    follow(s, "open",
           tinkc_sampler_open(
               c, &(tinkc_sampler_options){ .base_model = "x", .reserved = { 0, 1 } }, e));
    follow(s, "trainer", tinkc_trainer_open(c, NULL, e));
    follow(s, "trainer", tinkc_trainer_open(c, &(tinkc_lora_options){ .rank = 1 }, e));
    follow(s, "trainer",
           tinkc_trainer_open(c, &(tinkc_lora_options){ .base_model = "m", .rank = -1 }, e));
    follow(s, "trainer",
           tinkc_trainer_open(c, &(tinkc_lora_options){ .base_model = "m", .freeze = 7 }, e));
    follow(s, "trainer",
           tinkc_trainer_open(c, &(tinkc_lora_options){ .base_model = "m", .freeze = 8 }, e));
    follow(s, "trainer",
           tinkc_trainer_open(c,
                              &(tinkc_lora_options){
                                  .base_model = "m", .has_seed = true, .seed = (uint64_t)1 << 63 },
                              e));
    follow(s, "trainer",
           tinkc_trainer_open(
               c, &(tinkc_lora_options){ .base_model = "m", .reserved_bools = { true } }, e));
    follow(s, "trainer",
           tinkc_trainer_open(
               c, &(tinkc_lora_options){ .base_model = "m", .user_metadata = PAIRS("odd") }, e));
    follow(s, "from", tinkc_trainer_open_from(c, NULL, e));
    follow(s, "from", tinkc_trainer_open_from(c, &(tinkc_state_options){ .path = "x" }, e));
    follow(
        s, "from",
        tinkc_trainer_open_from(
            c,
            &(tinkc_state_options){ .path = PATH, .optimizer = "dimuon", .with_optimizer = true },
            e));
    follow(
        s, "from",
        tinkc_trainer_open_from(c, &(tinkc_state_options){ .path = PATH, .reserved = { 1 } }, e));
    follow(s, "live", tinkc_trainer_open_live(c, "", e));
    follow(s, "live", tinkc_trainer_open_live(NULL, "m", e));
    follow(s, "health", tinkc_health_check(NULL, e));
}

/* What is refused before anything is sent. */
static void refused(void **state)
{
    (void)state;
    script *s = script_begin("refused", TINKC_MOCK_SERVICE, NULL);
    refuse_reads(s);
    refuse_handles(s);
    script_end(s);
}

/* An archive that is packed, moved, refused; a trace that takes its time. */
static void jobs(void **state)
{
    (void)state;
    script *s = script_begin("jobs", TINKC_MOCK_SERVICE, NULL);
    tinkc_client *c = script_client(s);
    tinkc_error *e = script_err(s);
    static const char good[] =
        "{\"url\":\"https://files.test/a\",\"expires\":\"2026-01-01T01:00:00Z\"}";
    answer_once(s, CKPT "/archive", 503, PAIRS("Retry-After", "1"), "{\"detail\":\"packing\"}");
    answer_once(s, CKPT "/archive", 500, NULL, "");
    answer_once(s, CKPT "/archive", 429, PAIRS("Retry-After", "9"), "");
    fault_once(s, CKPT "/archive", TINKC_FAULT_REFUSED);
    answer_once(
        s, CKPT "/archive", 302,
        PAIRS("Location", "https://files.test/b", "Expires", "Thu, 01 Jan 2026 10:00:00 GMT"), "");
    tinkc_future *f = follow(s, "archive", tinkc_checkpoint_archive(c, PATH, e));
    finish_it(s, f, 400000);
    show(s, f);
    answer_once(s, CKPT "/archive", 302,
                PAIRS("Location", "http://files.test/b", "Expires", "soon"), "");
    f = follow(s, "default life", tinkc_checkpoint_archive(c, PATH, e));
    show(s, f);
    answer_once(s, CKPT "/archive", 302, PAIRS("Location", "b"), "");
    f = follow(s, "relative", tinkc_checkpoint_archive(c, PATH, e));
    answer_once(s, CKPT "/archive", 302, NULL, "");
    f = follow(s, "nowhere", tinkc_checkpoint_archive(c, PATH, e));
    answer_once(s, CKPT "/archive", 409, NULL, "");
    f = follow(s, "conflict", tinkc_checkpoint_archive(c, PATH, e));
    finish_it(s, f, 4000);
    note(s, "by name");
    answer_once(s, RUN "/checkpoints/sampler_weights/d/archive", 404, NULL,
                "{\"detail\":\"first\"}");
    answer_once(s, RUN "/checkpoints/d/archive", 200, NULL, good);
    f = follow(s, "by name", tinkc_checkpoint_archive(c, "tinker://r/sampler_weights/d", e));
    show(s, f);
    answer_once(s, RUN "/checkpoints/sampler_weights/d/archive", 404, NULL,
                "{\"detail\":\"first\"}");
    answer_once(s, RUN "/checkpoints/d/archive", 403, NULL, "{\"detail\":\"second\"}");
    f = follow(s, "neither", tinkc_checkpoint_archive(c, "tinker://r/sampler_weights/d", e));
    answer_once(s, RUN "/checkpoints/d/archive", 404, NULL, "{\"detail\":\"only\"}");
    f = follow(s, "bare", tinkc_checkpoint_archive(c, "tinker://r/d", e));
    note(s, "forever");
    answer_always(s, CKPT "/archive", 500, NULL, "");
    f = follow(s, "fails", tinkc_checkpoint_archive(c, PATH, e));
    finish_it(s, f, 1000000);
    answer_always(s, CKPT "/archive", 503, NULL, "");
    f = follow(s, "packs", tinkc_checkpoint_archive(c, PATH, e));
    finish_it(s, f, 10000000);
    f = follow(s, "cancelled", tinkc_checkpoint_archive(c, PATH, e));
    tinkc_future_cancel(f);
    live(s, 40000);
    note(s, "traces");
    for (int i = 0; i < 3; i++)
        answer_once(s, API "sessions/s/trace_export", 200, NULL, "{\"status\":\"pending\"}");
    answer_once(s, API "sessions/s/trace_export", 200, NULL,
                "{\"status\":\"ready\",\"url\":\"https://x.test/t\"}");
    f = follow(s, "trace", tinkc_session_trace(c, "s", e));
    finish_it(s, f, 100000);
    show(s, f);
    answer_always(s, API "sessions/s/trace_export", 200, NULL, "{\"status\":\"pending\"}");
    f = follow(s, "cancelled", tinkc_session_trace(c, "s", e));
    tinkc_future_cancel(f);
    live(s, 40000);
    script_renew(s, &(tinkc_client_options){ .no_retries = true });
    f = follow(s, "once", tinkc_checkpoint_archive(script_client(s), PATH, e));
    script_renew(s, &(tinkc_client_options){ .retry_window_ms = TINKC_FOREVER,
                                             .operation_timeout_ms = 100000 });
    answer_always(s, CKPT "/archive", 502, NULL, "");
    f = follow(s, "forever", tinkc_checkpoint_archive(script_client(s), PATH, e));
    finish_it(s, f, 1000000);
    script_end(s);
}

/* ---- lists ---- */

#define PAGE(items, total)                                                                         \
    "{\"training_runs\":[" items "],\"cursor\":{\"offset\":0,\"limit\":2,\"total_count\":" total   \
    "}}"

static void take_runs(script *s, tinkc_runs *l)
{
    const tinkc_run *r;
    while (tinkc_runs_ready(l) && (r = tinkc_runs_next(l, script_err(s))) != NULL)
        show_run(s, r);
    assert_ok(script_err(s));
    note(s, "ready %zu, total %lld", tinkc_runs_ready(l), (long long)tinkc_runs_total(l));
}

static void list_runs(script *s)
{
    tinkc_error *e = script_err(s);
    static const tinkc_list_options options[] = {
        { 0 },
        { .limit = 3, .offset = 4, .project_id = "p", .scope = TINKC_ACCESSIBLE },
        { .limit = 1, .page_size = 2, .project_id = "" },
        { .page_size = 2 },
    };
    for (size_t i = 0; i < 4; i++) {
        note(s, "options %zu", i);
        answer_once(s, API "training_runs", 200, NULL, PAGE(RUN_1 "," RUN_2, "4"));
        answer_once(s, API "training_runs", 500, NULL, "");
        answer_once(s, API "training_runs", 200, NULL, PAGE(RUN_2 "," RUN_3, "4"));
        answer_once(s, API "training_runs", 403, NULL, "{\"detail\":\"no\"}");
        answer_once(s, API "training_runs", 200, NULL, PAGE("", "5"));
        tinkc_runs *l = tinkc_runs_list(script_client(s), &options[i], e);
        note(s, "ready %zu, total %lld", tinkc_runs_ready(l), (long long)tinkc_runs_total(l));
        for (int k = 0; k < 5; k++) {
            tinkc_future *f = follow(s, "page", tinkc_runs_fetch(l, e));
            finish_it(s, f, 10000);
            if (f)
                let_go(s, f);
            if (k != 1)
                take_runs(s, l);
        }
        tinkc_runs_free(l);
        script_renew(s, NULL);
        for (int k = 0; k < 5; k++) { /* what is left of the script is used up */
            hush(s, true);
            tinkc_future *f =
                follow(s, "page",
                       tinkc_http_call(script_client(s),
                                       &(tinkc_http_options){ .path = API "training_runs",
                                                              .any_status = true,
                                                              .no_retries = true },
                                       e));
            let_go(s, f);
            hush(s, false);
        }
    }
}

static void list_checkpoints(script *s)
{
    tinkc_client *c = script_client(s);
    tinkc_error *e = script_err(s);
    note(s, "checkpoints");
    tinkc_checkpoints *k = tinkc_checkpoints_list(
        c, &(tinkc_list_options){ .offset = 1, .limit = 9, .scope = 1, .project_id = "p" }, e);
    answer_once(s, API "checkpoints", 200, NULL,
                "{\"checkpoints\":[" C1 "," C2 "," C3
                "],\"cursor\":{\"offset\":1,\"limit\":9,\"total_count\":4}}");
    follow(s, "page", tinkc_checkpoints_fetch(k, e));
    const tinkc_checkpoint *ck;
    note(s, "ready %zu, total %lld", tinkc_checkpoints_ready(k),
         (long long)tinkc_checkpoints_total(k));
    while (tinkc_checkpoints_ready(k) && (ck = tinkc_checkpoints_next(k, e)) != NULL)
        show_checkpoint(s, ck);
    note(s, "end %d", tinkc_checkpoints_next(k, e) == NULL);
    tinkc_checkpoints_free(k);
    k = tinkc_checkpoints_list(c, &(tinkc_list_options){ .run_id = "r", .limit = 2 }, e);
    answer_once(s, RUN "/checkpoints", 200, NULL, "{\"checkpoints\":[" C1 "," C2 "," C3 "]}");
    follow(s, "page", tinkc_checkpoints_fetch(k, e));
    note(s, "ready %zu, total %lld", tinkc_checkpoints_ready(k),
         (long long)tinkc_checkpoints_total(k));
    while (tinkc_checkpoints_ready(k) && (ck = tinkc_checkpoints_next(k, e)) != NULL)
        show_checkpoint(s, ck);
    tinkc_checkpoints_free(k);
}

static void list_sessions(script *s)
{
    tinkc_error *e = script_err(s);
    note(s, "sessions");
    tinkc_sessions *q = tinkc_sessions_list(script_client(s),
                                            &(tinkc_list_options){ .page_size = 2, .scope = 1 }, e);
    answer_once(s, API "sessions", 200, NULL, "{\"sessions\":[\"a\",\"b\"]}");
    answer_once(s, API "sessions", 200, NULL, "{\"sessions\":[\"b\"]}");
    answer_once(s, API "sessions", 200, NULL, "{\"sessions\":[]}");
    for (int i = 0; i < 4; i++) {
        follow(s, "page", tinkc_sessions_fetch(q, e));
        note(s, "ready %zu", tinkc_sessions_ready(q));
        while (tinkc_sessions_ready(q))
            note(s, "session %s", tinkc_sessions_next(q, e));
    }
    tinkc_sessions_free(q);
}

static void lists(void **state)
{
    (void)state;
    script *s = script_begin("lists", TINKC_MOCK_SERVICE, NULL);
    list_runs(s);
    list_checkpoints(s);
    list_sessions(s);
    tinkc_client *c = script_client(s);
    note(s, "refused: %d %d %d %d %d",
         tinkc_runs_list(c, &(tinkc_list_options){ .limit = -1 }, NULL) != NULL,
         tinkc_runs_list(c, &(tinkc_list_options){ .offset = -1 }, NULL) != NULL,
         tinkc_runs_list(c, &(tinkc_list_options){ .page_size = -1 }, NULL) != NULL,
         tinkc_runs_list(c, &(tinkc_list_options){ .scope = 2 }, NULL) != NULL,
         tinkc_runs_list(c, &(tinkc_list_options){ .reserved = { 1 } }, NULL) != NULL);
    script_end(s);
}

#define SUMMARY(id, how)                                                                           \
    "{\"session_id\":\"" id                                                                        \
    "\",\"created_at\":\"2026-01-01T00:00:00Z\",\"owner\":\"o\",\"project_id\":\"p\","             \
    "\"checkpoints_count\":0,\"status\":{\"type\":\"" how "\"}}"

static void search(void **state)
{
    (void)state;
    script *s = script_begin("search", TINKC_MOCK_SERVICE, NULL);
    tinkc_client *c = script_client(s);
    tinkc_error *e = script_err(s);
    const tinkc_search_options o = { .session_id = "s",
                                     .display_name = "n",
                                     .project_ids = PAIRS("p", "q"),
                                     .user_metadata = PAIRS("k", "v", "l", "w"),
                                     .owners = PAIRS("o", "u"),
                                     .limit = 3,
                                     .scope = TINKC_ACCESSIBLE,
                                     .states = TINKC_SESSION_ACTIVE | TINKC_SESSION_FAILED,
                                     .page_size = 2 };
    for (int full = 0; full < 2; full++) {
        tinkc_search *l = tinkc_search_list(c, full ? &o : NULL, e);
        answer_once(s, API "sessions/search", 200, NULL,
                    "{\"sessions\":[{\"session_id\":\"s\",\"created_at\":\"2026-01-01T00:00:00Z\","
                    "\"owner\":\"o\",\"project_id\":\"p\","
                    "\"display_name\":\"d\",\"status\":{\"type\":\"active\"},\"checkpoints_count\":"
                    "2,\"checkpoint_storage_bytes\":3,\"user_metadata\":{\"k\":\"v\"}},"
                    "{\"session_id\":\"t\",\"created_at\":\"2026-01-01T00:00:00Z\",\"owner\":\"o\","
                    "\"project_id\":\"p\",\"checkpoints_count\":0}],\"next_cursor\":{\"a\":[1]}}");
        answer_once(s, API "sessions/search", 403, NULL, "");
        answer_once(s, API "sessions/search", 200, NULL,
                    "{\"sessions\":[" SUMMARY("u", "finished") "," SUMMARY("v", "odd") "," SUMMARY(
                        "w", "failed") "]}");
        for (int i = 0; i < 4; i++) {
            tinkc_future *f = follow(s, "page", tinkc_search_fetch(l, e));
            finish_it(s, f, 10000);
            if (f)
                let_go(s, f);
            note(s, "ready %zu", tinkc_search_ready(l));
            while (tinkc_search_ready(l)) {
                const tinkc_session_summary *q = tinkc_search_next(l, e);
                assert_ok(e);
                note(s, "  %s %s %lld %s %s %s %s %d %lld %lld %zu", text(q->session_id),
                     text(q->created), (long long)q->created_us, text(q->owner),
                     text(q->project_id), text(q->display_name), text(q->state), (int)q->state_bit,
                     (long long)q->checkpoints, (long long)q->storage_bytes, q->json.len);
                show_list(s, "metadata", q->user_metadata);
            }
        }
        tinkc_search_free(l);
    }
    script_end(s);
}

/* ---- trainers on every way ---- */

static const char *const configs[] = { "{}", "{\"create_model_via_load_weights\":true}" };
static const char *const infos[] = {
    "{\"base_model\":\"mock/nano\",\"is_lora\":true,\"lora_rank\":4,\"train_mlp\":false}",
    "{\"base_model\":\"mock/"
    "nano\",\"is_lora\":true,\"lora_rank\":1,\"train_attn\":false,\"optimizer_config\":{"
    "\"type\":\"dimuon\",\"version\":1}}",
    "{\"base_model\":\"mock/nano\",\"is_lora\":true,\"lora_rank\":0}",
    "{\"base_model\":\"mock/nano\",\"is_lora\":false,\"lora_rank\":4}",
};

static void open_from(script *s)
{
    const tinkc_state_options options[] = {
        { .path = PATH },
        { .path = PATH,
          .base_model = "other",
          .access_token = "their",
          .with_optimizer = true,
          .user_metadata = (const char *const[]){ "k", "v", NULL } },
        { .path = PATH, .optimizer = "dimuon" },
        { .path = PATH, .optimizer = "lion" },
    };
    for (size_t i = 0; i < 2; i++)
        for (size_t k = 0; k < 4; k++) {
            note(s, "config %zu, options %zu", i, k);
            answer_always(s, API "client/config", 200, NULL, configs[i]);
            hush(s, true);
            script_renew(s, NULL);
            hush(s, false);
            if (!i)
                answer_once(s, API "weights_info", 200, NULL, infos[k]);
            tinkc_future *f = follow(
                s, "from", tinkc_trainer_open_from(script_client(s), &options[k], script_err(s)));
            finish_it(s, f, 10000);
        }
}

static tinkc_future *open_somehow(script *s, int way)
{
    tinkc_client *c = script_client(s);
    tinkc_error *e = script_err(s);
    switch (way) {
    case 0:
        return tinkc_trainer_open(
            c, &(tinkc_lora_options){ .base_model = "mock/nano", .optimizer = "dimuon" }, e);
    case 1:
        return tinkc_trainer_open_from(c, &(tinkc_state_options){ .path = PATH }, e);
    default:
        return tinkc_trainer_open_live(c, "model/1", e);
    }
}

static void open_in_trouble(script *s)
{
    static const struct {
        const char *path;
        int32_t status;
        const char *body;
    } troubles[] = {
        { API "weights_info", 404, "{\"detail\":\"gone\"}" },
        { API "create_model", 422, "{\"detail\":\"no such model\"}" },
        { API "create_model", 200, "{}" },
        { API "load_weights", 403, "{\"detail\":\"not yours\"}" },
        { API "load_weights", 200, "[]" },
        { API "retrieve_future", 200, "{\"error\":\"it failed\",\"category\":\"user\"}" },
        { API "retrieve_future", 200, "{\"model_id\":\"\",\"type\":\"create_model\"}" },
        { API "get_info", 404, "{\"detail\":\"no model\"}" },
        { API "get_info", 200,
          "{\"model_data\":{\"model_name\":\"m\"},\"model_id\":\"x\",\"next_seq_id\":9}" },
        { API "get_info", 200,
          "{\"model_data\":{},\"model_id\":\"x\",\"model_name\":\"m\",\"next_seq_id\":0}" },
    };
    for (size_t i = 0; i < sizeof troubles / sizeof *troubles; i++) {
        note(s, "trouble %zu", i);
        hush(s, true);
        script_renew(
            s, &(tinkc_client_options){ .max_retries = TINKC_ZERO, .retry_window_ms = TINKC_ZERO });
        hush(s, false);
        for (int k = 0; k < 3; k++) {
            answer_once(s, troubles[i].path, troubles[i].status, NULL, troubles[i].body);
            tinkc_future *f = follow(s, "open", open_somehow(s, k));
            finish_it(s, f, 10000);
            tinkc_trainer *t = tinkc_future_trainer(f, 0, NULL);
            note(s, "%s", tinkc_trainer_id(t));
            tinkc_trainer_free(t);
        }
        answer_once(s, API "training_runs/model%2F1", 200, NULL, RUN_1);
    }
}

static void open_and_cancel(script *s)
{
    note(s, "ended while it is at it");
    for (int k = 0; k < 3; k++) {
        static const char *const at[] = { API "client/config", API "create_model",
                                          API "retrieve_future" };
        hush(s, true);
        script_renew(s, NULL);
        hush(s, false);
        assert_true(tinkc_mock_once(script_mock(s), NULL, at[k],
                                    &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT },
                                    script_err(s)));
        tinkc_future *f = follow(
            s, "open",
            tinkc_trainer_open(script_client(s), &(tinkc_lora_options){ .base_model = "mock/nano" },
                               script_err(s)));
        tinkc_future_cancel(f);
        settle(s);
        f = follow(s, "another",
                   tinkc_trainer_open(script_client(s),
                                      &(tinkc_lora_options){ .base_model = "mock/nano" },
                                      script_err(s)));
        finish_it(s, f, 100000);
    }
}

static void open_ways(void **state)
{
    (void)state;
    script *s = script_begin("open_ways", TINKC_MOCK_SERVICE, NULL);
    open_from(s);
    answer_always(s, API "weights_info", 200, NULL, infos[0]);
    answer_always(s, API "client/config", 200, NULL, configs[0]);
    open_in_trouble(s);
    open_and_cancel(s);
    script_end(s);
}

/* ---- calls of one's own ---- */

static void show_response(script *s, tinkc_future *f)
{
    tinkc_error e = { 0 };
    const tinkc_response *r = f ? tinkc_future_response(f, 0, &e) : NULL;
    if (r) {
        note(s, "%d %.*s, %s, %s, %s, %lld ms, %d retries", (int)tinkc_response_status(r),
             (int)tinkc_response_body(r).len, (const char *)tinkc_response_body(r).data,
             tinkc_response_url(r), tinkc_response_http_version(r),
             text(tinkc_response_header(r, "X-a")), (long long)tinkc_response_elapsed_ms(r),
             (int)tinkc_response_retries(r));
        show_list(s, "headers", tinkc_response_headers(r));
    }
}

/* What was not used of the answers. */
static void use_up(script *s)
{
    for (int left = 0; left < 2; left++) {
        hush(s, true);
        tinkc_future *f =
            follow(s, "rest",
                   tinkc_http_call(script_client(s),
                                   &(tinkc_http_options){
                                       .path = "/rest", .any_status = true, .no_retries = true },
                                   script_err(s)));
        let_go(s, f);
        hush(s, false);
    }
}

static void own_calls(void **state)
{
    (void)state;
    const tinkc_http_options rows[] = {
        { .path = "/api/v1/x", .query = (const char *const[]){ "a", "1 2", "b", "", NULL } },
        { .path = "/api/v1/x", .body = "{}", .body_len = 2 },
        { .path = "/api/v1/x",
          .method = "PUT",
          .body = "abc",
          .body_len = 3,
          .content_type = "text/plain",
          .idempotency_key = "mine",
          .headers = (const char *const[]){ "X-Y", "z", "User-Agent", "", NULL },
          .idle_timeout_ms = 7,
          .no_redirects = true },
        { .path = "/api/v1/x", .method = "DELETE", .no_retries = true },
        { .path = "/api/v1/x", .any_status = true, .max_retries = TINKC_ZERO },
        { .path = "/api/v1/x", .max_retries = 2 },
        { .path = "https://elsewhere.test/y?z=1" },
        { .path = "https://example.test/y" },
        { .path = "y" },
        { .path = "" },
        { .path = "/api/../x" },
        { .path = "/a b" },
        { .path = "/api/v1/x", .method = "G T" },
        { .path = "/api/v1/x", .headers = (const char *const[]){ "a", NULL } },
        { .path = "/api/v1/x", .headers = (const char *const[]){ "a", "b\nc", NULL } },
        { .path = "/api/v1/x", .query = (const char *const[]){ "a", NULL } },
        { .path = "/api/v1/x", .body = "a", .body_len = 1, .body_file = "/dev/null" },
        { .path = "/api/v1/x", .idle_timeout_ms = -5 },
        { .path = "/api/v1/x", .max_retries = -1 },
        { .path = "/api/v1/x", .reserved = { 1 } },
        { .path = "/api/v1/x", .body_file = "/nonexistent/file" },
    };
    script *s = script_begin(
        "own_calls", TINKC_MOCK_EMPTY,
        &(tinkc_client_options){ .base_url = "https://example.test", .api_key = "tml-x" });
    answer_always(s, API "client/config", 200, NULL, "{}");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int k = 0; k < 2; k++) {
            note(s, "row %zu", i);
            if (k == 0) {
                answer_once(s, "*", 503, PAIRS("Retry-After-Ms", "5"), "{\"detail\":\"busy\"}");
                answer_once(s, "*", 200,
                            PAIRS("X-A", "1", "x-a", "2", "Content-Type", "text/plain"), "hello");
            } else {
                answer_once(s, "*", 418, PAIRS("X-B", "3"), "no");
            }
            tinkc_future *f =
                follow(s, "call", tinkc_http_call(script_client(s), &rows[i], script_err(s)));
            finish_it(s, f, 100000);
            show_response(s, f);
            if (f)
                let_go(s, f);
            use_up(s);
        }
    script_end(s);
}

/* ---- tokens as they come ---- */

static void deltas(void **state)
{
    (void)state;
#define EVENT(json) "data: " json "\n\n"
#define TOKEN(i, id, p)                                                                            \
    EVENT("{\"event_type\":\"token\",\"index\":" i ",\"token_id\":" id ",\"logprob\":" p "}")
    static const char *const rows[] = {
        TOKEN("0", "5", "-0.5") TOKEN("1", "6", "-0.25")
            EVENT("{\"event_type\":\"done\",\"finish_reason\":\"length\",\"total_tokens\":2}"),
        TOKEN("0", "5", "null") EVENT("{\"event_type\":\"done\",\"finish_reason\":\"stop\"}")
            TOKEN("1", "5", "-1"),
        TOKEN("0", "5", "-0.5") "event: ping\n\n" EVENT("[DONE]"),
        TOKEN("1", "5", "-0.5"),
        TOKEN("0", "2147483648", "-0.5"),
        TOKEN("0", "2147483647", "-0.5") EVENT("{\"event_type\":\"done\",\"total_tokens\":2}"),
        TOKEN("0", "5", "-0.5"),
        EVENT("{\"event_type\":\"error\",\"error\":\"it broke\",\"category\":\"user\"}"),
        EVENT("{\"event_type\":\"error\",\"category\":\"server\"}"),
        EVENT("{\"event_type\":\"odd\"}") EVENT("{\"event_type\":\"token\"}") EVENT("[DONE]"),
        EVENT("not JSON"),
        "",
    };
    static const int32_t ids[] = { 1, 2, 3 };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    script *s = script_begin("deltas", TINKC_MOCK_SERVICE, NULL);
    tinkc_error *e = script_err(s);
    tinkc_future *f =
        follow(s, "sampler",
               tinkc_sampler_open(script_client(s),
                                  &(tinkc_sampler_options){ .base_model = "mock/nano" }, e));
    tinkc_sampler *sampler = tinkc_future_sampler(f, 0, e);
    for (size_t i = 0; i < sizeof rows / sizeof *rows + 6; i++) {
        static const int32_t statuses[] = { 404, 405, 404, 500, 429, 0 };
        size_t k = i - sizeof rows / sizeof *rows;
        note(s, "row %zu", i);
        if (i < sizeof rows / sizeof *rows)
            answer_once(s, API "stream_sample", 200, PAIRS("Content-Type", "text/event-stream"),
                        rows[i]);
        else if (statuses[k])
            answer_once(s, API "stream_sample", statuses[k], NULL,
                        k == 2   ? "{\"detail\":\"gone\",\"code\":\"no_sampler\"}"
                        : k == 1 ? "{\"code\":\"unknown_endpoint\"}"
                                 : "{\"detail\":\"x\"}");
        else
            fault_once(s, API "stream_sample", TINKC_FAULT_SILENT);
        tinkc_deltas *d = tinkc_sample_stream(sampler, ids, 3, &o, e);
        assert_ok(e);
        settle(s);
        for (int n = 0; n < 4; n++) {
            tinkc_error why = { 0 };
            const tinkc_delta *x = tinkc_deltas_next(d, 0, &why);
            if (x)
                note(s, "%zu tokens, last %d, %zu log-probabilities, stop %d, last %d",
                     x->tokens.len, x->tokens.len ? (int)x->tokens.data[x->tokens.len - 1] : -1,
                     x->logprobs.len, (int)x->stop_reason, x->last);
            else
                note(s, "none: %s, status %d, category %d, flags %u: %s", tinkc_code_name(why.code),
                     (int)why.http_status, (int)why.category, (unsigned)why.flags, why.message);
        }
        tinkc_deltas_free(d);
        settle(s);
    }
    tinkc_sampler_free(sampler);
    script_end(s);
}

/* ---- copies of samplers ---- */

static void copies(void **state)
{
    (void)state;
    static const int32_t ids[] = { 1, 2, 3 };
    static const char *const places[] = { "{\"client_counter\":3}", "{\"client_counter\":0}", "{}",
                                          "{\"client_counter\":9223372036854775807}" };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 1;
    script *s = script_begin(
        "copies", TINKC_MOCK_SERVICE,
        &(tinkc_client_options){ .api_key = "tml-key", .headers = PAIRS("X-Own", "1") });
    tinkc_error *e = script_err(s);
    for (size_t i = 0; i < 5; i++) {
        note(s, "copy %zu", i);
        answer_always(s, API "client/config", 200, NULL,
                      i ? "{\"sample_join_sampling_session\":true}" : "{}");
        script_renew(s, &(tinkc_client_options){ .api_key = "tml-key",
                                                 .headers = PAIRS("X-Own", "1"),
                                                 .max_retries = TINKC_ZERO,
                                                 .retry_window_ms = TINKC_ZERO });
        tinkc_future *f =
            follow(s, "sampler",
                   tinkc_sampler_open(script_client(s),
                                      &(tinkc_sampler_options){ .base_model = "mock/nano" }, e));
        tinkc_sampler *sampler = tinkc_future_sampler(f, 0, e);
        tinkc_text t = { 0 };
        note(s, "%s", tinkc_sampler_export(sampler, &t, e));
        tinkc_sampler_free(sampler);
        hush(s, true);
        script_renew(s, NULL); /* the original's client ends: one thread at a time */
        hush(s, false);
        tinkc_sampler *copy = tinkc_sampler_import(
            t.data,
            &(tinkc_client_options){ .transport = tinkc_mock_transport(script_mock(s)),
                                     .clock = tinkc_mock_clock(script_mock(s)) },
            e);
        assert_ok(e);
        tinkc_text_free(&t);
        if (i)
            answer_once(s, API "join_sampling_session", 200, NULL, places[i - 1]);
        for (int k = 0; k < 2; k++) {
            f = follow(s, "sample", tinkc_sample(copy, ids, 3, 1, &o, e));
            finish_it(s, f, 10000);
            let_go(s, f);
        }
        live(s, 11000);
        tinkc_sampler_free(copy);
        settle(s);
    }
    script_end(s);
}

/* ---- bodies as they come ---- */

static void count_ready(tinkc_stream *stream, void *user)
{
    (void)stream;
    ++*(int *)user;
}

static void show_stream_error(script *s, const tinkc_error *e)
{
    note(s, "  %s, status %d, flags %u: %s", tinkc_code_name(e->code), (int)e->http_status,
         (unsigned)e->flags, e->message);
}

static void read_stream(script *s, tinkc_stream *stream, size_t cap)
{
    char buf[32] = "";
    tinkc_error e = { 0 };
    size_t n = tinkc_stream_read(stream, buf, cap, 0, &e);
    note(s, "read %zu: %.*s", n, (int)n, buf);
    if (e.code)
        show_stream_error(s, &e);
}

static void streams(void **state)
{
    (void)state;
    script *s =
        script_begin("streams", TINKC_MOCK_EMPTY, &(tinkc_client_options){ .max_retries = 1 });
    tinkc_mock *m = script_mock(s);
    tinkc_error *e = script_err(s);
    answer_always(s, API "client/config", 200, NULL, "{}");
    static const struct {
        tinkc_mock_answer answer;
        bool any;
    } rows[] = {
        { { .body = "0123456789" }, false },
        { { .body = "01234", .fault = TINKC_FAULT_DRIP, .drip_ms = 10 }, false },
        { { .body = "0123456789", .fault = TINKC_FAULT_RESET, .fault_after = 4 }, false },
        { { .body = "0123456789", .fault = TINKC_FAULT_TRUNCATED, .fault_after = 4 }, false },
        { { .status = 404, .body = "{\"detail\":\"none\"}" }, false },
        { { .status = 404, .body = "{\"detail\":\"none\"}" }, true },
        { { .status = 204 }, false },
        { { .fault = TINKC_FAULT_SILENT }, false },
        { { .fault = TINKC_FAULT_REFUSED }, false },
        { { .status = 503, .body = "x" }, true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int ready = 0; ready < 2; ready++) {
            int calls = 0;
            note(s, "row %zu", i);
            tinkc_queue *q = tinkc_queue_new(script_client(s), e);
            assert_true(tinkc_mock_once(m, NULL, "/x", &rows[i].answer, e));
            tinkc_stream *stream = tinkc_stream_open(
                script_client(s), &(tinkc_http_options){ .path = "/x", .any_status = rows[i].any },
                e);
            assert_ok(e);
            if (ready)
                tinkc_stream_on_ready(stream, q, count_ready, &calls, e);
            for (int k = 0; k < 8; k++) {
                settle(s);
                if (k == 0 || k == 4) {
                    tinkc_error why = { 0 };
                    const tinkc_response *head = tinkc_stream_head(stream, 0, &why);
                    note(s, "head %d", (int)tinkc_response_status(head));
                    if (why.code)
                        show_stream_error(s, &why);
                }
                tinkc_queue_run(q, 0, e);
                note(s, "%d calls", calls);
                if (k != 1)
                    read_stream(s, stream, k == 0 ? 0 : k == 2 ? 3 : 32);
                if (i == 1 || i == 8)
                    pass(s, i == 1 ? 10 : 500);
            }
            if (ready) {
                tinkc_stream_on_ready(stream, NULL, NULL, NULL, e);
                note(s, "%s", e->message);
                *e = (tinkc_error){ 0 };
            }
            tinkc_stream_free(stream);
            tinkc_queue_free(q);
            settle(s);
        }
    script_end(s);
}

static void stream_events(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "event: a\ndata: 1\nid: 7\n\ndata: 2\ndata: 3\nretry: 50\n\n: note\n\ndata: cut",
        "data: \xff\n\n",
        "",
    };
    script *s = script_begin("stream_events", TINKC_MOCK_EMPTY, NULL);
    answer_always(s, API "client/config", 200, NULL, "{}");
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        answer_once(s, "/x", 200, NULL, bodies[i]);
        tinkc_stream *stream = tinkc_stream_open(
            script_client(s), &(tinkc_http_options){ .path = "/x" }, script_err(s));
        settle(s);
        for (int k = 0; k < 5; k++) {
            tinkc_error e = { 0 };
            const tinkc_sse *x = tinkc_stream_event(stream, 0, &e);
            if (x)
                note(s, "event %s, id %s, retry %lld, %zu bytes", x->event, x->id,
                     (long long)x->retry_ms, x->data_len);
            else
                show_stream_error(s, &e);
        }
        tinkc_stream_free(stream);
        settle(s);
    }
    script_end(s);
}

/* ---- completion in a loop of one's own ---- */

typedef struct listener {
    script *s;
    tinkc_future *free_it;
    tinkc_queue *queue;
    const char *name;
} listener;

static void on_done(tinkc_future *f, void *user)
{
    listener *t = user;
    note(t->s, "%s: %s is done", t->name, tinkc_future_operation(f));
    if (t->free_it)
        tinkc_future_free(t->free_it);
    t->free_it = NULL;
    tinkc_error e = { 0 };
    if (t->queue) {
        (void)tinkc_queue_run(t->queue, 0, &e);
        note(t->s, "inside: %s", e.message);
    }
}

static void on_any_event(const tinkc_event *e, void *user)
{
    listener *t = user;
    note(t->s, "%s: event %u, %s", t->name, (unsigned)e->kind, e->operation);
}

static void queues(void **state)
{
    (void)state;
    script *s = script_begin("queues", TINKC_MOCK_SERVICE, NULL);
    tinkc_error *e = script_err(s);
    tinkc_client *c = script_client(s);
    tinkc_queue *q = tinkc_queue_new(c, e), *other = tinkc_queue_new(c, e);
    listener a = { .s = s, .name = "a" }, b = { .s = s, .name = "b" };
    note(s, "a descriptor: %d", tinkc_queue_fd(q) > 2);
    tinkc_future *f = follow(s, "f", tinkc_health_check(c, e));
    tinkc_future_on_done(f, q, on_done, &a, e);
    tinkc_future_on_done(f, other, on_done, &b, e); /* replaces it */
    note(s, "%zu and %zu", tinkc_queue_run(q, 0, e), tinkc_queue_run(other, 0, e));
    note(s, "%zu and %zu", tinkc_queue_run(q, 0, e), tinkc_queue_run(other, 0, e));
    tinkc_future_on_done(f, q, on_done, &a, e); /* it has run: another may come */
    tinkc_future_on_done(f, q, NULL, NULL, e);
    note(s, "taken away: %zu", tinkc_queue_run(q, 0, e));
    b.queue = q;
    tinkc_future_on_done(f, q, on_done, &b, e);
    note(s, "inside its own: %zu", tinkc_queue_run(q, 0, e));
    b.queue = NULL;
    note(s, "before and after its end, freed inside");
    assert_true(tinkc_mock_once(script_mock(s), NULL, API "healthz",
                                &(tinkc_mock_answer){ .delay_ms = 5 }, e));
    tinkc_future *late = tinkc_health_check(c, e);
    a.free_it = late;
    tinkc_future_on_done(late, q, on_done, &a, e);
    tinkc_future_on_event(late, q, TINKC_EVENT_EXCHANGE, on_any_event, &b, e);
    settle(s);
    note(s, "%zu calls", tinkc_queue_run(q, 0, e));
    pass(s, 5);
    note(s, "%zu calls", tinkc_queue_run(q, 0, e));
    settle(s);
    note(s, "events of one future: a mask, another receiver, none");
    for (int i = 0; i < 4; i++) {
        tinkc_mock_answer busy = { .status = 503,
                                   .headers = PAIRS("Retry-After-Ms", "1"),
                                   .delay_ms = 5 };
        assert_true(tinkc_mock_once(script_mock(s), NULL, API "healthz", &busy, e));
        tinkc_future *g = tinkc_health_check(c, e);
        tinkc_future_on_event(g, q, i == 0 ? TINKC_EVENT_RETRY : UINT32_MAX, on_any_event, &a, e);
        if (i == 2)
            tinkc_future_on_event(g, other, UINT32_MAX, on_any_event, &b, e);
        if (i == 3)
            tinkc_future_on_event(g, q, 0, on_any_event, &a, e);
        hush(s, true);
        pass(s, 5);
        pass(s, 1);
        hush(s, false);
        note(s, "%d", tinkc_future_done(g));
        tinkc_queue_run(other, 0, e);
        tinkc_queue_run(q, 0, e);
        tinkc_future_free(g);
    }
    tinkc_queue_wake(q);
    note(s, "woken: %zu", tinkc_queue_run(q, 1, e));
    tinkc_queue_wake(NULL);
    tinkc_future *const three[] = { NULL, f, NULL };
    size_t first = tinkc_future_wait_any(three, 3, 0, e);
    size_t none = tinkc_future_wait_any(three, 1, 0, e);
    note(s, "any: %zu, %zu", first, none);
    note(s, "%s", e->message);
    *e = (tinkc_error){ 0 };
    note(s, "all: %d", tinkc_future_wait_all(three, 3, 0, e));
    tinkc_queue_free(other);
    tinkc_queue_free(q);
    script_end(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads),     cmocka_unit_test(refused),       cmocka_unit_test(jobs),
        cmocka_unit_test(lists),     cmocka_unit_test(search),        cmocka_unit_test(open_ways),
        cmocka_unit_test(own_calls), cmocka_unit_test(deltas),        cmocka_unit_test(copies),
        cmocka_unit_test(streams),   cmocka_unit_test(stream_events), cmocka_unit_test(queues),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
