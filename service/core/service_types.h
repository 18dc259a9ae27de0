/* service_types.h - the names of the service's objects, for headers that only point to them. */
#ifndef TKE_SERVICE_SERVICE_TYPES_H
#define TKE_SERVICE_SERVICE_TYPES_H

#include "base/err.h"
#include "service/core/service.h"

typedef struct tke_archive tke_archive;
typedef struct tke_base tke_base;
typedef struct tke_call tke_call;
typedef struct tke_checkpoint tke_checkpoint;
typedef struct tke_custom_loss tke_custom_loss;
typedef struct tke_idempotent tke_idempotent;
typedef struct tke_job tke_job;
typedef struct tke_run tke_run;
typedef struct tke_sampler tke_sampler;
typedef struct tke_session tke_session;
typedef struct tke_session_poll tke_session_poll;
typedef struct tke_stream tke_stream;
typedef struct tke_tenant tke_tenant;
typedef struct tke_upload tke_upload;
typedef struct tke_waiter tke_waiter;

#endif
