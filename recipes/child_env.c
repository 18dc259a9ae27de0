/* child_env.c - what a command that a recipe starts gets of this process.
 *
 * An allow-list: a new variable with a secret in it must not need a change here. What programs need to
 * start and to find their files is on it, nothing that can hold a credential (so no proxies either:
 * their addresses may have passwords). May touch: the environment, reading. Must not: start anything.
 */
#include "recipes/child_env.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/platform.h"

/* A name that ends with * stands for all that begin so. Documented in docs/protocol.md. */
static const char *const allowed[] = {
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "TMPDIR", "TZ", "TERM", "COLORTERM",
    "NO_COLOR", "LANG", "LANGUAGE", "LC_*", "XDG_*",
    /* to find and run programs */
    "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV",
    "NODE_PATH", "JAVA_HOME", "CUDA_*", "OMP_*", "MKL_*", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "ASAN_OPTIONS", "LSAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"
};

/* Whether `pattern` stands for the first n letters of an entry. */
static bool fits(const char *pattern, const char *entry, size_t n)
{
    size_t m = strlen(pattern);
    if (m && pattern[m - 1] == '*')
        return n >= m - 1 && memcmp(pattern, entry, m - 1) == 0;
    return n == m && memcmp(pattern, entry, n) == 0;
}

static bool is_allowed(const char *entry, size_t n)
{
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        if (fits(allowed[i], entry, n))
            return true;
    return false;
}

bool tinkc_recipe_command_sees(const char *name)
{
    return name && is_allowed(name, strlen(name));
}

static bool is_passed(const char *entry, char *const *pass, size_t n_pass)
{
    size_t n = strcspn(entry, "=");
    for (size_t i = 0; i < n_pass; i++)
        if (strlen(pass[i]) == n && memcmp(pass[i], entry, n) == 0)
            return true;
    return is_allowed(entry, n);
}

char **tkr_child_env(char *const *pass, size_t n_pass, size_t *size, tinkc_error *err)
{
    size_t all = 0, n = 0;
    char **environment = tkc_environment();
    while (environment && environment[all])
        all++;
    *size = (all + 1) * sizeof(char *);
    char **list = tkc_alloc(NULL, *size, err);
    for (size_t i = 0; list && i < all && environment[i]; i++)
        if (is_passed(environment[i], pass, n_pass))
            list[n++] = environment[i];
    if (list)
        list[n] = NULL;
    return list;
}
