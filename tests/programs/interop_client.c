/* interop_client.c - does with our client what tests/interop/python_sdk.py does with the official
 * one, on the same server, and compares every number with what that one saw.
 *
 *     interop_client URL SEEN.json
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/str.h"
#include "tinkc/tinkc.h"

enum { WAIT = 120000, MAX = 64 };

static const int32_t texts[2][11] = { { 70, 111, 120, 32, 97, 110, 100, 32, 104, 101, 110 },
                                      { 10, 20, 30, 40, 50, 60 } };
static const size_t lengths[2] = { 11, 6 };

typedef struct seen {
    double losses[5], grad_norm;
    tinkc_f32s after[2];
    tinkc_i32s tokens;
    tinkc_f32s logprobs;
} seen;

static const char *const names[5] = { "cross_entropy", "importance_sampling", "ppo", "cispo", "dro" };
static int bad;

static void compare(const char *what, double ours, double theirs)
{
    if (ours == theirs)
        return;
    printf("DIFFERENT: %s: ours %.17g, theirs %.17g\n", what, ours, theirs);
    bad = 1;
}

static void compare_all(const char *what, const float *ours, tinkc_f32s theirs, size_t n)
{
    if (theirs.len != n)
        printf("DIFFERENT: %s: %zu numbers, not %zu\n", what, theirs.len, n), bad = 1;
    for (size_t i = 0; i < n && i < theirs.len; i++)
        compare(what, (double)ours[i], (double)theirs.data[i]);
}

static void read_sample(tkc_json *j, seen *s)
{
    tinkc_str key;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "tokens"))
            s->tokens = tkc_json_i32s(j);
        else
            s->logprobs = tkc_json_f32s(j);
    }
}

static void read_seen(const char *path, tkc_arena *arena, seen *s, tinkc_error *err)
{
    tinkc_bytes file = tkc_read_file(arena, path, 1 << 24, err);
    tkc_json j;
    tinkc_str key;
    tkc_json_open(&j, tkc_strn((const char *)file.data, file.len), arena, err);
    if (!tkc_json_object(&j))
        return;
    while (tkc_json_key(&j, &key)) {
        if (tkc_str_is(key, "losses") && tkc_json_object(&j)) {
            while (tkc_json_key(&j, &key)) {
                double value = tkc_json_double(&j);
                for (int i = 0; i < 5; i++)
                    if (tkc_str_is(key, names[i]))
                        s->losses[i] = value;
            }
        } else if (tkc_str_is(key, "grad_norm")) {
            s->grad_norm = tkc_json_double(&j);
        } else if (tkc_str_is(key, "after_step") && tkc_json_array(&j)) {
            for (int i = 0; tkc_json_item(&j); i++)
                s->after[i < 2 ? i : 1] = tkc_json_f32s(&j);
        } else if (tkc_str_is(key, "sample")) {
            read_sample(&j, s);
        } else {
            tkc_json_skip(&j);
        }
    }
}

static tinkc_batch *make_batch(tinkc_client *client, float q[2][MAX], bool rl, tinkc_error *err)
{
    tinkc_batch *batch = tinkc_batch_new(client, err);
    for (int t = 0; t < 2; t++) {
        size_t n = lengths[t] - 1;
        int64_t targets[MAX];
        float ones[MAX], shifted[MAX], advantages[MAX];
        for (size_t i = 0; i < n; i++) {
            targets[i] = texts[t][i + 1];
            ones[i] = 1;
            shifted[i] = q[t][i] - 0.05f;
            /* as numpy.linspace(-1, 1, n) rounds */
            advantages[i] = (float)(-1.0 + (double)i * (2.0 / (double)(n - 1)));
        }
        advantages[n - 1] = 1;
        tinkc_batch_add_tokens(batch, texts[t], n, err);
        tinkc_batch_set_i64(batch, "target_tokens", targets, n, err);
        if (rl) {
            tinkc_batch_set_f32(batch, "logprobs", shifted, n, err);
            tinkc_batch_set_f32(batch, "advantages", advantages, n, err);
        } else {
            tinkc_batch_set_f32(batch, "weights", ones, n, err);
        }
    }
    return batch;
}

static double pass(tinkc_client *client, tinkc_trainer *trainer, int loss, bool forward, float q[2][MAX],
                   float out[2][MAX], tinkc_error *err)
{
    static const char *const low[] = { "clip_low_threshold", NULL }, *const beta[] = { "beta", NULL };
    static const double low_value[] = { 0.9 }, beta_value[] = { 0.1 };
    const tinkc_loss_options ppo = { .names = low, .values = low_value }, dro = { .names = beta, .values = beta_value };
    tinkc_batch *batch = make_batch(client, q, loss > 0, err);
    const tinkc_loss_options *options = loss == 2 ? &ppo : loss == 4 ? &dro : NULL;
    tinkc_future *f = forward ? tinkc_forward(trainer, batch, names[loss], options, err)
                              : tinkc_forward_backward(trainer, batch, names[loss], options, err);
    const tinkc_fwdbwd *got = tinkc_future_fwdbwd(f, WAIT, err);
    double value = tinkc_fwdbwd_metric(got, "loss:sum", NAN);
    for (size_t t = 0; out && t < 2; t++) {
        tinkc_f32s lp = tinkc_tensor_f32s(tinkc_fwdbwd_output(got, t, "logprobs"));
        if (lp.len)
            memcpy(out[t], lp.data, lp.len * sizeof *lp.data);
    }
    tinkc_future_free(f);
    tinkc_batch_free(batch);
    return value;
}

static void sample(tinkc_trainer *trainer, const seen *s, tinkc_error *err)
{
    tinkc_sampling how = TINKC_SAMPLING_INIT;
    how.max_tokens = 12;
    how.seed = 7;
    how.has_seed = true;
    tinkc_sampler *sampler = tinkc_trainer_sampler(trainer, err);
    tinkc_future *f = tinkc_sample(sampler, texts[0], lengths[0], 1, &how, err);
    const tinkc_sequence *q = tinkc_samples_at(tinkc_future_samples(f, WAIT, err), 0);
    if (q) {
        compare("number of tokens", (double)q->tokens.len, (double)s->tokens.len);
        for (size_t i = 0; i < q->tokens.len && i < s->tokens.len; i++)
            compare("sampled token", q->tokens.data[i], s->tokens.data[i]);
        compare_all("sampled log-prob", q->logprobs.data, s->logprobs, q->logprobs.len);
    }
    tinkc_future_free(f);
    tinkc_sampler_free(sampler);
}

int main(int argc, char **argv)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    seen s = { 0 };
    float q[2][MAX] = { { 0 } }, after[2][MAX] = { { 0 } };
    if (argc < 3)
        return 2;
    tkc_arena_init(&arena, NULL, 0);
    read_seen(argv[2], &arena, &s, &err);
    tinkc_client *client = tinkc_client_new(
        &(tinkc_client_options){ .base_url = argv[1], .api_key = "tml-interop", .telemetry = TINKC_TELEMETRY_OFF },
        &err);
    tinkc_trainer *trainer = tinkc_trainer_new(
        client, &(tinkc_lora_options){ .base_model = "nano", .rank = 8, .seed = 42, .has_seed = true }, &err);
    pass(client, trainer, 0, true, q, q, &err);
    for (int loss = 0; loss < 5 && !err.code; loss++)
        compare(names[loss], pass(client, trainer, loss, false, q, NULL, &err), s.losses[loss]);
    tinkc_adam adam = TINKC_ADAM_INIT;
    adam.learning_rate = 1e-3;
    tinkc_future *step = tinkc_optim_step(trainer, &adam, &err);
    compare("gradient norm", tinkc_metrics_get(tinkc_future_step(step, WAIT, &err), "optim/grad_norm", NAN),
            s.grad_norm);
    tinkc_future_free(step);
    pass(client, trainer, 0, true, q, after, &err);
    for (size_t t = 0; t < 2; t++)
        compare_all("log-prob after the step", after[t], s.after[t], lengths[t] - 1);
    sample(trainer, &s, &err);
    tinkc_trainer_free(trainer);
    tinkc_client_free(client);
    tkc_arena_free(&arena);
    if (err.code)
        printf("FAILED: %s\n", err.message);
    else if (!bad)
        printf("our client and the official one agree in every bit\n");
    return err.code || bad;
}
