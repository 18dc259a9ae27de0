/* future.c - futures as users see them: waiting, looking, cancelling, many at once.
 *
 * May touch: futures under their lock, the client's loop to post to.
 * Must not:  run user code, wait on the I/O thread, hold a future's lock while it waits elsewhere.
 */
#include <assert.h>
#include <string.h>

#include "client/core/client_priv.h"
#include "base/str.h"

static bool check_future(tinkc_future *f, tinkc_error *err)
{
    if (!f)
        return tkc_fail(err, TINKC_E_ARGUMENT, "future: must not be NULL");
    return tkc_client_check(f->client, err);
}

/* NULL if there is nothing to look at. In a forked child nobody may ever give the lock back. */
static tinkc_future *to_look_at(const tinkc_future *f)
{
    return f && !tkc_client_forked(f->client)
               ? (tinkc_future *)f /* the lock inside is not part of its value */
               : NULL;
}

/* The same, for how it continues: one that works through another shows that one's state. */
static tinkc_future *to_follow(const tinkc_future *cf)
{
    tinkc_future *f = to_look_at(cf);
    if (!f)
        return NULL;
    pthread_mutex_lock(&f->shared.lock);
    tinkc_future *inner = f->shared.done ? NULL : f->shared.through;
    pthread_mutex_unlock(&f->shared.lock);
    return inner && !tkc_op_is_done(inner) ? inner : f;
}

bool tinkc_future_done(const tinkc_future *cf)
{
    tinkc_future *f = to_look_at(cf);
    return !f || tkc_op_is_done(f);
}

/* Needs f->shared.lock and a completed future. */
static bool outcome(tinkc_future *f, tinkc_error *err)
{
    assert(f->shared.done);
    if (f->shared.err.code == TINKC_OK)
        return true;
    tkc_error_copy(err, &f->shared.err);
    return false;
}

/* On the I/O thread a wait would block the very work it waits for: refused, unless it is a look. */
bool tinkc_future_wait(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_future(f, err))
        return false;
    pthread_mutex_lock(&f->shared.lock);
    if (!f->shared.done && timeout_ms != 0 && tkc_loop_is_current(f->client->loop)) {
        pthread_mutex_unlock(&f->shared.lock);
        return tkc_client_check_waits(f->client, err);
    }
    int64_t deadline = timeout_ms == 0 ? 0 : tkc_deadline_ns(timeout_ms);
    bool in_time = true;
    while (!f->shared.done && in_time && timeout_ms != 0)
        in_time = tkc_cond_wait_until(&f->shared.cond, &f->shared.lock, deadline);
    bool ok;
    if (f->shared.done)
        ok = outcome(f, err);
    else
        ok = tkc_fail(err, TINKC_E_TIMEOUT, "%s: not complete yet", f->class->operation);
    pthread_mutex_unlock(&f->shared.lock);
    return ok;
}

void *tkc_future_get(tinkc_future *f, const char *kind, int64_t timeout_ms, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_future(f, err))
        return NULL;
    /* Before the wait: the wrong getter must not find out after hours. */
    if (strcmp(f->class->kind, kind) != 0) {
        tkc_fail(err, TINKC_E_ARGUMENT, "future: of %s, whose result is not a %s",
                 f->class->operation, kind);
        return NULL;
    }
    return tinkc_future_wait(f, timeout_ms, err) ? f->result : NULL;
}

/* Has the I/O thread look at cancel and limit. Posted at most once at a time, and the task holds a
 * reference, so the future outlives it. Needs f->shared.lock. */
static void post_control(tinkc_future *f)
{
    if (f->shared.done || !f->shared.submitted || f->shared.control_posted)
        return;
    f->shared.control_posted = true;
    tkc_future_keep(f);
    tkc_loop_post(f->client->loop, &f->io.control_task);
}

void tinkc_future_cancel(tinkc_future *f)
{
    if (!f || tkc_client_forked(f->client))
        return;
    pthread_mutex_lock(&f->shared.lock);
    f->shared.cancel = true;
    post_control(f);
    pthread_mutex_unlock(&f->shared.lock);
}

/* Takes both receivers away, so that no new callback starts. Queues are dropped outside the lock:
 * the last reference frees a queue, which takes locks of its own. */
static void unbind(tinkc_future *f)
{
    pthread_mutex_lock(&f->shared.lock);
    tinkc_queue *done_queue = f->shared.done_queue, *event_queue = f->shared.events.queue;
    f->shared.done_fn = NULL;
    f->shared.done_queue = NULL;
    f->shared.events = (tkc_event_receiver){ 0 };
    pthread_mutex_unlock(&f->shared.lock);
    if (done_queue) {
        if (tkc_queue_remove(done_queue, &f->done_item))
            tkc_future_drop(f);
        tkc_queue_drop(done_queue);
    }
    if (event_queue)
        tkc_queue_drop(event_queue);
}

void tinkc_future_free(tinkc_future *f)
{
    if (!f || tkc_client_forked(f->client))
        return;
    /* First: no callback may begin for a handle that is going away. */
    unbind(f);
    tinkc_future_cancel(f);
    tkc_future_drop(f);
}

bool tinkc_future_limit(tinkc_future *f, int64_t ms, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_future(f, err))
        return false;
    if (ms < 0 && ms != TINKC_FOREVER)
        return tkc_fail(err, TINKC_E_ARGUMENT, "ms: must be 0 or more, or TINKC_FOREVER");
    /* A time, not a span: what passes until the I/O thread sees it counts as well. */
    int64_t at = INT64_MAX;
    if (ms != TINKC_FOREVER && __builtin_add_overflow(tkc_now_ms(f->client->clock), ms, &at))
        at = INT64_MAX;
    pthread_mutex_lock(&f->shared.lock);
    f->shared.limit_at_ms = at;
    f->shared.limit_set = true;
    post_control(f);
    pthread_mutex_unlock(&f->shared.lock);
    return true;
}

/* ---- looking ---- */

const char *tinkc_future_request_id(const tinkc_future *cf)
{
    tinkc_future *f = to_follow(cf);
    if (!f)
        return "";
    pthread_mutex_lock(&f->shared.lock);
    const char *id = f->shared.request_id;
    pthread_mutex_unlock(&f->shared.lock);
    return id ? id : "";
}

const char *tinkc_future_operation(const tinkc_future *f)
{
    return f ? f->class->operation : "";
}

void tinkc_future_progress(const tinkc_future *cf, int64_t *done, int64_t *total)
{
    tinkc_future *f = to_follow(cf);
    int64_t is = 0, of = -1;
    if (f) {
        pthread_mutex_lock(&f->shared.lock);
        is = f->shared.progress_done;
        of = f->shared.progress_total;
        /* What counts nothing is 0 of 1 until it is complete. */
        if (of == 1 && is == 0 && f->shared.done && f->shared.err.code == TINKC_OK)
            is = 1;
        pthread_mutex_unlock(&f->shared.lock);
    }
    if (done)
        *done = is;
    if (total)
        *total = of;
}

static int32_t read_i32(const tinkc_future *cf, size_t offset, int32_t if_null)
{
    tinkc_future *f = to_follow(cf);
    if (!f)
        return if_null;
    pthread_mutex_lock(&f->shared.lock);
    int32_t value;
    memcpy(&value, (const char *)f + offset, sizeof value);
    pthread_mutex_unlock(&f->shared.lock);
    return value;
}

int32_t tinkc_future_stage(const tinkc_future *f)
{
    return read_i32(f, offsetof(tinkc_future, shared.stage), TINKC_STAGE_DONE);
}

int32_t tinkc_future_queue_state(const tinkc_future *f)
{
    return read_i32(f, offsetof(tinkc_future, shared.queue_state), TINKC_QUEUE_UNKNOWN);
}

int32_t tinkc_future_retry_state(const tinkc_future *cf, int32_t *attempts, int64_t *for_ms)
{
    tinkc_future *f = to_follow(cf);
    int32_t code = TINKC_OK, n = 0;
    int64_t since = 0, ms = 0;
    if (f) {
        pthread_mutex_lock(&f->shared.lock);
        code = f->shared.done ? TINKC_OK : f->shared.trouble;
        n = f->shared.trouble_attempts;
        since = f->shared.trouble_since_ms;
        pthread_mutex_unlock(&f->shared.lock);
    }
    if (code)
        ms = tkc_now_ms(f->client->clock) - since;
    if (attempts)
        *attempts = code ? n : 0;
    if (for_ms)
        *for_ms = ms > 0 ? ms : 0;
    return code;
}

static const char *stage_sentence(const tinkc_future *f)
{
    if (f->shared.done)
        return f->shared.err.code ? f->shared.err.message : "done";
    if (f->shared.status[0])
        return f->shared.status;
    switch (f->shared.stage) {
    case TINKC_STAGE_QUEUED:
        return "waits for its turn";
    case TINKC_STAGE_SENDING:
        return "is being sent";
    case TINKC_STAGE_ACCEPTED:
        return "accepted, the result is not ready yet";
    default:
        return "the result is on its way";
    }
}

const char *tinkc_future_status(const tinkc_future *cf, tinkc_text *out, tinkc_error *err)
{
    tinkc_future *f = (tinkc_future *)cf;
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_future(f, err))
        return "";
    if (!out) {
        tkc_fail(err, TINKC_E_ARGUMENT, "out: must not be NULL");
        return "";
    }
    char text[sizeof f->shared.err.message];
    f = to_follow(f);
    pthread_mutex_lock(&f->shared.lock);
    const char *sentence = stage_sentence(f);
    size_t len = strnlen(sentence, sizeof text - 1);
    memcpy(text, sentence, len);
    pthread_mutex_unlock(&f->shared.lock);
    out->len = 0;
    return tinkc_text_append(out, text, len, err) ? out->data : "";
}

tinkc_bytes tinkc_future_error_body(const tinkc_future *cf)
{
    tinkc_future *f = to_look_at(cf);
    /* Constant by now, so no lock is needed. */
    if (!f || !tkc_op_is_done(f))
        return (tinkc_bytes){ 0 };
    return f->error_body;
}

/* ---- many ---- */

bool tinkc_future_wait_all(tinkc_future *const *all, size_t n, int64_t timeout_ms, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!all && n)
        return tkc_fail(err, TINKC_E_ARGUMENT, "all: must not be NULL");
    int64_t deadline = tkc_deadline_ns(timeout_ms);
    tinkc_error first = { 0 };
    for (size_t i = 0; i < n; i++) {
        if (!all[i])
            continue;
        tinkc_error one = { 0 };
        if (tinkc_future_wait(all[i], tkc_left_ms(deadline), &one))
            continue;
        bool is_outcome = tinkc_future_done(all[i]);
        if (!is_outcome) { /* timeout, wrong thread, forked: no use waiting for the others */
            tkc_error_copy(err, &one);
            return false;
        }
        tkc_error_copy(&first, &one);
    }
    tkc_error_copy(err, &first);
    return !tkc_failed(err);
}

/* One thread that waits for several futures; each future knows it through a node of its own. */
typedef struct any_wait {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool fired;
} any_wait;

typedef struct tkc_any_node tkc_any_node;
struct tkc_any_node {
    any_wait *wait;
    tkc_any_node *next;
};

/* Called at completion. Needs f->shared.lock. */
void tkc_future_fire_any(tinkc_future *f)
{
    /* The nodes stay valid after the signal: to leave, a woken thread needs the lock that is
     * held here. */
    for (tkc_any_node *node = f->shared.any; node; node = node->next) {
        pthread_mutex_lock(&node->wait->lock);
        node->wait->fired = true;
        pthread_cond_signal(&node->wait->cond);
        pthread_mutex_unlock(&node->wait->lock);
    }
    f->shared.any = NULL;
}

static void any_leave(tinkc_future *f, tkc_any_node *node)
{
    pthread_mutex_lock(&f->shared.lock);
    tkc_any_node **at = &f->shared.any;
    while (*at && *at != node)
        at = &(*at)->next;
    if (*at)
        *at = node->next;
    pthread_mutex_unlock(&f->shared.lock);
}

static size_t first_done(tinkc_future *const *all, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (all[i] && tkc_op_is_done(all[i]))
            return i;
    return n;
}

static void any_join(tinkc_future *f, tkc_any_node *node, any_wait *wait)
{
    node->wait = wait;
    pthread_mutex_lock(&f->shared.lock);
    if (f->shared.done) {
        pthread_mutex_lock(&wait->lock);
        wait->fired = true;
        pthread_mutex_unlock(&wait->lock);
    } else {
        node->next = f->shared.any;
        f->shared.any = node;
    }
    pthread_mutex_unlock(&f->shared.lock);
}

static void any_sleep(tinkc_future *const *all, size_t n, tkc_any_node *nodes, int64_t deadline,
                      any_wait *wait)
{
    for (size_t i = 0; i < n; i++)
        if (all[i])
            any_join(all[i], &nodes[i], wait);
    pthread_mutex_lock(&wait->lock);
    while (!wait->fired)
        if (!tkc_cond_wait_until(&wait->cond, &wait->lock, deadline))
            break;
    pthread_mutex_unlock(&wait->lock);
    for (size_t i = 0; i < n; i++)
        if (all[i])
            any_leave(all[i], &nodes[i]);
}

size_t tinkc_future_wait_any(tinkc_future *const *all, size_t n, int64_t timeout_ms,
                             tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return n;
    tinkc_future *some = NULL;
    for (size_t i = 0; all && i < n; i++)
        if (all[i] && !check_future(all[i], err))
            return n;
        else if (all[i])
            some = all[i];
    if (!some) {
        tkc_fail(err, TINKC_E_ARGUMENT, "all: no future among them");
        return n;
    }
    /* Before anything is waited for: a look is allowed on the I/O thread, too. */
    size_t found = first_done(all, n);
    if (found < n || timeout_ms == 0) {
        if (found == n)
            tkc_fail(err, TINKC_E_TIMEOUT, "none is complete yet");
        return found;
    }
    for (size_t i = 0; i < n; i++)
        if (all[i] && !tkc_client_check_waits(all[i]->client, err))
            return n;
    any_wait wait = { 0 };
    const tinkc_allocator *a = some->client->a;
    tkc_any_node *nodes = tkc_zalloc(a, n * sizeof *nodes, err);
    if (!nodes)
        return n;
    pthread_mutex_init(&wait.lock, NULL);
    if (tkc_cond_init(&wait.cond, err)) {
        any_sleep(all, n, nodes, tkc_deadline_ns(timeout_ms), &wait);
        pthread_cond_destroy(&wait.cond);
        found = first_done(all, n);
        if (found == n)
            tkc_fail(err, TINKC_E_TIMEOUT, "none completed in time");
    }
    pthread_mutex_destroy(&wait.lock);
    tkc_release(a, nodes, n * sizeof *nodes);
    return found;
}
