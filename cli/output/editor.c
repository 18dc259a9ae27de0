/* editor.c - starts the user's editor. While it runs, Ctrl-C is the editor's. */
#include "cli/output/editor.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/platform.h"

const char *cli_editor(void)
{
    const char *visual = getenv("VISUAL"), *editor = getenv("EDITOR");
    return visual && *visual ? visual : editor && *editor ? editor : "vi";
}

bool cli_edit_file(const char *path)
{
    struct sigaction ignore = { .sa_handler = SIG_IGN }, before;
    int status = 1;
    sigaction(SIGINT, &ignore, &before);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGINT, SIG_DFL);
        tkc_close_from(3); /* those of libraries need not be close-on-exec */
        execl("/bin/sh", "sh", "-c", "exec $0 \"$1\"", cli_editor(), path, (char *)NULL);
        _exit(127);
    }
    bool ended = child > 0 && waitpid(child, &status, 0) == child;
    sigaction(SIGINT, &before, NULL);
    return ended && status == 0;
}
