/* fuzz_compiled.c - a compiled tokenizer with changes and a checksum that fits: it is refused, or what it
 * encodes is bounded and decodes. The input is a list of changes: a section (or the header), a place in
 * it, four bytes. Needs the repository as its working folder. */
#include <glob.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bpe/tables_layout.h"
#include "tinkc/tinkc.h"

#define SOURCE "tests/data/tokenizer/tiny"

static char home[] = "/tmp/tinkc-fuzz-XXXXXX", file[400];
static unsigned char *whole, *changed;
static size_t whole_len;

static void must(bool ok)
{
    if (!ok)
        __builtin_trap();
}

static void remove_home(void)
{
    char path[450];
    (void)unlink(file);
    (void)snprintf(path, sizeof path, "%s/tinkc/tokenizers", home);
    (void)rmdir(path);
    (void)snprintf(path, sizeof path, "%s/tinkc", home);
    (void)rmdir(path);
    (void)rmdir(home);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    tinkc_error err = { 0 };
    char pattern[300];
    glob_t found;
    must(mkdtemp(home) && setenv("XDG_CACHE_HOME", home, 1) == 0);
    tinkc_tokenizer_free(tinkc_tokenizer_open(SOURCE, NULL, &err));
    (void)snprintf(pattern, sizeof pattern, "%s/tinkc/tokenizers/*.tkc", home);
    must(!err.code && glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc == 1);
    (void)snprintf(file, sizeof file, "%s", found.gl_pathv[0]);
    globfree(&found);
    FILE *f = fopen(file, "rb");
    must(f && fseek(f, 0, SEEK_END) == 0 && (whole_len = (size_t)ftell(f)) > 0);
    whole = malloc(whole_len);
    changed = aligned_alloc(64, (whole_len + 63) / 64 * 64);
    rewind(f);
    must(whole && changed && fread(whole, 1, whole_len, f) == whole_len);
    fclose(f);
    return atexit(remove_home);
}

/* Eight bytes of input: section, three of the place, four new ones. */
static void change(const uint8_t *data)
{
    const tkc_block_header *h = (const tkc_block_header *)whole;
    size_t from = 8, len = sizeof *h - 8; /* the header behind its magic */
    if (data[0] % (TKC_SECTIONS + 1) < TKC_SECTIONS) {
        from = h->sections[data[0] % (TKC_SECTIONS + 1)].offset;
        len = h->sections[data[0] % (TKC_SECTIONS + 1)].len;
    }
    size_t at = ((size_t)data[1] << 16 | (size_t)data[2] << 8 | data[3]) * 4;
    if (len >= 4)
        memcpy(changed + from + at % (len - 3) / 4 * 4, data + 4, 4);
}

static void use(const tinkc_tokenizer *tok)
{
    static const char text[] =
        "the the  then <|end|> other \xc3\xa9t\xc3\xa9 12345 aaaaaaaaaaaaaaaaaaaaaaaa"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "thethethethethethethethethethethetheothertheotheththththththth\xff\xfe";
    tinkc_error err = { 0 };
    tinkc_tokens ids = { 0 };
    tinkc_text back = { 0 };
    tinkc_encode_options o = { .any_bytes = true };
    (void)tinkc_encode_span(tok, text, sizeof text - 1, &o, &ids, NULL, &err);
    must(ids.len <= 2 * sizeof text);
    (void)tinkc_decode_span(tok, ids.data, ids.len, NULL, &back, &err);
    tinkc_tokens_free(&ids);
    tinkc_text_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tkc_block_header *h = (tkc_block_header *)changed;
    memcpy(changed, whole, whole_len);
    for (size_t i = 0; i + 8 <= size && i < 128; i += 8)
        change(data + i);
    h->total = whole_len;
    h->origin = ((tkc_block_header *)whole)->origin;
    h->checksum = tkc_block_hash(changed + sizeof *h, whole_len - sizeof *h);
    FILE *f = fopen(file, "wb");
    must(f && fwrite(changed, 1, whole_len, f) == whole_len);
    fclose(f);
    tinkc_error err = { 0 };
    tinkc_tokenizer *tok = tinkc_tokenizer_open(SOURCE, NULL, &err);
    if (tok)
        use(tok);
    tinkc_tokenizer_free(tok);
    return 0;
}
