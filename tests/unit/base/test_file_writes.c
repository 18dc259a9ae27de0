/* test_file_writes.c - tkc_write_file when a call of the system fails: the old bytes or the new ones, never half of
 * them, and nothing beside. */
#include "support/failing_calls.h"

#include <dirent.h>

#include "base/file.h"
#include "support/check.h"

static int entries(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static bool holds(const char *path, const char *text)
{
    char line[40] = "";
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    bool same = fgets(line, sizeof line, f) && strcmp(line, text) == 0;
    fclose(f);
    return same;
}

/* Syncs are numbered: the first is the file's, the second that of the folder, when the new name is there. */
TEST(a_write_that_fails_leaves_the_old_file_alone)
{
    static const struct {
        const char *call;
        int nth;
        bool replaced;
    } rows[] = { { "fsync", 1, false }, { "rename", 1, false }, { "fsync", 2, true } };
    char folder[] = "/tmp/tinkc-writes-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        assert_true(tkc_write_file(path, "old", 3, 0600, &err));
        fail_call(rows[i].call, rows[i].nth);
        assert_false(tkc_write_file(path, "new", 3, 0600, &err));
        assert_true(call_has_failed());
        assert_true(tkc_failed(&err));
        assert_true(holds(path, rows[i].replaced ? "new" : "old"));
        assert_int_equal(entries(folder), 1);
    }
    tinkc_error err = { 0 };
    assert_true(tkc_remove_tree(folder, &err));
}
