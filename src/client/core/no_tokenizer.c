/* no_tokenizer.c - the public tokenizer and template functions of a build without them
 * (TINKC_TOKENIZER=OFF): every one is there, and fails with TINKC_E_UNSUPPORTED. Touches nothing.
 */
#include "base/err.h"
#include "tinkc/tokenizer.h"
#include "tokenizer/open_with.h"

#ifndef TINKC_WITH_TOKENIZER

static bool without(tinkc_error *err)
{
    tinkc_error local;
    if (tkc_enter(&err, &local))
        tkc_fail(err, TINKC_E_UNSUPPORTED, "this library was built without the tokenizer");
    return false;
}

/* ---- getting one ---- */

tinkc_tokenizer *tinkc_tokenizer_open(const char *path, const tinkc_tokenizer_options *options,
                                      tinkc_error *err)
{
    (void)path, (void)options;
    without(err);
    return NULL;
}

const char *tkc_user_cache(tkc_arena *arena, tinkc_error *err)
{
    (void)arena, (void)err;
    return "";
}

tinkc_tokenizer *tkc_tokenizer_open_with(const char *path, const tinkc_tokenizer_options *options,
                                         const char *user_cache, tinkc_error *err)
{
    (void)user_cache;
    return tinkc_tokenizer_open(path, options, err);
}

tinkc_tokenizer *tinkc_tokenizer_parse(const char *json, size_t len, const char *config,
                                       size_t config_len, const tinkc_tokenizer_options *options,
                                       tinkc_error *err)
{
    (void)json, (void)len, (void)config, (void)config_len, (void)options;
    without(err);
    return NULL;
}

tinkc_tokenizer *tinkc_tokenizer_keep(const tinkc_tokenizer *tok)
{
    (void)tok;
    return NULL;
}

void tinkc_tokenizer_free(tinkc_tokenizer *tok)
{
    (void)tok;
}

/* ---- what it knows ---- */

int32_t tinkc_tokenizer_size(const tinkc_tokenizer *tok)
{
    (void)tok;
    return 0;
}

tinkc_i32s tinkc_tokenizer_ends(const tinkc_tokenizer *tok)
{
    (void)tok;
    return (tinkc_i32s){ NULL, 0 };
}

const char *tinkc_tokenizer_source(const tinkc_tokenizer *tok)
{
    (void)tok;
    return "";
}

int32_t tinkc_tokenizer_special(const tinkc_tokenizer *tok, int32_t which)
{
    (void)tok, (void)which;
    return -1;
}

int32_t tinkc_tokenizer_id(const tinkc_tokenizer *tok, const char *token)
{
    (void)tok, (void)token;
    return -1;
}

tinkc_bytes tinkc_tokenizer_bytes(const tinkc_tokenizer *tok, int32_t id)
{
    (void)tok, (void)id;
    return (tinkc_bytes){ NULL, 0 };
}

bool tinkc_tokenizer_is_special(const tinkc_tokenizer *tok, int32_t id)
{
    (void)tok, (void)id;
    return false;
}

const char *tinkc_tokenizer_template(const tinkc_tokenizer *tok, const char *name)
{
    (void)tok, (void)name;
    return NULL;
}

/* ---- encode and decode ---- */

bool tinkc_encode(const tinkc_tokenizer *tok, const char *text, tinkc_tokens *out, tinkc_error *err)
{
    (void)tok, (void)text, (void)out;
    return without(err);
}

bool tinkc_encode_span(const tinkc_tokenizer *tok, const char *text, size_t len,
                       const tinkc_encode_options *options, tinkc_tokens *out, tinkc_sizes *offsets,
                       tinkc_error *err)
{
    (void)tok, (void)text, (void)len, (void)options, (void)out, (void)offsets;
    return without(err);
}

bool tinkc_encode_many(const tinkc_tokenizer *tok, const tinkc_str *texts, size_t n,
                       const tinkc_encode_options *options, tinkc_tokens *out, tinkc_sizes *ends,
                       tinkc_error *err)
{
    (void)tok, (void)texts, (void)n, (void)options, (void)out, (void)ends;
    return without(err);
}

size_t tinkc_encode_count(const tinkc_tokenizer *tok, const char *text, size_t len,
                          const tinkc_encode_options *options, tinkc_error *err)
{
    (void)tok, (void)text, (void)len, (void)options;
    without(err);
    return 0;
}

const char *tinkc_decode(const tinkc_tokenizer *tok, const int32_t *ids, size_t len,
                         tinkc_text *out, tinkc_error *err)
{
    (void)tok, (void)ids, (void)len, (void)out;
    without(err);
    return "";
}

bool tinkc_decode_span(const tinkc_tokenizer *tok, const int32_t *ids, size_t len,
                       const tinkc_decode_options *options, tinkc_text *out, tinkc_error *err)
{
    (void)tok, (void)ids, (void)len, (void)options, (void)out;
    return without(err);
}

tinkc_decoder *tinkc_decoder_new(const tinkc_tokenizer *tok, const tinkc_decode_options *options,
                                 tinkc_error *err)
{
    (void)tok, (void)options;
    without(err);
    return NULL;
}

bool tinkc_decoder_push(tinkc_decoder *decoder, const int32_t *ids, size_t len, tinkc_text *out,
                        tinkc_error *err)
{
    (void)decoder, (void)ids, (void)len, (void)out;
    return without(err);
}

bool tinkc_decoder_finish(tinkc_decoder *decoder, tinkc_text *out, tinkc_error *err)
{
    (void)decoder, (void)out;
    return without(err);
}

void tinkc_decoder_free(tinkc_decoder *decoder)
{
    (void)decoder;
}

/* ---- conversations ---- */

tinkc_template *tinkc_template_parse(const char *text, size_t len, const tinkc_allocator *a,
                                     tinkc_error *err)
{
    (void)text, (void)len, (void)a;
    without(err);
    return NULL;
}

void tinkc_template_free(tinkc_template *template)
{
    (void)template;
}

bool tinkc_template_render(const tinkc_template *template, const char *variables_json,
                           int64_t now_us, tinkc_text *out, tinkc_error *err)
{
    (void)template, (void)variables_json, (void)now_us, (void)out;
    return without(err);
}

bool tinkc_chat_render(const tinkc_tokenizer *tok, const char *messages_json,
                       const tinkc_chat_options *options, tinkc_text *out, tinkc_error *err)
{
    (void)tok, (void)messages_json, (void)options, (void)out;
    return without(err);
}

bool tinkc_chat_encode(const tinkc_tokenizer *tok, const char *messages_json,
                       const tinkc_chat_options *options, tinkc_tokens *out, tinkc_error *err)
{
    (void)tok, (void)messages_json, (void)options, (void)out;
    return without(err);
}

bool tinkc_chat_train(const tinkc_tokenizer *tok, const char *messages_json,
                      const tinkc_chat_options *options, tinkc_tokens *out, tinkc_floats *weights,
                      tinkc_sizes *ends, tinkc_error *err)
{
    (void)tok, (void)messages_json, (void)options, (void)out, (void)weights, (void)ends;
    return without(err);
}

const char *const *tinkc_chat_stops(const tinkc_tokenizer *tok, const char *renderer,
                                    tinkc_error *err)
{
    (void)tok, (void)renderer;
    without(err);
    return NULL;
}

const char *tinkc_chat_renderer(const char *model)
{
    (void)model;
    return NULL;
}

#endif
