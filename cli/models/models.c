/* models.c - what is known about models by name: sizes, formats, learning rates. Pure data. */
#include "cli/models/models.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/output/text.h"

static const cli_model_facts facts[] = {
    { "Qwen/Qwen3-VL-30B-A3B-Instruct", "chat vision", 2048, 14450688, 835584, 153984,
      "qwen3_vl_instruct" },
    { "Qwen/Qwen3-VL-235B-A22B-Instruct", "chat vision", 4096, 56598528, 3176448, 156032,
      "qwen3_vl_instruct" },
    { "Qwen/Qwen3-8B-Base", "base", 4096, 1769472, 958464, 156032, "role_colon" },
    { "Qwen/Qwen3-30B-A3B-Base", "base", 2048, 14450688, 835584, 153984, "role_colon" },
    { "Qwen/Qwen3-8B", "chat", 4096, 1769472, 958464, 156032, "qwen3" },
    { "Qwen/Qwen3-32B", "chat", 5120, 5898240, 2490368, 157056, "qwen3" },
    { "Qwen/Qwen3-30B-A3B", "chat", 2048, 14450688, 835584, 153984, "qwen3" },
    { "Qwen/Qwen3-4B-Instruct-2507", "chat", 2560, 1327104, 737280, 154496, "qwen3_instruct" },
    { "Qwen/Qwen3-30B-A3B-Instruct-2507", "chat", 2048, 14450688, 835584, 153984,
      "qwen3_instruct" },
    { "Qwen/Qwen3-235B-A22B-Instruct-2507", "chat", 4096, 56598528, 3176448, 156032,
      "qwen3_instruct" },
    { "Qwen/Qwen3.5-4B", "chat vision", 2560, 1130496, 897024, 250880, "qwen3_5" },
    { "Qwen/Qwen3.5-9B", "chat vision", 4096, 1572864, 1130496, 252416, "qwen3_5" },
    { "Qwen/Qwen3.5-9B-Base", "base vision", 4096, 1572864, 1130496, 252416, "role_colon" },
    { "Qwen/Qwen3.5-27B", "chat vision", 5120, 4325376, 2965504, 253440, "qwen3_5" },
    { "Qwen/Qwen3.5-35B-A3B", "chat vision", 2048, 16281600, 1013760, 250368, "qwen3_5" },
    { "Qwen/Qwen3.5-35B-A3B-Base", "base vision", 2048, 16281600, 1013760, 250368, "role_colon" },
    { "Qwen/Qwen3.5-397B-A17B", "chat vision", 4096, 96030720, 2841600, 252416, "qwen3_5" },
    { "Qwen/Qwen3.6-27B", "chat vision", 5120, 4325376, 2965504, 253440, "qwen3_5" },
    { "Qwen/Qwen3.6-35B-A3B", "chat vision", 2048, 16281600, 1013760, 250368, "qwen3_5" },
    { "Qwen/Qwen3.8-27B", "chat vision", 5120, 4325376, 2965504, 253440,
      "qwen3_8_xhigh_reasoning" },
    { "meta-llama/Llama-3.1-8B-Instruct", "chat", 4096, 1769472, 851968, 132352, "llama3" },
    { "meta-llama/Llama-3.2-1B", "base", 2048, 491520, 212992, 130304, "role_colon" },
    { "meta-llama/Llama-3.2-3B", "base", 3072, 946176, 573440, 131328, "role_colon" },
    { "meta-llama/Llama-3.1-8B", "base", 4096, 1769472, 851968, 132352, "role_colon" },
    { "meta-llama/Llama-3.1-70B", "base", 8192, 8847360, 4096000, 136448, "role_colon" },
    { "meta-llama/Llama-3.3-70B-Instruct", "chat", 8192, 8847360, 4096000, 136448, "llama3" },
    { "deepseek-ai/DeepSeek-V3.1", "chat", 7168, 94307328, 2440000, 136448, "deepseekv3" },
    { "deepseek-ai/DeepSeek-V3.1-Base", "base", 7168, 94307328, 2440000, 136448, "role_colon" },
    { "openai/gpt-oss-20b", "chat", 2880, 6842880, 497664, 203968, "gpt_oss_no_sysprompt" },
    { "openai/gpt-oss-120b", "chat", 2880, 40124160, 746496, 203968, "gpt_oss_no_sysprompt" },
    { "moonshotai/Kimi-K2-Thinking", "chat", 7168, 144583680, 1940288, 171008, "kimi_k2" },
    { "moonshotai/Kimi-K2.5", "chat vision", 7168, 144583680, 1940288, 171008, "kimi_k25" },
    { "moonshotai/Kimi-K2.6", "chat vision", 7168, 144583680, 1940288, 171008, "kimi_k26" },
    { "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "chat", 2688, 11346176, 584832, 133760,
      "nemotron3" },
    { "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "chat", 4096, 111349760, 1675264, 135168,
      "nemotron3" },
    { "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", "chat", 8192, 254529536, 4134912, 139264,
      "nemotron3_ultra" },
    { "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16", "chat", 2688, 11346176, 584832, 133760,
      "nemotron3_ultra" },
    { "thinkingmachines/Inkling", "chat vision audio", 6144, 154705920, 3424256, 207168, "tml_v0" },
    { "thinkingmachines/Inkling-Small", "chat vision audio", 4096, 0, 0, 0, "tml_v0" },
    { "nano", "chat", 384, 33792, 20480, 4480, NULL },
};

const cli_model_facts *cli_model_find(const char *name)
{
    size_t n = strcspn(name, ":#"); /* variants: NAME:peft:..., NAME#4bit */
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (strlen(facts[i].name) == n && memcmp(facts[i].name, name, n) == 0)
            return &facts[i];
    return NULL;
}

/* Letters in lower case, and digits, without anything between them; digits once more, apart. */
typedef struct folded {
    char text[64], digits[64];
} folded;

static folded fold(const char *name)
{
    folded f = { 0 };
    size_t n = 0, d = 0;
    for (; *name && n + 1 < sizeof f.text; name++) {
        if (isalnum((unsigned char)*name))
            f.text[n++] = (char)tolower((unsigned char)*name);
        if (isdigit((unsigned char)*name))
            f.digits[d++] = *name;
    }
    return f;
}

static bool is_misspelt(const char *name, const char *known)
{
    folded a = fold(name), b = fold(known);
    size_t most = strlen(a.text) / 3 < 2 ? strlen(a.text) / 3 : 2;
    return strcmp(a.digits, b.digits) == 0 && cli_edits(a.text, b.text) <= most;
}

const char *cli_model_meant(const char *name)
{
    if (cli_model_find(name))
        return NULL;
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        const char *known = facts[i].name, *slash = strchr(known, '/');
        if (is_misspelt(name, known) ||
            (slash && !strchr(name, '/') && is_misspelt(name, slash + 1)))
            return known;
    }
    return NULL;
}

const char *cli_model_name(size_t i)
{
    return i < sizeof facts / sizeof *facts ? facts[i].name : NULL;
}

/* Renderers that suit besides the recommended one: by that one, and for some by the model. */
static const struct {
    const char *recommended, *also;
    const char *only; /* part of the model's name; NULL = all */
} further[] = {
    { "qwen3", "qwen3_disable_thinking", NULL },
    { "qwen3_5", "qwen3_5_disable_thinking", NULL },
    { "qwen3_8_xhigh_reasoning", "qwen3_8_medium_reasoning", NULL },
    { "qwen3_8_xhigh_reasoning", "qwen3_8_low_reasoning", NULL },
    { "qwen3_8_xhigh_reasoning", "qwen3_8_disable_thinking", NULL },
    { "deepseekv3", "deepseekv3_thinking", NULL },
    { "gpt_oss_no_sysprompt", "gpt_oss_medium_reasoning", NULL },
    { "kimi_k25", "kimi_k25_disable_thinking", NULL },
    { "kimi_k26", "kimi_k26_disable_thinking", NULL },
    { "kimi_k26", "kimi_k26_preserve_thinking", NULL },
    { "nemotron3", "nemotron3_disable_thinking", NULL },
    { "nemotron3", "nemotron3_preserve_thinking", NULL },
    { "nemotron3", "nemotron3_low_thinking", "-Super-" },
    { "nemotron3_ultra", "nemotron3_ultra_disable_thinking", NULL },
    { "nemotron3_ultra", "nemotron3_ultra_preserve_thinking", NULL },
    { "nemotron3_ultra", "nemotron3_ultra_medium_thinking", "-Ultra-" },
};

const char *cli_model_renderer(const cli_model_facts *m, size_t i)
{
    if (!m->renderer || i == 0)
        return m->renderer;
    for (size_t k = 0; k < sizeof further / sizeof *further; k++)
        if (strcmp(further[k].recommended, m->renderer) == 0 &&
            (!further[k].only || strstr(m->name, further[k].only)) && --i == 0)
            return further[k].also;
    return NULL;
}

/* lr = 5e-5 (x 10 for LoRA) x (2000 / hidden)^p, with p calibrated for two families only. */
double cli_model_rate(const char *name, int64_t hidden, bool lora)
{
    double p;
    if (strcasestr(name, "llama"))
        p = 0.781;
    else if (strcasestr(name, "qwen"))
        p = 0.0775;
    else
        return 0;
    return hidden > 0 ? 5e-5 * (lora ? 10 : 1) * pow(2000.0 / (double)hidden, p) : 0;
}

double cli_model_suggested_rate(const char *name)
{
    const cli_model_facts *f = cli_model_find(name);
    if (f && strcmp(f->name, "nano") == 0)
        return CLI_NANO_RATE;
    return f ? cli_model_rate(f->name, f->hidden, true) : 0;
}
