/* template.h - a parsed chat template, internal to the tokenizer. */
#ifndef TKC_TOKENIZER_TEMPLATE_H
#define TKC_TOKENIZER_TEMPLATE_H

#include "tinkc/tokenizer.h"
#include "jinja/jinja.h"

struct tinkc_template {
    const tinkc_allocator *a;
    tkc_jtemplate jinja;
};

#endif
