/* fast_attention.h - attention for the fast sets, built from the tiles of fast_gemm.h. Included by
 * avx2.c and avx512.c after it and fast_rows.h.
 *
 * Forward. A chunk of query rows (all heads of a group, position by position) processes the keys in
 * blocks of TKE_KEY_BLOCK. For each block: scores (a chain over head_dim), the running maximum, the
 * weights, their sum (vectors as (0+1)+(2+3), ...), and o = o * shrink, then one chain over the
 * block's keys. Masked keys have weight exactly 0 and change nothing, so a row gets the same
 * bits in any chunk, with or without rows after it, from a cache or not.
 *
 * Backward. One sequence and key head at a time, or a part of its rows or keys: for each key block,
 * each head, each block of queries. dk and dv are chains over (head, query), dq over whole blocks
 * of keys, always in that order.
 */
#ifndef TKE_KERNELS_FAST_ATTENTION_H
#define TKE_KERNELS_FAST_ATTENTION_H

enum {
    KEYS = TKE_KEY_BLOCK,
    CHUNK = 252,      /* query rows at once, forward: whole tiles for 14, 12 and 6 */
    Q_BLOCK = 4 * 14, /* query rows at once, backward */
    KEY_FLOATS = TKE_MAX_HEAD_DIM * KEYS,
    KEY_VECTORS = KEYS / VW
};
_Static_assert((int)TKE_MAX_HEAD_DIM <= (int)K_BLOCK && (int)KEYS % (int)TILE_N == 0,
               "head_dim fits one block of k");
/* attention and attention_backward fit into their scratch. */
_Static_assert((CHUNK * ((int)A_LD + (int)TKE_MAX_HEAD_DIM + 2) + 2 * KEY_FLOATS + (int)A_FLOATS) *
                       4 <=
                   (int)TKE_SCRATCH_BYTES,
               "scratch too small");
_Static_assert((5 * KEY_FLOATS + Q_BLOCK * (4 * (int)A_LD + 2 * (int)TKE_MAX_HEAD_DIM)) * 4 <=
                   (int)TKE_SCRATCH_BYTES,
               "scratch too small");

/* ---- blocks of keys and values, packed ---- */

/* Rows 0 .. n of a block as panels [row][TILE_N] (`panel` rows each), for products that sum over
 * rows. `at` finds a row's element. */
static void pack_block_rows(const tke_keys *keys, const void *data, int64_t first, int64_t n,
                            int64_t head_at, int64_t d, float *out)
{
    for (int64_t e = 0; e < d; e += TILE_N, out += TILE_N * KEYS)
        for (int64_t j = 0; j < n; j++) {
            tke_matrix row = { data, 0, keys->dtype, NULL, NULL };
            int64_t at = tke_keys_row(keys, first + j) + head_at + e;
            pack_rows(&row, at, d - e, 0, 1, out + j * TILE_N);
        }
}

/* The same rows as panels [element][TILE_N keys], for products that sum over head_dim. Squares of
 * VW rows are consecutive in memory inside a cache block (or everywhere, if not cached). */
static void pack_block_columns(const tke_keys *keys, const void *data, int64_t first, int64_t n,
                               int64_t head_at, int64_t d, float *out)
{
    int64_t run = keys->ids && keys->block_tokens < VW ? keys->block_tokens : VW;
    if (run < VW) { /* blocks smaller than a vector: row by row */
        for (int64_t j = 0; j < round_up(n, TILE_N); j++)
            for (int64_t e = 0; e < d; e++)
                out[j / TILE_N * TILE_N * d + e * TILE_N + j % TILE_N] =
                    j < n ? tke_load(keys->dtype, data, tke_keys_row(keys, first + j) + head_at + e)
                          : 0;
        return;
    }
    for (int64_t j = 0; j < round_up(n, TILE_N); j += VW) {
        float *to = out + j / TILE_N * TILE_N * d + j % TILE_N;
        if (j >= n) {
            for (int64_t e = 0; e < d; e++)
                v_store(to + e * TILE_N, v_zero());
            continue;
        }
        int64_t at = tke_keys_row(keys, first + j) + head_at;
        /* A cache block has all its rows; scores of keys that are not there yet are masked. */
        int64_t columns = keys->ids ? VW : n - j;
        tke_matrix rows = { (const char *)data + (size_t)at * tke_dtype_size(keys->dtype), keys->ld,
                            keys->dtype, NULL, NULL };
        pack_transposed(&rows, 0, columns, 0, d, to);
    }
}

/* Prefetches a head's rows of a block. Must be inline: the compiler removes calls of a function that
 * only prefetches. */
INLINE void fetch_rows(const tke_keys *keys, const void *data, int64_t first, int64_t n,
                       int64_t head_at, int64_t d)
{
    int64_t size = (int64_t)tke_dtype_size(keys->dtype);
    for (int64_t j = 0; j < n; j++) {
        uintptr_t at =
            (uintptr_t)data + (uintptr_t)((tke_keys_row(keys, first + j) + head_at) * size);
        for (int64_t line = 0; line < d * size; line += 64)
            __builtin_prefetch((const void *)(at + (uintptr_t)line), 0, 3);
    }
}

/* ---- forward ---- */

typedef struct chunk {
    const tke_attention_part *part;
    int64_t begin, rows; /* first index, number of (index, head) rows */
    int64_t group, d;
    int64_t head_at;  /* of the key head in a row of keys */
    float *q;         /* scaled, [rows][A_LD] */
    float *o;         /* [rows][d] */
    float *max, *sum; /* [rows] */
    float *keys, *values;
    float *scores; /* [TILE_M][A_LD] */
} chunk;

INLINE int64_t position_of(const chunk *c, int64_t row)
{
    return c->part->first_pos + c->begin + row / c->group;
}

INLINE int64_t first_key(const tke_attention *s, int64_t position)
{
    return s->window > 0 && position >= s->window ? position - s->window + 1 : 0;
}

/* Offset of a row in q and o. */
INLINE int64_t row_at(const chunk *c, int64_t row)
{
    const tke_attention *s = c->part->shape;
    int64_t head = c->part->kv_head * c->group + row % c->group;
    return ((c->begin + row / c->group) * s->n_heads + head) * c->d;
}

static void load_chunk(const chunk *c)
{
    for (int64_t r = 0; r < c->rows; r++) {
        copy_scaled(c->part->q + row_at(c, r), c->d, c->part->shape->scale, false, c->q + r * A_LD);
        const float *sinks = c->part->shape->sinks;
        c->max[r] = sinks ? sinks[c->part->kv_head * c->group + r % c->group] : -INFINITY;
        c->sum[r] = sinks ? 1 : 0;
    }
    memset(c->o, 0, (size_t)(c->rows * c->d) * sizeof(float));
}

static void store_chunk(const chunk *c)
{
    const tke_attention *s = c->part->shape;
    for (int64_t r = 0; r < c->rows; r++) {
        copy_scaled(c->o + r * c->d, c->d, 1.0f / c->sum[r], false, c->part->o + row_at(c, r));
        if (c->part->lse)
            c->part->lse[(c->begin + r / c->group) * s->n_heads + c->part->kv_head * c->group +
                         r % c->group] = c->max[r] + logf(c->sum[r]);
    }
}

/* Lanes lo .. hi of x (vector i of a block), the others `outside`. */
INLINE vf keep_lanes(vf x, int64_t i, int64_t lo, int64_t hi, vf outside)
{
    int64_t from = lo - i * VW, to = hi - i * VW;
    if (from <= 0 && to >= VW)
        return x;
    from = from < 0 ? 0 : from > VW ? VW : from;
    to = to < 0 ? 0 : to > VW ? VW : to;
    x = v_first(to, x, outside);
    return v_first(from, outside, x);
}

/* Scores of one row and block become weights; the row's maximum, sum and o follow. Keys lo .. hi
 * of the block count. */
INLINE void weigh_row(const chunk *c, int64_t row, float *scores, int64_t lo, int64_t hi)
{
    vf s[KEY_VECTORS], outside = v_set(-INFINITY), top = v_set(c->max[row]);
    if (hi <= lo) {
        memset(scores, 0, KEYS * sizeof *scores);
        return;
    }
    for (int i = 0; i < KEY_VECTORS; i++) {
        s[i] = keep_lanes(v_load(scores + i * VW), i, lo, hi, outside);
        top = v_max(s[i], top);
    }
    float new_max = v_largest(top);
    vf shift = v_set(new_max);
    for (int i = 0; i < KEY_VECTORS; i++) {
        s[i] = keep_lanes(v_exp(v_sub(s[i], shift)), i, lo, hi, v_zero());
        v_store(scores + i * VW, s[i]);
    }
    for (int step = 1; step < KEY_VECTORS; step *= 2)
        for (int i = 0; i < KEY_VECTORS; i += 2 * step)
            s[i] = v_add(s[i], s[i + step]);
    float shrink = exp_of(c->max[row] - new_max);
    c->sum[row] = __builtin_fmaf(c->sum[row], shrink, v_sum(s[0]));
    c->max[row] = new_max;
    if (shrink != 1.0f)
        copy_scaled(c->o + row * c->d, c->d, shrink, false, c->o + row * c->d);
}

/* Rows row .. row+n (a tile) against the packed block that begins at key `first`. */
static void attend_tile(const chunk *c, int64_t row, int64_t n, int64_t first)
{
    int64_t last = position_of(c, row + n - 1) - first + 1; /* keys the last row may see */
    last = last > KEYS ? KEYS : last;
    tile t = { .a = c->q + row * A_LD, .b = c->keys, .k = c->d, .ldc = A_LD, .columns = TILE_N };
    for (int64_t j = 0; j < last; j += TILE_N, t.b += TILE_N * c->d) {
        t.c = c->scores + j;
        tile_by_rows(&t, n);
    }
    for (int64_t r = 0; r < n; r++) {
        int64_t p = position_of(c, row + r), lo = first_key(c->part->shape, p) - first;
        int64_t hi = p - first + 1;
        weigh_row(c, row + r, c->scores + r * A_LD, lo < 0 ? 0 : lo, hi > KEYS ? KEYS : hi);
    }
    tile u = { .a = c->scores, .b = c->values, .k = last, .ldc = c->d, .from_c = true };
    for (int64_t e = 0; e < c->d; e += TILE_N, u.b += TILE_N * KEYS) {
        u.c = c->o + row * c->d + e;
        u.columns = c->d - e < TILE_N ? c->d - e : TILE_N;
        tile_by_rows(&u, n);
    }
}

/* Prefetches a cache block that will be packed soon; the last one may be short. */
INLINE void fetch_block(const chunk *c, const void *data, int64_t first, int64_t last)
{
    if (!c->part->keys.ids || first > last)
        return;
    fetch_rows(&c->part->keys, data, first, last - first + 1 < KEYS ? last - first + 1 : KEYS,
               c->head_at, c->d);
}

static void attend_chunk(const chunk *c)
{
    const tke_keys *keys = &c->part->keys;
    int64_t last = position_of(c, c->rows - 1);
    int64_t first = first_key(c->part->shape, position_of(c, 0)) / KEYS * KEYS;
    fetch_block(c, keys->k, first, last);
    load_chunk(c);
    for (; first <= last; first += KEYS) {
        int64_t n = last - first + 1 < KEYS ? last - first + 1 : KEYS;
        fetch_block(c, keys->v, first, last);
        pack_block_columns(keys, keys->k, first, n, c->head_at, c->d, c->keys);
        fetch_block(c, keys->k, first + KEYS, last);
        pack_block_rows(keys, keys->v, first, n, c->head_at, c->d, c->values);
        for (int64_t r = 0; r < c->rows; r += TILE_M) {
            int64_t tile_rows = c->rows - r < TILE_M ? c->rows - r : TILE_M;
            if (position_of(c, r + tile_rows - 1) >= first)
                attend_tile(c, r, tile_rows, first);
        }
    }
    store_chunk(c);
}

static void attention(const tke_attention_part *part, int64_t begin, int64_t end, void *scratch)
{
    const tke_attention *s = part->shape;
    float *at = scratch;
    chunk c = { .part = part, .group = s->n_heads / s->n_kv_heads, .d = s->head_dim };
    c.head_at = part->kv_head * part->keys.head_stride;
    c.q = at;
    c.o = at += CHUNK * A_LD;
    c.max = at += CHUNK * TKE_MAX_HEAD_DIM;
    c.sum = at += CHUNK;
    c.keys = at += CHUNK;
    c.values = at += KEY_FLOATS;
    c.scores = at + KEY_FLOATS;
    int64_t step = CHUNK / c.group > 0 ? CHUNK / c.group : 1;
    for (int64_t i = begin; i < end; i += step) {
        c.begin = i;
        c.rows = (end - i < step ? end - i : step) * c.group;
        assert(c.rows <= CHUNK);
        attend_chunk(&c);
    }
}

/* ---- backward ---- */

typedef struct back {
    const tke_attention_back *call;
    int64_t group, d, ldq, ldk;
    tke_keys source;
    int64_t first_row, end_row;      /* rows of this part */
    bool to_rows, to_keys;           /* which gradients to compute */
    int64_t first, n_keys;           /* the current key block */
    float *keys_t, *values_t, *keys; /* packed by column, by column, by row */
    float *dk, *dv;                  /* [KEYS][d] */
    int64_t head, row, rows;         /* the current query block */
    float *q, *d_o;                  /* as left sides, [rows][A_LD]; q scaled */
    float *q_rows, *d_o_rows;        /* as right sides, panels [rows][TILE_N] */
    float *p, *ds;                   /* [rows][A_LD] */
} back;

/* Elements [row step 1][k step A_LD]: the left side is a block of weights, transposed. */
static TILE_CODE void tile_by_weights(const tile *t, int64_t rows)
{
    switch (rows) {
        TILE_CASES(1, A_LD)
    default:
        break;
    }
}

static void find_deltas(const back *b)
{
    const tke_attention_grads *g = &b->call->g;
    const tke_attention *s = b->call->shape;
    for (int64_t i = b->first_row; i < b->end_row; i++)
        for (int64_t h = b->call->kv_head * b->group; h < (b->call->kv_head + 1) * b->group; h++) {
            const float *d_o = g->d_o + i * b->ldq + h * b->d, *o = g->o + i * b->ldq + h * b->d;
            vf sum = v_zero();
            for (int64_t e = 0; e < b->d; e += VW) {
                int64_t left = b->d - e < VW ? b->d - e : VW;
                sum = v_fma(v_load_part(d_o + e, left), v_load_part(o + e, left), sum);
            }
            g->delta[i * s->n_heads + h] = v_sum(sum);
        }
}

/* `rows` rows of a matrix, from row 0, as panels [Q_BLOCK][TILE_N]. */
static void pack_right(const float *x, int64_t ld, int64_t rows, int64_t d, float *out)
{
    tke_matrix m = { .data = x, .ld = ld, .dtype = TKE_F32 };
    for (int64_t e = 0; e < d; e += TILE_N, out += Q_BLOCK * TILE_N)
        pack_rows(&m, e, d - e, 0, rows, out);
}

static void load_queries(const back *b)
{
    const tke_attention_grads *g = &b->call->g;
    int64_t at = b->row * b->ldq + b->head * b->d;
    for (int64_t r = 0; r < b->rows; r++) {
        copy_scaled(g->q + at + r * b->ldq, b->d, b->call->shape->scale, false, b->q + r * A_LD);
        copy_scaled(g->d_o + at + r * b->ldq, b->d, 1, false, b->d_o + r * A_LD);
    }
    pack_right(g->q + at, b->ldq, b->rows, b->d, b->q_rows);
    pack_right(g->d_o + at, b->ldq, b->rows, b->d, b->d_o_rows);
}

/* Scores and dp of a row become weights and ds. */
INLINE void weigh_back(const back *b, int64_t r)
{
    const tke_attention *s = b->call->shape;
    int64_t i = b->row + r, at = i * s->n_heads + b->head;
    int64_t lo = first_key(s, i) - b->first, hi = i - b->first + 1;
    vf lse = v_set(b->call->g.lse[at]), delta = v_set(b->call->g.delta[at]);
    /* With a single key (and no sink) the weight is 1 whatever the score: the gradient is exactly 0,
     * not a rounding error, which Adam would amplify. */
    vf scale = v_set(first_key(s, i) == i && !s->sinks ? 0 : s->scale);
    float *p = b->p + r * A_LD, *ds = b->ds + r * A_LD;
    for (int j = 0; j < KEY_VECTORS; j++) {
        vf w = keep_lanes(v_exp(v_sub(v_load(p + j * VW), lse)), j, lo, hi, v_zero());
        vf d = v_mul(v_mul(w, v_sub(v_load(ds + j * VW), delta)), scale);
        v_store(p + j * VW, w);
        v_store(ds + j * VW, keep_lanes(d, j, lo, hi, v_zero()));
    }
}

/* dq of some rows of the query block. Keys that they do not see have ds 0 and are summed too: the
 * grouping of rows must not change any bit, not even the sign of a zero. */
static void add_to_queries(const back *b, int64_t r, int64_t n)
{
    float *dq = b->call->g.dq + (b->row + r) * b->ldq + b->head * b->d;
    tile t = { .a = b->ds + r * A_LD, .b = b->keys, .k = b->n_keys, .ldc = b->ldq, .from_c = true };
    for (int64_t e = 0; e < b->d; e += TILE_N, t.b += TILE_N * KEYS) {
        t.c = dq + e;
        t.columns = b->d - e < TILE_N ? b->d - e : TILE_N;
        tile_by_rows(&t, n);
    }
}

/* p and ds of the query block, and dq of its rows. */
static void back_to_queries(const back *b)
{
    for (int64_t r = 0; r < b->rows; r += TILE_M) {
        int64_t n = b->rows - r < TILE_M ? b->rows - r : TILE_M;
        int64_t last = b->row + r + n - b->first; /* keys the last row may see */
        last = last > b->n_keys ? b->n_keys : last;
        tile s = {
            .a = b->q + r * A_LD, .b = b->keys_t, .k = b->d, .ldc = A_LD, .columns = TILE_N
        };
        tile v = s;
        v.a = b->d_o + r * A_LD;
        v.b = b->values_t;
        for (int64_t j = 0; j < last; j += TILE_N, s.b += TILE_N * b->d, v.b += TILE_N * b->d) {
            s.c = b->p + r * A_LD + j;
            v.c = b->ds + r * A_LD + j;
            tile_by_rows(&s, n);
            tile_by_rows(&v, n);
        }
        for (int64_t i = r; i < r + n; i++)
            weigh_back(b, i);
        if (b->to_rows)
            add_to_queries(b, r, n);
    }
}

/* out[key][d] += weights' rows, for the keys that the block's last row may see. */
static void back_to_keys(const back *b, const float *weights, const float *right, float *out)
{
    int64_t last = b->row + b->rows - b->first;
    last = last > b->n_keys ? b->n_keys : last;
    for (int64_t j = 0; j < last; j += TILE_M) {
        int64_t n = last - j < TILE_M ? last - j : TILE_M;
        tile t = { .a = weights + j, .b = right, .k = b->rows, .ldc = b->d, .from_c = true };
        for (int64_t e = 0; e < b->d; e += TILE_N, t.b += TILE_N * Q_BLOCK) {
            t.c = out + j * b->d + e;
            t.columns = b->d - e < TILE_N ? b->d - e : TILE_N;
            tile_by_weights(&t, n);
        }
    }
}

static void back_block(back *b)
{
    const tke_attention_grads *g = &b->call->g;
    int64_t head_at = b->call->kv_head * b->d, window = b->call->shape->window;
    int64_t begin = b->first > b->first_row ? b->first : b->first_row, end = b->end_row;
    if (window > 0 && b->first + b->n_keys - 1 + window < end)
        end = b->first + b->n_keys - 1 + window;
    if (begin >= end && !b->to_keys)
        return;
    pack_block_columns(&b->source, g->k, b->first, b->n_keys, head_at, b->d, b->keys_t);
    pack_block_columns(&b->source, g->v, b->first, b->n_keys, head_at, b->d, b->values_t);
    pack_block_rows(&b->source, g->k, b->first, b->n_keys, head_at, b->d, b->keys);
    memset(b->dk, 0, (size_t)(KEYS * b->d) * sizeof(float));
    memset(b->dv, 0, (size_t)(KEYS * b->d) * sizeof(float));
    for (int64_t h = 0; h < b->group; h++)
        for (b->row = begin; b->row < end; b->row += Q_BLOCK) {
            b->head = b->call->kv_head * b->group + h;
            b->rows = end - b->row < Q_BLOCK ? end - b->row : Q_BLOCK;
            load_queries(b);
            back_to_queries(b);
            if (!b->to_keys)
                continue;
            back_to_keys(b, b->p, b->d_o_rows, b->dv);
            back_to_keys(b, b->ds, b->q_rows, b->dk);
        }
    for (int64_t j = 0; b->to_keys && j < b->n_keys; j++) {
        int64_t at = (b->first + j) * b->ldk + head_at;
        memcpy(g->dk + at, b->dk + j * b->d, (size_t)b->d * sizeof(float));
        memcpy(g->dv + at, b->dv + j * b->d, (size_t)b->d * sizeof(float));
    }
}

static void attention_backward(const tke_attention_back *call, void *scratch)
{
    const tke_attention *s = call->shape;
    float *at = scratch;
    back b = { .call = call, .group = s->n_heads / s->n_kv_heads, .d = s->head_dim };
    b.ldq = (int64_t)s->n_heads * b.d;
    b.ldk = (int64_t)s->n_kv_heads * b.d;
    b.source = (tke_keys){ .dtype = TKE_F32, .ld = b.ldk };
    b.keys_t = at;
    b.values_t = at += KEY_FLOATS;
    b.keys = at += KEY_FLOATS;
    b.dk = at += KEY_FLOATS;
    b.dv = at += KEY_FLOATS;
    b.q = at += KEY_FLOATS;
    b.d_o = at += Q_BLOCK * A_LD;
    b.p = at += Q_BLOCK * A_LD;
    b.ds = at += Q_BLOCK * A_LD;
    b.q_rows = at += Q_BLOCK * A_LD;
    b.d_o_rows = at + Q_BLOCK * TKE_MAX_HEAD_DIM;
    b.to_rows = call->part != TKE_BACK_KEYS;
    b.to_keys = call->part != TKE_BACK_ROWS;
    b.first_row = call->part == TKE_BACK_ROWS ? call->begin : 0;
    b.end_row = call->part == TKE_BACK_ROWS ? call->end : call->length;
    if (b.to_rows)
        find_deltas(&b);
    for (int64_t i = b.first_row; b.to_rows && i < b.end_row; i++)
        memset(call->g.dq + i * b.ldq + call->kv_head * b.group * b.d, 0,
               (size_t)(b.group * b.d) * sizeof(float));
    int64_t keys_end = call->part == TKE_BACK_KEYS ? call->end : b.end_row;
    /* Blocks of keys are counted from 0, in every call: the order of sums depends on it. */
    assert(call->part != TKE_BACK_KEYS || call->begin % KEYS == 0);
    for (b.first = call->part == TKE_BACK_KEYS ? call->begin : 0; b.first < keys_end;
         b.first += KEYS) {
        b.n_keys = call->length - b.first < KEYS ? call->length - b.first : KEYS;
        back_block(&b);
    }
}

#endif
