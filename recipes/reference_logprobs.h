/* reference_logprobs.h - log-probabilities of a rollout's tokens under other weights. */
#ifndef TKR_REFERENCE_H
#define TKR_REFERENCE_H

#include "recipes/turns.h"

typedef struct tkr_reference_ask tkr_reference_ask;

typedef struct tkr_reference_job { /* starts with its upper part filled in */
    tinkc_sampler *const *samplers;
    const char *system; /* put before the prompt for the reference alone; NULL = none */
    const tkr_format *format;
    const tinkc_task *tasks; /* a rollout is of the task at its group's number modulo n_tasks */
    size_t n_tasks;
    bool (*wait)(void *user, tinkc_future *, tinkc_error *err);
    void *user;
    tkr_reference_ask *asks;
    size_t n, cap;
} tkr_reference_job;

/* Asks one of the samplers about all examples of a rollout; out holds as many as it has tokens. */
bool tkr_reference_add(tkr_reference_job *, const tinkc_rollout *, size_t sampler, float *out,
                       tinkc_error *err);
/* Waits for all and fills in what was asked. Also ends the job, whatever err holds. */
bool tkr_reference_finish(tkr_reference_job *, tinkc_error *err);

#endif
