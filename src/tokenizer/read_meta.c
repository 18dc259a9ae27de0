/* read_meta.c - what surrounds the model in tokenizer.json: added tokens, normalizer,
 * pre-tokenizer, post-processor, decoder.
 *
 * May touch: the tokenizer being built. Unknown features are rejected with an error that names
 * them.
 */
#include <string.h>

#include "bpe/added.h"
#include "tokenizer/load.h"
#include "unicode/spaces.h"

static bool unsupported(tkc_json *j, const char *where, tinkc_str what)
{
    return tkc_fail(j->err, TINKC_E_TOKENIZER, "%s %.*s is not supported", where,
                    (int)(what.len < 100 ? what.len : 100), what.data);
}

/* ---- added tokens ---- */

tkc_added_token *tkc_find_added(const tinkc_tokenizer *tok, tinkc_str text)
{
    size_t place = (size_t)(uintptr_t)tkc_map_get(&tok->added_index, text);
    return place ? &tok->added[place - 1] : NULL;
}

/* The array doubles in the arena; the old block is not reused. */
static tkc_added_token *append_added(tinkc_tokenizer *tok, tkc_added_token token, tinkc_error *err)
{
    size_t n = tok->n_added;
    if ((n & (n - 1)) == 0) { /* full: 0, 1, 2, 4, ... */
        tkc_added_token *grown = tkc_arena_alloc(&tok->arena, (n ? 2 * n : 1) * sizeof *grown, err);
        if (!grown)
            return NULL;
        if (n)
            memcpy(grown, tok->added, n * sizeof *grown);
        tok->added = grown;
    }
    tinkc_str text = tkc_strn(token.text, token.len);
    if (!tkc_map_set(&tok->added_index, text, (void *)(uintptr_t)(n + 1), NULL, err))
        return NULL;
    tok->added[n] = token;
    tok->n_added++;
    if (token.id >= tok->size)
        tok->size = token.id + 1;
    return &tok->added[n];
}

tkc_added_token *tkc_add_token(tinkc_tokenizer *tok, tkc_added_token token, tinkc_error *err)
{
    tinkc_str text = tkc_strn(token.text, token.len);
    tkc_added_token *known = tkc_find_added(tok, text);
    if (known || text.len == 0)
        return known;
    if (token.id < 0) {
        if (!tkc_index_literals(tok, err))
            return NULL;
        token.id = tkc_spelled_id(tok, text);
        if (token.id < 0)
            token.id = tok->size;
    }
    return append_added(tok, token, err);
}

static void read_added_tokens(tinkc_tokenizer *tok, tkc_json *j)
{
    int64_t id;
    if (!tkc_json_array(j))
        return;
    while (tkc_json_item(j)) {
        tkc_added_token token = tkc_read_added_token(j, &tok->arena, &id);
        if (tkc_failed(j->err))
            return;
        if (id < 0 || id >= tok->tables.n) {
            tkc_json_fail(j, "an added token without a good id");
            return;
        }
        token.id = (int32_t)id;
        if (token.len)
            append_added(tok, token, j->err);
    }
}

/* ---- vocabularies of pieces: what is done about spaces (unicode/spaces.h) ---- */

#define MARK "\xE2\x96\x81" /* U+2581 */

typedef struct step {
    tinkc_str type, pattern, content, prepend;
} step;

/* { "String": "text" } */
static tinkc_str read_literal(tkc_json *j)
{
    tinkc_str key, text = { NULL, 0 };
    if (tkc_json_peek(j) != TKC_JSON_OBJECT || !tkc_json_object(j))
        return tkc_json_skip(j), text;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "String"))
            text = tkc_json_string(j);
        else
            tkc_json_skip(j);
    }
    return text;
}

static bool read_step_field(step *s, tkc_json *j, tinkc_str key)
{
    tinkc_str *to = tkc_str_is(key, "type")      ? &s->type
                    : tkc_str_is(key, "content") ? &s->content
                    : tkc_str_is(key, "prepend") ? &s->prepend
                                                 : NULL;
    if (to)
        *to = tkc_json_string(j);
    else if (tkc_str_is(key, "pattern"))
        s->pattern = read_literal(j);
    return to || tkc_str_is(key, "pattern");
}

static bool replaces(const step *s, const char *from, const char *to)
{
    return tkc_str_is(s->type, "Replace") && tkc_str_is(s->pattern, from) &&
           tkc_str_is(s->content, to);
}

/* A space is always written as U+2581: by the normalizer or by Metaspace, which is checked at the end. */
static bool take_space_step(tinkc_tokenizer *tok, const step *s, bool *marks_spaces)
{
    if (!tok->tables.pieces)
        return false;
    if (replaces(s, " ", MARK))
        return *marks_spaces = true;
    if (!tkc_str_is(s->type, "Prepend") || !tkc_str_is(s->prepend, MARK) || tok->space_first)
        return false;
    tok->space_first = TKC_SPACE_ALWAYS;
    return true;
}

/* Metaspace, or nothing. */
static void read_space_pretok(tinkc_tokenizer *tok, tkc_json *j, bool *split)
{
    tinkc_str key, type = { NULL, 0 }, mark = { NULL, 0 }, scheme = { NULL, 0 };
    bool prefix = true;
    *split = false;
    if (tkc_json_null(j) || !tkc_json_object(j))
        return;
    *split = true;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "type"))
            type = tkc_json_string(j);
        else if (tkc_str_is(key, "replacement"))
            mark = tkc_json_string(j);
        else if (tkc_str_is(key, "prepend_scheme"))
            scheme = tkc_json_string(j);
        else if (tkc_str_is(key, "add_prefix_space"))
            prefix = tkc_json_bool(j);
        else if (tkc_str_is(key, "split"))
            *split = tkc_json_bool(j);
        else
            tkc_json_skip(j);
    }
    if (tkc_failed(j->err))
        return;
    if (!tkc_str_is(type, "Metaspace") || !tkc_str_is(mark, MARK) || tok->space_first) {
        unsupported(j, "pre_tokenizer of a vocabulary with byte_fallback:", type);
        return;
    }
    if (!scheme.data)
        scheme = tkc_str(prefix ? "always" : "never");
    tok->metaspace = true;
    tok->space_first = tkc_str_is(scheme, "always")  ? TKC_SPACE_UNLESS
                       : tkc_str_is(scheme, "first") ? TKC_SPACE_FIRST
                                                     : TKC_SPACE_NEVER;
    if (!tok->space_first && !tkc_str_is(scheme, "never"))
        unsupported(j, "pre_tokenizer: prepend_scheme", scheme);
}

/* Whether a text may be cut before each run of spaces: no token has a space behind another character,
 * and no rule is about whole pieces. */
static bool words_are_apart(const tkc_tables *t)
{
    bool apart = !t->ignore_merges;
    for (uint32_t id = 0; apart && id < t->n; id++) {
        tinkc_bytes text = tkc_token_text(t, id);
        for (size_t i = 1; t->flags[id] & TKC_TOKEN_BYTES && i < text.len; i++)
            apart &= text.data[i] != ' ' || text.data[i - 1] == ' ';
    }
    return apart;
}

static bool finish_spaces(tinkc_tokenizer *tok, bool marks_spaces, bool split, tinkc_error *err)
{
    if (marks_spaces == tok->metaspace || tok->nfc)
        return tkc_fail(err, TINKC_E_TOKENIZER,
                        "a vocabulary with byte_fallback, but not one step that replaces spaces "
                        "(normalizer Replace or pre_tokenizer Metaspace) is not supported");
    if (split)
        tkc_pretok_spaces(&tok->pretok, TKC_SCAN_SPACE);
    else if (words_are_apart(&tok->tables))
        tkc_pretok_spaces(&tok->pretok, TKC_SCAN_SPACES);
    return true;
}

/* ---- normalizer ---- */

static void read_normalizer(tinkc_tokenizer *tok, tkc_json *j, bool *marks_spaces)
{
    tinkc_str key;
    step s = { .type = { NULL, 0 } };
    if (tkc_json_null(j) || !tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (read_step_field(&s, j, key))
            continue;
        if (tkc_str_is(key, "normalizers")) {
            if (tkc_json_array(j))
                while (tkc_json_item(j))
                    read_normalizer(tok, j, marks_spaces);
        } else
            tkc_json_skip(j);
    }
    if (tkc_failed(j->err) || tkc_str_is(s.type, "Sequence"))
        return;
    if (tkc_str_is(s.type, "NFC"))
        tok->nfc = true;
    else if (!take_space_step(tok, &s, marks_spaces))
        unsupported(j, "normalizer", s.type);
}

/* ---- post-processor ---- */

typedef struct post {
    tinkc_tokenizer *tok;
    tinkc_str names[8]; /* of the template's special tokens, in order */
    size_t n_names, n_before;
    bool seen_text, seen;
    tinkc_str special_tokens; /* raw */
} post;

static void read_piece(post *p, tkc_json *j)
{
    tinkc_str kind, key, id = { NULL, 0 };
    if (!tkc_json_object(j) || !tkc_json_key(j, &kind) || !tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "id"))
            id = tkc_json_string(j);
        else
            tkc_json_skip(j);
    }
    if (tkc_failed(j->err) || tkc_json_key(j, &key)) {
        unsupported(j, "post_processor: template piece", kind);
        return;
    }
    if (tkc_str_is(kind, "Sequence")) {
        if (p->seen_text || !tkc_str_is(id, "A"))
            unsupported(j, "post_processor: sequence", id);
        p->seen_text = true;
        p->n_before = p->n_names;
    } else if (!tkc_str_is(kind, "SpecialToken") || p->n_names == 8) {
        unsupported(j, "post_processor: template piece", kind);
    } else {
        p->names[p->n_names++] = id;
    }
}

/* The ids of one name in the "special_tokens" of a template. */
static tinkc_i32s ids_of_name(post *p, tkc_json *outer, tinkc_str name)
{
    tkc_json j;
    tinkc_str key;
    tinkc_i32s ids = { NULL, 0 };
    tkc_json_open(&j, p->special_tokens, outer->arena, outer->err);
    j.code = outer->code;
    if (!tkc_json_object(&j))
        return ids;
    while (tkc_json_key(&j, &key)) {
        bool mine = tkc_str_eq(key, name);
        if (!mine) {
            tkc_json_skip(&j);
            continue;
        }
        if (!tkc_json_object(&j))
            break;
        while (tkc_json_key(&j, &key))
            if (tkc_str_is(key, "ids"))
                ids = tkc_json_i32s(&j);
            else
                tkc_json_skip(&j);
    }
    if (ids.len == 0)
        unsupported(outer, "post_processor: a template without ids for", name);
    return ids;
}

static void finish_template(post *p, tkc_json *j)
{
    tinkc_tokenizer *tok = p->tok;
    size_t n = 0, before = 0;
    int32_t ids[64];
    if (!p->seen_text) {
        unsupported(j, "post_processor", tkc_str("a template without the text"));
        return;
    }
    for (size_t i = 0; i < p->n_names && !tkc_failed(j->err); i++) {
        tinkc_i32s of = ids_of_name(p, j, p->names[i]);
        if (of.len > sizeof ids / sizeof *ids - n) {
            unsupported(j, "post_processor", tkc_str("a template of so many ids"));
            return;
        }
        for (size_t k = 0; k < of.len; k++)
            ids[n++] = of.data[k];
        if (i < p->n_before)
            before = n;
    }
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= tok->size)
            unsupported(j, "post_processor", tkc_str("an id that no token has"));
    tok->prefix = tkc_arena_array(&tok->arena, n + 1, sizeof *tok->prefix, j->err);
    if (!tok->prefix)
        return;
    memcpy(tok->prefix, ids, n * sizeof *ids);
    tok->suffix = tok->prefix + before;
    tok->n_prefix = before;
    tok->n_suffix = n - before;
}

static void read_post(post *p, tkc_json *j)
{
    tinkc_str key, type = { NULL, 0 };
    if (tkc_json_null(j) || !tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "type"))
            type = tkc_json_string(j);
        else if (tkc_str_is(key, "processors")) {
            if (tkc_json_array(j))
                while (tkc_json_item(j))
                    read_post(p, j);
        } else if (tkc_str_is(key, "single")) {
            if (p->seen)
                unsupported(j, "post_processor", tkc_str("a second template"));
            p->seen = true;
            if (tkc_json_array(j))
                while (tkc_json_item(j))
                    read_piece(p, j);
        } else if (tkc_str_is(key, "special_tokens"))
            p->special_tokens = tkc_json_skip(j);
        else
            tkc_json_skip(j);
    }
    if (tkc_failed(j->err) || tkc_str_is(type, "Sequence") || tkc_str_is(type, "ByteLevel"))
        return;
    if (tkc_str_is(type, "TemplateProcessing"))
        finish_template(p, j);
    else
        unsupported(j, "post_processor", type);
}

/* ---- decoder ---- */

/* What the vocabularies of pieces have: U+2581 becomes a space, bytes become characters, and a space at the
 * beginning may be left out. */
static void read_piece_decoder(tinkc_tokenizer *tok, tkc_json *j)
{
    tinkc_str key;
    step s = { .type = { NULL, 0 } };
    int64_t start = 0, stop = 0;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (read_step_field(&s, j, key))
            continue;
        if (tkc_str_is(key, "decoders")) {
            if (tkc_json_array(j))
                while (tkc_json_item(j))
                    read_piece_decoder(tok, j);
        } else if (tkc_str_is(key, "start")) {
            start = tkc_json_i64(j);
        } else if (tkc_str_is(key, "stop")) {
            stop = tkc_json_i64(j);
        } else {
            tkc_json_skip(j);
        }
    }
    bool strip = tkc_str_is(s.type, "Strip") && tkc_str_is(s.content, " ") && start == 1 && !stop;
    tok->strip_space |= strip;
    if (!tkc_failed(j->err) && !strip && !replaces(&s, MARK, " ") &&
        !tkc_str_is(s.type, "ByteFallback") && !tkc_str_is(s.type, "Fuse") &&
        !tkc_str_is(s.type, "Sequence"))
        unsupported(j, "decoder", s.type);
}

static void read_decoder(tkc_json *j)
{
    tinkc_str key, type = { NULL, 0 };
    if (tkc_json_null(j)) {
        tkc_fail(j->err, TINKC_E_TOKENIZER, "decoder: a tokenizer without one is not supported");
        return;
    }
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "type"))
            type = tkc_json_string(j);
        else
            tkc_json_skip(j);
    }
    if (!tkc_failed(j->err) && !tkc_str_is(type, "ByteLevel"))
        unsupported(j, "decoder", type);
}

/* ---- all of it ---- */

/* The JSON reader's message does not say which part failed. */
static void name_part(tinkc_error *err, tinkc_str part)
{
    if (tkc_failed(err) && tkc_starts_with(tkc_str(err->message), "JSON: "))
        tkc_fail_before(err, "%.*s: ", (int)part.len, part.data);
}

bool tkc_read_meta(tinkc_tokenizer *tok, tinkc_error *err)
{
    tkc_json j;
    tkc_arena temp;
    tinkc_str key, raw_post = { NULL, 0 };
    bool marks_spaces = false, split = false;
    const bool pieces = tok->tables.pieces;
    tok->size = (int32_t)tok->tables.n;
    tkc_arena_init(&temp, tok->a, 0);
    tkc_json_open(&j, tok->tables.meta, &temp, err);
    j.code = TINKC_E_TOKENIZER;
    if (tkc_json_object(&j))
        while (!tkc_failed(err) && tkc_json_key(&j, &key)) {
            j.begin = j.at; /* errors give the position within the part */
            if (tkc_str_is(key, "added_tokens"))
                read_added_tokens(tok, &j);
            else if (tkc_str_is(key, "normalizer"))
                read_normalizer(tok, &j, &marks_spaces);
            else if (tkc_str_is(key, "pre_tokenizer") && pieces)
                read_space_pretok(tok, &j, &split);
            else if (tkc_str_is(key, "pre_tokenizer"))
                tkc_pretok_read(&tok->pretok, &j);
            else if (tkc_str_is(key, "post_processor"))
                raw_post = tkc_json_skip(&j);
            else if (tkc_str_is(key, "decoder") && pieces)
                read_piece_decoder(tok, &j);
            else if (tkc_str_is(key, "decoder"))
                read_decoder(&j);
            else if (tkc_str_is(key, "tiktoken"))
                tok->tiktoken = tkc_json_bool(&j);
            else
                tkc_json_skip(&j);
            name_part(err, key);
        }
    if (!tkc_failed(err) && raw_post.data) {
        post p = { .tok = tok };
        tkc_json_open(&j, raw_post, &temp, err);
        j.code = TINKC_E_TOKENIZER;
        read_post(&p, &j);
        name_part(err, tkc_str("post_processor"));
    }
    tkc_arena_free(&temp);
    return !tkc_failed(err) && (!pieces || finish_spaces(tok, marks_spaces, split, err));
}

/* ---- indexing ---- */

/* In normalised text, the pattern is the normal form of the token. */
static bool normal_pattern(tinkc_tokenizer *tok, const tkc_added_token *token, tinkc_str *out,
                           tinkc_error *err)
{
    *out = tkc_strn(token->text, token->len);
    const unsigned char *text = (const unsigned char *)token->text;
    bool spaces = tok->tables.pieces && !tok->metaspace;
    if (!tok->nfc && !spaces)
        return true;
    tkc_buf buf;
    tkc_buf_init(&buf, tok->a, TKC_BUF_NO_MAX);
    bool changes;
    bool ok = spaces ? tkc_spaces(text, token->len, tok->space_first, &buf, NULL, &changes, err)
                     : tkc_nfc(text, token->len, &buf, NULL, &changes, err);
    if (ok && changes) {
        out->data = tkc_arena_str(&tok->arena, tkc_buf_view(&buf), err);
        out->len = buf.len;
    }
    tkc_buf_free(&buf);
    return ok && out->data != NULL;
}

static bool index_added(tinkc_tokenizer *tok, bool normalized, tkc_added_set **set,
                        tinkc_error *err)
{
    const tkc_added_token **tokens =
        tkc_arena_array(&tok->arena, tok->n_added + 1, sizeof *tokens, err);
    tinkc_str *patterns = tkc_arena_array(&tok->arena, tok->n_added + 1, sizeof *patterns, err);
    size_t n = 0;
    if (!tokens || !patterns)
        return false;
    for (size_t i = 0; i < tok->n_added; i++) {
        const tkc_added_token *token = &tok->added[i];
        if (token->normalized != normalized)
            continue;
        tokens[n] = token;
        patterns[n] = tkc_strn(token->text, token->len);
        if (normalized && !normal_pattern(tok, token, &patterns[n], err))
            return false;
        n++;
    }
    *set = tkc_added_set_new(&tok->arena, tokens, patterns, n, err);
    return !tkc_failed(err);
}

/* Tokens that were added after the tables were built. */
static bool index_late(tinkc_tokenizer *tok, tinkc_error *err)
{
    size_t n = (size_t)tok->size - tok->tables.n;
    tok->late = tkc_arena_array(&tok->arena, n + 1, sizeof *tok->late, err);
    for (size_t i = 0; tok->late && i < tok->n_added; i++)
        if (tok->added[i].id >= (int32_t)tok->tables.n)
            tok->late[tok->added[i].id - (int32_t)tok->tables.n] = &tok->added[i];
    return tok->late != NULL;
}

bool tkc_finish_tokenizer(tinkc_tokenizer *tok, tinkc_error *err)
{
    tok->special_ids = tkc_arena_array(&tok->arena, (size_t)tok->size / 8 + 1, 1, err);
    if (!tok->special_ids)
        return false;
    for (size_t i = 0; i < tok->n_added; i++) {
        int32_t id = tok->added[i].id;
        if (tok->added[i].special && !tok->named_specials_only)
            tok->special_ids[id >> 3] |= (unsigned char)(1u << (id & 7));
    }
    for (size_t i = 0; i < TKC_NAMES; i++) {
        int32_t id = tok->specials[i].id;
        if (tok->specials[i].text && id >= 0)
            tok->special_ids[id >> 3] |= (unsigned char)(1u << (id & 7));
    }
    for (size_t i = 0; i < tok->n_extra_special; i++) {
        int32_t id = tok->extra_special[i];
        tok->special_ids[id >> 3] |= (unsigned char)(1u << (id & 7));
    }
    return index_late(tok, err) && index_added(tok, false, &tok->raw_set, err) &&
           index_added(tok, true, &tok->norm_set, err);
}
