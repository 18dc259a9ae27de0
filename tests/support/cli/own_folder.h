/* own_folder.h - a test program that works in a new folder below /tmp, and small files there.
 * enter_folder and leave_folder are a group's set-up and tear-down, or part of them. */
#ifndef TINKC_TESTS_OWN_FOLDER_H
#define TINKC_TESTS_OWN_FOLDER_H

#include <unistd.h>

#include "cli/main/files.h"
#include "support/test_case.h"

static char place[] = "/tmp/tinkc-own-XXXXXX";
static char *start; /* the folder before */

static inline int enter_folder(void **state)
{
    (void)state;
    start = getcwd(NULL, 0);
    return start && mkdtemp(place) && chdir(place) == 0 ? 0 : -1;
}

/* Back to where the program was. */
static inline int go_back(void)
{
    int bad = chdir(start);
    free(start);
    return bad;
}

static inline int leave_folder(void **state)
{
    char command[100];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf '%s'", place);
    int bad = go_back();
    return bad ? bad : system(command);
}

/* With the folders above it. */
static inline void put(const char *path, const char *text)
{
    assert_true(cli_make_parents(path, 0700));
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static inline void assert_holds(const char *path, const char *wanted)
{
    char text[4000] = "";
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    assert_string_equal(text, wanted);
}

#endif
