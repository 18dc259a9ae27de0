/* reference_logprobs.c - log-probabilities of sampled tokens under other weights: a reference or a teacher.
 *
 * With a context for the reference alone, the prompt that it reads is another; the sampled tokens
 * behind it are the same, token for token.
 */
#include "recipes/reference_logprobs.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

struct tkr_reference_ask {
    tinkc_future *f;
    const tinkc_rollout *r;
    float *out;
    size_t begin, end;  /* of the example, in the rollout */
    size_t first;       /* sampled token */
    size_t first_there; /* the same in what the reference read */
};

/* The conversation before its last message, with the context before it. */
static tkc_tree *teacher_messages(tkc_arena *arena, const tinkc_rollout *r, const char *system,
                                  tinkc_error *err)
{
    tkc_tree *v =
        tkr_json_parse(arena, r->messages_json, strlen(r->messages_json), "messages", err);
    if (!tkc_tree_is_array(v) || tkc_tree_length(v) < 2)
        tkc_fail(err, TINKC_E_ARGUMENT,
                 "a context for the teacher needs prompts of messages, not of tokens");
    tkc_tree_take_out(v, tkc_tree_length(v) - 1);
    tkc_tree_insert(v, 0, tkc_tree_pack(arena, "{s:s,s:s}", "role", "system", "content", system));
    return v;
}

static bool teacher_prompt(const tkr_reference_job *job, const tinkc_rollout *r, tinkc_tokens *out,
                           tinkc_error *err)
{
    tkc_arena arena = { 0 };
    const tkc_tree *v = teacher_messages(&arena, r, job->system, err);
    tkc_tree *tools = NULL;
    if (!tkc_failed(err))
        (void)tkr_turn_task(&arena, &job->tasks[r->group % job->n_tasks], &tools, err);
    bool ok = !tkc_failed(err) && tkr_turn_prompt(job->format, v, tools, out, err);
    tkc_arena_free(&arena);
    return ok;
}

static bool ask(tkr_reference_job *job, const tkr_reference_ask *what, size_t sampler,
                tinkc_error *err)
{
    tinkc_tokens read = { 0 };
    const tinkc_rollout *r = what->r;
    tkr_reference_ask a = *what;
    tkr_reference_ask *grown = tkc_grow(NULL, job->asks, &job->cap, job->n + 1, sizeof *grown, err);
    if (!grown)
        return false;
    job->asks = grown;
    if (job->system
            ? teacher_prompt(job, r, &read, err)
            : tinkc_tokens_append(&read, r->tokens.data + a.begin, a.first - a.begin, err)) {
        a.first_there = read.len;
        if (tinkc_tokens_append(&read, r->tokens.data + a.first, a.end - a.first, err))
            a.f = tinkc_logprobs(job->samplers[sampler], read.data, read.len, err);
    }
    tinkc_tokens_free(&read);
    if (a.f)
        job->asks[job->n++] = a;
    return a.f != NULL;
}

bool tkr_reference_add(tkr_reference_job *job, const tinkc_rollout *r, size_t sampler, float *out,
                       tinkc_error *err)
{
    for (size_t e = 0; e < r->n_examples && !tkc_failed(err); e++) {
        tkr_reference_ask a = {
            .r = r, .out = out, .begin = e ? r->ends[e - 1] : 0, .end = r->ends[e]
        };
        a.first = a.begin;
        while (a.first < a.end && r->mask.data[a.first] == 0)
            a.first++;
        if (a.first < a.end)
            ask(job, &a, sampler, err);
    }
    return !tkc_failed(err);
}

static bool fill(const tkr_reference_ask *a, tinkc_error *err)
{
    tinkc_f32s lp = tinkc_future_logprobs(a->f, 0, err);
    if (tkc_failed(err))
        return false;
    for (size_t i = a->first; i < a->end; i++) {
        size_t there = a->first_there + i - a->first;
        if (there >= lp.len || (a->r->mask.data[i] > 0 && !isfinite(lp.data[there])))
            return tkc_fail(err, TINKC_E_BAD_RESPONSE,
                            "the reference has no log-probability for a token: does it have "
                            "another tokenizer?");
        a->out[i] = a->r->mask.data[i] > 0 ? lp.data[there] : 0;
    }
    return true;
}

bool tkr_reference_finish(tkr_reference_job *job, tinkc_error *err)
{
    for (size_t i = 0; i < job->n; i++) {
        if (!tkc_failed(err) && job->wait(job->user, job->asks[i].f, err))
            fill(&job->asks[i], err);
        tinkc_future_free(job->asks[i].f);
    }
    tkc_release(NULL, job->asks, job->cap * sizeof *job->asks);
    job->asks = NULL;
    job->n = job->cap = 0;
    return !tkc_failed(err);
}
