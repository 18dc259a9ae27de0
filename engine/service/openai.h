/* openai.h - between the front of /v1/ and the writer of its answers. Internal. */
#ifndef TKE_SERVICE_OPENAI_H
#define TKE_SERVICE_OPENAI_H

#include "service/openai_format.h"

/* One choice on its way. */
typedef struct tke_openai_choice {
    tkc_buf held;      /* bytes that may turn out not to be text */
    size_t n_seen;     /* tokens of the sequence that went into held */
    size_t n_sent;     /* bytes that left it again, as text */
    size_t n_told;     /* tokens whose log-probs are sent, those of an echo too */
    size_t told_bytes; /* of those that were generated */
    size_t told_chars; /* of all */
    bool begun, finished;
} tke_openai_choice;

/* One prompt: a job with its choices. The worker's, once it is queued. */
typedef struct tke_openai_part {
    struct tke_openai_answer *answer;
    const tke_job *job;         /* whose generator's rules tell where a text ends; until its end */
    size_t index;               /* of its first choice */
    tke_openai_choice *choices; /* [n_samples] */
    tkc_buf text;               /* of a whole answer: its choices as JSON, with commas */
} tke_openai_part;

/* An answer; lives until the last of its parts has ended. */
typedef struct tke_openai_answer {
    tkc_arena arena;   /* all of it is in here */
    const char *model; /* as it was asked for */
    char id[40];
    int64_t created_s;
    bool chat, echo, logprobs;
    int32_t calls;             /* TKE_CALLS_*: how calls stand in the text */
    size_t top;                /* log-probs of so many other tokens beside each */
    bool usage;                /* of a stream: a last event says how many tokens */
    tke_token_bytes_fn *names; /* the bytes of every token, marks too */
    tke_openai_part *parts;
    size_t n_parts, n_left;
    int64_t prompt_tokens, made;
    tinkc_error failed; /* the first of the parts that did */
} tke_openai_answer;

/* An answer to `like` with so many parts and choices; NULL: err says why. It ends with its parts,
 * or by tke_openai_answer_free where none has begun. */
tke_openai_answer *tke_openai_answer_new(const tinkc_allocator *, const tke_openai_answer *like,
                                         size_t n_parts, size_t n_choices, tinkc_error *err);
void tke_openai_answer_free(tke_openai_answer *, size_t n_choices);

extern const tke_stream_style tke_openai_whole, tke_openai_events;

#endif
