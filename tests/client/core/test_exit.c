/* test_exit.c - programs that exit right after they have freed a client whose I/O thread still runs.
 *
 * Each test starts this program again with the name of a scene. The scene's transport holds the I/O thread back until
 * the exit handlers run. The handler that was registered first, and so runs last, stands for those of libraries: when
 * it runs, the I/O thread and its thread-local data must be gone.
 */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/client/api_support.h"
#include "tinkc/sys/transport.h"

extern char **environ;

/* ---- the scene ---- */

static const char *scene = "";
static pid_t owner;
static sem_t opened, sending, cancelling, go;
static tinkc_client *client;
static tinkc_future *future;
static pthread_key_t library_data;
static atomic_bool has_data, data_freed, released;

static bool is(const char *name)
{
    return strcmp(scene, name) == 0;
}

static void wait_for(sem_t *sem)
{
    while (sem_wait(sem) != 0 && errno == EINTR)
        ;
}

/* Gives a process that does not wait for the thread time to end without it. */
static void linger(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = 20 * 1000 * 1000 }, NULL);
}

static void free_data(void *data)
{
    (void)data;
    linger();
    atomic_store(&data_freed, true);
}

static void free_both(void)
{
    if (!is("kept"))
        tinkc_future_free(future);
    tinkc_client_free(client);
}

static void hold_back(void *self, const tinkc_request *request, tinkc_reply *reply)
{
    (void)self, (void)request, (void)reply;
    if (atomic_exchange(&has_data, true))
        return;
    (void)pthread_setspecific(library_data, &library_data);
    wait_for(&opened);
    if (!is("late"))
        free_both(); /* here: elsewhere it waits for this thread. The operation has the last reference */
    sem_post(&sending);
    wait_for(&go);
}

static void end_reply(void *self, tinkc_reply *reply)
{
    (void)self;
    if (is("ending")) {
        sem_post(&cancelling);
        wait_for(&go);
    }
    linger();
    (reply->fail)(reply, TINKC_E_CONNECTION, "no longer wanted");
}

static void release(void *self)
{
    (void)self;
    atomic_store(&released, true);
}

static const tinkc_transport transport = { .abi = TINKC_TRANSPORT_ABI,
                                           .flags = TINKC_TRANSPORT_LOCAL,
                                           .release = release,
                                           .send = hold_back,
                                           .cancel = end_reply };

/* Registered last, so the first to run. */
static void exit_begins(void)
{
    if (getpid() == owner && !is("late"))
        sem_post(&go);
}

/* Registered first, so the last to run. */
static void libraries_end(void)
{
    if (getpid() != owner)
        return;
    if (is("late")) { /* after the handlers of ours */
        sem_post(&go);
        free_both();
    }
    if (!atomic_load(&data_freed) || atomic_load(&released) == is("kept")) {
        (void)fprintf(stderr, "%s: the I/O thread still runs\n", scene);
        _exit(3);
    }
}

static int child_exits(void)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        alarm(2 * PATIENCE_MS / 1000); /* what hangs ends badly */
        exit(0);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 4;
}

static int play(void)
{
    static const tinkc_sampler_options nano = { .base_model = "mock/nano" };
    tinkc_error err = { 0 };
    owner = getpid();
    alarm(2 * PATIENCE_MS / 1000); /* what hangs ends badly */
    (void)atexit(libraries_end);
    (void)pthread_key_create(&library_data, free_data);
    (void)sem_init(&opened, 0, 0);
    (void)sem_init(&sending, 0, 0);
    (void)sem_init(&cancelling, 0, 0);
    (void)sem_init(&go, 0, 0);
    client = tinkc_client_new(&(tinkc_client_options){ .transport = &transport }, &err);
    future = client ? tinkc_sampler_open(client, &nano, &err) : NULL;
    if (!future) {
        (void)fprintf(stderr, "%s\n", err.message);
        return 2;
    }
    sem_post(&opened);
    wait_for(&sending);
    if (is("ending")) {
        sem_post(&go);
        wait_for(&cancelling); /* the thread has dropped it */
    }
    int bad = is("fork") ? child_exits() : 0;
    (void)atexit(exit_begins);
    return bad;
}

/* ---- the tests ---- */

static void expect_good(const char *name)
{
    char *const arguments[] = { "test", (char *)name, NULL };
    pid_t pid;
    int status;
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, arguments, environ), 0);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

TEST(an_operation_still_holds_the_client)
{
    expect_good("held");
}

TEST(a_future_that_is_never_freed)
{
    expect_good("kept");
}

TEST(the_thread_has_dropped_the_last_reference)
{
    expect_good("ending");
}

TEST(freed_by_a_later_exit_handler)
{
    expect_good("late");
}

TEST(a_forked_child_exits_without_waiting)
{
    expect_good("fork");
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        scene = argv[1];
        return play();
    }
    return test_cases_run(NULL, NULL);
}
