/* test_memory_plan.c - how memory is divided, by hand, and what a process may take under the limits of
 * containers, read from folders that look like /proc and /sys. */
#include "base/file.h"
#include "base/platform/proc_memory.h"
#include "device/memory_plan.h"
#include "support/test_case.h"

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

static void plan_is(const tke_memory_need *in, tke_memory_plan want)
{
    tke_memory_plan got = tke_memory_plan_make(in);
    assert_int_equal(got.pool, want.pool);
    assert_int_equal(got.cache_most, want.cache_most);
    assert_int_equal(got.cache_need, want.cache_need);
    assert_int_equal(got.train_most, want.train_most);
    assert_int_equal(got.train_least, want.train_least);
}

/* Qwen3-0.6B on the CPU: a block of 16 tokens has 28 layers x 2 x 1024 numbers of 4 bytes x 16 =
 * 3,670,016 bytes; 40960 tokens are 2560 blocks, and one for copies. */
TEST(the_pool_is_what_weights_and_adapters_leave)
{
    tke_memory_need in = { .available = 20 * GIB,
                           .weights = 2 * GIB,
                           .adapters = 1 * GIB,
                           .block_bytes = 3670016,
                           .block_tokens = 16,
                           .context = 40960,
                           .max_seqs = 256 };
    plan_is(&in, (tke_memory_plan){ .pool = 17 * GIB,
                                    .cache_most = 17 * GIB,
                                    .cache_need = (size_t)2561 * 3670016,
                                    .train_most = 17 * GIB,
                                    .train_least = 17 * GIB / 2 });
    /* More cache than all sequences can use is not planned, and training has the rest for sure. */
    in.context = 32;
    in.max_seqs = 8;
    plan_is(&in, (tke_memory_plan){ .pool = 17 * GIB,
                                    .cache_most = (size_t)24 * 3670016,
                                    .cache_need = (size_t)3 * 3670016,
                                    .train_most = 17 * GIB,
                                    .train_least = 17 * GIB - (size_t)24 * 3670016 });
}

TEST(settings_take_their_part_out)
{
    tke_memory_need in = { .available = 16 * GIB,
                           .weights = 4 * GIB,
                           .block_bytes = MIB,
                           .block_tokens = 16,
                           .context = 16000,
                           .max_seqs = 256,
                           .kv_bytes = 3 * GIB };
    plan_is(&in, (tke_memory_plan){ .pool = 9 * GIB,
                                    .cache_most = 3 * GIB,
                                    .cache_need = 1001 * MIB,
                                    .train_most = 9 * GIB,
                                    .train_least = 9 * GIB });
    in.train_bytes = 5 * GIB;
    plan_is(&in, (tke_memory_plan){ .pool = 4 * GIB,
                                    .cache_most = 3 * GIB,
                                    .cache_need = 1001 * MIB,
                                    .train_most = 5 * GIB,
                                    .train_least = 5 * GIB });
    in.kv_bytes = 0;
    plan_is(&in, (tke_memory_plan){ .pool = 7 * GIB,
                                    .cache_most = 7 * GIB,
                                    .cache_need = 1001 * MIB,
                                    .train_most = 5 * GIB,
                                    .train_least = 5 * GIB });
}

/* Under a limit of addresses the two cannot share: the cache reserves its own for good. */
TEST(limits_of_addresses_are_divided)
{
    tke_memory_need in = { .available = 8 * GIB, .weights = 2 * GIB, .addresses_count = true };
    plan_is(&in,
            (tke_memory_plan){ .pool = 6 * GIB, .cache_most = 3 * GIB, .train_most = 3 * GIB, .train_least = 3 * GIB });
}

/* An eighth is left to work with, whatever the weights and settings take. */
TEST(the_pool_is_never_empty)
{
    tke_memory_need in = { .available = 8 * GIB, .weights = 60 * GIB };
    plan_is(&in, (tke_memory_plan){ .pool = GIB, .cache_most = GIB, .train_most = GIB, .train_least = GIB / 2 });
    in.weights = 0;
    in.kv_bytes = 9 * GIB;
    plan_is(&in, (tke_memory_plan){ .pool = GIB, .cache_most = 9 * GIB, .train_most = GIB, .train_least = GIB });
}

/* ---- the host ---- */

static char root[64];

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/tinkc-memory-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    tinkc_error err = { 0 };
    (void)state;
    return tkc_remove_tree(root, &err) ? 0 : -1;
}

static void put(const char *name, const char *text)
{
    tinkc_error err = { 0 };
    char path[300], folder[300];
    snprintf(path, sizeof path, "%s/%s", root, name);
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = '\0';
    assert_true(tkc_make_dirs(folder, &err));
    assert_true(tkc_write_file(path, text, strlen(text), 0600, &err));
}

static void host_is(uint64_t address_space, uint64_t total, uint64_t available, const char *by)
{
    tkc_host_memory m = tkc_host_memory_read(root, address_space);
    assert_int_equal(m.total, total);
    assert_int_equal(m.available, available);
    assert_string_equal(m.bounded, by);
}

#define MACHINE "MemTotal:  8388608 kB\nMemFree: 1048576 kB\nMemAvailable:    6291456 kB\n"

TEST_WITH(a_machine_without_limits, make_root, remove_root)
{
    host_is(UINT64_MAX, 0, 0, "machine"); /* nothing can be read */
    put("proc/meminfo", "MemTotal:  8388608 kB\nMemFree: 1048576 kB\n");
    host_is(UINT64_MAX, 8 * GIB, GIB, "machine");
    put("proc/meminfo", MACHINE);
    host_is(UINT64_MAX, 8 * GIB, 6 * GIB, "machine");
    put("proc/self/cgroup", "0::/\n");
    put("sys/fs/cgroup/memory.max", "max\n");
    host_is(UINT64_MAX, 8 * GIB, 6 * GIB, "machine");
}

/* Of a group and those above it the least counts; files that it holds could be read again. */
TEST_WITH(containers_of_version_2, make_root, remove_root)
{
    put("proc/meminfo", MACHINE);
    put("proc/self/cgroup", "1:name=systemd:/x\n0::/a/b\n");
    put("sys/fs/cgroup/a/b/memory.max", "4294967296\n");
    put("sys/fs/cgroup/a/b/memory.current", "2147483648\n");
    host_is(UINT64_MAX, 4 * GIB, 2 * GIB, "container");
    put("sys/fs/cgroup/a/b/memory.stat", "active_file 5\ninactive_file 1073741824\n");
    host_is(UINT64_MAX, 4 * GIB, 3 * GIB, "container");
    put("sys/fs/cgroup/a/memory.max", "3221225472\n");
    put("sys/fs/cgroup/a/memory.current", "2684354560\n");
    host_is(UINT64_MAX, 3 * GIB, GIB / 2, "container");
    put("sys/fs/cgroup/a/memory.current", "9999999999\n"); /* beyond its limit for a moment */
    host_is(UINT64_MAX, 3 * GIB, 0, "container");
}

/* Inside of a container the path is the host's and its folders are not there: the mount is. */
TEST_WITH(containers_of_version_1, make_root, remove_root)
{
    put("proc/meminfo", MACHINE);
    put("proc/self/cgroup", "5:cpu:/docker/abc\n4:memory:/docker/abc\n0::/\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* no limit */
    host_is(UINT64_MAX, 8 * GIB, 6 * GIB, "machine");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
    put("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 536870912\n");
    host_is(UINT64_MAX, 2 * GIB, 3 * GIB / 2, "container");
}

TEST_WITH(limits_of_the_process, make_root, remove_root)
{
    put("proc/meminfo", MACHINE);
    put("proc/self/status", "Name:\ttinkc\nVmSize:\t 1048576 kB\n");
    host_is(3 * GIB, 3 * GIB, 2 * GIB, "process");
    host_is(GIB / 2, GIB / 2, 0, "process");
    host_is(64 * GIB, 8 * GIB, 6 * GIB, "machine");
}
