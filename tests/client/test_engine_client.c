/* test_engine_client.c - our own client on the engine: in process and over a socket, with the same
 * numbers. */
#include <sched.h>
#include <stdatomic.h>
#include <math.h>
#include <unistd.h>

#include "support/check.h"
#include "support/engine/tiny_model.h"
#include "support/patience.h"
#include "tinkc/engine.h"
#include "tinkc/rest.h"
#include "tinkc/sample.h"
#include "tinkc/sys/transport.h"
#include "tinkc/tape.h"
#include "tinkc/train.h"

enum { WAIT = PATIENCE_MS, LENGTH = 8, TOKENS = 12 };

static const int32_t text[LENGTH] = { 1, 5, 9, 13, 17, 21, 25, 29 };

static char *folder;
static tinkc_engine *engine;

static int setup(void **state)
{
    tinkc_error err = { 0 };
    (void)state;
    folder = tiny_model_make(&(tiny_model){ .family = "llama", .vocab = 64, .context = 64 });
    engine = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1 }, &err);
    assert_ok(err);
    assert_true(tinkc_engine_add_model(engine, "tiny", folder, &err));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tinkc_engine_free(engine);
    tiny_model_remove(folder);
    return 0;
}

/* Another transport, with its polls counted. */
typedef struct watch {
    const tinkc_transport *inner;
    atomic_int futures, polls;
} watch;

static void watch_send(void *self, const tinkc_request *r, tinkc_reply *reply)
{
    watch *w = self;
    if (strcmp(r->path, "/api/v1/retrieve_futures") == 0)
        atomic_fetch_add(&w->futures, 1);
    else if (strcmp(r->path, "/api/v1/retrieve_future") == 0)
        atomic_fetch_add(&w->polls, 1);
    w->inner->send(w->inner->self, r, reply);
}

static void watch_cancel(void *self, tinkc_reply *reply)
{
    const tinkc_transport *inner = ((watch *)self)->inner;
    if (inner->cancel)
        inner->cancel(inner->self, reply);
}

/* No acquire and release: the engine stays until the client has gone. */
static tinkc_transport watch_on(watch *w)
{
    return (tinkc_transport){
        .abi = TINKC_TRANSPORT_ABI, .flags = w->inner->flags, .self = w, .send = watch_send, .cancel = watch_cancel
    };
}

typedef struct numbers {
    double loss[6];
    float logprobs[LENGTH - 1];
    int32_t tokens[TOKENS];
    float sampled[TOKENS];
    size_t n_tokens;
} numbers;

/* One example with whatever inputs a loss wants. */
static tinkc_batch *batch_of(tinkc_client *client, const float *q, tinkc_error *err)
{
    tinkc_batch *batch = tinkc_batch_new(client, err);
    int64_t targets[LENGTH - 1];
    float ones[LENGTH - 1], advantages[LENGTH - 1];
    for (int i = 0; i < LENGTH - 1; i++) {
        targets[i] = text[i + 1];
        ones[i] = 1.0f;
        advantages[i] = (float)(i - 3);
    }
    tinkc_batch_add_tokens(batch, text, LENGTH - 1, err);
    tinkc_batch_set_i64(batch, "target_tokens", targets, LENGTH - 1, err);
    if (q) {
        tinkc_batch_set_f32(batch, "logprobs", q, LENGTH - 1, err);
        tinkc_batch_set_f32(batch, "advantages", advantages, LENGTH - 1, err);
    } else {
        tinkc_batch_set_f32(batch, "weights", ones, LENGTH - 1, err);
    }
    return batch;
}

static void train(tinkc_client *client, tinkc_trainer *trainer, numbers *out)
{
    static const char *const losses[] = { TINKC_CROSS_ENTROPY, TINKC_IMPORTANCE_SAMPLING, TINKC_PPO, TINKC_CISPO,
                                          TINKC_DRO };
    tinkc_error err = { 0 };
    for (size_t i = 0; i < 5; i++) {
        tinkc_batch *batch = batch_of(client, i ? out->logprobs : NULL, &err);
        tinkc_future *f = tinkc_forward_backward(trainer, batch, losses[i], NULL, &err);
        const tinkc_fwdbwd *got = tinkc_future_fwdbwd(f, WAIT, &err);
        assert_ok(err);
        out->loss[i] = tinkc_fwdbwd_metric(got, "loss:sum", -1);
        tinkc_f32s lp = tinkc_tensor_f32s(tinkc_fwdbwd_output(got, 0, "logprobs"));
        assert_int_equal(lp.len, LENGTH - 1);
        if (i == 0)
            memcpy(out->logprobs, lp.data, sizeof out->logprobs);
        assert_memory_equal(out->logprobs, lp.data, sizeof out->logprobs);
        tinkc_future_free(f);
        tinkc_batch_free(batch);
    }
    tinkc_adam adam = TINKC_ADAM_INIT;
    adam.learning_rate = 1e-2;
    tinkc_future *step = tinkc_optim_step(trainer, &adam, &err);
    out->loss[5] = tinkc_metrics_get(tinkc_future_step(step, WAIT, &err), "optim/grad_norm", -1);
    assert_ok(err);
    tinkc_future_free(step);
}

/* The prompt's own tokens as targets have the prompt's log-probabilities; draws have some of their own. */
static void score_prompt(tinkc_sampler *sampler)
{
    tinkc_error err = { 0 };
    tinkc_sampling how = TINKC_SAMPLING_INIT;
    const int32_t targets[] = { text[1], -1, text[2], -1 }, *ids;
    const float *logprobs;
    how.max_tokens = 1;
    how.prompt_logprobs = true;
    how.target_tokens = targets;
    how.targets_each = 2;
    how.prompt_alt_tokens = 3;
    tinkc_future *f = tinkc_sample(sampler, text, 3, 1, &how, &err);
    const tinkc_samples *s = tinkc_future_samples(f, WAIT, &err);
    assert_ok(err);
    tinkc_f32s prompt = tinkc_samples_prompt_logprobs(s), target = tinkc_samples_target_logprobs(s);
    assert_int_equal(target.len, 4);
    assert_true(target.data[0] == prompt.data[1] && target.data[2] == prompt.data[2]);
    assert_true(target.data[1] == 0 && target.data[3] == 0);
    for (size_t i = 1; i < 3; i++) {
        assert_int_equal(tinkc_samples_alt_tokens(s, i, &ids, &logprobs), 3);
        for (size_t k = 0; k < 3; k++)
            assert_true(ids[k] >= 0 && logprobs[k] < 0);
    }
    tinkc_future_free(f);
}

static void sample(tinkc_trainer *trainer, numbers *out)
{
    tinkc_error err = { 0 };
    tinkc_sampler *sampler = tinkc_trainer_sampler(trainer, &err);
    tinkc_sampling how = TINKC_SAMPLING_INIT;
    how.max_tokens = TOKENS;
    how.seed = 9;
    how.has_seed = true;
    how.never_stop = true;
    tinkc_future *f = tinkc_sample(sampler, text, 3, 1, &how, &err);
    const tinkc_sequence *q = tinkc_samples_at(tinkc_future_samples(f, WAIT, &err), 0);
    assert_ok(err);
    assert_int_equal(q->tokens.len, TOKENS);
    memcpy(out->tokens, q->tokens.data, sizeof out->tokens);
    memcpy(out->sampled, q->logprobs.data, sizeof out->sampled);
    tinkc_future_free(f);

    score_prompt(sampler);
    size_t n = 0;
    bool last = false;
    tinkc_deltas *stream = tinkc_sample_stream(sampler, text, 3, &how, &err);
    for (const tinkc_delta *d; (d = tinkc_deltas_next(stream, WAIT, &err));) {
        assert_true(n + d->tokens.len <= TOKENS);
        for (size_t i = 0; i < d->tokens.len; i++, n++) {
            assert_int_equal(d->tokens.data[i], out->tokens[n]);
            assert_true(d->logprobs.data[i] == out->sampled[n]);
        }
        last |= d->last;
    }
    assert_ok(err);
    assert_true(last);
    assert_int_equal(n, TOKENS);
    tinkc_deltas_free(stream);
    tinkc_sampler_free(sampler);
}

static void save_and_fetch(tinkc_client *client, tinkc_trainer *trainer, const char *name)
{
    tinkc_error err = { 0 };
    char *place = tiny_folder(), path[500];
    tinkc_future *saved = tinkc_trainer_save_for_sampler(trainer, name, NULL, &err);
    const char *tinker_path = tinkc_future_path(saved, WAIT, &err);
    assert_ok(err);
    const tinkc_download_options options = { .dir = place, .name = "got" };
    tinkc_future *download = tinkc_checkpoint_download(client, tinker_path, &options, &err);
    const tinkc_download *got = tinkc_future_download(download, WAIT, &err);
    assert_ok(err);
    assert_true(tinkc_download_count(got) >= 3);
    snprintf(path, sizeof path, "%s/got/adapter_model.safetensors", place);
    assert_int_equal(access(path, R_OK), 0);
    tinkc_future_free(download);
    tinkc_future_free(saved);
    tiny_model_remove(place);
}

static numbers everything(const tinkc_client_options *options, const char *name)
{
    tinkc_error err = { 0 };
    numbers out = { 0 };
    tinkc_client *client = tinkc_client_new(options, &err);
    assert_ok(err);
    tinkc_trainer *trainer = tinkc_trainer_new(
        client, &(tinkc_lora_options){ .base_model = "tiny", .rank = 4, .seed = 3, .has_seed = true }, &err);
    assert_ok(err);
    train(client, trainer, &out);
    sample(trainer, &out);
    save_and_fetch(client, trainer, name);
    tinkc_trainer_free(trainer);
    assert_true(tinkc_client_close(client, WAIT, &err));
    tinkc_client_free(client);
    return out;
}

TEST(in_process_and_over_a_socket)
{
    tinkc_error err = { 0 };
    numbers near = everything(&(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, "near");
    tinkc_server *server = tinkc_engine_serve(engine, NULL, &err);
    assert_ok(err);
    numbers far = everything(&(tinkc_client_options){ .base_url = tinkc_server_url(server),
                                                      .api_key = "tml-test",
                                                      .telemetry = TINKC_TELEMETRY_OFF },
                             "far");
    assert_memory_equal(near.loss, far.loss, sizeof near.loss);
    assert_memory_equal(near.logprobs, far.logprobs, sizeof near.logprobs);
    assert_memory_equal(near.tokens, far.tokens, sizeof near.tokens);
    assert_memory_equal(near.sampled, far.sampled, sizeof near.sampled);
    tinkc_server_free(server);
}

/* With one poll for all samples of a sampler: as many samples as before, each with its own result. */
TEST(one_poll_for_all_samples)
{
    enum { N = 12 };
    static const char *const settings[] = { "use_retrieve_futures", "on", NULL };
    tinkc_error err = { 0 };
    tinkc_future *f[N];
    tinkc_engine *mine = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1, .settings = settings }, &err);
    tinkc_engine_add_model(mine, "tiny", folder, &err);
    watch seen = { .inner = tinkc_engine_transport(mine) };
    const tinkc_transport watched = watch_on(&seen);
    tinkc_client *client = tinkc_client_new(&(tinkc_client_options){ .transport = &watched }, &err);
    tinkc_sampler *sampler = tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "tiny" }, &err);
    assert_ok(err);
    for (int i = 0; i < N; i++) {
        tinkc_sampling how = TINKC_SAMPLING_INIT;
        how.max_tokens = 1 + i % 4; /* so that no two neighbours are alike */
        how.never_stop = true;
        f[i] = tinkc_sample(sampler, text, 3, 1, &how, &err);
    }
    for (int i = 0; i < N; i++) {
        const tinkc_sequence *q = tinkc_samples_at(tinkc_future_samples(f[i], WAIT, &err), 0);
        assert_ok(err);
        assert_int_equal(q->tokens.len, 1 + i % 4);
        assert_non_null(
            strstr(tinkc_samples_sequence_id(tinkc_future_samples(f[i], 0, &err), 0), tinkc_sampler_id(sampler)));
        tinkc_future_free(f[i]);
    }
    tinkc_sampler_free(sampler);
    tinkc_client_free(client);
    assert_true(atomic_load(&seen.futures) >= 1 && atomic_load(&seen.futures) <= N);
    assert_int_equal(atomic_load(&seen.polls), N); /* each was named before it was asked for */
    tinkc_engine_free(mine);
}

/* What the engine cannot do it refuses by name; what changes no result it takes. */
TEST(stability_info_is_refused_and_spans_change_nothing)
{
    tinkc_error err = { 0 };
    double loss[2];
    const tinkc_span all = { .sequence_id = "s/0", .length = LENGTH - 1, .kind = TINKC_SPAN_SAMPLED };
    tinkc_client *client =
        tinkc_client_new(&(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, &err);
    tinkc_sampler *sampler = tinkc_sampler_new(
        client, &(tinkc_sampler_options){ .base_model = "tiny", .record_stability_info = true }, &err);
    tinkc_sampling how = TINKC_SAMPLING_INIT;
    tinkc_future *f = tinkc_sample(sampler, text, 3, 1, &how, &err);
    assert_ok(err);
    assert_false(tinkc_future_wait(f, WAIT, &err));
    assert_int_equal(err.code, TINKC_E_BAD_REQUEST);
    assert_non_null(strstr(err.message, "record_stability_info"));
    err = (tinkc_error){ 0 };
    tinkc_future_free(f);
    tinkc_sampler_free(sampler);
    tinkc_trainer *trainer = tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "tiny", .rank = 4 }, &err);
    for (int i = 0; i < 2; i++) {
        tinkc_batch *batch = batch_of(client, NULL, &err);
        if (i)
            tinkc_batch_set_provenance(batch, &all, 1, &all, 1, &err);
        f = tinkc_forward(trainer, batch, TINKC_CROSS_ENTROPY, NULL, &err);
        loss[i] = tinkc_fwdbwd_metric(tinkc_future_fwdbwd(f, WAIT, &err), "loss:sum", -1);
        assert_ok(err);
        tinkc_future_free(f);
        tinkc_batch_free(batch);
    }
    assert_true(loss[0] > 0 && loss[0] == loss[1]);
    tinkc_trainer_free(trainer);
    tinkc_client_free(client);
}

/* A client keeps the engine alive by itself. */
TEST(the_engine_outlives_its_handle)
{
    tinkc_error err = { 0 };
    tinkc_engine *mine = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1 }, &err);
    tinkc_engine_add_model(mine, "tiny", folder, &err);
    tinkc_client *client = tinkc_client_new(&(tinkc_client_options){ .transport = tinkc_engine_transport(mine) }, &err);
    assert_ok(err);
    tinkc_engine_free(mine);
    tinkc_future *f = tinkc_capabilities_get(client, &err);
    assert_int_equal(tinkc_capabilities_count(tinkc_future_capabilities(f, WAIT, &err)), 1);
    assert_ok(err);
    tinkc_future_free(f);
    tinkc_client_free(client);
}

static double loss_now(tinkc_client *client, tinkc_trainer *trainer, bool backward, tinkc_error *err)
{
    tinkc_batch *batch = batch_of(client, NULL, err);
    tinkc_future *f = backward ? tinkc_forward_backward(trainer, batch, TINKC_CROSS_ENTROPY, NULL, err)
                               : tinkc_forward(trainer, batch, TINKC_CROSS_ENTROPY, NULL, err);
    double loss = tinkc_fwdbwd_metric(tinkc_future_fwdbwd(f, WAIT, err), "loss:sum", -1);
    tinkc_future_free(f);
    tinkc_batch_free(batch);
    return loss;
}

/* A program that ends in the middle, with a step that it never waited for; the next one takes the
 * model up with all of it done. */
TEST(a_live_model_survives_its_program)
{
    tinkc_error err = { 0 };
    char model[200];
    tinkc_adam adam = TINKC_ADAM_INIT;
    adam.learning_rate = 1e-2;
    tinkc_client_options options = { .transport = tinkc_engine_transport(engine) };
    tinkc_client *first = tinkc_client_new(&options, &err);
    tinkc_trainer *trainer = tinkc_trainer_new(first, &(tinkc_lora_options){ .base_model = "tiny", .rank = 4 }, &err);
    double before = loss_now(first, trainer, true, &err);
    tinkc_future *step = tinkc_optim_step(trainer, &adam, &err);
    while (tinkc_future_stage(step) < TINKC_STAGE_ACCEPTED)
        sched_yield();
    (void)snprintf(model, sizeof model, "%s", tinkc_trainer_id(trainer));
    tinkc_future_free(step);
    tinkc_trainer_free(trainer);
    tinkc_client_free(first);
    assert_ok(err);

    tinkc_client *second = tinkc_client_new(&options, &err);
    trainer = tinkc_trainer_new_live(second, model, &err);
    assert_ok(err);
    double after = loss_now(second, trainer, true, &err);
    assert_ok(err);
    assert_true(after < before - 0.01); /* the step was taken */
    step = tinkc_optim_step(trainer, &adam, &err);
    assert_true(tinkc_future_wait(step, WAIT, &err));
    assert_true(loss_now(second, trainer, false, &err) < after - 0.01);
    assert_ok(err);
    tinkc_future_free(step);
    tinkc_trainer_free(trainer);
    assert_null(tinkc_trainer_new_live(second, "nobody:train:0", &err));
    assert_int_equal(err.code, TINKC_E_NOT_FOUND);
    tinkc_client_free(second);
}

/* ---- an answer without a limit of tokens ---- */

static void count_cuts(int32_t level, const char *line, void *user)
{
    if (level == TINKC_LOG_WARN && strstr(line, "gave no limit of tokens and was cut"))
        atomic_fetch_add((atomic_int *)user, 1);
}

/* Where the cache ends an answer the log says so; what ends by itself, or where it was asked to, was not
 * cut. */
TEST(the_log_says_which_answers_were_cut)
{
    static const int32_t many[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    static const char *const settings[] = { "kv_bytes", "1048576", NULL };
    static const struct {
        int32_t max_tokens;
        bool never_stop;
        int cuts;
    } rows[] = { { 5, true, 0 }, { -1, false, 0 }, { -1, true, 1 } };
    tinkc_error err = { 0 };
    atomic_int cuts = 0;
    char *wide = tiny_model_make(&(tiny_model){ .family = "llama", .vocab = 64, .context = 8192 });
    tinkc_engine *mine = tinkc_engine_new(
        &(tinkc_engine_options){ .threads = 1, .settings = settings, .log = count_cuts, .log_user = &cuts }, &err);
    tinkc_engine_add_model(mine, "tiny", wide, &err);
    tinkc_client *client = tinkc_client_new(&(tinkc_client_options){ .transport = tinkc_engine_transport(mine) }, &err);
    tinkc_sampler *sampler = tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "tiny" }, &err);
    assert_ok(err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_sampling how = TINKC_SAMPLING_INIT;
        how.max_tokens = rows[i].max_tokens;
        how.never_stop = rows[i].never_stop;
        how.stop_tokens = how.never_stop ? NULL : many;
        how.n_stop_tokens = how.never_stop ? 0 : 16;
        tinkc_future *f = tinkc_sample(sampler, text, 3, 1, &how, &err);
        const tinkc_sequence *q = tinkc_samples_at(tinkc_future_samples(f, WAIT, &err), 0);
        assert_ok(err);
        assert_int_equal(q->stop_reason, how.never_stop ? TINKC_STOP_LENGTH : TINKC_STOP);
        assert_true(q->tokens.len < 8192 - 3);
        assert_int_equal(atomic_load(&cuts), rows[i].cuts);
        tinkc_future_free(f);
    }
    tinkc_sampler_free(sampler);
    tinkc_client_free(client);
    tinkc_engine_free(mine);
    tiny_model_remove(wide);
}

/* ---- losses of one's own, here and at the service ---- */

static const float half[LENGTH - 1] = { 0.5f, 0.25f, 1, 1, 0.5f, 2, 1 };

/* The sum of w times the square of each log-probability, with the tape. */
static bool squares(tinkc_loss *loss, void *user, tinkc_error *err)
{
    (void)user;
    tinkc_tape *t = tinkc_tape_new(loss, err);
    tinkc_var lp = tinkc_tape_logprobs(t);
    tinkc_var each = tinkc_tape_mul(t, tinkc_tape_mul(t, lp, lp), tinkc_tape_token_input(t, "w"));
    return tinkc_tape_backward(t, tinkc_tape_sum(t, each), err);
}

/* Every operation that a service can be given, with what is the example's and what is fixed. */
static bool all_operations(tinkc_loss *loss, void *user, tinkc_error *err)
{
    (void)user;
    tinkc_tape *t = tinkc_tape_new(loss, err);
    tinkc_var lp = tinkc_tape_logprobs(t), half_one = tinkc_tape_number(t, 0.5);
    tinkc_var gain = tinkc_tape_sequence_input(t, "gain"), p = tinkc_tape_exp(t, lp);
    tinkc_var ratio = tinkc_tape_div(t, p, tinkc_tape_add(t, half_one, half_one));
    tinkc_var odds = tinkc_tape_log(t, tinkc_tape_sub(t, tinkc_tape_number(t, 1.5), p));
    tinkc_var gate = tinkc_tape_sigmoid(t, tinkc_tape_mean_tokens(t, tinkc_tape_mul(t, lp, gain)));
    tinkc_var soft = tinkc_tape_softplus(t, tinkc_tape_mul(t, tinkc_tape_constant(t, lp), odds));
    tinkc_var rest =
        tinkc_tape_sum_tokens(t, tinkc_tape_mul(t, tinkc_tape_add(t, soft, ratio), tinkc_tape_token_input(t, "w")));
    tinkc_var total = tinkc_tape_sum(t, tinkc_tape_mul(t, tinkc_tape_neg(t, rest), gate));
    tinkc_var least = tinkc_tape_min(t, lp, tinkc_tape_number(t, -4));
    tinkc_var most = tinkc_tape_max(t, tinkc_tape_mul(t, lp, gain), odds);
    lp = tinkc_tape_sub(t, tinkc_tape_add(t, lp, least), most);
    tinkc_var more = tinkc_tape_sum(t, tinkc_tape_mul(t, lp, tinkc_tape_weights(t)));
    total = tinkc_tape_sub(t, tinkc_tape_div(t, total, tinkc_tape_number(t, 3)), more);
    return tinkc_tape_backward(t, tinkc_tape_mean(t, total), err);
}

/* Where two values are equal the first has the gradient (1, not 2 or between), and a clamp passes it at
 * both of its bounds. */
static bool kinks(tinkc_loss *loss, void *user, tinkc_error *err)
{
    (void)user;
    tinkc_tape *t = tinkc_tape_new(loss, err);
    tinkc_var lp = tinkc_tape_logprobs(t), same = tinkc_tape_constant(t, lp);
    tinkc_var steep = tinkc_tape_sub(t, tinkc_tape_add(t, lp, lp), same);
    tinkc_var zero = tinkc_tape_sub(t, lp, same), five = tinkc_tape_number(t, 5);
    tinkc_var least = tinkc_tape_min(t, lp, steep);
    tinkc_var most = tinkc_tape_mul(t, tinkc_tape_max(t, lp, steep), five);
    tinkc_var low = tinkc_tape_clamp(t, zero, 0, 1);
    tinkc_var high = tinkc_tape_mul(t, tinkc_tape_clamp(t, zero, -1, 0), five);
    tinkc_var all = tinkc_tape_add(t, tinkc_tape_add(t, least, most), tinkc_tape_add(t, low, high));
    tinkc_var out = tinkc_tape_mul(t, tinkc_tape_clamp(t, lp, 1, 2), five); /* no gradient */
    return tinkc_tape_backward(t, tinkc_tape_sum(t, tinkc_tape_add(t, all, out)), err);
}

/* The same as the service takes it. */
static const char squares_json[] =
    "{\"format\":1,\"nodes\":["
    "{\"op\":\"placeholder\",\"name\":\"logprobs\",\"target\":\"logprobs\"},"
    "{\"op\":\"placeholder\",\"name\":\"w\",\"target\":\"w\"},"
    "{\"op\":\"call_function\",\"name\":\"mul\",\"target\":\"operator.mul\",\"args\":["
    "{\"ref\":\"logprobs\"},{\"ref\":\"logprobs\"}]},"
    "{\"op\":\"call_function\",\"name\":\"mul_1\",\"target\":\"operator.mul\",\"args\":["
    "{\"ref\":\"mul\"},{\"ref\":\"w\"}]},"
    "{\"op\":\"call_method\",\"name\":\"l\",\"target\":\"sum\",\"args\":[{\"ref\":\"mul_1\"}]},"
    "{\"op\":\"output\",\"name\":\"output\",\"target\":\"output\",\"args\":[{\"tuple\":["
    "{\"ref\":\"l\"},{\"dict\":{}}]}]}]}";
static const char *const inputs[] = { "logprobs", "w", NULL };
static const int32_t ranks[] = { 1, 1 };

static double gradient_norm(tinkc_trainer *trainer)
{
    tinkc_error err = { 0 };
    tinkc_adam adam = TINKC_ADAM_INIT;
    adam.learning_rate = 0;
    tinkc_future *f = tinkc_optim_step(trainer, &adam, &err);
    double norm = tinkc_metrics_get(tinkc_future_step(f, WAIT, &err), "optim/grad_norm", -1);
    assert_ok(err);
    tinkc_future_free(f);
    return norm;
}

/* Two examples, of which the second is shorter. */
static tinkc_batch *batch_with_inputs(tinkc_client *client)
{
    tinkc_error err = { 0 };
    tinkc_batch *batch = tinkc_batch_new(client, &err);
    int64_t targets[LENGTH - 1];
    for (int i = 0; i < LENGTH - 1; i++)
        targets[i] = text[i + 1];
    for (size_t i = 0; i < 2; i++) {
        size_t n = LENGTH - 1 - 2 * i;
        float gain = 1.5f - 2 * (float)i;
        tinkc_batch_add_tokens(batch, text, n, &err);
        tinkc_batch_set_i64(batch, "target_tokens", targets, n, &err);
        tinkc_batch_set_f32(batch, "w", half + i, n, &err);
        tinkc_batch_set_f32(batch, "weights", half + 2 * i, n, &err);
        tinkc_batch_set_f32(batch, "gain", &gain, 1, &err);
    }
    assert_ok(err);
    return batch;
}

static double norm_here(tinkc_trainer *trainer, const tinkc_batch *batch, tinkc_loss_fn *fn)
{
    tinkc_error err = { 0 };
    tinkc_future *f = tinkc_forward_backward_custom(trainer, batch, 0, NULL, fn, NULL, &err);
    (void)tinkc_future_fwdbwd(f, WAIT, &err);
    assert_ok(err);
    tinkc_future_free(f);
    return gradient_norm(trainer);
}

/* Takes the future that uploads the loss. */
static double norm_there(tinkc_trainer *trainer, const tinkc_batch *batch, tinkc_future *upload)
{
    tinkc_error err = { 0 };
    const char *id = tinkc_future_loss_id(upload, WAIT, &err);
    assert_ok(err);
    tinkc_future *f = tinkc_forward_backward(trainer, batch, "custom", &(tinkc_loss_options){ .loss_id = id }, &err);
    (void)tinkc_future_fwdbwd(f, WAIT, &err);
    assert_ok(err);
    tinkc_future_free(f);
    tinkc_future_free(upload);
    return gradient_norm(trainer);
}

static bool close_norms(double a, double b)
{
    return a > 0 && b > a * (1 - 1e-5) && b < a * (1 + 1e-5);
}

TEST(a_loss_at_the_service_is_the_tapes)
{
    static tinkc_loss_fn *const recorded[] = { squares, all_operations, kinks };
    tinkc_error err = { 0 };
    tinkc_client *client =
        tinkc_client_new(&(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, &err);
    tinkc_trainer *trainer = tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "tiny", .rank = 4 }, &err);
    assert_ok(err);
    tinkc_batch *batch = batch_with_inputs(client);
    tinkc_loss_graph by_hand = { .inputs = inputs, .ranks = ranks, .nodes_json = squares_json };
    assert_true(close_norms(norm_here(trainer, batch, squares),
                            norm_there(trainer, batch, tinkc_loss_create(client, &by_hand, &err))));
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++) {
        double here = norm_here(trainer, batch, recorded[i]);
        tinkc_future *f = tinkc_loss_record(client, "recorded", recorded[i], NULL, &err);
        assert_ok(err);
        double there = norm_there(trainer, batch, f);
        if (!close_norms(here, there))
            fail_msg("loss %zu: %.9g here, %.9g at the service", i, here, there);
    }
    tinkc_batch_free(batch);
    tinkc_trainer_free(trainer);
    tinkc_client_free(client);
}

/* ---- what a service cannot compute example by example ---- */

static bool cannot_be_recorded(tinkc_loss *loss, void *user, tinkc_error *err)
{
    static const float *const rows[] = { half };
    static const double ones[] = { 1 };
    tinkc_tape *t = tinkc_tape_new(loss, err);
    tinkc_var lp = tinkc_tape_logprobs(t), sum = tinkc_tape_sum(t, lp), one;
    tinkc_var each = tinkc_tape_sum_tokens(t, lp);
    one = tinkc_tape_number(t, 1);
    assert_true(isnan(tinkc_tape_value(t, one)));
    switch (*(const int *)user) {
    case 0:
        return tinkc_tape_backward(t, tinkc_tape_mean(t, lp), err);
    case 1:
        return tinkc_tape_backward(t, tinkc_tape_sum(t, tinkc_tape_slice(t, each, 0, 2)), err);
    case 2:
        lp = tinkc_tape_mul(t, lp, tinkc_tape_tokens(t, rows));
        break;
    case 3:
        lp = tinkc_tape_mul(t, lp, tinkc_tape_sequences(t, ones));
        break;
    case 4: /* of each example there would be one more */
        return tinkc_tape_backward(t, tinkc_tape_add(t, sum, one), err);
    case 5:
        return tinkc_tape_backward(t, tinkc_tape_div(t, one, sum), err);
    case 6:
        return tinkc_tape_backward(t, tinkc_tape_mul(t, sum, sum), err);
    case 7:
        return tinkc_tape_backward(t, tinkc_tape_exp(t, sum), err);
    case 8:
        return tinkc_tape_backward(t, one, err);
    case 9:
        return tinkc_tape_backward(t, tinkc_tape_sum(t, tinkc_tape_weights(t)), err);
    case 10:
        lp = tinkc_tape_mul(t, lp, tinkc_tape_token_input(t, "logprobs"));
        break;
    case 11:
        return tinkc_loss_metric(loss, "kl", 1, err);
    case 12:
        tinkc_loss_set(loss, 1);
        return true;
    case 13:
        for (int i = 0; i < 16; i++) { /* and the log-probs: one too many */
            char name[] = { 'x', (char)('a' + i), 0 };
            lp = tinkc_tape_mul(t, lp, tinkc_tape_token_input(t, name));
        }
        break;
    default:
        return false;
    }
    return tinkc_tape_backward(t, tinkc_tape_sum(t, lp), err);
}

TEST(what_needs_other_examples_is_not_recorded)
{
    static const char *const says[] = { "tinkc_tape_mean: the service computes each example alone",
                                        "tinkc_tape_slice: the service",
                                        "tinkc_tape_token_input",
                                        "tinkc_tape_sequence_input",
                                        "tinkc_tape_add: a sum over the examples",
                                        "tinkc_tape_div: a sum",
                                        "tinkc_tape_mul: a sum",
                                        "tinkc_tape_exp: a sum",
                                        "depends on the log-probs",
                                        "depends on the log-probs",
                                        "name must be that of an input",
                                        "kl: a loss that runs at the service",
                                        "did not end with tinkc_tape_backward",
                                        "more than 16 inputs",
                                        "the loss function failed" };
    tinkc_error err = { 0 };
    tinkc_client *client =
        tinkc_client_new(&(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, &err);
    for (int i = 0; i < (int)(sizeof says / sizeof *says); i++) {
        err = (tinkc_error){ 0 };
        assert_null(tinkc_loss_record(client, NULL, cannot_be_recorded, &i, &err));
        assert_int_equal(err.code, TINKC_E_CALLBACK);
        if (!strstr(err.message, says[i]))
            fail_msg("row %d: %s", i, err.message);
    }
    err = (tinkc_error){ 0 };
    assert_null(tinkc_loss_record(client, NULL, NULL, NULL, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    tinkc_client_free(client);
}

/* An input that an example lacks, or that has another length, is named. */
static bool needs_gain(tinkc_loss *loss, void *user, tinkc_error *err)
{
    tinkc_tape *t = tinkc_tape_new(loss, err);
    tinkc_var lp = tinkc_tape_logprobs(t);
    lp = tinkc_tape_mul(t, lp, tinkc_tape_sequence_input(t, user));
    return tinkc_tape_backward(t, tinkc_tape_sum(t, lp), err);
}

TEST(inputs_that_do_not_fit_are_named)
{
    static const struct {
        const char *name, *here, *there;
    } rows[] = { { "gone", "the input gone has 0 numbers, not 1", "'gone' is missing" },
                 { "w", "the input w has 7 numbers, not 1", "the dim has size 7, not 1" } };
    tinkc_error err = { 0 };
    tinkc_client *client =
        tinkc_client_new(&(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, &err);
    tinkc_trainer *trainer = tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "tiny", .rank = 4 }, &err);
    tinkc_batch *batch = batch_with_inputs(client);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        void *name = (void *)(uintptr_t)rows[i].name;
        err = (tinkc_error){ 0 };
        assert_null(tinkc_forward_backward_custom(trainer, batch, 0, NULL, needs_gain, name, &err));
        assert_non_null(strstr(err.message, rows[i].here));
        err = (tinkc_error){ 0 };
        tinkc_future *f = tinkc_loss_record(client, NULL, needs_gain, name, &err);
        tinkc_loss_options o = { .loss_id = tinkc_future_loss_id(f, WAIT, &err) };
        assert_ok(err);
        tinkc_future *pass = tinkc_forward_backward(trainer, batch, "custom", &o, &err);
        assert_null(tinkc_future_fwdbwd(pass, WAIT, &err));
        if (!strstr(err.message, rows[i].there))
            fail_msg("%s", err.message);
        tinkc_future_free(pass);
        tinkc_future_free(f);
    }
    tinkc_batch_free(batch);
    tinkc_trainer_free(trainer);
    tinkc_client_free(client);
}

TEST(losses_that_are_refused)
{
    static const int32_t odd[] = { 1, 3 };
    static const struct {
        tinkc_loss_graph graph;
        int32_t code;
        const char *says;
    } rows[] = {
        { { .inputs = inputs, .ranks = ranks }, TINKC_E_ARGUMENT, "required" },
        { { .inputs = inputs, .ranks = odd, .nodes_json = squares_json }, TINKC_E_ARGUMENT, "ranks[1]" },
        { { .inputs = inputs, .ranks = ranks, .nodes_json = "[]" }, TINKC_E_ARGUMENT, "object" },
        { { .inputs = inputs, .ranks = ranks, .nodes_json = "{\"nodes\":" }, TINKC_E_ARGUMENT, "JSON" },
        { { .inputs = inputs, .ranks = ranks, .nodes_json = "{\"format\":1,\"nodes\":[]}" }, TINKC_E_BAD_REQUEST, "" },
    };
    tinkc_error err = { 0 };
    tinkc_client *client =
        tinkc_client_new(&(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, &err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        err = (tinkc_error){ 0 };
        tinkc_future *f = tinkc_loss_create(client, &rows[i].graph, &err);
        assert_int_equal(f != NULL, rows[i].code == TINKC_E_BAD_REQUEST);
        if (f)
            assert_null(tinkc_future_loss_id(f, WAIT, &err));
        assert_int_equal(err.code, rows[i].code);
        assert_non_null(strstr(err.message, rows[i].says));
        tinkc_future_free(f);
    }
    tinkc_client_free(client);
}

RUN_TESTS(setup, teardown)
