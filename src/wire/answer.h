/* answer.h - JSON answers of retrieve_future, and error bodies. */
#ifndef TKC_WIRE_ANSWER_H
#define TKC_WIRE_ANSWER_H

#include "wire/message_codec.h"

enum { TKC_QUEUE_ACTIVE = 1, TKC_QUEUE_CAPACITY, TKC_QUEUE_RATE_LIMIT };
enum { TKC_CATEGORY_UNKNOWN = 1, TKC_CATEGORY_SERVER, TKC_CATEGORY_USER };

/* A future's state, in the order in which a client tests for it. */
enum { TKC_ANSWER_RESULT = 0, TKC_ANSWER_TRY_AGAIN, TKC_ANSWER_METADATA, TKC_ANSWER_FAILED };

typedef struct tkc_answer {
    int32_t kind;
    const char *request_id;
    tkc_name queue_state;           /* TRY_AGAIN, and bodies of 408; TKC_UNKNOWN = not known */
    const char *queue_state_reason; /* NULL = none */
    int64_t response_payload_size;  /* METADATA */
    const char *error;              /* FAILED; never NULL then */
    tkc_name category;              /* FAILED: TKC_CATEGORY_*; UNKNOWN if absent */
} tkc_answer;

/* Classifies a JSON body of status 200 or 408. Names are case-insensitive. A RESULT is then decoded
 * from the same text by its endpoint's message. Errors: BAD_RESPONSE (not a JSON object). */
bool tkc_answer_read(tinkc_str json, tkc_arena *, tkc_answer *, tinkc_error *err);
/* Writes TRY_AGAIN, METADATA or FAILED. */
bool tkc_answer_write(const tkc_answer *, tkc_buf *out, tinkc_error *err);

/* ---- error bodies of other statuses ---- */

typedef struct tkc_error_body {
    const char *detail; /* one sentence; NULL = none */
    const char *code;   /* snake_case; NULL = none */
    bool is_json;       /* the body was a JSON object */
} tkc_error_body;

/* Reads {"detail": "..."}, the list form of 422, {"error": ...} and {"message": ...}; any other
 * text is the detail itself, cut at 300 bytes. Fails only if memory is exhausted. */
bool tkc_error_body_read(tinkc_str body, tkc_arena *, tkc_error_body *, tinkc_error *err);
bool tkc_error_body_write(const tkc_error_body *, tkc_buf *out, tinkc_error *err);

#endif
