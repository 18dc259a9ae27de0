/* episodes.h - functions of the pool for the training loops, beyond its public API. */
#ifndef TKR_EPISODES_H
#define TKR_EPISODES_H

#include "recipes/turns.h"

/* tinkc_rollouts_run returns early when this future completes. */
bool tkr_rollouts_watch(tinkc_rollouts *, tinkc_future *, tinkc_error *err);
/* A group that has ended; NULL = none has yet. Never waits. */
tinkc_group *tkr_rollouts_take(tinkc_rollouts *);
const tkr_format *tkr_rollouts_format(const tinkc_rollouts *);

#endif
