/* test_reads.c - the account's calls: what each sends, and what a full, a bare and a senseless answer become. */
#include "support/client/client_scene.h"

#define RUN  API "training_runs/r"
#define CKPT RUN "/checkpoints/weights/c"
#define PATH "tinker://r/weights/c"

static const char *text(const char *t)
{
    return t ? t : "NULL";
}

static void show_list(scene *s, const char *name, const char *const *list)
{
    char line[600] = "";
    size_t n = 0;
    for (size_t i = 0; list && list[i]; i++)
        n += (size_t)snprintf(line + n, sizeof line - n, " %s", list[i]);
    note(s, "%s:%s", name, list ? line : " NULL");
}

static void show_checkpoint(scene *s, const tinkc_checkpoint *c)
{
    if (!c) {
        note(s, "no checkpoint");
        return;
    }
    note(s, "checkpoint %s, %s, %s, %s, %lld, %lld, %lld bytes, kind %d, public %d", text(c->id), text(c->path),
         text(c->created), text(c->expires), (long long)c->created_us, (long long)c->expires_us,
         (long long)c->size_bytes, (int)c->kind, c->is_public);
    show_list(s, "metadata", c->user_metadata);
}

static void show_run(scene *s, const tinkc_run *r)
{
    note(s, "run %s, %s, %s, %s, %lld, rank %d, lora %d, corrupted %d", text(r->id), text(r->base_model),
         text(r->owner), text(r->last_request), (long long)r->last_request_us, (int)r->lora_rank, r->is_lora,
         r->corrupted);
    show_checkpoint(s, r->last_checkpoint);
    show_checkpoint(s, r->last_sampler_checkpoint);
    show_list(s, "metadata", r->user_metadata);
}

static void show_usage(scene *s, const tinkc_usage *u)
{
    for (size_t i = 0; i <= tinkc_usage_count(u); i++) {
        const tinkc_usage_event *e = tinkc_usage_at(u, i);
        if (e)
            note(s, "usage %s %s %lld %lld %s %s %s %s %s %s %d %d %lld %lld %g", text(e->starts), text(e->ends),
                 (long long)e->starts_us, (long long)e->ends_us, text(e->base_model), text(e->user_id),
                 text(e->user_name), text(e->session_id), text(e->project_id), text(e->type), (int)e->kind, e->cached,
                 (long long)e->token_count, (long long)e->count, e->gigabyte_hours);
    }
    for (size_t i = 0; i <= tinkc_usage_session_count(u); i++) {
        const tinkc_usage_session *q = tinkc_usage_session_at(u, i);
        if (q) {
            note(s, "session %s", text(q->session_id));
            show_list(s, "metadata", q->user_metadata);
        }
    }
}

static void show_storage(scene *s, const tinkc_storage *t)
{
    for (size_t i = 0; i <= tinkc_storage_count(t); i++) {
        const tinkc_storage_item *e = tinkc_storage_at(t, i);
        if (e)
            note(s, "storage %s %s %s %s %lld %lld %g %g", text(e->project_id), text(e->user_urn), text(e->user_email),
                 text(e->user_name), (long long)e->checkpoints, (long long)e->size_bytes, e->gigabytes,
                 e->usd_per_month);
    }
    note(s, "%g a gigabyte", tinkc_storage_usd_per_gigabyte_month(t));
}

/* What the future holds, whatever it is. */
static void show(scene *s, tinkc_future *f)
{
    const char *what = tinkc_future_operation(f);
    tinkc_error e = { 0 };
    if (!tinkc_future_wait(f, 0, &e))
        return;
    if (strncmp(what, "run_get", 7) == 0) {
        show_run(s, tinkc_future_run(f, 0, &e));
    } else if (strcmp(what, "checkpoint_get") == 0) {
        const tinkc_weights *w = tinkc_future_weights(f, 0, &e);
        note(s, "weights %s, rank %d, freeze %u, lora %d", text(w->base_model), (int)w->lora_rank, (unsigned)w->freeze,
             w->is_lora);
    } else if (strcmp(what, "session_get") == 0) {
        const tinkc_session *q = tinkc_future_session(f, 0, &e);
        show_list(s, "runs", q->training_run_ids);
        show_list(s, "samplers", q->sampler_ids);
        show_list(s, "metadata", q->user_metadata);
        note(s, "%s", text(q->display_name));
    } else if (strcmp(what, "audit_get") == 0) {
        const tinkc_audit *a = tinkc_future_audit(f, 0, &e);
        for (size_t i = 0; i <= tinkc_audit_count(a); i++) {
            const tinkc_audit_entry *x = tinkc_audit_at(a, i);
            if (x)
                note(s, "audit %s %lld %s %s %s %s", text(x->time), (long long)x->time_us, text(x->event),
                     text(x->model_id), text(x->path), text(x->purpose));
        }
    } else if (strcmp(what, "usage_get") == 0) {
        show_usage(s, tinkc_future_usage(f, 0, &e));
    } else if (strcmp(what, "storage_get") == 0) {
        show_storage(s, tinkc_future_storage(f, 0, &e));
    } else if (strcmp(what, "checkpoint_archive") == 0) {
        const tinkc_archive *a = tinkc_future_archive(f, 0, &e);
        note(s, "archive %s, %s, %lld", a->url, text(a->expires), (long long)a->expires_us);
    } else if (strcmp(what, "checkpoint_links") == 0) {
        const tinkc_links *l = tinkc_future_links(f, 0, &e);
        for (size_t i = 0; i <= tinkc_links_count(l); i++)
            if (tinkc_links_at(l, i))
                note(s, "link %s %s", tinkc_links_at(l, i)->name, tinkc_links_at(l, i)->url);
        note(s, "until %lld", (long long)tinkc_links_expires_us(l));
    } else if (strcmp(what, "checkpoint_copy") == 0) {
        note(s, "copy %s", tinkc_future_path(f, 0, &e));
    } else if (strcmp(what, "session_trace") == 0) {
        note(s, "trace %s", tinkc_future_url(f, 0, &e));
    } else if (strcmp(what, "get_server_capabilities") == 0 || strcmp(what, "capabilities_get") == 0) {
        const tinkc_capabilities *c = tinkc_future_capabilities(f, 0, &e);
        for (size_t i = 0; i <= tinkc_capabilities_count(c); i++) {
            const tinkc_model *m = tinkc_capabilities_at(c, i);
            if (m)
                note(s, "model %s, %lld, found %d", m->name, (long long)m->max_context_length,
                     tinkc_capabilities_find(c, m->name) == m);
        }
        note(s, "absent %d", tinkc_capabilities_find(c, "absent") != NULL);
    } else if (strcmp(what, "sampler_get") == 0) {
        const tinkc_sampler_record *r = tinkc_future_sampler_record(f, 0, &e);
        note(s, "sampler %s %s %s", r->sampler_id, r->base_model, text(r->model_path));
    }
    assert_ok(&e);
}

static tinkc_future *call_nr(scene *s, size_t nr)
{
    tinkc_client *c = scene_client(s);
    tinkc_error *e = scene_err(s);
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
        return tinkc_checkpoint_copy(c, PATH,
                                     &(tinkc_copy_options){ .project_id = "p", .access_token = "t", .ttl_s = 5 }, e);
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
    case 19:
        return tinkc_session_assign(c, "s", "p", e);
    case 20: /* into the client's project */
        return tinkc_checkpoint_copy(c, PATH, NULL, e);
    case 21:
        return tinkc_session_finish(c, "s", TINKC_FINISH_SUCCESS, NULL, e);
    default:
        return tinkc_storage_get(c, NULL, e);
    }
}

#define C1                                                                                                             \
    "{\"checkpoint_id\":\"weights/"                                                                                    \
    "c\",\"checkpoint_type\":\"training\",\"time\":\"2026-01-01T00:00:01Z\","                                          \
    "\"tinker_path\":\"tinker://r/weights/c\",\"size_bytes\":12,\"public\":true,"                                      \
    "\"expires_at\":\"2026-02-01T00:00:00+00:00\",\"user_metadata\":{\"k\":\"v\"}}"
#define C2                                                                                                             \
    "{\"checkpoint_id\":\"sampler_weights/"                                                                            \
    "d\",\"checkpoint_type\":\"sampler\",\"time\":\"2026-01-01T00:00:02Z\","                                           \
    "\"tinker_path\":\"tinker://r/sampler_weights/d\"}"
#define C3                                                                                                             \
    "{\"checkpoint_id\":\"odd/d\",\"checkpoint_type\":\"unheard "                                                      \
    "of\",\"time\":\"yesterday\",\"tinker_path\":\"x\","                                                               \
    "\"size_bytes\":null,\"expires_at\":null}"
#define RUN_1                                                                                                          \
    "{\"training_run_id\":\"r\",\"base_model\":\"m\",\"model_owner\":\"o\",\"is_lora\":true,"                          \
    "\"lora_rank\":1,"                                                                                                 \
    "\"corrupted\":true,\"last_request_time\":\"2026-01-03T00:00:00Z\",\"last_checkpoint\":" C1                        \
    ",\"last_sampler_checkpoint\":" C2 ",\"user_metadata\":{\"a\":\"b\"}}"
#define RUN_2                                                                                                          \
    "{\"training_run_id\":\"q\",\"base_model\":\"m\",\"model_owner\":\"o\",\"is_lora\":false,"                         \
    "\"lora_rank\":null,"                                                                                              \
    "\"last_request_time\":\"2026-01-03T00:00:00Z\",\"last_checkpoint\":null}"
#define RUN_3                                                                                                          \
    "{\"training_run_id\":\"p\",\"base_model\":\"m\",\"model_owner\":\"o\",\"is_lora\":true,"                          \
    "\"lora_rank\":2147483648,"                                                                                        \
    "\"last_request_time\":\"2026-01-03T00:00:00Z\",\"last_checkpoint\":" C3 "}"

/* Full answers, and answers with as little as there may be, or less. */
static const struct {
    size_t nr;
    const char *path, *body, *seen;
} rows[] = {
    { 0, RUN, RUN_1,
      "training_runs/r?access_scope=owned {GET}; done; run r, m, o, 2026-01-03T00:00:00Z, "
      "1767398400000000, rank 1, lora 1, corrupted 1; checkpoint weights/c, "
      "tinker://r/weights/c, 2026-01-01T00:00:01Z, 2026-02-01T00:00:00+00:00, "
      "1767225601000000, 1769904000000000, 12 bytes, kind 1, public 1; metadata: k v; "
      "checkpoint sampler_weights/d, tinker://r/sampler_weights/d, 2026-01-01T00:00:02Z, NULL, "
      "1767225602000000, -9223372036854775808, -1 bytes, kind 2, public 0; metadata: NULL; "
      "metadata: a b" },
    { 0, RUN, RUN_2,
      "training_runs/r?access_scope=owned {GET}; done; run q, m, o, 2026-01-03T00:00:00Z, "
      "1767398400000000, rank 0, lora 0, corrupted 0; no checkpoint; no checkpoint; metadata: "
      "NULL" },
    { 0, RUN, RUN_3,
      "training_runs/r?access_scope=owned {GET}; done; run p, m, o, 2026-01-03T00:00:00Z, "
      "1767398400000000, rank 0, lora 1, corrupted 0; checkpoint odd/d, x, yesterday, NULL, "
      "-9223372036854775808, -9223372036854775808, -1 bytes, kind 0, public 0; metadata: NULL; "
      "no checkpoint; metadata: NULL" },
    { 0, RUN, "{\"training_run_id\":\"r\"}",
      "training_runs/r?access_scope=owned {GET}; BAD_RESPONSE 200 \"base_model: JSON: is "
      "missing at byte 23\"" },
    { 1, RUN, RUN_1,
      "training_runs/r?access_scope=accessible {GET}; done; run r, m, o, 2026-01-03T00:00:00Z, "
      "1767398400000000, rank 1, lora 1, corrupted 1; checkpoint weights/c, "
      "tinker://r/weights/c, 2026-01-01T00:00:01Z, 2026-02-01T00:00:00+00:00, "
      "1767225601000000, 1769904000000000, 12 bytes, kind 1, public 1; metadata: k v; "
      "checkpoint sampler_weights/d, tinker://r/sampler_weights/d, 2026-01-01T00:00:02Z, NULL, "
      "1767225602000000, -9223372036854775808, -1 bytes, kind 2, public 0; metadata: NULL; "
      "metadata: a b" },
    { 2, API "weights_info",
      "{\"base_model\":\"m\",\"is_lora\":true,\"lora_rank\":2147483647,\"train_mlp\":false,"
      "\"train_attn\":true,\"train_unembed\":true}",
      "weights_info {\"tinker_path\":\"tinker://r/weights/c\"}; done; weights m, rank "
      "2147483647, freeze 1, lora 1" },
    { 2, API "weights_info",
      "{\"base_model\":\"m\",\"is_lora\":true,\"lora_rank\":0,\"train_mlp\":true,\"train_"
      "attn\":false}",
      "weights_info {\"tinker_path\":\"tinker://r/weights/c\"}; done; weights m, rank 0, "
      "freeze 2, lora 1" },
    { 2, API "weights_info", "{\"base_model\":\"m\",\"is_lora\":false,\"train_unembed\":false}",
      "weights_info {\"tinker_path\":\"tinker://r/weights/c\"}; done; weights m, rank 0, "
      "freeze 4, lora 0" },
    { 2, API "weights_info", "{}",
      "weights_info {\"tinker_path\":\"tinker://r/weights/c\"}; BAD_RESPONSE 200 \"base_model: "
      "JSON: is missing at byte 2\"" },
    { 3, CKPT, "", "training_runs/r/checkpoints/weights/c {DELETE} {Content-Type: application/json}; done" },
    { 4, CKPT "/publish", "", "training_runs/r/checkpoints/weights/c/publish {Content-Type: application/json}; done" },
    { 5, CKPT "/publish", "",
      "training_runs/r/checkpoints/weights/c/publish {DELETE} {Content-Type: "
      "application/json}; done" },
    { 6, CKPT "/ttl", "{}", "training_runs/r/checkpoints/weights/c/ttl {PUT} {\"ttl_seconds\":1}; done" },
    { 7, CKPT "/ttl", "{}", "training_runs/r/checkpoints/weights/c/ttl {PUT} {\"ttl_seconds\":null}; done" },
    { 8, CKPT "/archive", "{\"url\":\"https://files.test/a\",\"expires\":\"2026-01-01T01:00:00Z\"}",
      "archive; done; archive https://files.test/a, 2026-01-01T01:00:00Z, 1767229200000000" },
    { 8, CKPT "/archive", "{\"url\":\"/a\",\"expires\":\"2026-01-01T01:00:00Z\"}",
      "archive; BAD_RESPONSE 200 \"the archive's address is not absolute\"" },
    { 8, CKPT "/archive", "{}", "archive; BAD_RESPONSE 200 \"url: JSON: is missing at byte 2\"" },
    { 9, RUN "/checkpoints/external_weights/c/external_weights_urls",
      "{\"urls\":{\"a\":\"https://x.test/a\",\"b/c\":\"https://x.test/"
      "b\"},\"expires\":\"2026-01-01T01:00:00Z\"}",
      "links; done; link a https://x.test/a; link b/c https://x.test/b; until "
      "1767229200000000" },
    { 9, RUN "/checkpoints/external_weights/c/external_weights_urls", "{}",
      "links; BAD_RESPONSE 200 \"urls: JSON: is missing at byte 2\"" },
    { 10, API "copy_weights", "{\"path\":\"tinker://n/weights/c\",\"type\":\"copy_weights\"}",
      "copy_weights {X-Tinker-Weights-Access-Token: t} "
      "{\"destination_project_id\":\"p\",\"source_path\":\"tinker://r/weights/"
      "c\",\"ttl_seconds\":5}; BAD_RESPONSE 200 \"tinker_path: JSON: is missing at byte 53\"" },
    { 10, API "copy_weights", "{\"tinker_path\":\"tinker://n/weights/c\"}",
      "copy_weights {X-Tinker-Weights-Access-Token: t} "
      "{\"destination_project_id\":\"p\",\"source_path\":\"tinker://r/weights/"
      "c\",\"ttl_seconds\":5}; done; copy tinker://n/weights/c" },
    { 10, API "copy_weights", "{}",
      "copy_weights {X-Tinker-Weights-Access-Token: t} "
      "{\"destination_project_id\":\"p\",\"source_path\":\"tinker://r/weights/"
      "c\",\"ttl_seconds\":5}; BAD_RESPONSE 200 \"tinker_path: JSON: is missing at byte 2\"" },
    { 11, API "sessions/s",
      "{\"training_run_ids\":[\"r\",\"q\"],\"sampler_ids\":[\"a\"],\"user_metadata\":{\"k\":"
      "\"v\"},\"display_name\":\"d\"}",
      "sessions/s?access_scope=accessible {GET}; done; runs: r q; samplers: a; metadata: k v; "
      "d" },
    { 11, API "sessions/s", "{}",
      "sessions/s?access_scope=accessible {GET}; BAD_RESPONSE 200 \"training_run_ids: JSON: is "
      "missing at byte 2\"" },
    { 12, API "sessions/s/finish", "{}",
      "sessions/s/finish {\"reason\":{\"type\":\"errored\"},\"detail\":\"a detail\"}; done" },
    { 13, API "sessions/s/trace_export", "{\"status\":\"ready\",\"url\":\"https://x.test/t\"}",
      "trace; done; trace https://x.test/t" },
    { 13, API "sessions/s/trace_export", "{\"status\":\"ready\"}",
      "trace; BAD_RESPONSE 200 \"the trace is ready but has no address\"" },
    { 13, API "sessions/s/trace_export", "{\"status\":\"ready\",\"url\":\"ftp://x\"}",
      "trace; BAD_RESPONSE 200 \"the trace is ready but has no address\"" },
    { 13, API "sessions/s/trace_export", "{\"status\":\"failed\"}",
      "trace; EXPORT_FAILED 200 \"trace export: the service gives no reason\"" },
    { 13, API "sessions/s/trace_export", "{\"status\":\"failed\",\"error\":\"why\"}",
      "trace; EXPORT_FAILED 200 \"trace export: why\"" },
    { 13, API "sessions/s/trace_export", "{\"status\":\"odd\"}",
      "trace; BAD_RESPONSE 200 \"trace export: unknown status \"odd\"\"" },
    { 13, API "sessions/s/trace_export", "{}", "trace; BAD_RESPONSE 200 \"status: JSON: is missing at byte 2\"" },
    { 14, API "audit",
      "{\"entries\":[{\"timestamp\":\"2026-01-01T00:00:00Z\",\"event\":\"e\",\"model_id\":"
      "\"m\",\"tinker_path\":\"t\",\"purpose\":\"p\"},{\"timestamp\":\"2026-01-01T00:00:01Z\","
      "\"event\":\"f\"}]}",
      "audit?event_type=checkpoints&day=2026-02-28 {GET} {pool rest}; done; audit "
      "2026-01-01T00:00:00Z 1767225600000000 e m t p; audit 2026-01-01T00:00:01Z "
      "1767225601000000 f NULL NULL NULL" },
    { 14, API "audit", "{\"entries\":[]}", "audit?event_type=checkpoints&day=2026-02-28 {GET} {pool rest}; done" },
    { 14, API "audit", "[]",
      "audit?event_type=checkpoints&day=2026-02-28 {GET} {pool rest}; BAD_RESPONSE 200 \"JSON: "
      "an object is needed at byte 0\"" },
    { 15, API "billing/usage/events",
      "{\"data\":[{\"bucket_start\":\"2026-01-01T00:00:00Z\",\"bucket_end\":\"2026-01-01T01:00:"
      "00Z\",\"base_model\":\"m\",\"user_id\":\"u\",\"user_name\":\"n\",\"session_id\":\"s\","
      "\"project_id\":\"p\",\"event_info\":{\"type\":\"prefill\",\"cached\":true,\"token_"
      "count\":7}},{\"bucket_start\":\"2026-01-01T00:00:00Z\",\"bucket_end\":\"2026-01-01T01:"
      "00:00Z\",\"event_info\":{\"type\":\"storage\",\"gigabyte_hours\":0.5}},{\"bucket_"
      "start\":\"2026-01-01T00:00:00Z\",\"bucket_end\":\"2026-01-01T01:00:00Z\",\"event_info\":"
      "{\"type\":\"checkpoint\",\"count\":3}},{\"bucket_start\":\"2026-01-01T00:00:00Z\","
      "\"bucket_end\":\"2026-01-01T01:00:00Z\",\"event_info\":{\"type\":\"odd\",\"cached\":"
      "false}}],\"sessions\":{\"s\":{\"user_metadata\":{\"k\":\"v\"}},\"t\":{}}}",
      "billing/usage/"
      "events?starting_on=2026-01-01T00%3A00%3A00Z&ending_before=2026-01-02T00%3A00%3A00Z "
      "{GET}; done; usage 2026-01-01T00:00:00Z 2026-01-01T01:00:00Z 1767225600000000 "
      "1767229200000000 m u n s p prefill 0 1 7 0 0; usage 2026-01-01T00:00:00Z "
      "2026-01-01T01:00:00Z 1767225600000000 1767229200000000 NULL NULL NULL NULL NULL storage "
      "5 0 0 0 0.5; usage 2026-01-01T00:00:00Z 2026-01-01T01:00:00Z 1767225600000000 "
      "1767229200000000 NULL NULL NULL NULL NULL checkpoint 4 0 0 3 0; usage "
      "2026-01-01T00:00:00Z 2026-01-01T01:00:00Z 1767225600000000 1767229200000000 NULL NULL "
      "NULL NULL NULL odd 0 0 0 0 0; session s; metadata: k v; session t; metadata: NULL" },
    { 15, API "billing/usage/events", "{\"data\":[]}",
      "billing/usage/"
      "events?starting_on=2026-01-01T00%3A00%3A00Z&ending_before=2026-01-02T00%3A00%3A00Z "
      "{GET}; done" },
    { 16, API "billing/usage/checkpoints/current",
      "{\"data\":[{\"project_id\":\"p\",\"org_user_urn\":\"u\",\"user_email\":\"e\",\"user_"
      "name\":\"n\",\"checkpoint_count\":2,\"size_bytes\":5,\"size_gigabytes\":0.25,"
      "\"estimated_monthly_cost_usd\":1.5}],\"effective_rate_usd_per_gigabyte_month\":0.125}",
      "billing/usage/checkpoints/current?project_id=p {GET}; done; storage p u e n 2 5 0.25 "
      "1.5; 0.125 a gigabyte" },
    { 16, API "billing/usage/checkpoints/current",
      "{\"data\":[{\"checkpoint_count\":0,\"size_bytes\":0,\"size_gigabytes\":0}]}",
      "billing/usage/checkpoints/current?project_id=p {GET}; done; storage NULL NULL NULL NULL "
      "0 0 0 nan; nan a gigabyte" },
    { 17, API "get_server_capabilities",
      "{\"supported_models\":[{\"model_name\":\"a\",\"max_context_length\":5},{\"model_name\":"
      "null},{}]}",
      "models; done; model a, 5, found 1; model , 0, found 1; model , 0, found 0; absent 0" },
    { 17, API "get_server_capabilities", "{}",
      "models; BAD_RESPONSE 200 \"supported_models: JSON: is missing at byte 2\"" },
    { 18, API "samplers/q",
      "{\"sampler_id\":\"q\",\"base_model\":\"m\",\"model_path\":\"tinker://r/sampler_weights/"
      "d\"}",
      "samplers/q {GET}; done; sampler q m tinker://r/sampler_weights/d" },
    { 18, API "samplers/q", "{}", "samplers/q {GET}; BAD_RESPONSE 200 \"sampler_id: JSON: is missing at byte 2\"" },
    { 19, API "sessions/s/project", "", "sessions/s/project {PUT} {\"project_id\":\"p\"}; done" },
    { 20, API "copy_weights", "{\"tinker_path\":\"tinker://n/weights/c\"}",
      "copy_weights "
      "{\"destination_project_id\":\"mine\",\"source_path\":\"tinker://r/weights/c\"}; done; copy "
      "tinker://n/weights/c" },
    { 21, API "sessions/s/finish", "", "sessions/s/finish {\"reason\":{\"type\":\"success\"}}; done" },
    { 22, API "billing/usage/checkpoints/current", "{\"data\":[]}",
      "billing/usage/checkpoints/current {GET}; done; nan a gigabyte" },
};

TEST(each_answer_becomes_its_structure)
{
    const tinkc_client_options o = { .project_id = "mine" };
    scene *s = scene_new(TINKC_MOCK_SERVICE, &o);
    complete(s, "", tinkc_health_check(scene_client(s), scene_err(s)));
    scene_forget(s);
    scene_shows(s, SHOW_BODIES);
    for (size_t i = 0; i < LEN(rows); i++) {
        answer(s, rows[i].path, 200, rows[i].body);
        tinkc_future *f = follow(s, "", call_nr(s, rows[i].nr));
        finish(s, f, 30000);
        show(s, f);
        release(s, f);
        EXPECT_ROW(s, i, rows[i].seen);
    }
    scene_end(s);
}

/* Whatever the call: it is repeated where that may help, and ends with the code of the last answer. */
TEST(each_call_in_bad_weather_ends_with_its_code)
{
    static const struct {
        outcome o;
        int32_t code;
        bool repeats; /* until the window is over */
    } weathers[] = {
        { { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL }, TINKC_E_CONNECTION, true },
        { { 200, TINKC_FAULT_RESET, NULL, NULL, "{\"a\":1}" }, TINKC_E_CONNECTION, true },
        { { 400, 0, NULL, NULL, "{\"detail\":\"no\"}" }, TINKC_E_BAD_REQUEST, false },
        { { 401, 0, NULL, NULL, "{}" }, TINKC_E_AUTH, false },
        { { 403, 0, NULL, NULL, "{}" }, TINKC_E_FORBIDDEN, false },
        { { 404, 0, NULL, NULL, "{}" }, TINKC_E_NOT_FOUND, false },
        { { 408, 0, NULL, NULL, "{}" }, TINKC_E_REQUEST_TIMEOUT, true },
        { { 410, 0, NULL, NULL, "{}" }, TINKC_E_GONE, false },
        { { 422, 0, NULL, NULL, "{}" }, TINKC_E_UNPROCESSABLE, false },
        { { 429, 0, "retry-after", "2", "{}" }, TINKC_E_RATE_LIMITED, true },
        { { 500, 0, NULL, NULL, "oops" }, TINKC_E_SERVER, true },
    };
    for (size_t i = 0; i < LEN(rows); i++)
        for (size_t k = 0; k < LEN(weathers) && (i == 0 || rows[i - 1].nr != rows[i].nr); k++) {
            tinkc_error e = { 0 };
            scene *s = scene_new(TINKC_MOCK_SERVICE, &(tinkc_client_options){ .project_id = "p" });
            complete(s, "", tinkc_health_check(scene_client(s), scene_err(s)));
            tinkc_mock_forget(scene_mock(s));
            answer_always_with(s, rows[i].path, &weathers[k].o);
            tinkc_future *f = follow(s, "", call_nr(s, rows[i].nr));
            finish(s, f, 2000000);
            (void)tinkc_future_wait(f, 0, &e);
            size_t n = tinkc_mock_count(scene_mock(s), NULL);
            if (e.code != weathers[k].code || (weathers[k].repeats ? n < 3 : n != 1))
                fail_msg("call %zu in weather %zu: %d, %zu requests", rows[i].nr, k, (int)e.code, n);
            scene_end(s);
        }
}

/* Publishing, unpublishing and deleting what is so already: the service says 409, or that nothing has changed. */
TEST(a_checkpoint_that_is_so_already_is_a_conflict)
{
    static const struct {
        int32_t status;
        const char *body;
        int32_t code;
    } answers[] = {
        { 409, "", TINKC_E_CONFLICT },
        { 200, "{\"changed\":false}", TINKC_E_CONFLICT },
        { 200, " { \"a\": [1, {\"changed\": true}], \"changed\" : false } ", TINKC_E_CONFLICT },
        { 200, "{\"changed\":true}", 0 },
        { 200, "{\"changed\":null}", 0 },
        { 200, "{\"unchanged\":false,\"a\":{\"changed\":false}}", 0 },
        { 200, "", 0 },
        { 200, "null", 0 },
        { 200, "not JSON at all", 0 },
        { 200, "{\"changed\":false", 0 },
    };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(answers); i++)
        for (size_t nr = 3; nr <= 5; nr++) {
            tinkc_error e = { 0 };
            answer(s, nr == 3 ? CKPT : CKPT "/publish", answers[i].status, answers[i].body);
            tinkc_future *f = call_nr(s, nr);
            assert_int_equal(tinkc_future_wait(f, PATIENCE_MS, &e), !answers[i].code);
            assert_int_equal(e.code, answers[i].code);
            tinkc_future_free(f);
        }
    scene_end(s);
}

/* An id may hold what a URL may not. */
TEST(ids_are_escaped)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    answer(s, API "training_runs/a%20b:c%25", 200, RUN_2);
    complete(s, "run", tinkc_run_get(scene_client(s), "a b:c%", TINKC_OWNED, scene_err(s)));
    EXPECT(s, "client/config; training_runs/a%20b:c%25?access_scope=owned {GET}; run: done");
    scene_end(s);
}
