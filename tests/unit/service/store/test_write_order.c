/* test_write_order.c - in which order the service writes, syncs and renames what must survive a power loss.
 *
 * This program has its own write, fsync, rename and the like, which note each call on a path below the store, and each call
 * that the service has answered. The rules are about places in that list.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <unistd.h>

#include "service/store/checksums.h"
#include "support/service/service_world.h"

/* ---- the list ---- */

enum { MOST = 20000, WRITTEN = 'w', SYNCED = 's', RENAMED = 'r', ANSWERED = 'a' };

static struct {
    pthread_mutex_t lock;
    char store[300];
    size_t n;
    struct {
        char what, path[300];
    } calls[MOST];
} list = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void note(char what, const char *path)
{
    pthread_mutex_lock(&list.lock);
    size_t len = strlen(list.store);
    bool ours = what == ANSWERED || (len && strncmp(path, list.store, len) == 0);
    if (ours && list.n < MOST) {
        list.calls[list.n].what = what;
        snprintf(list.calls[list.n++].path, sizeof list.calls[0].path, "%s", what == ANSWERED ? "" : path + len);
    }
    pthread_mutex_unlock(&list.lock);
}

static void note_fd(char what, int fd)
{
    char link[40], path[300];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    note(what, path);
}

/* Rows of the checkpoint `one` when a folder was moved below tmp/: -1 = none was yet, NOT_COUNTED = do not look. Other commits
 * may come at any time, so the list alone cannot say which of them took the row. */
enum { NONE = -1, NOT_COUNTED = -2 };
static _Atomic int rows_when_moved = NOT_COUNTED;

static void count_rows(void)
{
    static const char sql[] = "SELECT COUNT(*) FROM checkpoints WHERE name = 'one'";
    char path[340];
    sqlite3 *db = NULL;
    sqlite3_stmt *found = NULL;
    snprintf(path, sizeof path, "%s/meta.db", list.store);
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(db, sql, -1, &found, NULL) == SQLITE_OK && sqlite3_step(found) == SQLITE_ROW)
        atomic_store(&rows_when_moved, sqlite3_column_int(found, 0));
    sqlite3_finalize(found);
    sqlite3_close_v2(db);
}

/* The C library's own function of a type. (A pointer of dlsym is turned into one as POSIX says.) */
#define REAL(name, ...)                                                                                                \
    __extension__({                                                                                                    \
        __typeof__(&name) next;                                                                                        \
        *(void **)&next = dlsym(RTLD_NEXT, #name);                                                                     \
        next(__VA_ARGS__);                                                                                             \
    })
#pragma GCC visibility push(default) /* SQLite must find them */

ssize_t write(int fd, const void *data, size_t n)
{
    ssize_t done = REAL(write, fd, data, n);
    note_fd(WRITTEN, fd);
    return done;
}
ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
    ssize_t done = REAL(pwrite, fd, data, n, at);
    note_fd(WRITTEN, fd);
    return done;
}
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at)
{
    ssize_t done = REAL(pwrite64, fd, data, n, at);
    note_fd(WRITTEN, fd);
    return done;
}
int fsync(int fd)
{
    int bad = REAL(fsync, fd);
    note_fd(SYNCED, fd);
    return bad;
}
int fdatasync(int fd)
{
    int bad = REAL(fdatasync, fd);
    note_fd(SYNCED, fd);
    return bad;
}
int rename(const char *from, const char *to)
{
    int bad = REAL(rename, from, to);
    if (bad == 0)
        note(RENAMED, to);
    if (bad == 0 && atomic_load(&rows_when_moved) == NONE && strstr(to, "/tmp/"))
        count_rows();
    return bad;
}

#pragma GCC visibility pop

/* The first call of this kind at or behind `from` whose path has this end; NONE. */
static int find(int from, char what, const char *end)
{
    int found = NONE;
    pthread_mutex_lock(&list.lock);
    for (int i = from; i >= 0 && i < (int)list.n && found == NONE; i++) {
        size_t len = strlen(list.calls[i].path), n = strlen(end);
        if (list.calls[i].what == what && len >= n && strcmp(list.calls[i].path + len - n, end) == 0)
            found = i;
    }
    pthread_mutex_unlock(&list.lock);
    return found;
}

static void expect_in_order(const char *rule, int first, int second)
{
    if (first != NONE && second != NONE && first < second)
        return;
    for (size_t i = 0; i < list.n; i++)
        print_error("%zu %c %s\n", i, list.calls[i].what, list.calls[i].path);
    fail_msg("%s: %d and %d", rule, first, second);
}

/* Was a path below /tmp/ synced before this place: a file of this name, or with NULL a folder? */
static bool synced_before(int place, const char *name)
{
    for (int i = 0; i < place; i++) {
        const char *below = strstr(list.calls[i].path, "/tmp/");
        const char *file = below ? strchr(below + 5, '/') : NULL;
        if (list.calls[i].what == SYNCED && below && (name ? file && strcmp(file + 1, name) == 0 : !file))
            return true;
    }
    return false;
}

/* The folder that the call at `place` has named, and every file in it, was synced before. */
static void expect_synced_files(const char *store, int place)
{
    char path[700];
    int files = 0;
    assert_true(place != NONE);
    snprintf(path, sizeof path, "%s%s", store, list.calls[place].path);
    DIR *folder = opendir(path);
    assert_non_null(folder);
    for (struct dirent *e; (e = readdir(folder));) {
        if (e->d_name[0] == '.')
            continue;
        files++;
        if (!synced_before(place, e->d_name))
            fail_msg("%s was not synced before it got its name", e->d_name);
    }
    closedir(folder);
    assert_true(files > 2);
    assert_true(synced_before(place, NULL));
}

/* ---- the service ---- */

typedef struct world {
    char *store;
    tinkc_engine *engine;
    const tinkc_transport *t;
    const char *model;
    char part[300];
} world;

static void open_world(world *w, int32_t durability)
{
    static const char *const settings[] = { "disk_reserve", "0", NULL };
    w->store = tiny_folder();
    pthread_mutex_lock(&list.lock);
    snprintf(list.store, sizeof list.store, "%s", w->store);
    list.n = 0;
    pthread_mutex_unlock(&list.lock);
    w->engine = world_open(w->store, durability, settings);
    w->t = tinkc_engine_transport(w->engine);
    w->model = hold(service_model(w->t, service_session(w->t), 0, "tiny", 4, 7));
    train(w->t, w->model, 1, 1);
}

static void close_world(world *w)
{
    tinkc_engine_free(w->engine);
    pthread_mutex_lock(&list.lock);
    list.store[0] = '\0';
    pthread_mutex_unlock(&list.lock);
    tiny_model_remove(w->store);
}

static const char *part(world *w, const char *name)
{
    snprintf(w->part, sizeof w->part, "/runs/%s%s", w->model, name);
    return w->part;
}

static void forget(void)
{
    pthread_mutex_lock(&list.lock);
    list.n = 0;
    pthread_mutex_unlock(&list.lock);
}

TEST(a_request_is_synced_in_the_journal_before_it_is_accepted)
{
    world w;
    open_world(&w, TINKC_DURABILITY_JOURNAL);
    for (int i = 0; i < 3; i++) {
        forget();
        const char *id = hold(service_pass(w.t, w.model, 3 + i, text_a, N, false));
        note(ANSWERED, "");
        int written = find(0, WRITTEN, part(&w, "/journal"));
        int synced = find(written, SYNCED, part(&w, "/journal"));
        expect_in_order("written, then synced", written, synced);
        expect_in_order("synced, then accepted", synced, find(0, ANSWERED, ""));
        service_wait(w.t, id);
    }
    close_world(&w);
}

TEST(a_checkpoint_is_whole_before_it_has_its_name_and_recorded_after)
{
    world w;
    open_world(&w, TINKC_DURABILITY_CHECKPOINT);
    forget();
    service_wait(w.t, post(w.t, "/api/v1/save_weights", w.model, 3, ",\"path\":\"one\""));
    note(ANSWERED, "");
    int placed = find(0, RENAMED, part(&w, "/weights/one"));
    expect_synced_files(w.store, placed);
    int sums = find(0, RENAMED, "/" TKE_SUMS_FILE);
    int mark = find(0, RENAMED, "/checkpoint_complete");
    expect_in_order("its checksums, then the mark that it is complete", sums, mark);
    expect_in_order("the mark, then its name", mark, placed);
    int kept = find(placed, SYNCED, part(&w, "/weights"));
    int recorded = find(kept, SYNCED, "/meta.db-wal");
    expect_in_order("its name is synced, then its row", kept, recorded);
    expect_in_order("its row, then the answer", recorded, find(0, ANSWERED, ""));
    close_world(&w);
}

TEST(an_image_is_in_its_place_before_the_journal_is_trimmed)
{
    tinkc_error err = { 0 };
    world w;
    open_world(&w, TINKC_DURABILITY_JOURNAL);
    forget();
    assert_true(tinkc_engine_flush(w.engine, PATIENCE_MS, &err));
    int placed = find(0, RENAMED, part(&w, "/image.0"));
    if (placed == NONE)
        placed = find(0, RENAMED, part(&w, "/image.1"));
    expect_synced_files(w.store, placed);
    int kept = find(placed, SYNCED, part(&w, ""));
    int trimmed = find(0, RENAMED, part(&w, "/journal"));
    expect_in_order("its name is synced, then the journal is replaced", kept, trimmed);
    expect_in_order("the journal's new name is synced", trimmed, find(trimmed, SYNCED, part(&w, "")));
    close_world(&w);
}

/* A row without files would be a promise that cannot be kept; files without a row are found and removed. */
TEST(a_deleted_checkpoint_is_moved_away_before_its_row_goes)
{
    tinkc_error err = { 0 };
    world w;
    char path[400];
    open_world(&w, TINKC_DURABILITY_CHECKPOINT);
    service_wait(w.t, post(w.t, "/api/v1/save_weights", w.model, 3, ",\"path\":\"one\""));
    service_wait(w.t, post(w.t, "/api/v1/save_weights", w.model, 4, ",\"path\":\"two\""));
    assert_true(tinkc_engine_flush(w.engine, PATIENCE_MS, &err));
    snprintf(path, sizeof path, "/api/v1/training_runs/%s/checkpoints/weights/one", w.model);
    atomic_store(&rows_when_moved, NONE);
    answer a = service_call(w.t, "DELETE", path, NULL, NULL, 0);
    assert_int_equal(a.status, 204);
    answer_free(&a);
    assert_int_equal(atomic_exchange(&rows_when_moved, NOT_COUNTED), 1);
    close_world(&w);
}

/* It has the files of the other one, whose names in the new folder must survive as well. */
TEST(a_copy_is_whole_before_it_has_its_name)
{
    world w;
    open_world(&w, TINKC_DURABILITY_CHECKPOINT);
    service_wait(w.t, post(w.t, "/api/v1/save_weights", w.model, 3, ",\"path\":\"one\""));
    forget();
    service_json(w.t, 200, "POST", "/api/v1/copy_weights",
                 "{\"destination_project_id\":\"p\",\"source_path\":\"tinker://%s/weights/one\"}", w.model);
    expect_synced_files(w.store, find(0, RENAMED, "/weights/one"));
    close_world(&w);
}

/* Removing takes many steps, and a folder that lacks some files must not have its name meanwhile. */
TEST(what_gc_removes_is_moved_away_first)
{
    tinkc_error err = { 0 };
    world w;
    open_world(&w, TINKC_DURABILITY_CHECKPOINT);
    service_wait(w.t, post(w.t, "/api/v1/save_weights", w.model, 3, ",\"path\":\"000001\""));
    service_wait(w.t, post(w.t, "/api/v1/save_weights", w.model, 4, ",\"path\":\"final\""));
    tinkc_engine_free(w.engine);
    w.engine = NULL;
    forget();
    assert_true(tinkc_store_gc(w.store, &(tinkc_store_gc_options){ .steps = true, .remove = true }, NULL, NULL, &err));
    int moved = NONE;
    for (int i = 0; i < (int)list.n && moved == NONE; i++)
        moved = list.calls[i].what == RENAMED && strstr(list.calls[i].path, "/tmp/") ? i : NONE;
    assert_true(moved != NONE);
    close_world(&w);
}

RUN_TESTS(setup, teardown)
