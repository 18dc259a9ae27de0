/* outcome.c - results of passes: reading one part, putting parts together, looking things up.
 *
 * Pure: bytes and parts in, results out. Runs on helper threads.
 */
#include "client/call/outcome.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

/* ---- metrics ---- */

static size_t find_metric(const tinkc_metrics *m, const char *name)
{
    size_t i = 0;
    while (i < m->len && strcmp(m->names[i], name) != 0)
        i++;
    return i;
}

/* Grows by one; powers of two. */
static bool metrics_room(tinkc_metrics *m, tkc_arena *arena, tinkc_error *err)
{
    if (m->len & (m->len - 1))
        return true;
    size_t cap = m->len ? 2 * m->len : 1;
    const char **names = tkc_arena_array(arena, cap, sizeof *names, err);
    double *values = tkc_arena_array(arena, cap, sizeof *values, err);
    if (!names || !values)
        return false;
    if (m->len) {
        memcpy(names, m->names, m->len * sizeof *names);
        memcpy(values, m->values, m->len * sizeof *values);
    }
    m->names = names;
    m->values = values;
    return true;
}

bool tkc_metrics_put(tinkc_metrics *m, const char *name, double value, tkc_arena *arena,
                     tinkc_error *err)
{
    size_t at = find_metric(m, name);
    if (at == m->len) {
        const char *copy = tkc_arena_cstr(arena, name, err);
        if (!copy || !metrics_room(m, arena, err))
            return false;
        m->names[m->len++] = copy;
    }
    m->values[at] = value;
    return true;
}

bool tkc_metrics_copy(tinkc_metrics *m, const tkc_numbers *from, tkc_arena *arena, tinkc_error *err)
{
    for (size_t i = 0; i < from->len; i++)
        if (!tkc_metrics_put(m, from->names[i], from->values[i], arena, err))
            return false;
    return true;
}

size_t tinkc_metrics_count(const tinkc_metrics *m)
{
    return m ? m->len : 0;
}

const char *tinkc_metrics_name(const tinkc_metrics *m, size_t i)
{
    return m && i < m->len ? m->names[i] : NULL;
}

double tinkc_metrics_value(const tinkc_metrics *m, size_t i)
{
    return m && i < m->len ? m->values[i] : (double)NAN;
}

double tinkc_metrics_get(const tinkc_metrics *m, const char *name, double if_absent)
{
    if (!m || !name)
        return if_absent;
    size_t at = find_metric(m, name);
    return at < m->len ? m->values[at] : if_absent;
}

/* ---- one part ---- */

/* The names of all outputs, in the order of their first record. */
static bool collect_names(tinkc_fwdbwd *out, const tkc_forward_backward_output *in,
                          tkc_arena *arena, tinkc_error *err)
{
    size_t most = 0;
    for (size_t r = 0; r < in->records.len; r++)
        most += in->records.data[r].fields.len;
    const char **names = tkc_arena_array(arena, most + 1, sizeof *names, err);
    if (!names)
        return false;
    for (size_t r = 0; r < in->records.len; r++)
        for (size_t k = 0; k < in->records.data[r].fields.len; k++) {
            const char *name = in->records.data[r].fields.data[k].name;
            size_t i = 0;
            while (i < out->n_names && strcmp(names[i], name) != 0)
                i++;
            if (i == out->n_names)
                names[out->n_names++] = name;
        }
    out->names = names;
    return true;
}

static bool collect_tensors(tinkc_fwdbwd *out, const tkc_forward_backward_output *in,
                            tkc_arena *arena, tinkc_error *err)
{
    size_t n;
    if (!tkc_mul_size(out->n, out->n_names, &n))
        return tkc_fail_memory(err);
    const tinkc_tensor **tensors = tkc_arena_array(arena, n + 1, sizeof *tensors, err);
    tinkc_tensor *memory = tkc_arena_array(arena, n + 1, sizeof *memory, err);
    if (!tensors || !memory)
        return false;
    for (size_t i = 0; i < out->n; i++)
        for (size_t k = 0; k < out->n_names; k++) {
            size_t at = i * out->n_names + k;
            if (tkc_output_tensor(in, i, out->names[k], arena, &memory[at], err))
                tensors[at] = &memory[at];
            else if (tkc_failed(err))
                return false;
        }
    out->tensors = tensors;
    return true;
}

/* One output for each example, and one row of log-probs for each target: callers index by their own
 * counts. */
static bool check_counts(const tinkc_fwdbwd *p, const tkc_fwdbwd_expected *want, tinkc_error *err)
{
    if (p->n != want->n)
        return tkc_fail(err, TINKC_E_BAD_RESPONSE,
                        "forward_backward result: %zu outputs for %zu examples", p->n, want->n);
    for (size_t i = 0; i < p->n; i++) {
        const tinkc_tensor *t = tinkc_fwdbwd_output(p, i, "logprobs");
        if (t && want->targets[i] && (t->ndim < 1 || (uint64_t)t->shape[0] != want->targets[i]))
            return tkc_fail(err, TINKC_E_BAD_RESPONSE,
                            "forward_backward result: example %zu has %zu targets and %lld "
                            "log-probs",
                            want->first + i, want->targets[i],
                            (long long)(t->ndim < 1 ? 0 : t->shape[0]));
    }
    return true;
}

bool tkc_fwdbwd_read(tinkc_fwdbwd *out, tinkc_bytes body, bool is_protobuf,
                     const tkc_fwdbwd_expected *want, tkc_arena *arena, tinkc_error *err)
{
    tkc_forward_backward_output *in = tkc_arena_zalloc(arena, sizeof *in, err);
    *out = (tinkc_fwdbwd){ .first = want->first };
    if (!in)
        return false;
    bool ok = is_protobuf ? tkc_output_from_pb(body, arena, in, err)
                          : tkc_output_from_json(tkc_strn((const char *)body.data, body.len), arena,
                                                 in, err);
    if (!ok)
        return false;
    out->n = in->n_datums;
    out->type = in->type ? in->type : "";
    return collect_names(out, in, arena, err) && collect_tensors(out, in, arena, err) &&
           check_counts(out, want, err) &&
           tkc_metrics_copy(&out->metrics, &in->metrics, arena, err);
}

/* ---- reductions ---- */

static int compare_i64(const void *x, const void *y)
{
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a > b) - (a < b);
}

/* CPython's hash of a small integer: modulo 2^61 - 1, with -1 kept for errors. */
static uint64_t integer_hash(int64_t i)
{
    const uint64_t prime = ((uint64_t)1 << 61) - 1;
    uint64_t magnitude = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    int64_t h = (int64_t)(magnitude % prime);
    h = i < 0 ? -h : h;
    return (uint64_t)(h == -1 ? -2 : h);
}

bool tkc_hash_unordered(const double *values, size_t n, int64_t *out, tkc_arena *arena,
                        tinkc_error *err)
{
    int64_t *sorted = tkc_arena_array(arena, n, sizeof *sorted, err);
    if (!sorted)
        return false;
    for (size_t i = 0; i < n; i++) {
        /* Python raises here. A metric's value must not fail a step that the service has done:
         * it is left out. */
        if (!isfinite(values[i]) || fabs(values[i]) >= 9.2e18)
            return false;
        sorted[i] = (int64_t)values[i];
    }
    qsort(sorted, n, sizeof *sorted, compare_i64);
    /* CPython's tuple hash, bit for bit: users compare this fingerprint with the Python SDK's. */
    uint64_t a = UINT64_C(2870177450012600261);
    for (size_t i = 0; i < n; i++) {
        a += integer_hash(sorted[i]) * UINT64_C(14029467366897019727);
        a = a << 31 | a >> 33;
        a *= UINT64_C(11400714785074694791);
    }
    a += n ^ (UINT64_C(2870177450012600261) ^ UINT64_C(3527539));
    if (a == UINT64_MAX)
        a = 1546275796;
    *out = (int64_t)a;
    return true;
}

static double weighted_mean(const double *v, const double *w, size_t n)
{
    double sum = 0, weight = 0, plain = 0;
    for (size_t i = 0; i < n; i++) {
        sum += w[i] * v[i];
        weight += w[i];
        plain += v[i];
    }
    /* Python divides by zero when no part has outputs. */
    return weight > 0 ? sum / weight : plain / (double)n;
}

/* NaN wins, as in numpy. */
static double extreme(const double *v, size_t n, bool largest)
{
    double best = v[0];
    for (size_t i = 1; i < n; i++)
        if (isnan(v[i]) || (largest ? v[i] > best : v[i] < best))
            best = isnan(best) ? best : v[i];
    return best;
}

typedef struct reduction {
    const char *key;
    const double *v, *w;
    size_t n;
    tkc_arena *arena;
    tinkc_metrics *out;
    tinkc_error *err;
} reduction;

static bool put_unique(const reduction *r)
{
    if (!tkc_metrics_put(r->out, r->key, r->v[0], r->arena, r->err))
        return false;
    for (size_t i = 1; i < r->n; i++) {
        char *name = tkc_arena_printf(r->arena, r->err, "%s_%zu", r->key, i);
        if (!name || !tkc_metrics_put(r->out, name, r->v[i], r->arena, r->err))
            return false;
    }
    return true;
}

static bool put_hash(const reduction *r)
{
    int64_t hash;
    if (!tkc_hash_unordered(r->v, r->n, &hash, r->arena, r->err))
        return !tkc_failed(r->err);
    return tkc_metrics_put(r->out, r->key, (double)hash, r->arena, r->err);
}

/* False only without memory; *known becomes false if there is no such reduction. */
static bool reduce(const reduction *r, tinkc_str how, bool *known)
{
    double value = 0;
    if (tkc_str_is(how, "mean")) {
        value = weighted_mean(r->v, r->w, r->n);
    } else if (tkc_str_is(how, "sum")) {
        for (size_t i = 0; i < r->n; i++)
            value += r->v[i];
    } else if (tkc_str_is(how, "min") || tkc_str_is(how, "max")) {
        value = extreme(r->v, r->n, how.data[1] == 'a');
    } else if (tkc_str_is(how, "slack")) {
        value = extreme(r->v, r->n, true) - weighted_mean(r->v, r->w, r->n);
    } else if (tkc_str_is(how, "unique")) {
        return put_unique(r);
    } else if (tkc_str_is(how, "hash_unordered")) {
        return put_hash(r);
    } else {
        *known = false;
        return true;
    }
    return tkc_metrics_put(r->out, r->key, value, r->arena, r->err);
}

/* One colon exactly: "name:reduction". */
static bool split_key(const char *key, tinkc_str *how)
{
    tinkc_str s = tkc_str(key);
    size_t colon = tkc_str_find(s, ':');
    if (colon == s.len)
        return false;
    *how = tkc_strn(s.data + colon + 1, s.len - colon - 1);
    return tkc_str_find(*how, ':') == how->len;
}

static bool combine_key(tinkc_fwdbwd *out, const char *key, const tinkc_fwdbwd *const *parts,
                        double *v, const double *w, size_t n, tkc_arena *arena, tinkc_client *log,
                        tinkc_error *err)
{
    tinkc_str how;
    bool known = true;
    for (size_t i = 0; i < n; i++) {
        size_t at = find_metric(&parts[i]->metrics, key);
        if (at == parts[i]->metrics.len)
            return true; /* missing in a part: dropped */
        v[i] = parts[i]->metrics.values[at];
    }
    reduction r = { key, v, w, n, arena, &out->metrics, err };
    /* One part needs no reduction. Python fails the whole pass for such a name. */
    if (!split_key(key, &how)) {
        if (n == 1)
            return tkc_metrics_put(&out->metrics, key, v[0], arena, err);
        known = false;
    } else if (!reduce(&r, how, &known)) {
        return false;
    }
    if (!known && log)
        tkc_client_log(log, TINKC_LOG_DEBUG, "metric %s is left out: no known reduction", key);
    return true;
}

static bool combine_metrics(tinkc_fwdbwd *out, const tinkc_fwdbwd *const *parts, size_t n,
                            tkc_arena *arena, tinkc_client *log, tinkc_error *err)
{
    double *v = tkc_arena_array(arena, n, sizeof *v, err);
    double *w = tkc_arena_array(arena, n, sizeof *w, err);
    if (!v || !w)
        return false;
    for (size_t i = 0; i < n; i++)
        w[i] = (double)parts[i]->n;
    for (size_t k = 0; n && k < parts[0]->metrics.len; k++)
        if (!combine_key(out, parts[0]->metrics.names[k], parts, v, w, n, arena, log, err))
            return false;
    return true;
}

static size_t find_name(const tinkc_fwdbwd *p, const char *name)
{
    size_t k = 0;
    while (k < p->n_names && strcmp(p->names[k], name) != 0)
        k++;
    return k;
}

/* Examples of all parts in one table; names of part 0 first, then what others have besides. */
static bool combine_outputs(tinkc_fwdbwd *out, const tinkc_fwdbwd *const *parts, size_t n,
                            tkc_arena *arena, tinkc_error *err)
{
    size_t most = 0, row = 0;
    for (size_t p = 0; p < n; p++) {
        most += parts[p]->n_names;
        out->n += parts[p]->n;
    }
    out->names = tkc_arena_array(arena, most + 1, sizeof *out->names, err);
    if (!out->names)
        return false;
    for (size_t p = 0; p < n; p++)
        for (size_t k = 0; k < parts[p]->n_names; k++)
            if (find_name(out, parts[p]->names[k]) == out->n_names)
                out->names[out->n_names++] = parts[p]->names[k];
    size_t cells;
    if (!tkc_mul_size(out->n, out->n_names, &cells))
        return tkc_fail_memory(err);
    out->tensors = tkc_arena_array(arena, cells + 1, sizeof *out->tensors, err);
    if (!out->tensors)
        return false;
    for (size_t p = 0; p < n; p++)
        for (size_t i = 0; i < parts[p]->n; i++, row++)
            for (size_t k = 0; k < parts[p]->n_names; k++)
                out->tensors[row * out->n_names + find_name(out, parts[p]->names[k])] =
                    parts[p]->tensors[i * parts[p]->n_names + k];
    return true;
}

bool tkc_fwdbwd_combine(tinkc_fwdbwd *out, const tinkc_fwdbwd *const *parts, size_t n,
                        tkc_arena *arena, tinkc_client *log, tinkc_error *err)
{
    *out = (tinkc_fwdbwd){ .type = n ? parts[0]->type : "" };
    return combine_outputs(out, parts, n, arena, err) &&
           combine_metrics(out, parts, n, arena, log, err);
}

/* ---- looking ---- */

double tinkc_fwdbwd_metric(const tinkc_fwdbwd *p, const char *name, double if_absent)
{
    return p ? tinkc_metrics_get(&p->metrics, name, if_absent) : if_absent;
}

const tinkc_metrics *tinkc_fwdbwd_metrics(const tinkc_fwdbwd *p)
{
    return p ? &p->metrics : NULL;
}

size_t tinkc_fwdbwd_count(const tinkc_fwdbwd *p)
{
    return p ? p->n : 0;
}

const tinkc_tensor *tinkc_fwdbwd_output(const tinkc_fwdbwd *p, size_t i, const char *name)
{
    if (!p || !name || i >= p->n)
        return NULL;
    size_t k = find_name(p, name);
    return k < p->n_names ? p->tensors[i * p->n_names + k] : NULL;
}

const char *tinkc_fwdbwd_output_name(const tinkc_fwdbwd *p, size_t k)
{
    return p && k < p->n_names ? p->names[k] : NULL;
}

const char *tinkc_fwdbwd_output_type(const tinkc_fwdbwd *p)
{
    return p ? p->type : "";
}

size_t tinkc_fwdbwd_first(const tinkc_fwdbwd *p)
{
    return p ? p->first : 0;
}
