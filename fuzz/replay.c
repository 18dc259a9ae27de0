/* replay.c - runs a harness on the files of its corpus, without libFuzzer: how every build and every
 * sanitizer checks that the harnesses link and that inputs found earlier stay harmless. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv);

static void die(const char *what, const char *path)
{
    fprintf(stderr, "%s: ", path);
    perror(what);
    exit(2);
}

static void replay(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END))
        die("cannot open", path);
    long size = ftell(f);
    uint8_t *data = size < 0 ? NULL : malloc((size_t)size + 1);
    rewind(f);
    if (!data || fread(data, 1, (size_t)size, f) != (size_t)size)
        die("cannot read", path);
    fclose(f);
    LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fputs("usage: replay FOLDER\n", stderr);
        return 2;
    }
    DIR *folder = opendir(argv[1]);
    if (!folder)
        die("cannot open the corpus", argv[1]);
    if (LLVMFuzzerInitialize)
        LLVMFuzzerInitialize(&argc, &argv);
    size_t inputs = 0;
    for (struct dirent *e; (e = readdir(folder));) {
        if (e->d_name[0] == '.')
            continue;
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        replay(path);
        inputs++;
    }
    closedir(folder);
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    printf("%zu inputs, no finding\n", inputs);
    return inputs ? 0 : 1;
}
