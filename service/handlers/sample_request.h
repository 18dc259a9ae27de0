/* sample_request.h - a sample in three steps that all forms share: Tinker's, OpenAI's, Anthropic's.
 *
 * Locks: none held; they take svc->lock.
 */
#ifndef TKE_SERVICE_SAMPLE_REQUEST_H
#define TKE_SERVICE_SAMPLE_REQUEST_H

#include "service/core/service_types.h"
#include "service/worker/sample_events.h"
#include "wire/sample_message.h"

/* Find the base and checkpoint to sample from; take the prompt and the parameters;
 * queue, to be answered in this style. False: answered. */
bool tke_sample_target(tke_call *, const tkc_sample_request *, tke_job *);
bool tke_sample_fill(tke_call *, const tkc_sample_request *, tke_job *);
void tke_sample_stream(tke_call *, tke_job *const *jobs, size_t n, const tke_stream_style *);

#endif
