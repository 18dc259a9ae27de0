/* cuda_check.c - the kernels and the host side of the CUDA backend on a card, against double precision and themselves.
 *
 *     cuda_check products | formats [speed] | twins | attention | rules | parts | hybrid | qwen | experts |
 *                model | sampling | memory | train NAME TOKENS | decode NAME | all
 *
 * Exit status 1 when something is off. Needs a card.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "check_formats.h"
#include "cuda/cuda_codes.h"
#include "check_rules.h"
#include "gpu_world.h"
#include "math/format.h"

static tcu_device *device;
static tinkc_error err;
static int failures;

static void die(const char *what)
{
    printf("FAILED %s: %s\n", what, err.message);
    exit(2);
}

#define CK(x)                                                                                      \
    do {                                                                                           \
        if (!(x))                                                                                  \
            die(#x);                                                                               \
    } while (0)
#define RC(x) CK(tcu_ok(device, (x), #x, &err))

static void verdict(bool ok, const char *what, double value)
{
    printf("%s %-58s %.3g\n", ok ? "ok  " : "FAIL", what, value);
    failures += !ok;
}

static void *card(size_t bytes)
{
    void *p = tcu_take(device, bytes, TCU_FOR_OTHER, &err);
    CK(p);
    return p;
}

static void drop(void *p)
{
    tcu_give(device, p, 0, TCU_FOR_OTHER);
}

static void *to_card(const void *from, size_t bytes)
{
    void *p = card(bytes);
    CK(tcu_upload(device, p, from, bytes, &err));
    CK(tcu_wait(device, &err));
    return p;
}

/* Median of several runs of f, in microseconds; f is called with 0, 1, 2, ... */
typedef void timed_fn(void *arg, int turn);

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static double median_us(timed_fn *f, void *arg, int per, int runs)
{
    float times[64];
    cudaEvent_t a, b;
    cudaEventCreate(&a);
    cudaEventCreate(&b);
    int turn = 0;
    for (int r = -1; r < runs; r++) {
        cudaEventRecord(a, device->stream);
        for (int i = 0; i < per; i++)
            f(arg, turn++);
        cudaEventRecord(b, device->stream);
        cudaEventSynchronize(b);
        if (r >= 0)
            cudaEventElapsedTime(&times[r], a, b);
    }
    qsort(times, (size_t)runs, sizeof *times, by_size);
    cudaEventDestroy(a);
    cudaEventDestroy(b);
    return 1e3 * times[runs / 2] / per;
}

/* ---- products ---- */

typedef struct product_case {
    tcu_product q;
    size_t copies;
    bool small;
} product_case;

static void run_product(void *arg, int turn)
{
    product_case *c = arg;
    tcu_product q = c->q;
    q.w += (size_t)turn % c->copies * (size_t)q.n * (size_t)q.k;
    if (c->small)
        RC(tcu_small(q.wide, q.x, q.w, q.y, q.ldy, q.m, q.n, q.k, NULL, NULL, device->stream));
    else
        CK(tcu_multiply(device, &q, &err));
}

static uint64_t differing(bool wide, const void *a, const void *b, int64_t n)
{
    uint64_t *count;
    cudaMallocHost((void **)&count, 8);
    *count = 0;
    RC(tcu_differ(wide, a, b, n, count, device->stream));
    CK(tcu_wait(device, &err));
    uint64_t r = *count;
    cudaFreeHost(count);
    return r;
}

/* Dense rows, all of them valid. */
static tcu_product product_of(int n, int k, int m, bool transposed, const tcu_bf16 *x,
                              const tcu_bf16 *w, void *y)
{
    return (tcu_product){ .transposed = transposed,
                          .x = x,
                          .w = w,
                          .y = y,
                          .ldx = k,
                          .ldy = n,
                          .m = m,
                          .n = n,
                          .k = k,
                          .valid = m };
}

static void one_product(int n, int k, int m, bool transposed, bool wide, size_t copies,
                        const tcu_bf16 *x, const tcu_bf16 *w, void *y, void *z)
{
    char name[128];
    product_case c = { .q = product_of(n, k, m, transposed, x, w, z), .copies = copies };
    c.q.wide = wide;
    double floor_us = fmax(2.0 * n * k / 4.3e6, 2.0 * m * n * k / 790e6);
    double small = 0;
    uint64_t off = 0;
    if (m <= TCU_SMALL_ROWS && !transposed) {
        c.small = true;
        cudaMemsetAsync(z, 0xee, (size_t)m * (size_t)n * (wide ? 4 : 2), device->stream);
        run_product(&c, 0);
        off = differing(wide, y, z, (int64_t)m * n);
        failures += off != 0;
        small = median_us(run_product, &c, 20, 7);
        c.small = false;
    }
    size_t before = device->gemm.fallbacks;
    cudaMemsetAsync(z, 0xee, (size_t)m * (size_t)n * (wide ? 4 : 2), device->stream);
    double lib = 0;
    uint64_t off_lib = 0;
    {
        run_product(&c, 0);
        off_lib = differing(wide, y, z, (int64_t)m * n);
        failures += off_lib != 0;
        lib = median_us(run_product, &c, m > 4096 ? 3 : 10, 5);
    }
    snprintf(name, sizeof name, "%s %s N %6d K %6d M %6d", transposed ? "NN" : "NT",
             wide ? "fp32" : "bf16", n, k, m);
    printf("%s small %8.1f us (%llu differ)  library %8.1f us (%llu differ%s)  floor %8.1f us  "
           "share %.2f\n",
           name, small, (unsigned long long)off, lib, (unsigned long long)off_lib,
           device->gemm.fallbacks > before ? ", FALLBACK" : "", floor_us, floor_us / lib);
}

/* y = bf16(c + bf16(x w)), c random: the library against our kernel. */
static void added_product(int n, int k, int m, bool transposed, const tcu_bf16 *x,
                          const tcu_bf16 *w, void *y, void *z)
{
    size_t bytes = (size_t)m * (size_t)n * sizeof(tcu_bf16);
    tcu_product q = product_of(n, k, m, transposed, x, w, z);
    size_t before = device->gemm.fallbacks;
    q.add = true;
    CK(tcu_plan_product(device, &q, &err));
    RC(cudaMemcpyAsync(y, x, bytes, cudaMemcpyDeviceToDevice, device->stream));
    RC(cudaMemcpyAsync(z, x, bytes, cudaMemcpyDeviceToDevice, device->stream));
    RC(tcu_chain(transposed, false, true, x, k, w, transposed ? n : k, y, n, m, n, k,
                 device->stream));
    CK(tcu_multiply(device, &q, &err));
    uint64_t off = differing(false, y, z, (int64_t)m * n);
    failures += off != 0;
    printf("%s added to y N %6d K %6d M %6d (%llu differ%s)\n", transposed ? "NN" : "NT", n, k, m,
           (unsigned long long)off, device->gemm.fallbacks > before ? ", FALLBACK" : "");
}

static void check_products(void)
{
    static const int shapes[][2] = { { 4096, 1024 },  { 1024, 3072 }, { 6144, 1024 },
                                     { 6144, 4096 },  { 4096, 4096 }, { 24576, 4096 },
                                     { 4096, 12288 }, { 2560, 9728 }, { 19456, 2560 } };
    static const int rows[] = { 1, 8, 17, 64, 128, 256, 2048, 16384 };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        int n = shapes[s][0], k = shapes[s][1];
        size_t one = (size_t)n * (size_t)k, copies = (size_t)200e6 / (one * 2) + 1;
        tcu_bf16 *x = card((size_t)16384 * (size_t)(k > n ? k : n) * 2),
                 *w = card(one * copies * 2);
        void *y = card((size_t)16384 * (size_t)(k > n ? k : n) * 4),
             *z = card((size_t)16384 * (size_t)(k > n ? k : n) * 4);
        RC(tcu_random(x, 16384ll * (k > n ? k : n), 1, 1, device->stream));
        for (size_t c = 0; c < copies; c++)
            RC(tcu_random(w + c * one, (int64_t)one, 2, .05f, device->stream));
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            RC(tcu_chain(false, false, false, x, k, w, k, y, n, rows[r], n, k, device->stream));
            one_product(n, k, rows[r], false, false, copies, x, w, y, z);
        }
        for (size_t r = 3; r < sizeof rows / sizeof *rows; r++)
            added_product(n, k, rows[r], false, x, w, y, z);
        added_product(k, n, 16384, true, x, w, y, z);
        RC(tcu_chain(true, false, false, x, n, w, k, y, k, 2048, k, n, device->stream));
        one_product(k, n, 2048, true, false, copies, x, w, y, z);
        RC(tcu_chain(false, true, false, x, k, w, k, y, n, 8, n, k, device->stream));
        one_product(n, k, 8, false, true, copies, x, w, y, z);
        drop(x), drop(w), drop(y), drop(z);
    }
    printf("products: %zu choices checked, %zu fallbacks\n", device->gemm.checked,
           device->gemm.fallbacks);
}

/* ---- attention ---- */

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
    CK(tcu_download(device, got, got_card, n * 2, &err));
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
    cudaMemset(p.o, 0xee, nq * 2), cudaMemset(p.dq, 0xee, nq * 2),
        cudaMemset(p.lse, 0xee, heads * 4), cudaMemset(keys.dk, 0xee, nk * 2),
        cudaMemset(keys.dv, 0xee, nk * 2);
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
    cudaMemset(o, 0xee, nq * 2), cudaMemset(dq, 0xee, nq * 2), cudaMemset(dk, 0xee, nk * 2),
        cudaMemset(dv, 0xee, nk * 2);
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
        cudaMemset(o2, 0xee, nq * 2), cudaMemset(lse2, 0xee, (size_t)(c.rows * heads) * 4);
        RC(tcu_attention_forward(&t, narrow, device->stream));
        uint64_t bad = differing(false, o, o2, (int64_t)nq) +
                       differing(true, p.lse, lse2, (int64_t)c.rows * heads);
        snprintf(name, sizeof name, "attention %d/%d of %d: bits, form %d", heads, kv, d, form);
        verdict(bad == 0, name, (double)bad);
    }
}

static void check_attention(void)
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

/* ---- models ---- */

typedef struct run { /* a microbatch and what comes of it */
    const float *weights;
    float *lp;
    size_t calls;
} run;

static void losses(void *user, size_t first, size_t n, const float *lp, float *g)
{
    run *r = user;
    r->calls++;
    for (size_t i = 0; i < n; i++) {
        r->lp[first + i] = lp[i];
        if (g)
            g[i] = -r->weights[first + i];
    }
}

typedef struct data {
    size_t n, n_seqs;
    int32_t *ids, *positions, *targets;
    int64_t starts[64];
    float *weights;
} data;

static data make_data(const int *lengths, size_t n_seqs, size_t vocab, uint64_t seed)
{
    data d = { .n_seqs = n_seqs };
    for (size_t s = 0; s < n_seqs; s++) {
        d.starts[s] = (int64_t)d.n;
        d.n += (size_t)lengths[s];
    }
    d.starts[n_seqs] = (int64_t)d.n;
    d.ids = malloc(d.n * 4), d.positions = malloc(d.n * 4), d.targets = malloc(d.n * 4),
    d.weights = malloc(d.n * 4);
    float *f = malloc(d.n * 4);
    random_floats(f, d.n, seed, 1);
    for (size_t i = 0, s = 0; i < d.n; i++) {
        while ((int64_t)i >= d.starts[s + 1])
            s++;
        d.ids[i] = (int32_t)((f[i] * 0.5f + 0.5f) * (float)(vocab - 1));
        d.positions[i] = (int32_t)((int64_t)i - d.starts[s]);
        d.weights[i] = i % 5 == 0 ? 0 : 1 + 0.5f * f[i];
    }
    for (size_t i = 0; i < d.n; i++)
        d.targets[i] = d.ids[(i * 7 + 3) % d.n];
    for (size_t s = 0; s < n_seqs; s++)
        for (int64_t i = d.starts[s]; i + 1 < d.starts[s + 1]; i++)
            d.targets[i] = d.ids[i + 1];
    free(f);
    return d;
}

static tke_microbatch batch_of(const data *d, const tke_segment *segments, size_t n_segments,
                               size_t rank, int32_t depth, run *r)
{
    return (tke_microbatch){ .size = { .n = d->n, .max_rank = rank, .max_k = 1, .depth = depth },
                             .ids = d->ids,
                             .positions = d->positions,
                             .starts = d->starts,
                             .n_seqs = d->n_seqs,
                             .segments = segments,
                             .n_segments = n_segments,
                             .attn = true,
                             .targets = d->targets,
                             .losses = losses,
                             .user = r };
}

/* Where the sequence's state is, if the model has one. */
static int32_t slot_of(tcu_sampler *s, size_t seq)
{
    return tcu_sampler_cache(s)->n_states ? (int32_t)seq : -1;
}

/* Log-probs of the rows of sequence `seq` by the sampler: prompts in chunks of `chunk` (0 = whole), bits in lp. */
static void sample_rows(tcu_sampler *s, const data *d, size_t seq, size_t chunk,
                        const tke_lora *lora, const int32_t *blocks, float *lp)
{
    size_t length = (size_t)(d->starts[seq + 1] - d->starts[seq]), row = (size_t)d->starts[seq];
    for (size_t at = 0; at < length;) {
        size_t n = !chunk || length - at < chunk ? length - at : chunk;
        tke_segment segment = { .begin = 0, .end = n, .lora = lora };
        tke_step_seq q = { 0, n, at, blocks, slot_of(s, seq) };
        size_t *wants = malloc(n * sizeof *wants);
        tke_score *scores = malloc(n * sizeof *scores);
        for (size_t i = 0; i < n; i++) {
            wants[i] = i;
            scores[i] = (tke_score){ i, d->targets[row + at + i], &lp[row + at + i] };
        }
        tke_step j = { .n = n,
                       .ids = d->ids + row + at,
                       .positions = d->positions + row + at,
                       .segments = &segment,
                       .n_segments = 1,
                       .seqs = &q,
                       .n_seqs = 1,
                       .wants = wants,
                       .n_wants = n,
                       .scores = scores,
                       .n_scores = n };
        CK(tcu_sampler_run(s, &j, &err));
        at += n;
        free(wants), free(scores);
    }
}

static size_t count_bits(const float *a, const float *b, size_t n)
{
    size_t off = 0;
    for (size_t i = 0; i < n; i++)
        off += memcmp(&a[i], &b[i], 4) != 0;
    return off;
}

/* A step of pure decoding: one row, one wanted row and one draw of each of n sequences. */
static tke_step decoding(size_t n, const int32_t *ids, const int32_t *positions,
                         const tke_segment *segment, const tke_step_seq *seqs, const size_t *wants,
                         const tke_draw *draws)
{
    return (tke_step){ .n = n,
                       .ids = ids,
                       .positions = positions,
                       .segments = segment,
                       .n_segments = 1,
                       .seqs = seqs,
                       .n_seqs = n,
                       .wants = wants,
                       .n_wants = n,
                       .draws = draws,
                       .n_draws = n };
}

/* Copies the state of a slot, if there are any. */
static void keep_state(tcu_sampler *s, size_t to, size_t from)
{
    CK(slot_of(s, 0) < 0 || tcu_sampler_copy_state(s, (int32_t)to, (int32_t)from, &err));
}

/* All sequences decode together, one token each a step, with graphs; greedy draws are thrown away. */
static void decode_rows(tcu_sampler *s, const data *d, const tke_lora *lora, int32_t (*blocks)[64],
                        float *lp)
{
    size_t longest = 0;
    for (size_t i = 0; i < d->n_seqs; i++)
        longest = d->starts[i + 1] - d->starts[i] > (int64_t)longest
                      ? (size_t)(d->starts[i + 1] - d->starts[i])
                      : longest;
    tke_sample_rule greedy = { .top_p = 1 };
    for (size_t pos = 0; pos < longest; pos++) {
        int32_t ids[64], positions[64], tokens[64];
        float ignored[64];
        bool bad[64];
        size_t wants[64], n = 0;
        tke_step_seq seqs[64];
        tke_draw draws[64];
        tke_score scores[64];
        for (size_t i = 0; i < d->n_seqs; i++) {
            if ((int64_t)pos >= d->starts[i + 1] - d->starts[i])
                continue;
            size_t row = (size_t)d->starts[i] + pos;
            ids[n] = d->ids[row], positions[n] = (int32_t)pos, wants[n] = n;
            seqs[n] = (tke_step_seq){ n, 1, pos, blocks[i], slot_of(s, i) };
            keep_state(s, i + 8, i);
            draws[n] =
                (tke_draw){ n, &greedy, 1, 0, 0, &tokens[n], &ignored[n], &bad[n], NULL, NULL, 0 };
            scores[n] = (tke_score){ n, d->targets[row], &lp[row] };
            n++;
        }
        tke_segment segment = { .begin = 0, .end = n, .lora = lora };
        tke_step j = decoding(n, ids, positions, &segment, seqs, wants, draws);
        CK(tcu_sampler_run(s, &j, &err)); /* as a graph */
        for (size_t i = 0; i < n; i++)
            if (seqs[i].state >= 0)
                keep_state(s, (size_t)seqs[i].state, (size_t)seqs[i].state + 8);
        j.scores = scores, j.n_scores = n;
        CK(tcu_sampler_run(s, &j, &err)); /* plainly, for the log-probs */
        for (size_t i = 0; i < n; i++)
            if (ids[i] == d->targets[(size_t)d->starts[0]] && bad[i])
                failures++;
    }
}

/* One decoding step of `n` sequences at position 0, drawn at temperature 1 under the masks, each with one bias or none. */
static void draw_step(tcu_sampler *s, const data *d, const tke_lora *lora, int32_t (*blocks)[64],
                      size_t n, const uint32_t *const *masks, const tke_bias *const *biases,
                      int32_t *tokens, float *lp)
{
    tke_sample_rule rule = { .temperature = 1, .top_p = 0.9 };
    int32_t ids[8], positions[8] = { 0 };
    size_t wants[8];
    bool bad[8];
    tke_step_seq seqs[8];
    tke_draw draws[8];
    tke_segment segment = { .begin = 0, .end = n, .lora = lora };
    for (size_t i = 0; i < n; i++) {
        ids[i] = d->ids[i], wants[i] = i;
        seqs[i] = (tke_step_seq){ i, 1, 0, blocks[i], slot_of(s, i) };
        draws[i] = (tke_draw){
            i, &rule, 9, 0, 0, &tokens[i], &lp[i], &bad[i], masks[i], biases[i], biases[i] != NULL
        };
    }
    tke_step j = decoding(n, ids, positions, &segment, seqs, wants, draws);
    CK(tcu_sampler_run(s, &j, &err));
    for (size_t i = 0; i < n; i++)
        failures += bad[i];
}

/* Constraints come and go while one graph is replayed; rows beside them keep their bits. */
static void mask_case(tcu_sampler *s, const data *d, const tke_lora *lora, int32_t (*blocks)[64],
                      size_t vocab)
{
    enum { N = 6, WORDS = 32 };
    const uint32_t *none[N] = { NULL }, *masks[N] = { NULL };
    const tke_bias up = { 3, 1e4f }, *flat[N] = { NULL }, *biases[N] = { NULL, NULL, &up };
    uint32_t one[WORDS] = { 0 }, odd[WORDS];
    int32_t free_tokens[N], tokens[N];
    float free_lp[N], lp[N];
    size_t off = 0, outside = 0;
    one[(vocab - 1) / 32] = UINT32_C(1) << (vocab - 1) % 32;
    memset(odd, 0xaa, sizeof odd);
    masks[1] = one, masks[4] = odd;
    for (int turn = 0; turn < 4; turn++) { /* the second one captures, the others replay */
        draw_step(s, d, lora, blocks, N, none, flat, free_tokens, free_lp);
        draw_step(s, d, lora, blocks, N, masks, biases, tokens, lp);
        outside += tokens[1] != (int32_t)vocab - 1 || tokens[4] % 2 == 0 || tokens[2] != up.token;
        for (size_t i = 0; i < N; i++)
            off += !masks[i] && !biases[i] &&
                   (tokens[i] != free_tokens[i] || memcmp(&lp[i], &free_lp[i], 4));
    }
    verdict(outside == 0, "  constraints and biases: tokens outside them", (double)outside);
    verdict(off == 0, "  bits: rows beside constrained ones", (double)off);
}

/* Sends every block to the host, as a card without memory does. */
static void send_away(void)
{
    tke_residence_turn(&device->residence);
    while (tke_residence_make_room(&device->residence))
        ;
}

/* A sampler whose cache has all its memory. */
static tcu_sampler *full_sampler(tcu_model *m, const tke_device_sampler_options *o)
{
    tcu_sampler *s = tcu_sampler_new(m, o, &err);
    const tke_device_cache *c = s ? tcu_sampler_cache(s) : NULL;
    for (size_t first = 0; c && c->slab_blocks && first < c->n_blocks; first += c->slab_blocks)
        if (!tcu_sampler_commit(s, first / c->slab_blocks, &err))
            return NULL;
    return s;
}

/* Which log-probs and which factors differ. */
static void print_difference(const tke_lora_layout *l, const float *a, const float *b,
                             const float *lp, const float *lp2, size_t n)
{
    if (count_bits(lp, lp2, n) + count_bits(a, b, l->n_floats) == 0)
        return;
    printf("  log-probs: %zu\n", count_bits(lp, lp2, n));
    for (size_t i = 0; i < l->n_groups; i++) {
        const tke_lora_group *g = &l->groups[i];
        size_t of_a = g->n * g->n_a * g->rank * g->in;
        printf("  group %zu: A %zu of %zu", i, count_bits(a + g->a, b + g->a, of_a), of_a);
        for (size_t j = 0; j < g->n; j++) {
            size_t of_b = g->n_b * g->out[j] * g->rank;
            printf(", B %zu of %zu", count_bits(a + g->b[j], b + g->b[j], of_b), of_b);
        }
        printf("\n");
    }
}

/* Log-probs and gradients of all rows. */
static void against_double(const world *w, const shape *sh, const tke_lora_layout *l,
                           const float *theta, const float *grads, const data *d, double scale,
                           const float *lp, size_t rank, uint32_t train)
{
    char name[128];
    double *lp_ref = malloc(d->n * 8);
    float *other = malloc(l->n_floats * 4);
    world_loss(w, l, theta, scale, d->ids, d->starts, d->n_seqs, d->targets, d->weights, lp_ref);
    double worst = 0, mean = 0;
    for (size_t i = 0; i < d->n; i++) {
        double off = fabs((double)lp[i] - lp_ref[i]);
        worst = off > worst || isnan(off) ? off : worst;
        mean += off / (double)d->n;
    }
    snprintf(name, sizeof name, "%s rank %zu train %u: log-probs, worst", sh->name, rank, train);
    bool chosen = sh->top < sh->experts; /* near ties fall differently in double: a jump */
    verdict(worst < (chosen ? 20 : sh->oss ? 9e-2 : 6e-2), name, worst);
    verdict(mean < (chosen ? 0.2 : 1.3e-2), "  mean", mean); /* weights larger than a trained model's */
    /* along its own direction, and along a random one */
    double norm = 0, along = 0, rn = 0;
    for (size_t i = 0; i < l->n_floats; i++)
        norm += (double)grads[i] * grads[i];
    norm = sqrt(norm);
    random_floats(other, l->n_floats, 77, 1);
    for (int dir = 0; dir < 2; dir++) {
        double eps = 1e-3, value[2], expect = 0, length = 0;
        for (size_t i = 0; i < l->n_floats; i++) {
            double v = dir ? (grads[i] > 0   ? 1
                              : grads[i] < 0 ? -1
                                             : 0) *
                                 fabs((double)other[i]) / sqrt((double)l->n_floats)
                           : grads[i] / norm;
            expect += v * grads[i];
            length += v * v;
        }
        float *moved = malloc(l->n_floats * 4);
        for (int side = 0; side < 2; side++) {
            for (size_t i = 0; i < l->n_floats; i++) {
                double v = dir ? (grads[i] > 0   ? 1
                                  : grads[i] < 0 ? -1
                                                 : 0) *
                                     fabs((double)other[i]) / sqrt((double)l->n_floats)
                               : grads[i] / norm;
                moved[i] = theta[i] + (float)((side ? -eps : eps) * v);
            }
            value[side] = world_loss(w, l, moved, scale, d->ids, d->starts, d->n_seqs, d->targets,
                                     d->weights, NULL);
        }
        free(moved);
        along = (value[0] - value[1]) / (2 * eps);
        rn = along / expect;
        verdict(chosen || fabs(rn - 1) < 3e-2,
                dir ? "  gradient along another direction / expected"
                    : "  gradient along itself / its norm",
                rn);
        (void)length;
    }
    free(lp_ref), free(other);
}

static void model_case(const shape *sh, size_t rank, uint32_t train)
{
    static const int lengths[] = { 40, 7, 1, 75, 16, 130 };
    char name[128];
    world *w = world_new(sh, true, 5);
    tke_lora_layout *l = layout_new(w, rank, train);
    float *theta = calloc(l->n_floats, 4), *grads = malloc(l->n_floats * 4),
          *other = malloc(l->n_floats * 4);
    for (size_t i = 0; i < l->n_groups; i++) {
        const tke_lora_group *g = &l->groups[i];
        if (g->n)
            random_floats(theta + g->a, g->n_a * g->n * rank * g->in, 100 + i * 3,
                          1 / sqrtf((float)g->in));
        for (size_t j = 0; j < g->n; j++)
            random_floats(theta + g->b[j], g->n_b * g->out[j] * rank, 900 + i * 3 + j, 0.2f);
    }
    data d = make_data(lengths, 6, sh->vocab, 11);
    double scale = 32.0 / (double)rank;
    float *lp = malloc(d.n * 4), *lp2 = malloc(d.n * 4);
    tcu_model *m = tcu_model_new(device, &w->model, &err);
    CK(m);
    tcu_block *weights = tcu_block_new(device, l->n_floats, &err),
              *g = tcu_block_new(device, l->n_floats, &err);
    CK(weights && g && tcu_block_write(weights, theta, &err));
    tke_lora lora = { l, (tke_block *)weights, (float)scale };
    tke_segment segment = { .begin = 0, .end = d.n, .lora = &lora, .grads = (tke_block *)g };
    tke_device_trainer_options o = { .memory_bytes = (size_t)8 << 30 };
    tcu_trainer *t = tcu_trainer_new(m, &o, &err);
    CK(t);
    run r = { d.weights, lp, 0 };
    tke_microbatch b =
        batch_of(&d, &segment, 1, rank,
                 train & ~(uint32_t)TKE_TRAIN_UNEMBED ? TKE_DEPTH_ALL : TKE_DEPTH_HEAD, &r);
    b.attn = train & TKE_TRAIN_ATTN;
    CK(tcu_trainer_run(t, &b, &err));
    CK(tcu_block_read(g, grads, &err));
    if (!sh->pattern) /* whose arithmetic in double is the golden sets' */
        against_double(w, sh, l, theta, grads, &d, scale, lp, rank, train);
    /* recomputed, split in two, in company: the same bits */
    o.keep = TKE_KEEP_NONE;
    tcu_trainer *t2 = tcu_trainer_new(m, &o, &err);
    CK(tcu_block_zero(g, &err));
    r.lp = lp2;
    CK(tcu_trainer_run(t2, &b, &err) && tcu_block_read(g, other, &err));
    snprintf(name, sizeof name, "%s rank %zu train %u, bits: recomputed", sh->name, rank, train);
    verdict(count_bits(lp, lp2, d.n) + count_bits(grads, other, l->n_floats) == 0, name, (double)count_bits(grads, other, l->n_floats));
    CK(tcu_block_zero(g, &err));
    for (int half = 0; half < 2; half++) {
        data part = d;
        size_t s0 = half ? 3 : 0, s1 = half ? 6 : 3, row = (size_t)d.starts[s0];
        part.n_seqs = 3;
        for (size_t i = 0; i <= 3; i++)
            part.starts[i] = d.starts[s0 + i] - d.starts[s0];
        part.n = (size_t)(d.starts[s1] - d.starts[s0]);
        part.ids += row, part.positions += row, part.targets += row, part.weights += row;
        run rp = { part.weights, lp2 + row, 0 };
        tke_segment sp = segment;
        sp.end = part.n;
        tke_microbatch bp = batch_of(&part, &sp, 1, rank, b.size.depth, &rp);
        bp.attn = b.attn;
        CK(tcu_trainer_run(t, &bp, &err));
    }
    CK(tcu_block_read(g, other, &err));
    print_difference(l, grads, other, lp, lp2, d.n);
    verdict(count_bits(lp, lp2, d.n) + count_bits(grads, other, l->n_floats) == 0,
            "  bits: split in two",
            (double)(count_bits(lp, lp2, d.n) + count_bits(grads, other, l->n_floats)));
    /* trainer = sampler */
    tke_device_sampler_options so = { .cache_bytes = 64 << 20, .max_rows = 512, .max_seqs = 64 };
    tcu_sampler *s = full_sampler(m, &so);
    CK(s);
    int32_t blocks[6][64];
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 64; j++)
            blocks[i][j] = (int32_t)((size_t)(i * 64 + j) % tcu_sampler_cache(s)->n_blocks);
    static const size_t chunks[] = { 0, 1, 16, 37 };
    for (int c = 0; c < 4; c++) {
        memset(lp2, 0, d.n * 4);
        for (size_t i = 0; i < 6; i++)
            sample_rows(s, &d, i, chunks[c], &lora, blocks[i], lp2);
        snprintf(name, sizeof name, "  bits: trainer = sampler, chunks of %zu", chunks[c]);
        verdict(count_bits(lp, lp2, d.n) == 0, name, (double)count_bits(lp, lp2, d.n));
    }
    memset(lp2, 0, d.n * 4);
    decode_rows(s, &d, &lora, blocks, lp2);
    verdict(count_bits(lp, lp2, d.n) == 0, "  bits: trainer = sampler, decoding in company",
            (double)count_bits(lp, lp2, d.n));
    mask_case(s, &d, &lora, blocks, sh->vocab);
    /* an adapter that waited on the host */
    CK(tcu_block_zero(g, &err));
    send_away();
    bool away = weights->host && g->host && !weights->data && !weights->operands;
    CK(tcu_trainer_run(t, &b, &err));
    send_away();
    CK(tcu_block_read(g, other, &err));
    size_t off = count_bits(lp, lp2, d.n) + count_bits(grads, other, l->n_floats);
    memset(lp2, 0, d.n * 4);
    for (size_t i = 0; i < 6; i++)
        sample_rows(s, &d, i, 0, &lora, blocks[i], lp2);
    off += count_bits(lp, lp2, d.n);
    verdict(away && off == 0, "  bits: adapter back from the host", (double)off);
    tcu_sampler_free(s), tcu_trainer_free(t), tcu_trainer_free(t2), tcu_block_free(weights),
        tcu_block_free(g), tcu_model_free(m);
}

/* n sequences decode `length` tokens each, in one launch a step or layer by layer: drawn tokens and log-probs. */
static void decode_few(tcu_sampler *s, size_t n, size_t length, size_t vocab, const tke_lora *lora,
                       bool layered, int32_t *tokens, float *lp)
{
    enum { PER = 128 };
    int32_t blocks[TCU_DECODE_ROWS][PER], ids[TCU_DECODE_ROWS], positions[TCU_DECODE_ROWS];
    bool bad[TCU_DECODE_ROWS];
    size_t wants[TCU_DECODE_ROWS];
    tke_sample_rule greedy = { .top_p = 1, .logprobs = true };
    tke_segment segment = { .begin = 0, .end = n, .lora = lora };
    tke_step_seq seqs[TCU_DECODE_ROWS];
    tke_draw draws[TCU_DECODE_ROWS];
    device->layered = layered;
    for (size_t i = 0; i < n; i++)
        for (size_t b = 0; b < PER; b++) /* places of its own for each way */
            blocks[i][b] = (int32_t)((i * PER + b) * 2 + layered);
    for (size_t pos = 0; pos < length; pos++) {
        for (size_t i = 0; i < n; i++) {
            size_t own = pos / (i + 1); /* rows at different positions */
            ids[i] = (int32_t)((own * 31 + i * 7) % vocab);
            positions[i] = (int32_t)own;
            wants[i] = i;
            seqs[i] = (tke_step_seq){ i, 1, own, blocks[i], -1 };
            draws[i] =
                (tke_draw){ i,       &greedy, 1,    0, 0, &tokens[pos * n + i], &lp[pos * n + i],
                            &bad[i], NULL,    NULL, 0 };
        }
        tke_step j = decoding(n, ids, positions, &segment, seqs, wants, draws);
        CK(tcu_sampler_run(s, &j, &err));
    }
    device->layered = false;
}

/* An adapter with random numbers. */
static tke_lora random_lora(const world *w, size_t rank, uint32_t train, uint64_t seed)
{
    tke_lora_layout *l = layout_new(w, rank, train);
    float *theta = malloc(l->n_floats * 4);
    random_floats(theta, l->n_floats, seed, 0.2f);
    tcu_block *weights = tcu_block_new(device, l->n_floats, &err);
    CK(weights && tcu_block_write(weights, theta, &err));
    free(theta);
    return (tke_lora){ l, (tke_block *)weights, 0.75f };
}

/* rank 0: without an adapter */
static void few_case(const shape *sh, size_t length, size_t rank, uint32_t train)
{
    world *w = world_new(sh, true, 9);
    tcu_model *m = tcu_model_new(device, &w->model, &err);
    tke_lora lora = { 0 };
    if (rank)
        lora = random_lora(w, rank, train, 77);
    tke_device_sampler_options so = { .cache_bytes = (size_t)1 << 30,
                                      .max_rows = 64,
                                      .max_seqs = 64 };
    tcu_sampler *s = m ? full_sampler(m, &so) : NULL;
    CK(s);
    for (size_t n = 1; n <= TCU_DECODE_ROWS; n++) {
        size_t count = n * length, tokens_off = 0;
        int32_t *a = malloc(count * 4), *b = malloc(count * 4);
        float *lp = malloc(count * 4), *lp2 = malloc(count * 4);
        decode_few(s, n, length, sh->vocab, rank ? &lora : NULL, true, a, lp);
        decode_few(s, n, length, sh->vocab, rank ? &lora : NULL, false, b, lp2);
        for (size_t i = 0; i < count; i++)
            tokens_off += a[i] != b[i];
        char name[96];
        size_t first = 0;
        while (first < count && a[first] == b[first] && memcmp(lp + first, lp2 + first, 4) == 0)
            first++;
        if (first < count)
            printf("first difference: step %zu, row %zu: token %d, %a against %d, %a\n", first / n,
                   first % n, b[first], (double)lp2[first], a[first], (double)lp[first]);
        snprintf(name, sizeof name,
                 "  bits: %s rank %zu train %u, %zu rows at once = layer by layer", sh->name, rank,
                 train, n);
        verdict(tokens_off + count_bits(lp, lp2, count) == 0, name,
                (double)(tokens_off + count_bits(lp, lp2, count)));
        free(a), free(b), free(lp), free(lp2);
    }
    tcu_sampler_free(s), tcu_block_free((tcu_block *)(uintptr_t)lora.weights), tcu_model_free(m);
    world_free(w);
}

/* A model's log-probs and gradients, trained and sampled: out[0] of lp is the trainer's. */
typedef struct results {
    float *lp[3], *grads;
} results;

static results run_model(const world *w, const tke_lora_layout *l, const float *theta, const data *d)
{
    static const size_t chunks[] = { 0, 37 };
    results r = { .grads = malloc(l->n_floats * 4) };
    tcu_model *m = tcu_model_new(device, (tke_model *)(uintptr_t)&w->model, &err);
    tcu_block *weights = tcu_block_new(device, l->n_floats, &err), *g = tcu_block_new(device, l->n_floats, &err);
    CK(m && weights && g && tcu_block_write(weights, theta, &err));
    tke_lora lora = { l, (tke_block *)weights, 0.75f };
    tke_segment segment = { .begin = 0, .end = d->n, .lora = &lora, .grads = (tke_block *)g };
    tke_device_trainer_options o = { .memory_bytes = (size_t)8 << 30 };
    tke_device_sampler_options so = { .cache_bytes = 64 << 20, .max_rows = 512, .max_seqs = 64 };
    tcu_trainer *t = tcu_trainer_new(m, &o, &err);
    tcu_sampler *s = full_sampler(m, &so);
    int32_t blocks[6][64];
    for (int i = 0; i < 3; i++)
        r.lp[i] = calloc(d->n, 4);
    run turn = { d->weights, r.lp[0], 0 };
    tke_microbatch b = batch_of(d, &segment, 1, l->rank, TKE_DEPTH_ALL, &turn);
    CK(t && s && tcu_trainer_run(t, &b, &err) && tcu_block_read(g, r.grads, &err));
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 64; j++)
            blocks[i][j] = (int32_t)((size_t)(i * 64 + j) % tcu_sampler_cache(s)->n_blocks);
    for (int c = 0; c < 2; c++)
        for (size_t i = 0; i < 6; i++)
            sample_rows(s, d, i, chunks[c], &lora, blocks[i], r.lp[1]);
    decode_rows(s, d, &lora, blocks, r.lp[2]);
    tcu_sampler_free(s), tcu_trainer_free(t), tcu_block_free(weights), tcu_block_free(g), tcu_model_free(m);
    return r;
}

/* A model with packed matrices and the bf16 model that it stands for: the same bits. */
static void twin_case(const shape *sh)
{
    static const int lengths[] = { 40, 7, 1, 75, 16, 130 };
    char name[128];
    world *w = world_new(sh, true, 5);
    tke_lora_layout *l = layout_new(w, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP | TKE_TRAIN_UNEMBED);
    float *theta = malloc(l->n_floats * 4);
    random_floats(theta, l->n_floats, 5, 0.05f);
    data d = make_data(lengths, 6, sh->vocab, 11);
    results here = run_model(w, l, theta, &d);
    world_unpack(w);
    results twin = run_model(w, l, theta, &d);
    snprintf(name, sizeof name, "bits: %s, %s: packed = its unpacked twin", sh->name, sh->format);
    size_t off = count_bits(here.lp[0], twin.lp[0], d.n) + count_bits(here.grads, twin.grads, l->n_floats);
    verdict(off == 0 && isfinite(here.lp[0][5]), name, (double)off);
    off = count_bits(here.lp[0], here.lp[1], d.n) + count_bits(here.lp[0], here.lp[2], d.n);
    verdict(off == 0, "  trainer = sampler, prompts and decoding", (double)off);
}

static void check_twins(void)
{
    static const char *const names[] = { "mixed", "Q4_0", "NF4", "Q6_K" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const shape llama = { "llama", 256,   512,   2, 8, 2, 32, 512, 512, i % 2 == 0, true, false,
                              .window = 0, .format = names[i] };
        twin_case(&llama);
    }
}

static void check_few(void)
{
    static const shape qwen3 = { "qwen3", 1024, 1536, 3,    16,    8, 128,
                                 2000,    2048, true, true, false, .window = 0 };
    static const shape small = { "narrow heads", 256,  384,   3, 4, 2, 64, 500, 512,
                                 true,           true, false, .window = 0 };
    static const shape qwen2 = {
        "qwen2", 192, 320, 2, 6, 2, 128, 333, 512, true, false, true, .window = 100
    };
    /* gate and up have more pieces in a block than an instruction takes */
    static const shape broad = {
        "broad", 512, 12288, 2, 8, 2, 128, 2000, 512, true, true, false, .window = 0
    };
    const uint32_t layers = TKE_TRAIN_ATTN | TKE_TRAIN_MLP;
    few_case(&qwen3, 1200, 0, 0);
    few_case(&small, 200, 0, 0);
    few_case(&qwen2, 300, 0, 0);
    few_case(&qwen3, 300, 32, layers | TKE_TRAIN_UNEMBED);
    few_case(&small, 200, 8, layers);
    few_case(&small, 200, 64, TKE_TRAIN_MLP);
    few_case(&qwen2, 300, 20, TKE_TRAIN_ATTN | TKE_TRAIN_UNEMBED);
    few_case(&broad, 100, 32, layers | TKE_TRAIN_UNEMBED);
}

/* Odd sizes: an expert's width is not a multiple of 8, experts are not one of 16. */
static void check_experts(void)
{
    static const shape all = {
        "all experts", 96, 20, 2, 4, 2, 32, 300, 512, false, true, .experts = 5, .top = 5
    };
    static const shape some = {
        "experts", 192, 44, 3, 4, 2, 64, 300, 512, true, true, .experts = 21, .top = 3
    };
    static const shape oss = { "gpt-oss", 96,     64,           2,       8,   2,   32,
                               300,       512,    false,        false,   true, 50,
                               .experts = 4, .top = 4, .oss = true };
    static const shape oss_some = { "gpt-oss, some", 96,  64,    1,     8,    2, 64,
                                    300,             512, false, false, true, 50,
                                    .experts = 9, .top = 2, .oss = true };
    model_case(&all, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&oss, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&some, 20, TKE_TRAIN_MLP);
    model_case(&oss_some, 32, TKE_TRAIN_ATTN | TKE_TRAIN_MLP | TKE_TRAIN_UNEMBED);
}

/* Layers of one part each, with states. */
static void check_hybrid(void)
{
    static const shape nemotron = { "nemotron", 64, 40, 7, 4, 2, 16, 300, 512, .experts = 8, .top = 3,
                                    .pattern = "MEM*-EM", .shared = 56, .space_heads = 4,
                                    .space_dim = 16, .state = 24, .groups = 2 };
    static const shape odd = { "nemotron odd", 48, 24, 4, 4, 2, 10, 300, 512, .experts = 8, .top = 2,
                               .pattern = "M*ME", .space_heads = 6, .space_dim = 5, .state = 7,
                               .groups = 2 };
    model_case(&nemotron, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&nemotron, 20, TKE_TRAIN_MLP);
    model_case(&odd, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP | TKE_TRAIN_UNEMBED);
}

/* Parts of Qwen3.5, its experts' and Nemotron's, but for the rules with a state. */
static void check_parts(void)
{
    static const shape gated = { "gate, heads of 256, a quarter rotates", 192,  200, 2, 4, 2, 256, 300, 512,
                                 .tied = true, .qk_norm = true, .gate = true, .still = 192 };
    static const shape odd = { "heads of 10, gate", 64, 36, 2, 4, 2, 10, 300, 512, .qk_norm = true,
                               .gate = true, .still = 6 };
    static const shape whole = { "heads of 160", 96, 64, 2, 6, 1, 160, 300, 512, .bias = true, .window = 50 };
    static const shape still = { "no rotation, squared ReLU", 96, 52, 3, 8, 2, 64, 300, 512, .still = 64, .squared = true };
    static const shape shared = { "shared expert with a gate", 96, 20, 2, 4, 2, 32, 300, 512,
                                  .experts = 5, .top = 5, .shared = 28, .shared_gate = true };
    static const shape sigmoids = { "all experts, sigmoids, squared ReLU, shared", 96, 20, 2, 4, 2, 32, 300, 512,
                                    .experts = 8, .top = 8, .squared = true, .shared = 28, .expert_groups = 4, .kept = 4 };
    static const shape grouped = { "sigmoids in groups", 96, 20, 2, 4, 2, 32, 300, 512,
                                   .experts = 24, .top = 3, .squared = true, .shared = 40, .expert_groups = 4, .kept = 2 };
    model_case(&gated, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&odd, 20, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&whole, 20, TKE_TRAIN_ATTN);
    model_case(&still, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&shared, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&sigmoids, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&grouped, 32, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
}

/* Layers of the delta rule and of gated attention. */
static void check_qwen(void)
{
    static const shape qwen = { "qwen3.5", 96, 72, 5, 4, 2, 32, 300, 512, .tied = true, .qk_norm = true,
                                .pattern = "DDGDG", .gate = true, .still = 24, .key_heads = 2,
                                .value_heads = 4, .key_dim = 32, .value_dim = 16 };
    static const shape odd = { "qwen3.5 odd", 48, 36, 3, 3, 1, 16, 300, 512, .qk_norm = true,
                               .pattern = "GDD", .gate = true, .still = 12, .key_heads = 2,
                               .value_heads = 4, .key_dim = 8, .value_dim = 10 };
    model_case(&qwen, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&qwen, 20, TKE_TRAIN_MLP);
    model_case(&odd, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP | TKE_TRAIN_UNEMBED);
}

static void check_model(void)
{
    static const shape qwen3 = { "qwen3", 256, 384, 3, 4, 2, 64, 500, 512, true, true, false, .window = 0 };
    static const shape llama = { "llama", 256, 512, 2, 8, 2, 32, 512, 512, false, false, false, .window = 0 };
    static const shape qwen2 = { "qwen2", 192, 256, 2, 6, 2, 128, 333, 512, true, false, true, .window = 50 };
    model_case(&qwen3, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&llama, 32, TKE_TRAIN_ATTN | TKE_TRAIN_MLP | TKE_TRAIN_UNEMBED);
    model_case(&qwen2, 20, TKE_TRAIN_MLP | TKE_TRAIN_UNEMBED);
    model_case(&qwen2, 4, TKE_TRAIN_UNEMBED);
    check_few();
}

/* ---- sampling ---- */

static const float *sorting;

static int by_logit(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sorting[x] != sorting[y])
        return sorting[x] > sorting[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

/* The ids that the rules keep: the constraint, temperature, then top-k, then top-p, ties to the lower id. */
static size_t keep(const float *z, size_t v, const tcu_draw *d, const uint32_t *allowed,
                   double *mass, bool *kept)
{
    int32_t *order = malloc(v * sizeof *order);
    double top = -1e300, sum = 0, passed = 0;
    size_t n = 0, m = 0;
    for (size_t i = 0; i < v; i++) {
        if (!allowed || allowed[i / 32] >> i % 32 & 1)
            order[m++] = (int32_t)i;
        kept[i] = false;
        top = z[i] > top ? z[i] : top;
    }
    for (size_t i = 0; i < v; i++)
        mass[i] = exp(((double)z[i] - top) / d->temperature);
    sorting = z;
    qsort(order, m, sizeof *order, by_logit);
    size_t k = d->top_k > 0 && (size_t)d->top_k < m ? (size_t)d->top_k : m;
    for (size_t i = 0; i < k; i++)
        sum += mass[order[i]];
    for (; n < k && (n == 0 || d->top_p >= 1 || passed < d->top_p * sum); n++) {
        passed += mass[order[n]];
        kept[order[n]] = true;
    }
    free(order);
    return n;
}

/* Masks of the draws of check_sampling by i % 8: 0 one token, 1 the least likely tenth, 2 one in seven; else none. */
static void fill_mask(const float *z, size_t v, size_t i, uint32_t *mask)
{
    float limit = -4.8f; /* logits lie between -6 and 6 */
    memset(mask, 0, (v + 31) / 32 * sizeof *mask);
    for (size_t t = 0; t < v; t++)
        if (i % 8 == 0 ? t == (i * 613 + 4999) % v : i % 8 == 1 ? z[t] < limit : t % 7 == i / 8 % 7)
            mask[t / 32] |= UINT32_C(1) << t % 32;
}

static void check_sampling(void)
{
    enum { V = 5003, ROWS = 64, LD = 5008, WORDS = (V + 31) / 32 };
    static const struct {
        double temperature, top_p;
        int64_t top_k;
    } rules[] = { { 1, 1, 0 },      { 0.7, 1, 0 },  { 1, 1, 5 }, { 1, 0.9, 0 },
                  { 1.3, 0.5, 40 }, { 1, 0.01, 0 }, { 2, 1, 1 }, { 0.1, 0.95, 1000 } };
    float *z = malloc(ROWS * LD * sizeof *z), *max = card(ROWS * 4), *sum = card(ROWS * 4);
    double *mass = malloc(V * sizeof *mass);
    bool *kept = malloc(V);
    random_floats(z, ROWS * LD, 8, 6);
    for (size_t i = 0; i < ROWS * LD; i++)
        z[i] = roundf(z[i] * 8) / 8; /* many ties */
    float *zc = to_card(z, ROWS * LD * sizeof *z);
    uint32_t *masks = calloc(ROWS * 8 * WORDS, sizeof *masks);
    for (size_t i = 0; i < ROWS * 8; i++)
        fill_mask(z + i % ROWS * LD, V, i, masks + i * WORDS);
    uint32_t *mc = to_card(masks, ROWS * 8 * WORDS * sizeof *masks);
    uint64_t *parts = card(TCU_DRAW_GROUP * TCU_DRAW_SLOTS * sizeof *parts);
    float *sums = card(TCU_DECODE_ROWS * 2048 * sizeof *sums);
    uint32_t none[TCU_DECODE_ROWS + 1] = { 0 }, *turns = card(sizeof none); /* and a mark */
    CK(tcu_upload(device, turns, none, sizeof none, &err));
    RC(tcu_log_sum(zc, LD, ROWS, V, max, sum, NULL, device->stream));
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        tcu_draw draws[ROWS * 8];
        tcu_drawn drawn[ROWS * 8], masked[ROWS * 8];
        size_t outside = 0, off = 0, bad = 0, changed = 0;
        double chi = 0;
        for (size_t i = 0; i < ROWS * 8; i++)
            draws[i] = (tcu_draw){ .want = (int32_t)(i % ROWS),
                                   .seed = 42,
                                   .sample = (uint32_t)i,
                                   .position = 3,
                                   .temperature = rules[r].temperature,
                                   .top_p = rules[r].top_p,
                                   .top_k = rules[r].top_k };
        tcu_draw *dc = to_card(draws, sizeof draws);
        tcu_drawn *oc = card(sizeof drawn);
        RC(tcu_sample(zc, LD, V, max, sum, dc, ROWS * 8, parts, oc, device->stream));
        CK(tcu_download(device, drawn, oc, sizeof drawn, &err));
        for (size_t i = 0; i < ROWS * 8; i++) {
            const float *row = z + i % ROWS * LD;
            keep(row, V, &draws[i], NULL, mass, kept);
            double all = 0, total = 0, passed = 0;
            for (size_t j = 0; j < V; j++) {
                total += mass[j];
                all += kept[j] ? mass[j] : 0;
            }
            for (int32_t j = 0; j < drawn[i].token; j++)
                passed += kept[j] ? mass[j] : 0;
            outside += drawn[i].token < 0 || drawn[i].token >= V || !kept[drawn[i].token];
            bad += drawn[i].token < 0;
            chi += (passed + mass[drawn[i].token] / 2) / all / (ROWS * 8);
            off += !(fabs(log(mass[drawn[i].token] / total) - drawn[i].logprob) < 1e-4);
        }
        char name[96];
        snprintf(name, sizeof name, "sampling T %g top_p %g top_k %lld: outside, log-probs off",
                 rules[r].temperature, rules[r].top_p, (long long)rules[r].top_k);
        verdict(outside + off + bad == 0, name, (double)(outside + off + bad));
        if (rules[r].top_k != 1 && rules[r].top_p > 0.1)
            verdict(chi > 0.4 && chi < 0.6, "  where draws fall, mean of the uniform", chi);
        for (size_t i = 0; i < ROWS * 8; i++)
            draws[i].allowed = i % 8 < 3 ? mc + i * WORDS : NULL;
        CK(tcu_upload(device, dc, draws, sizeof draws, &err));
        RC(tcu_sample(zc, LD, V, max, sum, dc, ROWS * 8, parts, oc, device->stream));
        CK(tcu_download(device, masked, oc, sizeof masked, &err));
        outside = off = 0;
        for (size_t i = 0; i < ROWS * 8; i++) {
            if (!draws[i].allowed) {
                changed += memcmp(&masked[i], &drawn[i], sizeof *drawn) != 0;
                continue;
            }
            double total = 0;
            keep(z + i % ROWS * LD, V, &draws[i], masks + i * WORDS, mass, kept);
            for (size_t j = 0; j < V; j++)
                total += mass[j];
            outside += masked[i].token < 0 || !kept[masked[i].token];
            off += !(fabs(log(mass[masked[i].token] / total) - masked[i].logprob) < 1e-4);
        }
        verdict(outside + off == 0, "  constrained: outside, log-probs off",
                (double)(outside + off));
        verdict(changed == 0, "  bits: rows beside constrained ones", (double)changed);
        for (size_t i = 0; i < ROWS; i += TCU_DECODE_ROWS)
            RC(tcu_sum_and_draw(zc + i * LD, LD, V, max + i, 1, dc + i, TCU_DECODE_ROWS, sums,
                                parts, turns, turns + TCU_DECODE_ROWS, oc + i, device->stream));
        CK(tcu_download(device, drawn, oc, ROWS * sizeof *drawn, &err));
        verdict(memcmp(drawn, masked, ROWS * sizeof *drawn) == 0,
                "  bits: sums and draws in one launch", 0);
    }
}

/* ---- memory ---- */

typedef struct optimized { /* numbers under AdamW */
    tcu_block *g, *theta, *m, *v;
} optimized;

static optimized make_optimized(const float *start, size_t n)
{
    optimized o = { tcu_block_new(device, n, &err), tcu_block_new(device, n, &err),
                    tcu_block_new(device, n, &err), tcu_block_new(device, n, &err) };
    CK(o.g && o.theta && o.m && o.v);
    CK(tcu_block_write(o.theta, start, &err) && tcu_block_write(o.g, start + 1, &err));
    return o;
}

static void optimize(const optimized *o, int64_t t)
{
    double moved;
    tke_adam a = { 1e-3, 0.9, 0.999, 1e-8, 0.01, 1, t };
    CK(tcu_block_adam(&a, o->g, o->theta, o->m, o->v, &moved, &err));
}

static size_t differ_from(const optimized *a, const optimized *b, float *x, float *y, size_t n)
{
    tcu_block *const of[2][3] = { { a->theta, a->m, a->v }, { b->theta, b->m, b->v } };
    size_t off = 0;
    for (int i = 0; i < 3; i++) {
        CK(tcu_block_read(of[0][i], x, &err) && tcu_block_read(of[1][i], y, &err));
        off += count_bits(x, y, n);
    }
    return off;
}

static void free_optimized(optimized *o)
{
    tcu_block_free(o->g), tcu_block_free(o->theta), tcu_block_free(o->m), tcu_block_free(o->v);
}

/* Three sets of numbers where only one has room, and a fourth with all the room. */
static void check_memory(void)
{
    enum { SETS = 3, STEPS = 3, N = 24 << 20, LEFT = 700 };
    float *start = malloc((N + 1) * 4), *x = malloc(N * 4), *y = malloc(N * 4);
    size_t left, total, off = 0, tries = 0;
    void *ballast = NULL;
    optimized sets[SETS], alone;
    random_floats(start, N + 1, 12, 1);
    CK(tcu_memory(device, &left, &total));
    for (left -= (size_t)LEFT << 20; cudaMalloc(&ballast, left) != cudaSuccess && tries++ < 50;)
        left -= (size_t)64 << 20;
    cudaGetLastError();
    verdict(ballast != NULL, "memory: MiB left on the card", LEFT);
    for (int i = 0; i < SETS; i++)
        sets[i] = make_optimized(start, N);
    for (int t = 1; t <= STEPS; t++)
        for (int i = 0; i < SETS; i++)
            optimize(&sets[i], t);
    size_t away = tke_residence_away(&device->residence);
    verdict(away > 0, "memory: MiB that wait on the host", (double)(away >> 20));
    tinkc_error refused = { 0 };
    tcu_block *large = tcu_block_new(device, (size_t)1 << 30, &refused);
    printf("  refused: %s\n", refused.message);
    verdict(!large && refused.code == TINKC_E_MEMORY && !device->dead,
            "memory: 4 GiB are an error of the request", refused.code);
    cudaFree(ballast);
    alone = make_optimized(start, N);
    for (int t = 1; t <= STEPS; t++)
        optimize(&alone, t);
    for (int i = 0; i < SETS; i++)
        off += differ_from(&sets[i], &alone, x, y, N);
    verdict(off == 0, "memory: bits of numbers that moved", (double)off);
    for (int i = 0; i < SETS; i++)
        free_optimized(&sets[i]);
    free_optimized(&alone);
    verdict(tke_residence_away(&device->residence) == 0 && device->used[TCU_FOR_ADAPTERS] == 0,
            "memory: bytes left behind", (double)device->used[TCU_FOR_ADAPTERS]);
    free(start), free(x), free(y);
}

/* ---- speed ---- */

static const shape large[] = {
    { "0.6B", 1024, 3072, 28, 16, 8, 128, 151936, 40960, true, true, .window = 0 },
    { "4B", 2560, 9728, 36, 32, 8, 128, 151936, 40960, true, true, .window = 0 },
    { "8B", 4096, 12288, 36, 32, 8, 128, 151936, 40960, false, true, .window = 0 },
    { "32B", 5120, 25600, 64, 64, 8, 128, 151936, 40960, false, true, .window = 0 },
    { "30B-A3B", 2048, 768, 48, 32, 4, 128, 151936, 4096, false, true, .experts = 128, .top = 8 },
    { "gpt-oss-20b", 2880, 2880, 24, 64, 8, 64, 201088, 4096, false, .bias = true, .window = 128,
      .experts = 32, .top = 4, .oss = true },
    { "nemotron-30B-A3B", 2688, 1856, 52, 32, 2, 128, 131072, 4096, .experts = 128, .top = 6,
      .pattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", .shared = 3712,
      .space_heads = 64, .space_dim = 64, .state = 128, .groups = 8 },
    { "qwen3.5-4B", 2560, 9216, 32, 16, 4, 256, 248320, 4096, .tied = true, .qk_norm = true,
      .pattern = "DDDGDDDGDDDGDDDGDDDGDDDGDDDGDDDG", .gate = true, .still = 192, .key_heads = 16,
      .value_heads = 32, .key_dim = 128, .value_dim = 128 },
};
enum { LARGE = sizeof large / sizeof *large };
static const double gflop[] = { 3.36, 18.6, 32.9, 128, 15.4, 15.5, 13.6, 18.2 };

static const char *packed_as; /* the format of a large model's matrices; NULL: bf16 */

/* NAME or NAME:FORMAT. */
static int find_shape(const char *name)
{
    size_t n = strcspn(name, ":");
    packed_as = name[n] ? name + n + 1 : NULL;
    for (int i = 0; i < LARGE; i++)
        if (strncmp(large[i].name, name, n) == 0 && !large[i].name[n])
            return i;
    return 0;
}

/* Bytes of a number of the model's matrices. */
static double bytes_each(void)
{
    for (int i = TKE_MXFP4; packed_as && i < TKE_DTYPES; i++)
        if (strcmp(tke_format_of((tke_dtype)i)->name, packed_as) == 0)
            return (double)tcu_coded_bytes(tcu_format_of((tke_dtype)i), 8, 128) / (8 * 128);
    return 2;
}

/* Takes all memory but so many GiB. */
static void leave_memory(double gib)
{
    size_t left = 0, total = 0, leave = (size_t)(gib * 1024) << 20;
    void *ballast = NULL;
    CK(tcu_memory(device, &left, &total) && left > leave);
    RC(cudaMalloc(&ballast, left - leave));
}

static tcu_model *load_large(int which, world **w)
{
    shape s = large[which];
    s.format = packed_as;
    *w = world_new(&s, false, 3);
    double t = seconds_now();
    tcu_model *m = tcu_model_new(device, &(*w)->model, &err);
    CK(m);
    printf("%s%s%s: %zu MiB of weights on the card in %.2f s\n", large[which].name,
           packed_as ? " " : "", packed_as ? packed_as : "", m->bytes >> 20,
           seconds_now() - t);
    return m;
}

static void start_profile(size_t cap)
{
    tcu_profile *p = calloc(1, sizeof *p);
    p->cap = cap;
    p->marks = calloc(cap, sizeof *p->marks);
    for (size_t i = 0; i < cap; i++)
        cudaEventCreate(&p->marks[i].at);
    device->profile = p;
}

/* Times by name; with `places` each product of a layer in a line of its own: how many marks after attention it comes. */
static void print_profile(bool places)
{
    tcu_profile *p = device->profile;
    struct {
        const char *what;
        double ms;
        size_t n, place;
    } lines[128] = { { 0 } };
    size_t n = 0, place = 0;
    double all = 0;
    cudaDeviceSynchronize();
    for (size_t i = 1; i < p->n; i++) {
        float ms = 0;
        size_t at = 0;
        cudaEventElapsedTime(&ms, p->marks[i - 1].at, p->marks[i].at);
        place = !places || strcmp(p->marks[i].what, "attention") == 0 ? 0 : place + 1;
        while (at < n &&
               (strcmp(lines[at].what, p->marks[i].what) != 0 || lines[at].place != place))
            at++;
        if (at == 128)
            break;
        n += at == n;
        lines[at].what = p->marks[i].what;
        lines[at].place = place;
        lines[at].ms += ms;
        lines[at].n++;
        all += ms;
    }
    for (size_t i = 0; i < n; i++)
        printf("    %2zu %-34s %6zu calls %9.2f ms %8.2f us each %5.1f %%\n", lines[i].place,
               lines[i].what, lines[i].n, lines[i].ms, 1e3 * lines[i].ms / (double)lines[i].n,
               100 * lines[i].ms / all);
    device->profile = NULL;
}

static bool long_sequence; /* one sequence, not several of 2048 tokens */

/* The best of some microbatches and optimizer steps, on a model that is loaded. */
static void train_large(tcu_model *m, world *w, int which, size_t tokens, int turns, bool profile)
{
    const char *name = large[which].name;
    int lengths[64];
    tke_lora_layout *l = layout_new(w, 32, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    float *theta = malloc(l->n_floats * 4);
    random_floats(theta, l->n_floats, 5, 0.02f);
    tcu_block *weights = tcu_block_new(device, l->n_floats, &err),
              *g = tcu_block_new(device, l->n_floats, &err);
    tcu_block *m1 = tcu_block_new(device, l->n_floats, &err),
              *v1 = tcu_block_new(device, l->n_floats, &err);
    CK(weights && g && m1 && v1 && tcu_block_write(weights, theta, &err));
    size_t n_seqs = long_sequence ? 1 : tokens / 2048;
    for (size_t i = 0; i < n_seqs; i++)
        lengths[i] = long_sequence ? (int)tokens : 2048;
    data d = make_data(lengths, n_seqs, large[which].vocab, 3);
    tke_lora lora = { l, (tke_block *)weights, 1 };
    tke_segment segment = { .begin = 0, .end = d.n, .lora = &lora, .grads = (tke_block *)g };
    tke_device_trainer_options o = { 0 };
    tcu_trainer *t = tcu_trainer_new(m, &o, &err);
    float *lp = malloc(d.n * 4);
    run r = { d.weights, lp, 0 };
    tke_microbatch b = batch_of(&d, &segment, 1, 32, TKE_DEPTH_ALL, &r);
    double t0 = seconds_now(), best = 1e9;
    CK(tcu_trainer_run(t, &b, &err));
    printf("  first microbatch %.2f s, work space %zu MiB, %zu shapes checked, %zu fallbacks\n",
           seconds_now() - t0, device->used[TCU_FOR_WORK] >> 20, device->gemm.checked,
           device->gemm.fallbacks);
    for (int i = 0; i < turns; i++) {
        double s = seconds_now(), moved;
        CK(tcu_trainer_run(t, &b, &err));
        tke_adam a = { 1e-4, 0.9, 0.999, 1e-8, 0, 1, i + 1 };
        CK(tcu_block_adam(&a, g, weights, m1, v1, &moved, &err) && tcu_block_zero(g, &err));
        best = fmin(best, seconds_now() - s);
    }
    double rate = (double)d.n / best;
    printf("TRAIN %s, %zu tokens: %.0f tokens/s, %.1f TFLOP/s, %.0f %% of 790 (lp %g)\n", name, d.n,
           rate, rate * gflop[which] / 1e3, rate * gflop[which] / 7.9e3, (double)lp[5]);
    if (profile) {
        start_profile(20000);
        CK(tcu_trainer_run(t, &b, &err));
        print_profile(false);
    }
    tcu_trainer_free(t), tcu_block_free(weights), tcu_block_free(g), tcu_block_free(m1),
        tcu_block_free(v1);
    free(theta), free(lp);
}

/* gib: memory that there is; 0: all of the card's. */
static void speed_train(const char *name, size_t tokens, bool profile, double gib)
{
    int which = find_shape(name);
    world *w;
    long_sequence = gib > 0;
    if (gib > 0)
        leave_memory(gib);
    tcu_model *m = load_large(which, &w);
    train_large(m, w, which, tokens, 4, profile);
    for (int i = 0; gib > 0 && i < TCU_PURPOSES; i++)
        printf("  %s: %zu MiB\n", tcu_purpose_name(i), device->used[i] >> 20);
    tcu_model_free(m);
    world_free(w);
}

/* How many feed-forwards of a layer a step reads: experts are chosen evenly. */
static double feeds_read(const shape *s, size_t batch)
{
    if (!s->experts)
        return 1;
    double others = 1 - (double)s->top / (double)s->experts;
    return (double)s->experts * (1 - pow(others, (double)batch));
}

/* What attention and feed-forward of so many layers read in a step. */
static double attention_bytes(const shape *s, size_t layers, size_t batch, size_t context)
{
    size_t heads = (s->gate ? 3 : 2) * s->heads + 2 * s->kv_heads;
    return (double)(layers * s->hidden * s->d * heads) * bytes_each() +
           (double)batch * (double)context * (double)(layers * 2 * s->kv_heads * s->d) * 2;
}

static double feed_bytes(const shape *s, size_t layers, size_t batch)
{
    size_t matrices = s->pattern && !s->gate ? 2 : 3;
    return (double)(layers * matrices * s->hidden * s->inner) * feeds_read(s, batch) *
               (s->oss ? 0.53125 : bytes_each()) +
           (double)(layers * matrices * s->hidden * s->shared) * 2;
}

static double space_bytes(const shape *s, size_t layers, size_t batch)
{
    size_t inner = s->space_heads * s->space_dim;
    double weights = (double)s->hidden * (double)(3 * inner + 2 * s->groups * s->state);
    return (double)layers * (2 * weights + 4 * (double)(batch * inner * s->state));
}

static double delta_bytes(const shape *s, size_t layers, size_t batch)
{
    size_t kd = s->key_heads * s->key_dim, vd = s->value_heads * s->value_dim;
    return (double)layers * ((double)(s->hidden * (2 * kd + 3 * vd)) * 2 +
                             4 * (double)(batch * vd * s->key_dim));
}

static double step_bytes(const shape *s, size_t batch, size_t context)
{
    size_t spaces = 0, deltas = 0, feeds = s->pattern ? 0 : s->layers, attentions = feeds;
    for (const char *p = s->pattern; p && *p; p++) {
        spaces += *p == 'M';
        deltas += *p == 'D';
        feeds += *p == 'E' || *p == 'D' || *p == 'G';
        attentions += *p == '*' || *p == 'G';
    }
    return (double)(s->vocab * s->hidden) * bytes_each() +
           attention_bytes(s, attentions, batch, context) +
           feed_bytes(s, feeds, batch) + space_bytes(s, spaces, batch) +
           delta_bytes(s, deltas, batch);
}

/* All sequences begin with nothing in their states: the last slot is never used. */
static void clear_states(tcu_sampler *s, size_t batch)
{
    size_t n = tcu_sampler_cache(s)->n_states;
    CK(!n || batch < n);
    for (size_t i = 0; n && i < batch; i++)
        CK(tcu_sampler_copy_state(s, (int32_t)i, (int32_t)n - 1, &err));
}

/* Rows have n_loras adapters, as many of each. last: the log-probs of the last step, or NULL. With `profile` the times of the last
 * replay of the graph, which is captured in the second step, are printed. */
static void decode_once(tcu_sampler *s, const char *name, int which, size_t batch, size_t context,
                        const tke_lora *lora, size_t n_loras, bool profile, float *last)
{
    size_t steps = 48, per = (context + steps + 16) / 16;
    int32_t *ids = malloc(batch * 4), *positions = malloc(batch * 4), *tokens = malloc(batch * 4),
            *blocks = malloc(batch * per * 4);
    float *lp = malloc(batch * 4);
    bool *bad = malloc(batch);
    size_t *wants = malloc(batch * sizeof *wants);
    tke_step_seq *seqs = malloc(batch * sizeof *seqs);
    tke_draw *draws = malloc(batch * sizeof *draws);
    tke_sample_rule rule = { .temperature = 1, .top_p = 1 };
    double times[64];
    for (size_t i = 0; i < batch * per; i++)
        blocks[i] = (int32_t)(i % tcu_sampler_cache(s)->n_blocks);
    clear_states(s, batch);
    for (size_t step = 0; step < steps; step++) {
        for (size_t i = 0; i < batch; i++) {
            ids[i] = (int32_t)(i * 37 + step), positions[i] = (int32_t)(context + step),
            wants[i] = i;
            seqs[i] = (tke_step_seq){ i, 1, context + step, blocks + i * per,
                                      tcu_sampler_cache(s)->n_states ? (int32_t)i : -1 };
            draws[i] = (tke_draw){ i,       &rule, i,    0, (uint32_t)step, &tokens[i], &lp[i],
                                   &bad[i], NULL,  NULL, 0 };
        }
        tke_segment segments[8] = { { .begin = 0, .end = batch } };
        for (size_t i = 0; i < n_loras; i++)
            segments[i] = (tke_segment){ .begin = batch * i / n_loras,
                                         .end = batch * (i + 1) / n_loras,
                                         .lora = &lora[i] };
        tke_step j = decoding(batch, ids, positions, segments, seqs, wants, draws);
        j.n_segments = n_loras ? n_loras : 1;
        double t = seconds_now();
        if (profile && step == 1)
            start_profile(4000);
        CK(tcu_sampler_run(s, &j, &err));
        times[step] = seconds_now() - t;
    }
    if (last)
        memcpy(last, lp, batch * sizeof *lp);
    double best = 1e9, sum = 0;
    for (size_t i = 8; i < steps; i++) {
        sum += times[i];
        best = fmin(best, times[i]);
    }
    const shape *sh = &large[which];
    double bytes = step_bytes(sh, batch, context);
    double rate = (double)batch * (double)(steps - 8) / sum;
    char adapters[64] = "";
    if (n_loras)
        snprintf(adapters, sizeof adapters, " rank 32 adapters %zu%s", n_loras,
                 device->apart ? " apart" : "");
    printf("DECODE %s batch %zu context %zu%s: %.0f tokens/s, %.0f us a step (best %.0f), %.0f %% "
           "of the limit by bytes\n",
           name, batch, context, adapters, rate, 1e6 * sum / (double)(steps - 8), 1e6 * best,
           100 * bytes / 4.3e12 / (sum / (double)(steps - 8)));
    if (profile)
        print_profile(true);
    free(ids), free(positions), free(tokens), free(blocks), free(lp), free(bad), free(wants),
        free(seqs), free(draws);
}

/* An adapter's part beside what reads it next, and in a launch of its own: the same log-probs. */
static void compare_apart(tcu_sampler *s, const char *name, int which, size_t batch,
                          const tke_lora *loras, size_t n)
{
    float here[256], apart[256];
    char what[96];
    size_t finite = 0;
    decode_once(s, name, which, batch, 1024, loras, n, false, here);
    device->apart = true;
    decode_once(s, name, which, batch, 1024, loras, n, false, apart);
    device->apart = false;
    for (size_t i = 0; i < batch; i++)
        finite += isfinite(here[i]) != 0;
    snprintf(what, sizeof what, "bits: %s, %zu rows, %zu adapters, fused = apart (%zu finite)",
             name, batch, n, finite);
    verdict(count_bits(here, apart, batch) == 0, what, (double)count_bits(here, apart, batch));
}

/* A sampler of its own for each, so that the graph is captured again. */
static void profile_decode(tcu_model *m, const char *name, int which, const tke_lora *loras,
                           size_t n)
{
    tke_device_sampler_options so = { .cache_bytes = (size_t)48 << 30,
                                      .max_rows = 768,
                                      .max_seqs = 256 };
    for (size_t batch = 64; batch <= 256; batch *= 4)
        for (size_t i = 0; i < 3; i++) {
            tcu_sampler *s = full_sampler(m, &so);
            CK(s);
            decode_once(s, name, which, batch, 1024, loras, i == 2 ? n : i, true, NULL);
            tcu_sampler_free(s);
        }
}

static void decode_batches(tcu_sampler *s, const char *name, int which, const tke_lora *loras,
                           size_t n)
{
    decode_once(s, name, which, 1, 1024, NULL, 0, false, NULL);
    decode_once(s, name, which, 1, 1024, loras, 1, false, NULL);
    size_t states = tcu_sampler_cache(s)->n_states;
    for (size_t batch = 64; batch <= 256 && (!states || batch < states); batch *= 4) {
        decode_once(s, name, which, batch, 1024, NULL, 0, false, NULL);
        compare_apart(s, name, which, batch, loras, 1);
        compare_apart(s, name, which, batch, loras, n);
    }
}

/* how: "profile" (times of the launches of batches of 64 and 256), "one" (batch 1 alone, in one launch and layer by layer) or NULL. */
static void speed_decode(const char *name, const char *how)
{
    bool profile = how && strcmp(how, "profile") == 0, one = how && strcmp(how, "one") == 0;
    int which = find_shape(name);
    world *w;
    tcu_model *m = load_large(which, &w);
    enum { LORAS = 8 };
    tke_lora loras[LORAS];
    for (size_t i = 0; i < LORAS; i++) /* as the SDK makes them */
        loras[i] = random_lora(w, 32, TKE_TRAIN_ATTN | TKE_TRAIN_MLP | TKE_TRAIN_UNEMBED, 5 + i);
    tke_device_sampler_options so = { .cache_bytes = (size_t)48 << 30,
                                      .max_rows = 768,
                                      .max_seqs = 256 };
    if (large[which].key_heads) /* a quarter of it is for states, which lie beside the weights */
        so.cache_bytes = (size_t)100 << 30;
    tcu_sampler *s = profile ? NULL : full_sampler(m, &so);
    CK(profile || s);
    for (int i = 0; one && i < 4; i++) {
        device->layered = i % 2;
        decode_once(s, name, which, 1, 1024, NULL, 0, false, NULL);
        decode_once(s, name, which, 1, 1024, loras, 1, false, NULL);
    }
    if (profile)
        profile_decode(m, name, which, loras, LORAS);
    else if (!one)
        decode_batches(s, name, which, loras, LORAS);
    for (size_t i = 0; i < LORAS; i++)
        tcu_block_free((tcu_block *)(uintptr_t)loras[i].weights);
    tcu_sampler_free(s), tcu_model_free(m);
    world_free(w);
}

/* Training, then decoding without and with an adapter, of a model with experts. */
static void speed_experts(const char *name)
{
    int which = find_shape(name);
    world *w;
    tcu_model *m = load_large(which, &w);
    train_large(m, w, which, 16384, 2, true);
    tke_device_sampler_options so = { .cache_bytes = (size_t)16 << 30,
                                      .max_rows = 512,
                                      .max_seqs = 256 };
    tcu_sampler *s = full_sampler(m, &so);
    tke_lora lora = random_lora(w, 32, TKE_TRAIN_ATTN | TKE_TRAIN_MLP, 5);
    CK(s);
    for (size_t batch = 1; batch <= 64; batch *= 64)
        for (size_t n = 0; n < 2; n++)
            decode_once(s, name, which, batch, 1024, &lora, n, false, NULL);
    tcu_sampler_free(s);
    s = full_sampler(m, &so);
    CK(s);
    decode_once(s, name, which, 1, 1024, NULL, 0, true, NULL);
    tcu_sampler_free(s), tcu_model_free(m);
    world_free(w);
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

static void speed_attention(void)
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

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "all";
    bool all = strcmp(mode, "all") == 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    device = tcu_open(0, &err);
    if (!device)
        die("opening");
    printf("%s, driver %d, cuBLASLt %zu\n", device->props.name, device->driver,
           device->gemm.version);
    if (all || strcmp(mode, "products") == 0)
        check_products();
    if (all || strcmp(mode, "attention") == 0)
        check_attention();
    if (all || strcmp(mode, "model") == 0)
        check_model();
    if (all || strcmp(mode, "sampling") == 0)
        check_sampling();
    if (all || strcmp(mode, "memory") == 0)
        check_memory();
    if (strcmp(mode, "experts") == 0)
        check_experts();
    if (strcmp(mode, "parts") == 0)
        check_parts();
    if (strcmp(mode, "rules") == 0)
        failures += check_rules(device);
    if (strcmp(mode, "qwen") == 0)
        check_qwen();
    if (strcmp(mode, "hybrid") == 0)
        check_hybrid();
    if (all || strcmp(mode, "formats") == 0)
        failures += check_formats(device, argc > 2);
    if (all || strcmp(mode, "twins") == 0)
        check_twins();
    if (strcmp(mode, "few") == 0)
        check_few();
    if (strcmp(mode, "alone") == 0)
        speed_attention();
    if (strcmp(mode, "train") == 0)
        speed_train(argv[2], argc > 3 ? (size_t)strtoul(argv[3], NULL, 10) : 16384,
                    argc > 4 && strcmp(argv[4], "profile") == 0,
                    argc > 5 && strcmp(argv[4], "limit") == 0 ? strtod(argv[5], NULL) : 0);
    if (strcmp(mode, "speed-experts") == 0)
        speed_experts(argv[2]);
    if (strcmp(mode, "decode") == 0)
        speed_decode(argv[2], argc > 3 ? argv[3] : NULL);
    printf("%d failures\n", failures);
    return failures != 0;
}
