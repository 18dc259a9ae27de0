/* short_conv.h - a convolution over a sequence's last few rows, each channel by itself.
 *
 * Rows before a step's own are in the sequence's state, which begins with them. Private to
 * engine/cpu.
 */
#ifndef TKE_CPU_SHORT_CONV_H
#define TKE_CPU_SHORT_CONV_H

#include "cpu/part.h"

typedef struct tke_conv {
    const tke_real *weights; /* [kernel][channels]: the last row is the position's own */
    const tke_real *bias;    /* [channels] or NULL */
    size_t kernel, channels;
} tke_conv;

typedef struct tke_stream { /* some of the channels, in all rows */
    const tke_real *m;      /* before, [rows][n] */
    tke_real *c;            /* after */
    size_t n, first;        /* the first among all channels */
} tke_stream;

/* Numbers of a sequence's state. */
static inline size_t tke_conv_reals(const tke_conv *c)
{
    return (c->kernel - 1) * c->channels;
}

/* Row `row` of the stream's c; nothing comes before a sequence. */
void tke_conv_row(const tke_turn *, const tke_conv *, const tke_stream *, size_t row);
/* Decoding: keeps the last rows of a sequence's step for the next one. */
void tke_conv_keep(const tke_turn *, const tke_conv *, const tke_stream *, size_t seq);
/* Training: gradients of c become those of m, for all rows of a sequence, in place. */
void tke_conv_backward(const tke_turn *, const tke_conv *, const tke_stream *, size_t seq,
                       tke_real *grads);

#endif
