/* ordered_pool.h - pieces of work on all cores, their results one after the other. */
#ifndef CLI_ORDERED_POOL_H
#define CLI_ORDERED_POOL_H

#include <stdbool.h>
#include <stddef.h>

/* Three functions share a piece of `size` bytes, zeroed before the first of them. */
typedef struct cli_inorder {
    size_t size;
    /* Says in the piece what is to be done; one thread at a time, in order. False = no more. */
    bool (*take)(void *piece, void *user);
    /* Does it; on any thread, several at once. */
    void (*work)(void *piece, void *user);
    /* Gets the result and frees what it holds; on the caller's thread, in the order of taking. */
    void (*deliver)(void *piece, void *user);
    void *user;
} cli_inorder;

/* Runs until there is no more and everything has been delivered. Works on this thread alone where
 * `threads` is 1, or where no others can be had. A bounded number of pieces exists at a time. False
 * if there is no memory for one. */
bool cli_inorder_run(const cli_inorder *, size_t threads);

/* Cores that this process may use, at least 1. */
size_t cli_cores(void);

#endif
