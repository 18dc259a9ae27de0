/* sampling.c - the sampling rules of one position.
 *
 * May touch: its arguments. Must not: keep state; know of batches. All masses are
 * exp((z - max) / T) in double, so no finite logit overflows, however small T is.
 */
#include "cpu/sampling.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "model/philox.h"

static const float missing_logprob = -99999.0f;

bool tke_sample_space_init(tke_sample_space *s, size_t vocab, tinkc_error *err)
{
    *s = (tke_sample_space){ .n = vocab };
    s->mass = tkc_alloc(NULL, vocab * sizeof *s->mass, err);
    s->order = tkc_alloc(NULL, vocab * sizeof *s->order, err);
    s->masked = tkc_alloc(NULL, vocab * sizeof *s->masked, err);
    return !tkc_failed(err);
}

void tke_sample_space_free(tke_sample_space *s)
{
    tkc_release(NULL, s->mass, s->n * sizeof *s->mass);
    tkc_release(NULL, s->order, s->n * sizeof *s->order);
    tkc_release(NULL, s->masked, s->n * sizeof *s->masked);
    *s = (tke_sample_space){ 0 };
}

/* The id of the largest logit, the lowest on ties. Fails if the logits give no distribution. */
static bool find_best(const tke_real *z, size_t n, size_t *best, tinkc_error *err)
{
    bool found = false;
    for (size_t i = 0; i < n; i++) {
        if (isnan(z[i]) || z[i] == INFINITY)
            return tkc_fail(err, TINKC_E_BAD_REQUEST, "a logit is not finite");
        if (z[i] != -INFINITY && (!found || z[i] > z[*best])) {
            *best = i;
            found = true;
        }
    }
    if (!found)
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "no logit is finite");
    return true;
}

/* ---- a heap of ids: largest logit on top, the lower id first on ties ---- */

static bool before(const tke_real *z, int32_t a, int32_t b)
{
    return z[a] > z[b] || (z[a] == z[b] && a < b);
}

static void sift(const tke_real *z, int32_t *heap, size_t n, size_t i)
{
    for (;;) {
        size_t top = i, left = 2 * i + 1, right = left + 1;
        if (left < n && before(z, heap[left], heap[top]))
            top = left;
        if (right < n && before(z, heap[right], heap[top]))
            top = right;
        if (top == i)
            return;
        int32_t held = heap[i];
        heap[i] = heap[top];
        heap[top] = held;
        i = top;
    }
}

static size_t make_heap(const tke_real *z, size_t n, int32_t *heap)
{
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (z[i] != -INFINITY)
            heap[m++] = (int32_t)i;
    for (size_t i = m / 2; i-- > 0;)
        sift(z, heap, m, i);
    return m;
}

/* Removes the best. */
static int32_t pop(const tke_real *z, int32_t *heap, size_t *m)
{
    assert(*m > 0);
    int32_t best = heap[0];
    heap[0] = heap[--*m];
    sift(z, heap, *m, 0);
    return best;
}

/* ---- filters ---- */

/* Keeps the k largest of the finite ones: zeroes the mass of the others. Returns the kept sum. */
static double keep_top_k(const tke_real *z, size_t n, size_t k, tke_sample_space *s)
{
    double sum = 0;
    size_t m = make_heap(z, n, s->order);
    for (size_t taken = 0; m > 0 && taken < k; taken++)
        sum += s->mass[pop(z, s->order, &m)];
    for (size_t i = 0; i < m; i++)
        s->mass[s->order[i]] = 0;
    return sum;
}

/* Keeps a token if the mass of the better ones is below p of the total; the best always. */
static void keep_top_p(const tke_real *z, size_t n, double p, double sum, tke_sample_space *s)
{
    double passed = 0;
    size_t m = make_heap(z, n, s->order);
    do
        passed += s->mass[pop(z, s->order, &m)];
    while (m > 0 && passed < p * sum);
    for (size_t i = 0; i < m; i++)
        s->mass[s->order[i]] = 0;
}

bool tke_sample_filter(const tke_real *z, size_t n, const tke_sample_rule *rule,
                       tke_sample_space *s, tinkc_error *err)
{
    size_t best = 0;
    double sum = 0;
    assert(n <= s->n && rule->temperature >= 0);
    if (!find_best(z, n, &best, err))
        return false;
    if (rule->temperature == 0) {
        memset(s->mass, 0, n * sizeof *s->mass);
        s->mass[best] = 1;
        return true;
    }
    double top = z[best];
    for (size_t i = 0; i < n; i++) {
        s->mass[i] = z[i] == -INFINITY ? 0 : exp(((double)z[i] - top) / rule->temperature);
        sum += s->mass[i];
    }
    if (rule->top_k > 0 && (uint64_t)rule->top_k < n)
        sum = keep_top_k(z, n, (size_t)rule->top_k, s);
    if (rule->top_p < 1)
        keep_top_p(z, n, rule->top_p, sum, s);
    return true;
}

/* ---- the draw ---- */

static int32_t draw(const double *mass, size_t n, double u)
{
    double sum = 0, passed = 0;
    int32_t last = 0;
    for (size_t i = 0; i < n; i++)
        sum += mass[i];
    assert(sum > 0 && u >= 0 && u < 1); /* the best token always keeps its mass */
    for (size_t i = 0; i < n; i++) {
        passed += mass[i];
        if (mass[i] > 0) {
            last = (int32_t)i;
            if (passed > u * sum)
                return last;
        }
    }
    return last;
}

static float logprob_of(const tke_real *z, size_t n, tke_norm norm, const tke_sample_rule *rule,
                        const double *mass, int32_t token)
{
    double sum = 0, top = -INFINITY;
    if (rule->logprobs == TKE_LOGPROBS_PROCESSED) {
        for (size_t i = 0; i < n; i++)
            sum += mass[i];
        assert(mass[token] > 0);
        return (float)log(mass[token] / sum);
    }
    if (rule->logprobs == TKE_LOGPROBS_RAW || rule->temperature == 0 || rule->temperature == 1)
        return (float)tke_log_prob(z[token], norm);
    for (size_t i = 0; i < n; i++)
        top = z[i] > top ? z[i] : top;
    for (size_t i = 0; i < n; i++)
        sum += exp(((double)z[i] - top) / rule->temperature);
    return (float)(((double)z[token] - top) / rule->temperature - log(sum));
}

/* The logits to draw from: with their biases, and -inf where the token is not allowed. */
static const tke_real *changed(const tke_real *z, size_t n, const tke_draw *d, tke_sample_space *s)
{
    if (!d->allowed && !d->n_biases)
        return z;
    memcpy(s->masked, z, n * sizeof *z);
    for (size_t i = 0; i < d->n_biases; i++) {
        assert(d->biases[i].token >= 0 && (size_t)d->biases[i].token < n);
        s->masked[d->biases[i].token] += (tke_real)d->biases[i].by;
    }
    for (size_t i = 0; d->allowed && i < n; i++)
        if (!(d->allowed[i / 32] >> i % 32 & 1))
            s->masked[i] = (tke_real)-INFINITY;
    return s->masked;
}

bool tke_sample_draw(const tke_real *z, size_t n, tke_norm norm, const tke_draw *d,
                     tke_sample_space *s, int32_t *token, float *logprob, tinkc_error *err)
{
    const tke_sample_rule *rule = d->rule;
    const tke_real *from = changed(z, n, d, s);
    if (rule->temperature == 0) { /* no mass is needed */
        size_t best = 0;
        if (!find_best(from, n, &best, err))
            return false;
        *token = (int32_t)best;
        *logprob = (float)tke_log_prob(z[best], norm); /* under every setting */
        return true;
    }
    if (!tke_sample_filter(from, n, rule, s, err))
        return false;
    *token = draw(s->mass, n, tke_uniform(d->seed, d->sample, d->position));
    *logprob = logprob_of(z, n, norm, rule, s->mass, *token);
    return true;
}

/* ---- top-k of a prompt position ---- */

void tke_top_k(const tke_real *z, size_t n, tke_norm norm, size_t k, int32_t *tokens,
               float *logprobs)
{
    size_t have = 0;
    assert(k > 0);
    for (size_t i = 0; i < n; i++) {
        if (have == k && !(z[i] > z[tokens[k - 1]]))
            continue;
        size_t at = have < k ? have++ : k - 1;
        for (; at > 0 && z[i] > z[tokens[at - 1]]; at--)
            tokens[at] = tokens[at - 1];
        tokens[at] = (int32_t)i;
    }
    for (size_t i = 0; i < have; i++)
        logprobs[i] = (float)tke_log_prob(z[tokens[i]], norm);
    for (size_t i = have; i < k; i++) {
        tokens[i] = 0;
        logprobs[i] = missing_logprob;
    }
}
