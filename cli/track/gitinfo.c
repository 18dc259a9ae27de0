/* gitinfo.c - asks git, as a program. Must not: change the repository, or run what its settings name.
 *
 * The settings of a repository (.git/config) and its attributes can name commands: filters, monitors,
 * external diffs, helpers of a fetch. A folder that was unpacked may bring them along. So the one
 * question that reads files of the working tree is asked with a git folder of our own: its settings are
 * empty, its objects and index are those of the repository. git then knows no filter's command, and no
 * remote to fetch from. The other questions run none of these commands.
 */
#include "cli/track/gitinfo.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/main/child.h"
#include "cli/main/files.h"
#include "cli/output/text.h"

enum { DIFF_MOST = 16 << 20, MOST_WORDS = 16 }; /* a longer diff is cut: it is for people to read */

/* Settings of the system and the user name commands too; nothing is fetched, nothing is locked. */
#define PLAIN                                                                                      \
    "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ALLOW_PROTOCOL=none",             \
        "GIT_OPTIONAL_LOCKS=0", "GIT_TERMINAL_PROMPT=0"

/* Nobody waits for long for what is only a note. */
static bool start_git(cli_child *c, const char *const *words, const char *const *more)
{
    const char *argv[MOST_WORDS] = { "timeout",    "10", "git",
                                     "--no-pager", "-c", "core.fsmonitor=false" };
    size_t n = 6;
    while (*words && n + 1 < MOST_WORDS)
        argv[n++] = *words++;
    cli_app none = { 0 };
    char **env = cli_child_env(&none, more);
    bool ok = env && cli_child_start(c, argv, env, CLI_CHILD_READ | CLI_CHILD_QUIET);
    free(env);
    return ok;
}

/* The first line of the answer; yours. NULL = it failed, or printed nothing. */
static char *ask(const char *const *words)
{
    /* A repository of another user is refused unless the user's own settings trust it: they count. */
    static const char *const more[] = { "GIT_ALLOW_PROTOCOL=none", "GIT_OPTIONAL_LOCKS=0", NULL };
    cli_child c;
    char *line = NULL;
    size_t cap = 0;
    if (!start_git(&c, words, more))
        return NULL;
    ssize_t n = getline(&line, &cap, c.pipe);
    if (cli_child_end(&c) != 0 || n <= 1) {
        free(line);
        return NULL;
    }
    line[strcspn(line, "\n")] = '\0';
    return line;
}

#define ASK(...) ask((const char *const[]){ "rev-parse", __VA_ARGS__, NULL })

char *cli_git_commit(void)
{
    return ASK("--verify", "HEAD");
}

/* ---- the diff ---- */

typedef struct repository {
    char *commit, *folder, *git, *common, *format; /* folder: of the working tree */
    char own[32];                                  /* a git folder without settings */
} repository;

/* Settings can place the working tree elsewhere, the home folder say: then it is left alone. */
static bool is_own_tree(const char *folder)
{
    char *here = getcwd(NULL, 0), *git = NULL;
    bool found = false;
    while (here && !found) {
        free(git);
        git = cli_printf("%s/.git", here);
        found = git && access(git, F_OK) == 0;
        char *slash = strrchr(here, '/');
        if (found || !slash || slash == here)
            break;
        *slash = '\0';
    }
    found = found && strcmp(here, folder) == 0;
    free(here);
    free(git);
    return found;
}

static bool put_file(const char *folder, const char *name, const char *text)
{
    char *path = cli_printf("%s/%s", folder, name);
    FILE *f = path ? fopen(path, "wxe") : NULL;
    bool ok = f && fputs(text, f) >= 0;
    if (f)
        ok = fclose(f) == 0 && ok;
    free(path);
    return ok;
}

static bool make_own(repository *r)
{
    char *refs = NULL, config[120];
    (void)snprintf(r->own, sizeof r->own, "/tmp/tinkc-git-XXXXXX");
    if (!mkdtemp(r->own))
        return r->own[0] = '\0', false;
    (void)snprintf(config, sizeof config,
                   "[core]\n\trepositoryformatversion = 1\n\tbare = false\n"
                   "[extensions]\n\tobjectFormat = %.20s\n",
                   r->format);
    refs = cli_printf("%s/refs", r->own);
    bool ok = refs && mkdir(refs, 0700) == 0 &&
              put_file(r->own, "HEAD", "ref: refs/heads/none\n") &&
              put_file(r->own, "config", config);
    free(refs);
    return ok;
}

static void remove_own(const repository *r)
{
    static const char *const parts[] = { "%s/HEAD", "%s/config", "%s/refs", "%s" };
    for (size_t i = 0; r->own[0] && i < sizeof parts / sizeof *parts; i++) {
        char *path = cli_printf(parts[i], r->own);
        if (path)
            (void)remove(path);
        free(path);
    }
}

static bool find_repository(repository *r)
{
    *r = (repository){ .commit = cli_git_commit() };
    if (r->commit && (r->folder = ASK("--show-toplevel")) && is_own_tree(r->folder) &&
        (r->git = ASK("--path-format=absolute", "--git-dir")) &&
        (r->common = ASK("--path-format=absolute", "--git-common-dir")) &&
        (r->format = ASK("--show-object-format")))
        return make_own(r);
    return false;
}

static void free_repository(repository *r)
{
    remove_own(r);
    free(r->commit);
    free(r->folder);
    free(r->git);
    free(r->common);
    free(r->format);
}

static bool start_diff(cli_child *c, const repository *r)
{
    const char *const words[] = { "-c",
                                  "diff.autoRefreshIndex=false",
                                  "diff",
                                  "--no-ext-diff",
                                  "--no-textconv",
                                  "--no-color",
                                  "--ignore-submodules=all",
                                  r->commit,
                                  NULL };
    char *own = cli_printf("GIT_DIR=%s", r->own), *tree = cli_printf("GIT_WORK_TREE=%s", r->folder);
    char *objects = cli_printf("GIT_OBJECT_DIRECTORY=%s/objects", r->common);
    char *index = cli_printf("GIT_INDEX_FILE=%s/index", r->git);
    bool ok = own && tree && objects && index;
    ok = ok && start_git(c, words, (const char *const[]){ own, tree, objects, index, PLAIN, NULL });
    free(own);
    free(tree);
    free(objects);
    free(index);
    return ok;
}

static void copy_diff(FILE *from, FILE *to)
{
    char piece[16384];
    size_t n, total = 0;
    while ((n = fread(piece, 1, sizeof piece, from)) > 0) {
        total += n;
        if (total <= DIFF_MOST)
            (void)fwrite(piece, 1, n, to);
    }
    if (total > DIFF_MOST)
        fputs("\n### cut here: the rest is left out\n", to);
}

bool cli_git_diff(FILE *to)
{
    repository r;
    cli_child diff;
    bool ok = find_repository(&r) && start_diff(&diff, &r);
    if (ok) {
        fprintf(to, "### repo: %s @ %s\n", r.folder, r.commit);
        copy_diff(diff.pipe, to);
        if (cli_child_end(&diff) != 0)
            fputs("### git could not show the local changes\n", to);
    }
    free_repository(&r);
    return ok;
}
