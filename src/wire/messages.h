/* messages.h - every JSON request and response of the protocol except the bulk ones.
 *
 * Struct X and its table X_type (tkc_message_encode(&tkc_create_session_request_type, ...)) are both
 * made from the list in wire/messages.inc, which states each field once. Bulk messages are in
 * wire/train_message.h and wire/sample_message.h; answers of retrieve_future and error bodies in
 * wire/answer.h.
 */
#ifndef TKC_WIRE_MESSAGES_H
#define TKC_WIRE_MESSAGES_H

#include "wire/message_codec.h"

/* {}: for empty bodies, and for answers whose contents are not read. */
typedef struct tkc_empty {
    char unused;
} tkc_empty;
extern const tkc_message tkc_empty_type;

extern const tkc_name tkc_checkpoint_kinds[]; /* training, sampler, external: TINKC_CHECKPOINT_* */
enum { TKC_EXPORT_PENDING = 1, TKC_EXPORT_READY, TKC_EXPORT_FAILED };
enum { TKC_EVENT_SESSION_START = 1, TKC_EVENT_SESSION_END, TKC_EVENT_EXCEPTION, TKC_EVENT_GENERIC };
enum { TKC_DEBUG = 1, TKC_INFO, TKC_WARNING, TKC_ERROR, TKC_CRITICAL };

#define TKC_LIST "wire/messages.inc"
#include "wire/fields_as_structs.h"

#endif
