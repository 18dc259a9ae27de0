/* one_pass.h - one training pass on a model from a path, as bits to compare: log-probs and gradients. */
#ifndef TESTS_ONE_PASS_H
#define TESTS_ONE_PASS_H

#include "base/str.h"
#include "support/engine/on_device.h"
#include "support/engine/tiny_model.h"
#include "support/test_case.h"
#include "train/training.h"

enum { ONE_PASS_LEN = 24 };

typedef struct one_pass {
    float logprobs[ONE_PASS_LEN];
    tke_real *grads; /* yours */
    size_t n;        /* bytes */
    size_t weights;  /* bytes of the model */
} one_pass;

static inline tke_adapter *one_pass_adapter(tke_device *d, tke_model *m)
{
    tinkc_error err = { 0 };
    uint64_t r = 3;
    tke_adapter *a = tke_adapter_new(d, m, &(tke_adapter_spec){ .rank = 2, .train = 7, .seed = 5 }, &err);
    assert_non_null(a);
    for (size_t i = 0; i < a->layout->n_floats; i++)
        adapter_weights(a)[i] += 0.05f * tiny_normal(&r);
    return a;
}

static inline void one_pass_run(tke_device_model *loaded, tke_adapter *a, float *out)
{
    int32_t tokens[ONE_PASS_LEN];
    int64_t targets[ONE_PASS_LEN];
    float weights[ONE_PASS_LEN];
    tinkc_error err = { 0 };
    uint64_t r = 9;
    for (size_t i = 0; i < ONE_PASS_LEN; i++) {
        tokens[i] = (int32_t)(tiny_random(&r) % 101);
        targets[i] = (int64_t)(tiny_random(&r) % 101);
        weights[i] = 1;
    }
    tke_trainer *t = tke_trainer_new(loaded, &(tke_trainer_options){ 0 }, &err);
    tke_datum d = { .tokens = tokens, .n = ONE_PASS_LEN, .k = 1, .targets = targets, .weights = weights };
    tke_pass p = { .adapter = a, .backward = true, .data = &d, .n_data = 1 }, *list[1] = { &p };
    assert_true(tke_loss_parse(&p.loss, tkc_str("cross_entropy"), NULL, 0, false, &err));
    tke_trainer_run(t, list, 1);
    assert_string_equal(p.err.message, "");
    memcpy(out, p.out.logprobs, ONE_PASS_LEN * sizeof *out);
    tke_pass_free(&p);
    tke_trainer_free(t);
}

static inline one_pass one_pass_of(const char *path, int32_t precision)
{
    tinkc_error err = { 0 };
    one_pass out = { 0 };
    tke_model *m = tke_model_open(path, &err);
    if (!m)
        fail_msg("%s", err.message);
    tke_device *d = tke_device_open("cpu", &(tke_device_options){ .n_threads = 2, .precision = precision }, NULL, &err);
    assert_non_null(d);
    tke_device_model *loaded = device_load(d, m);
    tke_adapter *a = one_pass_adapter(d, m);
    one_pass_run(loaded, a, out.logprobs);
    out.n = a->layout->n_floats * sizeof *out.grads;
    out.grads = malloc(out.n);
    assert_non_null(out.grads);
    memcpy(out.grads, adapter_grads(a), out.n);
    out.weights = m->n_bytes;
    tke_adapter_free(a);
    device_unload(loaded);
    tke_device_close(d);
    tke_model_drop(m);
    return out;
}

/* Two models that must compute the same; returns how many bytes the first one's weights have less. */
static inline int64_t one_pass_same(const char *x, const char *y, int32_t precision)
{
    one_pass a = one_pass_of(x, precision), b = one_pass_of(y, precision);
    assert_int_equal(a.n, b.n);
    if (memcmp(a.logprobs, b.logprobs, sizeof a.logprobs) != 0 || memcmp(a.grads, b.grads, a.n) != 0)
        fail_msg("%s and %s differ", x, y);
    free(a.grads);
    free(b.grads);
    return (int64_t)b.weights - (int64_t)a.weights;
}

#endif
