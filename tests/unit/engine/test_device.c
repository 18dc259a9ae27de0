/* test_device.c - which device is chosen and what is said about it; a device that fails. */
#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>

#include "infer/infer.h"
#include "support/engine/on_device.h"
#include "support/engine/tiny_model.h"
#include "support/test_case.h"
#include "train/training.h"

/* ---- the choice ---- */

TEST(device_names_have_one_form)
{
    static const char *const good[] = { NULL, "", "auto", "cpu", "cuda", "cuda:0", "cuda:9", "cuda:999" };
    static const char *const bad[] = { "gpu",       "CPU",   "cuda:",  "cuda:x", "cuda:-1", "cuda:1 ",
                                       "cuda:1000", "cudas", "cuda:/", "cuda::", "xcuda" };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        tinkc_error err = { 0 };
        assert_true(tke_device_name_check(good[i], &err));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tinkc_error err = { 0 };
        assert_null(tke_device_open(bad[i], &(tke_device_options){ 0 }, NULL, &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
        assert_non_null(strstr(err.message, "use auto, cpu, cuda or cuda:N"));
    }
}

/* Asked for by name it fails with these words; auto falls back and says them. */
static void expect_no_card(const char *name, const char *words)
{
    tinkc_error err = { 0 };
    tke_device_reason why;
    tke_device_info info;
    assert_null(tke_device_open(name, &(tke_device_options){ .n_threads = 1 }, &why, &err));
    assert_int_equal(err.code, TINKC_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, words));
    err = (tinkc_error){ 0 };
    tke_device *d = tke_device_open("auto", &(tke_device_options){ .n_threads = 1 }, &why, &err);
    assert_non_null(d);
    assert_int_equal(err.code, 0);
    d->ops->info(d, &info);
    assert_string_equal(info.name, "cpu");
    if (!strchr(name, ':'))
        assert_non_null(strstr(why.text, words));
    tke_device_close(d);
}

TEST(a_card_that_cannot_be_used_is_explained)
{
    setenv("TINKC_CUDA_MODULE", "/nonexistent/module.so", 1);
    expect_no_card("cuda", "TINKC_CUDA_MODULE cannot be opened");
    setenv("TINKC_CUDA_MODULE", FAKE_CARD_MODULE, 1);
    setenv("FAKE_CARD", "old", 1);
    expect_no_card("cuda", "belongs to another version of the engine");
    setenv("FAKE_CARD", "refuse", 1);
    expect_no_card("cuda", "belongs to another version of the engine");
    assert_null(dlopen(FAKE_CARD_MODULE, RTLD_NOW | RTLD_NOLOAD)); /* and is closed */
    unsetenv("FAKE_CARD");
    expect_no_card("cuda", "cuda: no driver");
    expect_no_card("cuda:7", "cuda: no device 7");
    expect_no_card("cuda:90", "cuda: no device 90");
    expect_no_card("cuda:123", "cuda: no device 123");
    expect_no_card("cuda:0", "cuda: no driver");
    unsetenv("TINKC_CUDA_MODULE");
}

/* The card is taken where it can be used, and closed again. */
TEST(a_card_is_used_where_there_is_one)
{
    static const struct {
        const char *name, *card, *why;
    } rows[] = { { NULL, "card 0", "the first card that can be used" },
                 { "", "card 0", "the first card that can be used" },
                 { "auto", "card 0", "the first card that can be used" },
                 { "cuda", "card 0", "asked for by name" },
                 { "cuda:21", "card 21", "asked for by name" } };
    tke_device_info info;
    tke_device_reason why;
    setenv("TINKC_CUDA_MODULE", FAKE_CARD_MODULE, 1);
    setenv("FAKE_CARD", "works", 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        unsetenv("FAKE_CARD_CLOSED");
        tke_device *d = tke_device_open(rows[i].name, &(tke_device_options){ .index = 5 }, &why, &err);
        assert_non_null(d);
        d->ops->info(d, &info);
        assert_string_equal(info.name, rows[i].card);
        assert_string_equal(why.text, rows[i].why);
        assert_null(getenv("FAKE_CARD_CLOSED"));
        tke_device_close(d);
        assert_non_null(getenv("FAKE_CARD_CLOSED"));
    }
    tinkc_error failed = { .code = TINKC_E_FILE };
    assert_null(tke_device_open("cuda", &(tke_device_options){ 0 }, &why, &failed));
    assert_int_equal(failed.code, TINKC_E_FILE); /* after an error nothing is opened */
    assert_string_equal(why.text, "");
    tke_device_close(NULL);
    unsetenv("FAKE_CARD");
    unsetenv("FAKE_CARD_CLOSED");
    unsetenv("TINKC_CUDA_MODULE");
}

/* ---- where the module is looked for ---- */

/* In a copy of this program: says what becomes of a card asked for by name. */
static int say_what_is_found(void)
{
    tinkc_error err = { 0 };
    tke_device *d = tke_device_open("cuda", &(tke_device_options){ 0 }, NULL, &err);
    tke_device_info info = { 0 };
    if (d)
        d->ops->info(d, &info);
    puts(d ? info.text : err.message);
    tke_device_close(d);
    return 0;
}

static void expect_found(const char *folder, const char *environment, const char *said)
{
    char command[1500], line[300] = "";
    snprintf(command, sizeof command, "FAKE_CARD=works FAKE_CARD_ROOT='%s' %s '%s/bin/program' look", folder,
             environment, folder);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    assert_non_null(fgets(line, sizeof line, out));
    assert_int_equal(pclose(out), 0);
    line[strcspn(line, "\n")] = '\0';
    assert_string_equal(line, said);
}

static void shell(const char *format, const char *folder)
{
    char command[2 * PATH_MAX + 1000];
    snprintf(command, sizeof command, format, folder, folder, folder);
    assert_int_equal(system(command), 0);
}

#define NOT_FOUND                                                                                                      \
    "cuda: no module (libtinkc-engine-cuda.so not found next to the engine or in "                                     \
    "TINKC_CUDA_MODULE)"

/* A folder with a copy of this program in bin. */
static char *folder_with_program(void)
{
    char own[PATH_MAX] = "", copy[2 * PATH_MAX + 100], *folder = tiny_folder();
    assert_true(readlink("/proc/self/exe", own, sizeof own - 1) > 0);
    shell("mkdir -p '%s/bin' '%s/lib' '%s/else'", folder);
    snprintf(copy, sizeof copy, "ln '%s' '%%s/bin/program' 2>/dev/null || cp '%s' '%%s/bin/program'", own, own);
    shell(copy, folder);
    return folder;
}

TEST(a_module_elsewhere_is_found_by_name_only)
{
    char set[2 * PATH_MAX + 100], *folder = folder_with_program();
    expect_found(folder, "", NOT_FOUND);
    expect_found(folder, "TINKC_CUDA_MODULE=", NOT_FOUND);
    shell("cp '" FAKE_CARD_MODULE "' '%s/else/libtinkc-engine-cuda.so'", folder);
    expect_found(folder, "", NOT_FOUND);
    snprintf(set, sizeof set, "LD_LIBRARY_PATH='%s/else'", folder);
    expect_found(folder, set, "else");
    snprintf(set, sizeof set, "TINKC_CUDA_MODULE='%s/else/libtinkc-engine-cuda.so'", folder);
    expect_found(folder, set, "else");
    tiny_model_remove(folder);
}

/* The places in their order: beside the program, its libraries, where pip installs (an environment, Debian's own
 * folder, --target). */
static const char *const places[] = { "bin",
                                      "lib",
                                      "lib/python3.10/site-packages/tinkc_cuda",
                                      "lib/python3.13/site-packages/tinkc_cuda",
                                      "lib/python3.9/dist-packages/tinkc_cuda",
                                      "tinkc_cuda" };
enum { PLACES = sizeof places / sizeof *places };

static void fill_places(const char *folder)
{
    for (size_t i = 0; i < PLACES; i++) {
        char fill[400];
        snprintf(fill, sizeof fill, "mkdir -p '%%s/%s' && cp '" FAKE_CARD_MODULE "' '%%s/%s/libtinkc-engine-cuda.so'",
                 places[i], places[i]);
        shell(fill, folder);
    }
}

TEST(the_first_module_of_the_places_wins)
{
    char *folder = folder_with_program();
    fill_places(folder);
    for (size_t i = 0; i < PLACES; i++) {
        char empty[200];
        expect_found(folder, "", places[i]);
        snprintf(empty, sizeof empty, "rm '%%s/%s/libtinkc-engine-cuda.so'", places[i]);
        shell(empty, folder);
    }
    expect_found(folder, "", NOT_FOUND);
    tiny_model_remove(folder);
}

TEST(a_module_of_another_version_is_passed_over)
{
    char *folder = folder_with_program();
    fill_places(folder);
    expect_found(folder, "FAKE_CARD_OLD=/bin", "lib");
    shell("rm '%s/bin/libtinkc-engine-cuda.so' '%s/lib/libtinkc-engine-cuda.so'", folder);
    expect_found(folder, "FAKE_CARD_OLD=3.10/site-packages/tinkc_cuda", places[3]);
    expect_found(folder, "FAKE_CARD_OLD=tinkc_cuda",
                 "cuda: libtinkc-engine-cuda.so belongs to another version of the engine");
    tiny_model_remove(folder);
}

/* ---- views of blocks that are not in host memory ---- */

static tke_real on_card[4];
static bool card_fails;
static int n_reads, n_writes;

static tke_real *not_here(tke_device *d, const tke_block *b)
{
    (void)d, (void)b;
    return NULL;
}

static bool read_card(tke_device *d, const tke_block *from, tke_real *to, size_t n, tinkc_error *err)
{
    (void)d, (void)from;
    n_reads++;
    if (card_fails)
        return tkc_fail(err, TINKC_E_SERVER, "cuda: the card has failed");
    memcpy(to, on_card, n * sizeof *to);
    return true;
}

static bool write_card(tke_device *d, tke_block *to, const tke_real *from, size_t n, tinkc_error *err)
{
    (void)d, (void)to;
    n_writes++;
    if (card_fails)
        return tkc_fail(err, TINKC_E_SERVER, "cuda: the card has failed");
    memcpy(on_card, from, n * sizeof *from);
    return true;
}

TEST(a_view_reads_and_writes_through_the_device)
{
    static const tke_device_ops ops = { .block_host = not_here, .block_read = read_card, .block_write = write_card };
    tke_device d = { .ops = &ops };
    tke_block *block = (tke_block *)(void *)on_card;
    tinkc_error err = { 0 };
    tke_view v;
    for (int i = 0; i < 4; i++)
        on_card[i] = (tke_real)i;
    assert_true(tke_view_open(&v, &d, block, 4, &err));
    assert_true(v.copied && v.n == 4 && v.data != on_card && v.data[3] == 3);
    v.data[1] = 7;
    assert_true(tke_view_close(&v, &d, NULL, &err)); /* nothing was changed */
    assert_true(!v.data && !v.copied && v.n == 0);
    assert_true(on_card[1] == 1 && n_writes == 0);
    assert_true(tke_view_open(&v, &d, block, 4, &err));
    v.data[1] = 7;
    assert_true(tke_view_close(&v, &d, block, &err));
    assert_true(on_card[1] == 7 && n_writes == 1);
    assert_true(tke_view_open(&v, &d, block, 4, &err));
    card_fails = true;
    assert_false(tke_view_close(&v, &d, block, &err));
    assert_string_equal(err.message, "cuda: the card has failed");
    assert_null(v.data);
    err = (tinkc_error){ 0 };
    assert_false(tke_view_open(&v, &d, block, 4, &err));
    assert_string_equal(err.message, "cuda: the card has failed");
    assert_true(!v.data && !v.copied && n_reads == 4 && n_writes == 2);
    card_fails = false;
}

TEST(cpu_by_name)
{
    tinkc_error err = { 0 };
    tke_device_reason why;
    tke_device_info info;
    tke_device *d = tke_device_open("cpu", &(tke_device_options){ .n_threads = 2 }, &why, &err);
    assert_non_null(d);
    assert_string_equal(why.text, "asked for by name");
    d->ops->info(d, &info);
    assert_non_null(strstr(info.text, "2 threads"));
    tke_device_close(d);
}

/* ---- a device that fails ---- */

typedef struct world {
    char *folder;
    tke_model *model;
    tke_device *device;
    tke_device_model *loaded;
    tke_device_ops ops; /* the CPU's, with faults */
    int32_t tokens[8];
    int64_t targets[8];
    float weights[8];
} world;

static int setup(void **state)
{
    static world w;
    tinkc_error err = { 0 };
    w.folder = tiny_model_make(&(tiny_model){ .family = "qwen3", .tied = true, .seed = 3 });
    w.model = tke_model_open(w.folder, &err);
    assert_string_equal(err.message, "");
    w.device = device_cpu(1);
    w.loaded = device_load(w.device, w.model);
    for (int i = 0; i < 8; i++) {
        w.tokens[i] = i;
        w.targets[i] = i + 1;
        w.weights[i] = 1;
    }
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    device_unload(w->loaded);
    tke_device_close(w->device);
    tke_model_drop(w->model);
    tiny_model_remove(w->folder);
    return 0;
}

TEST(views_of_the_cpu)
{
    world *w = *state;
    tinkc_error err = { 0 };
    tke_view v;
    tke_block *b = w->device->ops->block_new(w->device, 3, &err);
    assert_true(tke_view_open(&v, w->device, b, 3, &err));
    assert_true(!v.copied && v.n == 3);
    assert_ptr_equal(v.data, w->device->ops->block_host(w->device, b)); /* its own, not a copy */
    v.data[2] = 5;
    assert_true(tke_view_close(&v, w->device, b, &err));
    assert_true(w->device->ops->block_host(w->device, b)[2] == 5);
    w->device->ops->block_free(w->device, b);
}

static int n_runs; /* of the function that fails the second time */

static bool second_microbatch_fails(tke_device_trainer *t, const tke_microbatch *b, tinkc_error *err)
{
    if (++n_runs == 2)
        return tkc_fail(err, TINKC_E_SERVER, "cuda: the card has failed");
    return tke_cpu_device.microbatch_run(t, b, err);
}

static tke_block *no_block(tke_device *d, size_t n, tinkc_error *err)
{
    (void)d, (void)n;
    tkc_fail(err, TINKC_E_MEMORY, "cuda: out of memory");
    return NULL;
}

static bool no_step(tke_device_sampler *s, const tke_step *step, tinkc_error *err)
{
    (void)s, (void)step;
    return tkc_fail(err, TINKC_E_SERVER, "cuda: the card has failed");
}

static bool no_adam(tke_device *d, const tke_adam *a, size_t n, const tke_block *g, tke_block *t, tke_block *m,
                    tke_block *v, double *moved, tinkc_error *err)
{
    (void)d, (void)a, (void)n, (void)g, (void)t, (void)m, (void)v, (void)moved;
    return tkc_fail(err, TINKC_E_SERVER, "cuda: the card has failed");
}

static tke_adapter *adapter_of(world *w)
{
    tinkc_error err = { 0 };
    tke_adapter *a = tke_adapter_new(w->device, w->model, &(tke_adapter_spec){ .rank = 2, .train = 7 }, &err);
    assert_non_null(a);
    return a;
}

/* Two datums, a microbatch each. */
static void run_pass(world *w, tke_adapter *a, tke_pass *p)
{
    tinkc_error err = { 0 };
    tke_datum data[2] = { { .tokens = w->tokens, .n = 8, .k = 1, .targets = w->targets } };
    tke_pass *list[1] = { p };
    data[0].weights = w->weights;
    data[1] = data[0];
    tke_trainer *t = tke_trainer_new(w->loaded, &(tke_trainer_options){ .microbatch_tokens = 8 }, &err);
    assert_non_null(t);
    *p = (tke_pass){ .adapter = a, .backward = true, .data = data, .n_data = 2 };
    assert_true(tke_loss_parse(&p->loss, tkc_str("cross_entropy"), NULL, 0, false, &err));
    tke_trainer_run(t, list, 1);
    tke_trainer_free(t);
}

/* The device fails in the middle of a pass: the gradient is as before, and the next pass works. */
TEST(a_failed_microbatch_leaves_the_gradient)
{
    world *w = *state;
    tke_pass p;
    tke_adapter *a = adapter_of(w);
    size_t n = tke_adapter_lora(a)->layout->n_floats;
    w->ops = tke_cpu_device;
    w->ops.microbatch_run = second_microbatch_fails;
    w->device->ops = &w->ops;
    n_runs = 0;
    run_pass(w, a, &p);
    assert_int_equal(p.err.code, TINKC_E_SERVER);
    assert_string_equal(p.err.message, "cuda: the card has failed");
    tke_pass_free(&p);
    for (size_t i = 0; i < n; i++)
        assert_true(adapter_grads(a)[i] == 0);
    run_pass(w, a, &p);
    assert_int_equal(p.err.code, 0);
    tke_pass_free(&p);
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)(adapter_grads(a)[i] * adapter_grads(a)[i]);
    assert_true(sum > 0);
    w->device->ops = &tke_cpu_device;
    tke_adapter_free(a);
}

TEST(out_of_memory)
{
    world *w = *state;
    tke_pass p;
    tinkc_error err = { 0 };
    tke_adapter *a = adapter_of(w);
    w->ops = tke_cpu_device;
    w->ops.block_new = no_block;
    w->device->ops = &w->ops;
    run_pass(w, a, &p);
    assert_int_equal(p.err.code, TINKC_E_MEMORY);
    tke_pass_free(&p);
    assert_null(tke_snapshot_take(a, &err));
    assert_int_equal(err.code, TINKC_E_MEMORY);
    err = (tinkc_error){ 0 };
    assert_null(tke_adapter_new(w->device, w->model, &(tke_adapter_spec){ .rank = 2, .train = 7 }, &err));
    assert_int_equal(err.code, TINKC_E_MEMORY);
    w->device->ops = &tke_cpu_device;
    run_pass(w, a, &p);
    assert_int_equal(p.err.code, 0);
    tke_pass_free(&p);
    tke_adapter_free(a);
}

static bool no_read(tke_device *d, const tke_block *from, tke_real *to, size_t n, tinkc_error *err)
{
    (void)d, (void)from, (void)to, (void)n;
    return tkc_fail(err, TINKC_E_SERVER, "cuda: the card has failed");
}

/* What cannot be read from the card is not saved. */
TEST(what_cannot_be_read_from_the_card_is_not_saved)
{
    world *w = *state;
    tinkc_error err = { 0 };
    tke_adapter *a = adapter_of(w);
    w->ops = tke_cpu_device;
    w->ops.block_read = no_read;
    w->device->ops = &w->ops;
    assert_null(tke_state_take(a, &err));
    assert_int_equal(err.code, TINKC_E_SERVER);
    w->device->ops = &tke_cpu_device;
    tke_adapter_free(a);
}

TEST(a_failed_decode_step_fails_its_samples)
{
    world *w = *state;
    tinkc_error err = { 0 };
    w->ops = tke_cpu_device;
    w->ops.step_run = no_step;
    w->device->ops = &w->ops;
    tke_infer *e = tke_infer_new(w->loaded, &(tke_infer_options){ .kv_bytes = 1 << 20 }, &err);
    tke_gen_request r = {
        .prompt = w->tokens, .n_prompt = 8, .n_samples = 2, .max_tokens = 4, .rule = { .temperature = 1, .top_p = 1 }
    };
    tke_gen *g = tke_infer_add(e, &r, &err);
    assert_non_null(g);
    while (tke_infer_step(e))
        ;
    assert_ptr_equal(tke_infer_next_done(e), g);
    assert_int_equal(tke_gen_error(g)->code, TINKC_E_SERVER);
    w->device->ops = &tke_cpu_device;
    tke_infer_free(e);
}

TEST(a_failed_optimizer_step_changes_nothing)
{
    world *w = *state;
    tke_pass p;
    tinkc_error err = { 0 };
    tke_metric metrics[TKE_MAX_METRICS];
    size_t n;
    tke_adam_params adam = { 1e-3, 0.9, 0.95, 1e-8, 0, 0 };
    tke_adapter *a = adapter_of(w);
    run_pass(w, a, &p);
    tke_pass_free(&p);
    w->ops = tke_cpu_device;
    w->ops.adam = no_adam;
    w->device->ops = &w->ops;
    assert_false(tke_optim_step(a, &adam, metrics, &n, &err));
    assert_int_equal(err.code, TINKC_E_SERVER);
    assert_int_equal(tke_adapter_step(a), 0);
    err = (tinkc_error){ 0 };
    w->device->ops = &tke_cpu_device;
    assert_true(tke_optim_step(a, &adam, metrics, &n, &err)); /* the gradient is still there */
    assert_int_equal(tke_adapter_step(a), 1);
    assert_true(metrics[0].value > 0);
    tke_adapter_free(a);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "look") == 0)
        return say_what_is_found();
    return test_cases_run(setup, teardown);
}
