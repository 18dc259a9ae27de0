/* trainer_ops.c - a trainer's operations that are one request each: step, save, load, unload, and
 * the save that opens a sampler.
 *
 *     queued -> turn -> submit -> accepted (the next turn starts) -> promise -> result
 *
 * A submit that is under way when its future is cancelled ends with it. Its place in the service's
 * sequence is taken, so the trainer sends it again before the next operation goes.
 *
 * May touch: the trainer's I/O side.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "client/call/outcome.h"
#include "client/call/poller.h"
#include "client/rest/rest_priv.h"
#include "client/sample/sampler.h"
#include "client/train/trainer.h"
#include "base/str.h"

typedef struct step step;

typedef struct step_class {
    tkc_op_class op; /* first: the class of the future */
    int32_t endpoint;
    size_t seq_offset; /* of the tkc_opt_i64 in the message; SIZE_MAX = it has none */
    bool named_save; /* a 409 behind an attempt that may have been accepted means "done already" */
    void (*take)(step *, const void *result, tinkc_error *err);
    const tkc_message *request; /* another than the endpoint's; NULL = that */
} step_class;

struct step {
    tinkc_future f;
    const step_class *how;
    tinkc_trainer *trainer; /* a reference */
    void *message;          /* of the endpoint's request, in the arena */
    const char *name;       /* of a named save */
    const tinkc_retry_options *retry;
    bool record_stability_info;
    tkc_turn turn;
    tkc_poller poller;
    bool has_seq;
    tinkc_sampler *sampler; /* result of open_sampler: a reference */
};

static const tkc_endpoint *endpoint_of(const step *s)
{
    return tkc_endpoint_get(s->how->endpoint);
}

static const tkc_message *request_of(const step *s)
{
    return s->how->request ? s->how->request : endpoint_of(s)->request;
}

/* Where its number goes; only if it has one. */
static tkc_opt_i64 *seq_of(const step *s)
{
    return (tkc_opt_i64 *)(void *)((char *)s->message + s->how->seq_offset);
}

/* Before the failure is visible to anyone. */
static void before_completion(step *s, const tinkc_error *err)
{
    if (s->how->endpoint == TKC_EP_UNLOAD_MODEL && err && err->code)
        atomic_store(&s->trainer->unloaded, false); /* to be tried again */
}

static void complete_step(step *s, const tinkc_error *err)
{
    before_completion(s, err);
    tkc_op_complete(&s->f, err);
}

static void finish_step(step *s, const tinkc_error *err)
{
    before_completion(s, err);
    tkc_op_finish(&s->f, err);
}

/* ---- results ---- */

static void take_result(step *s, tinkc_bytes body)
{
    const tkc_message *type = endpoint_of(s)->result;
    tinkc_error err = { 0 };
    void *result = tkc_arena_zalloc(&s->f.arena, type->size, &err);
    if (result)
        tkc_message_decode(type, tkc_strn((const char *)body.data, body.len), TINKC_E_BAD_RESPONSE,
                           &s->f.arena, result, &err);
    if (!tkc_failed(&err))
        s->how->take(s, result, &err);
    if (tkc_failed(&err)) {
        err.flags |= TINKC_IN_RETRIEVAL | TINKC_MAY_HAVE_RUN;
        tkc_op_error_body(&s->f, body);
    }
    complete_step(s, &err);
}

static void result_there(tkc_poller *poller)
{
    take_result(TKC_OWNER(poller, step, poller), poller->promise.body);
    tkc_poller_release(poller);
    tkc_op_release(poller->f);
}

/* Between acceptance and result. */
static void result_failed(tkc_poller *poller, const tinkc_error *err)
{
    finish_step(TKC_OWNER(poller, step, poller), err);
}

/* ---- submitting ---- */

/* Ends the turn and the operation. */
static void end(step *s, const tinkc_error *err)
{
    tkc_turn_leave(s->trainer, &s->turn);
    finish_step(s, err);
}

static void accepted(step *s, const tkc_call *call)
{
    tinkc_str id;
    tinkc_error err = { 0 };
    bool at_once = s->how->endpoint == TKC_EP_UNLOAD_MODEL;
    /* The service orders by number, so the next one may be submitted while this one is polled
     * for. */
    tkc_turn_leave(s->trainer, &s->turn);
    if (tkc_submit_read(call, &s->f.arena, &id, &err)) {
        tkc_op_request_id(&s->f, id);
        tkc_poller_poll(&s->poller, s->how->endpoint, id, result_there);
        /* Some services answer an unload at once, without a promise. */
    } else if (at_once && err.code == TINKC_E_BAD_RESPONSE) {
        take_result(s, call->body);
        tkc_op_release(&s->f);
    } else {
        /* Accepted under an id that cannot be read: there is nothing to poll for. */
        err.flags |= TINKC_MAY_HAVE_RUN;
        tkc_op_error_body(&s->f, call->body);
        finish_step(s, &err);
    }
}

/* The number is taken and nobody has confirmed it. */
static void leave_unconfirmed(step *s, const tinkc_error *why, bool retry_fully)
{
    const tinkc_allocator *a = s->trainer->client->a;
    tinkc_error err = { 0 };
    tkc_unconfirmed *unconfirmed = NULL;
    tkc_buf body;
    if (!s->has_seq)
        return;
    tkc_buf_init(&body, a, TKC_BUF_NO_MAX);
    const tkc_opt_i64 *seq = seq_of(s);
    assert(seq->is == TKC_GIVEN && seq->value > 0);
    if (tkc_message_encode(request_of(s), s->message, &body, &err))
        unconfirmed = tkc_unconfirmed_new(a, seq->value, s->how->endpoint, &body, &err);
    tkc_buf_free(&body);
    if (unconfirmed)
        unconfirmed->retry_fully = retry_fully;
    tkc_trainer_break(s->trainer, why, unconfirmed);
}

/* A named save that may have been done by an attempt before this one. */
static bool recovers(const step *s, const tkc_call *call)
{
    return s->f.client->conflict_recovery && s->how->named_save && s->name &&
           call->err.http_status == 409 && call->may_have_run;
}

static void recover(step *s)
{
    tinkc_error err = { 0 };
    bool sampler = s->how->endpoint == TKC_EP_SAVE_FOR_SAMPLER;
    s->f.result = tkc_arena_printf(&s->f.arena, &err, "tinker://%s/%s/%s", s->trainer->model_id,
                                   sampler ? "sampler_weights" : "weights", s->name);
    end(s, &err);
}

static void submit_done(tkc_poller *poller)
{
    step *s = TKC_OWNER(poller, step, poller);
    const tkc_call *call = poller->answer;
    assert(s->turn.queued); /* the turn lasts until the submit is over */
    int32_t fate = tkc_submit_fate(call);
    if (fate == TKC_SUBMIT_ACCEPTED) {
        accepted(s, call);
    } else if (recovers(s, call)) {
        /* The number stays taken: the attempt that was accepted has it. */
        recover(s);
    } else {
        tinkc_error err = call->err;
        tkc_op_error_body(&s->f, call->body);
        if (fate == TKC_SUBMIT_UNCONFIRMED)
            leave_unconfirmed(s, &err, false);
        else if (s->has_seq)
            tkc_turn_give_back(s->trainer, 1);
        end(s, &err);
    }
}

static tkc_call *make_call(step *s, tinkc_error *err)
{
    tinkc_client *client = s->trainer->client;
    tkc_call_spec spec = tkc_call_to(s->how->endpoint);
    spec.conflict_ends = s->how->named_save && client->conflict_recovery;
    return tkc_call_with(client, &spec, request_of(s), s->message, err);
}

static void go(tkc_turn *turn, const tinkc_error *refused)
{
    step *s = TKC_OWNER(turn, step, turn);
    tinkc_error err = { 0 };
    assert(!s->has_seq && !tkc_poller_is_polling(&s->poller));
    if (refused) {
        finish_step(s, refused);
        return;
    }
    /* Only now: the service waits for every number that was given out, and an operation that
     * ends in the queue uses up none. */
    s->has_seq = s->how->seq_offset != SIZE_MAX;
    if (s->has_seq) {
        *seq_of(s) = (tkc_opt_i64)TKC_SOME(tkc_turn_take(s->trainer, 1));
    }
    tkc_call *call = make_call(s, &err);
    if (!call) {
        if (s->has_seq)
            tkc_turn_give_back(s->trainer, 1);
        end(s, &err);
        return;
    }
    tkc_op_stage(&s->f, TINKC_STAGE_SENDING);
    tkc_poller_ask(&s->poller, call, NULL, submit_done);
}

/* ---- life ---- */

static void step_start(tinkc_future *f)
{
    step *s = (step *)f;
    tkc_poller_begin(&s->poller, f, result_failed);
    s->poller.pause_prefix = s->trainer->io.pause_prefix;
    s->poller.pause_gate = &s->trainer->io.pause_gate;
    s->turn.go = go;
    tkc_turn_join(s->trainer, &s->turn);
}

/* Releases everything at once. A submit that is out has a number that must not be forgotten: it
 * is sent again when the next operation's turn comes. */
static void step_stop(tinkc_future *f, const tinkc_error *why)
{
    step *s = (step *)f;
    tinkc_error err = *why;
    bool out = tkc_poller_is_out(&s->poller), asking = tkc_poller_is_asking(&s->poller);
    if (tkc_poller_end(&s->poller))
        err.flags |= TINKC_MAY_HAVE_RUN;
    if (out && !f->client->io.ended)
        leave_unconfirmed(s, &err, true);
    /* Written, but no attempt has left. */
    else if (asking && !out && s->has_seq)
        tkc_turn_give_back(s->trainer, 1);
    end(s, &err);
}

static void step_destroy(tinkc_future *f)
{
    step *s = (step *)f;
    tkc_sampler_drop(s->sampler);
    tkc_trainer_drop(s->trainer);
}

/* Makes the operation with an empty message; NULL after a failure. */
static step *step_new(tinkc_trainer *trainer, const step_class *how, tinkc_error *err)
{
    if (!tkc_trainer_check(trainer, err))
        return NULL;
    step *s = (step *)tkc_op_new(trainer->client, &how->op, err);
    if (!s)
        return NULL;
    s->how = how;
    s->trainer = trainer;
    tkc_trainer_keep(trainer);
    s->message = tkc_arena_zalloc(&s->f.arena, request_of(s)->size, err);
    if (!s->message) {
        tkc_future_drop(&s->f);
        return NULL;
    }
    tkc_message_init(request_of(s), s->message);
    return s;
}

static tinkc_future *submit_or_drop(step *s, const tinkc_error *err)
{
    if (!tkc_failed(err))
        return tkc_op_submit(&s->f);
    tkc_future_drop(&s->f);
    return NULL;
}

static const char *keep_text(step *s, const char *text, tinkc_error *err)
{
    return text ? tkc_arena_cstr(&s->f.arena, text, err) : NULL;
}

/* Everything but the kind, the endpoint and what follows. */
#define STEP(operation, kind)                                                                      \
    {                                                                                              \
        operation, kind, sizeof(step), step_start, step_stop, step_destroy                         \
    }

/* ---- optim_step ---- */

static void take_metrics(step *s, const void *result, tinkc_error *err)
{
    const tkc_optim_step_result *r = result;
    tinkc_metrics *m = tkc_arena_zalloc(&s->f.arena, sizeof *m, err);
    s->f.result = m;
    if (m)
        tkc_metrics_copy(m, &r->metrics, &s->f.arena, err);
}

static const step_class optim_class = { STEP("optim_step", "step"),
                                        TKC_EP_OPTIM_STEP,
                                        offsetof(tkc_optim_step_request, seq_id),
                                        false,
                                        take_metrics,
                                        NULL };

static bool check_adam(const tinkc_adam *a, tinkc_error *err)
{
    if (!a)
        return tkc_fail(err, TINKC_E_ARGUMENT, "adam: must not be NULL");
    if (!tkc_all_zero(a->reserved, sizeof a->reserved))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved: must be zero");
    const double v[] = { a->learning_rate, a->beta1,        a->beta2,
                         a->eps,           a->weight_decay, a->grad_clip_norm };
    static const char *const names[] = { "learning_rate", "beta1",        "beta2",
                                         "eps",           "weight_decay", "grad_clip_norm" };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++)
        if (!isfinite(v[i]) || v[i] < 0)
            return tkc_fail(err, TINKC_E_ARGUMENT, "%s: must be a number of 0 or more", names[i]);
    /* A beta2 of 0 is a struct that did not begin with TINKC_ADAM_INIT: 0 is a value here, not a
     * default. */
    if (a->beta1 >= 1 || a->beta2 >= 1 || a->beta2 <= 0)
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "%s: must lie between 0 and 1; start from "
                        "TINKC_ADAM_INIT",
                        a->beta1 >= 1 ? "beta1" : "beta2");
    return true;
}

tinkc_future *tinkc_optim_step(tinkc_trainer *trainer, const tinkc_adam *adam, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_adam(adam, err))
        return NULL;
    step *s = step_new(trainer, &optim_class, err);
    if (!s)
        return NULL;
    tkc_optim_step_request *m = s->message;
    /* All of them, always: the defaults are the caller's, never the service's. */
    m->adam_params =
        (tkc_adam_params){ adam->learning_rate, adam->beta1,        adam->beta2,
                           adam->eps,           adam->weight_decay, adam->grad_clip_norm };
    m->model_id = trainer->model_id;
    return submit_or_drop(s, err);
}

static const step_class dimuon_class = { STEP("dimuon_step", "step"),
                                         TKC_EP_OPTIM_STEP,
                                         offsetof(tkc_dimuon_step_request, seq_id),
                                         false,
                                         take_metrics,
                                         &tkc_dimuon_step_request_type };

static bool check_dimuon(const tinkc_dimuon *o, tinkc_error *err)
{
    if (!o)
        return tkc_fail(err, TINKC_E_ARGUMENT, "dimuon: must not be NULL");
    if (!tkc_all_zero(o->reserved, sizeof o->reserved))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved: must be zero");
    if (!isfinite(o->learning_rate) || o->learning_rate < 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "learning_rate: must be a number of 0 or more");
    if (!isfinite(o->grad_clip_norm) || o->grad_clip_norm < 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "grad_clip_norm: must be a number of 0 or more");
    return (o->beta1 >= 0 && o->beta1 < 1) ||
           tkc_fail(err, TINKC_E_ARGUMENT, "beta1: must lie from 0 to below 1");
}

tinkc_future *tinkc_dimuon_step(tinkc_trainer *trainer, const tinkc_dimuon *o, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_dimuon(o, err))
        return NULL;
    step *s = step_new(trainer, &dimuon_class, err);
    if (!s)
        return NULL;
    tkc_dimuon_step_request *m = s->message;
    m->optimizer_params = (tkc_dimuon_params){ .learning_rate = o->learning_rate,
                                               .grad_clip_norm = o->grad_clip_norm,
                                               .beta1 = o->beta1 };
    m->model_id = trainer->model_id;
    return submit_or_drop(s, err);
}

const tinkc_metrics *tinkc_future_step(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    return tkc_future_get(f, "step", timeout_ms, err);
}

/* ---- save ---- */

static void take_path(step *s, const char *path, tinkc_error *err)
{
    if (!path || !path[0])
        tkc_fail(err, TINKC_E_BAD_RESPONSE, "%s: the answer names no path", s->f.class->operation);
    s->f.result = (void *)path;
}

static void take_save(step *s, const void *result, tinkc_error *err)
{
    take_path(s, ((const tkc_save_weights_result *)result)->path, err);
}

static void take_sampler_save(step *s, const void *result, tinkc_error *err)
{
    take_path(s, ((const tkc_save_for_sampler_result *)result)->path, err);
}

static const step_class save_class = { STEP("trainer_save", "path"),
                                       TKC_EP_SAVE_WEIGHTS,
                                       offsetof(tkc_save_weights_request, seq_id),
                                       true,
                                       take_save,
                                       NULL };
static const step_class sampler_save_class = { STEP("trainer_save_for_sampler", "path"),
                                               TKC_EP_SAVE_FOR_SAMPLER,
                                               offsetof(tkc_save_for_sampler_request, seq_id),
                                               true,
                                               take_sampler_save,
                                               NULL };

/* A name is one segment of a path. */
static bool check_name(const char *name, tinkc_error *err)
{
    if (!name || !name[0])
        return tkc_fail(err, TINKC_E_ARGUMENT, "name: must not be empty");
    if (strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "name: must be one segment of a path");
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            return tkc_fail(err, TINKC_E_ARGUMENT, "name: holds a control character");
    return true;
}

static bool check_save(const char *name, const tinkc_save_options *o, tinkc_error *err)
{
    if (o && (!tkc_all_zero(o->reserved, sizeof o->reserved) ||
              !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools)))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved: must be zero");
    if (o && o->ttl_s < 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "ttl_s: must not be negative");
    return check_name(name, err);
}

static tkc_opt_i64 ttl_of(const tinkc_save_options *o)
{
    tkc_opt_i64 none = { 0 };
    return o && o->ttl_s ? (tkc_opt_i64)TKC_SOME(o->ttl_s) : none;
}

/* A copy in the arena; NULL = empty. */
static const char *const *keep_list(step *s, const char *const *list, tinkc_error *err)
{
    size_t n = 0;
    while (list && list[n])
        n++;
    const char **copy = n ? tkc_arena_array(&s->f.arena, n + 1, sizeof *copy, err) : NULL;
    for (size_t i = 0; copy && i < n; i++)
        copy[i] = tkc_arena_cstr(&s->f.arena, list[i], err);
    return (const char *const *)copy;
}

static tkc_metadata keep_pairs(step *s, const char *const *pairs, tinkc_error *err)
{
    size_t n = 0;
    while (pairs && pairs[n])
        n++;
    if (n % 2)
        tkc_fail(err, TINKC_E_ARGUMENT, "user_metadata: a name without a value");
    return (tkc_metadata){ .pairs = keep_list(s, pairs, err) };
}

tinkc_future *tinkc_trainer_save(tinkc_trainer *trainer, const char *name,
                                 const tinkc_save_options *o, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_save(name, o, err))
        return NULL;
    step *s = step_new(trainer, &save_class, err);
    if (!s)
        return NULL;
    tkc_save_weights_request *m = s->message;
    s->name = m->path = keep_text(s, name, err);
    m->model_id = trainer->model_id;
    m->ttl_seconds = ttl_of(o);
    m->overwrite = o && o->overwrite;
    m->user_metadata = keep_pairs(s, o ? o->user_metadata : NULL, err);
    return submit_or_drop(s, err);
}

tinkc_future *tinkc_trainer_save_for_sampler(tinkc_trainer *trainer, const char *name,
                                             const tinkc_save_options *o, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_save(name, o, err))
        return NULL;
    if (o && o->overwrite) {
        tkc_fail(err, TINKC_E_ARGUMENT, "overwrite: of full states only");
        return NULL;
    }
    step *s = step_new(trainer, &sampler_save_class, err);
    if (!s)
        return NULL;
    tkc_save_for_sampler_request *m = s->message;
    s->name = m->path = keep_text(s, name, err);
    m->model_id = trainer->model_id;
    m->ttl_seconds = ttl_of(o);
    m->user_metadata = keep_pairs(s, o ? o->user_metadata : NULL, err);
    return submit_or_drop(s, err);
}

static void take_external_save(step *s, const void *result, tinkc_error *err)
{
    take_path(s, ((const tkc_save_external_result *)result)->path, err);
}

static const step_class external_save_class = { STEP("trainer_save_external", "path"),
                                                TKC_EP_SAVE_EXTERNAL,
                                                offsetof(tkc_save_external_request, seq_id),
                                                false,
                                                take_external_save,
                                                NULL };

enum { RECIPIENTS_MAX = 10 };

static bool check_external(const tinkc_external_options *o, tinkc_error *err)
{
    size_t n = 0;
    if (!tkc_all_zero(o->reserved, sizeof o->reserved))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved: must be zero");
    if (o->ttl_s < 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "ttl_s: must not be negative");
    while (o->recipients && o->recipients[n])
        if (!o->recipients[n++][0] || n > RECIPIENTS_MAX)
            return tkc_fail(err, TINKC_E_ARGUMENT, "recipients: %s",
                            n > RECIPIENTS_MAX ? "more than 10" : "one is empty");
    return !o->recipients || n ||
           tkc_fail(err, TINKC_E_ARGUMENT, "recipients: an empty list would encrypt nothing");
}

tinkc_future *tinkc_trainer_save_external(tinkc_trainer *trainer, const char *name,
                                          const tinkc_external_options *options, tinkc_error *err)
{
    static const tinkc_external_options none;
    const tinkc_external_options *o = options ? options : &none;
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_name(name, err) || !check_external(o, err))
        return NULL;
    step *s = step_new(trainer, &external_save_class, err);
    if (!s)
        return NULL;
    tkc_save_external_request *m = s->message;
    m->path = keep_text(s, name, err);
    m->model_id = trainer->model_id;
    if (o->ttl_s)
        m->ttl_seconds = (tkc_opt_i64)TKC_SOME(o->ttl_s);
    m->age_encryption_recipients = keep_list(s, o->recipients, err);
    return submit_or_drop(s, err);
}

/* ---- load ---- */

static void take_load(step *s, const void *result, tinkc_error *err)
{
    const tkc_load_weights_result *r = result;
    const tkc_load_weights_request *m = s->message;
    take_path(s, r->path ? r->path : m->path, err);
}

static const step_class load_class = { STEP("trainer_load", "path"),
                                       TKC_EP_LOAD_WEIGHTS,
                                       offsetof(tkc_load_weights_request, seq_id),
                                       false,
                                       take_load,
                                       NULL };

/* What describes a new run has no effect on one that is there. */
static bool check_load(const tinkc_state_options *o, tinkc_error *err)
{
    const char *unused = o->base_model      ? "base_model"
                         : o->user_metadata ? "user_metadata"
                         : o->optimizer     ? "optimizer"
                                            : NULL;
    return !unused || tkc_fail(err, TINKC_E_ARGUMENT,
                               "%s: only a new run has one (tinkc_trainer_new_from)", unused);
}

tinkc_future *tinkc_trainer_load(tinkc_trainer *trainer, const tinkc_state_options *o,
                                 tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_state_check(o, err) || !check_load(o, err))
        return NULL;
    step *s = step_new(trainer, &load_class, err);
    if (!s)
        return NULL;
    tkc_load_weights_request *m = s->message;
    m->model_id = trainer->model_id;
    m->path = keep_text(s, o->path, err);
    m->optimizer = o->with_optimizer;
    m->weights_access_token = keep_text(s, o->access_token, err);
    return submit_or_drop(s, err);
}

const char *tinkc_future_path(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    return tkc_future_get(f, "path", timeout_ms, err);
}

/* ---- unload ---- */

static void take_unload(step *s, const void *result, tinkc_error *err)
{
    (void)s, (void)result, (void)err;
}

/* In its turn, behind what was submitted before, but without a number: nothing comes after it. */
static const step_class unload_class = {
    STEP("trainer_unload", "nothing"), TKC_EP_UNLOAD_MODEL, SIZE_MAX, false, take_unload, NULL
};

tinkc_future *tinkc_trainer_unload(tinkc_trainer *trainer, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    step *s = step_new(trainer, &unload_class, err);
    if (!s)
        return NULL;
    ((tkc_unload_model_request *)s->message)->model_id = trainer->model_id;
    if (atomic_exchange(&trainer->unloaded, true)) /* by another thread, just now */
        tkc_fail_unloaded(err);
    return submit_or_drop(s, err);
}

/* ---- a sampler on the weights as they are ---- */

static void take_sampler(step *s, const void *result, tinkc_error *err)
{
    const tkc_save_for_sampler_result *r = result;
    if (!r->sampling_session_id || !r->sampling_session_id[0])
        tkc_fail(err, TINKC_E_BAD_RESPONSE, "trainer_open_sampler: the answer names none");
    else
        s->sampler = tkc_sampler_make(s->f.client, r->sampling_session_id, s->retry, err);
    if (s->sampler)
        s->sampler->record_stability_info = s->record_stability_info;
    s->f.result = s->sampler;
}

static const step_class open_class = { STEP("trainer_open_sampler", "sampler"),
                                       TKC_EP_SAVE_FOR_SAMPLER,
                                       offsetof(tkc_save_for_sampler_request, seq_id),
                                       false,
                                       take_sampler,
                                       NULL };

tinkc_future *tinkc_trainer_open_sampler(tinkc_trainer *trainer, const tinkc_sampler_options *o,
                                         tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || (o && !tkc_sampler_options_check(o, err)))
        return NULL;
    if (o && (o->base_model || o->model_path)) {
        tkc_fail(err, TINKC_E_ARGUMENT, "%s: the sampler is of the trainer's own weights",
                 o->base_model ? "base_model" : "model_path");
        return NULL;
    }
    step *s = step_new(trainer, &open_class, err);
    if (!s)
        return NULL;
    tkc_save_for_sampler_request *m = s->message;
    m->model_id = trainer->model_id;
    /* Once for the operation; the Python SDK takes another one at each repetition. */
    m->sampling_session_seq_id = (tkc_opt_i64)TKC_SOME(tkc_next_sampler_seq(trainer->client));
    if (o && o->retry) {
        tinkc_retry_options *copy = tkc_arena_alloc(&s->f.arena, sizeof *copy, err);
        if (copy)
            *copy = *o->retry;
        s->retry = copy;
    }
    s->record_stability_info = o && o->record_stability_info;
    return submit_or_drop(s, err);
}

tinkc_sampler *tinkc_trainer_sampler(tinkc_trainer *trainer, tinkc_error *err)
{
    tinkc_future *f = tinkc_trainer_open_sampler(trainer, NULL, err);
    tinkc_sampler *sampler = tinkc_future_sampler(f, TINKC_FOREVER, err);
    tinkc_future_free(f);
    return sampler;
}

/* ---- what the service knows ---- */

static void decode_info(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_get_info_response *r = tkc_arena_zalloc(&f->arena, sizeof *r, err);
    tinkc_model_info *info = tkc_arena_zalloc(&f->arena, sizeof *info, err);
    if (!r || !info || !tkc_rest_decode(f, answer, &tkc_get_info_response_type, r, err))
        return;
    const char *name = r->model_data.model_name ? r->model_data.model_name : r->model_name;
    tinkc_str id = tkc_str(r->model_data.tokenizer_id);
    id.len = tkc_str_find(id, ':'); /* a revision behind the name is not part of it */
    *info = (tinkc_model_info){ .model_id = r->model_id ? r->model_id : "",
                                .model_name = name ? name : "",
                                .arch = r->model_data.arch ? r->model_data.arch : "",
                                .tokenizer_id = tkc_arena_str(&f->arena, id, err),
                                .lora_rank = (int32_t)r->lora_rank.value,
                                .is_lora = r->is_lora.value,
                                .json = r->json };
    f->result = info;
}

tinkc_future *tinkc_trainer_info(tinkc_trainer *trainer, tinkc_error *err)
{
    static const tkc_rest_class class = { "trainer_info", "model_info" };
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_trainer_check(trainer, err))
        return NULL;
    tkc_get_info_request message = { .model_id = trainer->model_id };
    return tkc_rest_start(trainer->client, &class,
                          &(tkc_rest_request){ .endpoint = TKC_EP_GET_INFO, .message = &message },
                          decode_info, err);
}

const tinkc_model_info *tinkc_future_model_info(tinkc_future *f, int64_t timeout_ms,
                                                tinkc_error *err)
{
    return tkc_future_get(f, "model_info", timeout_ms, err);
}
