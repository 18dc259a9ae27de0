/* rl.c - reinforcement learning: batches of groups, advantages, steps, sampling ahead.
 *
 * With a lag of d (max_steps_off_policy) batch b is always sampled from the weights after step b -
 * d (the first ones from those at the beginning), however fast either side is. So the same seed
 * gives the same run, and on a deterministic service the same bits, whether or not it was
 * interrupted: a complete batch is passed to `record` and read back by `recall` after a restart,
 * and tinkc_rl_settle waits until no batch is partially sampled.
 *
 *     step k:  weights k known -> start sampling batch k + d -> wait for batch k -> train on it
 */
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/str.h"
#include "recipes/children.h"
#include "recipes/envmetrics.h"
#include "recipes/episodes.h"
#include "recipes/reference_logprobs.h"

typedef struct weights { /* a snapshot to sample from */
    struct weights *next;
    tinkc_sampler *sampler;
    size_t step;
    size_t users; /* batches that are being sampled from it, and one for being the newest */
} weights;

typedef struct batch {
    struct batch *next;
    size_t index, step; /* step: of the weights it was sampled from */
    tinkc_group **groups;
    size_t n, got;
    weights *from; /* NULL = recalled, or whole */
    int64_t begun_ms, took_ms;
} batch;

typedef struct work { /* one rollout that is trained on */
    const tinkc_rollout *r;
    size_t teacher;
    float *advantages, *reference;
    size_t minibatch, first; /* where its examples lie */
} work;

struct tinkc_rl {
    tinkc_client *client;
    tinkc_trainer *trainer;
    tinkc_rl_options how;
    tinkc_rl_hooks hooks;
    tinkc_rollouts *pool;
    tkc_arena arena;
    tinkc_task *tasks;
    size_t *teachers;
    size_t n_tasks, tasks_cap, teachers_cap;
    size_t step, next_batch;  /* to train; to begin sampling */
    batch *batches, *current; /* current: what the last report shows */
    weights *newest, *all_weights;
    tkr_table metrics;
    tinkc_rl_report report;
};

/* ---- waiting ---- */

static bool collect(tinkc_rl *rl, tinkc_error *err);

static bool pump(tinkc_rl *rl, tinkc_error *err)
{
    enum { SLICE_MS = 100 };
    if (!tinkc_rollouts_run(rl->pool, SLICE_MS, err) || !collect(rl, err))
        return false;
    if (rl->hooks.tick && !rl->hooks.tick(rl->hooks.user))
        return tkc_fail(err, TINKC_E_CANCELLED, "interrupted");
    return true;
}

static bool wait_for(tinkc_rl *rl, tinkc_future *f, tinkc_error *err)
{
    if (!f || tkc_failed(err) || !tkr_rollouts_watch(rl->pool, f, err))
        return false;
    while (!tinkc_future_done(f) && pump(rl, err))
        ;
    return !tkc_failed(err) && tinkc_future_wait(f, 0, err);
}

static bool wait_hook(void *user, tinkc_future *f, tinkc_error *err)
{
    return wait_for(user, f, err);
}

/* ---- weights to sample from ---- */

static void drop_weights(tinkc_rl *rl, weights *w)
{
    if (!w || --w->users)
        return;
    for (weights **at = &rl->all_weights; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    tinkc_sampler_free(w->sampler);
    tkc_release(NULL, w, sizeof *w);
}

static weights *weights_now(tinkc_rl *rl, tinkc_error *err)
{
    if (rl->newest && rl->newest->step == rl->step)
        return rl->newest;
    tinkc_future *f = tinkc_trainer_open_sampler(rl->trainer, NULL, err);
    tinkc_sampler *s = wait_for(rl, f, err) ? tinkc_future_sampler(f, 0, err) : NULL;
    tinkc_future_free(f);
    weights *w = s ? tkc_zalloc(NULL, sizeof *w, err) : NULL;
    if (!w) {
        tinkc_sampler_free(s);
        return NULL;
    }
    *w = (weights){ .next = rl->all_weights, .sampler = s, .step = rl->step, .users = 1 };
    rl->all_weights = w;
    drop_weights(rl, rl->newest);
    return rl->newest = w;
}

tinkc_sampler *tinkc_rl_sampler(tinkc_rl *rl, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    const weights *w = weights_now(rl, err);
    return w ? w->sampler : NULL;
}

/* ---- batches ---- */

static void free_batch(batch *b)
{
    for (size_t i = 0; b && b->groups && i < b->n; i++)
        tinkc_group_free(b->groups[i]);
    if (b)
        tkc_release(NULL, b->groups, b->n * sizeof *b->groups);
    tkc_release(NULL, b, b ? sizeof *b : 0);
}

static batch *new_batch(tinkc_rl *rl, size_t index, tinkc_error *err)
{
    batch *b = tkc_zalloc(NULL, sizeof *b, err);
    if (!b)
        return NULL;
    *b = (batch){ .index = index, .n = rl->how.groups_per_batch, .begun_ms = tkr_now_ms() };
    b->groups = tkc_zalloc(NULL, b->n * sizeof *b->groups, err);
    if (b->groups)
        return b;
    b->n = 0;
    free_batch(b);
    return NULL;
}

static void add_batch(tinkc_rl *rl, batch *b)
{
    b->next = rl->batches;
    rl->batches = b;
}

static size_t lag_of(const tinkc_rl *rl, size_t index)
{
    size_t d = rl->how.max_steps_off_policy;
    return index < d ? index : d;
}

/* Groups that an earlier process recorded. NULL with a clean err = there are none. */
static batch *recall(tinkc_rl *rl, size_t index, tinkc_error *err)
{
    const char *text = rl->hooks.recall ? rl->hooks.recall(rl->hooks.user, index, err) : "";
    if (tkc_failed(err) || !text || !*text)
        return NULL;
    batch *b = new_batch(rl, index, err);
    for (size_t at = 0, len; b && text[at] && b->got < b->n && !tkc_failed(err); at += len)
        b->groups[b->got++] = tinkc_group_read(text + at, &len, err);
    if (b && !tkc_failed(err) && b->got != b->n)
        tkc_fail(err, TINKC_E_BAD_RESPONSE, "%zu groups were recorded, %zu are expected", b->got,
                 b->n);
    if (!tkc_failed(err)) {
        b->step = index - lag_of(rl, index);
        return b;
    }
    tkc_fail_before(err, "recorded rollouts of batch %zu: ", index);
    free_batch(b);
    return NULL;
}

static bool begin_batch(tinkc_rl *rl, size_t index, tinkc_error *err)
{
    batch *b = recall(rl, index, err);
    if (!b && !tkc_failed(err)) {
        weights *w = weights_now(rl, err);
        b = w ? new_batch(rl, index, err) : NULL;
        for (size_t g = 0; b && g < b->n && !tkc_failed(err); g++) {
            uint64_t id = (uint64_t)index * b->n + g;
            tinkc_rollouts_add(rl->pool, w->sampler, &rl->tasks[id % rl->n_tasks],
                               rl->how.group_size, id, tinkc_recipe_seed(rl->how.seed, index, g, 2),
                               err);
        }
        if (b) {
            b->from = w;
            b->step = w->step;
            w->users++;
        }
    }
    if (b)
        add_batch(rl, b);
    return !tkc_failed(err);
}

static size_t usable(const batch *b)
{
    size_t n = 0;
    for (size_t g = 0; g < b->n; g++)
        for (size_t i = 0; i < tinkc_group_count(b->groups[g]); i++)
            n += !tinkc_group_at(b->groups[g], i)->error;
    return n;
}

/* All its groups have arrived. A batch without a usable rollout is not recorded, so that a resumed
 * run samples it again. */
static bool whole(tinkc_rl *rl, batch *b, tinkc_error *err)
{
    drop_weights(rl, b->from);
    b->from = NULL;
    b->took_ms = tkr_now_ms() - b->begun_ms;
    if (!rl->hooks.record || usable(b) == 0)
        return true;
    return rl->hooks.record(rl->hooks.user, b->index, (const tinkc_group *const *)b->groups, b->n,
                            err) ||
           tkc_fail(err, TINKC_E_CALLBACK, "rl: the record function failed for batch %zu",
                    b->index);
}

static bool collect(tinkc_rl *rl, tinkc_error *err)
{
    for (tinkc_group *g; (g = tkr_rollouts_take(rl->pool));) {
        uint64_t id = tinkc_group_id(g);
        batch *b = rl->batches;
        while (b && b->index != id / rl->how.groups_per_batch)
            b = b->next;
        if (!b || b->groups[id % b->n]) {
            tinkc_group_free(g);
            return tkc_fail(err, TINKC_E_STATE, "a group came that belongs to no batch");
        }
        b->groups[id % b->n] = g;
        if (++b->got == b->n && !whole(rl, b, err))
            return false;
    }
    return true;
}

static bool begin_ahead(tinkc_rl *rl, size_t total, tinkc_error *err)
{
    while (rl->next_batch <= rl->step + rl->how.max_steps_off_policy && rl->next_batch < total) {
        if (!begin_batch(rl, rl->next_batch, err))
            return false;
        rl->next_batch++;
    }
    return true;
}

bool tinkc_rl_settle(tinkc_rl *rl, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    for (;;) {
        const batch *b = rl->batches;
        while (b && b->got == b->n)
            b = b->next;
        if (!b)
            return !tkc_failed(err);
        if (!pump(rl, err))
            return false;
    }
}

/* The batch to train now, taken out of the list. */
static batch *take_batch(tinkc_rl *rl, tinkc_error *err)
{
    batch **at = &rl->batches;
    while (*at && (*at)->index != rl->step)
        at = &(*at)->next;
    batch *b = *at;
    while (b && b->got < b->n)
        if (!pump(rl, err))
            return NULL;
    if (!b)
        return tkc_fail(err, TINKC_E_STATE, "batch %zu was never begun", rl->step), NULL;
    for (at = &rl->batches; *at != b; at = &(*at)->next)
        ;
    *at = b->next;
    b->next = NULL;
    return b;
}

/* ---- advantages ---- */

typedef struct chosen { /* what is trained of a batch */
    work *all;
    size_t n, cap;
    size_t failed, skipped, constant;
} chosen;

static void free_chosen(chosen *c)
{
    for (size_t i = 0; i < c->n; i++) {
        size_t bytes = c->all[i].r->tokens.len * sizeof(float);
        tkc_release(NULL, c->all[i].advantages, bytes);
        tkc_release(NULL, c->all[i].reference, bytes);
    }
    tkc_release(NULL, c->all, c->cap * sizeof *c->all);
}

static bool choose(chosen *c, const tinkc_rollout *r, double advantage, size_t teacher,
                   tinkc_error *err)
{
    work *grown = tkc_grow(NULL, c->all, &c->cap, c->n + 1, sizeof *grown, err);
    if (!grown)
        return false;
    c->all = grown;
    work *w = &c->all[c->n];
    *w = (work){ .r = r, .teacher = teacher };
    w->advantages = tkc_zalloc(NULL, r->tokens.len * sizeof(float), err);
    if (!w->advantages)
        return false;
    for (size_t i = 0; i < r->tokens.len; i++)
        w->advantages[i] = (float)advantage * r->mask.data[i];
    c->n++;
    return true;
}

/* Rollouts that failed do not count; a group needs two that did not. */
static bool choose_group(const tinkc_rl *rl, chosen *c, const tinkc_group *g, tinkc_error *err)
{
    size_t size = tinkc_group_count(g), n = 0;
    double *rewards = tkc_alloc(NULL, size * sizeof *rewards, err);
    double *advantages = tkc_zalloc(NULL, size * sizeof *advantages, err);
    bool ok = rewards && advantages;
    for (size_t i = 0; ok && i < size; i++)
        if (!tinkc_group_at(g, i)->error)
            rewards[n++] = tinkc_group_at(g, i)->reward;
    c->failed += size - n;
    bool few = n == 0 || (n == 1 && size > 1 && !rl->how.distill);
    bool constant = !few && tinkc_recipe_is_constant(rewards, n) && !rl->how.distill;
    c->skipped += few;
    c->constant += constant;
    ok = ok && tinkc_recipe_advantages(rl->how.advantage, rewards, n, advantages, err);
    size_t teacher = rl->teachers[tinkc_group_id(g) % rl->n_tasks], at = 0;
    for (size_t i = 0; ok && !few && !(constant && rl->how.remove_constant) && i < size; i++) {
        const tinkc_rollout *r = tinkc_group_at(g, i);
        if (!r->error)
            ok = choose(c, r, rl->how.distill ? 0 : advantages[at++], teacher, err);
    }
    tkc_release(NULL, rewards, size * sizeof *rewards);
    tkc_release(NULL, advantages, size * sizeof *advantages);
    return ok;
}

static double mean_difference(const work *w, size_t n)
{
    double sum = 0, count = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < w[i].r->tokens.len; k++) {
            double m = (double)w[i].r->mask.data[k];
            sum += m * ((double)w[i].r->logprobs.data[k] - (double)w[i].reference[k]);
            count += m;
        }
    return count > 0 ? sum / count : 0;
}

static bool add_teacher_means(tinkc_rl *rl, const chosen *c, tinkc_error *err)
{
    for (size_t t = 0; rl->how.n_references > 1 && t < rl->how.n_references; t++) {
        double sum = 0, count = 0;
        for (size_t i = 0; i < c->n; i++)
            if (c->all[i].teacher == t) {
                double tokens = (double)c->all[i].r->sampled_tokens;
                sum += mean_difference(&c->all[i], 1) * tokens;
                count += tokens;
            }
        if (count > 0)
            tkr_table_setf(&rl->metrics, sum / count, err, "teacher_kl/dataset_%zu", t);
    }
    return !tkc_failed(err);
}

/* Log-probabilities of the references, then what they add to the advantages. */
static bool add_kl(tinkc_rl *rl, chosen *c, tinkc_error *err)
{
    tkr_reference_job job = { .samplers = rl->how.references,
                              .system = rl->how.reference_system,
                              .format = tkr_rollouts_format(rl->pool),
                              .tasks = rl->tasks,
                              .n_tasks = rl->n_tasks,
                              .wait = wait_hook,
                              .user = rl };
    for (size_t i = 0; i < c->n && !tkc_failed(err); i++) {
        c->all[i].reference = tkc_zalloc(NULL, c->all[i].r->tokens.len * sizeof(float), err);
        if (c->all[i].reference)
            tkr_reference_add(&job, c->all[i].r, rl->how.distill ? c->all[i].teacher : 0,
                              c->all[i].reference, err);
    }
    tkr_reference_finish(&job, err);
    if (tkc_failed(err))
        return false;
    double mean = mean_difference(c->all, c->n);
    for (size_t i = 0; i < c->n; i++) {
        const tinkc_rollout *r = c->all[i].r;
        tinkc_recipe_kl_advantages(r->logprobs.data, c->all[i].reference, r->mask.data,
                                   r->tokens.len, rl->how.kl_coef, mean, rl->how.kl_discount,
                                   !rl->how.distill, c->all[i].advantages);
    }
    tkr_table_set(&rl->metrics, rl->how.distill ? "teacher_kl" : "kl_policy_base", mean, err);
    return !rl->how.distill || add_teacher_means(rl, c, err);
}

/* ---- one step ---- */

enum { MOST_SUBSTEPS = 64 };

typedef struct sent {
    tinkc_future *pass[MOST_SUBSTEPS], *moved[MOST_SUBSTEPS];
    size_t n;
} sent;

static bool splits(const tinkc_rl *rl)
{
    return strcmp(rl->how.loss, TINKC_DRO) == 0;
}

static void send_minibatch(tinkc_rl *rl, chosen *c, size_t k, size_t of, sent *out,
                           tinkc_error *err)
{
    tinkc_batch *b = tinkc_batch_new(rl->client, err);
    tinkc_loss_options loss = { .names = rl->how.loss_names, .values = rl->how.loss_values };
    for (size_t i = c->n * k / of; i < c->n * (k + 1) / of && !tkc_failed(err); i++) {
        c->all[i].minibatch = k;
        c->all[i].first = tinkc_batch_count(b);
        tinkc_recipe_add_rollout(b, c->all[i].r, c->all[i].advantages, splits(rl), err);
    }
    out->pass[k] = tinkc_forward_backward(rl->trainer, b, rl->how.loss, &loss, err);
    out->moved[k] = tinkc_optim_step(rl->trainer, &rl->how.adam, err);
    out->n = k + 1;
    tinkc_batch_free(b);
}

static void add_service_metrics(tinkc_rl *rl, const tinkc_metrics *m, tinkc_error *err)
{
    for (size_t i = 0; i < tinkc_metrics_count(m); i++) {
        const char *name = tinkc_metrics_name(m, i);
        bool placed = strncmp(name, "optim/", 6) == 0; /* some services name them so themselves */
        if (isfinite(tinkc_metrics_value(m, i)))
            tkr_table_setf(&rl->metrics, tinkc_metrics_value(m, i), err, "%s%s",
                           placed ? "" : "optim/", name);
    }
}

/* How far the weights that trained are from those that sampled. */
static bool add_drift(tinkc_rl *rl, const chosen *c, const sent *s, tinkc_error *err)
{
    double v1 = 0, v2 = 0, entropy = 0, count = 0;
    for (size_t i = 0; i < c->n && !tkc_failed(err); i++) {
        const work *w = &c->all[i];
        size_t n = w->r->tokens.len;
        float *trained = tkc_alloc(NULL, n * sizeof *trained, err);
        if (!trained)
            return false;
        tinkc_recipe_read_logprobs(tinkc_future_fwdbwd(s->pass[w->minibatch], 0, err), w->first,
                                   w->r, splits(rl), trained);
        for (size_t k = 0; k < n; k++)
            if (w->r->mask.data[k] > 0) {
                double d = (double)w->r->logprobs.data[k] - (double)trained[k];
                v1 += d;
                v2 += d * d / 2;
                entropy -= (double)w->r->logprobs.data[k];
                count++;
            }
        tkc_release(NULL, trained, n * sizeof *trained);
    }
    if (count > 0) {
        tkr_table_set(&rl->metrics, "optim/kl_sample_train_v1", v1 / count, err);
        tkr_table_set(&rl->metrics, "optim/kl_sample_train_v2", v2 / count, err);
        tkr_table_set(&rl->metrics, "optim/entropy", entropy / count, err);
    }
    return !tkc_failed(err);
}

static bool train(tinkc_rl *rl, chosen *c, tinkc_error *err)
{
    sent s = { .n = 0 };
    size_t of = rl->how.substeps < c->n ? rl->how.substeps : c->n;
    bool ok = true;
    double loss = 0;
    for (size_t k = 0; k < of && !tkc_failed(err); k++)
        send_minibatch(rl, c, k, of, &s, err);
    for (size_t k = 0; k < s.n && ok; k++) {
        ok = wait_for(rl, s.pass[k], err) && wait_for(rl, s.moved[k], err);
        const tinkc_fwdbwd *got = ok ? tinkc_future_fwdbwd(s.pass[k], 0, err) : NULL;
        loss += tinkc_fwdbwd_metric(got, "loss:sum", 0);
        if (ok)
            add_service_metrics(rl, tinkc_future_step(s.moved[k], 0, err), err);
    }
    if (ok && s.n) {
        tkr_table_set(&rl->metrics, "optim/loss", loss, err);
        ok = add_drift(rl, c, &s, err);
    }
    for (size_t k = 0; k < s.n; k++) {
        tinkc_future_free(s.pass[k]);
        tinkc_future_free(s.moved[k]);
    }
    return ok && !tkc_failed(err);
}

/* ---- the report ---- */

static const char *first_error(const batch *b)
{
    for (size_t g = 0; g < b->n; g++)
        for (size_t i = 0; i < tinkc_group_count(b->groups[g]); i++)
            if (tinkc_group_at(b->groups[g], i)->error)
                return tinkc_group_at(b->groups[g], i)->error;
    return "none was sampled";
}

static void count_batch(const batch *b, tinkc_rl_report *out)
{
    double reward = 0;
    size_t n = 0;
    for (size_t g = 0; g < b->n; g++)
        for (size_t i = 0; i < tinkc_group_count(b->groups[g]); i++) {
            const tinkc_rollout *r = tinkc_group_at(b->groups[g], i);
            out->tokens += r->tokens.len;
            if (!r->error) {
                reward += r->reward;
                n++;
            }
        }
    out->reward = n ? reward / (double)n : 0;
}

static bool write_report(tinkc_rl *rl, const batch *b, const chosen *c, size_t total,
                         int64_t waited_ms, int64_t begun_ms, tinkc_error *err)
{
    tkr_table *t = &rl->metrics;
    int64_t all_ms = tkr_now_ms() - begun_ms;
    rl->report = (tinkc_rl_report){ .step = rl->step,
                                    .groups = (const tinkc_group *const *)b->groups,
                                    .n_groups = b->n,
                                    .trained = c->n,
                                    .failed = c->failed,
                                    .staleness = rl->step - b->step };
    count_batch(b, &rl->report);
    tkr_table_set(t, "progress/batch", (double)rl->step, err);
    tkr_table_set(t, "progress/done_frac", (double)(rl->step + 1) / (double)total, err);
    tkr_table_set(t, "optim/lr", rl->how.adam.learning_rate, err);
    tkr_env_metrics(t, rl->report.groups, b->n, "env", err);
    tkr_table_set(t, "training_client/step", (double)rl->step, err);
    tkr_table_set(t, "sampling_client/step_max", (double)b->step, err);
    tkr_table_set(t, "sampling_client/step_min", (double)b->step, err);
    tkr_table_set(t, "sampling_client/step_mean", (double)b->step, err);
    tkr_table_set(t, "rollout_errors/total", (double)c->failed, err);
    tkr_table_set(t, "rollout_errors/groups_skipped", (double)c->skipped, err);
    tkr_table_set(t, "groups_constant", (double)c->constant, err);
    tkr_table_set(t, "time/sampling_wait", (double)waited_ms / 1000, err);
    tkr_table_set(t, "time/train", (double)(all_ms - waited_ms) / 1000, err);
    tkr_table_set(t, "time/total", (double)all_ms / 1000, err);
    rl->report.metric_names = t->names;
    rl->report.metric_values = t->values;
    return !tkc_failed(err);
}

const tinkc_rl_report *tinkc_rl_step(tinkc_rl *rl, size_t total, tinkc_error *err)
{
    tinkc_error local;
    chosen c = { 0 };
    int64_t begun_ms = tkr_now_ms();
    if (!tkc_enter(&err, &local))
        return NULL;
    if (rl->n_tasks == 0 || rl->step >= total)
        return tkc_fail(err, TINKC_E_ARGUMENT, "nothing to train on"), NULL;
    free_batch(rl->current);
    rl->current = NULL;
    tkr_table_free(&rl->metrics);
    batch *b = begin_ahead(rl, total, err) ? take_batch(rl, err) : NULL;
    int64_t waited_ms = tkr_now_ms() - begun_ms;
    rl->current = b;
    if (b && usable(b) == 0) {
        tkc_fail(err, TINKC_E_REQUEST_FAILED, "no rollout of step %zu can be trained on: %s",
                 rl->step, first_error(b));
        err->cause = TINKC_E_CALLBACK;
    }
    for (size_t g = 0; b && g < b->n && !tkc_failed(err); g++)
        choose_group(rl, &c, b->groups[g], err);
    if (!tkc_failed(err) && c.n && rl->how.n_references && (rl->how.kl_coef > 0 || rl->how.distill))
        add_kl(rl, &c, err);
    if (!tkc_failed(err) && c.n)
        train(rl, &c, err);
    bool ok = !tkc_failed(err) && write_report(rl, b, &c, total, waited_ms, begun_ms, err);
    free_chosen(&c);
    if (!ok)
        return NULL;
    rl->step++;
    return &rl->report;
}

/* ---- the run ---- */

static bool check_options(const tinkc_rl_options *o, tinkc_error *err)
{
    if (!tkc_all_zero(o->reserved, sizeof o->reserved) ||
        !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools))
        return tkc_fail(err, TINKC_E_ARGUMENT, "rl: reserved fields must be zero");
    if (!tkc_check_range((int64_t)o->substeps, 0, MOST_SUBSTEPS, "rl: substeps", err) ||
        !tkc_check_range((int64_t)o->group_size, 0, 1 << 16, "rl: group_size", err) ||
        !tkc_check_range((int64_t)o->groups_per_batch, 0, 1 << 20, "rl: groups_per_batch", err) ||
        !tkc_check_range((int64_t)o->max_steps_off_policy, 0, 1024, "rl: max_steps_off_policy",
                         err))
        return false;
    if (!isfinite(o->kl_coef) || o->kl_coef < 0 || !(o->kl_discount >= 0 && o->kl_discount <= 1))
        return tkc_fail(err, TINKC_E_ARGUMENT, "rl: kl_coef or kl_discount is out of range");
    if ((o->kl_coef > 0 || o->distill) && !o->n_references)
        return tkc_fail(err, TINKC_E_ARGUMENT, "rl: KL needs a reference");
    if (o->reference_system && o->rollouts.env)
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "rl: a context for the teacher alone works with single answers only");
    return true;
}

tinkc_rl *tinkc_rl_new(tinkc_client *client, tinkc_trainer *trainer, const tinkc_rl_options *o,
                       const tinkc_rl_hooks *hooks, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!client || !trainer || !o)
        return tkc_fail(err, TINKC_E_ARGUMENT, "rl: needs a client, a trainer and options"), NULL;
    tinkc_rl *rl = check_options(o, err) ? tkc_zalloc(NULL, sizeof *rl, err) : NULL;
    if (!rl)
        return NULL;
    tkc_arena_init(&rl->arena, NULL, 0);
    rl->client = client;
    rl->trainer = trainer;
    rl->how = *o;
    rl->how.loss = tkc_arena_cstr(&rl->arena, o->loss ? o->loss : TINKC_IMPORTANCE_SAMPLING, err);
    rl->how.reference_system =
        o->reference_system ? tkc_arena_cstr(&rl->arena, o->reference_system, err) : NULL;
    rl->how.group_size = o->group_size ? o->group_size : 4;
    rl->how.groups_per_batch = o->groups_per_batch ? o->groups_per_batch : 100;
    rl->how.substeps = o->substeps ? o->substeps : 1;
    if (hooks)
        rl->hooks = *hooks;
    rl->step = rl->next_batch = o->first_step;
    rl->pool = tinkc_rollouts_new(client, &o->rollouts, err);
    if (!tkc_failed(err))
        return rl;
    tinkc_rl_free(rl);
    return NULL;
}

void tinkc_rl_free(tinkc_rl *rl)
{
    if (!rl)
        return;
    tinkc_rollouts_free(rl->pool);
    for (batch *b = rl->batches, *next; b; b = next) {
        next = b->next;
        free_batch(b);
    }
    free_batch(rl->current);
    for (weights *w = rl->all_weights, *next; w; w = next) {
        next = w->next;
        tinkc_sampler_free(w->sampler);
        tkc_release(NULL, w, sizeof *w);
    }
    tkr_table_free(&rl->metrics);
    tkc_release(NULL, rl->tasks, rl->tasks_cap * sizeof *rl->tasks);
    tkc_release(NULL, rl->teachers, rl->teachers_cap * sizeof *rl->teachers);
    tkc_arena_free(&rl->arena);
    tkc_release(NULL, rl, sizeof *rl);
}

static const char *kept(tinkc_rl *rl, const char *text, tinkc_error *err)
{
    return text ? tkc_arena_cstr(&rl->arena, text, err) : NULL;
}

bool tinkc_rl_add(tinkc_rl *rl, const tinkc_task *task, size_t teacher, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (rl->how.n_references ? teacher >= rl->how.n_references : teacher > 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "teacher %zu: there are %zu", teacher,
                        rl->how.n_references);
    tinkc_task *tasks =
        tkc_grow(NULL, rl->tasks, &rl->tasks_cap, rl->n_tasks + 1, sizeof *tasks, err);
    if (!tasks)
        return false;
    rl->tasks = tasks;
    size_t *teachers =
        tkc_grow(NULL, rl->teachers, &rl->teachers_cap, rl->n_tasks + 1, sizeof *teachers, err);
    if (!teachers)
        return false;
    rl->teachers = teachers;
    tinkc_task t = *task;
    t.row_json = kept(rl, task->row_json, err);
    t.messages_json = kept(rl, task->messages_json, err);
    t.answer = kept(rl, task->answer, err);
    t.where = kept(rl, task->where, err);
    t.tag = kept(rl, task->tag, err);
    int32_t *ids =
        task->n_tokens ? tkc_arena_array(&rl->arena, task->n_tokens, sizeof *ids, err) : NULL;
    if (ids)
        memcpy(ids, task->tokens, task->n_tokens * sizeof *ids);
    t.tokens = ids;
    if (tkc_failed(err))
        return false;
    tasks[rl->n_tasks] = t;
    teachers[rl->n_tasks++] = teacher;
    return true;
}
