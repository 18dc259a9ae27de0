/* test_git_notes.c - what a run notes about the repository it starts in, and that nothing which the
 * repository brings along is run for it. */
#include <unistd.h>

#include "cli/track/gitinfo.h"
#include "support/cli/own_folder.h"
#include "support/test_case.h"

#define GIT "git -c user.name=t -c user.email=t@t -c init.defaultBranch=main -c commit.gpgsign=false "

static void sh(const char *command)
{
    if (system(command) != 0)
        fail_msg("%s", command);
}

static int make_repository(void **state)
{
    if (enter_folder(state))
        return -1;
    sh("mkdir work && cd work && " GIT "init -q && echo before > file && echo same > other && " GIT "add . && " GIT
       "commit -qm first && echo after > file");
    return chdir("work");
}

static char *diff(void)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    assert_non_null(f);
    bool ok = cli_git_diff(f);
    fclose(f);
    if (ok)
        return text;
    free(text);
    return NULL;
}

TEST(local_changes_are_shown)
{
    char *text = diff(), *commit = cli_git_commit(), head[200];
    assert_non_null(text);
    (void)snprintf(head, sizeof head, "### repo: %s/work @ %s\n", place, commit);
    assert_true(strncmp(text, head, strlen(head)) == 0);
    assert_non_null(strstr(text, "\n-before\n+after\n"));
    assert_null(strstr(text, "same"));
    free(text);
    free(commit);
}

/* Each is a way for a folder that was unpacked to run a command when git looks at it. */
TEST(commands_of_the_repository_do_not_run)
{
    static const char *const traps[][2] = {
        { "clean filter", "git config filter.x.clean 'touch ../ran; cat'; "
                          "echo '* filter=x' > .gitattributes" },
        { "process filter", "git config filter.x.process 'touch ../ran'; "
                            "echo '* filter=x' > .git/info/attributes" },
        { "external diff", "git config diff.external 'touch ../ran'" },
        { "diff driver", "git config diff.x.command 'touch ../ran'; "
                         "echo '* diff=x' > .gitattributes" },
        { "text conversion", "git config diff.x.textconv 'touch ../ran; cat'; "
                             "echo '* diff=x' > .gitattributes" },
        { "monitor", "git config core.fsmonitor 'touch ../ran'" },
        { "pager", "git config core.pager 'touch ../ran; cat'; git config pager.diff true" },
        { "hook", "printf '#!/bin/sh\\ntouch ../ran\\n' > .git/hooks/post-index-change; "
                  "chmod +x .git/hooks/post-index-change; touch other" },
        { "hook elsewhere", "mkdir -p h; printf '#!/bin/sh\\ntouch ../ran\\n' > h/post-index-change; "
                            "chmod +x h/post-index-change; git config core.hooksPath h; touch other" },
        { "fetch of a missing object",
          "git config remote.o.url 'ext::sh -c touch% ../ran'; git config remote.o.promisor true; "
          "git config extensions.partialClone o; git config protocol.ext.allow always; "
          "rm -f .git/objects/$(git rev-parse HEAD:file | sed 's|^..|&/|')" },
        { "included settings", "printf '[filter \"x\"]\\n\\tclean = touch ../ran; cat\\n' > .git/more; "
                               "git config include.path more; echo '* filter=x' > .gitattributes" },
    };
    sh("cp -r .git ../kept");
    for (size_t i = 0; i < sizeof traps / sizeof *traps; i++) {
        sh(traps[i][1]);
        sh("echo changed >> file");
        free(diff());
        free(cli_git_commit());
        if (access("../ran", F_OK) == 0)
            fail_msg("a command of the repository was run: %s", traps[i][0]);
        sh("rm -rf .git .gitattributes h && cp -r ../kept .git && echo after > file");
    }
}

TEST(a_tree_elsewhere_is_left_alone)
{
    sh("git config core.worktree ../..");
    char *text = diff();
    if (text)
        assert_null(strstr(text, "diff --git"));
    free(text);
    sh("git config --unset core.worktree");
}

TEST(below_the_top_and_in_a_second_tree)
{
    sh("mkdir -p below; git worktree add -q ../second > /dev/null; echo again > ../second/file");
    assert_int_equal(chdir("below"), 0);
    char *text = diff();
    assert_non_null(text);
    assert_non_null(strstr(text, "\n-before\n+after\n"));
    free(text);
    assert_int_equal(chdir("../../second"), 0);
    text = diff();
    assert_non_null(text);
    assert_non_null(strstr(text, "\n-before\n+again\n"));
    free(text);
    assert_int_equal(chdir("../work"), 0);
}

TEST(no_repository_no_note)
{
    sh("mkdir -p ../bare");
    assert_int_equal(chdir("../bare"), 0);
    assert_null(cli_git_commit());
    assert_null(diff());
    assert_int_equal(chdir("../work"), 0);
}

RUN_TESTS(make_repository, leave_folder)
