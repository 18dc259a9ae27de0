/* know.c - what a tokenizer knows: sizes, special tokens, texts of tokens and templates. Reads
 * only. */
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

/* A token of the vocabulary whose text is no byte-level text: rare, so no index. */
static int32_t literal_id(const tkc_tables *t, tinkc_str token)
{
    for (uint32_t id = 0; id < t->n; id++) {
        tinkc_bytes text = tkc_token_text(t, id);
        if (t->flags[id] & TKC_TOKEN_KNOWN && !(t->flags[id] & TKC_TOKEN_BYTES) &&
            text.len == token.len && memcmp(text.data, token.data, token.len) == 0)
            return (int32_t)id;
    }
    return -1;
}

int32_t tkc_token_id(const tinkc_tokenizer *tok, tinkc_str token)
{
    unsigned char bytes[TKC_NUMBER_MAX * 8];
    const tkc_added_token *added = tkc_find_added(tok, token);
    if (added)
        return added->id;
    if (token.len == 0)
        return -1;
    int32_t id = tkc_find_word(&tok->tables, (const unsigned char *)token.data, token.len);
    if (id >= 0)
        return id;
    size_t n = token.len <= sizeof bytes ? tkc_from_byte_level(token, bytes) : SIZE_MAX;
    if (n != SIZE_MAX && (id = tkc_find_word(&tok->tables, bytes, n)) >= 0)
        return id;
    return literal_id(&tok->tables, token);
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
    for (size_t i = tok->n_added; i-- > 0;)
        if (tok->added[i].id == id)
            return (tinkc_bytes){ (const unsigned char *)tok->added[i].text, tok->added[i].len };
    return none;
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
