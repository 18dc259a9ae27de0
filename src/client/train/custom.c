/* custom.c - a loss of the user's own: forward, the function, backward with its gradients.
 *
 * The service's cross-entropy is L = sum(-logprob * weight). With weight = -dC/dlogprob its
 * gradient is that of C, whatever C is. So the second pass is an ordinary one with other weights.
 *
 * Without a queue everything happens inside the call. With one, a future of its own (an outer one)
 * waits for the first pass, lines the function up in the queue, submits the second pass from
 * there, and completes with it.
 *
 * May touch: batches, passes. User code runs on the caller's thread or inside tinkc_queue_run.
 */
#include <math.h>
#include <string.h>

#include "client/train/loss_priv.h"
#include "client/train/forward_backward.h"
#include "base/clock.h"
#include "base/str.h"

const tinkc_batch *tinkc_loss_batch(const tinkc_loss *loss)
{
    return loss ? loss->batch : NULL;
}

const tinkc_tensor *tinkc_loss_logprobs(const tinkc_loss *loss, size_t i)
{
    return loss ? tinkc_fwdbwd_output(loss->forward, i, "logprobs") : NULL;
}

float *tinkc_loss_grad(tinkc_loss *loss, size_t i)
{
    return loss && i < loss->batch->n ? loss->grads[i] : NULL;
}

void tinkc_loss_set(tinkc_loss *loss, double value)
{
    if (!loss)
        return;
    loss->value = value;
    loss->is_set = true;
}

bool tinkc_loss_metric(tinkc_loss *loss, const char *name, double value, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!loss || !name || !name[0])
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: must not be empty", loss ? "name" : "loss");
    if (loss->recorder)
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "%.64s: a loss that runs at the service has no metrics of its own", name);
    return tkc_metrics_put(&loss->metrics, name, value, &loss->arena, err);
}

/* ---- the batch ---- */

static bool check_inputs(const tinkc_batch *batch, tinkc_error *err)
{
    if (!tkc_batch_check(batch, err))
        return false;
    for (size_t i = 0; i < batch->n; i++) {
        const tkc_example *e = &batch->examples[i];
        bool targets = false;
        for (size_t k = 0; k < e->n_inputs; k++)
            targets |= strcmp(e->inputs[k].name, "target_tokens") == 0;
        if (!targets)
            return tkc_fail(err, TINKC_E_ARGUMENT, "batch: example %zu has no target_tokens", i);
    }
    return true;
}

/* The first pass, made but not submitted. It is about the log-probabilities: for those zeros do as
 * weights where none are set. */
static tinkc_future *new_forward(tinkc_trainer *trainer, const tinkc_batch *batch, tinkc_error *err)
{
    tkc_pass_options o = { .operation = "forward",
                           .loss = TINKC_CROSS_ENTROPY,
                           .forward_only = true };
    tinkc_batch *weighted = tkc_batch_with_weights(batch, NULL, err);
    if (!weighted)
        return NULL;
    tinkc_future *f = tkc_pass_new(trainer, weighted, &o, err);
    tinkc_batch_free(weighted);
    return f;
}

/* ---- one evaluation ---- */

static bool check_forward(const tinkc_loss *loss, tinkc_error *err)
{
    size_t n = loss->batch->n;
    if (loss->forward->n != n)
        return tkc_fail(err, TINKC_E_BAD_RESPONSE, "the first pass gave %zu examples for %zu",
                        loss->forward->n, n);
    for (size_t i = 0; i < n; i++) {
        const tinkc_tensor *p = tinkc_loss_logprobs(loss, i);
        const tinkc_tensor *t = tinkc_batch_tensor(loss->batch, i, "target_tokens");
        if (!t) /* every example has them, so there is no memory to show them */
            return tkc_fail_memory(err);
        if (!p || p->dtype != TINKC_F32 || p->count != t->count)
            return tkc_fail(err, TINKC_E_BAD_RESPONSE,
                            "the first pass gave no usable logprobs for example %zu", i);
    }
    return true;
}

/* The batch of the second pass: its weights are the gradients, to be filled in. */
static tinkc_batch *make_grads(tinkc_loss *loss, tinkc_error *err)
{
    loss->grads = tkc_arena_array(&loss->arena, loss->batch->n, sizeof *loss->grads, err);
    return loss->grads ? tkc_batch_with_weights(loss->batch, loss->grads, err) : NULL;
}

static void check_result(const tinkc_loss *loss, tinkc_error *err)
{
    if (!loss->is_set || !isfinite(loss->value))
        tkc_fail(err, TINKC_E_CALLBACK, "the loss function set no %sloss",
                 loss->is_set ? "finite " : "");
    for (size_t i = 0; i < loss->batch->n; i++) {
        size_t n = tinkc_loss_logprobs(loss, i)->count;
        for (size_t k = 0; k < n; k++)
            if (!isfinite(loss->grads[i][k]))
                tkc_fail(err, TINKC_E_CALLBACK,
                         "the loss function left gradient %zu of example %zu non-finite", k, i);
    }
}

static void call_user(tinkc_loss *loss, tinkc_loss_fn *fn, void *user, tinkc_error *err)
{
    tinkc_error said = { 0 };
    if (fn(loss, user, &said) && !said.code) {
        check_result(loss, err);
        return;
    }
    tkc_fail(err, TINKC_E_CALLBACK, "the loss function failed%s%.300s", said.code ? ": " : "",
             said.message);
    err->cause = said.code;
}

/* Weights are the negated gradients. */
static tinkc_future *new_backward(tinkc_trainer *trainer, tinkc_loss *loss,
                                  const tinkc_batch *weighted, tinkc_error *err)
{
    tkc_pass_options o = { .operation = "forward_backward_custom", .loss = TINKC_CROSS_ENTROPY };
    for (size_t i = 0; i < loss->batch->n; i++) {
        size_t n = tinkc_loss_logprobs(loss, i)->count;
        for (size_t k = 0; k < n; k++)
            loss->grads[i][k] = -loss->grads[i][k];
    }
    tinkc_future *f = tkc_pass_new(trainer, weighted, &o, err);
    bool ok = f != NULL;
    for (size_t i = 0; ok && i < loss->metrics.len; i++)
        ok = tkc_pass_add_metric(f, loss->metrics.names[i], loss->metrics.values[i], err);
    if (f && !ok) {
        tkc_future_drop(f);
        f = NULL;
    }
    return f;
}

/* Runs the user's function on a finished first pass; the second pass, not submitted. */
static tinkc_future *evaluate_loss(tinkc_trainer *trainer, const tinkc_batch *batch,
                                   const tinkc_fwdbwd *forward, tinkc_loss_fn *fn, void *user,
                                   tinkc_error *err)
{
    tinkc_loss loss = { .batch = batch, .forward = forward };
    tinkc_future *f = NULL;
    tkc_arena_init(&loss.arena, trainer->client->a, 0);
    tinkc_batch *weighted = check_forward(&loss, err) ? make_grads(&loss, err) : NULL;
    if (weighted)
        call_user(&loss, fn, user, err);
    if (!tkc_failed(err))
        f = new_backward(trainer, &loss, weighted, err);
    tinkc_batch_free(weighted);
    tkc_arena_free(&loss.arena);
    return f;
}

/* ---- with a queue, or with the turn held between the passes ---- */

typedef struct custom {
    tinkc_future f;
    tinkc_trainer *trainer; /* a reference */
    tinkc_batch *batch;     /* the examples as they were at the call */
    tinkc_loss_fn *fn;
    void *user;
    tinkc_queue *queue; /* a reference */
    tkc_queue_item item;
    tkc_turn turn; /* held over both passes if `together` */
    tkc_task first_task, evaluated_task, second_task;
    tinkc_future *first, *second; /* the passes: our own handles */
    tinkc_future *begun;          /* the second, once it is under way; needs f.shared.lock */
    tinkc_error err;              /* of the evaluation */
    size_t unsettled;             /* passes that still need the turn */
    bool together, second_begun;
} custom;

/* Each callback that will come back to this operation holds a reference of its own. */

static void leave_if_over(custom *c)
{
    if (c->unsettled == 0 && (c->second_begun || tkc_op_is_done(&c->f)))
        tkc_turn_leave(c->trainer, &c->turn);
}

static void custom_end(custom *c, const tinkc_error *err)
{
    tkc_op_complete(&c->f, err);
    leave_if_over(c);
    tkc_op_release(&c->f);
}

static void pass_settled(void *arg)
{
    custom *c = arg;
    c->unsettled--;
    leave_if_over(c);
    tkc_future_drop(&c->f);
}

static void begin_pass(custom *c, tinkc_future *pass, tkc_task *done)
{
    tkc_future_keep(&c->f);
    tkc_op_works_through(&c->f, pass);
    tkc_future_watch(pass, done);
    if (c->together) {
        tkc_future_keep(&c->f);
        c->unsettled++;
        tkc_pass_lend_turn(pass, pass_settled, c);
    }
    if (!tkc_op_try_submit(pass) && c->together)
        pass_settled(c); /* it never had the turn */
}

static void second_done(tkc_task *task)
{
    custom *c = TKC_OWNER(task, custom, second_task);
    tinkc_error err = { 0 };
    if (!tkc_op_is_done(&c->f)) {
        c->f.result = (void *)tinkc_future_fwdbwd(c->second, 0, &err);
        custom_end(c, &err);
    }
    tkc_future_drop(&c->f);
}

/* From now on its parts can be asked for. */
static void show_second(custom *c)
{
    pthread_mutex_lock(&c->f.shared.lock);
    c->begun = c->second;
    pthread_cond_broadcast(&c->f.shared.cond);
    pthread_mutex_unlock(&c->f.shared.lock);
}

/* Back on the I/O thread after the user's function. */
static void evaluated(tkc_task *task)
{
    custom *c = TKC_OWNER(task, custom, evaluated_task);
    if (!tkc_op_is_done(&c->f)) {
        if (c->second) {
            tkc_pass_report_to(c->second, &c->f); /* kept until second_done */
            begin_pass(c, c->second, &c->second_task);
            c->second_begun = true;
            show_second(c);
        } else {
            custom_end(c, &c->err);
        }
    }
    tkc_future_drop(&c->f);
}

static void run_item(tkc_queue_item *item)
{
    custom *c = TKC_OWNER(item, custom, item);
    if (!tkc_op_is_done(&c->f))
        c->second = evaluate_loss(c->trainer, c->batch, c->first->result, c->fn, c->user, &c->err);
    tkc_client_hand_over(c->f.client, &c->evaluated_task);
}

static void drop_item(tkc_queue_item *item)
{
    custom *c = TKC_OWNER(item, custom, item);
    tkc_fail(&c->err, TINKC_E_CANCELLED, "the queue was freed before the loss function could run");
    tkc_client_hand_over(c->f.client, &c->evaluated_task);
}

static void first_done(tkc_task *task)
{
    custom *c = TKC_OWNER(task, custom, first_task);
    tinkc_error err = { 0 };
    if (!tkc_op_is_done(&c->f)) {
        if (!tinkc_future_wait(c->first, 0, &err)) {
            custom_end(c, &err);
        } else {
            tkc_op_status(&c->f, "waits for the loss function to run in its queue");
            tkc_future_keep(&c->f); /* for evaluated */
            if (!tkc_queue_push(c->queue, &c->item))
                drop_item(&c->item);
        }
    }
    tkc_future_drop(&c->f);
}

static void custom_go(tkc_turn *turn, const tinkc_error *refused)
{
    custom *c = TKC_OWNER(turn, custom, turn);
    if (refused)
        custom_end(c, refused);
    else
        begin_pass(c, c->first, &c->first_task);
}

static void custom_start(tinkc_future *f)
{
    custom *c = (custom *)f;
    c->turn.go = custom_go;
    c->first_task.run = first_done;
    c->evaluated_task.run = evaluated;
    c->second_task.run = second_done;
    /* Without the turn operations of other threads may fall between the two passes, and the
     * gradients then belong to other weights. */
    if (c->together)
        tkc_turn_join(c->trainer, &c->turn);
    else
        begin_pass(c, c->first, &c->first_task);
}

static void custom_stop(tinkc_future *f, const tinkc_error *why)
{
    custom *c = (custom *)f;
    tinkc_future_cancel(c->first);
    if (c->second_begun) /* else it may just be being made, on the queue's thread */
        tinkc_future_cancel(c->second);
    if (tkc_queue_remove(c->queue, &c->item))
        tkc_future_drop(f); /* evaluated does not come */
    custom_end(c, why);
}

static void custom_destroy(tinkc_future *f)
{
    custom *c = (custom *)f;
    if (c->first)
        tkc_future_drop(c->first);
    if (c->second)
        tkc_future_drop(c->second);
    tinkc_batch_free(c->batch);
    if (c->queue)
        tkc_queue_drop(c->queue);
    tkc_trainer_drop(c->trainer);
}

static tinkc_future *run_in_queue(tinkc_trainer *trainer, const tinkc_batch *batch, bool together,
                                  tinkc_queue *queue, tinkc_loss_fn *fn, void *user,
                                  tinkc_error *err)
{
    static const tkc_op_class class = { "forward_backward_custom",
                                        "fwdbwd",
                                        sizeof(custom),
                                        custom_start,
                                        custom_stop,
                                        custom_destroy };
    custom *c = (custom *)tkc_op_new(trainer->client, &class, err);
    if (!c)
        return NULL;
    c->trainer = trainer;
    tkc_trainer_keep(trainer);
    c->queue = queue;
    tkc_queue_keep(queue);
    c->fn = fn;
    c->user = user;
    c->together = together;
    c->item.run = run_item;
    c->item.drop = drop_item;
    /* The function must see the batch as it is now, whatever the caller does with it meanwhile. */
    c->batch = tkc_batch_share(batch, err);
    c->first = c->batch ? new_forward(trainer, c->batch, err) : NULL;
    if (!c->first) {
        tkc_future_drop(&c->f);
        return NULL;
    }
    return tkc_op_submit(&c->f);
}

/* ---- without a queue ---- */

static tinkc_future *run_here(tinkc_trainer *trainer, const tinkc_batch *batch, tinkc_loss_fn *fn,
                              void *user, tinkc_error *err)
{
    tinkc_future *first = new_forward(trainer, batch, err);
    if (!first)
        return NULL;
    tkc_op_submit(first);
    const tinkc_fwdbwd *forward = tinkc_future_fwdbwd(first, TINKC_FOREVER, err);
    tinkc_future *second = forward ? evaluate_loss(trainer, batch, forward, fn, user, err) : NULL;
    tinkc_future_free(first);
    return second ? tkc_op_submit(second) : NULL;
}

/* The user's function, and a note that it has run. */
typedef struct marked {
    tinkc_loss_fn *fn;
    void *user;
    bool ran, failed;
} marked;

static bool run_marked(tinkc_loss *loss, void *user, tinkc_error *err)
{
    marked *m = user;
    m->ran = true;
    m->failed = !m->fn(loss, m->user, err) || tkc_failed(err);
    return !m->failed;
}

static void nothing_to_do(tinkc_future *f, void *user)
{
    (void)f, (void)user; /* its coming ends the wait in tinkc_queue_run */
}

/* Holds the turn and runs the function on this thread: a queue of our own, run right here. */
static tinkc_future *run_here_together(tinkc_trainer *trainer, const tinkc_batch *batch,
                                       tinkc_loss_fn *fn, void *user, tinkc_error *err)
{
    marked m = { .fn = fn, .user = user };
    tinkc_queue *queue = tinkc_queue_new(trainer->client, err);
    tinkc_future *f = queue ? run_in_queue(trainer, batch, true, queue, run_marked, &m, err) : NULL;
    if (f && tinkc_future_on_done(f, queue, nothing_to_do, NULL, err))
        while (!m.ran && !tinkc_future_done(f) && !tkc_failed(err))
            tinkc_queue_run(queue, TINKC_FOREVER, err);
    /* A function that failed shows now, as it does without TOGETHER. */
    tinkc_error failed = { 0 };
    if (f && m.failed && !tinkc_future_wait(f, TINKC_FOREVER, &failed))
        tkc_error_copy(err, &failed);
    tinkc_queue_free(queue);
    if (f && tkc_failed(err)) {
        tinkc_future_free(f);
        f = NULL;
    }
    return f;
}

tinkc_future *tinkc_forward_backward_custom(tinkc_trainer *trainer, const tinkc_batch *batch,
                                            uint32_t flags, tinkc_queue *queue, tinkc_loss_fn *fn,
                                            void *user, tinkc_error *err)
{
    tinkc_error local;
    bool together = flags & TINKC_CUSTOM_TOGETHER;
    if (!tkc_enter(&err, &local) || !tkc_trainer_check(trainer, err) || !check_inputs(batch, err))
        return NULL;
    if (!fn || flags & ~(uint32_t)TINKC_CUSTOM_TOGETHER) {
        tkc_fail(err, TINKC_E_ARGUMENT, fn ? "flags: unknown bits" : "fn: must not be NULL");
        return NULL;
    }
    if (queue)
        return run_in_queue(trainer, batch, together, queue, fn, user, err);
    if (!tkc_client_check_waits(trainer->client, err))
        return NULL;
    return together ? run_here_together(trainer, batch, fn, user, err)
                    : run_here(trainer, batch, fn, user, err);
}

/* ---- parts ---- */

static bool is_custom(const tinkc_future *f)
{
    return f && f->class->start == custom_start;
}

/* The pass whose result is the future's; NULL if it has not begun. Waits for that. */
static tinkc_future *pass_of(tinkc_future *f, int64_t deadline, bool wait)
{
    if (!is_custom(f))
        return f;
    custom *c = (custom *)f;
    pthread_mutex_lock(&f->shared.lock);
    while (!c->begun && !f->shared.done && wait)
        if (!tkc_cond_wait_until(&f->shared.cond, &f->shared.lock, deadline))
            break;
    tinkc_future *pass = c->begun;
    pthread_mutex_unlock(&f->shared.lock);
    return pass;
}

size_t tinkc_future_part_count(const tinkc_future *f)
{
    if (!tkc_is_pass(f) && !is_custom(f))
        return 0;
    tinkc_future *pass = pass_of((tinkc_future *)f, 0, false);
    return pass ? tkc_pass_part_count(pass) : 0;
}

const tinkc_fwdbwd *tinkc_future_part(tinkc_future *f, size_t i, int64_t timeout_ms,
                                      tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!tkc_is_pass(f) && !is_custom(f)) {
        tkc_fail(err, TINKC_E_ARGUMENT, "future: of no pass");
        return NULL;
    }
    if (!tkc_client_check(f->client, err) ||
        (timeout_ms != 0 && !tkc_client_check_waits(f->client, err)))
        return NULL;
    int64_t deadline = tkc_deadline_ns(timeout_ms);
    tinkc_future *pass = pass_of(f, deadline, timeout_ms != 0);
    if (pass)
        return tkc_pass_part(pass, i, tkc_left_ms(deadline), err);
    (void)tinkc_future_wait(f, 0, err); /* TIMEOUT, or what ended it before that */
    return NULL;
}
