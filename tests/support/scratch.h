/* scratch.h - an arena and a buffer for each test of a program, made new for each of them.
 * TEST_WITH(name, set_up, tear_down) uses them. */
#ifndef TINKC_TESTS_SCRATCH_H
#define TINKC_TESTS_SCRATCH_H

#include "base/arena.h"
#include "base/buf.h"

static tkc_arena arena;
static tkc_buf out;

static int set_up(void **state)
{
    (void)state;
    tkc_arena_init(&arena, NULL, 0);
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tkc_arena_free(&arena);
    tkc_buf_free(&out);
    return 0;
}

#endif
