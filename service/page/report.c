/* report.c - tinkc_logs_report: the runs of some folders as one HTML file.
 *
 * ui/report.html names the files that it needs as {{app.css}}; {{data}} is the data of the runs.
 * Long files are sampled, so that the result is small enough to mail.
 */
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json_write.h"
#include "base/str.h"
#include "service/page/assets.h"
#include "service/page/logdirs.h"
#include "tinkc/engine.h"

enum { MAX_METRIC_ROWS = 4000, MAX_OTHER_ROWS = 400 };

typedef struct thinner {
    tkc_jsonw *w;
    size_t at, every; /* every n-th row is kept */
    size_t n_keys;    /* of the row before */
} thinner;

static void count_row(tinkc_str row, void *user)
{
    (void)row;
    ++*(size_t *)user;
}

static size_t keys_of(tinkc_str row)
{
    size_t n = 0;
    for (size_t i = 0; i + 1 < row.len; i++)
        n += row.data[i] == '"' && row.data[i + 1] == ':';
    return n;
}

/* A row with other keys than the one before, such as an evaluation, is always kept. */
static void keep_some(tinkc_str row, void *user)
{
    thinner *t = user;
    size_t n_keys = keys_of(row);
    if (t->at++ % t->every == 0 || (n_keys != t->n_keys && t->at > 1))
        tkc_jsonw_raw(t->w, row);
    t->n_keys = n_keys;
}

/* Walks all rows of a file. */
static bool each_row(int fd, bool numbers, const tinkc_allocator *a, tke_row_fn *fn, void *user,
                     tinkc_error *err)
{
    tke_lines place = { .more = true };
    for (int64_t from = 0; place.more; from = place.next)
        if (!tke_lines_each(fd, from, numbers, a, fn, user, &place, err) ||
            (place.more && place.next == from))
            break;
    return !tkc_failed(err);
}

static void write_rows(const tke_logged_run *run, int file, const char *name, tkc_jsonw *w,
                       const tinkc_allocator *a, tinkc_error *err)
{
    bool numbers = file == TKE_RUN_METRICS;
    size_t n = 0, most = numbers ? MAX_METRIC_ROWS : MAX_OTHER_ROWS;
    int fd = tke_run_open(run, file);
    thinner t = { .w = w };
    if (fd >= 0)
        each_row(fd, numbers, a, count_row, &n, err);
    t.every = (n + most - 1) / most;
    t.every = t.every ? t.every : 1;
    tkc_jsonw_key(w, name);
    tkc_jsonw_array(w);
    if (fd >= 0)
        each_row(fd, numbers, a, keep_some, &t, err);
    tkc_jsonw_end(w);
    if (numbers) {
        tkc_jsonw_key(w, "every");
        tkc_jsonw_u64(w, t.every);
    }
    if (fd >= 0)
        close(fd);
}

static void write_run(const tke_logged_run *run, int64_t now_us, tkc_jsonw *w,
                      const tinkc_allocator *a, tinkc_error *err)
{
    tkc_buf about;
    tkc_buf_init(&about, a, TKC_BUF_NO_MAX);
    tke_run_describe(run, now_us, &about, err);
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "about");
    tkc_jsonw_raw(w, tkc_buf_view(&about));
    write_rows(run, TKE_RUN_METRICS, "metrics", w, a, err);
    write_rows(run, TKE_RUN_SAMPLES, "samples", w, a, err);
    write_rows(run, TKE_RUN_CHECKPOINTS, "checkpoints", w, a, err);
    tkc_jsonw_end(w);
    tkc_buf_free(&about);
}

static void write_data(const tke_logdirs *logs, tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw w;
    const tkc_map_entry *e;
    int64_t now_us = tkc_wall_us(tkc_clock_real());
    tkc_jsonw_open(&w, out, err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "made_ms");
    tkc_jsonw_i64(&w, now_us / 1000);
    tkc_jsonw_key(&w, "version");
    tkc_jsonw_cstr(&w, TINKC_VERSION);
    tkc_jsonw_key(&w, "runs");
    tkc_jsonw_array(&w);
    for (size_t at = 0; (e = tkc_map_next(&logs->runs, &at));)
        write_run(e->value, now_us, &w, out->a, err);
    tkc_jsonw_end(&w);
    tkc_jsonw_end(&w);
}

/* JSON inside a script: '<' is escaped, or a string of the run could end the script. */
static void add_data(const tkc_buf *data, tkc_buf *out, tinkc_error *err)
{
    for (size_t from = 0, at; from < data->len; from = at + 1) {
        at = from + tkc_str_find(tkc_strn(data->data + from, data->len - from), '<');
        tkc_buf_add(out, data->data + from, at - from, err);
        if (at < data->len)
            tkc_buf_cstr(out, "\\u003c", err);
    }
}

/* Copies the template; {{NAME}} becomes that file, {{data}} the data. */
static void fill_template(const tkc_buf *data, tkc_buf *out, tinkc_error *err)
{
    const tke_asset *page = tke_asset_find("report.html", strlen("report.html"));
    const char *at = (const char *)page->data, *end = at + page->len, *open, *close;
    while ((open = memmem(at, (size_t)(end - at), "{{", 2)) &&
           (close = memmem(open, (size_t)(end - open), "}}", 2))) {
        const tke_asset *part = tke_asset_find(open + 2, (size_t)(close - open - 2));
        tkc_buf_add(out, at, (size_t)(open - at), err);
        if (part)
            tkc_buf_add(out, part->data, part->len, err);
        else
            add_data(data, out, err);
        at = close + 2;
    }
    tkc_buf_add(out, at, (size_t)(end - at), err);
}

static bool find_runs(tke_logdirs *logs, const char *const *folders, tinkc_error *err)
{
    if (!tke_logdirs_init(logs, NULL, folders, err) || !tke_logdirs_scan(logs, err))
        return false;
    return logs->runs.n_live > 0 || tkc_fail(err, TINKC_E_NOT_FOUND, "%s: no run in it",
                                             folders && *folders ? *folders : "");
}

const char *tinkc_logs_report(const char *const *log_dirs, tinkc_text *out, tinkc_error *err)
{
    tinkc_error local;
    tke_logdirs logs = { 0 };
    tkc_buf data, page;
    if (!tkc_enter(&err, &local))
        return "";
    if (!out || !log_dirs) {
        tkc_fail(err, TINKC_E_ARGUMENT, "%s is NULL", out ? "log_dirs" : "out");
        return "";
    }
    out->len = 0;
    tkc_buf_init(&data, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&page, NULL, TKC_BUF_NO_MAX);
    if (find_runs(&logs, log_dirs, err)) {
        write_data(&logs, &data, err);
        fill_template(&data, &page, err);
    }
    bool ok = !tkc_failed(err) && tinkc_text_append(out, page.data, page.len, err);
    tke_logdirs_free(&logs);
    tkc_buf_free(&data);
    tkc_buf_free(&page);
    return ok ? out->data : "";
}
