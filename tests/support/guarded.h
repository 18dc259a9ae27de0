/* guarded.h - an allocator that ends the program when a block is given back with another size than it was
 * asked for, twice, or written past its end. What it hands out and takes back is filled with bytes that are
 * no valid pointer, number of bytes or text: a use of memory too early or too late is seen by every test. */
#ifndef TEST_GUARDED_H
#define TEST_GUARDED_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tinkc/types.h"

#if defined(__SANITIZE_ADDRESS__)
#define GUARDED_BY_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GUARDED_BY_ASAN 1
#endif
#endif
#ifndef GUARDED_BY_ASAN
#define GUARDED_BY_ASAN 0 /* it sees all of this, and more, in blocks of its own */
#endif

typedef struct guarded_head {
    uint64_t size, mark;
} guarded_head;

enum { GUARDED_NEW = 0xB7, GUARDED_OLD = 0xDD, GUARDED_FILL = 4096 };
#define GUARDED_MARK UINT64_C(0x7464726175677477)
#define GUARDED_GONE UINT64_C(0x656e6f6764657375)

static inline void *guarded_alloc(size_t size, void *user)
{
    (void)user;
    if (GUARDED_BY_ASAN)
        return malloc(size ? size : 1);
    static const uint64_t end = GUARDED_MARK;
    guarded_head *h = malloc(sizeof *h + size + sizeof end);
    if (!h)
        return NULL;
    *h = (guarded_head){ size, GUARDED_MARK };
    memset(h + 1, GUARDED_NEW, size < GUARDED_FILL ? size : GUARDED_FILL);
    memcpy((char *)(h + 1) + size, &end, sizeof end);
    return h + 1;
}

static inline void guarded_release(void *ptr, size_t size, void *user)
{
    (void)user;
    if (GUARDED_BY_ASAN || !ptr) {
        free(ptr);
        return;
    }
    guarded_head *h = (guarded_head *)ptr - 1;
    uint64_t end = 0;
    if (h->mark == GUARDED_MARK && h->size == size)
        memcpy(&end, (char *)ptr + size, sizeof end);
    if (end != GUARDED_MARK) {
        (void)fprintf(stderr, "memory: %zu bytes given back, %s\n", size,
                      h->mark == GUARDED_GONE   ? "twice"
                      : h->mark != GUARDED_MARK ? "that nobody asked for"
                      : h->size != size         ? "another number than was asked for"
                                                : "written past their end");
        abort();
    }
    h->mark = GUARDED_GONE;
    memset(ptr, GUARDED_OLD, size < GUARDED_FILL ? size : GUARDED_FILL);
    free(h);
}

/* The block always moves. */
static inline void *guarded_resize(void *ptr, size_t old_size, size_t new_size, void *user)
{
    void *moved = guarded_alloc(new_size, user);
    if (moved && ptr) {
        memcpy(moved, ptr, old_size < new_size ? old_size : new_size);
        guarded_release(ptr, old_size, user);
    }
    return moved;
}

#endif
