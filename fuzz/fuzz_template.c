/* fuzz_template.c - a template and its variables from hostile bytes: text, a NUL, a JSON object.
 *
 * Whatever comes, the engine ends soon, within its limits, and a second run gives the same. */
#include <stdlib.h>
#include <string.h>

#include "chat/template.h"

static const char usual[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": "
    "\" \\u00e9 \"}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": "
    "{\"name\": \"f\", \"arguments\": {\"z\": 1.5, \"y\": [true, null, -7]}}}]}], \"tools\": "
    "[{\"a\": "
    "{\"b\": [1, 2]}}], \"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"i\": 7, \"f\": 0.5, "
    "\"l\": "
    "[3, 1, 2], \"s\": \"Hello, World\", \"d\": {\"b\": 1, \"a\": {\"x\": []}}, \"n\": null, "
    "\"t\": true}";

static void run(const tinkc_template *t, tinkc_str variables, tinkc_text *out, tinkc_error *err)
{
    tkc_arena arena = { 0 };
    tkc_jev ev;
    tkc_jlimits limits = { .max_bytes = 1 << 16, .max_steps = 20000, .now_us = 1753542245000000 };
    tkc_jev_init(&ev, &t->jinja, &arena, &limits, err);
    ev.max_mem = ev.mem_left = 4 << 20;
    tkc_jv v = tkc_jv_from_json(&ev, variables, TINKC_E_ARGUMENT, "variables");
    if (v.kind == TKC_JV_DICT && tkc_jev_run(&ev, v.d)) {
        if (ev.out.len > (size_t)limits.max_bytes || !tkc_j_valid_utf8(tkc_buf_view(&ev.out)))
            abort();
        tinkc_text_append(out, ev.out.data ? ev.out.data : "", ev.out.len, err);
    } else if (v.kind == TKC_JV_DICT && !err->code) {
        abort(); /* failed without saying why */
    }
    tkc_jev_free(&ev);
    tkc_arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t len = nul ? (size_t)(nul - data) : size;
    tinkc_str variables = nul ? tkc_strn((const char *)nul + 1, size - len - 1) : tkc_str(usual);
    tinkc_error err = { 0 };
    tinkc_template *t = tinkc_template_parse((const char *)data, len, NULL, &err);
    if (!t) {
        if (err.code != TINKC_E_TEMPLATE)
            abort();
        return 0;
    }
    tinkc_text first = { 0 }, second = { 0 };
    tinkc_error again = { 0 };
    run(t, variables, &first, &err);
    run(t, variables, &second, &again);
    if (err.code != again.code || first.len != second.len ||
        (first.len && memcmp(first.data, second.data, first.len) != 0))
        abort();
    tinkc_text_free(&first);
    tinkc_text_free(&second);
    tinkc_template_free(t);
    return 0;
}
