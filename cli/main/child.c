/* child.c - starting a program with little of ours. May touch: the processes it starts. */
#include "cli/main/child.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tinkc/recipes.h>
#include <unistd.h>

#include "base/platform.h"

static bool is_named(const cli_app *app, const char *name)
{
    const char *named;
    for (size_t i = 0; (named = cli_text_at(app, "pass-env", i)); i++)
        if (strcmp(named, name) == 0)
            return true;
    return false;
}

static bool is_seen(const cli_app *app, const char *entry)
{
    char name[256];
    size_t n = strcspn(entry, "=");
    if (n >= sizeof name)
        return false;
    memcpy(name, entry, n);
    name[n] = '\0';
    return tinkc_recipe_command_sees(name) || is_named(app, name);
}

char **cli_child_env(const cli_app *app, const char *const *more)
{
    size_t all = 0, n = 0;
    char **environment = tkc_environment();
    while (environment && environment[all])
        all++;
    for (size_t i = 0; more && more[i]; i++)
        all++;
    char **list = calloc(all + 1, sizeof *list);
    for (char **e = environment; list && e && *e; e++)
        if (is_seen(app, *e))
            list[n++] = *e;
    for (; list && more && *more; more++)
        list[n++] = (char *)(uintptr_t)*more;
    return list;
}

/* The streams of the child: `end` is its end of the pipe. 0, or an error number. */
static int set_streams(posix_spawn_file_actions_t *files, int end, unsigned how)
{
    int bad = posix_spawn_file_actions_adddup2(files, end, how & CLI_CHILD_WRITE ? 0 : 1);
    if (!bad && how & CLI_CHILD_QUIET)
        bad = posix_spawn_file_actions_addopen(files, 2, "/dev/null", O_WRONLY, 0);
    if (!bad && !(how & CLI_CHILD_WRITE))
        bad = posix_spawn_file_actions_addopen(files, 0, "/dev/null", O_RDONLY, 0);
    return bad ? bad : tkc_spawn_close_rest(files);
}

bool cli_child_start(cli_child *c, const char *const *argv, char *const *env, unsigned how)
{
    int ends[2], theirs = how & CLI_CHILD_WRITE ? 0 : 1;
    posix_spawn_file_actions_t files;
    *c = (cli_child){ 0 };
    if (!tkc_pipe(ends))
        return false;
    int bad = posix_spawn_file_actions_init(&files);
    if (!bad) {
        bad = set_streams(&files, ends[theirs], how);
        bad =
            bad ? bad
                : posix_spawnp(&c->pid, argv[0], &files, NULL, (char *const *)(uintptr_t)argv, env);
        posix_spawn_file_actions_destroy(&files);
    }
    close(ends[theirs]);
    c->pipe = bad ? NULL : fdopen(ends[!theirs], theirs ? "re" : "we");
    if (c->pipe)
        return true;
    bad = bad ? bad : errno;
    close(ends[!theirs]);
    if (c->pid > 0)
        (void)waitpid(c->pid, NULL, 0);
    *c = (cli_child){ 0 };
    errno = bad;
    return false;
}

int cli_child_end(cli_child *c)
{
    int status = -1;
    if (!c->pipe)
        return -1;
    fclose(c->pipe);
    while (waitpid(c->pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    *c = (cli_child){ 0 };
    return status;
}
