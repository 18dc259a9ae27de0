/* tinkc_quantize: folders and GGUF files that hold the numbers that packing gives, whole or not at all. */
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/file.h"
#include "math/format.h"
#include "support/engine/one_pass.h"
#include "support/test_case.h"
#include "tinkc/engine.h"

enum { NAME = 600, SIDE = 128 };

typedef struct scene {
    char *folder, *work, target[NAME], other[NAME];
} scene;

static const tiny_model dense = { .family = "qwen3",
                                  .layers = 2,
                                  .hidden = 192,
                                  .inner = 320,
                                  .heads = 4,
                                  .head_dim = 64,
                                  .dtype = "BF16",
                                  .tied = true };

/* With the smallest tokenizer that has a GGUF form. */
static scene open_scene(const tiny_model *like, const char *target)
{
    scene s = { .folder = tiny_model_make(like), .work = tiny_folder() };
    tiny_write(s.folder, "tokenizer.json",
               "{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", "
               "\"vocab\": {\"x\": 0}, \"merges\": []}}");
    snprintf(s.target, sizeof s.target, "%s/%s", s.work, target);
    return s;
}

static void close_scene(scene *s)
{
    tiny_model_remove(s->folder);
    tiny_model_remove(s->work);
}

static void quantize(const scene *s, int bits, const char *format)
{
    tinkc_error err = { 0 };
    tinkc_quantize_options o = { .model = s->folder, .target = s->target, .bits = bits, .format = format };
    if (!tinkc_quantize(&o, NULL, NULL, NULL, &err))
        fail_msg("%s: %s", s->target, err.message);
}

static tke_model *opened(const char *path)
{
    tinkc_error err = { 0 };
    tke_model *m = tke_model_open(path, &err);
    if (!m)
        fail_msg("%s", err.message);
    return m;
}

static void row_of(const tke_weight *w, size_t r, tke_real *out)
{
    tke_matrix_row(&w->m, (int64_t)r, 0, (int64_t)w->in, out);
}

static void expect_same_weight(const tke_weight *x, const tke_weight *y)
{
    tke_real a[1024], b[1024];
    assert_true(x->in <= 1024 && x->in == y->in && x->out == y->out);
    for (size_t r = 0; x->m.data && r < x->out; r++) {
        row_of(x, r, a);
        row_of(y, r, b);
        if (memcmp(a, b, x->in * sizeof *a) != 0)
            fail_msg("%s: row %zu differs", x->path, r);
    }
}

/* Every matrix of the layers. */
static void expect_same_layers(const char *x, const char *y)
{
    tke_model *a = opened(x), *b = opened(y);
    assert_int_equal(a->n_groups, b->n_groups);
    for (size_t g = 0; g + 1 < a->n_groups; g++)
        for (size_t w = 0; w < a->groups[g]->n; w++)
            expect_same_weight(&a->groups[g]->w[w], &b->groups[g]->w[w]);
    tke_model_drop(a);
    tke_model_drop(b);
}

/* ---- the same numbers as in memory ---- */

TEST(a_folder_in_nf4_holds_what_packing_in_memory_gives)
{
    static const struct {
        const char *what;
        tiny_model model;
    } rows[] = {
        { "dense", { .family = "qwen3", .tied = true } },
        { "an index of files", { .family = "llama", .shards = true } },
        { "biases", { .family = "qwen2" } },
        { "experts in tensors of their own", { .family = "qwen3_moe" } },
        { "tensors of several matrices", { .family = "qwen3_5_text" } },
        { "keys in text_config", { .family = "qwen3_5_text", .nested = true } },
        { "state spaces", { .family = "nemotron_h" } },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tiny_model like = rows[i].model;
        like.layers = 2;
        like.hidden = 128;
        like.inner = 192;
        like.heads = 4;
        like.head_dim = 32;
        like.dtype = "BF16";
        scene s = open_scene(&like, "nf4");
        print_message("%s\n", rows[i].what);
        quantize(&s, 4, NULL);
        snprintf(s.other, sizeof s.other, "%s#4bit", s.folder);
        expect_same_layers(s.target, s.other);
        close_scene(&s);
    }
}

TEST(a_folder_in_nf4_trains_like_the_model_packed_in_memory)
{
    scene s = open_scene(&dense, "nf4");
    quantize(&s, 0, "nf4");
    snprintf(s.other, sizeof s.other, "%s#4bit", s.folder);
    assert_int_equal(one_pass_same(s.target, s.other, TKE_PRECISION_F32), 0);
    close_scene(&s);
}

TEST(a_gguf_file_in_q8_0_holds_what_packing_in_memory_gives)
{
    scene s = open_scene(&dense, "model.gguf");
    quantize(&s, 8, NULL);
    snprintf(s.other, sizeof s.other, "%s#8bit", s.folder);
    expect_same_layers(s.target, s.other);
    close_scene(&s);
}

/* GGUF files keep gates and ups apart, folders of gpt-oss in turn: the products are the same, and only the order in which
 * the input's gradient is summed differs. */
TEST(gpt_oss_comes_back_from_a_gguf_file)
{
    for (int packed = 0; packed < 2; packed++) {
        tiny_model like = { .family = "gpt_oss",
                            .layers = 2,
                            .hidden = 64,
                            .inner = 96,
                            .heads = 4,
                            .head_dim = 32,
                            .dtype = "BF16",
                            .mxfp4 = packed,
                            .extra = "\"swiglu_limit\": 7.0, \"swiglu_alpha\": 1.702",
                            .rope = "\"rope_type\": \"yarn\", \"rope_theta\": 150000.0, \"factor\": 32.0, "
                                    "\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"truncate\": false, "
                                    "\"original_max_position_embeddings\": 4096" };
        scene s = open_scene(&like, "oss.gguf");
        quantize(&s, 0, "bf16");
        one_pass a = one_pass_of(s.folder, TKE_PRECISION_F32), b = one_pass_of(s.target, TKE_PRECISION_F32);
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.logprobs, b.logprobs, sizeof a.logprobs);
        for (size_t i = 0; i < a.n / sizeof *a.grads; i++)
            if (fabsf(a.grads[i] - b.grads[i]) > 1e-4f * (1 + fabsf(a.grads[i])))
                fail_msg("gradient %zu: %g and %g", i, (double)a.grads[i], (double)b.grads[i]);
        free(a.grads);
        free(b.grads);
        close_scene(&s);
    }
}

TEST(experts_come_back_from_a_gguf_file)
{
    scene s = open_scene(
        &(tiny_model){ .family = "qwen3_moe", .layers = 1, .dtype = "BF16", .extra = "\"mlp_only_layers\": []" },
        "moe.gguf");
    quantize(&s, 0, "bf16");
    (void)one_pass_same(s.target, s.folder, TKE_PRECISION_F32);
    close_scene(&s);
}

TEST(other_tensors_are_copied)
{
    scene s = open_scene(&dense, "nf4");
    quantize(&s, 4, NULL);
    tke_model *a = opened(s.folder), *b = opened(s.target);
    expect_same_weight(&a->embed, &b->embed);
    assert_memory_equal(a->norm, b->norm, 192 * sizeof *a->norm);
    assert_int_equal(b->embed.m.dtype, TKE_BF16);
    tke_model_drop(a);
    tke_model_drop(b);
    close_scene(&s);
}

/* ---- FP8 ---- */

/* Each number's error is at most half a step of its exponent, or of the smallest exponent. */
static void expect_near(const tke_weight *plain, const tke_weight *packed)
{
    tke_real x[1024], y[1024];
    size_t across = (plain->in + SIDE - 1) / SIDE;
    for (size_t r = 0; r < plain->out; r++) {
        row_of(plain, r, x);
        row_of(packed, r, y);
        for (size_t i = 0; i < plain->in; i++) {
            float factor = packed->m.factors[r / SIDE * across + i / SIDE];
            float step = fmaxf(fabsf(x[i]) / 16, factor * 0x1p-10f) * 1.0001f;
            if (fabsf(x[i] - y[i]) > step + fabsf(y[i]) / 256)
                fail_msg("%s[%zu, %zu]: %g became %g", plain->path, r, i, (double)x[i], (double)y[i]);
        }
    }
}

TEST(fp8_is_to_the_nearest_code_of_its_square)
{
    scene s = open_scene(&dense, "fp8");
    quantize(&s, 8, NULL);
    tke_model *a = opened(s.folder), *b = opened(s.target);
    assert_int_equal(b->groups[0]->w[0].m.dtype, TKE_FP8);
    for (size_t g = 0; g + 1 < a->n_groups; g++)
        for (size_t w = 0; w < a->groups[g]->n; w++)
            expect_near(&a->groups[g]->w[w], &b->groups[g]->w[w]);
    tke_model_drop(a);
    tke_model_drop(b);
    close_scene(&s);
}

/* All 254 finite codes in two squares, one below the other, of which the second is half as large. */
TEST(numbers_that_fp8_has_are_kept)
{
    static uint16_t x[2 * SIDE][200], y[200];
    static uint8_t all[256], codes[2 * SIDE * 200];
    float factors[4] = { 1, 1, 1, 1 };
    tke_matrix source = { .data = all, .ld = 256, .dtype = TKE_FP8, .factors = factors };
    uint16_t values[256];
    for (int i = 0; i < 256; i++)
        all[i] = (uint8_t)((i & 0x7f) == 0x7f ? 0 : i); /* NaN is not a number to keep */
    tke_format_fp8.unpack[TKE_UNPACK_REF](&source, 0, 0, 256, values);
    for (int r = 0; r < 2 * SIDE; r++)
        for (int i = 0; i < 200; i++) {
            float v = tke_bf16_to_f32(values[(r * 7 + i) & 255]);
            x[r][i] = tke_f32_to_bf16(r < SIDE ? v : v / 2);
        }
    tke_matrix m = { .data = x, .ld = 200, .dtype = TKE_BF16 };
    for (int64_t band = 0; band < 2; band++)
        assert_true(tke_fp8_pack(&m, 2 * SIDE, band, codes, factors));
    assert_true(factors[0] == 1 && factors[1] == 1 && factors[2] == 0.5f && factors[3] == 0.5f);
    tke_matrix packed = { .data = codes, .ld = 200, .dtype = TKE_FP8, .factors = factors };
    for (int r = 0; r < 2 * SIDE; r++) {
        tke_format_fp8.unpack[TKE_UNPACK_REF](&packed, r, 0, 200, y);
        assert_memory_equal(y, x[r], sizeof y);
    }
    x[SIDE + 3][150] = 0x7f80;
    assert_false(tke_fp8_pack(&m, 2 * SIDE, 1, codes, factors));
}

TEST(a_number_between_two_codes_of_fp8_goes_to_the_even_one)
{
    static const struct {
        float from, to;
    } rows[] = {
        { 1.0625f, 1 },       { 1.1875f, 1.25f },    { -1.0625f, -1 },
        { 432, 448 },         { 0x1p-10f, 0 },       { 0x3p-10f, 0x2p-9f },
        { 0x1p-6f, 0x1p-6f }, { 0xfp-10f, 0x1p-6f }, { 1.0625f + 0x1p-7f, 1.125f },
    };
    enum { N = sizeof rows / sizeof *rows };
    uint16_t x[N + 1] = { 0x43e0 }, y[N + 1]; /* 448: the factor is 1 */
    uint8_t codes[N + 1];
    float factor;
    for (int i = 0; i < N; i++)
        x[i + 1] = tke_f32_to_bf16(rows[i].from);
    assert_true(tke_fp8_pack(&(tke_matrix){ .data = x, .ld = N + 1, .dtype = TKE_BF16 }, 1, 0, codes, &factor));
    assert_true(factor == 1);
    tke_matrix m = { .data = codes, .ld = N + 1, .dtype = TKE_FP8, .factors = &factor };
    tke_format_fp8.unpack[TKE_UNPACK_REF](&m, 0, 0, N + 1, y);
    for (int i = 0; i < N; i++)
        if (tke_bf16_to_f32(y[i + 1]) != rows[i].to)
            fail_msg("%g became %g", (double)rows[i].from, (double)tke_bf16_to_f32(y[i + 1]));
}

/* ---- whole or not at all ---- */

static bool stop_later(int64_t done, int64_t total, void *user)
{
    int *calls = user;
    (void)total;
    return done == 0 || ++*calls < 3;
}

/* Not the target, and nothing beside it. */
static void expect_nothing(const scene *s)
{
    struct dirent *entry;
    DIR *folder = opendir(s->work);
    assert_non_null(folder);
    while ((entry = readdir(folder)))
        if (entry->d_name[0] != '.')
            fail_msg("%s is left", entry->d_name);
    closedir(folder);
}

static const char *const targets[] = { "folder", "model.gguf" };

TEST(a_stopped_one_leaves_nothing)
{
    for (int i = 0; i < 2; i++) {
        int calls = 0;
        tinkc_error err = { 0 };
        scene s = open_scene(&dense, targets[i]);
        tinkc_quantize_options o = { .model = s.folder, .target = s.target, .bits = 8 };
        assert_false(tinkc_quantize(&o, stop_later, &calls, NULL, &err));
        assert_int_equal(err.code, TINKC_E_CANCELLED);
        expect_nothing(&s);
        close_scene(&s);
    }
}

static char *text_in(const scene *s, const char *name, char out[8192])
{
    char path[NAME + 32];
    snprintf(path, sizeof path, "%s/%s", s->target, name);
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(out, 1, 8191, f) : 0;
    if (f)
        fclose(f);
    out[n] = '\0';
    return out;
}

/* Other programs look for a packed form of every matrix that is not in the list. */
TEST(a_packed_folder_lists_what_is_not_packed_and_has_the_small_files)
{
    static const char *const lists[] = { "\"llm_int8_skip_modules\":[", "\"modules_to_not_convert\":[" };
    for (int i = 0; i < 2; i++) {
        char text[8192];
        scene s = open_scene(&dense, "made");
        quantize(&s, i ? 8 : 4, NULL);
        char *list = strstr(text_in(&s, "config.json", text), lists[i]);
        assert_non_null(list);
        *strchr(list, ']') = '\0';
        assert_non_null(strstr(list, "\"lm_head\""));
        assert_non_null(strstr(list, "\"model.embed_tokens\""));
        assert_null(strstr(list, "_proj"));
        assert_non_null(strstr(text_in(&s, "tokenizer.json", text), "ByteLevel"));
        close_scene(&s);
    }
}

/* Not a folder that happens to have the name of an unfinished one; a slash behind a folder's name is no other. */
TEST(what_lies_beside_a_target_stays)
{
    char beside[NAME + 16], file[NAME + 32];
    scene s = open_scene(&dense, "made");
    tinkc_error err = { 0 };
    snprintf(beside, sizeof beside, "%s.partial", s.target);
    snprintf(file, sizeof file, "%s/mine", beside);
    assert_true(tkc_make_dirs(beside, &err));
    tiny_write(beside, "mine", "mine");
    strcat(s.target, "/");
    quantize(&s, 4, NULL);
    assert_true(tkc_is_file(file));
    close_scene(&s);
}

TEST(a_full_disk_leaves_nothing)
{
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    for (int i = 0; i < 2; i++) {
        tinkc_error err = { 0 };
        scene s = open_scene(&dense, targets[i]);
        tinkc_quantize_options o = { .model = s.folder, .target = s.target, .bits = 8 };
        signal(SIGXFSZ, SIG_IGN);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 100 << 10, before.rlim_max }), 0);
        bool made = tinkc_quantize(&o, NULL, NULL, NULL, &err);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        signal(SIGXFSZ, SIG_DFL);
        assert_false(made);
        assert_int_equal(err.code, TINKC_E_FILE);
        expect_nothing(&s);
        close_scene(&s);
    }
}

TEST(what_cannot_be_made_is_refused_and_nothing_is_overwritten)
{
    scene s = open_scene(&dense, "there"), p = open_scene(&dense, "packed");
    tiny_write(s.work, "there", "mine");
    quantize(&p, 4, NULL);
    char fresh[NAME];
    snprintf(fresh, sizeof fresh, "%s/fresh", s.work);
    const struct {
        tinkc_quantize_options o;
        const char *why;
    } rows[] = {
        { { .model = s.folder, .target = s.target, .bits = 4 }, "there: already exists" },
        { { .model = s.folder, .target = s.work, .bits = 4 }, ": already exists" },
        { { .model = p.target, .target = fresh, .bits = 4 }, "packed already (NF4)" },
        { { .model = s.folder, .target = fresh, .format = "q8_0" }, "in a folder: nf4, fp8" },
        { { .model = s.folder, .target = "x.gguf", .format = "fp8" }, "in a GGUF file: q4_0" },
        { { .model = s.folder, .target = fresh, .format = "nf4", .bits = 4 }, "exclude each other" },
        { { .model = s.folder, .target = "/dev/null/x", .bits = 4 }, "/dev/null" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        if (tinkc_quantize(&rows[i].o, NULL, NULL, NULL, &err) || !strstr(err.message, rows[i].why))
            fail_msg("%s: %s", rows[i].why, err.message);
    }
    close_scene(&s);
    close_scene(&p);
}

static int without_cache(void **state)
{
    (void)state;
    return setenv("XDG_CACHE_HOME", "/dev/null/none", 1);
}

RUN_TESTS(without_cache, NULL)
