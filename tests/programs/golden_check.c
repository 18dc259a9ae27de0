/* golden_check.c - compares the engine with numbers that others computed.
 *
 *     golden_check [--model FOLDER] [--threads N] [--bf16] [--device D] PATH...
 *
 * A PATH is a folder with config.json, model.safetensors, golden.safetensors and golden.json (a
 * tiny model: log-probs, losses, gradients, optimizer steps, a greedy continuation); a folder with
 * a golden.json of prompts (for --model, or models/nano beside the folder's parent); a file
 * sampling.json; or a folder that holds some of these. What a file holds and the program does not
 * know is off, so that nothing passes unseen. Prints one line for each quantity: name, largest
 * error, tolerance. Exit status 1 when one is off.
 */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/programs/golden_check.h"

int n_off;

void report(const char *where, const char *name, double error, double tolerance)
{
    bool off = !(error <= tolerance);
    n_off += off;
    printf("%-28s %-44s %10.3g  (tolerance %.3g)%s\n", where, name, error, tolerance, off ? "  OFF" : "");
}

void die(const tinkc_error *err)
{
    fprintf(stderr, "golden_check: %s\n", err->message);
    exit(2);
}

static void usage(void)
{
    fprintf(stderr, "usage: golden_check [--model FOLDER] [--threads N] [--bf16] [--device D] "
                    "PATH...\n");
    exit(2);
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static bool check_inside(const char *path, const char *model, tke_device *device, bool bf16);

static void check_path(const char *path, const char *model, tke_device *device, bool bf16, bool deep)
{
    char file[4096];
    if (tkc_is_file(path)) {
        check_sampling(path, last_part(path));
        return;
    }
    snprintf(file, sizeof file, "%s/golden.safetensors", path);
    if (tkc_is_file(file)) {
        check_family(path, last_part(path), device);
        return;
    }
    snprintf(file, sizeof file, "%s/golden.json", path);
    if (!tkc_is_file(file)) {
        if (deep || !check_inside(path, model, device, bf16)) {
            fprintf(stderr, "golden_check: %s: no golden numbers there\n", path);
            exit(2);
        }
        return;
    }
    char beside[4096];
    snprintf(beside, sizeof beside, "%s/../../models/%s", path, last_part(path));
    check_prompts(file, model ? model : beside, last_part(path), device, bf16);
}

/* A folder of folders: each that has golden numbers, and sampling.json. False if there is none. */
static bool check_inside(const char *path, const char *model, tke_device *device, bool bf16)
{
    char file[4096];
    struct dirent **names = NULL;
    int n = scandir(path, &names, NULL, alphasort);
    bool any = false;
    for (int i = 0; i < n; i++) {
        snprintf(file, sizeof file, "%s/%s/golden.json", path, names[i]->d_name);
        bool sampling = strcmp(names[i]->d_name, "sampling.json") == 0;
        if (names[i]->d_name[0] == '.' || (!sampling && !tkc_is_file(file)))
            continue;
        snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name);
        check_path(file, model, device, bf16, true);
        any = true;
    }
    return any;
}

int main(int argc, char **argv)
{
    const char *model = NULL, *name = "cpu";
    tke_device_options options = { 0 };
    tke_device_info info;
    int i = 1;
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        int64_t n = 0;
        if (strcmp(argv[i], "--bf16") == 0)
            options.precision = TKE_PRECISION_BF16;
        else if (i + 1 == argc)
            usage();
        else if (strcmp(argv[i], "--model") == 0)
            model = argv[++i];
        else if (strcmp(argv[i], "--device") == 0)
            name = argv[++i];
        else if (strcmp(argv[i], "--threads") == 0 && tkc_parse_i64(tkc_str(argv[++i]), &n))
            options.n_threads = (int32_t)n;
        else
            usage();
    }
    if (i == argc)
        usage();
    tinkc_error err = { 0 };
    tke_device *device = tke_device_open(name, &options, NULL, &err);
    if (!device)
        die(&err);
    device->ops->info(device, &info);
    printf("%s: %s\n", info.name, info.text);
    for (; i < argc; i++)
        check_path(argv[i], model, device, options.precision == TKE_PRECISION_BF16, false);
    tke_device_close(device);
    printf("%s\n", n_off ? "some quantities are off" : "all within tolerance");
    return n_off ? 1 : 0;
}

#include "tests/programs/golden_family.h"
#include "tests/programs/golden_prompts.h"
#include "tests/programs/golden_sampling.h"
