/* test_auth_token.c - keys exchanged for tokens: made, believed, refused; and whoami through the
 * SDK, which lives on them. */
#include "service/handlers/auth_token.h"
#include "support/client/api_support.h"
#include "tinkc/engine.h"

enum { S = 1000000 };

static const tke_token_secret ours = { "thirty-two bytes of no secret..." };

static void make(const char *owner, int64_t now_us, char out[600])
{
    tinkc_error err = { 0 };
    tkc_buf token;
    tkc_buf_init(&token, NULL, TKC_BUF_NO_MAX);
    tke_token_claims who = { .key_id = "0123456789abcdef", .generation = 3, .email = "ada@example.org" };
    snprintf(who.owner, sizeof who.owner, "%s", owner);
    tkc_buf_cstr(&token, "Bearer ", &err); /* it is appended */
    assert_true(tke_token_make(&ours, &who, now_us, &token, &err));
    assert_memory_equal(token.data, "Bearer ", 7);
    snprintf(out, 600, "%.*s", (int)token.len - 7, token.data + 7);
    tkc_buf_free(&token);
}

TEST(only_ours_count)
{
    char token[600], changed[600];
    tke_token_claims who;
    const int64_t now = (int64_t)1000 * S, life = (int64_t)TKE_TOKEN_LIFE_S * S;
    make("key-12", now, token);
    assert_true(strncmp(token, "eyJ", 3) == 0);
    assert_true(tke_token_check(&ours, token, now, &who));
    assert_string_equal(who.owner, "key-12");
    assert_string_equal(who.key_id, "0123456789abcdef");
    assert_int_equal(who.generation, 3);
    assert_true(tke_token_check(&ours, token, now + life - 1, &who));
    assert_false(tke_token_check(&ours, token, now + life, &who));
    tke_token_secret theirs = ours;
    theirs.bytes[31] ^= 1;
    assert_false(tke_token_check(&theirs, token, now, &who));
    for (size_t i = 0; token[i]; i++) { /* any one character */
        snprintf(changed, sizeof changed, "%s", token);
        changed[i] = changed[i] == 'A' ? 'B' : 'A';
        assert_false(tke_token_check(&ours, changed, now, &who));
    }
    static const char *const none[] = { "", ".", "..", "eyJ", "eyJ.eyJ", "eyJ.eyJ.", "tml-key" };
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_false(tke_token_check(&ours, none[i], now, &who));
}

/* The example of RFC 7515, appendix A.1, has a key of 64 bytes; ours are of 32. So: what another
 * implementation (Python's hmac) gives for this secret and this text. */
TEST(signed_as_others_do)
{
    char token[600];
    make("default", (int64_t)1700000000 * S, token);
    assert_string_equal(token, "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9."
                               "eyJpc3MiOiJ0aW5rYyIsInN1YiI6InRtbDpvcmdhbml6YXRpb25fdXNlcjpkZWZhdWx0Iiwib3JnX2lk"
                               "IjoibG9jYWwiLCJlbWFpbCI6ImFkYUBleGFtcGxlLm9yZyIsImp0aSI6IjAxMjM0NTY3ODlhYmNkZWYu"
                               "MyIsImlhdCI6MTcwMDAwMDAwMCwiZXhwIjoxNzAwMDg2NDAwfQ."
                               "FbwpbXedQhVtRTMFFg4Bu9q6iVfsJ32bSQjte3HKcWY");
}

typedef struct world {
    tinkc_engine *engine;
    tinkc_server *server;
    tinkc_client *client;
    tinkc_error err;
} world;

/* jwt NULL: the default. */
static void open_world(world *w, const char *jwt, const char *key)
{
    static const char *const keys[] = { "tml-first email=ada@example.org", "tml-second", NULL };
    const char *const settings[] = { jwt ? "jwt_auth" : NULL, jwt, NULL };
    *w = (world){ 0 };
    w->engine = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1, .settings = settings }, &w->err);
    w->server = tinkc_engine_serve(w->engine, &(tinkc_serve_options){ .api_keys = keys }, &w->err);
    assert_ok(&w->err);
    w->client = tinkc_client_new(
        &(tinkc_client_options){ .api_key = key, .base_url = tinkc_server_url(w->server), .proxy = "" }, &w->err);
    assert_ok(&w->err);
}

static void close_world(world *w)
{
    tinkc_client_close(w->client, 2000, NULL);
    tinkc_client_free(w->client);
    tinkc_server_stop(w->server, PATIENCE_MS, NULL);
    tinkc_server_free(w->server);
    tinkc_engine_free(w->engine);
}

TEST(whoami_names_the_owner_of_the_key)
{
    world w;
    char first[64];
    static const char *const given[] = { "tml-first", "tml-second" };
    for (size_t i = 0; i < 2; i++) {
        open_world(&w, i ? "true" : NULL, given[i]);
        tinkc_future *f = tinkc_identity_get(w.client, &w.err);
        const tinkc_identity *who = tinkc_future_identity(f, PATIENCE_MS, &w.err);
        assert_ok(&w.err);
        assert_true(strncmp(who->user_urn, "tml:organization_user:key-", 26) == 0);
        assert_string_equal(who->org_urn, "tml:organization:local");
        if (i == 0)
            assert_string_equal(who->email, "ada@example.org");
        else
            assert_non_null(strstr(who->email, "@localhost"));
        if (i == 0)
            snprintf(first, sizeof first, "%s", who->user_urn);
        else
            assert_string_not_equal(who->user_urn, first);
        assert_non_null(tinkc_client_session_id(w.client, PATIENCE_MS, &w.err)); /* the token is its key */
        assert_ok(&w.err);
        tinkc_future_free(f);
        close_world(&w);
    }
    open_world(&w, "false", "tml-first");
    tinkc_future *f = tinkc_identity_get(w.client, &w.err);
    assert_null(tinkc_future_identity(f, PATIENCE_MS, &w.err));
    assert_int_equal(w.err.code, TINKC_E_NO_IDENTITY);
    tinkc_future_free(f);
    close_world(&w);
}
