/* test_disk_faults.c - disks that are full, read-only or forbidden, at each place where the
 * service writes, and files that were damaged.
 *
 * This program has its own write, rename and the like: while a fault is set, calls on a path that
 * contains its text fail, SQLite's included. What must hold each time: the request fails with
 * category server and a text that says why, nothing half written is left, training continues, and
 * once there is room again the same request works.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "support/service/service_world.h"

/* ---- faults ---- */

static _Atomic int fault; /* an errno; 0 = all is well */
static const char *_Atomic fault_path;
static _Atomic bool no_links; /* as on a file system without hard links */

static bool hit(const char *path)
{
    const char *part = atomic_load(&fault_path);
    if (!atomic_load(&fault) || !path || !part || !strstr(path, part))
        return false;
    if (atomic_load(&fault) == ENOSPC && strstr(path, "/unrecorded"))
        return false; /* a full disk takes what is written over blocks that are there */
    errno = atomic_load(&fault);
    return true;
}

static bool hit_fd(int fd)
{
    char link[40], path[600];
    if (!atomic_load(&fault))
        return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    return hit(path);
}

/* The C library's own function of a type. (A pointer of dlsym is turned into one as POSIX says.) */
#define REAL(name, ...)                                                                                                \
    __extension__({                                                                                                    \
        static __typeof__(&name) next;                                                                                 \
        if (!next)                                                                                                     \
            *(void **)&next = dlsym(RTLD_NEXT, #name);                                                                 \
        next(__VA_ARGS__);                                                                                             \
    })
#pragma GCC visibility push(default) /* SQLite must find them */

ssize_t write(int fd, const void *data, size_t n)
{
    return hit_fd(fd) ? -1 : REAL(write, fd, data, n);
}
ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
    return hit_fd(fd) ? -1 : REAL(pwrite, fd, data, n, at);
}
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at)
{
    return hit_fd(fd) ? -1 : REAL(pwrite64, fd, data, n, at);
}
int fsync(int fd)
{
    return hit_fd(fd) ? -1 : REAL(fsync, fd);
}
int fdatasync(int fd)
{
    return hit_fd(fd) ? -1 : REAL(fdatasync, fd);
}
int rename(const char *from, const char *to)
{
    return hit(to) ? -1 : REAL(rename, from, to);
}
int linkat(int from, const char *name, int to, const char *new_name, int flags)
{
    if (!atomic_load(&no_links))
        return REAL(linkat, from, name, to, new_name, flags);
    errno = EPERM;
    return -1;
}
int mkdir(const char *path, mode_t mode)
{
    return hit(path) ? -1 : REAL(mkdir, path, mode);
}

#pragma GCC visibility pop

static void break_disk(int how, const char *path)
{
    atomic_store(&fault_path, path);
    atomic_store(&fault, how);
}

static void mend_disk(void)
{
    atomic_store(&fault, 0);
}

/* ---- an engine ---- */

static tinkc_engine *open_engine(const char *store, int32_t durability)
{
    const char *const settings[] = { "disk_reserve", "0", "result_spill_bytes", "64", NULL };
    mend_disk();
    return world_open(store, durability, settings);
}

static double calm(int steps)
{
    mend_disk();
    return undisturbed(steps);
}

static int entries(const char *store, const char *part)
{
    char path[400];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s", store, part);
    DIR *folder = opendir(path);
    for (struct dirent *e; folder && (e = readdir(folder));)
        n += e->d_name[0] != '.';
    if (folder)
        closedir(folder);
    return n;
}

/* Files of results stay in tmp/ as long as their results; nothing else may. */
static int half_folders(const char *store)
{
    char command[400];
    int n = -1;
    snprintf(command, sizeof command,
             "find '%s/tmp' -mindepth 1 -maxdepth 1 ! -exec test -f '{}/result' ';' -print | wc -l", store);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d", &n), 1);
    pclose(f);
    return n;
}

/* ---- saves ---- */

typedef struct place {
    int how;
    const char *path, *text;
} place;

static const place places[] = {
    { ENOSPC, "/tmp/", "No space left" },         /* while the files are written */
    { EDQUOT, "optimizer.safetensors", "quota" }, /* at the last of them */
    { ENOSPC, "/weights/", "No space left" },     /* when it is moved into place */
    { ENOSPC, "meta.db", "disk" },                /* when it is recorded */
    { EIO, "meta.db", "disk I/O" },               /* likewise */
    { EROFS, "/tmp/", "Read-only" },              /* the file system turned read-only */
    { EACCES, "/tmp/", "Permission denied" },     /* or was never ours */
    { EACCES, "/weights/", "Permission denied" },
};

TEST(saves_fail_and_leave_nothing)
{
    char *store = tiny_folder(), where[400], part[300];
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_CHECKPOINT);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    int64_t seq = 1;
    int steps = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const place *p = &places[i];
        train(t, model, seq, 1);
        seq += 2;
        steps++;
        break_disk(p->how, p->path);
        snprintf(where, sizeof where, ",\"path\":\"at-%zu\"", i);
        service_wait_failure(t, post(t, "/api/v1/save_weights", model, seq++, where), "server", p->text);
        mend_disk();
        assert_int_equal(half_folders(store), 0);
        snprintf(part, sizeof part, "runs/%s/weights", model);
        assert_int_equal(entries(store, part), i);
        service_wait(t, post(t, "/api/v1/save_weights", model, seq++, where)); /* same name */
        assert_int_equal(entries(store, part), i + 1);
        assert_int_equal(half_folders(store), 0);
    }
    assert_true(service_loss(t, model, seq, text_a, N) == calm(steps));
    tinkc_engine_free(engine);
    engine = open_engine(store, TINKC_DURABILITY_CHECKPOINT); /* and none comes back either */
    answer a = service_call(tinkc_engine_transport(engine), "GET", "/api/v1/checkpoints", NULL, NULL, 0);
    assert_true(json_number(a.body.data, "total_count") == (double)(sizeof places / sizeof *places));
    answer_free(&a);
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

/* An overwrite that fails leaves what was there. */
TEST(a_failed_overwrite_leaves_the_old_one)
{
    static const place at[] = { { ENOSPC, "/tmp/", "No space" },
                                { ENOSPC, "meta.db", "disk" },
                                { EACCES, "/weights/", "denied" } };
    char body[300];
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        char *store = tiny_folder();
        tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_CHECKPOINT);
        const tinkc_transport *t = tinkc_engine_transport(engine);
        const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
        train(t, model, 1, 1);
        service_wait(t, post(t, "/api/v1/save_weights", model, 3, ",\"path\":\"x\""));
        train(t, model, 4, 1);
        break_disk(at[i].how, at[i].path);
        service_wait_failure(t, post(t, "/api/v1/save_weights", model, 6, ",\"path\":\"x\",\"overwrite\":true"),
                             "server", at[i].text);
        mend_disk();
        snprintf(body, sizeof body, ",\"path\":\"tinker://%s/weights/x\",\"optimizer\":true", model);
        service_wait(t, post(t, "/api/v1/load_weights", model, 7, body));
        train(t, model, 8, 2);
        assert_true(service_loss(t, model, 12, text_a, N) == calm(3));
        tinkc_engine_free(engine);
        tiny_model_remove(store);
    }
}

/* ---- images, journals, samplers, results ---- */

TEST(a_failed_image_is_written_again)
{
    tinkc_error err = { 0 };
    char *store = tiny_folder();
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_SNAPSHOT);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    static const place at[] = { { ENOSPC, "/tmp/", "" }, { ENOSPC, "/image.", "" }, { EROFS, "/tmp/", "" } };
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        train(t, model, 1 + 2 * (int64_t)i, 1);
        break_disk(at[i].how, at[i].path);
        err = (tinkc_error){ 0 };
        assert_false(tinkc_engine_flush(engine, PATIENCE_MS, &err)); /* at once */
        assert_int_equal(err.code, TINKC_E_STORE);
        mend_disk();
        assert_int_equal(half_folders(store), 0);
    }
    err = (tinkc_error){ 0 };
    assert_true(tinkc_engine_flush(engine, PATIENCE_MS, &err));
    tinkc_engine_free(engine);
    engine = open_engine(store, TINKC_DURABILITY_SNAPSHOT);
    t = tinkc_engine_transport(engine);
    assert_true(service_loss(t, model, 7, text_a, N) == calm(3));
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

/* Steps that were acknowledged are in the journal until an image that holds them is in its place: where the
 * image cannot be moved there, a sudden end after that loses none of them. */
TEST(the_journal_is_trimmed_only_behind_its_image)
{
    tinkc_error err = { 0 };
    char *store = tiny_folder();
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_JOURNAL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 2);
    break_disk(ENOSPC, "/image.");
    assert_false(tinkc_engine_flush(engine, PATIENCE_MS, &err));
    assert_int_equal(err.code, TINKC_E_STORE);
    char *copy = copy_store(store);
    mend_disk();
    tinkc_engine_free(engine);
    engine = open_engine(copy, TINKC_DURABILITY_JOURNAL);
    t = tinkc_engine_transport(engine);
    assert_true(service_loss(t, model, 5, text_a, N) == calm(2));
    tinkc_engine_free(engine);
    tiny_model_remove(copy);
    tiny_model_remove(store);
}

/* What cannot be put into the journal fails, is not executed, and leaves no hole: neither for those
 * behind it, nor after a sudden end. */
TEST(what_cannot_be_journaled_fails_and_leaves_no_hole)
{
    char *store = tiny_folder(), *copy = tiny_folder(), command[900];
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_JOURNAL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 1);
    break_disk(ENOSPC, "/journal");
    const char *bad = hold(service_pass(t, model, 3, text_a, N, false));
    service_wait_failure(t, bad, "server", "No space left");
    mend_disk();
    train(t, model, 4, 2);
    break_disk(ENOSPC, "/journal");
    atomic_store(&fault_path, store); /* the database too: not even the failure is recorded */
    const char *worse = hold(service_pass(t, model, 8, text_a, N, false));
    service_wait_failure(t, worse, "server", "No space left");
    mend_disk();
    train(t, model, 9, 1);
    snprintf(command, sizeof command, "cp -r '%s'/. '%s'/ && rm -f '%s/lock'", store, copy, copy);
    assert_int_equal(system(command), 0);
    double loss = service_loss(t, model, 11, text_a, N);
    assert_true(loss == calm(4));
    tinkc_engine_free(engine);
    engine = open_engine(copy, TINKC_DURABILITY_JOURNAL);
    t = tinkc_engine_transport(engine);
    service_wait_failure(t, bad, "server", "No space left");
    assert_true(service_loss(t, model, 11, text_a, N) == loss);
    tinkc_engine_free(engine);
    tiny_model_remove(copy);
    tiny_model_remove(store);
}

/* A large result that cannot be written to its end stays in memory, and what was written is removed. */
TEST(half_a_result_is_not_left_behind)
{
    char *store = tiny_folder();
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_SNAPSHOT);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    break_disk(ENOSPC, "/result");
    const char *pass = service_wait(t, service_pass(t, model, 1, text_a, N, false));
    assert_non_null(strstr(pass, "loss:sum"));
    mend_disk();
    assert_int_equal(entries(store, "tmp"), 0);
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

TEST(samplers_and_results)
{
    char *store = tiny_folder();
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_SNAPSHOT);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    break_disk(ENOSPC, store);
    const char *pass = service_wait(t, service_pass(t, model, 1, text_a, N, false));
    assert_non_null(strstr(pass, "loss:sum")); /* it stayed in memory */
    const char *made = post(t, "/api/v1/save_weights_for_sampler", model, 2, ",\"sampling_session_seq_id\":0");
    const char *sampler = hold(json_field(service_wait(t, made), "sampling_session_id"));
    const char *promise =
        service_json(t, 200, "POST", "/api/v1/asample",
                     "{\"sampling_session_id\":\"%s\",\"seq_id\":0,\"prompt\":{\"chunks\":[{\"type\":"
                     "\"encoded_text\",\"tokens\":[1,5]}]},\"sampling_params\":{\"max_tokens\":4,\"seed\":3}}",
                     sampler);
    assert_non_null(strstr(service_wait(t, json_field(promise, "request_id")), "tokens"));
    /* What promises to be there tomorrow is refused, in a way that clients try again. */
    const char *session = service_json(t, 500, "POST", "/api/v1/create_session", "{\"tags\":[],\"sdk_version\":\"x\"}");
    assert_non_null(strstr(session, "disk is full"));
    mend_disk();
    service_session(t);
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

/* A model that could not be recorded is recorded when its client asks again. */
TEST(creations_that_are_asked_for_again)
{
    char *store = tiny_folder();
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_SNAPSHOT);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    break_disk(ENOSPC, "meta.db");
    service_json(t, 500, "POST", "/api/v1/create_model",
                 "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"tiny\",\"lora_config\":"
                 "{\"rank\":4,\"seed\":7}}",
                 session);
    mend_disk();
    const char *model = hold(service_model(t, session, 0, "tiny", 4, 7));
    train(t, model, 1, 2);
    tinkc_engine_free(engine);
    engine = open_engine(store, TINKC_DURABILITY_SNAPSHOT);
    t = tinkc_engine_transport(engine);
    assert_true(service_loss(t, model, 5, text_a, N) == calm(2));
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

TEST(starting_on_a_bad_disk)
{
    tinkc_error err = { 0 };
    char *store = tiny_folder();
    tinkc_engine_free(open_engine(store, 0));
    break_disk(EROFS, "meta.db");
    assert_null(tinkc_engine_new(&(tinkc_engine_options){ .store = store }, &err));
    assert_int_equal(err.code, TINKC_E_STORE);
    mend_disk();
    err = (tinkc_error){ 0 };
    break_disk(EACCES, "/tmp");
    char below[300];
    snprintf(below, sizeof below, "%s/tmp/new", store);
    assert_null(tinkc_engine_new(&(tinkc_engine_options){ .store = below }, &err));
    assert_int_equal(err.code, TINKC_E_FILE);
    assert_non_null(strstr(err.message, "Permission denied"));
    mend_disk();
    tinkc_engine_free(open_engine(store, 0));
    tiny_model_remove(store);
}

/* ---- damaged files ---- */

static void damage(const char *path, long at, bool cut)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    long from = at < 0 ? (long)st.st_size + at : at;
    if (cut) {
        assert_int_equal(truncate(path, from), 0);
        return;
    }
    int fd = open(path, O_RDWR);
    unsigned char byte;
    assert_int_equal(pread(fd, &byte, 1, from), 1);
    byte ^= 0x5a;
    assert_int_equal(pwrite(fd, &byte, 1, from), 1);
    close(fd);
}

/* No damage crashes anything; damage that shows in the file is reported; training continues. */
TEST(damage_to_a_checkpoint_is_reported)
{
    static const char *const files[] = { "adapter_model.safetensors", "optimizer.safetensors", "adapter_config.json" };
    static const struct {
        long at;
        bool cut, told;
    } how[] = { { 0, false, true }, { 3, false, true },  { 8, false, true }, { 0, true, true },
                { 7, true, true },  { 100, true, true }, { -1, true, true }, { -5, false, false } };
    char *store = tiny_folder(), path[500], body[300];
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_CHECKPOINT);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    int64_t seq = 1;
    for (size_t f = 0; f < 3; f++)
        for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
            train(t, model, seq, 1);
            snprintf(body, sizeof body, ",\"path\":\"x\",\"overwrite\":true");
            service_wait(t, post(t, "/api/v1/save_weights", model, seq + 2, body));
            double before = service_loss(t, model, seq + 3, text_a, N);
            snprintf(path, sizeof path, "%s/runs/%s/weights/x/%s", store, model, files[f]);
            damage(path, how[i].at, how[i].cut);
            snprintf(body, sizeof body, ",\"path\":\"tinker://%s/weights/x\",\"optimizer\":true", model);
            const char *load = post(t, "/api/v1/load_weights", model, seq + 4, body);
            if (how[i].told && f < 2)
                service_wait_failure(t, load, "user", files[f]);
            else
                answer_free(&(answer[]){ service_result(t, load, false) }[0]);
            if (how[i].told && f < 2) /* a load that fails changes nothing */
                assert_true(service_loss(t, model, seq + 5, text_a, N) == before);
            else
                service_loss(t, model, seq + 5, text_a, N);
            seq += 6;
        }
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

/* A run whose image is damaged says so, and continues from a checkpoint that it is asked to load.
 * */
TEST(damage_to_an_image_is_reported)
{
    char *store = tiny_folder(), path[500], body[300];
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_SNAPSHOT);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 1);
    service_wait(t, post(t, "/api/v1/save_weights", model, 3, ",\"path\":\"x\""));
    train(t, model, 4, 1);
    tinkc_engine_free(engine);
    snprintf(path, sizeof path, "%s/runs/%s/image.0/adapter_model.safetensors", store, model);
    damage(path, 0, true);
    engine = open_engine(store, TINKC_DURABILITY_SNAPSHOT);
    t = tinkc_engine_transport(engine);
    service_wait_failure(t, service_pass(t, model, 6, text_a, N, false), "server", "adapter_model.safetensors");
    snprintf(body, sizeof body, ",\"path\":\"tinker://%s/weights/x\",\"optimizer\":true", model);
    service_wait(t, post(t, "/api/v1/load_weights", model, 7, body));
    train(t, model, 8, 1);
    assert_true(service_loss(t, model, 10, text_a, N) == calm(2));
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

/* A request that fails because the disk is full is settled for its client, who continues with the
 * next number; so must the server, after a sudden end. */
TEST(numbers_survive_a_full_disk)
{
    static const int32_t levels[] = { TINKC_DURABILITY_JOURNAL, TINKC_DURABILITY_SNAPSHOT };
    for (size_t i = 0; i < 2; i++) {
        const char *const settings[] = { "seq_gap_timeout_s", "10000", "disk_reserve", "0", NULL };
        char *store = tiny_folder();
        mend_disk();
        tinkc_engine *engine = world_open(store, levels[i], settings);
        const tinkc_transport *t = tinkc_engine_transport(engine);
        const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
        train(t, model, 1, 1);
        break_disk(ENOSPC, store);
        answer a = service_result(t, hold(service_pass(t, model, 3, text_a, N, false)), false);
        answer_free(&a);
        mend_disk();
        char *copy = copy_store(store); /* the machine stops here */
        tinkc_engine_free(engine);
        engine = world_open(copy, levels[i], settings);
        t = tinkc_engine_transport(engine);
        /* Were number 3 forgotten, this would wait for 10 000 s. */
        answer next = service_result(t, hold(service_step(t, model, 4, 1e-2)), false);
        assert_int_equal(next.status, 200);
        answer_free(&next);
        tinkc_engine_free(engine);
        tiny_model_remove(store);
        tiny_model_remove(copy);
    }
}

/* A copy shares the bytes of its original, or has its own where links are impossible. */
TEST(a_copy_shares_bytes_where_links_are_possible)
{
    tinkc_error err = { 0 };
    char *store = tiny_folder(), path[600];
    const char *session, *names[] = { "shared", "own" };
    tinkc_engine *engine = open_engine(store, TINKC_DURABILITY_CHECKPOINT);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    session = hold(service_session(t));
    const char *model = hold(service_model(t, session, 0, "tiny", 4, 7));
    train(t, model, 1, 1);
    service_wait(t, post(t, "/api/v1/save_weights", model, 3, ",\"path\":\"a\""));
    for (int i = 0; i < 2; i++) {
        struct stat one, two;
        atomic_store(&no_links, i == 1);
        (void)service_json(t, 200, "POST", "/api/v1/copy_weights",
                           "{\"session_id\":\"%s\",\"model_seq_id\":%d,\"source_path\":"
                           "\"tinker://%s/weights/a\"}",
                           session, i + 1, model);
        atomic_store(&no_links, false);
        snprintf(path, sizeof path, "%s/runs/%s/weights/a/adapter_model.safetensors", store, model);
        assert_int_equal(stat(path, &one), 0);
        snprintf(path, sizeof path, "%s/runs/%s:train:%d/weights/a/adapter_model.safetensors", store, session, i + 1);
        assert_int_equal(stat(path, &two), 0);
        if ((one.st_ino == two.st_ino) != (i == 0))
            fail_msg("bytes that are to be %s", names[i]);
        assert_int_equal(two.st_size, one.st_size);
        assert_int_equal(two.st_mode & 0777, 0600);
    }
    tinkc_engine_free(engine);
    assert_true(tinkc_store_check(store, NULL, NULL, NULL, &err)); /* all bytes are there */
    assert_ok(err);
    tiny_model_remove(store);
}

RUN_TESTS(setup, teardown)
