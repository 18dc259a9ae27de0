/* test_double_golden.c - the fast engine against the same maths in double, for any checkout.
 *
 * Linked with the maths in double. Makes a tiny model of each family, computes golden numbers in
 * the form that golden_check reads, and runs golden_check (the ordinary engine, best kernels) on
 * them.
 */
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/engine/on_device.h"
#include "support/engine/tiny_model.h"
#include "support/test_case.h"
#include "train/training.h"

enum { BATCH = 3, LENGTH = 24, VOCAB = 101, MORE = 12, RANK = 4, MAX_TENSORS = 512 };

typedef struct maker {
    char *folder;
    tke_model *model;
    tke_trainer *trainer;
    tke_device *device;
    tke_device_model *loaded;
    tkc_arena arena;
    tke_file_tensor tensors[MAX_TENSORS];
    size_t n;
    int32_t ids[BATCH * LENGTH];
    int64_t targets[BATCH * LENGTH], all[(LENGTH + MORE) * VOCAB];
    float weights[BATCH * LENGTH], q[BATCH * LENGTH], advantages[BATCH * LENGTH];
    double losses[4], norms[2];
    uint64_t random;
    tinkc_error err;
} maker;

static const char *const losses[4] = { "cross_entropy", "importance_sampling", "ppo", "cispo" };
static char *programs; /* the folder this test and golden_check lie in */

static void add(maker *m, const char *name, int dtype, const void *data, size_t d0, size_t d1)
{
    tke_file_tensor *t = &m->tensors[m->n++];
    assert_true(m->n < MAX_TENSORS);
    *t = (tke_file_tensor){ .dtype = dtype, .n_dims = 2 };
    t->dims[0] = (int64_t)d0;
    t->dims[1] = (int64_t)d1;
    t->n_bytes = d0 * d1 * tke_file_dtype_size(dtype);
    t->name = tkc_arena_cstr(&m->arena, name, &m->err);
    unsigned char *copy = tkc_arena_alloc(&m->arena, t->n_bytes, &m->err);
    memcpy(copy, data, t->n_bytes);
    t->data = copy;
}

/* Doubles go into the file as F32. */
static void add_reals(maker *m, const char *name, const tke_real *data, size_t d0, size_t d1)
{
    float *narrow = tkc_arena_alloc(&m->arena, d0 * d1 * sizeof *narrow, &m->err);
    for (size_t i = 0; i < d0 * d1; i++)
        narrow[i] = (float)data[i];
    add(m, name, TKE_FILE_F32, narrow, d0, d1);
}

/* Every tensor of a block, named as in adapter files. */
static void add_block(maker *m, const char *prefix, const tke_lora_layout *l, const tke_real *block)
{
    tke_tensor_ref ref;
    for (size_t place = 0; tke_layout_next(l, &place, &ref);) {
        char name[160];
        snprintf(name, sizeof name, "%sbase_model.model.%s.lora_%c.weight", prefix, ref.weight->path, "AB"[ref.is_b]);
        add_reals(m, name, block + ref.offset, ref.count / ref.cols, ref.cols);
    }
}

static tke_adapter *adapter_of(maker *m)
{
    tke_adapter_spec spec = { .rank = RANK, .train = TKE_TRAIN_ATTN | TKE_TRAIN_MLP, .seed = 3 };
    tke_adapter *a = tke_adapter_new(m->device, m->model, &spec, &m->err);
    uint64_t random = 17;
    assert_non_null(a);
    for (size_t i = 0; i < tke_adapter_lora(a)->layout->n_floats; i++) {
        tke_real *x = &adapter_weights(a)[i];
        *x = (tke_real)(float)(*x + (tke_real)(0.05f * tiny_normal(&random)));
    }
    return a;
}

static tke_pass run(maker *m, tke_adapter *a, const char *loss, bool backward, const tke_datum *d, size_t n)
{
    tke_loss_key keys[2] = { { tkc_str("clip_low_threshold"), 0.8 }, { tkc_str("clip_high_threshold"), 1.2 } };
    tke_pass p = { .adapter = a, .backward = backward, .data = d, .n_data = n }, *list[1] = { &p };
    bool clips = strcmp(loss, "ppo") == 0 || strcmp(loss, "cispo") == 0;
    assert_true(tke_loss_parse(&p.loss, tkc_str(loss), keys, clips ? 2 : 0, false, &m->err));
    tke_trainer_run(m->trainer, list, 1);
    if (p.err.code)
        fail_msg("%s", p.err.message);
    return p;
}

static void make_data(maker *m, tke_datum *data, bool rl)
{
    for (size_t b = 0; b < BATCH; b++) {
        data[b] = (tke_datum){ .tokens = m->ids + b * LENGTH, .n = LENGTH, .k = 1, .targets = m->targets + b * LENGTH };
        if (rl) {
            data[b].logprobs = m->q + b * LENGTH;
            data[b].advantages = m->advantages + b * LENGTH;
        } else {
            data[b].weights = m->weights + b * LENGTH;
        }
    }
}

/* Log-probs of the whole vocabulary serve as logits: the comparison normalises them anyway. */
static void add_logits(maker *m, const char *name, tke_adapter *a)
{
    float *out = tkc_arena_alloc(&m->arena, sizeof(float) * BATCH * LENGTH * VOCAB, &m->err);
    for (size_t b = 0; b < BATCH; b++) {
        tke_datum d = { .tokens = m->ids + b * LENGTH, .n = LENGTH, .k = VOCAB, .targets = m->all };
        tke_pass p = run(m, a, "cross_entropy", false, &d, 1);
        memcpy(out + b * LENGTH * VOCAB, p.out.logprobs, sizeof(float) * LENGTH * VOCAB);
        tke_pass_free(&p);
    }
    add(m, name, TKE_FILE_F32, out, BATCH * LENGTH, VOCAB);
}

static void add_gradients(maker *m)
{
    tke_datum data[BATCH];
    for (int i = 0; i < 4; i++) {
        char prefix[64];
        tke_adapter *a = adapter_of(m);
        make_data(m, data, i > 0);
        tke_pass p = run(m, a, losses[i], true, data, BATCH);
        if (i == 0) {
            add(m, "logprobs", TKE_FILE_F32, p.out.logprobs, BATCH, LENGTH);
            for (size_t k = 0; k < BATCH * LENGTH; k++)
                m->q[k] = p.out.logprobs[k] + 0.3f * tiny_normal(&m->random);
            add_block(m, "init/", tke_adapter_lora(a)->layout, adapter_weights(a));
        }
        m->losses[i] = p.out.metrics[0].value;
        snprintf(prefix, sizeof prefix, "grad/%s/", losses[i]);
        add_block(m, prefix, tke_adapter_lora(a)->layout, adapter_grads(a));
        tke_pass_free(&p);
        tke_adapter_free(a);
    }
}

static void add_steps(maker *m)
{
    tke_adapter *a = adapter_of(m);
    tke_adam_params adam = { 0.01, 0.9, 0.95, 1e-12, 0.1, 1.0 };
    tke_datum data[BATCH];
    make_data(m, data, false);
    for (int step = 0; step < 2; step++) {
        tke_metric metrics[TKE_MAX_METRICS];
        size_t n;
        tke_pass p = run(m, a, "cross_entropy", true, data, BATCH);
        tke_pass_free(&p);
        assert_true(tke_optim_step(a, &adam, metrics, &n, &m->err));
        m->norms[step] = metrics[0].value;
        add_block(m, step ? "adam2/" : "adam1/", tke_adapter_lora(a)->layout, adapter_weights(a));
    }
    tke_adapter_free(a);
}

static void add_greedy(maker *m)
{
    int32_t tokens[LENGTH + MORE];
    tke_adapter *a = adapter_of(m);
    memcpy(tokens, m->ids, LENGTH * sizeof *tokens);
    for (size_t n = LENGTH; n < LENGTH + MORE; n++) {
        tke_datum d = { .tokens = tokens, .n = n, .k = VOCAB, .targets = m->all };
        tke_pass p = run(m, a, "cross_entropy", false, &d, 1);
        const float *last = p.out.logprobs + (n - 1) * VOCAB;
        tokens[n] = 0;
        for (int32_t t = 1; t < VOCAB; t++)
            if (last[t] > last[tokens[n]])
                tokens[n] = t;
        tke_pass_free(&p);
    }
    add(m, "greedy", TKE_FILE_I32, tokens, 1, LENGTH + MORE);
    tke_adapter_free(a);
}

static void write_json(const maker *m)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"alpha\": 32, \"r\": %d, \"clip_low_threshold\": 0.8, \"clip_high_threshold\": 1.2, "
             "\"losses\": {\"cross_entropy\": %.17g, \"importance_sampling\": %.17g, \"ppo\": %.17g, "
             "\"cispo\": %.17g}, \"adam\": {\"learning_rate\": 0.01, \"beta1\": 0.9, \"beta2\": 0.95, "
             "\"eps\": 1e-12, \"weight_decay\": 0.1, \"grad_clip_norm\": 1.0, "
             "\"grad_norms\": [%.17g, %.17g]}}",
             RANK, m->losses[0], m->losses[1], m->losses[2], m->losses[3], m->norms[0], m->norms[1]);
    tiny_write(m->folder, "golden.json", text);
}

static void make_inputs(maker *m)
{
    for (size_t i = 0; i < BATCH * LENGTH; i++) {
        m->ids[i] = (int32_t)(tiny_random(&m->random) % VOCAB);
        m->targets[i] = (int64_t)(tiny_random(&m->random) % VOCAB);
        m->weights[i] = tiny_random(&m->random) % 3 ? tiny_normal(&m->random) : 0;
        m->advantages[i] = tiny_normal(&m->random);
    }
    for (size_t i = 0; i < (LENGTH + MORE) * VOCAB; i++)
        m->all[i] = (int64_t)(i % VOCAB);
}

static int golden_check(const char *folder)
{
    char program[1024];
    snprintf(program, sizeof program, "%s/golden_check", programs);
    pid_t child = fork();
    if (child == 0) {
        execl(program, program, folder, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void check_family(const tiny_model *t)
{
    maker *m = test_calloc(1, sizeof *m);
    char path[512];
    m->random = t->seed;
    tkc_arena_init(&m->arena, NULL, 0);
    m->folder = tiny_model_make(t);
    m->device = device_cpu(1); /* in double there is the reference only */
    m->model = tke_model_open(m->folder, &m->err);
    assert_string_equal(m->err.message, "");
    m->loaded = device_load(m->device, m->model);
    m->trainer = tke_trainer_new(m->loaded, &(tke_trainer_options){ 0 }, &m->err);
    make_inputs(m);
    tke_adapter *a = adapter_of(m);
    add_logits(m, "base_logits", NULL);
    add_logits(m, "lora_logits", a);
    tke_adapter_free(a);
    add_gradients(m);
    add_steps(m);
    add_greedy(m);
    add(m, "input_ids", TKE_FILE_I32, m->ids, BATCH, LENGTH);
    add(m, "target_tokens", TKE_FILE_I64, m->targets, BATCH, LENGTH);
    add(m, "weights", TKE_FILE_F32, m->weights, BATCH, LENGTH);
    add(m, "advantages", TKE_FILE_F32, m->advantages, BATCH, LENGTH);
    add(m, "sampling_logprobs", TKE_FILE_F32, m->q, BATCH, LENGTH);
    snprintf(path, sizeof path, "%s/golden.safetensors", m->folder);
    assert_true(tke_tensor_file_write(path, m->tensors, m->n, NULL, 0644, &m->err));
    write_json(m);
    assert_int_equal(golden_check(m->folder), 0);
    tke_trainer_free(m->trainer);
    device_unload(m->loaded);
    tke_model_drop(m->model);
    tke_device_close(m->device);
    tkc_arena_free(&m->arena);
    tiny_model_remove(m->folder);
    test_free(m);
}

TEST(llama_agrees_with_its_reference)
{
    check_family(&(tiny_model){ .family = "llama",
                                .seed = 21,
                                .dtype = "BF16",
                                .rope = "\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, "
                                        "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 256" });
}

TEST(qwen2_agrees_with_its_reference)
{
    check_family(&(tiny_model){ .family = "qwen2", .seed = 22, .tied = true, .dtype = "F16" });
}

TEST(qwen3_agrees_with_its_reference)
{
    check_family(&(tiny_model){ .family = "qwen3", .seed = 23, .hidden = 40, .shards = true });
}

TEST(qwen3_moe_agrees_with_its_reference)
{
    check_family(&(tiny_model){ .family = "qwen3_moe", .seed = 24, .dtype = "BF16" });
}

TEST(gpt_oss_agrees_with_its_reference)
{
    check_family(&(tiny_model){ .family = "gpt_oss", .seed = 25, .mxfp4 = true, .dtype = "BF16" });
}

TEST(qwen3_5_agrees_with_its_reference)
{
    check_family(&(tiny_model){ .family = "qwen3_5_text", .seed = 26, .layers = 3 });
}

TEST(nemotron_h_agrees_with_its_reference)
{
    check_family(&(tiny_model){ .family = "nemotron_h", .seed = 27, .layers = 5 });
}

int main(int argc, char **argv)
{
    (void)argc;
    programs = argv[0];
    char *slash = strrchr(programs, '/');
    if (slash)
        *slash = '\0';
    return test_cases_run(NULL, NULL);
}
