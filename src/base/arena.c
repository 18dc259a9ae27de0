/* arena.c - bump allocation in blocks that double in size. May touch: mem. */
#include "base/arena.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { ALIGN = 16, FIRST_BLOCK = 1024, LARGEST_STEP = 1 << 20 };

struct tkc_arena_block {
    tkc_arena_block *older;
    size_t size; /* this header included */
};

static size_t header_size(void)
{
    return (sizeof(tkc_arena_block) + ALIGN - 1) / ALIGN * ALIGN;
}

void tkc_arena_init(tkc_arena *arena, const tinkc_allocator *a, size_t max)
{
    *arena = (tkc_arena){ .a = a, .max = max };
}

static void release_from(tkc_arena *arena, tkc_arena_block *block)
{
    while (block) {
        tkc_arena_block *older = block->older;
        tkc_release(arena->a, block, block->size);
        block = older;
    }
}

void tkc_arena_free(tkc_arena *arena)
{
    release_from(arena, arena->blocks);
    tkc_arena_init(arena, arena->a, arena->max);
}

void tkc_arena_reset(tkc_arena *arena)
{
    /* One block stays: what is filled again needs about as much, and most often it fits. */
    tkc_arena_block *largest = arena->blocks;
    for (tkc_arena_block *b = arena->blocks; b; b = b->older)
        if (b->size > largest->size)
            largest = b;
    arena->failed = false;
    if (!largest)
        return;
    assert(largest->size >= header_size());
    for (tkc_arena_block *b = arena->blocks, *older; b; b = older) {
        older = b->older;
        if (b != largest)
            tkc_release(arena->a, b, b->size);
    }
    largest->older = NULL;
    arena->blocks = largest;
    arena->taken = largest->size;
    arena->at = (unsigned char *)largest + header_size();
    arena->end = (unsigned char *)largest + largest->size;
}

static bool add_block(tkc_arena *arena, size_t need, tinkc_error *err)
{
    size_t size = arena->taken < FIRST_BLOCK ? FIRST_BLOCK : arena->taken;
    if (size > LARGEST_STEP)
        size = LARGEST_STEP;
    size_t least;
    if (!tkc_add_size(need, header_size(), &least))
        return tkc_fail_memory(err);
    if (size < least)
        size = least;
    if (arena->max) {
        size_t left = arena->max > arena->taken ? arena->max - arena->taken : 0;
        if (least > left) {
            bool first = !tkc_failed(err);
            tkc_fail(err, TINKC_E_MEMORY, "more than the %zu bytes allowed here", arena->max);
            err->cause = first ? TINKC_E_TOO_LARGE : err->cause; /* it would fail again */
            return false;
        }
        if (size > left)
            size = left;
    }
    assert(size >= least);
    tkc_arena_block *block = tkc_alloc(arena->a, size, err);
    if (!block)
        return false;
    *block = (tkc_arena_block){ arena->blocks, size };
    arena->blocks = block;
    arena->taken += size;
    arena->at = (unsigned char *)block + header_size();
    arena->end = (unsigned char *)block + size;
    assert(!arena->max || arena->taken <= arena->max);
    return true;
}

void *tkc_arena_alloc(tkc_arena *arena, size_t size, tinkc_error *err)
{
    assert(!arena->blocks == !arena->at); /* an arena that was neither initialised nor zeroed */
    size_t need;
    if (!tkc_add_size(size ? size : 1, ALIGN - 1, &need)) {
        arena->failed = true;
        tkc_fail_memory(err);
        return NULL;
    }
    need = need / ALIGN * ALIGN;
    if ((size_t)(arena->end - arena->at) < need && !add_block(arena, need, err)) {
        arena->failed = true;
        return NULL;
    }
    void *ptr = arena->at;
    arena->at += need;
    assert(arena->at <= arena->end);
    return ptr;
}

void *tkc_arena_zalloc(tkc_arena *arena, size_t size, tinkc_error *err)
{
    void *ptr = tkc_arena_alloc(arena, size, err);
    if (ptr)
        memset(ptr, 0, size);
    return ptr;
}

void *tkc_arena_array(tkc_arena *arena, size_t n, size_t size, tinkc_error *err)
{
    size_t bytes;
    if (!tkc_mul_size(n, size, &bytes)) {
        tkc_fail_memory(err);
        return NULL;
    }
    return tkc_arena_zalloc(arena, bytes, err);
}

char *tkc_arena_str(tkc_arena *arena, tinkc_str s, tinkc_error *err)
{
    size_t size;
    if (!tkc_add_size(s.len, 1, &size)) {
        tkc_fail_memory(err);
        return NULL;
    }
    char *copy = tkc_arena_alloc(arena, size, err);
    if (!copy)
        return NULL;
    assert(s.data || !s.len);
    if (s.len)
        memcpy(copy, s.data, s.len);
    copy[s.len] = '\0';
    return copy;
}

char *tkc_arena_cstr(tkc_arena *arena, const char *s, tinkc_error *err)
{
    return tkc_arena_str(arena, (tinkc_str){ s, s ? strlen(s) : 0 }, err);
}

char *tkc_arena_printf(tkc_arena *arena, tinkc_error *err, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = n < 0 ? NULL : tkc_arena_alloc(arena, (size_t)n + 1, err);
    if (text)
        (void)vsnprintf(text, (size_t)n + 1, format, again);
    va_end(again);
    if (n < 0)
        tkc_fail(err, TINKC_E_STATE, "a text could not be formatted");
    return text;
}
