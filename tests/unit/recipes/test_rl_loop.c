/* test_rl_loop.c - rollouts and reinforcement learning on the engine with the shipped model: what is
 * trained is what was sampled, and an interrupted run ends with the same bits. */
#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "recipes/turns.h"
#include "support/check.h"
#include "tinkc/engine.h"
#include "tinkc/recipes.h"
#include "tinkc/sys/mock.h"

static tinkc_engine *engine;
static tinkc_client *client;
static tinkc_tokenizer *tokenizer;

static int setup(void **state)
{
    tinkc_error err = { 0 };
    (void)state;
    engine = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1 }, &err);
    tinkc_engine_add_model(engine, "nano", "models/nano", &err);
    client = tinkc_client_new(&(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, &err);
    tokenizer = tinkc_tokenizer_open("models/nano", NULL, &err);
    assert_ok(err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tinkc_tokenizer_free(tokenizer);
    tinkc_client_free(client);
    tinkc_engine_free(engine);
    return 0;
}

static tinkc_trainer *new_trainer(void)
{
    tinkc_error err = { 0 };
    tinkc_lora_options o = { .base_model = "nano", .rank = 8, .seed = 5, .has_seed = true };
    tinkc_trainer *t = tinkc_trainer_new(client, &o, &err);
    assert_ok(err);
    return t;
}

static const tinkc_task sum = { .messages_json = "[{\"role\":\"user\",\"content\":\"What is 12 + 30?\"}]",
                                .answer = "42",
                                .where = "sums.jsonl:1" };

/* ---- rollouts ---- */

static tinkc_group *roll(const tinkc_rollout_options *o, const tinkc_task *task, size_t n)
{
    tinkc_error err = { 0 };
    tinkc_sampler *s = tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "nano" }, &err);
    tinkc_rollouts *p = tinkc_rollouts_new(client, o, &err);
    assert_true(tinkc_rollouts_add(p, s, task, n, 3, 99, &err));
    tinkc_group *g = tinkc_rollouts_next(p, 120000, &err);
    assert_ok(err);
    assert_null(tinkc_rollouts_next(p, 0, &err)); /* nothing is left */
    assert_ok(err);
    tinkc_rollouts_free(p);
    tinkc_sampler_free(s);
    assert_non_null(g);
    return g;
}

TEST(a_group_holds_a_tasks_rollouts)
{
    tinkc_error err = { 0 };
    tinkc_reward *r = tinkc_reward_grader("contains", &err);
    tinkc_rollout_options o = {
        .tokenizer = tokenizer, .temperature = 1, .max_tokens = 16, .rewards = &r, .n_rewards = 1, .max_concurrent = 2
    };
    tinkc_group *g = roll(&o, &sum, 5);
    assert_int_equal(tinkc_group_count(g), 5);
    for (size_t i = 0; i < 5; i++) {
        const tinkc_rollout *one = tinkc_group_at(g, i);
        assert_null(one->error);
        assert_null(strstr(one->text, "<|im_end|>")); /* it is among the tokens only */
        assert_true(one->reward == (strstr(one->text, "42") != NULL));
        assert_true(one->n_examples == 1 && one->turns == 1 && one->ends[0] == one->tokens.len);
        assert_int_equal(one->tokens.len, one->sampled_tokens + one->read_tokens);
        assert_string_equal(one->metric_names[0], "format");
    }
    tinkc_group_free(g);
    tinkc_reward_free(r);
}

TEST(a_system_prompt_stands_before_the_task)
{
    tinkc_error err = { 0 };
    tinkc_text read = { 0 };
    tinkc_group *g =
        roll(&(tinkc_rollout_options){ .tokenizer = tokenizer, .max_tokens = 1, .system = "Be brief." }, &sum, 1);
    const tinkc_rollout *one = tinkc_group_at(g, 0);
    tinkc_decode(tokenizer, one->tokens.data, one->tokens.len, &read, &err);
    assert_ok(err);
    static const char begin[] = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is";
    assert_int_equal(strncmp(read.data, begin, strlen(begin)), 0);
    tinkc_text_free(&read);
    tinkc_group_free(g);
}

/* The training forward pass gives each sampled token the very log-probability it was sampled with.
 */
static void expect_exact(const tinkc_group *g, bool split)
{
    tinkc_error err = { 0 };
    tinkc_trainer *t = new_trainer(); /* a new adapter changes nothing yet */
    tinkc_batch *b = tinkc_batch_new(client, &err);
    size_t first = 0;
    for (size_t i = 0; i < tinkc_group_count(g); i++) {
        const tinkc_rollout *r = tinkc_group_at(g, i);
        float *ones = calloc(r->tokens.len, sizeof *ones);
        tinkc_recipe_add_rollout(b, r, ones, split, &err);
        free(ones);
    }
    tinkc_future *f = tinkc_forward(t, b, TINKC_IMPORTANCE_SAMPLING, NULL, &err);
    const tinkc_fwdbwd *got = tinkc_future_fwdbwd(f, 120000, &err);
    assert_ok(err);
    for (size_t i = 0; i < tinkc_group_count(g); i++) {
        const tinkc_rollout *r = tinkc_group_at(g, i);
        float *lp = calloc(r->tokens.len, sizeof *lp);
        size_t n = tinkc_recipe_read_logprobs(got, first, r, split, lp);
        assert_int_equal(n, split ? r->turns : r->n_examples);
        first += n;
        for (size_t k = 0; k < r->tokens.len; k++)
            if (r->mask.data[k] > 0 && lp[k] != r->logprobs.data[k])
                fail_msg("token %zu of rollout %zu: %.9g was sampled, %.9g is trained", k, i,
                         (double)r->logprobs.data[k], (double)lp[k]);
        free(lp);
    }
    assert_int_equal(first, tinkc_fwdbwd_count(got));
    tinkc_future_free(f);
    tinkc_batch_free(b);
    tinkc_trainer_free(t);
}

TEST(rollouts_have_the_tokens_that_were_sampled)
{
    tinkc_rollout_options o = { .tokenizer = tokenizer, .temperature = 1, .max_tokens = 16 };
    tinkc_group *g = roll(&o, &sum, 4);
    expect_exact(g, false);
    tinkc_group_free(g);
}

TEST(a_group_survives_the_disk)
{
    tinkc_error err = { 0 };
    tinkc_text text = { 0 }, again = { 0 };
    size_t len = 0;
    tinkc_rollout_options o = { .tokenizer = tokenizer, .temperature = 1, .max_tokens = 16 };
    tinkc_group *g = roll(&o, &sum, 3);
    assert_true(tinkc_group_write(g, &text, &err));
    tinkc_group *back = tinkc_group_read(text.data, &len, &err);
    assert_ok(err);
    assert_int_equal(len, text.len);
    for (size_t i = 0; i < 3; i++) {
        const tinkc_rollout *a = tinkc_group_at(g, i), *b = tinkc_group_at(back, i);
        assert_int_equal(a->tokens.len, b->tokens.len);
        assert_memory_equal(a->tokens.data, b->tokens.data, a->tokens.len * sizeof(int32_t));
        assert_memory_equal(a->logprobs.data, b->logprobs.data, a->tokens.len * sizeof(float));
        assert_memory_equal(a->mask.data, b->mask.data, a->tokens.len * sizeof(float));
        assert_true(a->reward == b->reward && a->turns == b->turns);
    }
    tinkc_group_write(back, &again, &err);
    assert_string_equal(text.data, again.data);
    /* What was cut off or tampered with is refused. */
    text.data[text.len - 40] = '\0';
    assert_null(tinkc_group_read(text.data, &len, &err));
    assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
    tinkc_text_free(&text);
    tinkc_text_free(&again);
    tinkc_group_free(g);
    tinkc_group_free(back);
}

/* What a prompt may be; the error names the task. */
TEST(a_prompt_is_messages_or_tokens)
{
#define ONE "[{\"role\":\"user\",\"content\":\"a\"}]"
    static const struct {
        const char *prompt, *error;
    } rows[] = { { ONE, "" },
                 { "{\"messages\":" ONE "}", "" },
                 { "{\"messages\":" ONE ",\"tools\":null}", "" },
                 { "{\"messages\":" ONE ",\"tools\":[{\"type\":\"function\"}]}", "" },
                 { "{\"messages\":" ONE ",\"tools\":{}}", "x:7: \"tools\" is not a list" },
                 { "{\"messages\":[],\"tools\":1}", "x:7: the prompt has no messages" },
                 { "{}", "x:7: the prompt has no messages" },
                 { "\"a\"", "x:7: the prompt has no messages" },
                 { "[]", "x:7: the prompt has no messages" } };
#undef ONE
    tinkc_error err = { 0 };
    tinkc_rollout_options o = { .tokenizer = tokenizer };
    tinkc_sampler *s = tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "nano" }, &err);
    tinkc_rollouts *p = tinkc_rollouts_new(client, &o, &err);
    assert_ok(err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        err = (tinkc_error){ 0 };
        tinkc_task task = { .messages_json = rows[i].prompt, .where = "x:7" };
        assert_true(tinkc_rollouts_add(p, s, &task, 1, i, 1, &err) == !*rows[i].error);
        assert_string_equal(err.message, rows[i].error);
    }
    tinkc_rollouts_free(p);
    tinkc_sampler_free(s);
}

/* ---- environments ---- */

static unsigned long long seeds[3]; /* of the first episodes */
static size_t n_seeds, n_closed;

/* Asks for a sum, then once more; done at the second answer. */
static bool two_sums(const char *request, tinkc_text *answer, void *user, tinkc_error *err)
{
    unsigned long long id = 0;
    int *never_ends = user;
    char line[300];
    const char *at = strstr(request, "\"id\":"), *seed = strstr(request, "\"seed\":");
    if (strstr(request, "\"close\""))
        return ++n_closed;
    if (seed && n_seeds < 3)
        seeds[n_seeds++] = strtoull(seed + 7, NULL, 10);
    id = strtoull(at + 5, NULL, 10);
    if (strstr(request, "\"reset\""))
        (void)snprintf(line, sizeof line,
                       "{\"id\":%llu,\"messages\":[{\"role\":\"user\",\"content\":\"What is 2 + 3?\"}]}", id);
    else if (strstr(request, "\"turn\":1") || *never_ends)
        (void)snprintf(line, sizeof line,
                       "{\"id\":%llu,\"reward\":0.25,\"messages\":[{\"role\":\"user\",\"content\":"
                       "\"What is 4 + 5?\"}]}",
                       id);
    else
        (void)snprintf(line, sizeof line,
                       "{\"id\":%llu,\"reward\":0.5,\"done\":true,\"metrics\":{\"good\":1},"
                       "\"messages\":[{\"role\":\"user\",\"content\":\"Bye.\"}]}",
                       id);
    return tinkc_text_append(answer, line, strlen(line), err);
}

/* What was sampled stands in the text of the whole conversation, with what came between the answers. */
static void expect_conversation(const tinkc_rollout *r)
{
    tinkc_error err = { 0 };
    tinkc_tokens ids = { 0 };
    tinkc_text all = { 0 }, sampled = { 0 };
    assert_true(tinkc_chat_encode(tokenizer, r->messages_json, &(tinkc_chat_options){ 0 }, &ids, &err));
    tinkc_decode(tokenizer, ids.data, ids.len, &all, &err);
    tinkc_decode(tokenizer, r->tokens.data, r->tokens.len, &sampled, &err);
    assert_ok(err);
    assert_true(sampled.len > 0 && strncmp(all.data, sampled.data, sampled.len) == 0);
    tinkc_tokens_free(&ids);
    tinkc_text_free(&all);
    tinkc_text_free(&sampled);
}

TEST(an_answer_is_text_without_its_end)
{
    static const char *const stops[] = { "x", "\n\nUser:", NULL };
    static const struct {
        const char *sampled;
        bool stopped;
        const char *text;
    } rows[] = { { "12", true, "12" },
                 { "12<|im_end|>", true, "12" },
                 { "12<|im_end|>", false, "12<|im_end|>" },
                 { "12\n\nUser:", true, "12" },
                 { "12\n\nUser:", false, "12\n\nUser:" },
                 { "x 12", true, "x 12" },
                 { "xx", true, "x" } };
    const tkr_format f = { .tokenizer = tokenizer, .stop = stops };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tinkc_tokens ids = { 0 };
        tinkc_text text = { 0 };
        assert_true(tinkc_encode(tokenizer, rows[i].sampled, &ids, &err));
        assert_true(tkr_turn_text(&f, ids.data, ids.len, rows[i].stopped, &text, &err));
        assert_string_equal(text.data, rows[i].text);
        assert_int_equal(text.len, strlen(rows[i].text));
        tinkc_tokens_free(&ids);
        tinkc_text_free(&text);
    }
}

TEST(an_environment_has_turns)
{
    tinkc_error err = { 0 };
    int never = 0;
    tinkc_env *env = tinkc_env_function(two_sums, &never, &err);
    tinkc_rollout_options o = { .tokenizer = tokenizer, .temperature = 1, .max_tokens = 12, .env = env };
    tinkc_group *g = roll(&o, &(tinkc_task){ .row_json = "{}" }, 3);
    for (size_t i = 0; i < 3; i++) {
        const tinkc_rollout *r = tinkc_group_at(g, i);
        if (r->error)
            fail_msg("%s", r->error);
        assert_int_equal(r->turns, 2);
        assert_true(r->reward == 0.75);
        assert_non_null(strstr(r->messages_json, "Bye.")); /* the last word is part of the talk */
        expect_conversation(r);
        size_t runs = 0;
        for (size_t k = 1; k < r->tokens.len; k++)
            runs += r->mask.data[k] > 0 && r->mask.data[k - 1] == 0;
        assert_int_equal(runs, 2); /* two answers, what was read between them */
    }
    assert_int_equal(n_seeds, 3);
    assert_true(seeds[0] != seeds[1] && seeds[0] != seeds[2] && seeds[1] != seeds[2]);
    expect_exact(g, false);
    expect_exact(g, true);
    tinkc_group_free(g);
    assert_int_equal(n_closed, 0); /* each came to its end */
    never = 1;
    o.max_turns = 3;
    g = roll(&o, &(tinkc_task){ .row_json = "{}", .where = "rows.jsonl:4" }, 1);
    assert_non_null(strstr(tinkc_group_at(g, 0)->error, "limit of turns"));
    assert_int_equal(tinkc_group_at(g, 0)->turns, 3);
    assert_non_null(strstr(tinkc_group_at(g, 0)->error, "rows.jsonl:4"));
    tinkc_group_free(g);
    assert_int_equal(n_closed, 1); /* what does not end by itself is closed */
    o.max_turns = 0;               /* 16 */
    o.max_tokens = 1;
    g = roll(&o, &(tinkc_task){ .row_json = "{}" }, 1);
    assert_non_null(strstr(tinkc_group_at(g, 0)->error, "limit of turns"));
    assert_int_equal(tinkc_group_at(g, 0)->turns, 16);
    tinkc_group_free(g);
    tinkc_env_free(env);
}

/* ---- what holds where options say nothing ---- */

#define SAMPLE "/api/v1/asample"

typedef struct silence { /* a service that accepts no sample */
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_sampler *sampler;
    tinkc_rollouts *pool;
} silence;

static void begin_silence(silence *x, const char *renderer, const tinkc_task *task, size_t n)
{
    tinkc_error err = { 0 };
    x->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    x->client = tinkc_client_new(
        &(tinkc_client_options){ .transport = tinkc_mock_transport(x->mock), .clock = tinkc_mock_clock(x->mock) },
        &err);
    x->sampler = tinkc_sampler_new(x->client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &err);
    tinkc_mock_always(x->mock, NULL, SAMPLE, &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &err);
    x->pool =
        tinkc_rollouts_new(x->client, &(tinkc_rollout_options){ .tokenizer = tokenizer, .renderer = renderer }, &err);
    tinkc_rollouts_add(x->pool, x->sampler, task, n, 1, 1, &err);
    (void)tinkc_rollouts_run(x->pool, 0, &err);
    err = (tinkc_error){ 0 }; /* nothing has happened in no time */
    (void)tinkc_mock_settle(x->mock, PATIENCE_MS, &err);
    assert_ok(err);
}

static void end_silence(silence *x)
{
    tinkc_rollouts_free(x->pool);
    tinkc_sampler_free(x->sampler);
    tinkc_client_free(x->client);
    tinkc_mock_free(x->mock);
}

static void expect_sent(silence *x, const char *part)
{
    size_t i = 0;
    while (strcmp(tinkc_mock_request(x->mock, i)->path, SAMPLE) != 0)
        i++;
    const char *body = (const char *)tinkc_mock_request(x->mock, i)->body.data;
    if (!strstr(body, part))
        fail_msg("%s is not in %s", part, body);
}

/* A setting that is refused is named. */
TEST(a_refused_setting_is_named)
{
    static const struct {
        tinkc_rl_options o;
        const char *message;
    } rows[] = {
        { { .rollouts = { .temperature = -1 } }, "rollouts: temperature: must be 0 or more" },
        { { .rollouts = { .top_p = 1.01 } }, "rollouts: top_p: must be from 0 to 1" },
        { { .rollouts = { .max_tokens = -1 } }, "rollouts: max_tokens: must be 0 or more, not -1" },
        { { .rollouts = { .max_concurrent = -2 } }, "rollouts: max_concurrent: must be 0 or more, not -2" },
        { { .rollouts = { .max_turns = -1 } }, "rollouts: max_turns: must be 0 or more, not -1" },
        { { .rollouts = { .max_episode_tokens = -1 } }, "rollouts: max_episode_tokens: must be 0 or more, not -1" },
        { { .rollouts = { .context_length = -1 } }, "rollouts: context_length: must be 0 or more, not -1" },
        { { .rollouts = { .sample_timeout_ms = -5 } }, "rollouts: sample_timeout_ms: must be 0 or more, not -5" },
        { { .rollouts = { .reserved_int = 1 } }, "rollouts: reserved fields must be zero" },
        { { .substeps = 65 }, "rl: substeps: must be from 0 to 64, not 65" },
        { { .group_size = 65537 }, "rl: group_size: must be from 0 to 65536, not 65537" },
        { { .groups_per_batch = 1048577 }, "rl: groups_per_batch: must be from 0 to 1048576, not 1048577" },
        { { .max_steps_off_policy = 1025 }, "rl: max_steps_off_policy: must be from 0 to 1024, not 1025" },
    };
    tinkc_error err = { 0 };
    tinkc_trainer *t = new_trainer();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_rl_options o = rows[i].o;
        o.rollouts.tokenizer = tokenizer;
        err = (tinkc_error){ 0 };
        assert_null(tinkc_rl_new(client, t, &o, NULL, &err));
        assert_string_equal(err.message, rows[i].message);
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
    }
    tinkc_trainer_free(t);
    err = (tinkc_error){ 0 };
    assert_null(tinkc_reward_url("http://127.0.0.1:1/", -1, &err));
    assert_string_equal(err.message, "reward URL: timeout_ms: must be 0 or more, not -1");
}

TEST(rollouts_have_defaults)
{
    enum { EPISODE = 32768 };
    static int32_t ids[EPISODE];
    tinkc_error err = { 0 };
    silence x;
    begin_silence(&x, NULL, &(tinkc_task){ .tokens = ids, .n_tokens = 3 }, 300);
    assert_int_equal(tinkc_rollouts_running(x.pool), 256);
    assert_int_equal(tinkc_mock_count(x.mock, SAMPLE), 256);
    expect_sent(&x, "\"max_tokens\":256");
    expect_sent(&x, "\"top_p\":1.0");
    end_silence(&x);

    begin_silence(&x, "role_colon", &(tinkc_task){ .tokens = ids, .n_tokens = 3 }, 1);
    expect_sent(&x, "\"stop\":[\"\\n\\nUser:\"]");
    end_silence(&x);

    begin_silence(&x, NULL, &(tinkc_task){ .tokens = ids, .n_tokens = EPISODE - 100 }, 1);
    expect_sent(&x, "\"max_tokens\":100");
    tinkc_mock_advance(x.mock, 299999);
    (void)tinkc_mock_settle(x.mock, PATIENCE_MS, &err);
    assert_null(tinkc_rollouts_next(x.pool, 0, &err));
    assert_int_equal(err.code, TINKC_E_TIMEOUT);
    err = (tinkc_error){ 0 };
    tinkc_mock_advance(x.mock, 1);
    tinkc_group *g = tinkc_rollouts_next(x.pool, PATIENCE_MS, &err);
    assert_ok(err);
    assert_non_null(strstr(tinkc_group_at(g, 0)->error, "not complete within its time"));
    tinkc_group_free(g);
    end_silence(&x);
}

static bool note_sizes(void *user, size_t index, const tinkc_group *const *groups, size_t n, tinkc_error *err)
{
    size_t *sizes = user;
    (void)index;
    (void)err;
    sizes[0] = n;
    sizes[1] = tinkc_group_count(groups[0]);
    return false;
}

static bool same_reward(const tinkc_rollout *r, void *user, double *reward, tinkc_error *err)
{
    (void)r;
    (void)user;
    (void)err;
    *reward = 0;
    return true;
}

TEST(batches_have_defaults)
{
    tinkc_error err = { 0 };
    size_t sizes[2] = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_client *c = tinkc_client_new(
        &(tinkc_client_options){ .transport = tinkc_mock_transport(mock), .clock = tinkc_mock_clock(mock) }, &err);
    tinkc_trainer *t = tinkc_trainer_new(c, &(tinkc_lora_options){ .base_model = "mock/nano" }, &err);
    tinkc_reward *r = tinkc_reward_function("same", same_reward, NULL, &err);
    tinkc_rl_options o = { .rollouts = { .tokenizer = tokenizer, .rewards = &r, .n_rewards = 1 },
                           .adam = TINKC_ADAM_INIT };
    tinkc_rl *rl = tinkc_rl_new(c, t, &o, &(tinkc_rl_hooks){ .user = sizes, .record = note_sizes }, &err);
    static const int32_t ids[] = { 1, 2, 3 };
    assert_true(tinkc_rl_add(rl, &(tinkc_task){ .tokens = ids, .n_tokens = 3 }, 0, &err));
    assert_null(tinkc_rl_step(rl, 1, &err));
    assert_int_equal(err.code, TINKC_E_CALLBACK); /* it sets no error of its own */
    assert_string_equal(err.message, "rl: the record function failed for batch 0");
    assert_int_equal(sizes[0], 100);
    assert_int_equal(sizes[1], 4);
    tinkc_rl_free(rl);
    tinkc_reward_free(r);
    tinkc_trainer_free(t);
    tinkc_client_free(c);
    tinkc_mock_free(mock);
}

/* ---- rewards that fail ---- */

static bool odd_reward(const tinkc_rollout *r, void *user, double *reward, tinkc_error *err)
{
    (void)user;
    *reward = r->index == 1 ? NAN : (double)r->index;
    if (r->index == 2)
        tinkc_error_set(err, TINKC_E_CALLBACK, "no opinion");
    return r->index != 2;
}

static bool two_or_none(const tinkc_rollout *r, void *user, double *out, tinkc_error *err)
{
    (void)user;
    *out = 2;
    if (r->index > 0)
        tinkc_error_set(err, TINKC_E_CALLBACK, "the first has none");
    return r->index == 0;
}

static bool three_or_none(const tinkc_rollout *r, void *user, double *out, tinkc_error *err)
{
    (void)user;
    *out = 3;
    if (r->index > 1)
        tinkc_error_set(err, TINKC_E_CALLBACK, "the second has none");
    return r->index <= 1;
}

/* 0.5 * 2 + 3. The metrics are what each said; of several that fail the first is named, and nothing is left of the others. */
TEST(rewards_are_added_by_their_weights)
{
    tinkc_error err = { 0 };
    tinkc_reward *both[] = { tinkc_reward_function("two", two_or_none, NULL, &err),
                             tinkc_reward_function("three", three_or_none, NULL, &err) };
    assert_true(tinkc_reward_weigh(both[0], 0.5, &err));
    tinkc_rollout_options o = {
        .tokenizer = tokenizer, .temperature = 1, .max_tokens = 4, .rewards = both, .n_rewards = 2
    };
    tinkc_group *g = roll(&o, &sum, 3);
    const tinkc_rollout *r = tinkc_group_at(g, 0);
    assert_true(!r->error && r->reward == 4);
    for (size_t i = 0; r->metric_names[i]; i++)
        if (strcmp(r->metric_names[i], "format") != 0)
            assert_true(r->metric_values[i] == (strcmp(r->metric_names[i], "two") == 0 ? 2 : 3));
    for (size_t i = 1; i < 3; i++) {
        assert_non_null(strstr(tinkc_group_at(g, i)->error, "two: the first has none"));
        assert_true(tinkc_group_at(g, i)->reward == 0);
    }
    tinkc_group_free(g);
    tinkc_reward_free(both[0]);
    tinkc_reward_free(both[1]);
}

TEST(a_rollout_without_a_reward_is_left_out)
{
    tinkc_error err = { 0 };
    tinkc_reward *r = tinkc_reward_function("odd", odd_reward, NULL, &err);
    tinkc_rollout_options o = {
        .tokenizer = tokenizer, .temperature = 1, .max_tokens = 4, .rewards = &r, .n_rewards = 1
    };
    tinkc_group *g = roll(&o, &sum, 4);
    assert_null(tinkc_group_at(g, 0)->error);
    assert_non_null(strstr(tinkc_group_at(g, 1)->error, "not a finite number"));
    assert_non_null(strstr(tinkc_group_at(g, 2)->error, "no opinion"));
    assert_non_null(strstr(tinkc_group_at(g, 2)->error, "sums.jsonl:1"));
    assert_true(tinkc_group_at(g, 3)->reward == 3);
    tinkc_group_free(g);
    tinkc_reward_free(r);
}

/* ---- the loop ---- */

enum { STEPS = 4, GROUP_SIZE = 3, BATCH = 6 };

typedef struct disk {
    tinkc_text text[STEPS + 4];
    size_t recorded;
} disk;

static bool record(void *user, size_t batch, const tinkc_group *const *g, size_t n, tinkc_error *err)
{
    disk *d = user;
    d->text[batch].len = 0;
    d->recorded++;
    for (size_t i = 0; i < n; i++)
        if (!tinkc_group_write(g[i], &d->text[batch], err))
            return false;
    return true;
}

static const char *recall(void *user, size_t batch, tinkc_error *err)
{
    (void)err;
    const disk *d = user;
    return d->text[batch].len ? d->text[batch].data : "";
}

static bool by_length(const tinkc_rollout *r, void *user, double *reward, tinkc_error *err)
{
    (void)user, (void)err;
    *reward = (double)(r->sampled_tokens % 7) / 7;
    return true;
}

static tinkc_rl *new_rl(tinkc_trainer *t, tinkc_reward **reward, size_t lag, size_t first, disk *d, const char *loss,
                        tinkc_sampler **reference)
{
    tinkc_error err = { 0 };
    tinkc_rl_options o = {
        .rollouts = { .tokenizer = tokenizer, .temperature = 1, .max_tokens = 8, .rewards = reward, .n_rewards = 1 },
        .adam = TINKC_ADAM_INIT,
        .group_size = GROUP_SIZE,
        .groups_per_batch = BATCH / GROUP_SIZE,
        .max_steps_off_policy = lag,
        .first_step = first,
        .seed = 11,
        .loss = loss
    };
    if (reference) {
        o.references = reference;
        o.n_references = 1;
        o.kl_coef = 0.1;
        o.substeps = 2;
    }
    o.adam.learning_rate = 1e-3;
    tinkc_rl_hooks h = { .user = d, .record = record, .recall = recall };
    tinkc_rl *rl = tinkc_rl_new(client, t, &o, &h, &err);
    for (int i = 0; i < 3; i++) {
        char text[100];
        (void)snprintf(text, sizeof text, "[{\"role\":\"user\",\"content\":\"What is %d + 4?\"}]", i);
        tinkc_rl_add(rl, &(tinkc_task){ .messages_json = text }, 0, &err);
    }
    assert_ok(err);
    return rl;
}

/* What the trained weights say about a text: equal only if they are. */
static void fingerprint(tinkc_trainer *t, float out[8])
{
    static const int32_t ids[9] = { 4094, 100, 200, 300, 400, 500, 600, 700, 800 };
    tinkc_error err = { 0 };
    tinkc_sampler *s = tinkc_trainer_sampler(t, &err);
    tinkc_future *f = tinkc_logprobs(s, ids, 9, &err);
    tinkc_f32s lp = tinkc_future_logprobs(f, 60000, &err);
    assert_ok(err);
    memcpy(out, lp.data + 1, 8 * sizeof *out);
    tinkc_future_free(f);
    tinkc_sampler_free(s);
}

static void run(tinkc_rl *rl, size_t until, double *rewards)
{
    tinkc_error err = { 0 };
    for (;;) {
        const tinkc_rl_report *r = tinkc_rl_step(rl, STEPS, &err);
        assert_ok(err);
        if (rewards)
            rewards[r->step] = r->reward;
        if (r->step + 1 == until)
            return;
    }
}

/* Trains to the end; then again, stopped after two steps and continued in new objects from a saved
 * state and what was recorded. */
static void expect_same_bits(size_t lag)
{
    tinkc_error err = { 0 };
    disk d1 = { 0 }, d2 = { 0 };
    float whole[8], broken[8], fresh[8];
    tinkc_reward *reward = tinkc_reward_function("length", by_length, NULL, &err);
    tinkc_trainer *t = new_trainer();
    fingerprint(t, fresh);
    tinkc_rl *rl = new_rl(t, &reward, lag, 0, &d1, NULL, NULL);
    run(rl, STEPS, NULL);
    fingerprint(t, whole);
    assert_memory_not_equal(fresh, whole, sizeof whole);
    tinkc_rl_free(rl);
    tinkc_trainer_free(t);

    t = new_trainer();
    rl = new_rl(t, &reward, lag, 0, &d2, NULL, NULL);
    run(rl, 2, NULL);
    assert_true(tinkc_rl_settle(rl, &err));
    assert_int_equal(d2.recorded, 2 + lag); /* none is half sampled */
    char name[40];
    (void)snprintf(name, sizeof name, "lag%zu", lag);
    tinkc_future *saved = tinkc_trainer_save(t, name, NULL, &err);
    assert_true(tinkc_future_wait(saved, 60000, &err));
    if (lag != 1)
        run(rl, 3, NULL); /* lost: the run ends before the next checkpoint */
    tinkc_rl_free(rl);
    tinkc_trainer_free(t);
    t = tinkc_trainer_new_from(
        client, &(tinkc_state_options){ .path = tinkc_future_path(saved, 0, &err), .with_optimizer = true }, &err);
    assert_ok(err);
    rl = new_rl(t, &reward, lag, 2, &d2, NULL, NULL);
    run(rl, STEPS, NULL);
    fingerprint(t, broken);
    assert_memory_equal(whole, broken, sizeof whole);
    for (size_t i = 0; i < STEPS; i++)
        assert_int_equal(d1.text[i].len > 0, d2.text[i].len > 0);
    tinkc_rl_free(rl);
    tinkc_trainer_free(t);
    tinkc_future_free(saved);
    tinkc_reward_free(reward);
    for (size_t i = 0; i < STEPS + 4; i++) {
        tinkc_text_free(&d1.text[i]);
        tinkc_text_free(&d2.text[i]);
    }
}

TEST(resume_on_policy)
{
    expect_same_bits(0);
}

TEST(resume_off_policy)
{
    expect_same_bits(1);
    expect_same_bits(2);
}

/* The first batch holds tasks 0 and 1, the second one 2 and 0. The grader answers task 2 only when the
 * gate is open: the batch that is sampled ahead is not graded when a step ends, and settling waits for
 * it. */
TEST(settling_waits_for_what_is_sampled_ahead)
{
    tinkc_error err = { 0 };
    disk d = { 0 };
    char folder[] = "/tmp/tinkc-gate-XXXXXX", gate[64], command[400];
    assert_non_null(mkdtemp(folder));
    snprintf(gate, sizeof gate, "%s/open", folder);
    snprintf(command, sizeof command,
             "while read -r l; do case $l in *'What is 2 '*) while [ ! -e %s ]; do sleep 0.05; "
             "done;; esac; i=${l#*:}; echo \"{\\\"id\\\":${i%%%%,*},\\\"reward\\\":1}\"; done",
             gate);
    tinkc_reward *reward = tinkc_reward_command(command, 2 * BATCH, 0, NULL, NULL, &err);
    tinkc_trainer *t = new_trainer();
    tinkc_rl *rl = new_rl(t, &reward, 1, 0, &d, NULL, NULL);
    assert_non_null(tinkc_rl_step(rl, STEPS, &err));
    assert_ok(err);
    assert_int_equal(d.recorded, 1);
    assert_int_equal(close(open(gate, O_CREAT | O_WRONLY, 0600)), 0);
    assert_true(tinkc_rl_settle(rl, &err));
    assert_int_equal(d.recorded, 2);
    assert_int_equal(unlink(gate), 0);
    assert_int_equal(rmdir(folder), 0);
    tinkc_rl_free(rl);
    tinkc_trainer_free(t);
    tinkc_reward_free(reward);
    for (size_t i = 0; i < STEPS + 4; i++)
        tinkc_text_free(&d.text[i]);
}

static double metric(const tinkc_rl_report *r, const char *name)
{
    for (size_t i = 0; r->metric_names[i]; i++)
        if (strcmp(r->metric_names[i], name) == 0)
            return r->metric_values[i];
    fail_msg("no metric %s", name);
    return 0;
}

TEST(samples_are_as_stale_as_the_lag_allows)
{
    tinkc_error err = { 0 };
    tinkc_reward *reward = tinkc_reward_function("length", by_length, NULL, &err);
    for (size_t lag = 0; lag < 3; lag++) {
        disk d = { 0 };
        tinkc_trainer *t = new_trainer();
        tinkc_rl *rl = new_rl(t, &reward, lag, 0, &d, NULL, NULL);
        for (size_t step = 0; step < STEPS; step++) {
            const tinkc_rl_report *r = tinkc_rl_step(rl, STEPS, &err);
            assert_ok(err);
            assert_int_equal(r->staleness, step < lag ? step : lag);
            if (step == 0) /* it was waited for its samples */
                assert_true(metric(r, "time/train") < metric(r, "time/total"));
        }
        assert_int_equal(d.recorded, STEPS); /* nothing was sampled in vain */
        assert_null(tinkc_rl_step(rl, STEPS, &err));
        err = (tinkc_error){ 0 };
        tinkc_rl_free(rl);
        tinkc_trainer_free(t);
        for (size_t i = 0; i < STEPS + 4; i++)
            tinkc_text_free(&d.text[i]);
    }
    tinkc_reward_free(reward);
}

/* Every loss takes the examples; on policy the sampled and the trained log-probabilities agree, and
 * the reference that is the model itself has no distance from it. */
TEST(every_loss_takes_the_examples)
{
    static const char *const losses[] = { TINKC_IMPORTANCE_SAMPLING, TINKC_PPO, TINKC_CISPO, TINKC_DRO };
    tinkc_error err = { 0 };
    tinkc_reward *reward = tinkc_reward_function("length", by_length, NULL, &err);
    tinkc_sampler *base = tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "nano" }, &err);
    for (size_t i = 0; i < 4; i++) {
        disk d = { 0 };
        tinkc_trainer *t = new_trainer();
        tinkc_rl *rl = new_rl(t, &reward, 0, 0, &d, losses[i], &base);
        const tinkc_rl_report *r = tinkc_rl_step(rl, STEPS, &err);
        assert_ok(err);
        assert_true(metric(r, "kl_policy_base") == 0);
        assert_true(fabs(metric(r, "optim/entropy")) < 20);
        assert_true(metric(r, "optim/grad_norm") > 0); /* not optim/optim/grad_norm */
        assert_true(metric(r, "env/all/total_episodes") == 6);
        r = tinkc_rl_step(rl, STEPS, &err);
        assert_ok(err);
        assert_true(metric(r, "kl_policy_base") != 0);
        tinkc_rl_free(rl);
        tinkc_trainer_free(t);
        for (size_t k = 0; k < STEPS + 4; k++)
            tinkc_text_free(&d.text[k]);
    }
    tinkc_sampler_free(base);
    tinkc_reward_free(reward);
}

static bool no_reward(const tinkc_rollout *r, void *user, double *reward, tinkc_error *err)
{
    (void)r, (void)user, (void)reward;
    tinkc_error_set(err, TINKC_E_CALLBACK, "broken grader");
    return false;
}

/* Nothing usable: an error with the reason, and nothing recorded that would fail again. */
TEST(a_batch_without_usable_groups_is_an_error)
{
    tinkc_error err = { 0 };
    disk d = { 0 };
    tinkc_reward *reward = tinkc_reward_function("none", no_reward, NULL, &err);
    tinkc_trainer *t = new_trainer();
    tinkc_rl *rl = new_rl(t, &reward, 0, 0, &d, NULL, NULL);
    assert_null(tinkc_rl_step(rl, STEPS, &err));
    assert_non_null(strstr(err.message, "broken grader"));
    assert_int_equal(d.recorded, 0);
    tinkc_rl_free(rl);
    tinkc_trainer_free(t);
    tinkc_reward_free(reward);
}

RUN_TESTS(setup, teardown)
