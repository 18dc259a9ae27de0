/* recipes.h - the loops of post-training: rollouts in groups, rewards, environments, reinforcement
 * learning, preferences, distillation, evaluation. Only for programs that link libtinkc-recipes.
 *
 * The most important rule: training uses exactly the tokens and log-probabilities that were
 * sampled. Nothing here decodes a text and encodes it again to train on it.
 *
 * The pieces can be used one by one. From the top down:
 *
 *     tinkc_rl         batches of groups, advantages, training steps, sampling ahead
 *     tinkc_rollouts   many episodes at once, each ending in a reward
 *     tinkc_reward     what an answer is worth: graders, a command, a URL, a function
 *     tinkc_env        multi-turn episodes: a command or functions
 *
 * Everything runs on the thread that calls; children and requests are served while it waits.
 */
#ifndef TINKC_RECIPES_H
#define TINKC_RECIPES_H

#include "sample.h"
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tinkc_reward   tinkc_reward;   /* gives rewards [one thread]                 */
typedef struct tinkc_env      tinkc_env;      /* makes episodes of several turns [one thread] */
typedef struct tinkc_rollouts tinkc_rollouts; /* many episodes at once [one thread]         */
typedef struct tinkc_group    tinkc_group;    /* the rollouts of one task [one thread]      */
typedef struct tinkc_rl       tinkc_rl;       /* a reinforcement learning run [one thread]  */

/* ---- numbers ---- */

enum { /* how a reward becomes an advantage within its group */
    TINKC_ADVANTAGE_MEAN          = 0, /* reward - mean                                     */
    TINKC_ADVANTAGE_STD           = 1, /* (reward - mean) / (standard deviation + 1e-6)     */
    TINKC_ADVANTAGE_LEAVE_ONE_OUT = 2  /* reward - mean of the others; 0 in a group of one  */
};

/* The advantages of n rewards. Errors: ARGUMENT (a reward that is not finite, unknown way). */
TINKC_API bool tinkc_recipe_advantages(int32_t how, const double *rewards, size_t n, double *out,
                                       tinkc_error *);
/* Whether all n are equal: such a group teaches nothing. */
TINKC_API bool tinkc_recipe_is_constant(const double *rewards, size_t n);
/* The chance that at least one of k answers is right, from `right` of n: the unbiased estimator.
 * NaN unless 1 <= k <= n and right <= n. */
TINKC_API double tinkc_recipe_pass_at_k(size_t n, size_t right, size_t k);

typedef struct tinkc_interval { double mean, low, high; } tinkc_interval;
/* The mean of n values and its confidence interval (0.95 is usual) by bootstrap; the same seed gives
 * the same interval. All NaN without values. */
TINKC_API tinkc_interval tinkc_recipe_bootstrap(const double *values, size_t n, double confidence,
                                                uint64_t seed);
/* The share of right answers among n, and Wilson's interval: 20 of 20 is 1, from 0.84 to 1. All NaN
 * where n is 0 or right above n. */
TINKC_API tinkc_interval tinkc_recipe_wilson(size_t right, size_t n, double confidence);
/* Two answers to each of the same questions, right or wrong: the second's share of right answers
 * minus the first's, and Newcombe's interval for paired shares. */
TINKC_API tinkc_interval tinkc_recipe_paired_difference(size_t both, size_t only_first,
                                                        size_t only_second, size_t neither,
                                                        double confidence);
/* A seed below 2^63 that depends on all of its parts. */
TINKC_API uint64_t tinkc_recipe_seed(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);

/* ---- tasks ---- */

typedef struct tinkc_task {
    const char    *row_json;      /* the whole row as an object; NULL = {}                    */
    const char    *messages_json; /* the prompt as messages, or {"messages": M, "tools": T}; or */
    const int32_t *tokens;        /* the prompt itself; or neither: the environment gives it  */
    size_t         n_tokens;
    const char    *answer;        /* what graders compare with; NULL = none                   */
    const char    *where;         /* for messages: "prompts.jsonl:17"; NULL = the task's number */
    const char    *tag;           /* metrics are also kept by tag; NULL = none                */
    uint64_t       reserved[4];
} tinkc_task;
TINKC_PIN_SIZE(tinkc_task, 88);

/* ---- rewards ---- */

/* A line for the log: a child's standard error, restarts, protocol faults. NULL = dropped. Called
 * on the thread that runs the rollouts. */
typedef void tinkc_recipe_log_fn(int32_t level, const char *line, void *user);

/* A grader that runs here. `spec` is a name, for some with ":" and a setting:
 *
 *     exact          the answer, white space at both ends aside
 *     contains       the text contains the answer
 *     regex:PATTERN  the text matches (PCRE2); without a pattern the answer is the pattern
 *     number         the last number in the text equals the answer, to 1e-6 relative
 *     boxed-math     the last \boxed{} equals the answer, both normalised
 *     json-schema:FILE  the text is JSON that conforms; without a file the row's "schema" is used
 *
 * All give 1 or 0. Errors: ARGUMENT, FILE. */
TINKC_API tinkc_reward *tinkc_reward_grader(const char *spec, tinkc_error *);

/* A command that is run with the shell: one JSON line for each rollout on its standard input, one
 * line back (docs/protocol.md). `processes` of them at once (0 = 4), each with one rollout at a
 * time; one that dies is started again, one that takes longer than timeout_ms (0 = 60 000) for an
 * answer is killed. */
TINKC_API tinkc_reward *tinkc_reward_command(const char *command, size_t processes,
                                             int64_t timeout_ms, tinkc_recipe_log_fn *log,
                                             void *user, tinkc_error *);

/* The same lines as the bodies of HTTP POST requests. */
TINKC_API tinkc_reward *tinkc_reward_url(const char *url, int64_t timeout_ms, tinkc_error *);

/* A model that reads the conversation and answers with a number from 0 to 10, which is divided by
 * 10. `rubric` is what it looks for. The sampler and the tokenizer are kept. */
TINKC_API tinkc_reward *tinkc_reward_rubric(tinkc_sampler *, const tinkc_tokenizer *,
                                            const char *renderer, const char *rubric,
                                            tinkc_error *);

typedef struct tinkc_rollout tinkc_rollout;

/* A function of yours. False fails the rollout, and nothing is trained on it. */
typedef bool tinkc_reward_fn(const tinkc_rollout *, void *user, double *reward, tinkc_error *);
TINKC_API tinkc_reward *tinkc_reward_function(const char *name, tinkc_reward_fn *fn, void *user,
                                              tinkc_error *);

/* Its share in the total; 1 at first. Errors: ARGUMENT if not finite. */
TINKC_API bool tinkc_reward_weigh(tinkc_reward *, double weight, tinkc_error *);
/* Whether it needs an answer (or a schema) in each row. */
TINKC_API bool tinkc_reward_needs_answer(const tinkc_reward *);
/* Grades one text against one answer, for those that run here. Errors: UNSUPPORTED for the others. */
TINKC_API bool tinkc_reward_grade(tinkc_reward *, const char *text, const char *answer,
                                  const char *row_json, double *out, tinkc_error *);
/* Ends its children. Not while rollouts use it. NULL allowed. */
TINKC_API void tinkc_reward_free(tinkc_reward *);

/* Commands of rewards and environments see neither the descriptors of this process nor its credentials:
 * they get the variables that programs need to start (PATH, HOME, LANG, ...; the list is in
 * docs/protocol.md) and those that are named here, before the first use. Errors: ARGUMENT if it is
 * not the name of a variable, or not a command's reward. */
TINKC_API bool tinkc_reward_pass_env(tinkc_reward *, const char *name, tinkc_error *);
/* Whether commands get a variable of this name anyway. */
TINKC_API bool tinkc_recipe_command_sees(const char *name);

/* ---- environments ---- */

/* A command that speaks the line protocol of docs/protocol.md: many episodes at once on each of
 * `processes` (0 = 1). A step that takes longer than timeout_ms (0 = 60 000) ends the process, and
 * its episodes fail. */
TINKC_API tinkc_env *tinkc_env_command(const char *command, size_t processes, int64_t timeout_ms,
                                       tinkc_recipe_log_fn *log, void *user, tinkc_error *);

/* As tinkc_reward_pass_env. */
TINKC_API bool tinkc_env_pass_env(tinkc_env *, const char *name, tinkc_error *);

/* The same in this process. `request_json` is one line of the protocol; the function appends the
 * answer's line to *answer. False fails the episode. */
typedef bool tinkc_env_fn(const char *request_json, tinkc_text *answer, void *user, tinkc_error *);
TINKC_API tinkc_env *tinkc_env_function(tinkc_env_fn *fn, void *user, tinkc_error *);
/* Ends its children. Not while rollouts use it. NULL allowed. */
TINKC_API void tinkc_env_free(tinkc_env *);

/* Tests a command against the protocol: calls `say` with each check's name, whether it passed, and
 * what was wrong. True if all passed. Waits. */
typedef void tinkc_env_check_fn(const char *check, bool passed, const char *detail, void *user);
TINKC_API bool tinkc_env_check(const char *command, const char *row_json, int64_t timeout_ms,
                               tinkc_env_check_fn *say, void *user, tinkc_error *);
/* The same with variables that the command gets beside the usual ones; `pass` ends with NULL. */
TINKC_API bool tinkc_env_check_passing(const char *const *pass, const char *command,
                                       const char *row_json, int64_t timeout_ms,
                                       tinkc_env_check_fn *say, void *user, tinkc_error *);

/* ---- rollouts ---- */

/* Samplers that rollouts use are not kept: free them after the rollouts. */

struct tinkc_rollout {            /* made by the library; may grow at its end                */
    size_t        group, index;   /* which task of the batch; which rollout of the task      */
    tinkc_i32s    tokens;         /* of all its examples, one behind the other               */
    tinkc_f32s    logprobs;       /* as many; of sampled tokens, else 0                      */
    tinkc_f32s    mask;           /* as many; 1 = sampled, 0 = read                          */
    const size_t *ends;           /* where each example ends                                 */
    size_t        n_examples;     /* more than 1 if a turn does not extend the one before    */
    size_t        turns, sampled_tokens, read_tokens;
    double        reward;
    const char *const *metric_names; /* list                                                 */
    const double *metric_values;  /* one for each                                            */
    const char   *text;           /* the last answer, without the token that ended it        */
    const char   *messages_json;  /* the whole conversation                                  */
    const char   *answer;         /* of the task; NULL = none                                */
    const char   *row_json;       /* of the task                                             */
    const char   *where;          /* of the task                                             */
    const char   *error;          /* why it failed; NULL = it did not                        */
    int32_t       stop_reason;    /* TINKC_STOP*, of the last answer                         */
    int64_t       took_ms;
};

typedef struct tinkc_rollout_options {
    const tinkc_tokenizer *tokenizer;       /* required                                       */
    const char            *renderer;        /* NULL = the model's own template                */
    const char            *system;          /* put before every prompt of messages; NULL = none */
    tinkc_reward *const   *rewards;         /* not taken over; their weighted sum is the reward */
    size_t                 n_rewards;
    tinkc_env             *env;             /* not taken over; NULL = one answer to each prompt */
    const char *const     *stop;            /* NULL = where an answer in this format ends     */
    tinkc_recipe_log_fn   *log;
    void                  *log_user;
    int64_t                sample_timeout_ms; /* of one answer; 0 = 300 000                   */
    double                 temperature;     /* used as it is: 0 is greedy                     */
    double                 top_p;           /* 0 = 1                                          */
    int32_t                max_tokens;      /* of one answer; 0 = 256                         */
    int32_t                max_concurrent;  /* episodes at once; 0 = 256                      */
    int32_t                max_turns;       /* 0 = 16                                         */
    int32_t                max_episode_tokens; /* read and sampled; 0 = 32 768                */
    int32_t                context_length;  /* of the model: answers end there; 0 = not known */
    int32_t                reserved_int;
    bool                   no_logprobs;     /* a sample without log-probabilities will do     */
    bool                   reserved_bools[7];
    uint64_t               reserved[4];
} tinkc_rollout_options;
TINKC_PIN_SIZE(tinkc_rollout_options, 160);

TINKC_API tinkc_rollouts *tinkc_rollouts_new(tinkc_client *, const tinkc_rollout_options *,
                                             tinkc_error *);
/* Cancels what runs. NULL allowed. */
TINKC_API void tinkc_rollouts_free(tinkc_rollouts *);

/* Begins n episodes of one task with these weights. `id` is yours: it comes back with the group.
 * The same seed gives the same samples where the service is deterministic. */
TINKC_API bool tinkc_rollouts_add(tinkc_rollouts *, tinkc_sampler *, const tinkc_task *, size_t n,
                                  uint64_t id, uint64_t seed, tinkc_error *);
/* Waits for the next group whose episodes have all ended, in any order. Yours; NULL with TIMEOUT,
 * or with a clean err when nothing is left. Failed episodes do not fail the call: see their error. */
TINKC_API tinkc_group *tinkc_rollouts_next(tinkc_rollouts *, int64_t timeout_ms, tinkc_error *);
/* Advances the episodes for up to timeout_ms, or until something has happened. */
TINKC_API bool tinkc_rollouts_run(tinkc_rollouts *, int64_t timeout_ms, tinkc_error *);
/* Groups that were added and not taken yet; episodes that run now. */
TINKC_API size_t tinkc_rollouts_pending(const tinkc_rollouts *);
TINKC_API size_t tinkc_rollouts_running(const tinkc_rollouts *);
/* Waits for a future while the episodes run. */
TINKC_API bool tinkc_rollouts_wait(tinkc_rollouts *, tinkc_future *, tinkc_error *);

TINKC_API uint64_t tinkc_group_id(const tinkc_group *);
TINKC_API size_t   tinkc_group_count(const tinkc_group *);
/* Until the group is freed. */
TINKC_API const tinkc_rollout *tinkc_group_at(const tinkc_group *, size_t);
TINKC_API const char *tinkc_group_tag(const tinkc_group *); /* NULL = none */
TINKC_API void     tinkc_group_free(tinkc_group *);
/* One line of JSON for each rollout, tokens and log-probabilities to the last bit. Appends. */
TINKC_API bool tinkc_group_write(const tinkc_group *, tinkc_text *out, tinkc_error *);
/* Reads such lines back, up to the end of the group; *len is how many bytes that were. Yours.
 * Errors: BAD_RESPONSE. */
TINKC_API tinkc_group *tinkc_group_read(const char *text, size_t *len, tinkc_error *);

/* What a batch of groups says, by the cookbook's names: PREFIX/all/reward/total and the like, and by tag
 * where tags split it. Failed rollouts are left out. Calls fn for each. */
typedef void tinkc_recipe_metric_fn(const char *name, double value, void *user);
TINKC_API bool tinkc_recipe_metrics(const tinkc_group *const *, size_t n, const char *prefix,
                                    tinkc_recipe_metric_fn *fn, void *user, tinkc_error *);

/* ---- examples ---- */

/* Adds each example of a rollout to the batch, with one advantage for each token (as many as the
 * rollout has tokens; only those under the mask count). With split, one example for each turn: for
 * losses that look at tokens of advantage 0 too (dro). */
TINKC_API bool tinkc_recipe_add_rollout(tinkc_batch *, const tinkc_rollout *, const float *advantages,
                                        bool split, tinkc_error *);
/* What the model just trained says about the rollout, from the outputs of the examples that the
 * call above made, `first` being the first of them. Writes as many log-probabilities as the rollout
 * has tokens, 0 where there are none. Returns how many examples it took. */
TINKC_API size_t tinkc_recipe_read_logprobs(const tinkc_fwdbwd *, size_t first,
                                            const tinkc_rollout *, bool split, float *out);

/* Adds coef * (mean d - d) to the advantages, d = logprobs - reference under the mask; with discount
 * above 0 the discounted sum of that over the tokens to come. Arrays of n tokens; `mean` is that of
 * the batch. With `centre` false, -coef * d: distillation's. */
TINKC_API void tinkc_recipe_kl_advantages(const float *logprobs, const float *reference,
                                          const float *mask, size_t n, double coef, double mean,
                                          double discount, bool centre, float *advantages);

/* ---- reinforcement learning ---- */

typedef struct tinkc_rl_options {
    tinkc_rollout_options  rollouts;
    const char            *loss;            /* NULL = importance_sampling                     */
    const char *const     *loss_names;      /* list of its settings                           */
    const double          *loss_values;     /* one for each                                   */
    /* Log-probabilities to compare with: one sampler that gives the advantage of KL, or with
     * distill the teachers, of which the batch's task picks one (tinkc_rl_add's teacher). */
    tinkc_sampler *const  *references;
    size_t                 n_references;
    const char            *reference_system; /* put before the prompt for the references alone; NULL */
    double                 kl_coef;         /* 0 = none; 1 is usual with distill               */
    double                 kl_discount;
    tinkc_adam             adam;            /* start from TINKC_ADAM_INIT                     */
    uint64_t               seed;
    size_t                 group_size;      /* 0 = 4                                          */
    size_t                 groups_per_batch; /* 0 = 100                                       */
    size_t                 substeps;        /* optimizer steps for a batch; 0 = 1             */
    size_t                 max_steps_off_policy; /* 0 = each batch is sampled from the weights it trains */
    size_t                 first_step;      /* where a resumed run begins                     */
    int32_t                advantage;       /* TINKC_ADVANTAGE_*                              */
    bool                   remove_constant; /* groups with equal rewards are not trained on   */
    bool                   distill;         /* advantages come from the references alone      */
    bool                   reserved_bools[2];
    uint64_t               reserved[4];
} tinkc_rl_options;

/* What a run asks of its owner. All may be NULL. */
typedef struct tinkc_rl_hooks {
    void *user;
    /* Called often while it waits; false stops it with TINKC_E_CANCELLED. */
    bool (*tick)(void *user);
    /* The groups of a batch, sampled in full, before they are trained: to be kept. False fails the
     * step, with the error that it sets or TINKC_E_CALLBACK. */
    bool (*record)(void *user, size_t batch, const tinkc_group *const *, size_t n, tinkc_error *);
    /* What was kept of a batch by an earlier process, or "" (not NULL): lines of tinkc_group_write. */
    const char *(*recall)(void *user, size_t batch, tinkc_error *);
    uint64_t reserved[4];
} tinkc_rl_hooks;

typedef struct tinkc_rl_report { /* made by the library; may grow at its end; until the next step */
    size_t        step;
    const char *const *metric_names; /* list, by the cookbook's names                         */
    const double *metric_values; /* one for each; NaN = none                                  */
    const tinkc_group *const *groups;  /* of the batch                                        */
    size_t        n_groups;
    double        reward;       /* mean over the rollouts                                     */
    size_t        trained;      /* rollouts that were trained on                              */
    size_t        failed;       /* rollouts with an error                                     */
    size_t        staleness;    /* steps between the weights it was sampled from and these    */
    size_t        tokens;       /* read and sampled                                           */
} tinkc_rl_report;

/* Prompts are taken in the order they were added, over and over. Keeps the trainer. */
TINKC_API tinkc_rl *tinkc_rl_new(tinkc_client *, tinkc_trainer *, const tinkc_rl_options *,
                                 const tinkc_rl_hooks *, tinkc_error *);
TINKC_API void      tinkc_rl_free(tinkc_rl *);
TINKC_API bool      tinkc_rl_add(tinkc_rl *, const tinkc_task *, size_t teacher, tinkc_error *);
/* One step: samples (or has sampled) a batch, trains on it, starts sampling the next. total is
 * where the run ends, so that nothing is sampled in vain. Until the next call; NULL with err set.
 * REQUEST_FAILED with cause CALLBACK: every rollout of the step failed, and nothing was trained. */
TINKC_API const tinkc_rl_report *tinkc_rl_step(tinkc_rl *, size_t total, tinkc_error *);
/* Waits until no batch is half sampled: then a checkpoint of the trainer and what was recorded are
 * all that is needed to continue. */
TINKC_API bool tinkc_rl_settle(tinkc_rl *, tinkc_error *);
/* The weights of now, to evaluate with. Borrowed until the next step. */
TINKC_API tinkc_sampler *tinkc_rl_sampler(tinkc_rl *, tinkc_error *);

/* ---- preferences ---- */

enum { TINKC_PREFER_DPO = 0, TINKC_PREFER_IPO = 1, TINKC_PREFER_KTO = 2 };

/* A loss over pairs (chosen, rejected, chosen, rejected ...), or with KTO over single examples. */
typedef struct tinkc_preference {
    const double *reference; /* for each example sum(weights * logprobs) of the reference model */
    const bool   *good;      /* KTO: whether each example is a good one                       */
    size_t        n;         /* must be the number of examples                                */
    double        beta;      /* 0.1 is usual                                                  */
    double        kl;        /* KTO: the batch's estimate of the KL, at least 0               */
    int32_t       kind;      /* TINKC_PREFER_*                                                */
    bool          by_length; /* sums are divided by the number of tokens that count           */
    bool          reserved_bools[3];
    uint64_t      reserved[4];
} tinkc_preference;
TINKC_PIN_SIZE(tinkc_preference, 80);

/* KTO's estimate of the KL between policy and reference: the mean of log(policy / reference) over
 * examples whose answers belong to other prompts, at least 0. The outputs are those of a forward pass
 * over the batch; reference holds one sum(weights * logprobs) for each example. 0 with err set. */
TINKC_API double tinkc_recipe_kto_kl(const tinkc_fwdbwd *, const tinkc_batch *, const double *reference,
                                     size_t n, bool by_length, tinkc_error *);

/* user: const tinkc_preference *. A tinkc_loss_fn. Metrics dpo_loss, accuracy, margin,
 * chosen_reward, rejected_reward. */
TINKC_API bool tinkc_recipe_loss_preference(tinkc_loss *, void *user, tinkc_error *);

#ifdef __cplusplus
}
#endif
#endif
