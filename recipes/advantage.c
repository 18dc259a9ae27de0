/* advantage.c - the arithmetic of the recipes: advantages, KL, pass@k, intervals, seeds.
 *
 * Pure functions of their arguments. Must not: allocate more than a scratch array, touch a client.
 */
#include <math.h>

#include "base/mem.h"
#include "tinkc/recipes.h"

/* ---- advantages ---- */

static double mean_of(const double *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    return n ? sum / (double)n : 0;
}

/* Population standard deviation, as in the GRPO paper. */
static double deviation_of(const double *x, size_t n, double mean)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    return n ? sqrt(sum / (double)n) : 0;
}

bool tinkc_recipe_advantages(int32_t how, const double *rewards, size_t n, double *out,
                             tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (how < TINKC_ADVANTAGE_MEAN || how > TINKC_ADVANTAGE_LEAVE_ONE_OUT)
        return tkc_fail(err, TINKC_E_ARGUMENT, "advantage: unknown kind %d", (int)how);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(rewards[i]))
            return tkc_fail(err, TINKC_E_ARGUMENT, "reward %zu is not a finite number", i);
    double mean = mean_of(rewards, n);
    double scale = how == TINKC_ADVANTAGE_STD ? 1 / (deviation_of(rewards, n, mean) + 1e-6) : 1;
    if (how == TINKC_ADVANTAGE_LEAVE_ONE_OUT) /* r - (n*mean - r)/(n-1) = (r - mean) * n/(n-1) */
        scale = n > 1 ? (double)n / (double)(n - 1) : 0;
    for (size_t i = 0; i < n; i++)
        out[i] = (rewards[i] - mean) * scale;
    return true;
}

bool tinkc_recipe_is_constant(const double *rewards, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (rewards[i] != rewards[0])
            return false;
    return true;
}

/* ---- KL ---- */

void tinkc_recipe_kl_advantages(const float *logprobs, const float *reference, const float *mask,
                                size_t n, double coef, double mean, double discount, bool centre,
                                float *advantages)
{
    double ahead = 0;
    for (size_t i = n; i-- > 0;) {
        double d = ((double)logprobs[i] - (double)reference[i]) * (double)mask[i];
        double own = coef * (double)mask[i] * (centre ? mean - d : -d);
        ahead = discount > 0 ? own + discount * ahead : own;
        advantages[i] = (float)((double)advantages[i] + ahead);
    }
}

/* ---- evaluation ---- */

/* 1 - C(n-c, k) / C(n, k), as a product that neither overflows nor cancels. */
double tinkc_recipe_pass_at_k(size_t n, size_t right, size_t k)
{
    if (k < 1 || k > n || right > n)
        return NAN;
    if (n - right < k)
        return 1;
    double miss = 1;
    for (size_t i = n - right + 1; i <= n; i++)
        miss *= 1 - (double)k / (double)i;
    return 1 - miss;
}

static uint64_t mix(uint64_t z)
{
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

uint64_t tinkc_recipe_seed(uint64_t seed, uint64_t a, uint64_t b, uint64_t c)
{
    return mix(mix(mix(mix(seed) ^ a) ^ b) ^ c) >> 1;
}

/* Smallest first, by heap sort: no recursion, no memory. */
static void sift(double *x, size_t root, size_t n)
{
    for (size_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && x[child] < x[child + 1])
            child++;
        if (x[root] >= x[child])
            return;
        double kept = x[root];
        x[root] = x[child];
        x[child] = kept;
    }
}

static void sort(double *x, size_t n)
{
    for (size_t i = n / 2; i-- > 0;)
        sift(x, i, n);
    for (size_t i = n; i-- > 1;) {
        double kept = x[0];
        x[0] = x[i];
        x[i] = kept;
        sift(x, 0, i);
    }
}

tinkc_interval tinkc_recipe_bootstrap(const double *values, size_t n, double confidence,
                                      uint64_t seed)
{
    enum { DRAWS = 2000 };
    double means[DRAWS];
    if (n == 0 || !(confidence > 0 && confidence < 1))
        return (tinkc_interval){ NAN, NAN, NAN };
    for (size_t d = 0; d < DRAWS; d++) {
        double sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += values[(size_t)(tinkc_recipe_seed(seed, d, i, 0) % n)];
        means[d] = sum / (double)n;
    }
    sort(means, DRAWS);
    size_t low = (size_t)((1 - confidence) / 2 * (DRAWS - 1));
    return (tinkc_interval){ mean_of(values, n), means[low], means[DRAWS - 1 - low] };
}

/* The z of a two-sided interval: where the normal distribution leaves (1 - confidence) / 2 above. */
static double normal_quantile(double confidence)
{
    double low = 0, high = 40;
    for (int i = 0; i < 100; i++) {
        double z = (low + high) / 2;
        if (erfc(z / sqrt(2)) > 1 - confidence)
            low = z;
        else
            high = z;
    }
    return (low + high) / 2;
}

tinkc_interval tinkc_recipe_wilson(size_t right, size_t n, double confidence)
{
    if (n == 0 || right > n || !(confidence > 0 && confidence < 1))
        return (tinkc_interval){ NAN, NAN, NAN };
    double z = normal_quantile(confidence), m = (double)n, p = (double)right / m;
    double centre = p + z * z / (2 * m), scale = 1 + z * z / m;
    double half = z * sqrt(p * (1 - p) / m + z * z / (4 * m * m));
    double low = right == 0 ? 0 : (centre - half) / scale;
    return (tinkc_interval){ p, low, right == n ? 1 : (centre + half) / scale };
}

/* How far two answers to one question go together, from -1 to 1; less by the continuity correction
 * where they agree. */
static double agreement(double both, double only_first, double only_second, double neither)
{
    double n = both + only_first + only_second + neither;
    double cross = both * neither - only_first * only_second;
    double size = (both + only_first) * (only_second + neither) * (both + only_second) *
                  (only_first + neither);
    if (size == 0)
        return 0;
    if (cross > 0)
        cross = cross > n / 2 ? cross - n / 2 : 0;
    return cross / sqrt(size);
}

static double root_of_parts(double a, double b, double phi)
{
    return sqrt(fmax(0, a * a - 2 * phi * a * b + b * b));
}

tinkc_interval tinkc_recipe_paired_difference(size_t both, size_t only_first, size_t only_second,
                                              size_t neither, double confidence)
{
    size_t n = both + only_first + only_second + neither;
    tinkc_interval first = tinkc_recipe_wilson(both + only_first, n, confidence);
    tinkc_interval second = tinkc_recipe_wilson(both + only_second, n, confidence);
    double phi = agreement((double)both, (double)only_first, (double)only_second, (double)neither);
    double d = second.mean - first.mean;
    return (tinkc_interval){
        d, d - root_of_parts(second.mean - second.low, first.high - first.mean, phi),
        d + root_of_parts(second.high - second.mean, first.mean - first.low, phi)
    };
}
