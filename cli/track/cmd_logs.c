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
static json_t *parse_line(char *line)
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
    json_t *v = json_loads(fixed, 0, NULL);
    free(fixed);
    return v;
}

static json_t *read_rows(FILE *f)
{
    json_t *rows = json_array();
    char *line = NULL;
    size_t cap = 0;
    while (getline(&line, &cap, f) > 0) {
        json_t *v = parse_line(line);
        if (json_is_object(v))
            json_array_append(rows, v);
        json_decref(v);
    }
    free(line);
    return rows;
}

/* Rows with the same step belong together: an evaluation is written on a line of its own. */
static json_t *merge_steps(const json_t *rows)
{
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *row = json_array_get(rows, i),
               *last = json_array_get(out, json_array_size(out) - 1);
        if (last && json_equal(json_object_get(last, "step"), json_object_get(row, "step")))
            json_object_update(last, row);
        else
            json_array_append_new(out, json_copy(row));
    }
    return out;
}

static const char *status_of(const char *folder)
{
    char *path = cli_printf("%s/metrics.jsonl", folder);
    struct stat st;
    json_t *records = cli_trainlog_records(folder, "name");
    const char *status = "idle";
    for (size_t i = 0; i < json_array_size(records); i++) {
        const json_t *r = json_array_get(records, i);
        const char *name = json_string_value(json_object_get(r, "name"));
        if (json_is_true(json_object_get(r, "final")) || strcmp(name, "final") == 0)
            status = "completed";
    }
    if (strcmp(status, "idle") == 0 && path && stat(path, &st) == 0 &&
        time(NULL) - st.st_mtime < 120)
        status = "running";
    json_decref(records);
    free(path);
    return status;
}

static const char *type_of(const json_t *config)
{
    return json_object_get(config, "dpo_beta")     ? "dpo"
           : json_object_get(config, "loss_fn")    ? "rl"
           : json_object_get(config, "num_epochs") ? "sft"
                                                   : "unknown";
}

/* The seed the run was made with; NULL = its settings do not say. */
static const json_t *seed_of(const json_t *config)
{
    const json_t *seed = json_object_get(config, "seed");
    return json_is_integer(seed) ? seed : NULL;
}

/* "FOLDER (sft, completed, seed 7)". Yours. */
static char *title_of(const char *folder, const char *status, const json_t *config)
{
    const json_t *seed = seed_of(config);
    return seed ? cli_printf("%s (%s, %s, seed %lld)", folder, type_of(config), status,
                             (long long)json_integer_value(seed))
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

static bool occurs(const json_t *rows, const char *metric)
{
    for (size_t i = 0; i < json_array_size(rows); i++)
        if (json_is_number(json_object_get(json_array_get(rows, i), metric)))
            return true;
    return false;
}

/* "step" and those of `given` (its commas go), else the usual ones that occur. Names are borrowed. */
static void choose_metrics(const json_t *rows, char *given, cli_column columns[MAX_METRICS + 2])
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
    json_t *records = cli_trainlog_records(folder, "name");
    cli_list list = { .key = "checkpoints", .columns = columns, .no_counts = true };
    int bad = cli_print_list(app, &list, records);
    json_decref(records);
    return bad;
}

/* A metric that no row has is refused with those there are. */
static int check_metrics(const cli_app *app, const json_t *rows)
{
    size_t n = 1;
    for (const char *p = cli_text(app, "metric"); p && *p; p++)
        n += *p == ',';
    if (n > MAX_METRICS)
        return cli_fail(app, "usage", NULL, "--metric takes at most %d names", MAX_METRICS);
    if (!cli_given(app, "metric") || json_array_size(rows) == 0)
        return 0;
    json_t *whole = json_object();
    for (size_t i = 0; i < json_array_size(rows); i++)
        json_object_update_missing(whole, json_array_get(rows, i));
    int bad = cli_check_fields(app, whole, cli_text(app, "metric"));
    json_decref(whole);
    return bad;
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
    json_t *raw = read_rows(f), *rows = merge_steps(raw),
           *config = cli_trainlog_read_config(folder);
    fclose(f);
    json_decref(raw);
    bad = check_metrics(app, rows);
    if (bad) {
        json_decref(rows);
        json_decref(config);
        return bad;
    }
    size_t last = (size_t)cli_int(app, "last");
    while (last && json_array_size(rows) > last)
        json_array_remove(rows, 0);
    cli_column columns[MAX_METRICS + 2];
    char *given = cli_given(app, "metric") ? strdup(cli_text(app, "metric")) : NULL;
    choose_metrics(rows, given, columns);
    json_t *records = cli_trainlog_records(folder, "name");
    const char *status = status_of(folder);
    json_t *head = json_pack("{s:o,s:s,s:s,s:o}", "path", cli_json_text(folder), "status", status,
                             "type", type_of(config), "checkpoints", records);
    if (seed_of(config))
        json_object_set(head, "seed", json_object_get(config, "seed"));
    char *title = title_of(folder, status, config);
    cli_list list = {
        .key = "rows", .title = title, .columns = columns, .head = head, .no_counts = true
    };
    bad = cli_print_list(app, &list, rows);
    free(given);
    free(title);
    json_decref(head);
    json_decref(config);
    json_decref(rows);
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

static void print_row(const cli_app *app, const json_t *row)
{
    const char *given = cli_text(app, "metric"), *key;
    json_t *v;
    char text[CLI_SHORT_TEXT];
    if (app->format == CLI_JSON || app->format == CLI_JSONL) {
        cli_write_json(stdout, row, 0);
        fputc('\n', stdout);
        fflush(stdout);
        return;
    }
    printf("step %lld", (long long)json_integer_value(json_object_get(row, "step")));
    json_object_foreach((json_t *)(uintptr_t)row, key, v)
    {
        if (!json_is_number(v) || !is_followed(given, key))
            continue;
        (void)snprintf(text, sizeof text, "%.6g", json_number_value(v));
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
    while (f) {
        long before = ftell(f);
        ssize_t n = getline(&line, &cap, f);
        if (n > 0 && line[n - 1] == '\n') {
            json_t *row = parse_line(line);
            if (json_is_object(row))
                print_row(app, row);
            json_decref(row);
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

static int no_metric(const cli_app *app, const json_t *rows, const char *name)
{
    char hint[400] = "";
    size_t at = 0;
    const json_t *row = json_array_get(rows, json_array_size(rows) - 1);
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)row, key, v)
    {
        if (json_is_number(v) && at + strlen(key) + 16 < sizeof hint)
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
    json_t *rows = read_rows(f);
    fclose(f);
    for (size_t i = 0; !name && i < N_USUAL; i++)
        if (occurs(rows, usual_metrics[i]))
            name = usual_metrics[i];
    size_t n = 0, all = name ? json_array_size(rows) : 0;
    double *x = calloc(all + 1, sizeof *x), *y = calloc(all + 1, sizeof *y);
    for (size_t i = 0; x && y && i < all; i++) {
        const json_t *row = json_array_get(rows, i), *v = json_object_get(row, name);
        if (!json_is_number(v))
            continue;
        x[n] = json_number_value(json_object_get(row, "step"));
        y[n++] = json_number_value(v);
    }
    if (n == 0) {
        bad = no_metric(app, rows, name);
    } else if (app->format == CLI_JSON) {
        json_t *points = json_array();
        for (size_t i = 0; i < n; i++)
            json_array_append_new(points, json_pack("[f,f]", x[i], y[i]));
        json_t *v = json_pack("{s:s,s:o}", "metric", name, "points", points);
        bad = cli_print_json(app, v);
        json_decref(v);
    } else {
        draw(app, x, y, n, name);
    }
    free(x);
    free(y);
    json_decref(rows);
    return bad;
}

/* ---- trace ---- */

typedef struct trace {
    FILE *in, *out;
    size_t n; /* events written */
} trace;

static void put_event(trace *t, const json_t *event)
{
    fputs(t->n++ ? ",\n" : "\n", t->out);
    cli_write_json(t->out, event, 0);
}

/* {"step", "spans": [{"name","duration","wall_start","wall_end"}]}: one whole event a span. */
static void put_spans(trace *t, const json_t *record)
{
    const json_t *spans = json_object_get(record, "spans");
    for (size_t i = 0; i < json_array_size(spans); i++) {
        const json_t *s = json_array_get(spans, i);
        json_t *step = json_object_get(record, "step");
        json_t *event = json_pack("{s:s?,s:s,s:f,s:f,s:i,s:i,s:{s:O}}", "name",
                                  json_string_value(json_object_get(s, "name")), "ph", "X", "ts",
                                  json_number_value(json_object_get(s, "wall_start")) * 1e6, "dur",
                                  json_number_value(json_object_get(s, "duration")) * 1e6, "pid", 1,
                                  "tid", 1, "args", "step", step ? step : json_null());
        if (event)
            put_event(t, event);
        json_decref(event);
    }
}

static void convert_trace(trace *t, bool events)
{
    char *line = NULL;
    size_t cap = 0;
    fputs("{\"traceEvents\": [", t->out);
    while (getline(&line, &cap, t->in) > 0) {
        json_t *v = parse_line(line);
        if (json_is_object(v) && events)
            put_event(t, v);
        else if (json_is_object(v))
            put_spans(t, v);
        json_decref(v);
    }
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
                             json_pack("{s:o,s:I}", "path", cli_json_text(target ? target : usual),
                                       "events", (json_int_t)t.n),
                             "%zu event(s) to %s; it opens in ui.perfetto.dev and chrome://tracing",
                             t.n, target ? target : usual);
    free(usual);
    return bad;
}
