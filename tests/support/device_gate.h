/* device_gate.h - a device that computes only while its gate is open, or that fails.
 *
 * For tests of what happens while a pass or a sample is under way: with the gate closed it is, for
 * as long as the test wants. One device at a time.
 */
#ifndef TESTS_DEVICE_GATE_H
#define TESTS_DEVICE_GATE_H

#include <pthread.h>

#include "base/err.h"
#include "service/service_state.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closed, broken;
    int waiting; /* threads at the closed gate */
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

static inline bool gate_adam(tke_device *d, const tke_adam *how, size_t n, const tke_block *g,
                             tke_block *theta, tke_block *m, tke_block *v, double *moved,
                             tinkc_error *err)
{
    return gate_pass(err) && gate.own->adam(d, how, n, g, theta, m, v, moved, err);
}

/* Before the service has a model: its worker does not look at the device yet. */
static inline void gate_put(tke_device *device)
{
    gate.own = device->ops;
    gate.ops = *gate.own;
    gate.ops.step_run = gate_step;
    gate.ops.microbatch_run = gate_microbatch;
    gate.ops.adam = gate_adam;
    device->ops = &gate.ops;
}

#endif
