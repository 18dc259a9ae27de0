/* check_space.c - the state-space rule on a card, against double precision and itself in steps; and its speed. */
#include "check_rules.h"
#include "cuda/cuda_space.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct space_case {
    int32_t heads, groups, p, n;
    float slow, fast; /* decays */
    float min, max;   /* time steps */
} space_case;

typedef struct space_world {
    space_case of;
    rules_pack pack;
    size_t width;  /* of y and o: rounded up to 8 */
    size_t times;  /* of a row */
    tcu_space_rule rule;
    tcu_space_norm norm;
    double *y, *dx, *db, *dc, *d_times; /* what double has: rows dense, of heads p, groups n, heads */
} space_world;

static int32_t rounded(int32_t n)
{
    return (n + 7) / 8 * 8;
}

/* Numbers whose columns from `used` on are zero. */
static tcu_bf16 *rows_new(size_t rows, size_t used, size_t width, uint64_t seed, float scale)
{
    tcu_bf16 *p = rules_numbers(rows * width, seed, scale);
    for (size_t i = 0; i < rows; i++)
        memset(p + i * width + used, 0, (width - used) * sizeof *p);
    return p;
}

static tcu_bf16 *empty(size_t n)
{
    return rules_room(n * sizeof(tcu_bf16));
}

static space_world space_world_new(const space_case *of, rules_pack pack)
{
    space_world w = { .of = *of, .pack = pack };
    size_t rows = (size_t)pack.rows, heads = (size_t)of->heads, inner = heads * (size_t)of->p;
    int32_t vectors = rounded(of->groups * of->n);
    w.width = (size_t)rounded(of->heads * of->p);
    w.times = (size_t)rounded(of->heads);
    tcu_space_rule *r = &w.rule;
    *r = (tcu_space_rule){ .n_heads = of->heads, .n_groups = of->groups, .p = of->p, .n = of->n };
    float *decay = rules_room(heads * sizeof *decay);
    for (size_t i = 0; i < heads; i++)
        decay[i] = of->slow + (of->fast - of->slow) * (float)i / (float)heads;
    r->decay = decay;
    r->dt_bias = rules_floats(heads, 21, 1, -2);
    r->skip = rules_floats(heads, 22, 1, 0);
    r->step_min = of->min;
    r->step_max = of->max;
    r->b_at = (int32_t)w.width;
    r->c_at = r->b_at + vectors;
    r->ldc = r->c_at + vectors;
    r->c = rules_numbers(rows * (size_t)r->ldc, 23, 1);
    r->ld_times = (int64_t)w.times;
    r->times = rows_new(rows, heads, w.times, 24, 2);
    r->runs = pack.runs;
    r->n_runs = RULES_SEQS;
    r->longest = pack.longest;
    r->ldy = (int64_t)w.width;
    r->y = empty(rows * w.width);
    w.norm = (tcu_space_norm){ .rows = pack.rows,
                               .width = (int32_t)inner,
                               .n_groups = of->groups,
                               .weights = rules_floats(inner, 25, 0.5f, 1),
                               .eps = 1e-5f,
                               .y = r->y,
                               .z = rows_new(rows, inner, w.width, 26, 2),
                               .ldy = r->ldy,
                               .ldz = r->ldy,
                               .o = empty(rows * w.width) };
    return w;
}

static void gradients_new(space_world *w)
{
    size_t rows = (size_t)w->pack.rows, edges = tcu_space_edges(&w->rule, rows);
    w->rule.dy = rows_new(rows, (size_t)w->norm.width, w->width, 27, 1);
    w->rule.dc = empty(rows * (size_t)w->rule.ldc);
    w->rule.d_times = empty(rows * w->times);
    w->rule.states = empty(edges);
    w->rule.d_states = empty(edges);
}

static void space_world_free(space_world *w)
{
    const void *all[] = { w->rule.decay,  w->rule.dt_bias, w->rule.skip,    w->rule.c,
                          w->rule.times,  w->rule.y,       w->norm.weights, w->norm.z,
                          w->norm.o,      w->rule.dy,      w->rule.dc,      w->rule.d_times,
                          w->rule.states, w->rule.d_states };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        rules_drop((void *)(uintptr_t)all[i]);
    free(w->y);
    free(w->dx);
    free(w->db);
    free(w->dc);
    free(w->d_times);
}

/* ---- in double, one position after the other ---- */

typedef struct row_of { /* a row of a head */
    const tcu_bf16 *x, *b, *c, *dy;
    double in, soft, step, fade; /* fade: e^a */
} row_of;

static row_of row_at(const space_world *w, size_t row, size_t head)
{
    const tcu_space_rule *r = &w->rule;
    size_t group = head / (size_t)(r->n_heads / r->n_groups);
    const tcu_bf16 *c = r->c + row * (size_t)r->ldc;
    row_of o = { .x = c + head * (size_t)r->p,
                 .b = c + (size_t)r->b_at + group * (size_t)r->n,
                 .c = c + (size_t)r->c_at + group * (size_t)r->n };
    o.dy = r->dy ? r->dy + row * (size_t)r->ldy + head * (size_t)r->p : NULL;
    o.in = rules_wide(r->times[row * (size_t)r->ld_times + head]) + (double)r->dt_bias[head];
    o.soft = log1p(exp(o.in));
    o.step = fmin(fmax(o.soft, (double)r->step_min), (double)r->step_max);
    o.fade = exp(-o.step * (double)r->decay[head]);
    return o;
}

/* s: the states after each row, behind a first one of zeros. */
static void forward_head(space_world *w, const tcu_run *run, size_t head, double *s)
{
    size_t p = (size_t)w->of.p, n = (size_t)w->of.n, heads = (size_t)w->of.heads;
    memset(s, 0, p * n * sizeof *s);
    for (size_t t = 0; t < (size_t)run->n; t++) {
        size_t row = (size_t)run->row + t;
        row_of o = row_at(w, row, head);
        const double *before = s + t * p * n;
        double *after = s + (t + 1) * p * n;
        for (size_t i = 0; i < p; i++) {
            double x = rules_wide(o.x[i]), y = (double)w->rule.skip[head] * x;
            for (size_t k = 0; k < n; k++) {
                size_t at = i * n + k;
                after[at] = o.fade * before[at] + o.step * x * rules_wide(o.b[k]);
                y += after[at] * rules_wide(o.c[k]);
            }
            w->y[(row * heads + head) * p + i] = y;
        }
    }
}

/* Row t from ds, the gradient of the state after it; ds becomes that before it. */
static void backward_row(space_world *w, size_t row, size_t head, const double *before, double *ds)
{
    size_t p = (size_t)w->of.p, n = (size_t)w->of.n, heads = (size_t)w->of.heads;
    size_t group = head / (heads / (size_t)w->of.groups);
    row_of o = row_at(w, row, head);
    const double *after = before + p * n;
    double *db = w->db + (row * (size_t)w->of.groups + group) * n;
    double *dc = w->dc + (row * (size_t)w->of.groups + group) * n;
    double d_step = 0, d_fade = 0;
    for (size_t i = 0; i < p; i++) {
        double x = rules_wide(o.x[i]), dy = rules_wide(o.dy[i]), du = 0;
        for (size_t k = 0; k < n; k++) {
            size_t at = i * n + k;
            ds[at] += dy * rules_wide(o.c[k]);
            dc[k] += dy * after[at];
            db[k] += ds[at] * o.step * x;
            du += ds[at] * rules_wide(o.b[k]);
            d_fade += ds[at] * before[at];
            ds[at] *= o.fade;
        }
        d_step += x * du;
        w->dx[(row * heads + head) * p + i] = o.step * du + (double)w->rule.skip[head] * dy;
    }
    d_step -= (double)w->rule.decay[head] * o.fade * d_fade;
    bool cut = o.soft < (double)w->rule.step_min || o.soft > (double)w->rule.step_max;
    w->d_times[row * heads + head] = cut ? 0 : d_step / (1 + exp(-o.in));
}

static void in_double(space_world *w)
{
    size_t rows = (size_t)w->pack.rows, heads = (size_t)w->of.heads, p = (size_t)w->of.p;
    size_t n = (size_t)w->of.n, vectors = rows * (size_t)w->of.groups * n;
    double *s = malloc(((size_t)w->pack.longest + 1) * p * n * sizeof *s), *ds = malloc(p * n * 8);
    w->y = calloc(rows * heads * p, sizeof *w->y);
    w->dx = calloc(rows * heads * p, sizeof *w->dx);
    w->db = calloc(vectors, sizeof *w->db);
    w->dc = calloc(vectors, sizeof *w->dc);
    w->d_times = calloc(rows * heads, sizeof *w->d_times);
    for (int q = 0; q < RULES_SEQS; q++)
        for (size_t h = 0; h < heads; h++) {
            const tcu_run *run = &w->pack.runs[q];
            forward_head(w, run, h, s);
            memset(ds, 0, p * n * sizeof *ds);
            for (size_t t = (size_t)run->n; t-- > 0;)
                backward_row(w, (size_t)run->row + t, h, s + t * p * n, ds);
        }
    free(s);
    free(ds);
}

/* ---- checks ---- */

/* The distance of two matrices over the second one's norm. */
static double norm_distance(const tcu_bf16 *got, size_t ld, const double *want, size_t rows,
                            size_t n)
{
    double off = 0, all = 1e-300;
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < n; i++) {
            double x = want[r * n + i], d = rules_wide(got[r * ld + i]) - x;
            off += d * d;
            all += x * x;
        }
    return sqrt(off / all);
}

static void said(rules_check *check, const space_world *w, const char *what, double value,
                 double limit)
{
    char line[160];
    snprintf(line, sizeof line, "space %d/%d %dx%d, decay %g-%g: %s", w->of.heads, w->of.groups,
             w->of.p, w->of.n, (double)w->of.slow, (double)w->of.fast, what);
    rules_verdict(check, value <= limit, line, value);
}

static void check_rows(rules_check *check, space_world *w)
{
    size_t rows = (size_t)w->pack.rows, p = (size_t)w->of.p, heads = (size_t)w->of.heads;
    double worst = 0, norm = 0;
    rules_done(check, tcu_space_forward(&w->rule, check->device->stream), "the rule");
    for (size_t h = 0; h < heads; h++) {
        double *want = malloc(rows * p * sizeof *want);
        for (size_t i = 0; i < rows * p; i++)
            want[i] = w->y[(i / p * heads + h) * p + i % p];
        double off = rules_distance(w->rule.y + h * p, want, rows, p, w->width);
        worst = off <= worst ? worst : off;
        off = norm_distance(w->rule.y + h * p, w->width, want, rows, p);
        norm = off <= norm ? norm : off;
        free(want);
    }
    said(check, w, "packed rows are those of double", worst, 1.02 / 256);
    said(check, w, "and off by no more than y is rounded", norm, 0.0018);
}

/* o and the norm's gradients, in double from the y that the card has. */
typedef struct norm_double {
    double *o, *dy, *dz;
} norm_double;

static void norm_group(const space_world *w, size_t row, size_t group, const norm_double *to)
{
    const tcu_space_norm *m = &w->norm;
    size_t n = (size_t)(m->width / m->n_groups), from = row * w->width + group * n;
    size_t at = row * (size_t)m->width + group * n;
    double squares = 0, along = 0;
    for (size_t i = 0; i < n; i++) {
        double z = rules_wide(m->z[from + i]), v = rules_wide(m->y[from + i]) * z / (1 + exp(-z));
        squares += v * v;
        along += v * (double)m->weights[group * n + i] * rules_wide(m->d_o[from + i]);
    }
    double by = 1 / sqrt(squares / (double)n + (double)m->eps);
    for (size_t i = 0; i < n; i++) {
        double z = rules_wide(m->z[from + i]), y = rules_wide(m->y[from + i]);
        double s = 1 / (1 + exp(-z)), weight = (double)m->weights[group * n + i];
        double d = by * (weight * rules_wide(m->d_o[from + i]) -
                         y * z * s * along * by * by / (double)n);
        to->o[at + i] = weight * y * z * s * by;
        to->dy[at + i] = d * z * s;
        to->dz[at + i] = d * y * s * (1 + z * (1 - s));
    }
}

static void check_norm(rules_check *check, space_world *w)
{
    size_t rows = (size_t)w->pack.rows, n = (size_t)w->norm.width, count = rows * n;
    norm_double want = { calloc(count, 8), calloc(count, 8), calloc(count, 8) };
    w->norm.d_o = w->rule.dy;
    w->norm.dy = empty(rows * w->width);
    w->norm.dz = empty(rows * w->width);
    rules_done(check, tcu_space_norm_forward(&w->norm, check->device->stream), "the norm");
    rules_done(check, tcu_space_norm_back(&w->norm, check->device->stream), "the norm's gradient");
    for (size_t row = 0; row < rows; row++)
        for (size_t g = 0; g < (size_t)w->of.groups; g++)
            norm_group(w, row, g, &want);
    said(check, w, "the norm's rows", norm_distance(w->norm.o, w->width, want.o, rows, n), 0.003);
    said(check, w, "gradient of the norm's input",
         norm_distance(w->norm.dy, w->width, want.dy, rows, n), 0.003);
    said(check, w, "gradient of the gate", norm_distance(w->norm.dz, w->width, want.dz, rows, n),
         0.003);
    free(want.o);
    free(want.dy);
    free(want.dz);
    rules_drop(w->norm.dy);
    rules_drop(w->norm.dz);
}

static void check_gradients(rules_check *check, space_world *w)
{
    size_t rows = (size_t)w->pack.rows, ldc = (size_t)w->rule.ldc;
    size_t inner = (size_t)w->norm.width, vectors = (size_t)(w->of.groups * w->of.n);
    const tcu_bf16 *dc = w->rule.dc;
    rules_done(check, tcu_space_back(&w->rule, check->device->stream), "the rule's gradient");
    said(check, w, "gradient of x", norm_distance(dc, ldc, w->dx, rows, inner), 0.004);
    said(check, w, "gradient of B",
         norm_distance(dc + w->rule.b_at, ldc, w->db, rows, vectors), 0.004);
    said(check, w, "gradient of C",
         norm_distance(dc + w->rule.c_at, ldc, w->dc, rows, vectors), 0.004);
    said(check, w, "gradient of the time step",
         norm_distance(w->rule.d_times, w->times, w->d_times, rows, (size_t)w->of.heads), 0.004);
}

typedef struct space_steps { /* a step's own rows */
    tcu_bf16 *c, *times, *z;
    int32_t *run_of;
    rules_turn turn;
    tcu_space_rule rule;
    tcu_space_norm norm;
} space_steps;

static void take_rows(const space_world *w, space_steps *s)
{
    const rules_turn *t = &s->turn;
    rules_gather(t, s->c, w->rule.c, (size_t)w->rule.ldc);
    rules_gather(t, s->times, w->rule.times, w->times);
    rules_gather(t, s->z, w->norm.z, w->width);
    for (int32_t i = 0; i < t->n_runs; i++)
        for (int32_t k = 0; k < t->runs[i].n; k++)
            s->run_of[t->runs[i].row + k] = i;
    s->rule.n_runs = t->n_runs;
    s->rule.longest = t->longest;
    s->norm.rows = t->rows;
}

static space_steps steps_new(const space_world *w)
{
    size_t rows = (size_t)w->pack.rows;
    space_steps s = { .rule = w->rule, .norm = w->norm };
    s.c = empty(rows * (size_t)w->rule.ldc);
    s.times = empty(rows * w->times);
    s.z = empty(rows * w->width);
    s.run_of = rules_room(rows * sizeof *s.run_of);
    s.turn.runs = rules_room(RULES_SEQS * sizeof *s.turn.runs);
    s.rule.c = s.c;
    s.rule.times = s.times;
    s.rule.runs = s.turn.runs;
    s.rule.y = empty(rows * w->width);
    s.rule.stride = (int64_t)tcu_space_slot(&w->rule);
    s.rule.slots = rules_room((size_t)s.rule.stride * RULES_SEQS);
    s.norm.y = s.rule.y;
    s.norm.z = s.z;
    s.norm.o = empty(rows * w->width);
    s.norm.run_of = s.run_of;
    return s;
}

/* Numbers that differ between steps of up to `cut` rows and packed sequences. */
static uint64_t space_differ(rules_check *check, const space_world *w, int32_t cut)
{
    int32_t at[RULES_SEQS] = { 0 };
    uint64_t differ = 0;
    space_steps s = steps_new(w);
    s.norm.rule = &s.rule;
    while (rules_next(&w->pack, &s.turn, at, cut)) {
        take_rows(w, &s);
        rules_done(check, tcu_space_forward(&s.rule, check->device->stream), "a step");
        rules_done(check, tcu_space_norm_forward(&s.norm, check->device->stream), "a step's norm");
        for (int32_t i = 0; i < s.turn.n_runs; i++) /* only what heads wrote */
            for (int32_t k = 0; k < s.turn.runs[i].n; k++)
                differ += memcmp(s.rule.y + (size_t)(s.turn.runs[i].row + k) * w->width,
                                 w->rule.y + (size_t)(s.turn.from[i] + k) * w->width,
                                 (size_t)w->norm.width * sizeof *s.rule.y) != 0;
        differ += rules_differ(&s.turn, s.norm.o, w->norm.o, w->width);
    }
    void *all[] = { s.c,      s.times,      s.z,          s.run_of,
                    s.rule.y, s.turn.runs, s.rule.slots, s.norm.o };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        rules_drop(all[i]);
    return differ;
}

static void check_case(rules_check *check, const space_case *of)
{
    static const int32_t cuts[] = { 0, 1, 5, 70, 200 };
    space_world w = space_world_new(of, rules_pack_new());
    char what[64];
    gradients_new(&w);
    in_double(&w);
    check_rows(check, &w);
    check_norm(check, &w);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        snprintf(what, sizeof what, "steps of %d rows, bits that differ", cuts[i]);
        said(check, &w, what, (double)space_differ(check, &w, cuts[i]), 0);
    }
    check_gradients(check, &w);
    rules_drop(w.pack.runs);
    space_world_free(&w);
}

void check_space(rules_check *check)
{
    static const space_case cases[] = {
        { 4, 2, 64, 128, 1, 4, 0, INFINITY },    { 4, 2, 64, 128, 8, 16, 0, INFINITY },
        { 6, 2, 5, 7, 1, 8, 0.02f, 0.8f },       { 3, 1, 16, 16, 0.01f, 0.1f, 0, INFINITY },
        { 4, 4, 64, 64, 1, 16, 0.1f, INFINITY }, { 2, 1, 24, 120, 0.5f, 1, 0, 0.2f },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(check, &cases[i]);
}

/* ---- speed: one layer of Nemotron-3 Nano 30B-A3B ---- */

typedef int timed_call(const space_world *, tcu_stream);

static int call_forward(const space_world *w, tcu_stream s)
{
    return tcu_space_forward(&w->rule, s);
}

static int call_norm(const space_world *w, tcu_stream s)
{
    return tcu_space_norm_forward(&w->norm, s);
}

static int call_back(const space_world *w, tcu_stream s)
{
    return tcu_space_back(&w->rule, s);
}

static int call_norm_back(const space_world *w, tcu_stream s)
{
    return tcu_space_norm_back(&w->norm, s);
}

static void time_call(rules_check *check, const char *what, const space_world *w, timed_call *f)
{
    enum { TURNS = 10 };
    cudaEvent_t begin, end;
    float ms;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    rules_done(check, f(w, check->device->stream), what);
    rules_done(check, f(w, check->device->stream), what);
    cudaEventRecord(begin, check->device->stream);
    for (int i = 0; i < TURNS; i++)
        f(w, check->device->stream);
    cudaEventRecord(end, check->device->stream);
    rules_done(check, 0, what);
    cudaEventElapsedTime(&ms, begin, end);
    printf("SPEED %-50s %10.1f us\n", what, (double)ms * 1e3 / TURNS);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
}

/* Sequences of `rows` rows from a position on. */
static rules_pack pack_of(int32_t seqs, int32_t rows, int32_t position)
{
    rules_pack p = { .runs = rules_room((size_t)seqs * sizeof *p.runs),
                     .rows = seqs * rows,
                     .longest = rows };
    for (int32_t i = 0; i < seqs; i++)
        p.runs[i] = (tcu_run){ .row = i * rows, .n = rows, .position = position, .slot = i };
    return p;
}

static const space_case nano = { 64, 8, 64, 128, 1, 16, 0, INFINITY };

static void time_training(rules_check *check)
{
    space_world w = space_world_new(&nano, pack_of(8, 2048, 0));
    gradients_new(&w);
    w.norm.d_o = w.rule.dy;
    w.norm.dy = empty((size_t)w.pack.rows * w.width);
    w.norm.dz = empty((size_t)w.pack.rows * w.width);
    time_call(check, "space, 8 x 2048: forward", &w, call_forward);
    time_call(check, "space, 8 x 2048: norm", &w, call_norm);
    time_call(check, "space, 8 x 2048: backward", &w, call_back);
    time_call(check, "space, 8 x 2048: norm backward", &w, call_norm_back);
    rules_drop(w.norm.dy);
    rules_drop(w.norm.dz);
    rules_drop(w.pack.runs);
    space_world_free(&w);
}

static void time_steps(rules_check *check, int32_t seqs)
{
    space_world w = space_world_new(&nano, pack_of(seqs, 1, 1024 + 32));
    int32_t *run_of = rules_room((size_t)seqs * sizeof *run_of);
    char what[64];
    for (int32_t i = 0; i < seqs; i++)
        run_of[i] = i;
    w.rule.n_runs = seqs;
    w.rule.stride = (int64_t)tcu_space_slot(&w.rule);
    w.rule.slots = rules_room((size_t)w.rule.stride * (size_t)seqs);
    memset(w.rule.slots, 0, (size_t)w.rule.stride * (size_t)seqs);
    w.norm.rule = &w.rule;
    w.norm.run_of = run_of;
    snprintf(what, sizeof what, "space, a step of %d: forward", seqs);
    time_call(check, what, &w, call_forward);
    snprintf(what, sizeof what, "space, a step of %d: norm", seqs);
    time_call(check, what, &w, call_norm);
    rules_drop(run_of);
    rules_drop(w.rule.slots);
    rules_drop(w.pack.runs);
    space_world_free(&w);
}

void speed_space(rules_check *check)
{
    time_training(check);
    time_steps(check, 1);
    time_steps(check, 64);
}
