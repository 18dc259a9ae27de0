/* Packed matrices in the user's cache: made once, believed only if every byte is what was packed from this model. */
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "math/format.h"
#include "support/engine/tiny_model.h"
#include "support/patience.h"
#include "support/test_case.h"
#include "tinkc/engine.h"
#include "model/model.h"

enum { NAME = 600, LARGEST = 16 << 20 };

typedef struct scene {
    char *folder, cache[64], name[NAME], file[NAME];
    int packed;   /* how often the progress was reported */
    int64_t left; /* of the bytes, when it was last */
    bool stop;
} scene;

static tinkc_error problem; /* where none is expected */

static bool count(int64_t done, int64_t total, void *user)
{
    scene *s = user;
    assert_true(done >= 0 && done <= total);
    s->packed++;
    s->left = total - done;
    return !s->stop;
}

static tke_model *opened(scene *s, tinkc_error *err)
{
    s->packed = 0;
    return tke_model_open_watched(s->name, count, s, err);
}

static void set_up_wide(scene *s, int bits, size_t inner)
{
    *s = (scene){ 0 };
    s->folder = tiny_model_make(&(tiny_model){ .family = "qwen3",
                                               .layers = 2,
                                               .hidden = 128,
                                               .inner = inner,
                                               .heads = 4,
                                               .head_dim = 32,
                                               .dtype = "BF16",
                                               .tied = true });
    snprintf(s->cache, sizeof s->cache, "/tmp/tinkc-pack-cache-XXXXXX");
    assert_non_null(mkdtemp(s->cache));
    setenv("XDG_CACHE_HOME", s->cache, 1);
    snprintf(s->name, sizeof s->name, "%s#%dbit", s->folder, bits);
    tke_model *m = opened(s, &problem);
    assert_non_null(m);
    snprintf(s->file, sizeof s->file, "%s/tinkc/packed/%s.safetensors", s->cache, m->pack_key);
    assert_true(s->packed > 1 && s->left == 0);
    tke_model_drop(m);
}

static void set_up(scene *s, int bits)
{
    set_up_wide(s, bits, 192);
}

static void tear_down(scene *s)
{
    tinkc_error err = { 0 };
    assert_true(tkc_remove_tree(s->cache, &err));
    tiny_model_remove(s->folder);
}

/* All numbers of the layers, unpacked. */
static uint64_t numbers(const tke_model *m)
{
    tke_real row[4096];
    uint64_t sum = 0;
    for (size_t g = 0; g < m->n_groups; g++)
        for (size_t w = 0; w < m->groups[g]->n; w++) {
            const tke_weight *x = &m->groups[g]->w[w];
            for (size_t r = 0; r < x->out; r++) {
                tke_matrix_row(&x->m, (int64_t)r, 0, (int64_t)x->in, row);
                for (size_t i = 0; i < x->in; i++)
                    sum = sum * 31 + tke_f32_to_bits(row[i]);
            }
        }
    return sum;
}

static uint64_t numbers_of(scene *s)
{
    tinkc_error err = { 0 };
    tke_model *m = opened(s, &err);
    if (!m)
        fail_msg("%s", err.message);
    uint64_t sum = numbers(m);
    tke_model_drop(m);
    return sum;
}

TEST(a_model_is_packed_once)
{
    for (int bits = 4; bits <= 8; bits += 4) {
        scene s;
        set_up(&s, bits);
        uint64_t first = numbers_of(&s);
        assert_int_equal(s.packed, 0);
        assert_int_equal(unlink(s.file), 0);
        assert_true(numbers_of(&s) == first && s.packed > 1); /* made again: the same numbers */
        tear_down(&s);
    }
}

/* ---- what is not believed ---- */

static unsigned char *contents(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    unsigned char *data = malloc(LARGEST);
    *len = fread(data, 1, LARGEST, f);
    fclose(f);
    return data;
}

static void put(const char *path, const unsigned char *data, size_t len)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    fclose(f);
}

/* Made again, and the same numbers. */
static void expect_repacked(scene *s, uint64_t wanted, const char *why)
{
    if (numbers_of(s) != wanted)
        fail_msg("%s: other numbers", why);
    if (!s->packed)
        fail_msg("%s: believed", why);
    numbers_of(s);
    if (s->packed)
        fail_msg("%s: not repaired", why);
}

TEST(a_byte_changed_anywhere_is_noticed)
{
    for (int bits = 4; bits <= 8; bits += 4) {
        scene s;
        size_t len, n = 40;
        set_up(&s, bits);
        uint64_t wanted = numbers_of(&s);
        unsigned char *data = contents(s.file, &len);
        for (size_t i = 0; i < n; i++) {
            size_t at = i < n - 4 ? 8 + i * (len - 8) / (n - 4) : len - (n - i); /* the last bytes, too */
            unsigned char before = data[at];
            if (before == ' ')
                continue; /* of the header's padding */
            data[at] ^= 0x10;
            put(s.file, data, len);
            data[at] = before;
            char why[40];
            snprintf(why, sizeof why, "byte %zu of %zu", at, len);
            expect_repacked(&s, wanted, why);
        }
        put(s.file, data, len / 2);
        expect_repacked(&s, wanted, "cut off");
        free(data);
        tear_down(&s);
    }
}

TEST(a_file_of_other_bits_is_not_believed)
{
    scene s;
    size_t len;
    set_up(&s, 4);
    uint64_t wanted = numbers_of(&s);
    char four[NAME];
    snprintf(four, sizeof four, "%s", s.file);
    snprintf(s.name, sizeof s.name, "%s#8bit", s.folder);
    tke_model *m = opened(&s, &problem);
    snprintf(s.file, sizeof s.file, "%s/tinkc/packed/%s.safetensors", s.cache, m->pack_key);
    tke_model_drop(m);
    unsigned char *data = contents(s.file, &len);
    put(four, data, len);
    snprintf(s.name, sizeof s.name, "%s#4bit", s.folder);
    expect_repacked(&s, wanted, "8 bits for 4");
    free(data);
    tear_down(&s);
}

/* The same shapes, other weights: a valid file, in the place of this model's. */
TEST(a_file_of_another_model_is_not_believed)
{
    scene a, b;
    char name[NAME];
    size_t len, at = 0;
    set_up(&a, 4);
    uint64_t wanted = numbers_of(&a);
    snprintf(name, sizeof name, "%s/model.safetensors", a.folder);
    unsigned char *data = contents(name, &len);
    set_up(&b, 4);
    snprintf(name, sizeof name, "%s/model.safetensors", b.folder);
    for (at = len / 2; at < len; at++)
        data[at] ^= 1;
    put(name, data, len);
    free(data);
    setenv("XDG_CACHE_HOME", b.cache, 1);
    tke_model *m = opened(&b, &problem);
    assert_non_null(m);
    assert_true(numbers(m) != wanted);
    snprintf(b.file, sizeof b.file, "%s/tinkc/packed/%s.safetensors", b.cache, m->pack_key);
    tke_model_drop(m);
    data = contents(b.file, &len);
    put(a.file, data, len);
    free(data);
    setenv("XDG_CACHE_HOME", a.cache, 1);
    expect_repacked(&a, wanted, "another model's");
    tear_down(&b);
    tear_down(&a);
}

/* The last bits of numbers far from both ends of the file, as if only some layers had been trained. */
static void change_the_middle(const scene *s, long later_ns)
{
    struct stat st;
    char name[NAME];
    size_t len;
    snprintf(name, sizeof name, "%s/model.safetensors", s->folder);
    assert_int_equal(stat(name, &st), 0);
    unsigned char *data = contents(name, &len);
    assert_true(len > 4 * (64 << 10) && len < LARGEST);
    for (size_t i = len / 3; i < len * 2 / 3; i++)
        data[i] ^= i % 2 == 0;
    put(name, data, len);
    free(data);
    struct timespec times[2] = { st.st_atim, st.st_mtim };
    times[1].tv_nsec = (times[1].tv_nsec + later_ns) % 1000000000;
    assert_int_equal(utimensat(AT_FDCWD, name, times, 0), 0);
}

TEST(weights_that_were_written_again_are_packed_again)
{
    static const struct {
        size_t inner;
        long later_ns;
    } rows[] = { { 192, 1 }, { 4096, 0 } }; /* small; or large, by a program that keeps the time */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        scene s;
        char fingerprint[65];
        set_up_wide(&s, 4, rows[i].inner);
        uint64_t before = numbers_of(&s);
        tke_model *m = opened(&s, &problem);
        memcpy(fingerprint, m->fingerprint, sizeof fingerprint);
        tke_model_drop(m);
        change_the_middle(&s, rows[i].later_ns);
        if (numbers_of(&s) == before || !s.packed)
            fail_msg("row %zu: the numbers from before are believed", i);
        m = opened(&s, &problem);
        assert_string_equal(m->fingerprint, fingerprint); /* which is why it does not decide */
        tke_model_drop(m);
        tear_down(&s);
    }
}

TEST(a_file_that_others_may_write_is_not_believed)
{
    scene s;
    set_up(&s, 8);
    uint64_t wanted = numbers_of(&s);
    assert_int_equal(chmod(s.file, 0620), 0);
    expect_repacked(&s, wanted, "writable by the group");
    char other[NAME + 8];
    snprintf(other, sizeof other, "%s.moved", s.file);
    assert_int_equal(rename(s.file, other), 0);
    assert_int_equal(symlink(other, s.file), 0);
    expect_repacked(&s, wanted, "a link");
    if (geteuid() == 0) {
        assert_int_equal(chown(s.file, 65534, (gid_t)-1), 0);
        expect_repacked(&s, wanted, "another user's");
    }
    tear_down(&s);
}

/* Who may write to a folder may put another file in the place of ours. */
TEST(a_folder_that_others_may_write_to_is_not_believed)
{
    scene s;
    char folder[NAME];
    set_up(&s, 8);
    uint64_t wanted = numbers_of(&s);
    snprintf(folder, sizeof folder, "%s/tinkc/packed", s.cache);
    assert_int_equal(chmod(folder, 0770), 0);
    assert_true(numbers_of(&s) == wanted && s.packed);
    assert_int_equal(chmod(folder, 0700), 0);
    assert_true(numbers_of(&s) == wanted && !s.packed);
    tear_down(&s);
}

/* ---- two processes ---- */

typedef struct both { /* shared by them */
    atomic_bool begun[2];
    uint64_t numbers[2];
    _Atomic pid_t second;
} both;

typedef struct one {
    both *all;
    int which;
} one;

/* Is a process waiting for a lock of a file? */
static bool waits_for_lock(pid_t process)
{
    char line[300], number[40];
    FILE *f = fopen("/proc/locks", "r");
    bool found = !f; /* not known */
    snprintf(number, sizeof number, " %d ", (int)process);
    while (f && !found && fgets(line, sizeof line, f))
        found = strstr(line, "->") && strstr(line, number);
    if (f)
        fclose(f);
    return found;
}

/* The first, which has the lock, continues once the second waits for it or packs, too. */
static bool begin(int64_t done, int64_t total, void *user)
{
    one *o = user;
    (void)total;
    atomic_store(&o->all->begun[o->which], true);
    if (o->which == 0 && done == 0)
        wait_until(atomic_load(&o->all->begun[1]) || (o->all->second && waits_for_lock(o->all->second)));
    return true;
}

static pid_t open_apart(both *all, int which, scene *s)
{
    one o = { all, which };
    tinkc_error err = { 0 };
    pid_t child = fork();
    if (child == 0) {
        tke_model *m = tke_model_open_watched(s->name, begin, &o, &err);
        all->numbers[which] = m ? numbers(m) : 0;
        tke_model_drop(m);
        _exit(0);
    }
    return child;
}

TEST(two_processes_pack_a_model_once)
{
    scene s;
    set_up(&s, 4);
    uint64_t wanted = numbers_of(&s);
    assert_int_equal(unlink(s.file), 0);
    both *all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(all != MAP_FAILED);
    pid_t first = open_apart(all, 0, &s);
    wait_until(atomic_load(&all->begun[0]));
    all->second = open_apart(all, 1, &s);
    assert_int_equal(waitpid(first, NULL, 0), first);
    assert_int_equal(waitpid(all->second, NULL, 0), all->second);
    assert_true(all->numbers[0] == wanted && all->numbers[1] == wanted);
    assert_true(atomic_load(&all->begun[0]) && !atomic_load(&all->begun[1]));
    assert_int_equal(munmap(all, sizeof *all), 0);
    tear_down(&s);
}

/* ---- where there is no cache ---- */

static void expect_in_memory(scene *s, uint64_t wanted)
{
    for (int i = 0; i < 2; i++)
        if (numbers_of(s) != wanted)
            fail_msg("other numbers in memory");
}

TEST(without_a_cache_folder_a_model_is_packed_in_memory)
{
    scene s;
    set_up(&s, 4);
    uint64_t wanted = numbers_of(&s);
    char *home = strdup(getenv("HOME") ? getenv("HOME") : "/");
    setenv("XDG_CACHE_HOME", "/dev/null/nowhere", 1);
    expect_in_memory(&s, wanted);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    expect_in_memory(&s, wanted);
    setenv("HOME", home, 1);
    free(home);
    tear_down(&s);
}

TEST(a_full_disk_leaves_nothing_half_written)
{
    scene s;
    char temporary[NAME + 8];
    set_up(&s, 8);
    uint64_t wanted = numbers_of(&s);
    assert_int_equal(unlink(s.file), 0);
    struct rlimit before, small = { 0 };
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){ 50000, before.rlim_max };
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    expect_in_memory(&s, wanted);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    snprintf(temporary, sizeof temporary, "%s.tmp", s.file);
    assert_int_equal(access(s.file, F_OK), -1);
    assert_int_equal(access(temporary, F_OK), -1);
    tear_down(&s);
}

TEST(packing_can_be_stopped)
{
    scene s;
    tinkc_error err = { 0 };
    char temporary[NAME + 8];
    set_up(&s, 4);
    assert_int_equal(unlink(s.file), 0);
    s.stop = true;
    assert_null(opened(&s, &err));
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    assert_int_equal(s.packed, 1);
    snprintf(temporary, sizeof temporary, "%s.tmp", s.file);
    assert_int_equal(access(temporary, F_OK), -1);
    tear_down(&s);
}

/* ---- the public call ---- */

TEST(the_cost_counts_every_byte_of_the_model)
{
    static const struct {
        int bits;
        double each;
    } rows[] = { { 4, 4.5 }, { 8, 8.5 } };
    for (size_t i = 0; i < 2; i++) {
        scene s;
        tinkc_error err = { 0 };
        tinkc_quantize_result r;
        set_up(&s, rows[i].bits);
        tke_model *plain = tke_model_open(s.folder, &err), *packed = opened(&s, &err);
        assert_true(
            tinkc_quantize(&(tinkc_quantize_options){ .model = s.folder, .bits = rows[i].bits }, NULL, NULL, &r, &err));
        assert_int_equal(r.bytes_before, plain->n_bytes);
        double layers = 0; /* numbers of BF16 that became fewer bits; the last group is the head's */
        for (size_t g = 0; g + 1 < plain->n_groups; g++)
            for (size_t w = 0; w < plain->groups[g]->n; w++)
                layers += (double)plain->groups[g]->w[w].in * (double)plain->groups[g]->w[w].out;
        assert_true((double)r.bytes == (double)r.bytes_before - layers * (2 - rows[i].each / 8));
        assert_int_equal(r.bytes, packed->n_bytes);
        assert_true(r.matrix_bits == rows[i].each);
        double all = (double)r.bytes * 8 / ((double)r.bytes_before / 2);
        assert_true(r.bits > all - 1e-9 && r.bits < all + 1e-9);
        tke_model_drop(plain);
        tke_model_drop(packed);
        tear_down(&s);
    }
}

TEST(what_cannot_be_packed_is_refused)
{
    scene s;
    char *odd = tiny_model_make(&(tiny_model){ .family = "qwen3",
                                               .layers = 1,
                                               .hidden = 48,
                                               .inner = 80,
                                               .heads = 4,
                                               .head_dim = 12,
                                               .dtype = "BF16",
                                               .tied = true });
    set_up(&s, 4);
    const struct {
        tinkc_quantize_options o;
        const char *why;
    } rows[] = {
        { { .model = s.folder, .bits = 5 }, "bits must be 4 or 8" },
        { { .model = s.folder }, "bits must be 4 or 8" },
        { { .bits = 4 }, "model is required" },
        { { .model = s.folder, .bits = 4, .reserved = { 1 } }, "reserved fields must be zero" },
        { { .model = "/nowhere", .bits = 4 }, "/nowhere: not a folder" },
        { { .model = odd, .bits = 4 }, "no matrix has rows of whole blocks of 64 numbers" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        if (tinkc_quantize(&rows[i].o, NULL, NULL, NULL, &err) || !strstr(err.message, rows[i].why))
            fail_msg("%s: %s", rows[i].why, err.message);
    }
    tiny_model_remove(odd);
    tear_down(&s);
}
