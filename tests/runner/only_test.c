/* only_test.c - linked into every test program: TINKC_ONLY_TEST=NAME runs only the test functions
 * whose names match (* and ? stand for any text and any character), TINKC_SKIP_TEST=NAME leaves out
 * those that match. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

__attribute__((constructor)) static void choose_tests(void)
{
    const char *only = getenv("TINKC_ONLY_TEST"), *skip = getenv("TINKC_SKIP_TEST");
    if (only && *only)
        cmocka_set_test_filter(only);
    if (skip && *skip)
        cmocka_set_skip_filter(skip);
}
