/* curl_floor.c - what a bare program costs that opens libcurl and makes one GET: the floor under
 * everything that speaks HTTP through it. Links nothing of ours; bench/client_cost.sh puts it beside us.
 *
 *     curl_floor URL
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum {
    OPT_URL = 10002,
    OPT_WRITEFUNCTION = 20011
}; /* of curl.h, which a bare program need not have */

static size_t swallow(char *data, size_t size, size_t n, void *user)
{
    (void)data, (void)user;
    return size * n;
}

/* Copied and not cast: C knows no way from a data pointer to a function. */
static bool find(void *lib, const char *name, void *function, size_t size)
{
    void *at = dlsym(lib, name);
    memcpy(function, &at, size);
    if (!at)
        fprintf(stderr, "%s\n", dlerror());
    return at != NULL;
}

int main(int argc, char **argv)
{
    void *lib = dlopen("libcurl.so.4", RTLD_NOW);
    if (argc != 2 || !lib) {
        fprintf(stderr, "%s\n", lib ? "usage: curl_floor URL" : dlerror());
        return 2;
    }
    void *(*init)(void);
    int (*setopt)(void *, int, ...);
    int (*perform)(void *);
    if (!find(lib, "curl_easy_init", &init, sizeof init) ||
        !find(lib, "curl_easy_setopt", &setopt, sizeof setopt) ||
        !find(lib, "curl_easy_perform", &perform, sizeof perform))
        return 2;
    void *easy = init();
    setopt(easy, OPT_URL, argv[1]);
    setopt(easy, OPT_WRITEFUNCTION, swallow);
    int failed = perform(easy);
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    double cpu = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
                 (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e3;
    printf("{\"sdk\":\"libcurl alone\",\"failed\":%d,\"cpu_ms\":%.2f,\"peak_mb\":%.1f}\n", failed,
           cpu, (double)u.ru_maxrss / 1024.0);
    return failed != 0;
}
