/* account.c - small questions to the service: is it well, what can it do, who am I. */
#include <string.h>

#include "client/core/auth.h"
#include "client/rest/rest_priv.h"
#include "base/str.h"
#include "codec/jwt.h"

/* ---- health ---- */

static void decode_health(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_health_response r = { 0 };
    if (!tkc_rest_decode(f, answer, &tkc_health_response_type, &r, err))
        return;
    f->result = f;
    if (strcmp(r.status, "ok") != 0)
        tkc_fail(err, TINKC_E_SERVER, "health check failed: the service reports %.100s", r.status);
}

tinkc_future *tinkc_health_check(tinkc_client *client, tinkc_error *err)
{
    static const tkc_rest_class class = { "health_check", "nothing" };
    return tkc_rest_start(client, &class, &(tkc_rest_request){ .endpoint = TKC_EP_HEALTH },
                          decode_health, err);
}

/* ---- capabilities ---- */

struct tinkc_capabilities {
    tinkc_model *models;
    size_t n;
};

static void decode_capabilities(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_capabilities_response r = { 0 };
    tinkc_capabilities *c = tkc_arena_zalloc(&f->arena, sizeof *c, err);
    if (!c || !tkc_rest_decode(f, answer, &tkc_capabilities_response_type, &r, err))
        return;
    c->models = tkc_arena_array(&f->arena, r.supported_models.len, sizeof *c->models, err);
    if (!c->models)
        return;
    c->n = r.supported_models.len;
    for (size_t i = 0; i < c->n; i++) {
        const tkc_supported_model *m = &r.supported_models.data[i];
        c->models[i] = (tinkc_model){ .name = m->model_name ? m->model_name : "",
                                      .max_context_length = m->max_context_length.value,
                                      .json = m->json };
    }
    f->result = c;
}

tinkc_future *tinkc_capabilities_get(tinkc_client *client, tinkc_error *err)
{
    static const tkc_rest_class class = { "capabilities_get", "capabilities" };
    return tkc_rest_start(client, &class, &(tkc_rest_request){ .endpoint = TKC_EP_CAPABILITIES },
                          decode_capabilities, err);
}

const tinkc_capabilities *tinkc_future_capabilities(tinkc_future *f, int64_t timeout_ms,
                                                    tinkc_error *err)
{
    return tkc_future_get(f, "capabilities", timeout_ms, err);
}

size_t tinkc_capabilities_count(const tinkc_capabilities *c)
{
    return c ? c->n : 0;
}

const tinkc_model *tinkc_capabilities_at(const tinkc_capabilities *c, size_t i)
{
    return c && i < c->n ? &c->models[i] : NULL;
}

const tinkc_model *tinkc_capabilities_find(const tinkc_capabilities *c, const char *name)
{
    for (size_t i = 0; c && name && i < c->n; i++)
        if (strcmp(c->models[i].name, name) == 0)
            return &c->models[i];
    return NULL;
}

/* ---- who am I ---- */

/* Waits for the start-up, then for a token that is still good for a minute. */
typedef struct who_op {
    tinkc_future f;
    tkc_ready_wait ready;
    tkc_token_wait token;
    bool wants_token;
} who_op;

/* The claims are read without a look at the signature, as in the Python SDK: they are shown, and
 * nothing is decided by them. */
static void give_identity(who_op *op, const char *jwt, tinkc_error *err)
{
    tkc_jwt claims = { 0 };
    tinkc_identity *who = tkc_arena_zalloc(&op->f.arena, sizeof *who, err);
    if (!who || !tkc_jwt_read(jwt, &op->f.arena, &claims, err))
        return;
    who->user_urn = claims.sub ? claims.sub : "";
    who->email = claims.email && claims.email[0] ? claims.email : NULL;
    who->org_urn = claims.org_id
                       ? tkc_arena_printf(&op->f.arena, err, "tml:organization:%s", claims.org_id)
                       : "";
    op->f.result = who;
}

static void give_token(who_op *op, const char *jwt, tinkc_error *err)
{
    tkc_jwt claims = { .exp_us = TINKC_NO_TIME };
    tinkc_token *token = tkc_arena_zalloc(&op->f.arena, sizeof *token, err);
    if (!token || !tkc_jwt_read(jwt, &op->f.arena, &claims, err))
        return;
    token->jwt = tkc_arena_cstr(&op->f.arena, jwt, err);
    token->expires_us = claims.exp_us;
    op->f.result = token;
}

/* Without exchange only a credential that is itself a passport's token says who one is. */
static bool names_somebody(tinkc_client *client, const char *jwt, tkc_arena *arena)
{
    tkc_jwt claims = { 0 };
    tinkc_error ignored = { 0 };
    if (!jwt)
        return false;
    if (tkc_auth_current_jwt(client->io.auth))
        return true;
    return tkc_starts_with(tkc_str(jwt), "eyJ") && tkc_jwt_read(jwt, arena, &claims, &ignored) &&
           claims.iss && tkc_starts_with(tkc_str(claims.iss), "passport-");
}

static void token_ready(tkc_token_wait *wait, const char *jwt, const tinkc_error *failed)
{
    who_op *op = TKC_OWNER(wait, who_op, token);
    tinkc_error err = { 0 };
    if (failed)
        tkc_error_copy(&err, failed);
    else if (!names_somebody(op->f.client, jwt, &op->f.arena))
        tkc_fail(&err, TINKC_E_NO_IDENTITY, "a plain key does not say whose it is");
    else if (op->wants_token)
        give_token(op, jwt, &err);
    else
        give_identity(op, jwt, &err);
    tkc_op_finish(&op->f, &err);
}

static void who_ready(tkc_ready_wait *wait, const tinkc_error *err)
{
    who_op *op = TKC_OWNER(wait, who_op, ready);
    const char *jwt;
    if (err) {
        tkc_op_finish(&op->f, err);
        return;
    }
    op->token.ready = token_ready;
    if (tkc_auth_token(op->f.client, &op->token, &jwt))
        token_ready(&op->token, jwt, NULL);
}

static void who_start(tinkc_future *f)
{
    who_op *op = (who_op *)f;
    op->ready.ready = who_ready;
    op->ready.need = TKC_NEED_CONFIG;
    if (tkc_client_need(f->client, &op->ready))
        who_ready(&op->ready, NULL);
}

static void who_stop(tinkc_future *f, const tinkc_error *why)
{
    who_op *op = (who_op *)f;
    tkc_client_need_end(f->client, &op->ready);
    tkc_auth_token_end(&op->token);
    tkc_op_finish(f, why);
}

static tinkc_future *ask_who(tinkc_client *client, const tkc_op_class *class, bool wants_token,
                             tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    who_op *op = (who_op *)tkc_op_new(client, class, err);
    if (!op)
        return NULL;
    op->wants_token = wants_token;
    return tkc_op_submit(&op->f);
}

tinkc_future *tinkc_identity_get(tinkc_client *client, tinkc_error *err)
{
    static const tkc_op_class class = { "identity_get", "identity", sizeof(who_op),
                                        who_start,      who_stop,   NULL };
    return ask_who(client, &class, false, err);
}

const tinkc_identity *tinkc_future_identity(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    return tkc_future_get(f, "identity", timeout_ms, err);
}

tinkc_future *tinkc_token_get(tinkc_client *client, tinkc_error *err)
{
    static const tkc_op_class class = { "token_get", "token",  sizeof(who_op),
                                        who_start,   who_stop, NULL };
    return ask_who(client, &class, true, err);
}

const tinkc_token *tinkc_future_token(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    return tkc_future_get(f, "token", timeout_ms, err);
}
