/* test_prompt_scores.c - candidates of a prompt, streams without a token, samples that are held back. */
#include <unistd.h>
#include "client/call/call.h"
#include "client/core/client_priv.h"
#include "client/core/options.h"
#include "client/call/outcome.h"
#include "client/rest/rest_priv.h"
#include "client/sample/sample_op.h"
#include "client/train/trainer.h"
#include "support/client/mock_fixture.h"
#include "support/scarce.h"

/* Candidates for the tokens of a prompt: both lists have a cell for each. */
TEST_WITH(candidates_of_a_prompt, begin_plain, end_fixture)
{
    fixture *x = *state;
    static const int32_t prompt[] = { 1, 2, 3 };
    static const float logprobs[8] = { -1, -2, -3, -4 };
    static const int64_t good_ids[8] = { 5, 6, 7, INT32_MAX }, large[8] = { 0, 0, 0, (int64_t)INT32_MAX + 1 },
                         negative[8] = { -1 };
    static const struct {
        tkc_tensor logprobs, ids;
        const char *why; /* NULL: it is taken */
    } rows[] = {
#define T(values, n, type, is_sparse) { .data = values, .count = n, .dtype = type, .sparse = is_sparse }
#define LOGPROBS                      T(logprobs, 4, TINKC_F32, false)
#define IDS                           T(good_ids, 4, TINKC_I64, false)
#define LAYOUT(n)                                                                                                      \
    "sample result: prompt_alt_tokens: expected 4 32-bit floats, got " n " cells of another "                          \
    "layout"
#define NUMBER(n) "sample result: prompt_alt_tokens: expected 4 ids, got " n
        { LOGPROBS, IDS, NULL },
        { T(logprobs, 4, 0, false), IDS, "sample result: nothing for prompt_alt_tokens; the service may not know it" },
        { T(logprobs, 4, TINKC_I64, false), IDS, LAYOUT("4") },
        { T(logprobs, 4, TINKC_F32, true), IDS, LAYOUT("4") },
        { T(logprobs, 5, TINKC_F32, false), IDS, LAYOUT("5") },
        { LOGPROBS, T(good_ids, 4, TINKC_F32, false), NUMBER("4") },
        { LOGPROBS, T(good_ids, 4, TINKC_I64, true), NUMBER("4") },
        { LOGPROBS, T(good_ids, 3, TINKC_I64, false), NUMBER("3") },
        { LOGPROBS, T(good_ids, 5, TINKC_I64, false), NUMBER("5") },
        { LOGPROBS, T(large, 4, TINKC_I64, false), "sample result: prompt_alt_tokens: an id is out of range" },
        { LOGPROBS, T(negative, 4, TINKC_I64, false), "sample result: prompt_alt_tokens: an id is out of range" },
    };
    tinkc_chunk chunk = { .kind = TINKC_CHUNK_TOKENS, .tokens = { prompt, 3 } };
    tkc_sample_request q = { .prompt_alt_tokens_k = TKC_SOME(2) };
    q.prompt.chunks.data = &chunk;
    q.prompt.chunks.len = 1;
    assert_int_equal(tkc_prompt_tokens(&q), 3);
    chunk.kind = TINKC_CHUNK_IMAGE; /* how many those are only the service knows */
    assert_int_equal(tkc_prompt_tokens(&q), 0);
    chunk.kind = TINKC_CHUNK_TOKENS;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tkc_arena arena = { 0 };
        tinkc_samples s = { 0 };
        s.r.alt_logprobs = rows[i].logprobs;
        s.r.alt_tokens = rows[i].ids;
        tkc_samples_check(&s, &q, &arena, &x->err);
        if (rows[i].why) {
            refused(x, !x->err.code, TINKC_E_BAD_RESPONSE, rows[i].why);
        } else {
            const int32_t *chosen;
            const float *p;
            assert_ok(&x->err);
            assert_int_equal(tinkc_samples_alt_tokens(&s, 2, &chosen, &p), 2);
            assert_true(chosen[0] == 7 && chosen[1] == INT32_MAX && p[0] == -3 && p[1] == -4);
            assert_int_equal(tinkc_samples_alt_tokens(&s, 0, &chosen, &p), 0);
            assert_null(chosen);
            assert_int_equal(tinkc_samples_alt_tokens(&s, 3, &chosen, &p), 0);
            assert_null(p);
        }
        tkc_arena_free(&arena);
    }
}

/* A stream of which nothing comes: a wait ends. */
TEST_WITH(streams_without_a_token, begin_plain, end_fixture)
{
    fixture *x = *state;
    static const int32_t prompt[] = { 1, 2, 3 };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    tinkc_sampler *s = tinkc_sampler_new(x->client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &x->err);
    assert_true(tinkc_mock_once(x->mock, NULL, API "stream_sample", &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT },
                                &x->err));
    tinkc_deltas *d = tinkc_sample_stream(s, prompt, 3, &o, &x->err);
    assert_ok(&x->err);
    for (int64_t ms = 0; ms < 3; ms++)
        refused(x, tinkc_deltas_next(d, ms, &x->err) != NULL, TINKC_E_TIMEOUT, "no token yet");
    tinkc_deltas_free(d);
    tinkc_sampler_free(s);
}

static void take_wait(const tinkc_event *e, void *user)
{
    *(int64_t *)user = e->wait_ms;
}

/* How long samples are held back: longer after a large prompt. */
TEST_WITH(samples_are_held_back_longer_after_a_large_prompt, begin_plain, end_fixture)
{
    fixture *x = *state;
    static const int32_t prompt[200000];
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 1;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    tinkc_sampler *s = tinkc_sampler_new(x->client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &x->err);
    int64_t wait_ms = 0;
    assert_true(tinkc_client_on_event(x->client, queue, TINKC_EVENT_BACKOFF, take_wait, &wait_ms, &x->err));
    for (int large = 0; large < 2; large++) {
        wait_ms = 0;
        tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
        tinkc_mock_advance(x->mock, 100000); /* an earlier one is over */
        once(x, API "asample", 429, "");
        tinkc_future *f = tinkc_sample(s, prompt, large ? 200000 : 3, 1, &o, &x->err);
        assert_true(run_until_done(x->mock, f, 600000));
        while (tinkc_queue_run(queue, 0, &x->err) > 0)
            ;
        assert_ok(&x->err);
        assert_int_equal(wait_ms, large ? 5000 : 1000);
        tinkc_future_free(f);
    }
    tinkc_sampler_free(s);
    tinkc_queue_free(queue);
}
