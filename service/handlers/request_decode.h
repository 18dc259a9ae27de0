/* request_decode.h - the bodies of training requests: decoded, then checked against their base model. No locks,
 * except that a job which a run already has in its queue needs svc->lock.
 */
#ifndef TKE_SERVICE_REQUEST_DECODE_H
#define TKE_SERVICE_REQUEST_DECODE_H

#include "service/core/service_types.h"
#include "service/handlers/identity.h"
#include "wire/messages.h"

/* The model and number of a request; seq absent: the body does not have it. */
typedef struct tke_head {
    const char *model_id;
    tkc_opt_i64 seq;
    bool whole; /* the body can be parsed to its end */
} tke_head;

/* False: not known. */
bool tke_read_head(tkc_arena *, tinkc_str body, bool is_pb, tke_head *out);
/* Decodes a training request's body into a job, for handlers and for the journal's replay. forward:
 * a pass without gradients, even if the body says otherwise. *model_id and *seq are those of the
 * body. False: it cannot be parsed or has no model_id; err (UNPROCESSABLE) says why. Errors in its
 * contents go to job->invalid. */
bool tke_decode_job(tke_job *, tinkc_str body, bool is_pb, bool forward, const char **model_id,
                    tkc_opt_i64 *seq, tinkc_error *err);
/* Is it the optimizer that this server has? NULL: the client does not say. */
bool tke_optimizer_ok(const tkc_optimizer_config *, tinkc_error *);
/* "an image", "audio": what a chunk without tokens is, by TINKC_CHUNK_*. */
const char *tke_chunk_name(int32_t kind);
/* The second half, once the run is known: checks against its base model. */
void tke_check_job(tke_job *, const tke_run *);
tke_hash128 tke_job_hash(const tke_job *);

#endif
