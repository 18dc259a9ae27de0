/* train_run.c - the loop of `tinkc train sft`: steps in flight, evaluation, checkpoints.
 *
 * Up to --submit-ahead steps are sent before the oldest is waited for. Evaluations and checkpoints
 * are taken with no step in flight, so a checkpoint's `batch` is exactly the next one to run.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/manage/recent_ids.h"
#include "cli/output/out.h"
#include "cli/output/term.h"
#include "cli/output/text.h"
#include "cli/train/train_run.h"
#include "cli/train/train_samples.h"

enum { MAX_IN_FLIGHT = CLI_MOST_AHEAD + 1 };

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
    const cli_app *app = s->job.app;
    size_t n;
    int64_t begun_ms = cli_now_ms();
    const size_t *which = cli_sft_batch(s, step, &n);
    tinkc_batch *batch = tinkc_batch_new(app->client, err);
    tinkc_adam adam = cli_job_adam(app, cli_sft_rate(s, step));
    *out = (flight){ .step = step, .begun_ms = begun_ms };
    if (!which)
        tinkc_error_set(err, TINKC_E_MEMORY, "out of memory");
    else if (fill_batch(batch, s->train.items, which, n, err)) {
        out->sent_ms = cli_now_ms();
        out->pass = tinkc_forward_backward(s->job.trainer, batch, TINKC_CROSS_ENTROPY, NULL, err);
        out->moved = tinkc_optim_step(s->job.trainer, &adam, err);
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
        if (w == 0) /* what is not trained may be impossible: 0 times infinity is not a number */
            continue;
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

static void show_step(cli_sft *s, size_t step, double nll, double rate)
{
    cli_job_show_step(&s->job, step, "loss %.4f  lr %.2e  %.0f tok/s", nll, rate,
                      s->smooth_tokens_s);
}

/* ---- one step back from the service ---- */

static void record_step(cli_sft *s, const flight *f, const score *sc, const tinkc_metrics *optim)
{
    /* Steps overlap: one begins to count when the one before it has ended. */
    int64_t now_ms = cli_now_ms(),
            since_ms = f->sent_ms > s->settled_ms ? f->sent_ms : s->settled_ms;
    double rate = cli_sft_rate(s, f->step), seconds = (double)(now_ms - since_ms) / 1000;
    s->settled_ms = now_ms;
    double now = cli_job_speed(sc->tokens, now_ms - since_ms);
    s->smooth_tokens_s = s->smooth_tokens_s > 0 ? 0.8 * s->smooth_tokens_s + 0.2 * now : now;
    s->job.elapsed_tokens += sc->tokens;
    tkc_tree *v = tkc_tree_pack(&s->job.arena, "{s:I,s:I}", "step", (int64_t)f->step, "epoch",
                                (int64_t)(f->step / s->job.n_batches));
    tkc_tree_set_real(v, "progress", (double)(f->step + 1) / (double)s->job.total_steps);
    tkc_tree_set_real(v, "learning_rate", rate);
    cli_job_add_metrics(v, optim);
    tkc_tree_set_i64(v, "num_sequences", (int64_t)sc->sequences);
    tkc_tree_set_i64(v, "num_tokens", (int64_t)sc->tokens);
    cli_job_set(v, "num_loss_tokens", sc->weight);
    cli_job_set(v, "train_mean_nll", mean_nll(sc));
    cli_job_set(v, "train_mean_bpb", bits_per_byte(sc));
    if (s->job.pending)
        tkc_tree_update(v, s->job.pending);
    tkc_tree_set_real(v, "time/get_batch", (double)(f->sent_ms - f->begun_ms) / 1000);
    tkc_tree_set_real(v, "time/step", seconds);
    cli_job_span(&s->job, "get_batch", f->begun_ms, f->sent_ms);
    cli_job_span(&s->job, "step", since_ms, now_ms);
    cli_job_write_spans(&s->job, f->step);
    cli_job_write_row(&s->job, v);
    cli_job_tell(&s->job, "step", v);
    show_step(s, f->step, mean_nll(sc), rate);
    cli_job_end_row(&s->job);
}

/* Waits for the oldest step and books it. */
static bool settle(cli_sft *s, const flight *f, tinkc_error *err)
{
    size_t n;
    bool ok = cli_wait_through(s->job.app, f->pass, "training", err) &&
              cli_wait_through(s->job.app, f->moved, "training", err);
    if (ok) {
        const size_t *which = cli_sft_batch(s, f->step, &n);
        const tinkc_fwdbwd *got = tinkc_future_fwdbwd(f->pass, 0, err);
        score sc = score_pass(s->train.items, which, got);
        if (!isfinite(mean_nll(&sc)))
            tinkc_error_set(err, TINKC_E_REQUEST_FAILED, "loss is NaN or infinite: lower --lr");
        record_step(s, f, &sc, tinkc_future_step(f->moved, 0, err));
        s->job.step = f->step + 1;
    }
    tinkc_future_free(f->pass);
    tinkc_future_free(f->moved);
    return ok && !err->code;
}

/* ---- evaluation ---- */

/* As in the cookbook, an evaluation stands in the row of the step that follows it; the last one,
 * which no step follows, in a row of its own. */
static bool evaluate(cli_sft *s, tinkc_error *err)
{
    int64_t begun_ms = cli_now_ms();
    if (!s->test.n)
        return true;
    tinkc_batch *batch = tinkc_batch_new(s->job.app->client, err);
    tinkc_future *f = NULL;
    if (fill_batch(batch, s->test.items, NULL, s->test.n, err))
        f = tinkc_forward(s->job.trainer, batch, TINKC_CROSS_ENTROPY, NULL, err);
    tinkc_batch_free(batch);
    bool ok = cli_wait(s->job.app, f, "evaluating", err);
    if (ok) {
        score sc = score_pass(s->test.items, NULL, tinkc_future_fwdbwd(f, 0, err));
        tkc_tree *v = tkc_tree_pack(&s->job.arena, "{s:I}", "step", (int64_t)s->job.step);
        cli_job_set(v, "test/nll", mean_nll(&sc));
        cli_job_set(v, "test/bpb", bits_per_byte(&sc));
        cli_job_tell(&s->job, "eval", v);
        if (s->job.step >= s->job.total_steps)
            cli_trainlog_metrics(&s->job.log, v);
        cli_job_note_time(&s->job, "time/evals", begun_ms);
        tkc_tree_update_missing(s->job.pending, v);
        cli_note(s->job.app, "step %zu: test loss %.4f", s->job.step, mean_nll(&sc));
    }
    tinkc_future_free(f);
    return ok;
}

/* ---- checkpoints ---- */

static bool eval_due(const cli_sft *s, size_t step)
{
    int64_t n = cli_int(s->job.app, "eval-every");
    return s->test.n && n > 0 && step % (size_t)n == 0;
}

static bool pause_due(const cli_sft *s, size_t step)
{
    return cli_job_save_due(&s->job, step) || eval_due(s, step) || cli_samples_due(&s->job, step) ||
           cli_job_rolling_due(&s->job, step);
}

/* What happens between steps, with none in flight. */
static bool between_steps(cli_sft *s, tinkc_error *err)
{
    if (eval_due(s, s->job.step) && !evaluate(s, err))
        return false;
    if (cli_samples_due(&s->job, s->job.step) && !cli_samples_take(&s->job))
        return false;
    return cli_job_save_if_due(&s->job, err);
}

/* ---- the loop ---- */

static bool train(cli_sft *s, tinkc_error *err)
{
    flight ring[MAX_IN_FLIGHT];
    size_t ahead = (size_t)cli_int(s->job.app, "submit-ahead"), first = 0, n = 0,
           next = s->job.step;
    while (!err->code && (next < s->job.total_steps || n)) {
        bool stop = cli_stop_signal() != 0;
        if (n == 0 && stop)
            break;
        bool may_send = next < s->job.total_steps && !stop && n <= ahead;
        if (may_send && pause_due(s, next)) {
            if (n == 0 && !between_steps(s, err))
                break;
            may_send = n == 0 && !err->code;
        }
        if (may_send) {
            send_step(s, next++, &ring[(first + n++) % MAX_IN_FLIGHT], err);
        } else if (n) {
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

int cli_sft_run(cli_sft *s)
{
    tinkc_error err = { 0 };
    cli_job_start(&s->job);
    bool ok = train(s, &err);
    if (cli_stop_signal())
        return cli_job_stop_early(&s->job);
    if (ok && s->job.step > s->job.first_step) {
        bool wanted = cli_int(s->job.app, "eval-every") > 0;
        ok = (!wanted || evaluate(s, &err)) && cli_samples_take(&s->job) &&
             cli_job_checkpoint(&s->job, true, false, &err);
        if (cli_stop_signal())
            return cli_job_stop_early(&s->job);
    }
    if (!ok)
        return cli_job_failed(&s->job, &err);
    cli_job_goodbye(&s->job);
    return 0;
}
