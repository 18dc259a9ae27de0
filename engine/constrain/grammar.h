/* grammar.h - which bytes may follow: an automaton over the bytes of a JSON text.
 *
 * A grammar is a graph of nodes (string, number, object, ...), made by json_grammar.c. A state is a
 * stack of frames, one for each value that is open; it moves by single bytes, so a token may begin
 * or end in the middle of a character. From every reachable state the text can be ended, in a known
 * number of bytes. Depends only on base: no tokens, no batches.
 */
#ifndef TKE_CONSTRAIN_GRAMMAR_H
#define TKE_CONSTRAIN_GRAMMAR_H

#include "constrain/schema_pattern.h"

enum { TKE_GRAMMAR_DEPTH = 64 };        /* values within values */
enum { TKE_GRAMMAR_ENDLESS = 1 << 30 }; /* a cost: the text cannot be ended */

enum tke_node_kind {
    TKE_NODE_STRING,
    TKE_NODE_PATTERN, /* a string that matches */
    TKE_NODE_INTEGER,
    TKE_NODE_NUMBER,
    TKE_NODE_CHOICE, /* one of several texts, each optionally followed by a value */
    TKE_NODE_OBJECT, /* these members, in this order */
    TKE_NODE_MAP,    /* any members */
    TKE_NODE_ARRAY,
    TKE_NODE_EITHER /* one of several nodes, distinguished by their first bytes */
};

typedef struct tke_member { /* of an object */
    tinkc_str key;          /* with its quotes, as written */
    uint32_t node;
    bool required;
} tke_member;

typedef struct tke_option { /* of a choice; ordered by text */
    tinkc_str text;
    bool has_value;
    uint32_t node;  /* the value after the text */
    tinkc_str tail; /* and what follows it */
} tke_option;

typedef struct tke_node {
    int32_t kind;     /* TKE_NODE_* */
    uint32_t item;    /* array, map: the node of each value */
    int64_t min, max; /* string: characters; integer: the value; array: items */
    size_t n;         /* members, options or branches */
    tke_member *members;
    tke_option *options;
    uint32_t *branches;
    const tke_pattern *pattern;
    int32_t cost;      /* bytes of the shortest text */
    uint64_t first[4]; /* which bytes a text begins with */
} tke_node;

typedef struct tke_grammar {
    tke_node *nodes;
    size_t n, cap;
    uint32_t root;
    uint32_t key; /* the node of a map's keys */
} tke_grammar;

typedef struct tke_frame { /* 32 bytes, without holes: frames are compared as bytes */
    uint32_t node;
    uint16_t phase;
    uint16_t
        space; /* white space since the last sign: 0, 1 = a blank, 2 + n = a new line and n blanks */
    uint32_t count, at, pos;
    uint32_t unused;
    int64_t value;
} tke_frame;

typedef struct tke_grammar_state {
    size_t depth; /* 0 = the text is complete */
    tke_frame frames[TKE_GRAMMAR_DEPTH];
} tke_grammar_state;

/* Computes the cost and first bytes of each node. BAD_REQUEST: there is no finite text. */
bool tke_grammar_settle(tke_grammar *, tinkc_error *err);
void tke_grammar_start(const tke_grammar *, tke_grammar_state *);
/* Advances by one byte; false = it may not follow, and the state is invalid. */
bool tke_grammar_step(const tke_grammar *, tke_grammar_state *, uint8_t byte);
/* Whether the text may end here. */
bool tke_grammar_may_end(const tke_grammar *, const tke_grammar_state *);
/* The number of bytes that suffices to end the text from here. */
int64_t tke_grammar_cost(const tke_grammar *, const tke_grammar_state *);
void tke_grammar_copy(tke_grammar_state *to, const tke_grammar_state *from);

#endif
