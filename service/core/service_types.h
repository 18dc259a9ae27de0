/* service_types.h - the names of the service's objects, for headers that only point to them. */
#ifndef TKE_SERVICE_SERVICE_TYPES_H
#define TKE_SERVICE_SERVICE_TYPES_H

#include "base/err.h"
#include "service/core/service.h"

/* Objects. */
typedef struct tke_base tke_base;
typedef struct tke_call tke_call;
typedef struct tke_checkpoint tke_checkpoint;
typedef struct tke_custom_loss tke_custom_loss;
typedef struct tke_job tke_job;
typedef struct tke_run tke_run;
typedef struct tke_sampler tke_sampler;
typedef struct tke_session tke_session;
typedef struct tke_session_poll tke_session_poll;
typedef struct tke_stream tke_stream;
typedef struct tke_tenant tke_tenant;
typedef struct tke_waiter tke_waiter;

/* Parts (service_state.h). */
typedef struct tke_downloads tke_downloads;
typedef struct tke_idempotency tke_idempotency;
typedef struct tke_long_requests tke_long_requests;
typedef struct tke_polls tke_polls;
typedef struct tke_registry tke_registry;
typedef struct tke_results tke_results;
typedef struct tke_streams tke_streams;
typedef struct tke_tenants tke_tenants;
typedef struct tke_uploads tke_uploads;
typedef struct tke_usage tke_usage;
typedef struct tke_worker tke_worker;

#endif
