/* engine_fits - what trains and what samples in how much memory, by the planner's own formulas, as rows of a Markdown table.
 *
 *   engine_fits NAME=FOLDER[+head] ...      +head: the model has an output layer of its own, which the folder lacks
 *
 * Reads the heads of the files and computes nothing, so that weights may be holes: tools/memory-table makes such folders. A cell is
 * the most bits in which the model trains / samples: 16, 8 (Q8_0), 4 (NF4), or "-". Training: rank 32 on everything, a sequence of
 * 2,048 tokens, everything recomputed. Sampling: one sequence of 4,096 tokens. A card keeps 1 GiB for itself, a laptop 4; of the
 * rest nine tenths are used. All numbers are those of the CPU, where activations and caches are f32.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "math/format.h"
#include "model/model_pack.h"
#include "tests/support/engine/on_device.h"
#include "train/training.h"

enum { TRAIN_TOKENS = 2048, SAMPLE_TOKENS = 4096, KINDS = 3 };

static const struct {
    double gib, kept;
} places[] = { { 8, 1 }, { 16, 1 }, { 24, 1 }, { 48, 1 }, { 80, 1 }, { 16, 4 }, { 32, 4 }, { 64, 4 } };

typedef struct needs {
    double weights[KINDS]; /* in 16, 8 and 4 bits; 0 = cannot be packed so */
    double adapter, work, cache;
} needs;

static const char *const bits[KINDS] = { "16", "8", "4" };

static void die(const tinkc_error *err)
{
    fprintf(stderr, "engine_fits: %s\n", err->message);
    exit(2);
}

static double packed_bytes(tke_model *m, const tke_format *f)
{
    tke_packer k;
    tinkc_error none = { 0 };
    double bytes = (double)m->n_bytes;
    bool can = tke_packer_open(&k, m, f, &none); /* it may be packed already */
    for (size_t i = 0; can && i < k.n; i++) {
        const tke_pack_item *x = &k.items[i];
        bytes += (double)(x->bytes + x->n_factors * sizeof(float));
        bytes -= (double)x->rows * (double)x->m->ld * (double)tke_dtype_size(x->m->dtype);
    }
    tke_packer_close(&k);
    return can ? bytes : 0;
}

static needs measure(const char *folder, bool head)
{
    tinkc_error err = { 0 };
    needs n = { 0 };
    tke_adapter_spec spec = { .rank = 32, .train = 7 };
    tke_device *device = device_by_env(&(tke_device_options){ 0 }, &err);
    tke_model *m = err.code ? NULL : tke_model_open(folder, &err);
    if (!m)
        die(&err);
    double more = head ? (double)m->embed.out * (double)m->embed.in * 2 : 0;
    const double kinds[KINDS] = { (double)m->n_bytes, packed_bytes(m, &tke_format_q8_0),
                                  packed_bytes(m, &tke_format_nf4) };
    for (int i = 0; i < KINDS; i++)
        n.weights[i] = kinds[i] > 0 ? kinds[i] + more : 0;
    tke_device_model *loaded = device_load(device, m);
    tke_trainer *t = tke_trainer_new(loaded, &(tke_trainer_options){ 0 }, &err);
    if (!t)
        die(&err);
    n.adapter = (double)tke_adapter_bytes(m, &spec);
    n.work = (double)tke_trainer_bytes(t, TRAIN_TOKENS, 1, &spec);
    n.cache = (double)tke_model_cache_numbers(m) * SAMPLE_TOKENS * sizeof(float);
    tke_trainer_free(t);
    device_unload(loaded);
    tke_model_drop(m);
    tke_device_close(device);
    return n;
}

static const char *most(const needs *n, double more, double available)
{
    for (int i = 0; i < KINDS; i++)
        if (n->weights[i] > 0 && n->weights[i] + more <= available)
            return i == 0 && !(n->weights[1] > 0) ? "as stored" : bits[i];
    return "-";
}

static void show(const char *name, const needs *n)
{
    const double gib = 1 << 30;
    printf("| %s |", name);
    for (int i = 0; i < KINDS; i++)
        if (n->weights[i] > 0)
            printf("%s%.1f", i ? " / " : " ", n->weights[i] / gib);
    printf(" | %.1f + %.1f |", n->adapter / gib, n->work / gib);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        double available = (places[i].gib - places[i].kept) * 0.9 * gib;
        printf(" %s / %s |", most(n, n->adapter + n->work, available), most(n, n->cache, available));
    }
    putchar('\n');
}

int main(int argc, char **argv)
{
    puts("| model | weights, GiB: 16 / 8 / 4 bits | adapter + work, GiB | 8 GB card | 16 | 24 | 48 | 80 | "
         "laptop of 16 GB | 32 | 64 |");
    puts("|---|---|---|---|---|---|---|---|---|---|---|");
    for (int i = 1; i < argc; i++) {
        char *folder = strchr(argv[i], '='), *end = folder ? strstr(folder, "+head") : NULL;
        if (!folder) {
            fprintf(stderr, "usage: engine_fits NAME=FOLDER[+head] ...\n");
            return 2;
        }
        *folder++ = '\0';
        if (end)
            *end = '\0';
        needs n = measure(folder, end != NULL);
        show(argv[i], &n);
    }
    return 0;
}
