/* scripted_mhd.c - a table of libmicrohttpd's functions that only keeps what it is given. */
#include "support/scripted_mhd.h"

#include <stdio.h>
#include <string.h>

#include "support/check.h"

mhd_record mhd_sent;

void mhd_sent_begin(void)
{
    memset(&mhd_sent, 0, sizeof mhd_sent);
    pthread_mutex_init(&mhd_sent.lock, NULL);
    pthread_cond_init(&mhd_sent.changed, NULL);
    tkc_buf_init(&mhd_sent.body, NULL, TKC_BUF_NO_MAX);
}

void mhd_sent_end(void)
{
    pthread_mutex_destroy(&mhd_sent.lock);
    pthread_cond_destroy(&mhd_sent.changed);
    tkc_buf_free(&mhd_sent.body);
}

void mhd_sent_await(bool or_queued)
{
    pthread_mutex_lock(&mhd_sent.lock);
    while (!mhd_sent.resumed && !(or_queued && mhd_sent.queued))
        pthread_cond_wait(&mhd_sent.changed, &mhd_sent.lock);
    mhd_sent.resumed = false;
    pthread_mutex_unlock(&mhd_sent.lock);
}

/* ---- the library ---- */

static struct MHD_Response *from_buffer(size_t size, void *buffer, enum MHD_ResponseMemoryMode mode)
{
    tinkc_error err = { 0 };
    assert_int_equal(mode, MHD_RESPMEM_PERSISTENT);
    mhd_sent.length = size;
    assert_true(!size || tkc_buf_add(&mhd_sent.body, buffer, size, &err));
    assert_non_null(tkc_buf_terminate(&mhd_sent.body, &err));
    return (struct MHD_Response *)(void *)&mhd_sent;
}

static struct MHD_Response *from_callback(uint64_t size, size_t block,
                                          MHD_ContentReaderCallback reader, void *user,
                                          MHD_ContentReaderFreeCallback end)
{
    (void)block, (void)end;
    mhd_sent.length = size;
    mhd_sent.reader = reader;
    mhd_sent.reader_user = user;
    return (struct MHD_Response *)(void *)&mhd_sent;
}

static enum MHD_Result add_header(struct MHD_Response *r, const char *name, const char *value)
{
    size_t n = strlen(mhd_sent.headers);
    (void)r;
    snprintf(mhd_sent.headers + n, sizeof mhd_sent.headers - n, "%s: %s\n", name, value);
    return MHD_YES;
}

static enum MHD_Result queue(struct MHD_Connection *c, unsigned int status, struct MHD_Response *r)
{
    (void)c, (void)r;
    mhd_sent.queued = true;
    mhd_sent.status = status;
    return MHD_YES;
}

static void destroy(struct MHD_Response *r)
{
    (void)r;
}

static void suspend(struct MHD_Connection *c)
{
    (void)c;
    mhd_sent.suspended = true;
}

static void resume(struct MHD_Connection *c)
{
    (void)c;
    pthread_mutex_lock(&mhd_sent.lock);
    mhd_sent.resumed = true;
    pthread_cond_signal(&mhd_sent.changed);
    pthread_mutex_unlock(&mhd_sent.lock);
}

const tke_mhd scripted_mhd = { .from_buffer = from_buffer,
                               .from_callback = from_callback,
                               .add_header = add_header,
                               .queue = queue,
                               .destroy = destroy,
                               .suspend = suspend,
                               .resume = resume };
