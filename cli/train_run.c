/* train_run.c - the loop of `tinkc train sft`: steps in flight, evaluation, checkpoints.
 *
 * Up to --submit-ahead steps are sent before the oldest is waited for. Evaluations and checkpoints
 * are taken with no step in flight, so a checkpoint's `batch` is exactly the next one to run.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "recent_ids.h"
#include "out.h"
#include "term.h"
#include "text.h"
#include "train_run.h"

enum { MAX_IN_FLIGHT = 9 };

typedef struct flight { /* one step that was sent */
    size_t step;
    tinkc_future *pass, *moved;
    int64_t begun_ms, sent_ms; /* making the batch began; the step was sent */
} flight;

/* ---- sending ---- */

static bool fill_batch(tinkc_batch *batch, const cli_example *items, const size_t *which, size_t n,
                       tinkc_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const cli_example *e = which ? &items[which[i]] : &items[i];
        if (!tinkc_batch_add_weighted(batch, e->ids, e->len, e->weights, err))
            return false;
    }
    return true;
}

static void send_step(cli_sft *s, size_t step, flight *out, tinkc_error *err)
{
    const cli_app *app = s->app;
    size_t n;
    int64_t begun_ms = cli_now_ms();
    const size_t *which = cli_sft_batch(s, step, &n);
    tinkc_batch *batch = tinkc_batch_new(app->client, err);
    tinkc_adam adam = TINKC_ADAM_INIT;
    adam.learning_rate = cli_sft_rate(s, step);
    adam.beta1 = cli_number(app, "adam-beta1");
    adam.beta2 = cli_number(app, "adam-beta2");
    adam.eps = cli_number(app, "adam-eps");
    adam.weight_decay = cli_number(app, "weight-decay");
    adam.grad_clip_norm = cli_number(app, "grad-clip");
    *out = (flight){ .step = step, .begun_ms = begun_ms };
    if (!which)
        tinkc_error_set(err, TINKC_E_MEMORY, "out of memory");
    else if (fill_batch(batch, s->train.items, which, n, err)) {
        out->sent_ms = cli_now_ms();
        out->pass = tinkc_forward_backward(s->trainer, batch, TINKC_CROSS_ENTROPY, NULL, err);
        out->moved = tinkc_optim_step(s->trainer, &adam, err);
    }
    tinkc_batch_free(batch);
}

/* ---- what a pass says ---- */

typedef struct score {
    double loss, weight; /* sums of -w*logp and of w */
    double raw;          /* sum of -logp over trained tokens */
    size_t tokens, bytes, sequences;
} score;

static void score_example(const cli_example *e, const tinkc_tensor *logprobs, score *out)
{
    tinkc_f32s lp = tinkc_tensor_f32s(logprobs);
    for (size_t i = 0; i < lp.len && i + 1 < e->len; i++) {
        double w = (double)e->weights[i + 1], p = (double)lp.data[i];
        out->loss -= w * p;
        out->weight += w;
        if (w > 0)
            out->raw -= p;
    }
    out->tokens += e->len - 1;
    out->bytes += e->trained_bytes;
    out->sequences++;
}

static score score_pass(const cli_example *items, const size_t *which, const tinkc_fwdbwd *got)
{
    score out = { 0 };
    for (size_t i = 0; i < tinkc_fwdbwd_count(got); i++)
        score_example(which ? &items[which[i]] : &items[i], tinkc_fwdbwd_output(got, i, "logprobs"),
                      &out);
    return out;
}

static double mean_nll(const score *s)
{
    return s->weight > 0 ? s->loss / s->weight : NAN;
}

static double bits_per_byte(const score *s)
{
    return s->bytes ? s->raw / (log(2) * (double)s->bytes) : NAN;
}

/* ---- telling ---- */

static void tell(cli_sft *s, const char *event, json_t *v)
{
    char now[CLI_SHORT_TEXT];
    json_t *out = json_pack("{s:s}", "event", event);
    cli_format_iso(cli_now_us(), now);
    json_object_set_new(out, "time", json_string(now));
    json_object_update_missing(out, v);
    if (s->app->format == CLI_JSON || s->app->format == CLI_JSONL) {
        cli_write_json(stdout, out, -1);
        fputc('\n', stdout);
        fflush(stdout);
    }
    cli_trainlog_event(s->app, &s->log, out);
    json_decref(out);
}

static void show_step(cli_sft *s, size_t step, double nll, double rate)
{
    char left[CLI_SHORT_TEXT];
    size_t done = step + 1 - s->first_step, rest = s->total_steps - step - 1;
    double seconds = (double)(cli_now_ms() - s->begun_ms) / 1000;
    cli_format_duration(done ? seconds / (double)done * (double)rest : 0, left);
    enum { CELLS = 20 };
    char bar[CELLS * 3 + 1];
    size_t full = CELLS * (step + 1) / s->total_steps, at = 0;
    for (size_t i = 0; i < CELLS; i++)
        at += (size_t)snprintf(bar + at, sizeof bar - at, "%s",
                               s->app->utf8 ? (i < full ? "━" : "─") : (i < full ? "#" : "-"));
    cli_status(s->app, step + 1 == s->total_steps,
               "%s step %zu/%zu  loss %.4f  lr %.2e  %.0f tok/s  ETA %s", bar, step + 1,
               s->total_steps, nll, rate, s->smooth_tokens_s, left);
}

static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

/* While a step is waited for: why it takes longer. */
static void tell_retry(const tinkc_event *e, void *user)
{
    cli_sft *s = user;
    json_t *v = json_pack("{s:I,s:s,s:s,s:i,s:i,s:f}", "step", (json_int_t)s->step, "operation",
                          e->operation, "message", e->text, "status", (int)e->http_status,
                          "attempt", (int)e->attempt, "wait_s", (double)e->wait_ms / 1000);
    tell(s, "retry", v);
    json_decref(v);
}

/* ---- where the time goes ---- */

static void add_span(cli_sft *s, const char *name, int64_t begun_ms, int64_t ended_ms)
{
    /* The machine's own clock counts from anywhere: the wall's is that much further. */
    double offset = (double)cli_now_us() / 1e6 - (double)cli_now_ms() / 1000;
    double begun = (double)begun_ms / 1000, ended = (double)ended_ms / 1000;
    if (!s->spans)
        s->spans = json_array();
    json_array_append_new(s->spans,
                          json_pack("{s:s,s:f,s:f,s:f}", "name", name, "duration", ended - begun,
                                    "wall_start", begun + offset, "wall_end", ended + offset));
}

static void write_spans(cli_sft *s, size_t step)
{
    json_t *v = json_pack("{s:I,s:O}", "step", (json_int_t)step, "spans", s->spans);
    if (!cli_trainlog_spans(&s->log, v))
        cli_warn(s->app, "%s/timing_spans.jsonl cannot be written", s->log_dir);
    json_decref(v);
    json_decref(s->spans);
    s->spans = NULL;
}

/* ---- one step back from the service ---- */

static void add_metrics(json_t *v, const tinkc_metrics *m)
{
    for (size_t i = 0; i < tinkc_metrics_count(m); i++)
        json_object_set_new(v, tinkc_metrics_name(m, i), number(tinkc_metrics_value(m, i)));
}

static void record_step(cli_sft *s, const flight *f, const score *sc, const tinkc_metrics *optim)
{
    double rate = cli_sft_rate(s, f->step), seconds = (double)(cli_now_ms() - f->sent_ms) / 1000;
    double now = seconds > 0 ? (double)sc->tokens / seconds : 0;
    s->smooth_tokens_s = s->smooth_tokens_s > 0 ? 0.8 * s->smooth_tokens_s + 0.2 * now : now;
    s->elapsed_tokens += sc->tokens;
    json_t *v = json_pack("{s:I,s:I}", "step", (json_int_t)f->step, "epoch",
                          (json_int_t)(f->step / s->n_batches));
    json_object_set_new(v, "progress", json_real((double)(f->step + 1) / (double)s->total_steps));
    json_object_set_new(v, "learning_rate", json_real(rate));
    add_metrics(v, optim);
    json_object_set_new(v, "num_sequences", json_integer((json_int_t)sc->sequences));
    json_object_set_new(v, "num_tokens", json_integer((json_int_t)sc->tokens));
    json_object_set_new(v, "num_loss_tokens", number(sc->weight));
    json_object_set_new(v, "train_mean_nll", number(mean_nll(sc)));
    json_object_set_new(v, "train_mean_bpb", number(bits_per_byte(sc)));
    if (s->pending)
        json_object_update(v, s->pending);
    json_decref(s->pending);
    s->pending = NULL;
    json_object_set_new(v, "time/get_batch", json_real((double)(f->sent_ms - f->begun_ms) / 1000));
    json_object_set_new(v, "time/step", json_real(seconds));
    add_span(s, "get_batch", f->begun_ms, f->sent_ms);
    add_span(s, "step", f->sent_ms, cli_now_ms());
    write_spans(s, f->step);
    if (!cli_trainlog_metrics(&s->log, v))
        cli_warn(s->app, "%s/metrics.jsonl cannot be written", s->log_dir);
    tell(s, "step", v);
    show_step(s, f->step, mean_nll(sc), rate);
    json_decref(v);
}

/* Waits for the oldest step and books it. */
static bool settle(cli_sft *s, flight *f, tinkc_error *err)
{
    size_t n;
    bool ok = cli_wait_through(s->app, f->pass, "training", err) &&
              cli_wait_through(s->app, f->moved, "training", err);
    if (ok) {
        const size_t *which = cli_sft_batch(s, f->step, &n);
        const tinkc_fwdbwd *got = tinkc_future_fwdbwd(f->pass, 0, err);
        score sc = score_pass(s->train.items, which, got);
        if (!isfinite(mean_nll(&sc)))
            tinkc_error_set(err, TINKC_E_REQUEST_FAILED,
                            "the loss is no number any more: lower --lr");
        record_step(s, f, &sc, tinkc_future_step(f->moved, 0, err));
        s->step = f->step + 1;
    }
    tinkc_future_free(f->pass);
    tinkc_future_free(f->moved);
    *f = (flight){ 0 };
    return ok && !err->code;
}

/* ---- evaluation ---- */

/* For the row of the step that comes next. */
static void note_time(cli_sft *s, const char *name, int64_t begun_ms)
{
    int64_t now_ms = cli_now_ms();
    if (!s->pending)
        s->pending = json_object();
    json_object_set_new(s->pending, name, json_real((double)(now_ms - begun_ms) / 1000));
    add_span(s, name + strlen("time/"), begun_ms, now_ms);
}

/* As in the cookbook, an evaluation stands in the row of the step that follows it; the last one,
 * which no step follows, in a row of its own. */
static bool evaluate(cli_sft *s, tinkc_error *err)
{
    int64_t begun_ms = cli_now_ms();
    if (!s->test.n)
        return true;
    tinkc_batch *batch = tinkc_batch_new(s->app->client, err);
    tinkc_future *f = NULL;
    if (fill_batch(batch, s->test.items, NULL, s->test.n, err))
        f = tinkc_forward(s->trainer, batch, TINKC_CROSS_ENTROPY, NULL, err);
    tinkc_batch_free(batch);
    bool ok = cli_wait(s->app, f, "evaluating", err);
    if (ok) {
        score sc = score_pass(s->test.items, NULL, tinkc_future_fwdbwd(f, 0, err));
        json_t *v = json_pack("{s:I,s:o,s:o}", "step", (json_int_t)s->step, "test/nll",
                              number(mean_nll(&sc)), "test/bpb", number(bits_per_byte(&sc)));
        tell(s, "eval", v);
        if (s->step >= s->total_steps)
            cli_trainlog_metrics(&s->log, v);
        note_time(s, "time/evals", begun_ms);
        json_object_update_missing(s->pending, v);
        json_decref(v);
        cli_note(s->app, "step %zu: test loss %.4f", s->step, mean_nll(&sc));
    }
    tinkc_future_free(f);
    return ok;
}

/* ---- checkpoints ---- */

/* Called at once after the record could not be written. */
static void log_fault(const cli_sft *s, tinkc_error *err)
{
    char text[512];
    (void)snprintf(text, sizeof text, "%.300s/checkpoints.jsonl: %s", s->log_dir,
                   strerrordesc_np(errno));
    tinkc_error_set(err, TINKC_E_FILE, text);
}

static char *save(cli_sft *s, const char *name, bool state, int64_t ttl_s, tinkc_error *err)
{
    tinkc_save_options how = { .ttl_s = ttl_s, .overwrite = state };
    tinkc_future *f = state ? tinkc_trainer_save(s->trainer, name, &how, err)
                            : tinkc_trainer_save_for_sampler(s->trainer, name, &how, err);
    char *path = cli_wait(s->app, f, "saving", err) ? strdup(tinkc_future_path(f, 0, err)) : NULL;
    tinkc_future_free(f);
    return path;
}

static void drop_rolling(cli_sft *s)
{
    if (!s->last_rolling)
        return;
    tinkc_error err = { 0 };
    tinkc_future *f = tinkc_checkpoint_delete(s->app->client, s->last_rolling, &err);
    (void)cli_wait(s->app, f, NULL, &err);
    tinkc_future_free(f);
    free(s->last_rolling);
    s->last_rolling = NULL;
}

static json_t *checkpoint_record(const cli_sft *s, const char *name, bool final, bool rolling)
{
    bool done = s->step >= s->n_batches * s->epochs;
    json_t *v = json_pack("{s:s,s:I,s:I}", "name", name, "batch",
                          (json_int_t)(done ? 0 : s->step % s->n_batches), "epoch",
                          (json_int_t)(done ? s->epochs : s->step / s->n_batches));
    if (final)
        json_object_set_new(v, "final", json_true());
    if (s->state_path)
        json_object_set_new(v, "state_path", json_string(s->state_path));
    if (!rolling && s->sampler_path)
        json_object_set_new(v, "sampler_path", json_string(s->sampler_path));
    json_object_set_new(v, "elapsed_tokens", json_integer((json_int_t)s->elapsed_tokens));
    if (rolling)
        json_object_set_new(v, "rolling", json_true());
    return v;
}

static int64_t ttl_of(const cli_app *app)
{
    double seconds;
    const char *text = cli_text(app, "ttl");
    return strcmp(text, "never") == 0 || !cli_parse_duration(text, &seconds) ? 0 : (int64_t)seconds;
}

/* Saves state and sampler weights (a rolling one: state alone) and writes the record. */
static bool checkpoint(cli_sft *s, bool final, bool rolling, tinkc_error *err)
{
    char name[32];
    int64_t begun_ms = cli_now_ms();
    int64_t ttl = final ? 0 : rolling ? cli_int(s->app, "rolling-ttl") : ttl_of(s->app);
    if (final)
        (void)snprintf(name, sizeof name, "final");
    else
        (void)snprintf(name, sizeof name, "%06zu", s->step);
    char *state = save(s, name, true, ttl, err);
    char *sampler = state && !rolling ? save(s, name, false, ttl, err) : NULL;
    bool ok = state && (rolling || sampler);
    if (ok) {
        free(s->state_path);
        s->state_path = state;
        if (sampler) {
            free(s->sampler_path);
            s->sampler_path = sampler;
        }
        json_t *v = checkpoint_record(s, name, final, rolling);
        ok = cli_trainlog_checkpoint(&s->log, v);
        if (!ok)
            log_fault(s, err);
        tell(s, "checkpoint", v);
        json_decref(v);
        if (ok) /* else the one before is the last that a resumed run finds */
            drop_rolling(s);
        note_time(s, "time/save_checkpoint", begun_ms);
        cli_ids_add(s->app, "checkpoint", sampler ? sampler : state);
        if (rolling)
            s->last_rolling = strdup(state);
        else
            cli_note(s->app, "step %zu: saved %s", s->step, sampler);
        s->last_save_ms = cli_now_ms();
        s->last_save_tokens = s->elapsed_tokens;
    } else {
        free(state);
        free(sampler);
    }
    return ok && !err->code;
}

static bool every(const cli_app *app, const char *option, size_t step)
{
    int64_t n = cli_int(app, option);
    return n > 0 && step > 0 && step % (size_t)n == 0;
}

static bool save_due(const cli_sft *s, size_t step)
{
    const cli_app *app = s->app;
    int64_t tokens = cli_int(app, "save-every-tokens"),
            seconds = cli_int(app, "save-every-seconds");
    return step > s->first_step &&
           (every(app, "save-every", step) ||
            (tokens > 0 && s->elapsed_tokens - s->last_save_tokens >= (size_t)tokens) ||
            (seconds > 0 && (cli_now_ms() - s->last_save_ms) / 1000 >= seconds));
}

static bool eval_due(const cli_sft *s, size_t step)
{
    int64_t n = cli_int(s->app, "eval-every");
    return s->test.n && n > 0 && step % (size_t)n == 0;
}

static bool pause_due(const cli_sft *s, size_t step)
{
    return save_due(s, step) || eval_due(s, step) ||
           (step > s->first_step && every(s->app, "rolling-save-every", step));
}

/* What happens between steps, with none in flight. */
static bool between_steps(cli_sft *s, tinkc_error *err)
{
    if (eval_due(s, s->step) && !evaluate(s, err))
        return false;
    if (save_due(s, s->step))
        return checkpoint(s, false, false, err);
    if (s->step > s->first_step && every(s->app, "rolling-save-every", s->step))
        return checkpoint(s, false, true, err);
    return true;
}

/* ---- the loop ---- */

static bool train(cli_sft *s, tinkc_error *err)
{
    flight ring[MAX_IN_FLIGHT];
    size_t ahead = (size_t)cli_int(s->app, "submit-ahead"), first = 0, n = 0, next = s->step;
    if (ahead >= MAX_IN_FLIGHT)
        ahead = MAX_IN_FLIGHT - 1;
    while (!err->code && (next < s->total_steps || n)) {
        bool stop = cli_stop_signal() != 0;
        if (n == 0 && stop)
            break;
        bool may_send = next < s->total_steps && !stop && n <= ahead;
        if (may_send && pause_due(s, next)) {
            if (n == 0 && !between_steps(s, err))
                break;
            may_send = n == 0 && !err->code;
        }
        if (may_send) {
            send_step(s, next++, &ring[(first + n++) % MAX_IN_FLIGHT], err);
            if (n <= ahead && next < s->total_steps)
                continue;
        }
        if (n) {
            settle(s, &ring[first], err);
            first = (first + 1) % MAX_IN_FLIGHT;
            n--;
        }
    }
    for (; n; n--, first = (first + 1) % MAX_IN_FLIGHT) {
        tinkc_future_free(ring[first].pass);
        tinkc_future_free(ring[first].moved);
    }
    return !err->code;
}

/* After a signal: what is trained is saved, and how to go on is said. */
static int stop_early(cli_sft *s)
{
    tinkc_error err = { 0 };
    int code = cli_stop_exit();
    if (s->step > s->first_step && cli_stop_count() < 2) {
        cli_note(s->app, "stopping after step %zu; saving (interrupt again to leave at once)",
                 s->step);
        cli_forget_signal();
        if (!checkpoint(s, false, false, &err))
            cli_warn(s->app, "not saved: %s", err.message);
    }
    cli_note(s->app, "to go on: tinkc train resume %s", s->log_dir);
    return code;
}

static void say_goodbye(cli_sft *s)
{
    json_t *v = json_pack("{s:I,s:s?,s:s?}", "step", (json_int_t)s->step, "state_path",
                          s->state_path, "sampler_path", s->sampler_path);
    tell(s, "end", v);
    json_decref(v);
    cli_note(s->app, "state      %s", s->state_path);
    cli_note(s->app, "sampler    %s", s->sampler_path);
    cli_note(s->app, "to talk    tinkc chat -m %s", s->sampler_path);
}

int cli_sft_run(cli_sft *s)
{
    tinkc_error err = { 0 };
    json_t *start = json_pack("{s:I,s:I,s:s}", "step", (json_int_t)s->step, "total_steps",
                              (json_int_t)s->total_steps, "log_path", s->log_dir);
    s->begun_ms = s->last_save_ms = cli_now_ms();
    s->first_step = s->step;
    s->last_save_tokens = s->elapsed_tokens;
    s->app->on_retry = tell_retry;
    s->app->on_retry_user = s;
    tell(s, "start", start);
    json_decref(start);
    cli_catch_signals();
    bool ok = train(s, &err);
    if (cli_stop_signal())
        return stop_early(s);
    if (ok && s->step > s->first_step) {
        bool wanted = cli_int(s->app, "eval-every") > 0;
        ok = (!wanted || evaluate(s, &err)) && checkpoint(s, true, false, &err);
        if (cli_stop_signal())
            return stop_early(s);
    }
    if (!ok) {
        int code = cli_fail_error(s->app, &err, NULL);
        if (s->state_path)
            cli_note(s->app, "to go on from the last checkpoint: tinkc train resume %s",
                     s->log_dir);
        return code;
    }
    say_goodbye(s);
    return 0;
}
