/* cmd_logs.c - `tinkc logs`: a run's metrics as table, live, or drawn. Reads files only. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/main/commands.h"
#include "cli/main/files.h"
#include "cli/output/out.h"
#include "cli/output/term.h"
#include "cli/output/text.h"
#include "cli/track/train_log.h"

/* ---- reading ---- */

static FILE *open_metrics(cli_app *app, const char *folder, int *bad)
{
    char *path = cli_printf("%s/metrics.jsonl", folder);
    FILE *f = path ? fopen(path, "re") : NULL;
    *bad = f ? 0
             : cli_fail(app, "not_found", "it is the folder that tinkc train wrote", "%s: %s", path,
                        tkc_errno_text(errno));
    free(path);
    return f;
}

/* Bare NaN and Infinity, which other writers leave in the file, become null. */
static tkc_tree *parse_line(tkc_arena *arena, char *line)
{
    static const char *const words[] = { "-Infinity", "Infinity", "NaN" };
    char *fixed = NULL;
    size_t size;
    bool quoted = false; /* texts stay as they are */
    FILE *f = open_memstream(&fixed, &size);
    for (const char *p = line; f && *p;) {
        size_t n = 0;
        for (size_t w = 0; w < 3 && !n && !quoted; w++)
            if (strncmp(p, words[w], strlen(words[w])) == 0)
                n = strlen(words[w]);
        if (*p == '"')
            quoted = !quoted;
        else if (quoted && *p == '\\' && p[1])
            fputc(*p++, f);
        if (n)
            fputs("null", f);
        else
            fputc(*p, f);
        p += n ? n : 1;
    }
    if (!f || fclose(f) != 0)
        return NULL;
    tkc_tree *v = tkc_tree_read(arena, tkc_str(fixed), 0);
    free(fixed);
    return v;
}

static tkc_tree *read_rows(tkc_arena *arena, FILE *f)
{
    tkc_tree *rows = tkc_tree_array(arena);
    char *line = NULL;
    size_t cap = 0;
    while (getline(&line, &cap, f) > 0) {
        tkc_tree *v = parse_line(arena, line);
        if (tkc_tree_is_object(v))
            tkc_tree_add(rows, v);
    }
    free(line);
    return rows;
}

/* Rows with the same step belong together: an evaluation is written on a line of its own. */
static tkc_tree *merge_steps(tkc_arena *arena, const tkc_tree *rows)
{
    tkc_tree *out = tkc_tree_array(arena);
    for (size_t i = 0; i < tkc_tree_length(rows); i++) {
        tkc_tree *row = tkc_tree_at(rows, i), *last = tkc_tree_at(out, tkc_tree_length(out) - 1);
        if (last && tkc_tree_equal(tkc_tree_get(last, "step"), tkc_tree_get(row, "step")))
            tkc_tree_update(last, row);
        else
            tkc_tree_add(out, tkc_tree_copy(arena, row));
    }
    return out;
}

static const char *status_of(const char *folder)
{
    char *path = cli_printf("%s/metrics.jsonl", folder);
    struct stat st;
    tkc_arena arena = { 0 };
    const tkc_tree *records = cli_trainlog_records(&arena, folder, "name");
    const char *status = "idle";
    for (size_t i = 0; i < tkc_tree_length(records); i++) {
        const tkc_tree *r = tkc_tree_at(records, i);
        const char *name = tkc_tree_get_text(r, "name");
        if (tkc_tree_get_true(r, "final") || strcmp(name, "final") == 0)
            status = "completed";
    }
    tkc_arena_free(&arena);
    if (strcmp(status, "idle") == 0 && path && stat(path, &st) == 0 &&
        time(NULL) - st.st_mtime < 120)
        status = "running";
    free(path);
    return status;
}

static const char *type_of(const tkc_tree *config)
{
    return tkc_tree_get(config, "dpo_beta")     ? "dpo"
           : tkc_tree_get(config, "loss_fn")    ? "rl"
           : tkc_tree_get(config, "num_epochs") ? "sft"
                                                : "unknown";
}

/* The seed the run was made with; NULL = its settings do not say. */
static const tkc_tree *seed_of(const tkc_tree *config)
{
    const tkc_tree *seed = tkc_tree_get(config, "seed");
    return tkc_tree_is_i64(seed) ? seed : NULL;
}

/* "FOLDER (sft, completed, seed 7)". Yours. */
static char *title_of(const char *folder, const char *status, const tkc_tree *config)
{
    const tkc_tree *seed = seed_of(config);
    return seed ? cli_printf("%s (%s, %s, seed %lld)", folder, type_of(config), status,
                             (long long)tkc_tree_i64(seed))
                : cli_printf("%s (%s, %s)", folder, type_of(config), status);
}

/* ---- show ---- */

enum { MAX_METRICS = CLI_MAX_COLUMNS - 1 }; /* beside the step */

/* What a run is looked at by, whatever recipe it is: shown if it occurs. The first that occurs is plotted;
 * the last two are for the table alone. */
static const char *const usual_metrics[] = {
    "train_mean_nll", "teacher_kl",           "dpo_loss",      "env/all/reward/total",
    "train/loss",     "test/nll",             "accuracy",      "optim/kl_sample_train_v1",
    "kl_policy_base", "optim/entropy",        "learning_rate", "optim/lr",
    "num_tokens",     "time/step"
};
enum { N_USUAL = sizeof usual_metrics / sizeof *usual_metrics, N_FOLLOWED = N_USUAL - 2 };

static bool occurs(const tkc_tree *rows, const char *metric)
{
    for (size_t i = 0; i < tkc_tree_length(rows); i++)
        if (tkc_tree_is_number(tkc_tree_get(tkc_tree_at(rows, i), metric)))
            return true;
    return false;
}

/* "step" and those of `given` (its commas go), else the usual ones that occur. Names are borrowed. */
static void choose_metrics(const tkc_tree *rows, char *given, cli_column columns[MAX_METRICS + 2])
{
    size_t n = 0;
    columns[n++] =
        (cli_column){ .name = "step", .header = "Step", .path = "step", .is_default = true };
    for (char *p = given; p && *p && n <= MAX_METRICS;) {
        size_t len = strcspn(p, ",");
        bool more = p[len] == ',';
        p[len] = '\0';
        columns[n++] = (cli_column){
            .name = p, .header = p, .path = p, .kind = CLI_CELL_NUMBER, .is_default = true
        };
        p += len + more;
    }
    for (size_t i = 0; !given && i < N_USUAL; i++) {
        if (occurs(rows, usual_metrics[i]))
            columns[n++] = (cli_column){ .name = usual_metrics[i],
                                         .header = usual_metrics[i],
                                         .path = usual_metrics[i],
                                         .kind = CLI_CELL_NUMBER,
                                         .is_default = true };
    }
    columns[n] = (cli_column){ 0 };
}

static int show_checkpoints(cli_app *app, const char *folder)
{
    static const cli_column columns[] = {
        { .name = "name", .header = "Name", .path = "name", .is_default = true },
        { .name = "epoch", .header = "Epoch", .path = "epoch", .is_default = true },
        { .name = "batch", .header = "Batch", .path = "batch", .is_default = true },
        { .name = "sampler",
          .header = "Sampler Path",
          .path = "sampler_path",
          .fit = CLI_FIT_LINE,
          .is_default = true,
          .cut_left = true },
        { .name = "state",
          .header = "State Path",
          .path = "state_path",
          .fit = CLI_FIT_LINE,
          .is_default = true,
          .cut_left = true },
        { 0 }
    };
    tkc_tree *records = cli_trainlog_records(cli_arena(app), folder, "name");
    cli_list list = { .key = "checkpoints", .columns = columns, .no_counts = true };
    return cli_print_list(app, &list, records);
}

/* A metric that no row has is refused with those there are. */
static int check_metrics(const cli_app *app, const tkc_tree *rows)
{
    size_t n = 1;
    for (const char *p = cli_text(app, "metric"); p && *p; p++)
        n += *p == ',';
    if (n > MAX_METRICS)
        return cli_fail(app, "usage", NULL, "--metric takes at most %d names", MAX_METRICS);
    if (!cli_given(app, "metric") || tkc_tree_length(rows) == 0)
        return 0;
    tkc_tree *whole = cli_object(app);
    for (size_t i = 0; i < tkc_tree_length(rows); i++)
        tkc_tree_update_missing(whole, tkc_tree_at(rows, i));
    return cli_check_fields(app, whole, cli_text(app, "metric"));
}

int cli_logs_show(cli_app *app)
{
    const char *folder = app->args[0];
    int bad;
    if (cli_flag(app, "checkpoints"))
        return cli_trainlog_exists(folder)
                   ? show_checkpoints(app, folder)
                   : cli_fail(app, "not_found", NULL, "there is no run in %s", folder);
    FILE *f = open_metrics(app, folder, &bad);
    if (!f)
        return bad;
    tkc_tree *raw = read_rows(cli_arena(app), f), *rows = merge_steps(cli_arena(app), raw),
             *config = cli_trainlog_read_config(cli_arena(app), folder);
    fclose(f);
    bad = check_metrics(app, rows);
    if (bad)
        return bad;
    size_t last = (size_t)cli_int(app, "last");
    while (last && tkc_tree_length(rows) > last)
        tkc_tree_take_out(rows, 0);
    cli_column columns[MAX_METRICS + 2];
    char *given = cli_given(app, "metric") ? strdup(cli_text(app, "metric")) : NULL;
    choose_metrics(rows, given, columns);
    tkc_tree *records = cli_trainlog_records(cli_arena(app), folder, "name");
    const char *status = status_of(folder);
    tkc_tree *head =
        cli_pack(app, "{s:o,s:s,s:s,s:o}", "path", cli_json_text(cli_arena(app), folder), "status",
                 status, "type", type_of(config), "checkpoints", records);
    if (seed_of(config))
        tkc_tree_set(head, "seed", tkc_tree_get(config, "seed"));
    char *title = title_of(folder, status, config);
    cli_list list = {
        .key = "rows", .title = title, .columns = columns, .head = head, .no_counts = true
    };
    bad = cli_print_list(app, &list, rows);
    free(given);
    free(title);
    return bad;
}

/* ---- tail ---- */

/* Whether a comma-separated list has this name. */
static bool in_list(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; *p;) {
        size_t len = strcspn(p, ",");
        if (len == n && memcmp(p, name, n) == 0)
            return true;
        p += len + (p[len] == ',');
    }
    return false;
}

static bool is_followed(const char *given, const char *metric)
{
    if (given)
        return in_list(given, metric);
    for (size_t i = 0; i < N_FOLLOWED; i++)
        if (strcmp(usual_metrics[i], metric) == 0)
            return true;
    return false;
}

static void print_row(const cli_app *app, const tkc_tree *row)
{
    const char *given = cli_text(app, "metric"), *key;
    tkc_tree *v;
    char text[CLI_SHORT_TEXT];
    if (app->format == CLI_JSON || app->format == CLI_JSONL) {
        cli_write_json(stdout, row, 0);
        fputc('\n', stdout);
        fflush(stdout);
        return;
    }
    printf("step %lld", (long long)tkc_tree_get_i64(row, "step"));
    TKC_TREE_EACH (row, key, v) {
        if (!tkc_tree_is_number(v) || !is_followed(given, key))
            continue;
        (void)snprintf(text, sizeof text, "%.6g", tkc_tree_number(v));
        printf("  %s %s", key, text);
    }
    putchar('\n');
    fflush(stdout);
}

int cli_logs_tail(cli_app *app)
{
    int bad;
    tinkc_error err = { 0 };
    FILE *f = open_metrics(app, app->args[0], &bad);
    char *line = NULL;
    size_t cap = 0;
    tkc_arena arena = { 0 };
    while (f) {
        long before = ftell(f);
        ssize_t n = getline(&line, &cap, f);
        if (n > 0 && line[n - 1] == '\n') {
            const tkc_tree *row = parse_line(&arena, line);
            if (tkc_tree_is_object(row))
                print_row(app, row);
            tkc_arena_reset(&arena);
            continue;
        }
        /* Half a line, or none yet: come back to its beginning. */
        fseek(f, before, SEEK_SET);
        clearerr(f);
        if (strcmp(status_of(app->args[0]), "running") != 0)
            break;
        if (!cli_rest(app, 200, &err)) {
            bad = cli_fail_error(app, &err, NULL);
            break;
        }
    }
    tkc_arena_free(&arena);
    free(line);
    if (f)
        fclose(f);
    return bad;
}

/* ---- plot ---- */

/* Braille has 2 x 4 dots a cell; without UTF-8 a star does. */
static void put_cell(bool utf8, unsigned dots)
{
    if (!utf8) {
        putchar(dots ? '*' : ' ');
        return;
    }
    unsigned c = 0x2800 + dots;
    printf("%c%c%c", (int)(0xE0 | c >> 12), (int)(0x80 | (c >> 6 & 0x3F)),
           (int)(0x80 | (c & 0x3F)));
}

typedef struct range {
    double lo, span;
} range;

/* Of all values: a resumed run may go back in its steps. */
static range range_of(const double *v, size_t n)
{
    double lo = v[0], hi = v[0];
    for (size_t i = 1; i < n; i++) {
        lo = fmin(lo, v[i]);
        hi = fmax(hi, v[i]);
    }
    return (range){ lo, hi > lo ? hi - lo : 1 };
}

/* Where a value lies among n places. */
static size_t place(double v, range r, size_t n)
{
    double part = (v - r.lo) / r.span;
    return (size_t)(fmin(fmax(part, 0), 1) * (double)(n - 1));
}

typedef struct canvas {
    unsigned char *cells;
    size_t width, height; /* in cells */
} canvas;

typedef struct point {
    long x, y; /* in dots, y downwards */
} point;

static void put_dot(canvas *c, point p)
{
    static const unsigned char dot[4][2] = { { 1, 8 }, { 2, 16 }, { 4, 32 }, { 64, 128 } };
    c->cells[(size_t)p.y / 4 * c->width + (size_t)p.x / 2] |= dot[p.y % 4][p.x % 2];
}

/* Every dot between two points, both included. */
static void put_line(canvas *c, point a, point b)
{
    long dx = b.x - a.x, dy = b.y - a.y, n = labs(dx) > labs(dy) ? labs(dx) : labs(dy);
    for (long i = 0; i <= n; i++)
        put_dot(c, n ? (point){ a.x + dx * i / n, a.y + dy * i / n } : a);
}

static void draw(const cli_app *app, const double *x, const double *y, size_t n, const char *name)
{
    size_t width = cli_term_width(app), height = (size_t)cli_int(app, "height");
    width = width > 1012 ? 1000 : width > 30 ? width - 12 : 60;
    height = height < 2 ? 2 : height > 200 ? 200 : height;
    canvas c = { calloc(width * height, 1), width, height };
    range rx = range_of(x, n), ry = range_of(y, n);
    point last = { 0 };
    for (size_t i = 0; c.cells && i < n; i++) {
        point p = { (long)place(x[i], rx, width * 2),
                    (long)(height * 4 - 1 - place(y[i], ry, height * 4)) };
        put_line(&c, i && x[i] >= x[i - 1] ? last : p, p); /* none to where a run went back */
        last = p;
    }
    printf("%s\n", name);
    for (size_t r = 0; c.cells && r < height; r++) {
        if (r == 0 || r + 1 == height)
            printf("%9.4g %s", r ? ry.lo : ry.lo + ry.span, app->utf8 ? "│" : "|");
        else
            printf("%9s %s", "", app->utf8 ? "│" : "|");
        for (size_t i = 0; i < width; i++)
            put_cell(app->utf8, c.cells[r * width + i]);
        putchar('\n');
    }
    printf("%10s%s%-*.6g%*.6g\n", "", app->utf8 ? "└" : "+", (int)(width / 2), rx.lo,
           (int)(width - width / 2), rx.lo + rx.span);
    free(c.cells);
}

static int no_metric(const cli_app *app, const tkc_tree *rows, const char *name)
{
    char hint[400] = "";
    size_t at = 0;
    const tkc_tree *row = tkc_tree_at(rows, tkc_tree_length(rows) - 1);
    const char *key;
    tkc_tree *v;
    TKC_TREE_EACH (row, key, v) {
        if (tkc_tree_is_number(v) && at + strlen(key) + 16 < sizeof hint)
            at += (size_t)snprintf(hint + at, sizeof hint - at, "%s%s", at ? ", " : "it has ", key);
    }
    return cli_fail(app, "not_found", *hint ? hint : NULL, "%s has no metric%s%s%s", app->args[0],
                    name ? " named '" : " yet", name ? name : "", name ? "'" : "");
}

int cli_logs_plot(cli_app *app)
{
    int bad;
    const char *name = cli_text(app, "metric");
    FILE *f = open_metrics(app, app->args[0], &bad);
    if (!f)
        return bad;
    tkc_tree *rows = read_rows(cli_arena(app), f);
    fclose(f);
    for (size_t i = 0; !name && i < N_USUAL; i++)
        if (occurs(rows, usual_metrics[i]))
            name = usual_metrics[i];
    size_t n = 0, all = name ? tkc_tree_length(rows) : 0;
    double *x = calloc(all + 1, sizeof *x), *y = calloc(all + 1, sizeof *y);
    for (size_t i = 0; x && y && i < all; i++) {
        const tkc_tree *row = tkc_tree_at(rows, i), *v = tkc_tree_get(row, name);
        if (!tkc_tree_is_number(v))
            continue;
        x[n] = tkc_tree_get_number(row, "step");
        y[n++] = tkc_tree_number(v);
    }
    if (n == 0) {
        bad = no_metric(app, rows, name);
    } else if (app->format == CLI_JSON) {
        tkc_tree *points = cli_array(app);
        for (size_t i = 0; i < n; i++)
            tkc_tree_add(points, cli_pack(app, "[f,f]", x[i], y[i]));
        tkc_tree *v = cli_pack(app, "{s:s,s:o}", "metric", name, "points", points);
        bad = cli_print_json(app, v);
    } else {
        draw(app, x, y, n, name);
    }
    free(x);
    free(y);
    return bad;
}

/* ---- trace ---- */

typedef struct trace {
    FILE *in, *out;
    tkc_arena arena; /* of one line */
    size_t n; /* events written */
} trace;

static void put_event(trace *t, const tkc_tree *event)
{
    fputs(t->n++ ? ",\n" : "\n", t->out);
    cli_write_json(t->out, event, 0);
}

/* {"step", "spans": [{"name","duration","wall_start","wall_end"}]}: one whole event a span. */
static void put_spans(trace *t, const tkc_tree *record)
{
    const tkc_tree *spans = tkc_tree_get(record, "spans");
    for (size_t i = 0; i < tkc_tree_length(spans); i++) {
        const tkc_tree *s = tkc_tree_at(spans, i);
        tkc_tree *step = tkc_tree_get(record, "step");
        const tkc_tree *event = tkc_tree_pack(
            &t->arena, "{s:s?,s:s,s:f,s:f,s:i,s:i,s:{s:o}}", "name", tkc_tree_get_text(s, "name"),
            "ph", "X", "ts", tkc_tree_get_number(s, "wall_start") * 1e6, "dur",
            tkc_tree_get_number(s, "duration") * 1e6, "pid", 1, "tid", 1, "args", "step",
            step ? step : tkc_tree_null());
        if (event)
            put_event(t, event);
    }
}

static void convert_trace(trace *t, bool events)
{
    char *line = NULL;
    size_t cap = 0;
    fputs("{\"traceEvents\": [", t->out);
    while (getline(&line, &cap, t->in) > 0) {
        const tkc_tree *v = parse_line(&t->arena, line);
        if (tkc_tree_is_object(v) && events)
            put_event(t, v);
        else if (tkc_tree_is_object(v))
            put_spans(t, v);
        tkc_arena_reset(&t->arena);
    }
    tkc_arena_free(&t->arena);
    fputs("\n], \"displayTimeUnit\": \"ms\"}\n", t->out);
    free(line);
}

static FILE *open_in(const char *folder, const char *name)
{
    char *path = cli_printf("%s/%s", folder, name);
    FILE *f = path ? fopen(path, "re") : NULL;
    free(path);
    return f;
}

int cli_logs_trace(cli_app *app)
{
    const char *folder = app->args[0], *target = cli_text(app, "output");
    trace t = { .in = open_in(folder, "trace_events.jsonl") };
    bool events = t.in != NULL;
    if (!events)
        t.in = open_in(folder, "timing_spans.jsonl");
    if (!t.in)
        return cli_fail(app, "not_found", "runs of the cookbook write them with enable_trace=true",
                        "%s has neither trace_events.jsonl nor timing_spans.jsonl", folder);
    char *usual = cli_printf("%s/trace.json", folder);
    cli_save save;
    cli_save_begin(&save, target ? target : usual, 0666);
    if (save.f) {
        t.out = save.f;
        convert_trace(&t, events);
    }
    fclose(t.in);
    int bad = cli_save_end(&save, app, true);
    if (!bad && target && strcmp(target, "-") == 0) /* stdout has the trace itself */
        cli_note(app, "%zu event(s)", t.n);
    else if (!bad)
        bad = cli_print_done(app,
                             cli_pack(app, "{s:o,s:I}", "path",
                                      cli_json_text(cli_arena(app), target ? target : usual),
                                      "events", (int64_t)t.n),
                             "%zu event(s) to %s; it opens in ui.perfetto.dev and chrome://tracing",
                             t.n, target ? target : usual);
    free(usual);
    return bad;
}
