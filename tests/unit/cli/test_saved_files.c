/* test_saved_files.c - files that are written whole or not at all, folders with their parents, secrets that others can
 * read, and where downloads go. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/main/files.h"
#include "support/cli/held_output.h"
#include "support/cli/own_folder.h"
#include "support/test_case.h"

static const cli_app app;

static int leave(void **state)
{
    static const char *const left[] = { "file",   "link",  "other", "file.new", "folder/file",
                                        "folder", "a/b/c", "a/b",   "a" };
    (void)state;
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        (void)remove(left[i]);
    int bad = go_back();
    return bad ? bad : rmdir(place); /* nothing else was left */
}

/* Writes a text by the calls under test; the exit code. */
static int save(const char *path, const char *text, bool keep)
{
    cli_save s;
    cli_save_begin(&s, path, 0640);
    if (s.f)
        fputs(text, s.f);
    int code = cli_save_end(&s, &app, keep);
    assert_true(!s.f && !s.target && !s.beside && !s.fault);
    return code;
}

static void assert_said(const char *wanted)
{
    char *said = release_output();
    assert_string_equal(said, wanted);
    free(said);
}

TEST(a_file_is_replaced_whole_and_keeps_its_mode)
{
    struct stat st;
    umask(022);
    assert_int_equal(save("file", "one", true), 0);
    assert_holds("file", "one");
    assert_true(stat("file", &st) == 0 && (st.st_mode & 0777) == 0640);
    assert_int_equal(access("file.new", F_OK), -1);
    assert_int_equal(save("file", "two", false), 0); /* thrown away */
    assert_holds("file", "one");
    assert_int_equal(access("file.new", F_OK), -1);
    /* Until it is complete the old one is there. */
    cli_save s;
    cli_save_begin(&s, "file", 0644);
    assert_non_null(s.f);
    fputs("three", s.f);
    fflush(s.f);
    assert_holds("file", "one");
    assert_holds("file.new", "three");
    assert_int_equal(cli_save_end(&s, &app, true), 0);
    assert_holds("file", "three");
    assert_int_equal(unlink("file"), 0);
    assert_int_equal(save("file", "x", false), 0);
    assert_int_equal(access("file", F_OK), -1);
}

/* The file that a link names is replaced, not the link. */
TEST(the_target_of_a_link_is_replaced)
{
    struct stat st;
    put("other", "old");
    assert_int_equal(symlink("other", "link"), 0);
    assert_int_equal(save("link", "new", true), 0);
    assert_holds("other", "new");
    assert_true(lstat("link", &st) == 0 && S_ISLNK(st.st_mode));
    assert_int_equal(access("link.new", F_OK), -1);
    assert_int_equal(unlink("link"), 0);
    assert_int_equal(unlink("other"), 0);
}

/* A pipe takes what comes, and nothing is put beside it. No device is used: as root, a fault of the tested code could
 * put a file in its place. */
TEST(pipes_with_names)
{
    struct stat st;
    char text[10] = "";
    assert_int_equal(mkfifo("other", 0600), 0);
    int reader = open("other", O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    assert_int_equal(save("other", "x", true), 0);
    assert_int_equal(read(reader, text, sizeof text), 1);
    assert_string_equal(text, "x");
    assert_true(stat("other", &st) == 0 && S_ISFIFO(st.st_mode));
    assert_int_equal(access("other.new", F_OK), -1);
    close(reader);
    assert_int_equal(unlink("other"), 0);
    hold_output();
    int code = save("-", "to the standard output\n", true);
    assert_said("to the standard output\n");
    assert_int_equal(code, 0);
    assert_true(fileno(stdout) == 1 && fputs("", stdout) >= 0); /* still open */
}

/* A file that cannot be written whole is reported, and the old one stays. */
TEST(a_file_that_cannot_be_written_leaves_the_old_one)
{
    struct rlimit before, none;
    put("file", "old");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    cli_save s, other;
    cli_save_begin(&s, "file", 0644);
    assert_non_null(s.f);
    fputs("new", s.f);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    bool flushed = fflush(s.f) == 0;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_false(flushed);
    hold_output();
    int code = cli_save_end(&s, &app, true);
    char *said = release_output();
    assert_int_equal(code, CLI_EXIT_FAILED);
    assert_int_equal(strncmp(said, "error: ", 7), 0);
    assert_non_null(strstr(said, "/file: "));
    free(said);
    assert_holds("file", "old");
    assert_int_equal(access("file.new", F_OK), -1);
    cli_save_begin(&other, "file", 0644);
    assert_non_null(other.f);
    fputs("new", other.f);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    (void)fflush(other.f);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    hold_output();
    code = cli_save_end(&other, &app, false); /* nobody wants it */
    assert_said("");
    assert_int_equal(code, 0);
    (void)signal(SIGXFSZ, handler);
    assert_int_equal(unlink("file"), 0);
}

TEST(a_missing_folder_is_named)
{
    hold_output();
    assert_int_equal(save("nowhere/file", "x", true), CLI_EXIT_FAILED);
    assert_int_equal(save("nowhere/file", "x", false), CLI_EXIT_FAILED);
    assert_said("error: nowhere/file: No such file or directory\n"
                "error: nowhere/file: No such file or directory\n");
    assert_int_equal(mkdir("folder", 0700), 0);
    hold_output();
    assert_int_equal(save("folder", "x", true), CLI_EXIT_FAILED);
    char *said = release_output();
    assert_non_null(strstr(said, "/folder: Is a directory\n"));
    free(said);
    /* The target becomes a folder with something in it while the file is written. */
    cli_save s;
    cli_save_begin(&s, "file", 0644);
    assert_non_null(s.f);
    assert_int_equal(mkdir("file", 0700), 0);
    hold_output();
    assert_int_equal(cli_save_end(&s, &app, true), CLI_EXIT_FAILED);
    assert_said("error: file: Is a directory\n");
    assert_int_equal(access("file.new", F_OK), -1);
    assert_int_equal(rmdir("file"), 0);
    assert_int_equal(rmdir("folder"), 0);
}

TEST(parents_are_made_with_their_mode)
{
    struct stat st;
    assert_true(cli_make_parents("file", 0700));
    assert_true(cli_make_parents("", 0700));
    assert_true(cli_make_parents("a/b/c", 0750));
    assert_true(stat("a/b", &st) == 0 && (st.st_mode & 0777) == 0750);
    assert_int_equal(access("a/b/c", F_OK), -1);
    assert_true(cli_make_folder("a/b/c", 0700) && cli_make_folder("a/b/c", 0700));
    assert_true(stat("a/b/c", &st) == 0 && (st.st_mode & 0777) == 0700);
    assert_true(cli_make_folder("/", 0700) && cli_make_parents("/tmp/x", 0700));
    put("file", "x");
    errno = 0;
    assert_false(cli_make_folder("file/b", 0700));
    assert_int_equal(errno, ENOTDIR);
    assert_false(cli_make_parents("file/b/c", 0700));
    assert_false(cli_make_folder("", 0700));
    assert_int_equal(unlink("file"), 0);
}

TEST(a_secret_file_is_readable_by_its_owner_only)
{
    static const struct {
        mode_t mode;
        int code;
    } rows[] = { { 0600, 0 },
                 { 0400, 0 },
                 { 0700, 0 },
                 { 0640, CLI_EXIT_USAGE },
                 { 0604, CLI_EXIT_USAGE },
                 { 0602, CLI_EXIT_USAGE },
                 { 0620, CLI_EXIT_USAGE } };
    put("file", "x");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(chmod("file", rows[i].mode), 0);
        hold_output();
        int code = cli_check_secret_file(&app, "file");
        assert_said(code ? "error: file: other users of this machine can read or change this secret\n"
                           "hint: chmod 600 it\n"
                         : "");
        assert_int_equal(code, rows[i].code);
    }
    assert_int_equal(unlink("file"), 0);
    put("-", "x"); /* which names the standard input, not this file */
    assert_int_equal(chmod("-", 0644), 0);
    assert_int_equal(cli_check_secret_file(&app, "-"), 0);
    assert_int_equal(unlink("./-"), 0);
    assert_int_equal(cli_check_secret_file(&app, "nowhere"), 0);
    assert_int_equal(cli_check_secret_file(&app, "/dev/null"), 0);
}

TEST(a_place_is_a_folder_and_a_name)
{
    static const struct {
        const char *target, *dir, *name;
    } rows[] = { { "a", NULL, "a" },    { "b/a", "b", "a" },     { "/a", "/", "a" },
                 { "/b/a", "/b", "a" }, { "b/c/a", "b/c", "a" }, { "b/", "b", "" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_place p;
        tinkc_download_options o = { 0 };
        cli_place_begin(&p, rows[i].target, &o);
        assert_false(p.piped);
        assert_string_equal(o.name, rows[i].name);
        if (rows[i].dir)
            assert_string_equal(o.dir, rows[i].dir);
        else
            assert_null(o.dir);
        assert_true(o.name == p.name && o.dir == p.dir && o.fd == 0);
        tinkc_error err = { .code = TINKC_E_FILE, .message = "x: full" };
        assert_int_equal(cli_place_fault(&app, &p, &err), 0);
        cli_place_free(&p);
        assert_null(p.copy);
    }
}

/* Straight to the standard output. */
TEST(an_archive_may_go_to_the_standard_output)
{
    cli_place p;
    tinkc_download_options o = { .dir = "x", .name = "y", .flat = true, .replace = true };
    tinkc_error full = { .code = TINKC_E_FILE, .message = "x: No space left on device" },
                bare = { .code = TINKC_E_FILE, .message = "x" }, gone = { .code = TINKC_E_NOT_FOUND };
    cli_place_begin(&p, "-", &o);
    assert_true(p.piped && o.fd == 1 && !o.dir && !o.name && !o.flat && !o.replace);
    hold_output();
    int a = cli_place_fault(&app, &p, &full), b = cli_place_fault(&app, &p, &bare),
        c = cli_place_fault(&app, &p, &gone);
    assert_said("error: standard output: No space left on device\nerror: standard output\n");
    assert_true(a == CLI_EXIT_FAILED && b == CLI_EXIT_FAILED && c == 0);
    cli_place_free(&p);
}

RUN_TESTS(enter_folder, leave)
