/* folder_info.c - what a model's folder holds: family, parameters, memory, and whether the engine takes it.
 *
 * Reads config.json and the heads of the weights. Must not: read weights, or connect.
 */
#include "cli/models/folder_info.h"

#include <stdlib.h>
#include <string.h>

#include "cli/models/model_folder.h"
#include "cli/output/out.h"
#include "cli/output/records.h"
#include "cli/output/text.h"

typedef struct contents { /* of all files of weights */
    int64_t parameters;
    char dtype[16]; /* of the largest tensor */
    int64_t largest;
} contents;

/* Packed numbers: a byte of blocks holds two of four bits, and scales are not counted. */
static int64_t numbers_of(const char *name, const tkc_tree *shape)
{
    size_t n = strlen(name);
    int64_t count = n > 7 && strcmp(name + n - 7, "_scales") == 0   ? 0
                    : n > 7 && strcmp(name + n - 7, "_blocks") == 0 ? 2
                                                                    : 1;
    for (size_t i = 0; i < tkc_tree_length(shape); i++) {
        int64_t side = tkc_tree_i64(tkc_tree_at(shape, i));
        if (side < 0 || __builtin_mul_overflow(count, side, &count))
            return 0;
    }
    return count;
}

/* The head of a safetensors file: its length in eight bytes, the lowest first, then JSON. NULL = it is none. */
static tkc_tree *read_head(tkc_arena *arena, const char *path)
{
    enum { MOST = 100 << 20 };
    unsigned char size[8];
    uint64_t n = 0;
    FILE *f = fopen(path, "re");
    if (f && fread(size, 1, sizeof size, f) == sizeof size)
        for (int i = 7; i >= 0; i--)
            n = n << 8 | size[i];
    char *text = n && n <= MOST ? malloc(n) : NULL;
    tkc_tree *head =
        text && fread(text, 1, n, f) == n ? tkc_tree_read(arena, tkc_strn(text, n), 0) : NULL;
    free(text);
    if (f)
        fclose(f);
    return head;
}

static bool count_file(const char *path, void *user)
{
    contents *c = user;
    tkc_arena arena = { 0 };
    const tkc_tree *head = read_head(&arena, path);
    tkc_tree *tensor;
    const char *name;
    TKC_TREE_EACH (head, name, tensor) {
        const char *dtype = tkc_tree_get_text(tensor, "dtype");
        int64_t n = dtype ? numbers_of(name, tkc_tree_get(tensor, "shape")) : 0;
        c->parameters += n;
        if (n > c->largest) {
            c->largest = n;
            (void)snprintf(c->dtype, sizeof c->dtype, "%s", dtype);
        }
    }
    tkc_arena_free(&arena);
    return true;
}

/* Whether the engine takes the folder; else *why says why not. */
static bool engine_takes(const char *folder, tinkc_error *why)
{
    tinkc_engine *engine = tinkc_engine_new(NULL, why);
    bool takes = engine && tinkc_engine_add_model(engine, "model", folder, why);
    tinkc_engine_free(engine);
    return takes;
}

static void add_size(const cli_app *app, tkc_tree *rows, tkc_tree *v, const char *label,
                     const char *key, int64_t bytes)
{
    char text[CLI_SHORT_TEXT];
    cli_format_size(bytes, text);
    cli_row(app, rows, label, bytes ? text : NULL); /* a GGUF file says too little */
    tkc_tree_set(v, key, bytes ? tkc_tree_new_i64(cli_arena(app), bytes) : tkc_tree_null());
}

static void add_number(const cli_app *app, tkc_tree *rows, tkc_tree *v, const char *label,
                       const char *key, int64_t n)
{
    char text[CLI_SHORT_TEXT];
    (void)snprintf(text, sizeof text, "%lld", (long long)n);
    cli_row(app, rows, label, n ? text : NULL);
    tkc_tree_set(v, key, n ? tkc_tree_new_i64(cli_arena(app), n) : tkc_tree_null());
}

static void add_memory(const cli_app *app, const char *folder, tkc_tree *rows, tkc_tree *v)
{
    int64_t a_token = cli_folder_cache_bytes(folder),
            context = cli_folder_number(folder, "max_position_embeddings");
    add_number(app, rows, v, "Context", "max_context_length", context);
    add_size(app, rows, v, "Memory, weights", "weight_bytes", cli_folder_bytes(folder));
    add_size(app, rows, v, "Memory, each token of a sequence", "cache_bytes_per_token", a_token);
    add_size(app, rows, v, "Memory, the whole context", "cache_bytes", a_token * context);
    add_size(app, rows, v, "Memory, available now", "available_bytes", cli_available_bytes());
}

int cli_folder_info(const cli_app *app, const char *folder)
{
    contents c = { 0 };
    tinkc_error why = { 0 };
    char text[CLI_SHORT_TEXT], rate_why[96];
    char *family = cli_is_gguf(folder) ? strdup("GGUF file") : cli_folder_type(folder);
    cli_folder_each_weights(folder, count_file, &c);
    bool takes = engine_takes(folder, &why);
    tkc_tree *rows = cli_array(app),
             *v = cli_pack(app, "{s:o,s:s?,s:b,s:s?}", "model",
                           cli_json_text(cli_arena(app), folder), "family", family, "supported",
                           takes, "reason", takes ? NULL : why.message);
    cli_row(app, rows, "Model", folder);
    cli_row(app, rows, "Family", family);
    char *runs = takes ? strdup("Yes") : cli_printf("No: %s", why.message);
    cli_row(app, rows, "Runs Here", runs);
    cli_format_count(c.parameters, text);
    char *parameters = cli_printf("%s, %s", text, c.dtype);
    cli_row(app, rows, "Parameters", c.parameters ? parameters : NULL);
    tkc_tree_set(v, "parameters",
                 c.parameters ? tkc_tree_new_i64(cli_arena(app), c.parameters) : tkc_tree_null());
    tkc_tree_set(v, "dtype",
                 c.parameters ? tkc_tree_new_text(cli_arena(app), c.dtype) : tkc_tree_null());
    add_number(app, rows, v, "Layers", "layers", cli_folder_number(folder, "num_hidden_layers"));
    add_number(app, rows, v, "Hidden Size", "hidden_size",
               cli_folder_number(folder, "hidden_size"));
    add_memory(app, folder, rows, v);
    double rate = cli_model_default_rate(folder, folder, rate_why);
    cli_format_number(rate, text);
    cli_row(app, rows, "Suggested LR (LoRA)", text);
    tkc_tree_set_real(v, "suggested_lr", rate);
    free(parameters);
    free(family);
    free(runs);
    return cli_show_record(app, NULL, rows, v);
}
