/* check_delta.c - the gated delta rule and the gated norm on a card, against the recurrent form in double precision, and packed
 * sequences against the same in steps. Needs a card.
 */
#include "check_rules.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cuda/cuda_delta.h"

typedef struct delta_case {
    int32_t key_heads, value_heads, dk, dv;
    float decay; /* of a position, about */
} delta_case;

typedef struct delta_world {
    rules_pack pack;
    tcu_delta_rule p;
    tcu_piece *pieces;
    size_t rows, kd, vd, heads;
    double *q, *k, *o, *dq, *dk, *dv, *db, *da; /* in double */
} delta_world;

/* ---- tables and memory ---- */

static int32_t up8(int32_t n)
{
    return (n + 7) / 8 * 8;
}

/* Numbers of 11 bits. */
static float *short_floats(size_t n, uint64_t seed)
{
    float *x = rules_floats(n, seed, 1, 0);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0xffffe000u;
        memcpy(&x[i], &bits, sizeof bits);
    }
    return x;
}

static float *room(size_t n)
{
    return rules_room(n * sizeof(float));
}

static void delta_rooms(tcu_delta_rule *p, size_t n, bool back)
{
    size_t kd = (size_t)(p->of.n_key_heads * p->of.dk), heads = (size_t)p->of.n_value_heads,
           vd = heads * (size_t)p->of.dv, state = vd * (size_t)p->of.dk;
    p->q = room(n * kd);
    p->k = room(n * kd);
    p->strength = room(n * heads);
    p->g = room(n * heads);
    p->sums = rules_room(n * heads * sizeof(double));
    p->kk = room(n * heads * TCU_DELTA_CHUNK);
    p->qk = room(n * heads * TCU_DELTA_CHUNK);
    p->o = room(n * vd);
    if (!back)
        return;
    p->rows = room(n * vd);
    p->states = room((n / TCU_DELTA_CHUNK + 1) * state);
    p->dstates = room((n / TCU_DELTA_CHUNK + 1) * state);
    p->z = room(n * vd);
    p->dq = room(n * kd);
    p->dk = room(n * kd);
    p->dc = rules_room(n * (size_t)p->ld_c * sizeof *p->dc);
    p->dgates = rules_room(n * (size_t)p->ld_gates * sizeof *p->dgates);
}

static void delta_rooms_free(tcu_delta_rule *p)
{
    void *all[] = { p->q, p->k, p->strength, p->g, p->sums, p->kk, p->qk, p->o };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        rules_drop(all[i]);
}

static delta_world delta_world_new(const delta_case *of, rules_pack pack)
{
    delta_world w = { .pack = pack };
    tcu_delta_rule *p = &w.p;
    size_t n = w.rows = (size_t)pack.rows;
    w.heads = (size_t)of->value_heads;
    w.kd = (size_t)(of->key_heads * of->dk);
    w.vd = (size_t)(of->value_heads * of->dv);
    p->of = (tcu_delta_shape){ .n_key_heads = of->key_heads,
                               .n_value_heads = of->value_heads,
                               .dk = of->dk,
                               .dv = of->dv,
                               .decay = rules_floats(w.heads, 3, of->decay / 2, of->decay),
                               .dt_bias = rules_floats(w.heads, 5, 1, 0) };
    p->n = pack.rows;
    p->k_at = up8((int32_t)w.kd);
    p->v_at = 2 * p->k_at;
    p->ld_c = p->v_at + up8((int32_t)w.vd);
    p->decay_at = up8(of->value_heads);
    p->ld_gates = 2 * p->decay_at;
    p->c = rules_numbers(n * (size_t)p->ld_c, 7, 1);
    p->gates = rules_floats(n * (size_t)p->ld_gates, 9, 1, 0);
    p->runs = pack.runs;
    p->n_runs = RULES_SEQS;
    p->longest = pack.longest;
    w.pieces = rules_room((n / TCU_DELTA_CHUNK + 2 * RULES_SEQS) * sizeof *w.pieces);
    p->pieces = w.pieces;
    p->n_pieces = (int32_t)tcu_fill_pieces(pack.runs, RULES_SEQS, w.pieces);
    for (int32_t i = 0, edge = 0; i < p->n_pieces; i++)
        if (w.pieces[i].position)
            w.pieces[i].edge = edge++;
    delta_rooms(p, n, true);
    return w;
}

static void delta_world_free(delta_world *w)
{
    tcu_delta_rule *p = &w->p;
    void *all[] = { p->rows,
                    p->states,
                    p->dstates,
                    p->z,
                    p->dq,
                    p->dk,
                    p->dc,
                    p->dgates,
                    p->d_o,
                    w->pieces,
                    (void *)(uintptr_t)p->c,
                    (void *)(uintptr_t)p->gates,
                    (void *)(uintptr_t)p->of.decay,
                    (void *)(uintptr_t)p->of.dt_bias };
    double *sums[] = { w->q, w->k, w->o, w->dq, w->dk, w->dv, w->db, w->da };
    delta_rooms_free(p);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        rules_drop(all[i]);
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        free(sums[i]);
}

/* ---- the recurrent form in double ---- */

static double sigmoid_of(double x)
{
    return 1 / (1 + exp(-x));
}

static void unit_rows(delta_world *w)
{
    const tcu_delta_rule *p = &w->p;
    size_t dk = (size_t)p->of.dk;
    w->q = calloc(w->rows * w->kd, sizeof(double));
    w->k = calloc(w->rows * w->kd, sizeof(double));
    for (size_t i = 0; i < w->rows * w->kd; i += dk)
        for (int which = 0; which < 2; which++) {
            const tcu_bf16 *c =
                p->c + i / w->kd * (size_t)p->ld_c + i % w->kd + (size_t)(which ? p->k_at : 0);
            double sum = 1e-6, by = which ? 1 : 1 / sqrt((double)dk),
                   *to = (which ? w->k : w->q) + i;
            for (size_t a = 0; a < dk; a++)
                sum += rules_wide(c[a]) * rules_wide(c[a]);
            for (size_t a = 0; a < dk; a++)
                to[a] = rules_wide(c[a]) * by / sqrt(sum);
        }
}

typedef struct recurrence { /* a value head of a sequence */
    delta_world *w;
    size_t head, key_head, first, n;
    double *s, *u; /* [n][dk][dv]: S after the decay; [n][dv]: v - S^T k */
    double *beta, *fade, *ds;
} recurrence;

static const double *key_row(const recurrence *r, const double *rows, size_t t)
{
    return rows + (r->first + t) * r->w->kd + r->key_head * (size_t)r->w->p.of.dk;
}

static double value_at(const recurrence *r, size_t t, size_t b)
{
    const tcu_delta_rule *p = &r->w->p;
    return rules_wide(
        p->c[(r->first + t) * (size_t)p->ld_c + (size_t)p->v_at + r->head * (size_t)p->of.dv + b]);
}

static double decay_input(const recurrence *r, size_t t)
{
    const tcu_delta_rule *p = &r->w->p;
    return (double)p->gates[(r->first + t) * (size_t)p->ld_gates + (size_t)p->decay_at + r->head] +
           (double)p->of.dt_bias[r->head];
}

static void forward_row(recurrence *r, size_t t)
{
    const tcu_delta_rule *p = &r->w->p;
    size_t dk = (size_t)p->of.dk, dv = (size_t)p->of.dv, size = dk * dv;
    const double *before = t ? r->s + (t - 1) * size : NULL, *k = key_row(r, r->w->k, t),
                 *q = key_row(r, r->w->q, t);
    double *s = r->s + t * size, *u = r->u + t * dv;
    double *o = r->w->o + (r->first + t) * r->w->vd + r->head * dv;
    r->beta[t] = sigmoid_of((double)p->gates[(r->first + t) * (size_t)p->ld_gates + r->head]);
    r->fade[t] = exp(-(double)p->of.decay[r->head] * log1p(exp(decay_input(r, t))));
    for (size_t b = 0; b < dv; b++)
        u[b] = value_at(r, t, b);
    for (size_t a = 0; a < dk; a++)
        for (size_t b = 0; b < dv; b++) {
            double write =
                t ? r->beta[t - 1] * r->u[(t - 1) * dv + b] * key_row(r, r->w->k, t - 1)[a] : 0;
            s[a * dv + b] = t ? r->fade[t] * (before[a * dv + b] + write) : 0;
            u[b] -= s[a * dv + b] * k[a];
        }
    double qk = 0;
    for (size_t a = 0; a < dk; a++)
        qk += q[a] * k[a];
    for (size_t b = 0; b < dv; b++)
        o[b] = r->beta[t] * u[b] * qk;
    for (size_t a = 0; a < dk; a++)
        for (size_t b = 0; b < dv; b++)
            o[b] += s[a * dv + b] * q[a];
}

/* ds: the gradient of the state after row t; becomes that before it. */
static void backward_row(recurrence *r, size_t t)
{
    const tcu_delta_rule *p = &r->w->p;
    size_t dk = (size_t)p->of.dk, dv = (size_t)p->of.dv, size = dk * dv, row = r->first + t;
    const double *k = key_row(r, r->w->k, t), *q = key_row(r, r->w->q, t), *s = r->s + t * size,
                 *u = r->u + t * dv;
    const float *d_o = p->d_o + row * r->w->vd + r->head * dv;
    double *dq = r->w->dq + row * r->w->kd + r->key_head * dk,
           *dkey = r->w->dk + row * r->w->kd + r->key_head * dk;
    double dw[TCU_DELTA_DIM] = { 0 }, d_beta = 0, d_fade = 0, beta = r->beta[t], *ds = r->ds;
    for (size_t a = 0; a < dk; a++)
        for (size_t b = 0; b < dv; b++) {
            ds[a * dv + b] += q[a] * (double)d_o[b];
            dq[a] += (s[a * dv + b] + k[a] * beta * u[b]) * (double)d_o[b];
            dkey[a] += ds[a * dv + b] * beta * u[b];
            dw[b] += ds[a * dv + b] * k[a];
        }
    for (size_t b = 0; b < dv; b++) {
        d_beta += dw[b] * u[b];
        r->w->dv[row * r->w->vd + r->head * dv + b] = beta * dw[b];
    }
    for (size_t a = 0; a < dk; a++)
        for (size_t b = 0; b < dv; b++) {
            double *d = ds + a * dv + b;
            dkey[a] -= s[a * dv + b] * beta * dw[b];
            *d -= k[a] * beta * dw[b];
            d_fade += *d * s[a * dv + b]; /* times the decay */
            *d *= r->fade[t];
        }
    r->w->db[row * r->w->heads + r->head] = d_beta * beta * (1 - beta);
    r->w->da[row * r->w->heads + r->head] =
        -d_fade * (double)p->of.decay[r->head] * sigmoid_of(decay_input(r, t));
}

static void recur(delta_world *w)
{
    size_t size = (size_t)(w->p.of.dk * w->p.of.dv), longest = (size_t)w->pack.longest;
    recurrence r = { .w = w,
                     .s = calloc(longest * size, sizeof(double)),
                     .u = calloc(longest * (size_t)w->p.of.dv, sizeof(double)),
                     .beta = calloc(longest, sizeof(double)),
                     .fade = calloc(longest, sizeof(double)),
                     .ds = calloc(size, sizeof(double)) };
    unit_rows(w);
    w->o = calloc(w->rows * w->vd, sizeof(double));
    w->dv = calloc(w->rows * w->vd, sizeof(double));
    w->dq = calloc(w->rows * w->kd, sizeof(double));
    w->dk = calloc(w->rows * w->kd, sizeof(double));
    w->db = calloc(w->rows * w->heads, sizeof(double));
    w->da = calloc(w->rows * w->heads, sizeof(double));
    for (int q = 0; q < RULES_SEQS; q++)
        for (r.head = 0; r.head < w->heads; r.head++) {
            r.key_head = r.head / (w->heads / (size_t)w->p.of.n_key_heads);
            r.first = (size_t)w->pack.runs[q].row;
            r.n = (size_t)w->pack.runs[q].n;
            for (size_t t = 0; t < r.n; t++)
                forward_row(&r, t);
            memset(r.ds, 0, size * sizeof *r.ds);
            for (size_t t = r.n; t-- > 0;)
                backward_row(&r, t);
        }
    free(r.s), free(r.u), free(r.beta), free(r.fade), free(r.ds);
}

/* ---- comparisons ---- */

/* |got - want| / |want| over all numbers. */
typedef double number_fn(const void *from, size_t i);

static double of_float(const void *from, size_t i)
{
    return (double)((const float *)from)[i];
}

static double of_bf16(const void *from, size_t i)
{
    return rules_wide(((const tcu_bf16 *)from)[i]);
}

static double off(number_fn *number, const void *got, size_t ld, const double *want, size_t rows,
                  size_t n)
{
    double wrong = 0, all = 1e-300;
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < n; i++) {
            double x = want[r * n + i], d = number(got, r * ld + i) - x;
            wrong += d * d;
            all += x * x;
        }
    return sqrt(wrong / all);
}

static void compare_delta(rules_check *check, const delta_world *w, const char *name)
{
    const tcu_delta_rule *p = &w->p;
    size_t ld = (size_t)p->ld_c, ld_gates = (size_t)p->ld_gates;
    const struct {
        const char *what;
        number_fn *number;
        const void *got;
        size_t ld;
        const double *want;
        size_t n;
        double limit;
    } all[] = {
        { "q", of_float, p->q, w->kd, w->q, w->kd, 1e-6 },
        { "k", of_float, p->k, w->kd, w->k, w->kd, 1e-6 },
        { "o", of_float, p->o, w->vd, w->o, w->vd, 3e-6 },
        { "dq", of_float, p->dq, w->kd, w->dq, w->kd, 2e-3 },
        { "dk", of_float, p->dk, w->kd, w->dk, w->kd, 2e-3 },
        { "dv", of_bf16, p->dc + p->v_at, ld, w->dv, w->vd, 4e-3 },
        { "the strength's gradient", of_bf16, p->dgates, ld_gates, w->db, w->heads, 4e-3 },
        { "the decay's gradient", of_bf16, p->dgates + p->decay_at, ld_gates, w->da, w->heads, 4e-3 },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char what[160];
        double d = off(all[i].number, all[i].got, all[i].ld, all[i].want, w->rows, all[i].n);
        snprintf(what, sizeof what, "%s: %s is that of double", name, all[i].what);
        rules_verdict(check, d < all[i].limit, what, d);
    }
}

/* Gradients of heads of unit length, from the card's own dq and dk. */
static void compare_heads_back(rules_check *check, const delta_world *w, const char *name)
{
    const tcu_delta_rule *p = &w->p;
    size_t dk = (size_t)p->of.dk;
    double wrong = 0, all = 1e-300;
    char what[160];
    for (size_t i = 0; i < 2 * w->rows * w->kd; i += dk) {
        size_t at = i % (w->rows * w->kd), which = i / (w->rows * w->kd);
        size_t c = at / w->kd * (size_t)p->ld_c + at % w->kd + (which ? (size_t)p->k_at : 0);
        const float *d = (which ? p->dk : p->dq) + at;
        double sum = 1e-6, along = 0, by = which ? 1 : 1 / sqrt((double)dk);
        for (size_t a = 0; a < dk; a++) {
            sum += rules_wide(p->c[c + a]) * rules_wide(p->c[c + a]);
            along += rules_wide(p->c[c + a]) * (double)d[a];
        }
        for (size_t a = 0; a < dk; a++) {
            double x = by / sqrt(sum) * ((double)d[a] - rules_wide(p->c[c + a]) * along / sum);
            wrong += pow(rules_wide(p->dc[c + a]) - x, 2);
            all += x * x;
        }
    }
    snprintf(what, sizeof what, "%s: gradients of heads of unit length", name);
    rules_verdict(check, sqrt(wrong / all) < 4e-3, what, sqrt(wrong / all));
}

/* A launch of a step, and how many numbers of its gated norm differ from those of the norm's own launch. */
static uint64_t delta_step(rules_check *check, const tcu_delta_rule *p)
{
    uint64_t differ = 0;
    size_t n = (size_t)(p->n * p->of.n_value_heads * p->of.dv);
    if (!tcu_delta_steps(p)) {
        rules_done(check, tcu_delta_heads(p, check->device->stream), "heads of a step");
        rules_done(check, tcu_delta_forward(p, check->device->stream), "a step");
        return 0;
    }
    float *w = rules_floats((size_t)p->of.dv, 3, 1, 1);
    tcu_bf16 *z = rules_numbers(n, 7, 2), *y = rules_room(n * sizeof *y),
             *want = rules_room(n * sizeof *want);
    tcu_gated_norm norm = { .n = p->n,
                            .heads = p->of.n_value_heads,
                            .d = p->of.dv,
                            .w = w,
                            .eps = 1e-3f,
                            .z = z,
                            .ldz = (int64_t)(n / (size_t)p->n) };
    rules_done(check, tcu_delta_step(p, &norm, y, check->device->stream), "a step of one row");
    rules_done(check, tcu_gated_forward(&norm, p->o, want, check->device->stream), "its norm");
    for (size_t i = 0; i < n; i++)
        differ += memcmp(&y[i], &want[i], sizeof *y) != 0;
    rules_drop(w), rules_drop(z), rules_drop(y), rules_drop(want);
    return differ;
}

/* Steps of up to `cut` rows give the packed rows' bits; slots begin with what is not a number. */
static uint64_t delta_steps(rules_check *check, const delta_world *w, int32_t cut)
{
    tcu_delta_rule p = w->p;
    int32_t at[RULES_SEQS] = { 0 };
    uint64_t differ = 0;
    rules_turn t = { .runs = rules_room(RULES_SEQS * sizeof *t.runs) };
    tcu_bf16 *c = rules_room(w->rows * (size_t)p.ld_c * sizeof *c);
    float *gates = room(w->rows * (size_t)p.ld_gates);
    tcu_piece *pieces = rules_room((w->rows / TCU_DELTA_CHUNK + 3 * RULES_SEQS) * sizeof *pieces);
    p.c = c;
    p.gates = gates;
    p.runs = t.runs;
    p.pieces = pieces;
    p.rows = p.states = NULL;
    p.stride = tcu_delta_slot(&p.of) + 48;
    p.slots = rules_room(p.stride * RULES_SEQS);
    delta_rooms(&p, w->rows, false);
    while (rules_next(&w->pack, &t, at, cut)) {
        rules_gather(&t, c, w->p.c, (size_t)p.ld_c);
        rules_gather(&t, (tcu_bf16 *)gates, (const tcu_bf16 *)w->p.gates, 2 * (size_t)p.ld_gates);
        p.n = t.rows;
        p.n_runs = t.n_runs;
        p.longest = t.longest;
        p.n_pieces = (int32_t)tcu_fill_pieces(t.runs, (size_t)t.n_runs, pieces);
        differ += delta_step(check, &p);
        differ += rules_differ(&t, (const tcu_bf16 *)p.o, (const tcu_bf16 *)w->p.o, 2 * w->vd);
    }
    delta_rooms_free(&p);
    rules_drop(t.runs);
    rules_drop(c);
    rules_drop(gates);
    rules_drop(pieces);
    rules_drop(p.slots);
    return differ;
}

static void check_rule(rules_check *check, const delta_case *of, bool large)
{
    static const int32_t cuts[] = { 0, 1, 5, 70 };
    delta_world w = delta_world_new(of, rules_pack_new());
    tcu_stream stream = check->device->stream;
    char name[96], what[160];
    snprintf(name, sizeof name, "delta rule, %d and %d heads of %d x %d, decay %g", of->key_heads,
             of->value_heads, of->dk, of->dv, (double)of->decay);
    w.p.d_o = short_floats(w.rows * w.vd, 21);
    rules_done(check, tcu_delta_heads(&w.p, stream), "heads");
    rules_done(check, tcu_delta_forward(&w.p, stream), "the rule");
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        if (large && cuts[i] == 1)
            continue;
        uint64_t differ = delta_steps(check, &w, cuts[i]);
        snprintf(what, sizeof what, "%s: steps of %d rows, bits that differ", name, cuts[i]);
        rules_verdict(check, differ == 0, what, (double)differ);
    }
    rules_done(check, tcu_delta_backward(&w.p, stream), "the rule backward");
    rules_done(check, tcu_delta_heads_back(&w.p, stream), "heads backward");
    recur(&w);
    compare_delta(check, &w, name);
    compare_heads_back(check, &w, name);
    rules_drop(w.pack.runs);
    delta_world_free(&w);
}

static rules_pack equal_pack(int32_t length)
{
    rules_pack p = { .runs = rules_room(RULES_SEQS * sizeof *p.runs), .longest = length };
    for (int i = 0; i < RULES_SEQS; i++, p.rows += length)
        p.runs[i] = (tcu_run){ .row = p.rows, .n = length, .slot = -1 };
    return p;
}

/* More heads in a step than the card has room for at once. */
static void check_many_heads(rules_check *check)
{
    static const delta_case of = { 16, 64, 128, 128, 0.05f };
    delta_world w = delta_world_new(&of, equal_pack(2 * TCU_DELTA_CHUNK + 3));
    rules_done(check, tcu_delta_heads(&w.p, check->device->stream), "heads");
    rules_done(check, tcu_delta_forward(&w.p, check->device->stream), "the rule");
    uint64_t differ = delta_steps(check, &w, 1);
    rules_verdict(check, differ == 0, "delta rule, 8 x 64 heads: steps of 1 row, bits that differ",
                  (double)differ);
    rules_drop(w.pack.runs);
    delta_world_free(&w);
}

/* ---- the gated norm ---- */

static void check_gated(rules_check *check, int32_t heads, int32_t d)
{
    size_t n = 37, vd = (size_t)(heads * d), ldz = vd + 8;
    float *w = rules_floats((size_t)d, 3, 1, 1), *o = rules_floats(n * vd, 5, 1, 0);
    tcu_bf16 *z = rules_numbers(n * ldz, 7, 2), *y = rules_room(n * vd * 2),
             *dz = rules_room(n * ldz * 2);
    tcu_bf16 *dy = rules_numbers(n * vd, 9, 1);
    double *want[3];
    char what[160];
    tcu_gated_norm p = {
        .n = (int32_t)n, .heads = heads, .d = d, .w = w, .eps = 1e-3f, .z = z, .ldz = (int64_t)ldz
    };
    for (int i = 0; i < 3; i++)
        want[i] = calloc(n * vd, sizeof(double));
    for (size_t at = 0; at < n * vd; at += (size_t)d) {
        double sum = 0, along = 0;
        const tcu_bf16 *gate = z + at / vd * ldz + at % vd;
        for (int32_t i = 0; i < d; i++)
            sum += (double)o[at + (size_t)i] * (double)o[at + (size_t)i] / d;
        double rho = 1 / sqrt(sum + (double)p.eps);
        for (int32_t i = 0; i < d; i++) {
            double x = (double)o[at + (size_t)i], g = rules_wide(gate[i]), s = sigmoid_of(g),
                   e = rules_wide(dy[at + (size_t)i]) * (double)w[i];
            want[0][at + (size_t)i] = (double)w[i] * x * rho * g * s;
            want[1][at + (size_t)i] = e * x * rho * s * (1 + g * (1 - s));
            along += e * g * s * x / d;
        }
        for (int32_t i = 0; i < d; i++) {
            double x = (double)o[at + (size_t)i], g = rules_wide(gate[i]),
                   e = rules_wide(dy[at + (size_t)i]) * (double)w[i] * g * sigmoid_of(g);
            want[2][at + (size_t)i] = rho * e - x * rho * rho * rho * along;
        }
    }
    rules_done(check, tcu_gated_forward(&p, o, y, check->device->stream), "the gated norm");
    rules_done(check, tcu_gated_back(&p, o, dy, dz, (int64_t)ldz, check->device->stream),
               "the gated norm backward");
    double worst[3] = { off(of_bf16, y, vd, want[0], n, vd), off(of_bf16, dz, ldz, want[1], n, vd),
                        off(of_float, o, vd, want[2], n, vd) };
    snprintf(what, sizeof what, "gated norm of %d heads of %d: y, dz, do are those of double",
             heads, d);
    rules_verdict(check, worst[0] < 3e-3 && worst[1] < 3e-3 && worst[2] < 3e-4, what,
                  fmax(worst[0], worst[1]));
    for (int i = 0; i < 3; i++)
        free(want[i]);
    rules_drop(w), rules_drop(o), rules_drop(z), rules_drop(y), rules_drop(dz), rules_drop(dy);
}

void check_delta(rules_check *check)
{
    static const delta_case cases[] = {
        { 2, 4, 8, 10, 0.5f }, { 1, 2, 16, 16, 1 },     { 1, 3, 64, 128, 0.01f }, { 2, 4, 128, 128, 0.05f },
        { 1, 2, 128, 128, 8 }, { 1, 1, 72, 256, 0.1f }, { 1, 1, 24, 200, 0.1f },
    };
    static const delta_case wide = {
        9, 18, 64, 64, 0.2f
    }; /* blocks of 64 columns where all sequences are there */
    check_gated(check, 3, 10);
    check_gated(check, 2, 128);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_rule(check, &cases[i], false);
    check_rule(check, &wide, true);
    check_many_heads(check);
}

/* ---- time ---- */

typedef int timed_fn(const tcu_delta_rule *, tcu_stream);

static int one_step(const tcu_delta_rule *p, tcu_stream stream)
{
    return tcu_delta_step(p, NULL, NULL, stream);
}

static double milliseconds(rules_check *check, timed_fn *f, const tcu_delta_rule *p)
{
    cudaEvent_t a, b;
    float ms, best = 1e9f;
    cudaEventCreate(&a);
    cudaEventCreate(&b);
    for (int i = 0; i < 5; i++) {
        cudaEventRecord(a, check->device->stream);
        int rc = f(p, check->device->stream);
        cudaEventRecord(b, check->device->stream);
        rules_done(check, rc, "a timed launch");
        cudaEventElapsedTime(&ms, a, b);
        best = ms < best ? ms : best;
    }
    return (double)best;
}

/* A step of n sequences, one row each, in the middle of a chunk. */
static void speed_step(rules_check *check, const delta_world *w, int32_t n)
{
    tcu_delta_rule p = w->p;
    tcu_run *runs = rules_room((size_t)n * sizeof *runs);
    tcu_piece *pieces = rules_room((size_t)n * sizeof *pieces);
    for (int32_t i = 0; i < n; i++)
        runs[i] = (tcu_run){ .row = i, .n = 1, .position = 2048 + 32, .slot = i };
    p.n = p.n_runs = n;
    p.longest = 1;
    p.n_pieces = (int32_t)tcu_fill_pieces(runs, (size_t)n, pieces);
    p.runs = runs;
    p.pieces = pieces;
    p.stride = tcu_delta_slot(&p.of);
    p.slots = rules_room(p.stride * (size_t)n);
    printf("SPEED delta, a step of %d, us: %.1f", n, 1e3 * milliseconds(check, one_step, &p));
    printf(", heads as in training %.1f", 1e3 * milliseconds(check, tcu_delta_heads, &p));
    printf(", the rule %.1f\n", 1e3 * milliseconds(check, tcu_delta_forward, &p));
    rules_drop(runs);
    rules_drop(pieces);
    rules_drop(p.slots);
}

void speed_delta(rules_check *check)
{
    static const delta_case qwen = { 16, 32, 128, 128, 0.05f };
    delta_world w = delta_world_new(&qwen, equal_pack(2048));
    w.p.d_o = short_floats(w.rows * w.vd, 21);
    printf("SPEED delta, 8 x 2048, ms: heads %.3f", milliseconds(check, tcu_delta_heads, &w.p));
    printf(", forward with states %.3f", milliseconds(check, tcu_delta_forward, &w.p));
    printf(", backward %.3f", milliseconds(check, tcu_delta_backward, &w.p));
    printf(", heads backward %.3f", milliseconds(check, tcu_delta_heads_back, &w.p));
    w.p.states = w.p.rows = NULL;
    printf(", forward alone %.3f\n", milliseconds(check, tcu_delta_forward, &w.p));
    speed_step(check, &w, 1);
    speed_step(check, &w, 64);
}
