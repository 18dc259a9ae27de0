/* test_logged_runs.c - names of runs: the last part of the folder that each logs to, remembered by the store. */
#include <sys/stat.h>
#include <unistd.h>

#include "cli/store/logged_runs.h"
#include "support/check.h"
#include "support/engine/tiny_model.h"
#include "support/json_trees.h"

static char *store;

static int setup(void **state)
{
    (void)state;
    store = tiny_folder();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tiny_model_remove(store);
    return 0;
}

static const char *folder(const char *name)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", store, name);
    (void)mkdir(path, 0700);
    return path;
}

static void add(const char *name, const char *run)
{
    assert_true(cli_logged_runs_add(store, folder(name), run));
}

TEST_WITH(the_newest_run_has_the_name, setup, teardown)
{
    add("a", "1");
    (void)folder("deep");
    add("deep/faq", "2");
    add("faq", "3");
    char *found = cli_logged_run_folder(store, "faq");
    assert_string_equal(found, folder("faq"));
    free(found);
    tkc_tree *runs = cli_logged_runs(&json_arena, store);
    assert_string_equal(cli_logged_run_id(runs, "faq"), "3");
    assert_string_equal(cli_logged_run_name(runs, "2"), "faq");
    assert_null(cli_logged_run_name(runs, "9"));
    assert_int_equal(tkc_tree_length(runs), 3);
}

TEST_WITH(a_folder_that_is_used_again_is_the_new_runs, setup, teardown)
{
    add("a", "1");
    add("a", "2");
    tkc_tree *runs = cli_logged_runs(&json_arena, store);
    assert_int_equal(tkc_tree_length(runs), 1);
    assert_string_equal(cli_logged_run_id(runs, "a"), "2");
}

TEST_WITH(folders_that_are_gone_and_lines_that_are_torn_are_passed_over, setup, teardown)
{
    add("a", "1");
    add("b", "2");
    assert_int_equal(rmdir(folder("b")), 0);
    char path[600];
    snprintf(path, sizeof path, "%s/runs.jsonl", store);
    FILE *f = fopen(path, "ae");
    fputs("{\"dir\": 5}\n[]\n{\"dir\":\"relative\",\"run\":\"7\"}\n{\"dir\":\"/torn", f);
    fclose(f);
    tkc_tree *runs = cli_logged_runs(&json_arena, store);
    assert_int_equal(tkc_tree_length(runs), 1);
    assert_string_equal(cli_logged_run_id(runs, "a"), "1");
    assert_null(cli_logged_run_folder(store, "b"));
}

TEST_WITH(a_store_without_runs_has_no_names, setup, teardown)
{
    tkc_tree *runs = cli_logged_runs(&json_arena, store);
    assert_int_equal(tkc_tree_length(runs), 0);
    runs = cli_logged_runs(&json_arena, NULL);
    assert_int_equal(tkc_tree_length(runs), 0);
}
