/* tables.c - the block of tables: its layout, its checks, lookups.
 *
 * May touch: the block. Must not: trust anything in it before attach has checked it.
 */
#include "bpe/tables.h"

#include <string.h>

#include "base/file.h"
#include "bpe/tables_layout.h"

/* ---- hashes ---- */

__extension__ typedef unsigned __int128 wide;

static uint64_t mix(uint64_t a, uint64_t b)
{
    wide r = (wide)a * b;
    return (uint64_t)r ^ (uint64_t)(r >> 64);
}

static uint64_t load32(const unsigned char *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

uint64_t tkc_word_hash(const unsigned char *p, size_t len)
{
    const uint64_t k1 = UINT64_C(0xA0761D6478BD642F), k2 = UINT64_C(0xE7037ED1A0B428DB);
    uint64_t a, b, h = len * UINT64_C(0x9E3779B97F4A7C15);
    for (; len > 16; p += 16, len -= 16)
        h = mix(tkc_load64(p) ^ k1 ^ h, tkc_load64(p + 8) ^ k2);
    if (len >= 8) {
        a = tkc_load64(p);
        b = tkc_load64(p + len - 8);
    } else if (len >= 4) {
        a = load32(p);
        b = load32(p + len - 4);
    } else {
        a = len ? (uint64_t)p[0] << 16 | (uint64_t)p[len >> 1] << 8 | p[len - 1] : 0;
        b = 0;
    }
    return mix(a ^ k1 ^ h, b ^ k2);
}

uint64_t tkc_block_hash(const void *data, size_t len)
{
    const unsigned char *p = data;
    const uint64_t k = UINT64_C(0x9FB21C651E98DF25);
    uint64_t h[4] = { len, k, ~len, ~k };
    for (; len >= 64; p += 64, len -= 64)
        for (size_t i = 0; i < 4; i++)
            h[i] = mix(tkc_load64(p + 16 * i) ^ h[i], tkc_load64(p + 16 * i + 8) ^ k);
    return mix(h[0] ^ h[1] ^ tkc_word_hash(p, len), h[2] ^ h[3] ^ k);
}

int32_t tkc_find_word(const tkc_tables *t, const unsigned char *p, size_t len)
{
    uint64_t h = tkc_word_hash(p, len), mask = (UINT64_C(1) << (64 - t->word_shift)) - 1;
    uint32_t tag = (uint32_t)h | 1;
    for (uint64_t i = h >> t->word_shift;; i = (i + 1) & mask) {
        const tkc_word_slot *slot = &t->words[i];
        if (slot->tag == 0)
            return -1;
        if (slot->tag != tag)
            continue;
        if (slot->len == len && memcmp(t->text + slot->offset, p, len) == 0)
            return slot->id;
    }
}

/* Undoes merges along the border between two tokens, from the last to the first. At each step a
 * last part of `left` is next to a first part of `right`; the border is crossed if those two merge
 * before either is merged into its own side. The part that was merged last is split first, and the
 * rank of its merge is the time until which its own part was free. Of equal ranks the leftmost pair
 * merges first: left of the border that is the part's own merge, right of it the crossing one. */
bool tkc_pair_stays(const tkc_tables *t, uint32_t left, uint32_t right, uint32_t limit)
{
    for (;;) {
        if (tkc_pair_rank(t, left, right) < limit)
            return false;
        const tkc_split *l = &t->split[left], *r = &t->split[right];
        if (l->made > r->made) {
            limit = l->made - 1;
            left = l->right;
        } else if (r->made > 0) {
            limit = r->made;
            right = r->left;
        } else {
            return true;
        }
    }
}

/* ---- the block ---- */

static bool bad_block(tinkc_error *err)
{
    return tkc_fail(err, TINKC_E_TOKENIZER, "the compiled tokenizer is damaged");
}

/* Section `which` as an array of n items; NULL if its size differs. */
static const void *section(const tkc_block_header *h, int which, uint64_t n, size_t item)
{
    const tkc_block_section *s = &h->sections[which];
    if (s->offset % 16 != 0 || s->offset < sizeof *h || s->offset > h->total ||
        s->len > h->total - s->offset || n > UINT32_MAX || s->len != n * item)
        return NULL;
    return (const unsigned char *)h + s->offset;
}

static bool power_of_two(uint64_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

/* A hash table's size in slots, from its section; 0 if that is not a power of two. */
static uint64_t slots_of(const tkc_block_header *h, int which, size_t item)
{
    uint64_t n = h->sections[which].len / item;
    return power_of_two(n) && n >= 2 && n <= UINT64_C(1) << 30 ? n : 0;
}

static uint32_t shift_of(uint64_t slots)
{
    return 64 - (uint32_t)__builtin_ctzll(slots);
}

static bool point_into(tkc_tables *t, const tkc_block_header *h)
{
    uint64_t words = slots_of(h, TKC_SEC_WORDS, sizeof(tkc_word_slot));
    uint64_t pairs = slots_of(h, TKC_SEC_PAIRS, 8);
    uint64_t filter = slots_of(h, TKC_SEC_FILTER, 8), cuts = slots_of(h, TKC_SEC_CUT_PAIRS, 8);
    if (!words || !pairs || !filter || !cuts || h->n_nodes == 0 || h->n > TKC_MAX_IDS)
        return false;
    t->n = h->n;
    t->n_nodes = h->n_nodes;
    t->n_ranks = h->n_ranks;
    t->max_len = h->max_len;
    t->ignore_merges = h->flags & TKC_BLOCK_IGNORE_MERGES;
    t->all_bytes = h->flags & TKC_BLOCK_ALL_BYTES;
    t->regular = h->flags & TKC_BLOCK_REGULAR;
    t->pieces = h->flags & TKC_BLOCK_PIECES;
    t->origin = h->origin;
    t->word_shift = shift_of(words);
    t->pair_shift = shift_of(pairs);
    t->filter_shift = shift_of(filter * 64);
    t->cut_shift = shift_of(cuts * 64);
    t->offset = section(h, TKC_SEC_OFFSET, (uint64_t)t->n + 1, 4);
    t->text = section(h, TKC_SEC_TEXT, h->sections[TKC_SEC_TEXT].len, 1);
    t->flags = section(h, TKC_SEC_FLAGS, t->n, 1);
    t->byte_ids = section(h, TKC_SEC_BYTES, 256, 4);
    t->words = section(h, TKC_SEC_WORDS, words, sizeof(tkc_word_slot));
    t->pairs = section(h, TKC_SEC_PAIRS, pairs, 8);
    t->pair_filter = section(h, TKC_SEC_FILTER, filter, 8);
    t->byte_pairs = section(h, TKC_SEC_BYTE_PAIRS, 65536, 4);
    t->merged = section(h, TKC_SEC_MERGED, t->n_ranks, 4);
    bool leveled = h->sections[TKC_SEC_LEVELS].len != 0;
    t->levels = leveled ? section(h, TKC_SEC_LEVELS, t->n_ranks, 4) : NULL;
    t->split = section(h, TKC_SEC_SPLIT, t->n, sizeof(tkc_split));
    t->nodes = section(h, TKC_SEC_NODES, (uint64_t)t->n_nodes + 1, sizeof(tkc_trie_node));
    t->labels = section(h, TKC_SEC_LABELS, t->n_nodes, 1);
    t->cut_pairs = section(h, TKC_SEC_CUT_PAIRS, cuts, 8);
    t->cut_bytes = section(h, TKC_SEC_CUT_BYTES, 8192, 1);
    t->meta.data = section(h, TKC_SEC_META, h->sections[TKC_SEC_META].len, 1);
    t->meta.len = h->sections[TKC_SEC_META].len;
    return t->offset && t->text && t->flags && t->byte_ids && t->words && t->pairs &&
           t->pair_filter && t->byte_pairs && t->merged && t->split && t->nodes && t->labels &&
           t->cut_pairs && t->cut_bytes && t->meta.data && (t->levels || !leveled);
}

/* ---- checks: what the encoder relies on ---- */

static bool check_order(const tkc_block_header *h)
{
    uint64_t end = sizeof *h;
    for (int i = 0; i < TKC_SECTIONS; i++) {
        if (h->sections[i].offset < end)
            return false;
        end = h->sections[i].offset + h->sections[i].len; /* within total: checked before */
    }
    return true;
}

static uint32_t len_of(const tkc_tables *t, uint32_t id)
{
    return t->offset[id + 1] - t->offset[id];
}

/* Texts follow each other; tokens that encoding produces are neither empty (it would not advance) nor
 * longer than max_len. */
static bool check_texts(const tkc_tables *t, const tkc_block_header *h)
{
    bool ok = t->offset[0] == 0 && t->offset[t->n] == h->sections[TKC_SEC_TEXT].len, odd = false;
    for (uint32_t i = 0; i < t->n; i++)
        ok &= t->offset[i] <= t->offset[i + 1];
    for (uint32_t i = 0; ok && i < t->n; i++) {
        uint32_t len = len_of(t, i);
        odd |= t->flags[i] & TKC_TOKEN_IRREGULAR;
        if (t->flags[i] & (TKC_TOKEN_REACHABLE | TKC_TOKEN_IRREGULAR))
            ok = len > 0 && len <= t->max_len;
    }
    return ok && !(t->regular && odd);
}

static bool check_bytes(const tkc_tables *t)
{
    bool ok = true;
    for (uint32_t i = 0; i < 256; i++) {
        int32_t id = t->byte_ids[i];
        if (id == -1)
            ok &= !t->all_bytes;
        else
            ok &= id >= 0 && (uint32_t)id < t->n && len_of(t, (uint32_t)id) == 1 &&
                  t->text[t->offset[id]] == i;
    }
    return ok;
}

/* Each word is the text of its id. A free slot ends every search. */
static bool check_words(const tkc_tables *t)
{
    uint64_t free_slots = 0;
    bool ok = true;
    for (uint64_t i = 0; ok && i < UINT64_C(1) << (64 - t->word_shift); i++) {
        const tkc_word_slot *w = &t->words[i];
        if (w->tag == 0)
            free_slots++;
        else
            ok = (uint32_t)w->id < t->n && w->offset == t->offset[w->id] &&
                 w->len == len_of(t, (uint32_t)w->id);
    }
    return ok && free_slots;
}

/* Each merge makes a token as long as its two parts. */
static bool check_merges(const tkc_tables *t)
{
    uint64_t free_slots = 0;
    bool ok = true;
    for (uint32_t i = 0; i < t->n_ranks; i++)
        ok &= t->merged[i] < t->n;
    for (uint64_t i = 0; ok && i < UINT64_C(1) << (64 - t->pair_shift); i++) {
        uint64_t p = t->pairs[i];
        uint32_t left = (uint32_t)(p >> 44), right = (uint32_t)(p >> 24) & TKC_MAX_IDS;
        uint32_t rank = (uint32_t)p & TKC_MAX_RANKS;
        if (p == TKC_NO_PAIR)
            free_slots++;
        else
            ok = rank < t->n_ranks && left < t->n && right < t->n &&
                 len_of(t, t->merged[rank]) == len_of(t, left) + len_of(t, right);
    }
    for (uint32_t i = 0; ok && i < 65536; i++)
        ok = t->byte_pairs[i] == TKC_NO_RANK ||
             (t->byte_pairs[i] < t->n_ranks && t->byte_ids[i >> 8] >= 0 &&
              t->byte_ids[i & 255] >= 0 && len_of(t, t->merged[t->byte_pairs[i]]) == 2);
    return ok && free_slots;
}

/* Parts were made before the whole, which guarantees that the loop in tkc_pair_stays ends. */
static bool check_splits(const tkc_tables *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        const tkc_split *s = &t->split[i];
        if (s->left >= t->n || s->right >= t->n)
            return false;
        if (s->made && (s->made > t->n_ranks || t->split[s->left].made >= s->made ||
                        t->split[s->right].made >= s->made ||
                        len_of(t, s->left) + len_of(t, s->right) != len_of(t, i)))
            return false;
    }
    return true;
}

/* Level by level: the children of a level are the next one, and a token that ends at a node is as long
 * as the node is deep. */
static bool check_trie(const tkc_tables *t)
{
    uint32_t from = 0, end = 1;
    bool ok = t->nodes[t->n_nodes].child == t->n_nodes;
    for (uint32_t i = 0; ok && i < t->n_nodes; i++)
        ok = t->nodes[i].child <= t->nodes[i + 1].child;
    for (uint32_t depth = 0; ok && from < end; depth++) {
        ok = t->nodes[from].child == end;
        for (uint32_t i = from; ok && i < end; i++) {
            int32_t id = t->nodes[i].token;
            ok = id == -1 || (depth > 0 && (uint32_t)id < t->n &&
                              len_of(t, (uint32_t)id) == depth && depth <= t->max_len);
        }
        from = end;
        end = t->nodes[end].child;
    }
    return ok && end == t->n_nodes;
}

static bool check_tables(const tkc_tables *t, const tkc_block_header *h)
{
    return check_order(h) && check_texts(t, h) && check_bytes(t) && check_words(t) &&
           check_merges(t) && check_splits(t) && check_trie(t);
}

bool tkc_tables_attach(tkc_tables *t, const void *block, size_t len, bool mapped, tinkc_error *err)
{
    const tkc_block_header *h = block;
    *t = (tkc_tables){ 0 };
    if (len < sizeof *h || memcmp(h->magic, TKC_BLOCK_MAGIC, sizeof h->magic) != 0 ||
        h->total != len || h->byte_order != TKC_BLOCK_ORDER)
        return bad_block(err);
    const unsigned char *body = (const unsigned char *)block + sizeof *h;
    if (h->checksum != tkc_block_hash(body, len - sizeof *h) || !point_into(t, h) ||
        !check_tables(t, h))
        return bad_block(err);
    t->block = block;
    t->block_len = len;
    t->mapped = mapped;
    return true;
}

void tkc_tables_free(tkc_tables *t)
{
    if (t->mapped) {
        tkc_mapping m = { .data = t->block, .len = t->block_len };
        tkc_unmap_file(&m);
    } else if (t->block) {
        /* Cast away const: we allocated the block and built it. */
        tkc_release_aligned((void *)(uintptr_t)t->block);
    }
    *t = (tkc_tables){ 0 };
}
