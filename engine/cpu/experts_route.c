/* experts_route.c - chooses the experts of each row and orders the pairs.
 *
 * The larger score wins, the lower expert among equals. May touch: the buffers it is given. Must not: compute
 * anything for a row that depends on another, but the places of its pairs.
 */
#include <assert.h>
#include <string.h>
#include "cpu/experts.h"

typedef struct loop {
    const tke_experts *x;
    const tke_pairs *p;
    size_t width;
    bool weighted;
    const tke_real *from, *other;
    tke_real *to, *second;
} loop;

static void run(tke_cpu *cpu, size_t tasks, tke_task_fn *fn, loop *l)
{
    tke_threads_run(tke_cpu_threads(cpu), (int64_t)tasks, fn, l);
}

/* ---- the choice ---- */

/* The `top` largest, in ascending order of their index. */
static void choose(const double *scores, size_t n, size_t top, int32_t *out)
{
    for (size_t k = 0; k < top; k++) {
        int32_t best = -1;
        for (size_t e = 0; e < n; e++) {
            bool taken = false;
            for (size_t i = 0; i < k; i++)
                taken = taken || out[i] == (int32_t)e;
            if (!taken && (best < 0 || scores[e] > scores[best]))
                best = (int32_t)e;
        }
        size_t at = k;
        for (; at > 0 && out[at - 1] > best; at--)
            out[at] = out[at - 1];
        out[at] = best;
    }
}

/* The sum of exp(logit - max): over all experts, or over the chosen. */
static tke_real sum_of(const loop *l, const tke_real *logits, const int32_t *chosen, tke_real *max)
{
    bool all = l->x->route == TKE_ROUTE_ALL;
    size_t n = all ? l->p->n_experts : l->p->top;
    tke_real sum = 0;
    *max = -(tke_real)INFINITY;
    for (size_t i = 0; i < n; i++) {
        tke_real z = logits[all ? i : (size_t)chosen[i]];
        *max = z > *max ? z : *max;
    }
    for (size_t i = 0; i < n; i++)
        sum += tke_real_exp(logits[all ? i : (size_t)chosen[i]] - *max);
    return sum;
}

/* exp(-|x|) cannot overflow. */
static tke_real sigmoid(tke_real x)
{
    tke_real e = tke_real_exp(-tke_real_fabs(x));
    return (x < 0 ? e : 1) / (1 + e);
}

/* The sum of a group's two best. */
static double group_score(const double *scores, size_t n)
{
    double best = scores[0], next = scores[1];
    for (size_t e = 1; e < n; e++) {
        double x = scores[e];
        next = x > best ? best : x > next ? x : next;
        best = x > best ? x : best;
    }
    return best + next;
}

/* Scores of experts outside the kept groups become -infinity. */
static void keep_groups(const tke_sigmoid_route *r, size_t n, double *scores)
{
    size_t size = n / r->n_groups;
    double sums[TKE_MAX_GROUPS];
    int32_t kept[TKE_MAX_GROUPS];
    assert(r->n_groups <= TKE_MAX_GROUPS && size >= 2);
    for (size_t g = 0; g < r->n_groups; g++)
        sums[g] = group_score(scores + g * size, size);
    choose(sums, r->n_groups, r->kept_groups, kept);
    for (size_t e = 0, at = 0; e < n; e++) {
        while (at < r->kept_groups && (size_t)kept[at] < e / size)
            at++;
        if (at == r->kept_groups || (size_t)kept[at] != e / size)
            scores[e] = -(double)INFINITY;
    }
}

/* What decides the choice. A bias may be large and its differences small: sums are in double. */
static void make_scores(const tke_experts *x, const tke_real *logits, double *scores)
{
    const tke_sigmoid_route *r = &x->sigmoid;
    bool soft = x->route != TKE_ROUTE_SIGMOID;
    for (size_t e = 0; e < x->n; e++)
        scores[e] = soft ? (double)logits[e] : (double)sigmoid(logits[e]) + (double)r->bias[e];
    if (!soft && r->n_groups > 1)
        keep_groups(r, x->n, scores);
}

/* The bias chooses; plain sigmoids weigh. */
static void sigmoid_weights(const loop *l, const tke_real *logits, const int32_t *chosen,
                            tke_real *weight)
{
    const tke_sigmoid_route *r = &l->x->sigmoid;
    tke_real sum = 0;
    for (size_t k = 0; k < l->p->top; k++) {
        weight[k] = sigmoid(logits[chosen[k]]);
        sum += weight[k];
    }
    for (size_t k = 0; k < l->p->top; k++)
        weight[k] =
            (r->normalised ? weight[k] / (sum + (tke_real)1e-20) : weight[k]) * (tke_real)r->scale;
}

static void route_task(void *arg, int64_t row, int32_t worker)
{
    const loop *l = arg;
    const tke_pairs *p = l->p;
    const tke_real *logits = l->from + (size_t)row * p->n_experts;
    int32_t *chosen = p->chosen + (size_t)row * p->top;
    tke_real max, *weight = p->weight + (size_t)row * p->top;
    double scores[TKE_MAX_EXPERTS];
    (void)worker;
    make_scores(l->x, logits, scores);
    choose(scores, p->n_experts, p->top, chosen);
    if (l->x->route == TKE_ROUTE_SIGMOID) {
        sigmoid_weights(l, logits, chosen, weight);
        return;
    }
    tke_real sum = sum_of(l, logits, chosen, &max);
    for (size_t k = 0; k < p->top; k++)
        weight[k] = tke_real_exp(logits[chosen[k]] - max) / sum;
}

/* Pairs by expert, by row within one: a counting sort. */
static void order(tke_pairs *p)
{
    size_t count = tke_pairs_count(p);
    memset(p->start, 0, (p->n_experts + 1) * sizeof *p->start);
    for (size_t i = 0; i < count; i++)
        p->start[p->chosen[i] + 1]++;
    for (size_t e = 0; e < p->n_experts; e++)
        p->start[e + 1] += p->start[e];
    for (size_t i = 0; i < count; i++) {
        int32_t at = p->start[p->chosen[i]]++;
        p->pair_of[i] = at;
        p->slot_of[at] = (int32_t)i;
    }
    for (size_t e = p->n_experts; e > 0; e--) /* each was moved to the next one's first */
        p->start[e] = p->start[e - 1];
    p->start[0] = 0;
}

void tke_route(tke_cpu *cpu, const tke_experts *x, const tke_real *logits, tke_pairs *p)
{
    loop l = { .x = x, .p = p, .from = logits };
    assert(p->top >= 1 && p->top <= TKE_MAX_TOP && p->top <= p->n_experts);
    run(cpu, p->n, route_task, &l);
    order(p);
}

/* weight = scale s, or scale s / (the sum of s), where s is the sigmoid. */
static void sigmoid_back_task(void *arg, int64_t row, int32_t worker)
{
    const loop *l = arg;
    const tke_pairs *p = l->p;
    const tke_sigmoid_route *r = &l->x->sigmoid;
    tke_real *logits = l->to + (size_t)row * p->n_experts, mean = 0, d[TKE_MAX_TOP];
    const int32_t *chosen = p->chosen + (size_t)row * p->top;
    const tke_real *weight = p->weight + (size_t)row * p->top, *dw = l->from + (size_t)row * p->top;
    (void)worker;
    for (size_t k = 0; r->normalised && k < p->top; k++)
        mean += weight[k] / (tke_real)r->scale * dw[k];
    for (size_t k = 0; k < p->top; k++)
        d[k] = weight[k] * (1 - sigmoid(logits[chosen[k]])) * (dw[k] - mean);
    memset(logits, 0, p->n_experts * sizeof *logits);
    for (size_t k = 0; k < p->top; k++)
        logits[chosen[k]] = d[k];
}

/* Through the kept weights, not through the choice. */
static void route_back_task(void *arg, int64_t row, int32_t worker)
{
    const loop *l = arg;
    const tke_pairs *p = l->p;
    tke_real *logits = l->to + (size_t)row * p->n_experts, max, mean = 0;
    const int32_t *chosen = p->chosen + (size_t)row * p->top;
    const tke_real *weight = p->weight + (size_t)row * p->top, *dw = l->from + (size_t)row * p->top;
    (void)worker;
    for (size_t k = 0; k < p->top; k++)
        mean += weight[k] * dw[k];
    if (l->x->route == TKE_ROUTE_ALL) {
        tke_real sum = sum_of(l, logits, chosen, &max);
        for (size_t e = 0; e < p->n_experts; e++)
            logits[e] = -tke_real_exp(logits[e] - max) / sum * mean;
    } else {
        memset(logits, 0, p->n_experts * sizeof *logits);
    }
    for (size_t k = 0; k < p->top; k++)
        logits[chosen[k]] = weight[k] * (dw[k] - mean);
}

void tke_route_backward(tke_cpu *cpu, const tke_experts *x, const tke_pairs *p,
                        const tke_real *dweight, tke_real *logits)
{
    loop l = { .x = x, .p = p, .from = dweight, .to = logits };
    run(cpu, p->n, x->route == TKE_ROUTE_SIGMOID ? sigmoid_back_task : route_back_task, &l);
}

/* ---- between rows and pairs ---- */

static void gather_task(void *arg, int64_t pair, int32_t worker)
{
    const loop *l = arg;
    size_t row = (size_t)l->p->slot_of[pair] / l->p->top;
    (void)worker;
    memcpy(l->to + (size_t)pair * l->width, l->from + row * l->width, l->width * sizeof *l->to);
}

void tke_pairs_gather(tke_cpu *cpu, const tke_pairs *p, size_t width, const tke_real *from,
                      tke_real *to)
{
    loop l = { .p = p, .width = width, .from = from, .to = to };
    run(cpu, tke_pairs_count(p), gather_task, &l);
}

static void sum_task(void *arg, int64_t row, int32_t worker)
{
    const loop *l = arg;
    tke_real *to = l->to + (size_t)row * l->width;
    (void)worker;
    memset(to, 0, l->width * sizeof *to);
    for (size_t k = 0; k < l->p->top; k++) {
        size_t slot = (size_t)row * l->p->top + k;
        const tke_real *from = l->from + (size_t)l->p->pair_of[slot] * l->width;
        tke_real w = l->weighted ? l->p->weight[slot] : 1;
        for (size_t i = 0; i < l->width; i++)
            to[i] += w * from[i];
    }
}

void tke_pairs_sum(tke_cpu *cpu, const tke_pairs *p, size_t width, bool weighted,
                   const tke_real *from, tke_real *to)
{
    loop l = { .p = p, .width = width, .weighted = weighted, .from = from, .to = to };
    run(cpu, p->n, sum_task, &l);
}

static void scale_task(void *arg, int64_t pair, int32_t worker)
{
    const loop *l = arg;
    tke_real w = l->p->weight[l->p->slot_of[pair]], *x = l->to + (size_t)pair * l->width;
    (void)worker;
    for (size_t i = 0; i < l->width; i++)
        x[i] *= w;
}

void tke_pairs_scale(tke_cpu *cpu, const tke_pairs *p, size_t width, tke_real *x)
{
    loop l = { .p = p, .width = width, .to = x };
    run(cpu, tke_pairs_count(p), scale_task, &l);
}

static void dot_task(void *arg, int64_t pair, int32_t worker)
{
    const loop *l = arg;
    const tke_real *x = l->from + (size_t)pair * l->width, *y = l->other + (size_t)pair * l->width;
    tke_real sum = 0;
    (void)worker;
    for (size_t i = 0; i < l->width; i++)
        sum += x[i] * y[i];
    l->to[l->p->slot_of[pair]] = sum;
}

void tke_pairs_dot(tke_cpu *cpu, const tke_pairs *p, size_t width, const tke_real *x,
                   const tke_real *y, tke_real *out)
{
    loop l = { .p = p, .width = width, .from = x, .other = y, .to = out };
    run(cpu, tke_pairs_count(p), dot_task, &l);
}

static void dot_bias_task(void *arg, int64_t pair, int32_t worker)
{
    const loop *l = arg;
    size_t slot = (size_t)l->p->slot_of[pair];
    const tke_real *bias = l->from + (size_t)l->p->chosen[slot] * l->width;
    const tke_real *y = l->other + (size_t)pair * l->width;
    tke_real sum = 0;
    (void)worker;
    for (size_t i = 0; i < l->width; i++)
        sum += bias[i] * y[i];
    l->to[slot] += sum;
}

void tke_pairs_dot_bias(tke_cpu *cpu, const tke_pairs *p, size_t width, const tke_real *bias,
                        const tke_real *y, tke_real *out)
{
    loop l = { .p = p, .width = width, .from = bias, .other = y, .to = out };
    run(cpu, tke_pairs_count(p), dot_bias_task, &l);
}

/* ---- gate and up ---- */

static void split_task(void *arg, int64_t pair, int32_t worker)
{
    const loop *l = arg;
    size_t at = (size_t)pair * l->width;
    const tke_real *both = l->from + 2 * at;
    (void)worker;
    for (size_t i = 0; i < l->width; i++) {
        l->to[at + i] = both[2 * i];
        l->second[at + i] = both[2 * i + 1];
    }
}

void tke_pairs_split(tke_cpu *cpu, const tke_pairs *p, size_t width, const tke_real *both,
                     tke_real *x, tke_real *y)
{
    loop l = { .p = p, .width = width, .from = both, .to = x, .second = y };
    run(cpu, tke_pairs_count(p), split_task, &l);
}

static void join_task(void *arg, int64_t pair, int32_t worker)
{
    const loop *l = arg;
    size_t at = (size_t)pair * l->width;
    tke_real *both = l->to + 2 * at;
    (void)worker;
    for (size_t i = 0; i < l->width; i++) {
        both[2 * i] = l->from[at + i];
        both[2 * i + 1] = l->other[at + i];
    }
}

void tke_pairs_join(tke_cpu *cpu, const tke_pairs *p, size_t width, const tke_real *x,
                    const tke_real *y, tke_real *both)
{
    loop l = { .p = p, .width = width, .from = x, .other = y, .to = both };
    run(cpu, tke_pairs_count(p), join_task, &l);
}

static void clamped_task(void *arg, int64_t pair, int32_t worker)
{
    const loop *l = arg;
    tke_real limit = (tke_real)l->x->limit, alpha = (tke_real)l->x->alpha;
    size_t at = (size_t)pair * l->width;
    (void)worker;
    for (size_t i = at; i < at + l->width; i++) {
        tke_real g = l->from[i], u = l->other[i];
        g = g > limit ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
        l->to[i] = (u + 1) * g * sigmoid(alpha * g);
    }
}

void tke_experts_act(tke_cpu *cpu, const tke_experts *x, const tke_pairs *p, const tke_real *gate,
                     const tke_real *up, tke_real *h)
{
    loop l = { .x = x, .p = p, .width = x->inner, .from = gate, .other = up, .to = h };
    if (x->squared)
        tke_relu_squared(cpu, (int64_t)(tke_pairs_count(p) * x->inner), gate, h);
    else if (x->limit > 0)
        run(cpu, tke_pairs_count(p), clamped_task, &l);
    else
        tke_swiglu(cpu, (int64_t)(tke_pairs_count(p) * x->inner), gate, up, h);
}

/* Nothing passes where a value was cut. */
static void clamped_back_task(void *arg, int64_t pair, int32_t worker)
{
    const loop *l = arg;
    tke_real limit = (tke_real)l->x->limit, alpha = (tke_real)l->x->alpha;
    size_t at = (size_t)pair * l->width;
    (void)worker;
    for (size_t i = at; i < at + l->width; i++) {
        tke_real g = l->to[i], u = l->second[i], dh = l->from[i];
        bool g_cut = g > limit, u_cut = u > limit || u < -limit;
        g = g_cut ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
        tke_real s = sigmoid(alpha * g);
        l->to[i] = g_cut ? 0 : dh * (u + 1) * s * (1 + alpha * g * (1 - s));
        l->second[i] = u_cut ? 0 : dh * g * s;
    }
}

void tke_experts_act_backward(tke_cpu *cpu, const tke_experts *x, const tke_pairs *p,
                              const tke_real *dh, tke_real *gate, tke_real *up)
{
    loop l = { .x = x, .p = p, .width = x->inner, .from = dh, .to = gate, .second = up };
    if (x->squared)
        tke_relu_squared_backward(cpu, (int64_t)(tke_pairs_count(p) * x->inner), dh, gate);
    else if (x->limit > 0)
        run(cpu, tke_pairs_count(p), clamped_back_task, &l);
    else
        tke_swiglu_backward(cpu, (int64_t)(tke_pairs_count(p) * x->inner), gate, up, dh, gate, up);
}
