/* chat_names.c - the cookbook's renderers by name, and which one it recommends for a model.
 *
 * Most renderers are the model's own template with a variable or two; three are formats of the
 * cookbook and have a template here. These wrap every message's output in a generation block, which
 * shows the training view where it is. May touch: nothing; tables only.
 */
#include "chat/chat.h"

#include <string.h>

#include "base/str.h"

static const char role_colon[] =
    "{{- bos_token if bos_token is defined else '' }}"
    "{%- for message in messages %}"
    "{%- if message.content is string %}{% set text = message.content %}"
    "{%- else %}{% set text = message.content | selectattr('type', 'equalto', 'text') "
    "| map(attribute='text') | join %}{% endif %}"
    "{{- message.role | capitalize ~ ':' }}"
    "{%- generation %}{{- ' ' ~ text ~ '\\n\\n' }}"
    "{%- if tinkc_training and loop.last and message.role == 'assistant' %}{{- 'User:' }}{% endif "
    "%}"
    "{%- endgeneration %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- 'Assistant:' }}{% endif %}";

static const char llama3[] =
    "{{- '<|begin_of_text|>' }}"
    "{%- for message in messages %}"
    "{%- if message.content is string %}{% set text = message.content %}"
    "{%- else %}{% set text = message.content | selectattr('type', 'equalto', 'text') "
    "| map(attribute='text') | join %}{% endif %}"
    "{{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\\n\\n' }}"
    "{%- generation %}{{- text ~ '<|eot_id|>' }}{% endgeneration %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";

static const char *const stop_user[] = { "\n\nUser:", NULL };
static const char *const stop_eot[] = { "<|eot_id|>", NULL };
static const char *const stop_im_end[] = { "<|im_end|>", NULL };
static const char *const stop_deepseek[] = { "<\xEF\xBD\x9C"
                                             "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
                                             NULL };
static const char *const stop_harmony[] = { "<|return|>", "<|call|>", NULL };

#define THINK(on)  "{\"enable_thinking\": " #on "}"
#define THINK2(on) "{\"thinking\": " #on "}"
#define EFFORT(e)  "{\"reasoning_effort\": \"" e "\"}"

static const tkc_renderer renderers[] = {
    { "role_colon", role_colon, NULL, stop_user, false, false, false },
    { "llama3", llama3, NULL, stop_eot, false, false, false },
    { "qwen3", NULL, THINK(true), stop_im_end, false, false, false },
    { "qwen3_disable_thinking", NULL, THINK(false), stop_im_end, false, true, false },
    { "qwen3_instruct", NULL, NULL, stop_im_end, false, false, false },
    { "qwen3_vl", NULL, NULL, stop_im_end, false, false, false },
    { "qwen3_vl_instruct", NULL, NULL, stop_im_end, false, false, false },
    { "qwen3_5", NULL, THINK(true), stop_im_end, false, false, false },
    { "qwen3_5_disable_thinking", NULL, THINK(false), stop_im_end, false, true, false },
    { "qwen3_8_xhigh_reasoning", NULL, EFFORT("xhigh"), stop_im_end, false, false, false },
    { "qwen3_8_medium_reasoning", NULL, EFFORT("medium"), stop_im_end, false, false, false },
    { "qwen3_8_low_reasoning", NULL, EFFORT("low"), stop_im_end, false, false, false },
    { "qwen3_8_disable_thinking", NULL, THINK(false), stop_im_end, false, true, false },
    { "deepseekv3", NULL, THINK2(false), stop_deepseek, false, true, false },
    { "deepseekv3_disable_thinking", NULL, THINK2(false), stop_deepseek, false, true, false },
    { "deepseekv3_thinking", NULL, THINK2(true), stop_deepseek, false, false, false },
    { "kimi_k2", NULL, NULL, stop_im_end, false, false, false },
    { "kimi_k25", NULL, THINK2(true), stop_im_end, false, false, false },
    { "kimi_k25_disable_thinking", NULL, THINK2(false), stop_im_end, false, true, false },
    { "kimi_k26", NULL, THINK2(true), stop_im_end, false, false, false },
    { "kimi_k26_disable_thinking", NULL, THINK2(false), stop_im_end, false, true, false },
    { "kimi_k26_preserve_thinking", NULL, "{\"thinking\": true, \"preserve_thinking\": true}",
      stop_im_end, false, false, false },
    { "nemotron3", NULL, THINK(true), stop_im_end, false, false, false },
    { "nemotron3_low_thinking", NULL, "{\"enable_thinking\": true, \"low_effort\": true}",
      stop_im_end, false, false, false },
    { "nemotron3_disable_thinking", NULL, THINK(false), stop_im_end, false, true, false },
    { "nemotron3_preserve_thinking", NULL,
      "{\"enable_thinking\": true, \"truncate_history_thinking\": false}", stop_im_end, false,
      false, false },
    { "nemotron3_ultra", NULL, THINK(true), stop_im_end, false, false, false },
    { "nemotron3_ultra_disable_thinking", NULL, THINK(false), stop_im_end, false, true, false },
    { "nemotron3_ultra_medium_thinking", NULL,
      "{\"enable_thinking\": true, \"medium_effort\": true}", stop_im_end, false, false, false },
    { "nemotron3_ultra_preserve_thinking", NULL,
      "{\"enable_thinking\": true, \"truncate_history_thinking\": false}", stop_im_end, false,
      false, false },
    { "gpt_oss_no_sysprompt", NULL, NULL, stop_harmony, true, false, false },
    { "gpt_oss_low_reasoning", NULL, EFFORT("low"), stop_harmony, false, false, false },
    { "gpt_oss_medium_reasoning", NULL, EFFORT("medium"), stop_harmony, false, false, false },
    { "gpt_oss_high_reasoning", NULL, EFFORT("high"), stop_harmony, false, false, false },
    { "tml_v0", NULL, NULL, NULL, false, false, true },
};

const tkc_renderer *tkc_find_renderer(const char *name)
{
    for (size_t i = 0; i < sizeof renderers / sizeof *renderers; i++)
        if (tkc_cstr_eq(renderers[i].name, name))
            return &renderers[i];
    return NULL;
}

/* Which renderer is recommended; the first matching row wins. */
static const char *const models[][2] = {
    { "Qwen/Qwen3-VL-30B-A3B-Instruct", "qwen3_vl_instruct" },
    { "Qwen/Qwen3-VL-235B-A22B-Instruct", "qwen3_vl_instruct" },
    { "Qwen/Qwen3-8B-Base", "role_colon" },
    { "Qwen/Qwen3-30B-A3B-Base", "role_colon" },
    { "Qwen/Qwen3-8B", "qwen3" },
    { "Qwen/Qwen3-32B", "qwen3" },
    { "Qwen/Qwen3-30B-A3B", "qwen3" },
    { "Qwen/Qwen3-4B-Instruct-2507", "qwen3_instruct" },
    { "Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3_instruct" },
    { "Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3_instruct" },
    { "Qwen/Qwen3.5-4B", "qwen3_5" },
    { "Qwen/Qwen3.5-9B", "qwen3_5" },
    { "Qwen/Qwen3.5-9B-Base", "role_colon" },
    { "Qwen/Qwen3.5-27B", "qwen3_5" },
    { "Qwen/Qwen3.5-35B-A3B", "qwen3_5" },
    { "Qwen/Qwen3.5-35B-A3B-Base", "role_colon" },
    { "Qwen/Qwen3.5-397B-A17B", "qwen3_5" },
    { "Qwen/Qwen3.6-27B", "qwen3_5" },
    { "Qwen/Qwen3.6-35B-A3B", "qwen3_5" },
    { "Qwen/Qwen3.8-27B", "qwen3_8_xhigh_reasoning" },
    { "meta-llama/Llama-3.1-8B-Instruct", "llama3" },
    { "meta-llama/Llama-3.2-1B", "role_colon" },
    { "meta-llama/Llama-3.2-3B", "role_colon" },
    { "meta-llama/Llama-3.1-8B", "role_colon" },
    { "meta-llama/Llama-3.1-70B", "role_colon" },
    { "meta-llama/Llama-3.3-70B-Instruct", "llama3" },
    { "deepseek-ai/DeepSeek-V3.1", "deepseekv3" },
    { "deepseek-ai/DeepSeek-V3.1-Base", "role_colon" },
    { "openai/gpt-oss-20b", "gpt_oss_no_sysprompt" },
    { "openai/gpt-oss-120b", "gpt_oss_no_sysprompt" },
    { "moonshotai/Kimi-K2-Thinking", "kimi_k2" },
    { "moonshotai/Kimi-K2.5", "kimi_k25" },
    { "moonshotai/Kimi-K2.6", "kimi_k26" },
    { "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron3" },
    { "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "nemotron3" },
    { "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", "nemotron3_ultra" },
    { "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16", "nemotron3_ultra" },
};

const char *tinkc_chat_renderer(const char *model)
{
    static const char inkling[] = "thinkingmachines/Inkling";
    if (!model)
        return NULL;
    tinkc_str name = { model, strcspn(model, ":#") }; /* without variant and bits */
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (tkc_str_is(name, models[i][0]))
            return models[i][1];
    return tkc_starts_with(name, inkling) ? "tml_v0" : NULL;
}
