/* gguf_tokenizer.h - the tokenizer and chat template of a GGUF file, as the JSON files that a model
 * folder has. Byte-level BPE ("gpt2") with a pre-tokenizer of a known name, and SentencePiece with scores
 * ("llama"); others are TINKC_E_UNSUPPORTED, by name.
 *
 * SentencePiece's scores stand in the model as "scores" (null: encoding never produces it), in place of
 * merges: a list of merges cannot say that two have the same rank. Other programs do not know that key. */
#ifndef TKC_CODEC_GGUF_TOKENIZER_H
#define TKC_CODEC_GGUF_TOKENIZER_H

#include "base/buf.h"
#include "base/gguf_read.h"

/* tokenizer.json. */
bool tkc_gguf_tokenizer_json(tkc_gguf *, tkc_buf *out, tinkc_error *err);
/* tokenizer_config.json: special tokens, chat template. */
bool tkc_gguf_tokenizer_config(tkc_gguf *, tkc_buf *out, tinkc_error *err);

#endif
