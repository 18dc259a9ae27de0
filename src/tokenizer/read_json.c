/* read_json.c - tokenizer.json: the model into tables, everything else into their meta.
 *
 * May touch: the text it is given. The file is large (10 to 30 MB) and read once from front to
 * back; strings are converted to raw bytes in place of being copied.
 */
#include <string.h>

#include "base/json_write.h"
#include "base/map.h"
#include "tokenizer/load.h"
#include "unicode/unicode.h"

/* ---- byte-level text ---- */

/* Code points 0 to 0x143 to bytes; 256 = no byte. */
static void make_alphabet(uint16_t map[0x144])
{
    uint32_t next = 0x100;
    for (uint32_t i = 0; i < 0x144; i++)
        map[i] = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        map[itself ? b : next++] = (uint16_t)b;
    }
}

static size_t convert(const uint16_t map[0x144], tinkc_str text, unsigned char *out)
{
    const unsigned char *p = (const unsigned char *)text.data, *end = p + text.len;
    size_t n = 0;
    while (p < end) {
        uint32_t c = *p;
        if (c < 0x80) {
            p++;
        } else if (c < 0xC6) { /* U+0080 to U+017F: two bytes */
            c = (c & 0x1F) << 6 | (p[1] & 0x3Fu);
            p += 2;
        } else {
            return SIZE_MAX;
        }
        if (c >= 0x144 || map[c] > 255)
            return SIZE_MAX;
        out[n++] = (unsigned char)map[c];
    }
    return n;
}

size_t tkc_from_byte_level(tinkc_str text, unsigned char *out)
{
    uint16_t map[0x144];
    make_alphabet(map);
    return convert(map, text, out);
}

/* ---- the reader ---- */

typedef struct reader {
    tkc_json j;
    tkc_arena *temp;
    tinkc_error *err;
    uint16_t map[0x144];
    unsigned char *bytes; /* converted texts, back to back */
    size_t n_bytes;
    tkc_vocab_token *tokens;
    size_t n_tokens, cap_tokens;
    tkc_merge *merges;
    size_t n_merges, cap_merges;
    tinkc_str merges_text; /* set if they come before the vocabulary */
    uint32_t last_whole;   /* the result of the previous merge */
    bool has_vocab, has_merges, has_model, ignore_merges, needs_all_bytes;
    tinkc_str added, normalizer, pre_tokenizer, post_processor, decoder;
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

/* A reader of a part of the file; errors give positions in the whole file. */
static void open_part(const reader *r, tkc_json *j, tinkc_str part)
{
    tkc_json_open(j, part, r->temp, r->err);
    j->code = TINKC_E_TOKENIZER;
    if (part.data)
        j->begin = r->j.begin;
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

static bool add_token(reader *r, tinkc_str text, int64_t id)
{
    if (id < 0 || id > INT32_MAX / 4)
        return tkc_fail(r->err, TINKC_E_TOKENIZER, "token %.*s: its id %lld is out of range",
                        (int)(text.len < 100 ? text.len : 100), text.data, (long long)id);
    tkc_vocab_token *grown =
        grow_array(r, r->tokens, &r->cap_tokens, r->n_tokens, sizeof *r->tokens);
    if (!grown)
        return false;
    r->tokens = grown;
    unsigned char *out = r->bytes + r->n_bytes;
    size_t n = convert(r->map, text, out);
    bool is_bytes = n != SIZE_MAX && n > 0;
    if (!is_bytes) {
        memcpy(out, text.data, text.len);
        n = text.len;
    }
    r->n_bytes += n;
    r->tokens[r->n_tokens++] =
        (tkc_vocab_token){ { (const char *)out, n }, (uint32_t)id, is_bytes };
    return true;
}

static bool read_vocab(reader *r)
{
    tinkc_str key;
    if (r->has_vocab)
        return bad(r, "two vocabularies");
    r->has_vocab = true;
    if (!tkc_json_object(&r->j))
        return false;
    while (tkc_json_key(&r->j, &key)) {
        int64_t id = tkc_json_i64(&r->j);
        if (tkc_failed(r->err) || !add_token(r, key, id))
            return false;
    }
    return !tkc_failed(r->err);
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

/* Left and right as byte-level text, converted next to each other. */
static bool add_merge(reader *r, tinkc_str left, tinkc_str right)
{
    unsigned char both[2048], *out = both;
    const tkc_tables *t = tkc_builder_tables(r->builder);
    if (left.len + right.len > sizeof both) {
        out = tkc_arena_alloc(r->temp, left.len + right.len, r->err);
        if (!out)
            return false;
    }
    size_t n = convert(r->map, left, out);
    size_t m = n == SIZE_MAX ? SIZE_MAX : convert(r->map, right, out + n);
    if (m == SIZE_MAX)
        return unsupported(r, "model: a merge of tokens that are not byte-level text, such as",
                           left);
    int32_t a = tkc_find_word(t, out, n), b = tkc_find_word(t, out + n, m);
    int32_t whole = find_whole(r, t, out, n + m);
    if (a < 0 || b < 0 || whole < 0)
        return tkc_fail(r->err, TINKC_E_TOKENIZER,
                        "merge %zu: a part or the result is not in the vocabulary", r->n_merges);
    tkc_merge *grown = grow_array(r, r->merges, &r->cap_merges, r->n_merges, sizeof *r->merges);
    if (!grown)
        return false;
    r->merges = grown;
    grown[r->n_merges] =
        (tkc_merge){ (uint32_t)a, (uint32_t)b, (uint32_t)r->n_merges, (uint32_t)whole };
    r->n_merges++;
    return true;
}

static bool bad_merge(reader *r, const char *needed)
{
    return tkc_fail(r->err, TINKC_E_TOKENIZER, "merge %zu: it is not %s", r->n_merges, needed);
}

static bool read_merge(reader *r, tkc_json *j)
{
    if (tkc_json_peek(j) == TKC_JSON_STRING) {
        tinkc_str text = tkc_json_string(j);
        size_t space = tkc_str_find(text, ' ');
        if (tkc_failed(r->err))
            return false;
        if (space == text.len || memchr(text.data + space + 1, ' ', text.len - space - 1))
            return bad_merge(r, "two tokens with a space between them");
        return add_merge(r, tkc_strn(text.data, space),
                         tkc_strn(text.data + space + 1, text.len - space - 1));
    }
    tinkc_str parts[2] = { { NULL, 0 }, { NULL, 0 } };
    size_t n = 0;
    if (tkc_json_array(j))
        while (tkc_json_item(j)) {
            tinkc_str part = tkc_json_string(j);
            if (n < 2)
                parts[n] = part;
            n++;
        }
    if (tkc_failed(r->err))
        return false;
    return n == 2 ? add_merge(r, parts[0], parts[1]) : bad_merge(r, "two tokens");
}

static bool read_merges(reader *r, tkc_json *j)
{
    if (tkc_json_array(j))
        while (tkc_json_item(j))
            if (!read_merge(r, j))
                return false;
    return !tkc_failed(r->err);
}

static bool start_builder(reader *r)
{
    if (!r->builder)
        r->builder = tkc_builder_new(r->tokens, r->n_tokens, r->temp, r->err);
    return r->builder != NULL;
}

/* An option that is null, false or empty is not in use. */
static bool is_unset(tinkc_str json)
{
    return tkc_str_is(json, "null") || tkc_str_is(json, "false") || tkc_str_is(json, "\"\"") ||
           tkc_str_is(json, "0.0") || tkc_str_is(json, "0");
}

static void read_model_option(reader *r, tinkc_str key)
{
    if (tkc_str_is(key, "type")) {
        tinkc_str type = tkc_json_string(&r->j);
        if (!tkc_failed(r->err) && !tkc_str_is(type, "BPE"))
            unsupported(r, "model type", type);
    } else if (tkc_str_is(key, "ignore_merges")) {
        r->ignore_merges = !tkc_json_null(&r->j) && tkc_json_bool(&r->j);
    } else if (tkc_str_is(key, "unk_token") || tkc_str_is(key, "fuse_unk") ||
               tkc_str_is(key, "byte_fallback")) {
        /* Has no effect if each byte has a token; that is checked at the end. */
        tinkc_str value = tkc_json_skip(&r->j);
        r->needs_all_bytes |= !is_unset(value);
    } else if (tkc_str_is(key, "dropout") || tkc_str_is(key, "continuing_subword_prefix") ||
               tkc_str_is(key, "end_of_word_suffix")) {
        tinkc_str value = tkc_json_skip(&r->j);
        if (!tkc_failed(r->err) && !is_unset(value))
            unsupported(r, "model option", key);
    } else {
        unsupported(r, "model option", key);
    }
}

static bool read_model(reader *r)
{
    tinkc_str key;
    r->has_model = true;
    if (!tkc_json_object(&r->j))
        return false;
    while (!tkc_failed(r->err) && tkc_json_key(&r->j, &key)) {
        if (tkc_str_is(key, "vocab")) {
            read_vocab(r);
        } else if (tkc_str_is(key, "merges") && r->has_merges) {
            bad(r, "two lists of merges");
        } else if (tkc_str_is(key, "merges")) {
            r->has_merges = true;
            if (!r->has_vocab)
                r->merges_text = tkc_json_skip(&r->j);
            else if (start_builder(r))
                read_merges(r, &r->j);
        } else {
            read_model_option(r, key);
        }
    }
    return !tkc_failed(r->err);
}

static void read_top(reader *r)
{
    tinkc_str key;
    if (!tkc_json_object(&r->j))
        return;
    while (!tkc_failed(r->err) && tkc_json_key(&r->j, &key)) {
        if (tkc_str_is(key, "model"))
            read_model(r);
        else if (tkc_str_is(key, "version")) {
            tinkc_str version = tkc_json_string(&r->j);
            if (!tkc_failed(r->err) && !tkc_str_is(version, "1.0"))
                unsupported(r, "version", version);
        } else if (tkc_str_is(key, "truncation") || tkc_str_is(key, "padding")) {
            if (!tkc_json_null(&r->j))
                unsupported(r, "option", key);
        } else if (tkc_str_is(key, "added_tokens"))
            r->added = tkc_json_skip(&r->j);
        else if (tkc_str_is(key, "normalizer"))
            r->normalizer = tkc_json_skip(&r->j);
        else if (tkc_str_is(key, "pre_tokenizer"))
            r->pre_tokenizer = tkc_json_skip(&r->j);
        else if (tkc_str_is(key, "post_processor"))
            r->post_processor = tkc_json_skip(&r->j);
        else if (tkc_str_is(key, "decoder"))
            r->decoder = tkc_json_skip(&r->j);
        else
            tkc_json_skip(&r->j);
    }
    if (!tkc_failed(r->err))
        tkc_json_close(&r->j);
}

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
    size_t n = convert(r->map, text, room);
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
    int64_t next_id;
} added_list;

/* Assigns ids as the reference does: the id in the vocabulary, else the next one, counted from the
 * size of the vocabulary. The id in the file is ignored. */
static bool take_id(reader *r, added_list *l, tkc_added_token *token, unsigned char *room)
{
    tinkc_str text = tkc_strn(token->text, token->len);
    int64_t id = id_of_text(r, text, room);
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
static bool add_listed(reader *r, added_list *l, tkc_added_token token, unsigned char *room)
{
    tinkc_str text = tkc_strn(token.text, token.len);
    size_t place = (size_t)(uintptr_t)tkc_map_get(&l->index, text);
    if (place) {
        tkc_added_token *known = &l->tokens[place - 1];
        token.id = known->id;
        token.special |= known->special;
        *known = token;
        return true;
    }
    tkc_added_token *grown = grow_array(r, l->tokens, &l->cap, l->n, sizeof *grown);
    if (!grown || !take_id(r, l, &token, room))
        return false;
    l->tokens = grown;
    grown[l->n++] = token;
    return tkc_map_set(&l->index, text, (void *)(uintptr_t)l->n, NULL, r->err);
}

static bool list_added_tokens(reader *r, added_list *l)
{
    tkc_json j;
    int64_t given;
    open_part(r, &j, r->added);
    unsigned char *room = tkc_arena_alloc(r->temp, r->added.len + 1, r->err);
    if (!room || !tkc_json_array(&j))
        return false;
    while (tkc_json_item(&j)) {
        tkc_added_token token = tkc_read_added_token(&j, r->temp, &given);
        if (tkc_failed(r->err) || (token.len && !add_listed(r, l, token, room)))
            return false;
    }
    return !tkc_failed(r->err);
}

static bool write_added_tokens(reader *r, tkc_jsonw *w)
{
    added_list l = { .next_id = (int64_t)r->n_tokens };
    tkc_map_init(&l.index, NULL);
    tkc_map_init(&r->literals, NULL);
    bool ok = note_literals(r) && list_added_tokens(r, &l);
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
    write_raw(&w, "normalizer", r->normalizer);
    write_raw(&w, "pre_tokenizer", r->pre_tokenizer);
    write_raw(&w, "post_processor", r->post_processor);
    write_raw(&w, "decoder", r->decoder);
    tkc_jsonw_key(&w, "added_tokens");
    tkc_jsonw_array(&w);
    if (r->added.data && !tkc_str_is(r->added, "null") && !write_added_tokens(r, &w))
        return false;
    tkc_jsonw_end(&w);
    tkc_jsonw_end(&w);
    return !tkc_failed(r->err);
}

/* ---- all of it ---- */

static bool check_whole(reader *r)
{
    if (!r->has_model || !r->has_vocab || !r->has_merges)
        return bad(r, !r->has_model ? "it has no model" : "the model has no vocabulary or merges");
    if (!start_builder(r))
        return false;
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
    make_alphabet(r.map);
    tkc_json_open(&r.j, text, temp, err);
    r.j.code = TINKC_E_TOKENIZER;
    /* Conversion never makes a text longer, and added tokens are in the file as well. */
    r.bytes = tkc_arena_alloc(temp, text.len + 1, err);
    if (!r.bytes)
        return false;
    tkc_buf_init(&meta, NULL, TKC_BUF_NO_MAX);
    read_top(&r);
    bool ok = !tkc_failed(err) && check_whole(&r);
    if (ok) {
        tkc_json j;
        open_part(&r, &j, r.merges_text);
        ok = (!r.merges_text.data || read_merges(&r, &j)) && write_meta(&r, &meta);
    }
    /* Added tokens have joined the list. */
    if (ok && tkc_builder_add(r.builder, r.tokens, r.n_tokens)) {
        tkc_merges merges = { r.merges, r.n_merges, r.ignore_merges, tkc_buf_view(&meta), origin };
        ok = tkc_builder_finish(r.builder, &merges, out);
    }
    tkc_buf_free(&meta);
    return ok && !tkc_failed(err);
}
