/* tool_model.h - an engine with OpenAI's and Anthropic's endpoints and two models: nano, and `tools`, the same weights with a
 * chat template that takes tools. One program, one engine. */
#ifndef TINKC_TESTS_TOOL_MODEL_H
#define TINKC_TESTS_TOOL_MODEL_H

#include <unistd.h>

#include "support/check.h"
#include "support/json_trees.h"
#include "support/service/service_call.h"

static const char tool_template[] =
    "{%- if tools %}{{- '<|im_start|>system\\\\n' + (tools | tojson) + "
    "' <tool_call><|im_end|>\\\\n' }}{%- endif %}"
    "{%- for message in messages %}{%- if message['role'] == 'user' %}{%- for i in "
    "range(loop.index) %}{{- ' the' }}{%- endfor %}{%- endif %}{{- '<|im_start|>' + message['role'] "
    "+ '\\\\n' + message['content'] }}{%- if message.tool_calls %}{{- "
    "message.tool_calls | tojson }}{%- endif %}{{- "
    "'<|im_end|>\\\\n' }}{%- endfor %}{%- if add_generation_prompt "
    "%}{{- '<|im_start|>assistant\\\\n' }}{%- if enable_thinking %}{{- '<think>' }}{%- endif %}{%- endif %}";

static tinkc_engine *engine;
static const tinkc_transport *t;
static char folder[] = "/tmp/tinkc-tools-XXXXXX";
static const char *const files[] = { "config.json",
                                     "generation_config.json",
                                     "tokenizer.json",
                                     "model.safetensors.index.json",
                                     "model-00001-of-00002.safetensors",
                                     "model-00002-of-00002.safetensors" };

/* The shipped model with a template that takes tools. How many tokens a prompt has tells who said what, and in which order. */
static inline void make_tool_model(void)
{
    char from[600], to[200], here[400];
    assert_non_null(mkdtemp(folder));
    assert_non_null(getcwd(here, sizeof here));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(from, sizeof from, "%s/models/nano/%s", here, files[i]);
        snprintf(to, sizeof to, "%s/%s", folder, files[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    snprintf(to, sizeof to, "%s/tokenizer_config.json", folder);
    FILE *f = fopen(to, "w");
    assert_non_null(f);
    fprintf(f, "{\"eos_token\":\"<|im_end|>\",\"chat_template\":\"%s\"}", tool_template);
    fclose(f);
}

static inline int setup(void **state)
{
    static const char *const on[] = { "openai", "true", NULL };
    tinkc_error err = { 0 };
    (void)state;
    make_tool_model();
    engine = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1, .settings = on }, &err);
    tinkc_engine_add_model(engine, "nano", "models/nano", &err);
    tinkc_engine_add_model(engine, "tools", folder, &err);
    assert_ok(err);
    t = tinkc_engine_transport(engine);
    return 0;
}

static inline int teardown(void **state)
{
    char path[200];
    (void)state;
    tinkc_engine_free(engine);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    unlink(path);
    return rmdir(folder);
}

/* The answer to a request that is accepted. */
static inline tkc_tree *post(const char *path, const char *body)
{
    tkc_tree *v = json_of(service_json(t, 200, "POST", path, "%s", body));
    assert_non_null(v);
    return v;
}

/* A text of an answer; "" without one. */
static inline const char *member(const tkc_tree *v, const char *name)
{
    const char *text = tkc_tree_get_text(v, name);
    return text ? text : "";
}

#endif
