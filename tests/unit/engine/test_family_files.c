/* test_family_files.c - adapters of every family in files: hosted and PEFT form there and back, merged
 * models, what is refused. */
#include <math.h>
#include <unistd.h>

#include "base/str.h"
#include "support/engine/tiny_world.h"
#include "support/test_case.h"
#include "tinkc/engine.h"
#include "train/training.h"

enum { LEN = 70, RANK = 3 };

static const tiny_model families[] = {
    { .family = "llama", .seed = 1 },
    { .family = "qwen2", .seed = 2, .tied = true },
    { .family = "qwen3", .seed = 3, .shards = true },
    { .family = "qwen3_moe", .seed = 4 },
    { .family = "qwen3_moe", .seed = 5, .fused = true },
    { .family = "gpt_oss", .seed = 6, .layers = 2 },
    { .family = "gpt_oss", .seed = 7, .layers = 2, .mxfp4 = true, .shards = true },
    { .family = "qwen3_5_text", .seed = 8, .layers = 2 },
    { .family = "qwen3_5_text", .seed = 9, .layers = 2, .nested = true, .tied = true },
    { .family = "qwen3_5_moe_text", .seed = 10, .layers = 2, .fused = true, .nested = true },
    { .family = "qwen3_5_moe_text", .seed = 11, .layers = 2, .shards = true },
    { .family = "nemotron_h", .seed = 12, .layers = 5 },
    { .family = "nemotron_h", .seed = 13, .layers = 5, .fused = true, .shards = true },
};
enum { N_FAMILIES = sizeof families / sizeof *families };

typedef struct scene {
    tiny_world w;
    tke_adapter *a;
    char *room;
} scene;

static tke_adapter *new_adapter(const tiny_world *w, uint64_t seed)
{
    tinkc_error err = { 0 };
    tke_adapter_spec spec = { .rank = RANK, .train = 7, .seed = seed };
    tke_adapter *a = tke_adapter_new(w->device, w->model, &spec, &err);
    assert_non_null(a);
    for (size_t i = 0; i < a->layout->n_floats; i++)
        adapter_weights(a)[i] += 0.05f * tiny_normal(&seed);
    return a;
}

static scene open_scene(const tiny_model *what)
{
    scene s = { .w = tiny_world_open(what, 1), .room = tiny_folder() };
    s.a = new_adapter(&s.w, 3);
    return s;
}

static void close_scene(scene *s)
{
    tke_adapter_free(s->a);
    tiny_model_remove(s->room);
    tiny_world_close(&s->w);
}

static char *in_room(const scene *s, const char *name)
{
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", s->room, name);
    return path;
}

static char *save(const scene *s, const char *name, int32_t names)
{
    tinkc_error err = { 0 };
    char *folder = in_room(s, name);
    tke_adapter_save how = { .base_name = "org/tiny", .names = names, .dtype = TKE_F32 };
    tke_snapshot *shot = tke_snapshot_take(s->a, &err);
    assert_true(tkc_make_dirs(folder, &err) && tke_snapshot_write(shot, folder, &how, &err));
    tke_snapshot_drop(shot);
    return folder;
}

static char *export(const scene *s, const char *from, const char *name, int32_t format)
{
    tinkc_error err = { 0 };
    char *target = in_room(s, name);
    tinkc_adapter_options o = { .adapter = from, .base_model = s->w.folder, .target = target, .format = format };
    if (!tinkc_adapter_export(&o, NULL, NULL, &err))
        fail_msg("%s", err.message);
    return target;
}

static tke_tensor_file tensors_of(const char *folder, const char *name)
{
    tinkc_error err = { 0 };
    tke_tensor_file f;
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_true(tke_tensor_file_open(&f, path, &err));
    return f;
}

static bool has(const char *folder, const char *module)
{
    char name[200];
    tke_tensor_file f = tensors_of(folder, "adapter_model.safetensors");
    snprintf(name, sizeof name, "base_model.model.%s.lora_A.weight", module);
    bool there = tke_tensor_file_find(&f, name) != NULL;
    tke_tensor_file_close(&f);
    return there;
}

/* Log-probs of some tokens; adapter NULL = of the model alone. */
static void logprobs(tke_device_model *loaded, tke_adapter *a, float out[LEN])
{
    int32_t tokens[LEN];
    int64_t targets[LEN];
    float weights[LEN];
    tinkc_error err = { 0 };
    uint64_t r = 9;
    for (size_t i = 0; i < LEN; i++) {
        tokens[i] = (int32_t)(tiny_random(&r) % 101);
        targets[i] = (int64_t)(tiny_random(&r) % 101);
        weights[i] = 1;
    }
    tke_trainer *t = tke_trainer_new(loaded, &(tke_trainer_options){ 0 }, &err);
    tke_datum d = { .tokens = tokens, .n = LEN, .k = 1, .targets = targets, .weights = weights };
    tke_pass p = { .adapter = a, .data = &d, .n_data = 1 }, *list[1] = { &p };
    assert_true(tke_loss_parse(&p.loss, tkc_str("cross_entropy"), NULL, 0, false, &err));
    tke_trainer_run(t, list, 1);
    assert_string_equal(p.err.message, "");
    memcpy(out, p.out.logprobs, LEN * sizeof *out);
    tke_pass_free(&p);
    tke_trainer_free(t);
}

static void expect_weights(const scene *s, const char *folder)
{
    tinkc_error err = { 0 };
    tke_adapter *b = new_adapter(&s->w, 4);
    if (!tke_adapter_load(b, folder, false, &err))
        fail_msg("%s", err.message);
    tke_tensor_ref ref;
    for (size_t place = 0; tke_layout_next(b->layout, &place, &ref);)
        assert_memory_equal(adapter_weights(s->a) + ref.offset, adapter_weights(b) + ref.offset,
                            ref.count * sizeof(tke_real));
    tke_adapter_free(b);
}

TEST(every_form_of_an_adapter_has_its_bits)
{
    for (size_t i = 0; i < N_FAMILIES; i++) {
        scene s = open_scene(&families[i]);
        char *own = save(&s, "own", TKE_NAMES_PEFT);
        expect_weights(&s, own);
        expect_weights(&s, save(&s, "store-hosted", TKE_NAMES_HOSTED));
        char *peft = export(&s, own, "peft", TINKC_ADAPTER_PEFT);
        expect_weights(&s, peft);
        char *hosted = export(&s, peft, "hosted", TINKC_ADAPTER_HOSTED);
        expect_weights(&s, hosted);
        expect_weights(&s, export(&s, hosted, "again", TINKC_ADAPTER_PEFT));
        close_scene(&s);
    }
}

TEST(names_are_those_of_the_service_and_of_peft)
{
    static const struct {
        size_t family;
        const char *hosted, *peft;
    } cases[] = {
        { 3, "model.layers.0.mlp.experts.w1", "model.layers.0.mlp.experts.4.gate_proj" },
        { 3, "model.layers.0.mlp.experts.w3", "model.layers.0.mlp.experts.4.up_proj" },
        { 3, "model.layers.0.mlp.experts.w2", "model.layers.0.mlp.experts.0.down_proj" },
        { 3, "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.q_proj" },
        { 5, "model.layers.1.attn.q_proj", "model.layers.1.self_attn.q_proj" },
        { 9, "model.layers.0.linear_attn.in_proj_z", "model.language_model.layers.0.linear_attn.in_proj_z" },
        { 9, "model.layers.0.mlp.shared_expert.up_proj", "model.language_model.layers.0.mlp.shared_expert.up_proj" },
        { 9, "model.unembed_tokens", "lm_head" },
        { 11, "model.layers.0.mixer.gate_proj", "model.layers.0.mixer.in_proj" },
        { 11, "model.layers.1.mixer.experts.w3", "model.layers.1.mixer.experts.5.up_proj" },
        { 11, "model.layers.1.mixer.experts.w2", "model.layers.1.mixer.experts.5.down_proj" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scene s = open_scene(&families[cases[i].family]);
        char *own = save(&s, "own", TKE_NAMES_PEFT);
        char *hosted = export(&s, own, "hosted", TINKC_ADAPTER_HOSTED);
        char *peft = export(&s, own, "peft", TINKC_ADAPTER_PEFT);
        if (!has(hosted, cases[i].hosted) || !has(peft, cases[i].peft))
            fail_msg("%s or %s is missing", cases[i].hosted, cases[i].peft);
        close_scene(&s);
    }
}

/* The two halves of in_proj side by side, and ranks and alphas that say so. */
TEST(a_state_space_becomes_one_stacked_matrix)
{
    scene s = open_scene(&families[11]);
    char *peft = export(&s, save(&s, "own", TKE_NAMES_PEFT), "peft", TINKC_ADAPTER_PEFT);
    tke_tensor_file f = tensors_of(peft, "adapter_model.safetensors");
    const tke_file_tensor *b = tke_tensor_file_find(&f, "base_model.model.model.layers.0.mixer.in_proj.lora_B.weight");
    assert_non_null(b);
    assert_true(tke_tensor_is(b, 2, 2 * 30 + 2 * 14 + 6, 2 * RANK));
    const float *x = (const float *)(const void *)b->data;
    for (size_t row = 0; row < 94; row++)
        for (size_t col = 0; col < 2 * RANK; col++) {
            bool block = (row < 30 && col < RANK) || (row >= 30 && row < 60 && col >= RANK);
            assert_true((x[row * 2 * RANK + col] != 0) == block);
        }
    tke_tensor_file_close(&f);
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    char path[600];
    snprintf(path, sizeof path, "%s/adapter_config.json", peft);
    tinkc_bytes text = tkc_read_file(&arena, path, 1 << 16, &err);
    const char *json = tkc_arena_str(&arena, tkc_strn((const char *)text.data, text.len), &err);
    assert_non_null(strstr(json, "\"rank_pattern\":{\"in_proj\":6}"));
    assert_non_null(strstr(json, "\"alpha_pattern\":{\"in_proj\":64}"));
    tkc_arena_free(&arena);
    close_scene(&s);
}

/* In F32 merging loses only rounding; a model's file says the rest. */
TEST(a_merged_model_answers_as_model_and_adapter)
{
    for (size_t i = 0; i < N_FAMILIES; i++) {
        float want[LEN], got[LEN], alone[LEN];
        tinkc_error err = { 0 };
        double moved = 0;
        scene s = open_scene(&families[i]);
        logprobs(s.w.loaded, s.a, want);
        logprobs(s.w.loaded, NULL, alone);
        char *merged = export(&s, save(&s, "own", TKE_NAMES_PEFT), "merged", TINKC_ADAPTER_MERGED);
        tke_model *m = tke_model_open(merged, &err);
        if (!m)
            fail_msg("%s %zu: %s", families[i].family, i, err.message);
        tke_device_model *loaded = device_load(s.w.device, m);
        logprobs(loaded, NULL, got);
        /* experts of gpt-oss are BF16 here, whatever the others are */
        double most = strcmp(families[i].family, "gpt_oss") == 0 ? 0.05 : 1e-4;
        for (size_t k = 0; k < LEN; k++) {
            if (!(fabs((double)(got[k] - want[k])) < most))
                fail_msg("%s %zu: %g where %g", families[i].family, i, (double)got[k], (double)want[k]);
            moved = fmax(moved, fabs((double)(alone[k] - want[k])));
        }
        assert_true(moved > 0.1);
        device_unload(loaded);
        tke_model_drop(m);
        close_scene(&s);
    }
}

/* A file with one tensor under another name, or with other numbers. */
static void change_tensor(const char *folder, const char *old, const char *name, bool other)
{
    tinkc_error err = { 0 };
    char path[600];
    tke_tensor_file f = tensors_of(folder, "adapter_model.safetensors");
    tke_file_tensor *list = test_malloc(f.n_tensors * sizeof *list);
    float *data = NULL;
    memcpy(list, f.tensors, f.n_tensors * sizeof *list);
    for (size_t i = 0; i < f.n_tensors; i++) {
        if (strcmp(list[i].name, old) != 0)
            continue;
        list[i].name = name;
        data = test_malloc(list[i].n_bytes);
        memcpy(data, list[i].data, list[i].n_bytes);
        data[list[i].n_bytes / 4 - 1] += other ? 1.0f : 0.0f;
        list[i].data = (const unsigned char *)data;
    }
    assert_non_null(data);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    assert_true(tke_tensor_file_write(path, list, f.n_tensors, NULL, 0644, &err));
    tke_tensor_file_close(&f);
    test_free(data);
    test_free(list);
}

#define AT "base_model.model.model.layers."
TEST(adapters_that_do_not_fit_are_refused_by_name)
{
    static const struct {
        size_t family;
        const char *old, *name;
        bool other;
        const char *named;
    } cases[] = {
        { 3, AT "0.mlp.experts.4.gate_proj.lora_A.weight", AT "0.mlp.experts.4.gate_proj.lora_A.weight", true,
          "experts.4.gate_proj" },
        { 3, AT "0.mlp.experts.4.gate_proj.lora_B.weight", AT "0.mlp.experts.6.gate_proj.lora_B.weight", false,
          "experts are missing" },
        { 3, AT "0.mlp.experts.4.gate_proj.lora_B.weight", AT "0.mlp.experts.lora_B.weight", false,
          "layers.0.mlp.experts'" },
        { 3, AT "0.self_attn.q_proj.lora_A.weight", AT "0.mlp.gate.lora_A.weight", false, "layers.0.mlp.gate'" },
        { 7, AT "0.linear_attn.in_proj_q.lora_A.weight", AT "0.linear_attn.in_proj_a.lora_A.weight", false,
          "in_proj_a'" },
        { 7, AT "0.linear_attn.in_proj_q.lora_A.weight", AT "0.mixer.x_proj.lora_A.weight", false, "in_proj_q" },
        { 11, AT "0.mixer.in_proj.lora_B.weight", AT "0.mixer.in_proj.lora_B.weight", true,
          "rows of B, C or the time step" },
        { 11, AT "0.mixer.out_proj.lora_A.weight", AT "0.mixer.conv1d.lora_A.weight", false, "conv1d'" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tinkc_error err = { 0 };
        scene s = open_scene(&families[cases[i].family]);
        char *peft = export(&s, save(&s, "own", TKE_NAMES_PEFT), "peft", TINKC_ADAPTER_PEFT);
        change_tensor(peft, cases[i].old, cases[i].name, cases[i].other);
        tke_adapter *b = new_adapter(&s.w, 4);
        assert_false(tke_adapter_load(b, peft, false, &err));
        if (!strstr(err.message, cases[i].named))
            fail_msg("case %zu: wanted '%s', got '%s'", i, cases[i].named, err.message);
        tke_adapter_free(b);
        close_scene(&s);
    }
}

TEST(an_adapter_of_another_family_is_refused)
{
    static const size_t pairs[][2] = { { 3, 0 }, { 0, 3 }, { 11, 7 }, { 7, 11 }, { 5, 9 } };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        tinkc_error err = { 0 };
        scene s = open_scene(&families[pairs[i][0]]), other = open_scene(&families[pairs[i][1]]);
        char *own = save(&s, "own", TKE_NAMES_PEFT);
        assert_false(tke_adapter_check(other.w.model, own, &err));
        assert_int_equal(err.code, TINKC_E_MODEL);
        assert_non_null(strstr(err.message, "model.layers."));
        close_scene(&s);
        close_scene(&other);
    }
}

/* ---- files of models ---- */

enum { DROPPED, OF_ANOTHER_SHAPE, OF_ANOTHER_TYPE };

/* The model's file without a tensor, or with it in another shape or type. */
static void spoil(const char *folder, const char *name, int how)
{
    tinkc_error err = { 0 };
    char path[600];
    size_t n = 0;
    tke_tensor_file f = tensors_of(folder, "model.safetensors");
    tke_file_tensor *list = test_malloc(f.n_tensors * sizeof *list);
    for (size_t i = 0; i < f.n_tensors; i++) {
        list[n] = f.tensors[i];
        bool it = strcmp(list[n].name, name) == 0;
        if (it && how == OF_ANOTHER_SHAPE) {
            list[n].dims[list[n].n_dims - 1] /= 2;
            list[n].dims[0] *= 2;
        }
        if (it && how == OF_ANOTHER_TYPE) {
            list[n].dtype = TKE_FILE_I8;
            list[n].dims[list[n].n_dims - 1] *= (int64_t)tke_file_dtype_size(f.tensors[i].dtype);
        }
        n += !(it && how == DROPPED);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_true(tke_tensor_file_write(path, list, n, NULL, 0644, &err));
    tke_tensor_file_close(&f);
    test_free(list);
}

TEST(model_files_that_do_not_fit_are_refused_by_tensor)
{
    static const struct {
        tiny_model of;
        const char *tensor;
        int how;
    } cases[] = {
        { { .family = "qwen3_moe" }, "model.layers.0.mlp.experts.3.up_proj.weight", DROPPED },
        { { .family = "qwen3_moe", .fused = true }, "model.layers.0.mlp.experts.gate_up_proj", OF_ANOTHER_SHAPE },
        { { .family = "qwen3_moe" }, "model.layers.0.mlp.gate.weight", OF_ANOTHER_TYPE },
        { { .family = "gpt_oss" }, "model.layers.1.self_attn.sinks", DROPPED },
        { { .family = "gpt_oss" }, "model.layers.1.mlp.experts.down_proj_bias", DROPPED },
        { { .family = "gpt_oss", .mxfp4 = true }, "model.layers.0.mlp.experts.down_proj_blocks", OF_ANOTHER_SHAPE },
        { { .family = "gpt_oss", .mxfp4 = true }, "model.layers.0.mlp.experts.gate_up_proj_scales", DROPPED },
        { { .family = "qwen3_5_text" }, "model.layers.0.linear_attn.A_log", DROPPED },
        { { .family = "qwen3_5_text" }, "model.layers.0.linear_attn.in_proj_qkv.weight", OF_ANOTHER_SHAPE },
        { { .family = "nemotron_h", .fused = true }, "model.layers.1.mixer.gate.e_score_correction_bias", DROPPED },
        { { .family = "nemotron_h", .fused = true }, "model.layers.0.mixer.in_proj.weight", OF_ANOTHER_SHAPE },
        { { .family = "nemotron_h", .fused = true }, "model.layers.1.mixer.experts.down_proj", OF_ANOTHER_SHAPE },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tinkc_error err = { 0 };
        char *folder = tiny_model_make(&cases[i].of);
        spoil(folder, cases[i].tensor, cases[i].how);
        assert_null(tke_model_open(folder, &err));
        assert_int_equal(err.code, TINKC_E_MODEL);
        if (!strstr(err.message, cases[i].tensor))
            fail_msg("%s is not named: %s", cases[i].tensor, err.message);
        tiny_model_remove(folder);
    }
}

TEST(a_truncated_file_of_experts_is_refused_by_its_name)
{
    static const char *const files[] = { "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors" };
    for (size_t i = 0; i < 2; i++) {
        tinkc_error err = { 0 };
        char path[600], *folder = tiny_model_make(&(tiny_model){ .family = "nemotron_h", .shards = true });
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        assert_int_equal(truncate(path, 4000), 0);
        assert_null(tke_model_open(folder, &err));
        assert_int_equal(err.code, TINKC_E_MODEL);
        assert_non_null(strstr(err.message, files[i]));
        tiny_model_remove(folder);
    }
}
