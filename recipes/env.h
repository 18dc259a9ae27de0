/* env.h - asking an environment: reset, step, close. */
#ifndef TKR_ENV_H
#define TKR_ENV_H

#include "recipes/children.h"

/* Which process a new episode goes to. */
int tkr_env_assign(tinkc_env *);
/* Whether the process that an episode began in still runs; *starts is set at its first ask. */
size_t tkr_env_starts(const tinkc_env *, int child);
/* Sends a request (an object; its "id" is put in here). fn may be called before this returns. */
bool tkr_env_ask(tinkc_env *, int child, tkc_tree *request, tkr_answer_fn *fn, void *user,
                 tinkc_error *err);
/* Tells the environment that the episode is over. */
void tkr_env_close(tinkc_env *, int child, uint64_t episode);
void tkr_env_forget(tinkc_env *, const void *user);
tkr_children *tkr_env_children(const tinkc_env *); /* NULL = a function */

/* What an environment may answer; false with *why if it breaks the rules. */
typedef struct tkr_env_answer {
    const tkc_tree *messages; /* array, or NULL                 */
    const tkc_tree *tools;    /* array, or NULL                 */
    const tkc_tree *metrics;  /* object, or NULL                */
    double reward;            /* of this step; 0 if it gave none */
    bool done;
} tkr_env_answer;
enum { TKR_ENV_WHY = 200 };
bool tkr_env_read(const tkc_tree *answer, bool reset, tkr_env_answer *out, char why[TKR_ENV_WHY]);

#endif
