/* short_conv.c - a convolution over a sequence's last few rows. May touch: the streams and states it is given. */
#include "cpu/short_conv.h"

#include <string.h>

static size_t seq_of_row(const tke_turn *u, size_t row)
{
    size_t i = 0;
    while (row >= (size_t)(u->seqs[i].first_row + u->seqs[i].n_rows))
        i++;
    return i;
}

/* The stream's kept rows in a sequence's state. */
static tke_real *kept_rows(const tke_turn *u, const tke_conv *c, const tke_stream *s, size_t seq)
{
    return tke_turn_state(u, seq) + (c->kernel - 1) * s->first;
}

void tke_conv_row(const tke_turn *u, const tke_conv *c, const tke_stream *s, size_t row)
{
    size_t pos = (size_t)u->rows->positions[row], in_step = pos, kept = c->kernel - 1;
    const tke_real *before = NULL;
    tke_real *out = s->c + row * s->n;
    if (u->seqs) {
        size_t seq = seq_of_row(u, row);
        in_step = row - (size_t)u->seqs[seq].first_row;
        before = kept_rows(u, c, s, seq);
    }
    if (c->bias)
        memcpy(out, c->bias + s->first, s->n * sizeof *out);
    else
        memset(out, 0, s->n * sizeof *out);
    for (size_t j = 0; j < c->kernel; j++) {
        size_t back = kept - j;
        if (back > pos)
            continue;
        const tke_real *w = c->weights + j * c->channels + s->first;
        const tke_real *x =
            back <= in_step ? s->m + (row - back) * s->n : before + (kept + in_step - back) * s->n;
        for (size_t i = 0; i < s->n; i++)
            out[i] += w[i] * x[i];
    }
}

void tke_conv_keep(const tke_turn *u, const tke_conv *c, const tke_stream *s, size_t seq)
{
    const tke_kv_seq *q = &u->seqs[seq];
    size_t n = (size_t)q->n_rows, kept = c->kernel - 1;
    tke_real *to = kept_rows(u, c, s, seq);
    for (size_t i = 0; i < kept; i++) {
        const tke_real *from = i + n >= kept ? s->m + ((size_t)q->first_row + i + n - kept) * s->n
                                             : to + (i + n) * s->n;
        memcpy(to + i * s->n, from, s->n * sizeof *to);
    }
}

/* Row t becomes the sum over the rows from t on that used it. */
void tke_conv_backward(const tke_turn *u, const tke_conv *c, const tke_stream *s, size_t seq,
                       tke_real *grads)
{
    size_t begin = (size_t)u->starts[seq], end = (size_t)u->starts[seq + 1];
    for (size_t row = begin; row < end; row++) {
        tke_real *d = grads + row * s->n;
        const tke_real *w = c->weights + (c->kernel - 1) * c->channels + s->first;
        for (size_t i = 0; i < s->n; i++)
            d[i] *= w[i];
        for (size_t j = 1; j < c->kernel && row + j < end; j++)
            for (size_t i = 0; i < s->n; i++)
                d[i] += (w - j * c->channels)[i] * d[j * s->n + i];
    }
}
