/* proc_memory.c - reads /proc/meminfo, the limits of control groups (v1 and v2) and RLIMIT_AS.
 *
 * A container sees the machine's /proc/meminfo, but its control group ends it at its own limit. The
 * limit that counts is the least of the group and all groups above it. Pages of files that a group
 * holds are given back before it ends anything, so they count as available.
 */
#include "base/platform/proc_memory.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/str.h"

enum { TEXT = 8192, PATH = 1024 };

/* A small file of /proc or /sys; "" if it cannot be read. */
static tinkc_str read_text(const char *root, const char *folder, const char *name, char text[TEXT])
{
    char path[3 * PATH];
    size_t n = 0;
    (void)snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    FILE *f = fopen(path, "re");
    if (f) {
        n = fread(text, 1, TEXT - 1, f);
        (void)fclose(f);
    }
    text[n] = '\0';
    return tkc_strn(text, n);
}

/* The number at the beginning of a text, before spaces or its end; *out stays if there is none. */
static bool first_number(const char *text, uint64_t *out)
{
    size_t n;
    text += strspn(text, " \t");
    n = strspn(text, "0123456789");
    return n > 0 && tkc_parse_u64(tkc_strn(text, n), out);
}

/* The number behind "name" at the beginning of a line. */
static bool named_number(const char *text, const char *name, uint64_t *out)
{
    size_t len = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, len) == 0)
            return first_number(line + len, out);
    }
    return false;
}

typedef struct group_files {
    const char *mount, *limit, *usage, *inactive;
} group_files;

static const group_files v1 = { "/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                "memory.usage_in_bytes", "total_inactive_file " };
static const group_files v2 = { "/sys/fs/cgroup", "memory.max", "memory.current",
                                "inactive_file " };

static void lower(tkc_host_memory *m, uint64_t total, uint64_t available, const char *by)
{
    if (total < m->total)
        m->total = total;
    if (available < m->available) {
        m->available = available;
        m->bounded = by;
    }
}

/* One group; "max" and numbers beyond the machine do not limit it. */
static void apply_group(tkc_host_memory *m, const char *root, const group_files *f,
                        const char *folder)
{
    char text[TEXT];
    uint64_t limit, usage = 0, inactive = 0;
    if (!first_number(read_text(root, folder, f->limit, text).data, &limit) || limit >= m->total)
        return;
    (void)first_number(read_text(root, folder, f->usage, text).data, &usage);
    (void)named_number(read_text(root, folder, "memory.stat", text).data, f->inactive, &inactive);
    usage -= inactive < usage ? inactive : usage;
    lower(m, limit, usage < limit ? limit - usage : 0, "container");
}

/* The group of this path and those above it, up to the mount. */
static void apply_groups(tkc_host_memory *m, const char *root, const group_files *f, tinkc_str path)
{
    char folder[2 * PATH];
    size_t mount = strlen(f->mount);
    if (path.len >= PATH)
        return;
    (void)snprintf(folder, sizeof folder, "%s%.*s", f->mount, (int)path.len, path.data);
    for (;;) {
        size_t n = strlen(folder);
        while (n > mount && folder[n - 1] == '/')
            folder[--n] = '\0';
        apply_group(m, root, f, folder);
        if (n <= mount)
            return;
        *strrchr(folder, '/') = '\0';
    }
}

/* Lines of /proc/self/cgroup: "4:memory:/path" (v1), "0::/path" (v2). */
static void apply_containers(tkc_host_memory *m, const char *root)
{
    char text[TEXT];
    tinkc_str rest = read_text(root, "/proc/self", "cgroup", text);
    while (rest.len) {
        const char *end = memchr(rest.data, '\n', rest.len);
        tinkc_str line = tkc_strn(rest.data, end ? (size_t)(end - rest.data) : rest.len);
        rest = tkc_strn(rest.data + line.len + (end != NULL), rest.len - line.len - (end != NULL));
        const char *kind = memchr(line.data, ':', line.len);
        size_t left = kind ? line.len - (size_t)(kind + 1 - line.data) : 0;
        const char *path = left ? memchr(kind + 1, ':', left) : NULL;
        if (!path)
            continue;
        tinkc_str name = tkc_strn(kind + 1, (size_t)(path - kind - 1));
        tinkc_str at = tkc_strn(path + 1, line.len - (size_t)(path + 1 - line.data));
        if (!name.len)
            apply_groups(m, root, &v2, at);
        else if (tkc_str_is(name, "memory"))
            apply_groups(m, root, &v1, at);
    }
}

/* What the process has mapped so far counts against its limit. */
static void apply_address_space(tkc_host_memory *m, const char *root, uint64_t limit)
{
    char text[TEXT];
    uint64_t kib = 0;
    if (limit == UINT64_MAX)
        return;
    (void)named_number(read_text(root, "/proc/self", "status", text).data, "VmSize:", &kib);
    uint64_t used = kib << 10;
    lower(m, limit, used < limit ? limit - used : 0, "process");
}

tkc_host_memory tkc_host_memory_read(const char *root, uint64_t address_space)
{
    char text[TEXT];
    tkc_host_memory m = { .bounded = "machine" };
    tinkc_str all = read_text(root, "/proc", "meminfo", text);
    if (!named_number(all.data, "MemTotal:", &m.total))
        return m;
    if (!named_number(all.data, "MemAvailable:", &m.available)) /* older systems do not say */
        (void)named_number(all.data, "MemFree:", &m.available);
    m.total <<= 10;
    m.available <<= 10;
    apply_containers(&m, root);
    apply_address_space(&m, root, address_space);
    return m;
}

/* Where /proc is not mounted, what the C library knows of the machine. */
static tkc_host_memory machine_alone(void)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    long all = sysconf(_SC_PHYS_PAGES), unused = sysconf(_SC_AVPHYS_PAGES);
    return (tkc_host_memory){ .total = all > 0 ? (uint64_t)all * page : 0,
                              .available = unused > 0 ? (uint64_t)unused * page : 0,
                              .bounded = "machine" };
}

tkc_host_memory tkc_host_memory_now(void)
{
    struct rlimit limit;
    bool bounded = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    tkc_host_memory m =
        tkc_host_memory_read("", bounded ? (uint64_t)limit.rlim_cur : UINT64_MAX);
    return m.available ? m : machine_alone();
}
