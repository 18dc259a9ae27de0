/* cuda_block.c - an adapter's numbers on the card: fp32 blocks, their bf16 operands, sums and AdamW.
 *
 * May touch: blocks it is given. Must not: decide which of them are on the card (device/residence.h); on the host they
 * are only kept while they wait there. Operands pad the rank to 16, so that every product runs in
 * whole steps; the padding is zero and adds nothing.
 */
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "cuda/cuda_state.h"

enum { RANK_STEP = 16 };

int32_t tcu_padded_rank(size_t rank)
{
    return (int32_t)((rank + RANK_STEP - 1) / RANK_STEP * RANK_STEP);
}

static int64_t place_group(const tke_lora_group *from, const tcu_sides *sides, int32_t padded,
                           int64_t at, tcu_group *to)
{
    to->n = (int32_t)from->n;
    to->n_a = from->n && from->of->shared == TKE_SHARED_B ? (int32_t)from->n_a : 1;
    to->n_b = from->n && from->of->shared == TKE_SHARED_A ? (int32_t)from->n_b : 1;
    if (!from->n)
        return at;
    to->side_in = sides->in;
    to->in = tcu_side_width(sides->in, from->in);
    to->a = at;
    to->master_a = (int64_t)from->a;
    at += (int64_t)to->n_a * to->n * padded * to->in;
    for (size_t i = 0; i < from->n; i++) {
        to->b[i] = at;
        to->side_out[i] = sides->out[i];
        to->out[i] = tcu_side_width(sides->out[i], from->out[i]);
        to->master_b[i] = (int64_t)from->b[i];
        at += (int64_t)to->n_b * to->out[i] * padded;
    }
    return at;
}

static bool make_groups(tcu_block *b, const tke_lora_layout *l, const tcu_model *m,
                        tinkc_error *err)
{
    size_t bytes = l->n_groups * sizeof(tcu_group);
    int64_t at = 0;
    tcu_group *host = tkc_zalloc(NULL, bytes, err);
    b->rank = (int32_t)l->rank;
    b->padded = tcu_padded_rank(l->rank);
    b->n_groups = (int32_t)l->n_groups;
    for (size_t i = 0; host && i < l->n_groups; i++)
        at = place_group(&l->groups[i], &m->sides[i], b->padded, at, &host[i]);
    b->n_operands = (size_t)at;
    b->has_head = host && host[l->n_groups - 1].n > 0;
    b->groups = host ? tcu_take(b->device, bytes, TCU_FOR_ADAPTERS, err) : NULL;
    bool ok =
        b->groups && tcu_upload(b->device, b->groups, host, bytes, err) && tcu_wait(b->device, err);
    tkc_release(NULL, host, bytes);
    return ok;
}

static size_t bytes_of(const tcu_block *b)
{
    return b->n * sizeof *b->data;
}

static bool clear(tcu_block *b, tinkc_error *err)
{
    return tcu_ok(b->device, cudaMemsetAsync(b->data, 0, bytes_of(b), b->device->stream),
                  "clearing", err) &&
           tcu_wait(b->device, err);
}

tcu_block *tcu_block_new(tcu_device *d, size_t n, tinkc_error *err)
{
    if (tkc_failed(err))
        return NULL;
    tcu_block *b = tkc_zalloc(NULL, sizeof *b, err);
    if (!b)
        return NULL;
    b->device = d;
    b->n = n;
    tke_residence_turn(&d->residence);
    b->data = tcu_take(d, bytes_of(b), TCU_FOR_ADAPTERS, err);
    tke_residence_add(&d->residence, &b->place, bytes_of(b));
    if (b->data && clear(b, err))
        return b;
    tcu_block_free(b);
    return NULL;
}

static size_t map_bytes(const tcu_block *b)
{
    return (size_t)b->n_groups * TCU_MAP_BYTES;
}

/* Frees what is on the card. */
static void clear_out(tcu_block *b)
{
    tcu_give(b->device, b->data, bytes_of(b), TCU_FOR_ADAPTERS);
    tcu_give(b->device, b->groups, (size_t)b->n_groups * sizeof *b->groups, TCU_FOR_ADAPTERS);
    tcu_give(b->device, b->operands, b->n_operands * sizeof *b->operands, TCU_FOR_ADAPTERS);
    tcu_give(b->device, b->maps, map_bytes(b), TCU_FOR_ADAPTERS);
    b->maps = NULL;
    b->data = NULL;
    b->groups = NULL;
    b->operands = NULL;
    b->fresh = false;
}

void tcu_block_free(tcu_block *b)
{
    if (!b)
        return;
    tke_residence_remove(&b->device->residence, &b->place);
    clear_out(b);
    tkc_release(NULL, b->host, bytes_of(b));
    tkc_release(NULL, b, sizeof *b);
}

/* ---- between card and host ---- */

/* What changed the block was waited for. The operands are rounded again when it comes back: the same bits. */
bool tcu_block_leave(tke_resident *r, tinkc_error *err)
{
    tcu_block *b = (tcu_block *)r;
    float *host = tkc_alloc(NULL, bytes_of(b), err);
    if (!host || !tcu_fetch(b->device, host, b->data, bytes_of(b), err)) {
        tkc_release(NULL, host, bytes_of(b));
        return false;
    }
    clear_out(b);
    b->host = host;
    return true;
}

bool tcu_block_come(tke_resident *r, tinkc_error *err)
{
    tcu_block *b = (tcu_block *)r;
    tcu_device *d = b->device;
    float *host = b->host, *data = tcu_take(d, bytes_of(b), TCU_FOR_ADAPTERS, err);
    if (!data || !tcu_upload(d, data, host, bytes_of(b), err) || !tcu_wait(d, err)) {
        tcu_give(d, data, bytes_of(b), TCU_FOR_ADAPTERS);
        return false;
    }
    tke_residence_lock(&d->residence); /* another thread may be reading the host's copy */
    b->data = data;
    b->host = NULL;
    tke_residence_unlock(&d->residence);
    tkc_release(NULL, host, bytes_of(b));
    return true;
}

bool tcu_block_use(const tcu_block *b, tinkc_error *err)
{
    tcu_block *mine = (tcu_block *)(uintptr_t)b;
    return tke_residence_use(&b->device->residence, &mine->place, err);
}

/* ---- numbers ---- */

/* Begins a call that uses these blocks (second may be NULL). */
static bool begin(const tcu_block *first, const tcu_block *second, tinkc_error *err)
{
    tke_residence_turn(&first->device->residence);
    return tcu_block_use(first, err) && (!second || tcu_block_use(second, err));
}

bool tcu_block_zero(tcu_block *b, tinkc_error *err)
{
    b->fresh = false;
    return begin(b, NULL, err) && clear(b, err);
}

bool tcu_block_copy(tcu_block *to, const tcu_block *from, tinkc_error *err)
{
    to->fresh = false;
    return begin(to, from, err) &&
           tcu_ok(to->device,
                  cudaMemcpyAsync(to->data, from->data, to->n * sizeof *to->data,
                                  cudaMemcpyDeviceToDevice, to->device->stream),
                  "copying an adapter", err) &&
           tcu_wait(to->device, err); /* another thread may read it next */
}

bool tcu_block_write(tcu_block *b, const float *from, tinkc_error *err)
{
    b->fresh = false;
    return begin(b, NULL, err) && tcu_upload(b->device, b->data, from, bytes_of(b), err) &&
           tcu_wait(b->device, err);
}

/* On any thread, wherever the numbers are. */
bool tcu_block_read(const tcu_block *b, float *to, tinkc_error *err)
{
    bool ok = true;
    tke_residence_lock(&b->device->residence);
    if (b->host)
        memcpy(to, b->host, bytes_of(b));
    else
        ok = tcu_fetch(b->device, to, b->data, bytes_of(b), err);
    tke_residence_unlock(&b->device->residence);
    return ok;
}

bool tcu_block_ready(tcu_block *b, const tke_lora_layout *layout, const tcu_model *m,
                     tinkc_error *err)
{
    tcu_device *d = b->device;
    if (!tcu_block_use(b, err) || (!b->groups && !make_groups(b, layout, m, err)))
        return false;
    if (!b->operands)
        b->operands = tcu_take(d, b->n_operands * sizeof *b->operands, TCU_FOR_ADAPTERS, err);
    if (!b->operands)
        return false;
    if (!b->fresh)
        b->fresh = tcu_ok(d,
                          tcu_operands(b->data, b->groups, b->n_groups, b->rank, b->padded,
                                       b->operands, d->stream),
                          "rounding an adapter", err);
    return b->fresh;
}

/* ---- maps, for steps in one launch ---- */

/* The groups that have a part, as in tcu_block; false if layers differ. */
static bool find_adapted(const tke_lora_layout *l, const tcu_model *m, uint32_t *adapted)
{
    *adapted = (uint32_t)(l->groups[m->head.group].n > 0) << TCU_DECODE_GROUPS;
    for (size_t i = 0; i < m->config.n_layers; i++) {
        const tcu_linear *list[TCU_DECODE_GROUPS];
        tcu_decode_groups(&m->layers[i], list);
        for (size_t of = 0; of < TCU_DECODE_GROUPS; of++) {
            uint32_t has = l->groups[list[of]->group].n > 0;
            if (i && has != (*adapted >> of & 1))
                return false;
            *adapted |= has << of;
        }
    }
    return true;
}

/* The groups' places follow each other as in make_groups. */
static bool fill_maps(const tcu_block *b, const tke_lora_layout *l, const tcu_model *m,
                      unsigned char *maps, tinkc_error *err)
{
    int64_t at = 0;
    for (size_t i = 0; i < l->n_groups; i++) {
        tcu_group g = { 0 };
        at = place_group(&l->groups[i], &m->sides[i], b->padded, at, &g);
        if (g.n && !tcu_ok(b->device,
                           tcu_decode_map(maps + i * TCU_MAP_BYTES, b->operands + g.a,
                                          (int64_t)g.n * b->padded, g.in),
                           "a map of an adapter", err))
            return false;
    }
    return true;
}

bool tcu_block_maps(tcu_block *b, const tke_lora_layout *l, const tcu_model *m, tinkc_error *err)
{
    size_t bytes = map_bytes(b);
    if (b->maps)
        return true;
    if (!find_adapted(l, m, &b->adapted))
        return false;
    unsigned char *host = tkc_zalloc(NULL, bytes, err),
                  *card = host && fill_maps(b, l, m, host, err)
                              ? tcu_take(b->device, bytes, TCU_FOR_ADAPTERS, err)
                              : NULL;
    bool ok = card && tcu_upload(b->device, card, host, bytes, err) && tcu_wait(b->device, err);
    tkc_release(NULL, host, bytes);
    if (ok)
        b->maps = card;
    else
        tcu_give(b->device, card, bytes, TCU_FOR_ADAPTERS);
    return ok;
}

/* ---- sums ---- */

static size_t parts_of(size_t n)
{
    return (n + TCU_SUM_BLOCK - 1) / TCU_SUM_BLOCK;
}

static bool reserve_parts(tcu_device *d, size_t n, tinkc_error *err)
{
    if (n + 1 <= d->n_parts)
        return true;
    tcu_give(d, d->parts, d->n_parts * sizeof *d->parts, TCU_FOR_OTHER);
    d->n_parts = 0;
    d->parts = tcu_take(d, (n + 1) * sizeof *d->parts, TCU_FOR_OTHER, err);
    d->n_parts = d->parts ? n + 1 : 0;
    return d->parts != NULL;
}

static bool fetch_sum(tcu_device *d, size_t n, double *sum, tinkc_error *err)
{
    if (!tcu_ok(d, tcu_sum_parts(d->parts, (int64_t)n, d->parts + n, d->stream), "adding up",
                err) ||
        !tcu_download(d, d->sums, d->parts + n, sizeof *d->sums, err))
        return false;
    *sum = d->sums[0];
    return true;
}

bool tcu_block_squares(const tcu_block *b, double *sum, tinkc_error *err)
{
    tcu_device *d = b->device;
    size_t n = parts_of(b->n);
    return begin(b, NULL, err) && reserve_parts(d, n, err) &&
           tcu_ok(d, tcu_sum_squares(b->data, (int64_t)b->n, d->parts, d->stream), "adding up",
                  err) &&
           fetch_sum(d, n, sum, err);
}

static tcu_adam adam_numbers(const tke_adam *o)
{
    double bc1 = 1 - pow(o->beta1, (double)o->t), bc2 = 1 - pow(o->beta2, (double)o->t);
    return (tcu_adam){ .step = (float)(o->lr / bc1),
                       .decay = (float)(1 - o->lr * o->weight_decay),
                       .clip = (float)o->clip,
                       .one1 = (float)(1 - o->beta1),
                       .one2 = (float)(1 - o->beta2),
                       .beta2 = (float)o->beta2,
                       .root = (float)sqrt(bc2),
                       .eps = (float)o->eps };
}

bool tcu_block_adam(const tke_adam *o, const tcu_block *g, tcu_block *theta, tcu_block *m,
                    tcu_block *v, double *moved, tinkc_error *err)
{
    tcu_device *d = theta->device;
    tcu_adam a = adam_numbers(o);
    size_t n = parts_of(theta->n);
    if (!begin(g, theta, err) || !tcu_block_use(m, err) || !tcu_block_use(v, err) ||
        !reserve_parts(d, n, err))
        return false;
    for (int apply = 0; apply < 2;
         apply++) { /* the first pass only checks that the result is finite */
        if (!tcu_ok(d,
                    tcu_adam_step(&a, apply, g->data, theta->data, m->data, v->data,
                                  (int64_t)theta->n, d->parts, d->stream),
                    "the optimizer step", err) ||
            (!apply && !fetch_sum(d, n, moved, err)))
            return false;
        if (!apply && !isfinite(*moved)) {
            *moved = NAN;
            return true;
        }
    }
    theta->fresh = false;
    return tcu_wait(d, err);
}
