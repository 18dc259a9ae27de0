/* harness.h - what every harness here shares: an arena and a buffer that are empty for each input,
 * and a check that stops the fuzzer. */
#ifndef FUZZ_HARNESS_H
#define FUZZ_HARNESS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/str.h"

/* A property that must hold for every input. */
#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            __builtin_trap();                                                                      \
    } while (0)

/* Inputs beyond this teach nothing new and cost time. */
enum { FUZZ_MAX_INPUT = 1 << 16 };
/* What one input may take: more is a finding of its own. */
#define FUZZ_MAX_MEMORY ((size_t)64 << 20)

typedef struct fuzz_room {
    tkc_arena arena;
    tkc_buf out;
    tinkc_error err;
} fuzz_room;

static inline fuzz_room *fuzz_begin(void)
{
    static fuzz_room room;
    tkc_arena_init(&room.arena, NULL, FUZZ_MAX_MEMORY);
    tkc_buf_init(&room.out, NULL, FUZZ_MAX_MEMORY);
    room.err = (tinkc_error){ 0 };
    return &room;
}

static inline void fuzz_end(fuzz_room *room)
{
    tkc_arena_free(&room->arena);
    tkc_buf_free(&room->out);
}

/* A terminated copy, for functions that take C strings. It ends at the first NUL. */
static inline const char *fuzz_text(fuzz_room *room, const uint8_t *data, size_t size)
{
    const char *text = tkc_arena_str(&room->arena, tkc_strn((const char *)data, size), &room->err);
    MUST(text);
    return text;
}

#endif
