/* auth_token.c - makes and checks tokens. May touch: the table meta, which holds the secret. */
#include "service/handlers/auth_token.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/json_write.h"
#include "base/str.h"
#include "codec/base64.h"
#include "codec/jwt.h"

enum { SHA256_BLOCK = 64, OWNER_PREFIX = sizeof TKE_USER_URN - 1 };

/* ---- the secret ---- */

static bool take_part(const tke_row *row, void *user, tinkc_error *err)
{
    int64_t value = tke_row_i64(row, 0);
    unsigned char **at = user;
    (void)err;
    memcpy(*at, &value, sizeof value);
    *at += sizeof value;
    return true;
}

bool tke_token_secret_load(tke_token_secret *secret, tke_store *store, const tinkc_clock *clock,
                           tinkc_error *err)
{
    unsigned char *at = secret->bytes;
    if (!tke_store_query(store,
                         "SELECT value FROM meta WHERE key IN ('token.0', 'token.1', 'token.2', "
                         "'token.3') ORDER BY key",
                         take_part, &at, err, ""))
        return false;
    /* A secret that is there only in part is replaced as a whole: missing bytes would be zero, and
     * tokens easier to forge. */
    if (at == secret->bytes + sizeof secret->bytes)
        return true;
    tke_txn *txn = tke_txn_new(store, err);
    for (int i = 0; i < 4; i++) {
        char key[24];
        int64_t value = (int64_t)tkc_random(clock);
        memcpy(secret->bytes + 8 * (size_t)i, &value, sizeof value);
        (void)snprintf(key, sizeof key, "token.%d", i);
        tke_txn_exec(txn, "INSERT OR REPLACE INTO meta(key, value) VALUES(?, ?)", "ti", key, value);
    }
    tke_txn_commit(txn, NULL, NULL);
    tke_store_sync(store); /* other code reads the database next */
    return !tkc_failed(err);
}

/* ---- the salt ---- */

static bool count_rows(const tke_row *row, void *user, tinkc_error *err)
{
    (void)err;
    *(int64_t *)user = tke_row_i64(row, 0);
    return true;
}

bool tke_owner_salt_load(tke_owner_salt *salt, tke_store *store, const tinkc_clock *clock,
                         tinkc_error *err)
{
    unsigned char *at = salt->bytes;
    int64_t n_sessions = 0;
    if (!tke_store_query(store,
                         "SELECT value FROM meta WHERE key IN ('salt.0', 'salt.1') ORDER BY key",
                         take_part, &at, err, "") ||
        !tke_store_query(store, "SELECT count(*) FROM sessions", count_rows, &n_sessions, err, ""))
        return false;
    /* A store with sessions but no salt is of an older version: a salt would give its keys new
     * owners, who could not see their runs. */
    if (at != salt->bytes || n_sessions)
        return true;
    tke_txn *txn = tke_txn_new(store, err);
    for (int i = 0; i < 2; i++) {
        char key[24];
        int64_t value = (int64_t)tkc_random(clock) | 1; /* never all zero */
        memcpy(salt->bytes + 8 * (size_t)i, &value, sizeof value);
        (void)snprintf(key, sizeof key, "salt.%d", i);
        tke_txn_exec(txn, "INSERT OR REPLACE INTO meta(key, value) VALUES(?, ?)", "ti", key, value);
    }
    tke_txn_commit(txn, NULL, NULL);
    tke_store_sync(store);
    return !tkc_failed(err);
}

/* ---- signing ---- */

static void sha256(const void *a, size_t a_len, const void *b, size_t b_len,
                   unsigned char out[TKC_SHA256_BYTES])
{
    tkc_digest sum;
    tkc_sha256_init(&sum);
    tkc_digest_add(&sum, a, a_len);
    tkc_digest_add(&sum, b, b_len);
    tkc_digest_bytes(&sum, out);
}

/* HMAC (RFC 2104) with SHA-256. */
static void sign(const tke_token_secret *secret, tinkc_str text,
                 unsigned char out[TKC_SHA256_BYTES])
{
    unsigned char inner[SHA256_BLOCK], outer[SHA256_BLOCK];
    for (size_t i = 0; i < SHA256_BLOCK; i++) {
        unsigned char byte = i < sizeof secret->bytes ? secret->bytes[i] : 0;
        inner[i] = byte ^ 0x36;
        outer[i] = byte ^ 0x5c;
    }
    sha256(inner, sizeof inner, text.data, text.len, out);
    sha256(outer, sizeof outer, out, TKC_SHA256_BYTES, out);
}

/* The alphabet for URLs, without padding. */
static bool add_base64url(tkc_buf *out, const void *bytes, size_t len, tinkc_error *err)
{
    size_t n = tkc_base64_length(len);
    char *room = tkc_buf_room(out, n, err);
    if (!room)
        return false;
    tkc_base64_encode(bytes, len, room);
    while (n > 0 && room[n - 1] == '=')
        n--;
    for (size_t i = 0; i < n; i++)
        room[i] = room[i] == '+' ? '-' : room[i] == '/' ? '_' : room[i];
    out->len += n;
    return true;
}

/* ---- tokens ---- */

static bool write_claims(const tke_token_claims *c, int64_t now_s, tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw j;
    char sub[TKE_URN_TEXT], id[64];
    tke_owner_urn(c->owner, sub);
    (void)snprintf(id, sizeof id, "%s.%llu", c->key_id, (unsigned long long)c->generation);
    tkc_jsonw_open(&j, out, err);
    tkc_jsonw_object(&j);
    tkc_jsonw_key(&j, "iss");
    tkc_jsonw_cstr(&j, "tinkc");
    tkc_jsonw_key(&j, "sub");
    tkc_jsonw_cstr(&j, sub);
    tkc_jsonw_key(&j, "org_id");
    tkc_jsonw_cstr(&j, TKE_ORG);
    if (c->email[0]) {
        tkc_jsonw_key(&j, "email");
        tkc_jsonw_cstr(&j, c->email);
    }
    tkc_jsonw_key(&j, "jti");
    tkc_jsonw_cstr(&j, id);
    tkc_jsonw_key(&j, "iat");
    tkc_jsonw_i64(&j, now_s);
    tkc_jsonw_key(&j, "exp");
    tkc_jsonw_i64(&j, now_s + TKE_TOKEN_LIFE_S);
    tkc_jsonw_end(&j);
    return !tkc_failed(err);
}

bool tke_token_make(const tke_token_secret *secret, const tke_token_claims *who, int64_t now_us,
                    tkc_buf *out, tinkc_error *err)
{
    static const char head[] = "{\"alg\":\"HS256\",\"typ\":\"JWT\"}";
    unsigned char signature[TKC_SHA256_BYTES];
    tkc_buf claims;
    size_t from = out->len;
    tkc_buf_init(&claims, NULL, TKC_BUF_NO_MAX);
    bool ok = write_claims(who, now_us / 1000000, &claims, err) &&
              add_base64url(out, head, sizeof head - 1, err) && tkc_buf_char(out, '.', err) &&
              add_base64url(out, claims.data, claims.len, err);
    if (ok)
        sign(secret, tkc_strn(out->data + from, out->len - from), signature);
    ok = ok && tkc_buf_char(out, '.', err) && add_base64url(out, signature, sizeof signature, err);
    tkc_buf_free(&claims);
    return ok;
}

static bool is_signed(const tke_token_secret *secret, const char *token)
{
    unsigned char signature[TKC_SHA256_BYTES];
    tinkc_error err = { 0 };
    tkc_buf expected;
    const char *dot = strrchr(token, '.');
    if (!dot)
        return false;
    sign(secret, tkc_strn(token, (size_t)(dot - token)), signature);
    tkc_buf_init(&expected, NULL, TKC_BUF_NO_MAX);
    bool same = add_base64url(&expected, signature, sizeof signature, &err) &&
                tkc_equal_secret(tkc_buf_view(&expected), tkc_str(dot + 1));
    tkc_buf_free(&expected);
    return same;
}

/* Reads "KEY.GENERATION"; tokens of older versions have no key. */
static void read_key(const char *jti, tke_token_claims *out)
{
    tinkc_str rest = tkc_str(jti ? jti : ""), id;
    if (!tkc_str_cut(&rest, '.', &id) || id.len >= sizeof out->key_id || !rest.data)
        return;
    memcpy(out->key_id, id.data, id.len);
    (void)tkc_parse_u64(rest, &out->generation);
}

bool tke_token_check(const tke_token_secret *secret, const char *token, int64_t now_us,
                     tke_token_claims *out)
{
    tkc_arena arena;
    tkc_jwt claims;
    tinkc_error err = { 0 };
    /* Before anything in it is parsed: what a stranger made up is never read further. */
    if (!is_signed(secret, token))
        return false;
    tkc_arena_init(&arena, NULL, 1 << 16);
    bool ok = tkc_jwt_read(token, &arena, &claims, &err) && claims.exp_us != TINKC_NO_TIME &&
              claims.exp_us > now_us && claims.sub &&
              tkc_starts_with(tkc_str(claims.sub), TKE_USER_URN) &&
              strlen(claims.sub) - OWNER_PREFIX < sizeof out->owner;
    *out = (tke_token_claims){ 0 };
    if (ok) {
        (void)snprintf(out->owner, sizeof out->owner, "%s", claims.sub + OWNER_PREFIX);
        read_key(claims.jti, out);
    }
    tkc_arena_free(&arena);
    return ok;
}
