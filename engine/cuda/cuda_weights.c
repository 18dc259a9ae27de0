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
#include "math/format.h"

enum { STAGE_ELEMENTS = 8 << 20, ALIGN = 256 };

/* ---- what runs here ---- */

static bool runs_attention(const tke_layer *l, const tke_config *c)
{
    return l->attn && !l->attn->gate && c->rotary == c->head_dim;
}

/* All layers with experts must have the same sizes. */
static bool runs_experts(const tke_model *m, const tke_experts *x)
{
    for (size_t i = 0; i < m->config.n_layers; i++) {
        const tke_experts *other = m->layers[i].experts;
        if (other && (other->n != x->n || other->top != x->top || other->inner != x->inner ||
                      other->route != x->route || other->limit != x->limit))
            return false;
    }
    if (x->gate.bias && !x->paired) /* gpt-oss of a GGUF file */
        return false;
    return !x->shared && !x->squared && x->route != TKE_ROUTE_SIGMOID &&
           x->gate_up->n == 2 && x->n <= TCU_MAX_EXPERTS &&
           x->top <= TCU_MAX_TOP;
}

/* The first layer that is not attention with a feed-forward that runs here; n_layers = all are. */
static size_t foreign_layer(const tke_model *m)
{
    for (size_t i = 0; i < m->config.n_layers; i++) {
        const tke_layer *l = &m->layers[i];
        bool feed = l->dense ? l->dense->gate_up->n == 2 && !l->dense->squared : l->experts && runs_experts(m, l->experts);
        if (!runs_attention(l, &m->config) || !feed || l->n_groups != TCU_GROUPS)
            return i;
    }
    return m->config.n_layers;
}

/* The first layer with experts; NULL = none has. */
static const tke_experts *first_experts(const tke_model *m)
{
    for (size_t i = 0; i < m->config.n_layers; i++)
        if (m->layers[i].experts)
            return m->layers[i].experts;
    return NULL;
}

static bool any_dense(const tke_model *m)
{
    for (size_t i = 0; i < m->config.n_layers; i++)
        if (m->layers[i].dense)
            return true;
    return false;
}

static size_t round_up(size_t n, size_t step)
{
    return (n + step - 1) / step * step;
}

static bool is_packed(const tke_stack *s)
{
    return s->m[0].dtype == TKE_MXFP4;
}

static tcu_experts_size experts_size(const tke_model *m)
{
    const tke_experts *x = first_experts(m);
    if (!x)
        return (tcu_experts_size){ 0 };
    size_t width = round_up(x->inner, 8);
    return (tcu_experts_size){ .n = (int32_t)x->n,
                               .padded = (int32_t)round_up(x->n, 16),
                               .top = (int32_t)x->top,
                               .width = (int32_t)width,
                               .all = x->route == TKE_ROUTE_ALL,
                               .limit = (float)x->limit,
                               .alpha = (float)x->alpha,
                               .unpacked = is_packed(&x->gate) ? x->n * 2 * width * m->config.hidden
                                                               : 0 };
}

static bool supported(const tke_model *m, tinkc_error *err)
{
    const tke_config *c = &m->config;
    size_t foreign = foreign_layer(m);
    if (foreign < c->n_layers)
        return tkc_fail(err, TINKC_E_UNSUPPORTED,
                        "cuda: %s models run on the CPU only: layer %zu has a part that does not run "
                        "on a card",
                        c->arch, foreign);
    size_t group = c->n_heads / c->n_kv_heads;
    if (c->head_dim % 8 || c->head_dim > TCU_MAX_HEAD_DIM || group > TCU_MAX_HEAD_GROUP)
        return tkc_fail(
            err, TINKC_E_UNSUPPORTED,
            "cuda: heads of %zu numbers, %zu to a key head, are not supported (up to %d, %d)",
            c->head_dim, group, TCU_MAX_HEAD_DIM, TCU_MAX_HEAD_GROUP);
    if (c->hidden % 8 || (c->inner % 8 && any_dense(m)) || c->hidden > 8192)
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

static void place_stack(walk *w, const tke_experts *x, const tke_stack *from, size_t out, size_t in,
                        tcu_stack *to)
{
    size_t count = x->n * out * in;
    bool packed = is_packed(from);
    *to = (tcu_stack){ .out = (int32_t)out, .in = (int32_t)in };
    to->w = packed ? NULL : take_matrix(w, count);
    to->blocks = packed ? take(w, count / 2) : NULL;
    to->scales = packed ? take(w, count / TKE_MXFP4_BLOCK) : NULL;
    to->bias = take_vector(w, x->n * out, from->bias != NULL);
}

static void place_experts(walk *w, const tke_experts *x, size_t hidden, tcu_experts *to)
{
    size_t width = round_up(x->inner, 8), padded = round_up(x->n, 16);
    to->router = take_matrix(w, padded * hidden);
    to->router_bias = take_vector(w, padded, x->router.bias != NULL);
    place_stack(w, x, &x->gate, 2 * width, hidden, &to->in);
    place_stack(w, x, &x->out, hidden, width, &to->out);
}

static void place_dense(walk *w, const tke_dense *x, const tke_config *c, tcu_layer *l)
{
    l->gu = take_matrix(w, 2 * c->inner * c->hidden);
    l->down = take_matrix(w, c->hidden * c->inner);
    l->bias_gu = take_vector(w, 2 * c->inner, x->gate_up->w[0].bias != NULL);
    l->bias_down = take_vector(w, c->hidden, x->down->w[0].bias != NULL);
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
        l->mixer = from->mixer;
        l->qkv = take_matrix(w, (q + 2 * k) * h);
        l->o = take_matrix(w, h * q);
        l->sparse = from->experts != NULL;
        if (l->sparse)
            place_experts(w, from->experts, h, &l->experts);
        else
            place_dense(w, from->dense, c, l);
        l->bias_qkv = take_vector(w, q + 2 * k, from->attn->qkv->w[0].bias != NULL);
        l->bias_o = take_vector(w, h, from->attn->o->w[0].bias != NULL);
        l->sinks = take_vector(w, c->n_heads, from->attn->sinks != NULL);
        l->norm_in = take_vector(w, h, true);
        l->norm_post = take_vector(w, h, true);
        l->q_norm = take_vector(w, c->head_dim, from->attn->q_norm != NULL);
        l->k_norm = take_vector(w, c->head_dim, from->attn->k_norm != NULL);
        l->window = (int32_t)from->attn->window;
        l->group[TCU_QKV] = (int32_t)from->attn->qkv->index;
        l->group[TCU_O] = (int32_t)from->attn->o->index;
        l->group[TCU_GATE_UP] =
            (int32_t)(l->sparse ? from->experts->gate_up : from->dense->gate_up)->index;
        l->group[TCU_DOWN] = (int32_t)(l->sparse ? from->experts->down : from->dense->down)->index;
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

/* The card holds what a packed weight stands for. Pieces begin and end at a row or at a block. */
static void unpack_numbers(const tke_weight *w, size_t first, size_t n, tcu_bf16 *to)
{
    tke_unpack *unpack = tke_format_of(w->m.dtype)->unpack[TKE_UNPACK_REF];
    for (size_t i = 0, len; i < n; i += len) {
        size_t column = (first + i) % w->in;
        len = w->in - column < n - i ? w->in - column : n - i;
        unpack(&w->m, (int64_t)((first + i) / w->in), (int64_t)column, (int64_t)len, to + i);
    }
}

static void narrow_numbers(const tke_weight *w, size_t first, size_t n, tcu_bf16 *to)
{
    if (tke_is_packed(w->m.dtype)) {
        unpack_numbers(w, first, n, to);
        return;
    }
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

/* ---- experts ---- */

/* Row `row` of a stored matrix, or its column where it is transposed. */
static void narrow_row(const tke_matrix *m, bool transposed, size_t row, size_t n, tcu_bf16 *to)
{
    int64_t first = transposed ? (int64_t)row : (int64_t)row * m->ld, step = transposed ? m->ld : 1;
    if (m->dtype == TKE_BF16 && !transposed) {
        memcpy(to, (const uint16_t *)m->data + first, n * sizeof *to);
        return;
    }
    for (size_t i = 0; i < n; i++)
        to[i] = tke_f32_to_bf16(tke_load(m->dtype, m->data, first + (int64_t)i * step));
}

/* The next of the two buffers, when its last copy is done. */
static tcu_bf16 *next_stage(loader *l)
{
    int i = l->turn;
    l->turn ^= 1;
    return tcu_ok(l->d, cudaEventSynchronize(l->done[i]), "loading weights", l->err) ? l->stage[i]
                                                                                     : NULL;
}

static bool send_stage(loader *l, void *to, const tcu_bf16 *stage, size_t bytes)
{
    return tcu_upload(l->d, to, stage, bytes, l->err) &&
           tcu_ok(l->d, cudaEventRecord(l->done[stage == l->stage[1]], l->d->stream),
                  "loading weights", l->err);
}

typedef struct rows_of { /* rows first, first + step, ... of an expert's matrix */
    const tke_stack *s;
    size_t expert, first, step, n;
} rows_of;

/* n rows into `padded` rows of `width` numbers; the rest is zero. */
static bool load_rows(loader *l, const rows_of *r, size_t padded, size_t width, tcu_bf16 *to)
{
    size_t piece = STAGE_ELEMENTS / width, in = r->s->in;
    for (size_t at = 0; at < padded; at += piece) {
        size_t n = padded - at < piece ? padded - at : piece;
        tcu_bf16 *stage = next_stage(l);
        if (!stage)
            return false;
        memset(stage, 0, n * width * sizeof *stage);
        for (size_t i = 0; i < n && at + i < r->n; i++)
            narrow_row(&r->s->m[r->expert], r->s->transposed, r->first + (at + i) * r->step, in,
                       stage + i * width);
        if (!send_stage(l, to + at * width, stage, n * width * sizeof *stage))
            return false;
    }
    return true;
}

/* Rows of packed numbers as they are: in / 2 bytes of blocks, or in / 32 scales. */
static bool load_bytes(loader *l, const rows_of *r, const uint8_t *from, size_t row_bytes,
                       uint8_t *to)
{
    size_t piece = STAGE_ELEMENTS * sizeof(tcu_bf16) / row_bytes;
    for (size_t at = 0; at < r->n; at += piece) {
        size_t n = r->n - at < piece ? r->n - at : piece;
        tcu_bf16 *stage = next_stage(l);
        if (!stage)
            return false;
        for (size_t i = 0; i < n; i++)
            memcpy((uint8_t *)stage + i * row_bytes,
                   from + (r->first + (at + i) * r->step) * row_bytes, row_bytes);
        if (!send_stage(l, to + at * row_bytes, stage, n * row_bytes))
            return false;
    }
    return true;
}

/* Rows of an expert to rows row .. of its part of a stack on the card. */
static bool load_part(loader *l, const rows_of *r, size_t row, size_t padded, const tcu_stack *to)
{
    const tke_matrix *m = &r->s->m[r->expert];
    size_t width = (size_t)to->in, at = (r->expert * (size_t)to->out + row) * width;
    if (to->w)
        return load_rows(l, r, padded, width, to->w + at);
    return load_bytes(l, r, m->data, width / 2, to->blocks + at / 2) &&
           load_bytes(l, r, m->scales, width / TKE_MXFP4_BLOCK, to->scales + at / TKE_MXFP4_BLOCK);
}

/* Biases [n, out] in the order of the rows on the card: with `paired` gates at even places, ups at odd ones. */
static bool load_biases(loader *l, const tke_experts *x, const tke_stack *s, bool paired,
                        const tcu_stack *to)
{
    size_t out = (size_t)to->out, bytes = x->n * out * sizeof(float);
    if (!s->bias)
        return true;
    float *all = tkc_zalloc(NULL, bytes, l->err);
    for (size_t i = 0; all && i < x->n * s->out; i++) {
        size_t e = i / s->out, j = i % s->out;
        all[e * out + (paired ? j % 2 * (out / 2) + j / 2 : j)] = s->bias[i];
    }
    bool ok = all && tcu_upload(l->d, to->bias, all, bytes, l->err) && tcu_wait(l->d, l->err);
    tkc_release(NULL, all, bytes);
    return ok;
}

static bool load_router(loader *l, const tke_experts *x, const tcu_experts *to)
{
    const tke_stack router = { .m = &x->router.m, .out = x->n, .in = x->router.in };
    const rows_of rows = { .s = &router, .step = 1, .n = x->n };
    return load_rows(l, &rows, round_up(x->n, 16), x->router.in, to->router) &&
           load_vector(l, x->router.bias, x->n, to->router_bias);
}

static bool load_experts(loader *l, const tke_experts *x, const tcu_experts *to)
{
    size_t width = (size_t)to->out.in, step = x->paired ? 2 : 1;
    if (!load_router(l, x, to))
        return false;
    for (size_t e = 0; e < x->n; e++) {
        const rows_of gate = { &x->gate, e, 0, step, x->inner };
        const rows_of up = { x->paired ? &x->gate : &x->up, e, x->paired, step, x->inner };
        const rows_of out = { &x->out, e, 0, 1, x->out.out };
        if (!load_part(l, &gate, 0, width, &to->in) || !load_part(l, &up, width, width, &to->in) ||
            !load_part(l, &out, 0, x->out.out, &to->out))
            return false;
    }
    return load_biases(l, x, &x->gate, x->paired, &to->in) &&
           load_biases(l, x, &x->out, false, &to->out);
}

static bool load_feed(loader *l, const tke_layer *from, tcu_layer *to)
{
    if (from->experts)
        return load_experts(l, from->experts, &to->experts);
    return load_group(l, from->dense->gate_up, to->gu, to->bias_gu) &&
           load_group(l, from->dense->down, to->down, to->bias_down);
}

static bool load_layer(loader *l, const tke_config *c, const tke_layer *from, tcu_layer *to)
{
    return load_group(l, from->attn->qkv, to->qkv, to->bias_qkv) &&
           load_group(l, from->attn->o, to->o, to->bias_o) &&
           load_feed(l, from, to) &&
           load_vector(l, from->attn->sinks, c->n_heads, to->sinks) &&
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
    m->experts = experts_size(s);
    m->dense = any_dense(s);
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
