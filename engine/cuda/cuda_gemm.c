/* cuda_gemm.c - which algorithm multiplies: cuBLASLt's known-exact ones, checked once, or our own kernels.
 *
 * Packed weights are unpacked in registers by our own kernel where rows are few, else to bf16 ahead of the product.
 *
 * May touch: cuBLASLt, opened by name. Must not: ever use split-K or an algorithm outside the table, whatever the
 * heuristic prefers: their bits differ, and trainer and sampler would disagree.
 */
#include "cuda/cuda_gemm.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include "base/mem.h"
#include "cuda/cuda_state.h"

enum { WORKSPACE = 32 << 20, TRIES = 16, CHECK_ROWS = 128, TIMED = 5, TURN_BYTES = 256 };
enum how { OWN = 0, SMALL, FEW, LIBRARY };

/* These gave the bits of the definition in all of 45.6 billion elements compared (docs/gpu.md). */
static const int exact_ids[] = { 66, 41, 42, 21, 23, 24 };

bool tcu_algorithm_exact(int id, int split_k, int reduction)
{
    if (split_k > 1 || reduction != CUBLASLT_REDUCTION_SCHEME_NONE)
        return false;
    for (size_t i = 0; i < sizeof exact_ids / sizeof *exact_ids; i++)
        if (exact_ids[i] == id)
            return true;
    return false;
}

/* ---- the library ---- */

#define FUNCTIONS(X)                                                                               \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)                                                                 \
    X(cublasLtMatrixLayoutSetAttribute)                                                            \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulAlgoConfigGetAttribute)

typedef struct tcu_lt {
#define MEMBER(name) __typeof__(&name) name;
    FUNCTIONS(MEMBER)
#undef MEMBER
} tcu_lt;

static bool bind(void *library, tcu_lt *lt)
{
    bool all = true;
#define BIND(name)                                                                                 \
    lt->name = (__typeof__(&name))(uintptr_t)dlsym(library, #name);                                \
    all = all && lt->name;
    FUNCTIONS(BIND)
#undef BIND
    return all;
}

struct tcu_plan {
    bool transposed, wide, add;
    int32_t m, n, k, parts;
    int64_t ldx, ldy;
    int how;
    float few_ms, best_ms; /* of TIMED runs: by warpgroups (1e30: not possible), as chosen */
    cublasLtMatmulAlgo_t algo;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
};

bool tcu_gemm_open(tcu_device *d, tinkc_error *err)
{
    static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12",
                                         "libcublasLt.so" };
    tcu_gemm *g = &d->gemm;
    for (size_t i = 0; i < sizeof names / sizeof *names && !g->library; i++)
        g->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    tcu_lt *lt = tkc_zalloc(NULL, sizeof *lt, err);
    if (!lt)
        return false;
    g->lt = lt;
    if (!g->library || !bind(g->library, lt))
        return tkc_fail(err, TINKC_E_UNSUPPORTED,
                        "cuda: cuBLASLt (libcublasLt.so.13) was not found");
    g->version = lt->cublasLtGetVersion();
    if (lt->cublasLtCreate((cublasLtHandle_t *)&g->handle) != CUBLAS_STATUS_SUCCESS)
        return tkc_fail(err, TINKC_E_SERVER, "cuda: cuBLASLt did not start");
    g->workspace = tcu_take(d, WORKSPACE, TCU_FOR_OTHER, err);
    g->turn = tcu_take(d, TURN_BYTES, TCU_FOR_OTHER, err);
    g->few_here = tcu_few_here();
    return g->workspace && g->turn && tcu_ok(d, cudaMemset(g->turn, 0, TURN_BYTES), "clearing", err) &&
           tcu_ok(d, cudaMallocHost((void **)&g->differing, sizeof *g->differing),
                                  "pinning memory", err);
}

static void plan_free(const tcu_lt *lt, tcu_plan *p)
{
    if (p->desc)
        lt->cublasLtMatmulDescDestroy(p->desc);
    if (p->a)
        lt->cublasLtMatrixLayoutDestroy(p->a);
    if (p->b)
        lt->cublasLtMatrixLayoutDestroy(p->b);
    if (p->c)
        lt->cublasLtMatrixLayoutDestroy(p->c);
}

void tcu_gemm_close(tcu_device *d)
{
    tcu_gemm *g = &d->gemm;
    for (size_t i = 0; i < g->n_plans; i++)
        plan_free(g->lt, &g->plans[i]);
    tkc_release(NULL, g->plans, g->cap_plans * sizeof *g->plans);
    if (g->handle)
        g->lt->cublasLtDestroy(g->handle);
    tcu_give(d, g->workspace, WORKSPACE, TCU_FOR_OTHER);
    tcu_give(d, g->turn, TURN_BYTES, TCU_FOR_OTHER);
    tcu_give(d, g->unpacked, g->n_unpacked * sizeof *g->unpacked, TCU_FOR_WORK);
    cudaFreeHost(g->differing);
    tkc_release(NULL, (void *)(uintptr_t)g->lt, sizeof *g->lt);
    if (g->library)
        dlclose(g->library);
    *g = (tcu_gemm){ 0 };
}

/* ---- plans ---- */

static bool set_batch(const tcu_lt *lt, cublasLtMatrixLayout_t layout, int32_t count,
                      int64_t stride)
{
    return !lt->cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                 sizeof count) &&
           !lt->cublasLtMatrixLayoutSetAttribute(
               layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
}

/* Column-major as the library sees it: y^T [n, m] = op(w) x^T. */
static bool describe(const tcu_lt *lt, tcu_plan *p)
{
    cublasOperation_t op = p->transposed ? CUBLAS_OP_N : CUBLAS_OP_T;
    int32_t parts = p->parts ? p->parts : 1;
    uint64_t n = (uint64_t)p->n, k = (uint64_t)(p->k / parts), m = (uint64_t)p->m;
    bool made =
        !lt->cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) &&
        !lt->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &op, sizeof op) &&
        !(p->transposed ? lt->cublasLtMatrixLayoutCreate(&p->a, CUDA_R_16BF, n, k, p->n)
                        : lt->cublasLtMatrixLayoutCreate(&p->a, CUDA_R_16BF, k, n, p->k)) &&
        !lt->cublasLtMatrixLayoutCreate(&p->b, CUDA_R_16BF, k, m, p->ldx) &&
        !lt->cublasLtMatrixLayoutCreate(&p->c, p->wide ? CUDA_R_32F : CUDA_R_16BF, n, m, p->ldy);
    if (!made || !p->parts)
        return made;
    return set_batch(lt, p->a, parts, p->transposed ? (int64_t)k * p->n : (int64_t)k) &&
           set_batch(lt, p->b, parts, (int64_t)k) &&
           set_batch(lt, p->c, parts, (int64_t)p->m * p->ldy);
}

static int ask(tcu_gemm *g, tcu_plan *p, cublasLtMatmulHeuristicResult_t *results)
{
    cublasLtMatmulPreference_t preference = NULL;
    uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    size_t workspace = WORKSPACE;
    int got = 0;
    if (g->lt->cublasLtMatmulPreferenceCreate(&preference))
        return 0;
    g->lt->cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    g->lt->cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none, sizeof none);
    if (g->lt->cublasLtMatmulAlgoGetHeuristic(g->handle, p->desc, p->a, p->b, p->c, p->c,
                                              preference, TRIES, results, &got))
        got = 0;
    g->lt->cublasLtMatmulPreferenceDestroy(preference);
    return got;
}

static bool in_table(const tcu_lt *lt, const cublasLtMatmulAlgo_t *algo)
{
    int id = -1, split = 0;
    uint32_t reduction = 0;
    size_t written;
    lt->cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id,
                                             &written);
    lt->cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                             sizeof split, &written);
    lt->cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                             &reduction, sizeof reduction, &written);
    return tcu_algorithm_exact(id, split, (int)reduction);
}

static bool call(tcu_device *d, const tcu_plan *p, const tcu_product *q, bool add)
{
    const float one = 1, beta = add ? 1 : 0;
    tcu_gemm *g = &d->gemm;
    return !g->lt->cublasLtMatmul(g->handle, p->desc, &one, q->w, p->a, q->x, p->b, &beta, q->y,
                                  p->c, q->y, p->c, &p->algo, g->workspace, WORKSPACE, d->stream);
}

static bool run_small(tcu_device *d, const tcu_product *q)
{
    return !tcu_small(q->wide, q->x, q->w, q->y, q->ldy, q->m, q->n, q->k, NULL, NULL, d->stream);
}

static bool run_few(tcu_device *d, const tcu_product *q)
{
    return !tcu_few(q->wide, q->x, q->w, q->y, q->ldy, q->m, q->n, q->k, NULL, NULL, NULL, NULL,
                    d->stream);
}

static bool run_plan(tcu_device *d, const tcu_plan *p, const tcu_product *q, bool add)
{
    return p->how == SMALL ? run_small(d, q) : p->how == FEW ? run_few(d, q) : call(d, p, q, add);
}

/* Counts in *differing what our kernel makes different from `got`, in rows of q from `first` on; `before`: what they held. */
static bool compare(tcu_device *d, const tcu_plan *p, const tcu_product *q, int32_t first,
                    int32_t rows, void *before, tinkc_error *err)
{
    /* only the first part is checked; the others have the same shape */
    int32_t k = p->parts ? p->k / p->parts : p->k;
    size_t width = (size_t)p->ldy * (p->wide ? 4 : 2);
    return tcu_ok(d,
                  tcu_chain(p->transposed, p->wide, p->add, q->x + (size_t)first * (size_t)p->ldx,
                            p->ldx, q->w, p->transposed ? p->n : p->k, before, p->ldy, rows, p->n,
                            k, d->stream),
                  "checking", err) &&
           tcu_ok(d,
                  tcu_differ(p->wide, before, (const char *)q->y + (size_t)first * width,
                             (int64_t)rows * p->ldy, d->gemm.differing, d->stream),
                  "checking", err);
}

/* True if the plan gives the chain's bits on these operands, compared in the first and the last rows. */
static bool check(tcu_device *d, const tcu_plan *p, const tcu_product *q, tinkc_error *err)
{
    tcu_gemm *g = &d->gemm;
    int32_t rows = q->valid < CHECK_ROWS ? q->valid : CHECK_ROWS, last = q->valid - rows;
    size_t width = (size_t)p->ldy * (p->wide ? 4 : 2), bytes = (size_t)rows * width;
    char *before = tcu_take(d, 2 * bytes, TCU_FOR_OTHER, err);
    *g->differing = 0;
    bool same = before &&
                tcu_ok(d, cudaMemcpyAsync(before, q->y, bytes, cudaMemcpyDeviceToDevice, d->stream),
                       "checking", err) &&
                tcu_ok(d,
                       cudaMemcpyAsync(before + bytes, (const char *)q->y + (size_t)last * width,
                                       bytes, cudaMemcpyDeviceToDevice, d->stream),
                       "checking", err) &&
                run_plan(d, p, q, q->add) && compare(d, p, q, 0, rows, before, err) &&
                compare(d, p, q, last, rows, before + bytes, err) && tcu_wait(d, err) &&
                *g->differing == 0;
    tcu_give(d, before, 2 * bytes, TCU_FOR_OTHER);
    g->checked++;
    return same;
}

/* Milliseconds of a few runs; 1e30 if it fails. */
static float time_of(tcu_device *d, const tcu_plan *p, const tcu_product *q)
{
    cudaEvent_t begin = NULL, end = NULL;
    float ms = 1e30f;
    bool ok = !cudaEventCreate(&begin) && !cudaEventCreate(&end) &&
              run_plan(d, p, q, false); /* so y is finite */
    cudaEventRecord(begin, d->stream);
    for (int i = 0; i < TIMED && ok; i++)
        ok = run_plan(d, p, q, q->add);
    cudaEventRecord(end, d->stream);
    if (ok && !cudaEventSynchronize(end))
        cudaEventElapsedTime(&ms, begin, end);
    if (begin)
        cudaEventDestroy(begin);
    if (end)
        cudaEventDestroy(end);
    return ok ? ms : 1e30f;
}

/* Our own kernel by warpgroups: its time, if it can multiply and passes the check. */
static float time_of_few(tcu_device *d, tcu_plan *p, const tcu_product *q, tinkc_error *err)
{
    p->how = FEW;
    if (!d->gemm.few_here || q->m <= TCU_SMALL_ROWS / 4 || q->k % 64 || q->n % 8)
        return 1e30f;
    float ms = time_of(d, p, q);
    return ms < 1e30f && check(d, p, q, err) ? ms : 1e30f;
}

/* The fastest algorithm of the table that passes the check; our own kernels if none does. All give the same bits. */
static void choose(tcu_device *d, tcu_plan *p, const tcu_product *q, tinkc_error *err)
{
    cublasLtMatmulHeuristicResult_t results[TRIES];
    float times[TRIES], best = 1e30f;
    /* The table was found with whole steps along k; with a rest the library's sums can differ in the last place. */
    bool whole = p->k / (p->parts ? p->parts : 1) % 16 == 0;
    int got = whole && describe(d->gemm.lt, p) ? ask(&d->gemm, p, results) : 0;
    bool few = q->m <= TCU_SMALL_ROWS && !q->transposed && q->ldx == q->k && q->k % 8 == 0 &&
               !q->parts && !q->add;
    p->how = LIBRARY; /* what is timed */
    for (int i = 0; i < got; i++) {
        p->algo = results[i].algo;
        times[i] = in_table(d->gemm.lt, &p->algo) ? time_of(d, p, q) : 1e30f;
    }
    p->few_ms = few ? time_of_few(d, p, q, err) : 1e30f;
    if (few) {
        p->how = SMALL;
        best = time_of(d, p, q);
    }
    int how = best < 1e30f ? SMALL : OWN;
    if (p->few_ms < best) {
        best = p->few_ms;
        how = FEW;
    }
    for (;;) {
        int fastest = -1;
        for (int i = 0; i < got; i++)
            if (times[i] < best && (fastest < 0 || times[i] < times[fastest]))
                fastest = i;
        if (fastest < 0 || tkc_failed(err))
            break;
        p->algo = results[fastest].algo;
        p->how = LIBRARY;
        if (check(d, p, q, err)) {
            how = LIBRARY;
            best = times[fastest];
            break;
        }
        times[fastest] = 1e30f;
    }
    p->how = how;
    p->best_ms = best;
    d->gemm.fallbacks += how == OWN;
}

static tcu_plan *known(const tcu_gemm *g, const tcu_product *q)
{
    for (size_t i = 0; i < g->n_plans; i++) {
        tcu_plan *p = &g->plans[i];
        if (p->m == q->m && p->n == q->n && p->k == q->k && p->transposed == q->transposed &&
            p->wide == q->wide && p->add == q->add && p->ldx == q->ldx && p->ldy == q->ldy &&
            p->parts == q->parts)
            return p;
    }
    return NULL;
}

static tcu_plan *find(tcu_device *d, const tcu_product *q, tinkc_error *err)
{
    tcu_gemm *g = &d->gemm;
    tcu_plan *old = known(g, q);
    if (old)
        return old;
    tcu_plan *grown = tkc_grow(NULL, g->plans, &g->cap_plans, g->n_plans + 1, sizeof *grown, err);
    if (!grown)
        return NULL;
    g->plans = grown;
    tcu_plan *p = &g->plans[g->n_plans++];
    *p = (tcu_plan){ .transposed = q->transposed,
                     .wide = q->wide,
                     .add = q->add,
                     .m = q->m,
                     .n = q->n,
                     .k = q->k,
                     .ldx = q->ldx,
                     .ldy = q->ldy,
                     .parts = q->parts };
    choose(d, p, q, err);
    return tkc_failed(err) ? NULL : p;
}

/* ---- packed weights ---- */

bool tcu_unpack_room(tcu_device *d, size_t n, tinkc_error *err)
{
    tcu_gemm *g = &d->gemm;
    if (n <= g->n_unpacked)
        return true;
    tcu_wait(d, err); /* a product may still read it */
    tcu_give(d, g->unpacked, g->n_unpacked * sizeof *g->unpacked, TCU_FOR_WORK);
    g->n_unpacked = 0;
    g->unpacked = tcu_take(d, n * sizeof *g->unpacked, TCU_FOR_WORK, err);
    g->n_unpacked = g->unpacked ? n : 0;
    return g->unpacked != NULL;
}

/* Our own kernel for few rows takes it as it is. */
static bool stays_packed(const tcu_product *q)
{
    return q->coded && q->m <= TCU_SMALL_ROWS && !q->transposed && !q->add && !q->parts && q->ldx == q->k;
}

/* The same product with the matrices as bf16. */
static bool unpack(tcu_device *d, const tcu_product *q, tcu_product *out, tinkc_error *err)
{
    int32_t rows = q->transposed ? q->k : q->n, in = q->transposed ? q->n : q->k;
    bool ok = tcu_unpack_room(d, (size_t)rows * (size_t)in, err);
    tcu_bf16 *to = d->gemm.unpacked;
    for (int32_t i = 0; ok && i < q->n_coded; i++) {
        const tcu_coded *c = &q->coded[i];
        size_t n = (size_t)c->out * (size_t)in;
        int rc = c->format ? tcu_unpack_tiles(c, to, d->stream)
                           : (int)cudaMemcpyAsync(to, c->tiles, n * sizeof *to,
                                                  cudaMemcpyDeviceToDevice, d->stream);
        ok = tcu_ok(d, rc, "unpacking weights", err);
        to += n;
    }
    *out = *q;
    out->w = d->gemm.unpacked;
    out->coded = NULL;
    tcu_mark(d, "unpacking");
    return ok;
}

/* Matrix by matrix: those of a stack may have different formats. */
static bool multiply_packed(tcu_device *d, const tcu_product *q, tinkc_error *err)
{
    size_t width = q->wide ? sizeof(float) : sizeof(tcu_bf16), column = 0;
    for (int32_t i = 0; i < q->n_coded; i++) {
        const tcu_coded *c = &q->coded[i];
        char *y = (char *)q->y + column * width;
        int rc = c->format ? tcu_small_coded(q->wide, q->x, c, y, q->ldy, q->m, d->stream)
                           : tcu_small(q->wide, q->x, (const tcu_bf16 *)c->tiles, y, q->ldy, q->m,
                                       c->out, c->in, NULL, NULL, d->stream);
        if (!tcu_ok(d, rc, "multiplying with packed weights", err))
            return false;
        column += (size_t)c->out;
    }
    tcu_mark(d, "product");
    return true;
}

bool tcu_plan_product(tcu_device *d, const tcu_product *q, tinkc_error *err)
{
    tcu_product plain = *q;
    if (tkc_failed(err))
        return false;
    if (stays_packed(q) || known(&d->gemm, q))
        return true;
    return (!q->coded || unpack(d, q, &plain, err)) && find(d, &plain, err);
}

bool tcu_prefers_small(tcu_device *d, const tcu_product *q, tinkc_error *err)
{
    tcu_plan *p = q->m <= TCU_SMALL_ROWS && !q->coded ? find(d, q, err) : NULL;
    return p && p->how == SMALL;
}

bool tcu_prefers_few(tcu_device *d, const tcu_product *q, double spared_us, tinkc_error *err)
{
    tcu_plan *p = q->m <= TCU_SMALL_ROWS && !q->coded ? find(d, q, err) : NULL;
    return p && p->few_ms < 1e30f &&
           p->few_ms <= p->best_ms + (float)(spared_us * TIMED * 1e-3);
}

/* Part by part with our own kernel. */
static bool multiply_own(tcu_device *d, const tcu_product *q, tinkc_error *err)
{
    int32_t parts = q->parts ? q->parts : 1, k = q->k / parts;
    for (int32_t i = 0; i < parts; i++) {
        const tcu_bf16 *w = q->w + (q->transposed ? (int64_t)i * k * q->n : (int64_t)i * k);
        float *y = (float *)q->y + (int64_t)i * q->m * q->ldy;
        if (!tcu_ok(d,
                    tcu_chain(q->transposed, q->wide, q->add, q->x + (int64_t)i * k, q->ldx, w,
                              q->transposed ? q->n : q->k, q->parts ? y : q->y, q->ldy, q->m, q->n,
                              k, d->stream),
                    "product", err))
            return false;
    }
    return true;
}

bool tcu_multiply(tcu_device *d, const tcu_product *q, tinkc_error *err)
{
    tcu_product plain;
    if (!tkc_failed(err) && stays_packed(q))
        return multiply_packed(d, q, err);
    if (q->coded) {
        if (tkc_failed(err) || !unpack(d, q, &plain, err))
            return false;
        q = &plain;
    }
    tcu_plan *p = tkc_failed(err) ? NULL : find(d, q, err);
    if (!p)
        return false;
    if (p->how == OWN)
        return multiply_own(d, q, err);
    if (!run_plan(d, p, q, q->add))
        return tkc_fail(err, TINKC_E_SERVER, "cuda: a product of %d x %d x %d failed", q->m, q->n,
                        q->k);
    tcu_mark(d, "product");
    return true;
}
