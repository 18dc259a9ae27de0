/* test_failpoints.c - an end, and an error, at each failpoint of service/failpoint.h.
 *
 * This program is linked with files of the service that have failpoints. For each of them, and for each
 * time that the script of support/service/store_script.h passes it (a few of them in the normal run, all with
 * TINKC_FAILPOINTS=all), a child plays the script and is killed there; then the script says what must
 * hold. For those that may fail, the step fails instead: the request says so, training continues, and
 * the store is whole.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "service/store/failpoint.h"
#include "support/service/store_script.h"

static const struct {
    const char *name;
    bool may_fail;
    const char *text;
} points[] = {
#define ROW(name, may_fail, text) { name, may_fail, text },
    TKE_FAILPOINTS(ROW)
#undef ROW
};
enum { N_POINTS = sizeof points / sizeof *points };

/* What the child tells: how many actions were answered, and under which names. */
typedef struct progress {
    int n;
    char session[80], model[120], second[120], sampler[120];
} progress;

static int to_parent = -1;

static void put(char *out, size_t size, const char *text)
{
    snprintf(out, size, "%s", text ? text : "");
}

static void tell(int n)
{
    progress p = { .n = n };
    put(p.session, sizeof p.session, session);
    put(p.model, sizeof p.model, model);
    put(p.second, sizeof p.second, second);
    put(p.sampler, sizeof p.sampler, sampler);
    if (write(to_parent, &p, sizeof p) != (ssize_t)sizeof p)
        _exit(4);
}

/* The child: a program of its own, because sanitizers want no threads after fork. */
static int play_alone(char **args)
{
    int done;
    durability = (int32_t)strtol(args[1], NULL, 10);
    model_folder = args[2];
    to_parent = (int)strtol(args[3], NULL, 10);
    return play(args[0], tell, &done) ? 0 : 3;
}

/* Plays the script in a child that is killed at the point. False: it did not come that far. */
static bool crash_at(const char *store, const char *point, int times, progress *last)
{
    int ends[2], status;
    char how[100], level[12], fd[12];
    *last = (progress){ 0 };
    assert_int_equal(pipe(ends), 0);
    snprintf(how, sizeof how, "%s@%d=crash", point, times);
    snprintf(level, sizeof level, "%d", (int)durability);
    snprintf(fd, sizeof fd, "%d", ends[1]);
    setenv("TINKC_FAILPOINT", how, 1);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "test_failpoints", store, level, model_folder, fd, (char *)NULL);
        _exit(5);
    }
    unsetenv("TINKC_FAILPOINT");
    close(ends[1]);
    for (progress p; read(ends[0], &p, sizeof p) == (ssize_t)sizeof p;)
        *last = p;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return true;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("%s: the child ended with status %d after action %d", how, status, last->n - 1);
    return false;
}

static bool is_whole_run(void)
{
    const char *how = getenv("TINKC_FAILPOINTS");
    return how && strcmp(how, "all") == 0;
}

static int next_time(int times)
{
    return is_whole_run() ? times + 1 : times * 3;
}

static size_t crash_everywhere(int point)
{
    size_t n = 0;
    progress p;
    for (int times = 1;; times = next_time(times)) {
        char *store = tiny_folder();
        bool came = crash_at(store, points[point].name, times, &p);
        if (came) {
            session = p.session, model = p.model, second = p.second, sampler = p.sampler;
            snprintf(where, sizeof where, "%s@%d, after action %d", points[point].name, times, p.n - 1);
            check_state(store, p.n);
            n++;
        }
        tiny_model_remove(store);
        if (!came)
            return n;
    }
}

TEST(an_end_at_each)
{
    static const int32_t levels[] = { TINKC_DURABILITY_JOURNAL, TINKC_DURABILITY_SNAPSHOT };
    size_t n_ends = 0;
    n_violations = 0;
    for (int i = 0; i < N_POINTS; i++) {
        size_t n = 0;
        for (size_t k = 0; k < 2; k++) {
            durability = levels[k];
            n += crash_everywhere(i);
        }
        if (!n)
            fail_msg("%s: nothing comes there", points[i].name);
        n_ends += n;
    }
    printf("failpoints: %d, ends %zu, violations %zu\n", (int)N_POINTS, n_ends, n_violations);
    assert_int_equal(n_violations, 0);
}

/* ---- errors ---- */

static void ignore(int n)
{
    (void)n;
}

/* The number that the run waits for. */
static int next_seq(const tinkc_transport *t)
{
    assert_true(call(t, "GET", "/status", ""));
    const char *at = strstr(said, "\"next_seq_id\":");
    return at ? (int)strtol(at + strlen("\"next_seq_id\":"), NULL, 10) : -1;
}

/* After an error: what was saved is there, training continues, a save works. */
static void goes_on(const char *store, int done)
{
    tinkc_engine *engine = world_open(store, durability, settings);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    if (!answered(MODEL, done)) {
        assert_true(act(engine, &(action){ .kind = SESSION }));
        assert_true(act(engine, &(action){ .kind = MODEL }));
    }
    int seq = next_seq(t);
    must(act(engine, &(action){ .kind = PASS, .seq = seq }), "no pass after an error");
    must(act(engine, &(action){ .kind = STEP, .seq = seq + 1 }), "no step after an error");
    must(act(engine, &(action){ .kind = SAVE, .seq = seq + 2 }), "no save after an error");
    tinkc_engine_free(engine);
}

TEST(an_error_at_each)
{
    tinkc_error err = { 0 };
    char how[100], after[] = "after an error";
    size_t n_errors = 0;
    int done;
    n_violations = 0;
    durability = TINKC_DURABILITY_JOURNAL;
    for (int i = 0; i < N_POINTS; i++) {
        if (!points[i].may_fail)
            continue;
        /* Past the first transactions: an engine that cannot write at all does not start. */
        snprintf(how, sizeof how, "%s@%d=error", points[i].name, i < 3 ? 9 : 2);
        snprintf(where, sizeof where, "%s", how);
        char *store = tiny_folder();
        setenv("TINKC_FAILPOINT", how, 1);
        (void)play(store, ignore, &done);
        unsetenv("TINKC_FAILPOINT");
        goes_on(store, done);
        must(tinkc_store_check(store, NULL, on_finding, after, &err), "the store is damaged");
        tiny_model_remove(store);
        n_errors++;
    }
    printf("failpoints: errors %zu, violations %zu\n", n_errors, n_violations);
    assert_int_equal(n_violations, 0);
}

int main(int argc, char **argv)
{
    if (argc == 5)
        return play_alone(argv + 1);
    return test_cases_run(prepare, teardown);
}
