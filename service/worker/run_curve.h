/* run_curve.h - the losses that a run's client got, step by step, for the page. Bounded: when it is full, every
 * other point goes, and from then on only every other step is kept. In memory only. */
#ifndef TKE_SERVICE_RUN_CURVE_H
#define TKE_SERVICE_RUN_CURVE_H

#include <stddef.h>
#include <stdint.h>

#include "service/core/service_types.h"

enum { TKE_CURVE_POINTS = 256 };

typedef struct tke_curve {
    int64_t steps; /* that ended */
    int64_t every; /* only the steps that this divides are kept; 0 = 1 */
    double sum;    /* of the losses of the step under way, and its tokens */
    int64_t tokens;
    size_t n;
    struct {
        int64_t step;
        double loss; /* per token */
    } points[TKE_CURVE_POINTS];
} tke_curve;

static inline void tke_curve_pass(tke_curve *c, double loss_sum, int64_t tokens)
{
    c->sum += loss_sum;
    c->tokens += tokens;
}
/* The passes since the last step are one point. */
void tke_curve_step(tke_curve *);

/* Locks: needs svc->lock. For the curve of a run that the SDK drives. */
void tke_run_note_loss(tke_service *, tke_run *, double loss_sum, int64_t tokens);

#endif
