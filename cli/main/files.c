/* files.c - folders and files. Touches only the paths it is given. */
#include "cli/main/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/output/text.h"

static bool make(const char *path, mode_t mode)
{
    return mkdir(path, mode) == 0 || errno == EEXIST;
}

bool cli_make_parents(const char *path, mode_t mode)
{
    char *copy = strdup(path);
    bool ok = copy != NULL;
    for (char *p = copy && *copy ? copy + 1 : NULL; ok && p && *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        ok = make(copy, mode);
        *p = '/';
    }
    free(copy);
    return ok;
}

bool cli_make_folder(const char *path, mode_t mode)
{
    return cli_make_parents(path, mode) && make(path, mode);
}

/* ---- links ---- */

/* Whether a path is a link to something outside of root, or to nothing. */
static bool leads_out(const char *root, const char *path)
{
    char there[2];
    if (readlink(path, there, sizeof there) < 0)
        return false;
    char *real = realpath(path, NULL);
    size_t n = strlen(root);
    bool out = !real || strncmp(real, root, n) != 0 || real[n] != '/';
    free(real);
    return out;
}

/* Folders that runs make in theirs; in others (an environment of Python, say) nothing is written. */
static bool is_written_into(const char *name)
{
    return strncmp(name, "iteration_", 10) == 0 || strcmp(name, "tensorboard") == 0 ||
           strcmp(name, "wandb") == 0;
}

/* The first such link; yours. NULL = there is none. A link within root is not followed: what it leads to
 * is looked at where it is. */
static char *find_link_out(const char *root, const char *folder, int depth)
{
    enum { DEEPEST = 8 };
    DIR *d = depth < DEEPEST ? opendir(folder) : NULL;
    char *found = NULL;
    for (const struct dirent *e; d && !found && (e = readdir(d));) {
        struct stat st;
        bool dots = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
        char *path = dots || e->d_type == DT_REG ? NULL : cli_printf("%s/%s", folder, e->d_name);
        if (path && leads_out(root, path)) {
            found = path;
            break;
        }
        if (path && (depth || is_written_into(e->d_name)) && lstat(path, &st) == 0 &&
            S_ISDIR(st.st_mode))
            found = find_link_out(root, path, depth + 1);
        free(path);
    }
    if (d)
        closedir(d);
    return found;
}

int cli_check_links(const cli_app *app, const char *folder, const char *option)
{
    char hint[60], *root = realpath(folder, NULL);
    char *link = root ? find_link_out(root, folder, 0) : NULL;
    (void)snprintf(hint, sizeof hint, "remove it, or give another %s", option);
    int bad =
        link ? cli_fail(app, "conflict", hint, "%s is a link that leads out of the folder", link)
             : 0;
    free(link);
    free(root);
    return bad;
}

/* ---- whole files ---- */

/* Whether to write beside the target and rename; also sees through a link to the real file. */
static bool settle_target(cli_save *s, const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0) {
        s->target = realpath(path, NULL);
        return S_ISREG(st.st_mode);
    }
    s->target = strdup(path);
    return true;
}

void cli_save_begin(cli_save *s, const char *path, mode_t mode)
{
    *s = (cli_save){ 0 };
    if (strcmp(path, "-") == 0) {
        s->f = stdout;
        s->target = strdup("standard output");
        return;
    }
    bool whole = settle_target(s, path);
    if (whole && s->target)
        s->beside = cli_printf("%s.new", s->target);
    const char *name = whole ? s->beside : s->target;
    int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    int fd = name ? open(name, flags, mode) : -1;
    s->f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!s->f)
        s->fault = errno ? errno : ENOMEM;
    if (!s->f && fd >= 0)
        close(fd);
}

static void note_fault(cli_save *s, bool ok)
{
    if (!ok && !s->fault)
        s->fault = errno ? errno : EIO;
}

int cli_save_end(cli_save *s, const cli_app *app, bool keep)
{
    bool standard = s->f == stdout;
    if (s->f && keep) {
        errno = 0;
        note_fault(s, fflush(s->f) == 0 && !ferror(s->f));
        note_fault(s, !s->beside || tkc_sync_file(fileno(s->f)) == 0);
    }
    if (s->f && !standard)
        note_fault(s, fclose(s->f) == 0);
    if (s->f && s->beside) {
        if (keep && !s->fault)
            note_fault(s, rename(s->beside, s->target) == 0);
        if (!keep || s->fault)
            (void)unlink(s->beside);
    }
    int bad = 0;
    if (s->fault && (keep || !s->f))
        bad = cli_fail(app, "local_io", NULL, "%s: %s", s->target ? s->target : "file",
                       tkc_errno_text(s->fault));
    free(s->target);
    free(s->beside);
    *s = (cli_save){ 0 };
    return bad;
}

/* ---- downloads ---- */

void cli_place_begin(cli_place *p, const char *target, tinkc_download_options *o)
{
    *p = (cli_place){ .piped = strcmp(target, "-") == 0 };
    if (p->piped) {
        o->fd = STDOUT_FILENO;
        o->dir = o->name = NULL;
        o->flat = o->replace = false;
        return;
    }
    p->copy = strdup(target);
    char *slash = p->copy ? strrchr(p->copy, '/') : NULL;
    o->name = p->name = slash ? slash + 1 : p->copy;
    o->dir = p->dir = !slash ? NULL : slash == p->copy ? "/" : p->copy;
    if (slash)
        *slash = '\0';
}

static bool reader_has_gone(void)
{
    struct pollfd out = { .fd = STDOUT_FILENO, .events = POLLOUT };
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR);
}

int cli_place_fault(const cli_app *app, const cli_place *p, const tinkc_error *err)
{
    if (!p->piped || err->code != TINKC_E_FILE)
        return 0;
    if (reader_has_gone()) { /* leave as other programs do */
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    const char *why = strstr(err->message, ": ");
    return cli_fail(app, "local_io", NULL, "standard output%s", why ? why : "");
}

void cli_place_free(cli_place *p)
{
    free(p->copy);
    *p = (cli_place){ 0 };
}

int cli_check_secret_file(const cli_app *app, const char *path)
{
    struct stat st;
    if (strcmp(path, "-") == 0 || stat(path, &st) != 0 || !S_ISREG(st.st_mode) ||
        !(st.st_mode & (S_IRWXG | S_IRWXO)))
        return 0;
    return cli_fail(app, "usage", "chmod 600 it",
                    "%s: other users of this machine can read or change this secret", path);
}
