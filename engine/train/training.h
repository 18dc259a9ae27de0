/* training.h - passes (forward, forward_backward) and optimizer steps.
 *
 *     tke_trainer *t = tke_trainer_new(device_model, &options, &err);
 *     tke_pass pass = { .adapter = a, .backward = true, .loss = loss, .data = d, .n_data = n };
 *     tke_pass *passes[] = { &pass };
 *     tke_trainer_run(t, passes, 1);
 *     if (pass.err.code) ... else use pass.out ...
 *     tke_pass_free(&pass);
 *
 * A microbatch may hold passes of many adapters on one base model; each gives the same bits as if
 * it ran alone. Passes of one adapter are taken in the order given. A pass that fails changes
 * nothing and does not stop the others. [one thread: the worker]
 */
#ifndef TKE_TRAIN_TRAINING_H
#define TKE_TRAIN_TRAINING_H

#include "train/adapter.h"
#include "train/loss.h"

/* ---- the workspace ---- */

typedef struct tke_trainer_options {
    size_t memory_bytes;       /* for activations and work space; 0 = by the device */
    size_t microbatch_tokens;  /* most tokens in a microbatch; 0 = by the device. A longer datum
                                  makes one of its own */
    int32_t keep;              /* TKE_KEEP_*: activations of layers, or recompute; same bits */
    const _Atomic(bool) *stop; /* set from outside: passes fail with TINKC_E_CANCELLED soon */
    /* Other work of the device, done between two microbatches of a run, on the same thread. It may
     * change neither this trainer nor the adapters of its passes. NULL = none. */
    void (*between)(void *user);
    void *user;
    /* How long a microbatch should take, at the rate of the one before it; the first of a trainer is
     * small. 0 = no bound. The same bits. */
    int64_t slice_ns;
    /* The first takes longer than all that follow (a card chooses its algorithms): it is not
     * measured, and as large as it may be. */
    bool starts_slowly;
    int64_t (*now_ns)(void); /* NULL = the monotonic clock */
} tke_trainer_options;

typedef struct tke_trainer tke_trainer;

/* The model is borrowed. */
tke_trainer *tke_trainer_new(tke_device_model *, const tke_trainer_options *, tinkc_error *err);
void tke_trainer_free(tke_trainer *);

/* Bytes that a datum of n tokens needs at least (everything recomputed), gradients of an adapter of
 * this rank included: if it is above memory_bytes the pass will fail with BAD_REQUEST. */
size_t tke_trainer_bytes(const tke_trainer *, size_t n_tokens, size_t max_k,
                         const tke_adapter_spec *);
/* Changes the budget of later microbatches; work space beyond it is given back. */
void tke_trainer_set_memory(tke_trainer *, size_t memory_bytes);
size_t tke_trainer_held(const tke_trainer *); /* bytes of work space, now */

/* ---- passes ---- */

typedef struct tke_metric {
    const char *name; /* static, or the graph's: "loss:sum" */
    double value;
} tke_metric;
enum { TKE_MAX_METRICS = 12 + TKE_GRAPH_METRICS };

/* Outputs of all datums, concatenated in the order of the request. */
typedef struct tke_pass_out {
    float *logprobs;     /* sum of n*k floats */
    float *elementwise;  /* sum of n floats */
    size_t *logprobs_at; /* [n_data + 1]: where each datum begins, in floats */
    size_t *elementwise_at;
    tke_metric metrics[TKE_MAX_METRICS];
    size_t n_metrics;
} tke_pass_out;

typedef struct tke_pass {
    tke_adapter *adapter; /* NULL = the bare model; forward only */
    bool backward;
    tke_loss loss;
    const tke_datum *data;
    size_t n_data;
    /* filled in: err (BAD_REQUEST = caused by the caller, MEMORY, CANCELLED, SERVER), else out */
    tinkc_error err;
    bool not_finite; /* err is SERVER because log-probs or gradients overflowed */
    tke_pass_out out;
    tkc_arena arena; /* owns out; end with tke_pass_free */
} tke_pass;

/* Runs them. Every pass ends with either err or out. */
void tke_trainer_run(tke_trainer *, tke_pass *const *passes, size_t n);
void tke_pass_free(tke_pass *);

/* ---- the optimizer ---- */

typedef struct tke_adam_params { /* of one request */
    double learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm;
} tke_adam_params;

/* Are the weights so large that results overflow? Then a learning rate was too high; the service is not
 * to blame for what follows. *rms: their root mean square. */
bool tke_adapter_is_huge(tke_adapter *, double *rms);
/* Checks the numbers (BAD_REQUEST). */
bool tke_adam_check(const tke_adam_params *, tinkc_error *err);
/* Consumes the accumulated gradient. metrics: room for TKE_MAX_METRICS; names as in engine.md 3.3.
 * A gradient that is not finite fails (SERVER), changes nothing and is zeroed. Numbers that would
 * make weights or moments overflow fail (BAD_REQUEST) and change nothing: the gradient is kept. */
bool tke_optim_step(tke_adapter *, const tke_adam_params *, tke_metric *metrics, size_t *n_metrics,
                    tinkc_error *err);

#endif
