/* model_pack.c - packs the matrices of layers while a model is opened: NF4 for 4 bits, Q8_0 for 8.
 *
 * Embedding, head and routers stay as they are, as do matrices whose rows are not whole blocks. The
 * packed model is the base then: what trains and what samples on it see the same numbers. Packed matrices are
 * mapped from the user's cache (pack_cache.c); where that cannot be, they lie in the model's arena.
 */
#include "model/model_pack.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include "math/format.h"
#include "model/pack_cache.h"

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

typedef struct squares {
    tke_matrix from;
    int64_t rows;
    uint8_t *codes;
    float *factors;
    atomic_bool bad;
} squares;

static void pack_band(void *arg, int64_t band, int32_t worker)
{
    squares *s = arg;
    (void)worker;
    if (!tke_fp8_pack(&s->from, s->rows, band, s->codes, s->factors))
        atomic_store(&s->bad, true);
}

static bool report_bad(const tke_packer *k, const tke_pack_item *item, bool bad)
{
    return !bad || tkc_fail(k->err, TINKC_E_MODEL, "%s: '%s' has numbers that %s cannot hold",
                            k->what, item->path, k->format->name);
}

bool tke_pack_matrix(const tke_packer *k, const tke_pack_item *item, uint8_t *codes, float *factors)
{
    packing p = { .from = *item->m,
                  .format = k->format,
                  .rows = (int64_t)item->rows,
                  .codes = codes,
                  .factors = factors };
    tke_threads_run(k->threads, (p.rows + ROWS - 1) / ROWS, pack_rows, &p);
    return report_bad(k, item, atomic_load(&p.bad));
}

bool tke_pack_squares(const tke_packer *k, const tke_pack_item *item, uint8_t *codes,
                      float *factors)
{
    squares s = {
        .from = *item->m, .rows = (int64_t)item->rows, .codes = codes, .factors = factors
    };
    tke_threads_run(k->threads, (s.rows + TKE_FP8_SIDE - 1) / TKE_FP8_SIDE, pack_band, &s);
    return report_bad(k, item, atomic_load(&s.bad));
}

/* ---- which matrices ---- */

static void add(tke_packer *k, tke_matrix *m, size_t rows, const char *path)
{
    if (m->data && tke_is_packed(m->dtype))
        tkc_fail(k->err, TINKC_E_UNSUPPORTED, "%s: its weights are packed already (%s)", k->what,
                 tke_format_of(m->dtype)->name);
    if (tkc_failed(k->err) || !m->data || m->ld % k->format->block)
        return;
    tke_pack_item *grown =
        tkc_grow(NULL, k->items, &k->cap, k->n + 1, sizeof *grown, k->err);
    if (!grown)
        return;
    k->items = grown;
    size_t numbers = rows * (size_t)m->ld;
    k->items[k->n++] = (tke_pack_item){
        .m = m, .rows = rows, .path = path, .bytes = tke_format_bytes(k->format, numbers),
        .n_factors = k->format == &tke_format_nf4 ? numbers / (size_t)k->format->block : 0
    };
}

/* The experts' matrices; transposed ones stay as they are. */
static void add_stack(tke_packer *k, const tke_stack *s, size_t n)
{
    tke_matrix *list = (tke_matrix *)(uintptr_t)s->m; /* still being built */
    for (size_t e = 0; list && !s->transposed && e < n; e++)
        add(k, &list[e], s->out, "mlp.experts");
}

static void add_layer(tke_packer *k, tke_layer *l)
{
    const tke_experts *x = l->experts;
    for (size_t i = 0; i < l->n_groups; i++)
        for (size_t w = 0; w < l->groups[i].n; w++)
            add(k, &l->groups[i].w[w].m, l->groups[i].w[w].out, l->groups[i].w[w].path);
    if (!x)
        return;
    add_stack(k, &x->gate, x->n);
    add_stack(k, &x->up, x->n);
    add_stack(k, &x->out, x->n);
}

bool tke_packer_open(tke_packer *k, tke_model *m, const tke_format *format, tinkc_error *err)
{
    *k = (tke_packer){ .what = m->folder, .format = format, .err = err };
    k->threads = tke_threads_new(0, err);
    for (size_t i = 0; k->threads && i < m->config.n_layers && !tkc_failed(err); i++)
        add_layer(k, &m->layers[i]);
    if (!tkc_failed(err) && !k->n)
        tkc_fail(err, TINKC_E_UNSUPPORTED,
                 "%s: no matrix has rows of whole blocks of %d numbers, which %s needs", m->folder,
                 (int)k->format->block, k->format->name);
    return !tkc_failed(err);
}

void tke_packer_close(tke_packer *k)
{
    tke_threads_free(k->threads);
    tkc_release(NULL, k->items, k->cap * sizeof *k->items);
    *k = (tke_packer){ 0 };
}

/* ---- a model in memory ---- */

void tke_pack_replace(tke_model *m, const tke_packer *k, const tke_pack_item *item,
                      const uint8_t *codes, const float *factors)
{
    size_t numbers = item->rows * (size_t)item->m->ld;
    size_t before = numbers * tke_dtype_size(item->m->dtype);
    size_t after = item->bytes + item->n_factors * sizeof *factors;
    assert(codes && (factors || !item->n_factors));
    *item->m = (tke_matrix){ .data = codes,
                             .ld = item->m->ld,
                             .dtype = tke_format_dtype(k->format),
                             .factors = factors };
    m->n_bytes = m->n_bytes - before + after;
}

static bool pack_in_memory(tke_model *m, const tke_packer *k, tkc_arena *arena)
{
    for (size_t i = 0; i < k->n; i++) {
        const tke_pack_item *item = &k->items[i];
        uint8_t *codes = tkc_arena_alloc(arena, item->bytes, k->err);
        float *factors = tkc_arena_array(arena, item->n_factors, sizeof *factors, k->err);
        if (tkc_failed(k->err) || !tke_pack_matrix(k, item, codes, factors))
            return false;
        tke_pack_replace(m, k, item, codes, item->n_factors ? factors : NULL);
    }
    return true;
}

bool tke_model_pack(tke_model *m, const tke_pack_options *o, tke_tensor_file *cache,
                    tkc_arena *arena, tinkc_error *err)
{
    tke_packer k;
    bool ok = tke_packer_open(&k, m, o->bits == 4 ? &tke_format_nf4 : &tke_format_q8_0, err);
    k.progress = o->progress;
    k.user = o->user;
    ok = ok && (tke_pack_cached(m, &k, cache) || (!tkc_failed(err) && pack_in_memory(m, &k, arena)));
    tke_packer_close(&k);
    return ok;
}
