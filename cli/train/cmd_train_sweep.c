/* cmd_train_sweep.c - `tinkc train sweep`: one recipe over a grid of settings, side by side.
 *
 * Each run is this program again, with a folder of its own. On this machine they share one engine: it
 * listens on a local port for as long as the sweep runs.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/main/commands.h"
#include "cli/main/config_file.h"
#include "cli/main/files.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

enum { MOST_AXES = 8, MOST_RUNS = 256 };

typedef struct axis {
    char *option;
    char **values;
    size_t n;
} axis;

typedef struct run {
    char *folder, *name; /* "lr=1e-4,lora-rank=8" */
    pid_t pid;           /* 0 = not running */
    int status;
    double metric;
    bool started, ended, measured;
} run;

typedef struct sweep {
    cli_app *app;
    axis axes[MOST_AXES];
    size_t n_axes, n_runs;
    run runs[MOST_RUNS];
    char *folder;
    const char *metric;
    tinkc_server *server;
} sweep;

/* ---- the grid ---- */

/* Whether a grid that a project file has set stays within what the file may set itself. The runs
 * get it on their command line, where nothing shows who has chosen it. */
static int check_axis(const sweep *s, const cli_command *recipe, const cli_value *grid,
                      const axis *a)
{
    char why[CLI_WHY] = "a project file may set only options of the recipe";
    size_t len = strlen(a->option);
    const cli_option *o = cli_find_option(recipe, a->option, len);
    if (!o)
        return cli_fail(s->app, "usage", NULL, "train %s has no option --%s", recipe->verb,
                        a->option);
    if (grid->source != CLI_FROM_PROJECT)
        return 0;
    bool may = o != cli_find_option(NULL, a->option, len);
    if (may && strcmp(o->name, "config") == 0) {
        may = false;
        (void)snprintf(why, sizeof why, "a project's grid may not name a file of settings");
    }
    for (size_t i = 0; may && i < a->n; i++)
        may = cli_project_may_set(s->app, o, a->values[i], why);
    return may ? 0 : cli_fail(s->app, "config_invalid", NULL, "%s: grid: %s", grid->origin, why);
}

static int read_axis(sweep *s, const cli_command *recipe, const cli_value *grid)
{
    const char *text = grid->text;
    char *copy = strdup(text), *is = copy ? strchr(copy, '=') : NULL;
    axis *a = &s->axes[s->n_axes];
    if (!is || is == copy || !is[1] || s->n_axes == MOST_AXES) {
        free(copy);
        return cli_fail(s->app, "usage", "--grid lr=1e-4,3e-4", "--grid: '%s' is not OPTION=A,B",
                        text);
    }
    *is = '\0';
    a->option = copy;
    for (char *part = is + 1, *next; part; part = next) {
        next = strchr(part, ',');
        if (next)
            *next++ = '\0';
        char **grown = realloc(a->values, (a->n + 1) * sizeof *grown);
        if (!grown)
            return cli_fail(s->app, "internal", NULL, "out of memory");
        a->values = grown;
        a->values[a->n++] = part;
    }
    s->n_axes++;
    return check_axis(s, recipe, grid, a);
}

static const char *value_of(const sweep *s, size_t which, size_t axis_number)
{
    for (size_t i = 0; i < axis_number; i++)
        which /= s->axes[i].n;
    return s->axes[axis_number].values[which % s->axes[axis_number].n];
}

/* A value may be a path: the folder is one level below the sweep's all the same. */
static char *folder_of(const sweep *s, const char *name)
{
    char *folder = cli_printf("%s/%s", s->folder, name);
    for (char *p = folder ? folder + strlen(s->folder) + 1 : NULL; p && *p; p++)
        if (*p == '/')
            *p = '_';
    return folder;
}

static int plan(sweep *s, const cli_command *recipe)
{
    cli_app *app = s->app;
    char when[CLI_SHORT_TEXT];
    int bad = 0;
    const cli_value *grid;
    for (size_t i = 0; (grid = cli_value_at(app, "grid", i)) && !bad; i++)
        bad = read_axis(s, recipe, grid);
    if (!bad && s->n_axes == 0)
        return cli_fail(app, "usage", "--grid lr=1e-4,3e-4", "no grid was given");
    s->n_runs = 1;
    for (size_t i = 0; i < s->n_axes; i++)
        s->n_runs *= s->axes[i].n;
    if (!bad && s->n_runs > MOST_RUNS)
        bad = cli_fail(app, "usage", NULL, "--grid gives %zu runs; at most %d are allowed",
                       s->n_runs, MOST_RUNS);
    if (bad) {
        s->n_runs = 0; /* more than there are places for, perhaps */
        return bad;
    }
    cli_format_iso(cli_now_us(), when);
    when[13] = when[16] = '-';
    when[19] = '\0';
    s->folder = cli_given(app, "log-dir") ? strdup(cli_text(app, "log-dir"))
                                          : cli_printf("tinkc-runs/sweep-%s", when);
    for (size_t r = 0; r < s->n_runs; r++) {
        char *name = strdup("");
        for (size_t i = 0; i < s->n_axes; i++) {
            char *longer = cli_printf("%s%s%s=%s", name, *name ? "," : "", s->axes[i].option,
                                      value_of(s, r, i));
            free(name);
            name = longer;
        }
        s->runs[r].name = name;
        s->runs[r].folder = folder_of(s, name);
    }
    return bad;
}

static void free_plan(sweep *s)
{
    for (size_t i = 0; i < s->n_axes; i++) {
        free(s->axes[i].option);
        free(s->axes[i].values);
    }
    for (size_t i = 0; i < s->n_runs; i++) {
        free(s->runs[i].name);
        free(s->runs[i].folder);
    }
    free(s->folder);
}

/* ---- runs ---- */

static int start(sweep *s, size_t which, char **argv, size_t argc)
{
    run *r = &s->runs[which];
    char *options[2 * MOST_AXES + 1], *log = cli_printf("--log-dir=%s", r->folder);
    char self[TKC_PATH];
    size_t n = argc;
    posix_spawn_file_actions_t files;
    for (size_t i = 0; i < s->n_axes; i++)
        argv[n++] = options[i] = cli_printf("--%s=%s", s->axes[i].option, value_of(s, which, i));
    argv[n++] = log;
    argv[n] = NULL;
    char *said = cli_printf("%s.log", r->folder);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&files, 2, said, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    (void)tkc_spawn_close_rest(&files);
    posix_spawnattr_t
        apart; /* a group of its own: Ctrl-C reaches the sweep alone, which passes it on */
    posix_spawnattr_init(&apart);
    posix_spawnattr_setflags(&apart, POSIX_SPAWN_SETPGROUP);
    pid_t pid;
    int bad = tkc_program_path(self)
                  ? posix_spawn(&pid, self, &files, &apart, argv, tkc_environment())
                  : ENOENT;
    posix_spawnattr_destroy(&apart);
    posix_spawn_file_actions_destroy(&files);
    for (size_t i = 0; i < s->n_axes; i++)
        free(options[i]);
    free(log);
    free(said);
    r->started = true;
    r->pid = bad ? 0 : pid;
    return bad ? cli_fail(s->app, "local_io", NULL, "%s: %s", r->name, tkc_errno_text(bad)) : 0;
}

/* The last row that has the metric. */
static void measure(sweep *s, run *r)
{
    static const char *const usual[] = { "test/env/all/correct",
                                         "test/env/all/reward/total",
                                         "test/nll",
                                         "teacher_kl",
                                         "env/all/reward/total",
                                         "train_mean_nll",
                                         "dpo_loss",
                                         "train/loss" };
    char *path = cli_printf("%s/metrics.jsonl", r->folder), *line = NULL;
    FILE *f = path ? fopen(path, "re") : NULL;
    size_t cap = 0;
    tkc_arena arena = { 0 };
    while (f && getline(&line, &cap, f) > 0) {
        const tkc_tree *v = tkc_tree_read(&arena, tkc_str(line), 0);
        for (size_t i = 0; !s->metric && i < sizeof usual / sizeof *usual; i++)
            if (tkc_tree_is_number(tkc_tree_get(v, usual[i])))
                s->metric = usual[i];
        const tkc_tree *value = s->metric ? tkc_tree_get(v, s->metric) : NULL;
        if (tkc_tree_is_number(value)) {
            r->metric = tkc_tree_number(value);
            r->measured = true;
        }
        tkc_arena_reset(&arena);
    }
    tkc_arena_free(&arena);
    if (f)
        fclose(f);
    free(line);
    free(path);
}

static size_t running(const sweep *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_runs; i++)
        n += s->runs[i].pid != 0;
    return n;
}

/* What its log says about its end: the first line of an error, without "error: ". Yours. */
static char *reason(const run *r)
{
    char *path = cli_printf("%s.log", r->folder), *line = NULL, *found = NULL;
    FILE *f = path ? fopen(path, "re") : NULL;
    size_t cap = 0;
    while (f && !found && getline(&line, &cap, f) > 0)
        if (strncmp(line, "error: ", 7) == 0) {
            line[strcspn(line, "\n")] = '\0';
            found = strdup(line + 7);
        }
    if (f)
        fclose(f);
    free(line);
    free(path);
    return found;
}

static void say_end(const sweep *s, const run *r)
{
    if (WIFEXITED(r->status) && WEXITSTATUS(r->status) == 0) {
        cli_note(s->app, "%s: done", r->name);
        return;
    }
    char *why = reason(r);
    cli_note(s->app, "%s: failed: %s (%s.log)", r->name, why ? why : "no message", r->folder);
    free(why);
}

/* Those that have ended; true if one had. */
static bool reap(sweep *s)
{
    bool any = false;
    for (size_t i = 0; i < s->n_runs; i++) {
        run *r = &s->runs[i];
        if (r->pid && waitpid(r->pid, &r->status, WNOHANG) == r->pid) {
            r->pid = 0;
            r->ended = any = true;
            measure(s, r);
            say_end(s, r);
        }
    }
    return any;
}

/* As often as the sweep itself: the first time runs save, the second time they leave at once. */
static void interrupt_all(const sweep *s)
{
    for (size_t i = 0; i < s->n_runs; i++)
        if (s->runs[i].pid)
            (void)kill(s->runs[i].pid, SIGINT);
}

static int run_all(sweep *s, char **argv, size_t argc)
{
    size_t next = 0, most = (size_t)cli_int(s->app, "parallel");
    int bad = 0, passed_on = 0;
    tinkc_error err = { 0 };
    cli_catch_signals();
    while (next < s->n_runs || running(s)) {
        if (!bad && cli_now_ms() >= s->app->deadline_ms) {
            cli_run_out(&err);
            bad = cli_fail_error(s->app, &err, NULL);
        }
        int stops = bad && !cli_stop_count()
                        ? 1
                        : cli_stop_count(); /* nothing may run on behind the sweep */
        if (stops > passed_on) {
            interrupt_all(s);
            passed_on = stops;
            next = s->n_runs;
        }
        while (!bad && next < s->n_runs && running(s) < (most ? most : 1))
            bad = start(s, next++, argv, argc);
        if (!reap(s) && running(s))
            nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
    }
    return cli_stop_signal() ? cli_stop_exit() : bad;
}

/* ---- the table ---- */

static const cli_column columns[] = {
    { .name = "settings", .header = "Settings", .path = "settings", .is_default = true },
    { .name = "metric",
      .header = "Metric",
      .path = "metric",
      .kind = CLI_CELL_NUMBER,
      .is_default = true },
    { .name = "status", .header = "Status", .path = "status", .is_default = true },
    { .name = "log_path",
      .header = "Log",
      .path = "log_path",
      .fit = CLI_FIT_LINE,
      .cut_left = true,
      .is_default = true },
    { 0 }
};

static bool lower_is_better(const char *metric)
{
    return strstr(metric, "nll") || strstr(metric, "loss") || strstr(metric, "kl");
}

static int show_table(sweep *s)
{
    tkc_tree *items = cli_array(s->app);
    size_t failed = 0;
    bool lower = s->metric && lower_is_better(s->metric);
    for (size_t i = 0; i < s->n_runs; i++) {
        const run *r = &s->runs[i];
        bool ok = r->ended && WIFEXITED(r->status) && WEXITSTATUS(r->status) == 0;
        failed += !ok;
        tkc_tree *v = cli_pack(s->app, "{s:s,s:o,s:s,s:s}", "settings", r->name, "metric",
                               r->measured ? tkc_tree_new_real(cli_arena(s->app), r->metric)
                                           : tkc_tree_null(),
                               "status",
                               ok           ? "done"
                               : r->started ? "failed"
                                            : "not run",
                               "log_path", r->folder);
        size_t at = 0;
        while (at < tkc_tree_length(items)) {
            const tkc_tree *other = tkc_tree_get(tkc_tree_at(items, at), "metric");
            double d = r->metric - tkc_tree_number(other);
            if (r->measured && (!tkc_tree_is_number(other) || (lower ? d < 0 : d > 0)))
                break;
            at++;
        }
        tkc_tree_insert(items, at, v);
    }
    char *title = cli_printf("Sweep, best first by %s", s->metric ? s->metric : "(no metric)");
    cli_list list = { .key = "runs", .title = title, .columns = columns, .no_counts = true };
    int bad = cli_print_list(s->app, &list, items);
    free(title);
    char *hint = cli_printf("the reasons are in %s/*.log", s->folder);
    if (!bad && failed)
        bad =
            cli_fail(s->app, "partial_failure", hint, "%zu of %zu runs failed", failed, s->n_runs);
    free(hint);
    return bad;
}

/* ---- the command ---- */

/* On this machine: one engine for all, on a port that only this machine reaches. */
static int share_engine(sweep *s)
{
    tinkc_error err = { 0 };
    if (!cli_wants_local(s->app))
        return 0;
    int bad = cli_connect(s->app);
    if (bad || !s->app->engine) /* another process serves the store already */
        return bad;
    s->server = tinkc_engine_serve(s->app->engine, &(tinkc_serve_options){ 0 }, &err);
    if (!s->server)
        return cli_fail_error(s->app, &err, NULL);
    setenv("TINKER_BASE_URL", tinkc_server_url(s->server), 1);
    setenv("TINKER_API_KEY", "tml-sweep", 1);
    return 0;
}

int cli_train_sweep(cli_app *app)
{
    sweep *s = calloc(1, sizeof *s);
    char **argv = calloc(app->n_args + MOST_AXES + 8, sizeof *argv);
    size_t argc = 0;
    if (!s || !argv)
        return free(s), free(argv), cli_fail(app, "internal", NULL, "out of memory");
    s->app = app;
    s->metric = cli_text(app, "metric");
    const cli_command *recipe = cli_find("train", app->args[0]);
    bool known = recipe && recipe->run != cli_train_sweep && recipe->run != cli_train_resume;
    int bad = known ? plan(s, recipe)
                    : cli_fail(app, "usage", "sft, rl, dpo or distill", "unknown recipe '%s'",
                               app->args[0]);
    argv[argc++] = (char *)(uintptr_t) "tinkc";
    argv[argc++] = (char *)(uintptr_t) "train";
    for (size_t i = 0; i < app->n_args; i++)
        argv[argc++] = (char *)(uintptr_t)app->args[i];
    if (!bad && cli_wants_local(app) && cli_model(app)) {
        argv[argc++] = (char *)(uintptr_t) "-m";
        argv[argc++] = (char *)(uintptr_t)cli_model(app);
    }
    for (size_t i = 0; i < s->n_runs && !bad && cli_flag(app, "dry-run"); i++)
        cli_note(app, "%s", s->runs[i].folder);
    if (!bad && !cli_flag(app, "dry-run")) {
        if (!cli_make_folder(s->folder, 0777))
            bad = cli_fail(app, "local_io", NULL, "%s: %s", s->folder, tkc_errno_text(errno));
        bad = bad ? bad : cli_check_links(app, s->folder, "--log-dir");
        bad = bad ? bad : share_engine(s);
        bad = bad ? bad : run_all(s, argv, argc);
        if (s->server)
            tinkc_server_stop(s->server, 1000, NULL);
        tinkc_server_free(s->server);
        bad = bad ? bad : show_table(s);
    }
    free_plan(s);
    free(s);
    free(argv);
    return bad;
}
