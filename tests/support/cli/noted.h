/* noted.h - what a scripted run did, in order: stand-ins write it with note(), and the test compares the
 * whole. For programs that replace several functions of a file under test; include after cmocka.h. */
#ifndef TESTS_NOTED_H
#define TESTS_NOTED_H

#include "support/test_case.h"

static char noted[16384];

static inline void note(const char *format, ...)
{
    va_list args;
    size_t n = strlen(noted);
    va_start(args, format);
    (void)vsnprintf(noted + n, sizeof noted - n, format, args);
    va_end(args);
}

/* Compares, and begins again. */
static inline void assert_noted(const char *wanted)
{
    assert_string_equal(noted, wanted);
    noted[0] = '\0';
}

#endif
