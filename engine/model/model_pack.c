/* model_pack.c - packs the matrices of layers after a model is opened: NF4 for 4 bits, Q8_0 for 8.
 *
 * Embedding, head and routers stay as they are, as do matrices whose rows are not whole blocks. The
 * packed model is the base then: what trains and what samples on it see the same numbers.
 */
#include "model/model_pack.h"

#include <math.h>
#include <stdatomic.h>
#include "math/format.h"
#include "math/threads.h"

enum { ROWS = 32 /* of a task */ };

typedef struct packing {
    tke_matrix from;
    const tke_format *format;
    int64_t rows;
    uint8_t *codes;
    float *factors; /* of NF4; NULL = none */
    atomic_bool bad;
} packing;

static void pack_block(packing *p, int64_t row, int64_t at, int64_t index)
{
    tke_real wide[TKE_MAX_BLOCK];
    float x[TKE_MAX_BLOCK], unused;
    const tke_format *f = p->format;
    tke_matrix_row(&p->from, row, at, f->block, wide);
    for (int i = 0; i < f->block; i++) {
        x[i] = (float)wide[i];
        if (!isfinite(x[i]))
            atomic_store(&p->bad, true);
    }
    if (!f->pack(x, p->codes + index * f->block_bytes, p->factors ? p->factors + index : &unused))
        atomic_store(&p->bad, true);
}

static void pack_rows(void *arg, int64_t task, int32_t worker)
{
    packing *p = arg;
    int64_t each = p->from.ld / p->format->block;
    (void)worker;
    for (int64_t row = task * ROWS; row < p->rows && row < (task + 1) * ROWS; row++)
        for (int64_t i = 0; i < each; i++)
            pack_block(p, row, i * p->format->block, row * each + i);
}

typedef struct packer {
    tke_model *model;
    const tke_format *format;
    tke_threads *threads;
    tkc_arena *arena;
    tinkc_error *err;
} packer;

static void pack_matrix(packer *k, tke_matrix *m, size_t out, const char *path)
{
    const tke_format *f = k->format;
    if (tkc_failed(k->err) || !m->data || tke_is_packed(m->dtype) || m->ld % f->block)
        return;
    size_t count = out * (size_t)m->ld, before = count * tke_dtype_size(m->dtype);
    size_t after = tke_format_bytes(f, count);
    packing p = { .from = *m, .format = f, .rows = (int64_t)out };
    p.codes = tkc_arena_alloc(k->arena, after, k->err);
    if (f == &tke_format_nf4) {
        p.factors = tkc_arena_array(k->arena, count / (size_t)f->block, sizeof *p.factors, k->err);
        after += count / (size_t)f->block * sizeof *p.factors;
    }
    if (tkc_failed(k->err))
        return;
    tke_threads_run(k->threads, (p.rows + ROWS - 1) / ROWS, pack_rows, &p);
    if (atomic_load(&p.bad))
        tkc_fail(k->err, TINKC_E_MODEL, "%s: '%s' has numbers that %s cannot hold",
                 k->model->folder, path, f->name);
    *m = (tke_matrix){
        .data = p.codes, .ld = m->ld, .dtype = tke_format_dtype(f), .factors = p.factors
    };
    k->model->n_bytes += after;
    k->model->n_bytes -= before;
}

/* The experts' matrices; transposed ones stay as they are. */
static void pack_stack(packer *k, const tke_stack *s, size_t n, const char *path)
{
    tke_matrix *list = (tke_matrix *)(uintptr_t)s->m; /* still being built */
    for (size_t e = 0; list && !s->transposed && e < n; e++)
        pack_matrix(k, &list[e], s->out, path);
}

static void pack_layer(packer *k, tke_layer *l)
{
    const tke_experts *x = l->experts;
    for (size_t i = 0; i < l->n_groups; i++)
        for (size_t w = 0; w < l->groups[i].n; w++)
            pack_matrix(k, &l->groups[i].w[w].m, l->groups[i].w[w].out, l->groups[i].w[w].path);
    if (!x)
        return;
    pack_stack(k, &x->gate, x->n, "mlp.experts");
    pack_stack(k, &x->up, x->n, "mlp.experts");
    pack_stack(k, &x->out, x->n, "mlp.experts");
}

bool tke_model_pack(tke_model *m, int32_t bits, tkc_arena *arena, tinkc_error *err)
{
    packer k = { .model = m, .arena = arena, .err = err };
    k.format = bits == 4 ? &tke_format_nf4 : &tke_format_q8_0;
    k.threads = tke_threads_new(0, err);
    for (size_t i = 0; k.threads && i < m->config.n_layers && !tkc_failed(err); i++)
        pack_layer(&k, &m->layers[i]);
    tke_threads_free(k.threads);
    return !tkc_failed(err);
}
