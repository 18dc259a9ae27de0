/* request_decode.c - decodes the bodies of training requests, and hashes them to recognise repeats.
 *
 * The client has used its seq_id by the time a body arrives, so a bad body is decoded as far as
 * possible: one that can be parsed and has a model_id becomes a job that fails at its turn; the
 * beginning of one that cannot be parsed may still tell its number. Touches only the job and its
 * arena.
 */
#include "codec/pb.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/request_decode.h"
#include "service/handlers/unknown_fields.h"
#include "service/worker/jobs.h"

/* ---- hashes of requests ---- */

static void hash_tensor(tke_hasher *h, const tkc_tensor *t)
{
    tke_hash_i64(h, t->dtype);
    tke_hash_i64(h, t->sparse);
    tke_hash_add(h, t->shape.data, t->shape.len * sizeof *t->shape.data);
    tke_hash_add(h, t->data, t->count * tkc_dtype_size(t->dtype));
    tke_hash_add(h, t->crow.data, t->crow.len * sizeof *t->crow.data);
    tke_hash_add(h, t->col.data, t->col.len * sizeof *t->col.data);
}

/* Clients send maps in any order, so entries are hashed in the order of their names. More entries
 * than a valid request can have are hashed as received: sorting takes quadratic time. */
enum { MANY_NAMES = 64 };

static void hash_inputs(tke_hasher *h, const tkc_datum *d)
{
    const char *last = NULL;
    for (size_t i = 0; d->inputs.len > MANY_NAMES && i < d->inputs.len; i++)
        tke_hash_str(h, d->inputs.data[i].name);
    if (d->inputs.len > MANY_NAMES)
        return;
    for (size_t round = 0; round < d->inputs.len; round++) {
        const tkc_named_tensor *next = NULL;
        for (size_t i = 0; i < d->inputs.len; i++) {
            const tkc_named_tensor *t = &d->inputs.data[i];
            if ((!last || strcmp(t->name, last) > 0) && (!next || strcmp(t->name, next->name) < 0))
                next = t;
        }
        if (!next)
            return;
        tke_hash_str(h, next->name);
        hash_tensor(h, &next->tensor);
        last = next->name;
    }
}

static void hash_numbers(tke_hasher *h, const tkc_numbers *n)
{
    const char *last = NULL;
    tke_hash_i64(h, (int64_t)n->len);
    for (size_t i = 0; n->len > MANY_NAMES && i < n->len; i++)
        tke_hash_str(h, n->names[i]);
    if (n->len > MANY_NAMES)
        return;
    for (size_t round = 0; round < n->len; round++) {
        size_t next = n->len;
        for (size_t i = 0; i < n->len; i++)
            if ((!last || strcmp(n->names[i], last) > 0) &&
                (next == n->len || strcmp(n->names[i], n->names[next]) < 0))
                next = i;
        if (next == n->len)
            return;
        tke_hash_str(h, n->names[next]);
        tke_hash_f64(h, n->values[next]);
        last = n->names[next];
    }
}

static void hash_pass(tke_hasher *h, const tkc_forward_backward_request *r)
{
    tke_hash_str(h, r->loss_fn);
    hash_numbers(h, &r->loss_fn_config);
    if (r->loss_id) /* others hash as before it existed */
        tke_hash_str(h, r->loss_id);
    tke_hash_i64(h, (int64_t)r->data.len);
    for (size_t i = 0; i < r->data.len; i++) {
        const tkc_datum *d = &r->data.data[i];
        tke_hash_i64(h, (int64_t)d->chunks.len);
        for (size_t c = 0; c < d->chunks.len; c++) {
            const tinkc_chunk *chunk = &d->chunks.data[c];
            tke_hash_i64(h, chunk->kind);
            tke_hash_add(h, chunk->tokens.data, chunk->tokens.len * sizeof(int32_t));
            tke_hash_add(h, chunk->bytes.data, chunk->bytes.len);
        }
        hash_inputs(h, d);
    }
}

/* Absent metadata adds nothing, so hashes stored before metadata existed still match. */
static void hash_metadata(tke_hasher *h, const tkc_metadata *m)
{
    for (const char *const *p = m->pairs; p && *p; p++)
        tke_hash_str(h, *p);
}

tke_hash128 tke_job_hash(const tke_job *job)
{
    tke_hasher h;
    tke_hash_begin(&h);
    tke_hash_i64(&h, job->kind);
    switch (job->kind) {
    case TKE_JOB_PASS:
    case TKE_JOB_FORWARD:
        if (job->in.pass.request)
            hash_pass(&h, job->in.pass.request);
        break;
    case TKE_JOB_OPTIM:
        tke_hash_add(&h, &job->in.optim.adam, sizeof job->in.optim.adam);
        break;
    case TKE_JOB_SAVE:
        tke_hash_str(&h, job->in.save.path);
        tke_hash_i64(&h, job->in.save.ttl_seconds.is == TKC_GIVEN ? job->in.save.ttl_seconds.value
                                                                  : -1);
        tke_hash_i64(&h, job->in.save.overwrite);
        hash_metadata(&h, &job->in.save.user_metadata);
        break;
    case TKE_JOB_SAVE_SAMPLER: /* without sampling_session_seq_id: retries vary it */
        tke_hash_str(&h, job->in.save_sampler.path);
        tke_hash_i64(&h, job->in.save_sampler.ttl_seconds.is == TKC_GIVEN
                             ? job->in.save_sampler.ttl_seconds.value
                             : -1);
        if (job->in.save_sampler.overwrite.value)
            tke_hash_i64(&h, 1);
        hash_metadata(&h, &job->in.save_sampler.user_metadata);
        break;
    case TKE_JOB_EXTERNAL:
        tke_hash_str(&h, job->in.save_external.path);
        for (const char *const *to = job->in.save_external.age_encryption_recipients; to && *to;
             to++)
            tke_hash_str(&h, *to);
        tke_hash_i64(&h, job->in.save_external.ttl_seconds.is == TKC_GIVEN
                             ? job->in.save_external.ttl_seconds.value
                             : -1);
        break;
    case TKE_JOB_LOAD:
        tke_hash_str(&h, job->in.load.path);
        tke_hash_i64(&h, job->in.load.optimizer);
        break;
    default:
        break;
    }
    return tke_hash_end(&h);
}

/* ---- decoding ---- */

static bool decode(tke_job *job, tinkc_str body, const tkc_message *type, void *in,
                   const char **unknown, tinkc_error *err)
{
    return tkc_message_decode_noting(type, body, TINKC_E_UNPROCESSABLE, &job->arena, in, unknown,
                                     err);
}

static bool decode_pass(tke_job *job, tinkc_str body, bool is_pb, bool forward,
                        const char **model_id, tkc_opt_i64 *seq, const char **unknown,
                        tinkc_error *err)
{
    tkc_forward_backward_request *r = tkc_arena_zalloc(&job->arena, sizeof *r, err);
    if (!r)
        return false;
    bool ok = is_pb ? tkc_forward_backward_from_pb(
                          (tinkc_bytes){ (const unsigned char *)body.data, body.len },
                          TINKC_E_UNPROCESSABLE, &job->arena, r, err)
                    : tkc_forward_backward_from_json(body, TINKC_E_UNPROCESSABLE, &job->arena, r,
                                                     unknown, err);
    if (!ok)
        return false;
    job->kind = r->forward_only || forward ? TKE_JOB_FORWARD : TKE_JOB_PASS;
    job->in.pass.request = r;
    *model_id = r->model_id;
    *seq = (tkc_opt_i64){ r->seq_id, r->seq_id == 0 ? TKC_ABSENT : TKC_GIVEN };
    return true;
}

static bool decode_optim(tke_job *job, tinkc_str body, const char **model_id, tkc_opt_i64 *seq,
                         const char **unknown, tinkc_error *err)
{
    tkc_optim_step_request in;
    if (!decode(job, body, &tkc_optim_step_request_type, &in, unknown, err))
        return false;
    const tkc_adam_params *p = &in.adam_params;
    job->in.optim.adam = (tke_adam_params){ p->learning_rate, p->beta1,        p->beta2,
                                            p->eps,           p->weight_decay, p->grad_clip_norm };
    *model_id = in.model_id;
    *seq = in.seq_id;
    return true;
}

/* A field that has a meaning only for a load that creates a model, or NULL. */
static const char *field_of_new_model(const tkc_load_weights_request *in)
{
    return in->session_id                                        ? "session_id"
           : in->model_seq_id.is == TKC_GIVEN                    ? "model_seq_id"
           : in->base_model                                      ? "base_model"
           : in->user_metadata.pairs && *in->user_metadata.pairs ? "user_metadata"
                                                                 : NULL;
}

static bool decode_load(tke_job *job, tinkc_str body, const char **model_id, tkc_opt_i64 *seq,
                        const char **unknown, tinkc_error *err)
{
    tkc_load_weights_request in;
    if (!decode(job, body, &tkc_load_weights_request_type, &in, unknown, err))
        return false;
    job->in.load.path = in.path;
    job->in.load.optimizer = in.optimizer;
    if (in.weights_access_token && *in.weights_access_token && !job->replayed)
        tkc_fail(&job->invalid, TINKC_E_BAD_REQUEST, "weights_access_token " TKE_NO_ACCESS_TOKEN);
    const char *misplaced = in.model_id && !job->replayed ? field_of_new_model(&in) : NULL;
    if (misplaced)
        tkc_fail(&job->invalid, TINKC_E_BAD_REQUEST,
                 "%s must not be given with model_id: it is for a load that creates a model",
                 misplaced);
    if (!job->replayed)
        (void)tke_optimizer_ok(in.optimizer_config, &job->invalid);
    *model_id = in.model_id;
    *seq = in.seq_id;
    return true;
}

/* ---- invalid bodies ---- */

static bool head_from_json(tkc_arena *arena, tinkc_str body, tke_head *out)
{
    tinkc_error err = { 0 };
    tkc_json j;
    tinkc_str key;
    bool readable = true;
    tkc_json_open(&j, body, arena, &err);
    (void)tkc_json_object(&j); /* of something else no key can be read */
    while (tkc_json_key(&j, &key)) {
        int kind = tkc_json_peek(&j);
        if (tkc_str_is(key, "model_id") && kind == TKC_JSON_STRING) {
            out->model_id = tkc_arena_str(arena, tkc_json_string(&j), &err);
        } else if (tkc_str_is(key, "seq_id") && kind == TKC_JSON_NUMBER) {
            out->seq = (tkc_opt_i64)TKC_SOME(tkc_json_i64(&j));
            readable = !tkc_failed(&err);
        } else {
            /* A seq_id of another type must not be taken for an absent one: the request would get
             * the next number, and its own would stay open. */
            readable &= !tkc_str_is(key, "seq_id") || kind == TKC_JSON_NULL;
            tkc_json_skip(&j);
        }
    }
    out->whole = tkc_json_close(&j);
    return readable && out->model_id && (out->whole || out->seq.is == TKC_GIVEN);
}

/* The model and the number come first, so they can be read from a truncated body; after an error,
 * further ones are not trusted. In a complete body the last one counts, as always in protobuf. */
static bool head_from_pb(tkc_arena *arena, tinkc_str body, tke_head *out)
{
    tinkc_error err = { 0 };
    tkc_pb p;
    tinkc_bytes first = { NULL, 0 }, last = { NULL, 0 };
    tkc_opt_i64 first_seq = { 0 }, last_seq = { 0 };
    tkc_pb_open(&p, (tinkc_bytes){ (const unsigned char *)body.data, body.len });
    while (tkc_pb_next(&p)) {
        if (tkc_pb_is(&p, 1, TKC_PB_BYTES)) {
            last = p.bytes;
            first = first.data ? first : last;
        } else if (tkc_pb_is(&p, 2, TKC_PB_VARINT)) {
            last_seq = (tkc_opt_i64)TKC_SOME((int32_t)(uint32_t)p.number);
            first_seq = first_seq.is == TKC_GIVEN ? first_seq : last_seq;
        }
    }
    out->whole = !p.bad;
    out->seq = out->whole ? last_seq : first_seq;
    tinkc_bytes id = out->whole ? last : first;
    if (id.data)
        out->model_id = tkc_arena_str(arena, tkc_strn((const char *)id.data, id.len), &err);
    return out->model_id && (out->whole || out->seq.is == TKC_GIVEN);
}

bool tke_read_head(tkc_arena *arena, tinkc_str body, bool is_pb, tke_head *out)
{
    *out = (tke_head){ 0 };
    return is_pb ? head_from_pb(arena, body, out) : head_from_json(arena, body, out);
}

/* The body can be parsed, but its contents are invalid: the job is queued and fails at its turn. */
static bool fail_at_its_turn(tke_job *job, tinkc_str body, bool is_pb, const char **model_id,
                             tkc_opt_i64 *seq, tinkc_error *err)
{
    tke_head head;
    tke_hasher h;
    if (err->code != TINKC_E_UNPROCESSABLE || !tke_read_head(&job->arena, body, is_pb, &head) ||
        !head.whole)
        return false;
    tkc_fail(&job->invalid, TINKC_E_BAD_REQUEST, "%s", err->message);
    *err = (tinkc_error){ 0 };
    *model_id = head.model_id;
    *seq = head.seq;
    tke_hash_begin(&h);
    tke_hash_i64(&h, job->kind);
    /* Of the bytes as they came, since the fields could not be read: a repetition has the same
     * bytes. */
    tke_hash_add(&h, body.data, body.len);
    job->hash = tke_hash_end(&h);
    return true;
}

static bool refuse_fields_pb(tke_job *job, tinkc_str body, bool decoded, tinkc_error *err)
{
    char which[200];
    const tkc_numbers *config = decoded ? &job->in.pass.request->loss_fn_config : NULL;
    if (!job->replayed &&
        tke_bad_field_in_pass(body, config, &job->arena, which, sizeof which, err))
        tkc_fail(&job->invalid, TINKC_E_BAD_REQUEST, "%s", which);
    return !decoded || !tkc_failed(err);
}

static void refuse_unknown(tke_job *job, const char *unknown)
{
    if (unknown && !job->replayed)
        tkc_fail(&job->invalid, TINKC_E_BAD_REQUEST,
                 "this server does not know the field '%.100s'%s", unknown,
                 tkc_cstr_eq(unknown, "optimizer_params")
                     ? ": its only optimizer is adamw, set by adam_params"
                     : "");
}

bool tke_decode_job(tke_job *job, tinkc_str body, bool is_pb, bool forward, const char **model_id,
                    tkc_opt_i64 *seq, tinkc_error *err)
{
    /* The decoded request points into the body, which must live as long as the job. */
    char *copy = tkc_arena_str(&job->arena, body, err);
    if (!copy)
        return false;
    body.data = copy;
    bool ok = false;
    const char *unknown = NULL;
    switch (job->kind) {
    case TKE_JOB_PASS:
    case TKE_JOB_FORWARD:
        ok = decode_pass(job, body, is_pb, forward, model_id, seq, &unknown, err);
        break;
    case TKE_JOB_OPTIM:
        ok = decode_optim(job, body, model_id, seq, &unknown, err);
        break;
    case TKE_JOB_SAVE:
        ok = decode(job, body, &tkc_save_weights_request_type, &job->in.save, &unknown, err);
        *model_id = job->in.save.model_id;
        *seq = job->in.save.seq_id;
        break;
    case TKE_JOB_SAVE_SAMPLER:
        ok = decode(job, body, &tkc_save_for_sampler_request_type, &job->in.save_sampler, &unknown,
                    err);
        *model_id = job->in.save_sampler.model_id;
        *seq = job->in.save_sampler.seq_id;
        break;
    case TKE_JOB_LOAD:
        ok = decode_load(job, body, model_id, seq, &unknown, err);
        break;
    case TKE_JOB_EXTERNAL:
        ok = decode(job, body, &tkc_save_external_request_type, &job->in.save_external, &unknown,
                    err);
        *model_id = job->in.save_external.model_id;
        *seq = job->in.save_external.seq_id;
        break;
    default:
        break;
    }
    /* First: an unknown field may explain a missing one. */
    if (is_pb)
        ok = refuse_fields_pb(job, body, ok, err) && ok;
    else
        refuse_unknown(job, unknown);
    if (!ok)
        return fail_at_its_turn(job, body, is_pb, model_id, seq, err);
    /* Of the decoded fields, not of the bytes: clients may encode a repetition in another order, or
     * as JSON after protobuf. */
    job->hash = tke_job_hash(job);
    return true;
}
