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
    tkc_arena arena = { 0 };
    tkc_tree *v = whole ? tkc_tree_pack(&arena, "{s:o,s:s}", "dir", cli_json_text(&arena, whole),
                                        "run", run_id)
                        : NULL;
    const char *text = tkc_tree_print(&arena, v, TKC_TREE_COMPACT);
    char *line = text ? cli_printf("%s\n", text) : NULL;
    int fd = path && line ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    bool ok = fd >= 0 && write(fd, line, strlen(line)) == (ssize_t)strlen(line);
    if (fd >= 0)
        close(fd);
    free(line);
    tkc_arena_free(&arena);
    free(path);
    free(whole);
    return ok;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool has_folder(const tkc_tree *runs, const char *folder)
{
    for (size_t i = 0; i < tkc_tree_length(runs); i++)
        if (strcmp(tkc_tree_get_text(tkc_tree_at(runs, i), "dir"), folder) == 0)
            return true;
    return false;
}

/* A line of the file, unless its folder is gone or has been used by a newer run. */
static void take_line(tkc_arena *arena, const char *line, tkc_tree *runs)
{
    tkc_tree *v = tkc_tree_read(arena, tkc_str(line), 0);
    const char *dir = tkc_tree_get_text(v, "dir");
    const char *run = tkc_tree_get_text(v, "run");
    if (dir && run && *dir == '/' && is_folder(dir) && !has_folder(runs, dir))
        tkc_tree_add(runs, tkc_tree_pack(
                               arena, "{s:o,s:o,s:o}", "name", cli_json_text(arena, last_part(dir)),
                               "dir", cli_json_text(arena, dir), "run", cli_json_text(arena, run)));
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

tkc_tree *cli_logged_runs(tkc_arena *arena, const char *store)
{
    enum { MOST = 1000 };
    tkc_tree *runs = tkc_tree_array(arena);
    char *text = store ? read_end(store) : NULL;
    for (char *end = text ? text + strlen(text) : NULL;
         end && end > text && tkc_tree_length(runs) < MOST;) {
        if (end[-1] == '\n')
            *--end = '\0';
        char *line = end;
        while (line > text && line[-1] != '\n')
            line--;
        take_line(arena, line, runs);
        end = line;
        *end = '\0';
    }
    free(text);
    return runs;
}

static const char *find(const tkc_tree *runs, const char *key, const char *text, const char *wanted)
{
    for (size_t i = 0; i < tkc_tree_length(runs); i++) {
        const tkc_tree *v = tkc_tree_at(runs, i);
        if (strcmp(tkc_tree_get_text(v, key), text) == 0)
            return tkc_tree_get_text(v, wanted);
    }
    return NULL;
}

char *cli_logged_run_folder(const char *store, const char *name)
{
    tkc_arena arena = { 0 };
    const tkc_tree *runs = cli_logged_runs(&arena, store);
    const char *dir = find(runs, "name", name, "dir");
    char *copy = dir ? strdup(dir) : NULL;
    tkc_arena_free(&arena);
    return copy;
}

const char *cli_logged_run_name(const tkc_tree *runs, const char *run_id)
{
    return find(runs, "run", run_id, "name");
}

const char *cli_logged_run_id(const tkc_tree *runs, const char *name)
{
    return find(runs, "name", name, "run");
}
