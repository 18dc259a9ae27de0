/* train_log.c - a run's log directory. */
#include "cli/track/train_log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/main/files.h"
#include "cli/track/gitinfo.h"
#include "cli/track/metric_exports.h"
#include "cli/output/out.h"
#include "cli/output/text.h"

int cli_trainlog_claim(const cli_app *app, const char *folder, cli_claim *out)
{
    *out = (cli_claim){ .made = access(folder, F_OK) != 0 };
    if (!cli_make_folder(folder, 0777) ||
        (out->fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        return cli_fail(app, "local_io", NULL, "%s: %s", folder, tkc_errno_text(errno));
    out->held = true;
    if (flock(out->fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        return cli_check_links(app, folder, "--log-dir"); /* some file systems have no locks: then
                                                             two runs are not kept apart */
    return cli_fail(app, "conflict", "wait until it ends, or give another --log-dir",
                    "another process is training into %s", folder);
}

void cli_trainlog_release(const cli_claim *claim, const char *folder)
{
    if (!claim->held)
        return;
    if (claim->made)
        (void)rmdir(folder);
    close(claim->fd);
}

static FILE *open_log(const char *folder, const char *name, const char *mode)
{
    char *path = cli_printf("%s/%s", folder, name);
    FILE *f = path ? fopen(path, mode) : NULL;
    free(path);
    return f;
}

/* As it was started: the words of this process. */
static void log_command_line(const cli_app *app, FILE *to)
{
    fputs("trainlog:0 [INFO]", to);
    for (char **word = app->command_line; word && *word; word++)
        fprintf(to, strpbrk(*word, " \t\n'\"$*") || !**word ? " '%s'" : " %s", *word);
    fputc('\n', to);
    (void)fflush(to);
}

static int start_hook(const cli_app *app, const char *command, cli_child *out)
{
    const char *name;
    for (size_t i = 0; (name = cli_text_at(app, "pass-env", i)); i++)
        if (!*name || strchr(name, '='))
            return cli_fail(app, "usage", NULL, "--pass-env: '%s' is not the name of a variable",
                            name);
    char **env = cli_child_env(app, NULL);
    bool ok = env && cli_child_start(out, (const char *const[]){ "/bin/sh", "-c", command, NULL },
                                     env, CLI_CHILD_WRITE);
    free(env);
    return ok ? 0 : cli_fail(app, "local_io", NULL, "--hook: %s", tkc_errno_text(errno));
}

int cli_trainlog_open(cli_app *app, const char *folder, const char *hook, cli_trainlog *out)
{
    *out = (cli_trainlog){ .folder = strdup(folder) };
    if (!cli_make_folder(folder, 0777) ||
        !(out->metrics = open_log(folder, "metrics.jsonl", "ae")) ||
        !(out->checkpoints = open_log(folder, "checkpoints.jsonl", "ae")) ||
        !(out->spans = open_log(folder, "timing_spans.jsonl", "ae")) ||
        !(out->text = open_log(folder, "logs.log", "ae")))
        return cli_fail(app, "local_io", NULL, "%s: %s", folder, tkc_errno_text(errno));
    log_command_line(app, out->text);
    app->log_file = out->text;
    return hook ? start_hook(app, hook, &out->hook) : 0;
}

void cli_trainlog_info(cli_trainlog *log, const char *what, const char *text)
{
    fprintf(log->text, "trainlog:0 [INFO] %s %s\n", what, text);
    (void)fflush(log->text);
}

static bool copy_rows(FILE *from, FILE *to, size_t step, bool all)
{
    char *line = NULL;
    size_t cap = 0;
    bool ok = true;
    tkc_arena arena = { 0 };
    for (ssize_t n; ok && (n = getline(&line, &cap, from)) > 0;) {
        if (line[n - 1] != '\n')
            break; /* torn */
        const tkc_tree *v = all ? NULL : tkc_tree_read(&arena, tkc_str(line), 0);
        const tkc_tree *at = tkc_tree_get(v, "step");
        if (!tkc_tree_is_i64(at) || tkc_tree_i64(at) < (int64_t)step)
            ok = fputs(line, to) != EOF;
        tkc_arena_reset(&arena);
    }
    tkc_arena_free(&arena);
    free(line);
    return ok && fflush(to) == 0 && tkc_sync_file(fileno(to)) == 0;
}

/* Written to a new file beside it and moved into place, so that a kill here loses nothing. */
static bool rewrite_rows(const char *folder, const char *name, size_t step, bool all)
{
    char *path = cli_printf("%s/%s", folder, name), *beside = cli_printf("%s/%s.new", folder, name);
    FILE *from = path ? fopen(path, "re") : NULL, *to = NULL;
    bool ok = path && beside && (from || errno == ENOENT);
    if (ok && from) {
        to = fopen(beside, "we");
        ok = to && copy_rows(from, to, step, all);
        if (to)
            fclose(to); /* all of it is on the disk by now */
        ok = ok && rename(beside, path) == 0;
    }
    if (from)
        fclose(from);
    free(path);
    free(beside);
    return ok;
}

bool cli_trainlog_rewind(const char *folder, size_t step)
{
    return rewrite_rows(folder, "metrics.jsonl", step, false) &&
           rewrite_rows(folder, "timing_spans.jsonl", step, false) &&
           rewrite_rows(folder, "samples.jsonl", step, false) &&
           rewrite_rows(folder, "checkpoints.jsonl", 0, true);
}

void cli_trainlog_close(cli_trainlog *log)
{
    if (log->metrics)
        fclose(log->metrics);
    if (log->checkpoints)
        fclose(log->checkpoints);
    if (log->spans)
        fclose(log->spans);
    if (log->text)
        fclose(log->text);
    (void)cli_child_end(&log->hook);
    if (log->samples)
        fclose(log->samples);
    cli_exports_close(log->exports);
    free(log->folder);
    *log = (cli_trainlog){ 0 };
}

static bool append(FILE *f, const tkc_tree *v)
{
    cli_write_json(f, v, 0);
    return fputc('\n', f) != EOF && fflush(f) == 0;
}

static bool on_disk(FILE *f)
{
    return tkc_sync_file(fileno(f)) == 0;
}

bool cli_trainlog_metrics(cli_trainlog *log, const tkc_tree *v)
{
    cli_exports_row(log->exports, v);
    return append(log->metrics, v);
}

bool cli_trainlog_spans(cli_trainlog *log, const tkc_tree *v)
{
    return append(log->spans, v);
}

bool cli_trainlog_sample(cli_trainlog *log, const tkc_tree *v)
{
    if (!log->samples)
        log->samples = open_log(log->folder, "samples.jsonl", "ae");
    return log->samples && append(log->samples, v);
}

/* A run continues from here: what was measured so far must be there, then. Rows of the steps since
 * would be measured again, so they need not be waited for one by one. */
bool cli_trainlog_checkpoint(cli_trainlog *log, const tkc_tree *v)
{
    return on_disk(log->metrics) && on_disk(log->spans) && append(log->checkpoints, v) &&
           on_disk(log->checkpoints);
}

void cli_trainlog_event(const cli_app *app, cli_trainlog *log, const tkc_tree *v)
{
    if (!log->hook.pipe)
        return;
    /* A hook that has ended must not end the training: its SIGPIPE is taken back. */
    sigset_t pipe_signal, before, waiting;
    int number;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    cli_write_json(log->hook.pipe, v, 0);
    fputc('\n', log->hook.pipe);
    bool ok = fflush(log->hook.pipe) == 0;
    while (!ok && sigpending(&waiting) == 0 && sigismember(&waiting, SIGPIPE) == 1 &&
           sigwait(&pipe_signal, &number) == 0)
        ;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!ok) {
        cli_warn(app, "--hook: the command has ended; training continues without it");
        (void)cli_child_end(&log->hook);
    }
}

int cli_trainlog_code(const cli_app *app, const char *folder)
{
    char *path = cli_printf("%s/code.diff", folder);
    cli_save s;
    cli_save_begin(&s, path ? path : "", 0666);
    bool any = s.f && cli_git_diff(s.f);
    int bad = cli_save_end(&s, app, any);
    if (!any && path)
        (void)unlink(path); /* of an earlier start elsewhere */
    free(path);
    return bad;
}

int cli_trainlog_config(const cli_app *app, const char *folder, const tkc_tree *v)
{
    char *path = cli_printf("%s/config.json", folder);
    cli_save s;
    cli_save_begin(&s, path ? path : "", 0666);
    if (s.f) {
        cli_write_json(s.f, v, 2);
        fputc('\n', s.f);
    }
    free(path);
    return cli_save_end(&s, app, true);
}

tkc_tree *cli_trainlog_read_config(tkc_arena *arena, const char *folder)
{
    char *path = cli_printf("%s/config.json", folder);
    tkc_tree *v = path ? cli_json_load(arena, path, NULL) : NULL;
    free(path);
    return v;
}

tkc_tree *cli_trainlog_records(tkc_arena *arena, const char *folder, const char *key)
{
    FILE *f = open_log(folder, "checkpoints.jsonl", "re");
    tkc_tree *out = tkc_tree_array(arena);
    char *line = NULL;
    size_t cap = 0;
    while (f && getline(&line, &cap, f) > 0) {
        tkc_tree *v = tkc_tree_read(arena, tkc_str(line), 0);
        if (tkc_tree_is_text(tkc_tree_get(v, key)))
            tkc_tree_add(out, v);
    }
    if (f)
        fclose(f);
    free(line);
    return out;
}

/* Everything that a run writes. The first ones tell that there was one. */
static const char *const run_files[] = {
    "config.json", "metrics.jsonl", "checkpoints.jsonl",       "code.diff",    "timing_spans.jsonl",
    "logs.log",    "config.toml",   "reference_logprobs.json", "samples.jsonl"
};
enum { TELLING = 3 };

bool cli_trainlog_exists(const char *folder)
{
    bool found = false;
    for (size_t i = 0; i < TELLING && !found; i++) {
        char *path = cli_printf("%s/%s", folder, run_files[i]);
        found = path && access(path, F_OK) == 0;
        free(path);
    }
    return found;
}

/* The rollouts of each step: iteration_NNNNNN/train_rollout_summaries.jsonl. */
static bool remove_iterations(const char *folder)
{
    DIR *d = opendir(folder);
    bool ok = true;
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, "iteration_", 10) != 0)
            continue;
        char *inner = cli_printf("%s/%s", folder, e->d_name);
        char *path = cli_printf("%s/%s/train_rollout_summaries.jsonl", folder, e->d_name);
        ok = inner && path && (unlink(path) == 0 || errno == ENOENT) &&
             (rmdir(inner) == 0 || errno == ENOTEMPTY) && ok;
        free(inner);
        free(path);
    }
    if (d)
        closedir(d);
    return ok;
}

bool cli_trainlog_remove(const char *folder)
{
    cli_exports_remove(folder);
    bool ok = remove_iterations(folder);
    for (size_t i = 0; ok && i < sizeof run_files / sizeof *run_files; i++) {
        char *path = cli_printf("%s/%s", folder, run_files[i]);
        ok = path && (unlink(path) == 0 || errno == ENOENT);
        free(path);
    }
    return ok;
}
