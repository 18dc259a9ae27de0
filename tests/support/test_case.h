/* test_case.h - cmocka, with the headers it needs before it, and tests that are stated once: where they are written.
 *
 *     TEST(an_empty_file_is_refused)
 *     {
 *         ...
 *     }
 *     TEST_WITH(what_is_written_is_read, set_up, tear_down) { ... }    `state` is what set_up has put there
 *     RUN_TESTS(before_all, after_all)                                 only where something runs before and after all of them
 *
 * They run in the order of the file. tests/runner/test_case.c runs them; its main serves files without RUN_TESTS.
 */
#ifndef TESTS_TEST_CASE_H
#define TESTS_TEST_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

typedef struct test_case {
    const char *name;
    int line;
    CMUnitTestFunction run;
    CMFixtureFunction set_up, tear_down; /* or NULL */
    struct test_case *next;
} test_case;

/* Before main. */
void test_case_add(test_case *);
/* All of them; the exit status. */
int test_cases_run(CMFixtureFunction before_all, CMFixtureFunction after_all);

#define TEST(name) TEST_WITH(name, NULL, NULL)
#define TEST_WITH(name_, set_up_, tear_down_)                                                                          \
    static void name_(void **state);                                                                                   \
    __attribute__((constructor)) static void add_##name_(void)                                                         \
    {                                                                                                                  \
        static test_case self = {                                                                                      \
            .name = #name_, .line = __LINE__, .run = name_, .set_up = set_up_, .tear_down = tear_down_                 \
        };                                                                                                             \
        test_case_add(&self);                                                                                          \
    }                                                                                                                  \
    static void name_(__attribute__((unused)) void **state)
#define RUN_TESTS(before_all, after_all)                                                                               \
    int main(void)                                                                                                     \
    {                                                                                                                  \
        return test_cases_run(before_all, after_all);                                                                  \
    }

#endif
