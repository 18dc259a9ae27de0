/* files.c - folders and files. Touches nothing but the paths it is given. */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text.h"

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
        note_fault(s, !s->beside || fsync(fileno(s->f)) == 0);
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
                       strerrordesc_np(s->fault));
    free(s->target);
    free(s->beside);
    *s = (cli_save){ 0 };
    return bad;
}

/* ---- downloads ---- */

/* Runs on the download's thread. */
static bool write_stdout(void *user, const void *data, size_t len)
{
    cli_place *p = user;
    const char *from = data;
    while (len) {
        ssize_t n = write(STDOUT_FILENO, from, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            p->fault = errno;
            return false;
        }
        from += n;
        len -= (size_t)n;
    }
    return true;
}

/* Runs on the client's thread. What fails here fails again in write_stdout, which then says so. */
static size_t write_what_fits(void *user, const void *data, size_t len)
{
    ssize_t n = write(((cli_place *)user)->ready_fd, data, len);
    return n > 0 ? (size_t)n : 0;
}

/* A pipe or a device can be asked to take what fits. Not through stdout itself, which others may
 * share: a second opening has its own mode. Files wait for the disk, whatever is asked. */
static int open_ready_stdout(void)
{
    struct stat st;
    int mode = fcntl(STDOUT_FILENO, F_GETFL);
    if (mode < 0 || (mode & O_ACCMODE) == O_RDONLY || fstat(STDOUT_FILENO, &st) != 0 ||
        !(S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode)))
        return -1;
    return open("/proc/self/fd/1", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

void cli_place_begin(cli_place *p, const char *target, tinkc_download_options *o)
{
    *p = (cli_place){ .piped = strcmp(target, "-") == 0, .ready_fd = -1 };
    if (p->piped) {
        p->ready_fd = open_ready_stdout();
        o->try_write = p->ready_fd >= 0 ? write_what_fits : NULL;
        o->write = write_stdout;
        o->write_user = p;
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

int cli_place_fault(const cli_app *app, const cli_place *p)
{
    if (p->fault == EPIPE) { /* its reader has gone: leave as other programs do */
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    return p->fault
               ? cli_fail(app, "local_io", NULL, "standard output: %s", strerrordesc_np(p->fault))
               : 0;
}

void cli_place_free(cli_place *p)
{
    if (p->ready_fd >= 0)
        close(p->ready_fd);
    free(p->copy);
    *p = (cli_place){ .ready_fd = -1 };
}
