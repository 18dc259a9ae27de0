/* platform.h - what systems do differently, behind one set of functions.
 *
 * The build takes one file of each column (TINKC_PLATFORM, CMakeLists.txt), so that nothing above asks
 * which system it is compiled for:
 *
 *     calls: platform_linux.c (epoll, eventfd, pipe2...)  or  platform_posix.c (poll, pipe, fcntl...)
 *     facts: platform_proc.c (Linux: /proc, glibc, musl)  or  platform_darwin.c (macOS)
 *
 * platform_posix.c sees only POSIX.1-2008 and runs on Linux as well, where the tests try it.
 * heap.h has a few more functions with a form for each system. Functions that fail set
 * errno. Uses: the C library. Must not: allocate but with the allocator given, log, lock.
 */
#ifndef TKC_BASE_PLATFORM_H
#define TKC_BASE_PLATFORM_H

#include <pthread.h>
#include <spawn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "tinkc/error.h"
#include "tinkc/types.h"

/* ==== calls: platform_linux.c or platform_posix.c ==== */

/* ---- waiting for descriptors ---- */

/* A descriptor that becomes readable when another thread wants it to. */
typedef struct tkc_wake {
    int fd;      /* to wait for */
    int ring_fd; /* what is written; may be the same */
} tkc_wake;
bool tkc_wake_open(tkc_wake *);
void tkc_wake_close(const tkc_wake *);
void tkc_wake_set(const tkc_wake *);   /* never waits; setting it twice is setting it once */
void tkc_wake_clear(const tkc_wake *); /* not readable afterwards */

enum { TKC_READABLE = 1, TKC_WRITABLE = 2, TKC_BROKEN = 4 };
typedef struct tkc_ready {
    uint64_t mark; /* as it was given with the descriptor */
    uint32_t what;
} tkc_ready;

/* A set of descriptors that one thread waits for, as long as they are ready (level-triggered). */
typedef struct tkc_watch tkc_watch;
tkc_watch *tkc_watch_new(const tinkc_allocator *, tinkc_error *err);
void tkc_watch_free(tkc_watch *); /* NULL allowed */
/* Waits for `what` of fd from now on; 0 = no more. One that was closed leaves the set by itself. */
bool tkc_watch_set(tkc_watch *, int fd, uint32_t what, uint64_t mark);
/* How many of `out` are filled; -1 = a signal came. timeout_ms may be TINKC_FOREVER. */
int tkc_watch_wait(tkc_watch *, tkc_ready *out, int max, int64_t timeout_ms);

/* ---- descriptors that programs started meanwhile do not inherit ---- */

bool tkc_pipe(int ends[2]);
bool tkc_socketpair(int ends[2]); /* Unix stream sockets */
int tkc_socket(int family, int type, int protocol);
int tkc_accept(int listener);
bool tkc_set_nonblocking(int fd);

/* A path for bind and connect to the socket `name` of a folder, however long the folder's path is, if
 * the system can; else ENAMETOOLONG. *fd is the folder, opened here unless it is already; it has to
 * stay open as long as the path is used. */
enum { TKC_SOCKET_PATH = 104 };
bool tkc_socket_path(const char *folder, const char *name, int *fd, char out[TKC_SOCKET_PATH]);

/* ---- programs that are started ---- */

/* They get no descriptor from 3 on: libraries open some that are not close-on-exec. The last action to
 * be added. 0, or an error number. */
int tkc_spawn_close_rest(posix_spawn_file_actions_t *);
void tkc_close_from(int first); /* between fork and exec */

/* ---- threads, the rest ---- */

/* A condition whose deadlines are times of tkc_monotonic_ns. 0, or an error number. */
int tkc_cond_make(pthread_cond_t *);
/* False when the deadline has passed. May wake spuriously. */
bool tkc_cond_wait_ns(pthread_cond_t *, pthread_mutex_t *, int64_t deadline_ns);
/* Joins a thread that ends within that time; one that does not is detached. */
void tkc_join_within(pthread_t, int seconds);

void tkc_wipe(void *secret, size_t len); /* which no compiler leaves out */
bool tkc_random_bytes(void *out, size_t len);
/* A text for an errno, without the system's language where that is possible. Valid until the thread
 * asks for the next. Never NULL. */
const char *tkc_errno_text(int number);

/* ---- pages of libraries ---- */

/* The libraries that are loaded at this moment. */
enum { TKC_DL_MAX_OBJECTS = 256 };
typedef struct tkc_dl_mark {
    uintptr_t at[TKC_DL_MAX_OBJECTS]; /* start address of each */
    size_t n;
} tkc_dl_mark;
void tkc_dl_mark_now(tkc_dl_mark *);

/* Releases the read-only pages of all libraries loaded since (NULL = all there are, and the program's).
 * Binding a library reads its symbol and relocation tables, which are not used again; pages that are
 * needed come back from the page cache. Where others are at work, older libraries are left alone: a
 * debugger or a hook may have changed their code. */
void tkc_dl_give_back(const tkc_dl_mark *since);

/* ==== facts: platform_proc.c or platform_darwin.c ==== */

enum { TKC_PATH = 4096 };
bool tkc_program_path(char out[TKC_PATH]);                    /* of this process's program */
bool tkc_library_path(const void *address, char out[TKC_PATH]); /* of the library or program it is in */
/* Opens a library by its Linux name, such as libz.so.1, under the name that the system has for it. NULL:
 * dlerror says why. */
void *tkc_library_open(const char *name);
char **tkc_environment(void); /* environ */
int tkc_open_again(int fd, int flags); /* the same pipe or device, with a mode of its own */

/* ---- processors, memory ---- */

int32_t tkc_cpu_count(void); /* processors that this process may use; at least 1 */

/* How much memory this process may still take: the machine's, or less where a container or a limit of
 * the process allows less. What cannot be found out bounds nothing; if nothing can, all is 0. */
typedef struct tkc_host_memory {
    uint64_t total;      /* of the machine, or of the limit that is below it */
    uint64_t available;  /* now: free, or held only for files that could be read again */
    const char *bounded; /* static: "machine", "container", "process": which gives the least */
} tkc_host_memory;
tkc_host_memory tkc_host_memory_now(void);
/* Of this process: pages in memory, and how many of them are files'. 0 = not known. */
void tkc_resident_memory(uint64_t *all, uint64_t *files);
/* Pages of our own mapping: a hint to use large ones; not in core dumps; contents given up (they read
 * as zero afterwards, and take no memory until then). */
enum { TKC_PAGES_LARGE, TKC_PAGES_NOT_DUMPED, TKC_PAGES_DROP };
void tkc_pages_advise(void *at, size_t len, int what);


/* ---- threads, files, users ---- */

bool tkc_stack_bounds(uintptr_t *low, uintptr_t *high); /* the calling thread's */
void tkc_name_thread(pthread_t, const char *name);      /* at most 15 bytes; for debuggers */
bool tkc_peer_user(int socket, uid_t *user);            /* who is at the other end of a Unix socket */
double tkc_parse_decimal(const char *text, char **end); /* strtod of the C locale; end may be NULL */

int tkc_sync_file(int fd); /* to the medium, not only to the drive's cache */
int tkc_sync_data(int fd); /* likewise, without what only describes the file */
/* Room for a new file of so many bytes: 0, or the errno of a disk that lacks it. Where room cannot be taken ahead, 0. */
int tkc_reserve_file(int fd, size_t bytes);
/* Exchanges two names in one step. */
bool tkc_swap_names(const char *one, const char *two);
void tkc_read_ahead(int fd, int64_t at, size_t len);
int tkc_in_memory(const char *path); /* a file system of memory: 1, 0, or -1 = not known */

#endif
