/* startup.c - start-up on first need, then heartbeat and the refresh of settings.
 *
 *     nothing -> settings -> token -> [ready for plain calls] -> dynamic settings -> session
 *             -> [ready for training and sampling], heartbeat every 10 s
 *
 * An operation that needs more than there is waits in a list; the first of them sets the machine
 * going. A failure goes to all that wait, and the next call tries again.
 *
 * May touch: the client's I/O side.
 * Must not:  start anything that nobody has asked for.
 */
#include "client/core/startup.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "client/core/auth.h"
#include "client/sample/sampler.h"
#include "client/core/telemetry.h"
#include "base/str.h"

enum {
    HEARTBEAT_MS = 10 * 1000,
    HEARTBEAT_WARN_MS = 120 * 1000,
    REFRESH_FLOOR_S = 10,
    REFRESH_MOST_S = 1000000,
    REFRESH_DEFAULT_S = 300
};

struct tkc_boot {
    tinkc_client *client;
    tkc_ready_wait *first, *last;
    int32_t level; /* TKC_NEED_*: what is there */
    bool busy;     /* a step is under way */
    bool has_config, ended;
    tkc_call *step;
    void (*step_done)(tkc_boot *, const tkc_call *, tinkc_error *);

    tkc_timer beat_timer, refresh_timer;
    tkc_call *beat, *refresh;
    int64_t beat_ok_ms;
    bool beat_failing;
    char beat_error[160];
};

static void advance_startup(tkc_boot *boot);

/* ---- those who wait ---- */

static void wait_remove(tkc_boot *boot, tkc_ready_wait *wait)
{
    assert(wait->waiting && (wait->prev ? wait->prev->next : boot->first) == wait);
    assert((wait->next ? wait->next->prev : boot->last) == wait);
    if (wait->prev)
        wait->prev->next = wait->next;
    else
        boot->first = wait->next;
    if (wait->next)
        wait->next->prev = wait->prev;
    else
        boot->last = wait->prev;
    wait->waiting = false;
}

/* Continues every call whose need is met; each may change the list. */
static void tell_ready(tkc_boot *boot)
{
    tkc_ready_wait *wait = boot->first;
    while (wait) {
        if (wait->need > boot->level) {
            wait = wait->next;
            continue;
        }
        wait_remove(boot, wait);
        wait->ready(wait, NULL);
        wait = boot->first;
    }
}

static void tell_failed(tkc_boot *boot, const tinkc_error *err)
{
    /* Only those who wait now: who comes in between belongs to the next try. */
    size_t n = 0;
    for (tkc_ready_wait *wait = boot->first; wait; wait = wait->next)
        n++;
    while (n-- && boot->first) {
        tkc_ready_wait *wait = boot->first;
        wait_remove(boot, wait);
        wait->ready(wait, err);
    }
}

bool tkc_client_need(tinkc_client *client, tkc_ready_wait *wait)
{
    tkc_boot *boot = client->io.boot;
    assert(tkc_loop_is_current(client->loop) && !wait->waiting && wait->ready);
    if (wait->need <= boot->level)
        return true;
    wait->prev = boot->last;
    wait->next = NULL;
    if (boot->last)
        boot->last->next = wait;
    else
        boot->first = wait;
    boot->last = wait;
    wait->waiting = true;
    advance_startup(boot);
    return false;
}

void tkc_client_need_end(tinkc_client *client, tkc_ready_wait *wait)
{
    if (wait->waiting)
        wait_remove(client->io.boot, wait);
}

/* ---- steps ---- */

static void fail_step(tkc_boot *boot, const tinkc_error *err)
{
    boot->busy = false;
    tell_failed(boot, err);
    if (boot->first) /* came while the others were called */
        advance_startup(boot);
}

static void step_answered(tkc_call *call)
{
    tkc_boot *boot = call->owner;
    tinkc_error err = { 0 };
    assert(boot->busy && boot->step == call && !boot->ended);
    boot->step = NULL;
    boot->step_done(boot, call, &err);
    tkc_call_free(call);
    if (tkc_failed(&err)) {
        fail_step(boot, &err);
        return;
    }
    boot->busy = false;
    advance_startup(boot);
}

static void start_step(tkc_boot *boot, int32_t endpoint, const void *message,
                       void (*done)(tkc_boot *, const tkc_call *, tinkc_error *))
{
    tinkc_error err = { 0 };
    assert(!boot->busy && !boot->step); /* one step at a time */
    boot->busy = true;
    boot->step_done = done;
    tkc_call_spec spec = tkc_call_to(endpoint);
    boot->step =
        tkc_call_with(boot->client, &spec, tkc_endpoint_get(endpoint)->request, message, &err);
    if (!boot->step) {
        fail_step(boot, &err);
        return;
    }
    boot->step->owner = boot;
    boot->step->done = step_answered;
    tkc_call_start(boot->step);
}

static tinkc_str body_text(const tkc_call *call)
{
    return tkc_strn((const char *)call->body.data, call->body.len);
}

/* With 0 a batch would be cut into empty chunks without end, and no sample would ever get a
 * slot. */
static bool positive(int64_t value, const char *name, tinkc_error *err)
{
    return value > 0 ||
           tkc_fail(err, TINKC_E_BAD_RESPONSE, "client config: %s: not positive", name);
}

static void take_config(tkc_boot *boot, tinkc_str json, tinkc_error *err)
{
    tinkc_client *client = boot->client;
    tkc_config_response flags;
    tinkc_str kept = json;
    kept.data = tkc_arena_str(&client->io.flag_texts, json, err);
    if (!kept.data ||
        !tkc_message_decode(&tkc_config_response_type, kept, TINKC_E_BAD_RESPONSE,
                            &client->io.flag_texts, &flags, err) ||
        !positive(flags.fwdbwd_max_chunk_len, "fwdbwd_max_chunk_len", err) ||
        !positive(flags.sample_max_concurrent_requests, "sample_max_concurrent_requests", err))
        return;
    /* As a whole: an answer that is refused must not leave half of itself behind. */
    client->io.flags = flags;
    tkc_budget_set_limit(&client->io.fwdbwd_bytes, flags.fwdbwd_dispatch_bytes_semaphore_size);
    /* Of all clients that share this record: the newest settings hold. */
    tkc_budget_set_limit(&client->limits->sample_bytes, flags.sample_dispatch_bytes_semaphore_size);
    tkc_budget_set_limit(&client->limits->inflight_bytes,
                         flags.inflight_response_bytes_semaphore_size);
    boot->has_config = true;
}

static void config_answered(tkc_boot *boot, const tkc_call *call, tinkc_error *err)
{
    if (call->err.code)
        tkc_error_copy(err, &call->err);
    else
        take_config(boot, body_text(call), err);
}

static void start_config(tkc_boot *boot)
{
    tkc_config_request request = { .sdk_version = TINKC_TINKER_VERSION };
    start_step(boot, TKC_EP_CLIENT_CONFIG, &request, config_answered);
}

static void auth_done(void *arg, const tinkc_error *err)
{
    tkc_boot *boot = arg;
    if (err) {
        fail_step(boot, err);
        return;
    }
    boot->busy = false;
    boot->level = TKC_NEED_CONFIG;
    advance_startup(boot);
}

static void start_auth(tkc_boot *boot)
{
    tinkc_error err = { 0 };
    boot->busy = true;
    if (tkc_auth_begin(boot->client->io.auth, auth_done, boot, &err))
        auth_done(boot, NULL);
    else if (tkc_failed(&err))
        fail_step(boot, &err);
}

static bool take_dynamic(tinkc_client *client, const tkc_call *call, tinkc_error *err)
{
    tkc_arena arena;
    tkc_dynamic_config_response answer;
    tkc_arena_init(&arena, client->a, 1 << 20);
    bool ok = tkc_message_decode(&tkc_dynamic_config_response_type, body_text(call),
                                 TINKC_E_BAD_RESPONSE, &arena, &answer, err);
    /* 0 stands for settings that are still to be fetched: the start-up would ask for them without end. */
    int64_t interval_s =
        ok && answer.refresh_interval_sec ? answer.refresh_interval_sec : REFRESH_FLOOR_S;
    if (ok && interval_s != client->io.refresh_interval_s) {
        tkc_client_log(client, TINKC_LOG_DEBUG, "settings are now refreshed every %lld s",
                       (long long)interval_s);
        client->io.refresh_interval_s = interval_s;
    }
    if (ok)
        client->io.cancels.at_once =
            answer.sample_cancel_enabled ? answer.sample_cancel_max_batch_size : 0;
    if (ok && answer.sample_use_retrieve_futures.is == TKC_GIVEN)
        client->io.flags.sample_use_retrieve_futures = answer.sample_use_retrieve_futures;
    tkc_arena_free(&arena);
    return ok;
}

static void dynamic_answered(tkc_boot *boot, const tkc_call *call, tinkc_error *err)
{
    /* An older service, as the Python SDK sees it; any other failure is one of the start-up. */
    if (call->status == 404) {
        tkc_client_log(boot->client, TINKC_LOG_DEBUG, "no dynamic settings here: defaults hold");
        boot->client->io.refresh_interval_s = REFRESH_DEFAULT_S;
    } else if (call->err.code) {
        tkc_error_copy(err, &call->err);
    } else {
        take_dynamic(boot->client, call, err);
    }
}

static void start_dynamic(tkc_boot *boot)
{
    tkc_config_request request = { .sdk_version = TINKC_TINKER_VERSION };
    start_step(boot, TKC_EP_DYNAMIC_CONFIG, &request, dynamic_answered);
}

/* ---- the session ---- */

static void say_session(tinkc_client *client, int32_t level, const char *text)
{
    if (!text || !text[0])
        return;
    tkc_client_log(client, level, "%s", text);
    tkc_emit(client, NULL, &(tinkc_event){ .kind = TINKC_EVENT_SESSION, .text = text });
}

static void begin_session(tkc_boot *boot);

static void session_answered(tkc_boot *boot, const tkc_call *call, tinkc_error *err)
{
    tinkc_client *client = boot->client;
    tkc_create_session_response answer = { 0 };
    tkc_arena arena;
    if (call->err.code) {
        tkc_error_copy(err, &call->err);
        return;
    }
    tkc_arena_init(&arena, client->a, 1 << 20);
    char *id = NULL;
    if (tkc_message_decode(&tkc_create_session_response_type, body_text(call), TINKC_E_BAD_RESPONSE,
                           &arena, &answer, err))
        id = tkc_arena_cstr(&client->io.flag_texts, answer.session_id, err);
    if (id) {
        /* None of them fails the start-up, not even the error: so in the Python SDK. */
        say_session(client, TINKC_LOG_INFO, answer.info_message);
        say_session(client, TINKC_LOG_WARN, answer.warning_message);
        say_session(client, TINKC_LOG_ERROR, answer.error_message);
        /* tinkc_client_session_id reads it on other threads. */
        pthread_mutex_lock(&client->shared.lock);
        client->shared.session_id = id;
        pthread_mutex_unlock(&client->shared.lock);
        char text[200];
        (void)snprintf(text, sizeof text, "session %.150s", id);
        say_session(client, TINKC_LOG_INFO, text);
        begin_session(boot);
    }
    tkc_arena_free(&arena);
}

/* Only when something trains or samples: where the default project is read-only making one
 * may fail, and plain calls must work there all the same. */
static void start_session(tkc_boot *boot)
{
    static const char *const none[] = { NULL };
    tinkc_client *client = boot->client;
    tkc_create_session_request request = {
        .tags = client->tags ? client->tags : none,
        .user_metadata = { .pairs = client->user_metadata ? client->user_metadata : none },
        .sdk_version = TINKC_TINKER_VERSION,
        .project_id = client->project_id,
        .display_name = client->display_name,
    };
    start_step(boot, TKC_EP_CREATE_SESSION, &request, session_answered);
}

/* ---- heartbeat ---- */

/* Without them the service ends the session. No failure stops them but the 410 that says so:
 * each beat is the retry of the one before. (The Python SDK sends them even after that.) */

static void beat_answered(tkc_call *call)
{
    tkc_boot *boot = call->owner;
    tinkc_client *client = boot->client;
    int64_t now = tkc_now_ms(client->clock);
    if (call->status == 410) { /* the session was ended, here or elsewhere */
        tkc_client_log(client, TINKC_LOG_INFO, "session %s is over: no more heartbeats",
                       client->shared.session_id);
        tkc_emit(client, NULL,
                 &(tinkc_event){ .kind = TINKC_EVENT_HEARTBEAT,
                                 .http_status = 410,
                                 .text = "the session is over" });
        boot->beat = NULL;
        tkc_call_free(call);
        return;
    }
    if (call->err.code) {
        (void)snprintf(boot->beat_error, sizeof boot->beat_error, "%.159s", call->err.message);
    } else {
        if (boot->beat_failing)
            tkc_emit(client, NULL,
                     &(tinkc_event){ .kind = TINKC_EVENT_HEARTBEAT,
                                     .text = "heartbeats work again",
                                     .elapsed_ms = now - boot->beat_ok_ms });
        boot->beat_ok_ms = now;
        boot->beat_failing = false;
    }
    int64_t silent = now - boot->beat_ok_ms;
    if (silent > HEARTBEAT_WARN_MS) {
        boot->beat_failing = true;
        tkc_client_log(
            client, TINKC_LOG_WARN,
            "no heartbeat of session %s for %lld s (%s): the connection may be unreliable "
            "or the service down; the session will be ended",
            client->shared.session_id, (long long)(silent / 1000), boot->beat_error);
        tkc_emit(client, NULL,
                 &(tinkc_event){ .kind = TINKC_EVENT_HEARTBEAT,
                                 .elapsed_ms = silent,
                                 .http_status = call->err.http_status,
                                 .text = boot->beat_error });
    }
    boot->beat = NULL;
    tkc_call_free(call);
    if (!boot->ended)
        tkc_loop_arm(client->loop, &boot->beat_timer, HEARTBEAT_MS);
}

static void beat_fired(tkc_timer *timer)
{
    tkc_boot *boot = TKC_OWNER(timer, tkc_boot, beat_timer);
    tinkc_client *client = boot->client;
    tinkc_error err = { 0 };
    /* Set before the first beat and never changed: no lock is needed. */
    tkc_heartbeat_request request = { .session_id = client->shared.session_id };
    assert(!boot->beat && !boot->ended && request.session_id);
    tkc_call_spec spec = tkc_call_to(TKC_EP_HEARTBEAT);
    boot->beat = tkc_call_with(client, &spec, &tkc_heartbeat_request_type, &request, &err);
    if (!boot->beat) {
        /* No memory now; the session lives on for a while without this one. */
        tkc_loop_arm(client->loop, &boot->beat_timer, HEARTBEAT_MS);
        return;
    }
    boot->beat->owner = boot;
    boot->beat->done = beat_answered;
    tkc_call_start(boot->beat);
}

/* ---- refresh of the dynamic settings ---- */

static void arm_refresh(tkc_boot *boot)
{
    int64_t s = boot->client->io.refresh_interval_s;
    s = s > REFRESH_FLOOR_S ? s : REFRESH_FLOOR_S;
    /* The number is the service's: multiplied below it must not overflow. */
    s = s < REFRESH_MOST_S ? s : REFRESH_MOST_S;
    if (!boot->ended)
        tkc_loop_arm(boot->client->loop, &boot->refresh_timer, s * 1000);
}

static void refresh_answered(tkc_call *call)
{
    tkc_boot *boot = call->owner;
    tinkc_error err = { 0 };
    /* The settings from before hold. */
    if (call->err.code || !take_dynamic(boot->client, call, &err))
        tkc_client_log(boot->client, TINKC_LOG_DEBUG, "settings could not be refreshed: %s",
                       call->err.code ? call->err.message : err.message);
    boot->refresh = NULL;
    tkc_call_free(call);
    arm_refresh(boot);
}

static void refresh_fired(tkc_timer *timer)
{
    tkc_boot *boot = TKC_OWNER(timer, tkc_boot, refresh_timer);
    tinkc_error err = { 0 };
    tkc_config_request request = { .sdk_version = TINKC_TINKER_VERSION };
    assert(!boot->refresh && !boot->ended);
    tkc_call_spec spec = tkc_call_to(TKC_EP_DYNAMIC_CONFIG);
    spec.window = false; /* the next refresh is the retry */
    boot->refresh = tkc_call_with(boot->client, &spec, &tkc_config_request_type, &request, &err);
    if (!boot->refresh) {
        arm_refresh(boot);
        return;
    }
    boot->refresh->owner = boot;
    boot->refresh->done = refresh_answered;
    tkc_call_start(boot->refresh);
}

static void begin_session(tkc_boot *boot)
{
    tinkc_client *client = boot->client;
    boot->level = TKC_NEED_SESSION;
    /* Counts as a success, so the first warning comes two minutes after the session. */
    boot->beat_ok_ms = tkc_now_ms(client->clock);
    tkc_loop_arm(client->loop, &boot->beat_timer, HEARTBEAT_MS);
    arm_refresh(boot);
    tkc_telemetry_session(client, client->shared.session_id);
}

/* ---- the machine ---- */

/* Takes the next step that somebody needs; does nothing while one is under way. */
static void advance_startup(tkc_boot *boot)
{
    tinkc_client *client = boot->client;
    while (!boot->busy && !boot->ended) {
        tell_ready(boot);
        if (!boot->first || boot->busy)
            return;
        /* Plain calls stop after the token, so that they make no session. An imported sampler's
         * session was made by another process and is only kept alive. An interval of 0 means
         * settings not fetched yet. */
        if (!boot->has_config) {
            start_config(boot);
        } else if (boot->level < TKC_NEED_CONFIG) {
            start_auth(boot);
        } else if (client->imported) {
            begin_session(boot);
        } else if (client->io.refresh_interval_s == 0) {
            start_dynamic(boot);
        } else {
            start_session(boot);
        }
    }
}

tkc_boot *tkc_boot_new(tinkc_client *client, tinkc_error *err)
{
    tkc_boot *boot = tkc_zalloc(client->a, sizeof *boot, err);
    if (!boot)
        return NULL;
    boot->client = client;
    boot->beat_timer.fire = beat_fired;
    boot->refresh_timer.fire = refresh_fired;
    return boot;
}

void tkc_boot_free(tkc_boot *boot)
{
    if (boot)
        tkc_release(boot->client->a, boot, sizeof *boot);
}

void tkc_boot_stop(tkc_boot *boot)
{
    tinkc_client *client = boot->client;
    /* First: what ends below must not begin another step. */
    boot->ended = true;
    tkc_loop_disarm(client->loop, &boot->beat_timer);
    tkc_loop_disarm(client->loop, &boot->refresh_timer);
    tkc_call_free(boot->beat);
    tkc_call_free(boot->refresh);
    tkc_call_free(boot->step);
    tinkc_error closed = { 0 };
    tkc_fail(&closed, TINKC_E_CLOSED, "the client was closed");
    /* Those, too, who come in between. */
    while (boot->first)
        tell_failed(boot, &closed);
}

bool tkc_boot_seed(tkc_boot *boot, tinkc_str config_json, int64_t refresh_interval_s,
                   const char *session_id, tinkc_error *err)
{
    tinkc_client *client = boot->client;
    take_config(boot, config_json, err);
    if (tkc_failed(err))
        return false;
    if (refresh_interval_s > 0)
        client->io.refresh_interval_s = refresh_interval_s;
    if (session_id) {
        client->shared.session_id = tkc_arena_cstr(&client->io.flag_texts, session_id, err);
        if (client->io.refresh_interval_s == 0)
            client->io.refresh_interval_s = REFRESH_DEFAULT_S;
    }
    return !tkc_failed(err);
}

bool tkc_boot_save(tinkc_client *client, const tinkc_sampler *sampler, tkc_buf *out,
                   tinkc_error *err)
{
    tkc_jsonw w;
    const char *jwt = tkc_auth_current_jwt(client->io.auth);
    tkc_jsonw_open(&w, out, err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "tinkc");
    tkc_jsonw_i64(&w, 1);
    tkc_jsonw_key(&w, "base_url");
    tkc_jsonw_cstr(&w, client->base_url);
    tkc_jsonw_key(&w, "account");
    tkc_jsonw_u64(&w, client->limits->key[0] >> 11);
    if (client->io.boot->has_config) {
        tkc_jsonw_key(&w, "config");
        tkc_jsonw_raw(&w, client->io.flags.json);
    }
    tkc_jsonw_key(&w, "refresh_interval_sec");
    tkc_jsonw_i64(&w, client->io.refresh_interval_s);
    if (jwt) {
        tkc_jsonw_key(&w, "jwt");
        tkc_jsonw_cstr(&w, jwt);
    }
    /* Only an export has the key. A snapshot is kept in files and has no more than the token,
     * which ends soon. */
    if (sampler) {
        tkc_jsonw_key(&w, "api_key");
        tkc_jsonw_cstr(&w, client->api_key);
        tkc_jsonw_key(&w, "credential_cmd");
        tkc_jsonw_cstr(&w, client->credential_cmd);
        tkc_jsonw_key(&w, "session_id");
        tkc_jsonw_cstr(&w, client->shared.session_id);
        tkc_jsonw_key(&w, "sampler_id");
        tkc_jsonw_cstr(&w, sampler->id);
        if (sampler->record_stability_info) {
            tkc_jsonw_key(&w, "record_stability_info");
            tkc_jsonw_bool(&w, true);
        }
        tkc_jsonw_key(&w, "headers");
        tkc_jsonw_array(&w);
        for (size_t i = 0; client->user_headers && client->user_headers[i]; i++)
            tkc_jsonw_cstr(&w, client->user_headers[i]);
        tkc_jsonw_end(&w);
    }
    tkc_jsonw_end(&w);
    return !tkc_failed(err);
}
