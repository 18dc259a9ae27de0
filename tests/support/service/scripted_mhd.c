/* scripted_mhd.c - a table of libmicrohttpd's functions that only keeps what it is given. */
#include "support/service/scripted_mhd.h"

#include "support/check.h"

mhd_record mhd_sent;

static mhd_record *of(struct MHD_Connection *c)
{
    return c ? (mhd_record *)(void *)c : &mhd_sent;
}

void mhd_begin(mhd_record *r)
{
    memset(r, 0, sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    tkc_buf_init(&r->body, NULL, TKC_BUF_NO_MAX);
}

void mhd_end(mhd_record *r)
{
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    tkc_buf_free(&r->body);
}

void mhd_await(mhd_record *r, bool or_queued)
{
    pthread_mutex_lock(&r->lock);
    while (!r->resumed && !(or_queued && r->queued))
        pthread_cond_wait(&r->changed, &r->lock);
    r->resumed = false;
    pthread_mutex_unlock(&r->lock);
}

/* ---- the library ---- */

struct MHD_Response { /* the test's thread makes them one at a time */
    tinkc_str body;
    uint64_t length;
    MHD_ContentReaderCallback reader;
    void *user;
    char headers[2000];
    bool alive; /* until it is destroyed */
};

static struct MHD_Response made;

static struct MHD_Response *from_buffer(size_t size, void *buffer, enum MHD_ResponseMemoryMode mode)
{
    assert_int_equal(mode, MHD_RESPMEM_PERSISTENT);
    assert_false(made.alive);
    made = (struct MHD_Response){ .body = { buffer, size }, .length = size, .alive = true };
    return &made;
}

static struct MHD_Response *from_callback(uint64_t size, size_t block, MHD_ContentReaderCallback reader, void *user,
                                          MHD_ContentReaderFreeCallback end)
{
    (void)block;
    assert_null(end);
    assert_false(made.alive);
    made = (struct MHD_Response){ .length = size, .reader = reader, .user = user, .alive = true };
    return &made;
}

static enum MHD_Result add_header(struct MHD_Response *r, const char *name, const char *value)
{
    size_t n = strlen(r->headers);
    snprintf(r->headers + n, sizeof r->headers - n, "%s: %s\n", name, value);
    return MHD_YES;
}

static enum MHD_Result queue(struct MHD_Connection *c, unsigned int status, struct MHD_Response *r)
{
    tinkc_error err = { 0 };
    mhd_record *sent = of(c);
    assert_false(sent->queued);
    sent->queued = true;
    sent->status = status;
    sent->length = r->length;
    sent->reader = r->reader;
    sent->reader_user = r->user;
    memcpy(sent->headers, r->headers, sizeof r->headers);
    assert_true(!r->body.len || tkc_buf_add(&sent->body, r->body.data, r->body.len, &err));
    assert_non_null(tkc_buf_terminate(&sent->body, &err));
    return MHD_YES;
}

static void destroy(struct MHD_Response *r)
{
    assert_ptr_equal(r, &made);
    assert_true(made.alive);
    made.alive = false;
}

static void suspend(struct MHD_Connection *c)
{
    of(c)->suspended = true;
}

static void resume(struct MHD_Connection *c)
{
    mhd_record *r = of(c);
    pthread_mutex_lock(&r->lock);
    r->resumed = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

const tke_mhd scripted_mhd = { .from_buffer = from_buffer,
                               .from_callback = from_callback,
                               .add_header = add_header,
                               .queue = queue,
                               .destroy = destroy,
                               .suspend = suspend,
                               .resume = resume };
