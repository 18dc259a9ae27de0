/* envmetrics.h - what a batch of groups says about the environment, by the cookbook's names. */
#ifndef TKR_ENVMETRICS_H
#define TKR_ENVMETRICS_H

#include "recipes/table.h"
#include "tinkc/recipes.h"

/* Adds PREFIX/all/..., and PREFIX/TAG/... where tags split the batch. */
bool tkr_env_metrics(tkr_table *, const tinkc_group *const *, size_t n, const char *prefix,
                     tinkc_error *err);

#endif
