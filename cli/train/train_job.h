/* train_job.h - one training run, whatever the recipe: what it stands on and where it stands.
 *
 * A recipe embeds a cli_job, fills in the steps, opens it, and moves `step` as it trains.
 */
#ifndef CLI_TRAIN_JOB_H
#define CLI_TRAIN_JOB_H

#include "cli/track/train_log.h"

typedef struct cli_job {
    cli_app *app;
    const char *model;
    char *renderer; /* NULL = the model's own template */
    tinkc_tokenizer *tokenizer;
    tinkc_trainer *trainer;
    cli_trainlog log;
    char *log_dir;
    cli_claim claim;          /* of log_dir */
    bool resumed, start_over; /* what becomes of a run in log_dir; neither = it holds none */

    /* Of what train sft takes by default, as a share: the recipe's rate where --lr does not say it. 0 =
     * the option has a default of its own. */
    double rate_share;
    char rate_why[128]; /* where a rate that was not given comes from; "" = it was given */

    size_t step, total_steps; /* next to run; where it ends */
    size_t n_batches, epochs; /* n_batches 0 = the recipe has no epochs */
    size_t first_step;        /* where this process began */
    size_t elapsed_tokens;
    int64_t begun_ms, last_save_ms, last_line_ms;
    size_t last_save_tokens;
    char *last_rolling; /* path to delete when the next is there */
    char *state_path, *sampler_path;
    bool saved; /* a checkpoint is recorded, of this step */
    size_t saved_step;
    bool warned_of_weights;
    tkc_arena arena;   /* of the two: what goes into the next step's row */
    tkc_tree *pending; /* what goes into the next step's row: evaluation, times; NULL = nothing */
    tkc_tree *spans;   /* where the time of the next step's row went; NULL = nothing yet */
    /* Called before a checkpoint is taken; false with err set keeps it from being taken. NULL = none */
    bool (*before_save)(void *user, tinkc_error *err);
    void *before_save_user;
} cli_job;

/* Settles what becomes of a run in --log-dir, the seed, model, renderer and tokenizer, and the rank and
 * layers of the adapter. 0, or an exit code after reporting. */
int cli_job_settle(cli_job *);
/* --log-dir, else tinkc-runs/{data}-{model}-{rank}rank-{rate}lr-{what}-{time}. Yours. */
char *cli_job_log_dir(const cli_job *, const char *data_path, double rate, const char *what);
/* Takes the folder, connects, opens the trainer (from the last checkpoint of a run that is resumed)
 * and the log, and writes config.json. A run that is resumed and has no steps left gets neither:
 * compare step and total_steps first. 0, or an exit code after reporting. */
int cli_job_open(cli_job *, const tkc_tree *config);
/* All options as JSON for config.json: by the cookbook's names, and as they were given. */
tkc_tree *cli_job_config(const cli_job *, const char *const *files, size_t n);
void cli_job_free(cli_job *);

/* The learning rate of a step by --lr-schedule and --warmup-steps. */
double cli_job_rate(const cli_job *, double rate, size_t step);
/* 0, or an exit code after reporting: a warm-up as long as the run would never end. */
int cli_job_check_warmup(const cli_job *);
/* The optimizer as the options say, but for the rate. */
tinkc_adam cli_job_adam(const cli_app *, double rate);

/* Begins: the "start" event, signals, retries. */
void cli_job_start(cli_job *);
/* After a signal: what is trained is saved, and how to continue is said. The exit code. */
int cli_job_stop_early(cli_job *);
/* After a failure: reports it and how to continue. The exit code. */
int cli_job_failed(cli_job *, const tinkc_error *);
/* The "end" event and the last lines. */
void cli_job_goodbye(cli_job *);

/* Saves state and sampler weights (a rolling one: state alone) and writes the record. */
bool cli_job_checkpoint(cli_job *, bool final, bool rolling, tinkc_error *err);
bool cli_job_every(const cli_app *, const char *option, size_t step);
bool cli_job_save_due(const cli_job *, size_t step);
bool cli_job_rolling_due(const cli_job *, size_t step);
/* The checkpoint that is due after the current step, if one is. */
bool cli_job_save_if_due(cli_job *, tinkc_error *err);

/* Writes a step's row of metrics. Warns if it cannot, and once if the service says that the step made
 * weights too large to compute with. */
void cli_job_write_row(cli_job *, const tkc_tree *row);
/* The status line after a step: a bar, the recipe's own words, the time that is left. */
void cli_job_show_step(cli_job *, size_t step, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Tokens a second; 0 = there was no time to measure. */
double cli_job_speed(size_t tokens, int64_t ms);
/* An event: to --json, to --hook. The value is borrowed. */
void cli_job_tell(cli_job *, const char *event, const tkc_tree *v);
void cli_job_set(tkc_tree *, const char *key, double); /* null if not finite */
void cli_job_add_metrics(tkc_tree *, const tinkc_metrics *);
void cli_job_span(cli_job *, const char *name, int64_t begun_ms, int64_t ended_ms);
/* The row is written, and nothing goes into the next one yet. */
void cli_job_end_row(cli_job *);
void cli_job_write_spans(cli_job *, size_t step);
/* For the row of the step that comes next; name is "time/...". */
void cli_job_note_time(cli_job *, const char *name, int64_t begun_ms);

#endif
