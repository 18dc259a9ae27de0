/* test_adapter_files.c - folders of adapters: what adapter_config.json may say, names of tensors, the
 * optimizer's file, and every way in which one of them can be wrong. */
#include <math.h>
#include <sys/stat.h>

#include "base/str.h"
#include "base/file.h"
#include "support/engine/on_device.h"
#include "support/engine/tiny_model.h"
#include "support/test_case.h"
#include "tinkc/engine.h"

static char *folder;
static tke_model *model;
static tke_device *device;

static int setup(void **state)
{
    tinkc_error err = { 0 };
    (void)state;
    folder = tiny_model_make(&(tiny_model){ .family = "qwen3", .tied = true, .layers = 1 });
    model = tke_model_open(folder, &err);
    device = device_cpu(1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tke_device_close(device);
    tke_model_drop(model);
    tiny_model_remove(folder);
    return 0;
}

static tke_adapter *adapter_of(int32_t rank, uint32_t train, double alpha, uint64_t seed)
{
    tinkc_error err = { 0 };
    uint64_t r = seed;
    tke_adapter *a = tke_adapter_new(
        device, model, &(tke_adapter_spec){ .rank = rank, .train = train, .alpha = alpha, .seed = seed }, &err);
    assert_non_null(a);
    tke_tensor_ref ref;
    for (size_t at = 0; tke_layout_next(a->layout, &at, &ref);)
        for (size_t i = 0; i < ref.rows * ref.cols; i++)
            adapter_weights(a)[ref.offset + i] = tiny_normal(&r);
    return a;
}

static char *save(const tke_adapter *a, int32_t names, int32_t dtype)
{
    tinkc_error err = { 0 };
    char *to = tiny_folder();
    tke_snapshot *s = tke_snapshot_take(a, &err);
    assert_true(
        tke_snapshot_write(s, to, &(tke_adapter_save){ .base_name = "t", .names = names, .dtype = dtype }, &err));
    tke_snapshot_drop(s);
    return to;
}

static size_t n_floats(const tke_adapter *a)
{
    return tke_adapter_lora(a)->layout->n_floats;
}

static char *text_of(const char *from, const char *name)
{
    static char text[4096];
    char path[512];
    snprintf(path, sizeof path, "%s/%s", from, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    return text;
}

/* ---- adapter_config.json ---- */

static void probe(const char *from, const char *config, tke_adapter_spec *out, tinkc_error *err)
{
    *err = (tinkc_error){ 0 };
    tiny_write(from, "adapter_config.json", config);
    tke_adapter_probe(model, from, out, err);
}

TEST(configs_that_are_taken)
{
    static const struct {
        const char *json;
        int32_t rank;
        double alpha;
    } cases[] = {
        { "{\"r\":4,\"lora_alpha\":8}", 4, 8 },
        { "{\"r\":4,\"lora_alpha\":0.5}", 4, 0.5 },
        { "{\"r\":4.0,\"lora_alpha\":8}", 4, 8 },
        { "{\"r\":1,\"lora_alpha\":1}", 1, 1 },
        { "{\"r\":65536,\"lora_alpha\":999999999}", 65536, 999999999 },
        { "{\"r\":4,\"lora_alpha\":8,\"use_rslora\":true}", 4, 16 }, /* alpha / sqrt(r) */
        { "{\"r\":4,\"lora_alpha\":8,\"use_rslora\":false}", 4, 8 },
        { "{\"r\":4,\"lora_alpha\":8,\"use_rslora\":null}", 4, 8 },
        { "{\"r\":4,\"lora_alpha\":8,\"peft_type\":\"lora\",\"bias\":\"None\"}", 4, 8 },
        { "{\"r\":4,\"lora_alpha\":8,\"peft_type\":null,\"bias\":null,\"use_dora\":false,\"rank_"
          "pattern\":{},\"modules_to_save\":[],\"alpha_pattern\":null,\"unknown\":[1,2]}",
          4, 8 },
    };
    tke_adapter *a = adapter_of(4, 7, 0, 1);
    char *from = save(a, 0, TKE_F32);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tinkc_error err;
        tke_adapter_spec spec = { 0 };
        probe(from, cases[i].json, &spec, &err);
        assert_string_equal(err.message, "");
        assert_int_equal(spec.rank, cases[i].rank);
        assert_true(spec.alpha == cases[i].alpha);
        assert_int_equal(spec.train, 7);
        assert_int_equal(spec.seed, 0);
    }
    tke_adapter_free(a);
    tiny_model_remove(from);
}

TEST(configs_that_are_refused)
{
    static const char *const members[] = { "use_dora",
                                           "rank_pattern",
                                           "alpha_pattern",
                                           "modules_to_save",
                                           "fan_in_fan_out",
                                           "lora_bias",
                                           "layer_replication",
                                           "target_parameters",
                                           "use_qalora",
                                           "trainable_token_indices",
                                           "alora_invocation_tokens" };
    static const char *const values[] = { "true", "[1]", "{\"a\":1}" };
    static const char *const ranges[] = { "\"r\":0.5,\"lora_alpha\":1",
                                          "\"r\":65537,\"lora_alpha\":1",
                                          "\"r\":4,\"lora_alpha\":0",
                                          "\"r\":4,\"lora_alpha\":1e9",
                                          "\"r\":4",
                                          "\"lora_alpha\":4",
                                          "\"r\":4,\"lora_alpha\":-1" };
    tke_adapter *a = adapter_of(4, 7, 0, 1);
    char *from = save(a, 0, TKE_F32), json[300], want[100];
    tke_adapter_spec spec;
    tinkc_error err;
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        for (size_t k = 0; k < 3; k++) {
            snprintf(json, sizeof json, "{\"r\":4,\"lora_alpha\":8,\"%s\":%s}", members[i], values[k]);
            snprintf(want, sizeof want, "adapter_config.json: %s is not supported", members[i]);
            probe(from, json, &spec, &err);
            assert_int_equal(err.code, TINKC_E_UNSUPPORTED);
            assert_non_null(strstr(err.message, want));
        }
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        snprintf(json, sizeof json, "{%s}", ranges[i]);
        probe(from, json, &spec, &err);
        assert_int_equal(err.code, TINKC_E_MODEL);
        assert_non_null(strstr(err.message, "r or lora_alpha is missing or out of range"));
    }
    probe(from, "{\"r\":4.5,\"lora_alpha\":8}", &spec, &err);
    assert_int_equal(err.code, TINKC_E_MODEL);
    assert_non_null(strstr(err.message, "adapter_config.json: r is not a whole number"));
    probe(from, "{\"r\":4,\"lora_alpha\":8,\"peft_type\":\"IA3\"}", &spec, &err);
    assert_int_equal(err.code, TINKC_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "peft_type \"IA3\" is not supported (\"LORA\" is)"));
    probe(from,
          "{\"r\":4,\"lora_alpha\":8,\"bias\":\"all the biases there are in the whole of this "
          "model\"}",
          &spec, &err);
    assert_non_null(
        strstr(err.message, "bias \"all the biases there are in the whole of\" is not")); /* 40 characters */
    probe(from, "[]", &spec, &err);
    assert_int_equal(err.code, TINKC_E_MODEL);
    tke_adapter_free(a);
    tiny_model_remove(from);
}

/* What is written, for each choice of names and modules; fractions of alpha are kept. */
TEST(the_config_names_the_trained_modules)
{
    static const struct {
        uint32_t train;
        int32_t names;
        const char *modules;
    } cases[] = {
        { TKE_TRAIN_ATTN, TKE_NAMES_PEFT, "[\"k_proj\",\"o_proj\",\"q_proj\",\"v_proj\"]}\n" },
        { TKE_TRAIN_MLP, TKE_NAMES_HOSTED, "[\"down_proj\",\"gate_proj\",\"up_proj\"]}\n" },
        { TKE_TRAIN_UNEMBED, TKE_NAMES_PEFT, "[\"lm_head\"]}\n" },
        { TKE_TRAIN_UNEMBED | TKE_TRAIN_MLP, TKE_NAMES_HOSTED,
          "[\"down_proj\",\"gate_proj\",\"up_proj\",\"unembed_tokens\"]}\n" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tinkc_error err = { 0 };
        tke_adapter *a = adapter_of(3, cases[i].train, 2.5, 1), *b = adapter_of(3, cases[i].train, 32, 2);
        char *from = save(a, cases[i].names, TKE_F32);
        const char *text = text_of(from, "adapter_config.json");
        assert_non_null(strstr(text, "\"r\":3,\"lora_alpha\":2.5,"));
        assert_string_equal(strstr(text, "[\""), cases[i].modules);
        assert_true(tke_adapter_load(b, from, false, &err));
        assert_memory_equal(adapter_weights(a), adapter_weights(b), n_floats(a) * 4);
        assert_true(tke_adapter_get_spec(b)->alpha == 2.5); /* the folder's, and what passes use */
        assert_true(tke_adapter_lora(b)->scale == (tke_real)(2.5 / 3));
        tke_adapter_free(a);
        tke_adapter_free(b);
        tiny_model_remove(from);
    }
}

/* ---- tensors ---- */

static void path_in(char out[512], const char *from, const char *name)
{
    snprintf(out, 512, "%s/%s", from, name);
}

/* Rewrites a file of tensors: one is renamed, gets another type or shape, or is left out. */
typedef struct edit {
    const char *name, *rename; /* rename "" = leave it out */
    int32_t dtype;             /* 0 = its own */
    int64_t more_rows;
    int last; /* what the last number becomes: 0 = stays, 1 = NaN, 2 = zero */
} edit;

static void rewrite(const char *from, const char *file, const edit *e)
{
    tinkc_error err = { 0 };
    tke_tensor_file f;
    tke_file_tensor list[100];
    char path[512];
    static float numbers[8192];
    size_t n = 0;
    path_in(path, from, file);
    assert_true(tke_tensor_file_open(&f, path, &err));
    for (size_t i = 0; i < f.n_tensors; i++) {
        tke_file_tensor *t = &list[n];
        *t = f.tensors[i];
        bool mine = strstr(t->name, e->name) != NULL;
        if (mine && e->rename && !e->rename[0])
            continue;
        n++;
        if (!mine)
            continue;
        t->name = e->rename ? e->rename : t->name;
        if (e->dtype)
            t->dtype = e->dtype;
        t->dims[0] += e->more_rows;
        assert_true(t->n_bytes <= sizeof numbers / 2);
        memset(numbers, 0, sizeof numbers);
        memcpy(numbers, t->data, t->n_bytes);
        t->data = (const unsigned char *)numbers;
        size_t count = 1;
        for (int32_t d = 0; d < t->n_dims; d++)
            count *= (size_t)t->dims[d];
        t->n_bytes = count * tke_file_dtype_size(t->dtype);
        if (e->last)
            numbers[count - 1] = e->last == 1 ? NAN : 0;
    }
    path_in(path, from, "edited");
    assert_true(tke_tensor_file_write(path, list, n, NULL, 0644, &err));
    tke_tensor_file_close(&f);
    char final[512];
    path_in(final, from, file);
    assert_int_equal(rename(path, final), 0);
}

TEST(a_damaged_tensor_is_named)
{
    static const struct {
        edit e;
        const char *message;
    } cases[] = {
        { { "mlp.up_proj.lora_B", "", 0, 0, 0 },
          "tensor 'base_model.model.model.layers.0.mlp.up_proj.lora_B.weight' is missing" },
        { { "mlp.up_proj.lora_B", NULL, 0, 1, 0 }, "up_proj.lora_B.weight' has a shape other than [48, 4]" },
        { { "mlp.up_proj.lora_A", NULL, 0, -1, 0 }, "up_proj.lora_A.weight' has a shape other than [4, 32]" },
        { { "mlp.up_proj.lora_B", NULL, TKE_FILE_I64, 0, 0 }, "up_proj.lora_B.weight' is I64" },
        { { "lm_head.lora_B", NULL, 0, 0, 1 }, "lm_head.lora_B.weight' holds NaN or infinity" },
        { { "mlp.up_proj.lora_B", "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight", 0, 0, 0 },
          "is missing" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tinkc_error err = { 0 };
        tke_adapter *a = adapter_of(4, 7, 0, 1), *b = adapter_of(4, 7, 0, 2), *same = adapter_of(4, 7, 0, 2);
        char *from = save(a, 0, TKE_F32);
        rewrite(from, "adapter_model.safetensors", &cases[i].e);
        assert_false(tke_adapter_load(b, from, false, &err));
        assert_int_equal(err.code, TINKC_E_MODEL);
        if (!strstr(err.message, cases[i].message))
            fail_msg("wanted '%s', got '%s'", cases[i].message, err.message);
        assert_memory_equal(adapter_weights(b), adapter_weights(same), n_floats(b) * 4);
        err = (tinkc_error){ 0 };
        bool whole = i > 0; /* sampling and converting need not have all of them */
        assert_int_equal(tke_adapter_check(model, from, &err), !whole);
        tke_adapter_free(a);
        tke_adapter_free(b);
        tke_adapter_free(same);
        tiny_model_remove(from);
    }
    tinkc_error err = { 0 };
    tke_adapter *a = adapter_of(4, 7, 0, 1);
    char *from = save(a, 0, TKE_F32);
    rewrite(from, "adapter_model.safetensors",
            &(edit){ "mlp.up_proj.lora_B", "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight", 0, 0, 0 });
    assert_null(tke_snapshot_read(device, model, from, &err));
    assert_non_null(strstr(err.message, ": 1 of its 16 tensors belong to no matrix of the model, such as "
                                        "'base_model.model.model.layers.1.mlp.up_proj.lora_B.weight'"));
    tke_adapter_free(a);
    tiny_model_remove(from);
}

/* The output projection under each of its names. */
TEST(names_of_the_head)
{
    static const char *const names[] = { "lm_head", "model.unembed_tokens", "model.embed_tokens" };
    for (size_t i = 0; i < 3; i++) {
        tinkc_error err = { 0 };
        tke_adapter *a = adapter_of(2, TKE_TRAIN_UNEMBED | TKE_TRAIN_MLP, 0, 1),
                    *b = adapter_of(2, TKE_TRAIN_UNEMBED | TKE_TRAIN_MLP, 0, 2);
        char *from = save(a, 0, TKE_F32), name[2][100];
        for (int ab = 0; ab < 2; ab++) {
            snprintf(name[ab], sizeof name[ab], "base_model.model.%s.lora_%c.weight", names[i], "AB"[ab]);
            rewrite(from, "adapter_model.safetensors",
                    &(edit){ ab ? "lm_head.lora_B" : "lm_head.lora_A", name[ab], 0, 0, 0 });
        }
        assert_true(tke_adapter_load(b, from, false, &err));
        assert_memory_equal(adapter_weights(a), adapter_weights(b), n_floats(a) * 4);
        tke_adapter_free(a);
        tke_adapter_free(b);
        tiny_model_remove(from);
    }
}

/* Adds one more tensor to a folder's weights. */
static void add_tensor(const char *from, const tke_file_tensor *one)
{
    tinkc_error err = { 0 };
    tke_tensor_file f;
    tke_file_tensor list[100];
    char path[512], beside[512];
    path_in(path, from, "adapter_model.safetensors");
    path_in(beside, from, "edited");
    assert_true(tke_tensor_file_open(&f, path, &err));
    assert_true(f.n_tensors < 100);
    memcpy(list, f.tensors, f.n_tensors * sizeof *list);
    list[f.n_tensors] = *one;
    assert_true(tke_tensor_file_write(beside, list, f.n_tensors + 1, NULL, 0644, &err));
    tke_tensor_file_close(&f);
    assert_int_equal(rename(beside, path), 0);
}

/* The output layer itself, which PEFT saves beside an adapter of it: a copy is passed over, anything else
 * would be another model. */
TEST(saved_output_layer)
{
    static const char *const name = "base_model.model.lm_head.base_layer.weight";
    static const struct {
        int32_t dtype;
        int off_by; /* in 1/1024 of the last number */
        int more_rows;
        const char *message; /* "" = taken */
    } cases[] = {
        { TKE_F32, 0, 0, "" },
        { TKE_BF16, 0, 0, "" },
        { TKE_F32, 3, 0, "" }, /* rounded elsewhere */
        { TKE_F32, 6, 0, "differs from the model's output layer" },
        { TKE_F32, 0, -1, "differs from the model's output layer" },
        { TKE_F32, 0, 1, "differs from the model's output layer" }, /* the same numbers, and more */
        { TKE_FILE_I64, 0, 0, "differs from the model's output layer" },
    };
    const tke_weight *head = &model->head.w[0];
    size_t n = head->out * head->in;
    tke_real *own = calloc(n, sizeof *own);
    unsigned char *narrow = calloc(n, 8);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tinkc_error err = { 0 };
        tke_adapter *a = adapter_of(4, 7, 0, 1), *b = adapter_of(4, 7, 0, 2);
        char *from = save(a, 0, TKE_F32);
        tke_file_tensor t = { .name = name, .data = narrow, .dtype = cases[i].dtype, .n_dims = 2 };
        t.dims[0] = (int64_t)head->out + cases[i].more_rows;
        t.dims[1] = (int64_t)head->in;
        t.n_bytes = (size_t)(t.dims[0] * t.dims[1]) * tke_file_dtype_size(t.dtype);
        tke_widen(head->m.dtype, head->m.data, n, own);
        own[n - 1] *= 1 + (tke_real)cases[i].off_by / 1024;
        if (t.dtype != TKE_FILE_I64)
            tke_narrow((tke_dtype)t.dtype, own, n, narrow);
        add_tensor(from, &t);
        bool taken = !cases[i].message[0];
        assert_int_equal(tke_adapter_load(b, from, false, &err), taken);
        assert_int_equal(tke_adapter_check(model, from, &(tinkc_error){ 0 }), taken);
        if (!strstr(err.message, cases[i].message))
            fail_msg("wanted '%s', got '%s'", cases[i].message, err.message);
        if (taken)
            assert_memory_equal(adapter_weights(a), adapter_weights(b), n_floats(a) * 4);
        t.name = "base_model.model.lm_head.bias"; /* a stray one is still named, and not the copy */
        add_tensor(from, &t);
        err = (tinkc_error){ 0 };
        assert_false(tke_adapter_load(b, from, false, &err));
        assert_int_equal(strstr(err.message, "1 of its 18 tensors") && strstr(err.message, "bias'"), taken);
        tke_adapter_free(a);
        tke_adapter_free(b);
        tiny_model_remove(from);
    }
    free(own);
    free(narrow);
}

/* A zero of the output layer is a copy of itself, too. */
TEST(a_zero_of_the_output_layer_is_saved_too)
{
    tinkc_error err = { 0 };
    char *base = tiny_model_make(&(tiny_model){ .family = "qwen3", .tied = true, .layers = 1 });
    rewrite(base, "model.safetensors", &(edit){ .name = "embed_tokens", .last = 2 });
    tke_model *m = tke_model_open(base, &err);
    assert_non_null(m);
    tke_adapter *a = adapter_of(4, 7, 0, 1);
    char *from = save(a, 0, TKE_F32);
    const tke_weight *head = &m->head.w[0];
    tke_file_tensor t = { .name = "base_model.model.lm_head.base_layer.weight",
                          .data = head->m.data,
                          .n_bytes = head->out * head->in * 4,
                          .dtype = TKE_F32,
                          .dims = { (int64_t)head->out, (int64_t)head->in },
                          .n_dims = 2 };
    assert_true(((const float *)head->m.data)[head->out * head->in - 1] == 0);
    add_tensor(from, &t);
    assert_true(tke_adapter_check(m, from, &err));
    assert_false(tke_adapter_check(model, from, &err)); /* whose last number is another */
    tke_model_drop(m);
    tke_adapter_free(a);
    tiny_model_remove(base);
    tiny_model_remove(from);
}

/* A folder without some matrices is completed: a fresh A from the seed, a zero B. */
TEST(missing_matrices_are_completed)
{
    tinkc_error err = { 0 };
    tke_adapter *a = adapter_of(4, 7, 8, 1), *b = adapter_of(4, 7, 0, 2);
    tke_adapter *fresh = tke_adapter_new(device, model, &(tke_adapter_spec){ .rank = 4, .train = 7, .seed = 9 }, &err);
    char *from = save(a, TKE_NAMES_HOSTED, TKE_F32), *to = tiny_folder();
    tke_adapter_spec spec = { 0 };
    rewrite(from, "adapter_model.safetensors", &(edit){ "mlp.up_proj.lora_A", "", 0, 0, 0 });
    rewrite(from, "adapter_model.safetensors", &(edit){ "mlp.up_proj.lora_B", "", 0, 0, 0 });
    assert_true(tke_adapter_convert(model, from, to, 9, &(tke_adapter_save){ .base_name = "x" }, &spec, &err));
    assert_true(spec.rank == 4 && spec.train == 7 && spec.alpha == 8 && spec.seed == 9);
    assert_true(tke_adapter_load(b, to, false, &err));
    tke_tensor_ref ref;
    for (size_t at = 0; tke_layout_next(a->layout, &at, &ref);) {
        const tke_adapter *want = strstr(ref.weight->path, "up_proj") ? fresh : a;
        assert_memory_equal(adapter_weights(b) + ref.offset,
                            adapter_weights((tke_adapter *)(uintptr_t)want) + ref.offset, ref.rows * ref.cols * 4);
    }
    tke_adapter_free(a);
    tke_adapter_free(b);
    tke_adapter_free(fresh);
    tiny_model_remove(from);
    tiny_model_remove(to);
}

/* bf16 halves the file and rounds each number once. */
TEST(bf16_halves_a_file_and_rounds_once)
{
    tinkc_error err = { 0 };
    tke_adapter *a = adapter_of(2, 7, 0, 1), *b = adapter_of(2, 7, 0, 2);
    char *from = save(a, 0, TKE_BF16);
    assert_true(tke_adapter_load(b, from, false, &err));
    tke_tensor_ref ref;
    for (size_t at = 0; tke_layout_next(a->layout, &at, &ref);)
        for (size_t i = ref.offset; i < ref.offset + ref.rows * ref.cols; i++)
            assert_true(adapter_weights(b)[i] == tke_bf16_to_f32(tke_f32_to_bf16(adapter_weights(a)[i])));
    tke_adapter_free(a);
    tke_adapter_free(b);
    tiny_model_remove(from);
}

TEST(a_missing_file_is_named)
{
    tinkc_error err = { 0 };
    tke_adapter_spec spec;
    char *from = tiny_folder(), want[600];
    assert_false(tke_adapter_probe(model, from, &spec, &err));
    snprintf(want, sizeof want, "%s: adapter_model.safetensors or adapter_config.json is missing", from);
    assert_int_equal(err.code, TINKC_E_MODEL);
    assert_string_equal(err.message, want);
    err = (tinkc_error){ 0 };
    tiny_write(from, "adapter_model.bin", "x");
    tiny_write(from, "adapter_config.json", "{\"r\":1,\"lora_alpha\":1}");
    assert_false(tke_adapter_probe(model, from, &spec, &err));
    assert_int_equal(err.code, TINKC_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "adapter_model.bin is a Python pickle"));
    tiny_model_remove(from);
    tke_adapter *a = adapter_of(2, TKE_TRAIN_UNEMBED, 0, 1);
    from = save(a, 0, TKE_F32);
    err = (tinkc_error){ 0 };
    rewrite(from, "adapter_model.safetensors", &(edit){ "lora_A", "other", 0, 0, 0 });
    rewrite(from, "adapter_model.safetensors", &(edit){ "lora_B", "another", 0, 0, 0 });
    assert_false(tke_adapter_probe(model, from, &spec, &err));
    assert_non_null(strstr(err.message, "no adapter tensors in it"));
    err = (tinkc_error){ 0 };
    rewrite(from, "adapter_model.safetensors", &(edit){ "another", "base_model.model.lm_head.lora_B.weight", 0, 0, 0 });
    rewrite(from, "adapter_model.safetensors", &(edit){ "other", "", 0, 0, 0 });
    assert_true(tke_adapter_probe(model, from, &spec, &err)); /* a single one says what is trained */
    assert_int_equal(spec.train, TKE_TRAIN_UNEMBED);
    char path[512];
    path_in(path, from, "adapter_config.json");
    assert_int_equal(remove(path), 0);
    assert_false(tke_adapter_probe(model, from, &spec, &err));
    snprintf(want, sizeof want, "%s: adapter_model.safetensors or adapter_config.json is missing", from);
    assert_string_equal(err.message, want);
    tke_adapter_free(a);
    tiny_model_remove(from);
}

/* ---- the optimizer's file ---- */

static char *save_state(tke_adapter *a)
{
    tinkc_error err = { 0 };
    char *to = tiny_folder();
    tke_state *s = tke_state_take(a, &err);
    assert_int_equal(tke_state_step(s), a->step);
    assert_int_equal(tke_state_spec(s)->rank, a->spec.rank);
    assert_true(tke_state_write(s, to, &(tke_adapter_save){ .base_name = "t", .dtype = TKE_BF16 }, &err));
    tke_state_free(s);
    return to;
}

static void fill(tke_adapter *a, tke_block *b, uint64_t seed)
{
    tke_tensor_ref ref;
    for (size_t at = 0; tke_layout_next(a->layout, &at, &ref);)
        for (size_t i = 0; i < ref.rows * ref.cols; i++)
            device->ops->block_host(device, b)[ref.offset + i] = tiny_normal(&seed);
}

static tke_adapter *in_training(bool gradients)
{
    tke_adapter *a = adapter_of(2, 7, 0, 1);
    fill(a, a->m, 5);
    fill(a, a->v, 6);
    if (gradients)
        fill(a, a->grads, 7);
    a->step = 11;
    a->n_fwdbwd = gradients ? 3 : 0;
    a->n_tokens = gradients ? 500 : 0;
    return a;
}

static void same_block(const tke_adapter *a, const tke_block *x, const tke_block *y)
{
    assert_memory_equal(device->ops->block_host(device, x), device->ops->block_host(device, y), n_floats(a) * 4);
}

TEST(a_state_keeps_gradients_and_moments)
{
    off_t sizes[3], n = 0;
    for (int gradients = 0; gradients < 3; gradients++) {
        tinkc_error err = { 0 };
        tke_adapter *a = in_training(gradients > 0), *b = adapter_of(2, 7, 0, 2);
        if (gradients == 2)
            a->n_fwdbwd = 0; /* numbers alone are enough to be kept */
        char *from = save_state(a), path[600];
        struct stat file;
        snprintf(path, sizeof path, "%s/optimizer.safetensors", from);
        assert_int_equal(stat(path, &file), 0);
        sizes[gradients] = file.st_size;
        b->n_failed = 4;
        fill(b, b->grads, 8);
        assert_true(tke_adapter_load(b, from, true, &err));
        same_block(a, a->weights, b->weights);
        same_block(a, a->grads, b->grads);
        same_block(a, a->m, b->m);
        same_block(a, a->v, b->v);
        assert_int_equal(b->step, 11);
        assert_int_equal(b->n_fwdbwd, a->n_fwdbwd);
        assert_int_equal(b->n_tokens, a->n_tokens);
        assert_int_equal(b->n_failed, 0);
        assert_ptr_equal(tke_adapter_lora(b)->weights, b->weights);
        n = (off_t)tke_adapter_n_params(a);
        tke_adapter_free(a);
        tke_adapter_free(b);
        tiny_model_remove(from);
    }
    assert_true(sizes[1] > sizes[0] + 4 * n); /* a gradient of zeros is left out */
    assert_true(sizes[2] > sizes[0] + 4 * n);
}

/* A state is written after its adapter and everybody's hold on the model are gone. */
TEST(a_state_alone)
{
    tinkc_error err = { 0 };
    tke_model *m = tke_model_open(folder, &err);
    tke_adapter *a = tke_adapter_new(device, m, &(tke_adapter_spec){ .rank = 2, .train = 7 }, &err);
    tke_state *s = tke_state_take(a, &err);
    tke_adapter_free(a);
    tke_model_drop(m);
    char *to = tiny_folder();
    assert_true(tke_state_write(s, to, &(tke_adapter_save){ .base_name = "t", .dtype = TKE_F32 }, &err));
    tke_state_free(s);
    tke_adapter *b = adapter_of(2, 7, 0, 2);
    assert_true(tke_adapter_load(b, to, true, &err));
    tke_adapter_free(b);
    tiny_model_remove(to);
}

/* One number of a gradient is enough for it to be kept, the last one as well. */
TEST(last_number_of_a_gradient)
{
    tinkc_error err = { 0 };
    tke_adapter *a = adapter_of(16, TKE_TRAIN_MLP, 0, 1), *b = adapter_of(16, TKE_TRAIN_MLP, 0, 2);
    size_t last = n_floats(a) - 1;
    device->ops->block_host(device, a->grads)[last] = 0.5f;
    char *from = save_state(a);
    assert_true(tke_adapter_load(b, from, true, &err));
    assert_true(adapter_grads(b)[last] == 0.5f && adapter_grads(b)[last - 1] == 0);
    tke_adapter_free(a);
    tke_adapter_free(b);
    tiny_model_remove(from);
}

static tke_real *not_here(tke_device *d, const tke_block *b)
{
    (void)d, (void)b;
    return NULL;
}

static bool card_fails;

static bool read_card(tke_device *d, const tke_block *b, tke_real *to, size_t n, tinkc_error *err)
{
    if (card_fails)
        return tkc_fail(err, TINKC_E_SERVER, "the card has failed");
    return tke_cpu_device.block_read(d, b, to, n, err);
}

/* A device whose memory the host does not see: what is saved, loaded and made there is the same. */
TEST(memory_of_a_card)
{
    tinkc_error err = { 0 };
    tke_adapter *a = in_training(true), *plain = adapter_of(2, 7, 0, 2);
    tke_device_ops ops = *device->ops;
    const tke_device_ops *own = device->ops;
    char *saved = save_state(a);
    ops.block_host = not_here;
    ops.block_read = read_card;
    device->ops = &ops;
    tke_adapter_spec spec = { .rank = 2, .train = 7, .seed = 2 };
    tke_adapter *b = tke_adapter_new(device, model, &spec, &err);
    tke_adapter *c = tke_adapter_new(device, model, &spec, &err);
    assert_non_null(b);
    assert_true(tke_adapter_load(b, saved, true, &err));
    char *again = save_state(b), *weights = save(b, 0, TKE_F32);
    tke_snapshot *s = tke_snapshot_read(device, model, weights, &err);
    assert_non_null(s);
    card_fails = true;
    assert_null(tke_adapter_new(device, model, &spec, &err));
    assert_int_equal(err.code, TINKC_E_SERVER);
    err = (tinkc_error){ 0 };
    char *nothing = tiny_folder();
    assert_false(tke_snapshot_write(s, nothing, &(tke_adapter_save){ .base_name = "t" }, &err));
    assert_string_equal(err.message, "the card has failed");
    card_fails = false;
    device->ops = own;
    same_block(a, a->weights, b->weights);
    same_block(a, a->grads, b->grads);
    same_block(a, a->m, b->m);
    same_block(a, a->v, b->v);
    assert_memory_equal(tke_snapshot_lora(s)->weights, adapter_weights(a), n_floats(a) * 4);
    err = (tinkc_error){ 0 };
    assert_true(tke_adapter_load(plain, again, true, &err));
    same_block(a, a->v, plain->v);
    tke_adapter *fresh = tke_adapter_new(device, model, &spec, &err);
    same_block(a, c->weights, fresh->weights); /* its first values are those of every device */
    tke_snapshot_drop(s);
    tke_adapter_free(a);
    tke_adapter_free(b);
    tke_adapter_free(c);
    tke_adapter_free(plain);
    tke_adapter_free(fresh);
    tiny_model_remove(saved);
    tiny_model_remove(again);
    tiny_model_remove(weights);
    tiny_model_remove(nothing);
}

TEST(a_damaged_state_is_named)
{
    static const struct {
        edit e;
        const char *message;
    } cases[] = {
        { { "m.base_model.model.lm_head.lora_B", "", 0, 0, 0 },
          "tensor 'm.base_model.model.lm_head.lora_B.weight' is missing" },
        { { "v.base_model.model.lm_head.lora_B", "", 0, 0, 0 },
          "tensor 'v.base_model.model.lm_head.lora_B.weight' is missing" },
        { { "g.base_model.model.lm_head.lora_B", "", 0, 0, 0 },
          "tensor 'g.base_model.model.lm_head.lora_B.weight' is missing" },
        { { "counters", "", 0, 0, 0 }, "counters are missing" },
        { { "counters", NULL, 0, 1, 0 }, "counters are missing" },
        { { "counters", NULL, 0, -1, 0 }, "counters are missing" },
        { { "counters", NULL, TKE_FILE_BF16, 0, 0 }, "counters are missing" },
    };
    tinkc_error err = { 0 };
    tke_adapter *a = in_training(true), *b = in_training(false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *from = save_state(a);
        rewrite(from, "optimizer.safetensors", &cases[i].e);
        err = (tinkc_error){ 0 };
        assert_false(tke_adapter_load(b, from, true, &err));
        assert_int_equal(err.code, TINKC_E_MODEL);
        if (!strstr(err.message, cases[i].message))
            fail_msg("wanted '%s', got '%s'", cases[i].message, err.message);
        assert_int_equal(b->step, 11);
        same_block(b, a->m, b->m);
        tiny_model_remove(from);
    }
    a->step = -1;
    char *from = save_state(a);
    err = (tinkc_error){ 0 };
    assert_false(tke_adapter_load(b, from, true, &err));
    assert_non_null(strstr(err.message, "a negative step"));
    tiny_model_remove(from);
    a->step = 0;
    from = save_state(a);
    assert_true(tke_adapter_load(b, from, true, &(tinkc_error){ 0 }));
    assert_int_equal(b->step, 0);
    tiny_model_remove(from);
    tke_adapter_free(a);
    tke_adapter_free(b);
}

/* ---- adapters in memory ---- */

/* Values of A: 2 u / 2^24 - 1, u the top bits of Philox, times 1 / sqrt(in). */
TEST(first_values_follow_from_the_seed)
{
    assert_true(tke_lora_init(0, 0, 16, 0) == (float)(2.0 * (0x6627e8d5u >> 8) * 0x1p-24 - 1) * 0.25f);
    assert_true(tke_lora_init(1, 0, 16, 0) != tke_lora_init(0, 0, 16, 0));
    assert_true(tke_lora_init(UINT64_C(1) << 32, 0, 16, 0) != tke_lora_init(1, 0, 16, 0));
    assert_true(tke_lora_init(UINT64_C(1) << 32, 0, 16, 0) != tke_lora_init(0, 0, 16, 0));
    assert_true(tke_lora_init(0, UINT64_C(1) << 32, 16, 0) != tke_lora_init(0, 0, 16, 0));
    assert_true(tke_lora_init(0, 0, 16, UINT64_C(1) << 32) != tke_lora_init(0, 0, 16, 0));
    assert_true(tke_lora_init(0, UINT64_C(1) << 63, 16, 0) == tke_lora_init(0, 0, 16, 0)); /* folded */
    tinkc_error err = { 0 };
    tke_tensor_ref ref;
    tke_adapter *a = tke_adapter_new(device, model, &(tke_adapter_spec){ .rank = 2, .train = 7, .seed = 9 }, &err);
    for (size_t at = 0; tke_layout_next(a->layout, &at, &ref);) { /* every number of A; B is zero */
        uint64_t hash = tkc_hash(ref.weight->path, strlen(ref.weight->path));
        for (size_t i = 0; i < ref.rows * ref.cols; i++)
            assert_true(adapter_weights(a)[ref.offset + i] == (ref.is_b ? 0 : tke_lora_init(hash, 9, ref.cols, i)));
    }
    tke_adapter_free(a);
}

TEST(sizes_and_limits)
{
    tinkc_error err = { 0 };
    tke_adapter_spec spec = { .rank = 3, .train = TKE_TRAIN_UNEMBED };
    /* A and B are padded to 16 numbers each; weights, gradients, two moments, a copy */
    size_t floats = (3 * 32 + 15) / 16 * 16 + (3 * 101 + 15) / 16 * 16;
    assert_int_equal(tke_adapter_bytes(model, &spec), 5 * 4 * floats);
    tke_adapter *a = tke_adapter_new(device, model, &spec, &err);
    assert_int_equal(n_floats(a), floats);
    tke_snapshot *s = tke_snapshot_take(a, &err), *t = tke_snapshot_take(a, &err);
    assert_int_equal(tke_snapshot_bytes(s), 4 * floats);
    assert_int_equal(tke_snapshot_id(t), tke_snapshot_id(s) + 1);
    assert_ptr_equal(tke_snapshot_model(s), model);
    assert_true(tke_snapshot_lora(s)->scale == (tke_real)(32.0 / 3));
    tke_snapshot_drop(tke_snapshot_keep(s));
    assert_int_equal(tke_snapshot_bytes(s), 4 * floats); /* still held once */
    tke_snapshot_drop(s);
    tke_snapshot_drop(t);
    tke_snapshot_drop(NULL);
    tke_adapter_free(a);
    tke_adapter_free(NULL);
    tke_state_free(NULL);
    spec.rank = 13; /* 1313 numbers: one more than a multiple of 16 */
    assert_int_equal(tke_adapter_bytes(model, &spec), 5 * 4 * (13 * 32 + 1328));
    spec.rank = 65537;
    assert_int_equal(tke_adapter_bytes(model, &spec), SIZE_MAX);
    assert_null(tke_adapter_new(device, model, &spec, &err));
    assert_string_equal(err.message, "rank must be 1 to 65536");
    assert_null(tke_snapshot_new(device, model, &spec, &err)); /* an error stays the first */
    assert_string_equal(err.message, "rank must be 1 to 65536");
    err = (tinkc_error){ 0 };
    spec.rank = 0;
    assert_null(tke_snapshot_new(device, model, &spec, &err));
    assert_string_equal(err.message, "rank must be 1 to 65536");
    spec.rank = 65536;
    assert_true(tke_adapter_bytes(model, &spec) < SIZE_MAX);
    err = (tinkc_error){ 0 };
    spec = (tke_adapter_spec){ .rank = 1, .train = 8 };
    assert_null(tke_adapter_new(device, model, &spec, &err));
    assert_string_equal(err.message, "an adapter must train something");
    err = (tinkc_error){ 0 };
    spec = (tke_adapter_spec){ .rank = 1, .train = 1, .alpha = INFINITY };
    assert_null(tke_adapter_new(device, model, &spec, &err));
    assert_string_equal(err.message, "alpha must be a positive number");
    spec.alpha = NAN;
    err = (tinkc_error){ 0 };
    assert_null(tke_adapter_new(device, model, &spec, &err));
    err = (tinkc_error){ 0 };
    spec = (tke_adapter_spec){ .rank = 1, .train = 1, .seed = UINT64_MAX };
    a = tke_adapter_new(device, model, &spec, &err);
    assert_int_equal(tke_adapter_get_spec(a)->seed, INT64_MAX); /* 63 bits */
    assert_int_equal(tke_adapter_step(a), 0);
    tke_adapter_free(a);
}

TEST(loads_that_do_not_fit)
{
    static const char *const texts[8] = { "",        "attn",         "mlp",         "attn+mlp",
                                          "unembed", "attn+unembed", "mlp+unembed", "attn+mlp+unembed" };
    tke_adapter *b = adapter_of(2, 7, 0, 2);
    for (uint32_t train = 1; train < 7; train++) {
        tinkc_error err = { 0 };
        tke_adapter *a = adapter_of(3, train, 0, 1);
        char *from = save(a, 0, TKE_F32), want[300];
        assert_false(tke_adapter_load(b, from, false, &err));
        snprintf(want, sizeof want,
                 "the checkpoint has rank 3 and trains %s, the model has rank 2 and trains "
                 "attn+mlp+unembed",
                 texts[train]);
        assert_non_null(strstr(err.message, want));
        tke_adapter_free(a);
        tiny_model_remove(from);
    }
    tke_adapter_free(b);
}

RUN_TESTS(setup, teardown)
