/* plugin.c - programs named tinkc-NAME on the PATH. Names that we have ourselves win. */
#include "cli/main/plugin.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/main/app.h"
#include "cli/main/config_file.h"
#include "cli/output/text.h"

static const char prefix[] = "tinkc-";

static bool is_ours(const char *word)
{
    return cli_is_noun(cli_real_name(word)) || cli_find(cli_real_name(word), NULL);
}

/* Calls fn with each folder of the PATH until it answers true. Only those with a whole path: empty
 * and relative ones mean the current folder, where anybody may have put a program. */
static bool each_folder(bool (*fn)(const char *folder, void *user), void *user)
{
    const char *path = getenv("PATH");
    bool done = false;
    for (const char *p = path ? path : ""; *p && !done;) {
        size_t n = strcspn(p, ":");
        char *folder = *p == '/' ? strndup(p, n) : NULL;
        done = folder && fn(folder, user);
        free(folder);
        p += n + (p[n] == ':');
    }
    return done;
}

static char *program_in(const char *folder, const char *name)
{
    char *file = cli_printf("%s/%s", folder, name);
    if (file && access(file, X_OK) == 0)
        return file;
    free(file);
    return NULL;
}

typedef struct search {
    const char *name;
    char *file; /* where it was found */
} search;

static bool find_program(const char *folder, void *user)
{
    search *s = user;
    s->file = program_in(folder, s->name);
    return s->file != NULL;
}

/* What the plugin gets: the profile and the address that our own commands would use. */
static void set_environment(const char *program)
{
    cli_app app = { .quiet = true };
    static const char *const chosen[][2] = { { "profile", "TINKC_PROFILE" },
                                             { "config-file", "TINKC_CONFIG_FILE" } };
    setenv("TINKC_BIN", program, 1);
    for (size_t i = 0; i < 2; i++) {
        const char *text = getenv(chosen[i][1]);
        if (text && *text)
            (void)cli_set_value(&app, chosen[i][0], text, CLI_FROM_ENVIRONMENT, "environment");
    }
    if (cli_config_load(&app) == 0) {
        const char *url = cli_config_get(&app, "base_url", NULL);
        setenv("TINKC_PROFILE", app.config->profile, 0);
        if (url)
            setenv("TINKER_BASE_URL", url, 0);
    }
    cli_config_free(app.config);
    cli_parse_free(&app);
}

void cli_try_plugin(char **argv)
{
    char *word = argv[1];
    if (!word || word[0] == '-' || strchr(word, '/') || is_ours(word))
        return;
    char *name = cli_printf("%s%s", prefix, word);
    search s = { name, NULL };
    if (name && each_folder(find_program, &s)) {
        set_environment(argv[0]);
        argv[1] = name;
        execv(s.file, argv + 1);
        argv[1] = word; /* it would not start: the parser says so, with the nearest name */
    }
    free(s.file);
    free(name);
}

static bool list_folder(const char *folder, void *user)
{
    tkc_tree *found = user;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        const char *name = e->d_name + sizeof prefix - 1;
        if (strncmp(e->d_name, prefix, sizeof prefix - 1) != 0 || !*name || is_ours(name))
            continue;
        char *file = program_in(folder, e->d_name);
        if (file)
            tkc_tree_set_bool(found, name, true);
        free(file);
    }
    if (d)
        closedir(d);
    return false;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void cli_list_plugins(void)
{
    tkc_arena arena = { 0 };
    tkc_tree *found = tkc_tree_object(&arena),
             *value; /* a name that is in two folders is there once */
    const char *name;
    size_t n = 0;
    each_folder(list_folder, found);
    const char **names = calloc(tkc_tree_members(found) + 1, sizeof *names);
    TKC_TREE_EACH (names ? found : NULL, name, value)
        names[n++] = name;
    if (n)
        qsort(names, n, sizeof *names, by_name);
    for (size_t i = 0; i < n; i++)
        printf("%s  %s\n", i ? "" : "\nFound on the PATH:\n", names[i]);
    free(names);
    tkc_arena_free(&arena);
}
