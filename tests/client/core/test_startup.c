/* test_startup.c - what a client asks for before its first call: settings, a session, in which order and with which repetitions;
 * what it makes of odd answers; heartbeats, and settings that change while it lives. */
#include "support/client/client_scene.h"

#define DYNAMIC API "client/dynamic_config"
#define SESSION API "create_session"
#define BEAT    API "session_heartbeat"

static tinkc_future *open_one(scene *s)
{
    return tinkc_sampler_open(scene_client(s), &(tinkc_sampler_options){ .base_model = "mock/nano" }, scene_err(s));
}

/* Everything that a client was given is sent: address, key, project, tags, metadata, headers of its own, query, limits. A header
 * of one's own replaces the usual one, an empty one removes it. */
TEST(options_are_sent)
{
    const tinkc_client_options o = { .api_key = "tml-key",
                                     .base_url = "https://example.test/base",
                                     .project_id = "p-1",
                                     .tags = PAIRS("a", "b"),
                                     .user_metadata = PAIRS("k", "v", "l", ""),
                                     .headers = PAIRS("X-Own", "1", "user-agent", "mine", "X-Stainless-OS", "",
                                                      "Accept", "text/x"),
                                     .query = PAIRS("q", "1 2", "r", "a&b"),
                                     .display_name = "a name",
                                     .connect_timeout_ms = 1234,
                                     .idle_timeout_ms = 4321 };
    scene *s = scene_new(TINKC_MOCK_SERVICE, &o);
    scene_shows(s, SHOW_BODIES);
    complete(s, "open", open_one(s));
    EXPECT(s, "client/config?q=1+2&r=a%26b {silence 4321} {connect 1234} {to https://example.test/base/} "
              "{user-agent: mine} {X-Own: 1} {no X-Stainless-OS} {\"sdk_version\":\"0.25.0\"}; "
              "client/dynamic_config?q=1+2&r=a%26b {connect 1234} {to https://example.test/base/} "
              "{user-agent: mine} {X-Own: 1} {no X-Stainless-OS} {\"sdk_version\":\"0.25.0\"}; "
              "create_session?q=1+2&r=a%26b {silence 4321} {connect 1234} {to "
              "https://example.test/base/} {user-agent: mine} {X-Own: 1} {no X-Stainless-OS} "
              "{\"tags\":[\"a\",\"b\"],\"user_metadata\":{\"k\":\"v\",\"l\":\"\"},\"sdk_version\":\"0.25."
              "0\",\"project_id\":\"p-1\",\"display_name\":\"a name\",\"type\":\"create_session\"}; "
              "create_sampling_session?q=1+2&r=a%26b {silence 4321} {connect 1234} {to "
              "https://example.test/base/} {user-agent: mine} {X-Own: 1} {no X-Stainless-OS} "
              "{\"session_id\":\"mock-session\",\"sampling_session_seq_id\":0,\"base_model\":\"mock/"
              "nano\",\"type\":\"create_sampling_session\"}; open: done");
    assert_string_equal(tinkc_client_base_url(scene_client(s)), "https://example.test/base/");
    assert_string_equal(tinkc_client_session_id(scene_client(s), PATIENCE_MS, scene_err(s)), "mock-session-1");
    complete(s, "health", tinkc_health_check(scene_client(s), scene_err(s)));
    EXPECT(s, "healthz?q=1+2&r=a%26b {silence 4321} {connect 1234} {to https://example.test/base/} "
              "{user-agent: mine} {X-Own: 1} {no X-Stainless-OS}; health: done");
    scene_end(s);
}

/* The order: settings, then the settings that change, then the session; each is repeated as its row says. */
TEST(each_step_is_repeated)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    answer_with(s, CONFIG, &(outcome){ 503, 0, "Retry-After", "3", "busy" });
    answer(s, CONFIG, 500, "");
    answer_with(s, DYNAMIC, &(outcome){ 500, 0, "Retry-After-Ms", "1500", "" });
    answer(s, DYNAMIC, 429, "");
    answer(s, SESSION, 502, "");
    complete(s, "open", open_one(s));
    EXPECT(s, "client/config; +3000 client/config again (1); +1000 client/config again (2); "
              "client/dynamic_config; +1500 client/dynamic_config again; +2000 "
              "client/dynamic_config again; create_session; +500 create_session again (1); "
              "create_sampling_session; open: done");
    scene_end(s);
}

/* Odd settings fail what waits for them, and the next call asks again; odd changing settings leave the defaults. */
TEST(settings_without_sense_fail_what_waits_for_them)
{
    static const struct {
        const char *path;
        int32_t status;
        const char *body, *seen;
    } rows[] = {
        { CONFIG, 200, "{\"fwdbwd_max_chunk_len\":0}",
          "client/config; open: BAD_RESPONSE \"client config: fwdbwd_max_chunk_len: not "
          "positive\"; again; client/config; client/dynamic_config; create_session; "
          "create_sampling_session; open: done" },
        { CONFIG, 200, "{\"fwdbwd_max_chunk_len\":-1}",
          "client/config; open: BAD_RESPONSE \"client config: fwdbwd_max_chunk_len: not "
          "positive\"; again; client/config; client/dynamic_config; create_session; "
          "create_sampling_session; open: done" },
        { CONFIG, 200, "{\"sample_max_concurrent_requests\":0}",
          "client/config; open: BAD_RESPONSE \"client config: sample_max_concurrent_requests: not "
          "positive\"; again; client/config; client/dynamic_config; create_session; "
          "create_sampling_session; open: done" },
        { CONFIG, 200, "no JSON",
          "client/config; open: BAD_RESPONSE \"JSON: an object is needed at byte 0\"; again; "
          "client/config; client/dynamic_config; create_session; create_sampling_session; open: "
          "done" },
        { CONFIG, 200, "",
          "client/config; open: BAD_RESPONSE \"JSON: ends early at byte 0\"; again; client/config; "
          "client/dynamic_config; create_session; create_sampling_session; open: done" },
        { CONFIG, 404, "{\"detail\":\"nothing here\"}",
          "client/config; open: NOT_FOUND 404 \"HTTP 404: nothing here\"; again; client/config; "
          "client/dynamic_config; create_session; create_sampling_session; open: done" },
        { CONFIG, 401, "{\"detail\":\"who are you\"}",
          "client/config; open: AUTH 401 \"HTTP 401: who are you\"; again; client/config; "
          "client/dynamic_config; create_session; create_sampling_session; open: done" },
        { DYNAMIC, 404, "",
          "client/config; client/dynamic_config; create_session; create_sampling_session; open: "
          "done; again; create_sampling_session; open: done" },
        { DYNAMIC, 401, "",
          "client/config; client/dynamic_config; open: AUTH 401 \"HTTP 401\"; again; "
          "client/dynamic_config; create_session; create_sampling_session; open: done" },
        { DYNAMIC, 200, "{\"refresh_interval_sec\":\"x\"}",
          "client/config; client/dynamic_config; open: BAD_RESPONSE \"refresh_interval_sec: JSON: "
          "an integer is needed at byte 27\"; again; client/dynamic_config; create_session; "
          "create_sampling_session; open: done" },
        { SESSION, 200, "{}",
          "client/config; client/dynamic_config; create_session; open: BAD_RESPONSE \"session_id: "
          "JSON: is missing at byte 2\"; again; create_session; create_sampling_session; open: "
          "done" },
        { SESSION, 403, "{\"detail\":\"no more sessions\"}",
          "client/config; client/dynamic_config; create_session; open: FORBIDDEN 403 \"HTTP 403: "
          "no more sessions\"; again; create_session; create_sampling_session; open: done" },
    };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(rows); i++) {
        scene_renew(s, NULL);
        answer(s, rows[i].path, rows[i].status, rows[i].body);
        complete(s, "open", open_one(s));
        note(s, "again");
        complete(s, "open", open_one(s));
        EXPECT_ROW(s, i, rows[i].seen);
    }
    scene_end(s);
}

/* The service's words about a session go to the log at their levels, without keys; empty ones do not. */
TEST(words_about_a_session)
{
    static const struct {
        const char *answer, *seen;
    } rows[] = {
        { "{\"session_id\":\"s\",\"info_message\":\"for tml-0123456789abcdef0123456789\",\"warning_"
          "message\":\"w\",\"error_message\":\"e\"}",
          "client/config; client/dynamic_config; create_session; create_sampling_session; "
          "[session: for tml-**************************]; [session: w]; [session: e]; [session: "
          "session s]; debug: settings are now refreshed every 300 s; info: for "
          "tml-**************************; warning: w; error: e; info: session s; open: done" },
        { "{\"session_id\":\"s\",\"info_message\":\"\",\"warning_message\":null,\"error_message\":"
          "\"\"}",
          "client/config; client/dynamic_config; create_session; create_sampling_session; "
          "[session: session s]; debug: settings are now refreshed every 300 s; info: session s; "
          "open: done" },
    };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(rows); i++) {
        scene_renew(s, NULL);
        scene_shows(s, SHOW_LOGS | SHOW_EVENTS);
        answer(s, SESSION, 200, rows[i].answer);
        complete(s, "open", open_one(s));
        EXPECT_ROW(s, i, rows[i].seen);
        scene_shows(s, 0);
    }
    scene_end(s);
}

/* Settings are fetched again as often as they say, but not more often than every 10 s. */
TEST(settings_are_refreshed)
{
    static const struct {
        int32_t status;
        const char *body;
        int64_t after_ms;
    } rows[] = { { 200, "{}", 300000 },
                 { 404, "{}", 300000 },
                 { 200, "{\"refresh_interval_sec\":45}", 45000 },
                 { 200, "{\"refresh_interval_sec\":2}", 10000 },
                 { 200, "{\"refresh_interval_sec\":0}", 10000 } };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(rows); i++) {
        answer_always(s, DYNAMIC, rows[i].status, rows[i].body);
        scene_renew(s, NULL);
        complete(s, "open", open_one(s));
        size_t before = tinkc_mock_count(scene_mock(s), DYNAMIC);
        live(s, rows[i].after_ms - 1);
        if (tinkc_mock_count(scene_mock(s), DYNAMIC) != before)
            fail_msg("row %zu: too early", i);
        live(s, 1);
        if (tinkc_mock_count(scene_mock(s), DYNAMIC) != before + 1)
            fail_msg("row %zu: too late", i);
    }
    scene_end(s);
}

/* The next one is due when the last answer that was understood says. */
TEST(a_refresh_that_fails_leaves_the_settings_as_they_were)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    answer_always(s, BEAT, 200, "{}");
    answer_always(s, DYNAMIC, 200, "{\"refresh_interval_sec\":15}");
    complete(s, "open", open_one(s));
    scene_forget(s);
    answer_with(s, DYNAMIC, &(outcome){ 500, 0, "Retry-After", "7", "" });
    answer(s, DYNAMIC, 200, "bad");
    answer(s, DYNAMIC, 200, "{\"refresh_interval_sec\":20}");
    scene_shows(s, SHOW_LOGS);
    live(s, 65000);
    EXPECT(s, "+15000 client/dynamic_config; debug: settings could not be refreshed: HTTP 500; "
              "+15000 client/dynamic_config; debug: settings could not be refreshed: JSON: no "
              "value at byte 0; +15000 client/dynamic_config; debug: settings are now refreshed every 20 "
              "s; +20000 client/dynamic_config; debug: settings are now refreshed every 15 s");
    scene_end(s);
}

/* Every 10 s. Failures are silent for two minutes, then each is logged and an event, and so is the first success after them. */
TEST(heartbeats_are_sent_every_10_s_and_their_failures_logged_after_two_minutes)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    complete(s, "open", open_one(s));
    scene_forget(s);
    scene_shows(s, SHOW_HEARTBEATS | SHOW_LOGS | SHOW_EVENTS | SHOW_BODIES);
    live(s, 20000);
    EXPECT(s, "+10000 session_heartbeat "
              "{\"session_id\":\"mock-session\",\"type\":\"session_heartbeat\"}; +10000 "
              "session_heartbeat {\"session_id\":\"mock-session\",\"type\":\"session_heartbeat\"}");
    answer_always_with(s, BEAT, &(outcome){ 503, 0, "Retry-After", "1", "{\"detail\":\"down\"}" });
    scene_shows(s, SHOW_HEARTBEATS | SHOW_LOGS | SHOW_EVENTS);
    live(s, 140000);
    EXPECT(s, "+10000 session_heartbeat; +10000 session_heartbeat; +10000 session_heartbeat; "
              "+10000 session_heartbeat; +10000 session_heartbeat; +10000 session_heartbeat; "
              "+10000 session_heartbeat; +10000 session_heartbeat; +10000 session_heartbeat; "
              "+10000 session_heartbeat; +10000 session_heartbeat; +10000 session_heartbeat; "
              "+10000 session_heartbeat; [heartbeat status 503 elapsed 130000: HTTP 503: down]; "
              "warning: no heartbeat of session mock-session for 130 s (HTTP 503: down): the "
              "connection may be unreliable or the service down; the session will be ended; +10000 "
              "session_heartbeat; [heartbeat status 503 elapsed 140000: HTTP 503: down]; warning: "
              "no heartbeat of session mock-session for 140 s (HTTP 503: down): the connection "
              "may be unreliable or the service down; the session will be ended");
    answer_with(s, BEAT, &(outcome){ 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL });
    answer_always(s, BEAT, 200, "{}");
    live(s, 30000);
    EXPECT(s, "+10000 session_heartbeat; [heartbeat elapsed 150000: connection refused]; warning: no "
              "heartbeat of session mock-session for 150 s (connection refused): the connection may be "
              "unreliable or the service down; the session will be ended; +10000 session_heartbeat; "
              "[heartbeat elapsed 160000: heartbeats work again]; +10000 session_heartbeat");
    scene_end(s);
}

TEST(a_good_heartbeat_begins_the_two_minutes_again)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    live(s, 1000000); /* before there is a session nothing is missed */
    complete(s, "open", open_one(s));
    scene_forget(s);
    scene_shows(s, SHOW_EVENTS);
    answer_always(s, BEAT, 500, "");
    live(s, 100000);
    answer(s, BEAT, 200, "{}");
    live(s, 130000);
    EXPECT(s, "");
    live(s, 10000);
    EXPECT(s, "[heartbeat status 500 elapsed 130000: HTTP 500]");
    scene_end(s);
}

/* 410: the session is over, and no heartbeat follows. */
TEST(the_end_of_a_session)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    complete(s, "open", open_one(s));
    scene_forget(s);
    scene_shows(s, SHOW_HEARTBEATS | SHOW_LOGS | SHOW_EVENTS);
    answer(s, BEAT, 410, "{\"detail\":\"ended\"}");
    live(s, 40000);
    EXPECT(s, "+10000 session_heartbeat; [heartbeat status 410: the session is over]; info: "
              "session mock-session is over: no more heartbeats");
    scene_end(s);
}

/* One heartbeat at a time: while it is not answered none follows. */
TEST(a_slow_heartbeat)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    complete(s, "open", open_one(s));
    scene_forget(s);
    scene_shows(s, SHOW_HEARTBEATS);
    tinkc_mock_once(scene_mock(s), NULL, BEAT, &(tinkc_mock_answer){ .body = "{}", .delay_ms = 9000 }, scene_err(s));
    live(s, 30000);
    EXPECT(s, "+10000 session_heartbeat; +19000 session_heartbeat");
    scene_end(s);
}
