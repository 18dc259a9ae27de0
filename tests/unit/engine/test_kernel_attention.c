/* Attention: every set near the reference (forward and backward, odd lengths, windows, groups); a
 * row's bits the same packed or alone, whole or in chunks, from a cache or not. */
#include "support/engine/numbers.h"
#include "support/test_case.h"

typedef struct problem {
    tke_attention shape;
    int64_t n_seqs, starts[8], rows, nq, nk;
    tke_real *q, *k, *v, *d_o;
    tke_real *o, *lse, *dq, *dk, *dv, *delta;
} problem;

static problem make(numbers *rng, int32_t heads, int32_t kv_heads, int32_t d, int64_t window, int64_t n_seqs,
                    const int64_t *lengths)
{
    problem p = { .shape = { heads, kv_heads, d, window, 1 / sqrtf((float)d) }, .n_seqs = n_seqs };
    for (int64_t i = 0; i < n_seqs; i++)
        p.starts[i + 1] = p.starts[i] + lengths[i];
    p.rows = p.starts[n_seqs];
    p.nq = p.rows * heads * d;
    p.nk = p.rows * kv_heads * d;
    p.q = numbers_new(rng, p.nq, 4);
    p.k = numbers_new(rng, p.nk, 2);
    p.v = numbers_new(rng, p.nk, 1);
    p.d_o = numbers_new(rng, p.nq, 1);
    p.o = numbers_new(rng, p.nq, 1);
    p.lse = numbers_new(rng, p.rows * heads, 1);
    p.dq = numbers_new(rng, p.nq, 1);
    p.dk = numbers_new(rng, p.nk, 1);
    p.dv = numbers_new(rng, p.nk, 1);
    p.delta = numbers_new(rng, p.rows * heads, 1);
    return p;
}

static void end(problem *p)
{
    void *all[] = { p->q, p->k, p->v, p->d_o, p->o, p->lse, p->dq, p->dk, p->dv, p->delta };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        numbers_free(all[i]);
}

static void forward(tke_cpu *cpu, const problem *p)
{
    tke_attention_forward(cpu, &p->shape, p->n_seqs, p->starts, p->q, p->k, p->v, p->o, p->lse);
}

static void backward(tke_cpu *cpu, const problem *p)
{
    tke_attention_grads g = { .q = p->q,
                              .k = p->k,
                              .v = p->v,
                              .o = p->o,
                              .lse = p->lse,
                              .d_o = p->d_o,
                              .dq = p->dq,
                              .dk = p->dk,
                              .dv = p->dv,
                              .delta = p->delta };
    tke_attention_backward(cpu, &p->shape, p->n_seqs, p->starts, &g);
}

static void expect_near(const char *what, const tke_real *x, const tke_real *right, int64_t n, double tolerance)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)x[i] - (double)right[i]) <= tolerance * (1 + fabs((double)right[i]))))
            fail_msg("%s[%d] = %.9g, not %.9g", what, (int)i, (double)x[i], (double)right[i]);
}

typedef struct layout {
    int32_t heads, kv_heads, d;
    int64_t window;
} layout;

static const layout layouts[] = {
    { 6, 2, 64, 0 }, { 4, 4, 16, 0 }, { 2, 1, 128, 0 }, { 3, 1, 40, 0 },  { 7, 1, 8, 0 },
    { 4, 2, 32, 1 }, { 4, 2, 32, 7 }, { 4, 2, 24, 64 }, { 2, 2, 2, 100 }, { 2, 1, 256, 0 },
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };
static const int64_t lengths[] = { 1, 130, 63, 64, 65 };

static void near_for_isa(int32_t isa)
{
    tke_cpu *cpu = cpu_new(isa, 2, TKE_PRECISION_F32), *ref = cpu_new(TKE_ISA_REF, 2, 0);
    for (size_t i = 0; i < LAYOUTS; i++) {
        numbers rng = { 21 }, same = { 21 };
        const layout *l = &layouts[i];
        problem p = make(&rng, l->heads, l->kv_heads, l->d, l->window, 5, lengths);
        problem r = make(&same, l->heads, l->kv_heads, l->d, l->window, 5, lengths);
        forward(cpu, &p);
        forward(ref, &r);
        expect_near("o", p.o, r.o, p.nq, 1e-5);
        expect_near("lse", p.lse, r.lse, p.rows * l->heads, 1e-5);
        backward(cpu, &p);
        backward(ref, &r);
        expect_near("dq", p.dq, r.dq, p.nq, 2e-5);
        expect_near("dk", p.dk, r.dk, p.nk, 2e-5);
        expect_near("dv", p.dv, r.dv, p.nk, 2e-5);
        end(&p);
        end(&r);
    }
    tke_cpu_free(cpu);
    tke_cpu_free(ref);
}

TEST(near_the_reference)
{
    each_isa(near_for_isa);
}

/* Each sequence by itself, on one thread, against all packed on three. */
static void alone_for_isa(int32_t isa)
{
    tke_cpu *three = cpu_new(isa, 3, TKE_PRECISION_F32), *one = cpu_new(isa, 1, 0);
    for (size_t i = 0; i < LAYOUTS; i++) {
        numbers rng = { 22 };
        const layout *l = &layouts[i];
        problem p = make(&rng, l->heads, l->kv_heads, l->d, l->window, 5, lengths);
        forward(three, &p);
        backward(three, &p);
        problem s = p; /* the same inputs, fresh outputs */
        s.o = numbers_new(&rng, p.nq, 1), s.lse = numbers_new(&rng, p.rows * l->heads, 1);
        s.dq = numbers_new(&rng, p.nq, 1), s.dk = numbers_new(&rng, p.nk, 1);
        s.dv = numbers_new(&rng, p.nk, 1);
        for (int64_t j = 0; j < p.n_seqs; j++) {
            s.n_seqs = 1;
            s.starts[0] = p.starts[j];
            s.starts[1] = p.starts[j + 1];
            forward(one, &s);
            backward(one, &s);
        }
        assert_true(numbers_same_bits(s.o, p.o, p.nq));
        assert_true(numbers_same_bits(s.lse, p.lse, p.rows * l->heads));
        assert_true(numbers_same_bits(s.dq, p.dq, p.nq));
        assert_true(numbers_same_bits(s.dk, p.dk, p.nk));
        assert_true(numbers_same_bits(s.dv, p.dv, p.nk));
        numbers_free(s.o), numbers_free(s.lse), numbers_free(s.dq);
        numbers_free(s.dk), numbers_free(s.dv);
        end(&p);
    }
    tke_cpu_free(three);
    tke_cpu_free(one);
}

TEST(sequences_do_not_see_each_other)
{
    each_isa(alone_for_isa);
}

/* With many threads the backward pass of few sequences is split into rows and keys. */
static void split_for_isa(int32_t isa)
{
    static const int64_t long_one[] = { 300 }, uneven[] = { 3, 257, 20 };
    tke_cpu *many = cpu_new(isa, 16, TKE_PRECISION_F32), *one = cpu_new(isa, 1, 0);
    for (size_t i = 0; i < 2 * LAYOUTS; i++) {
        numbers rng = { 24 }, same = { 24 };
        const layout *l = &layouts[i / 2];
        int64_t n = i % 2 ? 3 : 1;
        const int64_t *lengths_now = i % 2 ? uneven : long_one;
        problem p = make(&rng, l->heads, l->kv_heads, l->d, l->window, n, lengths_now);
        problem s = make(&same, l->heads, l->kv_heads, l->d, l->window, n, lengths_now);
        forward(one, &p);
        backward(one, &p);
        forward(many, &s);
        backward(many, &s);
        assert_true(numbers_same_bits(s.dq, p.dq, p.nq));
        assert_true(numbers_same_bits(s.dk, p.dk, p.nk));
        assert_true(numbers_same_bits(s.dv, p.dv, p.nk));
        end(&p);
        end(&s);
    }
    tke_cpu_free(many);
    tke_cpu_free(one);
}

TEST(threads_do_not_show)
{
    each_isa(split_for_isa);
}

/* The sequence of 130 rows again through a cache, in chunks of `step` rows. */
static void through_cache(tke_cpu *cpu, const problem *p, tke_dtype dtype, int32_t block, int64_t step, tke_real *o)
{
    enum { BLOCKS = 200 };
    numbers rng = { 23 };
    int64_t ld = (int64_t)p->shape.n_kv_heads * p->shape.head_dim, stride = block * ld + 3;
    int32_t ids[BLOCKS];
    for (int32_t i = 0; i < BLOCKS; i++)
        ids[i] = (i * 77 + 5) % BLOCKS;
    tke_kv_cache cache = { .dtype = dtype, .block_tokens = block, .block_stride = stride };
    cache.k = numbers_new_stored(&rng, dtype, BLOCKS * stride, 1);
    cache.v = numbers_new_stored(&rng, dtype, BLOCKS * stride, 1);
    /* What no position was stored in may hold anything. */
    memset(cache.k, 0xff, (size_t)(BLOCKS * stride) * tke_dtype_size(dtype));
    memset(cache.v, 0xff, (size_t)(BLOCKS * stride) * tke_dtype_size(dtype));
    int64_t first = p->starts[1], length = p->starts[2] - first;
    for (int64_t at = 0; at < length; at += step) {
        tke_kv_seq seq = {
            .first_row = first + at, .n_rows = length - at < step ? length - at : step, .first_pos = at, .ids = ids
        };
        tke_kv_store(cpu, &p->shape, &cache, 1, &seq, p->k, p->v);
        tke_attention_cached(cpu, &p->shape, &cache, 1, &seq, p->q, o);
    }
    numbers_free(cache.k);
    numbers_free(cache.v);
}

static void cached_for_isa(int32_t isa)
{
    static const int32_t blocks[] = { 16, 64, 4 };
    static const int64_t steps[] = { 1, 37, 130, 64, 5 };
    tke_cpu *cpu = cpu_new(isa, 2, TKE_PRECISION_F32);
    for (size_t i = 0; i < LAYOUTS; i++) {
        numbers rng = { 24 };
        const layout *l = &layouts[i];
        problem p = make(&rng, l->heads, l->kv_heads, l->d, l->window, 5, lengths);
        forward(cpu, &p);
        int64_t per = (int64_t)l->heads * l->d, at = p.starts[1] * per, n = 130 * per;
        for (size_t s = 0; s < 5; s++) {
            tke_real *o = numbers_new(&rng, p.nq, 1);
            through_cache(cpu, &p, TKE_REAL, blocks[s % 3], steps[s], o);
            assert_true(numbers_same_bits(o + at, p.o + at, n));
            through_cache(cpu, &p, TKE_BF16, blocks[s % 3], steps[s], o);
            expect_near("bf16 cache", o + at, p.o + at, n, 0.05);
            numbers_free(o);
        }
        end(&p);
    }
    tke_cpu_free(cpu);
}

TEST(cache_gives_the_same_bits)
{
    each_isa(cached_for_isa);
}

/* A row with one key has weight 1 whatever its score: its query and key get exactly no gradient,
 * which matters to an optimizer that divides by its size. */
static void single_key_for_isa(int32_t isa)
{
    static const int64_t ones[] = { 1, 1, 1 };
    tke_cpu *cpu = cpu_new(isa, 2, TKE_PRECISION_F32);
    numbers rng = { 26 };
    for (size_t i = 0; i < LAYOUTS; i++) {
        const layout *l = &layouts[i];
        problem p = make(&rng, l->heads, l->kv_heads, l->d, l->window, 3, ones);
        forward(cpu, &p);
        backward(cpu, &p);
        for (int64_t e = 0; e < p.nq; e++)
            assert_true(p.dq[e] == 0);
        for (int64_t e = 0; e < p.nk; e++)
            assert_true(p.dk[e] == 0);
        end(&p);
    }
    tke_cpu_free(cpu);
}

TEST(single_key_has_no_gradient)
{
    each_isa(single_key_for_isa);
}

/* A NaN in one sequence's keys and values reaches no other sequence and no earlier key block. */
static void poison_for_isa(int32_t isa)
{
    tke_cpu *cpu = cpu_new(isa, 1, TKE_PRECISION_F32);
    numbers rng = { 25 };
    problem p = make(&rng, 4, 2, 32, 0, 5, lengths);
    int64_t bad = p.starts[1] + 100, ld = 2 * 32;
    for (int64_t e = 0; e < ld; e++)
        p.k[bad * ld + e] = p.v[bad * ld + e] = NAN;
    forward(cpu, &p);
    for (int64_t i = 0; i < p.rows; i++) {
        bool may = i >= p.starts[1] + 64 && i < p.starts[2], must = i >= bad && i < p.starts[2];
        for (int64_t e = 0; e < 4 * 32; e++) {
            if (!may)
                assert_true(isnan(p.o[i * 4 * 32 + e]) == 0);
            if (must)
                assert_true(isnan(p.o[i * 4 * 32 + e]) != 0);
        }
    }
    end(&p);
    tke_cpu_free(cpu);
}

TEST(a_nan_stays_in_its_row)
{
    each_isa(poison_for_isa);
}
