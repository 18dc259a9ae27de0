/* reward.h - requests the reward of a rollout; the answer may come later. */
#ifndef TKR_REWARD_H
#define TKR_REWARD_H

#include "recipes/children.h"
#include "recipes/pattern.h"

/* Called once for each that was begun: the reward, or why there is none. metrics may be NULL. */
typedef void tkr_graded_fn(void *user, size_t which, bool ok, double reward,
                           const tkc_tree *metrics, const char *why);

typedef struct tkr_asking { /* must not move while it waits */
    tinkc_reward *reward;
    tinkc_future *future;
    tkr_graded_fn *fn;
    void *user;
    size_t which;
    bool waits;
} tkr_asking;

/* fn, user and which are set by the caller. The function may be called before this returns. False
 * with err set: it will not be called. */
bool tkr_reward_begin(tkr_asking *, tinkc_reward *, const tinkc_rollout *, uint64_t id,
                      tinkc_queue *, tinkc_error *err);
void tkr_reward_cancel(tkr_asking *);
const char *tkr_reward_name(const tinkc_reward *);
double tkr_reward_weight(const tinkc_reward *);
int64_t tkr_reward_timeout_ms(const tinkc_reward *); /* of a URL or a rubric; 0 = it has none */
/* Runs here and says right or wrong. */
bool tkr_reward_is_grader(const tinkc_reward *);
tkr_children *tkr_reward_children(const tinkc_reward *); /* NULL = it has none */

#endif
