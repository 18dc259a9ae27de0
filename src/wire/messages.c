/* messages.c - the tables of all JSON messages, made from wire/messages.inc, and the names of
 * enumerations. Data only: wire/message_codec.c does the work. */
#include "wire/messages.h"

#include "tinkc/rest.h"

const tkc_message tkc_empty_type = { "empty body", sizeof(tkc_empty), NULL, 0, NULL };

const tkc_name tkc_checkpoint_kinds[] = {
    { "training", TINKC_CHECKPOINT_TRAINING },
    { "sampler", TINKC_CHECKPOINT_SAMPLER },
    { "external", TINKC_CHECKPOINT_EXTERNAL },
    { NULL, 0 },
};
static const tkc_name session_states[] = {
    { "active", TINKC_SESSION_ACTIVE },
    { "cancelled", TINKC_SESSION_CANCELLED },
    { "failed", TINKC_SESSION_FAILED },
    { "client_finished", TINKC_SESSION_FINISHED },
    { NULL, 0 },
};
static const tkc_name export_states[] = {
    { "pending", TKC_EXPORT_PENDING },
    { "ready", TKC_EXPORT_READY },
    { "failed", TKC_EXPORT_FAILED },
    { NULL, 0 },
};
static const tkc_name usage_kinds[] = {
    { "training", TINKC_USAGE_TRAINING },      { "sampling_prefill", TINKC_USAGE_PREFILL },
    { "sampling_sample", TINKC_USAGE_SAMPLE }, { "checkpoint", TINKC_USAGE_CHECKPOINT },
    { "storage", TINKC_USAGE_STORAGE },        { NULL, 0 },
};
static const tkc_name event_kinds[] = {
    { "SESSION_START", TKC_EVENT_SESSION_START },
    { "SESSION_END", TKC_EVENT_SESSION_END },
    { "UNHANDLED_EXCEPTION", TKC_EVENT_EXCEPTION },
    { "GENERIC_EVENT", TKC_EVENT_GENERIC },
    { NULL, 0 },
};
static const tkc_name severities[] = {
    { "DEBUG", TKC_DEBUG }, { "INFO", TKC_INFO },         { "WARNING", TKC_WARNING },
    { "ERROR", TKC_ERROR }, { "CRITICAL", TKC_CRITICAL }, { NULL, 0 },
};

#define TKC_LIST "wire/messages.inc"
#include "wire/fields_as_tables.h"
