/* train_epochs.c - steps over shuffled examples, one at a time, with evaluation and checkpoints. */
#include "cli/train/train_epochs.h"

#include <stdlib.h>
#include <string.h>

#include "cli/output/out.h"
#include "cli/data/shuffle.h"
#include "cli/output/term.h"
#include "cli/output/text.h"
#include "cli/train/train_samples.h"

int cli_epochs_plan(cli_epochs *e)
{
    cli_job *j = e->job;
    const cli_app *app = j->app;
    if (cli_int(app, "batch-size") < 1 || cli_int(app, "epochs") < 1 ||
        cli_int(app, "max-length") < 2)
        return cli_fail(app, "usage", NULL,
                        "--batch-size and --epochs must be above 0, --max-length above 1");
    if (cli_number(app, "lr") <= 0)
        return cli_fail(app, "usage", NULL, "--lr must be above 0");
    if (cli_given(app, "max-steps") && cli_int(app, "max-steps") < 1)
        return cli_fail(app, "usage", NULL, "--max-steps must be at least 1");
    e->rate = cli_number(app, "lr");
    e->batch_size = (size_t)cli_int(app, "batch-size");
    if (e->batch_size > e->n)
        e->batch_size = e->n;
    j->n_batches = e->n / e->batch_size;
    j->epochs = (size_t)cli_int(app, "epochs");
    j->total_steps = j->n_batches * j->epochs;
    if (cli_given(app, "max-steps") && (size_t)cli_int(app, "max-steps") < j->total_steps)
        j->total_steps = (size_t)cli_int(app, "max-steps");
    return cli_job_check_warmup(j);
}

static const size_t *batch_of(cli_epochs *e, size_t step)
{
    size_t epoch = step / e->job->n_batches;
    if (!e->order || e->order_epoch != epoch) {
        free(e->order);
        e->order =
            cli_shuffled(e->n, (uint64_t)cli_int(e->job->app, "shuffle-seed") + (uint64_t)epoch);
        e->order_epoch = epoch;
    }
    return e->order ? e->order + step % e->job->n_batches * e->batch_size : NULL;
}

static bool evaluate(cli_epochs *e, tinkc_error *err)
{
    cli_job *j = e->job;
    int64_t begun_ms = cli_now_ms();
    tkc_tree *v = tkc_tree_pack(&j->arena, "{s:I}", "step", (int64_t)j->step);
    bool ok = e->evaluate(e->user, v, err);
    if (ok) {
        cli_job_tell(j, "eval", v);
        if (j->step >= j->total_steps)
            cli_trainlog_metrics(&j->log, v);
        cli_job_note_time(j, "time/evals", begun_ms);
        tkc_tree_update_missing(j->pending, v);
    }
    return ok;
}

static bool between_steps(cli_epochs *e, tinkc_error *err)
{
    cli_job *j = e->job;
    int64_t every = cli_int(j->app, "eval-every");
    if (e->evaluate && every > 0 && j->step % (size_t)every == 0 && !evaluate(e, err))
        return false;
    if (cli_samples_due(j, j->step) && !cli_samples_take(j))
        return false;
    return cli_job_save_if_due(j, err);
}

static bool one_step(cli_epochs *e, tinkc_error *err)
{
    cli_job *j = e->job;
    int64_t begun_ms = cli_now_ms();
    double rate = cli_job_rate(j, e->rate, j->step);
    const size_t *which = batch_of(e, j->step);
    tkc_tree *v = tkc_tree_pack(&j->arena, "{s:I,s:I,s:f,s:f}", "step", (int64_t)j->step, "epoch",
                                (int64_t)(j->step / j->n_batches), "progress",
                                (double)j->step / (double)j->total_steps, "learning_rate", rate);
    if (!which)
        tinkc_error_set(err, TINKC_E_MEMORY, "out of memory");
    bool ok = which && e->step(e->user, which, e->batch_size, rate, v, err);
    if (ok) {
        if (j->pending)
            tkc_tree_update(v, j->pending);
        tkc_tree_set_real(v, "time/step", (double)(cli_now_ms() - begun_ms) / 1000);
        cli_job_span(j, "step", begun_ms, cli_now_ms());
        cli_job_write_spans(j, j->step);
        cli_job_write_row(j, v);
        cli_job_tell(j, "step", v);
        cli_job_show_step(j, j->step, "%s %.4f  lr %.2e", e->watch,
                          tkc_tree_get_number(v, e->watch), rate);
        cli_job_end_row(j);
        j->step++;
    }
    return ok;
}

int cli_epochs_run(cli_epochs *e)
{
    tinkc_error err = { 0 };
    cli_job *j = e->job;
    bool ok = true;
    if (j->step >= j->total_steps) {
        cli_note(j->app, "nothing is left to do: %zu of %zu steps are done", j->step,
                 j->total_steps);
        return 0;
    }
    cli_job_start(j);
    while (ok && j->step < j->total_steps && !cli_stop_signal())
        ok = between_steps(e, &err) && one_step(e, &err);
    if (ok && !cli_stop_signal()) {
        bool wanted = e->evaluate && cli_int(j->app, "eval-every") > 0;
        ok = (!wanted || evaluate(e, &err)) && cli_samples_take(j) &&
             cli_job_checkpoint(j, true, false, &err);
    }
    free(e->order);
    e->order = NULL;
    if (cli_stop_signal())
        return cli_job_stop_early(j);
    if (!ok)
        return cli_job_failed(j, &err);
    cli_job_goodbye(j);
    return 0;
}
