/* log.h - log lines for people; secrets are redacted before a line leaves the library. */
#ifndef TKC_BASE_LOG_H
#define TKC_BASE_LOG_H

#include "base/buf.h"
#include "tinkc/client.h"

typedef struct tkc_log {
    tinkc_log_fn *fn; /* NULL = silent */
    void *user;
    int32_t level; /* TINKC_LOG_*: higher levels are dropped */
} tkc_log;

/* Formats at most 1023 bytes, redacts them and calls fn. */
void tkc_log_line(const tkc_log *, int32_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Overwrites, in place, what looks like a credential: tml-..., eyJ... (a JWT), the word after
 * "Bearer ", hf_..., and the values of api_key=, token= and signature parameters in URLs. */
void tkc_redact(char *text, size_t len);

/* Limits a repeated warning to one per interval_ms. Zeroed = never seen. */
typedef struct tkc_log_gate {
    int64_t next_ms;
    uint64_t held_back;
} tkc_log_gate;
/* True if it may be written now; *held_back = how many were dropped since the last one. */
bool tkc_log_gate_pass(tkc_log_gate *, int64_t now_ms, int64_t interval_ms, uint64_t *held_back);

#endif
