/* patience.h - how long a test waits for what must happen, and how it waits.
 *
 * A machine that is slow or busy makes a test slow, not wrong: only what never happens lasts this
 * long. Limits that a test is about (a wait that must run out) are numbers of its own.
 */
#ifndef TESTS_PATIENCE_H
#define TESTS_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifndef PATIENCE_MS /* the build says how much more an emulator needs */
#define PATIENCE_MS 120000
#endif

static inline int64_t patience_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Pauses for a millisecond; false once the patience that began then is at its end. */
static inline bool patience_lasts(int64_t began_ms)
{
    nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    return patience_now_ms() - began_ms < PATIENCE_MS;
}

/* Waits for what another thread or process is about to do. What never happens ends the program: a test that went on would
 * pass without having seen what it is about. cmocka reports the signal as a failure of the test. */
#define wait_until(condition)                                                                                          \
    do {                                                                                                               \
        int64_t began_ms_ = patience_now_ms();                                                                         \
        while (!(condition))                                                                                           \
            if (!patience_lasts(began_ms_)) {                                                                          \
                fprintf(stderr, "%s:%d: never happened: %s\n", __FILE__, __LINE__, #condition);                        \
                abort();                                                                                               \
            }                                                                                                          \
    } while (0)

#endif
