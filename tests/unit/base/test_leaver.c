/* Threads that end by themselves are joined before the process takes its libraries apart. */
#include "support/check.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/leaver.h"
#include "base/thread.h"

static sem_t begun, at_exit;
static atomic_bool destroyed;
static pthread_key_t key;

/* As a library's destructor of thread-local data, of a thread that is slower than exit. */
static void destroy(void *arg)
{
    (void)arg;
    sem_post(&begun);
    while (sem_wait(&at_exit) != 0)
        ;
    destroyed = true;
}

static void exit_begins(void)
{
    sem_post(&at_exit);
}

/* Registered first, so it runs last, as the destructors of libraries do. */
static void exit_ends(void)
{
    _exit(destroyed ? 0 : 1);
}

static void *run(void *arg)
{
    (void)arg;
    pthread_setspecific(key, &key);
    return NULL;
}

/* The child's life: it exits while the thread is in its destructor. */
static void exit_beside_a_thread(void)
{
    pthread_t thread;
    tinkc_error err = { 0 };
    atexit(exit_ends);
    if (sem_init(&begun, 0, 0) || sem_init(&at_exit, 0, 0) || pthread_key_create(&key, destroy) ||
        !tkc_thread_start(&thread, run, NULL, "leaver", &err))
        _exit(2);
    tkc_leaver *leaver = tkc_leaver_new(thread);
    if (!leaver)
        _exit(3);
    tkc_leaver_expect(leaver);
    atexit(exit_begins);
    while (sem_wait(&begun) != 0)
        ;
    exit(4);
}

static void exit_waits_for_them(void **state)
{
    int status;
    (void)state;
    pid_t child = fork();
    if (child == 0)
        exit_beside_a_thread();
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exit_waits_for_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
