/* logdirs.c - finds runs, and reads what a list of them shows. */
#include "service/page/logdirs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/json_read.h"
#include "base/json_write.h"
#include "base/str.h"

enum {
    MAX_DEPTH = 3,
    MAX_ENTRIES = 20000, /* of one folder that are looked at */
    MAX_CONFIG = 1 << 20,
    MAX_OPTIONS = 100,
    MAX_LAST = 8192 /* bytes of a newest row that are shown in lists */
};
enum { RUNNING_US = 120 * 1000 * 1000 }; /* a run that wrote this recently counts as running */

static const char *const file_names[TKE_RUN_FILES] = { "metrics.jsonl", "checkpoints.jsonl",
                                                       "samples.jsonl", "config.json",
                                                       "logs.log" };

/* ---- the table ---- */

bool tke_logdirs_init(tke_logdirs *l, const tinkc_allocator *a, const char *const *roots,
                      tinkc_error *err)
{
    size_t n = 0;
    while (roots && roots[n])
        n++;
    *l = (tke_logdirs){ .a = a };
    tkc_map_init(&l->runs, a);
    l->cap_roots = n + 1;
    l->roots = tkc_zalloc(a, l->cap_roots * sizeof *l->roots, err);
    for (size_t i = 0; l->roots && i < n; i++) {
        if (!(l->roots[i] = tkc_copy_str(a, tkc_str(roots[i]), err)))
            break;
        l->n_roots = i + 1;
    }
    return !tkc_failed(err);
}

static void free_text(const tinkc_allocator *a, char **text)
{
    if (*text)
        tkc_release_str(a, *text);
    *text = NULL;
}

static void free_run(const tke_logdirs *l, tke_logged_run *run)
{
    free_text(l->a, &run->path);
    free_text(l->a, &run->name);
    free_text(l->a, &run->config);
    free_text(l->a, &run->last);
    tkc_release(l->a, run, sizeof *run);
}

void tke_logdirs_free(tke_logdirs *l)
{
    const tkc_map_entry *e;
    for (size_t at = 0; (e = tkc_map_next(&l->runs, &at));)
        free_run(l, e->value);
    tkc_map_free(&l->runs);
    for (size_t i = 0; i < l->n_roots; i++)
        tkc_release_str(l->a, l->roots[i]);
    tkc_release(l->a, l->roots, l->cap_roots * sizeof *l->roots);
    *l = (tke_logdirs){ 0 };
}

const tke_logged_run *tke_logdirs_run(const tke_logdirs *l, tinkc_str id)
{
    return tkc_map_get(&l->runs, id);
}

int tke_run_file_named(tinkc_str name)
{
    static const char *const short_names[TKE_RUN_FILES] = { "metrics", "checkpoints", "samples",
                                                            "config", "log" };
    for (int i = 0; i < TKE_RUN_FILES; i++)
        if (tkc_str_is(name, short_names[i]))
            return i;
    return -1;
}

int tke_run_open(const tke_logged_run *run, int file)
{
    int folder = open(run->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd = folder >= 0 ? tke_lines_open(folder, file_names[file]) : -1;
    if (folder >= 0)
        close(folder);
    return fd;
}

/* ---- reading a run ---- */

/* Options that a table of runs can show: plain values, and nothing that opens a door. */
static bool is_option(tinkc_str key, int kind, tinkc_str value)
{
    static const char *const secret[] = { "secret", "password", "api_key" };
    for (size_t i = 0; i < sizeof secret / sizeof *secret; i++)
        if (memmem(key.data, key.len, secret[i], strlen(secret[i])))
            return false;
    return kind != TKC_JSON_OBJECT && kind != TKC_JSON_ARRAY && key.len < 80 && value.len < 200 &&
           !tkc_ends_with(key, "_token");
}

/* What the list shows of config.json, from any recipe. */
static bool read_config(const tke_logdirs *l, tke_logged_run *run, int fd, tinkc_error *err)
{
    tkc_arena arena;
    tkc_buf out;
    tkc_json j;
    tkc_jsonw w;
    tinkc_str key;
    tinkc_error local = { 0 };
    char *text = tkc_alloc(l->a, MAX_CONFIG, err);
    ssize_t n = text ? pread(fd, text, MAX_CONFIG, 0) : -1;
    for (ssize_t i = 0; i < n; i++) /* white space: it is sent in one line of an event stream */
        if (text[i] == '\n' || text[i] == '\r')
            text[i] = ' ';
    tkc_arena_init(&arena, l->a, 0);
    tkc_buf_init(&out, l->a, TKC_BUF_NO_MAX);
    tkc_json_open(&j, tkc_strn(text, n > 0 ? (size_t)n : 0), &arena, &local);
    tkc_jsonw_open(&w, &out, &local);
    if (n > 0 && tkc_json_object(&j)) {
        tkc_jsonw_object(&w);
        for (size_t n_options = 0; n_options < MAX_OPTIONS && tkc_json_key(&j, &key);) {
            int kind = tkc_json_peek(&j);
            tinkc_str value = tkc_str_trim(tkc_json_skip(&j));
            if (!is_option(key, kind, value))
                continue;
            tkc_jsonw_key(&w, tkc_arena_str(&arena, key, &local));
            tkc_jsonw_raw(&w, value);
            n_options++;
        }
        tkc_jsonw_end(&w);
    }
    free_text(l->a, &run->config);
    if (!tkc_failed(&local) && out.len)
        run->config = tkc_copy_str(l->a, tkc_buf_view(&out), err);
    tkc_buf_free(&out);
    tkc_arena_free(&arena);
    tkc_release(l->a, text, MAX_CONFIG);
    return !tkc_failed(err);
}

typedef struct tail_reader {
    tkc_arena arena;
    tkc_buf last;
    bool final;
    tinkc_error err;
} tail_reader;

static void take_metrics_line(tinkc_str line, void *user)
{
    tail_reader *t = user;
    tinkc_str row;
    tkc_arena_reset(&t->arena);
    if (tke_line_row(line, true, &t->arena, &row)) {
        tkc_buf_clear(&t->last);
        tkc_buf_str(&t->last, row, &t->err);
    }
}

static void take_checkpoint_line(tinkc_str line, void *user)
{
    tail_reader *t = user;
    tinkc_error err = { 0 };
    tinkc_str key;
    tkc_json j;
    tkc_arena_reset(&t->arena);
    tkc_json_open(&j, line, &t->arena, &err);
    for (bool in = tkc_json_object(&j); in && tkc_json_key(&j, &key);) {
        int kind = tkc_json_peek(&j);
        if (tkc_str_is(key, "final"))
            t->final |= kind == TKC_JSON_TRUE;
        else if (tkc_str_is(key, "name") && kind == TKC_JSON_STRING) {
            t->final |= tkc_str_is(tkc_json_string(&j), "final");
            continue;
        }
        (void)tkc_json_skip(&j);
    }
}

static bool read_tail(const tke_logdirs *l, tke_logged_run *run, int file, int fd, tinkc_error *err)
{
    tail_reader t = { .final = false };
    tkc_arena_init(&t.arena, l->a, 0);
    tkc_buf_init(&t.last, l->a, TKC_BUF_NO_MAX);
    bool metrics = file == TKE_RUN_METRICS;
    bool ok = tke_lines_tail(fd, l->a, metrics ? take_metrics_line : take_checkpoint_line, &t, err);
    if (ok && metrics) {
        free_text(l->a, &run->last);
        if (t.last.len && t.last.len < MAX_LAST && !tkc_failed(&t.err))
            run->last = tkc_copy_str(l->a, tkc_buf_view(&t.last), err);
    } else if (ok) {
        run->final = t.final;
    }
    tkc_buf_free(&t.last);
    tkc_arena_free(&t.arena);
    return !tkc_failed(err);
}

static bool read_changed(const tke_logdirs *l, tke_logged_run *run, int file, int fd,
                         tinkc_error *err)
{
    switch (file) {
    case TKE_RUN_CONFIG:
        return read_config(l, run, fd, err);
    case TKE_RUN_METRICS:
    case TKE_RUN_CHECKPOINTS:
        return read_tail(l, run, file, fd, err);
    default:
        return true;
    }
}

/* Detects changes of its files, through the open folder. */
static bool look_at_run(tke_logdirs *l, tke_logged_run *run, int folder, tinkc_error *err)
{
    bool changed = run->version == 0;
    for (int i = 0; i < TKE_RUN_FILES; i++) {
        struct stat st;
        tke_run_file now = { 0 };
        int fd = tke_lines_open(folder, file_names[i]);
        if (fd >= 0 && fstat(fd, &st) == 0)
            now = (tke_run_file){ .inode = (uint64_t)st.st_ino,
                                  .size = (int64_t)st.st_size,
                                  .changed_us = (int64_t)st.st_mtim.tv_sec * 1000000 +
                                                st.st_mtim.tv_nsec / 1000 };
        bool other = memcmp(&now, &run->files[i], sizeof now) != 0;
        if (other && fd >= 0 && !read_changed(l, run, i, fd, err)) {
            close(fd);
            return false;
        }
        run->files[i] = now;
        changed |= other;
        if (fd >= 0)
            close(fd);
    }
    if (changed)
        run->version = ++l->version;
    run->found = true;
    return true;
}

/* ---- finding them ---- */

void tke_make_showable(char *text)
{
    for (size_t i = 0; text[i];) {
        size_t n = tkc_utf8_length(text + i, strlen(text + i));
        if (n == 0 || (unsigned char)text[i] < 0x20 || text[i] == 0x7f) {
            text[i] = '?';
            n = 1;
        }
        i += n;
    }
}

static char *display_name(const tinkc_allocator *a, const char *text, tinkc_error *err)
{
    char *out = tkc_copy_str(a, tkc_str(text), err);
    if (out)
        tke_make_showable(out);
    return out;
}

static void make_id(const char *path, char id[TKE_RUN_ID])
{
    tkc_digest d;
    char hex[TKC_SHA256_HEX];
    tkc_sha256_init(&d);
    tkc_digest_add(&d, path, strlen(path));
    tkc_digest_hex(&d, hex);
    memcpy(id, hex, TKE_RUN_ID - 1);
    id[TKE_RUN_ID - 1] = '\0';
}

static tke_logged_run *add_run(tke_logdirs *l, const char *path, const char *name, const char *id,
                               tinkc_error *err)
{
    tke_logged_run *run = tkc_zalloc(l->a, sizeof *run, err);
    if (!run)
        return NULL;
    memcpy(run->id, id, TKE_RUN_ID);
    run->path = tkc_copy_str(l->a, tkc_str(path), err);
    run->name = display_name(l->a, name, err);
    if (tkc_failed(err) || !tkc_map_set(&l->runs, tkc_str(id), run, NULL, err)) {
        free_run(l, run);
        return NULL;
    }
    return run;
}

static bool is_run(int folder)
{
    static const int telling[] = { TKE_RUN_METRICS, TKE_RUN_CHECKPOINTS, TKE_RUN_CONFIG };
    struct stat st;
    for (size_t i = 0; i < 3; i++)
        if (fstatat(folder, file_names[telling[i]], &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(st.st_mode))
            return true;
    return false;
}

static bool note_run(tke_logdirs *l, int folder, const char *path, const char *name,
                     tinkc_error *err)
{
    char id[TKE_RUN_ID];
    make_id(path, id);
    tke_logged_run *run = tkc_map_get(&l->runs, tkc_str(id));
    if (!run && l->runs.n_live >= TKE_MAX_RUNS) {
        l->too_many = true;
        return true;
    }
    if (!run && !(run = add_run(l, path, name, id, err)))
        return false;
    return look_at_run(l, run, folder, err);
}

static bool search(tke_logdirs *l, int folder, const char *path, const char *name, int depth,
                   tinkc_error *err);

static bool search_below(tke_logdirs *l, int folder, const char *path, const char *name, int depth,
                         tinkc_error *err)
{
    DIR *dir = fdopendir(folder);
    if (!dir) {
        close(folder);
        return true;
    }
    const struct dirent *e;
    bool ok = true;
    for (size_t n = 0; ok && n < MAX_ENTRIES && (e = readdir(dir)); n++) {
        char below[PATH_MAX], shown[PATH_MAX];
        if (e->d_name[0] == '.' || (e->d_type != DT_DIR && e->d_type != DT_UNKNOWN))
            continue;
        int a = snprintf(below, sizeof below, "%s/%s", path, e->d_name);
        int b = snprintf(shown, sizeof shown, "%s%s%s", name, *name ? "/" : "", e->d_name);
        /* Links are not followed: one in a log directory that came with a repository could lead to
         * any folder of this machine. */
        int fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
            continue;
        if (a < 0 || b < 0 || (size_t)a >= sizeof below || (size_t)b >= sizeof shown)
            close(fd);
        else
            ok = search(l, fd, below, shown, depth + 1, err);
    }
    closedir(dir);
    return ok;
}

/* Consumes the open folder. `name`: relative to its root; "" = the root itself. */
static bool search(tke_logdirs *l, int folder, const char *path, const char *name, int depth,
                   tinkc_error *err)
{
    if (is_run(folder)) {
        const char *slash = strrchr(path, '/');
        bool ok = note_run(l, folder, path, *name ? name : slash ? slash + 1 : path, err);
        close(folder);
        return ok;
    }
    if (depth >= MAX_DEPTH) {
        close(folder);
        return true;
    }
    return search_below(l, folder, path, name, depth, err);
}

static void forget_missing(tke_logdirs *l)
{
    const tkc_map_entry *e;
    for (size_t at = 0; (e = tkc_map_next(&l->runs, &at));) {
        tke_logged_run *run = e->value;
        if (run->found)
            continue;
        (void)tkc_map_remove(&l->runs, tkc_strn(e->key, e->key_len));
        free_run(l, run);
        l->removed = ++l->version;
    }
}

bool tke_logdirs_scan(tke_logdirs *l, tinkc_error *err)
{
    const tkc_map_entry *e;
    for (size_t at = 0; (e = tkc_map_next(&l->runs, &at));)
        ((tke_logged_run *)e->value)->found = false;
    l->too_many = false;
    for (size_t i = 0; i < l->n_roots; i++) {
        char path[PATH_MAX];
        int fd = realpath(l->roots[i], path) ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
        if (fd >= 0 && !search(l, fd, path, "", 0, err))
            return false; /* incomplete: do not forget runs that were not reached */
    }
    forget_missing(l);
    return true;
}

/* ---- as JSON ---- */

static void describe_file(tkc_jsonw *w, const char *name, const tke_run_file *f)
{
    char generation[24];
    tkc_jsonw_key(w, name);
    if (!f->inode) {
        tkc_jsonw_null(w);
        return;
    }
    (void)snprintf(generation, sizeof generation, "%llx", (unsigned long long)f->inode);
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "generation");
    tkc_jsonw_cstr(w, generation);
    tkc_jsonw_key(w, "size");
    tkc_jsonw_i64(w, f->size);
    tkc_jsonw_end(w);
}

static const char *status_of(const tke_logged_run *run, int64_t now_us)
{
    const tke_run_file *f = &run->files[TKE_RUN_METRICS];
    return run->final                                        ? "completed"
           : f->inode && now_us - f->changed_us < RUNNING_US ? "running"
                                                             : "idle";
}

bool tke_run_describe(const tke_logged_run *run, int64_t now_us, tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw w;
    char *path = display_name(out->a, run->path, err);
    tkc_jsonw_open(&w, out, err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "id");
    tkc_jsonw_cstr(&w, run->id);
    tkc_jsonw_key(&w, "name");
    tkc_jsonw_cstr(&w, run->name);
    tkc_jsonw_key(&w, "path");
    tkc_jsonw_cstr(&w, path);
    tkc_jsonw_key(&w, "status");
    tkc_jsonw_cstr(&w, status_of(run, now_us));
    tkc_jsonw_key(&w, "changed_ms");
    tkc_jsonw_i64(&w, run->files[TKE_RUN_METRICS].changed_us / 1000);
    tkc_jsonw_key(&w, "config");
    tkc_jsonw_raw(&w, run->config ? tkc_str(run->config) : tkc_str("null"));
    tkc_jsonw_key(&w, "last");
    tkc_jsonw_raw(&w, run->last ? tkc_str(run->last) : tkc_str("null"));
    describe_file(&w, "metrics", &run->files[TKE_RUN_METRICS]);
    describe_file(&w, "checkpoints", &run->files[TKE_RUN_CHECKPOINTS]);
    describe_file(&w, "samples", &run->files[TKE_RUN_SAMPLES]);
    describe_file(&w, "log", &run->files[TKE_RUN_LOG]);
    tkc_jsonw_end(&w);
    if (path)
        tkc_release_str(out->a, path);
    return !tkc_failed(err);
}
