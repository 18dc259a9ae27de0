/* cmd_export.c - `tinkc export` (also `checkpoint export`): a checkpoint, or a model, for other tools. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/models/adapter_fetch.h"
#include "cli/models/adapter_forms.h"
#include "cli/main/commands.h"
#include "cli/main/option_rows.h"
#include "cli/models/hub_models.h"
#include "cli/output/term.h"
#include "cli/output/text.h"
#include "cli/models/weights.h"

/* clang-format off */
const cli_option cli_export_options[] = {
    OPT_TEXT("base", "MODEL", "folder, gguf file or hub name of the base model (default: what the adapter names)",
             .complete = "model"),
    OPT_DIR("output", "PATH", "folder to make; for gguf, the file", .letter = 'o'),
    OPT_CHOICE("to", "FORM", "peft|merged|gguf|gguf-lora|hosted", "what to make", "peft"),
    OPT_CHOICE("type", "TYPE", "base|f16|bf16|q8_0|q4_0|f32", "numbers of a gguf file (default: f16; if the base is one: base, its own)"),
    OPT_FLAG("drop-unembed", "leave the output layer's adapter out; answers then differ from the trained model's"),
    { 0 }
};
/* clang-format on */
const char *const cli_export_examples[] = {
    "tinkc export tinkc-runs/a -o adapter",
    "tinkc export tinkc-runs/a --to gguf --type q8_0 -o model.gguf",
    "tinkc export Qwen/Qwen3-0.6B --to gguf -o base.gguf", NULL
};

typedef struct export
{ /* one run of the command */
    cli_app *app;
    const char *source;  /* as given */
    char *path;          /* tinker://... of a log directory; yours */
    char *fetched;       /* a temporary folder; yours */
    char *base;          /* the base model's folder; yours */
    const char *adapter; /* folder; NULL = the base model alone */
    const char *to, *target;
}
export;

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool has(const char *folder, const char *name)
{
    char *path = cli_printf("%s/%s", folder, name);
    bool there = path && access(path, R_OK) == 0;
    free(path);
    return there;
}

/* ---- the source ---- */

/* A model without an adapter: a folder with config.json, "nano", or a name on the hub. */
static bool is_model(const export *x)
{
    if (strcmp(x->to, "gguf") != 0 || x->path)
        return false;
    size_t len = strlen(x->source);
    bool file = len > 5 && strcmp(x->source + len - 5, ".gguf") == 0 && access(x->source, R_OK) == 0;
    return file || strcmp(x->source, "nano") == 0 || cli_is_hub_name(x->source) ||
           (is_folder(x->source) && !has(x->source, "adapter_config.json"));
}

static char *named_base(const char *adapter)
{
    char *path = cli_printf("%s/adapter_config.json", adapter);
    tkc_arena arena = { 0 };
    const tkc_tree *v = path ? cli_json_load(&arena, path, NULL) : NULL;
    const char *name = tkc_tree_get_text(v, "base_model_name_or_path");
    char *copy = name && *name ? strdup(name) : NULL;
    tkc_arena_free(&arena);
    free(path);
    return copy;
}

static int find_base(export *x)
{
    int bad = 0;
    const char *given = cli_text(x->app, "base");
    char *named = given ? strdup(given) : named_base(x->adapter);
    if (!named)
        return cli_fail(x->app, "usage", "--base MODEL",
                        "which base model? The adapter names none");
    x->base = cli_base_folder(x->app, named, &bad);
    free(named);
    return bad;
}

/* A log directory also knows the training checkpoint, for services that give out no sampler's. */
static int fetch_source(export *x)
{
    char *training = x->path ? cli_last_record(x->source, "state_path") : NULL;
    cli_wanted_files w = { .path = x->path ? x->path : x->source, .training = training };
    int bad = cli_fetch_adapter(x->app, &w, x->target, &x->fetched);
    free(training);
    return bad;
}

static int find_source(export *x)
{
    int bad = 0;
    x->path = cli_sampler_path_of(x->source); /* a log directory means its last sampler weights */
    if (is_model(x)) {
        x->base = cli_base_folder(x->app, x->source, &bad);
        return bad;
    }
    if (!x->path && is_folder(x->source))
        x->adapter = x->source;
    else
        bad = fetch_source(x);
    if (!x->adapter)
        x->adapter = x->fetched;
    bool needed = strcmp(x->to, "merged") == 0 || strncmp(x->to, "gguf", 4) == 0;
    if (!bad && needed)
        bad = find_base(x);
    else if (!bad && cli_text(x->app, "base"))
        x->base = cli_base_folder(x->app, cli_text(x->app, "base"), &bad);
    return bad;
}

/* ---- the work ---- */

static int convert(const export *x)
{
    bool gguf = strncmp(x->to, "gguf", 4) == 0;
    tinkc_adapter_options o = { .adapter = x->adapter,
                                .base_model = x->base,
                                .target = x->target,
                                .format = strcmp(x->to, "gguf-lora") == 0 ? TINKC_ADAPTER_GGUF_LORA
                                          : gguf                         ? TINKC_ADAPTER_GGUF
                                          : strcmp(x->to, "merged") == 0 ? TINKC_ADAPTER_MERGED
                                          : strcmp(x->to, "hosted") == 0 ? TINKC_ADAPTER_HOSTED
                                                                         : TINKC_ADAPTER_PEFT,
                                .gguf_type = gguf ? cli_text(x->app, "type") : NULL,
                                .drop_unembed = cli_flag(x->app, "drop-unembed") };
    if (cli_given(x->app, "type") && !gguf)
        return cli_fail(x->app, "usage", NULL, "--type is for --to gguf and gguf-lora");
    int bad = cli_make_form(x->app, &o, "Exporting");
    if (!bad && o.drop_unembed)
        cli_note(x->app,
                 "the adapter of the output layer was left out: what training changed there is "
                 "lost, and answers differ from those of the trained model");
    return bad;
}

/* ---- the result ---- */

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* One file as JSON; NULL = not a file, or err is set. */
static tkc_tree *file_json(tkc_arena *arena, const char *path, const char *name, tinkc_error *err)
{
    struct stat st;
    char hex[65];
    if (lstat(path, &st) != 0 || !S_ISREG(st.st_mode) || !tinkc_file_sha256(path, hex, err))
        return NULL;
    return tkc_tree_pack(arena, "{s:o,s:I,s:s}", "name", cli_json_text(arena, name), "size_bytes",
                         (int64_t)st.st_size, "sha256", hex);
}

/* What was made: a file, or what lies in the folder now, by name. */
static tkc_tree *files_json(tkc_arena *arena, const char *target, tinkc_error *err)
{
    tkc_tree *files = tkc_tree_array(arena), *v;
    struct dirent **names = NULL;
    const char *slash = strrchr(target, '/');
    if ((v = file_json(arena, target, slash ? slash + 1 : target, err)))
        tkc_tree_add(files, v);
    int n = is_folder(target) ? scandir(target, &names, NULL, by_name) : 0;
    for (int i = 0; i < n; i++) {
        char *path = cli_printf("%s/%s", target, names[i]->d_name);
        if (path && (v = file_json(arena, path, names[i]->d_name, err)))
            tkc_tree_add(files, v);
        free(path);
        free(names[i]);
    }
    free(names);
    return files;
}

static int show_result(const export *x)
{
    tinkc_error err = { 0 };
    cli_app *app = x->app;
    bool whole = app->format == CLI_JSON || app->format == CLI_JSONL;
    const char *source = x->path ? x->path : x->source;
    tkc_tree *files = whole ? files_json(cli_arena(app), x->target, &err) : cli_array(app);
    if (err.code)
        return cli_fail_error(app, &err, NULL);
    tkc_tree *rows = cli_array(app);
    tkc_tree *v = cli_pack(
        app, "{s:o,s:o,s:s,s:o,s:o}", "source", cli_json_text(cli_arena(app), source), "base_model",
        x->base ? cli_json_text(cli_arena(app), x->base) : tkc_tree_null(), "format", x->to,
        "destination", cli_json_text(cli_arena(app), x->target), "files", files);
    cli_row(app, rows, "Source", source);
    cli_row(app, rows, "Format", x->to);
    cli_row(app, rows, "Destination", x->target);
    return cli_show_record(app, strdup("Checkpoint Export"), rows, v);
}

int cli_checkpoint_export(cli_app *app)
{
    export x = { .app = app,
                 .source = app->args[0],
                 .to = cli_text(app, "to"),
                 .target = cli_text(app, "output") };
    if (!x.target)
        return cli_fail(app, "usage", NULL, "--output is needed: the folder or file to make");
    int bad = find_source(&x);
    if (!bad)
        bad = convert(&x);
    if (!bad)
        bad = show_result(&x);
    cli_remove_folder(x.fetched);
    free(x.fetched);
    free(x.path);
    free(x.base);
    return bad;
}
