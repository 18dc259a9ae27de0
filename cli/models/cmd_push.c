/* cmd_push.c - `tinkc checkpoint push-hf`: an adapter or a merged model to a hub.
 *
 * What is pushed is put together in a temporary folder: links to the files, a model card, a
 * configuration that names the base model. The source is never changed.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/models/adapter_fetch.h"
#include "cli/models/adapter_forms.h"
#include "cli/main/commands.h"
#include "cli/main/option_rows.h"
#include "cli/main/config_file.h"
#include "cli/main/files.h"
#include "cli/models/hub_models.h"
#include "cli/models/model_card.h"
#include "cli/output/term.h"
#include "cli/output/text.h"
#include "cli/models/weights.h"

/* clang-format off */
const cli_option cli_push_options[] = {
    OPT_TEXT("repo", "USER/NAME", "repository; made if it is not there (default: named after model and run)",
             .letter = 'r'),
    OPT_FLAG("public", "make the repository public; otherwise private"),
    OPT_TEXT("revision", "BRANCH", "branch to upload to"),
    OPT_TEXT("commit-message", "TEXT", "of the commit"),
    OPT_FLAG("create-pr", "open a pull request instead of pushing"),
    OPT_TEXT("allow-pattern", "PATTERN", "upload only files that match", .repeats = true),
    OPT_TEXT("ignore-pattern", "PATTERN", "skip files that match", .repeats = true),
    OPT_FLAG("no-model-card", "make no README.md where there is none"),
    OPT_FLAG("merged", "merge the adapter into its base model and push the model"),
    OPT_TEXT("base", "MODEL", "base model for --merged: folder or hub name (default: what the adapter names)",
             .complete = "model"),
    OPT_FILE("hf-token-file", "FILE", "read the token from this file instead of HF_TOKEN"),
    OPT_COUNT("jobs", "N", "pieces at once", "4", .letter = 'j'),
    OPT_FLAG("dry-run", "show what would be uploaded"),
    { 0 }
};
/* clang-format on */
const char *const cli_push_examples[] = {
    "tinkc checkpoint push-hf tinker://RUN/sampler_weights/final -r me/my-adapter",
    "tinkc checkpoint push-hf tinkc-runs/a --merged --base Qwen/Qwen3-0.6B -r me/my-model", NULL
};

typedef struct push { /* one run of the command */
    cli_app *app;
    const char *source; /* as given, or the checkpoint of a log directory */
    char *from_log;     /* yours */
    char *training;     /* likewise: the training checkpoint of the log directory; NULL = none */
    char *temp;         /* everything below goes at the end */
    char *files;        /* the folder with the source's files */
    char *staging;      /* what is pushed */
    char *repo, *revision;
    cli_card card;
    char *base_model;
    bool local;
    bool external; /* came as external weights: they have no mark of completeness */
} push;

/* ---- the source's files ---- */

static bool has(const char *folder, const char *name)
{
    char *path = cli_printf("%s/%s", folder, name);
    bool there = path && access(path, R_OK) == 0;
    free(path);
    return there;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int make_temp(push *p)
{
    const char *where = getenv("TMPDIR");
    p->temp = cli_printf("%s/tinkc-push-XXXXXX", where && *where ? where : "/tmp");
    if (p->temp && mkdtemp(p->temp))
        return 0;
    int fault = errno;
    free(p->temp);
    p->temp = NULL;
    return cli_fail(p->app, "local_io", "set TMPDIR to a folder that can be written",
                    "no temporary folder: %s", tkc_errno_text(fault));
}

static int check_files(const push *p)
{
    const char *folder = p->files;
    if (!has(folder, "adapter_config.json") && !(p->local && has(folder, "config.json")))
        return cli_fail(p->app, "data_invalid", NULL, "%s holds neither a PEFT adapter nor a model",
                        p->source);
    if (has(folder, "adapter_config.json") && !has(folder, "adapter_model.safetensors") &&
        !has(folder, "adapter_model.bin"))
        return cli_fail(p->app, "data_invalid", NULL, "%s does not contain a PEFT adapter",
                        p->source);
    if (!p->local && !p->external && !has(folder, "checkpoint_complete"))
        return cli_fail(p->app, "data_invalid",
                        "the checkpoint was not saved completely; save it again",
                        "%s is missing 'checkpoint_complete'", p->source);
    return 0;
}

/* What the service knows of the weights; silence is not a failure. */
static void learn(push *p)
{
    tinkc_error err = { 0 };
    if (strncmp(p->source, "tinker://", 9) != 0)
        return;
    tinkc_future *f = tinkc_checkpoint_get(p->app->client, p->source, &err);
    const tinkc_weights *w =
        cli_wait(p->app, f, NULL, &err) ? tinkc_future_weights(f, 0, &err) : NULL;
    if (w) {
        p->base_model = w->base_model && *w->base_model ? strdup(w->base_model) : NULL;
        p->card.rank = w->lora_rank;
        p->card.freeze = w->freeze;
        p->card.has_flags = true;
    }
    tinkc_future_free(f);
}

/* What the adapter says of itself, where the service has said nothing. */
static void read_adapter(push *p)
{
    char *path = cli_printf("%s/adapter_config.json", p->files);
    tkc_tree *v = path ? cli_json_load(cli_arena(p->app), path, NULL) : NULL;
    const char *named = tkc_tree_get_text(v, "base_model_name_or_path");
    if (named && *named && !p->base_model)
        p->base_model = strdup(named);
    if (!p->card.rank)
        p->card.rank = (int)tkc_tree_get_i64(v, "r");
    free(path);
}

static int get_files(push *p)
{
    int bad = make_temp(p);
    if (bad)
        return bad;
    if (p->local) {
        p->files = strdup(p->source);
    } else {
        char *beside = cli_printf("%s/source", p->temp);
        cli_wanted_files w = { .path = p->source, .training = p->training };
        bad = cli_fetch_adapter(p->app, &w, beside ? beside : "source", &p->files);
        p->external = w.external;
        free(beside);
        if (!bad)
            learn(p);
    }
    if (!bad)
        read_adapter(p);
    return bad ? bad : check_files(p);
}

/* ---- merging ---- */

static int merge(push *p)
{
    int bad = 0;
    const char *named = cli_text(p->app, "base") ? cli_text(p->app, "base") : p->base_model;
    if (!named)
        return cli_fail(p->app, "usage", "--base MODEL",
                        "which base model? The adapter names none");
    char *base = cli_base_folder(p->app, named, &bad), *target = cli_printf("%s/merged", p->temp);
    if (base) {
        tinkc_adapter_options o = { .adapter = p->files,
                                    .base_model = base,
                                    .target = target,
                                    .format = TINKC_ADAPTER_MERGED };
        bad = cli_make_form(p->app, &o, "Merging");
    }
    if (!bad && base) {
        free(p->files);
        p->files = target;
        target = NULL;
    }
    free(base);
    free(target);
    return bad;
}

/* ---- putting it together ---- */

/* Links to the files of a folder and those below it. False with errno set. */
static bool mirror(const char *from, const char *to, int depth)
{
    struct dirent *e;
    DIR *dir = depth < 16 && mkdir(to, 0700) == 0 ? opendir(from) : NULL;
    bool ok = dir != NULL;
    while (ok && (e = readdir(dir))) {
        struct stat st;
        char *source = cli_printf("%s/%s", from, e->d_name);
        char *target = cli_printf("%s/%s", to, e->d_name);
        char *whole = NULL;
        bool dots = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
        if (!dots && source && target && lstat(source, &st) == 0) {
            if (S_ISDIR(st.st_mode))
                ok = strcmp(e->d_name, ".git") == 0 || mirror(source, target, depth + 1);
            else if ((whole = realpath(source, NULL)))
                ok = symlink(whole, target) == 0;
        }
        free(source);
        free(target);
        free(whole);
    }
    if (dir)
        closedir(dir);
    return ok;
}

static void drop(const push *p, const char *name)
{
    char *path = cli_printf("%s/%s", p->staging, name);
    (void)unlink(path ? path : "");
    free(path);
}

static int write_text(push *p, const char *name, const char *text)
{
    char *path = cli_printf("%s/%s", p->staging, name);
    cli_save save;
    drop(p, name);
    cli_save_begin(&save, path ? path : name, 0644);
    if (save.f)
        fputs(text, save.f);
    int bad = cli_save_end(&save, p->app, true);
    free(path);
    return bad;
}

/* adapter_config.json names the base model, as loaders expect. */
static int complete_config(push *p)
{
    char *path = cli_printf("%s/adapter_config.json", p->staging);
    tkc_tree *v = path ? cli_json_load(cli_arena(p->app), path, NULL) : NULL;
    int bad = 0;
    if (tkc_tree_is_object(v) && p->base_model &&
        !tkc_tree_get_text(v, "base_model_name_or_path")) {
        tkc_tree_set_text(v, "base_model_name_or_path", p->base_model);
        char *text = cli_json_print(v, 2 | TKC_TREE_SORTED);
        bad = write_text(p, "adapter_config.json", text ? text : "{}");
        free(text);
    }
    free(path);
    return bad;
}

/* Checkpoints may spell the output projection as the service does; loaders look for PEFT's names.
 * */
static int use_peft_names(push *p)
{
    static const char *const names[] = { "adapter_model.safetensors", "adapter_config.json" };
    tinkc_error err = { 0 };
    int bad = 0;
    char *made = cli_printf("%s/peft", p->temp);
    tinkc_adapter_options o = { .adapter = p->files, .target = made, .format = TINKC_ADAPTER_PEFT };
    bool adapter = has(p->staging, "adapter_config.json"); /* not a model */
    bool ok = adapter && tinkc_adapter_export(&o, NULL, NULL, &err);
    if (adapter && !ok)
        cli_note(p->app, "the adapter is pushed as it is: %s", err.message);
    for (size_t i = 0; ok && !bad && i < 2; i++) {
        char *from = cli_printf("%s/%s", made, names[i]);
        char *to = cli_printf("%s/%s", p->staging, names[i]);
        drop(p, names[i]);
        bad = from && to && rename(from, to) == 0
                  ? 0
                  : cli_fail(p->app, "local_io", NULL, "%s: %s", names[i], tkc_errno_text(errno));
        free(from);
        free(to);
    }
    free(made);
    return bad;
}

static int stage(push *p)
{
    p->staging = cli_printf("%s/push", p->temp);
    if (!p->staging || !mirror(p->files, p->staging, 0))
        return cli_fail(p->app, "local_io", NULL, "%s: %s", p->files, tkc_errno_text(errno));
    int bad = use_peft_names(p);
    if (!bad)
        bad = complete_config(p);
    if (!cli_given(p->app, "allow-pattern"))
        drop(p, "checkpoint_complete"); /* a mark between the service and its clients */
    if (bad || cli_flag(p->app, "no-model-card") || has(p->staging, "README.md"))
        return bad;
    p->card.base_model = p->base_model;
    p->card.repo = p->repo;
    p->card.source = strncmp(p->source, "tinker://", 9) == 0 ? p->source : NULL;
    p->card.is_model = !has(p->staging, "adapter_config.json");
    char *card = cli_model_card(&p->card);
    bad = write_text(p, "README.md", card ? card : "");
    free(card);
    return bad;
}

/* ---- names ---- */

/* Letters, digits, "_." stay; others become one "-"; none of "-_. " at the end. It begins with a letter. */
static char *plain_name(const char *text)
{
    size_t n = 0;
    char *out = strdup(text);
    for (const char *c = text; out && *c; c++) {
        bool keep = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                    (*c >= '0' && *c <= '9') || *c == '_' || *c == '.';
        if (keep || (n && out[n - 1] != '-'))
            out[n++] = keep ? *c : '-';
    }
    while (out && n && strchr("-_. ", out[n - 1]))
        n--;
    if (out)
        out[n] = '\0';
    return out;
}

static int choose_names(push *p)
{
    tinkc_error err = { 0 };
    tinkc_path parsed;
    const char *repo = cli_text(p->app, "repo"), *revision = cli_text(p->app, "revision");
    p->revision = revision ? strdup(revision) : NULL;
    p->repo = repo ? strdup(repo) : NULL;
    if (repo)
        return 0;
    if (!tinkc_path_parse(p->source, &parsed, &err))
        return cli_fail(p->app, "usage", "-r USER/NAME", "which repository?");
    const char *base = p->base_model ? p->base_model : "adapter", *slash = strrchr(base, '/');
    char *raw = cli_printf("tinker-%s-%.*s", slash ? slash + 1 : base, (int)parsed.run_id.len,
                           parsed.run_id.data);
    char *id = cli_printf("%.*s", (int)parsed.checkpoint_id.len, parsed.checkpoint_id.data);
    p->repo = raw ? plain_name(raw) : NULL;
    if (!p->revision && id)
        p->revision = plain_name(id);
    free(raw);
    free(id);
    return 0;
}

/* ---- the hub ---- */

/* A repository that holds another checkpoint is not overwritten by mistake. */
static int check_other(push *p, tinkc_hub *hub)
{
    static const char *const card[] = { "README.md", NULL };
    tinkc_error err = { 0 };
    int bad = 0;
    size_t len;
    if (!p->card.source)
        return 0;
    tinkc_hub_snapshot *s = tinkc_hub_pull(
        hub, &(tinkc_pull_options){ .repo = p->repo, .revision = p->revision, .include = card },
        &err);
    char *path = s ? cli_printf("%s/README.md", tinkc_hub_snapshot_folder(s)) : NULL;
    char *text = path ? cli_read_all(p->app, path, &len, &bad) : NULL;
    const char *other = text ? strstr(text, "tinker://") : NULL;
    if (other && strncmp(other, p->source, strlen(p->source)) != 0)
        bad = cli_fail(p->app, "conflict", "choose another --repo or --revision",
                       "%s already holds a different checkpoint", p->repo);
    else if (!s && err.code != TINKC_E_NOT_FOUND && err.code != TINKC_E_AUTH)
        bad = cli_fail_hub(p->app, &err);
    tinkc_hub_snapshot_free(s);
    free(path);
    free(text);
    return bad;
}

static tkc_tree *files_json(const cli_app *app, const tinkc_hub_snapshot *s)
{
    tkc_tree *files = cli_array(app);
    const tinkc_hub_file *f;
    for (size_t i = 0; (f = tinkc_hub_snapshot_at(s, i)); i++)
        tkc_tree_add(files,
                     cli_pack(app, "{s:o,s:I,s:b}", "name", cli_json_text(cli_arena(app), f->name),
                              "size_bytes", (int64_t)f->size, "unchanged", f->was_cached));
    return files;
}

static int show_pushed(push *p, const tinkc_hub_snapshot *s)
{
    cli_app *app = p->app;
    char sent[CLI_SHORT_TEXT];
    bool is_public = cli_flag(app, "public"), dry = cli_flag(app, "dry-run");
    const char *revision = p->revision ? p->revision : "main";
    const char *url = tinkc_hub_snapshot_request(s)[0] ? tinkc_hub_snapshot_request(s)
                                                       : tinkc_hub_snapshot_url(s);
    tkc_tree *rows = cli_array(app);
    tkc_tree *v = cli_pack(app, "{s:o,s:s,s:s,s:b}", "checkpoint_path",
                           cli_json_text(cli_arena(app), p->source), "repo_id",
                           tinkc_hub_snapshot_repo(s), "revision", revision, "public", is_public);
    if (!app->compat) {
        tkc_tree_set_text(v, "commit", tinkc_hub_snapshot_commit(s));
        tkc_tree_set_text(v, "commit_url", url);
        tkc_tree_set_bool(v, "dry_run", dry);
        tkc_tree_set(v, "files", files_json(app, s));
    } else if (!cli_given(app, "revision")) {
        tkc_tree_set(v, "revision", tkc_tree_null());
    }
    cli_format_size(tinkc_hub_snapshot_moved(s), sent);
    cli_row(app, rows, "Checkpoint Path", p->source);
    cli_row(app, rows, "Repo ID", tinkc_hub_snapshot_repo(s));
    if (!app->compat || cli_given(app, "revision"))
        cli_row(app, rows, "Revision", revision);
    cli_row(app, rows, "Public", is_public ? "Yes" : "No");
    if (!app->compat && !dry) {
        cli_row(app, rows, "Uploaded", sent);
        cli_row(app, rows, "Commit", url);
    }
    return cli_show_record(app, cli_printf("Checkpoint Hub Upload: %s", p->source), rows, v);
}

static int send(push *p, tinkc_hub *hub)
{
    tinkc_error err = { 0 };
    int bad = 0;
    const char **allow = cli_values(p->app, "allow-pattern");
    const char **ignore = cli_values(p->app, "ignore-pattern");
    cli_progress bar;
    tinkc_push_options o = { .repo = p->repo,
                             .folder = p->staging,
                             .revision = p->revision,
                             .message = cli_text(p->app, "commit-message"),
                             .include = allow,
                             .exclude = ignore,
                             .is_public = cli_flag(p->app, "public"),
                             .create_pr = cli_flag(p->app, "create-pr"),
                             .dry_run = cli_flag(p->app, "dry-run"),
                             .progress = cli_hub_show,
                             .user = &bar };
    cli_catch_signals();
    cli_progress_begin(&bar, p->app, "Uploading", -1, true);
    cli_hub_limit limit;
    cli_hub_limit_begin(&limit, p->app, hub);
    tinkc_hub_snapshot *s = tinkc_hub_push(hub, &o, &err);
    bool late = cli_hub_limit_end(&limit);
    cli_progress_end(&bar);
    if (!s && late) {
        err = (tinkc_error){ 0 };
        cli_run_out(&err);
    }
    if (s)
        bad = show_pushed(p, s);
    else if (cli_stop_signal())
        cli_note(p->app, "stopped; the same command sends only what is missing");
    if (!s)
        bad = cli_stop_signal() ? cli_stop_exit() : cli_fail_hub(p->app, &err);
    tinkc_hub_snapshot_free(s);
    free(allow);
    free(ignore);
    return bad;
}

/* A name without an owner is the user's own; the card says it whole. */
static int complete_repo(push *p, tinkc_hub *hub)
{
    tinkc_error err = { 0 };
    char user[TINKC_HUB_USER_SIZE];
    if (strchr(p->repo, '/') || cli_flag(p->app, "dry-run"))
        return 0;
    if (!tinkc_hub_user(hub, user, &err))
        return cli_fail_hub(p->app, &err);
    char *whole = cli_printf("%s/%s", user, p->repo);
    free(p->repo);
    p->repo = whole;
    return whole ? 0 : CLI_EXIT_FAILED;
}

static int push_files(push *p)
{
    tinkc_error err = { 0 };
    int bad = 0;
    size_t len;
    char *token = NULL;
    if (cli_given(p->app, "hf-token-file")) {
        token = cli_read_all(p->app, cli_text(p->app, "hf-token-file"), &len, &bad);
        if (token)
            token[strcspn(token, "\r\n")] = '\0';
    }
    tinkc_hub *hub = bad ? NULL : cli_hub_open_as(p->app, token, &err);
    if (!hub && !bad)
        bad = cli_fail_hub(p->app, &err);
    if (!bad)
        bad = complete_repo(p, hub);
    if (!bad)
        bad = stage(p);
    if (!bad && !cli_flag(p->app, "dry-run"))
        bad = check_other(p, hub);
    if (!bad)
        bad = send(p, hub);
    tinkc_hub_free(hub);
    free(token);
    return bad;
}

int cli_checkpoint_push_hf(cli_app *app)
{
    push p = { .app = app, .source = app->args[0] };
    if (cli_int(app, "jobs") < 1 || cli_int(app, "jobs") > 64)
        return cli_fail(app, "usage", NULL, "--jobs must be 1 to 64");
    p.from_log = cli_sampler_path_of(p.source);
    p.training = p.from_log ? cli_last_record(p.source, "state_path") : NULL;
    p.source = p.from_log ? p.from_log : p.source;
    p.local = !p.from_log && is_folder(p.source);
    int bad = get_files(&p);
    if (!bad)
        bad = choose_names(&p);
    if (!bad && cli_flag(app, "merged"))
        bad = merge(&p);
    if (!bad)
        bad = push_files(&p);
    cli_remove_folder(p.temp);
    char *all[] = { p.from_log, p.training, p.temp,     p.files,
                    p.staging,  p.repo,     p.revision, p.base_model };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    return bad;
}
