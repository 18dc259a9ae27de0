/* test_platform.c - what every implementation of platform.h promises, whichever this build has. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/platform.h"
#include "base/processor.h"
#include "base/thread.h"
#include "support/check.h"
#include "support/cli/own_folder.h"
#include "support/patience.h"

static bool is_cloexec(int fd)
{
    return (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0;
}

static tkc_watch *new_watch(void)
{
    tinkc_error err = { 0 };
    tkc_watch *watch = tkc_watch_new(NULL, &err);
    assert_non_null(watch);
    return watch;
}

/* ---- waiting ---- */

TEST(a_wake_is_readable_until_it_is_cleared)
{
    tkc_wake wake;
    tkc_ready ready;
    tkc_watch *watch = new_watch();
    assert_true(tkc_wake_open(&wake));
    assert_true(is_cloexec(wake.fd) && is_cloexec(wake.ring_fd));
    assert_true(tkc_watch_set(watch, wake.fd, TKC_READABLE, 7));
    assert_int_equal(tkc_watch_wait(watch, &ready, 1, 0), 0);
    for (int i = 0; i < 100000; i++) /* more than a pipe holds */
        tkc_wake_set(&wake);
    assert_int_equal(tkc_watch_wait(watch, &ready, 1, TINKC_FOREVER), 1);
    assert_true(ready.mark == 7 && ready.what == TKC_READABLE);
    assert_int_equal(tkc_watch_wait(watch, &ready, 1, 0), 1); /* still */
    tkc_wake_clear(&wake);
    assert_int_equal(tkc_watch_wait(watch, &ready, 1, 0), 0);
    tkc_wake_clear(&wake); /* does not wait */
    tkc_watch_free(watch);
    tkc_wake_close(&wake);
}

static void *set_later(void *wake)
{
    for (int i = 0; i < 1000; i++)
        sched_yield();
    tkc_wake_set(wake);
    return NULL;
}

TEST(a_watch_without_a_limit_waits_for_what_comes)
{
    tkc_wake wake;
    tkc_ready ready;
    pthread_t thread;
    tkc_watch *watch = new_watch();
    assert_true(tkc_wake_open(&wake));
    assert_true(tkc_watch_set(watch, wake.fd, TKC_READABLE, 7));
    assert_int_equal(pthread_create(&thread, NULL, set_later, &wake), 0);
    assert_int_equal(tkc_watch_wait(watch, &ready, 1, TINKC_FOREVER), 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    tkc_watch_free(watch);
    tkc_wake_close(&wake);
}

TEST(a_watch_reports_what_was_asked_for_and_what_broke)
{
    int ends[2];
    tkc_ready ready = { 0 };
    tkc_watch *watch = new_watch();
    assert_true(tkc_socketpair(ends));
    assert_true(is_cloexec(ends[0]) && is_cloexec(ends[1]));
    assert_true(tkc_watch_set(watch, ends[0], TKC_READABLE, 1));
    assert_int_equal(tkc_watch_wait(watch, &ready, 1, 0), 0);
    assert_true(tkc_watch_set(watch, ends[0], TKC_READABLE | TKC_WRITABLE, UINT64_MAX));
    assert_int_equal(tkc_watch_wait(watch, &ready, 1, 0), 1);
    assert_true(ready.mark == UINT64_MAX && ready.what == TKC_WRITABLE);
    assert_int_equal(write(ends[1], "x", 1), 1);
    assert_int_equal(tkc_watch_wait(watch, &ready, 1, 0), 1);
    assert_int_equal(ready.what, TKC_READABLE | TKC_WRITABLE);
    close(ends[1]);
    assert_int_equal(tkc_watch_wait(watch, &ready, 1, 0), 1);
    assert_true(ready.what & TKC_BROKEN);
    assert_true(tkc_watch_set(watch, ends[0], 0, 0)); /* wants no more */
    assert_int_equal(tkc_watch_wait(watch, &ready, 1, 0), 0);
    close(ends[0]);
    tkc_watch_free(watch);
}

TEST(a_closed_descriptor_leaves_the_watch)
{
    int one[2], two[2];
    tkc_ready ready;
    tkc_watch *watch = new_watch();
    assert_true(tkc_pipe(one));
    assert_true(tkc_watch_set(watch, one[0], TKC_READABLE, 1));
    assert_int_equal(write(one[1], "x", 1), 1);
    close(one[0]);
    assert_int_equal(tkc_watch_wait(watch, &ready, 1, 0), 0);
    assert_true(tkc_pipe(two)); /* takes the number that was free */
    assert_int_equal(two[0], one[0]);
    assert_int_equal(write(two[1], "x", 1), 1);
    assert_int_equal(tkc_watch_wait(watch, &ready, 1, 0), 0);
    assert_true(tkc_watch_set(watch, two[0], TKC_READABLE, 2));
    assert_int_equal(tkc_watch_wait(watch, &ready, 1, 0), 1);
    assert_int_equal(ready.mark, 2);
    close(one[1]);
    close(two[0]);
    close(two[1]);
    tkc_watch_free(watch);
}

/* With room for fewer than are ready, each has its turn. */
TEST(nobody_in_a_watch_starves)
{
    enum { N = 9, ROOM = 2 };
    tkc_wake wakes[N];
    tkc_ready ready[ROOM];
    int met[N] = { 0 };
    tkc_watch *watch = new_watch();
    for (int i = 0; i < N; i++) {
        assert_true(tkc_wake_open(&wakes[i]));
        assert_true(tkc_watch_set(watch, wakes[i].fd, TKC_READABLE, (uint64_t)i));
        tkc_wake_set(&wakes[i]);
    }
    for (int round = 0; round < N; round++) {
        assert_int_equal(tkc_watch_wait(watch, ready, ROOM, 0), ROOM);
        for (int i = 0; i < ROOM; i++)
            met[ready[i].mark]++;
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(met[i], ROOM);
        tkc_wake_close(&wakes[i]);
    }
    tkc_watch_free(watch);
}

/* Longer than the portable form waits at a time. */
TEST(a_condition_waits_until_its_deadline)
{
    pthread_cond_t cond;
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    int64_t deadline_ns = tkc_deadline_ns(600);
    assert_int_equal(tkc_cond_make(&cond), 0);
    pthread_mutex_lock(&mutex);
    while (tkc_cond_wait_ns(&cond, &mutex, deadline_ns))
        ;
    assert_true(tkc_monotonic_ns() >= deadline_ns);
    assert_false(tkc_cond_wait_ns(&cond, &mutex, tkc_monotonic_ns())); /* it has passed */
    pthread_mutex_unlock(&mutex);
    pthread_cond_destroy(&cond);
}

static void *wait_for_byte(void *arg)
{
    char byte;
    (void)!read(*(int *)arg, &byte, 1);
    return NULL;
}

typedef struct slow {
    int from;
    bool over;
} slow;

static void *end_later(void *arg)
{
    slow *s = arg;
    wait_for_byte(&s->from);
    for (int i = 0; i < 100000; i++)
        sched_yield();
    s->over = true;
    return NULL;
}

TEST(a_thread_that_ends_within_the_time_has_ended)
{
    int ends[2];
    pthread_t thread;
    assert_true(tkc_pipe(ends));
    slow s = { .from = ends[0] };
    assert_int_equal(pthread_create(&thread, NULL, end_later, &s), 0);
    assert_int_equal(write(ends[1], "x", 1), 1);
    tkc_join_within(thread, PATIENCE_MS / 1000);
    assert_true(s.over);
    close(ends[0]);
    close(ends[1]);
}

TEST(a_thread_that_does_not_end_is_left_alone)
{
    static int ends[2]; /* it may read them after the test */
    pthread_t thread;
    assert_true(tkc_pipe(ends));
    assert_int_equal(pthread_create(&thread, NULL, wait_for_byte, &ends[0]), 0);
    tkc_join_within(thread, 0);
    assert_int_equal(write(ends[1], "x", 1), 1); /* it is there to read it */
    assert_int_equal(pthread_create(&thread, NULL, wait_for_byte, &ends[0]), 0);
    assert_int_equal(write(ends[1], "xx", 2), 2);
    tkc_join_within(thread, PATIENCE_MS / 1000);
    close(ends[1]);
}

/* ---- what a program that is started inherits ---- */

/* How many descriptors from 3 on a shell finds open, but the one of its own listing. */
static int inherited(bool closes)
{
    static const char *const text =
        "n=0; for f in /dev/fd/*; do case $f in */[012]) ;; *) [ -e $f ] && n=$((n + 1)) ;; esac; done; exit $n";
    char *argv[] = { (char *)"sh", (char *)"-c", (char *)(uintptr_t)text, NULL };
    posix_spawn_file_actions_t files;
    pid_t pid;
    int status = -1;
    assert_int_equal(posix_spawn_file_actions_init(&files), 0);
    if (closes)
        assert_int_equal(tkc_spawn_close_rest(&files), 0);
    assert_int_equal(posix_spawn(&pid, "/bin/sh", &files, NULL, argv, tkc_environment()), 0);
    posix_spawn_file_actions_destroy(&files);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* A connection to a socket of this folder, as the listener gets it. */
static int accepted(int *listener, int *client, int *folder)
{
    char path[TKC_SOCKET_PATH];
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    *listener = tkc_socket(AF_UNIX, SOCK_STREAM, 0);
    *client = tkc_socket(AF_UNIX, SOCK_STREAM, 0);
    assert_true(tkc_socket_path(".", "socket", folder, path));
    memcpy(at.sun_path, path, strlen(path) + 1);
    assert_int_equal(bind(*listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(*listener, 1), 0);
    assert_int_equal(connect(*client, (struct sockaddr *)&at, sizeof at), 0);
    return tkc_accept(*listener);
}

/* At every length of its folder's path: the whole path is given, or none. */
TEST(a_socket_lies_in_its_folder_or_has_no_path)
{
    for (size_t len = TKC_SOCKET_PATH - 8; len < TKC_SOCKET_PATH + 8; len++) {
        char folder[TKC_SOCKET_PATH + 8] = "", file[sizeof folder + 2], path[TKC_SOCKET_PATH];
        struct sockaddr_un at = { .sun_family = AF_UNIX };
        int fd = -1;
        memset(folder, 'f', len);
        assert_int_equal(mkdir(folder, 0700), 0);
        if (!tkc_socket_path(folder, "s", &fd, path)) {
            assert_int_equal(errno, ENAMETOOLONG);
            assert_true(len + strlen("/s") >= TKC_SOCKET_PATH);
            continue;
        }
        int listener = tkc_socket(AF_UNIX, SOCK_STREAM, 0);
        memcpy(at.sun_path, path, strlen(path) + 1);
        assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
        snprintf(file, sizeof file, "%s/s", folder);
        assert_int_equal(access(file, F_OK), 0);
        close(listener);
        close(fd);
    }
}

TEST(nothing_that_is_opened_here_is_inherited)
{
    int listener, client, folder = -1, before = inherited(false);
    tkc_watch *watch = new_watch();
    int fd = accepted(&listener, &client, &folder);
    assert_true(fd >= 0 && is_cloexec(fd));
    assert_int_equal(inherited(false), before);
    tkc_watch_free(watch);
    close(fd);
    close(listener);
    close(client);
    if (folder >= 0)
        close(folder);
}

TEST(a_program_inherits_what_is_not_closed)
{
    int plain[2], ours[2], before = inherited(false);
    assert_int_equal(pipe(plain), 0); /* as a library opens them */
    assert_true(tkc_pipe(ours));
    int fd = tkc_socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0 && is_cloexec(fd));
    assert_int_equal(inherited(false), before + 2);
    assert_true(inherited(true) <= before);
    assert_int_equal(inherited(true), 0);
    int all[] = { plain[0], plain[1], ours[0], ours[1], fd };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        close(all[i]);
}

/* In a process with no others, where they are 3 and 4. */
TEST(the_first_descriptors_are_not_inherited_either)
{
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        int plain[2];
        tkc_close_from(3);
        bool ok = pipe(plain) == 0 && plain[0] == 3 && plain[1] == 4;
        _exit(ok && inherited(false) == 2 && inherited(true) == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

TEST(nothing_is_open_from_a_number_on)
{
    int ends[2], status = -1;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        bool ok = dup2(ends[1], 3) == 3 && dup2(3, 4) == 4 && dup2(3, 40) == 40;
        tkc_close_from(4);
        _exit(ok && fcntl(3, F_GETFD) >= 0 && fcntl(4, F_GETFD) < 0 && fcntl(40, F_GETFD) < 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(ends[0]);
    close(ends[1]);
}

/* ---- memory, files, the process ---- */

TEST(pages_that_were_dropped_read_as_zero)
{
    size_t page = tkc_page_size();
    unsigned char *at = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    memset(at, 5, 2 * page);
    tkc_pages_advise(at + page, page, TKC_PAGES_DROP);
    assert_true(at[page - 1] == 5 && tkc_all_zero(at + page, page));
    at[page] = 1; /* and can be written */
    assert_int_equal(munmap(at, 2 * page), 0);
}

TEST(a_secret_is_wiped)
{
    char secret[] = "secret!";
    tkc_wipe(secret, 6);
    assert_memory_equal(secret, "\0\0\0\0\0\0!", sizeof secret);
}

TEST(random_bytes_fill_all_and_differ)
{
    unsigned char one[600] = { 0 }, two[600] = { 0 };
    assert_true(tkc_random_bytes(one, sizeof one) && tkc_random_bytes(two, sizeof two));
    assert_memory_not_equal(one, two, sizeof one);
    assert_false(tkc_all_zero(one + sizeof one - 32, 32));
    one[599] = 9;
    assert_true(tkc_random_bytes(one, 599) && one[599] == 9);
}

TEST(an_error_has_a_text)
{
    assert_string_equal(tkc_errno_text(ENOENT), "No such file or directory");
    assert_true(tkc_errno_text(123456)[0]); /* in the C library's words */
}

static void *ask_for_another(void *arg)
{
    (void)arg;
    assert_string_equal(tkc_errno_text(EACCES), "Permission denied");
    return NULL;
}

TEST(the_text_of_an_error_is_the_threads_own)
{
    pthread_t thread;
    const char *text = tkc_errno_text(ENOENT);
    assert_int_equal(pthread_create(&thread, NULL, ask_for_another, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(text, "No such file or directory");
}

TEST(two_names_are_exchanged)
{
    tinkc_error err = { 0 };
    assert_true(tkc_make_dirs("one", &err) && tkc_make_dirs("two/inner", &err));
    assert_true(tkc_swap_names("one", "two"));
    assert_true(tkc_is_dir("one/inner") && tkc_is_dir("two") && !tkc_is_dir("two/inner"));
    assert_false(tkc_swap_names("one", "missing"));
    assert_true(tkc_is_dir("one/inner"));
}

TEST(a_program_knows_where_it_is)
{
    char program[TKC_PATH], mine[TKC_PATH], library[TKC_PATH];
    assert_true(tkc_program_path(program));
    assert_true(program[0] == '/' && strstr(program, "platform"));
    assert_true(tkc_library_path((const void *)(uintptr_t)is_cloexec, mine));
    assert_string_equal(mine, program);
    assert_true(tkc_library_path((const void *)(uintptr_t)_assert_true, library)); /* of cmocka */
    assert_true(library[0] == '/' && strstr(library, "cmocka"));
    assert_false(tkc_library_path(&state, library)); /* the stack is nobody's */
}

/* In a process of its own, which gives up a superuser's rights: 0 could be anybody's. */
TEST(the_peer_of_a_socket_is_known)
{
    enum { NOBODY = 65534 };
    int ends[2], status = -1;
    uid_t user = (uid_t)-1;
    pid_t child = fork();
    if (child == 0) {
        bool ok = geteuid() != 0 || setuid(NOBODY) == 0;
        ok = ok && tkc_socketpair(ends) && tkc_peer_user(ends[0], &user);
        _exit(ok && user == geteuid() ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(tkc_socketpair(ends));
    assert_false(tkc_peer_user(-1, &user));
    close(ends[0]);
    close(ends[1]);
}

/* A limit of file sizes is refused like a full disk. Where room cannot be taken ahead, writing decides. */
TEST(room_for_a_file_is_taken_or_refused)
{
    struct rlimit before, small;
    struct stat st;
    int ends[2], fd = open("room", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && getrlimit(RLIMIT_FSIZE, &before) == 0);
    small = (struct rlimit){ 1 << 16, before.rlim_max };
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int fits = tkc_reserve_file(fd, 1 << 16), exceeds = tkc_reserve_file(fd, 1 << 20);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(fits, 0);
    assert_int_equal(exceeds, EFBIG);
    assert_true(fstat(fd, &st) == 0 && st.st_size == 1 << 16);
    assert_true(tkc_pipe(ends));
    assert_int_equal(tkc_reserve_file(ends[1], 1 << 16), 0);
    close(ends[0]);
    close(ends[1]);
    close(fd);
}

TEST(a_file_system_of_memory_is_told_apart)
{
    assert_int_equal(tkc_in_memory("/proc"), 0);
    assert_int_equal(tkc_in_memory("missing"), -1);
    if (tkc_is_dir("/dev/shm"))
        assert_int_equal(tkc_in_memory("/dev/shm"), 1);
}

TEST(memory_of_files_is_counted_apart)
{
    enum { SIZE = 32 << 20 };
    uint64_t all[2], files[2];
    tkc_resident_memory(&all[0], &files[0]);
    unsigned char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    memset(at, 5, SIZE);
    tkc_resident_memory(&all[1], &files[1]);
    assert_true(all[1] >= all[0] + SIZE / 2 && all[1] <= all[0] + (uint64_t)SIZE * 8); /* with shadow memory, perhaps */
    assert_true(files[1] > 0 && files[1] < files[0] + SIZE / 2);
    assert_int_equal(munmap(at, SIZE), 0);
}

TEST(a_decimal_ends_where_it_ends)
{
    char *end;
    const char *text = "2.5e1x";
    assert_true(tkc_parse_decimal(text, &end) == 25.0);
    assert_ptr_equal(end, text + 5);
    assert_true(tkc_parse_decimal("0,5", NULL) == 0.0);
}

TEST(the_machine_has_processors_memory_and_a_stack)
{
    tkc_host_memory m = tkc_host_memory_now();
    uint64_t all, files;
    uintptr_t low, high, here = (uintptr_t)&m;
    assert_true(tkc_cpu_count() >= 1);
    assert_true(m.available > 0 && m.available <= m.total && m.bounded);
    tkc_resident_memory(&all, &files);
    assert_true(all >= files && all < m.total);
    assert_true(tkc_stack_bounds(&low, &high) && low < here && here < high);
}

RUN_TESTS(enter_folder, leave_folder)

/* ---- the processor ---- */

TEST(vector_units_are_named_where_the_processor_has_them)
{
    static const struct {
        uint32_t bit;
        const char *name;
    } units[] = {
        { TKC_HAS_AVX2, " avx2" }, { TKC_HAS_AVX512, " avx512" }, { TKC_HAS_NEON, " neon" }, { TKC_HAS_BF16, " bf16" }
    };
    char text[64];
    tkc_vector_units(text, sizeof text);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        assert_int_equal(strstr(text, units[i].name) != NULL, (tkc_processor() & units[i].bit) != 0);
    assert_true(text[0] == ' ' && text[1]);
}
