/* engine_memory - memory of one training step on one long datum, beyond the mapped weights.
 *
 *   engine_memory MODEL [tokens 4096] [rank 32] [MiB of work space 1500]
 *
 * Runs forward_backward on one datum and one optim_step, then prints the process's anonymous memory
 * (weights are file pages and do not count). Buffers are kept until the end, so this is the peak.
 * tools/make-random-model makes models of real shapes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "tests/support/engine/on_device.h"
#include "train/training.h"

static void die(const tinkc_error *err)
{
    fprintf(stderr, "engine_memory: %s\n", err->message);
    exit(2);
}

/* RssAnon of this process in MiB. */
static double anonymous(void)
{
    char line[256];
    double kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "RssAnon:", 8) == 0) {
            double value = 0;
            tinkc_str rest = tkc_str_trim(tkc_str(line + 8));
            rest.len = tkc_str_find(rest, ' ');
            if (tkc_parse_double(rest, false, &value))
                kib = value;
        }
    if (f)
        fclose(f);
    return kib / 1024;
}

static int64_t number(int argc, char **argv, int i, int64_t otherwise)
{
    int64_t n = otherwise;
    if (i < argc && (!tkc_parse_i64(tkc_str(argv[i]), &n) || n < 1)) {
        fprintf(stderr, "engine_memory: '%s' is not a number\n", argv[i]);
        exit(2);
    }
    return n;
}

static void make_datum(tke_datum *d, size_t n, size_t vocab, tinkc_error *err)
{
    int32_t *tokens = tkc_alloc(NULL, n * sizeof *tokens, err);
    int64_t *targets = tkc_alloc(NULL, n * sizeof *targets, err);
    float *weights = tkc_alloc(NULL, n * sizeof *weights, err);
    if (err->code)
        die(err);
    for (size_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)(i * 7919 % vocab);
        targets[i] = (int64_t)((i + 1) * 7919 % vocab);
        weights[i] = 1;
    }
    *d = (tke_datum){ .tokens = tokens, .n = n, .k = 1, .targets = targets, .weights = weights };
}

int main(int argc, char **argv)
{
    tinkc_error err = { 0 };
    if (argc < 2) {
        fprintf(stderr, "usage: engine_memory MODEL [tokens] [rank] [MiB]\n");
        return 2;
    }
    size_t n = (size_t)number(argc, argv, 2, 4096);
    tke_adapter_spec spec = { .rank = (int32_t)number(argc, argv, 3, 32), .train = 7 };
    size_t budget = (size_t)number(argc, argv, 4, 1500) << 20;
    tke_device *device = device_by_env(&(tke_device_options){ 0 }, &err);
    tke_model *model = err.code ? NULL : tke_model_open(argv[1], &err);
    if (!model)
        die(&err);
    tke_device_model *loaded = device_load(device, model);
    double start = anonymous();
    tke_trainer_options options = { .memory_bytes = budget };
    tke_trainer *trainer = tke_trainer_new(loaded, &options, &err);
    tke_adapter *adapter = tke_adapter_new(device, model, &spec, &err);
    if (err.code)
        die(&err);
    tke_datum d;
    make_datum(&d, n, tke_model_config(model)->vocab, &err);
    printf("adapter     %8.0f MiB\n", (double)tke_adapter_bytes(model, &spec) / (1 << 20));
    printf("work space  %8.0f MiB at least, %zu allowed\n",
           (double)tke_trainer_bytes(trainer, n, 1, &spec) / (1 << 20), budget >> 20);
    tke_pass p = { .adapter = adapter, .backward = true, .data = &d, .n_data = 1 },
             *list[1] = { &p };
    double t = (double)tkc_monotonic_ns() * 1e-9;
    tke_trainer_run(trainer, list, 1);
    t = (double)tkc_monotonic_ns() * 1e-9 - t;
    if (p.err.code)
        die(&p.err);
    tke_metric metrics[TKE_MAX_METRICS];
    size_t n_metrics;
    tke_adam_params adam = { 1e-4, 0.9, 0.95, 1e-12, 0, 0 };
    if (!tke_optim_step(adapter, &adam, metrics, &n_metrics, &err))
        die(&err);
    printf("loss        %8.3f per token\n", p.out.metrics[0].value / (double)n);
    printf("speed       %8.0f tokens/s\n", (double)n / t);
    printf("memory      %8.0f MiB beyond the mapped weights\n", anonymous() - start);
    tke_pass_free(&p);
    tkc_release(NULL, (void *)(uintptr_t)d.tokens, n * sizeof *d.tokens);
    tkc_release(NULL, (void *)(uintptr_t)d.targets, n * sizeof *d.targets);
    tkc_release(NULL, (void *)(uintptr_t)d.weights, n * sizeof *d.weights);
    tke_adapter_free(adapter);
    tke_trainer_free(trainer);
    device_unload(loaded);
    tke_model_drop(model);
    tke_device_close(device);
    return 0;
}
