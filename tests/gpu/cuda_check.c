/* cuda_check.c - the kernels and the host side of the CUDA backend on a card, against double precision and themselves.
 *
 *     cuda_check products | formats [speed] | twins | attention | alone | rules | parts | hybrid | qwen | experts |
 *                few | model | sampling | memory | speed-rules | train NAME TOKENS |
 *                speed-experts NAME | decode NAME | all
 *
 * Exit status 1 when something is off, 2 when it cannot be checked. Needs a card.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check_card.h"
#include "check_formats.h"
#include "check_rules.h"

static void check_all_rules(void)
{
    failures += check_rules(device);
}

static void speed_all_rules(void)
{
    speed_rules(device);
}

/* The modes without arguments. */
static const struct {
    const char *name;
    void (*run)(void);
    bool all; /* a part of "all" */
} modes[] = {
    { "products", check_products, true }, { "attention", check_attention, true }, { "model", check_model, true },
    { "sampling", check_sampling, true }, { "memory", check_memory, true },       { "twins", check_twins, true },
    { "experts", check_experts, false },  { "parts", check_parts, false },        { "rules", check_all_rules, false },
    { "qwen", check_qwen, false },        { "hybrid", check_hybrid, false },      { "few", check_few, false },
    { "alone", speed_attention, false },  { "speed-rules", speed_all_rules, false },
};

/* False if there is no such mode. */
static bool run_plain(const char *name)
{
    bool all = strcmp(name, "all") == 0, known = all;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (all ? modes[i].all : strcmp(name, modes[i].name) == 0) {
            modes[i].run();
            known = true;
        }
    return known;
}

/* Modes about one model of check_speed.c. */
static bool run_model_mode(const char *mode, const char *name, const char *const more[2],
                           double limit)
{
    if (strcmp(mode, "train") == 0)
        speed_train(name, more[0] ? (size_t)strtoul(more[0], NULL, 10) : 16384,
                    more[1], limit);
    else if (strcmp(mode, "decode") == 0)
        speed_decode(name, more[0]);
    else if (strcmp(mode, "speed-experts") == 0)
        speed_experts(name);
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "all";
    const char *const more[] = { argc > 3 ? argv[3] : NULL, argc > 4 ? argv[4] : NULL };
    bool limited = argc > 5 && strcmp(argv[4], "limit") == 0,
         formats = strcmp(mode, "formats") == 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    device = tcu_open(0, &fault);
    if (!device)
        die("opening");
    printf("%s, driver %d, cuBLASLt %zu\n", device->props.name, device->driver,
           device->gemm.version);
    bool known =
        run_plain(mode) ||
        (argc > 2 && run_model_mode(mode, argv[2], more, limited ? strtod(argv[5], NULL) : 0));
    if (formats || strcmp(mode, "all") == 0)
        failures += check_formats(device, argc > 2);
    if (!known && !formats) {
        printf("cuda_check: no mode '%s', or no NAME: see the top of tests/gpu/cuda_check.c\n",
               mode);
        return 2;
    }
    printf("%d failures\n", failures);
    return failures != 0;
}
