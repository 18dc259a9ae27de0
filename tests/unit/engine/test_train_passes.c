/* test_train_passes.c - passes on a device of the test's own, whose log-probs are hashes of the tokens
 * so far: how datums are packed, what each pass gets back, what is added to which gradient, and what
 * happens when parts of it fail. All against a plain loop over the datums. */
#include <math.h>

#include "base/str.h"
#include "support/engine/on_device.h"
#include "support/engine/tiny_model.h"
#include "support/test_case.h"
#include "train/training.h"

enum { VOCAB = 101, CONTEXT = 256, LONGEST = 60, MOST_ROWS = 4096, K = 3 };

/* ---- the device ---- */

typedef struct packed { /* a microbatch that ran */
    size_t n, n_seqs, n_segments, max_k, max_rank;
    int32_t depth;
    bool attn, sweep;
} packed;

static tke_device_ops ops; /* the CPU's, except for training */
static tke_device *device;
static tke_device_model *loaded;
static struct {
    packed ran[200];
    size_t n_ran;
    size_t memory;      /* the budget */
    size_t scale;       /* of all bytes; 0 = 1 */
    size_t bare_rows;   /* these first rows have one target, the others of a row are none */
    size_t all_factor;  /* bytes with everything kept: so many times the least */
    int32_t nan_token;  /* its gradient is NaN; -1 = none */
    int32_t lost_token; /* its log-prob is NaN */
    int32_t fail_token; /* the microbatch that holds it fails */
    int fail_finite;    /* so many looks at a sum fail */
    int fail_squares;   /* this many norms from now fail; 0 = none does */
    bool fail_adam;
    int64_t now_ns, token_ns; /* a clock that only microbatches move */
    size_t between[200];      /* microbatches before each call of other_work */
    size_t n_between;
} fake;

static tke_real *block_of(tke_block *b)
{
    return device->ops->block_host(device, b);
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = a * 0x9E3779B97F4A7C15u + b + 1;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    return z ^ z >> 31;
}

static uint64_t chain(uint64_t h, int32_t token, const tke_lora *lora)
{
    return mix(h + (lora ? lora->layout->rank : 0), (uint64_t)token);
}

static float logprob(uint64_t h, int32_t target)
{
    return target < 0 ? 0 : -0.5f - (float)(mix(h, (uint64_t)target) % 1024) / 1024;
}

static tke_device_trainer *trainer_new(tke_device_model *m, const tke_device_trainer_options *o, tinkc_error *err)
{
    (void)m, (void)err;
    fake.memory = o->memory_bytes;
    return (tke_device_trainer *)&fake;
}

static void trainer_free(tke_device_trainer *t)
{
    (void)t;
}

static void trainer_set_memory(tke_device_trainer *t, size_t bytes)
{
    (void)t;
    fake.memory = bytes;
}

static size_t trainer_memory(const tke_device_trainer *t)
{
    (void)t;
    return fake.memory;
}

/* A thousand bytes for each target of a row, a hundred for each rank, ten for each depth. */
static size_t microbatch_bytes(const tke_device_trainer *t, const tke_microbatch_size *s, int32_t keep)
{
    (void)t;
    size_t least = s->n * (1000 * s->max_k + 100 * s->max_rank + 10 * (size_t)s->depth);
    least *= fake.scale ? fake.scale : 1;
    return keep == TKE_KEEP_ALL ? least * fake.all_factor : least;
}

static void check_job(const tke_microbatch *job)
{
    size_t row = 0;
    assert_true(job->size.n > 0 && job->size.n <= MOST_ROWS && job->size.max_k <= K);
    assert_int_equal(job->starts[0], 0);
    assert_int_equal(job->starts[job->n_seqs], job->size.n);
    for (size_t i = 0; i < job->n_segments; i++) {
        const tke_segment *s = &job->segments[i];
        assert_int_equal(s->begin, row);
        assert_true(s->end > s->begin);
        assert_true(i == 0 || job->segments[i - 1].lora != s->lora);
        assert_int_equal(s->grads != NULL, job->size.depth != TKE_DEPTH_NONE);
        row = s->end;
    }
    assert_int_equal(row, job->size.n);
    for (size_t i = 0; i < fake.bare_rows; i++)
        for (size_t j = 1; j < job->size.max_k; j++)
            assert_int_equal(job->targets[i * job->size.max_k + j], -1);
    fake.ran[fake.n_ran++] = (packed){ job->size.n,        job->n_seqs,     job->n_segments, job->size.max_k,
                                       job->size.max_rank, job->size.depth, job->attn,       job->sweep };
    assert_true(fake.n_ran < 200);
}

/* The place in a gradient that a position adds to. */
static size_t place(uint64_t h, const tke_lora *lora)
{
    return h % lora->layout->n_floats;
}

static bool microbatch_run(tke_device_trainer *t, const tke_microbatch *job, tinkc_error *err)
{
    static tke_real lp[MOST_ROWS * K], g[MOST_ROWS * K];
    static uint64_t h[MOST_ROWS];
    size_t n = job->size.n, k = job->size.max_k, seq = 0, segment = 0;
    (void)t;
    check_job(job);
    fake.now_ns += fake.token_ns * (int64_t)n;
    for (size_t i = 0; i < n; i++) {
        while ((size_t)job->starts[seq + 1] <= i)
            seq++;
        while (job->segments[segment].end <= i)
            segment++;
        size_t pos = i - (size_t)job->starts[seq];
        assert_int_equal(job->positions[i], pos);
        h[i] = chain(pos ? h[i - 1] : 0, job->ids[i], job->segments[segment].lora);
        for (size_t j = 0; j < k; j++)
            lp[i * k + j] = job->ids[i] == fake.lost_token ? (tke_real)NAN : logprob(h[i], job->targets[i * k + j]);
        if (job->ids[i] == fake.fail_token)
            return tkc_fail(err, TINKC_E_SERVER, "the device is gone");
    }
    for (int sweep = job->sweep ? 0 : 1; sweep < 2; sweep++)
        for (size_t first = 0; first < n; first += 7) {
            size_t rows = n - first < 7 ? n - first : 7;
            for (size_t i = 0; i < rows * k; i++)
                g[i] = 77; /* whatever was there before */
            job->losses(job->user, first, rows, lp + first * k, sweep ? g : NULL);
            for (size_t i = 0; sweep && job->size.depth && i < rows; i++)
                for (size_t s = 0, j = 0; j < k; j++) {
                    while (job->segments[s].end <= first + i)
                        s++;
                    bool nan = job->ids[first + i] == fake.nan_token;
                    tke_real *to = block_of(job->segments[s].grads);
                    to[place(h[first + i], job->segments[s].lora)] += nan ? (tke_real)NAN : g[i * k + j];
                }
        }
    return true;
}

static bool block_finite(tke_device *d, const tke_block *b, size_t n, bool *finite, tinkc_error *err)
{
    if (fake.fail_finite)
        return tkc_fail(err, TINKC_E_SERVER, "the look fails");
    return tke_cpu_device.block_finite(d, b, n, finite, err);
}

static bool block_squares(tke_device *d, const tke_block *b, size_t n, double *sum, tinkc_error *err)
{
    if (fake.fail_squares && --fake.fail_squares == 0)
        return tkc_fail(err, TINKC_E_SERVER, "the sum fails");
    return tke_cpu_device.block_squares(d, b, n, sum, err);
}

static bool adam(tke_device *d, const tke_adam *how, size_t n, const tke_block *grads, tke_block *weights, tke_block *m,
                 tke_block *v, double *moved, tinkc_error *err)
{
    if (fake.fail_adam)
        return tkc_fail(err, TINKC_E_SERVER, "the step fails");
    return tke_cpu_device.adam(d, how, n, grads, weights, m, v, moved, err);
}

/* ---- the world ---- */

static char *folder;

static int setup(void **state)
{
    tinkc_error err = { 0 };
    (void)state;
    folder = tiny_model_make(&(tiny_model){ .family = "llama", .layers = 1 });
    device = device_cpu(1);
    ops = *device->ops;
    ops.trainer_new = trainer_new;
    ops.trainer_free = trainer_free;
    ops.trainer_set_memory = trainer_set_memory;
    ops.trainer_memory = trainer_memory;
    ops.microbatch_bytes = microbatch_bytes;
    ops.microbatch_run = microbatch_run;
    ops.block_finite = block_finite;
    ops.block_squares = block_squares;
    ops.adam = adam;
    loaded = device_load(device, tke_model_open(folder, &err));
    device->ops = &ops;
    assert_string_equal(err.message, "");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tke_model *m = loaded->model;
    device_unload(loaded);
    tke_model_drop(m);
    tke_device_close(device);
    tiny_model_remove(folder);
    return 0;
}

static tke_trainer *trainer_of(size_t memory, size_t tokens)
{
    tinkc_error err = { 0 };
    memset(&fake, 0, sizeof fake);
    fake.nan_token = fake.lost_token = fake.fail_token = -1;
    fake.all_factor = 1;
    tke_trainer *t =
        tke_trainer_new(loaded, &(tke_trainer_options){ .memory_bytes = memory, .microbatch_tokens = tokens }, &err);
    assert_non_null(t);
    return t;
}

static tke_adapter *adapter_of(int32_t rank, uint32_t train)
{
    tinkc_error err = { 0 };
    tke_adapter *a = tke_adapter_new(device, loaded->model, &(tke_adapter_spec){ .rank = rank, .train = train }, &err);
    assert_non_null(a);
    return a;
}

typedef struct example {
    int32_t tokens[LONGEST];
    int64_t targets[LONGEST * K];
    float weights[LONGEST * K], q[LONGEST], advantages[LONGEST];
} example;

typedef struct work { /* a pass and what belongs to it */
    tke_pass pass;
    example examples[5];
    tke_datum data[5];
} work;

static work *work_of(uint64_t seed, tke_adapter *a, bool backward, const char *loss, size_t n, size_t k)
{
    tinkc_error err = { 0 };
    uint64_t r = seed;
    work *w = test_calloc(1, sizeof *w);
    w->pass = (tke_pass){ .adapter = a, .backward = backward, .data = w->data, .n_data = n };
    assert_true(tke_loss_parse(&w->pass.loss, tkc_str(loss), NULL, 0, false, &err));
    bool soft = strcmp(loss, "cross_entropy") == 0;
    for (size_t i = 0; i < n; i++) {
        example *e = &w->examples[i];
        size_t len = 1 + tiny_random(&r) % (LONGEST - 1);
        w->data[i] = (tke_datum){ .tokens = e->tokens, .n = len, .k = k, .targets = e->targets };
        if (soft) {
            w->data[i].weights = e->weights;
        } else {
            w->data[i].logprobs = e->q;
            w->data[i].advantages = e->advantages;
        }
        for (size_t p = 0; p < LONGEST; p++) {
            e->tokens[p] = (int32_t)(tiny_random(&r) % 90);
            e->q[p] = -1 + 0.3f * tiny_normal(&r);
            e->advantages[p] = tiny_random(&r) % 4 ? tiny_normal(&r) : 0;
            for (size_t j = 0; j < k; j++) {
                e->targets[p * k + j] = (int64_t)(tiny_random(&r) % VOCAB);
                e->weights[p * k + j] = tiny_random(&r) % 4 ? tiny_normal(&r) : 0;
                if (e->weights[p * k + j] == 0 && soft) /* no target is needed there */
                    e->targets[p * k + j] = tiny_random(&r) % 2 ? -100 : VOCAB;
            }
        }
    }
    return w;
}

static void work_free(work *w)
{
    tke_pass_free(&w->pass);
    test_free(w);
}

static void run(tke_trainer *t, work *const *works, size_t n)
{
    tke_pass *list[8];
    for (size_t i = 0; i < n; i++)
        list[i] = &works[i]->pass;
    tke_trainer_run(t, list, n);
}

static double metric(const tke_pass *p, const char *name)
{
    for (size_t i = 0; i < p->out.n_metrics; i++)
        if (strcmp(p->out.metrics[i].name, name) == 0)
            return p->out.metrics[i].value;
    fail_msg("no metric %s", name);
    return 0;
}

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-5 * (1 + fabs(want))))
        fail_msg("%.9g, not %.9g", got, want);
}

/* ---- the plain loop ---- */

typedef struct sums {
    double loss, ratio, most, kl;
    size_t tokens, with_loss, clipped;
} sums;

/* Loss and gradient of a position: cross_entropy, or ppo with its clip of 0.8 to 1.2. */
static double position(const work *w, const tke_datum *d, size_t p, uint64_t h, double *g, sums *s)
{
    double loss = 0;
    bool any = false;
    for (size_t j = 0; j < d->k; j++) {
        int64_t target = d->targets[p * d->k + j];
        double lp = (double)logprob(h, target >= 0 && target < VOCAB ? (int32_t)target : -1);
        g[j] = 0;
        if (d->weights && d->weights[p * d->k + j] != 0) {
            g[j] = -(double)d->weights[p * d->k + j];
            loss += g[j] * lp;
            any = true;
        }
        if (d->advantages && d->advantages[p] != 0) {
            double a = (double)d->advantages[p], ratio = exp(lp - (double)d->logprobs[p]);
            double cut = fmin(fmax(ratio, 0.8), 1.2);
            loss = -fmin(ratio * a, cut * a);
            g[j] = ratio * a <= cut * a ? -ratio * a : 0;
            s->ratio += ratio;
            s->most = s->with_loss ? fmax(s->most, ratio) : ratio;
            s->kl += (double)d->logprobs[p] - lp;
            s->clipped += cut != ratio;
            any = true;
        }
    }
    (void)w;
    s->loss += loss;
    s->tokens++;
    s->with_loss += any;
    return loss;
}

/* Everything a pass gives back, and what it adds to `grads` (NULL = nothing). */
static void check_pass(const work *w, double *grads)
{
    const tke_pass *p = &w->pass;
    const tke_lora *lora = p->adapter ? tke_adapter_lora(p->adapter) : NULL;
    size_t n = 0, nk = 0;
    sums s = { 0 };
    assert_string_equal(p->err.message, "");
    for (size_t i = 0; i < p->n_data; i++) {
        const tke_datum *d = &p->data[i];
        uint64_t h = 0;
        assert_int_equal(p->out.elementwise_at[i], n);
        assert_int_equal(p->out.logprobs_at[i], nk);
        for (size_t at = 0; at < d->n; at++) {
            double g[K];
            h = chain(h, d->tokens[at], lora);
            near((double)p->out.elementwise[n + at], position(w, d, at, h, g, &s));
            for (size_t j = 0; j < d->k; j++) {
                int64_t target = d->targets[at * d->k + j];
                float want = logprob(h, target >= 0 && target < VOCAB ? (int32_t)target : -1);
                assert_true(p->out.logprobs[nk + at * d->k + j] == want);
                if (grads && p->backward)
                    grads[place(h, lora)] += g[j];
            }
        }
        n += d->n;
        nk += d->n * d->k;
    }
    assert_int_equal(p->out.elementwise_at[p->n_data], n);
    assert_int_equal(p->out.logprobs_at[p->n_data], nk);
    near(metric(p, "loss:sum"), s.loss);
    assert_true(metric(p, "num_tokens:sum") == (double)s.tokens);
    assert_true(metric(p, "num_loss_tokens:sum") == (double)s.with_loss);
    bool ratios = p->data[0].advantages != NULL;
    assert_int_equal(p->out.n_metrics, ratios ? 7 : 3);
    double count = s.with_loss ? (double)s.with_loss : 1;
    if (ratios) {
        near(metric(p, "clip_frac:mean"), (double)s.clipped / count);
        near(metric(p, "ratio:mean"), s.ratio / count);
        near(metric(p, "ratio:max"), s.most);
        near(metric(p, "kl_v1:mean"), s.kl / count);
    }
}

static double *zeros(const tke_adapter *a)
{
    return test_calloc(tke_adapter_lora(a)->layout->n_floats, sizeof(double));
}

static void check_grads(const tke_adapter *a, const double *want)
{
    for (size_t i = 0; i < tke_adapter_lora(a)->layout->n_floats; i++)
        near((double)adapter_grads(a)[i], want[i]);
}

static int64_t tokens_of(const work *w)
{
    int64_t n = 0;
    for (size_t i = 0; i < w->pass.n_data; i++)
        n += (int64_t)w->data[i].n;
    return n;
}

/* ---- tests ---- */

static int64_t now_ns(void)
{
    return fake.now_ns;
}

static void other_work(void *user)
{
    assert_ptr_equal(user, &fake);
    fake.between[fake.n_between++] = fake.n_ran;
}

static tke_trainer *sharing_trainer(int64_t slice_ns, size_t tokens)
{
    tinkc_error err = { 0 };
    tke_trainer_free(trainer_of(1 << 30, 0)); /* a new fake */
    return tke_trainer_new(loaded,
                           &(tke_trainer_options){ .memory_bytes = 1 << 30,
                                                   .microbatch_tokens = tokens,
                                                   .between = other_work,
                                                   .user = &fake,
                                                   .slice_ns = slice_ns,
                                                   .now_ns = now_ns },
                           &err);
}

/* Other work waits for one microbatch, not for a pass: it is asked for between any two of a run,
 * and neither before the first nor after the last. */
TEST(other_work_comes_between_microbatches)
{
    tke_trainer *t = sharing_trainer(0, 1);
    tke_adapter *a = adapter_of(2, 7);
    work *w[2] = { work_of(1, a, true, "cross_entropy", 3, 1), work_of(2, NULL, false, "cross_entropy", 2, 1) };
    double *g = zeros(a);
    run(t, w, 2);
    static const size_t want[] = { 1, 2, 3, 4 };
    assert_int_equal(fake.n_ran, 5);
    assert_int_equal(fake.n_between, 4);
    assert_memory_equal(fake.between, want, sizeof want);
    check_pass(w[0], g);
    check_pass(w[1], NULL);
    check_grads(a, g);
    tke_pass_free(&w[1]->pass);
    run(t, w + 1, 1); /* a new run begins with a microbatch */
    assert_int_equal(fake.n_between, 5);
    assert_int_equal(fake.between[4], 6);
    for (size_t i = 0; i < 2; i++)
        work_free(w[i]);
    test_free(g);
    tke_adapter_free(a);
    tke_trainer_free(t);
}

/* The rows of microbatches of a pass whose datums all have ten tokens. */
static void slices(tke_trainer *t, int64_t token_ns, const size_t *want, size_t n)
{
    static example e;
    static tke_datum data[200];
    work w = { .pass = { .data = data, .n_data = 200 } };
    tinkc_error err = { 0 };
    assert_true(tke_loss_parse(&w.pass.loss, tkc_str("cross_entropy"), NULL, 0, false, &err));
    for (size_t i = 0; i < 200; i++)
        data[i] = (tke_datum){ .tokens = e.tokens, .n = 10, .k = 1, .targets = e.targets, .weights = e.weights };
    fake.n_ran = fake.n_between = 0;
    fake.token_ns = token_ns;
    tke_trainer_run(t, (tke_pass *const[]){ &w.pass }, 1);
    assert_string_equal(w.pass.err.message, "");
    assert_int_equal(fake.n_ran, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(fake.ran[i].n, want[i]);
    tke_pass_free(&w.pass);
}

/* A microbatch has as many rows as fit the slice at the rate of the last one of its kind, not fewer
 * than 256; the first has 256. */
TEST(microbatches_fit_their_slice)
{
    tke_trainer *t = sharing_trainer(600000, 1000);
    slices(t, 1000, (size_t[]){ 250, 600, 600, 550 }, 4);
    slices(t, 1500, (size_t[]){ 600, 400, 400, 400, 200 }, 5);
    slices(t, 3000, (size_t[]){ 400, 250, 250, 250, 250, 250, 250, 100 }, 8);
    slices(t, 1, (size_t[]){ 250, 1000, 750 }, 3); /* no more than allowed */
    tke_trainer_free(t);
    t = sharing_trainer(0, 1000); /* no bound of time */
    slices(t, 1000000, (size_t[]){ 1000, 1000 }, 2);
    tke_trainer_free(t);
}

/* A device that starts slowly has full microbatches from the beginning; what the first of them took says nothing about the others. */
TEST(a_slow_start_is_not_measured)
{
    tke_trainer *t = sharing_trainer(600000, 1000);
    tke_trainer_free(t);
    tinkc_error err = { 0 };
    t = tke_trainer_new(loaded,
                        &(tke_trainer_options){ .memory_bytes = 1 << 30,
                                                .microbatch_tokens = 1000,
                                                .slice_ns = 600000,
                                                .starts_slowly = true,
                                                .now_ns = now_ns },
                        &err);
    slices(t, 100000, (size_t[]){ 1000, 1000 }, 2); /* the second is measured, for the next run */
    slices(t, 1000, (size_t[]){ 250, 600, 600, 550 }, 4);
    tke_trainer_free(t);
}

/* Losses, adapters, directions, soft targets and sizes of all kinds in one call. */
TEST(passes_of_all_kinds_share_a_call)
{
    static const size_t sizes[] = { 1, 40, 100, 100000 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        tke_trainer *t = trainer_of(1 << 30, sizes[i]);
        tke_adapter *a = adapter_of(2, 7), *b = adapter_of(5, TKE_TRAIN_UNEMBED), *c = adapter_of(3, TKE_TRAIN_MLP);
        work *w[8] = { work_of(1, a, true, "cross_entropy", 3, 1),
                       work_of(2, b, true, "ppo", 2, 1),
                       work_of(3, a, false, "ppo", 2, 1),
                       work_of(4, a, true, "ppo", 5, 1),
                       work_of(5, NULL, false, "cross_entropy", 2, 2),
                       work_of(6, b, true, "cross_entropy", 1, 3),
                       work_of(7, c, true, "cross_entropy", 2, 2),
                       work_of(8, a, true, "cross_entropy", 1, 1) };
        double *ga = zeros(a), *gb = zeros(b), *gc = zeros(c);
        run(t, w, 8);
        for (size_t k = 0; k < 8; k++) {
            tke_adapter *of = w[k]->pass.adapter;
            check_pass(w[k], of == a ? ga : of == b ? gb : of == c ? gc : NULL);
        }
        check_grads(a, ga);
        check_grads(b, gb);
        check_grads(c, gc);
        assert_int_equal(a->n_fwdbwd, 3);
        assert_int_equal(a->n_tokens, tokens_of(w[0]) + tokens_of(w[3]) + tokens_of(w[7]));
        assert_int_equal(b->n_fwdbwd, 2);
        size_t rows = 0, all = 0;
        for (size_t k = 0; k < fake.n_ran; k++) {
            const packed *p = &fake.ran[k];
            assert_true(p->n <= sizes[i] || p->n_seqs == 1);
            assert_int_equal(p->attn, p->depth == TKE_DEPTH_ALL && p->max_rank == 2 ? true : p->attn);
            rows += p->n;
        }
        for (size_t k = 0; k < 8; k++)
            all += (size_t)tokens_of(w[k]);
        assert_int_equal(rows, all); /* each once */
        if (sizes[i] == 100000) {    /* deepest first, one microbatch of each depth */
            assert_int_equal(fake.n_ran, 3);
            static const packed want[3] = {
                { .n_segments = 2, .depth = TKE_DEPTH_ALL, .attn = true, .max_rank = 3, .max_k = 2, .n_seqs = 11 },
                { .n_segments = 1, .depth = TKE_DEPTH_HEAD, .max_rank = 5, .max_k = 3, .n_seqs = 3 },
                { .n_segments = 2, .depth = TKE_DEPTH_NONE, .max_rank = 2, .max_k = 2, .n_seqs = 4 }
            };
            for (size_t k = 0; k < 3; k++) {
                packed got = fake.ran[k];
                got.n = 0;
                assert_memory_equal(&got, &want[k], sizeof got);
            }
        }
        for (size_t k = 0; k < 8; k++)
            work_free(w[k]);
        test_free(ga);
        test_free(gb);
        test_free(gc);
        tke_adapter_free(a);
        tke_adapter_free(b);
        tke_adapter_free(c);
        tke_trainer_free(t);
    }
}

/* A budget bounds a microbatch; so does what it would take to keep everything, beyond 1024 rows. */
TEST(a_budget_bounds_a_microbatch)
{
    static const struct {
        size_t memory, factor, ran, tokens;
    } cases[] = {
        /* rows of 1000 + 2 * 100 + 2 * 10 bytes */
        { 1220 * 128, 1, 1, 0 },  { 1220 * 128 - 1, 1, 2, 0 }, { 1220 * 64, 1, 2, 0 },    { 1220 * 64 - 1, 1, 4, 0 },
        { 1220 * 128, 9, 1, 0 }, /* small ones need not be kept */
        { 1220 * 128, 1, 2, 64 }, { 1220 * 128, 1, 4, 63 },    { 1220 * 128, 1, 2, 127 }, { 1220 * 128, 1, 1, 128 },
    };
    tke_adapter *a = adapter_of(2, TKE_TRAIN_MLP);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        work *w = work_of(1, a, true, "cross_entropy", 4, 1);
        tke_trainer *t = trainer_of(cases[i].memory, cases[i].tokens);
        fake.all_factor = cases[i].factor;
        for (int k = 0; k < 4; k++)
            w->data[k].n = 32;
        run(t, &w, 1);
        assert_string_equal(w->pass.err.message, "");
        assert_int_equal(fake.n_ran, cases[i].ran);
        assert_false(fake.ran[0].attn);
        work_free(w);
        tke_trainer_free(t);
    }
    tke_adapter_free(a);
}

/* 1024 rows may need recomputing; with more the microbatch ends where all can be kept. */
TEST(a_large_microbatch_ends_where_all_can_be_kept)
{
    tinkc_error err = { 0 };
    tke_adapter *a = adapter_of(2, TKE_TRAIN_MLP);
    static int32_t tokens[CONTEXT];
    static int64_t targets[CONTEXT];
    static float weights[CONTEXT];
    tke_datum data[6];
    for (int i = 0; i < 6; i++)
        data[i] = (tke_datum){ .tokens = tokens, .n = CONTEXT, .k = 1, .targets = targets, .weights = weights };
    for (int wide = 0; wide < 3; wide++) {
        data[4].n = wide == 2 ? 1 : CONTEXT; /* the last time it is the 1025th row */
        tke_trainer *t = trainer_of(1 << 30, 0);
        tke_pass p = { .adapter = a, .backward = true, .data = data, .n_data = 6 }, *list[1] = { &p };
        assert_true(tke_loss_parse(&p.loss, tkc_str("cross_entropy"), NULL, 0, false, &err));
        fake.all_factor = 10;
        fake.memory = wide == 1 ? (size_t)6 * CONTEXT * 1220 * 10 : (size_t)6 * CONTEXT * 1220;
        tke_trainer_run(t, list, 1);
        assert_string_equal(p.err.message, "");
        assert_int_equal(fake.n_ran, wide == 1 ? 1 : 2);
        assert_int_equal(fake.ran[0].n_seqs, wide == 1 ? 6 : 4);
        assert_non_null(p.out.logprobs);
        tke_pass_free(&p);
        assert_null(p.out.logprobs);
        tke_trainer_free(t);
    }
    tke_adapter_free(a);
}

TEST(memory_of_a_datum)
{
    tke_adapter *a = adapter_of(2, 7);
    tke_trainer *t = trainer_of(1 << 30, 0);
    assert_int_equal(tke_trainer_bytes(t, 10, 2, NULL), 10 * 2000);
    assert_int_equal(tke_trainer_bytes(t, 10, 2, tke_adapter_get_spec(a)), 10 * (2000 + 200 + 20));
    work *w = work_of(1, a, true, "cross_entropy", 3, 2);
    w->data[1].n = 40;
    w->data[0].n = w->data[2].n = 3;
    tke_trainer_set_memory(t, 40 * 2220);
    run(t, &w, 1);
    assert_string_equal(w->pass.err.message, "");
    tke_pass_free(&w->pass);
    tke_trainer_set_memory(t, 40 * 2220 - 1);
    run(t, &w, 1);
    assert_int_equal(w->pass.err.code, TINKC_E_BAD_REQUEST);
    assert_string_equal(w->pass.err.message, "datum 1 of 40 tokens needs 0 MiB of work space, 0 are there: send a "
                                             "shorter one, or give training more memory (setting train_memory_bytes)");
    assert_int_equal(a->n_failed, 1);
    tke_pass_free(&w->pass); /* the last one, by numbers that can be seen */
    w->data[1].n = 3;
    w->data[2].n = 40;
    fake.scale = 100;
    tke_trainer_set_memory(t, 5 << 20);
    run(t, &w, 1);
    assert_string_equal(w->pass.err.message, "datum 2 of 40 tokens needs 8 MiB of work space, 5 are there: send a "
                                             "shorter one, or give training more memory (setting train_memory_bytes)");
    fake.scale = 1;
    tke_trainer_set_memory(t, 40 * 2000); /* without an adapter it is less */
    w->pass.adapter = NULL;
    w->pass.backward = false;
    tke_pass_free(&w->pass);
    run(t, &w, 1);
    assert_string_equal(w->pass.err.message, "");
    work_free(w);
    tke_adapter_free(a);
    tke_trainer_free(t);
}

/* A token of the pass's third datum that the device treats as the fault says. */
static void mark(work *w, int32_t *fault)
{
    w->data[2].n = 20;
    w->examples[2].tokens[11] = 95;
    for (size_t i = 0; i < K; i++)
        w->examples[2].weights[11 + i] = 1, w->examples[2].targets[11 + i] = 1;
    *fault = 95;
}

/* Three passes of one adapter and one of another; parts of the one at `bad` fail. */
static void failing_at(size_t bad, int32_t *token, int32_t code, const char *message, size_t attempts)
{
    tke_trainer *t = trainer_of(1 << 30, 100000);
    tke_adapter *a = adapter_of(2, 7), *b = adapter_of(3, 7);
    work *w[4];
    size_t of_b = bad == 3 ? 0 : 3;
    for (size_t i = 0; i < 4; i++)
        w[i] = i == of_b  ? work_of(4, b, true, "ppo", 2, 1)
               : i == bad ? work_of(2, a, true, "cross_entropy", 4, 1)
                          : work_of(10 + i, a, true, "ppo", 2, 1);
    double *ga = zeros(a), *gb = zeros(b);
    mark(w[bad], token);
    run(t, w, 4);
    assert_int_equal(w[bad]->pass.err.code, code);
    assert_string_equal(w[bad]->pass.err.message, message);
    for (size_t i = 0; i < 4; i++)
        if (i != bad)
            check_pass(w[i], i == of_b ? gb : ga);
    check_grads(a, ga);
    check_grads(b, gb);
    assert_int_equal(a->n_fwdbwd, 2);
    assert_int_equal(a->n_failed, 1);
    int64_t tokens = 0;
    for (size_t i = 0; i < 4; i++)
        tokens += i != bad && i != of_b ? tokens_of(w[i]) : 0;
    assert_int_equal(a->n_tokens, tokens);
    assert_int_equal(b->n_fwdbwd, 1);
    assert_int_equal(b->n_failed, 0);
    assert_int_equal(fake.n_ran, attempts);
    for (size_t i = 0; i < 4; i++)
        work_free(w[i]);
    test_free(ga);
    test_free(gb);
    tke_adapter_free(a);
    tke_adapter_free(b);
    tke_trainer_free(t);
}

TEST(a_failing_pass)
{
    for (size_t bad = 0; bad < 4; bad++) {
        /* at once known: the others run again without it */
        failing_at(bad, &fake.lost_token, TINKC_E_SERVER, "datum 2: the log-prob at position 11 is not finite", 2);
        /* only the sum is NaN: each of the three runs alone, after all have run */
        failing_at(bad, &fake.nan_token, TINKC_E_SERVER, "the gradient is not finite", 4);
    }
}

/* A NaN in the only gradient of an adapter is its own: another adapter's pass and a forward pass with the
 * same adapter, wherever they stand, succeed in the same attempt. */
TEST(a_failing_gradient_alone)
{
    for (size_t bad = 0; bad < 3; bad++) {
        tke_trainer *t = trainer_of(1 << 30, 100000);
        tke_adapter *a = adapter_of(2, 7), *b = adapter_of(3, 7);
        work *w[3];
        double *gb = zeros(b), *none = zeros(a);
        for (size_t i = 0; i < 3; i++)
            w[i] = i == bad             ? work_of(2, a, true, "cross_entropy", 4, 1)
                   : i == (bad + 1) % 3 ? work_of(3, a, false, "cross_entropy", 2, 1)
                                        : work_of(4, b, true, "ppo", 2, 1);
        mark(w[bad], &fake.nan_token);
        run(t, w, 3);
        assert_string_equal(w[bad]->pass.err.message, "the gradient is not finite");
        check_pass(w[(bad + 1) % 3], NULL);
        check_pass(w[(bad + 2) % 3], gb);
        check_grads(b, gb);
        check_grads(a, none);
        assert_int_equal(a->n_failed, 1);
        assert_int_equal(a->n_fwdbwd, 0);
        assert_int_equal(b->n_fwdbwd, 1);
        assert_int_equal(fake.n_ran, 2); /* once deep, once forward */
        for (size_t i = 0; i < 3; i++)
            work_free(w[i]);
        test_free(gb);
        test_free(none);
        tke_adapter_free(a);
        tke_adapter_free(b);
        tke_trainer_free(t);
    }
}

/* A forward pass that fails has no results, and those beside it have theirs. */
TEST(a_failing_forward_pass)
{
    tke_trainer *t = trainer_of(1 << 30, 100000);
    tke_adapter *a = adapter_of(2, 7);
    work *w[2] = { work_of(2, a, false, "cross_entropy", 4, 1), work_of(3, a, false, "cross_entropy", 2, 1) };
    mark(w[0], &fake.lost_token);
    w[1]->pass.out.n_metrics = 5; /* what is in it before does not matter */
    run(t, w, 2);
    assert_string_equal(w[0]->pass.err.message, "datum 2: the log-prob at position 11 is not finite");
    assert_int_equal(w[0]->pass.out.n_metrics, 0);
    check_pass(w[1], NULL);
    assert_int_equal(a->n_failed, 0); /* no gradient is missing */
    work_free(w[0]);
    work_free(w[1]);
    tke_adapter_free(a);
    tke_trainer_free(t);
}

/* A loss over whole sequences gathers each of its own: three datums in a call, or one. */
TEST(a_loss_over_sequences_gathers_its_own)
{
    tke_trainer *t = trainer_of(1 << 30, 100000);
    tke_adapter *a = adapter_of(2, 7), *b = adapter_of(2, 7);
    work *all = work_of(5, a, true, "gspo", 3, 1);
    double sum = 0;
    run(t, &all, 1);
    assert_true(fake.ran[0].sweep);
    for (size_t i = 0; i < 3; i++) {
        work *one = work_of(5, b, true, "gspo", 3, 1);
        one->pass.data = &one->data[i];
        one->pass.n_data = 1;
        run(t, &one, 1);
        assert_string_equal(one->pass.err.message, "");
        size_t at = all->pass.out.elementwise_at[i];
        for (size_t p = 0; p < one->data[i].n; p++)
            assert_true(one->pass.out.elementwise[p] == all->pass.out.elementwise[at + p]);
        sum += metric(&one->pass, "loss:sum");
        work_free(one);
    }
    near(metric(&all->pass, "loss:sum"), sum);
    for (size_t i = 0; i < tke_adapter_lora(a)->layout->n_floats; i++)
        near((double)adapter_grads(a)[i], (double)adapter_grads(b)[i]);
    work_free(all);
    tke_adapter_free(a);
    tke_adapter_free(b);
    tke_trainer_free(t);
}

/* Beside a pass with three targets for each position, one with a single target has none in the others. */
TEST(places_without_target)
{
    tke_trainer *t = trainer_of(1 << 30, 100000);
    work *w[2] = { work_of(1, NULL, false, "cross_entropy", 2, 1), work_of(2, NULL, false, "cross_entropy", 2, 3) };
    fake.bare_rows = (size_t)tokens_of(w[0]);
    run(t, w, 2);
    assert_int_equal(fake.n_ran, 1);
    check_pass(w[0], NULL);
    check_pass(w[1], NULL);
    work_free(w[0]);
    work_free(w[1]);
    tke_trainer_free(t);
}

/* Where nobody can say whether a sum is finite, no pass that waits for it ends well. */
TEST(a_failing_look)
{
    tke_trainer *t = trainer_of(1 << 30, 100000);
    tke_adapter *a = adapter_of(2, 7), *b = adapter_of(3, 7);
    work *w[3] = { work_of(1, NULL, false, "cross_entropy", 2, 1), work_of(2, a, true, "ppo", 2, 1),
                   work_of(3, b, true, "ppo", 2, 1) };
    double *none = zeros(a);
    fake.fail_finite = 1;
    run(t, w, 3);
    check_pass(w[0], NULL); /* it was complete before */
    assert_string_equal(w[1]->pass.err.message, "the look fails");
    assert_string_equal(w[2]->pass.err.message, "the look fails");
    check_grads(a, none);
    assert_true(a->n_fwdbwd == 0 && a->n_failed == 1 && b->n_fwdbwd == 0 && b->n_failed == 1);
    for (size_t i = 0; i < 3; i++)
        work_free(w[i]);
    test_free(none);
    tke_adapter_free(a);
    tke_adapter_free(b);
    tke_trainer_free(t);
}

/* A device that fails ends what has no outcome yet. */
TEST(a_failing_device)
{
    tke_trainer *t = trainer_of(1 << 30, 100000);
    tke_adapter *a = adapter_of(2, 7);
    work *w[3] = { work_of(1, a, true, "ppo", 3, 1), work_of(2, NULL, false, "cross_entropy", 4, 1),
                   work_of(3, a, true, "ppo", 0, 1) };
    double *none = zeros(a);
    fake.fail_token = w[1]->examples[0].tokens[0];
    run(t, w, 3);
    assert_string_equal(w[0]->pass.err.message, "the device is gone");
    assert_string_equal(w[1]->pass.err.message, "the device is gone");
    assert_int_equal(w[1]->pass.err.code, TINKC_E_SERVER);
    assert_string_equal(w[2]->pass.err.message, "data is empty");
    check_grads(a, none);
    assert_int_equal(a->n_failed, 2);
    for (size_t i = 0; i < 3; i++)
        work_free(w[i]);
    test_free(none);
    tke_adapter_free(a);
    tke_trainer_free(t);
}

/* ---- what is refused before ---- */

static void refuses(tke_trainer *t, work *w, int32_t code, const char *message)
{
    tke_pass_free(&w->pass);
    w->pass.out.n_metrics = 3; /* of a pass before: nothing of it stays */
    run(t, &w, 1);
    assert_int_equal(w->pass.err.code, code);
    assert_string_equal(w->pass.err.message, message);
    assert_int_equal(w->pass.out.n_metrics, 0);
    assert_int_equal(fake.n_ran, 0);
}

TEST(a_faulty_pass_is_refused)
{
    tinkc_error err = { 0 };
    tke_trainer *t = trainer_of(1 << 30, 0);
    tke_adapter *a = adapter_of(2, 7);
    work *w = work_of(1, NULL, true, "cross_entropy", 2, 1);
    refuses(t, w, TINKC_E_BAD_REQUEST, "a backward pass needs an adapter");
    tke_model *twin = tke_model_open(folder, &err);
    tke_adapter *other = tke_adapter_new(device, twin, &(tke_adapter_spec){ .rank = 1, .train = 7 }, &err);
    w->pass.adapter = other;
    refuses(t, w, TINKC_E_STATE, "the adapter belongs to another model");
    w->pass.adapter = a;
    w->data[1].n = CONTEXT + 1;
    refuses(t, w, TINKC_E_BAD_REQUEST, "PromptTooLong: datum 1 has 257 tokens, the context is 256");
    w->data[1].n = 5;
    w->examples[1].tokens[4] = VOCAB;
    refuses(t, w, TINKC_E_BAD_REQUEST, "datum 1: token 101 at 4 is outside the vocabulary of 101");
    w->examples[1].tokens[4] = -1;
    refuses(t, w, TINKC_E_BAD_REQUEST, "datum 1: token -1 at 4 is outside the vocabulary of 101");
    w->examples[1].tokens[4] = VOCAB - 1;
    w->examples[1].weights[3] = 1;
    w->examples[1].targets[3] = VOCAB;
    refuses(t, w, TINKC_E_BAD_REQUEST, "datum 1: target 101 at 3 is outside the vocabulary of 101");
    w->examples[1].targets[3] = -1;
    refuses(t, w, TINKC_E_BAD_REQUEST, "datum 1: target -1 at 3 is outside the vocabulary of 101");
    w->examples[1].targets[3] = VOCAB - 1;
    tke_pass_free(&w->pass);
    run(t, &w, 1);
    assert_string_equal(w->pass.err.message, "");
    work_free(w);
    work *rl = work_of(1, a, true, "ppo", 1, 1);
    rl->data[0].n = 3;
    fake.n_ran = 0;
    rl->examples[0].targets[1] = -5;
    for (int i = 0; i < 2; i++) { /* any advantage carries gradient, and 1 does */
        rl->examples[0].advantages[1] = i ? 1 : -0.5f;
        refuses(t, rl, TINKC_E_BAD_REQUEST, "datum 0: target -5 at 1 is outside the vocabulary of 101");
    }
    work_free(rl);
    tke_adapter_free(other);
    tke_model_drop(twin);
    tke_adapter_free(a);
    tke_trainer_free(t);
}

/* ---- the optimizer ---- */

/* Two steps against AdamW in double, with a clipped and with an unclipped gradient; every metric. */
TEST(a_step_is_adamw)
{
    tinkc_error err = { 0 };
    tke_adapter *a = adapter_of(2, 7);
    size_t n = tke_adapter_lora(a)->layout->n_floats, count;
    double *m = zeros(a), *v = zeros(a), *x = zeros(a);
    tke_adam_params how = { 1e-2, 0.8, 0.9, 1e-6, 0.1, 0 };
    tke_metric metrics[TKE_MAX_METRICS];
    uint64_t r = 3;
    for (size_t i = 0; i < n; i++)
        x[i] = (double)adapter_weights(a)[i];
    for (int t = 1; t <= 4; t++) {
        how.eps = t == 4 ? 0.25 : 1e-6; /* where it counts */
        double norm = 0, moved = 0, after = 0;
        tke_real *g = block_of(a->grads);
        for (size_t i = 0; i < n; i++) {
            g[i] = tiny_normal(&r);
            norm += (double)g[i] * (double)g[i];
        }
        norm = sqrt(norm);
        how.grad_clip_norm = t == 1 ? 0 : t == 2 ? 0.5 : norm * 2;
        double clip = t == 2 ? how.grad_clip_norm / (norm + 1e-6) : 1;
        for (size_t i = 0; i < n; i++) {
            double gi = (double)g[i] * clip, old = x[i];
            x[i] -= how.learning_rate * how.weight_decay * x[i];
            m[i] = how.beta1 * m[i] + (1 - how.beta1) * gi;
            v[i] = how.beta2 * v[i] + (1 - how.beta2) * gi * gi;
            double mh = m[i] / (1 - pow(how.beta1, t)), vh = v[i] / (1 - pow(how.beta2, t));
            x[i] -= how.learning_rate * mh / (sqrt(vh) + how.eps);
            moved += (x[i] - old) * (x[i] - old);
            after += x[i] * x[i];
        }
        a->n_fwdbwd = 3;
        a->n_tokens = 40;
        a->n_failed = t == 3 ? 2 : 0;
        assert_true(tke_optim_step(a, &how, metrics, &count, &err));
        const tke_metric want[] = {
            { "optim/grad_norm", norm }, { "optim/clip_coef", clip },         { "optim/learning_rate", 1e-2 },
            { "optim/step", t },         { "optim/param_norm", sqrt(after) }, { "optim/update_norm", sqrt(moved) },
            { "optim/num_fwdbwd", 3 },   { "optim/num_tokens", 40 },          { "failed_fwdbwd_since_last_step", 2 }
        };
        assert_int_equal(count, t == 3 ? 9 : 8);
        for (size_t i = 0; i < count; i++) {
            assert_string_equal(metrics[i].name, want[i].name);
            near(metrics[i].value, want[i].value);
        }
        for (size_t i = 0; i < n; i++)
            near((double)adapter_weights(a)[i], x[i]);
        assert_true(a->n_fwdbwd == 0 && a->n_tokens == 0 && a->n_failed == 0 && a->step == t);
        for (size_t i = 0; i < n; i++)
            assert_true(adapter_grads(a)[i] == 0);
    }
    tke_real *g = block_of(a->grads);
    g[5] = INFINITY; /* dropped: the next step finds none of it */
    a->n_failed = 7;
    assert_false(tke_optim_step(a, &how, metrics, &count, &err));
    assert_int_equal(err.code, TINKC_E_SERVER);
    assert_string_equal(err.message, "the accumulated gradient is not finite; it was dropped, nothing changed");
    assert_true(adapter_grads(a)[5] == 0 && a->n_failed == 0 && a->step == 4 && count == 0);
    test_free(m);
    test_free(v);
    test_free(x);
    tke_adapter_free(a);
}

/* Steps that fail change nothing, except that a step whose numbers are made is counted; the gradient is kept for
 * the next. A gradient as small as its guard against division by zero is clipped by it. */
TEST(a_failed_step_changes_nothing)
{
    tke_adapter *a = adapter_of(2, 7);
    tke_trainer *t = trainer_of(1 << 30, 0); /* nothing fails yet */
    size_t n = tke_adapter_lora(a)->layout->n_floats, count = 9;
    tke_adam_params how = { 1e-2, 0.8, 0.9, 1e-6, 0.1, 0 };
    tke_metric metrics[TKE_MAX_METRICS];
    float *before = test_malloc(n * sizeof *before);
    memcpy(before, adapter_weights(a), n * sizeof *before);
    block_of(a->grads)[3] = 1e-6f;
    a->n_fwdbwd = 2;
    for (int i = 0; i < 4; i++) {
        static const char *const messages[] = { "", "beta1 must be at least 0 and below 1", "the sum fails",
                                                "the step fails" };
        tinkc_error err = { .code = i == 0 ? TINKC_E_STATE : 0 };
        how.beta1 = i == 1 ? 1 : 0.8;
        fake.fail_squares = i == 2;
        fake.fail_adam = i == 3;
        assert_false(tke_optim_step(a, &how, metrics, &count, &err));
        assert_string_equal(err.message, messages[i]);
        assert_int_equal(count, 0);
        assert_memory_equal(adapter_weights(a), before, n * sizeof *before);
        assert_true(a->step == 0 && a->n_fwdbwd == 2 && adapter_grads(a)[3] == 1e-6f);
    }
    fake.fail_adam = false;
    tinkc_error err = { 0 };
    how.grad_clip_norm = 1e-6;
    assert_true(tke_optim_step(a, &how, metrics, &count, &err));
    near(metrics[1].value, 0.5); /* 1e-6 / (1e-6 + 1e-6) */
    fake.fail_squares = 2;       /* the norm of the weights, after the step */
    assert_false(tke_optim_step(a, &how, metrics, &count, &err));
    assert_string_equal(err.message, "the sum fails");
    assert_true(a->step == 2 && count == 0);
    err = (tinkc_error){ 0 };
    how.learning_rate = 1e300; /* no number of it fits */
    block_of(a->grads)[3] = 1;
    memcpy(before, adapter_weights(a), n * sizeof *before);
    assert_false(tke_optim_step(a, &how, metrics, &count, &err));
    assert_int_equal(err.code, TINKC_E_BAD_REQUEST);
    assert_non_null(strstr(err.message, "the step would make weights that are not finite "
                                        "(learning_rate 1e+300, gradient norm 1)"));
    assert_memory_equal(adapter_weights(a), before, n * sizeof *before);
    assert_true(a->step == 2 && adapter_grads(a)[3] == 1);
    test_free(before);
    tke_trainer_free(t);
    tke_adapter_free(a);
}

/* Each number at its limit and just outside. */
TEST(limits_of_steps)
{
    const tke_adam_params good = { 0, 0, 0, 1e-300, 0, 0 };
    static const struct {
        size_t field;
        double bad, last;
        const char *message;
    } cases[] = { { 0, -1e-9, 1e300, "learning_rate must be a number of at least 0" },
                  { 1, -1e-9, 0.9999999, "beta1 must be at least 0 and below 1" },
                  { 1, 1, 0, "beta1 must be at least 0 and below 1" },
                  { 2, -1e-9, 0.9999999, "beta2 must be at least 0 and below 1" },
                  { 2, 1, 0, "beta2 must be at least 0 and below 1" },
                  { 3, 0, 1e300, "eps must be a number above 0" },
                  { 4, -1e-9, 1e300, "weight_decay must be a number of at least 0" },
                  { 5, -1e-9, 1e300, "grad_clip_norm must be a number of at least 0" } };
    tinkc_error err = { 0 };
    assert_true(tke_adam_check(&good, &err));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double fields[6], bad[4] = { cases[i].bad, NAN, INFINITY, -INFINITY };
        tke_adam_params p;
        memcpy(fields, &good, sizeof fields);
        for (int k = 0; k < 4; k++) {
            err = (tinkc_error){ 0 };
            fields[cases[i].field] = bad[k];
            memcpy(&p, fields, sizeof p);
            assert_false(tke_adam_check(&p, &err));
            assert_int_equal(err.code, TINKC_E_BAD_REQUEST);
            assert_string_equal(err.message, cases[i].message);
        }
        err = (tinkc_error){ 0 };
        fields[cases[i].field] = cases[i].last;
        memcpy(&p, fields, sizeof p);
        assert_true(tke_adam_check(&p, &err));
    }
}

RUN_TESTS(setup, teardown)
