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
static int64_t numbers_of(const char *name, const json_t *shape)
{
    size_t n = strlen(name);
    int64_t count = n > 7 && strcmp(name + n - 7, "_scales") == 0   ? 0
                    : n > 7 && strcmp(name + n - 7, "_blocks") == 0 ? 2
                                                                    : 1;
    for (size_t i = 0; i < json_array_size(shape); i++) {
        int64_t side = json_integer_value(json_array_get(shape, i));
        if (side < 0 || __builtin_mul_overflow(count, side, &count))
            return 0;
    }
    return count;
}

/* The head of a safetensors file: its length in eight bytes, the lowest first, then JSON. Yours; NULL = it
 * is none. */
static json_t *read_head(const char *path)
{
    enum { MOST = 100 << 20 };
    unsigned char size[8];
    uint64_t n = 0;
    FILE *f = fopen(path, "re");
    if (f && fread(size, 1, sizeof size, f) == sizeof size)
        for (int i = 7; i >= 0; i--)
            n = n << 8 | size[i];
    char *text = n && n <= MOST ? malloc(n) : NULL;
    json_t *head = text && fread(text, 1, n, f) == n ? json_loadb(text, n, 0, NULL) : NULL;
    free(text);
    if (f)
        fclose(f);
    return head;
}

static bool count_file(const char *path, void *user)
{
    contents *c = user;
    json_t *head = read_head(path), *tensor;
    const char *name;
    json_object_foreach(head, name, tensor)
    {
        const char *dtype = json_string_value(json_object_get(tensor, "dtype"));
        int64_t n = dtype ? numbers_of(name, json_object_get(tensor, "shape")) : 0;
        c->parameters += n;
        if (n > c->largest) {
            c->largest = n;
            (void)snprintf(c->dtype, sizeof c->dtype, "%s", dtype);
        }
    }
    json_decref(head);
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

static void add_size(json_t *rows, json_t *v, const char *label, const char *key, int64_t bytes)
{
    char text[CLI_SHORT_TEXT];
    cli_format_size(bytes, text);
    cli_row(rows, label, bytes ? text : NULL); /* a GGUF file says too little */
    json_object_set_new(v, key, bytes ? json_integer(bytes) : json_null());
}

static void add_number(json_t *rows, json_t *v, const char *label, const char *key, int64_t n)
{
    char text[CLI_SHORT_TEXT];
    (void)snprintf(text, sizeof text, "%lld", (long long)n);
    cli_row(rows, label, n ? text : NULL);
    json_object_set_new(v, key, n ? json_integer(n) : json_null());
}

static void add_memory(const char *folder, json_t *rows, json_t *v)
{
    int64_t a_token = cli_folder_cache_bytes(folder),
            context = cli_folder_number(folder, "max_position_embeddings");
    add_number(rows, v, "Context", "max_context_length", context);
    add_size(rows, v, "Memory, weights", "weight_bytes", cli_folder_bytes(folder));
    add_size(rows, v, "Memory, each token of a sequence", "cache_bytes_per_token", a_token);
    add_size(rows, v, "Memory, the whole context", "cache_bytes", a_token * context);
    add_size(rows, v, "Memory, available now", "available_bytes", cli_available_bytes());
}

int cli_folder_info(const cli_app *app, const char *folder)
{
    contents c = { 0 };
    tinkc_error why = { 0 };
    char text[CLI_SHORT_TEXT], rate_why[96];
    char *family = cli_is_gguf(folder) ? strdup("GGUF file") : cli_folder_type(folder);
    cli_folder_each_weights(folder, count_file, &c);
    bool takes = engine_takes(folder, &why);
    json_t *rows = json_array(),
           *v = json_pack("{s:o,s:s?,s:b,s:s?}", "model", cli_json_text(folder), "family", family,
                          "supported", takes, "reason", takes ? NULL : why.message);
    cli_row(rows, "Model", folder);
    cli_row(rows, "Family", family);
    char *runs = takes ? strdup("Yes") : cli_printf("No: %s", why.message);
    cli_row(rows, "Runs Here", runs);
    cli_format_count(c.parameters, text);
    char *parameters = cli_printf("%s, %s", text, c.dtype);
    cli_row(rows, "Parameters", c.parameters ? parameters : NULL);
    json_object_set_new(v, "parameters", c.parameters ? json_integer(c.parameters) : json_null());
    json_object_set_new(v, "dtype", c.parameters ? json_string(c.dtype) : json_null());
    add_number(rows, v, "Layers", "layers", cli_folder_number(folder, "num_hidden_layers"));
    add_number(rows, v, "Hidden Size", "hidden_size", cli_folder_number(folder, "hidden_size"));
    add_memory(folder, rows, v);
    double rate = cli_model_default_rate(folder, folder, rate_why);
    cli_format_number(rate, text);
    cli_row(rows, "Suggested LR (LoRA)", text);
    json_object_set_new(v, "suggested_lr", json_real(rate));
    free(parameters);
    free(family);
    free(runs);
    return cli_show_record(app, NULL, rows, v);
}
