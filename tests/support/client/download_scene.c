#include "support/client/download_scene.h"
#include "support/json_trees.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

static int home = -1;
static char folder[64];

scene *download_begin(void)
{
    scene *s = scene_new(TINKC_MOCK_EMPTY, NULL);
    (void)snprintf(folder, sizeof folder, "/tmp/tinkc-dl-XXXXXX");
    assert_non_null(mkdtemp(folder));
    home = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(chdir(folder), 0);
    answer_always(s, CONFIG, 200, "{}");
    answer_always(s, API "training_runs/r/checkpoints/weights/c/archive", 200,
                  "{\"url\":\"" URL "\",\"expires\":\"2026-01-01T01:00:00Z\"}");
    complete(
        s, "",
        tinkc_http_call(scene_client(s), &(tinkc_http_options){ .path = "/first", .any_status = true }, scene_err(s)));
    scene_forget(s);
    return s;
}

void clean_folder(void)
{
    assert_int_equal(system("find . -mindepth 1 -delete"), 0);
}

void download_end(scene *s)
{
    clean_folder();
    assert_int_equal(fchdir(home), 0);
    close(home);
    assert_int_equal(rmdir(folder), 0);
    scene_end(s);
}

void put_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    (void)fputs(text, f);
    fclose(f);
}

/* ---- the disk ---- */

typedef struct line {
    char text[3000];
    size_t n;
} line;

static void __attribute__((format(printf, 2, 3))) say(line *l, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    l->n += (size_t)vsnprintf(l->text + l->n, sizeof l->text - l->n, format, args);
    va_end(args);
    assert_true(l->n < sizeof l->text);
}

static bool say_state(line *l, const char *path)
{
    size_t i;
    tkc_tree *file, *state = json_file(path);
    if (!state)
        return false;
    say(l, "{%s %lld %lld", tkc_tree_get_text(state, "etag"), (long long)tkc_tree_get_i64(state, "total"),
        (long long)tkc_tree_get_i64(state, "offset"));
    for (i = 0; (file = tkc_tree_at(tkc_tree_get(state, "files"), i)); i++)
        say(l, " %s:%.6s", tkc_tree_get_text(file, "name"), tkc_tree_get_text(file, "sha256"));
    say(l, "}");
    return true;
}

static void say_file(line *l, const char *path)
{
    char text[24] = "";
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    bool short_text = n && n < sizeof text - 1 && strlen(text) == n;
    (void)fseek(f, 0, SEEK_END);
    if (short_text)
        say(l, "=%s", text);
    else if (!strstr(path, ".state") || !say_state(l, path))
        say(l, ":%ld", ftell(f));
    fclose(f);
}

static void say_folder(line *l, const char *path)
{
    struct dirent **all;
    int n = scandir(path, &all, NULL, alphasort);
    const char *between = "";
    assert_true(n >= 0);
    for (int i = 0; i < n; i++) {
        char inside[600];
        struct stat st;
        const char *name = all[i]->d_name;
        (void)snprintf(inside, sizeof inside, "%s/%.250s", path, name);
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && lstat(inside, &st) == 0) {
            say(l, "%s%s", between, name);
            between = " ";
            if (S_ISDIR(st.st_mode)) {
                say(l, "/[");
                say_folder(l, inside);
                say(l, "]");
            } else {
                say_file(l, inside);
            }
        }
        free(all[i]);
    }
    free(all);
}

void show_folder(scene *s)
{
    line l = { .n = 0 };
    say_folder(&l, ".");
    note(s, "%s", l.n ? l.text : "nothing on the disk");
}

/* ---- downloads ---- */

void serve_cut(scene *s, int32_t status, const char *const *headers, const void *body, size_t len, int64_t cut_after)
{
    tinkc_mock_answer a = { .status = status,
                            .headers = headers,
                            .body = body,
                            .body_len = len,
                            .fault = cut_after ? TINKC_FAULT_RESET : 0,
                            .fault_after = cut_after };
    assert_true(tinkc_mock_once(scene_mock(s), NULL, "/x", &a, scene_err(s)));
}

void serve_once(scene *s, int32_t status, const char *const *headers, const void *body, size_t len)
{
    serve_cut(s, status, headers, body, len, 0);
}

void serve_gone(scene *s, size_t times)
{
    while (times--)
        serve_once(s, 404, NULL, "gone", 4);
}

static void await(scene *s, const tinkc_future *f)
{
    tinkc_error err = { 0 };
    while (f && !tinkc_future_done(f)) {
        int64_t next = TINKC_FOREVER;
        wait_until(tinkc_future_done(f) ||
                   (next = tinkc_mock_settle(scene_mock(s), PATIENCE_MS, &err)) != TINKC_FOREVER);
        assert_ok(&err);
        if (!tinkc_future_done(f))
            tinkc_mock_advance(scene_mock(s), next);
    }
}

/* Each file has its size and, if wanted, its digest. */
static void check_files(const tinkc_download *d, bool no_digests)
{
    for (size_t i = 0; i < tinkc_download_count(d); i++) {
        const char *target = tinkc_download_target(d);
        char path[600], hex[65];
        struct stat st;
        assert_int_equal(stat(target, &st), 0);
        (void)snprintf(path, sizeof path, "%s%s%s", target, S_ISDIR(st.st_mode) ? "/" : "",
                       S_ISDIR(st.st_mode) ? tinkc_download_at(d, i)->name : "");
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, tinkc_download_at(d, i)->size_bytes);
        assert_true(tinkc_file_sha256(path, hex, NULL));
        assert_string_equal(tinkc_download_at(d, i)->sha256, no_digests ? "" : hex);
    }
}

static void run(scene *s, tinkc_future *f, bool no_digests)
{
    await(s, f);
    f = follow(s, "", f);
    const tinkc_download *d = f && tinkc_future_wait(f, 0, NULL) ? tinkc_future_download(f, 0, NULL) : NULL;
    if (d)
        note(s, "%s: %" PRId64 " bytes, %zu file%s", tinkc_download_target(d), tinkc_download_bytes(d),
             tinkc_download_count(d), tinkc_download_count(d) == 1 ? "" : "s");
    check_files(d, no_digests);
    show_folder(s);
    if (f)
        release(s, f);
}

void fetch(scene *s, tinkc_download_options o)
{
    run(s, tinkc_checkpoint_download(scene_client(s), CHECKPOINT, &o, scene_err(s)), o.no_digests);
}

void fetch_external(scene *s, tinkc_download_options o)
{
    run(s, tinkc_checkpoint_download(scene_client(s), EXTERNAL, &o, scene_err(s)), o.no_digests);
}

void fetch_url(scene *s, const char *url, tinkc_download_options o)
{
    run(s, tinkc_url_download(scene_client(s), url, &o, scene_err(s)), o.no_digests);
}

bool fetch_quietly(scene *s, const char *path, tinkc_download_options o)
{
    tinkc_error err = { 0 };
    tinkc_future *f = tinkc_checkpoint_download(scene_client(s), path, &o, &err);
    assert_ok(&err);
    await(s, f);
    settle(s);
    scene_forget(s);
    bool succeeded = tinkc_future_wait(f, 0, &err);
    if (!succeeded)
        note(s, "%s", err.message);
    tinkc_future_free(f);
    return succeeded;
}
