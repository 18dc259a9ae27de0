/* check_attention.c - attention alone: forward and backward against double precision, and its speed. */
#include "check_card.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static uint16_t *random_host(size_t n, uint64_t seed, float scale)
{
    float *f = malloc(n * sizeof *f);
    uint16_t *h = malloc(n * 2);
    random_floats(f, n, seed, scale);
    for (size_t i = 0; i < n; i++)
        h[i] = tke_f32_to_bf16(f[i]);
    free(f);
    return h;
}

static double value(const uint16_t *p, size_t i)
{
    return tke_bf16_to_f32(p[i]);
}

typedef struct heads_case {
    int heads, kv, d, window;
    const int *lengths;
    int n_seqs, rows;
    uint16_t *q, *k, *v, *d_o;
    double *o, *dq, *dk, *dv;
} heads_case;

/* One sequence's attention and its gradients, in double. */
static void reference(heads_case *c, int row0, int length)
{
    int d = c->d, group = c->heads / c->kv;
    double scale = 1 / sqrt((double)d), *p = malloc((size_t)length * 8),
           *dp = malloc((size_t)length * 8);
    for (int i = 0; i < length; i++)
        for (int h = 0; h < c->heads; h++) {
            size_t at = ((size_t)(row0 + i) * (size_t)c->heads + (size_t)h) * (size_t)d;
            int first = c->window > 0 && i + 1 > c->window ? i + 1 - c->window : 0;
            double top = -1e300, sum = 0, dot = 0;
            for (int t = first; t <= i; t++) {
                size_t key = ((size_t)(row0 + t) * (size_t)c->kv + (size_t)(h / group)) * (size_t)d;
                p[t] = dp[t] = 0;
                for (int e = 0; e < d; e++) {
                    p[t] += value(c->q, at + (size_t)e) * value(c->k, key + (size_t)e) * scale;
                    dp[t] += value(c->d_o, at + (size_t)e) * value(c->v, key + (size_t)e);
                }
                top = fmax(top, p[t]);
            }
            for (int t = first; t <= i; t++)
                sum += p[t] = exp(p[t] - top);
            for (int t = first; t <= i; t++) {
                p[t] /= sum;
                dot += p[t] * dp[t];
            }
            for (int t = first; t <= i; t++) {
                size_t key = ((size_t)(row0 + t) * (size_t)c->kv + (size_t)(h / group)) * (size_t)d;
                double ds = p[t] * (dp[t] - dot) * scale;
                for (int e = 0; e < d; e++) {
                    c->o[at + (size_t)e] += p[t] * value(c->v, key + (size_t)e);
                    c->dq[at + (size_t)e] += ds * value(c->k, key + (size_t)e);
                    c->dk[key + (size_t)e] += ds * value(c->q, at + (size_t)e);
                    c->dv[key + (size_t)e] += p[t] * value(c->d_o, at + (size_t)e);
                }
            }
        }
    free(p), free(dp);
}

static double distance(const tcu_bf16 *got_card, const double *want, size_t n)
{
    uint16_t *got = malloc(n * 2);
    double off = 0, all = 0;
    CK(tcu_download(device, got, got_card, n * 2, &fault));
    for (size_t i = 0; i < n; i++) {
        double x = value(got, i);
        off += (x - want[i]) * (x - want[i]);
        all += want[i] * want[i];
    }
    free(got);
    return isnan(off) ? 1e9 : sqrt(off / all);
}

static int32_t fill_spans(const heads_case *c, int32_t tokens, tcu_span *out)
{
    int32_t n = 0, row = 0;
    for (int s = 0; s < c->n_seqs; row += c->lengths[s++])
        for (int at = 0; at < c->lengths[s]; at += tokens)
            out[n++] =
                (tcu_span){ row, at, at + tokens < c->lengths[s] ? at + tokens : c->lengths[s],
                            c->lengths[s] };
    return n;
}

/* Keys and values of the packed rows into blocks of 16, shuffled; block ids of each sequence one behind the other. */
static void make_pages(const heads_case *c, uint16_t *k, uint16_t *v, int32_t *tables,
                       size_t n_blocks, int32_t *where)
{
    int32_t used = 0, row = 0, entry = 0;
    for (int s = 0; s < c->n_seqs; row += c->lengths[s++]) {
        where[s] = entry;
        for (int pos = 0; pos < c->lengths[s]; pos++) {
            if (pos % 16 == 0)
                tables[entry++] = (int32_t)(((size_t)used++ * 7919) % n_blocks);
            int32_t block = tables[entry - 1];
            for (int h = 0; h < c->kv; h++)
                for (int e = 0; e < c->d; e++) {
                    size_t to =
                        (((size_t)block * (size_t)c->kv + (size_t)h) * 16 + (size_t)(pos % 16)) *
                            (size_t)c->d +
                        (size_t)e;
                    size_t from = ((size_t)(row + pos) * (size_t)c->kv + (size_t)h) * (size_t)c->d +
                                  (size_t)e;
                    k[to] = c->k[from];
                    v[to] = c->v[from];
                }
        }
    }
}

/* Attention by warpgroups, forward and backward: the bits of p and keys, which have run. */
static void grouped_case(const heads_case *c, tcu_attention p, tcu_attention keys, tcu_span *spans,
                         const char *name)
{
    size_t nq = (size_t)(c->rows * c->heads * c->d), nk = (size_t)(c->rows * c->kv * c->d);
    size_t heads = (size_t)(c->rows * c->heads);
    tcu_attention old = p;
    uint64_t bad;
    char what[128];
    if (!tcu_attention_groups(c->d))
        return;
    p.grouped = keys.grouped = true;
    p.o = card(nq * 2), p.dq = card(nq * 2), keys.dk = card(nk * 2), keys.dv = card(nk * 2);
    p.lse = card(heads * 4);
    poison(p.o, nq * 2), poison(p.dq, nq * 2), poison(p.lse, heads * 4);
    poison(keys.dk, nk * 2), poison(keys.dv, nk * 2);
    p.n_spans = fill_spans(c, TCU_WARPGROUPS * tcu_span_tokens(c->heads, c->kv, false), spans);
    p.spans = to_card(spans, (size_t)p.n_spans * sizeof *spans);
    keys.n_spans = fill_spans(c, TCU_KEY_WARPGROUPS * TCU_KEY_BLOCK, spans);
    keys.spans = to_card(spans, (size_t)keys.n_spans * sizeof *spans);
    RC(tcu_attention_forward(&p, false, device->stream));
    RC(tcu_attention_dq(&p, device->stream));
    RC(tcu_attention_dkv(&keys, device->stream));
    bad = differing(false, old.o, p.o, (int64_t)nq) +
          differing(true, old.lse, p.lse, (int64_t)heads) +
          differing(false, old.dq, p.dq, (int64_t)nq) +
          differing(false, old.dk, keys.dk, (int64_t)nk) +
          differing(false, old.dv, keys.dv, (int64_t)nk);
    snprintf(what, sizeof what, "%s: bits of warpgroups", name);
    verdict(bad == 0, what, (double)bad);
}

static void attention_case(int heads, int kv, int d, int window)
{
    static const int lengths[] = { 1, 63, 64, 65, 200, 333, 17 };
    char name[96];
    heads_case c = {
        .heads = heads, .kv = kv, .d = d, .window = window, .lengths = lengths, .n_seqs = 7
    };
    for (int s = 0; s < c.n_seqs; s++)
        c.rows += lengths[s];
    size_t nq = (size_t)(c.rows * heads * d), nk = (size_t)(c.rows * kv * d), n_blocks = 97;
    c.q = random_host(nq, 1, 2), c.k = random_host(nk, 2, 2), c.v = random_host(nk, 3, 1),
    c.d_o = random_host(nq, 4, 1);
    c.o = calloc(nq, 8), c.dq = calloc(nq, 8), c.dk = calloc(nk, 8), c.dv = calloc(nk, 8);
    for (int s = 0, row = 0; s < c.n_seqs; row += lengths[s++])
        reference(&c, row, lengths[s]);
    tcu_span *spans = malloc((size_t)c.rows * sizeof *spans);
    tcu_attention p = { .n_heads = heads,
                        .n_kv_heads = kv,
                        .d = d,
                        .window = window,
                        .scale = (float)(1 / sqrt((double)d)) };
    tcu_bf16 *o = card(nq * 2), *o2 = card(nq * 2), *dq = card(nq * 2), *dk = card(nk * 2),
             *dv = card(nk * 2);
    float *delta = card((size_t)(c.rows * heads) * 4), *lse2 = card((size_t)(c.rows * heads) * 4);
    p.q = to_card(c.q, nq * 2), p.k = to_card(c.k, nk * 2), p.v = to_card(c.v, nk * 2),
    p.d_o = to_card(c.d_o, nq * 2);
    p.lse = card((size_t)(c.rows * heads) * 4);
    p.ldk = p.ldv = p.lddv = kv * d;
    p.o = o, p.dq = dq, p.dk = dk, p.dv = dv, p.delta = delta;
    p.n_spans = fill_spans(&c, tcu_span_tokens(heads, kv, false), spans);
    p.spans = to_card(spans, (size_t)p.n_spans * sizeof *spans);
    poison(o, nq * 2), poison(dq, nq * 2), poison(dk, nk * 2), poison(dv, nk * 2);
    RC(tcu_attention_forward(&p, false, device->stream));
    RC(tcu_attention_delta(p.d_o, o, delta, (int64_t)c.rows * heads, d, device->stream));
    RC(tcu_attention_dq(&p, device->stream));
    tcu_attention keys = p;
    keys.n_spans = fill_spans(&c, 64, spans);
    keys.spans = to_card(spans, (size_t)keys.n_spans * sizeof *spans);
    RC(tcu_attention_dkv(&keys, device->stream));
    double off[4] = { distance(o, c.o, nq), distance(dq, c.dq, nq), distance(dk, c.dk, nk),
                      distance(dv, c.dv, nk) };
    static const char *const parts[] = { "o", "dq", "dk", "dv" };
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "attention %d/%d heads of %d, window %d: %s", heads, kv, d,
                 window, parts[i]);
        verdict(off[i] < 1e-2, name, off[i]);
    }
    snprintf(name, sizeof name, "attention %d/%d of %d", heads, kv, d);
    grouped_case(&c, p, keys, spans, name);
    /* packed narrow, paged narrow, paged wide: the same bits */
    uint16_t *pk = calloc(n_blocks * 16 * (size_t)(kv * d), 2),
             *pv = calloc(n_blocks * 16 * (size_t)(kv * d), 2);
    int32_t tables[256], where[8];
    make_pages(&c, pk, pv, tables, n_blocks, where);
    for (int form = 0; form < 3; form++) {
        tcu_attention t = p;
        bool narrow = form < 2;
        t.lse = lse2;
        t.o = o2;
        t.n_spans = fill_spans(&c, tcu_span_tokens(heads, kv, narrow), spans);
        if (form) {
            t.k = to_card(pk, n_blocks * 16 * (size_t)(kv * d) * 2),
            t.v = to_card(pv, n_blocks * 16 * (size_t)(kv * d) * 2);
            t.ldk = t.ldv = 16 * kv * d;
            t.tables = to_card(tables, sizeof tables);
            for (int i = 0, s = -1; i < t.n_spans; i++) {
                s += spans[i].begin == 0;
                spans[i].table = where[s];
            }
        }
        t.spans = to_card(spans, (size_t)t.n_spans * sizeof *spans);
        poison(o2, nq * 2), poison(lse2, (size_t)(c.rows * heads) * 4);
        RC(tcu_attention_forward(&t, narrow, device->stream));
        uint64_t bad = differing(false, o, o2, (int64_t)nq) +
                       differing(true, p.lse, lse2, (int64_t)c.rows * heads);
        snprintf(name, sizeof name, "attention %d/%d of %d: bits, form %d", heads, kv, d, form);
        verdict(bad == 0, name, (double)bad);
    }
}

void check_attention(void)
{
    attention_case(4, 2, 16, 0);
    attention_case(6, 2, 64, 0);
    attention_case(8, 2, 128, 0);
    attention_case(8, 8, 128, 100);
    attention_case(
        14, 2, 96,
        0); /* groups that do not divide 64: rows of a tile end in different key blocks */
    attention_case(10, 2, 128, 0);
    attention_case(32, 2, 64, 70);
}

/* Attention of one decoding step alone. */
typedef struct alone {
    tcu_attention p;
    size_t layers, layer_stride;
} alone;

static void run_alone(void *arg, int turn)
{
    alone *a = arg;
    tcu_attention p = a->p;
    p.k += (size_t)turn % a->layers * a->layer_stride;
    p.v += (size_t)turn % a->layers * a->layer_stride;
    RC(tcu_attention_forward(&p, true, device->stream));
}

void speed_attention(void)
{
    static const int contexts[] = { 64, 256, 1024, 4096 }, batches[] = { 1, 16, 64, 256 };
    int heads = 16, kv = 8, d = 128, layers = 28;
    size_t values = (size_t)(kv * d) * 16, stride = (size_t)layers * 2 * values, n_blocks = 20000;
    tcu_bf16 *cache = card(n_blocks * stride * 2), *q = card((size_t)(256 * heads * d) * 2),
             *o = card((size_t)(256 * heads * d) * 2);
    RC(tcu_random(cache, (int64_t)(n_blocks * stride), 1, 1, device->stream));
    RC(tcu_random(q, 256 * heads * d, 1, 1, device->stream));
    for (int b = 0; b < 4; b++)
        for (int c = 0; c < 4; c++) {
            int batch = batches[b], context = contexts[c], per = context / 16 + 1;
            tcu_span *spans = malloc((size_t)batch * sizeof *spans);
            int32_t *tables = malloc((size_t)(batch * per) * 4);
            for (int i = 0; i < batch; i++)
                spans[i] = (tcu_span){ i - context + 1, context - 1, context, i * per };
            for (int i = 0; i < batch * per; i++)
                tables[i] = (int32_t)((size_t)i * 7919 % n_blocks);
            alone a = { .p = { .n_heads = heads,
                               .n_kv_heads = kv,
                               .d = d,
                               .scale = 0.09f,
                               .n_spans = batch,
                               .q = q,
                               .k = cache,
                               .v = cache + values,
                               .ldk = (int64_t)stride,
                               .ldv = (int64_t)stride,
                               .o = o },
                        .layers = 28,
                        .layer_stride = 2 * values };
            a.p.spans = to_card(spans, (size_t)batch * sizeof *spans);
            a.p.tables = to_card(tables, (size_t)(batch * per) * 4);
            double us = median_us(run_alone, &a, 28, 5),
                   bytes = (double)batch * context * 2 * kv * d * 2;
            printf("attention alone, batch %3d context %4d: %8.1f us, %5.0f GB/s\n", batch, context,
                   us, bytes / us / 1e3);
        }
}
