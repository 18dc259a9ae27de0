/* family.c - the list of model families. */
#include "model/family.h"

#include "base/str.h"

static const tke_family *const families[] = { &tke_family_llama,       &tke_family_qwen2,
                                              &tke_family_qwen3,       &tke_family_qwen3_moe,
                                              &tke_family_gpt_oss,     &tke_family_qwen3_5,
                                              &tke_family_qwen3_5_moe, &tke_family_nemotron_h };

const tke_family *tke_family_find(tinkc_str name)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        for (const char *const *known = families[i]->names; *known; known++)
            if (tkc_str_is(name, *known))
                return families[i];
    return NULL;
}

const char *tke_family_list(void)
{
    return "LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM, "
           "GptOssForCausalLM, Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM and NemotronHForCausalLM";
}
