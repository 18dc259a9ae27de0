/* added.c - finds added tokens: an Aho-Corasick automaton with a filter on the first byte. Pure
 * once built.
 *
 * Each trie node knows where the search continues when the text leaves the trie, so each byte is
 * examined a bounded number of times, however long the tokens are.
 */
#include "bpe/added.h"

#include "unicode/unicode.h"

typedef struct node {
    uint32_t child, sibling; /* 0 = none */
    uint32_t fail;           /* the longest proper suffix that is a prefix of a token; 0 = none */
    uint32_t ends;           /* the longest suffix, itself included, that is a token; 0 = none */
    uint32_t depth;          /* its length */
    int32_t token;           /* index, -1 = none ends here */
    uint8_t byte;
} node;

struct tkc_added_set {
    const tkc_added_token *const *tokens;
    node *nodes; /* 0 is the root */
    uint32_t n_nodes;
    uint32_t first[256]; /* the root's children by byte */
    int only;            /* the only first byte of all tokens, or -1 */
};

static uint32_t child_of(const tkc_added_set *s, uint32_t at, uint8_t byte)
{
    if (at == 0)
        return s->first[byte];
    uint32_t child = s->nodes[at].child;
    while (child && s->nodes[child].byte != byte)
        child = s->nodes[child].sibling;
    return child;
}

static void insert(tkc_added_set *s, tinkc_str pattern, int32_t token)
{
    uint32_t at = 0;
    for (size_t i = 0; i < pattern.len; i++) {
        uint8_t byte = (uint8_t)pattern.data[i];
        uint32_t child = child_of(s, at, byte);
        if (!child) {
            child = s->n_nodes++;
            s->nodes[child] = (node){
                .sibling = s->nodes[at].child, .depth = (uint32_t)i + 1, .token = -1, .byte = byte
            };
            s->nodes[at].child = child;
            if (i == 0)
                s->first[byte] = child;
        }
        at = child;
    }
    if (s->nodes[at].token < 0) /* the first of equal patterns wins */
        s->nodes[at].token = token;
}

/* Where the search continues from node `at`, whose fail is known, with this byte. */
static uint32_t fail_of(const tkc_added_set *s, uint32_t at, uint8_t byte)
{
    uint32_t child = 0;
    while (at && !child) {
        at = s->nodes[at].fail;
        child = child_of(s, at, byte);
    }
    return child;
}

/* In order of depth, because each fail depends on shorter texts. `row` has room for all nodes. */
static void set_fails(tkc_added_set *s, uint32_t *row)
{
    size_t n = 1;
    row[0] = 0;
    for (size_t i = 0; i < n; i++)
        for (uint32_t c = s->nodes[row[i]].child; c; c = s->nodes[c].sibling) {
            node *next = &s->nodes[c];
            next->fail = fail_of(s, row[i], next->byte);
            next->ends = next->token >= 0 ? c : s->nodes[next->fail].ends;
            row[n++] = c;
        }
}

tkc_added_set *tkc_added_set_new(tkc_arena *arena, const tkc_added_token *const *tokens,
                                 const tinkc_str *patterns, size_t n, tinkc_error *err)
{
    size_t most = 1;
    for (size_t i = 0; i < n; i++)
        most += patterns[i].len;
    if (most == 1)
        return NULL;
    if (most > UINT32_MAX / 2) {
        tkc_fail(err, TINKC_E_TOKENIZER, "the added tokens are too long");
        return NULL;
    }
    tkc_added_set *s = tkc_arena_zalloc(arena, sizeof *s, err);
    if (!s || !(s->nodes = tkc_arena_array(arena, most, sizeof *s->nodes, err)))
        return NULL;
    s->tokens = tokens;
    s->n_nodes = 1;
    s->nodes[0].token = -1;
    for (int special = 1; special >= 0; special--)
        for (size_t i = 0; i < n; i++)
            if (patterns[i].len && tokens[i]->special == special)
                insert(s, patterns[i], (int32_t)i);
    uint32_t *row = tkc_arena_array(arena, s->n_nodes, sizeof *row, err);
    if (!row)
        return NULL;
    set_fails(s, row);
    int firsts = 0;
    for (int i = 0; i < 256; i++)
        if (s->first[i]) {
            s->only = i;
            firsts++;
        }
    if (firsts != 1)
        s->only = -1;
    return s;
}

/* The next byte from `at` that can begin a token; len = none. */
static size_t next_first(const tkc_added_set *s, const unsigned char *p, size_t len, size_t at)
{
    if (s->only >= 0) {
        const unsigned char *hit = at < len ? memchr(p + at, s->only, len - at) : NULL;
        return hit ? (size_t)(hit - p) : len;
    }
    while (at < len && !s->first[p[at]])
        at++;
    return at;
}

/* The leftmost token at or after *from, the longest of those that begin there; -1 = none. */
static int32_t find(const tkc_added_set *s, const unsigned char *p, size_t len, size_t *from,
                    size_t *taken)
{
    int32_t found = -1;
    uint32_t at = 0;
    for (size_t i = *from; i < len; i++) {
        if (at == 0 && (i = next_first(s, p, len, i)) == len)
            break;
        uint32_t child = child_of(s, at, p[i]);
        while (at && !child) {
            at = s->nodes[at].fail;
            /* A match is final once no match can begin at or before it any more. */
            if (found >= 0 && i - s->nodes[at].depth > *from)
                return found;
            child = child_of(s, at, p[i]);
        }
        at = child;
        uint32_t ends = s->nodes[at].ends;
        size_t start = i + 1 - s->nodes[ends].depth;
        if (ends && (found < 0 || start <= *from)) {
            found = s->nodes[ends].token;
            *from = start;
            *taken = s->nodes[ends].depth;
        }
        if (found >= 0 && i + 1 - s->nodes[at].depth > *from)
            return found;
    }
    if (found < 0)
        *from = len;
    return found;
}

static bool stands_alone(const unsigned char *text, size_t len, size_t start, size_t end)
{
    const unsigned char *p;
    if (start > 0) {
        p = tkc_char_before(text + start);
        if (tkc_is_word_char(tkc_next_char(&p)))
            return false;
    }
    p = text + end;
    return end == len || !tkc_is_word_char(tkc_next_char(&p));
}

static bool space_before(const unsigned char *text, size_t at, size_t *start)
{
    const unsigned char *p = tkc_char_before(text + at), *q = p;
    *start = (size_t)(p - text);
    return tkc_class_of(tkc_next_char(&q)) & TKC_SPACE;
}

static void swallow_space(const tkc_added_token *token, const unsigned char *text, size_t len,
                          size_t floor, tkc_added_match *m)
{
    for (size_t start; token->lstrip && m->start > floor && space_before(text, m->start, &start);)
        m->start = start > floor ? start : floor;
    if (token->lstrip && m->start < floor)
        m->start = floor;
    if (token->rstrip && m->end < floor) /* white space that the previous token took */
        m->end = floor;
    while (token->rstrip && m->end < len) {
        const unsigned char *p = text + m->end;
        if (!(tkc_class_of(tkc_next_char(&p)) & TKC_SPACE))
            break;
        m->end = (size_t)(p - text);
    }
}

bool tkc_added_next(const tkc_added_set *s, const unsigned char *text, size_t len,
                    bool skip_special, tkc_added_search *search, tkc_added_match *out)
{
    size_t taken = 0;
    if (!s)
        return false;
    for (;;) {
        int32_t found = find(s, text, len, &search->scan, &taken);
        if (found < 0)
            return false;
        const tkc_added_token *token = s->tokens[found];
        size_t start = search->scan, end = start + taken;
        search->scan = end;
        if ((skip_special && token->special) ||
            (token->single_word && !stands_alone(text, len, start, end)))
            continue;
        /* A token inside white space that the previous token took is still a token, and the text
         * after it is text again, as in the reference. */
        *out = (tkc_added_match){ start, end, token };
        swallow_space(token, text, len, search->done, out);
        search->done = out->end;
        if (out->start < out->end)
            return true;
    }
}
