/* block.c - what training and sampling share around the layers: norms, the logits, rotation tables.
 *
 * May touch: the buffers it is given. Must not: compute anything that depends on which rows share
 * a call.
 */
#include "cpu/block.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/mem.h"

void tke_take(tke_walk *w, tke_real **out, size_t count)
{
    enum { PAD = 16 };
    if (w->at)
        *out = w->at + w->used;
    w->used += (count + PAD - 1) / PAD * PAD;
}

size_t tke_chunk_rows(const tke_model *m, size_t least, size_t most, size_t n)
{
    enum { CHUNK_REALS = 8 << 20 };
    size_t rows = CHUNK_REALS / m->config.vocab;
    rows = rows > most ? most : rows < least ? least : rows;
    return rows < n ? rows : n;
}

/* ---- norms ---- */

void tke_rows_norm(const tke_rows *r, size_t n, const tke_real *x, const tke_real *w, tke_real *y)
{
    const tke_config *c = &r->model->config;
    tke_rmsnorm(r->cpu, (int64_t)n, (int64_t)c->hidden, x, tke_matrix_real(w, (int64_t)c->hidden),
                (tke_real)c->rms_eps, y);
}

void tke_rows_norm_backward(const tke_rows *r, size_t n, const tke_real *x, const tke_real *w,
                            const tke_real *dy, tke_real *dh, bool accumulate)
{
    const tke_config *c = &r->model->config;
    tke_rmsnorm_backward(r->cpu, (int64_t)n, (int64_t)c->hidden, x,
                         tke_matrix_real(w, (int64_t)c->hidden), (tke_real)c->rms_eps, dy, dh,
                         accumulate);
}

/* ---- logits ---- */

void tke_rows_logits(const tke_rows *r, const tke_real *h, const tke_logits *out)
{
    int64_t n = (int64_t)r->n, vocab = (int64_t)r->model->config.vocab;
    tke_rows_norm(r, r->n, h, r->model->norm, out->hf);
    tke_group_forward(r, &r->model->head, out->hf, (tke_real *const *)&out->z, out->low);
    tke_lse_start(n, out->max, out->sum);
    tke_lse_update(r->cpu, n, vocab, out->z, vocab, out->max, out->sum);
}

/* ---- rotation tables ---- */

bool tke_rope_table_grow(tke_rope_table *t, const tke_model *m, size_t n, tinkc_error *err)
{
    enum { STEP = 1024 };
    size_t half = m->config.rotary / 2, want = (n + STEP - 1) / STEP * STEP;
    if (n <= t->n || !half)
        return true;
    tke_real *block = tkc_alloc_aligned(64, 2 * want * half * sizeof *block, err);
    if (!block)
        return false;
    tke_real *sines = block + want * half;
    for (size_t p = 0; p < want; p++)
        for (size_t j = 0; j < half; j++) {
            double angle = (double)p * m->rope_frequency[j];
            block[p * half + j] = (tke_real)(cos(angle) * m->rope_scale);
            sines[p * half + j] = (tke_real)(sin(angle) * m->rope_scale);
        }
    assert(want >= n);
    tke_rope_table_free(t);
    *t = (tke_rope_table){ block, sines, want };
    return true;
}

void tke_rope_table_free(tke_rope_table *t)
{
    tkc_release_aligned(t->cos_table);
    *t = (tke_rope_table){ 0 };
}
