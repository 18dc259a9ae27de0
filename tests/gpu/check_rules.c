/* check_rules.c - the short convolution on a card, against double precision and itself in steps. Needs a card. */
#include "check_rules.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what the checks share ---- */

void rules_verdict(rules_check *c, bool ok, const char *what, double value)
{
    printf("%s %-66s %.3g\n", ok ? "ok  " : "FAIL", what, value);
    c->failures += !ok;
}

void rules_done(rules_check *c, int rc, const char *what)
{
    if (rc == cudaSuccess)
        rc = (int)cudaStreamSynchronize(c->device->stream);
    if (rc == cudaSuccess)
        return;
    printf("FAILED %s: %s\n", what, cudaGetErrorString((cudaError_t)rc));
    exit(2);
}

void *rules_room(size_t bytes)
{
    void *p;
    cudaError_t rc = cudaMallocManaged(&p, bytes ? bytes : 1, cudaMemAttachGlobal);
    if (rc != cudaSuccess) {
        printf("FAILED memory: %s\n", cudaGetErrorString(rc));
        exit(2);
    }
    memset(p, 0xff, bytes); /* not a number */
    return p;
}

void rules_drop(void *p)
{
    cudaFree(p);
}

float *rules_floats(size_t n, uint64_t seed, float scale, float middle)
{
    float *p = rules_room(n * sizeof *p);
    random_floats(p, n, seed, scale);
    for (size_t i = 0; i < n; i++)
        p[i] += middle;
    return p;
}

tcu_bf16 *rules_numbers(size_t n, uint64_t seed, float scale)
{
    float *x = rules_floats(n, seed, scale, 0);
    tcu_bf16 *p = rules_room(n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        ((uint16_t *)p)[i] = tke_f32_to_bf16(x[i]);
    rules_drop(x);
    return p;
}

double rules_wide(tcu_bf16 x)
{
    uint16_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (double)tke_bf16_to_f32(bits);
}

double rules_distance(const tcu_bf16 *got, const double *want, size_t rows, size_t n, size_t ld)
{
    double worst = 0;
    for (size_t r = 0; r < rows; r++) {
        double most = 1e-30;
        for (size_t i = 0; i < n; i++)
            most = fmax(most, fabs(want[r * n + i]));
        for (size_t i = 0; i < n; i++) {
            double off = fabs(rules_wide(got[r * ld + i]) - want[r * n + i]) / most;
            worst = off <= worst ? worst : off; /* NaN stays */
        }
    }
    return worst;
}

rules_pack rules_pack_new(void)
{
    static const int32_t lengths[RULES_SEQS] = { 65, 1, 500, 64, 63, 129, 2, 128 };
    rules_pack p = { .runs = rules_room(RULES_SEQS * sizeof *p.runs) };
    for (int i = 0; i < RULES_SEQS; i++) {
        p.runs[i] = (tcu_run){ .row = p.rows, .n = lengths[i], .slot = -1 };
        p.rows += lengths[i];
        p.longest = lengths[i] > p.longest ? lengths[i] : p.longest;
    }
    return p;
}

/* Sequences move on by different numbers of rows; now and then one waits. */
bool rules_next(const rules_pack *p, rules_turn *t, int32_t at[RULES_SEQS], int32_t cut)
{
    bool more = false;
    t->n_runs = t->rows = t->longest = 0;
    for (int i = 0; i < RULES_SEQS; i++) {
        int32_t left = p->runs[i].n - at[i], n = cut > 1 ? 1 + (at[i] * 7 + i * 13) % cut : cut;
        more = more || left > 0;
        n = !cut || n > left ? left : n;
        if (left == 0 || (cut && (at[i] + i + left) % 11 == 3 && t->n_runs))
            continue;
        t->from[t->n_runs] = p->runs[i].row + at[i];
        t->runs[t->n_runs++] = (tcu_run){
            .row = t->rows, .n = n, .position = at[i], .slot = (i * 3 + 1) % RULES_SEQS
        };
        t->rows += n;
        t->longest = n > t->longest ? n : t->longest;
        at[i] += n;
    }
    return more;
}

void rules_gather(const rules_turn *t, tcu_bf16 *to, const tcu_bf16 *pack, size_t n)
{
    for (int i = 0; i < t->n_runs; i++)
        memcpy(to + (size_t)t->runs[i].row * n, pack + (size_t)t->from[i] * n,
               (size_t)t->runs[i].n * n * sizeof *to);
}

uint64_t rules_differ(const rules_turn *t, const tcu_bf16 *step, const tcu_bf16 *pack, size_t n)
{
    uint64_t count = 0;
    for (int i = 0; i < t->n_runs; i++) {
        const tcu_bf16 *a = step + (size_t)t->runs[i].row * n, *b = pack + (size_t)t->from[i] * n;
        for (size_t k = 0; k < (size_t)t->runs[i].n * n; k++)
            count += memcmp(a + k, b + k, sizeof *a) != 0;
    }
    return count;
}

/* ---- the short convolution ---- */

typedef struct conv_case {
    int32_t kernel, channels[TCU_CONV_PARTS]; /* 0: no such part */
    bool bias;
} conv_case;

typedef struct conv_world {
    conv_case of;
    rules_pack pack;
    size_t all, columns; /* channels; columns of c */
    float *weights, *bias;
    tcu_bf16 *m[TCU_CONV_PARTS], *c;
    double *sums; /* [rows][columns] before silu */
} conv_world;

static size_t width_of(const conv_case *c, int part)
{
    return (size_t)(c->channels[part] + 7) / 8 * 8;
}

typedef struct conv_place {
    int part;
    size_t inside, column, channel;
} conv_place;

/* Of a channel. */
static conv_place place_of(const conv_case *c, size_t channel)
{
    conv_place p = { .inside = channel, .channel = channel };
    while (p.inside >= (size_t)c->channels[p.part]) {
        p.column += width_of(c, p.part);
        p.inside -= (size_t)c->channels[p.part++];
    }
    p.column += p.inside;
    return p;
}

static tcu_conv conv_of(const conv_world *w)
{
    tcu_conv p = { .kernel = w->of.kernel,
                   .weights = w->weights,
                   .bias = w->bias,
                   .runs = w->pack.runs,
                   .n_runs = RULES_SEQS,
                   .longest = w->pack.longest };
    for (int i = 0; i < TCU_CONV_PARTS && w->of.channels[i]; i++)
        p.part[p.n_parts++] =
            (tcu_conv_part){ w->m[i], (int64_t)width_of(&w->of, i), w->of.channels[i] };
    return p;
}

/* The sum of row t of sequence q. */
static double conv_sum(const conv_world *w, int q, int32_t t, const conv_place *p)
{
    double sum = w->bias ? (double)w->bias[p->channel] : 0;
    for (int32_t j = 0; j < w->of.kernel && j <= t; j++) {
        size_t row = (size_t)(w->pack.runs[q].row + t - j);
        sum += (double)w->weights[(size_t)(w->of.kernel - 1 - j) * w->all + p->channel] *
               rules_wide(w->m[p->part][row * width_of(&w->of, p->part) + p->inside]);
    }
    return sum;
}

static double sigmoid_of(double x)
{
    return 1 / (1 + exp(-x));
}

/* Numbers of a part, zero behind its channels. */
static tcu_bf16 *conv_rows(const conv_world *w, int part, uint64_t seed)
{
    size_t width = width_of(&w->of, part), rows = (size_t)w->pack.rows;
    tcu_bf16 *m = rules_numbers(rows * width, seed, 2);
    for (size_t i = 0; i < rows; i++)
        for (size_t k = (size_t)w->of.channels[part]; k < width; k++)
            memset(m + i * width + k, 0, sizeof *m);
    return m;
}

static conv_world conv_world_new(const conv_case *of)
{
    conv_world w = { .of = *of, .pack = rules_pack_new() };
    size_t rows = (size_t)w.pack.rows;
    for (int i = 0; i < TCU_CONV_PARTS; i++) {
        w.all += (size_t)of->channels[i];
        w.columns += width_of(of, i);
        w.m[i] = conv_rows(&w, i, 7 + (uint64_t)i);
    }
    w.weights = rules_floats((size_t)of->kernel * w.all, 3, 1, 0);
    w.bias = of->bias ? rules_floats(w.all, 5, 1, 0) : NULL;
    w.c = rules_room(rows * w.columns * sizeof *w.c);
    w.sums = calloc(rows * w.columns, sizeof *w.sums);
    for (size_t k = 0; k < w.all; k++) {
        conv_place p = place_of(of, k);
        for (int q = 0; q < RULES_SEQS; q++)
            for (int32_t t = 0; t < w.pack.runs[q].n; t++)
                w.sums[(size_t)(w.pack.runs[q].row + t) * w.columns + p.column] =
                    conv_sum(&w, q, t, &p);
    }
    return w;
}

static void conv_world_free(conv_world *w)
{
    rules_drop(w->pack.runs);
    rules_drop(w->weights);
    rules_drop(w->bias);
    for (int i = 0; i < TCU_CONV_PARTS; i++)
        rules_drop(w->m[i]);
    rules_drop(w->c);
    free(w->sums);
}

static void check_conv_forward(rules_check *check, conv_world *w, const char *name)
{
    tcu_conv p = conv_of(w);
    size_t rows = (size_t)w->pack.rows, n = w->columns;
    double *want = calloc(rows * n, sizeof *want);
    char what[160];
    for (size_t i = 0; i < rows * n; i++)
        want[i] = w->sums[i] * sigmoid_of(w->sums[i]);
    rules_done(check, tcu_conv_forward(&p, w->c, (int64_t)n, check->device->stream), name);
    double off = rules_distance(w->c, want, rows, n, n);
    snprintf(what, sizeof what, "%s: packed rows are those of double", name);
    rules_verdict(check, tcu_conv_columns(&p) == (int32_t)n && off < 1.0 / 256, what, off);
    free(want);
}

/* Gradients: those of the sums by silu, then each row's own from the rows that read it. */
static double conv_back_distance(const conv_world *w, const tcu_bf16 *dc, tcu_bf16 *const dm[])
{
    double worst = 0;
    for (size_t k = 0; k < w->all; k++) {
        conv_place p = place_of(&w->of, k);
        for (int q = 0; q < RULES_SEQS; q++)
            for (int32_t t = 0; t < w->pack.runs[q].n; t++) {
                size_t row = (size_t)(w->pack.runs[q].row + t);
                double sum = 0;
                for (int32_t j = 0; j < w->of.kernel && t + j < w->pack.runs[q].n; j++) {
                    size_t at = (row + (size_t)j) * w->columns + p.column;
                    double x = w->sums[at], s = sigmoid_of(x);
                    sum += (double)w->weights[(size_t)(w->of.kernel - 1 - j) * w->all + k] *
                           rules_wide(dc[at]) * s * (1 + x * (1 - s));
                }
                size_t at = row * width_of(&w->of, p.part) + p.inside;
                double off = fabs(rules_wide(dm[p.part][at]) - sum) / (1 + fabs(sum));
                worst = off <= worst ? worst : off;
            }
    }
    return worst;
}

static void check_conv_back(rules_check *check, conv_world *w, const char *name)
{
    tcu_conv p = conv_of(w);
    size_t rows = (size_t)w->pack.rows;
    tcu_bf16 *dc = rules_numbers(rows * w->columns, 11, 1), *dm[TCU_CONV_PARTS];
    char what[160];
    for (int i = 0; i < TCU_CONV_PARTS; i++)
        dm[i] = rules_room(rows * width_of(&w->of, i) * sizeof *dm[i]);
    rules_done(check, tcu_conv_back(&p, dc, (int64_t)w->columns, dm, check->device->stream), name);
    double off = conv_back_distance(w, dc, dm);
    snprintf(what, sizeof what, "%s: gradients are those of double", name);
    rules_verdict(check, off < 1.0 / 200, what, off);
    rules_drop(dc);
    for (int i = 0; i < TCU_CONV_PARTS; i++)
        rules_drop(dm[i]);
}

/* Steps of up to `cut` rows give the packed rows' bits; slots begin with what is not a number. */
static uint64_t conv_steps(rules_check *check, conv_world *w, int32_t cut)
{
    tcu_conv p = conv_of(w);
    size_t rows = (size_t)w->pack.rows;
    int32_t at[RULES_SEQS] = { 0 };
    uint64_t differ = 0;
    tcu_bf16 *m[TCU_CONV_PARTS], *c = rules_room(rows * w->columns * sizeof *c);
    rules_turn t = { .runs = rules_room(RULES_SEQS * sizeof *t.runs) };
    for (int i = 0; i < TCU_CONV_PARTS; i++)
        p.part[i].m = m[i] = rules_room(rows * width_of(&w->of, i) * sizeof *m[i]);
    p.stride = (w->of.kernel - 1) * (int64_t)w->columns;
    p.slots = rules_room((size_t)p.stride * RULES_SEQS * sizeof *p.slots);
    while (rules_next(&w->pack, &t, at, cut)) {
        for (int i = 0; i < TCU_CONV_PARTS; i++)
            rules_gather(&t, m[i], w->m[i], width_of(&w->of, i));
        p.runs = t.runs;
        p.n_runs = t.n_runs;
        p.longest = t.longest;
        rules_done(check, tcu_conv_forward(&p, c, (int64_t)w->columns, check->device->stream),
                   "a step");
        differ += rules_differ(&t, c, w->c, w->columns);
    }
    rules_drop(t.runs);
    rules_drop(p.slots);
    rules_drop(c);
    for (int i = 0; i < TCU_CONV_PARTS; i++)
        rules_drop(m[i]);
    return differ;
}

static void check_conv(rules_check *check, const conv_case *of)
{
    static const int32_t cuts[] = { 0, 1, 5, 70 };
    conv_world w = conv_world_new(of);
    char name[64], what[160];
    snprintf(name, sizeof name, "convolution of %d, %d + %d + %d channels", of->kernel,
             of->channels[0], of->channels[1], of->channels[2]);
    check_conv_forward(check, &w, name);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        uint64_t differ = conv_steps(check, &w, cuts[i]);
        snprintf(what, sizeof what, "%s: steps of %d rows, bits that differ", name, cuts[i]);
        rules_verdict(check, differ == 0, what, (double)differ);
    }
    check_conv_back(check, &w, name);
    conv_world_free(&w);
}

int check_rules(tcu_device *device)
{
    static const conv_case convs[] = {
        { 4, { 768, 128, 128 }, true }, { 4, { 512 }, false },  { 4, { 30, 14, 14 }, true }, { 1, { 24, 16 }, true },
        { 2, { 8, 32 }, false },        { 3, { 1056 }, false }, { 7, { 16 }, true },         { 8, { 5, 28, 3 }, false },
    };
    rules_check check = { .device = device };
    for (size_t i = 0; i < sizeof convs / sizeof *convs; i++)
        check_conv(&check, &convs[i]);
    check_space(&check);
    check_delta(&check);
    speed_rules(device);
    return check.failures;
}

void speed_rules(tcu_device *device)
{
    rules_check check = { .device = device };
    speed_space(&check);
    speed_delta(&check);
}
