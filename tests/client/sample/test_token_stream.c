/* test_token_stream.c - tokens as they come: which events make which pieces, what ends a stream, and what it ends with. */
#include "support/client/client_scene.h"

#define STREAM          API "stream_sample"
#define EVENT(json)     "data: " json "\n\n"
#define TOKEN(i, id, p) EVENT("{\"event_type\":\"token\",\"index\":" i ",\"token_id\":" id ",\"logprob\":" p "}")

static const int32_t ids[] = { 1, 2, 3 };

/* The pieces until the end, or until there is none for now. */
static void take_pieces(scene *s, tinkc_deltas *d)
{
    tinkc_error why = { 0 };
    const tinkc_delta *x;
    while ((x = tinkc_deltas_next(d, 0, &why)) != NULL)
        note(s, "%zu tokens to %d, %zu log-probabilities%s%s", x->tokens.len,
             x->tokens.len ? (int)x->tokens.data[x->tokens.len - 1] : -1, x->logprobs.len,
             x->last ? x->stop_reason == TINKC_STOP_LENGTH ? ", length" : ", stop" : "", x->last ? ", last" : "");
    if (!why.code)
        note(s, "the end");
    else if (why.code != TINKC_E_TIMEOUT)
        note(s, "%s %d: %s", tinkc_code_name(why.code) + 8, (int)why.http_status, why.message);
}

TEST(each_stream_ends_with_its_reason)
{
    static const struct {
        outcome o;
        const char *seen;
    } rows[] = {
        { { 200, 0, NULL, NULL,
            TOKEN("0", "5", "-0.5") TOKEN("1", "6", "-0.25")
                EVENT("{\"event_type\":\"done\",\"finish_reason\":\"length\",\"total_tokens\":2}") },
          "stream_sample; 2 tokens to 6, 2 log-probabilities, length, last; the end" },
        { { 200, 0, NULL, NULL,
            TOKEN("0", "5", "null") EVENT("{\"event_type\":\"done\",\"finish_reason\":\"stop\"}")
                TOKEN("1", "5", "-1") },
          "stream_sample; 1 tokens to 5, 0 log-probabilities, stop, last; the end" },
        { { 200, 0, NULL, NULL, TOKEN("0", "5", "-0.5") "event: ping\n\n" EVENT("[DONE]") },
          "stream_sample; 1 tokens to 5, 1 log-probabilities, stop, last; the end" },
        { { 200, 0, NULL, NULL, TOKEN("1", "5", "-0.5") },
          "stream_sample; BAD_RESPONSE 0: stream: token 0 is out of order or range" },
        { { 200, 0, NULL, NULL, TOKEN("0", "2147483648", "-0.5") },
          "stream_sample; BAD_RESPONSE 0: stream: token 0 is out of order or range" },
        { { 200, 0, NULL, NULL,
            TOKEN("0", "2147483647", "-0.5") EVENT("{\"event_type\":\"done\",\"total_tokens\":2}") },
          "stream_sample; 1 tokens to 2147483647, 1 log-probabilities; BAD_RESPONSE 0: stream: 1 "
          "tokens came of 2" },
        { { 200, 0, NULL, NULL, TOKEN("0", "5", "-0.5") },
          "stream_sample; 1 tokens to 5, 1 log-probabilities; BAD_RESPONSE 0: the stream was cut "
          "off" },
        { { 200, 0, NULL, NULL, EVENT("{\"event_type\":\"error\",\"error\":\"it broke\",\"category\":\"user\"}") },
          "stream_sample; REQUEST_FAILED 0: it broke" },
        { { 200, 0, NULL, NULL, EVENT("{\"event_type\":\"error\",\"category\":\"server\"}") },
          "stream_sample; REQUEST_FAILED 0: failed" },
        { { 200, 0, NULL, NULL, EVENT("{\"event_type\":\"odd\"}") EVENT("{\"event_type\":\"token\"}") EVENT("[DONE]") },
          "stream_sample; 0 tokens to -1, 0 log-probabilities, stop, last; the end" },
        { { 200, 0, NULL, NULL, EVENT("not JSON") },
          "stream_sample; BAD_RESPONSE 0: JSON: an object is needed at byte 0" },
        { { 200, 0, NULL, NULL, "" }, "stream_sample; BAD_RESPONSE 0: the stream was cut off" },
        /* a service that has no such endpoint, or no such sampler */
        { { 404, 0, NULL, NULL, "{\"detail\":\"x\"}" },
          "stream_sample; UNSUPPORTED 404: the service has no token streams: use tinkc_sample" },
        { { 405, 0, NULL, NULL, "{\"code\":\"unknown_endpoint\"}" },
          "stream_sample; UNSUPPORTED 405: the service has no token streams: use tinkc_sample" },
        { { 404, 0, NULL, NULL, "{\"detail\":\"gone\",\"code\":\"no_sampler\"}" },
          "stream_sample; NOT_FOUND 404: HTTP 404: gone" },
        { { 500, 0, NULL, NULL, "{\"detail\":\"x\"}" }, "stream_sample; SERVER 500: HTTP 500: x" },
        { { 429, 0, NULL, NULL, "{\"detail\":\"x\"}" }, "stream_sample; RATE_LIMITED 429: HTTP 429: x" },
        { { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL }, "stream_sample; CONNECTION 0: connection refused" },
    };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 2;
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(rows); i++) {
        scene_renew(s, NULL);
        tinkc_sampler *sampler = open_sampler(s, NULL);
        answer_with(s, STREAM, &rows[i].o);
        tinkc_deltas *d = tinkc_sample_stream(sampler, ids, 3, &o, scene_err(s));
        assert_ok(scene_err(s));
        settle(s);
        take_pieces(s, d);
        EXPECT_ROW(s, i, rows[i].seen);
        tinkc_deltas_free(d);
        settle(s);
        tinkc_sampler_free(sampler);
    }
    scene_end(s);
}

/* Byte by byte: a piece comes with the last byte of its event, and no sooner. */
TEST(byte_by_byte)
{
    static const char first[] = TOKEN("0", "5", "-0.5"),
                      second[] = EVENT("{\"event_type\":\"token\",\"index\":1,\"token_id\":6}");
    static const char body[] = TOKEN("0", "5", "-0.5") EVENT("{\"event_type\":\"token\",\"index\":1,\"token_id\":6}")
        EVENT("{\"event_type\":\"done\",\"finish_reason\":\"length\",\"total_tokens\":2}");
    const size_t ends[] = { strlen(first), strlen(first) + strlen(second), strlen(body) };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_sampler *sampler = open_sampler(s, NULL);
    tinkc_mock_once(scene_mock(s), NULL, STREAM, &(tinkc_mock_answer){ .body = body, .drip_ms = 1 }, scene_err(s));
    tinkc_deltas *d = tinkc_sample_stream(sampler, ids, 3, &o, scene_err(s));
    size_t seen = 0;
    for (size_t byte = 0; byte <= strlen(body) && seen < LEN(ends); byte++) {
        tinkc_error why = { 0 };
        settle(s);
        if (tinkc_deltas_next(d, 0, &why))
            assert_in_range(byte, ends[seen] - 1, ends[seen]), seen++;
        pass(s, 1);
    }
    assert_int_equal(seen, LEN(ends));
    tinkc_deltas_free(d);
    settle(s);
    tinkc_sampler_free(sampler);
    scene_end(s);
}

/* The tokens before it come first; the error needs no further byte. */
TEST(an_error_behind_tokens_comes_with_the_next_call)
{
    static const char head[] = TOKEN("0", "5", "-0.5") EVENT("not JSON");
    static const char body[] = TOKEN("0", "5", "-0.5") EVENT("not JSON") ": waiting\n";
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_sampler *sampler = open_sampler(s, NULL);
    tinkc_mock_once(scene_mock(s), NULL, STREAM, &(tinkc_mock_answer){ .body = body, .drip_ms = 1 }, scene_err(s));
    tinkc_deltas *d = tinkc_sample_stream(sampler, ids, 3, &o, scene_err(s));
    settle(s);
    for (size_t byte = 0; byte < strlen(head); byte++) {
        pass(s, 1);
        settle(s);
    }
    take_pieces(s, d);
    EXPECT(
        s,
        "stream_sample; +84 1 tokens to 5, 1 log-probabilities; BAD_RESPONSE 0: JSON: an object is needed at byte 0");
    tinkc_deltas_free(d);
    settle(s);
    tinkc_sampler_free(sampler);
    scene_end(s);
}
