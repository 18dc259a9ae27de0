/* plugin.c - programs named tinkc-NAME on the PATH. Names that we have ourselves win. */
#include "plugin.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app.h"
#include "config_file.h"
#include "text.h"

static const char prefix[] = "tinkc-";

static bool is_ours(const char *word)
{
    return cli_is_noun(cli_real_name(word)) || cli_find(cli_real_name(word), NULL);
}

/* Calls fn with each folder of the PATH until it answers true. */
static bool each_folder(bool (*fn)(const char *folder, void *user), void *user)
{
    const char *path = getenv("PATH");
    bool done = false;
    for (const char *p = path ? path : ""; *p && !done;) {
        size_t n = strcspn(p, ":");
        char *folder = n ? strndup(p, n) : strdup(".");
        done = folder && fn(folder, user);
        free(folder);
        p += n + (p[n] == ':');
    }
    return done;
}

static bool has_program(const char *folder, void *name)
{
    char *file = cli_printf("%s/%s", folder, (const char *)name);
    bool found = file && access(file, X_OK) == 0;
    free(file);
    return found;
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
            (void)cli_set_value(&app, chosen[i][0], text, "environment");
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
    if (name && each_folder(has_program, name)) {
        set_environment(argv[0]);
        argv[1] = name;
        execvp(name, argv + 1);
        argv[1] = word; /* it would not start: the parser says so, with the nearest name */
    }
    free(name);
}

static bool list_folder(const char *folder, void *first)
{
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        const char *name = e->d_name + sizeof prefix - 1;
        if (strncmp(e->d_name, prefix, sizeof prefix - 1) != 0 || !*name || is_ours(name) ||
            !has_program(folder, e->d_name))
            continue;
        printf("%s  %s\n", *(bool *)first ? "\nFound on the PATH:\n" : "", name);
        *(bool *)first = false;
    }
    if (d)
        closedir(d);
    return false;
}

void cli_list_plugins(void)
{
    bool first = true;
    each_folder(list_folder, &first);
}
