/* jwt.c - claims of a token, unverified. May touch: the arena. Must not quote the token in errors.
 */
#include "codec/jwt.h"

#include <assert.h>
#include <string.h>

#include "base/json_read.h"
#include "base/str.h"
#include "codec/base64.h"

/* A claim that is a string without NUL; anything else is ignored. */
static const char *text_claim(tkc_json *j)
{
    if (tkc_json_peek(j) != TKC_JSON_STRING) {
        (void)tkc_json_skip(j);
        return NULL;
    }
    tinkc_str s = tkc_json_string(j);
    if (tkc_failed(j->err) || tkc_str_find(s, '\0') != s.len)
        return NULL;
    return tkc_arena_str(j->arena, s, j->err);
}

static int64_t time_claim(tkc_json *j)
{
    if (tkc_json_peek(j) != TKC_JSON_NUMBER) {
        (void)tkc_json_skip(j);
        return TINKC_NO_TIME;
    }
    double seconds = tkc_json_double(j);
    bool fits = seconds > -9e12 && seconds < 9e12;
    return fits ? (int64_t)(seconds * 1e6) : TINKC_NO_TIME;
}

static void read_claims(tkc_json *j, tkc_jwt *out)
{
    tinkc_str key;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "exp"))
            out->exp_us = time_claim(j);
        else if (tkc_str_is(key, "sub"))
            out->sub = text_claim(j);
        else if (tkc_str_is(key, "email"))
            out->email = text_claim(j);
        else if (tkc_str_is(key, "iss"))
            out->iss = text_claim(j);
        else if (tkc_str_is(key, "org_id"))
            out->org_id = text_claim(j);
        else if (tkc_str_is(key, "jti"))
            out->jti = text_claim(j);
        else
            (void)tkc_json_skip(j);
    }
}

bool tkc_jwt_read(const char *token, tkc_arena *arena, tkc_jwt *out, tinkc_error *err)
{
    tinkc_str rest = tkc_str(token), head, payload, signature;
    tinkc_bytes bytes;
    tinkc_error bad = { 0 };
    tkc_json j;
    *out = (tkc_jwt){ .exp_us = TINKC_NO_TIME };
    if (!tkc_str_cut(&rest, '.', &head) || !tkc_str_cut(&rest, '.', &payload) ||
        !tkc_str_cut(&rest, '.', &signature) || rest.data)
        return tkc_fail(err, TINKC_E_TOKEN, "the token is not a JWT: it has not three parts");
    if (!tkc_base64url_decode(payload, arena, &bytes, err))
        return tkc_fail(err, TINKC_E_TOKEN, "the token's claims are not base64url");
    assert(bytes.data && !bytes.data[bytes.len]); /* decoded text is terminated */
    tkc_json_open(&j, tkc_strn((const char *)bytes.data, bytes.len), arena, &bad);
    read_claims(&j, out);
    if (tkc_json_close(&j))
        return true;
    if (bad.code == TINKC_E_MEMORY)
        return tkc_fail_memory(err);
    return tkc_fail(err, TINKC_E_TOKEN, "the token's claims are not a JSON object");
}
