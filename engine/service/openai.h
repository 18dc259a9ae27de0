/* openai.h - between the front of /v1/ and the writer of its answers. Internal. */
#ifndef TKE_SERVICE_OPENAI_H
#define TKE_SERVICE_OPENAI_H

#include "service/state.h"

/* An answer on its way; lives in its job's arena, and belongs to the worker once it is queued. */
typedef struct tke_openai_answer {
    const tke_job *job; /* whose generator's rules tell where a text ends */
    const char *model;  /* as it was asked for */
    char id[40];
    int64_t created_s;
    bool chat;
    bool usage;    /* of a stream: a last event says how many tokens */
    bool begun;    /* of a stream: the first event is out */
    tkc_buf held;  /* bytes that may yet turn out to be no text */
    size_t n_seen; /* tokens of the sequence that went into held */
} tke_openai_answer;

extern const tke_stream_style tke_openai_whole, tke_openai_events;

#endif
