/* added.c - a small trie of added tokens behind a filter on the first byte. Pure once made. */
#include "tokenizer/added.h"

#include "tokenizer/unicode.h"

typedef struct node {
    uint32_t child, sibling; /* 0 = none */
    int32_t token;           /* index, -1 = none ends here */
    uint8_t byte;
} node;

struct tkc_added_set {
    const tkc_added_token *const *tokens;
    node *nodes; /* 0 is the root */
    uint32_t n_nodes;
    uint32_t first[256]; /* the root's children by byte */
    int only;            /* the one first byte there is, or -1 */
};

static uint32_t child_of(const tkc_added_set *s, uint32_t at, uint8_t byte)
{
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
        uint32_t child = i == 0 ? s->first[byte] : child_of(s, at, byte);
        if (!child) {
            child = s->n_nodes++;
            s->nodes[child] = (node){ 0, s->nodes[at].child, -1, byte };
            s->nodes[at].child = child;
            if (i == 0)
                s->first[byte] = child;
        }
        at = child;
    }
    if (s->nodes[at].token < 0) /* of equal patterns the first counts */
        s->nodes[at].token = token;
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

/* The longest token that begins at p; -1 = none. */
static int32_t longest_at(const tkc_added_set *s, const unsigned char *p, size_t len, size_t *taken)
{
    uint32_t at = s->first[p[0]];
    int32_t found = -1;
    for (size_t i = 1; at; i++) {
        if (s->nodes[at].token >= 0) {
            found = s->nodes[at].token;
            *taken = i;
        }
        at = i < len ? child_of(s, at, p[i]) : 0;
    }
    return found;
}

static int32_t find(const tkc_added_set *s, const unsigned char *p, size_t len, size_t *from,
                    size_t *taken)
{
    for (size_t at = *from; at < len; at++) {
        if (s->only >= 0) {
            const unsigned char *hit = memchr(p + at, s->only, len - at);
            if (!hit)
                break;
            at = (size_t)(hit - p);
        } else {
            while (at < len && !s->first[p[at]])
                at++;
            if (at == len)
                break;
        }
        int32_t token = longest_at(s, p + at, len - at, taken);
        if (token >= 0) {
            *from = at;
            return token;
        }
    }
    *from = len;
    return -1;
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
        /* A token inside white space that the one before swallowed is a token all the same, and
         * what is behind it is text again: so does the reference. */
        *out = (tkc_added_match){ start, end, token };
        swallow_space(token, text, len, search->done, out);
        search->done = out->end;
        if (out->start < out->end)
            return true;
    }
}
