/* tokenizer.c - speed of the tokenizer on given texts: tokenizer MODEL_DIR [-t THREADS] FILE...
 *
 * For each file, in a process of its own: encoding with caches cold and warm, decoding, on one
 * thread and, with -t, on several; then loading, from the source and from its compiled form. One
 * line a figure, for bench/tokenizer.sh to set beside others: NAME FILE VALUE UNIT. The best of
 * several runs, in time of the thread's own; several threads by the clock on the wall. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "tinkc/tinkc.h"

/* Of this thread, so that other work on the machine does not count; of the clock on the wall where
 * several threads work. */
static int64_t now_ns(bool wall)
{
    struct timespec t;
    clock_gettime(wall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static double seconds_since(int64_t start, bool wall)
{
    return (double)(now_ns(wall) - start) / 1e9;
}

static tinkc_tokenizer *open_or_end(const char *model, bool no_cache)
{
    tinkc_error err = { 0 };
    tinkc_tokenizer_options o = { .no_compiled_cache = no_cache };
    tinkc_tokenizer *tok = tinkc_tokenizer_open(model, &o, &err);
    if (!tok) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    return tok;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static double encode_once(const tinkc_tokenizer *tok, tinkc_bytes text, int threads,
                          tinkc_tokens *out)
{
    tinkc_error err = { 0 };
    tinkc_encode_options o = { .threads = threads };
    int64_t start = now_ns(threads > 1);
    out->len = 0;
    tinkc_encode_span(tok, (const char *)text.data, text.len, &o, out, NULL, &err);
    if (err.code) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    return seconds_since(start, threads > 1);
}

static double best_encode(const tinkc_tokenizer *tok, tinkc_bytes text, int threads,
                          tinkc_tokens *out)
{
    double best = 1e9;
    for (int i = 0; i < 7; i++) {
        double s = encode_once(tok, text, threads, out);
        best = s < best ? s : best;
    }
    return best;
}

static void measure_file(const char *model, const char *path, int threads)
{
    tinkc_error err = { 0 };
    tkc_arena arena = { 0 };
    tinkc_bytes text = tkc_read_file(&arena, path, (size_t)1 << 32, &err);
    tinkc_tokenizer *tok = open_or_end(model, false);
    if (err.code) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    const char *name = base_name(path);
    tinkc_tokens ids = { 0 };
    tinkc_text back = { 0 };
    double mb = (double)text.len / 1e6, cold = encode_once(tok, text, 1, &ids), best = 1e9;
    printf("encode_cold %s %.1f MB/s\n", name, mb / cold);
    printf("encode %s %.1f MB/s\n", name, mb / best_encode(tok, text, 1, &ids));
    if (threads > 1)
        printf("encode_%d_threads %s %.1f MB/s\n", threads, name,
               mb / best_encode(tok, text, threads, &ids));
    for (int i = 0; i < 7; i++) {
        int64_t start = now_ns(false);
        tinkc_decode(tok, ids.data, ids.len, &back, &err);
        double s = seconds_since(start, false);
        best = s < best ? s : best;
    }
    printf("decode %s %.1f MB/s\n", name, (double)back.len / 1e6 / best);
    printf("bytes_per_token %s %.2f bytes\n", name, (double)text.len / (double)ids.len);
    tinkc_tokens_free(&ids);
    tinkc_text_free(&back);
    tinkc_tokenizer_free(tok);
    tkc_arena_free(&arena);
}

/* In a process of its own: memory that an earlier text left behind makes a cold start look warm. */
static void measure_apart(const char *model, const char *path, int threads)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        measure_file(model, path, threads);
        exit(0);
    }
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        exit(1);
}

static void measure_load(const char *model, bool no_cache)
{
    double best = 1e9;
    for (int i = 0; i < 7; i++) {
        int64_t start = now_ns(false);
        tinkc_tokenizer *tok = open_or_end(model, no_cache);
        double s = seconds_since(start, false);
        tinkc_tokenizer_free(tok);
        best = s < best ? s : best;
    }
    printf("%s - %.2f ms\n", no_cache ? "load_source" : "load_compiled", best * 1e3);
}

int main(int argc, char **argv)
{
    int threads = 1;
    if (argc < 2) {
        fputs("usage: tokenizer MODEL_DIR [-t THREADS] FILE...\n", stderr);
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "-t") == 0 && i + 1 < argc)
            threads = atoi(argv[++i]);
        else
            measure_apart(argv[1], argv[i], threads);
    }
    measure_load(argv[1], true);
    measure_load(argv[1], false);
    return 0;
}
