/* tokenizer_info.c - queries: sizes, special tokens, texts of tokens and templates.
 * Reads only. */
#include "bpe/bpe.h"
#include "tokenizer/load.h"

int32_t tinkc_tokenizer_size(const tinkc_tokenizer *tok)
{
    return tok ? tok->size : 0;
}

tinkc_i32s tinkc_tokenizer_ends(const tinkc_tokenizer *tok)
{
    return tok ? (tinkc_i32s){ tok->ends, tok->n_ends } : (tinkc_i32s){ NULL, 0 };
}

const char *tinkc_tokenizer_source(const tinkc_tokenizer *tok)
{
    return tok ? tok->source : "";
}

int32_t tinkc_tokenizer_special(const tinkc_tokenizer *tok, int32_t which)
{
    static const int names[] = { [TINKC_TOKEN_BOS] = TKC_NAME_BOS,
                                 [TINKC_TOKEN_EOS] = TKC_NAME_EOS,
                                 [TINKC_TOKEN_PAD] = TKC_NAME_PAD,
                                 [TINKC_TOKEN_UNK] = TKC_NAME_UNK };
    return tok && which >= TINKC_TOKEN_BOS && which <= TINKC_TOKEN_UNK
               ? tok->specials[names[which]].id
               : -1;
}

static tinkc_str text_of(const tkc_tables *t, uint32_t id)
{
    tinkc_bytes text = tkc_token_text(t, id);
    return tkc_strn((const char *)text.data, text.len);
}

/* A token of the vocabulary whose text is not byte-level text. They are few and rarely looked up,
 * so there is an index only if opening needed one. */
static int32_t literal_id(const tinkc_tokenizer *tok, tinkc_str token)
{
    const tkc_tables *t = &tok->tables;
    if (tok->literals_known)
        return (int32_t)(intptr_t)tkc_map_get(&tok->literals, token) - 1;
    for (uint32_t id = 0; id < t->n; id++)
        if (tkc_is_literal(t, id) && tkc_str_eq(text_of(t, id), token))
            return (int32_t)id;
    return -1;
}

bool tkc_index_literals(tinkc_tokenizer *tok, tinkc_error *err)
{
    const tkc_tables *t = &tok->tables;
    bool ok = true;
    for (uint32_t id = 0; ok && !tok->literals_known && id < t->n; id++)
        if (tkc_is_literal(t, id))
            ok =
                tkc_map_set(&tok->literals, text_of(t, id), (void *)(uintptr_t)(id + 1), NULL, err);
    tok->literals_known |= ok;
    return ok;
}

int32_t tkc_spelled_id(const tinkc_tokenizer *tok, tinkc_str text)
{
    unsigned char bytes[2 * TKC_BPE_LONG_TOKEN];
    bool fits = text.len <= sizeof bytes;
    if (fits && tok->tables.pieces) { /* a byte that text stands for is a literal */
        int byte = tkc_piece_byte(text);
        tinkc_str piece = tkc_strn((const char *)bytes, tkc_from_piece(text, bytes));
        int32_t literal = byte >= 0 ? literal_id(tok, piece) : -1;
        if (literal >= 0)
            return literal;
        text = piece;
    }
    size_t n = !fits ? SIZE_MAX : tok->tables.pieces ? text.len : tkc_from_byte_level(text, bytes);
    int32_t id = n != SIZE_MAX && n > 0 ? tkc_find_word(&tok->tables, bytes, n) : -1;
    return id >= 0 ? id : literal_id(tok, text);
}

int32_t tkc_token_id(const tinkc_tokenizer *tok, tinkc_str token)
{
    const tkc_added_token *added = tkc_find_added(tok, token);
    if (added)
        return added->id;
    if (token.len == 0)
        return -1;
    int32_t id = tkc_find_word(&tok->tables, (const unsigned char *)token.data, token.len);
    return id >= 0 ? id : tkc_spelled_id(tok, token);
}

int32_t tinkc_tokenizer_id(const tinkc_tokenizer *tok, const char *token)
{
    return tok && token ? tkc_token_id(tok, tkc_str(token)) : -1;
}

tinkc_bytes tinkc_tokenizer_bytes(const tinkc_tokenizer *tok, int32_t id)
{
    tinkc_bytes none = { NULL, 0 };
    if (!tok || id < 0 || id >= tok->size)
        return none;
    if ((uint32_t)id < tok->tables.n)
        return tok->tables.flags[id] & TKC_TOKEN_KNOWN ? tkc_token_text(&tok->tables, (uint32_t)id)
                                                       : none;
    const tkc_added_token *late = tok->late[id - (int32_t)tok->tables.n];
    return late ? (tinkc_bytes){ (const unsigned char *)late->text, late->len } : none;
}

bool tinkc_tokenizer_is_special(const tinkc_tokenizer *tok, int32_t id)
{
    return tok && id >= 0 && id < tok->size && tok->special_ids[id >> 3] >> (id & 7) & 1;
}

const tkc_template_text *tkc_find_template(const tinkc_tokenizer *tok, const char *name)
{
    for (size_t i = 0; i < tok->n_templates; i++)
        if (tkc_cstr_eq(tok->templates[i].name, name ? name : "default"))
            return &tok->templates[i];
    return NULL;
}

const char *tinkc_tokenizer_template(const tinkc_tokenizer *tok, const char *name)
{
    const tkc_template_text *t = tok ? tkc_find_template(tok, name) : NULL;
    return t ? t->text.data : NULL;
}
