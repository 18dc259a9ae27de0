/* only_test.c - linked into every test program: TINKC_ONLY_TEST=NAME runs only the test functions
 * whose names match (* and ? stand for any text and any character). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

__attribute__((constructor)) static void choose_tests(void)
{
    const char *pattern = getenv("TINKC_ONLY_TEST");
    if (pattern && *pattern)
        cmocka_set_test_filter(pattern);
}
