/* tok.c - a tokenizer to play with: tok encode|decode|count|info -m DIR [-t THREADS], text or ids
 * on standard input, ids (space-separated) or text on standard output. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tinkc/tinkc.h"

static char *read_all(FILE *f, size_t *len)
{
    size_t cap = 1 << 16, n;
    char *data = malloc(cap + 1);
    *len = 0;
    while (data && (n = fread(data + *len, 1, cap - *len, f)) > 0) {
        *len += n;
        if (*len == cap)
            data = realloc(data, (cap *= 2) + 1);
    }
    if (data)
        data[*len] = '\0';
    return data;
}

static void decode(const tinkc_tokenizer *tok, char *text, tinkc_error *err)
{
    tinkc_tokens ids = { 0 };
    tinkc_text out = { 0 };
    for (char *p = text, *end; *p; p = end) {
        long id = strtol(p, &end, 10);
        if (end == p) {
            end = p + 1;
            continue;
        }
        int32_t one = (int32_t)id;
        tinkc_tokens_append(&ids, &one, 1, err);
    }
    fputs(tinkc_decode(tok, ids.data, ids.len, &out, err), stdout);
    tinkc_tokens_free(&ids);
    tinkc_text_free(&out);
}

static void encode(const tinkc_tokenizer *tok, const char *text, size_t len, int threads,
                   tinkc_error *err)
{
    tinkc_tokens ids = { 0 };
    tinkc_encode_options o = { .threads = threads };
    tinkc_encode_span(tok, text, len, &o, &ids, NULL, err);
    for (size_t i = 0; i < ids.len; i++)
        printf("%d%c", ids.data[i], i + 1 == ids.len ? '\n' : ' ');
    tinkc_tokens_free(&ids);
}

int main(int argc, char **argv)
{
    const char *model = NULL, *what = argc > 1 ? argv[1] : "";
    int threads = 1;
    for (int i = 2; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "-m") == 0)
            model = argv[i + 1];
        else if (strcmp(argv[i], "-t") == 0)
            threads = atoi(argv[i + 1]);
    }
    if (!model) {
        fputs("usage: tok encode|decode|count|info -m DIR [-t THREADS] < input\n", stderr);
        return 2;
    }
    tinkc_error err = { 0 };
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    tinkc_tokenizer *tok = tinkc_tokenizer_open(model, NULL, &err);
    clock_gettime(CLOCK_MONOTONIC, &b);
    size_t len = 0;
    char *text = strcmp(what, "info") == 0 ? NULL : read_all(stdin, &len);
    if (tok && text && strcmp(what, "encode") == 0)
        encode(tok, text, len, threads, &err);
    else if (tok && text && strcmp(what, "decode") == 0)
        decode(tok, text, &err);
    else if (tok && text && strcmp(what, "count") == 0)
        printf("%zu\n", tinkc_encode_count(tok, text, len, NULL, &err));
    else if (tok)
        printf("%s: %d ids, bos %d, eos %d, template %s, opened in %.2f ms\n",
               tinkc_tokenizer_source(tok), tinkc_tokenizer_size(tok),
               tinkc_tokenizer_special(tok, TINKC_TOKEN_BOS),
               tinkc_tokenizer_special(tok, TINKC_TOKEN_EOS),
               tinkc_tokenizer_template(tok, NULL) ? "yes" : "no",
               (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6);
    free(text);
    tinkc_tokenizer_free(tok);
    if (err.code)
        fprintf(stderr, "tok: %s\n", err.message);
    return err.code != 0;
}
