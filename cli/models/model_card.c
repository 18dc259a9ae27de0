/* model_card.c - the README.md of a repository that holds an adapter or a model. Pure text. */
#include "cli/models/model_card.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinkc/tinkc.h>

/* Only names of models are links to other repositories; folders of this machine are nobody's business. */
static bool is_hub_model(const char *name)
{
    const char *slash = name ? strchr(name, '/') : NULL;
    return slash && slash != name && !strchr(slash + 1, '/') && name[0] != '.' && name[0] != '~';
}

static void put_head(FILE *f, const cli_card *c)
{
    bool known = is_hub_model(c->base_model);
    fputs("---\n", f);
    if (known)
        fprintf(f, "base_model: \"%s\"\n", c->base_model);
    fprintf(f, "library_name: %s\n", c->is_model ? "transformers" : "peft");
    fputs("pipeline_tag: text-generation\ntags:\n- tinker\n", f);
    if (!c->is_model)
        fputs("- peft\n- lora\n", f);
    if (known)
        fprintf(f, "- \"base_model:%s:%s\"\n", c->is_model ? "finetune" : "adapter", c->base_model);
    if (c->source)
        fprintf(f, "tinker_path: \"%s\"\n", c->source);
    fputs("---\n\n", f);
}

static void put_usage(FILE *f, const cli_card *c)
{
    fputs("## Use\n\n```python\n", f);
    if (c->is_model) {
        fputs("from transformers import AutoModelForCausalLM, AutoTokenizer\n\n", f);
        fprintf(f,
                "model = AutoModelForCausalLM.from_pretrained(\"%s\")\n"
                "tokenizer = AutoTokenizer.from_pretrained(\"%s\")\n",
                c->repo, c->repo);
    } else {
        const char *base = is_hub_model(c->base_model) ? c->base_model : "BASE_MODEL";
        fputs("from peft import PeftModel\n"
              "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n",
              f);
        fprintf(f,
                "base = AutoModelForCausalLM.from_pretrained(\"%s\")\n"
                "model = PeftModel.from_pretrained(base, \"%s\")\n"
                "tokenizer = AutoTokenizer.from_pretrained(\"%s\")\n",
                base, c->repo, base);
    }
    fputs("```\n\n", f);
}

static const char *yes(uint32_t freeze, uint32_t flag)
{
    return freeze & flag ? "no" : "yes";
}

static void put_facts(FILE *f, const cli_card *c)
{
    fputs("## Details\n\n", f);
    if (is_hub_model(c->base_model))
        fprintf(f, "- Base model: `%s`\n", c->base_model);
    if (c->rank)
        fprintf(f, "- LoRA rank: %d\n", (int)c->rank);
    if (c->has_flags)
        fprintf(f, "- Trained modules: attn=%s, mlp=%s, unembed=%s\n",
                yes(c->freeze, TINKC_FREEZE_ATTN), yes(c->freeze, TINKC_FREEZE_MLP),
                yes(c->freeze, TINKC_FREEZE_UNEMBED));
    if (c->source)
        fprintf(f, "- Source:\n\n```\n%s\n```\n", c->source);
}

char *cli_model_card(const cli_card *c)
{
    char *text = NULL;
    size_t len = 0;
    const char *slash = strrchr(c->repo, '/');
    FILE *f = open_memstream(&text, &len);
    if (!f)
        return NULL;
    put_head(f, c);
    fprintf(f, "# %s\n\n%s trained with LoRA through the Tinker API.\n\n",
            slash ? slash + 1 : c->repo, c->is_model ? "A model" : "An adapter");
    put_usage(f, c);
    put_facts(f, c);
    if (fclose(f) == 0)
        return text;
    free(text);
    return NULL;
}
