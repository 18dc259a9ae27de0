/* test_maths_memory.c - the n-th allocation of training, sampling, adapter files or an export fails,
 * for n = 1, 2, 3, ...: malloc, aligned blocks and pages (the linker puts ours in their place). The
 * call says TINKC_E_MEMORY, leaves nothing behind, and once memory is there gives the usual bits. */
#include <errno.h>
#include <math.h>
#include <sys/mman.h>

#include "base/file.h"
#include "infer/infer.h"
#include "support/engine/tiny_world.h"
#include "support/test_case.h"
#include "tinkc/engine.h"
#include "train/training.h"

void *__real_malloc(size_t);
void *__real_calloc(size_t, size_t);
void *__real_realloc(void *, size_t);
int __real_posix_memalign(void **, size_t, size_t);
void *__real_mmap(void *, size_t, int, int, int, off_t);
void __real_free(void *);
void *__wrap_malloc(size_t);
void *__wrap_calloc(size_t, size_t);
void *__wrap_realloc(void *, size_t);
int __wrap_posix_memalign(void **, size_t, size_t);
void *__wrap_mmap(void *, size_t, int, int, int, off_t);
void __wrap_free(void *);
int __wrap_fsync(int);

static _Thread_local bool counting;
static _Thread_local long countdown, live; /* countdown 0 = never */

static bool fails(void)
{
    return counting && countdown > 0 && --countdown == 0;
}

static void *counted(void *p)
{
    live += counting && p;
    return p;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : counted(__real_malloc(n));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : counted(__real_calloc(n, size));
}

void *__wrap_realloc(void *p, size_t n)
{
    if (fails())
        return NULL;
    return p ? __real_realloc(p, n) : counted(__real_realloc(NULL, n));
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t n)
{
    if (fails())
        return ENOMEM;
    int rc = __real_posix_memalign(out, alignment, n);
    live += counting && rc == 0;
    return rc;
}

void *__wrap_mmap(void *at, size_t n, int rights, int flags, int fd, off_t offset)
{
    return fd < 0 && fails() ? MAP_FAILED : __real_mmap(at, n, rights, flags, fd, offset);
}

void __wrap_free(void *p)
{
    live -= counting && p;
    __real_free(p);
}

int __wrap_fsync(int fd) /* what is written is read again at once, and disks are slow */
{
    (void)fd;
    return 0;
}

/* ---- the world ---- */

enum { VOCAB = 101, LEN = 20, N_DATA = 2 };

static tiny_world w;
static int32_t tokens[LEN + 4];
static int64_t targets[LEN];
static float numbers[LEN], ones[LEN];

static int setup(void **state)
{
    uint64_t r = 3;
    (void)state;
    w = tiny_world_open(&(tiny_model){ .family = "qwen3", .tied = true, .shards = true }, 1);
    tiny_write(w.folder, "tokenizer.json",
               "{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", "
               "\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [[\"a\", \"b\"]]}}");
    for (size_t i = 0; i < LEN + 4; i++)
        tokens[i] = (int32_t)(tiny_random(&r) % VOCAB);
    for (size_t i = 0; i < LEN; i++) {
        targets[i] = tokens[i + 1];
        numbers[i] = -1 - 0.1f * tiny_normal(&r);
        ones[i] = 1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tiny_world_close(&w);
    return 0;
}

static tke_adapter *adapter_of(int32_t rank, tinkc_error *err)
{
    return tke_adapter_new(w.device, w.model, &(tke_adapter_spec){ .rank = rank, .train = 7 }, err);
}

/* Runs it with every allocation failing in turn, until none of them is left to fail. */
static void every_allocation(bool (*run)(tinkc_error *), void (*check)(bool done))
{
    for (long n = 1; n < 100000; n++) {
        tinkc_error err = { 0 };
        size_t pages = tkc_pages_held();
        live = 0;
        countdown = n;
        counting = true;
        bool done = run(&err);
        counting = false;
        bool spent = countdown == 0;
        countdown = 0;
        if (spent && (done || err.code != TINKC_E_MEMORY))
            fail_msg("allocation %ld: %s %d '%s'", n, done ? "done" : "failed", err.code, err.message);
        if (live != 0 || tkc_pages_held() != pages)
            fail_msg("allocation %ld: %ld blocks are left", n, live);
        if (check)
            check(done);
        if (!spent) {
            assert_string_equal(err.message, "");
            assert_true(done);
            assert_true(n > 5);
            return;
        }
    }
}

/* ---- training ---- */

static tke_adapter *trained;

/* Two passes and a step; a failing part leaves the adapter as it is. */
static bool train(tinkc_error *err)
{
    tke_datum data[N_DATA] = {
        { .tokens = tokens, .n = LEN, .k = 1, .targets = targets, .logprobs = numbers, .advantages = ones },
        { .tokens = tokens, .n = 7, .k = 1, .targets = targets, .logprobs = numbers, .advantages = ones }
    };
    tke_pass p[2] = { { .adapter = trained, .backward = true, .data = data, .n_data = N_DATA },
                      { .adapter = trained, .backward = true, .data = data, .n_data = 1 } };
    tke_pass *list[2] = { &p[0], &p[1] };
    tke_trainer *t = tke_trainer_new(w.loaded, &(tke_trainer_options){ .memory_bytes = 16 << 20 }, err);
    if (!t)
        return false;
    for (int i = 0; i < 2; i++)
        tke_loss_parse(&p[i].loss, tkc_str(i ? "gspo" : "ppo"), NULL, 0, false, err);
    tke_trainer_run(t, list, 2);
    for (int i = 0; i < 2; i++) {
        if (p[i].err.code && !err->code)
            *err = p[i].err;
        tke_pass_free(&p[i]);
    }
    tke_trainer_free(t);
    return !err->code;
}

static void unchanged(bool done)
{
    double sum = 0;
    for (size_t i = 0; i < tke_adapter_lora(trained)->layout->n_floats; i++)
        sum += fabs((double)adapter_grads(trained)[i]);
    if (done)
        assert_true(sum > 0);
}

static bool make_adapter(tinkc_error *err)
{
    trained = adapter_of(2, err);
    bool done = trained && train(err);
    if (done)
        unchanged(true);
    tke_adapter_free(trained);
    return done;
}

TEST(training_survives_every_failed_allocation)
{
    every_allocation(make_adapter, NULL);
}

/* ---- sampling ---- */

static size_t letter(void *user, int32_t token, const char **bytes)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
    (void)user;
    *bytes = &letters[token % 26];
    return 1;
}

static tke_snapshot *snapshot;
static int32_t drawn[3][8];

/* A request with everything that a request can ask for. */
static bool sample(tinkc_error *err)
{
    int32_t scored[(LEN - 1) * 2];
    tinkc_str stops[2] = { { "nothing like it", 15 }, { "zq", 2 } };
    for (size_t i = 0; i < (LEN - 1) * 2; i++)
        scored[i] = (int32_t)(i % VOCAB);
    tke_gen_request r = { .snapshot = snapshot,
                          .prompt = tokens,
                          .n_prompt = LEN,
                          .n_samples = 3,
                          .max_tokens = 8,
                          .rule = { .temperature = 1, .top_p = 1 },
                          .seed = 5,
                          .stop_tokens = tokens,
                          .stop_strings = stops,
                          .n_stop_strings = 2,
                          .token_bytes = letter,
                          .prompt_logprobs = true,
                          .topk_prompt_logprobs = 2,
                          .target_tokens = scored,
                          .n_targets = 2,
                          .n_alternatives = 2,
                          .topk_sample_logprobs = 2 };
    tke_infer *e = tke_infer_new(
        w.loaded, &(tke_infer_options){ .kv_bytes = 1 << 20, .prefill_chunk = 16, .max_running = 4 }, err);
    if (!e)
        return false;
    tke_gen *g = tke_infer_add(e, &r, err);
    while (g && tke_infer_step(e))
        ;
    if (g && tke_gen_error(g)->code)
        *err = *tke_gen_error(g);
    bool done = g && !err->code;
    for (size_t i = 0; done && i < 3; i++)
        memcpy(drawn[i], tke_gen_sequence(g, i).tokens, tke_gen_sequence(g, i).n * sizeof(int32_t));
    tke_gen_free(g);
    tke_infer_stats s = tke_infer_get_stats(e);
    if (s.n_free + s.n_cached != s.n_blocks || s.n_running || s.n_waiting)
        tkc_fail(err, TINKC_E_STATE, "blocks are lost");
    tke_infer_free(e);
    return done;
}

TEST(sampling_survives_every_failed_allocation)
{
    tinkc_error err = { 0 };
    int32_t usual[3][8];
    tke_adapter *a = adapter_of(3, &err);
    snapshot = tke_snapshot_take(a, &err);
    assert_true(sample(&err));
    memcpy(usual, drawn, sizeof usual);
    memset(drawn, 0, sizeof drawn);
    every_allocation(sample, NULL);
    assert_memory_equal(usual, drawn, sizeof usual);
    tke_snapshot_drop(snapshot);
    tke_adapter_free(a);
}

/* ---- files ---- */

static char *saved;

/* Saves a state, reads it back in every way. */
static bool files(tinkc_error *err)
{
    static const tke_adapter_save how = { .base_name = "t", .dtype = TKE_BF16 };
    tke_adapter *a = adapter_of(2, err);
    tke_state *s = a ? tke_state_take(a, err) : NULL;
    tke_snapshot *from = NULL, *to = NULL;
    tke_adapter_spec spec;
    bool done = s && tke_state_write(s, saved, &how, err) && tke_adapter_load(a, saved, true, err) &&
                tke_adapter_check(w.model, saved, err) && (from = tke_snapshot_take(a, err)) &&
                tke_snapshot_write(from, saved, &how, err) && (to = tke_snapshot_read(w.device, w.model, saved, err)) &&
                tke_adapter_convert(w.model, saved, saved, 1, &how, &spec, err);
    tke_snapshot_drop(to);
    tke_snapshot_drop(from);
    tke_state_free(s);
    tke_adapter_free(a);
    return done;
}

TEST(files_survive_every_failed_allocation)
{
    saved = tiny_folder();
    every_allocation(files, NULL);
    tiny_model_remove(saved);
}

/* ---- exports ---- */

static char target[512];
static int32_t format;

static bool export(tinkc_error *err)
{
    tinkc_adapter_options o = { .adapter = saved, .base_model = w.folder, .target = target, .format = format };
    o.drop_unembed = format == TINKC_ADAPTER_GGUF_LORA; /* the model's is its embedding */
    return tinkc_adapter_export(&o, NULL, NULL, err);
}

static void nothing_left(bool done)
{
    tinkc_error err = { 0 };
    assert_int_equal(tkc_is_dir(target) || tkc_is_file(target), done);
    if (done)
        tkc_remove_tree(target, &err);
}

TEST(exports_survive_every_failed_allocation)
{
    tinkc_error err = { 0 };
    tke_adapter *a = adapter_of(2, &err);
    tke_snapshot *s = tke_snapshot_take(a, &err);
    char *room = tiny_folder();
    saved = tiny_folder();
    snprintf(target, sizeof target, "%s/out", room);
    assert_true(tke_snapshot_write(s, saved, &(tke_adapter_save){ .base_name = "t" }, &err));
    for (format = TINKC_ADAPTER_PEFT; format <= TINKC_ADAPTER_GGUF_LORA; format++)
        every_allocation(export, nothing_left);
    tke_snapshot_drop(s);
    tke_adapter_free(a);
    tiny_model_remove(saved);
    tiny_model_remove(room);
}

RUN_TESTS(setup, teardown)
