/* sampler.c - samplers: opened, handed to another process and back, asked about.
 *
 * May touch: the client's counters. Sampling itself is in sample_op.c.
 */
#include "client/sample/sampler.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/call/poller.h"
#include "client/core/auth.h"
#include "client/core/startup.h"
#include "client/core/options.h"
#include "client/core/departed.h"
#include "client/rest/rest_priv.h"
#include "base/str.h"
#include "codec/tinker_path.h"

enum { PROGRESS_MS = 7200 * 1000, DELAY_BASE_MS = 500, DELAY_MAX_MS = 10 * 1000 };

bool tkc_retry_check(const tinkc_retry_options *o, tinkc_error *err)
{
    if (!o)
        return true;
    if (!tkc_all_zero(o->reserved, sizeof o->reserved) ||
        !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved: must be zero");
    if (!tkc_check_number(o->progress_timeout_ms, 0, "progress_timeout_ms", err) ||
        !tkc_check_number(o->delay_base_ms, TKC_MAY_BE_ZERO, "delay_base_ms", err) ||
        !tkc_check_number(o->delay_max_ms, TKC_MAY_BE_ZERO, "delay_max_ms", err) ||
        !tkc_check_number(o->max_attempts, 0, "max_attempts", err))
        return false;
    if (o->has_jitter && !(o->jitter >= 0 && o->jitter <= 1))
        return tkc_fail(err, TINKC_E_ARGUMENT, "jitter: must lie between 0 and 1");
    return true;
}

bool tkc_sampler_options_check(const tinkc_sampler_options *o, tinkc_error *err)
{
    if (!tkc_all_zero(o->reserved, sizeof o->reserved) ||
        !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved: must be zero");
    return tkc_retry_check(o->retry, err);
}

tinkc_sampler *tkc_sampler_make(tinkc_client *client, const char *id,
                                const tinkc_retry_options *retry, tinkc_error *err)
{
    tinkc_sampler *s = tkc_zalloc(client->a, sizeof *s, err);
    if (!s)
        return NULL;
    s->id = tkc_copy_str(client->a, tkc_str(id), err);
    if (!s->id) {
        tkc_release(client->a, s, sizeof *s);
        return NULL;
    }
    s->client = client;
    tkc_client_keep(client);
    tkc_ref_init(&s->refs);
    if (retry)
        s->retry = *retry;
    s->retry.progress_timeout_ms = tkc_number_or(s->retry.progress_timeout_ms, PROGRESS_MS);
    s->retry.delay_base_ms = tkc_number_or(s->retry.delay_base_ms, DELAY_BASE_MS);
    s->retry.delay_max_ms = tkc_number_or(s->retry.delay_max_ms, DELAY_MAX_MS);
    /* The Python SDK's default. Jitter has a flag because 0 is a value. */
    if (!s->retry.has_jitter)
        s->retry.jitter = 0.25;
    pthread_mutex_init(&s->tokenizer_lock, NULL);
    pthread_mutex_init(&s->budget_lock, NULL);
    /* The service's setting, not the caller's: it replaces the Python SDK's max_connections,
     * too. */
    tkc_budget_init(&s->io.slots, &s->budget_lock, client->io.flags.sample_max_concurrent_requests,
                    true);
    tkc_session_poll_init(&s->io.poll, client, s->id);
    (void)snprintf(s->io.pause_prefix, sizeof s->io.pause_prefix,
                   "Sampling is paused for sampler %.150s", id);
    return s;
}

void tkc_sampler_keep(tinkc_sampler *s)
{
    tkc_ref_keep(&s->refs);
}

void tkc_sampler_drop(tinkc_sampler *s)
{
    if (!s || !tkc_ref_drop(&s->refs))
        return;
    tinkc_client *client = s->client;
    bool owns = s->owns_client;
    assert(!s->io.joiners && !s->io.join_call && s->io.inside == 0); /* each of them holds it */
    tkc_session_poll_free(&s->io.poll);
    if (s->tokenizer)
        s->tokenizer_free(s->tokenizer);
    pthread_mutex_destroy(&s->tokenizer_lock);
    pthread_mutex_destroy(&s->budget_lock);
    tkc_release_str(client->a, s->id);
    tkc_release(client->a, s, sizeof *s);
    if (owns)
        tkc_client_drop(client); /* the handle that tinkc_sampler_import made */
    tkc_client_drop(client);
}

tkc_session_poll *tkc_sampler_poll(tinkc_sampler *s)
{
    if (!tkc_session_poll_is_used(&s->io.poll))
        return NULL;
    /* Its numbers say which copy it is: those of the original lie in the first block. */
    s->io.poll.clone = atomic_load(&s->next_request) / TKC_SAMPLER_BLOCK;
    return &s->io.poll;
}

void tinkc_sampler_free(tinkc_sampler *s)
{
    if (!s || tkc_client_forked(s->client))
        return;
    if (s->owns_client) /* the program has no other handle on it */
        tkc_departed_add(s->client);
    tkc_sampler_drop(s);
}

const char *tinkc_sampler_id(const tinkc_sampler *s)
{
    return s ? s->id : "";
}

int64_t tkc_next_sampler_seq(tinkc_client *client)
{
    pthread_mutex_lock(&client->shared.lock);
    int64_t seq = client->shared.next_sampler_seq++;
    pthread_mutex_unlock(&client->shared.lock);
    return seq;
}

/* ---- opening ---- */

typedef struct opening {
    tinkc_future f;
    tkc_create_sampling_session_request message; /* texts in the arena */
    tinkc_retry_options retry;
    bool record_stability_info;
    tkc_poller poller;
    tinkc_sampler *sampler; /* the result: a reference */
} opening;

static void session_done(tkc_poller *poller)
{
    opening *o = TKC_OWNER(poller, opening, poller);
    const tinkc_bytes body = poller->answer->body;
    tkc_create_sampling_session_response answer = { 0 };
    tinkc_error err = poller->answer->err;
    if (!err.code)
        (void)tkc_message_decode(&tkc_create_sampling_session_response_type,
                                 tkc_strn((const char *)body.data, body.len), TINKC_E_BAD_RESPONSE,
                                 &o->f.arena, &answer, &err);
    if (!err.code)
        o->sampler = tkc_sampler_make(o->f.client, answer.sampling_session_id, &o->retry, &err);
    if (o->sampler)
        o->sampler->record_stability_info = o->record_stability_info;
    if (err.code)
        tkc_op_error_body(&o->f, body);
    o->f.result = o->sampler;
    tkc_op_finish(&o->f, &err);
}

static void session_ready(tkc_poller *poller)
{
    opening *o = TKC_OWNER(poller, opening, poller);
    tinkc_error err = { 0 };
    o->message.session_id = o->f.client->shared.session_id;
    tkc_call_spec spec = tkc_call_to(TKC_EP_CREATE_SAMPLING_SESSION);
    tkc_call *call = tkc_call_with(o->f.client, &spec, &tkc_create_sampling_session_request_type,
                                   &o->message, &err);
    if (call)
        tkc_op_stage(&o->f, TINKC_STAGE_SENDING);
    tkc_poller_ask(poller, call, &err, session_done);
}

static void opening_start(tinkc_future *f)
{
    opening *o = (opening *)f;
    tkc_poller_begin(&o->poller, f, NULL);
    tkc_poller_need(&o->poller, TKC_NEED_SESSION, session_ready);
}

static void opening_stop(tinkc_future *f, const tinkc_error *why)
{
    tinkc_error err = *why;
    if (tkc_poller_end(&((opening *)f)->poller))
        err.flags |= TINKC_MAY_HAVE_RUN;
    tkc_op_finish(f, &err);
}

static void opening_destroy(tinkc_future *f)
{
    tkc_sampler_drop(((opening *)f)->sampler);
}

static bool check_sampler_options(const tinkc_sampler_options *o, tinkc_error *err)
{
    if (!o)
        return tkc_fail(err, TINKC_E_ARGUMENT, "options: must not be NULL");
    if (!tkc_sampler_options_check(o, err))
        return false;
    bool has_path = o->model_path && o->model_path[0];
    if (!has_path && !(o->base_model && o->base_model[0]))
        return tkc_fail(err, TINKC_E_ARGUMENT, "base_model: this or model_path is needed");
    if (has_path && !tkc_starts_with(tkc_str(o->model_path), "tinker://"))
        return tkc_fail(err, TINKC_E_PATH, "model_path: must begin with tinker://");
    return true;
}

tinkc_future *tinkc_sampler_open(tinkc_client *client, const tinkc_sampler_options *options,
                                 tinkc_error *err)
{
    static const tkc_op_class class = { "sampler_open", "sampler",    sizeof(opening),
                                        opening_start,  opening_stop, opening_destroy };
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_sampler_options(options, err) ||
        !tkc_client_check(client, err))
        return NULL;
    /* The session is another process's: only that one may open samplers in it. */
    if (client->imported) {
        tkc_fail(err, TINKC_E_NO_SESSION, "the client of an imported sampler opens no others");
        return NULL;
    }
    opening *o = (opening *)tkc_op_new(client, &class, err);
    if (!o)
        return NULL;
    if (options->base_model && options->base_model[0])
        o->message.base_model = tkc_arena_cstr(&o->f.arena, options->base_model, err);
    if (options->model_path && options->model_path[0])
        o->message.model_path = tkc_arena_cstr(&o->f.arena, options->model_path, err);
    if (options->retry)
        o->retry = *options->retry;
    o->record_stability_info = options->record_stability_info;
    if (tkc_failed(err)) {
        tkc_future_drop(&o->f);
        return NULL;
    }
    o->message.sampling_session_seq_id = tkc_next_sampler_seq(client);
    return tkc_op_submit(&o->f);
}

tinkc_sampler *tinkc_future_sampler(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    tinkc_sampler *sampler = tkc_future_get(f, "sampler", timeout_ms, err);
    if (sampler)
        tkc_sampler_keep(sampler);
    return sampler;
}

tinkc_sampler *tinkc_sampler_new(tinkc_client *client, const tinkc_sampler_options *options,
                                 tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    tinkc_future *f = tinkc_sampler_open(client, options, err);
    tinkc_sampler *sampler = tinkc_future_sampler(f, TINKC_FOREVER, err);
    tinkc_future_free(f);
    return sampler;
}

/* ---- records ---- */

static void decode_record(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_sampler_response *r = tkc_arena_zalloc(&f->arena, sizeof *r, err);
    tinkc_sampler_record *record = tkc_arena_zalloc(&f->arena, sizeof *record, err);
    if (!r || !record || !tkc_rest_decode(f, answer, &tkc_sampler_response_type, r, err))
        return;
    *record = (tinkc_sampler_record){ .sampler_id = r->sampler_id ? r->sampler_id : "",
                                      .base_model = r->base_model ? r->base_model : "",
                                      .model_path = r->model_path,
                                      .json = r->json };
    f->result = record;
}

tinkc_future *tinkc_sampler_get(tinkc_client *client, const char *sampler_id, tinkc_error *err)
{
    static const tkc_rest_class class = { "sampler_get", "sampler_record" };
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_check_id(sampler_id, "sampler_id", err))
        return NULL;
    return tkc_rest_start(client, &class,
                          &(tkc_rest_request){ .endpoint = TKC_EP_SAMPLER, .ids = { sampler_id } },
                          decode_record, err);
}

tinkc_future *tinkc_sampler_info(tinkc_sampler *sampler, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!sampler) {
        tkc_fail(err, TINKC_E_ARGUMENT, "sampler: must not be NULL");
        return NULL;
    }
    return tinkc_sampler_get(sampler->client, sampler->id, err);
}

const tinkc_sampler_record *tinkc_future_sampler_record(tinkc_future *f, int64_t timeout_ms,
                                                        tinkc_error *err)
{
    return tkc_future_get(f, "sampler_record", timeout_ms, err);
}

/* ---- another process ---- */

const char *tinkc_sampler_export(tinkc_sampler *sampler, tinkc_text *out, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return "";
    if (!sampler) {
        tkc_fail(err, TINKC_E_ARGUMENT, "sampler: must not be NULL");
        return "";
    }
    return tkc_client_save(sampler->client, sampler, out, err);
}

static bool check_import(const tinkc_client_options *o, tinkc_error *err)
{
    if (o && (o->api_key || o->credential_cmd || o->base_url || o->project_id || o->tags ||
              o->user_metadata || o->headers || o->snapshot))
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "options: what the exported text has (credential, address, session) must "
                        "be empty");
    return true;
}

/* A copy's numbers begin far away from the original's and from other copies': between 10^9 and 10^18,
 * where the Python SDK's copies have theirs. */
static int64_t shadow_start(const tinkc_clock *clock)
{
    return (int64_t)TKC_SAMPLER_BLOCK * (int64_t)(tkc_random(clock) % 1000000000u + 1);
}

static tinkc_sampler *revive(const tkc_saved *saved, const tinkc_client_options *options,
                             tinkc_error *err)
{
    tinkc_client_options o = options ? *options : (tinkc_client_options){ 0 };
    o.base_url = saved->base_url && saved->base_url[0] ? saved->base_url : NULL;
    /* Empty instead of NULL: the environment of this process must not stand in. */
    o.api_key = saved->api_key ? saved->api_key : "";
    o.credential_cmd = saved->credential_cmd ? saved->credential_cmd : "";
    o.headers = saved->headers;
    tinkc_client *client = tkc_client_make(&o, true, err);
    if (!client)
        return NULL;
    /* Nobody else has the client yet, so its I/O side may be filled in from here. */
    tinkc_sampler *sampler = NULL;
    if (tkc_boot_seed(client->io.boot, saved->config, saved->refresh_interval_s, saved->session_id,
                      err)) {
        if (saved->jwt)
            tkc_auth_seed(client->io.auth, saved->jwt);
        sampler = tkc_sampler_make(client, saved->sampler_id, NULL, err);
    }
    if (!sampler) {
        tkc_client_drop(client);
        return NULL;
    }
    sampler->owns_client = true;
    sampler->record_stability_info = saved->record_stability_info;
    sampler->io.needs_place = client->io.flags.sample_join_sampling_session.value;
    atomic_store(&sampler->next_request, shadow_start(client->clock));
    return sampler;
}

tinkc_sampler *tinkc_sampler_import(const char *exported, const tinkc_client_options *options,
                                    tinkc_error *err)
{
    tinkc_error local;
    tkc_saved saved;
    tkc_arena arena;
    if (!tkc_enter(&err, &local) || !check_import(options, err))
        return NULL;
    if (!exported) {
        tkc_fail(err, TINKC_E_ARGUMENT, "exported: must not be NULL");
        return NULL;
    }
    tkc_arena_init(&arena, NULL, 1 << 24);
    tinkc_sampler *sampler = NULL;
    if (tkc_saved_read(exported, "exported", &arena, &saved, err)) {
        if (saved.sampler_id && saved.session_id && saved.config.len)
            sampler = revive(&saved, options, err);
        else
            tkc_fail(err, TINKC_E_ARGUMENT, "exported: not from tinkc_sampler_export");
    }
    tkc_arena_free(&arena);
    return sampler;
}
