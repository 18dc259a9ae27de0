/* forward_backward.h - forward and forward_backward as operations, for those who build on them. */
#ifndef TKC_API_FORWARD_BACKWARD_H
#define TKC_API_FORWARD_BACKWARD_H

#include "client/train/train_batch.h"
#include "client/call/outcome.h"
#include "client/train/trainer.h"

typedef struct tkc_pass_options {
    const char *operation; /* static: tinkc_future_operation */
    const char *loss;
    const tinkc_loss_options *settings; /* NULL = none */
    bool forward_only;
} tkc_pass_options;

/* Checks and cuts the batch, whose contents it keeps; the operation is not submitted yet. */
tinkc_future *tkc_pass_new(tinkc_trainer *, const tinkc_batch *, const tkc_pass_options *,
                           tinkc_error *err);

/* Metrics put on top of the service's when the pass completes; copied. Before it is submitted. */
bool tkc_pass_add_metric(tinkc_future *pass, const char *name, double value, tinkc_error *err);

/* The pass does not queue: it runs in a turn that somebody else has, and tells him when it needs it
 * no more (once, also if it never began). Before it is submitted. Thread of the call: I/O. */
void tkc_pass_lend_turn(tinkc_future *pass, void (*settled)(void *arg), void *arg);

/* The parts of a pass, as tinkc_future_part gives them. Any thread. */
bool tkc_is_pass(const tinkc_future *f);
size_t tkc_pass_part_count(const tinkc_future *pass);
const tinkc_fwdbwd *tkc_pass_part(tinkc_future *pass, size_t i, int64_t timeout_ms,
                                  tinkc_error *err);

/* Checks a loss name and its settings. */
bool tkc_loss_check(const char *loss, const tinkc_loss_options *, tinkc_error *err);

/* Whose parts these are, too: a custom loss's future, which outlives the pass. Thread: I/O. */
void tkc_pass_report_to(tinkc_future *pass, tinkc_future *outer);

#endif
