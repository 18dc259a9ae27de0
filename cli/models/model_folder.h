/* model_folder.h - what a model's folder says about itself without loading it. */
#ifndef CLI_MODEL_FOLDER_H
#define CLI_MODEL_FOLDER_H

#include "cli/main/app.h"

#define CLI_BASE_BITS \
    OPT_CHOICE("base-bits", "N", "4|8", "pack the base model's layers into so many bits (local engine only)")

/* 4 or 8 where a name or folder ends in "#4bit" or "#8bit", which asks for layers in so many bits; else 0. */
int cli_base_bits(const char *model);
/* Its length without that. */
int cli_plain_length(const char *model);
/* Is it a file that ends in .gguf? */
bool cli_is_gguf(const char *path);
/* Of config.json, also where it is nested in text_config; 0 = it does not say. */
int64_t cli_folder_number(const char *folder, const char *key);
/* "llama", "qwen3", ...; yours, NULL = it does not say. */
char *cli_folder_type(const char *folder);
/* Whether config.json lies there. */
bool cli_is_model_config(const char *folder);
/* Calls fn for every file of weights until it returns false. */
void cli_folder_each_weights(const char *folder, bool (*fn)(const char *path, void *user),
                             void *user);
/* Of all files of weights. */
int64_t cli_folder_bytes(const char *folder);
/* Keys and values of a token in the layers that attend, as the CPU keeps them; 0 = not known. */
int64_t cli_folder_cache_bytes(const char *folder);
/* Memory that is free, or held for files that could be read again; INT64_MAX = not known. */
int64_t cli_available_bytes(void);
/* Whether the weights fit into the memory that is free. 0, or an exit code after reporting needed and
 * available bytes; --force is the way around it. */
int cli_model_fits(const cli_app *, const char *folder);

/* Reads the weights of a model above 1 GB into the system's file cache, in order and with a bar: the
 * engine maps them and would otherwise stop at every page. What is cached already is not read again; a
 * model that does not fit is left alone. "FOLDER#4bit" is packed, with a bar, unless it is in the cache; what it
 * costs is printed. 0, or the exit code after a signal or a report. */
int cli_load_weights(const cli_app *, const char *folder);
/* The same for weights of more than `least` bytes. */
int cli_read_weights(const cli_app *, const char *folder, int64_t least);
/* The model that a log directory's run was trained from; yours, NULL = it does not say. */
char *cli_logged_model(const char *log_dir);

/* For LoRA on any model: the same formula with what its folder says (NULL = it has none). *why says in
 * a few words what it was made from. */
double cli_model_default_rate(const char *name, const char *folder, char why[96]);

#endif
