/* tables_build.c - from a vocabulary and its merges to the block of tables.
 *
 * May touch: the vocabulary it is given, the block it builds. The data derived here (which tokens
 * are reachable by merges, from which parts, where a text can be cut) lets encoding run in linear
 * time; bpe.c explains why it is exact.
 */
#include <assert.h>
#include <string.h>

#include "bpe/bpe.h"
#include "bpe/tables_layout.h"
#include "unicode/unicode.h"

enum { MAX_PROBES = 4096 }; /* a vocabulary crafted to collide is rejected */

typedef struct tkc_builder build;
struct tkc_builder {
    const tkc_vocab_token *tokens;
    size_t n_tokens;
    tkc_merges m;
    tkc_arena *temp;
    tinkc_error *err;
    tkc_tables t; /* points into the arrays below while they are built */
    uint32_t *offset;
    unsigned char *text;
    uint8_t *flags;
    int32_t *byte_ids;
    tkc_word_slot *words;
    uint64_t *pairs;
    uint32_t *merged;
    uint64_t *filter, *cut_pairs;
    uint8_t *cut_bytes;
    uint32_t *byte_pairs;
    tkc_split *split;
    tkc_trie_node *nodes;
    uint8_t *labels;
    uint64_t n_words, n_pairs, n_filter, n_cuts; /* slots; words of 64 bits */
};

static uint64_t power_above(uint64_t n, uint64_t least)
{
    uint64_t p = least;
    while (p < n)
        p *= 2;
    return p;
}

static uint32_t shift_of(uint64_t slots)
{
    return 64 - (uint32_t)__builtin_ctzll(slots);
}

/* ---- tokens ---- */

/* Counts ids and bytes, and makes room for texts. */
static bool count_tokens(build *b)
{
    uint64_t n = 0, bytes = 0;
    for (size_t i = 0; i < b->n_tokens; i++) {
        const tkc_vocab_token *token = &b->tokens[i];
        n = token->id >= n ? (uint64_t)token->id + 1 : n;
        bytes += token->text.len;
    }
    if (n == 0)
        return tkc_fail(b->err, TINKC_E_TOKENIZER, "the vocabulary is empty");
    if (n > 4 * b->n_tokens + 1000000 || n > TKC_MAX_IDS || bytes > UINT32_MAX / 2)
        return tkc_fail(b->err, TINKC_E_TOKENIZER, "token id %u is too large", (uint32_t)(n - 1));
    b->t.n = (uint32_t)n;
    b->offset = tkc_arena_array(b->temp, n + 1, sizeof *b->offset, b->err);
    b->flags = tkc_arena_array(b->temp, n, 1, b->err);
    b->text = tkc_arena_alloc(b->temp, bytes + 1, b->err);
    return !tkc_failed(b->err);
}

static bool lay_out_texts(build *b)
{
    for (size_t i = 0; i < b->n_tokens; i++) {
        const tkc_vocab_token *token = &b->tokens[i];
        if (b->flags[token->id])
            return tkc_fail(b->err, TINKC_E_TOKENIZER, "two tokens have the id %u", token->id);
        b->flags[token->id] = TKC_TOKEN_KNOWN;
        b->offset[token->id + 1] = (uint32_t)token->text.len;
    }
    for (uint32_t i = 0; i < b->t.n; i++)
        b->offset[i + 1] += b->offset[i];
    for (size_t i = 0; i < b->n_tokens; i++) {
        const tkc_vocab_token *token = &b->tokens[i];
        memcpy(b->text + b->offset[token->id], token->text.data, token->text.len);
        if (token->is_bytes && token->text.len > 0)
            b->flags[token->id] |= TKC_TOKEN_BYTES;
        if (tkc_utf8_sound((const unsigned char *)token->text.data, token->text.len, NULL) ==
            token->text.len)
            b->flags[token->id] |= TKC_TOKEN_SOUND;
    }
    b->t.offset = b->offset;
    b->t.text = b->text;
    b->t.flags = b->flags;
    return true;
}

static bool add_word(build *b, uint32_t id)
{
    tinkc_bytes text = tkc_token_text(&b->t, id);
    uint64_t h = tkc_word_hash(text.data, text.len), mask = b->n_words - 1;
    uint64_t at = h >> b->t.word_shift;
    for (int probes = 0; b->words[at].tag; at = (at + 1) & mask) {
        tinkc_bytes other = tkc_token_text(&b->t, (uint32_t)b->words[at].id);
        if (other.len == text.len && memcmp(other.data, text.data, text.len) == 0)
            return tkc_fail(b->err, TINKC_E_TOKENIZER, "tokens %d and %u have the same text",
                            b->words[at].id, id);
        if (++probes == MAX_PROBES)
            return tkc_fail(b->err, TINKC_E_TOKENIZER, "the vocabulary is made to collide");
    }
    b->words[at] =
        (tkc_word_slot){ (uint32_t)h | 1, (int32_t)id, b->offset[id], (uint32_t)text.len };
    return true;
}

static bool index_words(build *b)
{
    b->byte_ids = tkc_arena_array(b->temp, 256, sizeof *b->byte_ids, b->err);
    b->n_words = power_above(b->n_tokens * 3 / 2 + 2, 16);
    b->words = tkc_arena_array(b->temp, b->n_words, sizeof *b->words, b->err);
    if (tkc_failed(b->err))
        return false;
    b->t.words = b->words;
    b->t.word_shift = shift_of(b->n_words);
    for (size_t i = 0; i < 256; i++)
        b->byte_ids[i] = -1;
    b->t.all_bytes = true;
    for (uint32_t id = 0; id < b->t.n; id++) {
        if (!(b->flags[id] & TKC_TOKEN_BYTES))
            continue;
        tinkc_bytes text = tkc_token_text(&b->t, id);
        if (!add_word(b, id))
            return false;
        if (text.len == 1)
            b->byte_ids[text.data[0]] = (int32_t)id;
        if (text.len > b->t.max_len)
            b->t.max_len = (uint32_t)text.len;
    }
    for (size_t i = 0; i < 256; i++)
        b->t.all_bytes &= b->byte_ids[i] >= 0;
    b->t.byte_ids = b->byte_ids;
    return true;
}

/* ---- merges ---- */

static bool add_pair(build *b, const tkc_merge *m)
{
    uint64_t h = tkc_pair_hash(m->left, m->right), mask = b->n_pairs - 1;
    uint64_t at = h >> b->t.pair_shift, bit = h >> b->t.filter_shift;
    assert(m->left < b->t.n && m->right < b->t.n && m->id < b->t.n && m->rank < b->t.n_ranks);
    for (int probes = 0; b->pairs[at] != TKC_NO_PAIR; at = (at + 1) & mask) {
        if ((b->pairs[at] ^ tkc_pair_key(m->left, m->right)) >> 24 == 0)
            break; /* a repeated pair keeps its last rank */
        if (++probes == MAX_PROBES)
            return tkc_fail(b->err, TINKC_E_TOKENIZER, "the merges are made to collide");
    }
    b->pairs[at] = tkc_pair_key(m->left, m->right) | m->rank;
    b->merged[m->rank] = m->id;
    b->filter[bit >> 6] |= UINT64_C(1) << (bit & 63);
    return true;
}

static bool index_pairs(build *b)
{
    b->n_pairs = power_above(b->m.n * 3 / 2 + 2, 16);
    b->n_filter = power_above(b->m.n / 5 + 2, 16); /* about 16 bits a pair */
    b->pairs = tkc_arena_array(b->temp, b->n_pairs, sizeof *b->pairs, b->err);
    b->filter = tkc_arena_array(b->temp, b->n_filter, sizeof *b->filter, b->err);
    for (size_t i = 0; i < b->m.n; i++)
        b->t.n_ranks = b->m.data[i].rank >= b->t.n_ranks ? b->m.data[i].rank + 1 : b->t.n_ranks;
    if (b->t.n_ranks > TKC_MAX_RANKS)
        return tkc_fail(b->err, TINKC_E_TOKENIZER, "too many merges");
    b->merged = tkc_arena_array(b->temp, (size_t)b->t.n_ranks + 1, sizeof *b->merged, b->err);
    if (tkc_failed(b->err))
        return false;
    for (uint64_t i = 0; i < b->n_pairs; i++)
        b->pairs[i] = TKC_NO_PAIR;
    b->t.pair_shift = shift_of(b->n_pairs);
    b->t.filter_shift = shift_of(b->n_filter * 64);
    b->t.pairs = b->pairs;
    b->t.merged = b->merged;
    b->t.pair_filter = b->filter;
    for (size_t i = 0; i < b->m.n; i++)
        if (!add_pair(b, &b->m.data[i]))
            return false;
    return true;
}

/* Every piece begins with merges of single bytes, so these have their own table. */
static bool index_byte_pairs(build *b)
{
    b->byte_pairs = tkc_arena_array(b->temp, 65536, sizeof *b->byte_pairs, b->err);
    for (size_t i = 0; b->byte_pairs && i < 65536; i++) {
        int32_t left = b->byte_ids[i >> 8], right = b->byte_ids[i & 255];
        b->byte_pairs[i] = left < 0 || right < 0
                               ? TKC_NO_RANK
                               : tkc_pair_rank(&b->t, (uint32_t)left, (uint32_t)right);
    }
    return b->byte_pairs != NULL;
}

/* ---- which tokens are reachable: their own text merges into them ---- */

static bool is_settled(const build *b, uint32_t id, uint32_t before_rank)
{
    return b->flags[id] & TKC_TOKEN_REACHABLE && b->split[id].made <= before_rank;
}

/* In order of rank: a merge produces its token from the token's own text if both parts are complete
 * before it and no merge crosses the border between them earlier. */
static void settle_in_order(build *b)
{
    for (size_t i = 0; i < b->m.n; i++) {
        const tkc_merge *m = &b->m.data[i];
        if (b->flags[m->id] & TKC_TOKEN_REACHABLE ||
            tkc_pair_rank(&b->t, m->left, m->right) != m->rank)
            continue;
        if (!is_settled(b, m->left, m->rank) || !is_settled(b, m->right, m->rank) ||
            !tkc_pair_stays(&b->t, m->left, m->right, m->rank))
            continue;
        b->split[m->id] = (tkc_split){ m->left, m->right, m->rank + 1 };
        b->flags[m->id] |= TKC_TOKEN_REACHABLE;
    }
}

/* The rest is decided by merging for real. */
static bool settle_by_trial(build *b)
{
    int32_t *ids = tkc_arena_alloc(b->temp, ((size_t)b->t.max_len + 1) * sizeof *ids, b->err);
    tkc_bpe_work work = { 0 };
    for (size_t i = 0; ids && i < b->m.n && !tkc_failed(b->err); i++) {
        uint32_t id = b->m.data[i].id;
        if (b->flags[id] & (TKC_TOKEN_REACHABLE | TKC_TOKEN_IRREGULAR))
            continue;
        tinkc_bytes text = tkc_token_text(&b->t, id);
        int64_t n = tkc_bpe_heap(&b->t, &work, text.data, text.len, ids, b->err);
        b->flags[id] |= TKC_TOKEN_IRREGULAR; /* tried */
        if (n == 1 && ids[0] == (int32_t)id) {
            b->flags[id] |= TKC_TOKEN_REACHABLE;
            b->t.regular = false;
        }
    }
    tkc_bpe_work_free(&work);
    for (uint32_t id = 0; id < b->t.n; id++)
        if (!(b->flags[id] & TKC_TOKEN_REACHABLE))
            b->flags[id] &= (uint8_t)~TKC_TOKEN_IRREGULAR;
    return !tkc_failed(b->err);
}

/* Whether merging may begin with this token: a byte or, in a vocabulary of pieces, a character. */
static bool is_first(const build *b, uint32_t id)
{
    tinkc_bytes text = tkc_token_text(&b->t, id);
    return b->flags[id] & TKC_TOKEN_BYTES &&
           (text.len == 1 || (b->t.pieces && text.len == tkc_char_bytes(*text.data)));
}

static bool settle(build *b)
{
    b->split = tkc_arena_array(b->temp, b->t.n, sizeof *b->split, b->err);
    if (!b->split)
        return false;
    for (uint32_t i = 0; i < b->t.n; i++)
        b->split[i] = (tkc_split){ i, i, 0 };
    for (uint32_t i = 0; i < b->t.n; i++)
        if (is_first(b, i))
            b->flags[i] |= TKC_TOKEN_REACHABLE;
    b->t.split = b->split;
    b->t.regular = true;
    if (!b->t.pieces) /* it takes each rank for a level of its own */
        settle_in_order(b);
    if (!settle_by_trial(b))
        return false;
    b->t.ignore_merges = b->m.ignore_merges;
    for (uint32_t i = 0; i < b->t.n; i++)
        if (b->flags[i] & TKC_TOKEN_BYTES &&
            (b->m.ignore_merges || b->flags[i] & TKC_TOKEN_REACHABLE))
            b->flags[i] |= TKC_TOKEN_WHOLE;
    return true;
}

/* ---- where a text can be cut ---- */

static bool is_lead(unsigned char c)
{
    return (c & 0xC0) != 0x80;
}

/* The whole character that ends before text[at], or UINT32_MAX if the token has only part of it. */
static uint32_t char_ending(tinkc_bytes text, size_t at)
{
    size_t lead = at - 1;
    while (lead > 0 && !is_lead(text.data[lead]))
        lead--;
    const unsigned char *p = text.data + lead;
    if (tkc_utf8_sound(p, at - lead, NULL) != at - lead || tkc_char_bytes(*p) != at - lead)
        return UINT32_MAX;
    return tkc_next_char(&p);
}

static uint32_t char_starting(tinkc_bytes text, size_t at)
{
    const unsigned char *p = text.data + at;
    size_t n = tkc_char_bytes(*p);
    if (n > text.len - at || tkc_utf8_sound(p, n, NULL) != n)
        return UINT32_MAX;
    return tkc_next_char(&p);
}

static void note_borders(build *b, tinkc_bytes text)
{
    for (size_t i = 1; i < text.len; i++) {
        if (!is_lead(text.data[i]) || (text.data[i] < 0x80 && text.data[i - 1] < 0x80))
            continue;
        uint32_t before = char_ending(text, i), after = char_starting(text, i);
        if (before == UINT32_MAX || after == UINT32_MAX) {
            uint32_t bytes = (uint32_t)text.data[i - 1] << 8 | text.data[i];
            b->cut_bytes[bytes >> 3] |= (uint8_t)(1u << (bytes & 7));
        } else {
            uint64_t bit = tkc_pair_hash(before, after) >> b->t.cut_shift;
            b->cut_pairs[bit >> 6] |= UINT64_C(1) << (bit & 63);
        }
    }
}

static bool find_cuts(build *b)
{
    b->n_cuts = power_above(b->n_tokens / 12 + 2, 16);
    b->cut_pairs = tkc_arena_array(b->temp, b->n_cuts, sizeof *b->cut_pairs, b->err);
    b->cut_bytes = tkc_arena_array(b->temp, 8192, 1, b->err);
    if (tkc_failed(b->err))
        return false;
    b->t.cut_shift = shift_of(b->n_cuts * 64);
    for (uint32_t id = 0; id < b->t.n; id++)
        if (b->flags[id] & TKC_TOKEN_BYTES)
            note_borders(b, tkc_token_text(&b->t, id));
    return true;
}

/* ---- the trie ---- */

typedef struct sort_key {
    uint64_t head; /* the first eight bytes, so that numbers sort like bytes */
    uint32_t id;
} sort_key;

static uint64_t head_of(tinkc_bytes text)
{
    unsigned char head[8] = { 0 };
    memcpy(head, text.data, text.len < 8 ? text.len : 8);
    uint64_t v = 0;
    for (size_t i = 0; i < 8; i++)
        v = v << 8 | head[i];
    return v;
}

/* Radix sort, least significant byte first; returns the array that holds the result. */
static sort_key *sort_heads(sort_key *from, sort_key *to, size_t n)
{
    for (int shift = 0; shift < 64; shift += 8) {
        size_t start[257] = { 0 };
        for (size_t i = 0; i < n; i++)
            start[(from[i].head >> shift & 255) + 1]++;
        for (size_t i = 0; i < 256; i++)
            start[i + 1] += start[i];
        for (size_t i = 0; i < n; i++)
            to[start[from[i].head >> shift & 255]++] = from[i];
        sort_key *swap = from;
        from = to;
        to = swap;
    }
    return from;
}

static bool text_before(const build *b, uint32_t x, uint32_t y)
{
    tinkc_bytes a = tkc_token_text(&b->t, x), c = tkc_token_text(&b->t, y);
    int order = memcmp(a.data, c.data, a.len < c.len ? a.len : c.len);
    return order < 0 || (order == 0 && a.len < c.len);
}

/* Sorts keys[0, n), whose heads are equal. Groups are small in real vocabularies; heap sort bounds
 * the time for all others. */
static void sort_group(const build *b, sort_key *keys, size_t n)
{
    for (size_t end = n, start = n / 2; end > 1;) {
        if (start > 0) {
            start--;
        } else {
            sort_key last = keys[--end];
            keys[end] = keys[0];
            keys[0] = last;
        }
        sort_key moving = keys[start];
        size_t i = start, child;
        for (; (child = 2 * i + 1) < end; i = child) {
            if (child + 1 < end && text_before(b, keys[child].id, keys[child + 1].id))
                child++;
            if (!text_before(b, moving.id, keys[child].id))
                break;
            keys[i] = keys[child];
        }
        keys[i] = moving;
    }
}

/* The reachable tokens, sorted by text. */
static sort_key *sorted_tokens(build *b, size_t *n_out)
{
    size_t n = 0;
    sort_key *x = tkc_arena_alloc(b->temp, ((size_t)b->t.n + 1) * sizeof *x, b->err);
    sort_key *y = tkc_arena_alloc(b->temp, ((size_t)b->t.n + 1) * sizeof *y, b->err);
    if (!x || !y)
        return NULL;
    for (uint32_t id = 0; id < b->t.n; id++)
        if (b->flags[id] & TKC_TOKEN_REACHABLE)
            x[n++] = (sort_key){ head_of(tkc_token_text(&b->t, id)), id };
    sort_key *keys = sort_heads(x, y, n);
    for (size_t i = 0, j; i < n; i = j) {
        for (j = i + 1; j < n && keys[j].head == keys[i].head; j++)
            ;
        sort_group(b, keys + i, j - i);
    }
    *n_out = n;
    return keys;
}

typedef struct range {
    uint32_t lo, hi; /* of the sorted tokens: those that begin with a node's text */
} range;

/* Node by node in order of depth, so that each node's children follow those of the previous
 * node. */
static bool make_nodes(build *b, const sort_key *keys, size_t n, size_t max_nodes)
{
    range *ranges = tkc_arena_alloc(b->temp, max_nodes * sizeof *ranges, b->err);
    uint32_t n_nodes = 1, depth = 0, level_end = 1;
    if (!ranges)
        return false;
    ranges[0] = (range){ 0, (uint32_t)n };
    for (uint32_t node = 0; node < n_nodes; node++) {
        if (node == level_end) {
            depth++;
            level_end = n_nodes;
        }
        uint32_t lo = ranges[node].lo, hi = ranges[node].hi;
        b->nodes[node] = (tkc_trie_node){ n_nodes, -1 };
        if (lo < hi && tkc_token_text(&b->t, keys[lo].id).len == depth)
            b->nodes[node].token = (int32_t)keys[lo++].id;
        while (lo < hi) {
            uint8_t label = tkc_token_text(&b->t, keys[lo].id).data[depth];
            uint32_t start = lo++;
            while (lo < hi && tkc_token_text(&b->t, keys[lo].id).data[depth] == label)
                lo++;
            b->labels[n_nodes] = label;
            ranges[n_nodes++] = (range){ start, lo };
        }
    }
    b->nodes[n_nodes] = (tkc_trie_node){ n_nodes, -1 };
    b->t.n_nodes = n_nodes;
    return true;
}

static bool make_trie(build *b)
{
    size_t n, most = 2;
    const sort_key *keys = sorted_tokens(b, &n);
    if (!keys)
        return false;
    for (size_t i = 0; i < n; i++)
        most += tkc_token_text(&b->t, keys[i].id).len;
    if (most > UINT32_MAX / 2)
        return tkc_fail(b->err, TINKC_E_TOKENIZER, "the vocabulary is too large");
    b->nodes = tkc_arena_alloc(b->temp, most * sizeof *b->nodes, b->err);
    b->labels = tkc_arena_array(b->temp, most, 1, b->err);
    return b->nodes && b->labels && make_nodes(b, keys, n, most);
}

/* ---- assembling the block ---- */

typedef struct part {
    int which;
    const void *data;
    uint64_t len;
} part;

static bool assemble(build *b, tkc_tables *out)
{
    const part parts[] = {
        { TKC_SEC_OFFSET, b->offset, ((uint64_t)b->t.n + 1) * 4 },
        { TKC_SEC_TEXT, b->text, b->offset[b->t.n] },
        { TKC_SEC_FLAGS, b->flags, b->t.n },
        { TKC_SEC_BYTES, b->byte_ids, 256 * 4 },
        { TKC_SEC_WORDS, b->words, b->n_words * sizeof *b->words },
        { TKC_SEC_PAIRS, b->pairs, b->n_pairs * sizeof *b->pairs },
        { TKC_SEC_FILTER, b->filter, b->n_filter * 8 },
        { TKC_SEC_BYTE_PAIRS, b->byte_pairs, 65536 * sizeof *b->byte_pairs },
        { TKC_SEC_MERGED, b->merged, b->t.n_ranks * sizeof *b->merged },
        { TKC_SEC_LEVELS, b->m.levels, b->m.levels ? (uint64_t)b->t.n_ranks * 4 : 0 },
        { TKC_SEC_SPLIT, b->split, b->t.n * sizeof *b->split },
        { TKC_SEC_NODES, b->nodes, ((uint64_t)b->t.n_nodes + 1) * sizeof *b->nodes },
        { TKC_SEC_LABELS, b->labels, b->t.n_nodes },
        { TKC_SEC_CUT_PAIRS, b->cut_pairs, b->n_cuts * 8 },
        { TKC_SEC_CUT_BYTES, b->cut_bytes, 8192 },
        { TKC_SEC_META, b->m.meta.data, b->m.meta.len },
    };
    tkc_block_header h = { .byte_order = TKC_BLOCK_ORDER, .origin = b->m.origin };
    memcpy(h.magic, TKC_BLOCK_MAGIC, sizeof h.magic);
    h.flags = (b->t.ignore_merges ? TKC_BLOCK_IGNORE_MERGES : 0u) |
              (b->t.all_bytes ? TKC_BLOCK_ALL_BYTES : 0u) |
              (b->t.regular ? TKC_BLOCK_REGULAR : 0u) | (b->t.pieces ? TKC_BLOCK_PIECES : 0u);
    h.n = b->t.n;
    h.n_nodes = b->t.n_nodes;
    h.max_len = b->t.max_len;
    h.n_ranks = b->t.n_ranks;
    uint64_t at = (sizeof h + 15) / 16 * 16;
    for (size_t i = 0; i < TKC_SECTIONS; i++) {
        h.sections[parts[i].which] = (tkc_block_section){ at, parts[i].len };
        at = (at + parts[i].len + 15) / 16 * 16;
    }
    h.total = at;
    unsigned char *block = tkc_alloc_aligned(64, at, b->err);
    if (!block)
        return false;
    for (size_t i = 0; i < TKC_SECTIONS; i++) {
        const tkc_block_section *s = &h.sections[parts[i].which];
        if (s->len)
            memcpy(block + s->offset, parts[i].data, s->len);
        uint64_t end = s->offset + s->len;
        memset(block + end, 0, (end + 15) / 16 * 16 - end);
    }
    h.checksum = tkc_block_hash(block + sizeof h, at - sizeof h);
    memcpy(block, &h, sizeof h);
    if (tkc_tables_attach(out, block, at, false, b->err))
        return true;
    tkc_release_aligned(block);
    return false;
}

tkc_builder *tkc_builder_new(const tkc_vocab_token *tokens, size_t n, tkc_arena *temp,
                             tinkc_error *err)
{
    build *b = tkc_arena_zalloc(temp, sizeof *b, err);
    if (!b)
        return NULL;
    b->tokens = tokens;
    b->n_tokens = n;
    b->temp = temp;
    b->err = err;
    return count_tokens(b) && lay_out_texts(b) && index_words(b) ? b : NULL;
}

bool tkc_builder_add(tkc_builder *b, const tkc_vocab_token *tokens, size_t n)
{
    uint32_t before = b->t.n;
    bool behind = true;
    for (size_t i = b->n_tokens; i < n; i++)
        behind &= tokens[i].id >= before;
    if (n == b->n_tokens)
        return true;
    b->tokens = tokens;
    b->n_tokens = n;
    /* If the new ids are larger than all others, their texts are at the end and the index stays
     * valid. */
    return count_tokens(b) && lay_out_texts(b) && (behind || index_words(b));
}

const tkc_tables *tkc_builder_tables(const tkc_builder *b)
{
    return &b->t;
}

bool tkc_builder_finish(tkc_builder *b, const tkc_merges *merges, tkc_tables *out)
{
    b->m = *merges;
    b->t.pieces = merges->pieces;
    b->t.levels = merges->levels;
    return index_pairs(b) && index_byte_pairs(b) && settle(b) && find_cuts(b) && make_trie(b) &&
           assemble(b, out);
}
