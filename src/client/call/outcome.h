/* outcome.h - what passes bring back: metrics, outputs by example, and many parts as one. */
#ifndef TKC_API_OUTCOME_H
#define TKC_API_OUTCOME_H

#include "client/core/client_priv.h"
#include "tinkc/train.h"
#include "wire/train_message.h"

struct tinkc_metrics {
    const char **names;
    double *values;
    size_t len;
};

/* One part of a pass, or all of them together. All memory is an arena's. */
struct tinkc_fwdbwd {
    const char *type;
    size_t first;       /* example of the batch it begins with */
    size_t n;           /* examples */
    const char **names; /* of outputs, ended by NULL */
    size_t n_names;
    const tinkc_tensor **tensors; /* n * n_names; NULL = none */
    tinkc_metrics metrics;
};

/* What a part must bring back: its request decides both. */
typedef struct tkc_fwdbwd_expected {
    size_t first, n;       /* examples first .. first + n of the batch */
    const size_t *targets; /* for each of the n: rows of target_tokens; 0 = it has none */
} tkc_fwdbwd_expected;

/* Reads a part. `body` must live as long as the result. JSON comes from old servers.
 * Errors: BAD_RESPONSE, also for outputs or log-probs of another number than expected. */
bool tkc_fwdbwd_read(tinkc_fwdbwd *out, tinkc_bytes body, bool is_protobuf,
                     const tkc_fwdbwd_expected *, tkc_arena *, tinkc_error *err);

/* Parts in order become one: outputs one after the other, metrics by the reduction
 * behind the colon of their names. Keys that cannot be combined are left out; log may be NULL. */
bool tkc_fwdbwd_combine(tinkc_fwdbwd *out, const tinkc_fwdbwd *const *parts, size_t n, tkc_arena *,
                        tinkc_client *log, tinkc_error *err);

/* Adds or replaces a metric; the name is copied. */
bool tkc_metrics_put(tinkc_metrics *, const char *name, double value, tkc_arena *,
                     tinkc_error *err);
bool tkc_metrics_copy(tinkc_metrics *, const tkc_numbers *, tkc_arena *, tinkc_error *err);

/* CPython's hash of the sorted tuple of the values cut to integers; false if one is not finite. */
bool tkc_hash_unordered(const double *values, size_t n, int64_t *out, tkc_arena *,
                        tinkc_error *err);

#endif
