/* model_folder.c - config.json and the sizes of the weights. Touches the folder and /proc/meminfo. */
#include "model_folder.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "models.h"
#include "text.h"

static json_t *load_config(const char *folder)
{
    char *path = cli_printf("%s/config.json", folder);
    json_t *config = path ? json_load_file(path, 0, NULL) : NULL;
    free(path);
    return config;
}

/* A member, or that of the language model inside a larger one. */
static const json_t *member(const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    return v ? v : json_object_get(json_object_get(config, "text_config"), key);
}

int64_t cli_folder_number(const char *folder, const char *key)
{
    json_t *config = load_config(folder);
    int64_t n = json_integer_value(member(config, key));
    json_decref(config);
    return n > 0 ? n : 0;
}

char *cli_folder_type(const char *folder)
{
    json_t *config = load_config(folder);
    const char *type = json_string_value(member(config, "model_type"));
    char *copy = type ? strdup(type) : NULL;
    json_decref(config);
    return copy;
}

static bool is_weights(const char *name)
{
    size_t n = strlen(name);
    return n > 12 && strcmp(name + n - 12, ".safetensors") == 0;
}

static int64_t weight_bytes(const char *folder)
{
    int64_t total = 0;
    DIR *dir = opendir(folder);
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        struct stat file;
        char *path = is_weights(e->d_name) ? cli_printf("%s/%s", folder, e->d_name) : NULL;
        if (path && stat(path, &file) == 0)
            total += file.st_size;
        free(path);
    }
    if (dir)
        closedir(dir);
    return total;
}

/* INT64_MAX = not known. */
static int64_t available_bytes(void)
{
    char line[256];
    int64_t kb = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f)) {
        char *number = line + strcspn(line, "0123456789");
        number[strspn(number, "0123456789")] = '\0';
        if (strncmp(line, "MemAvailable:", 13) == 0 && cli_parse_int(number, &kb))
            break;
    }
    if (f)
        fclose(f);
    return kb > 0 ? kb * 1024 : INT64_MAX;
}

int cli_model_fits(const cli_app *app, const char *folder)
{
    char needed[CLI_SHORT_TEXT], free_text[CLI_SHORT_TEXT];
    int64_t bytes = weight_bytes(folder), available = available_bytes();
    if (bytes <= available)
        return 0;
    cli_format_size(bytes, needed);
    cli_format_size(available, free_text);
    return cli_fail(app, "local_io", "choose a smaller model, free memory, or add --force to try",
                    "%s does not fit into memory: its weights are %s (%lld bytes), %s (%lld bytes) "
                    "are available",
                    folder, needed, (long long)bytes, free_text, (long long)available);
}

double cli_model_default_rate(const char *name, const char *folder, char why[96])
{
    double known = cli_model_suggested_rate(name);
    const cli_model_facts *f = cli_model_find(name);
    (void)snprintf(why, 96, "the default for %.70s", name);
    if (known > 0)
        return known;
    int64_t hidden = f ? f->hidden : folder ? cli_folder_number(folder, "hidden_size") : 0;
    if (hidden <= 0) {
        (void)snprintf(why, 96, "the default for a model of unknown size");
        return 5e-4;
    }
    char *type = folder ? cli_folder_type(folder) : NULL;
    bool llama = type && strstr(type, "llama") != NULL;
    free(type);
    (void)snprintf(why, 96, "the default for hidden size %lld", (long long)hidden);
    char rounded[CLI_SHORT_TEXT]; /* nobody means more digits than these */
    double rate = cli_model_rate(llama ? "llama" : "qwen", hidden, true);
    (void)snprintf(rounded, sizeof rounded, "%.2g", rate);
    (void)cli_parse_number(rounded, &rate);
    return rate;
}
