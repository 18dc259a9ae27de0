/* leave.h - threads that end by themselves, and the end of the process.
 *
 * Nobody waits for such a thread. Yet it must not end while the exit handlers of libraries run: both would free the
 * thread's data of a library. So each of them is joined by the next one that leaves, and the last one at exit. One
 * that leaves after that stays where it is until the process is gone.
 */
#ifndef TKC_BASE_LEAVE_H
#define TKC_BASE_LEAVE_H

/* Watches the end of the process. Call it after a library has registered its exit handlers: handlers run in reverse
 * order, and the one that is registered here has to run before them. `before` (NULL = the one given last) is called
 * first, each time. Any thread. */
void tkc_leave_watch(void (*before)(void));

/* A thread that nobody joins is about to end: what it does after this call must not wait for another one that leaves.
 * Does not return once exit handlers have waited for those that leave. */
void tkc_thread_leaves(void);

#endif
