/* forward_backward.c - one pass over a batch: cut into chunks, sent in order, put together again.
 *
 * The call cuts and checks, and keeps the batch's memory; a chunk is written when its bytes fit the
 * budget, and its bytes go when it is accepted, so a pass holds the batch once and of its wire form
 * what is under way. Large chunks are written and packed by helpers.
 *
 * At its turn the pass takes one number for each chunk. In parallel mode chunks 2 to n leave at
 * once, as far as the byte budget goes, and chunk 1 only when all of them are accepted: the service
 * waits for it, so the batch becomes visible as a whole. Otherwise chunks leave one after the
 * other. Each is polled from its acceptance on.
 *
 * The turn ends when every chunk is accepted, when the pass has failed and nothing is under way, or
 * when it is cancelled. Numbers that the service may have seen and has not confirmed then become
 * the trainer's business.
 *
 * Chunks are protobuf. A service that answers 415, 422 because the body is not JSON, or 500 to the
 * first it ever gets, may know JSON alone (SkyRL 0.3): the chunk is sent again as JSON, and what was
 * accepted is remembered for the address, so that nobody waits out a retry window for an encoding.
 *
 * May touch: the trainer's I/O side, the client's byte budget, the shared limits under their lock.
 */
#include "client/train/forward_backward.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "client/call/poller.h"
#include "base/str.h"
#include "codec/zstd.h"
#include "wire/endpoint.h"

enum { OFFLOAD_BYTES = 256 * 1024 };

enum {
    PART_IDLE = 0, /* has not left: not begun, or given up before that */
    PART_CLAIMING,
    PART_WRITING,
    PART_SENDING,
    PART_ACCEPTED,
    PART_REFUSED,
    PART_UNCONFIRMED /* it left, and nobody knows */
};

/* What a pass is written from. Constant; outlives the pass while a chunk of it is unconfirmed. */
typedef struct source {
    tkc_refs refs;
    tkc_store *store;                     /* of the batch: a reference */
    tkc_arena arena;                      /* of what follows */
    tkc_forward_backward_request request; /* all examples, no number */
    bool packed;
} source;

/* The range of examples in one request. */
typedef struct range {
    size_t first, n;
    int64_t bytes; /* estimate, for the budget */
    int64_t seq;   /* 0 until the turn has come */
} range;

typedef struct pass pass;

typedef struct part {
    pass *pass;
    size_t index;
    range range;
    source *source; /* a reference, while it is written */
    tkc_buf body;   /* between writing and sending */
    const char *encoding;
    bool json;       /* protobuf was refused, here or before */
    bool tried_json; /* because of a 500; if JSON is refused too, it was an ordinary one */
    tkc_claim claim;
    tkc_poller poller;   /* submits it, then polls for its result */
    tkc_offload offload; /* writing, then reading */
    tinkc_error offload_err;
    int32_t state;
    tkc_arena arena;
    const char *request_id; /* once accepted, in the arena; NULL without memory */
    tkc_buf answer;         /* the result's bytes, which the outcome points into */
    tinkc_fwdbwd outcome;
} part;

struct pass {
    tinkc_future f;
    tkc_op_class class;     /* with this pass's operation name */
    tinkc_trainer *trainer; /* a reference */
    source *source;         /* a reference, until nothing is to be written any more */
    tkc_turn turn;
    part *parts;
    size_t n;
    size_t n_begun, n_accepted, n_settled; /* of submits */
    size_t n_ready;                        /* results; also under f.shared.lock */
    bool *ready;                           /* for each part; needs f.shared.lock */
    size_t *targets;                       /* rows of each example's target_tokens; 0 = none */
    bool parallel, forward_only;
    bool submitting;            /* has the turn, its own or a lent one */
    void (*settled)(void *arg); /* the turn is borrowed: called once when it may go back */
    void *settled_arg;
    bool released;    /* the I/O thread's reference is gone */
    bool failing;     /* no new chunk is sent */
    bool send_failed; /* because one could not be sent */
    tinkc_error failure;
    tinkc_metrics extra;
    /* gets the parts' events as well; NULL = none. Complete only after this pass */
    tinkc_future *outer;
    size_t helpers; /* that still work on a part */
};

/* ---- what is sent ---- */

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
    if (o->loss_id && !o->loss_id[0])
        return tkc_fail(err, TINKC_E_ARGUMENT, "loss_id: must not be empty");
    for (size_t i = 0; o->names && o->names[i]; i++)
        if (!isfinite(o->values[i]))
            return tkc_fail(err, TINKC_E_ARGUMENT, "values: %s is not finite", o->names[i]);
    return true;
}

static void source_drop(source *from)
{
    if (!from || !tkc_ref_drop(&from->refs))
        return;
    const tinkc_allocator *a = from->arena.a;
    tkc_store_drop(from->store);
    tkc_arena_free(&from->arena);
    tkc_release(a, from, sizeof *from);
}

static bool copy_settings(source *to, const tinkc_loss_options *o, tinkc_error *err)
{
    tkc_numbers *config = &to->request.loss_fn_config;
    size_t n = 0;
    while (o && o->names && o->names[n])
        n++;
    const char **names = tkc_arena_array(&to->arena, n, sizeof *names, err);
    double *values = tkc_arena_array(&to->arena, n, sizeof *values, err);
    if (!names || !values)
        return false;
    for (size_t i = 0; i < n; i++) {
        names[i] = tkc_arena_cstr(&to->arena, o->names[i], err);
        values[i] = o->values[i];
    }
    *config = (tkc_numbers){ n ? names : NULL, values, n };
    if (o && o->loss_id)
        to->request.loss_id = tkc_arena_cstr(&to->arena, o->loss_id, err);
    return !tkc_failed(err);
}

/* A table of the examples as they are now; what they point to stays where it is. */
static bool list_examples(source *to, const tinkc_batch *batch, tinkc_error *err)
{
    tkc_datum *data = tkc_arena_array(&to->arena, batch->n, sizeof *data, err);
    if (!data)
        return false;
    for (size_t i = 0; i < batch->n; i++) {
        const tkc_example *e = &batch->examples[i];
        data[i].chunks.data = e->chunks;
        data[i].chunks.len = e->n_chunks;
        data[i].inputs.data = e->inputs;
        data[i].inputs.len = e->n_inputs;
        data[i].input_spans.data = e->input_spans;
        data[i].input_spans.len = e->n_input_spans;
        data[i].target_spans.data = e->target_spans;
        data[i].target_spans.len = e->n_target_spans;
    }
    to->request.data.data = data;
    to->request.data.len = batch->n;
    return true;
}

static source *source_new(const tinkc_trainer *trainer, const tinkc_batch *batch,
                          const tkc_pass_options *o, tinkc_error *err)
{
    const tinkc_client *client = trainer->client;
    source *to = tkc_zalloc(client->a, sizeof *to, err);
    if (!to)
        return NULL;
    tkc_ref_init(&to->refs);
    tkc_arena_init(&to->arena, client->a, 0);
    to->store = batch->store;
    tkc_ref_keep(&to->store->refs);
    /* The settings are there before any trainer is, so this thread may read them. */
    to->packed = client->io.flags.proto_compress_fwdbwd;
    to->request.forward_only = o->forward_only;
    to->request.model_id = tkc_arena_cstr(&to->arena, trainer->model_id, err);
    to->request.loss_fn = tkc_arena_cstr(&to->arena, o->loss, err);
    if (tkc_failed(err) || !copy_settings(to, o->settings, err) || !list_examples(to, batch, err) ||
        /* At the call: what cannot be written must not take a turn. */
        !tkc_forward_backward_check(&to->request, err)) {
        source_drop(to);
        return NULL;
    }
    return to;
}

static bool pack_body(tkc_buf *body, tinkc_error *err)
{
    tkc_buf packed;
    tkc_buf_init(&packed, body->a, TKC_BUF_NO_MAX);
    bool ok = tkc_zstd_compress(body->data, body->len, &packed, err);
    if (ok) {
        tkc_buf plain = *body;
        *body = packed;
        packed = plain;
    }
    tkc_buf_free(&packed);
    return ok;
}

/* Thread: any; `from` is constant. */
static bool write_range(const source *from, const range *r, bool json, tkc_buf *out,
                        const char **encoding, tinkc_error *err)
{
    tkc_forward_backward_request request = from->request;
    request.seq_id = r->seq;
    request.data.data = from->request.data.data + r->first;
    request.data.len = r->n;
    *encoding = from->packed && !json ? "zstd" : NULL;
    if (json)
        return tkc_forward_backward_to_json(&request, out, err);
    return tkc_forward_backward_to_pb(&request, out, err) && (!from->packed || pack_body(out, err));
}

/* ---- cutting: the caller's thread ---- */

static range next_range(const tinkc_batch *batch, size_t first, const tkc_config_response *flags)
{
    range r = { .first = first };
    while (first + r.n < batch->n && (int64_t)r.n < flags->fwdbwd_max_chunk_len) {
        int64_t more = (int64_t)batch->examples[first + r.n].bytes;
        /* The first one goes in whatever its size: an example above the limit is a chunk of its
         * own. */
        if (r.n && r.bytes + more > flags->fwdbwd_max_chunk_bytes_count)
            break;
        r.bytes += more;
        r.n++;
    }
    return r;
}

static size_t count_ranges(const tinkc_batch *batch, const tkc_config_response *flags)
{
    size_t n = 0;
    for (size_t at = 0; at < batch->n; n++)
        at += next_range(batch, at, flags).n;
    return n;
}

static size_t count_targets(const tkc_example *e)
{
    const tkc_tensor *t = NULL;
    for (size_t i = 0; i < e->n_inputs && !t; i++)
        if (strcmp(e->inputs[i].name, "target_tokens") == 0)
            t = &e->inputs[i].tensor;
    if (!t)
        return 0;
    return t->shape.len ? (size_t)t->shape.data[0] : t->count;
}

static bool cut(pass *s, const tinkc_batch *batch, tinkc_error *err)
{
    const tkc_config_response *flags = &s->f.client->io.flags;
    size_t n = count_ranges(batch, flags), at = 0;
    s->parts = tkc_arena_array(&s->f.arena, n, sizeof *s->parts, err);
    s->ready = tkc_arena_array(&s->f.arena, n, sizeof *s->ready, err);
    s->targets = tkc_arena_array(&s->f.arena, batch->n, sizeof *s->targets, err);
    if (!s->parts || !s->ready || !s->targets)
        return false;
    for (size_t i = 0; i < batch->n; i++)
        s->targets[i] = count_targets(&batch->examples[i]);
    for (s->n = 0; s->n < n; s->n++) {
        part *p = &s->parts[s->n];
        p->pass = s;
        p->index = s->n;
        p->range = next_range(batch, at, flags);
        tkc_buf_init(&p->body, s->f.client->a, TKC_BUF_NO_MAX);
        tkc_arena_init(&p->arena, s->f.client->a, 0);
        at += p->range.n;
    }
    s->parallel = flags->parallel_fwdbwd_chunks && n > 1;
    return true;
}

static void pass_start(tinkc_future *f);
static void pass_stop(tinkc_future *f, const tinkc_error *why);
static void pass_destroy(tinkc_future *f);

tinkc_future *tkc_pass_new(tinkc_trainer *trainer, const tinkc_batch *batch,
                           const tkc_pass_options *o, tinkc_error *err)
{
    static const tkc_op_class shape = { "",         "fwdbwd",  sizeof(pass),
                                        pass_start, pass_stop, pass_destroy };
    if (!tkc_trainer_check(trainer, err) || !tkc_loss_check(o->loss, o->settings, err) ||
        !tkc_batch_check(batch, err))
        return NULL;
    pass *s = (pass *)tkc_op_new(trainer->client, &shape, err);
    if (!s)
        return NULL;
    s->class = shape;
    s->class.operation = o->operation;
    s->f.class = &s->class;
    s->trainer = trainer;
    tkc_trainer_keep(trainer);
    s->forward_only = o->forward_only;
    /* Kept, not copied: the batch is in memory once, and its owner may clear or fill it at once. */
    s->source = source_new(trainer, batch, o, err);
    if (!s->source || !cut(s, batch, err)) {
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

void tkc_pass_report_to(tinkc_future *f, tinkc_future *outer)
{
    ((pass *)f)->outer = outer;
}

void tkc_pass_lend_turn(tinkc_future *f, void (*settled)(void *arg), void *arg)
{
    pass *s = (pass *)f;
    s->settled = settled;
    s->settled_arg = arg;
}

/* ---- results ---- */

static void continue_pass(pass *s);

static void complete_pass(pass *s)
{
    tinkc_error err = { 0 };
    const tinkc_fwdbwd **parts = tkc_arena_array(&s->f.arena, s->n, sizeof *parts, &err);
    tinkc_fwdbwd *all = tkc_arena_zalloc(&s->f.arena, sizeof *all, &err);
    if (parts && all) {
        for (size_t i = 0; i < s->n; i++)
            parts[i] = &s->parts[i].outcome;
        /* One part alone is combined, too, as in the Python SDK. */
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
        if (tkc_poller_is_asking(&s->parts[i].poller))
            return;
    s->released = true;
    tkc_op_release(&s->f);
}

/* The pass has failed or is over for its caller: results are no longer wanted. */
static void end_polling(pass *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (tkc_poller_is_polling(&s->parts[i].poller))
            tkc_poller_release(&s->parts[i].poller);
}

/* Those that wait for their bytes need not wait on. */
static void end_claims(pass *s)
{
    for (size_t i = 0; i < s->n; i++) {
        part *p = &s->parts[i];
        if (p->state != PART_CLAIMING)
            continue;
        tkc_claim_end(&p->claim);
        p->state = PART_IDLE;
        s->n_settled++;
    }
}

/* Nothing more of it leaves; what is being sent may arrive, but is not sent again. continue_pass follows.
 */
static void fail_pass(pass *s, const tinkc_error *err)
{
    /* First: the caller need not wait for what is under way. */
    tkc_op_complete(&s->f, err);
    end_polling(s);
    /* Every number is confirmed: there is nothing to settle. */
    if (!s->submitting || s->failing)
        return;
    s->failing = true;
    s->failure = *err;
    end_claims(s);
    for (size_t i = 0; i < s->n; i++)
        tkc_poller_no_more(&s->parts[i].poller);
}

/* Under the future's lock: callers wait for a part on threads of their own (tkc_pass_part). */
static void part_ready(part *p)
{
    pass *s = p->pass;
    pthread_mutex_lock(&s->f.shared.lock);
    assert(!s->ready[p->index] && s->n_ready < s->n); /* each comes once */
    s->ready[p->index] = true;
    s->n_ready++;
    s->f.shared.progress_done = (int64_t)s->n_ready;
    bool last = s->n_ready == s->n;
    pthread_cond_broadcast(&s->f.shared.cond);
    pthread_mutex_unlock(&s->f.shared.lock);
    tkc_emit(
        s->f.client, s->outer ? s->outer : &s->f,
        &(tinkc_event){ .kind = TINKC_EVENT_PART, .part = p->index, .request_id = p->request_id });
    if (last)
        complete_pass(s);
}

static void read_part(tkc_offload *o)
{
    part *p = TKC_OWNER(o, part, offload);
    tinkc_bytes body = { (const unsigned char *)p->answer.data, p->answer.len };
    tkc_fwdbwd_expected want = { p->range.first, p->range.n, p->pass->targets + p->range.first };
    /* Into the part's own arena: several helpers read at once. */
    tkc_fwdbwd_read(&p->outcome, body, p->poller.promise.is_protobuf, &want, &p->arena,
                    &p->offload_err);
}

static void part_read(tkc_offload *o)
{
    part *p = TKC_OWNER(o, part, offload);
    pass *s = p->pass;
    assert(s->helpers > 0 && p->state == PART_ACCEPTED);
    s->helpers--;
    /* Gives the answer's bytes back to the budget: other results may be fetched. */
    tkc_poller_release(&p->poller);
    if (!tkc_op_is_done(&s->f)) {
        if (tkc_failed(&p->offload_err)) {
            p->offload_err.flags |= TINKC_IN_RETRIEVAL | TINKC_MAY_HAVE_RUN;
            fail_pass(s, &p->offload_err);
        } else {
            part_ready(p);
        }
    }
    continue_pass(s);
}

static void result_failed(tkc_poller *poller, const tinkc_error *err)
{
    pass *s = TKC_OWNER(poller, part, poller)->pass;
    fail_pass(s, err);
    continue_pass(s);
}

static void result_there(tkc_poller *poller)
{
    part *p = TKC_OWNER(poller, part, poller);
    pass *s = p->pass;
    /* Kept until the pass ends: tensors point into it. */
    tkc_promise_take_body(&poller->promise, &p->answer);
    s->helpers++;
    p->offload.work = read_part;
    p->offload.after = part_read;
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
    tinkc_error ignored = { 0 };
    p->request_id = tkc_arena_str(&p->arena, request_id, &ignored);
    /* That of part 0, which in parallel mode is accepted last. */
    if (p->index == 0 || !s->f.shared.request_id)
        tkc_op_request_id(&s->f, request_id);
    tkc_poller_poll(&p->poller, s->forward_only ? TKC_EP_FORWARD : TKC_EP_FORWARD_BACKWARD,
                    request_id, result_there);
}

/* ---- numbers that nobody has confirmed ---- */

typedef struct unconfirmed_part {
    tkc_unconfirmed unconfirmed;
    const tinkc_allocator *a;
    source *source; /* a reference */
    range range;
    bool json;
} unconfirmed_part;

static bool write_unconfirmed_part(tkc_unconfirmed *unconfirmed, tkc_buf *out,
                                   const char **encoding, tinkc_error *err)
{
    const unconfirmed_part *p = TKC_OWNER(unconfirmed, unconfirmed_part, unconfirmed);
    return write_range(p->source, &p->range, p->json, out, encoding, err);
}

static void free_unconfirmed_part(tkc_unconfirmed *unconfirmed)
{
    unconfirmed_part *p = TKC_OWNER(unconfirmed, unconfirmed_part, unconfirmed);
    source_drop(p->source);
    tkc_release(p->a, p, sizeof *p);
}

/* Older services have an endpoint of its own for passes without gradients. */
static int32_t endpoint_of(const part *p)
{
    return p->json && p->pass->forward_only ? TKC_EP_FORWARD : TKC_EP_FORWARD_BACKWARD;
}

static tkc_unconfirmed *keep_unconfirmed(const part *p, bool retry_fully, tinkc_error *err)
{
    const pass *s = p->pass;
    unconfirmed_part *gone = tkc_zalloc(s->f.client->a, sizeof *gone, err);
    if (!gone)
        return NULL;
    gone->unconfirmed = (tkc_unconfirmed){ .seq = p->range.seq,
                                           .endpoint = endpoint_of(p),
                                           .json = p->json,
                                           .bytes = (size_t)p->range.bytes,
                                           .retry_fully = retry_fully,
                                           .write = write_unconfirmed_part,
                                           .free = free_unconfirmed_part };
    gone->a = s->f.client->a;
    gone->range = p->range;
    gone->json = p->json;
    /* The examples instead of the bytes: they never change, so the same bytes are written again. */
    gone->source = s->source;
    tkc_ref_keep(&s->source->refs);
    return &gone->unconfirmed;
}

/* What must be sent for the numbers of the first `end` parts to have no gap. False: no sending can
 * close it, or there is no memory. */
static bool collect_unconfirmed(const pass *s, size_t end, bool retry_fully,
                                tkc_unconfirmed **first)
{
    tinkc_error err = { 0 };
    tkc_unconfirmed **last = first; /* which is NULL */
    for (size_t i = 0; i < end; i++) {
        if (s->parts[i].state == PART_ACCEPTED)
            continue;
        /* Refused once, refused again: sending cannot close this gap. */
        *last = s->parts[i].state == PART_REFUSED
                    ? NULL
                    : keep_unconfirmed(&s->parts[i], retry_fully, &err);
        if (!*last) {
            tkc_unconfirmed_free_all(*first);
            *first = NULL;
            return false;
        }
        last = &(*last)->next;
    }
    return true;
}

/* How many parts there are up to the last that the service may have seen. Chunks that left together
 * count together: where one is refused and others are accepted, the gap cannot be closed. */
static size_t reach(const pass *s)
{
    size_t end = s->n;
    while (end && s->parts[end - 1].state != PART_ACCEPTED &&
           s->parts[end - 1].state != PART_UNCONFIRMED &&
           !(s->parallel && s->parts[end - 1].state == PART_REFUSED))
        end--;
    return end;
}

/* The pass ends with numbers unconfirmed: those beyond its reach are free again, the others are
 * the trainer's to close. */
static void settle_numbers(pass *s, bool retry_fully)
{
    tkc_unconfirmed *unconfirmed = NULL;
    size_t end = reach(s);
    assert(s->submitting && s->failure.code && end <= s->n); /* the numbers are still its own */
    bool seen = false;
    for (size_t i = 0; i < end; i++)
        seen |= s->parts[i].state == PART_ACCEPTED || s->parts[i].state == PART_UNCONFIRMED;
    if (!seen)
        end = 0; /* refused as a whole */
    /* What nobody has seen the next operation takes, so there is no gap. */
    tkc_turn_give_back(s->trainer, s->n - end);
    bool whole = collect_unconfirmed(s, end, retry_fully, &unconfirmed);
    if (unconfirmed || !whole)
        tkc_trainer_break(s->trainer, &s->failure, unconfirmed);
}

/* The turn is over, its own or the lent one. */
static void end_turn(pass *s)
{
    void (*settled)(void *) = s->settled;
    s->submitting = false;
    s->settled = NULL;
    source_drop(s->source);
    s->source = NULL;
    if (settled)
        settled(s->settled_arg);
    /* Last: the next operation begins inside. */
    tkc_turn_leave(s->trainer, &s->turn);
}

/* ---- submitting ---- */

static void begin_part(part *p);

/* Begins all of a range; they count as under way from the start, so that one which fails at once
 * does not look like the last. */
static void begin_parts(pass *s, size_t first, size_t end)
{
    s->n_begun += end - first;
    for (size_t i = first; i < end; i++)
        begin_part(&s->parts[i]);
    if (s->failing)
        continue_pass(s);
}

/* Sends what may be sent next, or ends the turn. */
static void continue_pass(pass *s)
{
    if (!s->submitting) { /* cancelled; this was a helper coming back */
        release_if_over(s);
        return;
    }
    /* release_if_over may give the last reference back. */
    tkc_future_keep(&s->f);
    assert(s->n_accepted <= s->n_settled && s->n_settled <= s->n_begun && s->n_begun <= s->n);
    size_t under_way = s->n_begun - s->n_settled;
    if (s->n_accepted == s->n || (s->failing && under_way == 0)) {
        if (s->n_accepted < s->n)
            /* A pass that failed while sending has had its retries; another's were cut short. */
            settle_numbers(s, !s->send_failed);
        end_turn(s);
        release_if_over(s);
    } else if (s->failing) {
        ; /* waits for those under way */
    } else if (!s->parallel && under_way == 0) {
        begin_parts(s, s->n_begun, s->n_begun + 1);
    } else if (s->parallel && s->n_begun == 0) {
        begin_parts(s, 1, s->n);
    } else if (s->parallel && s->n_accepted == s->n - 1 && s->parts[0].state == PART_IDLE) {
        begin_parts(s, 0, 1);
    }
    tkc_future_drop(&s->f);
}

/* state: IDLE (it never left), REFUSED, UNCONFIRMED. */
static void part_failed(part *p, const tinkc_error *err, int32_t state)
{
    pass *s = p->pass;
    assert(p->state == PART_WRITING || p->state == PART_SENDING);
    p->state = state;
    s->n_settled++;
    tkc_claim_end(&p->claim);
    if (s->submitting && !s->failing) {
        s->send_failed = true;
        fail_pass(s, err);
    }
    continue_pass(s);
}

static void part_accepted(part *p, const tkc_call *call)
{
    pass *s = p->pass;
    tinkc_str id;
    tinkc_error err = { 0 };
    assert(p->state == PART_SENDING);
    p->state = PART_ACCEPTED;
    s->n_accepted++;
    s->n_settled++;
    tkc_claim_end(&p->claim);
    /* Of a pass that has failed or was cancelled nobody wants the result. */
    if (!tkc_op_is_done(&s->f)) {
        if (tkc_submit_read(call, &p->arena, &id, &err)) {
            await_part(p, id);
        } else {
            err.flags |= TINKC_MAY_HAVE_RUN;
            tkc_op_error_body(&s->f, call->body);
            fail_pass(s, &err);
        }
    }
    continue_pass(s);
}

static int32_t accepted_encoding(const pass *s)
{
    tkc_shared_limits *limits = s->f.client->limits;
    pthread_mutex_lock(&limits->lock);
    int32_t encoding = limits->pass_encoding;
    pthread_mutex_unlock(&limits->lock);
    return encoding;
}

/* A JSON chunk that needed retries proves nothing: what was in the way may have passed. */
static void note_encoding(const part *p, const tkc_call *call)
{
    tkc_shared_limits *limits = p->pass->f.client->limits;
    if (p->json && call->retried)
        return;
    pthread_mutex_lock(&limits->lock);
    limits->pass_encoding = p->json ? TKC_ENC_JSON : TKC_ENC_PROTOBUF;
    pthread_mutex_unlock(&limits->lock);
}

/* What a FastAPI service answers to a body that is not JSON, as far as it can quote the bytes; where it
 * cannot, it answers 500. */
static bool is_unread_body(const tkc_call *call)
{
    const char *text = (const char *)call->body.data;
    return text && (strstr(text, "\"model_attributes_type\"") || strstr(text, "\"json_invalid\""));
}

static bool is_worth_json(const part *p, const tkc_call *call)
{
    if (p->json || p->tried_json || p->pass->failing || !p->pass->source)
        return false;
    if (call->status == 422)
        return is_unread_body(call);
    /* An address that has taken protobuf before says 500 for another reason. */
    return call->status == 415 ||
           (call->status == 500 && accepted_encoding(p->pass) != TKC_ENC_PROTOBUF);
}

/* The service takes no JSON either: back to protobuf, with all its retries. */
static bool is_json_refused(const part *p, const tkc_call *call)
{
    return p->json && p->tried_json && !p->pass->failing && p->pass->source &&
           call->status >= 400 && call->status < 500;
}

static void begin_writing(part *p);

static void submit_done(tkc_poller *poller)
{
    part *p = TKC_OWNER(poller, part, poller);
    pass *s = p->pass;
    const tkc_call *call = poller->answer;
    int32_t fate = tkc_submit_fate(call);
    if (fate == TKC_SUBMIT_ACCEPTED) {
        note_encoding(p, call);
        part_accepted(p, call);
    } else if (is_worth_json(p, call)) {
        tkc_client_log(s->f.client, TINKC_LOG_INFO,
                       "the service refuses protobuf (status %d): trying JSON", (int)call->status);
        p->json = true;
        /* 415 and 422 are certain. A 500 may have been an ordinary one: then protobuf gets its
         * retries yet. */
        p->tried_json = call->status == 500;
        begin_writing(p);
    } else if (is_json_refused(p, call)) {
        p->json = false;
        begin_writing(p);
    } else {
        tkc_op_error_body(&s->f, call->body);
        part_failed(p, &call->err,
                    fate == TKC_SUBMIT_UNCONFIRMED ? PART_UNCONFIRMED : PART_REFUSED);
    }
}

static void send_part(part *p)
{
    pass *s = p->pass;
    const char *headers[] = { "Content-Encoding", p->encoding, NULL };
    tinkc_error err = p->offload_err;
    tkc_call *call = NULL;
    if (!p->encoding)
        headers[0] = NULL;
    tkc_call_spec spec = tkc_call_to(endpoint_of(p));
    spec.headers = headers;
    spec.body = &p->body;
    spec.content_type = p->json ? TKC_TYPE_JSON : TKC_TYPE_PROTOBUF;
    /* While no encoding is known a 500 may mean "not JSON": it comes back at once, not after all
     * retries. */
    spec.probe = !p->json && !p->tried_json && accepted_encoding(s) != TKC_ENC_PROTOBUF;
    if (!tkc_failed(&err))
        call = tkc_call_new(s->f.client, &spec, &err);
    tkc_buf_free(&p->body);
    if (!call) {
        part_failed(p, &err, PART_IDLE);
        return;
    }
    p->state = PART_SENDING;
    if (!tkc_op_is_done(&s->f))
        tkc_op_stage(&s->f, TINKC_STAGE_SENDING);
    tkc_poller_ask(&p->poller, call, NULL, submit_done);
}

static void write_part(tkc_offload *o)
{
    part *p = TKC_OWNER(o, part, offload);
    (void)write_range(p->source, &p->range, p->json, &p->body, &p->encoding, &p->offload_err);
}

static void part_written(tkc_offload *o)
{
    part *p = TKC_OWNER(o, part, offload);
    pass *s = p->pass;
    s->helpers--;
    source_drop(p->source);
    if (s->failing) { /* meanwhile */
        tkc_buf_free(&p->body);
        part_failed(p, &s->failure, PART_IDLE);
    } else {
        send_part(p);
    }
}

static void begin_writing(part *p)
{
    assert(p->pass->source && p->range.seq > 0);
    p->state = PART_WRITING;
    p->pass->helpers++;
    p->source = p->pass->source;
    tkc_ref_keep(&p->source->refs);
    p->offload.work = write_part;
    p->offload.after = part_written;
    if (p->range.bytes >= OFFLOAD_BYTES) {
        tkc_offload_start(p->pass->f.client, &p->offload);
    } else {
        write_part(&p->offload);
        part_written(&p->offload);
    }
}

/* Its bytes are free. */
static void budget_granted(tkc_claim *claim)
{
    part *p = TKC_OWNER(claim, part, claim);
    assert(p->state == PART_CLAIMING);
    /* Now and not at the call: another pass may have found out meanwhile. */
    p->json = accepted_encoding(p->pass) == TKC_ENC_JSON;
    begin_writing(p);
}

static void begin_part(part *p)
{
    pass *s = p->pass;
    if (s->failing) { /* one before it in the same go */
        s->n_settled++;
        return;
    }
    p->state = PART_CLAIMING;
    p->claim.granted = budget_granted;
    p->claim.f = &s->f;
    if (tkc_claim_take(&p->claim, &s->f.client->io.fwdbwd_bytes, s->f.client->loop, p->range.bytes))
        budget_granted(&p->claim);
}

/* ---- life ---- */

static void pass_go(tkc_turn *turn, const tinkc_error *refused)
{
    pass *s = TKC_OWNER(turn, pass, turn);
    if (refused) {
        source_drop(s->source);
        s->source = NULL;
        tkc_op_finish(&s->f, refused);
        return;
    }
    s->submitting = true;
    /* As a block: parallel chunks have their numbers before the first of them leaves. */
    int64_t seq = tkc_turn_take(s->trainer, s->n);
    for (size_t i = 0; i < s->n; i++)
        s->parts[i].range.seq = seq + (int64_t)i;
    continue_pass(s);
}

static void pass_start(tinkc_future *f)
{
    pass *s = (pass *)f;
    for (size_t i = 0; i < s->n; i++) {
        tkc_poller *poller = &s->parts[i].poller;
        tkc_poller_begin(poller, f, result_failed);
        poller->wants_protobuf = true;
        poller->pause_prefix = s->trainer->io.pause_prefix;
        poller->pause_gate = &s->trainer->io.pause_gate;
    }
    s->turn.go = pass_go;
    if (s->settled)
        pass_go(&s->turn, NULL);
    else
        tkc_turn_join(s->trainer, &s->turn);
}

/* Ends every submit where it stands. True if one of them has left, or may have. */
static bool end_submits(pass *s)
{
    bool left = s->n_accepted > 0;
    s->failing = true; /* helpers that come back send nothing */
    end_claims(s);
    for (size_t i = 0; i < s->n; i++) {
        part *p = &s->parts[i];
        if (p->state != PART_SENDING)
            continue;
        p->state = tkc_poller_end(&p->poller) ? PART_UNCONFIRMED : PART_IDLE;
        left |= p->state == PART_UNCONFIRMED;
        tkc_claim_end(&p->claim);
    }
    return left;
}

/* Releases everything at once, except what a helper thread is working on. */
static void pass_stop(tinkc_future *f, const tinkc_error *why)
{
    pass *s = (pass *)f;
    tinkc_error err = *why;
    if (end_submits(s))
        err.flags |= TINKC_MAY_HAVE_RUN;
    s->failure = err;
    tkc_op_complete(f, &err);
    end_polling(s);
    /* At the close nothing is sent any more. */
    if (s->submitting && !f->client->io.ended)
        settle_numbers(s, true);
    end_turn(s);
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
    source_drop(s->source);
    tkc_trainer_drop(s->trainer);
}

/* ---- getters ---- */

const tinkc_fwdbwd *tinkc_future_fwdbwd(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    return tkc_future_get(f, "fwdbwd", timeout_ms, err);
}

bool tkc_is_pass(const tinkc_future *f)
{
    return f && f->class->start == pass_start;
}

size_t tkc_pass_part_count(const tinkc_future *f)
{
    return ((const pass *)f)->n;
}

const tinkc_fwdbwd *tkc_pass_part(tinkc_future *f, size_t i, int64_t timeout_ms, tinkc_error *err)
{
    pass *s = (pass *)f;
    if (i >= s->n) {
        tkc_fail(err, TINKC_E_ARGUMENT, "part: past the end");
        return NULL;
    }
    int64_t deadline = tkc_deadline_ns(timeout_ms);
    pthread_mutex_lock(&f->shared.lock);
    while (!s->ready[i] && !f->shared.done)
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
