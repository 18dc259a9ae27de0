/* loss.h - the loss functions: what they need, what they give for each token.
 *
 * Pure arithmetic on log-probs; no model in sight. Sums over tokens and datums are never divided.
 * Errors that the caller's data explain are TINKC_E_BAD_REQUEST.
 */
#ifndef TKE_TRAIN_LOSS_H
#define TKE_TRAIN_LOSS_H

#include "base/err.h"
#include "base/str.h"
#include "tensor/dtype.h"

enum tke_loss_kind { TKE_CROSS_ENTROPY = 0, TKE_IMPORTANCE_SAMPLING, TKE_PPO, TKE_CISPO, TKE_DRO };

typedef struct tke_loss {
    int32_t kind;
    tke_real clip_low, clip_high; /* absolute bounds of the ratio */
    tke_real beta;                /* dro */
    bool beta_defaulted;          /* worth a line in the log */
    bool strict;                  /* dro: no token is masked */
} tke_loss;

typedef struct tke_loss_key { /* one entry of loss_fn_config */
    tinkc_str name;
    double value;
} tke_loss_key;

/* Unknown names and keys, and values that are not finite, fail. */
bool tke_loss_parse(tke_loss *, tinkc_str name, const tke_loss_key *keys, size_t n_keys,
                    bool strict, tinkc_error *err);
const char *tke_loss_name(const tke_loss *);

/* One datum as the maths sees it. Arrays are borrowed; NULL = not given. */
typedef struct tke_datum {
    const int32_t *tokens;
    size_t n;                          /* tokens */
    size_t k;                          /* targets for each position; 1 unless soft */
    const int64_t *targets;            /* [n, k] */
    const float *weights;              /* [n, k]: cross_entropy; NULL = zeros (forward only) */
    const float *logprobs;             /* [n]: q, the others */
    const float *advantages;           /* [n] */
    const float *clip_low, *clip_high; /* [n] or NULL: override the config */
} tke_datum;

/* An input tensor by name, dense: rows of cols elements (CSR is expanded by the caller: missing
 * entries are token 0 with weight 0). */
typedef struct tke_input {
    tinkc_str name;
    bool is_float;    /* float32, else int64 */
    const void *data; /* float * or int64_t *, aligned */
    size_t rows, cols;
} tke_input;

/* Fills a datum from named inputs. tokens and n must be set before; `index` is for messages. Names,
 * types, lengths and values are checked; `mask` is passed over unless the loss is strict. */
bool tke_datum_bind(tke_datum *, const tke_loss *, const tke_input *inputs, size_t n_inputs,
                    bool forward_only, size_t index, tinkc_error *err);
/* Token ids and length against a model's vocabulary and context. */
bool tke_datum_check(const tke_datum *, size_t vocab, size_t context, size_t index,
                     tinkc_error *err);

/* What a request's tokens add up to. Start from zero. */
typedef struct tke_loss_sums {
    double loss;
    double ratio, kl;
    double ratio_max;
    int64_t n_tokens, n_loss_tokens, n_clipped, n_ratio;
} tke_loss_sums;

/* For position i with log-probs lp[k]: the loss, and g[k] = d loss / d lp. Adds to sums. */
tke_real tke_loss_token(const tke_loss *, const tke_datum *, size_t i, const tke_real *lp,
                        tke_real *g, tke_loss_sums *);

#endif
