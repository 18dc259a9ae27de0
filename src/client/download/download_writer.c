/* download_writer.c - a thread that writes to the disk what another has made ready.
 *
 * Between the two lies a ring of a few blocks: the faster side waits for the other, so that the
 * slower one alone sets the pace and the memory stays the same however long the file is. One maker.
 */
#include "client/download/download.h"

#include <errno.h>
#include <string.h>
#include "client/core/client_priv.h"

enum { BLOCKS = 4, BLOCK = 256 * 1024 };

struct tkc_writer {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    /* needs lock */
    size_t first, n; /* full blocks */
    int fault;       /* errno of the first write that failed; what comes after it is dropped */
    bool ending;
    /* the maker's */
    size_t filling, filled;
    struct {
        int fd;
        size_t len;
        char data[BLOCK];
    } blocks[BLOCKS];
};

static void *write_blocks(void *arg)
{
    tkc_writer *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->n && !w->ending)
            pthread_cond_wait(&w->cond, &w->lock);
        if (!w->n)
            break;
        size_t i = w->first;
        bool skip = w->fault != 0;
        /* The block is this thread's until `n` is counted down. */
        pthread_mutex_unlock(&w->lock);
        bool bad = !skip && !tkc_write_all(w->blocks[i].fd, w->blocks[i].data, w->blocks[i].len);
        int fault = bad ? errno : 0;
        pthread_mutex_lock(&w->lock);
        w->fault = w->fault ? w->fault : fault;
        w->first = (w->first + 1) % BLOCKS;
        w->n--;
        pthread_cond_broadcast(&w->cond);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

tkc_writer *tkc_writer_new(const tinkc_allocator *a, tinkc_error *err)
{
    tkc_writer *w = tkc_alloc(a, sizeof *w, err); /* not zeroed: blocks are touched when needed */
    if (!w)
        return NULL;
    w->first = w->n = w->filling = w->filled = 0;
    w->fault = 0;
    w->ending = false;
    pthread_mutex_init(&w->lock, NULL);
    if (tkc_cond_init(&w->cond, err)) {
        if (tkc_thread_start(&w->thread, write_blocks, w, "tinkc-writer", err))
            return w;
        pthread_cond_destroy(&w->cond);
    }
    pthread_mutex_destroy(&w->lock);
    tkc_release(a, w, sizeof *w);
    return NULL;
}

void tkc_writer_free(tkc_writer *w, const tinkc_allocator *a)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->ending = true;
    pthread_cond_broadcast(&w->cond);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->cond);
    pthread_mutex_destroy(&w->lock);
    tkc_release(a, w, sizeof *w);
}

/* Hands the block that is being filled over and waits until there are at most `left` to write. */
static int hand_over_block(tkc_writer *w, int fd, size_t left)
{
    pthread_mutex_lock(&w->lock);
    if (w->filled) {
        w->blocks[w->filling].fd = fd;
        w->blocks[w->filling].len = w->filled;
        w->filling = (w->filling + 1) % BLOCKS;
        w->filled = 0;
        w->n++;
        pthread_cond_broadcast(&w->cond);
    }
    while (w->n > left)
        pthread_cond_wait(&w->cond, &w->lock);
    int fault = w->fault;
    /* Reported by this call: the next file begins without it. */
    if (left == 0)
        w->fault = 0;
    pthread_mutex_unlock(&w->lock);
    return fault;
}

int tkc_writer_add(tkc_writer *w, int fd, const void *bytes, size_t len)
{
    const char *from = bytes;
    if (!w)
        return tkc_write_all(fd, bytes, len) ? 0 : errno;
    while (len) {
        size_t room = BLOCK - w->filled, n = len < room ? len : room;
        memcpy(w->blocks[w->filling].data + w->filled, from, n);
        w->filled += n;
        from += n;
        len -= n;
        int fault = w->filled == BLOCK ? hand_over_block(w, fd, BLOCKS - 1) : 0;
        if (fault)
            return fault;
    }
    return 0;
}

int tkc_writer_flush(tkc_writer *w, int fd)
{
    return w ? hand_over_block(w, fd, 0) : 0;
}
