/* logged_runs.c - see logged_runs.h. Touches runs.jsonl only. */
#include "cli/store/logged_runs.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/output/out.h"
#include "cli/output/text.h"

static const char *last_part(const char *folder)
{
    const char *slash = strrchr(folder, '/');
    return slash ? slash + 1 : folder;
}

bool cli_logged_runs_add(const char *store, const char *folder, const char *run_id)
{
    char *whole = realpath(folder, NULL), *path = cli_printf("%s/runs.jsonl", store);
    json_t *v = whole ? json_pack("{s:o,s:s}", "dir", cli_json_text(whole), "run", run_id) : NULL;
    char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    char *line = text ? cli_printf("%s\n", text) : NULL;
    int fd = path && line ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    bool ok = fd >= 0 && write(fd, line, strlen(line)) == (ssize_t)strlen(line);
    if (fd >= 0)
        close(fd);
    free(line);
    free(text);
    json_decref(v);
    free(path);
    free(whole);
    return ok;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool has_folder(const json_t *runs, const char *folder)
{
    size_t i;
    json_t *v;
    json_array_foreach(runs, i, v)
    {
        if (strcmp(json_string_value(json_object_get(v, "dir")), folder) == 0)
            return true;
    }
    return false;
}

/* A line of the file, unless its folder is gone or has been used by a newer run. */
static void take_line(const char *line, json_t *runs)
{
    json_t *v = json_loads(line, 0, NULL);
    const char *dir = json_string_value(json_object_get(v, "dir"));
    const char *run = json_string_value(json_object_get(v, "run"));
    if (dir && run && *dir == '/' && is_folder(dir) && !has_folder(runs, dir))
        json_array_append_new(runs, json_pack("{s:o,s:o,s:o}", "name", cli_json_text(last_part(dir)),
                                              "dir", cli_json_text(dir), "run", cli_json_text(run)));
    json_decref(v);
}

/* The file's end: a few thousand runs. Yours. */
static char *read_end(const char *store)
{
    enum { MOST = 1 << 20 };
    char *path = cli_printf("%s/runs.jsonl", store), *text = calloc(1, MOST + 1);
    int fd = path && text ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    struct stat st;
    off_t from = fd >= 0 && fstat(fd, &st) == 0 && st.st_size > MOST ? st.st_size - MOST : 0;
    if (fd < 0 || pread(fd, text, MOST, from) < 0)
        text = (free(text), NULL);
    if (fd >= 0)
        close(fd);
    free(path);
    return text;
}

json_t *cli_logged_runs(const char *store)
{
    enum { MOST = 1000 };
    json_t *runs = json_array();
    char *text = store ? read_end(store) : NULL;
    for (char *end = text ? text + strlen(text) : NULL;
         end && end > text && json_array_size(runs) < MOST;) {
        if (end[-1] == '\n')
            *--end = '\0';
        char *line = end;
        while (line > text && line[-1] != '\n')
            line--;
        take_line(line, runs);
        end = line;
        *end = '\0';
    }
    free(text);
    return runs;
}

static const char *find(const json_t *runs, const char *key, const char *text, const char *wanted)
{
    size_t i;
    json_t *v;
    json_array_foreach(runs, i, v)
    {
        if (strcmp(json_string_value(json_object_get(v, key)), text) == 0)
            return json_string_value(json_object_get(v, wanted));
    }
    return NULL;
}

char *cli_logged_run_folder(const char *store, const char *name)
{
    json_t *runs = cli_logged_runs(store);
    const char *dir = find(runs, "name", name, "dir");
    char *copy = dir ? strdup(dir) : NULL;
    json_decref(runs);
    return copy;
}

const char *cli_logged_run_name(const json_t *runs, const char *run_id)
{
    return find(runs, "run", run_id, "name");
}

const char *cli_logged_run_id(const json_t *runs, const char *name)
{
    return find(runs, "name", name, "run");
}
