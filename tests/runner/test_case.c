/* test_case.c - linked into every test program: runs its tests (support/test_case.h). TINKC_ONLY_TEST=NAME runs only the test
 * functions whose names match (* and ? stand for any text and any character), TINKC_SKIP_TEST=NAME leaves out those that match. */
#include "support/test_case.h"

__attribute__((constructor)) static void choose_tests(void)
{
    const char *only = getenv("TINKC_ONLY_TEST"), *skip = getenv("TINKC_SKIP_TEST");
    if (only && *only)
        cmocka_set_test_filter(only);
    if (skip && *skip)
        cmocka_set_skip_filter(skip);
}

static test_case *cases;
static size_t n_cases;

/* Constructors run in an order that the compiler chooses: lines say which test is first. */
void test_case_add(test_case *added)
{
    test_case **at = &cases;
    while (*at && (*at)->line < added->line)
        at = &(*at)->next;
    added->next = *at;
    *at = added;
    n_cases++;
}

int test_cases_run(CMFixtureFunction before_all, CMFixtureFunction after_all)
{
    struct CMUnitTest *tests = calloc(n_cases, sizeof *tests);
    size_t n = 0;
    if (!tests)
        return 1;
    for (test_case *t = cases; t; t = t->next)
        tests[n++] = (struct CMUnitTest){ t->name, t->run, t->set_up, t->tear_down, NULL };
    int failed = _cmocka_run_group_tests("tests", tests, n, before_all, after_all);
    free(tests);
    return failed;
}

/* RUN_TESTS in a test's file takes its place. */
__attribute__((weak)) int main(void)
{
    return test_cases_run(NULL, NULL);
}
