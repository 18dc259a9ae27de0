/* episodes.c - many episodes at once: prompt, sample, environment, reward, group by group.
 *
 * An episode is a small machine that is moved by callbacks, all of them on the caller's thread
 * inside tinkc_rollouts_run. At any time it waits for one thing: its turn, the environment, a
 * sample, or its rewards. It ends exactly once, in `ended`, with or without an error. Episodes that
 * have not begun hold no memory beyond their place in the group.
 */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <string.h>

#include "base/str.h"
#include "recipes/env.h"
#include "recipes/episodes.h"
#include "recipes/reward.h"
#include "recipes/rollout.h"
#include "recipes/turns.h"

typedef struct job job;

typedef struct episode {
    struct episode *next, **from; /* in the list of running ones */
    tinkc_rollouts *all;
    job *job;
    size_t index;
    uint64_t number; /* unique in the pool: the episode's and the grader's id */
    tinkc_future *sample;
    tkc_arena arena; /* of messages and tools */
    tkc_tree *messages, *tools;
    tkr_asking *asks;
    size_t waiting; /* rewards that have not answered */
    int child;
    size_t starts; /* of the child, when the episode began */
    bool in_env;
    size_t example; /* where the current example begins */
    int64_t begun_ms;
} episode;

struct job { /* one group in progress */
    job *next;
    tinkc_group *group;
    tinkc_sampler *sampler;
    tkc_arena arena;    /* of messages and tools */
    tkc_tree *messages; /* of the prompt; NULL = the environment's, or tokens */
    tkc_tree *tools;    /* that the prompt offers; NULL = none */
    tinkc_tokens prompt;
    uint64_t seed;
    size_t begun, ended;
};

struct tinkc_rollouts {
    tinkc_client *client;
    tinkc_queue *queue;
    tinkc_rollout_options how;
    tkr_format format;
    tinkc_tokenizer *tokenizer;
    tkc_arena arena; /* copies of the options' texts */
    tinkc_reward **rewards;
    job *first, **last; /* groups that run or wait, oldest first */
    job *done, **done_last;
    episode *running;
    size_t n_running, n_jobs, n_done;
    uint64_t last_number, happened;
};

/* ---- the end of an episode ---- */

static tkr_rollout *record_of(const episode *e)
{
    return &e->job->group->all[e->index];
}

static void unlink_job(tinkc_rollouts *p, job *j)
{
    for (job **at = &p->first; *at; at = &(*at)->next)
        if (*at == j) {
            *at = j->next;
            if (p->last == &j->next)
                p->last = at;
            break;
        }
    j->next = NULL;
    *p->done_last = j;
    p->done_last = &j->next;
    p->n_done++;
}

static void ended(episode *e)
{
    tinkc_rollouts *p = e->all;
    job *j = e->job;
    tkr_rollout *r = record_of(e);
    tinkc_error err = { 0 };
    if (e->in_env)
        tkr_env_close(p->how.env, e->child, e->number);
    if (r->tokens.len > e->example)
        tkr_rollout_end_example(r, &err);
    r->messages = e->messages ? tkr_json_text(e->messages, &err) : NULL;
    if (err.code)
        tkr_rollout_fail(r, "%s", err.message);
    r->took_ms = tkr_now_ms() - e->begun_ms;
    tkr_rollout_show(j->group, e->index);
    *e->from = e->next;
    if (e->next)
        e->next->from = e->from;
    p->n_running--;
    p->happened++;
    tkc_release(NULL, e->asks, p->how.n_rewards * sizeof *e->asks);
    tkc_arena_free(&e->arena);
    tkc_release(NULL, e, sizeof *e);
    if (++j->ended == j->group->n)
        unlink_job(p, j);
}

static void failed(episode *e, const char *what, const char *why)
{
    tkr_rollout_fail(record_of(e), "%s, episode %llu: %s%s%s", e->job->group->where,
                     (unsigned long long)e->number, what, *what ? ": " : "", why);
    ended(e);
}

/* ---- rewards ---- */

static void add_metrics(tkr_rollout *r, const tkc_tree *metrics, tinkc_error *err)
{
    const char *name;
    tkc_tree *one;
    TKC_TREE_EACH (metrics, name, one) {
        double value = tkc_tree_number(one);
        if (isfinite(value))
            tkr_table_set(&r->metrics, name, value, err);
    }
}

static void graded(void *user, size_t which, bool ok, double reward, const tkc_tree *metrics,
                   const char *why)
{
    episode *e = user;
    const tinkc_reward *from = e->all->how.rewards[which];
    tkr_rollout *r = record_of(e);
    tinkc_error err = { 0 };
    if (ok) {
        r->reward += r->error ? 0 : tkr_reward_weight(from) * reward; /* what has failed has none */
        tkr_table_set(&r->metrics,
                      e->all->how.n_rewards == 1 && tkr_reward_is_grader(from)
                          ? "correct"
                          : tkr_reward_name(from),
                      reward, &err);
        add_metrics(r, metrics, &err);
    } else {
        tkr_rollout_fail(r, "%s, episode %llu: %s: %s", e->job->group->where,
                         (unsigned long long)e->number, tkr_reward_name(from), why);
    }
    if (err.code)
        tkr_rollout_fail(r, "%s", err.message);
    if (--e->waiting == 0)
        ended(e);
}

/* The rollout as graders see it: complete except for its reward. */
static const tinkc_rollout *shown(episode *e, tinkc_error *err)
{
    tkr_rollout *r = record_of(e);
    char *text = tkr_json_text(e->messages, err);
    r->messages = text;
    tkr_rollout_show(e->job->group, e->index);
    return &r->seen;
}

static void grade(episode *e)
{
    tinkc_rollouts *p = e->all;
    tinkc_error err = { 0 };
    tkr_rollout *r = record_of(e);
    size_t n = p->how.n_rewards;
    if (!p->how.env)
        tkr_table_set(&r->metrics, "format", r->stop_reason == TINKC_STOP, &err);
    if (n == 0) {
        ended(e);
        return;
    }
    const tinkc_rollout *seen = shown(e, &err);
    e->asks = err.code ? NULL : tkc_zalloc(NULL, n * sizeof *e->asks, &err);
    /* One extra, so that immediate answers do not end the episode inside this loop. */
    e->waiting = e->asks ? n + 1 : 1;
    for (size_t i = 0; e->asks && i < n; i++) {
        tinkc_error why = { 0 };
        e->asks[i] = (tkr_asking){ .fn = graded, .user = e, .which = i };
        if (!tkr_reward_begin(&e->asks[i], p->rewards[i], seen, e->number, p->queue, &why))
            graded(e, i, false, 0, NULL, why.message);
    }
    tkc_release_str(NULL, r->messages);
    r->messages = NULL;
    if (err.code)
        tkr_rollout_fail(r, "%s", err.message);
    if (--e->waiting == 0)
        ended(e);
}

/* ---- one turn ---- */

static void step_env(episode *e);
static void begin_turn(episode *e);

static bool take_sample(episode *e, const tinkc_sequence *s, tinkc_error *err)
{
    tkr_rollout *r = record_of(e);
    tinkc_rollouts *p = e->all;
    if (!s || s->tokens.len == 0)
        return tkc_fail(err, TINKC_E_BAD_RESPONSE, "the service sent no tokens");
    if (s->logprobs.len != s->tokens.len && !p->how.no_logprobs)
        return tkc_fail(err, TINKC_E_BAD_RESPONSE,
                        "the service sent no log-probabilities, so nothing can be trained");
    tinkc_floats zeros = { 0 };
    const float *logprobs = s->logprobs.data;
    for (size_t i = 0; s->logprobs.len != s->tokens.len && i < s->tokens.len; i++)
        tinkc_floats_append(&zeros, &(float){ 0 }, 1, err);
    if (zeros.len)
        logprobs = zeros.data;
    for (size_t i = 0; i < s->tokens.len; i++)
        if (!isfinite(logprobs[i]))
            tkc_fail(err, TINKC_E_BAD_RESPONSE, "a log-probability is not finite");
    bool ok = tkr_rollout_append(r, s->tokens.data, logprobs, s->tokens.len, err);
    r->stop_reason = s->stop_reason;
    r->turns++;
    tinkc_floats_free(&zeros);
    return ok && tkr_turn_text(&p->format, s->tokens.data, s->tokens.len,
                               s->stop_reason == TINKC_STOP, &r->text, err);
}

static void sampled(tinkc_future *f, void *user)
{
    episode *e = user;
    tinkc_error err = { 0 };
    const tinkc_sequence *s = tinkc_samples_at(tinkc_future_samples(f, 0, &err), 0);
    bool ok = !err.code && take_sample(e, s, &err);
    const char *text = record_of(e)->text.data;
    /* The history keeps the text as it was sampled, including calls. */
    if (ok && !tkc_tree_add(e->messages, tkc_tree_pack(&e->arena, "{s:s,s:s}", "role", "assistant",
                                                       "content", text ? text : "")))
        ok = tkc_fail_memory(&err);
    e->sample = NULL;
    e->all->happened++;
    if (!ok)
        failed(e, "", err.message);
    else if (e->in_env)
        step_env(e);
    else
        grade(e);
    tinkc_future_free(f);
}

static void send_sample(episode *e, const int32_t *prompt, size_t len, tinkc_error *err)
{
    tinkc_rollouts *p = e->all;
    const tkr_rollout *r = record_of(e);
    tinkc_sampling how = TINKC_SAMPLING_INIT;
    int64_t left = (int64_t)p->how.max_episode_tokens - (int64_t)r->tokens.len;
    if (p->how.context_length && p->how.context_length - (int64_t)len < left)
        left = p->how.context_length - (int64_t)len;
    if (left < 1) {
        tkc_fail(err, TINKC_E_ARGUMENT, "the prompt of %zu tokens fills the model's context", len);
        return;
    }
    how.max_tokens = left < p->how.max_tokens ? (int32_t)left : p->how.max_tokens;
    how.temperature = (float)p->how.temperature;
    how.top_p = (float)p->how.top_p;
    how.stop = p->format.stop;
    how.has_seed = true;
    how.seed = tinkc_recipe_seed(e->job->seed, e->index, r->turns, 0);
    e->sample = tinkc_sample(e->job->sampler, prompt, len, 1, &how, err);
    if (e->sample && tinkc_future_limit(e->sample, p->how.sample_timeout_ms, err))
        tinkc_future_on_done(e->sample, p->queue, sampled, e, err);
    if (err->code) {
        tinkc_future_free(e->sample);
        e->sample = NULL;
    }
}

/* The current example's tokens are the prompt. */
static void begin_turn(episode *e)
{
    tkr_rollout *r = record_of(e);
    tinkc_error err = { 0 };
    if (r->tokens.len >= (size_t)e->all->how.max_episode_tokens) {
        failed(e, "", "the episode has reached its limit of tokens before it was done");
        return;
    }
    send_sample(e, r->tokens.data + e->example, r->tokens.len - e->example, &err);
    if (err.code)
        failed(e, "", err.message);
}

/* ---- environments ---- */

/* After the first turn: appends the environment's messages to the sampled tokens. */
static bool extend(episode *e, const tkc_tree *before, tinkc_error *err)
{
    tkr_rollout *r = record_of(e);
    tinkc_tokens more = { 0 };
    bool extends = false;
    size_t from = r->tokens.len;
    while (from > e->example && r->mask.data[from - 1] > 0)
        from--;
    bool ok = tkr_turn_between(&e->all->format, before, e->messages, e->tools,
                               r->tokens.data + from, r->tokens.len - from, &more, &extends, err);
    if (ok && !extends) {
        ok = tkr_rollout_end_example(r, err) &&
             tkr_turn_prompt(&e->all->format, e->messages, e->tools, &more, err);
        e->example = r->tokens.len;
    }
    ok = ok && tkr_rollout_append(r, more.data, NULL, more.len, err);
    tinkc_tokens_free(&more);
    return ok;
}

static bool take_messages(episode *e, const tkr_env_answer *a, tinkc_error *err)
{
    tkr_rollout *r = record_of(e);
    bool first = r->tokens.len == 0;
    tkc_arena arena = { 0 };
    const tkc_tree *before = first ? NULL : tkc_tree_copy(&arena, e->messages);
    if (a->tools)
        e->tools = tkc_tree_clone(&e->arena, a->tools);
    tkc_tree_add_all(e->messages, tkc_tree_clone(&e->arena, a->messages));
    if (e->arena.failed || arena.failed) {
        tkc_fail_memory(err);
    } else if (first) {
        tinkc_tokens prompt = { 0 };
        if (tkr_turn_prompt(&e->all->format, e->messages, e->tools, &prompt, err))
            tkr_rollout_append(r, prompt.data, NULL, prompt.len, err);
        tinkc_tokens_free(&prompt);
    } else {
        extend(e, before, err);
    }
    tkc_arena_free(&arena);
    return !tkc_failed(err);
}

static void env_said(void *user, const tkc_tree *answer, const char *why)
{
    episode *e = user;
    tkr_rollout *r = record_of(e);
    tkr_env_answer a;
    tinkc_error err = { 0 };
    char text[TKR_ENV_WHY];
    bool first = r->turns == 0;
    e->all->happened++;
    if (!answer) {
        e->in_env = false; /* its process is gone */
        failed(e, "", why);
        return;
    }
    if (!tkr_env_read(answer, first, &a, text)) {
        failed(e, "environment", text);
        return;
    }
    if (first)
        e->starts = tkr_env_starts(e->all->how.env, e->child);
    r->reward += a.reward;
    add_metrics(r, a.metrics, &err);
    if (a.done) {
        tkc_tree_add_all(e->messages, tkc_tree_clone(&e->arena, a.messages));
        e->in_env = false;
        grade(e);
    } else if (!first && r->turns >= (size_t)e->all->how.max_turns) {
        failed(e, "", "the environment did not end the episode within the limit of turns");
    } else if (!take_messages(e, &a, &err)) {
        failed(e, "", err.message);
    } else {
        begin_turn(e);
    }
}

static void ask_env(episode *e, tkc_tree *request)
{
    tinkc_error err = { 0 };
    if (!request)
        tkc_fail_memory(&err);
    else
        tkr_env_ask(e->all->how.env, e->child, request, env_said, e, &err);
    if (err.code)
        failed(e, "environment", err.message);
}

static void step_env(episode *e)
{
    const tkr_rollout *r = record_of(e);
    if (e->starts != tkr_env_starts(e->all->how.env, e->child)) {
        e->in_env = false;
        failed(e, "", "the environment's process was started again during the episode");
        return;
    }
    tkc_arena arena = { 0 };
    ask_env(e, tkc_tree_pack(&arena, "{s:s,s:I,s:o?,s:I,s:s}", "type", "step", "episode",
                             (int64_t)e->number, "message",
                             tkr_turn_message(&arena, r->text.data ? r->text.data : ""), "turn",
                             (int64_t)r->turns, "stop_reason",
                             r->stop_reason == TINKC_STOP ? "stop" : "length"));
    tkc_arena_free(&arena);
}

static void reset_env(episode *e)
{
    tkc_arena arena = { 0 };
    const tkc_tree *row = tkc_tree_read(&arena, tkc_str(e->job->group->row), 0);
    e->in_env = true;
    e->child = tkr_env_assign(e->all->how.env);
    ask_env(e, tkc_tree_pack(&arena, "{s:s,s:I,s:o?,s:I}", "type", "reset", "episode",
                             (int64_t)e->number, "row", row, "seed",
                             (int64_t)tinkc_recipe_seed(e->job->seed, e->index, 0, 1)));
    tkc_arena_free(&arena);
}

/* ---- beginning ---- */

static void begin(tinkc_rollouts *p, job *j, tinkc_error *err)
{
    episode *e = tkc_zalloc(NULL, sizeof *e, err);
    if (!e)
        return;
    *e = (episode){ .all = p,
                    .job = j,
                    .index = j->begun++,
                    .number = ++p->last_number,
                    .next = p->running,
                    .from = &p->running,
                    .begun_ms = tkr_now_ms() };
    if (e->next)
        e->next->from = &e->next;
    p->running = e;
    p->n_running++;
    e->messages = j->messages ? tkc_tree_copy(&e->arena, j->messages) : tkc_tree_array(&e->arena);
    tinkc_error why = { 0 };
    if (!e->messages) {
        failed(e, "", "out of memory");
    } else if (p->how.env) {
        reset_env(e);
    } else if (tkr_rollout_append(record_of(e), j->prompt.data, NULL, j->prompt.len, &why)) {
        begin_turn(e);
    } else {
        failed(e, "", why.message);
    }
}

/* Oldest groups first. An episode that fails at once may end its group, so the list is looked at
 * from its beginning again. */
static void begin_more(tinkc_rollouts *p, tinkc_error *err)
{
    for (job *j = p->first; j && !tkc_failed(err);) {
        if (p->n_running >= (size_t)p->how.max_concurrent)
            return;
        if (j->begun == j->group->n) {
            j = j->next;
            continue;
        }
        begin(p, j, err);
        j = p->first;
    }
}

static void take_prompt(const tinkc_rollouts *p, job *j, const tinkc_task *task, tinkc_error *err)
{
    j->messages = tkr_turn_task(&j->arena, task, &j->tools, err);
    if (j->messages && p->how.system)
        tkc_tree_insert(
            j->messages, 0,
            tkc_tree_pack(&j->arena, "{s:s,s:s}", "role", "system", "content", p->how.system));
}

static void free_job(job *j)
{
    tinkc_group_free(j->group);
    tinkc_tokens_free(&j->prompt);
    tkc_arena_free(&j->arena);
    tkc_release(NULL, j, sizeof *j);
}

bool tinkc_rollouts_add(tinkc_rollouts *p, tinkc_sampler *sampler, const tinkc_task *task, size_t n,
                        uint64_t id, uint64_t seed, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!p || !sampler || !task || n == 0 || n > 1 << 20)
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "rollouts: needs a sampler, a task and 1 to %d of it", 1 << 20);
    if (!task->messages_json && !task->n_tokens && !p->how.env)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: the task has no prompt",
                        task->where ? task->where : "task");
    job *j = tkc_zalloc(NULL, sizeof *j, err);
    if (!j)
        return false;
    j->sampler = sampler;
    j->seed = seed;
    j->group = tkr_group_new(task, n, id, err);
    if (task->messages_json && !p->how.env)
        take_prompt(p, j, task, err);
    if (task->n_tokens)
        tinkc_tokens_append(&j->prompt, task->tokens, task->n_tokens, err);
    else if (j->messages && !tkc_failed(err))
        tkr_turn_prompt(&p->format, j->messages, j->tools, &j->prompt, err);
    if (tkc_failed(err)) {
        tkc_fail_before(err, "%s: ", task->where ? task->where : "task");
        free_job(j);
        return false;
    }
    *p->last = j;
    p->last = &j->next;
    p->n_jobs++;
    return true;
}

/* ---- running ---- */

static bool run_children(tinkc_rollouts *p, tinkc_error *err)
{
    for (size_t i = 0; i < p->how.n_rewards; i++) {
        tkr_children *c = tkr_reward_children(p->rewards[i]);
        if (c && !tkr_children_run(c, err))
            return false;
    }
    tkr_children *c = p->how.env ? tkr_env_children(p->how.env) : NULL;
    return !c || tkr_children_run(c, err);
}

enum { MOST_FDS = 1024 };

static void wait_some(tinkc_rollouts *p, int64_t timeout_ms)
{
    struct pollfd fds[MOST_FDS];
    size_t n = 0;
    int64_t now = tkr_now_ms(), until = timeout_ms < 0 ? INT64_MAX : now + timeout_ms;
    fds[n++] = (struct pollfd){ .fd = tinkc_queue_fd(p->queue), .events = POLLIN };
    for (size_t i = 0; i < p->how.n_rewards; i++) {
        const tkr_children *c = tkr_reward_children(p->rewards[i]);
        if (c)
            n += tkr_children_poll(c, fds + n, MOST_FDS - n, &until);
    }
    const tkr_children *c = p->how.env ? tkr_env_children(p->how.env) : NULL;
    if (c)
        n += tkr_children_poll(c, fds + n, MOST_FDS - n, &until);
    int64_t left = until == INT64_MAX ? 60000 : until - now;
    (void)poll(fds, (nfds_t)n, (int)(left < 0 ? 0 : left > 60000 ? 60000 : left));
}

static bool run_once(tinkc_rollouts *p, tinkc_error *err)
{
    begin_more(p, err);
    if (tkc_failed(err) || !run_children(p, err))
        return false;
    (void)tinkc_queue_run(p->queue, 0, err);
    begin_more(p, err);
    return !tkc_failed(err);
}

bool tinkc_rollouts_run(tinkc_rollouts *p, int64_t timeout_ms, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    uint64_t before = p->happened;
    if (!run_once(p, err) || p->happened != before || timeout_ms == 0)
        return !tkc_failed(err);
    wait_some(p, timeout_ms);
    return run_once(p, err);
}

tinkc_group *tinkc_rollouts_next(tinkc_rollouts *p, int64_t timeout_ms, tinkc_error *err)
{
    tinkc_error local;
    int64_t until = timeout_ms < 0 ? INT64_MAX : tkr_now_ms() + timeout_ms;
    if (!tkc_enter(&err, &local))
        return NULL;
    while (!p->done && p->first && !tkc_failed(err)) {
        int64_t left = until == INT64_MAX ? TINKC_FOREVER : until - tkr_now_ms();
        if (until != INT64_MAX && left < 0) {
            tkc_fail(err, TINKC_E_TIMEOUT, "no group has ended in time");
            break;
        }
        tinkc_rollouts_run(p, left, err);
    }
    return tkc_failed(err) ? NULL : tkr_rollouts_take(p);
}

tinkc_group *tkr_rollouts_take(tinkc_rollouts *p)
{
    job *j = p->done;
    if (!j)
        return NULL;
    p->done = j->next;
    if (!p->done)
        p->done_last = &p->done;
    p->n_done--;
    p->n_jobs--;
    tinkc_group *g = j->group;
    j->group = NULL;
    free_job(j);
    return g;
}

const tkr_format *tkr_rollouts_format(const tinkc_rollouts *p)
{
    return &p->format;
}

static void woken(tinkc_future *f, void *user)
{
    (void)f;
    ((tinkc_rollouts *)user)->happened++;
}

bool tkr_rollouts_watch(tinkc_rollouts *p, tinkc_future *f, tinkc_error *err)
{
    return tinkc_future_on_done(f, p->queue, woken, p, err);
}

bool tinkc_rollouts_wait(tinkc_rollouts *p, tinkc_future *f, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkr_rollouts_watch(p, f, err))
        return false;
    while (!tinkc_future_done(f) && !tkc_failed(err))
        tinkc_rollouts_run(p, TINKC_FOREVER, err);
    return !tkc_failed(err) && tinkc_future_wait(f, 0, err);
}

size_t tinkc_rollouts_pending(const tinkc_rollouts *p)
{
    return p ? p->n_jobs : 0;
}

size_t tinkc_rollouts_running(const tinkc_rollouts *p)
{
    return p ? p->n_running : 0;
}

/* ---- the pool ---- */

static bool check_options(const tinkc_rollout_options *o, tinkc_error *err)
{
    if (!o || !o->tokenizer)
        return tkc_fail(err, TINKC_E_ARGUMENT, "rollouts: a tokenizer is required");
    if (!tkc_all_zero(o->reserved, sizeof o->reserved) ||
        !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools) || o->reserved_int)
        return tkc_fail(err, TINKC_E_ARGUMENT, "rollouts: reserved fields must be zero");
    if (!(o->temperature >= 0))
        return tkc_fail(err, TINKC_E_ARGUMENT, "rollouts: temperature: must be 0 or more");
    if (!(o->top_p >= 0 && o->top_p <= 1))
        return tkc_fail(err, TINKC_E_ARGUMENT, "rollouts: top_p: must be from 0 to 1");
    int64_t timeout = o->sample_timeout_ms == TINKC_FOREVER ? 0 : o->sample_timeout_ms;
    return tkc_check_range(o->max_tokens, 0, INT64_MAX, "rollouts: max_tokens", err) &&
           tkc_check_range(o->max_concurrent, 0, INT64_MAX, "rollouts: max_concurrent", err) &&
           tkc_check_range(o->max_turns, 0, INT64_MAX, "rollouts: max_turns", err) &&
           tkc_check_range(o->max_episode_tokens, 0, INT64_MAX, "rollouts: max_episode_tokens",
                           err) &&
           tkc_check_range(o->context_length, 0, INT64_MAX, "rollouts: context_length", err) &&
           tkc_check_range(timeout, 0, INT64_MAX, "rollouts: sample_timeout_ms", err);
}

static void fill_defaults(tinkc_rollout_options *o)
{
    o->sample_timeout_ms = o->sample_timeout_ms ? o->sample_timeout_ms : 300000;
    o->top_p = o->top_p > 0 ? o->top_p : 1;
    o->max_tokens = o->max_tokens ? o->max_tokens : 256;
    o->max_concurrent = o->max_concurrent ? o->max_concurrent : 256;
    o->max_turns = o->max_turns ? o->max_turns : 16;
    o->max_episode_tokens = o->max_episode_tokens ? o->max_episode_tokens : 32768;
}

static const char *const *copy_list(tkc_arena *arena, const char *const *list, tinkc_error *err)
{
    size_t n = 0;
    while (list && list[n])
        n++;
    const char **out = n ? tkc_arena_array(arena, n + 1, sizeof *out, err) : NULL;
    for (size_t i = 0; out && i < n; i++)
        out[i] = tkc_arena_cstr(arena, list[i], err);
    return out;
}

tinkc_rollouts *tinkc_rollouts_new(tinkc_client *client, const tinkc_rollout_options *o,
                                   tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_options(o, err))
        return NULL;
    tinkc_rollouts *p = tkc_zalloc(NULL, sizeof *p, err);
    if (!p)
        return NULL;
    tkc_arena_init(&p->arena, NULL, 0);
    p->last = &p->first;
    p->done_last = &p->done;
    p->client = client;
    p->how = *o;
    fill_defaults(&p->how);
    p->tokenizer = tinkc_tokenizer_keep(o->tokenizer);
    p->how.renderer = o->renderer ? tkc_arena_cstr(&p->arena, o->renderer, err) : NULL;
    p->how.system = o->system ? tkc_arena_cstr(&p->arena, o->system, err) : NULL;
    const char *const *stop = o->stop ? o->stop : tinkc_chat_stops(p->tokenizer, o->renderer, err);
    p->format = (tkr_format){ p->tokenizer, p->how.renderer, copy_list(&p->arena, stop, err) };
    p->rewards = tkc_arena_array(&p->arena, o->n_rewards + 1, sizeof *p->rewards, err);
    for (size_t i = 0; p->rewards && i < o->n_rewards; i++)
        p->rewards[i] = o->rewards[i];
    p->how.rewards = p->rewards;
    p->queue = tinkc_queue_new(client, err);
    if (!tkc_failed(err))
        return p;
    tinkc_rollouts_free(p);
    return NULL;
}

static void drop_episode(episode *e)
{
    tinkc_rollouts *p = e->all;
    tinkc_future_free(e->sample);
    for (size_t i = 0; e->asks && i < p->how.n_rewards; i++)
        tkr_reward_cancel(&e->asks[i]);
    if (p->how.env)
        tkr_env_forget(p->how.env, e);
    tkc_release(NULL, e->asks, p->how.n_rewards * sizeof *e->asks);
    tkc_arena_free(&e->arena);
    tkc_release(NULL, e, sizeof *e);
}

void tinkc_rollouts_free(tinkc_rollouts *p)
{
    if (!p)
        return;
    for (episode *e = p->running, *next; e; e = next) {
        next = e->next;
        drop_episode(e);
    }
    for (job *j = p->first, *next; j; j = next) {
        next = j->next;
        free_job(j);
    }
    for (job *j = p->done, *next; j; j = next) {
        next = j->next;
        free_job(j);
    }
    tinkc_queue_free(p->queue);
    tinkc_tokenizer_free(p->tokenizer);
    tkc_arena_free(&p->arena);
    tkc_release(NULL, p, sizeof *p);
}
