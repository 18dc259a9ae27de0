/* rollout.h - one episode's record and the group it belongs to. */
#ifndef TKR_ROLLOUT_H
#define TKR_ROLLOUT_H

#include "base/arena.h"
#include "recipes/jsontext.h"
#include "recipes/table.h"
#include "tinkc/recipes.h"

typedef struct tkr_rollout { /* starts from {0} */
    tinkc_rollout seen;      /* what the owner of the group sees; filled in by tkr_rollout_show */
    tinkc_tokens tokens;
    tinkc_floats logprobs, mask;
    size_t *ends;
    size_t n_ends, ends_cap;
    tkr_table metrics;
    tinkc_text text;
    char *messages;
    char *error;
    double reward;
    size_t turns, sampled, read;
    int32_t stop_reason;
    int64_t took_ms;
} tkr_rollout;

struct tinkc_group {
    tkc_arena arena; /* texts of the task */
    const char *row, *answer, *where, *tag;
    tkr_rollout *all;
    size_t n;
    uint64_t id;
};

tinkc_group *tkr_group_new(const tinkc_task *, size_t n, uint64_t id, tinkc_error *err);

/* Appends tokens that the model read, or that it sampled (logprobs NULL = it read them). */
bool tkr_rollout_append(tkr_rollout *, const int32_t *ids, const float *logprobs, size_t n,
                        tinkc_error *err);
/* The example ends here: what comes is not an extension of it. */
bool tkr_rollout_end_example(tkr_rollout *, tinkc_error *err);
/* Keeps the first reason only. */
void tkr_rollout_fail(tkr_rollout *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Makes r->seen. */
void tkr_rollout_show(tinkc_group *, size_t index);

#endif
