/* device_gate.h - a device that computes only while its gate is open, or that fails.
 *
 * For tests of what happens while a pass or a sample is under way: with the gate closed it is, for
 * as long as the test wants. One device at a time.
 */
#ifndef TESTS_DEVICE_GATE_H
#define TESTS_DEVICE_GATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/err.h"
#include "device/device.h"
#include "math/adam.h"
#include "model/model.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closed, broken;
    int waiting; /* threads at the closed gate */
    atomic_bool loads_nothing;
    _Atomic int n_made; /* on the device, and not freed */
    const tke_device_ops *own;
    tke_device_ops ops; /* the device's own, but for what waits at the gate */
} gate = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static inline void gate_set(bool closed, bool broken)
{
    pthread_mutex_lock(&gate.lock);
    gate.closed = closed;
    gate.broken = broken;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

/* Waits until the device is asked to compute; the gate is closed. */
static inline void gate_await(void)
{
    pthread_mutex_lock(&gate.lock);
    while (!gate.waiting)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

/* True: the device may compute. */
static inline bool gate_pass(tinkc_error *err)
{
    pthread_mutex_lock(&gate.lock);
    gate.waiting++;
    pthread_cond_broadcast(&gate.changed);
    while (gate.closed)
        pthread_cond_wait(&gate.changed, &gate.lock);
    gate.waiting--;
    bool broken = gate.broken;
    pthread_mutex_unlock(&gate.lock);
    return broken ? tkc_fail(err, TINKC_E_SERVER, "the device has failed") : true;
}

static inline bool gate_step(tke_device_sampler *s, const tke_step *step, tinkc_error *err)
{
    return gate_pass(err) && gate.own->step_run(s, step, err);
}

static inline bool gate_microbatch(tke_device_trainer *t, const tke_microbatch *m, tinkc_error *err)
{
    return gate_pass(err) && gate.own->microbatch_run(t, m, err);
}

static inline bool gate_adam(tke_device *d, const tke_adam *how, size_t n, const tke_block *g, tke_block *theta,
                             tke_block *m, tke_block *v, double *moved, tinkc_error *err)
{
    return gate_pass(err) && gate.own->adam(d, how, n, g, theta, m, v, moved, err);
}

static inline void *gate_made(void *made)
{
    atomic_fetch_add(&gate.n_made, made != NULL);
    return made;
}

static inline void *gate_gone(void *made)
{
    atomic_fetch_sub(&gate.n_made, made != NULL);
    return made;
}

static inline tke_device_model *gate_model(tke_device *d, tke_model *m, tinkc_error *err)
{
    if (atomic_load(&gate.loads_nothing)) {
        tkc_fail(err, TINKC_E_SERVER, "the device cannot load the model");
        return NULL;
    }
    return gate_made(gate.own->model_load(d, m, err));
}

static inline void gate_model_free(tke_device_model *m)
{
    gate.own->model_free(gate_gone(m));
}

static inline tke_block *gate_block(tke_device *d, size_t n, tinkc_error *err)
{
    return gate_made(gate.own->block_new(d, n, err));
}

static inline void gate_block_free(tke_device *d, tke_block *b)
{
    gate.own->block_free(d, gate_gone(b));
}

static inline tke_device_trainer *gate_trainer(tke_device_model *m, const tke_device_trainer_options *o,
                                               tinkc_error *err)
{
    return gate_made(gate.own->trainer_new(m, o, err));
}

static inline void gate_trainer_free(tke_device_trainer *t)
{
    gate.own->trainer_free(gate_gone(t));
}

static inline tke_device_sampler *gate_sampler(tke_device_model *m, const tke_device_sampler_options *o,
                                               tinkc_error *err)
{
    return gate_made(gate.own->sampler_new(m, o, err));
}

static inline void gate_sampler_free(tke_device_sampler *s)
{
    gate.own->sampler_free(gate_gone(s));
}

/* Before the service has a model: its worker does not look at the device yet. */
static inline void gate_put(tke_device *device)
{
    gate.own = device->ops;
    gate.ops = *gate.own;
    gate.ops.step_run = gate_step;
    gate.ops.microbatch_run = gate_microbatch;
    gate.ops.adam = gate_adam;
    gate.ops.model_load = gate_model;
    gate.ops.model_free = gate_model_free;
    gate.ops.block_new = gate_block;
    gate.ops.block_free = gate_block_free;
    gate.ops.trainer_new = gate_trainer;
    gate.ops.trainer_free = gate_trainer_free;
    gate.ops.sampler_new = gate_sampler;
    gate.ops.sampler_free = gate_sampler_free;
    device->ops = &gate.ops;
}

#endif
