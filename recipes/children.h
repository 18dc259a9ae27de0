/* children.h - commands that answer lines: one JSON object out, one back, by "id".
 *
 * A child is a shell command. It is started on first use, restarted when it dies, and killed with
 * its process group when it takes too long. What it writes to standard error goes to the log,
 * line by line. Everything happens inside tkr_children_run, on the caller's thread. */
#ifndef TKR_CHILDREN_H
#define TKR_CHILDREN_H

#include <poll.h>

#include "recipes/jsontext.h"
#include "tinkc/recipes.h"

typedef struct tkr_children tkr_children;

/* Called once for each request: with the answer, or with NULL and the reason. */
typedef void tkr_answer_fn(void *user, const tkc_tree *answer, const char *why);

typedef struct tkr_children_options {
    const char *command, *name; /* name: for messages, "reward command" */
    size_t processes;
    size_t asks_each; /* lines that a process may have unanswered; SIZE_MAX = any number */
    size_t attempts;  /* times a line is sent when processes die over it */
    int64_t timeout_ms;
    tinkc_recipe_log_fn *log;
    void *user;
} tkr_children_options;

tkr_children *tkr_children_new(const tkr_children_options *, tinkc_error *err);
/* Children that are started from now on get this variable too. Errors: ARGUMENT. */
bool tkr_children_pass(tkr_children *, const char *name, tinkc_error *err);
/* Kills them all; unanswered lines are dropped silently. NULL allowed. */
void tkr_children_free(tkr_children *);

enum { TKR_ANY_CHILD = -1 };
/* Asks a line (an object that has its "id", and no line end in it). `child`: TKR_ANY_CHILD, or the
 * number of the one that must have it. */
bool tkr_children_ask(tkr_children *, uint64_t id, const char *line, int child, tkr_answer_fn *,
                      void *user, tinkc_error *err);
/* A line that is not answered. A child that is not running is not started for it. */
void tkr_children_tell(tkr_children *, const char *line, int child);
/* Forgets the requests of `user`: its callback is not called any more. */
void tkr_children_forget(tkr_children *, const void *user);
/* How many times this child was started: an episode ends with the process it began in. */
size_t tkr_children_starts(const tkr_children *, int child);

/* What to wait for: adds descriptors (at most max) and lowers *deadline_ms of tkr_now_ms. */
size_t tkr_children_poll(const tkr_children *, struct pollfd *out, size_t max,
                         int64_t *deadline_ms);
/* Reads, writes, starts, kills, and hands out answers. False if the command cannot be used at all:
 * it died ten times in a row without an answer. */
bool tkr_children_run(tkr_children *, tinkc_error *err);

int64_t tkr_now_ms(void);

#endif
