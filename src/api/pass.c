/* pass.c - one pass over a batch: cut into chunks, sent in order, put together again.
 *
 * The caller's thread cuts and encodes. At its turn the pass takes one number for each chunk. In
 * parallel mode chunks 2 to n leave at once, as far as the byte budget goes, and chunk 1 only when
 * all of them are accepted: the service waits for it, so the batch becomes visible as a whole.
 * Otherwise chunks leave one after the other. Each is polled from its acceptance on.
 *
 * The turn ends when every chunk is accepted or the pass has failed. A pass that is cancelled after
 * its first chunk has left goes on submitting, because the numbers are taken.
 *
 * May touch: the trainer's I/O side, the client's byte budget.
 */
#include "api/pass.h"

#include <math.h>
#include <string.h>

#include "api/promise.h"
#include "base/str.h"
#include "codec/pb.h"
#include "codec/zstd.h"
#include "wire/endpoint.h"

enum { OFFLOAD_BYTES = 256 * 1024 };

enum { PART_IDLE = 0, PART_CLAIMING, PART_PACKING, PART_SENDING, PART_ACCEPTED, PART_FAILED };

typedef struct pass pass;

typedef struct part {
    pass *pass;
    size_t index;
    size_t first;  /* example it begins with */
    int64_t bytes; /* estimate, for the budget */
    tkc_buf body;
    tkc_claim claim;
    tkc_call *call;
    tkc_promise promise;
    tkc_offload offload; /* packing, then reading */
    tinkc_error offload_err;
    int32_t state;
    int32_t fate; /* of the submit, when FAILED */
    bool compressed;
    bool reading; /* a helper has the result */
    tkc_arena arena;
    tkc_buf answer; /* the result's bytes, which the outcome points into */
    tinkc_fwdbwd outcome;
} part;

struct pass {
    tinkc_future f;
    tkc_op_class class;     /* with this pass's operation name */
    tinkc_trainer *trainer; /* a reference */
    tkc_turn turn;
    part *parts;
    size_t n;
    size_t n_accepted, n_settled, n_sent; /* of submits */
    size_t n_ready;                       /* results; also under f.shared.lock */
    bool *ready;                          /* for each part; needs f.shared.lock */
    int64_t first_seq;
    int64_t begun_ms;
    bool parallel, forward_only;
    bool submitting;            /* has the turn, its own or a lent one */
    void (*settled)(void *arg); /* the turn is lent by somebody, who is told once */
    void *settled_arg;
    bool released; /* the I/O thread's reference is gone */
    bool failing;  /* no new chunk is sent, but for those whose numbers are taken */
    tinkc_error failure;
    tinkc_metrics extra;
    size_t helpers; /* that still work on a part */
};

/* ---- cutting and encoding: the caller's thread ---- */

bool tkc_loss_check(const char *loss, const tinkc_loss_options *o, tinkc_error *err)
{
    if (!loss || !loss[0])
        return tkc_fail(err, TINKC_E_ARGUMENT, "loss: must not be empty");
    if (!o)
        return true;
    if (!tkc_all_zero(o->reserved, sizeof o->reserved))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved: must be zero");
    if (o->names && o->names[0] && !o->values)
        return tkc_fail(err, TINKC_E_ARGUMENT, "values: must not be NULL");
    for (size_t i = 0; o->names && o->names[i]; i++)
        if (!isfinite(o->values[i]))
            return tkc_fail(err, TINKC_E_ARGUMENT, "values: %s is not finite", o->names[i]);
    return true;
}

/* How many examples go into the chunk that begins with `first`. */
static size_t chunk_length(const tinkc_batch *batch, size_t first, const tkc_config_response *flags,
                           int64_t *bytes)
{
    size_t n = 0;
    *bytes = 0;
    while (first + n < batch->n && (int64_t)n < flags->fwdbwd_max_chunk_len) {
        int64_t more = (int64_t)batch->examples[first + n].bytes;
        if (n && *bytes + more > flags->fwdbwd_max_chunk_bytes_count)
            break;
        *bytes += more;
        n++;
    }
    return n;
}

static size_t count_chunks(const tinkc_batch *batch, const tkc_config_response *flags)
{
    size_t n = 0;
    int64_t bytes;
    for (size_t at = 0; at < batch->n; n++)
        at += chunk_length(batch, at, flags, &bytes);
    return n;
}

static bool encode_part(part *p, const tinkc_batch *batch, size_t n, const tkc_pass_options *o,
                        tkc_arena *scratch, tinkc_error *err)
{
    tkc_datum *data = tkc_arena_array(scratch, n, sizeof *data, err);
    if (!data)
        return false;
    for (size_t i = 0; i < n; i++) {
        const tkc_example *e = &batch->examples[p->first + i];
        data[i].chunks.data = e->chunks;
        data[i].chunks.len = e->n_chunks;
        data[i].inputs.data = e->inputs;
        data[i].inputs.len = e->n_inputs;
    }
    tkc_forward_backward_request request = { .model_id = p->pass->trainer->model_id,
                                             .loss_fn = o->loss,
                                             .forward_only = o->forward_only };
    request.data.data = data;
    request.data.len = n;
    if (o->settings && o->settings->names) {
        request.loss_fn_config.names = o->settings->names;
        request.loss_fn_config.values = o->settings->values;
        while (o->settings->names[request.loss_fn_config.len])
            request.loss_fn_config.len++;
    }
    tkc_buf_init(&p->body, batch->client->a, TKC_BUF_NO_MAX);
    return tkc_forward_backward_to_pb(&request, &p->body, err);
}

static bool cut(pass *s, const tinkc_batch *batch, const tkc_pass_options *o, tinkc_error *err)
{
    const tkc_config_response *flags = &s->f.client->io.flags;
    tkc_arena scratch;
    bool ok = true;
    s->n = count_chunks(batch, flags);
    s->parts = tkc_arena_array(&s->f.arena, s->n, sizeof *s->parts, err);
    s->ready = tkc_arena_array(&s->f.arena, s->n, sizeof *s->ready, err);
    if (!s->parts || !s->ready) {
        s->n = 0;
        return false;
    }
    tkc_arena_init(&scratch, batch->client->a, 0);
    size_t at = 0;
    for (size_t i = 0; i < s->n && ok; i++) {
        part *p = &s->parts[i];
        size_t n = chunk_length(batch, at, flags, &p->bytes);
        p->pass = s;
        p->index = i;
        p->first = at;
        tkc_arena_init(&p->arena, batch->client->a, 0);
        ok = encode_part(p, batch, n, o, &scratch, err);
        at += n;
        tkc_arena_reset(&scratch);
    }
    tkc_arena_free(&scratch);
    s->parallel = flags->parallel_fwdbwd_chunks && s->n > 1;
    return ok;
}

static void pass_start(tinkc_future *f);
static void pass_stop(tinkc_future *f, const tinkc_error *why);
static void pass_destroy(tinkc_future *f);

tinkc_future *tkc_pass_new(tinkc_trainer *trainer, const tinkc_batch *batch,
                           const tkc_pass_options *o, tinkc_error *err)
{
    static const tkc_op_class shape = { "",         "fwdbwd",  sizeof(pass),
                                        pass_start, pass_stop, pass_destroy };
    if (!tkc_trainer_check(trainer, err) || !tkc_loss_check(o->loss, o->settings, err))
        return NULL;
    if (!batch || batch->n == 0) {
        tkc_fail(err, TINKC_E_ARGUMENT, "batch: must not be %s", batch ? "empty" : "NULL");
        return NULL;
    }
    pass *s = (pass *)tkc_op_new(trainer->client, &shape, err);
    if (!s)
        return NULL;
    s->class = shape;
    s->class.operation = o->operation;
    s->f.class = &s->class;
    s->trainer = trainer;
    tkc_trainer_keep(trainer);
    s->forward_only = o->forward_only;
    if (!cut(s, batch, o, err)) {
        tkc_future_drop(&s->f);
        return NULL;
    }
    tkc_op_progress(&s->f, 0, (int64_t)s->n);
    return &s->f;
}

static tinkc_future *run_pass(tinkc_trainer *trainer, const tinkc_batch *batch, const char *loss,
                              const tinkc_loss_options *settings, bool forward_only,
                              tinkc_error *err)
{
    tinkc_error local;
    tkc_pass_options o = { .operation = forward_only ? "forward" : "forward_backward",
                           .loss = loss,
                           .settings = settings,
                           .forward_only = forward_only };
    if (!tkc_enter(&err, &local))
        return NULL;
    tinkc_future *f = tkc_pass_new(trainer, batch, &o, err);
    return f ? tkc_op_submit(f) : NULL;
}

tinkc_future *tinkc_forward_backward(tinkc_trainer *trainer, const tinkc_batch *batch,
                                     const char *loss, const tinkc_loss_options *settings,
                                     tinkc_error *err)
{
    return run_pass(trainer, batch, loss, settings, false, err);
}

tinkc_future *tinkc_forward(tinkc_trainer *trainer, const tinkc_batch *batch, const char *loss,
                            const tinkc_loss_options *settings, tinkc_error *err)
{
    return run_pass(trainer, batch, loss, settings, true, err);
}

bool tkc_pass_add_metric(tinkc_future *f, const char *name, double value, tinkc_error *err)
{
    pass *s = (pass *)f;
    return tkc_metrics_put(&s->extra, name, value, &f->arena, err);
}

void tkc_pass_lend_turn(tinkc_future *f, void (*settled)(void *arg), void *arg)
{
    pass *s = (pass *)f;
    s->settled = settled;
    s->settled_arg = arg;
}

/* ---- results ---- */

static void complete_pass(pass *s)
{
    tinkc_error err = { 0 };
    const tinkc_fwdbwd **parts = tkc_arena_array(&s->f.arena, s->n, sizeof *parts, &err);
    tinkc_fwdbwd *all = tkc_arena_zalloc(&s->f.arena, sizeof *all, &err);
    if (parts && all) {
        for (size_t i = 0; i < s->n; i++)
            parts[i] = &s->parts[i].outcome;
        tkc_fwdbwd_combine(all, parts, s->n, &s->f.arena, s->f.client, &err);
        for (size_t i = 0; i < s->extra.len && !tkc_failed(&err); i++)
            tkc_metrics_put(&all->metrics, s->extra.names[i], s->extra.values[i], &s->f.arena,
                            &err);
        s->f.result = all;
    }
    tkc_op_complete(&s->f, &err);
}

/* Gives the I/O thread's reference back once nothing works for this pass any more. */
static void release_if_over(pass *s)
{
    if (s->turn.queued || s->submitting || s->helpers || s->released || !tkc_op_is_done(&s->f))
        return;
    for (size_t i = 0; i < s->n; i++)
        if (s->parts[i].call)
            return;
    s->released = true;
    tkc_op_release(&s->f);
}

/* The pass has failed or is over for its caller: results are no longer wanted. */
static void end_polling(pass *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->parts[i].promise.inner.running)
            tkc_promise_end(&s->parts[i].promise);
}

static void fail_pass(pass *s, const tinkc_error *err)
{
    tkc_op_complete(&s->f, err);
    end_polling(s);
}

static void part_ready(part *p)
{
    pass *s = p->pass;
    pthread_mutex_lock(&s->f.shared.lock);
    s->ready[p->index] = true;
    s->n_ready++;
    s->f.shared.progress_done = (int64_t)s->n_ready;
    bool last = s->n_ready == s->n;
    pthread_cond_broadcast(&s->f.shared.cond);
    pthread_mutex_unlock(&s->f.shared.lock);
    if (last)
        complete_pass(s);
}

static void read_part(tkc_offload *o)
{
    part *p = TKC_OWNER(o, part, offload);
    tinkc_bytes body = { (const unsigned char *)p->answer.data, p->answer.len };
    tkc_fwdbwd_read(&p->outcome, body, p->promise.is_protobuf, p->first, &p->arena,
                    &p->offload_err);
}

static void part_read(tkc_offload *o)
{
    part *p = TKC_OWNER(o, part, offload);
    pass *s = p->pass;
    p->reading = false;
    s->helpers--;
    tkc_promise_end(&p->promise);
    if (!tkc_op_is_done(&s->f)) {
        if (tkc_failed(&p->offload_err)) {
            p->offload_err.flags |= TINKC_IN_RETRIEVAL | TINKC_MAY_HAVE_RUN;
            fail_pass(s, &p->offload_err);
        } else {
            part_ready(p);
        }
    }
    release_if_over(s);
}

static void promise_done(tkc_promise *promise)
{
    part *p = promise->owner;
    pass *s = p->pass;
    if (promise->err.code) {
        tkc_op_error_body(&s->f, promise->error_body);
        tinkc_error err = promise->err;
        tkc_promise_end(promise);
        fail_pass(s, &err);
        release_if_over(s);
        return;
    }
    tkc_promise_take_body(promise, &p->answer);
    p->reading = true;
    s->helpers++;
    p->offload.work = read_part;
    p->offload.after = part_read;
    p->offload_err = (tinkc_error){ 0 };
    if (p->answer.len >= OFFLOAD_BYTES) {
        tkc_offload_start(s->f.client, &p->offload);
    } else {
        read_part(&p->offload);
        part_read(&p->offload);
    }
}

static void await_part(part *p, tinkc_str request_id)
{
    pass *s = p->pass;
    tinkc_trainer *t = s->trainer;
    if (p->index == 0 || !s->f.shared.request_id)
        tkc_op_request_id(&s->f, request_id);
    p->promise.client = t->client;
    p->promise.f = &s->f;
    p->promise.request_type = s->forward_only ? "Forward" : "ForwardBackward";
    p->promise.wants_protobuf = true;
    p->promise.pause_prefix = t->io.pause_prefix;
    p->promise.pause_gate = &t->io.pause_gate;
    p->promise.roundtrip_ms = tkc_now_ms(t->client->clock) - s->begun_ms;
    p->promise.done = promise_done;
    p->promise.owner = p;
    tkc_promise_start(&p->promise, request_id);
}

/* ---- submitting ---- */

static void send_part(part *p);
static void begin_part(part *p);

/* Chunks whose number nobody has confirmed, for mending; NULL if one was refused outright or there
 * is no memory: then the gap stays. */
static tkc_lost *collect_lost(pass *s)
{
    const tinkc_allocator *a = s->f.client->a;
    tkc_lost *first = NULL, **last = &first;
    for (size_t i = 0; i < s->n; i++) {
        part *p = &s->parts[i];
        tinkc_error err = { 0 };
        if (p->state == PART_ACCEPTED)
            continue;
        if (p->state == PART_FAILED && p->fate == TKC_SUBMIT_NOT_TAKEN) {
            err.code = TINKC_E_SEQUENCE;
        } else {
            tkc_lost *lost = tkc_zalloc(a, sizeof *lost, &err);
            if (lost) {
                lost->path = "/api/v1/forward_backward";
                lost->content_type = TKC_TYPE_PROTOBUF;
                lost->content_encoding = p->compressed ? "zstd" : NULL;
                lost->body = p->body;
                tkc_buf_init(&p->body, a, TKC_BUF_NO_MAX);
                *last = lost;
                last = &lost->next;
            }
        }
        if (tkc_failed(&err)) {
            while (first) {
                tkc_lost *next = first->next;
                tkc_buf_free(&first->body);
                tkc_release(a, first, sizeof *first);
                first = next;
            }
            return NULL;
        }
    }
    return first;
}

/* The turn is over, its own or the lent one. */
static void end_turn(pass *s)
{
    void (*settled)(void *) = s->settled;
    s->submitting = false;
    s->settled = NULL;
    if (settled)
        settled(s->settled_arg);
    tkc_turn_leave(s->trainer, &s->turn);
}

/* Every submit that was begun has ended: what of the numbers? */
static void settle(pass *s)
{
    bool any_lost = false;
    for (size_t i = 0; i < s->n; i++)
        any_lost |= s->parts[i].state == PART_FAILED && s->parts[i].fate == TKC_SUBMIT_LOST;
    if (s->failing) {
        if (s->n_accepted == 0 && !any_lost)
            tkc_turn_give_back(s->trainer, s->n); /* the service has seen none of it */
        else if (s->n_accepted < s->n)
            tkc_trainer_break(s->trainer, &s->failure, collect_lost(s));
    }
    end_turn(s);
    release_if_over(s);
}

/* Begins all of a range; they count as under way from the start, so that one which fails at once
 * does not look like the last. */
static void begin_parts(pass *s, size_t first, size_t end)
{
    s->n_sent += end - first;
    for (size_t i = first; i < end; i++)
        begin_part(&s->parts[i]);
}

/* Sends what may be sent next, or ends the turn. */
static void go_on(pass *s)
{
    tkc_future_keep(&s->f);
    size_t under_way = s->n_sent - s->n_settled;
    if (s->n_accepted == s->n || (s->failing && under_way == 0))
        settle(s);
    else if (s->failing)
        ; /* waits for those under way */
    else if (!s->parallel && under_way == 0)
        begin_parts(s, s->n_sent, s->n_sent + 1);
    else if (s->parallel && s->n_sent == 0)
        begin_parts(s, 1, s->n);
    else if (s->parallel && s->n_accepted == s->n - 1 && s->parts[0].state == PART_IDLE)
        begin_parts(s, 0, 1);
    tkc_future_drop(&s->f);
}

static void part_failed(part *p, const tinkc_error *err, int32_t fate)
{
    pass *s = p->pass;
    p->state = PART_FAILED;
    p->fate = fate;
    s->n_settled++;
    if (!s->failing) {
        s->failing = true;
        s->failure = *err;
        fail_pass(s, err);
    }
    go_on(s);
}

static void part_accepted(part *p, const tkc_call *call)
{
    pass *s = p->pass;
    tinkc_str id;
    tinkc_error err = { 0 };
    p->state = PART_ACCEPTED;
    s->n_accepted++;
    s->n_settled++;
    tkc_buf_free(&p->body);
    if (!tkc_op_is_done(&s->f)) {
        if (tkc_submit_read(call, &p->arena, &id, &err)) {
            await_part(p, id);
        } else {
            err.flags |= TINKC_MAY_HAVE_RUN;
            tkc_op_error_body(&s->f, call->body);
            fail_pass(s, &err);
        }
    }
    go_on(s);
}

static void submit_done(tkc_call *call)
{
    part *p = call->owner;
    p->call = NULL;
    tkc_claim_end(&p->claim);
    int32_t fate = tkc_submit_fate(call);
    if (fate == TKC_SUBMIT_ACCEPTED) {
        part_accepted(p, call);
    } else {
        tinkc_error err = call->err;
        tkc_op_error_body(&p->pass->f, call->body);
        if (fate == TKC_SUBMIT_LOST && !tkc_call_take_request(call, &p->body))
            fate = TKC_SUBMIT_NOT_TAKEN; /* cannot be mended without its bytes */
        part_failed(p, &err, fate);
    }
    tkc_call_free(call);
}

static bool add_seq(part *p, tinkc_error *err)
{
    unsigned char bytes[12] = { 0x10 }; /* field 2, a number */
    uint64_t seq = (uint64_t)(p->pass->first_seq + (int64_t)p->index);
    if (seq > INT32_MAX)
        return tkc_fail(err, TINKC_E_STATE, "more requests than one model can number");
    size_t n = 1;
    for (; seq >= 128; seq >>= 7)
        bytes[n++] = (unsigned char)(seq | 128);
    bytes[n++] = (unsigned char)seq;
    return tkc_buf_add(&p->body, bytes, n, err);
}

static void send_part(part *p)
{
    static const char *const packed[] = { "Content-Encoding", "zstd", NULL };
    pass *s = p->pass;
    tinkc_error err = p->offload_err;
    if (!tkc_failed(&err))
        p->call = tkc_call_new(s->f.client,
                               &(tkc_call_spec){ .method = "POST",
                                                 .path = "/api/v1/forward_backward",
                                                 .pool = TINKC_POOL_TRAIN,
                                                 .need = TKC_NEED_SESSION,
                                                 .retries = TKC_RETRIES_DEFAULT,
                                                 .window = true,
                                                 .headers = p->compressed ? packed : NULL,
                                                 .content_type = TKC_TYPE_PROTOBUF,
                                                 .body = &p->body },
                               &err);
    if (!p->call) {
        tkc_claim_end(&p->claim);
        part_failed(p, &err, TKC_SUBMIT_NOT_TAKEN);
        return;
    }
    p->state = PART_SENDING;
    if (!tkc_op_is_done(&s->f)) {
        tkc_op_stage(&s->f, TINKC_STAGE_SENDING);
        p->call->f = &s->f;
    }
    p->call->owner = p;
    p->call->done = submit_done;
    tkc_call_start(p->call);
}

/* ---- packing ---- */

static void pack_part(tkc_offload *o)
{
    part *p = TKC_OWNER(o, part, offload);
    tkc_buf packed;
    tkc_buf_init(&packed, p->pass->f.client->a, TKC_BUF_NO_MAX);
    if (tkc_zstd_compress(p->body.data, p->body.len, &packed, &p->offload_err)) {
        tkc_buf swap = p->body;
        p->body = packed;
        packed = swap;
        p->compressed = true;
    }
    tkc_buf_free(&packed);
}

static void part_packed(tkc_offload *o)
{
    part *p = TKC_OWNER(o, part, offload);
    p->pass->helpers--;
    send_part(p);
}

static void prepare_part(part *p)
{
    tinkc_client *client = p->pass->f.client;
    p->offload_err = (tinkc_error){ 0 };
    if (!add_seq(p, &p->offload_err) || !client->io.flags.proto_compress_fwdbwd) {
        send_part(p);
        return;
    }
    p->state = PART_PACKING;
    p->pass->helpers++;
    p->offload.work = pack_part;
    p->offload.after = part_packed;
    tkc_offload_start(client, &p->offload);
}

/* Its bytes are free: prepare it, unless the pass has failed meanwhile. */
static void have_budget(part *p)
{
    if (p->pass->failing) {
        tkc_claim_end(&p->claim);
        part_failed(p, &p->pass->failure, TKC_SUBMIT_NOT_TAKEN);
    } else {
        prepare_part(p);
    }
}

static void budget_granted(tkc_claim *claim)
{
    have_budget(TKC_OWNER(claim, part, claim));
}

static void begin_part(part *p)
{
    pass *s = p->pass;
    p->state = PART_CLAIMING;
    p->claim.granted = budget_granted;
    p->claim.f = &s->f;
    if (tkc_claim_take(&p->claim, &s->f.client->io.fwdbwd_bytes, s->f.client->loop, p->bytes))
        have_budget(p);
}

/* ---- life ---- */

static void pass_go(tkc_turn *turn, const tinkc_error *refused)
{
    pass *s = TKC_OWNER(turn, pass, turn);
    if (refused) {
        tkc_op_finish(&s->f, refused);
        return;
    }
    s->submitting = true;
    s->first_seq = tkc_turn_take(s->trainer, s->n);
    go_on(s);
}

static void pass_start(tinkc_future *f)
{
    pass *s = (pass *)f;
    s->begun_ms = tkc_now_ms(f->client->clock);
    s->turn.go = pass_go;
    if (s->settled)
        pass_go(&s->turn, NULL);
    else
        tkc_turn_join(s->trainer, &s->turn);
}

/* True if a chunk has left, or may have. */
static bool has_left(const pass *s)
{
    if (s->n_accepted)
        return true;
    for (size_t i = 0; i < s->n; i++)
        if (s->parts[i].state == PART_PACKING || tkc_call_is_out(s->parts[i].call) ||
            (s->parts[i].state == PART_FAILED && s->parts[i].fate == TKC_SUBMIT_LOST))
            return true;
    return false;
}

/* Nothing has left: the numbers go back, those behind move up. */
static void withdraw(pass *s)
{
    for (size_t i = 0; i < s->n; i++) {
        part *p = &s->parts[i];
        tkc_call_free(p->call);
        p->call = NULL;
        tkc_claim_end(&p->claim);
    }
    if (s->first_seq)
        tkc_turn_give_back(s->trainer, s->n);
    end_turn(s);
}

static void pass_stop(tinkc_future *f, const tinkc_error *why)
{
    pass *s = (pass *)f;
    tinkc_error err = *why;
    if (has_left(s))
        err.flags |= TINKC_MAY_HAVE_RUN;
    tkc_op_complete(f, &err);
    end_polling(s);
    if ((s->turn.queued || s->submitting || s->settled) && !has_left(s))
        withdraw(s);
    release_if_over(s);
}

static void pass_destroy(tinkc_future *f)
{
    pass *s = (pass *)f;
    for (size_t i = 0; i < s->n; i++) {
        tkc_buf_free(&s->parts[i].body);
        tkc_buf_free(&s->parts[i].answer);
        tkc_arena_free(&s->parts[i].arena);
    }
    tkc_trainer_drop(s->trainer);
}

/* ---- getters ---- */

const tinkc_fwdbwd *tinkc_future_fwdbwd(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    return tkc_future_get(f, "fwdbwd", timeout_ms, err);
}

static bool is_pass(const tinkc_future *f)
{
    return f && f->class->start == pass_start;
}

size_t tinkc_future_part_count(const tinkc_future *f)
{
    return is_pass(f) ? ((const pass *)f)->n : 0;
}

const tinkc_fwdbwd *tinkc_future_part(tinkc_future *f, size_t i, int64_t timeout_ms,
                                      tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    pass *s = (pass *)f;
    if (!is_pass(f) || i >= s->n) {
        tkc_fail(err, TINKC_E_ARGUMENT, is_pass(f) ? "part: past the end" : "future: of no pass");
        return NULL;
    }
    if (!tkc_client_check(f->client, err) ||
        (timeout_ms != 0 && !tkc_client_check_waits(f->client, err)))
        return NULL;
    int64_t deadline = tkc_deadline_ns(timeout_ms);
    pthread_mutex_lock(&f->shared.lock);
    while (!s->ready[i] && !f->shared.done && timeout_ms != 0)
        if (!tkc_cond_wait_until(&f->shared.cond, &f->shared.lock, deadline))
            break;
    bool ready = s->ready[i];
    if (!ready && f->shared.done)
        tkc_error_copy(err, &f->shared.err);
    else if (!ready)
        tkc_fail(err, TINKC_E_TIMEOUT, "part %zu is not there yet", i);
    pthread_mutex_unlock(&f->shared.lock);
    return ready ? &s->parts[i].outcome : NULL;
}
