/* read_json.c - what tokenizer.json means to the tokenizer: the model into tables, everything else
 * into their meta; base/tokenizer_json.h reads it.
 *
 * May touch: the text it is given. Strings are converted to raw bytes in place of being copied.
 */
#include <stdlib.h>
#include <string.h>

#include "base/json_write.h"
#include "base/map.h"
#include "tokenizer/load.h"
#include "unicode/unicode.h"

size_t tkc_from_byte_level(tinkc_str text, unsigned char *out)
{
    uint16_t map[TKC_BYTE_LETTERS];
    tkc_byte_letters(map);
    return tkc_from_letters(map, text, out);
}

/* ---- the reader ---- */

typedef struct reader {
    tkc_tokenizer_json file;
    tkc_arena *temp;
    tinkc_error *err;
    uint16_t map[TKC_BYTE_LETTERS];
    unsigned char *bytes; /* converted texts, back to back */
    size_t n_bytes;
    tkc_vocab_token *tokens;
    size_t n_tokens, cap_tokens;
    tkc_merge *merges;
    size_t n_merges, cap_merges;
    uint32_t last_whole; /* the result of the previous merge */
    bool ignore_merges, needs_all_bytes;
    size_t byte_token[128]; /* of a vocabulary of pieces: index + 1 of <0x00> to <0x7F> */
    tinkc_str scores;       /* raw; data NULL = the file has merges */
    tkc_builder *builder;
    tkc_map literals; /* while added tokens are read */
} reader;

static bool bad(reader *r, const char *what)
{
    return tkc_fail(r->err, TINKC_E_TOKENIZER, "%s", what);
}

static bool unsupported(reader *r, const char *where, tinkc_str what)
{
    return tkc_fail(r->err, TINKC_E_TOKENIZER, "%s %.*s is not supported", where,
                    (int)(what.len < 100 ? what.len : 100), what.data);
}

/* Arrays that grow in an arena: the old block is not reused. */
static void *grow_array(reader *r, void *old, size_t *cap, size_t n, size_t item)
{
    if (n < *cap)
        return old;
    size_t wanted = *cap ? 2 * *cap : 256;
    void *grown = tkc_arena_alloc(r->temp, wanted * item, r->err);
    if (grown && n)
        memcpy(grown, old, n * item);
    if (grown)
        *cap = wanted;
    return grown;
}

/* A token of the file as bytes; SIZE_MAX: it is neither a piece nor byte-level text. */
static size_t to_bytes(const reader *r, tinkc_str text, unsigned char *out)
{
    return r->file.pieces ? tkc_from_piece(text, out) : tkc_from_letters(r->map, text, out);
}

/* Whether encoding may produce this piece, the next token. Texts have U+2581 for spaces, so a piece with
 * a space of its own occurs in none; ASCII bytes are decided when all pieces are known. */
static bool note_piece(reader *r, tinkc_str text)
{
    int byte = tkc_piece_byte(text);
    if (byte >= 0 && byte < 128)
        r->byte_token[byte] = r->n_tokens + 1;
    return byte >= 128 || (byte < 0 && !memchr(text.data, ' ', text.len));
}

static bool add_token(void *user, tinkc_str text, int64_t id)
{
    reader *r = user;
    if (id < 0 || id > INT32_MAX / 4)
        return tkc_fail(r->err, TINKC_E_TOKENIZER, "token %.*s: its id %lld is out of range",
                        (int)(text.len < 100 ? text.len : 100), text.data, (long long)id);
    tkc_vocab_token *grown =
        grow_array(r, r->tokens, &r->cap_tokens, r->n_tokens, sizeof *r->tokens);
    if (!grown)
        return false;
    r->tokens = grown;
    unsigned char *out = r->bytes + r->n_bytes;
    size_t n = to_bytes(r, text, out);
    bool is_bytes = n != SIZE_MAX && n > 0;
    if (is_bytes && r->file.pieces)
        is_bytes = note_piece(r, text);
    if (n == SIZE_MAX) {
        memcpy(out, text.data, text.len);
        n = text.len;
    }
    r->n_bytes += n;
    r->tokens[r->n_tokens++] =
        (tkc_vocab_token){ { (const char *)out, n }, (uint32_t)id, is_bytes };
    return true;
}

/* The result of a merge. Merges are listed in the order of their results, so it is mostly that of
 * the previous merge, or the next token. */
static int32_t find_whole(reader *r, const tkc_tables *t, const unsigned char *p, size_t len)
{
    for (uint32_t id = r->last_whole; id <= r->last_whole + 1 && id < t->n; id++) {
        tinkc_bytes text = tkc_token_text(t, id);
        if (t->flags[id] & TKC_TOKEN_BYTES && text.len == len && memcmp(text.data, p, len) == 0) {
            r->last_whole = id;
            return (int32_t)id;
        }
    }
    int32_t found = tkc_find_word(t, p, len);
    if (found >= 0)
        r->last_whole = (uint32_t)found;
    return found;
}

/* Bytes stand for characters without a piece. */
static void choose_bytes(reader *r)
{
    bool has_text[256] = { false };
    for (size_t i = 0; i < r->n_tokens; i++)
        if (r->tokens[i].is_bytes && r->tokens[i].text.len == 1)
            has_text[(unsigned char)*r->tokens[i].text.data] = true;
    for (size_t i = 0; i < 128; i++)
        if (r->byte_token[i] && !has_text[i])
            r->tokens[r->byte_token[i] - 1].is_bytes = true;
}

static bool start_builder(reader *r)
{
    if (r->builder)
        return true;
    if (r->file.pieces)
        choose_bytes(r);
    r->builder = tkc_builder_new(r->tokens, r->n_tokens, r->temp, r->err);
    return r->builder != NULL;
}

static bool keep_merge(reader *r, tkc_merge merge)
{
    tkc_merge *grown = grow_array(r, r->merges, &r->cap_merges, r->n_merges, sizeof *r->merges);
    if (!grown)
        return false;
    r->merges = grown;
    grown[r->n_merges++] = merge;
    return true;
}

/* Left and right as in the file, converted next to each other. */
static bool add_merge(void *user, tinkc_str left, tinkc_str right)
{
    reader *r = user;
    unsigned char both[2048], *out = both;
    if (!start_builder(r))
        return false;
    const tkc_tables *t = tkc_builder_tables(r->builder);
    if (left.len + right.len > sizeof both) {
        out = tkc_arena_alloc(r->temp, left.len + right.len, r->err);
        if (!out)
            return false;
    }
    size_t n = to_bytes(r, left, out);
    size_t m = n == SIZE_MAX ? SIZE_MAX : to_bytes(r, right, out + n);
    if (m == SIZE_MAX)
        return unsupported(r, "model: a merge of tokens that are not byte-level text, such as",
                           left);
    int32_t a = tkc_find_word(t, out, n), b = tkc_find_word(t, out + n, m);
    int32_t whole = find_whole(r, t, out, n + m);
    if (a < 0 || b < 0 || whole < 0)
        return tkc_fail(r->err, TINKC_E_TOKENIZER,
                        "merge %zu: a part or the result is not in the vocabulary", r->n_merges);
    return keep_merge(
        r, (tkc_merge){ (uint32_t)a, (uint32_t)b, (uint32_t)r->n_merges, (uint32_t)whole });
}

/* ---- scores in place of merges ----
 *
 * A SentencePiece model has a score for each piece. Two neighbours merge if they are a piece together;
 * the highest score comes first, and of equal scores the leftmost. So each way to split a piece into two
 * is a merge, and its level is the place of the score. Tokens without a score are never produced. */

typedef struct scored {
    tkc_merge merge;
    float score;
} scored;

static int by_score(const void *x, const void *y)
{
    const scored *a = x, *b = y;
    return a->score != b->score ? (a->score < b->score) - (a->score > b->score)
                                : (a->merge.rank > b->merge.rank) - (a->merge.rank < b->merge.rank);
}

static tinkc_f32s read_scores(reader *r)
{
    tkc_json j;
    tkc_tokenizer_part(&r->file, r->scores, &j);
    tinkc_f32s scores = tkc_json_f32s(&j);
    for (size_t i = 0; i < r->n_tokens; i++) {
        uint32_t id = r->tokens[i].id;
        if (id >= scores.len || scores.data[id] != scores.data[id]) /* null is read as NaN */
            r->tokens[i].is_bytes &=
                (unsigned char)*r->tokens[i].text.data >= 128 && r->tokens[i].text.len == 1;
    }
    return scores;
}

/* Puts the merges of one token behind each other. */
static bool add_splits(reader *r, const tkc_tables *t, uint32_t id)
{
    tinkc_bytes text = tkc_token_text(t, id);
    for (size_t i = 0, size; i < text.len; i += size) {
        size = tkc_char_bytes(text.data[i]);
        if (size > 1 && size <= text.len - i && tkc_find_word(t, text.data + i, size) < 0)
            return tkc_fail(r->err, TINKC_E_TOKENIZER,
                            "token %u has a character without a token: not supported", id);
        int32_t left = i ? tkc_find_word(t, text.data, i) : -1;
        int32_t right = left < 0 ? -1 : tkc_find_word(t, text.data + i, text.len - i);
        if (right >= 0 && !keep_merge(r, (tkc_merge){ (uint32_t)left, (uint32_t)right,
                                                      (uint32_t)r->n_merges, id }))
            return false;
    }
    return true;
}

/* The merges of all tokens, best score first, with their levels. */
static const uint32_t *merge_by_score(reader *r, tinkc_f32s scores)
{
    const tkc_tables *t = tkc_builder_tables(r->builder);
    for (uint32_t id = 0; id < t->n; id++)
        if (t->flags[id] & TKC_TOKEN_BYTES && !add_splits(r, t, id))
            return NULL;
    uint32_t *levels = tkc_arena_alloc(r->temp, (r->n_merges + 1) * sizeof *levels, r->err);
    scored *list = tkc_arena_alloc(r->temp, (r->n_merges + 1) * sizeof *list, r->err);
    for (size_t i = 0; levels && list && i < r->n_merges; i++)
        list[i] = (scored){ r->merges[i], scores.data[r->merges[i].id] };
    if (!levels || !list)
        return NULL;
    if (r->n_merges)
        qsort(list, r->n_merges, sizeof *list, by_score);
    for (size_t i = 0; i < r->n_merges; i++) {
        bool same = i && list[i].score == list[i - 1].score;
        levels[i] = i ? levels[i - 1] + !same : 0;
        r->merges[i] = list[i].merge;
        r->merges[i].rank = (uint32_t)i;
    }
    return levels;
}

/* An option that is null, false or empty is not in use. */
static bool is_unset(tinkc_str json)
{
    return tkc_str_is(json, "null") || tkc_str_is(json, "false") || tkc_str_is(json, "\"\"") ||
           tkc_str_is(json, "0.0") || tkc_str_is(json, "0");
}

static void read_model_option(void *user, tkc_json *j, tinkc_str key)
{
    reader *r = user;
    if (tkc_str_is(key, "type")) {
        tinkc_str type = tkc_json_string(j);
        if (!tkc_failed(r->err) && !tkc_str_is(type, "BPE"))
            unsupported(r, "model type", type);
    } else if (tkc_str_is(key, "ignore_merges")) {
        r->ignore_merges = !tkc_json_null(j) && tkc_json_bool(j);
    } else if (tkc_str_is(key, "unk_token") || tkc_str_is(key, "fuse_unk") ||
               tkc_str_is(key, "byte_fallback")) {
        /* Has no effect if each byte has a token; that is checked at the end. */
        tinkc_str value = tkc_json_skip(j);
        r->needs_all_bytes |= !is_unset(value);
    } else if (tkc_str_is(key, "dropout") || tkc_str_is(key, "continuing_subword_prefix") ||
               tkc_str_is(key, "end_of_word_suffix")) {
        tinkc_str value = tkc_json_skip(j);
        if (!tkc_failed(r->err) && !is_unset(value))
            unsupported(r, "model option", key);
    } else if (tkc_str_is(key, "scores") && r->file.pieces) {
        r->scores = tkc_json_skip(j); /* as codec/gguf_tokenizer.c writes them */
    } else if (tkc_str_is(key, "vocab")) {
        (void)tkc_json_object(j); /* it is none: fails */
    } else if (tkc_str_is(key, "merges")) {
        (void)tkc_json_array(j);
    } else {
        unsupported(r, "model option", key);
    }
}

static void read_top_option(void *user, tkc_json *j, tinkc_str key)
{
    reader *r = user;
    if (tkc_str_is(key, "version")) {
        tinkc_str version = tkc_json_string(j);
        if (!tkc_failed(r->err) && !tkc_str_is(version, "1.0"))
            unsupported(r, "version", version);
    } else if (tkc_str_is(key, "truncation") || tkc_str_is(key, "padding")) {
        if (!tkc_json_null(j))
            unsupported(r, "option", key);
    } else {
        tkc_json_skip(j);
    }
}

static const tkc_tokenizer_reader parts = { add_token, add_merge, read_model_option,
                                            read_top_option };

/* ---- added tokens ---- */

/* Tokens that are not byte-level text, by their text as in the file: text to id + 1. */
static bool note_literal(reader *r, tinkc_str text, int64_t id)
{
    return tkc_map_set(&r->literals, text, (void *)(uintptr_t)(id + 1), NULL, r->err);
}

static bool note_literals(reader *r)
{
    for (size_t i = 0; i < r->n_tokens; i++)
        if (!r->tokens[i].is_bytes && !note_literal(r, r->tokens[i].text, r->tokens[i].id))
            return false;
    return true;
}

/* The id of a token by its text as in the file; -1 = none. */
static int64_t id_of_text(const reader *r, tinkc_str text, unsigned char *room)
{
    int byte = r->file.pieces ? tkc_piece_byte(text) : -1;
    if (byte >= 0 && byte < 128 && r->byte_token[byte])
        return r->tokens[r->byte_token[byte] - 1].id;
    size_t n = to_bytes(r, text, room);
    int64_t id = -1;
    if (n != SIZE_MAX && n > 0)
        id = tkc_find_word(tkc_builder_tables(r->builder), room, n);
    return id >= 0 ? id : (int64_t)(uintptr_t)tkc_map_get(&r->literals, text) - 1;
}

static void write_added(tkc_jsonw *w, const tkc_added_token *token)
{
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "id");
    tkc_jsonw_i64(w, token->id);
    tkc_jsonw_key(w, "content");
    tkc_jsonw_str(w, tkc_strn(token->text, token->len));
    const struct {
        const char *name;
        bool value;
    } flags[] = {
        { "single_word", token->single_word }, { "lstrip", token->lstrip },
        { "rstrip", token->rstrip },           { "normalized", token->normalized },
        { "special", token->special },
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        tkc_jsonw_key(w, flags[i].name);
        tkc_jsonw_bool(w, flags[i].value);
    }
    tkc_jsonw_end(w);
}

/* The added tokens of the file, each text once. */
typedef struct added_list {
    tkc_added_token *tokens;
    size_t n, cap;
    tkc_map index; /* text to index + 1 */
    reader *r;
    unsigned char *room; /* for any text of the list as bytes */
    int64_t next_id;
} added_list;

/* Assigns ids as the reference does: the id in the vocabulary, else the next one, counted from the
 * size of the vocabulary. The id in the file is ignored. */
static bool take_id(reader *r, added_list *l, tkc_added_token *token)
{
    tinkc_str text = tkc_strn(token->text, token->len);
    int64_t id = id_of_text(r, text, l->room);
    if (id < 0) {
        id = l->next_id++;
        if (!add_token(r, text, id) || !note_literal(r, text, id))
            return false;
        /* Decoded through the byte alphabet if possible, but never produced by encoding. */
        r->tokens[r->n_tokens - 1].is_bytes = false;
    }
    token->id = (int32_t)id;
    return true;
}

/* If a text repeats, the last entry wins, but a token once special stays special. */
static bool add_listed(void *user, tkc_added_token token, int64_t given)
{
    added_list *l = user;
    tinkc_str text = tkc_strn(token.text, token.len);
    size_t place = (size_t)(uintptr_t)tkc_map_get(&l->index, text);
    (void)given;
    if (!token.len)
        return true;
    if (place) {
        tkc_added_token *known = &l->tokens[place - 1];
        token.id = known->id;
        token.special |= known->special;
        *known = token;
        return true;
    }
    tkc_added_token *grown = grow_array(l->r, l->tokens, &l->cap, l->n, sizeof *grown);
    if (!grown || !take_id(l->r, l, &token))
        return false;
    l->tokens = grown;
    grown[l->n++] = token;
    return tkc_map_set(&l->index, text, (void *)(uintptr_t)l->n, NULL, l->r->err);
}

static bool write_added_tokens(reader *r, tkc_jsonw *w)
{
    added_list l = { .next_id = (int64_t)r->n_tokens, .r = r };
    l.room = tkc_arena_alloc(r->temp, r->file.added.len + 1, r->err);
    tkc_map_init(&l.index, NULL);
    tkc_map_init(&r->literals, NULL);
    bool ok = l.room && note_literals(r) && tkc_tokenizer_added(&r->file, r->temp, add_listed, &l);
    for (size_t i = 0; ok && i < l.n; i++)
        write_added(w, &l.tokens[i]);
    tkc_map_free(&l.index);
    tkc_map_free(&r->literals);
    return ok && !tkc_failed(r->err);
}

static void write_raw(tkc_jsonw *w, const char *key, tinkc_str json)
{
    tkc_jsonw_key(w, key);
    tkc_jsonw_raw(w, json.data ? json : tkc_str("null"));
}

static bool write_meta(reader *r, tkc_buf *meta)
{
    tkc_jsonw w;
    tkc_jsonw_open(&w, meta, r->err);
    tkc_jsonw_object(&w);
    write_raw(&w, "normalizer", r->file.normalizer);
    write_raw(&w, "pre_tokenizer", r->file.pre_tokenizer);
    write_raw(&w, "post_processor", r->file.post_processor);
    write_raw(&w, "decoder", r->file.decoder);
    tkc_jsonw_key(&w, "added_tokens");
    tkc_jsonw_array(&w);
    if (!write_added_tokens(r, &w))
        return false;
    tkc_jsonw_end(&w);
    tkc_jsonw_end(&w);
    return !tkc_failed(r->err);
}

/* ---- all of it ---- */

static bool has_space(const reader *r)
{
    int32_t id = tkc_builder_tables(r->builder)->byte_ids[' '];
    size_t byte = r->byte_token[' '];
    return id >= 0 && !(byte && r->tokens[byte - 1].id == (uint32_t)id);
}

static bool check_whole(reader *r, tinkc_f32s *scores)
{
    const tkc_tokenizer_json *f = &r->file;
    if (!f->has_model || !f->has_vocab || !(f->has_merges || r->scores.data))
        return bad(r, !f->has_model ? "it has no model" : "the model has no vocabulary or merges");
    if (r->scores.data)
        *scores = read_scores(r);
    if (tkc_failed(r->err) || !start_builder(r))
        return false;
    r->needs_all_bytes |= f->pieces;
    if (f->pieces && !has_space(r))
        return bad(r, "the vocabulary has no space (U+2581)");
    if (r->needs_all_bytes && !tkc_builder_tables(r->builder)->all_bytes)
        return bad(r, "model options unk_token, fuse_unk and byte_fallback are not supported where "
                      "bytes are missing");
    return true;
}

bool tkc_read_tokenizer_json(tinkc_str text, tkc_origin origin, tkc_tables *out, tkc_arena *temp,
                             tinkc_error *err)
{
    reader r = { .temp = temp, .err = err };
    tkc_buf meta;
    tinkc_f32s scores = { 0 };
    tkc_byte_letters(r.map);
    tkc_json_open(&r.file.j, text, temp, err);
    r.file.j.code = TINKC_E_TOKENIZER;
    /* Conversion never makes a text longer, and added tokens are in the file as well. */
    r.bytes = tkc_arena_alloc(temp, text.len + 1, err);
    if (!r.bytes)
        return false;
    tkc_buf_init(&meta, NULL, TKC_BUF_NO_MAX);
    bool ok = tkc_tokenizer_read(&r.file, &parts, &r) && check_whole(&r, &scores) &&
              write_meta(&r, &meta);
    /* Added tokens have joined the list. */
    if (ok && tkc_builder_add(r.builder, r.tokens, r.n_tokens)) {
        const uint32_t *levels = r.scores.data ? merge_by_score(&r, scores) : NULL;
        tkc_merges merges = { .data = r.merges,
                              .n = r.n_merges,
                              .levels = levels,
                              .ignore_merges = r.ignore_merges,
                              .pieces = r.file.pieces,
                              .meta = tkc_buf_view(&meta),
                              .origin = origin };
        ok = !tkc_failed(err) && tkc_builder_finish(r.builder, &merges, out);
    }
    tkc_buf_free(&meta);
    return ok && !tkc_failed(err);
}
