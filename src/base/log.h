/* log.h - lines for people, with secrets redacted out before anybody sees them. */
#ifndef TKC_BASE_LOG_H
#define TKC_BASE_LOG_H

#include "base/buf.h"
#include "tinkc/client.h"

typedef struct tkc_log {
    tinkc_log_fn *fn; /* NULL = silent */
    void *user;
    int32_t level; /* TINKC_LOG_*: what is above it is dropped */
} tkc_log;

/* Formats at most 1023 bytes, redacts, hands on. */
void tkc_log_line(const tkc_log *, int32_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Overwrites, in place, what looks like a credential: tml-..., eyJ... (a JWT), the word after
 * "Bearer ", hf_..., and the values of api_key=, token= and signature parameters in URLs. */
void tkc_redact(char *text, size_t len);

/* Lets a repeated warning through at most once each interval_ms. Zeroed = never seen. */
typedef struct tkc_log_gate {
    int64_t next_ms;
    uint64_t held_back;
} tkc_log_gate;
/* True if it may be written now; *held_back tells how many were not since the last. */
bool tkc_log_gate_pass(tkc_log_gate *, int64_t now_ms, int64_t interval_ms, uint64_t *held_back);

#endif
