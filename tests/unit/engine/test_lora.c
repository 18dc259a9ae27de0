/* test_lora.c - adapters: sizes, seeds, files in and out, exports, merges. */
#include <math.h>
#include <sys/stat.h>

#include "base/file.h"
#include "support/engine/on_device.h"
#include "support/engine/tiny_model.h"
#include "support/test_case.h"
#include "tinkc/engine.h"
#include "train/training.h"

typedef struct world {
    char *folder;
    tke_model *model;
    tke_device *device;
} world;

static int setup(void **state)
{
    static world w;
    tinkc_error err = { 0 };
    w.folder = tiny_model_make(&(tiny_model){ .family = "qwen3", .tied = true, .dtype = "F32", .shards = true });
    w.model = tke_model_open(w.folder, &err);
    w.device = device_cpu(1);
    assert_string_equal(err.message, "");
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    tke_device_close(w->device);
    tke_model_drop(w->model);
    tiny_model_remove(w->folder);
    return 0;
}

static tke_adapter *make(world *w, int32_t rank, uint32_t train, uint64_t seed, bool noise)
{
    tinkc_error err = { 0 };
    tke_adapter_spec spec = { .rank = rank, .train = train, .seed = seed };
    tke_adapter *a = tke_adapter_new(w->device, w->model, &spec, &err);
    assert_non_null(a);
    uint64_t r = seed;
    const tke_lora_layout *l = tke_adapter_lora(a)->layout;
    for (size_t g = 0; noise && g < l->n_groups; g++)
        for (size_t i = 0; i < l->groups[g].n; i++)
            for (size_t k = 0; k < l->groups[g].out[i] * l->rank; k++)
                adapter_weights(a)[l->groups[g].b[i] + k] = 0.1f * tiny_normal(&r);
    return a;
}

static size_t n_floats(const tke_adapter *a)
{
    return tke_adapter_lora(a)->layout->n_floats;
}

/* rank * sum of (in + out); the head counts although the embedding is tied. */
TEST(parameters_are_counted_by_module)
{
    world *w = *state;
    size_t attn = (32 + 32) + 2 * (32 + 16) + (32 + 32), mlp = 3 * (32 + 48), head = 32 + 101;
    struct {
        uint32_t train;
        size_t want;
    } cases[] = { { TKE_TRAIN_ATTN, 2 * attn },
                  { TKE_TRAIN_MLP, 2 * mlp },
                  { TKE_TRAIN_UNEMBED, head },
                  { 7, 2 * (attn + mlp) + head } };
    for (size_t i = 0; i < 4; i++) {
        tke_adapter *a = make(w, 3, cases[i].train, 0, false);
        assert_int_equal(tke_adapter_n_params(a), 3 * cases[i].want);
        tke_adapter_spec spec = *tke_adapter_get_spec(a);
        assert_true(tke_adapter_bytes(w->model, &spec) >= 5 * 4 * 3 * cases[i].want);
        assert_true(spec.alpha == 32);
        tke_adapter_free(a);
    }
}

TEST(the_seed_decides_the_first_weights)
{
    world *w = *state;
    tke_adapter *a = make(w, 4, 7, 5, false), *b = make(w, 4, 7, 5, false);
    tke_adapter *c = make(w, 4, 7, 6, false), *attn = make(w, 4, TKE_TRAIN_ATTN, 5, false);
    assert_memory_equal(adapter_weights(a), adapter_weights(b), n_floats(a) * 4);
    assert_memory_not_equal(adapter_weights(a), adapter_weights(c), n_floats(a) * 4);
    /* a module's values depend on its own name, not on what else is trained */
    const tke_lora_group *g = &tke_adapter_lora(a)->layout->groups[4];
    const tke_lora_group *h = &tke_adapter_lora(attn)->layout->groups[4];
    assert_memory_equal(adapter_weights(a) + g->a, adapter_weights(attn) + h->a, g->n * g->rank * g->in * 4);
    for (size_t i = 0; i < g->n * g->rank * g->in; i++)
        assert_true(fabsf(adapter_weights(a)[g->a + i]) <= 1 / sqrtf(32.0f));
    tke_adapter_free(a);
    tke_adapter_free(b);
    tke_adapter_free(c);
    tke_adapter_free(attn);
}

TEST(a_spec_out_of_range_is_refused)
{
    world *w = *state;
    tke_adapter_spec bad[] = { { .rank = 0, .train = 7 },
                               { .rank = 4, .train = 0 },
                               { .rank = 4, .train = 7, .alpha = -1 } };
    for (size_t i = 0; i < 3; i++) {
        tinkc_error err = { 0 };
        assert_null(tke_adapter_new(w->device, w->model, &bad[i], &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
    }
}

/* ---- files ---- */

static char *save(const tke_adapter *a, int names, int dtype)
{
    tinkc_error err = { 0 };
    char *folder = tiny_folder();
    tke_snapshot *s = tke_snapshot_take(a, &err);
    tke_adapter_save how = { .base_name = "org/tiny", .names = names, .dtype = dtype };
    assert_true(tke_snapshot_write(s, folder, &how, &err));
    tke_snapshot_drop(s);
    return folder;
}

TEST(files_come_back)
{
    world *w = *state;
    for (int names = 0; names < 2; names++) {
        tinkc_error err = { 0 };
        tke_adapter *a = make(w, 4, 7, 1, true), *b = make(w, 4, 7, 2, true);
        char *folder = save(a, names, TKE_F32);
        tke_adapter_spec spec;
        assert_true(tke_adapter_probe(w->model, folder, &spec, &err));
        assert_int_equal(spec.rank, 4);
        assert_int_equal(spec.train, 7);
        assert_true(spec.alpha == 32);
        assert_true(tke_adapter_load(b, folder, false, &err));
        assert_memory_equal(adapter_weights(a), adapter_weights(b), n_floats(a) * 4);
        tke_snapshot *s = tke_snapshot_read(w->device, w->model, folder, &err);
        assert_memory_equal(tke_snapshot_lora(s)->weights, adapter_weights(a), n_floats(a) * 4);
        assert_false(tke_adapter_load(b, folder, true, &err));
        assert_non_null(strstr(err.message, "no optimizer state"));
        tke_snapshot_drop(s);
        tke_adapter_free(a);
        tke_adapter_free(b);
        tiny_model_remove(folder);
    }
}

TEST(config_file_is_pefts)
{
    world *w = *state;
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    tke_adapter *a = make(w, 4, 7, 1, true);
    char *folder = save(a, TKE_NAMES_PEFT, TKE_BF16);
    char *path = tkc_path_join(&arena, folder, "adapter_config.json", &err);
    tinkc_bytes text = tkc_read_file(&arena, path, 1 << 20, &err);
    assert_string_equal((const char *)text.data,
                        "{\"peft_type\":\"LORA\",\"task_type\":\"CAUSAL_LM\",\"base_model_name_or_path\":\"org/"
                        "tiny\","
                        "\"r\":4,\"lora_alpha\":32,\"lora_dropout\":0.0,\"bias\":\"none\",\"fan_in_fan_out\":false,"
                        "\"inference_mode\":true,\"init_lora_weights\":true,\"modules_to_save\":null,"
                        "\"auto_mapping\":null,\"rank_pattern\":{},\"alpha_pattern\":{},\"target_modules\":["
                        "\"down_proj\",\"gate_proj\",\"k_proj\",\"lm_head\",\"o_proj\",\"q_proj\",\"up_proj\","
                        "\"v_proj\"]}\n");
    tke_tensor_file f;
    path = tkc_path_join(&arena, folder, "adapter_model.safetensors", &err);
    assert_true(tke_tensor_file_open(&f, path, &err));
    const tke_file_tensor *t = tke_tensor_file_find(&f, "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight");
    assert_true(tke_tensor_is(t, 2, 48, 4));
    assert_int_equal(t->dtype, TKE_FILE_BF16);
    assert_non_null(tke_tensor_file_find(&f, "base_model.model.lm_head.lora_A.weight"));
    assert_int_equal(f.n_tensors, 2 * 7 * 2 + 2);
    tke_tensor_file_close(&f);
    tke_adapter_free(a);
    tiny_model_remove(folder);
    tkc_arena_free(&arena);
}

TEST(a_load_that_fails_changes_nothing)
{
    world *w = *state;
    tke_adapter *small = make(w, 2, 7, 1, true), *part = make(w, 4, TKE_TRAIN_ATTN, 1, true);
    tke_adapter *b = make(w, 4, 7, 2, true);
    float *before = test_malloc(n_floats(b) * 4);
    memcpy(before, adapter_weights(b), n_floats(b) * 4);
    char *folders[3] = { save(small, 0, TKE_F32), save(part, 0, TKE_F32), tiny_folder() };
    static const char *const faults[3] = { "rank 2", "trains attn,", "missing" };
    for (int i = 0; i < 3; i++) {
        tinkc_error err = { 0 };
        assert_false(tke_adapter_load(b, folders[i], false, &err));
        assert_int_equal(err.code, TINKC_E_MODEL);
        assert_non_null(strstr(err.message, faults[i]));
        assert_memory_equal(before, adapter_weights(b), n_floats(b) * 4);
        tiny_model_remove(folders[i]);
    }
    tke_adapter_free(small);
    tke_adapter_free(part);
    tke_adapter_free(b);
    test_free(before);
}

TEST(a_damaged_adapter_is_refused)
{
    world *w = *state;
    tke_adapter *a = make(w, 4, 7, 1, true);
    struct {
        const char *config, *fault;
        int32_t code;
    } cases[] = {
        { "{\"r\":4}", "lora_alpha", TINKC_E_MODEL },
        { "{\"r\":0,\"lora_alpha\":32}", "r or lora_alpha", TINKC_E_MODEL },
        { "{\"r\":1e99,\"lora_alpha\":32}", "r or lora_alpha", TINKC_E_MODEL },
        { "{\"r\":4,\"lora_alpha\":32,\"use_dora\":true}", "use_dora", TINKC_E_UNSUPPORTED },
        { "{\"r\":4,\"lora_alpha\":32,\"rank_pattern\":{\"q_proj\":8}}", "rank_pattern", TINKC_E_UNSUPPORTED },
        { "{\"r\":8,\"lora_alpha\":32}", "shape other than [8", TINKC_E_MODEL },
        { "nonsense", "", TINKC_E_MODEL },
    };
    char *folder = save(a, 0, TKE_F32);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tinkc_error err = { 0 };
        tiny_write(folder, "adapter_config.json", cases[i].config);
        assert_null(tke_snapshot_read(w->device, w->model, folder, &err));
        if (err.code != cases[i].code || !strstr(err.message, cases[i].fault))
            fail_msg("wanted '%s', got %d '%s'", cases[i].fault, err.code, err.message);
    }
    tke_adapter_free(a);
    tiny_model_remove(folder);
}

/* ---- exports ---- */

static unsigned mode_in(const char *folder, const char *name)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return tiny_mode(path);
}

static bool export(const char *from, const char *base, const char *target, int32_t format, bool drop, tinkc_error *err)
{
    tinkc_adapter_options o = {
        .adapter = from, .base_model = base, .target = target, .format = format, .drop_unembed = drop
    };
    return tinkc_adapter_export(&o, NULL, NULL, err);
}

/* The text of a file in a folder; the caller frees it. */
static char *text_in(const char *folder, const char *name)
{
    char path[600], *text = test_calloc(1, 100000);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_true(fread(text, 1, 99999, f) < 99999);
    fclose(f);
    return text;
}

/* Which names of the output projection an exported adapter's target_modules have, beside q_proj. */
static void expect_targets(const char *folder, bool lm_head, bool unembed)
{
    char *text = text_in(folder, "adapter_config.json"), *list = strstr(text, "target_modules");
    assert_non_null(list);
    *strchr(list, ']') = '\0';
    assert_non_null(strstr(list, "\"q_proj\""));
    assert_int_equal(strstr(list, "\"lm_head\"") != NULL, lm_head);
    assert_int_equal(strstr(list, "\"unembed_tokens\"") != NULL, unembed);
    test_free(text);
}

/* Renames the tensors of a file whose names contain a text (to NULL: leaves them out), and adds one. */
static void change(const char *folder, const char *file, const char *match, const char *to, const tke_file_tensor *more)
{
    tinkc_error err = { 0 };
    tke_tensor_file f;
    tke_file_tensor list[100];
    char path[600], edited[600];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    snprintf(edited, sizeof edited, "%s/edited", folder);
    assert_true(tke_tensor_file_open(&f, path, &err));
    for (size_t i = 0; i < f.n_tensors; i++) {
        bool mine = match && strstr(f.tensors[i].name, match);
        if (mine && !to)
            continue;
        list[n] = f.tensors[i];
        list[n].name = mine ? to : list[n].name;
        n++;
    }
    if (more)
        list[n++] = *more;
    assert_true(tke_tensor_file_write(edited, list, n, NULL, 0644, &err));
    tke_tensor_file_close(&f);
    assert_int_equal(rename(edited, path), 0);
}

static bool has_tensor(const char *folder, const char *name)
{
    char path[600];
    tinkc_error err = { 0 };
    tke_tensor_file f;
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    assert_true(tke_tensor_file_open(&f, path, &err));
    bool found = tke_tensor_file_find(&f, name) != NULL;
    tke_tensor_file_close(&f);
    return found;
}

/* Does the file say that its tensors are PyTorch's? Python readers refuse those that do not. */
static bool says_format(const char *folder, const char *name)
{
    char path[600], head[60000] = "";
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(head, 1, sizeof head - 1, f);
    fclose(f);
    return n > 8 && strstr(head + 8, "\"__metadata__\":{\"format\":\"pt\"");
}

TEST(options_of_an_export_are_checked)
{
    char *room = tiny_folder(), target[512], under[600];
    snprintf(target, sizeof target, "%s/x", room);
    const tinkc_adapter_options good = { .adapter = room, .base_model = room, .target = target };
    static const struct {
        int field;
        const char *message;
    } cases[] = { { 0, "adapter and target are required" },    { 1, "adapter and target are required" },
                  { 2, "adapter and target are required" },    { 3, "format is none of TINKC_ADAPTER_*" },
                  { 4, "format is none of TINKC_ADAPTER_*" },  { 5, "reserved fields must be zero" },
                  { 6, "reserved fields must be zero" },       { 7, "base_model is required for merging" },
                  { 8, "base_model is required for merging" }, { 9, "gguf_type is for GGUF alone" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tinkc_adapter_options o = good;
        tinkc_error err = { 0 };
        switch (cases[i].field) {
        case 1:
            o.adapter = NULL;
            break;
        case 2:
            o.target = NULL;
            break;
        case 3:
            o.format = -1;
            break;
        case 4:
            o.format = TINKC_ADAPTER_GGUF_LORA + 1;
            break;
        case 5:
            memset(o.reserved_bools, 1, 1);
            break;
        case 6:
            memset(o.reserved, 1, 1);
            break;
        case 7:
        case 8:
            o.format = cases[i].field == 7 ? TINKC_ADAPTER_MERGED : TINKC_ADAPTER_GGUF;
            o.base_model = NULL;
            break;
        default:
            o.gguf_type = "f16";
            break;
        }
        assert_false(tinkc_adapter_export(i ? &o : NULL, NULL, NULL, &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
        assert_string_equal(err.message, cases[i].message);
    }
    tinkc_error err = { 0 };
    tiny_write(room, "x", "a file"); /* of a folder or a file nothing is overwritten */
    assert_false(tinkc_adapter_export(&good, NULL, NULL, &err));
    assert_int_equal(err.code, TINKC_E_EXISTS);
    snprintf(under, sizeof under, "%s/y", target); /* no folder can be made there */
    world *w = *state;
    tke_adapter *a = make(w, 2, 7, 1, true);
    char *from = save(a, 0, TKE_F32);
    err = (tinkc_error){ 0 };
    assert_false(export(from, NULL, under, TINKC_ADAPTER_PEFT, false, &err));
    assert_int_equal(err.code, TINKC_E_FILE);
    for (int32_t format = TINKC_ADAPTER_MERGED; format <= TINKC_ADAPTER_GGUF; format++) {
        snprintf(under, sizeof under, "%s/z", room);
        err = (tinkc_error){ 0 };
        assert_false(export(from, w->folder, under, format, true, &err));
        assert_int_equal(err.code, TINKC_E_UNSUPPORTED);
        assert_string_equal(err.message, "merging without the unembedding is not supported");
    }
    tke_adapter_free(a);
    tiny_model_remove(from);
    tiny_model_remove(room);
}

TEST(export_there_and_back)
{
    world *w = *state;
    tinkc_error err = { 0 };
    tke_adapter *a = make(w, 4, 7, 1, true), *b = make(w, 4, 7, 2, true);
    char *folder = save(a, TKE_NAMES_PEFT, TKE_F32), *room = tiny_folder();
    char hosted[512], back[512], dropped[512];
    mode_t before = umask(022);
    snprintf(hosted, sizeof hosted, "%s/hosted", room);
    snprintf(back, sizeof back, "%s/back", room);
    snprintf(dropped, sizeof dropped, "%s/dropped", room);
    assert_true(export(folder, NULL, hosted, TINKC_ADAPTER_HOSTED, false, &err));
    assert_true(export(hosted, NULL, back, TINKC_ADAPTER_PEFT, false, &err));
    assert_true(tke_adapter_load(b, hosted, false, &err));
    assert_memory_equal(adapter_weights(a), adapter_weights(b), n_floats(a) * 4);
    assert_true(tke_adapter_load(b, back, false, &err));
    assert_true(export(folder, NULL, dropped, TINKC_ADAPTER_PEFT, true, &err));
    static const char *const parts[] = { "lora_A", "lora_B" };
    for (int i = 0; i < 2; i++) {
        char of_hosted[80], of_peft[80];
        snprintf(of_hosted, sizeof of_hosted, "base_model.model.model.unembed_tokens.%s.weight", parts[i]);
        snprintf(of_peft, sizeof of_peft, "base_model.model.lm_head.%s.weight", parts[i]);
        assert_true(has_tensor(hosted, of_hosted) && !has_tensor(hosted, of_peft));
        assert_true(has_tensor(back, of_peft) && !has_tensor(back, of_hosted));
        assert_true(!has_tensor(dropped, of_peft) && !has_tensor(dropped, of_hosted));
    }
    assert_true(says_format(folder, "adapter_model.safetensors"));
    assert_true(says_format(back, "adapter_model.safetensors"));
    char *first = text_in(folder, "adapter_config.json"), *last = text_in(back, "adapter_config.json");
    assert_string_equal(last, first); /* all of it, to the end of its line */
    test_free(first);
    test_free(last);
    expect_targets(hosted, false, true);
    expect_targets(back, true, false);
    expect_targets(dropped, false, false);
    /* What the store keeps is its own; an export is for others as the umask allows. */
    assert_int_equal(mode_in(folder, "adapter_model.safetensors"), 0600);
    assert_int_equal(mode_in(back, "adapter_model.safetensors"), 0644);
    assert_int_equal(mode_in(back, "adapter_config.json"), 0644);
    umask(before);
    tke_adapter_spec spec;
    assert_true(tke_adapter_probe(w->model, dropped, &spec, &err));
    assert_int_equal(spec.train, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    assert_false(export(folder, NULL, back, TINKC_ADAPTER_PEFT, false, &err));
    assert_int_equal(err.code, TINKC_E_EXISTS);
    tke_adapter_free(a);
    tke_adapter_free(b);
    tiny_model_remove(folder);
    tiny_model_remove(room);
}

/* The head under the name of tied models gets its usual one; a text of target_modules stays as it is. */
TEST(export_of_other_names)
{
    world *w = *state;
    tinkc_error err = { 0 };
    tke_adapter *a = make(w, 4, TKE_TRAIN_UNEMBED, 1, true);
    char *folder = save(a, TKE_NAMES_PEFT, TKE_F32), *room = tiny_folder(), target[512], path[600];
    static const char config[] = "{\"r\":4,\"target_modules\":\"all-linear\",\"lora_alpha\":32}";
    change(folder, "adapter_model.safetensors", "lora_A", "base_model.model.model.embed_tokens.lora_A.weight", NULL);
    change(folder, "adapter_model.safetensors", "lora_B", "base_model.model.model.embed_tokens.lora_B.weight", NULL);
    tiny_write(folder, "adapter_config.json", config);
    snprintf(target, sizeof target, "%s/out", room);
    assert_true(export(folder, NULL, target, TINKC_ADAPTER_PEFT, false, &err));
    assert_true(has_tensor(target, "base_model.model.lm_head.lora_A.weight"));
    assert_true(has_tensor(target, "base_model.model.lm_head.lora_B.weight"));
    char *text = text_in(target, "adapter_config.json");
    text[strlen(text) - 1] = '\0';
    assert_string_equal(text, config);
    test_free(text);
    snprintf(path, sizeof path, "%s/nothing", room);
    assert_false(export(folder, NULL, path, TINKC_ADAPTER_PEFT, true, &err));
    assert_int_equal(err.code, TINKC_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "without its unembedding nothing is left of"));
    assert_false(tkc_is_dir(path));
    tke_adapter_free(a);
    tiny_model_remove(folder);
    tiny_model_remove(room);
}

static void log_probs(tke_model *m, tke_adapter *a, tke_device *d, float *out, size_t n)
{
    tinkc_error err = { 0 };
    int32_t tokens[64];
    int64_t targets[64];
    for (size_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)(i * 37 % 101);
        targets[i] = (int64_t)(i * 53 % 101);
    }
    tke_device_model *loaded = device_load(d, m);
    tke_trainer *t = tke_trainer_new(loaded, &(tke_trainer_options){ 0 }, &err);
    tke_datum datum = { .tokens = tokens, .n = n, .k = 1, .targets = targets };
    tke_pass p = { .adapter = a, .data = &datum, .n_data = 1 }, *list[1] = { &p };
    tke_trainer_run(t, list, 1);
    assert_string_equal(p.err.message, "");
    memcpy(out, p.out.logprobs, n * sizeof *out);
    tke_pass_free(&p);
    tke_trainer_free(t);
    device_unload(loaded);
}

/* A merged model gives the adapter's log-probs; its head is untied. */
TEST(a_merged_model_gives_the_adapters_logprobs)
{
    world *w = *state;
    tinkc_error err = { 0 };
    tke_adapter *a = make(w, 4, 7, 1, true);
    char *folder = save(a, TKE_NAMES_HOSTED, TKE_F32), *room = tiny_folder(), target[512];
    float want[40], got[40];
    snprintf(target, sizeof target, "%s/merged", room);
    mode_t before = umask(027);
    assert_true(export(folder, w->folder, target, TINKC_ADAPTER_MERGED, false, &err));
    assert_int_equal(mode_in(target, "model-00001-of-00002.safetensors"), 0640);
    assert_true(says_format(target, "model-00001-of-00002.safetensors"));
    umask(before);
    tke_model *m = tke_model_open(target, &err);
    assert_string_equal(err.message, "");
    assert_false(tke_model_config(m)->tied);
    log_probs(w->model, a, w->device, want, 40);
    log_probs(m, NULL, w->device, got, 40);
    for (int i = 0; i < 40; i++)
        assert_true(fabsf(want[i] - got[i]) < 2e-5f);
    tke_model_drop(m);
    tke_adapter_free(a);
    tiny_model_remove(folder);
    tiny_model_remove(room);
}

/* Models of each kind: one file or two, a head of their own or none; and adapters whose head has each of its
 * names, or whose matrices lack their B. */
TEST(merges_of_all_kinds)
{
    world *w = *state;
    static const struct {
        bool tied, shards;
        const char *head; /* NULL = the B of a matrix is left out, which is the same as zeros */
    } cases[] = { { false, false, "lm_head" },
                  { false, true, "model.unembed_tokens" },
                  { true, false, "model.embed_tokens" },
                  { true, true, "lm_head" },
                  { false, false, NULL } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tinkc_error err = { 0 };
        char *base = tiny_model_make(
            &(tiny_model){ .family = "llama", .layers = 1, .tied = cases[i].tied, .shards = cases[i].shards });
        world own = { base, tke_model_open(base, &err), w->device };
        tke_adapter *a = make(&own, 4, 7, i, true);
        const tke_lora_group *g = &tke_adapter_lora(a)->layout->groups[0];
        for (size_t k = 0; !cases[i].head && k < g->out[0] * 4; k++)
            adapter_weights(a)[g->b[0] + k] = 0;
        char *folder = save(a, TKE_NAMES_PEFT, TKE_F32), *room = tiny_folder(), target[512];
        char name[2][100];
        for (int ab = 0; cases[i].head && ab < 2; ab++) {
            snprintf(name[ab], sizeof name[ab], "base_model.model.%s.lora_%c.weight", cases[i].head, "AB"[ab]);
            change(folder, "adapter_model.safetensors", ab ? "lm_head.lora_B" : "lm_head.lora_A", name[ab], NULL);
        }
        if (!cases[i].head)
            change(folder, "adapter_model.safetensors", "q_proj.lora_B", NULL, NULL);
        float want[40], got[40];
        snprintf(target, sizeof target, "%s/merged", room);
        assert_true(export(folder, base, target, TINKC_ADAPTER_MERGED, false, &err));
        tke_model *m = tke_model_open(target, &err);
        assert_string_equal(err.message, "");
        assert_false(tke_model_config(m)->tied);
        log_probs(own.model, a, w->device, want, 40);
        log_probs(m, NULL, w->device, got, 40);
        for (int k = 0; k < 40; k++)
            assert_true(fabsf(want[k] - got[k]) < 2e-5f);
        if (cases[i].tied) { /* its configuration is the base's, with one member changed */
            char *text = text_in(target, "config.json");
            assert_non_null(strstr(text, "\"tie_word_embeddings\":false}\n"));
            assert_null(strstr(text, "true"));
            test_free(text);
        }
        tke_model_drop(m);
        tke_model_drop(own.model);
        tke_adapter_free(a);
        tiny_model_remove(base);
        tiny_model_remove(folder);
        tiny_model_remove(room);
    }
}

/* Adapters that do not fit all of a model, and shards that hold a second tensor of a name that the model reads
 * from the other one. */
TEST(merges_that_are_refused)
{
    world *w = *state;
    static const float numbers[33 * 33] = { 0 };
    static const struct {
        int64_t dims[2];
        int32_t n_dims, dtype;
        const char *message;
    } second[] = { { { 1024, 0 }, 1, TKE_F32, "is not a matrix of numbers" },
                   { { 16, 32 }, 2, TKE_FILE_I64, "is not a matrix of numbers" },
                   { { 33, 32 }, 2, TKE_F32, "does not fit" },
                   { { 32, 33 }, 2, TKE_F32, "does not fit" },
                   { { 32, 32 }, 2, TKE_F32, NULL } };
    char *room = tiny_folder(), target[512];
    tke_adapter *a = make(w, 4, TKE_TRAIN_ATTN, 1, true);
    char *folder = save(a, TKE_NAMES_PEFT, TKE_F32);
    snprintf(target, sizeof target, "%s/merged", room);
    for (size_t i = 0; i < sizeof second / sizeof *second; i++) {
        char *base = tiny_model_make(&(tiny_model){ .family = "qwen3", .tied = true, .dtype = "F32", .shards = true });
        char *index = text_in(base, "model.safetensors.index.json");
        const char *at = strstr(index, "model.layers.0.self_attn.q_proj.weight");
        bool in_first = strstr(at, "model-0000")[10] == '1';
        tke_file_tensor t = { .name = "model.layers.0.self_attn.q_proj.weight",
                              .data = (const unsigned char *)numbers,
                              .dtype = second[i].dtype,
                              .n_dims = second[i].n_dims };
        memcpy(t.dims, second[i].dims, sizeof second[i].dims);
        t.n_bytes = (size_t)(t.dims[0] * (t.n_dims == 2 ? t.dims[1] : 1)) * tke_file_dtype_size(t.dtype);
        change(base, in_first ? "model-00002-of-00002.safetensors" : "model-00001-of-00002.safetensors", NULL, NULL,
               &t);
        tinkc_error err = { 0 };
        bool ok = export(folder, base, target, TINKC_ADAPTER_MERGED, false, &err);
        assert_int_equal(ok, !second[i].message);
        if (!ok)
            assert_int_equal(err.code, TINKC_E_MODEL);
        if (!ok && !strstr(err.message, second[i].message))
            fail_msg("wanted '%s', got '%s'", second[i].message, err.message);
        assert_int_equal(tkc_is_dir(target), ok);
        test_free(index);
        tiny_model_remove(base);
    }
    char *small = tiny_model_make(&(tiny_model){ .family = "qwen3", .tied = true, .layers = 1 });
    tinkc_error err = { 0 };
    snprintf(target, sizeof target, "%s/small", room);
    assert_false(export(folder, small, target, TINKC_ADAPTER_MERGED, false, &err));
    assert_non_null(strstr(err.message, "tensors belong to no matrix of the model"));
    tiny_model_remove(small);
    tke_adapter_free(a);
    tiny_model_remove(folder);
    tiny_model_remove(room);
}

static size_t bytes_of_tensors(const char *folder, const char *name)
{
    char path[600];
    tinkc_error err = { 0 };
    tke_tensor_file f;
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_true(tke_tensor_file_open(&f, path, &err));
    for (size_t i = 0; i < f.n_tensors; i++)
        bytes += f.tensors[i].n_bytes;
    tke_tensor_file_close(&f);
    return bytes;
}

static int64_t shown[2], first_shown; /* done and total, as last reported; done, as first */
static int n_shown;

static bool note_progress(int64_t done, int64_t total, void *user)
{
    (void)user;
    assert_true(done >= shown[0]);
    first_shown = n_shown++ ? first_shown : done;
    shown[0] = done;
    shown[1] = total;
    return true;
}

/* What stands beside the weights is copied; the index has the size of all tensors. */
TEST(files_beside_a_merged_model)
{
    static const char *const names[] = { "generation_config.json",  "tokenizer.json", "tokenizer_config.json",
                                         "special_tokens_map.json", "vocab.json",     "merges.txt",
                                         "chat_template.jinja",     "config.json" };
    world *w = *state;
    tinkc_error err = { 0 };
    tke_adapter *a = make(w, 2, TKE_TRAIN_ATTN, 1, true); /* its head stays tied */
    char *folder = save(a, TKE_NAMES_PEFT, TKE_F32), *room = tiny_folder(), target[512], want[80];
    for (size_t i = 0; i < 7; i++) {
        snprintf(want, sizeof want, "{\"of\":\"%s\"}", names[i]);
        tiny_write(w->folder, names[i], want);
    }
    snprintf(target, sizeof target, "%s/merged", room);
    tinkc_adapter_options o = {
        .adapter = folder, .base_model = w->folder, .target = target, .format = TINKC_ADAPTER_MERGED
    };
    assert_true(tinkc_adapter_export(&o, note_progress, NULL, &err));
    assert_true(n_shown == 2 && shown[0] == shown[1]); /* two files, to their end */
    size_t sizes[2] = { bytes_of_tensors(w->folder, "model-00001-of-00002.safetensors"),
                        bytes_of_tensors(w->folder, "model-00002-of-00002.safetensors") };
    assert_int_equal(shown[1], sizes[0] + sizes[1]);
    assert_true(first_shown == (int64_t)sizes[0] || first_shown == (int64_t)sizes[1]);
    /* An adapter alone: the bytes of its file. A tensor that the model does not use does not count. */
    char plain[512], path[600];
    struct stat file;
    snprintf(plain, sizeof plain, "%s/plain", room);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    assert_int_equal(stat(path, &file), 0);
    o.target = plain;
    o.format = TINKC_ADAPTER_PEFT;
    shown[0] = n_shown = 0;
    assert_true(tinkc_adapter_export(&o, note_progress, NULL, &err));
    assert_true(n_shown == 1 && shown[0] == file.st_size && shown[1] == file.st_size);
    static const float unused[600] = { 0 };
    char *base = tiny_model_make(&(tiny_model){ .family = "qwen3", .tied = true });
    size_t used = bytes_of_tensors(base, "model.safetensors");
    change(base, "model.safetensors", NULL, NULL,
           &(tke_file_tensor){ .name = "other",
                               .data = (const unsigned char *)unused,
                               .n_bytes = sizeof unused,
                               .dtype = TKE_F32,
                               .dims = { 600 },
                               .n_dims = 1 });
    snprintf(plain, sizeof plain, "%s/more", room);
    o.format = TINKC_ADAPTER_MERGED;
    o.base_model = base;
    shown[0] = n_shown = 0;
    assert_true(tinkc_adapter_export(&o, note_progress, NULL, &err));
    assert_true(n_shown == 1 && shown[0] == (int64_t)used && shown[1] == (int64_t)used);
    assert_int_equal(bytes_of_tensors(plain, "model.safetensors"), used + sizeof unused);
    tiny_model_remove(base);
    for (size_t i = 0; i < 8; i++) {
        char *before = text_in(w->folder, names[i]), *after = text_in(target, names[i]);
        assert_string_equal(after, before);
        test_free(before);
        test_free(after);
    }
    snprintf(want, sizeof want, "\"total_size\":%zu",
             bytes_of_tensors(target, "model-00001-of-00002.safetensors") +
                 bytes_of_tensors(target, "model-00002-of-00002.safetensors"));
    char *index = text_in(target, "model.safetensors.index.json");
    if (!strstr(index, want))
        fail_msg("no %s in %s", want, strstr(index, "total_size"));
    test_free(index);
    tke_adapter_free(a);
    tiny_model_remove(folder);
    tiny_model_remove(room);
}

static bool stop_at_once(int64_t done, int64_t total, void *user)
{
    (void)done, (void)total, (void)user;
    return false;
}

TEST(a_failed_export_leaves_nothing)
{
    world *w = *state;
    tinkc_error err = { 0 };
    tke_adapter *a = make(w, 4, 7, 1, true);
    char *folder = save(a, 0, TKE_F32), *room = tiny_folder(), target[512];
    snprintf(target, sizeof target, "%s/x", room);
    assert_false(export(folder, NULL, target, TINKC_ADAPTER_MERGED, false, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    err = (tinkc_error){ 0 };
    assert_false(export(room, NULL, target, TINKC_ADAPTER_PEFT, false, &err));
    assert_int_equal(err.code, TINKC_E_MODEL);
    err = (tinkc_error){ 0 };
    tinkc_adapter_options o = { .adapter = folder, .target = target };
    assert_false(tinkc_adapter_export(&o, stop_at_once, NULL, &err));
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    assert_false(tkc_is_dir(target)); /* nothing half-made is left */
    tke_adapter_free(a);
    tiny_model_remove(folder);
    tiny_model_remove(room);
}

RUN_TESTS(setup, teardown)
