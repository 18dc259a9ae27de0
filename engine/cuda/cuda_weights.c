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
#include "cuda/cuda_codes.h"
#include "cuda/cuda_part.h"
#include "math/format.h"

enum { STAGE_ELEMENTS = 8 << 20, ALIGN = 256, MAX_HIDDEN = 8192 };

/* ---- what runs here ---- */

static bool part_runs(const tcu_part *part, const tke_model *m, size_t i, tinkc_error *err)
{
    tinkc_error why = { 0 };
    if (part && part->runs(m, &m->layers[i], &why))
        return true;
    return tkc_fail(err, TINKC_E_UNSUPPORTED,
                    "cuda: %s models run on the CPU only: layer %zu has %s", m->config.arch, i,
                    part ? why.message : "a part that does not run on a card");
}

static bool supported(const tke_model *m, tinkc_error *err)
{
    const tke_config *c = &m->config;
    for (size_t i = 0; i < c->n_layers; i++) {
        const tke_layer *l = &m->layers[i];
        if ((l->mixer && !part_runs(tcu_mixer_part(l->mixer), m, i, err)) ||
            (l->feed && !part_runs(tcu_feed_part(l->feed), m, i, err)))
            return false;
    }
    return (c->hidden % 8 == 0 && c->hidden <= MAX_HIDDEN) ||
           tkc_fail(err, TINKC_E_UNSUPPORTED,
                    "cuda: a width of %zu is not supported (multiples of 8, up to %d)", c->hidden,
                    MAX_HIDDEN);
}

static size_t round_up(size_t n, size_t step)
{
    return (n + step - 1) / step * step;
}

tcu_side tcu_side_of(size_t n)
{
    return (tcu_side){ (int32_t)n, (int32_t)round_up(n, 8) };
}

/* ---- places ---- */

struct tcu_loader {
    tcu_device *d;
    unsigned char *at; /* NULL = only measures */
    size_t used;
    tcu_sides *sides; /* of all groups; NULL = only measures */
    tcu_bf16 *stage[2];
    cudaEvent_t done[2];
    unsigned char *raw[2]; /* on the card: packed rows as files have them */
    size_t unpacked;       /* numbers of the largest packed group */
    int turn;
    tinkc_error *err;
};
typedef struct tcu_loader loader;

static void *take(loader *l, size_t bytes)
{
    void *p = l->at ? l->at + l->used : NULL;
    l->used += round_up(bytes, ALIGN);
    return p;
}

static tcu_bf16 *take_matrix(loader *l, size_t elements)
{
    return take(l, elements * sizeof(tcu_bf16));
}

/* ---- streaming ---- */

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

static bool load_whole(loader *l, const tke_weight *w, tcu_bf16 *to)
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

/* A row with the zeros of its side. */
static void spread_row(tcu_side side, const tcu_bf16 *from, size_t n, tcu_bf16 *to)
{
    size_t run = (size_t)side.run, step = (size_t)side.step;
    for (size_t i = 0; i < n / run; i++)
        memcpy(to + i * step, from + i * run, run * sizeof *to);
}

/* A matrix whose sides have zeros, row by row. */
static bool load_spread(loader *l, const tke_weight *w, tcu_side out, tcu_side in, tcu_bf16 *to)
{
    size_t rows = (size_t)tcu_side_width(out, w->out), width = (size_t)tcu_side_width(in, w->in);
    size_t piece = STAGE_ELEMENTS / width;
    tcu_bf16 *row = tkc_alloc(NULL, w->in * sizeof *row, l->err), *stage = row;
    for (size_t at = 0; stage && at < rows && !tkc_failed(l->err); at += piece) {
        size_t n = rows - at < piece ? rows - at : piece;
        stage = next_stage(l);
        if (!stage)
            break;
        memset(stage, 0, n * width * sizeof *stage);
        for (size_t i = 0; i < n; i++) {
            int32_t from = tcu_side_place(out, (int32_t)(at + i));
            if (from < 0)
                continue;
            narrow_numbers(w, (size_t)from * w->in, w->in, row);
            spread_row(in, row, w->in, stage + i * width);
        }
        send_stage(l, to + at * width, stage, n * width * sizeof *stage);
    }
    tkc_release(NULL, row, w->in * sizeof *row);
    return !tkc_failed(l->err);
}

static bool load_matrix(loader *l, const tke_weight *w, tcu_side out, tcu_side in, tcu_bf16 *to)
{
    bool whole = out.run == out.step && in.run == in.step;
    return whole ? load_whole(l, w, to) : load_spread(l, w, out, in, to);
}

/* Numbers in runs; what lies between is zero already. */
static bool load_numbers(loader *l, const float *from, size_t n, tcu_side side, float *to)
{
    size_t run = side.run == side.step ? n : (size_t)side.run, step = (size_t)side.step;
    for (size_t i = 0; from && i * run < n && !tkc_failed(l->err); i++)
        tcu_ok(l->d,
               cudaMemcpyAsync(to + i * step, from + i * run, run * sizeof *to,
                               cudaMemcpyHostToDevice, l->d->stream),
               "loading weights", l->err);
    return !tkc_failed(l->err);
}

void tcu_load_vector(loader *l, const float *from, size_t n, size_t room, float **to)
{
    *to = from ? take(l, room * sizeof **to) : NULL;
    if (l->at)
        load_numbers(l, from, n, (tcu_side){ (int32_t)n, (int32_t)n }, *to);
}

/* What a group is on the card, without its numbers. */
static tcu_sides describe_group(loader *l, const tke_group *g, const tcu_side *in, const tcu_side *out,
                           tcu_linear *to)
{
    tcu_sides own = { .in = in ? *in : tcu_side_of(g->w[0].in) };
    *to = (tcu_linear){ .group = (int32_t)g->index,
                        .adapted = g->train != 0,
                        .n = (int32_t)g->n,
                        .in = tcu_side_width(own.in, g->w[0].in) };
    for (size_t i = 0; i < g->n; i++) {
        own.out[i] = out ? out[i] : tcu_side_of(g->w[i].out);
        to->out[i] = tcu_side_width(own.out[i], g->w[i].out);
        to->rows += to->out[i];
    }
    if (l->sides)
        l->sides[g->index] = own;
    return own;
}

/* ---- packed matrices ---- */

/* TCU_NOT_PACKED where sides have zeros: then the card holds what it stands for. */
static int32_t format_here(const tke_weight *w, tcu_side out, tcu_side in)
{
    bool plain = out.run == out.step && in.run == in.step && w->in % 32 == 0;
    return plain ? tcu_format_of(w->m.dtype) : TCU_NOT_PACKED;
}

/* Rows first .. first + n - 1 as the file has them, into the order of tiles. */
static bool load_tiles(loader *l, const tke_weight *w, size_t first, size_t n, const tcu_coded *to)
{
    size_t row = tke_format_bytes(tke_format_of(w->m.dtype), (size_t)w->m.ld), codes = n * row;
    tcu_apart apart = tcu_factors_apart(&w->m, first, n);
    unsigned char *stage = (unsigned char *)next_stage(l), *raw = l->raw[!l->turn];
    if (!stage)
        return false;
    memcpy(stage, (const unsigned char *)w->m.data + first * row, codes);
    if (apart.bytes)
        memcpy(stage + codes, apart.from, apart.bytes);
    const tcu_stored s = { raw,          (int64_t)row, raw + codes, apart.row_bytes,
                           (int32_t)first, (int32_t)n };
    return tcu_upload(l->d, raw, stage, codes + apart.bytes, l->err) &&
           tcu_ok(l->d, tcu_pack_tiles(to, &s, l->d->stream), "packing weights", l->err) &&
           tcu_ok(l->d, cudaEventRecord(l->done[!l->turn], l->d->stream), "loading weights", l->err);
}

static bool load_coded(loader *l, const tke_weight *w, const tcu_coded *to)
{
    size_t row = tke_format_bytes(tke_format_of(w->m.dtype), (size_t)w->m.ld);
    size_t most = STAGE_ELEMENTS * sizeof(tcu_bf16),
           piece = most / (row + (size_t)tcu_factors_apart(&w->m, 0, 1).row_bytes) / TCU_TILE_ROWS *
                   TCU_TILE_ROWS;
    for (int i = 0; i < 2; i++)
        if (!l->raw[i] && !(l->raw[i] = tcu_take(l->d, most, TCU_FOR_WORK, l->err)))
            return false;
    for (size_t at = 0; at < w->out; at += piece)
        if (!load_tiles(l, w, at, w->out - at < piece ? w->out - at : piece, to))
            return false;
    return true;
}

/* Places the matrices of a group that is described. Neighbours of one format are one matrix, for fewer launches; several formats may lie
 * side by side. */
static void take_group(loader *l, const tke_group *g, const tcu_sides *own, tcu_linear *to)
{
    size_t numbers = (size_t)to->rows * (size_t)to->in;
    bool packed = false;
    to->n_coded = 0;
    for (size_t i = 0; i < g->n; i++) {
        int32_t format = format_here(&g->w[i], own->out[i], own->in), n = to->n_coded;
        tcu_coded *last = n ? &to->coded[n - 1] : NULL;
        packed = packed || format;
        if (last && last->format == format && last->out % TCU_TILE_ROWS == 0)
            last->out += to->out[i];
        else
            to->coded[to->n_coded++] = (tcu_coded){ .format = format, .out = to->out[i], .in = to->in };
    }
    if (!packed) {
        to->n_coded = 0;
        to->w = take_matrix(l, numbers);
        return;
    }
    l->unpacked = numbers > l->unpacked ? numbers : l->unpacked;
    for (int32_t i = 0; i < to->n_coded; i++) {
        tcu_coded *c = &to->coded[i];
        size_t n = (size_t)c->out * (size_t)c->in * sizeof(tcu_bf16);
        c->tiles = take(l, c->format ? tcu_coded_bytes(c->format, c->out, c->in) : n);
    }
}

/* Matrix i of a group that is placed, from row `row` of the group on. */
static bool load_one(loader *l, const tke_group *g, const tcu_sides *own, size_t i,
                     const tcu_linear *to, int32_t row)
{
    const tcu_coded *c = to->coded;
    if (!to->n_coded)
        return load_matrix(l, &g->w[i], own->out[i], own->in, to->w + (size_t)row * (size_t)to->in);
    for (; row >= c->out; c++)
        row -= c->out;
    if (!c->format)
        return load_matrix(l, &g->w[i], own->out[i], own->in,
                           (tcu_bf16 *)c->tiles + (size_t)row * (size_t)to->in);
    const tcu_coded part = { c->tiles + tcu_coded_bytes(c->format, row, c->in), c->format,
                             to->out[i], c->in };
    return load_coded(l, &g->w[i], &part);
}

void tcu_load_group(loader *l, const tke_group *g, const tcu_side *in, const tcu_side *out,
                    tcu_linear *to)
{
    const tcu_sides own = describe_group(l, g, in, out, to);
    take_group(l, g, &own, to);
    float *bias = to->bias = g->w[0].bias ? take(l, (size_t)to->rows * sizeof *bias) : NULL;
    int32_t row = 0;
    for (size_t i = 0; l->at && i < g->n; row += to->out[i++])
        if (!load_one(l, g, &own, i, to, row) ||
            (bias && !load_numbers(l, g->w[i].bias, g->w[i].out, own.out[i], bias + row)))
            return;
}

void tcu_load_weight(loader *l, const tke_weight *w, tcu_linear *to)
{
    const tcu_side in = tcu_side_of(w->in), out = tcu_side_of(w->out);
    *to = (tcu_linear){ .n = 1, .in = in.step, .out = { out.step }, .rows = out.step };
    to->w = take_matrix(l, (size_t)to->rows * (size_t)to->in);
    if (l->at)
        load_matrix(l, w, out, in, to->w);
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
    uint8_t *blocks = to->blocks + at / 2, *scales = to->scales + at / TKE_MXFP4_BLOCK;
    return load_bytes(l, r, m->data, width / 2, blocks) &&
           load_bytes(l, r, m->scales, width / TKE_MXFP4_BLOCK, scales) &&
           tcu_ok(l->d,
                  tcu_order_blocks(blocks, scales, (int32_t)r->n, (int32_t)width, l->d->stream),
                  "packing weights", l->err);
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
    return load_rows(l, &rows, (size_t)to->padded, x->router.in, to->router);
}

static bool load_stacks(loader *l, const tke_experts *x, const tcu_experts *to)
{
    size_t width = (size_t)to->width, step = x->paired ? 2 : 1;
    for (size_t e = 0; e < x->n; e++) {
        const rows_of gate = { &x->gate, e, 0, step, x->inner };
        const rows_of up = { x->paired ? &x->gate : &x->up, e, x->paired, step, x->inner };
        const rows_of out = { &x->out, e, 0, 1, x->out.out };
        if (!load_part(l, &gate, 0, width, &to->gate_up) ||
            (!x->squared && !load_part(l, &up, width, width, &to->gate_up)) ||
            !load_part(l, &out, 0, x->out.out, &to->down))
            return false;
    }
    return load_biases(l, x, &x->gate, x->paired, &to->gate_up) &&
           load_biases(l, x, &x->out, false, &to->down);
}

static void take_stack(loader *l, const tke_experts *x, const tke_stack *from, size_t out, size_t in,
                       tcu_stack *to)
{
    size_t count = x->n * out * in;
    bool packed = from->m[0].dtype == TKE_MXFP4;
    *to = (tcu_stack){ .out = (int32_t)out, .in = (int32_t)in };
    to->w = packed ? NULL : take_matrix(l, count);
    to->blocks = packed ? take(l, count / 2) : NULL;
    to->scales = packed ? take(l, count / TKE_MXFP4_BLOCK) : NULL;
    to->bias = from->bias ? take(l, x->n * out * sizeof *to->bias) : NULL;
}

void tcu_load_experts(loader *l, const tke_experts *x, tcu_experts *to)
{
    size_t hidden = x->out.out, width = round_up(x->inner, 8), padded = round_up(x->n, 16);
    size_t rows = (x->squared ? 1 : 2) * width;
    bool packed = x->gate.m[0].dtype == TKE_MXFP4;
    *to = (tcu_experts){ .n = (int32_t)x->n,
                         .padded = (int32_t)padded,
                         .top = (int32_t)x->top,
                         .width = (int32_t)width,
                         .unpacked = packed ? x->n * rows * hidden : 0,
                         .of = x };
    describe_group(l, x->gate_up, NULL, NULL, &to->in);
    describe_group(l, x->down, NULL, NULL, &to->out);
    to->router = take_matrix(l, padded * hidden);
    tcu_load_vector(l, x->router.bias, x->n, padded, &to->router_bias);
    tcu_load_vector(l, x->route == TKE_ROUTE_SIGMOID ? x->sigmoid.bias : NULL, x->n, padded,
                    &to->choice);
    if (x->shared)
        tcu_dense_weights(l, x->shared, &to->shared);
    if (x->shared_gate.m.data)
        tcu_load_weight(l, &x->shared_gate, &to->shared_gate);
    take_stack(l, x, &x->gate, rows, hidden, &to->gate_up);
    take_stack(l, x, &x->out, hidden, width, &to->down);
    if (l->at && load_router(l, x, to))
        load_stacks(l, x, to);
}

/* ---- the model ---- */

static void carry_layer(loader *l, const tke_config *c, const tke_layer *from, tcu_layer *to)
{
    to->mixer = from->mixer ? tcu_mixer_part(from->mixer) : NULL;
    to->feed = from->feed ? tcu_feed_part(from->feed) : NULL;
    tcu_load_vector(l, from->mixer_norm, c->hidden, c->hidden, &to->mixer_norm);
    tcu_load_vector(l, from->feed_norm, c->hidden, c->hidden, &to->feed_norm);
    if (to->mixer)
        to->mixer->weights(l, from, to);
    if (to->feed)
        to->feed->weights(l, from, to);
}

/* All numbers of the model: measured, or placed and loaded. */
static bool carry(loader *l, const tke_model *s, tcu_model *m)
{
    const tke_config *c = &s->config;
    const tcu_side vocab = { (int32_t)c->vocab, (int32_t)c->vocab };
    const tcu_side hidden = { (int32_t)c->hidden, (int32_t)c->hidden };
    const tke_group embed = { .index = s->head.index, .n = 1, .w = { s->embed } };
    tcu_load_group(l, &embed, &hidden, &vocab, &m->embed);
    if (c->tied) {
        describe_group(l, &s->head, &hidden, &vocab, &m->head);
        m->head.w = m->embed.w;
        m->head.coded[0] = m->embed.coded[0];
        m->head.n_coded = m->embed.n_coded;
    } else {
        tcu_load_group(l, &s->head, &hidden, &vocab, &m->head);
    }
    tcu_load_vector(l, s->norm, c->hidden, c->hidden, &m->norm);
    for (size_t i = 0; i < c->n_layers && !tkc_failed(l->err); i++) {
        tcu_layer unused = { 0 };
        carry_layer(l, c, &s->layers[i], m->layers ? &m->layers[i] : &unused);
    }
    return !tkc_failed(l->err);
}

size_t tcu_model_bytes(const tke_model *s)
{
    tinkc_error err = { 0 };
    loader l = { .err = &err };
    tcu_model unused = { 0 };
    if (!supported(s, &err)) /* loading it will say so */
        return 0;
    carry(&l, s, &unused);
    return l.used;
}

static bool load_all(tcu_model *m, const tke_model *s, tinkc_error *err)
{
    tcu_device *d = m->device;
    loader l = { .d = d, .at = m->block, .sides = m->sides, .err = err };
    bool ok = tcu_ok(d, cudaMemsetAsync(m->block, 0, m->bytes, d->stream), "clearing", err);
    for (int i = 0; i < 2 && ok; i++)
        ok = tcu_ok(d, cudaMallocHost((void **)&l.stage[i], STAGE_ELEMENTS * sizeof(tcu_bf16)),
                    "pinning memory", err) &&
             tcu_ok(d, cudaEventCreateWithFlags(&l.done[i], cudaEventDisableTiming),
                    "loading weights", err);
    ok = ok && carry(&l, s, m);
    m->unpacked = l.unpacked;
    ok = tcu_wait(d, err) && ok;
    for (int i = 0; i < 2; i++) {
        tcu_give(d, l.raw[i], STAGE_ELEMENTS * sizeof(tcu_bf16), TCU_FOR_WORK);
        cudaFreeHost(l.stage[i]);
        if (l.done[i])
            cudaEventDestroy(l.done[i]);
    }
    return ok;
}

/* Where each layer's part of the cache and of a sequence's state begins. */
static void lay_out_sampling(tcu_model *m)
{
    for (size_t i = 0; i < m->config.n_layers; i++) {
        tcu_layer *l = &m->layers[i];
        l->cache_at = m->cache_numbers;
        l->state_at = m->state_bytes;
        m->cache_numbers += l->mixer && l->mixer->cache_numbers ? l->mixer->cache_numbers(l) : 0;
        m->state_bytes += l->mixer && l->mixer->state_bytes ? l->mixer->state_bytes(m, l) : 0;
        m->has_experts = m->has_experts || l->feed == &tcu_part_experts;
    }
}

/* ---- what runs in one launch ---- */

/* The kernel knows no sides with zeros. */
static bool is_plain(const tcu_model *m, const tcu_layer *l)
{
    if (l->mixer != &tcu_part_attention || l->feed != &tcu_part_dense)
        return false;
    const tke_attn *a = l->attn.of;
    return !a->gate && !a->sinks && m->config.rotary == a->head_dim &&
           (size_t)l->attn.d == a->head_dim && a->head_dim <= 128 && !l->dense.squared &&
           (size_t)l->dense.inner == m->config.inner;
}

bool tcu_decode_model(const tcu_model *m)
{
    if (m->unpacked) /* nor packed numbers */
        return false;
    for (size_t i = 0; i < m->config.n_layers; i++)
        if (!is_plain(m, &m->layers[i]))
            return false;
    return true;
}

void tcu_decode_groups(const tcu_layer *l, const tcu_linear *out[TCU_DECODE_GROUPS])
{
    out[0] = &l->attn.qkv;
    out[1] = &l->attn.o;
    out[2] = &l->dense.in;
    out[3] = &l->dense.out;
}

/* ---- rotation ---- */

static bool make_rope(tcu_model *m, const tke_model *s, tinkc_error *err)
{
    size_t half = m->config.rotary / 2, n = m->config.context, bytes = n * half * sizeof(float);
    m->n_positions = n;
    if (!half) /* nothing rotates */
        return true;
    float *table = tkc_alloc(NULL, 2 * bytes, err);
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
    m->vocab = (int32_t)c->vocab;
    m->bytes = tcu_model_bytes(s);
    tke_residence_turn(&d->residence);
    m->layers = tkc_zalloc(NULL, c->n_layers * sizeof *m->layers, err);
    m->sides = tkc_zalloc(NULL, s->n_groups * sizeof *m->sides, err);
    if (m->layers && m->sides && fits(m, err))
        m->block = tcu_take(d, m->bytes, TCU_FOR_WEIGHTS, err);
    if (m->block && load_all(m, s, err) && make_rope(m, s, err)) {
        lay_out_sampling(m);
        return m;
    }
    tcu_model_free(m);
    return NULL;
}

void tcu_model_free(tcu_model *m)
{
    if (!m)
        return;
    tcu_give(m->device, m->block, m->bytes, TCU_FOR_WEIGHTS);
    tcu_give(m->device, m->cosine, 2 * m->n_positions * (m->config.rotary / 2) * sizeof(float),
             TCU_FOR_WEIGHTS);
    tkc_release(NULL, m->layers, m->config.n_layers * sizeof *m->layers);
    tkc_release(NULL, m->sides, m->base.model->n_groups * sizeof *m->sides);
    tkc_release(NULL, m, sizeof *m);
}
