/* cuda_weights.c - a base model on the card: bf16 matrices, fp32 norms and biases, tables of the rotation.
 *
 * Weights are streamed through two pinned buffers; the host keeps no second copy. Matrices that read the same input
 * are stacked, so that one product serves q, k, v and one gate, up.
 *
 * May touch: the files' mapped bytes. Must not: reorder a weight's elements.
 */
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "cuda/cuda_state.h"

enum { STAGE_ELEMENTS = 8 << 20, ALIGN = 256 };

/* ---- what runs here ---- */

/* The first layer that is not attention with a dense feed-forward; n_layers = all are. */
static size_t foreign_layer(const tke_model *m)
{
    for (size_t i = 0; i < m->config.n_layers; i++) {
        const tke_layer *l = &m->layers[i];
        if (!l->attn || l->attn->gate || m->config.rotary != m->config.head_dim || !l->dense ||
            l->dense->gate_up->n != 2 || l->n_groups != TCU_GROUPS)
            return i;
    }
    return m->config.n_layers;
}

static bool supported(const tke_model *m, tinkc_error *err)
{
    const tke_config *c = &m->config;
    size_t foreign = foreign_layer(m);
    if (foreign < c->n_layers)
        return tkc_fail(err, TINKC_E_UNSUPPORTED,
                        "cuda: %s models run on the CPU only: layer %zu is not attention with a "
                        "dense feed-forward",
                        c->arch, foreign);
    size_t group = c->n_heads / c->n_kv_heads;
    if (c->head_dim % 8 || c->head_dim > TCU_MAX_HEAD_DIM || group > TCU_MAX_HEAD_GROUP)
        return tkc_fail(
            err, TINKC_E_UNSUPPORTED,
            "cuda: heads of %zu numbers, %zu to a key head, are not supported (up to %d, %d)",
            c->head_dim, group, TCU_MAX_HEAD_DIM, TCU_MAX_HEAD_GROUP);
    if (c->hidden % 8 || c->inner % 8 || c->hidden > 8192)
        return tkc_fail(err, TINKC_E_UNSUPPORTED,
                        "cuda: widths %zu and %zu are not supported (multiples of 8, up to 8192)",
                        c->hidden, c->inner);
    return true;
}

/* ---- places: one walk measures and places ---- */

typedef struct walk {
    unsigned char *at; /* NULL = only measure */
    size_t used;
} walk;

static void *take(walk *w, size_t bytes)
{
    void *p = w->at ? w->at + w->used : NULL;
    w->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

static tcu_bf16 *take_matrix(walk *w, size_t elements)
{
    return take(w, elements * sizeof(tcu_bf16));
}

static float *take_vector(walk *w, size_t n, bool there)
{
    return there ? take(w, n * sizeof(float)) : NULL;
}

static void place(walk *w, const tke_model *s, tcu_model *m)
{
    const tke_config *c = &s->config;
    size_t h = c->hidden, q = c->n_heads * c->head_dim, k = c->n_kv_heads * c->head_dim;
    m->embed = take_matrix(w, c->vocab * h);
    m->head = c->tied ? m->embed : take_matrix(w, c->vocab * h);
    m->norm = take_vector(w, h, true);
    m->head_group = (int32_t)s->head.index;
    for (size_t i = 0; i < c->n_layers; i++) {
        const tke_layer *from = &s->layers[i];
        tcu_layer skip, *l = m->layers ? &m->layers[i] : &skip;
        l->qkv = take_matrix(w, (q + 2 * k) * h);
        l->o = take_matrix(w, h * q);
        l->gu = take_matrix(w, 2 * c->inner * h);
        l->down = take_matrix(w, h * c->inner);
        l->bias_qkv = take_vector(w, q + 2 * k, from->attn->qkv->w[0].bias != NULL);
        l->bias_o = take_vector(w, h, from->attn->o->w[0].bias != NULL);
        l->bias_gu = take_vector(w, 2 * c->inner, from->dense->gate_up->w[0].bias != NULL);
        l->bias_down = take_vector(w, h, from->dense->down->w[0].bias != NULL);
        l->norm_in = take_vector(w, h, true);
        l->norm_post = take_vector(w, h, true);
        l->q_norm = take_vector(w, c->head_dim, from->attn->q_norm != NULL);
        l->k_norm = take_vector(w, c->head_dim, from->attn->k_norm != NULL);
        l->window = (int32_t)from->attn->window;
        l->group[TCU_QKV] = (int32_t)from->attn->qkv->index;
        l->group[TCU_O] = (int32_t)from->attn->o->index;
        l->group[TCU_GATE_UP] = (int32_t)from->dense->gate_up->index;
        l->group[TCU_DOWN] = (int32_t)from->dense->down->index;
    }
}

size_t tcu_model_bytes(const tke_model *s)
{
    walk w = { 0 };
    tcu_model unused = { 0 };
    if (foreign_layer(s) < s->config.n_layers)
        return 0; /* loading it will say so */
    place(&w, s, &unused);
    return w.used;
}

/* ---- streaming ---- */

typedef struct loader {
    tcu_device *d;
    tcu_bf16 *stage[2];
    cudaEvent_t done[2];
    int turn;
    tinkc_error *err;
} loader;

static void narrow_numbers(const tke_weight *w, size_t first, size_t n, tcu_bf16 *to)
{
    size_t size = tke_dtype_size(w->m.dtype);
    const char *from = (const char *)w->m.data + first * size;
    if (w->m.dtype == TKE_BF16) {
        memcpy(to, from, n * sizeof *to);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        float x = 0;
        if (w->m.dtype == TKE_F32) {
            memcpy(&x, from + i * 4, sizeof x);
        } else {
            uint16_t half;
            memcpy(&half, from + i * 2, sizeof half);
            x = tke_f16_to_f32(half);
        }
        to[i] = tke_f32_to_bf16(x);
    }
}

static bool load_matrix(loader *l, const tke_weight *w, tcu_bf16 *to)
{
    size_t count = w->out * w->in;
    for (size_t at = 0; at < count && !tkc_failed(l->err); at += STAGE_ELEMENTS) {
        size_t n = count - at < STAGE_ELEMENTS ? count - at : STAGE_ELEMENTS;
        int i = l->turn;
        l->turn ^= 1;
        if (!tcu_ok(l->d, cudaEventSynchronize(l->done[i]), "loading weights", l->err))
            return false;
        narrow_numbers(w, at, n, l->stage[i]);
        tcu_upload(l->d, to + at, l->stage[i], n * sizeof *to, l->err);
        tcu_ok(l->d, cudaEventRecord(l->done[i], l->d->stream), "loading weights", l->err);
    }
    return !tkc_failed(l->err);
}

static bool load_vector(loader *l, const float *from, size_t n, float *to)
{
    return !from ||
           tcu_ok(l->d,
                  cudaMemcpyAsync(to, from, n * sizeof *to, cudaMemcpyHostToDevice, l->d->stream),
                  "loading weights", l->err);
}

/* Loads the matrices of a group one after the other. */
static bool load_group(loader *l, const tke_group *g, tcu_bf16 *to, float *bias)
{
    const tke_weight *w = g->w;
    for (size_t i = 0; i < g->n; i++) {
        if (!load_matrix(l, &w[i], to) || (bias && !load_vector(l, w[i].bias, w[i].out, bias)))
            return false;
        to += w[i].out * w[i].in;
        bias = bias ? bias + w[i].out : NULL;
    }
    return true;
}

static bool load_layer(loader *l, const tke_config *c, const tke_layer *from, tcu_layer *to)
{
    return load_group(l, from->attn->qkv, to->qkv, to->bias_qkv) &&
           load_group(l, from->attn->o, to->o, to->bias_o) &&
           load_group(l, from->dense->gate_up, to->gu, to->bias_gu) &&
           load_group(l, from->dense->down, to->down, to->bias_down) &&
           load_vector(l, from->mixer_norm, c->hidden, to->norm_in) &&
           load_vector(l, from->feed_norm, c->hidden, to->norm_post) &&
           load_vector(l, from->attn->q_norm, c->head_dim, to->q_norm) &&
           load_vector(l, from->attn->k_norm, c->head_dim, to->k_norm);
}

static bool load_all(tcu_model *m, const tke_model *s, tinkc_error *err)
{
    tcu_device *d = m->device;
    loader l = { .d = d, .err = err };
    bool ok = true;
    for (int i = 0; i < 2 && ok; i++)
        ok = tcu_ok(d, cudaMallocHost((void **)&l.stage[i], STAGE_ELEMENTS * sizeof(tcu_bf16)),
                    "pinning memory", err) &&
             tcu_ok(d, cudaEventCreateWithFlags(&l.done[i], cudaEventDisableTiming),
                    "loading weights", err);
    ok = ok && load_matrix(&l, &s->embed, m->embed) &&
         (m->config.tied || load_matrix(&l, &s->head.w[0], m->head)) &&
         load_vector(&l, s->norm, m->config.hidden, m->norm);
    for (size_t i = 0; ok && i < m->config.n_layers; i++)
        ok = load_layer(&l, &m->config, &s->layers[i], &m->layers[i]);
    ok = tcu_wait(d, err) && ok;
    for (int i = 0; i < 2; i++) {
        cudaFreeHost(l.stage[i]);
        if (l.done[i])
            cudaEventDestroy(l.done[i]);
    }
    return ok;
}

/* ---- rotation ---- */

static bool make_rope(tcu_model *m, const tke_model *s, tinkc_error *err)
{
    size_t half = m->config.head_dim / 2, n = m->config.context, bytes = n * half * sizeof(float);
    float *table = tkc_alloc(NULL, 2 * bytes, err);
    m->n_positions = n;
    m->cosine = table ? tcu_take(m->device, 2 * bytes, TCU_FOR_WEIGHTS, err) : NULL;
    if (m->cosine) {
        m->sine = m->cosine + n * half;
        for (size_t p = 0; p < n; p++)
            for (size_t j = 0; j < half; j++) {
                double angle = (double)p * s->rope_frequency[j];
                table[p * half + j] = (float)(cos(angle) * s->rope_scale);
                table[(n + p) * half + j] = (float)(sin(angle) * s->rope_scale);
            }
        if (tcu_upload(m->device, m->cosine, table, 2 * bytes, err))
            tcu_wait(m->device, err);
    }
    tkc_release(NULL, table, 2 * bytes);
    return !tkc_failed(err);
}

/* ---- life ---- */

static bool fits(tcu_model *m, tinkc_error *err)
{
    size_t left = 0, total = 0, idle = tke_residence_idle(&m->device->residence);
    if (!tcu_memory(m->device, &left, &total) || m->bytes <= left + idle)
        return true;
    return tkc_fail(err, TINKC_E_MEMORY, "cuda: the model needs %zu MiB on the card, %zu are free",
                    m->bytes >> 20, left >> 20);
}

tcu_model *tcu_model_new(tcu_device *d, tke_model *s, tinkc_error *err)
{
    if (tkc_failed(err) || !supported(s, err))
        return NULL;
    tcu_model *m = tkc_zalloc(NULL, sizeof *m, err);
    if (!m)
        return NULL;
    const tke_config *c = &s->config;
    m->base = (tke_device_model){ &d->base, s };
    m->device = d;
    m->config = *c;
    m->hidden = (int32_t)c->hidden;
    m->inner = (int32_t)c->inner;
    m->vocab = (int32_t)c->vocab;
    m->q_width = (int32_t)(c->n_heads * c->head_dim);
    m->k_width = (int32_t)(c->n_kv_heads * c->head_dim);
    m->qkv_width = m->q_width + 2 * m->k_width;
    m->bytes = tcu_model_bytes(s);
    tke_residence_turn(&d->residence);
    m->layers = tkc_zalloc(NULL, c->n_layers * sizeof *m->layers, err);
    if (m->layers && fits(m, err))
        m->block = tcu_take(d, m->bytes, TCU_FOR_WEIGHTS, err);
    if (m->block) {
        walk w = { .at = m->block };
        place(&w, s, m);
    }
    if (m->block && load_all(m, s, err) && make_rope(m, s, err))
        return m;
    tcu_model_free(m);
    return NULL;
}

void tcu_model_free(tcu_model *m)
{
    if (!m)
        return;
    tcu_give(m->device, m->block, m->bytes, TCU_FOR_WEIGHTS);
    tcu_give(m->device, m->cosine, 2 * m->n_positions * (m->config.head_dim / 2) * sizeof(float),
             TCU_FOR_WEIGHTS);
    tkc_release(NULL, m->layers, m->config.n_layers * sizeof *m->layers);
    tkc_release(NULL, m, sizeof *m);
}
