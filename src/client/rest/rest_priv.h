/* rest_priv.h - what the REST files share: endpoints as calls, and the service's records as ours. */
#ifndef TKC_API_REST_PRIV_H
#define TKC_API_REST_PRIV_H

#include "client/call/call.h"
#include "tinkc/rest.h"
#include "wire/endpoint.h"
#include "wire/messages.h"

/* One call of an endpoint of the table. */
typedef struct tkc_rest_request {
    int32_t endpoint;           /* TKC_EP_* */
    const char *ids[2];         /* what the path's {...} stand for, in order; NULL = none */
    const char *query;          /* "?limit=20", escaped; NULL = none */
    const void *message;        /* the endpoint's request; NULL = no body */
    const char *const *headers; /* pairs on top of the client's; NULL = none */
    bool conflict_is_final;     /* 409 says "it is so already": not worth another attempt */
} tkc_rest_request;

/* path and body are filled; the caller frees both. */
bool tkc_rest_spec(const tinkc_allocator *, const tkc_rest_request *, tkc_buf *path, tkc_buf *body,
                   tkc_call_spec *, tinkc_error *err);
/* The whole of a call. Does what a public function must. */
tinkc_future *tkc_rest_start(tinkc_client *, const tkc_rest_class *, const tkc_rest_request *,
                             tkc_decode_fn *decode, tinkc_error *err);

/* Reads the answer's body as this message into *msg, which lies in f->arena. */
bool tkc_rest_decode(tinkc_future *f, const tkc_call *answer, const tkc_message *, void *msg,
                     tinkc_error *err);

/* Run and checkpoint of a path, as the ids of a request. */
enum { TKC_ID_TEXT = 1024 };
typedef struct tkc_path_ids {
    char run[TKC_ID_TEXT], checkpoint[TKC_ID_TEXT];
} tkc_path_ids;
bool tkc_path_ids_parse(const char *path, tkc_path_ids *out, tinkc_error *err);

/* "?a=b&c=d" from pairs; empty values are left out. The caller frees the buffer. */
const char *tkc_make_query(tinkc_client *, tkc_buf *buf, const char *const *pairs,
                           tinkc_error *err);

/* Arguments that every call checks alike. */
bool tkc_check_id(const char *id, const char *name, tinkc_error *err); /* not NULL, not "" */
const char *tkc_scope_name(int32_t scope, tinkc_error *err);           /* "owned"; NULL = wrong */

/* Records point into the message they are made from. */
void tkc_fill_checkpoint(tinkc_checkpoint *, const tkc_checkpoint *);
bool tkc_fill_run(tinkc_run *, const tkc_training_run *, tkc_arena *, tinkc_error *err);
int64_t tkc_time_us(const tkc_time *); /* TINKC_NO_TIME if absent or unreadable */

#endif
