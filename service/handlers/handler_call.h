/* handler_call.h - one request in progress, and every way to answer it.
 *
 * A call lives on the stack of the thread that handles it, or in a deferred request; no other thread
 * touches it, so it has no lock. Answering takes none, unless a function says so.
 */
#ifndef TKE_SERVICE_HANDLER_CALL_H
#define TKE_SERVICE_HANDLER_CALL_H

#include "base/arena.h"
#include "base/buf.h"
#include "service/core/service_types.h"
#include "service/store/store.h"
#include "tinkc/sys/transport.h"
#include "wire/answer.h"
#include "wire/endpoint.h"
#include "wire/messages.h"
#include "wire/sample_message.h"

struct tke_call {
    tke_service *svc;
    const tinkc_request *request;
    tinkc_reply *reply;
    const char *owner;
    const tke_caller *caller;
    uint32_t flags;
    tkc_route route;
    tinkc_str path; /* without query; OpenAI's as if under /v1/ */
    tinkc_str query;
    tinkc_str body; /* after decompression */
    bool openai;    /* a form of service/chat; refusals have it */
    bool anthropic; /* Anthropic's */
    int64_t held_tokens; /* by the samples that this call has made so far: see tke_quota_tokens */
    tkc_arena arena;
    const char *unknown; /* a field of the body that is not known, once that is decoded */
    tinkc_error err;
};

void tke_send(tinkc_reply *, int32_t status, const char *type, tinkc_str body);
void tke_send_json(tinkc_reply *, int32_t status, tinkc_str body);
/* {"detail", "code"}; any status. */
void tke_send_error(tinkc_reply *, const tinkc_allocator *a, int32_t status, const char *code,
                    const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Removes what clients must not see from an error: the location of our files. */
void tke_hide_paths(tinkc_error *);
/* The status and code that fit what is in err. */
int32_t tke_failure_status(const tinkc_error *err, const char **code);
void tke_send_failure(tinkc_reply *, const tinkc_allocator *a, const tinkc_error *err);
/* Encodes and sends; 200. */
void tke_answer(tke_call *, const tkc_message *, const void *msg);
void tke_refuse(tke_call *, int32_t status, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* 429 with Retry-After. */
void tke_refuse_for(tke_call *, int64_t retry_after_s, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The same, once a transaction is committed; txn NULL = at once. */
void tke_refuse_after(tke_call *, tke_txn *, int32_t status, const char *code, const char *format,
                      ...) __attribute__((format(printf, 5, 6)));
/* 200 with this JSON, which is freed; or what call->err says. */
void tke_answer_text(tke_call *, tkc_buf *json);
/* Commits, then sends; the text is copied. Status 204 sends no body. */
void tke_answer_after(tke_call *, tke_txn *, int32_t status, tinkc_str json);
/* The same, with 200 and a message. After an error in call->err: commits, and sends that. */
void tke_answer_stored(tke_call *, tke_txn *, const tkc_message *, const void *msg);
const char *tke_call_header(const tke_call *, const char *name);
/* Is it one of the base models that the server which was called offers? */
bool tke_call_offers(const tke_call *, const char *model);
/* What its body is, by its Content-Type; one without a type is JSON. */
bool tke_call_is_protobuf(const tke_call *);
bool tke_call_is_json(const tke_call *);
/* A parameter of the query, decoded into the arena; NULL = not there. */
const char *tke_call_query(tke_call *, const char *name);
/* The checkpoint that the request's path names, if it is the caller's; else answers and returns
 * NULL. public_too: also public ones of other owners. */
tke_checkpoint *tke_call_checkpoint(tke_call *, bool public_too);
/* Where clients reach this server, without a slash at its end; in the call's arena. */
const char *tke_call_base_url(tke_call *);
/* An integer parameter; answers 400 and returns false if it is none. */
bool tke_call_query_i64(tke_call *, const char *name, int64_t fallback, int64_t *out);
/* Decodes the JSON body. False after an answer: 422 if it cannot, 400 if it has an unknown field. */
bool tke_call_decode(tke_call *, const tkc_message *, void *msg);
/* The same, but leaves unknown fields to the caller, who has a better answer to some of them. */
bool tke_call_parse(tke_call *, const tkc_message *, void *msg);
bool tke_call_is_python(tke_call *); /* as its headers say */
/* Answers and releases svc->lock, which the caller holds; the message may point to guarded data. */
void tke_answer_locked(tke_call *, const tkc_message *, const void *msg);
/* A caller acts with one key: tokens of other accounts would be ignored. */
#define TKE_NO_ACCESS_TOKEN                                                                        \
    "is not supported by this server: publish the checkpoint, or use a key of its owner"
/* The owner's URN, which clients see; in the call's arena. NULL: call->err says why. */
const char *tke_call_urn(tke_call *, const char *owner);

#endif
