/* test_rl_arithmetic.c - what a step of reinforcement learning sends to be trained, and what it reports,
 * against numbers worked out by hand.
 *
 * The rollouts are "recalled": lines that this file writes. A scripted service answers with the
 * log-probabilities that the tables below give for a rollout's last token, and the advantages are read from
 * the body of the forward_backward request.
 */
#include <math.h>

#include "support/client/api_support.h"
#include "tinkc/recipes.h"
#include "wire/train_message.h"

#define API "/api/v1/"

static tinkc_tokenizer *tokenizer;

static int setup(void **state)
{
    tinkc_error err = { 0 };
    (void)state;
    tokenizer = tinkc_tokenizer_open("models/nano", NULL, &err);
    assert_ok(&err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tinkc_tokenizer_free(tokenizer);
    return 0;
}

/* One rollout: the prompt 1, 2 and one sampled token, 10 + its number in the batch. */
typedef struct one {
    double reward, sampled, reference, trained; /* log-probabilities of the sampled token */
    bool failed;
} one;

enum { GROUP = 4, MOST = 8 };

typedef struct world {
    tinkc_error err;
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_trainer *trainer;
    tinkc_sampler *references[2];
    tinkc_rl *rl;
    const tinkc_rl_report *report;
    const one *all;
    size_t n, n_trained, substeps, n_passes; /* of the rollouts; passes that were sent */
    size_t trained[MOST];                    /* those that did not fail */
    size_t batch;                            /* whose rollouts are recalled */
    size_t more_tasks;                       /* than a batch has groups */
    char lines[4000], answer[4000];
} world;

/* Of a request to sample: the number of the rollout that its prompt ends with. */
static int asked_for(const tinkc_request *r)
{
    for (int i = 0; i < MOST; i++) {
        char tokens[20];
        (void)snprintf(tokens, sizeof tokens, "[1,2,%d]", 10 + i);
        if (memmem(r->body.data, r->body.len, tokens, strlen(tokens)))
            return i;
    }
    return -1;
}

/* The k-th pass has the k-th part of the rollouts. */
static void answer_pass(world *w, size_t k)
{
    size_t at = (size_t)snprintf(w->answer, sizeof w->answer,
                                 "{\"loss_fn_output_type\":\"T\",\"metrics\":{\"loss:sum\":7},"
                                 "\"loss_fn_outputs\":[");
    size_t first = w->n_trained * k / w->substeps, last = w->n_trained * (k + 1) / w->substeps;
    for (size_t i = first; i < last; i++)
        at += (size_t)snprintf(w->answer + at, sizeof w->answer - at,
                               "%s{\"logprobs\":{\"data\":[-9,%g],\"dtype\":\"float32\",\"shape\":[2]}}",
                               i > first ? "," : "", w->all[w->trained[i]].trained);
    (void)snprintf(w->answer + at, sizeof w->answer - at, "]}");
}

static bool serve(const tinkc_request *r, tinkc_mock_answer *out, void *user)
{
    world *w = user;
    const char *id = memmem(r->body.data, r->body.len, "\"ours-", 6);
    if (request_is_to(r, API "forward_backward"))
        (void)snprintf(w->answer, sizeof w->answer, "{\"request_id\":\"ours-pass%zu\"}", w->n_passes++);
    else if (request_is_to(r, API "asample"))
        (void)snprintf(w->answer, sizeof w->answer, "{\"request_id\":\"ours-%d\"}", asked_for(r));
    else if (!request_is_to(r, API "retrieve_future") || !id)
        return false;
    else if (strncmp(id, "\"ours-pass", 10) == 0)
        answer_pass(w, (size_t)atoi(id + 10));
    else if (atoi(id + 6) < 0)
        return false; /* asked for what no rollout holds */
    else
        (void)snprintf(w->answer, sizeof w->answer,
                       "{\"sequences\":[{\"tokens\":[5],\"logprobs\":[-1],\"stop_reason\":"
                       "\"length\"}],\"prompt_logprobs\":[null,-3,%g]}",
                       w->all[atoi(id + 6)].reference);
    out->body = w->answer;
    return true;
}

static const char *recall(void *user, size_t batch, tinkc_error *err)
{
    world *w = user;
    (void)err;
    return batch == w->batch ? w->lines : "";
}

static void write_lines(world *w)
{
    size_t at = 0;
    for (size_t i = 0; i < w->n; i++)
        at += (size_t)snprintf(w->lines + at, sizeof w->lines - at,
                               "{\"group_idx\":%zu,\"traj_idx\":%zu,\"group_size\":%d,"
                               "\"total_reward\":%g,%s\"turns\":1,\"text\":\"x\",\"tokens\":[1,2,"
                               "%zu],\"logprobs\":[0,0,%g],\"mask\":[0,0,1],\"ends\":[3]}\n",
                               i / GROUP + w->batch * (w->n / GROUP), i % GROUP, GROUP, w->all[i].reward,
                               w->all[i].failed ? "\"error\":\"it broke\"," : "", 10 + i, w->all[i].sampled);
}

static void open_world(world *w, const one *all, size_t n, tinkc_rl_options *o)
{
    *w = (world){ .all = all, .n = n, .substeps = o->substeps ? o->substeps : 1 };
    w->batch = o->first_step;
    for (size_t i = 0; i < n; i++)
        if (!all[i].failed)
            w->trained[w->n_trained++] = i;
    w->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &w->err);
    tinkc_mock_compute(w->mock, serve, w, &w->err);
    w->client = mock_client(w->mock, NULL, &w->err);
    w->trainer = tinkc_trainer_new(w->client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &w->err);
    for (size_t i = 0; i < o->n_references; i++)
        w->references[i] = tinkc_sampler_new(w->client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &w->err);
    o->references = o->n_references ? w->references : NULL;
    o->rollouts.tokenizer = tokenizer;
    o->adam = (tinkc_adam)TINKC_ADAM_INIT;
    o->group_size = GROUP;
    o->groups_per_batch = n / GROUP;
    assert_ok(&w->err);
}

/* One step on the lines of this world. */
static void step_on_lines(world *w, const tinkc_rl_options *o)
{
    static const int32_t ids[] = { 1, 2 };
    w->rl = tinkc_rl_new(w->client, w->trainer, o, &(tinkc_rl_hooks){ .user = w, .recall = recall }, &w->err);
    for (size_t i = 0; i < w->n / GROUP + w->more_tasks; i++)
        tinkc_rl_add(w->rl, &(tinkc_task){ .tokens = ids, .n_tokens = 2 }, i < o->n_references ? i : 0, &w->err);
    w->report = tinkc_rl_step(w->rl, w->batch + 1, &w->err);
    assert_ok(&w->err);
    assert_non_null(w->report);
}

/* One step on these rollouts. */
static void step(world *w, const one *all, size_t n, tinkc_rl_options o)
{
    open_world(w, all, n, &o);
    write_lines(w);
    step_on_lines(w, &o);
}

static void end(world *w)
{
    tinkc_rl_free(w->rl);
    for (size_t i = 0; i < 2; i++)
        tinkc_sampler_free(w->references[i]);
    tinkc_trainer_free(w->trainer);
    tinkc_client_free(w->client);
    tinkc_mock_free(w->mock);
}

static double metric(const world *w, const char *name)
{
    for (size_t i = 0; w->report->metric_names[i]; i++)
        if (strcmp(w->report->metric_names[i], name) == 0)
            return w->report->metric_values[i];
    fail_msg("no metric %s", name);
    return 0;
}

static void near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-6))
        fail_msg("%.9g is not %.9g", a, b);
}

/* The k-th example of the batch that was sent is the one of this rollout, with these advantages of its
 * second and third token. */
static void check_both(world *w, size_t k, int rollout, double second, double third)
{
    const tinkc_request *r = nth_request(w->mock, API "forward_backward", 0);
    tkc_forward_backward_request q = { 0 };
    tinkc_tensor targets, given;
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    assert_true(tkc_forward_backward_from_pb((tinkc_bytes){ r->body.data, r->body.len }, TINKC_E_UNPROCESSABLE, &arena,
                                             &q, &w->err));
    assert_true(k < q.data.len);
    const tkc_datum *datum = &q.data.data[k];
    assert_true(tkc_tensor_dense(tkc_datum_input(datum, "target_tokens"), &arena, &targets, &w->err));
    assert_true(tkc_tensor_dense(tkc_datum_input(datum, "advantages"), &arena, &given, &w->err));
    assert_int_equal(tinkc_tensor_i64s(&targets).data[1], 10 + rollout);
    near((double)tinkc_tensor_f32s(&given).data[0], second);
    near((double)tinkc_tensor_f32s(&given).data[1], third);
    tkc_arena_free(&arena);
}

/* The same, of a rollout whose second token belongs to the prompt. */
static void check_sent(world *w, size_t k, int rollout, double advantage)
{
    check_both(w, k, rollout, 0, advantage);
}

/* Rewards 6, (none), 3, 0: mean 3. The failed one is neither trained nor part of the mean. */
TEST(each_rollout_keeps_its_own_advantage_when_one_before_it_failed)
{
    static const one all[] = { { .reward = 6, .sampled = -1 },
                               { .failed = true },
                               { .reward = 3, .sampled = -1 },
                               { .reward = 0, .sampled = -1 } };
    world w;
    step(&w, all, 4, (tinkc_rl_options){ 0 });
    check_sent(&w, 0, 0, 3);
    check_sent(&w, 1, 2, 0);
    check_sent(&w, 2, 3, -3);
    assert_int_equal(w.report->trained, 3);
    assert_int_equal(w.report->failed, 1);
    assert_int_equal(w.report->tokens, 4 * 3); /* the failed one was read and sampled, too */
    near(w.report->reward, 3);
    end(&w);
}

/* One that is alone has nothing to be compared with but a teacher. */
TEST(the_last_of_a_group_is_trained_by_distillation_only)
{
    static const one all[] = { { .failed = true }, { .failed = true }, { .sampled = -1 }, { .failed = true } };
    for (size_t distill = 0; distill < 2; distill++) {
        world w;
        step(&w, all, 4, (tinkc_rl_options){ .n_references = distill, .kl_coef = (double)distill, .distill = distill });
        assert_int_equal(w.report->trained, distill);
        near(metric(&w, "rollout_errors/groups_skipped"), 1 - (double)distill);
        near(metric(&w, "rollout_errors/total"), 3);
        end(&w);
    }
}

/* d = sampled - reference = 2, 1, 0, 1: mean 1. Rewards 1, 0, 0, 1: mean 0.5. What is more probable here
 * than under the reference is made less so: 0.1 * (1 - d). */
TEST(kl_pulls_the_advantages_towards_the_reference)
{
    static const one all[] = { { .reward = 1, .sampled = -1, .reference = -3 },
                               { .reward = 0, .sampled = -2, .reference = -3 },
                               { .reward = 0, .sampled = -3, .reference = -3 },
                               { .reward = 1, .sampled = -1, .reference = -2 } };
    world w;
    step(&w, all, 4, (tinkc_rl_options){ .n_references = 1, .kl_coef = 0.1 });
    near(metric(&w, "kl_policy_base"), 1);
    check_sent(&w, 0, 0, 0.5 - 0.1);
    check_sent(&w, 1, 1, -0.5);
    check_sent(&w, 2, 2, -0.5 + 0.1);
    check_sent(&w, 3, 3, 0.5);
    end(&w);
}

/* Two groups with a teacher each: advantages are -d, whatever the rewards; d = 1, 2, 3, 2 (mean 2) and
 * -1, -1, -2, 0 (mean -1), of all eight 0.5. */
TEST(distillation_trains_on_the_teachers_log_probs_alone)
{
    static const one all[] = {
        { .reward = 5, .sampled = -1, .reference = -2 }, { .reward = 0, .sampled = -1, .reference = -3 },
        { .reward = 0, .sampled = -1, .reference = -4 }, { .reward = 0, .sampled = -1, .reference = -3 },
        { .reward = 5, .sampled = -3, .reference = -2 }, { .reward = 0, .sampled = -3, .reference = -2 },
        { .reward = 0, .sampled = -3, .reference = -1 }, { .reward = 0, .sampled = -3, .reference = -3 }
    };
    static const double d[] = { 1, 2, 3, 2, -1, -1, -2, 0 };
    world w;
    step(&w, all, 8, (tinkc_rl_options){ .n_references = 2, .kl_coef = 1, .distill = true });
    for (size_t i = 0; i < 8; i++)
        check_sent(&w, i, (int)i, -d[i]);
    for (size_t i = 0; i < 8; i++) { /* each group asks its own teacher */
        const tinkc_request *r = nth_request(w.mock, API "asample", i);
        const char *teacher = tinkc_sampler_id(w.references[i / GROUP]);
        assert_non_null(memmem(r->body.data, r->body.len, teacher, strlen(teacher)));
    }
    near(metric(&w, "teacher_kl"), 0.5);
    near(metric(&w, "teacher_kl/dataset_0"), 2);
    near(metric(&w, "teacher_kl/dataset_1"), -1);
    end(&w);
}

/* Three tasks, whose teachers are 0, 1 and 0, in groups of two: the second batch has the third task and the first again. */
TEST(a_task_keeps_its_teacher_in_later_batches)
{
    static const one all[8] = { { .reward = 1 } };
    tinkc_rl_options o = { .n_references = 2, .kl_coef = 1, .distill = true, .first_step = 1 };
    world w;
    open_world(&w, all, 8, &o);
    w.more_tasks = 1;
    write_lines(&w);
    step_on_lines(&w, &o);
    const char *teacher = tinkc_sampler_id(w.references[0]);
    for (size_t i = 0; i < 8; i++) {
        const tinkc_request *r = nth_request(w.mock, API "asample", i);
        assert_non_null(memmem(r->body.data, r->body.len, teacher, strlen(teacher)));
    }
    end(&w);
}

/* sampled - trained = 1, 0, -0.5, 0.5: mean 0.25; half of their squares 0.5, 0, 0.125, 0.125: mean 0.1875. Entropy
 * is the mean of -sampled: (1 + 2 + 3 + 2) / 4. */
TEST(drift_is_sampled_minus_trained)
{
    static const one all[] = { { .reward = 1, .sampled = -1, .trained = -2 },
                               { .reward = 0, .sampled = -2, .trained = -2 },
                               { .reward = 0, .sampled = -3, .trained = -2.5 },
                               { .reward = 1, .sampled = -2, .trained = -2.5 } };
    world w;
    step(&w, all, 4, (tinkc_rl_options){ 0 });
    near(metric(&w, "optim/kl_sample_train_v1"), 0.25);
    near(metric(&w, "optim/kl_sample_train_v2"), 0.1875);
    near(metric(&w, "optim/entropy"), 2);
    near(metric(&w, "optim/loss"), 7);
    end(&w);
}

/* With a failed one in front, the log-probs of the answer still belong to the rollouts that were sent:
 * (-1 + 2) + (-2 + 4) + (-3 + 6) = 6, mean 2. */
TEST(drift_skips_rollouts_that_were_not_sent)
{
    static const one all[] = { { .failed = true },
                               { .reward = 0, .sampled = -1, .trained = -2 },
                               { .reward = 1, .sampled = -2, .trained = -4 },
                               { .reward = 2, .sampled = -3, .trained = -6 } };
    world w;
    step(&w, all, 4, (tinkc_rl_options){ 0 });
    near(metric(&w, "optim/kl_sample_train_v1"), 2);
    end(&w);
}

/* Two optimizer steps: the log-probs of each pass belong to the rollouts that it was sent, and the losses are added.
 * sampled - trained = 1, 1, 3, 3: mean 2. */
TEST(substeps_share_the_batch)
{
    static const one all[] = { { .reward = 1, .sampled = -1, .trained = -2 },
                               { .reward = 0, .sampled = -1, .trained = -2 },
                               { .reward = 0, .sampled = -1, .trained = -4 },
                               { .reward = 1, .sampled = -1, .trained = -4 } };
    world w;
    step(&w, all, 4, (tinkc_rl_options){ .substeps = 2 });
    assert_int_equal(tinkc_mock_count(w.mock, API "forward_backward"), 2);
    assert_int_equal(tinkc_mock_count(w.mock, API "optim_step"), 2);
    near(metric(&w, "optim/kl_sample_train_v1"), 2);
    near(metric(&w, "optim/loss"), 7 + 7);
    end(&w);
}

/* A batch that was recalled was sampled from the weights of the step before it. */
TEST(recalled_rollouts_are_as_stale_as_they_were)
{
    static const one all[] = {
        { .reward = 1, .sampled = -1 }, { .sampled = -1 }, { .sampled = -1 }, { .sampled = -1 }
    };
    world w;
    step(&w, all, 4, (tinkc_rl_options){ .max_steps_off_policy = 1, .first_step = 2 });
    assert_int_equal(w.report->staleness, 1);
    near(metric(&w, "training_client/step"), 2);
    near(metric(&w, "sampling_client/step_min"), 1);
    near(metric(&w, "sampling_client/step_mean"), 1);
    near(metric(&w, "sampling_client/step_max"), 1);
    end(&w);
}

/* Each answer has two tokens, -1 and -2 of the policy, -3 and -4 (of the first rollout -2) of the reference: d = 2, 0 of
 * the first and 2, 2 of the others; mean 14 / 8 = 1.75. The second token gets 0.1 * (1.75 - d), the first its
 * own and half of that. All rewards are the same. */
TEST(kl_of_later_tokens_counts_by_its_discount)
{
    static const one all[] = { { .sampled = -2, .reference = -2 },
                               { .sampled = -2, .reference = -4 },
                               { .sampled = -2, .reference = -4 },
                               { .sampled = -2, .reference = -4 } };
    const double own = 0.1 * (1.75 - 2);
    tinkc_rl_options o = { .n_references = 1, .kl_coef = 0.1, .kl_discount = 0.5 };
    world w;
    open_world(&w, all, 4, &o);
    for (size_t i = 0, at = 0; i < 4; i++)
        at += (size_t)snprintf(w.lines + at, sizeof w.lines - at,
                               "{\"group_idx\":0,\"traj_idx\":%zu,\"group_size\":4,\"total_reward\":"
                               "0,\"turns\":1,\"text\":\"x\",\"tokens\":[1,2,%zu],\"logprobs\":[0,"
                               "-1,-2],\"mask\":[0,1,1],\"ends\":[3]}\n",
                               i, 10 + i);
    step_on_lines(&w, &o);
    near(metric(&w, "kl_policy_base"), 1.75);
    check_both(&w, 0, 0, own + 0.5 * 0.1 * 1.75, 0.1 * 1.75);
    check_both(&w, 1, 1, own + 0.5 * own, own);
    end(&w);
}

/* A rollout of two examples: the reference is asked for each of them alone. d = 2 and 1 of every rollout: mean 1.5,
 * so the advantages of KL are 0.1 * (1.5 - 2) and 0.1 * (1.5 - 1). */
TEST(each_example_of_a_rollout_is_compared_by_itself)
{
    static const one all[] = { { .reference = -3 }, { .reference = -4 }, { .reward = 0 }, { .reward = 0 } };
    tinkc_rl_options o = { .n_references = 1, .kl_coef = 0.1 };
    world w;
    open_world(&w, all, 4, &o);
    for (size_t i = 0, at = 0; i < 4; i++)
        at += (size_t)snprintf(w.lines + at, sizeof w.lines - at,
                               "{\"group_idx\":0,\"traj_idx\":%zu,\"group_size\":4,\"total_reward\":"
                               "0,\"turns\":2,\"text\":\"x\",\"tokens\":[1,2,10,1,2,11],"
                               "\"logprobs\":[0,0,-1,0,0,-3],\"mask\":[0,0,1,0,0,1],\"ends\":[3,6]}\n",
                               i);
    w.n_trained = 8; /* examples */
    for (size_t i = 0; i < 8; i++)
        w.trained[i] = i % 2;
    step_on_lines(&w, &o);
    near(metric(&w, "kl_policy_base"), 1.5);
    check_sent(&w, 0, 0, 0.1 * (1.5 - 2));
    check_sent(&w, 1, 1, 0.1 * (1.5 - 1));
    check_sent(&w, 7, 1, 0.1 * (1.5 - 1));
    end(&w);
}

/* Two answers to one prompt, in two groups of each of two batches: were two seeds equal, so would be what is learnt from. They are
 * those of the run's seed, so that it can be repeated. */
TEST(each_answer_is_sampled_with_a_seed_of_its_own)
{
    static const int32_t ids[] = { 1, 2 };
    tinkc_rl_options o = { .rollouts = { .tokenizer = tokenizer },
                           .adam = TINKC_ADAM_INIT,
                           .group_size = 2,
                           .groups_per_batch = 2,
                           .max_steps_off_policy = 1, /* both are begun before the first step */
                           .seed = 7 };
    world w = { .n = 0 };
    w.mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &w.err);
    w.client = mock_client(w.mock, NULL, &w.err);
    w.trainer = tinkc_trainer_new(w.client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &w.err);
    w.rl = tinkc_rl_new(w.client, w.trainer, &o, NULL, &w.err);
    for (int i = 0; i < 2; i++)
        tinkc_rl_add(w.rl, &(tinkc_task){ .tokens = ids, .n_tokens = 2 }, 0, &w.err);
    for (int step = 0; step < 2; step++)
        assert_non_null(tinkc_rl_step(w.rl, 2, &w.err));
    assert_ok(&w.err);
    for (size_t i = 0; i < 8; i++) {
        const tinkc_request *r = nth_request(w.mock, API "asample", i);
        const char *seed = memmem(r->body.data, r->body.len, "\"seed\":", 7);
        assert_non_null(seed);
        assert_int_equal(strtoull(seed + 7, NULL, 10),
                         tinkc_recipe_seed(tinkc_recipe_seed(7, i / 4, i / 2 % 2, 2), i % 2, 0, 0));
    }
    end(&w);
}

RUN_TESTS(setup, teardown)
