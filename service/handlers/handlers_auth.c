/* handlers_auth.c - keys and tokens: exchanging a key for a token, reading tokens, naming a key.
 *
 * The shell has checked the key before any of this runs. Must not touch: the key itself.
 */
#include <stdio.h>

#include "service/core/service_state.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/handlers.h"

/* The caller's address: the one of its key, else a placeholder, to which no client sends mail. */
static void email_of(const tke_call *call, char *out, size_t size)
{
    const char *email = call->caller->email;
    bool given = email && *email;
    (void)snprintf(out, size, "%s%s", given ? email : call->owner, given ? "" : "@localhost");
}

void tke_handle_token(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_buf token;
    if (!svc->set.jwt_auth) {
        tke_refuse(call, 404, "not_found",
                   "This server does not exchange keys for tokens (setting jwt_auth)");
        return;
    }
    tkc_buf_init(&token, svc->a, TKC_BUF_NO_MAX);
    tke_token_claims claims = { .generation = call->caller->generation };
    (void)snprintf(claims.owner, sizeof claims.owner, "%s", call->owner);
    (void)snprintf(claims.key_id, sizeof claims.key_id, "%s", call->caller->key_id);
    email_of(call, claims.email, sizeof claims.email);
    tke_token_make(svc->token_secret, &claims, tkc_wall_us(svc->clock), &token, &call->err);
    const char *text = tkc_buf_terminate(&token, &call->err);
    if (text)
        tke_answer(call, &tkc_auth_token_response_type, &(tkc_auth_token_response){ .jwt = text });
    else
        tke_send_failure(call->reply, svc->a, &call->err);
    tkc_buf_free(&token);
}

/* "outer": {"name": text} */
static void write_pair(tkc_jsonw *w, const char *outer, const char *name, const char *text)
{
    tkc_jsonw_key(w, outer);
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, name);
    tkc_jsonw_cstr(w, text);
    tkc_jsonw_end(w);
}

/* The first 52 bits of a key's id (hex digits), which every reader of JSON keeps whole. "" is 0. */
static uint64_t number_of(const char *id)
{
    enum { DIGITS = 13 };
    uint64_t n = 0;
    for (size_t i = 0; i < DIGITS && id[i]; i++)
        n = n << 4 | (uint64_t)(id[i] <= '9' ? id[i] - '0' : id[i] - 'a' + 10);
    return n;
}

/* `tinker auth login` asks for this before it keeps a key. */
void tke_handle_key(tke_call *call)
{
    char email[TKE_EMAIL];
    const char *id = call->caller->key_id;
    tkc_buf out;
    tkc_jsonw w;
    email_of(call, email, sizeof email);
    tkc_buf_init(&out, call->svc->a, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&w, &out, &call->err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "key_id");
    tkc_jsonw_u64(&w, number_of(id));
    tkc_jsonw_key(&w, "name");
    tkc_jsonw_cstr(&w, call->owner);
    tkc_jsonw_key(&w, "note");
    tkc_jsonw_cstr(&w, *id ? "" : "this server has no keys: it accepts any");
    tkc_jsonw_key(&w, "details");
    tkc_jsonw_object(&w);
    write_pair(&w, "org_details", "name", TKE_ORG);
    write_pair(&w, "user_details", "email", email);
    tkc_jsonw_end(&w);
    tkc_jsonw_end(&w);
    tke_answer_text(call, &out);
}

void tke_handle_delete_key(tke_call *call)
{
    tke_refuse(call, 403, "forbidden",
               "Keys cannot be deleted here: remove the line from the server's key file, then send "
               "SIGHUP to the server");
}

bool tke_service_token_read(tke_service *svc, const char *token, tke_token_claims *out)
{
    return svc->set.jwt_auth &&
           tke_token_check(svc->token_secret, token, tkc_wall_us(svc->clock), out);
}
