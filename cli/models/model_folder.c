/* model_folder.c - config.json and the weights. Touches the folder and the status line. */
#include "cli/models/model_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/models/models.h"
#include "cli/output/term.h"
#include "cli/output/out.h"
#include "cli/output/text.h"

int cli_base_bits(const char *model)
{
    size_t n = strlen(model), end = sizeof "#4bit" - 1;
    const char *at = n > end ? model + n - end : "";
    return strcmp(at, "#4bit") == 0 ? 4 : strcmp(at, "#8bit") == 0 ? 8 : 0;
}

int cli_plain_length(const char *model)
{
    return (int)(strlen(model) - (cli_base_bits(model) ? sizeof "#4bit" - 1 : 0));
}

bool cli_is_gguf(const char *path)
{
    struct stat file;
    size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".gguf") == 0 && stat(path, &file) == 0 &&
           S_ISREG(file.st_mode);
}

static tkc_tree *load_config(tkc_arena *arena, const char *folder)
{
    char *path = cli_printf("%.*s/config.json", cli_plain_length(folder), folder);
    tkc_tree *config = path ? cli_json_load(arena, path, NULL) : NULL;
    free(path);
    return config;
}

/* A member, or that of the language model inside a larger one. */
static const tkc_tree *member(const tkc_tree *config, const char *key)
{
    const tkc_tree *v = tkc_tree_get(config, key);
    return v ? v : tkc_tree_get(tkc_tree_get(config, "text_config"), key);
}

int64_t cli_folder_number(const char *folder, const char *key)
{
    tkc_arena arena = { 0 };
    const tkc_tree *config = load_config(&arena, folder);
    int64_t n = tkc_tree_i64(member(config, key));
    tkc_arena_free(&arena);
    return n > 0 ? n : 0;
}

/* Layers with keys and values: by layer_types, by Nemotron's letters, one of so many, else all. */
static int64_t attending(const tkc_tree *config)
{
    const tkc_tree *types = member(config, "layer_types");
    const char *letters = tkc_tree_text(member(config, "hybrid_override_pattern"));
    int64_t layers = tkc_tree_i64(member(config, "num_hidden_layers")), n = 0,
            every = tkc_tree_i64(member(config, "full_attention_interval"));
    for (size_t i = 0; i < tkc_tree_length(types); i++) {
        const char *type = tkc_tree_text(tkc_tree_at(types, i));
        n += type && strstr(type, "attention") && !strstr(type, "linear");
    }
    for (const char *p = letters; p && *p; p++)
        n += *p == '*';
    return types || letters ? n : every > 0 ? layers / every : layers;
}

int64_t cli_folder_cache_bytes(const char *folder)
{
    tkc_arena arena = { 0 };
    const tkc_tree *config = load_config(&arena, folder);
    int64_t heads = tkc_tree_i64(member(config, "num_attention_heads")),
            kv = tkc_tree_i64(member(config, "num_key_value_heads")),
            dim = tkc_tree_i64(member(config, "head_dim")),
            hidden = tkc_tree_i64(member(config, "hidden_size"));
    dim = dim > 0 ? dim : heads > 0 ? hidden / heads : 0;
    int64_t bytes = attending(config) * 2 * (kv > 0 ? kv : heads) * dim * (int64_t)sizeof(float);
    tkc_arena_free(&arena);
    return bytes > 0 ? bytes : 0;
}

bool cli_is_model_config(const char *folder)
{
    char *type = cli_folder_type(folder);
    bool found = type != NULL;
    free(type);
    return found;
}

/* A text of config.json; yours, NULL = it does not say. */
static char *config_text(const char *folder, const char *key)
{
    tkc_arena arena = { 0 };
    const tkc_tree *config = load_config(&arena, folder);
    const char *text = tkc_tree_text(member(config, key));
    char *copy = text ? strdup(text) : NULL;
    tkc_arena_free(&arena);
    return copy;
}

char *cli_folder_type(const char *folder)
{
    return config_text(folder, "model_type");
}

char *cli_logged_model(const char *log_dir)
{
    return config_text(log_dir, "model_name");
}

static bool is_weights(const char *name)
{
    size_t n = strlen(name);
    return n > 12 && strcmp(name + n - 12, ".safetensors") == 0;
}

void cli_folder_each_weights(const char *folder, bool (*fn)(const char *path, void *user),
                             void *user)
{
    char *plain = cli_printf("%.*s", cli_plain_length(folder), folder);
    DIR *dir = plain ? opendir(plain) : NULL;
    bool more = true;
    if (!dir && cli_is_gguf(folder)) /* further parts are read when they are used */
        (void)fn(folder, user);
    for (const struct dirent *e; dir && more && (e = readdir(dir));) {
        char *path = is_weights(e->d_name) ? cli_printf("%s/%s", plain, e->d_name) : NULL;
        more = !path || fn(path, user);
        free(path);
    }
    if (dir)
        closedir(dir);
    free(plain);
}

static bool add_size(const char *path, void *user)
{
    int64_t *total = user;
    struct stat file;
    if (stat(path, &file) == 0)
        *total += file.st_size;
    return true;
}

int64_t cli_folder_bytes(const char *folder)
{
    int64_t total = 0;
    cli_folder_each_weights(folder, add_size, &total);
    return total;
}

int64_t cli_available_bytes(void)
{
    uint64_t available = tkc_host_memory_now().available;
    return available > 0 && available < INT64_MAX ? (int64_t)available : INT64_MAX;
}

static int check_size(const cli_app *app, const char *folder, int64_t bytes)
{
    char needed[CLI_SHORT_TEXT], free_text[CLI_SHORT_TEXT];
    int64_t available = cli_available_bytes();
    if (bytes <= available)
        return 0;
    cli_format_size(bytes, needed);
    cli_format_size(available, free_text);
    return cli_fail(app, "local_io", "choose a smaller model, free memory, or add --force to try",
                    "%s does not fit into memory: its weights are %s (%lld bytes), %s (%lld bytes) "
                    "are available",
                    folder, needed, (long long)bytes, free_text, (long long)available);
}

int cli_model_fits(const cli_app *app, const char *folder)
{
    if (cli_base_bits(folder)) /* how large it is, is known when it is packed */
        return 0;
    return check_size(app, folder, cli_folder_bytes(folder));
}

/* ---- reading ahead ---- */

enum { SHOWN_FROM = 1 << 30, PIECE = 16 << 20 };

typedef struct reading {
    cli_progress bar;
    int64_t done, total;
    bool cold; /* something had to be read */
} reading;

/* Whether the file cache has every page of this piece. */
static bool is_cached(int fd, int64_t at, size_t len)
{
    enum { PAGE = 4096 }; /* the smallest there is: enough places in any case */
    static unsigned char pages[PIECE / PAGE];
    void *map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, at);
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (len + page - 1) / page;
    bool all = map != MAP_FAILED && mincore(map, len, (void *)pages) == 0;
    for (size_t i = 0; all && i < n; i++)
        all = pages[i] & 1;
    if (map != MAP_FAILED)
        munmap(map, len);
    return all;
}

/* A fault of the file is the engine's to report, so reading it merely ends there. */
static bool read_piece(int fd, int64_t at, size_t len)
{
    static char buffer[1 << 20];
    tkc_read_ahead(fd, at, len);
    for (size_t have = 0; have < len;) {
        ssize_t n = pread(fd, buffer, sizeof buffer, at + (int64_t)have);
        if (n <= 0)
            return false;
        have += (size_t)n;
    }
    return true;
}

static bool read_file(const char *path, void *user)
{
    reading *r = user;
    struct stat file;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool ok = fd >= 0 && fstat(fd, &file) == 0;
    for (int64_t at = 0; ok && at < file.st_size && !cli_stop_signal(); at += PIECE) {
        int64_t left = file.st_size - at;
        size_t len = left < PIECE ? (size_t)left : PIECE;
        if (!is_cached(fd, at, len)) {
            r->cold = true;
            ok = read_piece(fd, at, len);
        }
        r->done += (int64_t)len;
        if (r->cold)
            cli_progress_step(&r->bar, r->done, r->total, NULL);
    }
    if (fd >= 0)
        close(fd);
    return !cli_stop_signal();
}

int cli_read_weights(const cli_app *app, const char *folder, int64_t least)
{
    reading r = { .total = cli_folder_bytes(folder) };
    if (r.total <= least || r.total > cli_available_bytes())
        return 0;
    cli_catch_signals();
    cli_progress_begin(&r.bar, app, "loading the weights", r.total, true);
    cli_folder_each_weights(folder, read_file, &r);
    cli_progress_end(&r.bar);
    return cli_stop_signal() ? cli_stop_exit() : 0;
}

/* ---- packing ---- */

static bool show_packing(int64_t done, int64_t total, void *bar)
{
    cli_progress_step(bar, done, total, NULL);
    return !cli_stop_signal();
}

/* "Qwen/Qwen3-8B: base weights in 4 bits: 4.5 for each number of the layers, ..." */
static void say_cost(const cli_app *app, const char *folder, const tinkc_quantize_result *r)
{
    char before[CLI_SHORT_TEXT], after[CLI_SHORT_TEXT];
    cli_format_size(r->bytes_before, before);
    cli_format_size(r->bytes, after);
    cli_note(app,
             "base weights in %d bits (%s): %.1f bits for each number of the layers, %.1f of the "
             "whole model; %s instead of %s",
             cli_base_bits(folder), cli_base_bits(folder) == 4 ? "NF4" : "Q8_0", r->matrix_bits,
             r->bits, after, before);
}

/* The first time the weights are read, packed and written to the user's cache; from then on they are there. */
static int pack_weights(const cli_app *app, const char *folder)
{
    tinkc_error err = { 0 };
    tinkc_quantize_result result = { 0 };
    char *plain = cli_printf("%.*s", cli_plain_length(folder), folder);
    tinkc_quantize_options o = { .model = plain, .bits = cli_base_bits(folder) };
    cli_progress bar;
    cli_catch_signals();
    cli_progress_begin(&bar, app, "packing the weights", -1, true);
    bool ok = tinkc_quantize(&o, show_packing, &bar, &result, &err);
    cli_progress_end(&bar);
    free(plain);
    if (!ok)
        return cli_stop_signal() ? cli_stop_exit() : cli_fail_error(app, &err, NULL);
    say_cost(app, folder, &result);
    return cli_flag(app, "force") ? 0 : check_size(app, folder, result.bytes);
}

int cli_load_weights(const cli_app *app, const char *folder)
{
    if (cli_base_bits(folder))
        return pack_weights(app, folder);
    return cli_read_weights(app, folder, SHOWN_FROM);
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
