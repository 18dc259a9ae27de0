/* counters.h - what the service has done since its start, for status and metrics. Any thread, no locks needed. */
#ifndef TKE_SERVICE_COUNTERS_H
#define TKE_SERVICE_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct tke_counters {
    _Atomic uint64_t requests;
    _Atomic uint64_t tokens_trained, tokens_sampled, tokens_prefilled;
    _Atomic uint64_t sample_steps, worker_waits;
} tke_counters;

#endif
