/* test_tokens.c - keys that are exchanged for tokens of a short life: when they are renewed, when a call waits for another one,
 * and tokens of somebody else. Commands that give credentials: test_auth.c. */
#include "support/client/client_scene.h"

#define TOKEN     API "auth/token"
#define EXCHANGES "{\"pjwt_auth_enabled\":true}"

static const tinkc_client_options keyed = { .api_key = "tml-key" };

/* The token of somebody whose session ends so many seconds from now. */
static const char *token_for(scene *s, int64_t life_s, const char *signature)
{
    const tinkc_clock *clock = tinkc_mock_clock(scene_mock(s));
    char claims[100];
    (void)snprintf(claims, sizeof claims, "{\"sub\":\"user:a\",\"exp\":%lld}",
                   (long long)(clock->wall_us(clock->self) / 1000000 + life_s));
    return token_answer_of(claims, signature);
}

/* Five minutes before its end; at half time below ten minutes of life; a minute later where the end is unknown or past; never
 * sooner than after 10 s. A call waits for another token when less than a minute is left. */
TEST(a_token_is_renewed_before_it_ends)
{
    static const struct {
        int64_t life_s, renewed_ms;
    } rows[] = { { 0, 60000 },    { 61, 30500 },   { 599, 299500 },  { 600, 300000 },
                 { 601, 301000 }, { 900, 600000 }, { 3600, 3300000 } };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    answer_always(s, CONFIG, 200, EXCHANGES);
    for (size_t i = 0; i < LEN(rows); i++) {
        answer_always(s, TOKEN, 401, "no");
        scene_renew(s, &keyed);
        answer(s, TOKEN, 200, token_for(s, rows[i].life_s, "x"));
        complete(s, "", tinkc_health_check(scene_client(s), scene_err(s)));
        if (settle(s) != rows[i].renewed_ms)
            fail_msg("row %zu: renewed after %lld ms", i, (long long)settle(s));
        if (rows[i].life_s <= 60)
            continue;
        tinkc_mock_advance(scene_mock(s), rows[i].life_s * 1000 - 60001);
        settle(s);
        size_t before = tinkc_mock_count(scene_mock(s), TOKEN);
        complete(s, "", tinkc_health_check(scene_client(s), scene_err(s)));
        assert_int_equal(tinkc_mock_count(scene_mock(s), TOKEN), before);
        tinkc_mock_advance(scene_mock(s), 1);
        complete(s, "", tinkc_health_check(scene_client(s), scene_err(s)));
        assert_int_equal(tinkc_mock_count(scene_mock(s), TOKEN), before + 1);
    }
    scene_renew(s, &keyed);
    answer_always(s, TOKEN, 200, token_for(s, 15, "x"));
    complete(s, "", tinkc_health_check(scene_client(s), scene_err(s)));
    assert_int_equal(settle(s), 10000);
    scene_end(s);
}

/* The key goes to the exchange alone; everything else has the token. A renewal that fails leaves the old one in use; the next try is a
 * minute later. */
TEST(a_token_takes_the_place_of_the_key)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, &keyed);
    answer_always(s, CONFIG, 200, EXCHANGES);
    answer_with(s, TOKEN, &(outcome){ 500, 0, "Retry-After", "2", "" });
    answer(s, TOKEN, 200, token_for(s, 3600, "one"));
    complete(s, "health", tinkc_health_check(scene_client(s), scene_err(s)));
    EXPECT(s, "client/config; auth/token; +2000 auth/token again (1); healthz {token one}; health: done");
    answer(s, TOKEN, 401, "{\"detail\":\"no\"}");
    answer(s, TOKEN, 200, "{\"jwt\":\"\"}");
    answer(s, TOKEN, 200, token_for(s, 3600, "two"));
    scene_shows(s, SHOW_LOGS);
    live(s, 3300000);
    scene_forget(s);
    live(s, 180000);
    complete(s, "health", tinkc_health_check(scene_client(s), scene_err(s)));
    EXPECT(s, "+58000 auth/token; debug: the token could not be renewed: token exchange: the "
              "answer holds no token; +60000 auth/token; +62000 healthz {token two}; health: done");
    scene_end(s);
}

/* What the exchange may answer to the first call, and what becomes of it; the next call exchanges again. */
TEST(a_first_exchange_that_fails)
{
    static const struct {
        outcome o;
        const char *seen;
    } rows[] = {
        { { 401, 0, NULL, NULL, "{\"detail\":\"no\"}" },
          "client/config; auth/token; health: AUTH 401 \"HTTP 401: no\"; auth/token; healthz "
          "{token one}; health: done" },
        { { 200, 0, NULL, NULL, "{\"jwt\":\"\"}" },
          "client/config; auth/token; health: TOKEN \"token exchange: the answer holds no token\"; "
          "auth/token; healthz {token one}; health: done" },
        { { 200, 0, NULL, NULL, "nothing" },
          "client/config; auth/token; health: TOKEN \"JSON: an object is needed at byte 0\"; "
          "auth/token; healthz {token one}; health: done" },
        { { 500, 0, NULL, NULL, "" },
          "client/config; auth/token; health: SERVER 500, may have run \"HTTP 500\"; auth/token; "
          "healthz {token one}; health: done" },
        { { 429, 0, NULL, NULL, "" },
          "client/config; auth/token; health: RATE_LIMITED 429 \"HTTP 429\"; auth/token; healthz "
          "{token one}; health: done" },
        { { 0, TINKC_FAULT_SILENT, NULL, NULL, NULL },
          "client/config; auth/token; +60000 health: TOKEN, cause NET_TIMEOUT \"token exchange: no "
          "answer within the idle timeout\"; auth/token; healthz {token one}; health: done" },
        { { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL },
          "client/config; auth/token; health: TOKEN, cause CONNECTION \"token exchange: connection "
          "refused\"; auth/token; healthz {token one}; health: done" },
    };
    const tinkc_client_options o = { .api_key = "tml-key", .no_retries = true };
    scene *s = scene_new(TINKC_MOCK_SERVICE, &o);
    answer_always(s, CONFIG, 200, EXCHANGES);
    answer_always(s, TOKEN, 200, token_for(s, 3600, "one"));
    for (size_t i = 0; i < LEN(rows); i++) {
        scene_renew(s, &o);
        answer_with(s, TOKEN, &rows[i].o);
        for (int k = 0; k < 2; k++)
            complete(s, "health", tinkc_health_check(scene_client(s), scene_err(s)));
        EXPECT_ROW(s, i, rows[i].seen);
    }
    scene_end(s);
}

/* The exchange has both retry layers: without attempts the window's pauses are left. */
TEST(a_first_exchange_is_repeated)
{
    const tinkc_client_options o = { .api_key = "tml-key", .max_retries = TINKC_ZERO };
    scene *s = scene_new(TINKC_MOCK_SERVICE, &o);
    answer_always(s, CONFIG, 200, EXCHANGES);
    answer(s, TOKEN, 500, "");
    answer(s, TOKEN, 200, token_for(s, 3600, "one"));
    complete(s, "health", tinkc_health_check(scene_client(s), scene_err(s)));
    EXPECT(s, "client/config; auth/token; +1000 auth/token again; healthz {token one}; health: done");
    scene_end(s);
}

TEST(a_key_that_is_a_token_is_exchanged_whatever_the_settings_prefer)
{
    const tinkc_client_options o = { .api_key = "eyJhIjoxfQ.e30.x" };
    scene *s = scene_new(TINKC_MOCK_SERVICE, &o);
    answer_always(s, CONFIG, 200, "{\"pjwt_auth_enabled\":true,\"credential_default_source\":\"credential_cmd\"}");
    answer(s, TOKEN, 200, token_for(s, 3600, "one"));
    complete(s, "health", tinkc_health_check(scene_client(s), scene_err(s)));
    EXPECT(s, "client/config; auth/token; healthz {token one}; health: done");
    assert_string_equal(request_header(nth_request(scene_mock(s), TOKEN, 0), "X-API-Key"), o.api_key);
    scene_end(s);
}

/* The token of somebody else, for one of their checkpoints, is exchanged before it is used; one that is not comes to nothing. */
TEST(tokens_of_somebody_else)
{
    static const struct {
        outcome o;
        const char *seen;
    } rows[] = {
        { { 200, 0, NULL, NULL, "{\"jwt\":\"theirs.short.lived\"}" },
          "auth/token {X-API-Key: theirs}; weights_info {X-API-Key: theirs.short.lived}; "
          "create_model {token own}; poll {token own}; load_weights #1 {token own}; poll {token "
          "own}; from: done" },
        { { 200, 0, NULL, NULL, "{\"jwt\":\"\"}" },
          "auth/token {X-API-Key: theirs}; from: TOKEN \"access_token: the exchange gave no "
          "token\"" },
        { { 200, 0, NULL, NULL, "{\"jwt\":null}" },
          "auth/token {X-API-Key: theirs}; from: TOKEN \"jwt: JSON: a string is needed at byte "
          "7\"" },
        { { 200, 0, NULL, NULL, "{}" },
          "auth/token {X-API-Key: theirs}; from: TOKEN \"jwt: JSON: is missing at byte 2\"" },
        { { 200, 0, NULL, NULL, "not JSON" },
          "auth/token {X-API-Key: theirs}; from: TOKEN \"JSON: an object is needed at byte 0\"" },
        { { 403, 0, NULL, NULL, "{\"detail\":\"no\"}" },
          "auth/token {X-API-Key: theirs}; from: FORBIDDEN 403 \"HTTP 403: no\"" },
    };
    const tinkc_client_options o = { .api_key = "tml-key", .max_retries = 1, .retry_window_ms = 1500 };
    const tinkc_state_options from = { .path = "tinker://r/weights/c", .access_token = "theirs" };
    scene *s = scene_new(TINKC_MOCK_SERVICE, &o);
    answer_always(s, CONFIG, 200, EXCHANGES);
    answer_always(s, API "weights_info", 200, "{\"base_model\":\"mock/nano\",\"is_lora\":true,\"lora_rank\":4}");
    for (size_t i = 0; i < LEN(rows); i++) {
        scene_renew(s, &o);
        answer(s, TOKEN, 200, token_for(s, 3600, "own"));
        tinkc_trainer_free(open_trainer(s));
        answer_with(s, TOKEN, &rows[i].o);
        complete(s, "from", tinkc_trainer_open_from(scene_client(s), &from, scene_err(s)));
        EXPECT_ROW(s, i, rows[i].seen);
    }
    scene_end(s);
}
