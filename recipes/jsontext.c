/* jsontext.c - converts between jansson values and text. */
#include "recipes/jsontext.h"

#include <math.h>
#include <string.h>

json_t *tkr_json_parse(const char *text, size_t len, const char *what, tinkc_error *err)
{
    json_error_t why;
    if (tkc_failed(err))
        return NULL;
    json_t *v = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (!v)
        tkc_fail(err, TINKC_E_BAD_RESPONSE, "%s: not JSON: %s", what, why.text);
    return v;
}

char *tkr_json_text(const json_t *v, tinkc_error *err)
{
    if (tkc_failed(err))
        return NULL;
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    if (!text)
        tkc_fail_memory(err);
    return text;
}

void tkr_json_text_free(char *text)
{
    if (!text)
        return;
    json_malloc_t alloc;
    json_free_t release;
    json_get_alloc_funcs(&alloc, &release);
    release(text);
}

const char *tkr_json_string(const json_t *v, const char *key)
{
    return json_string_value(json_object_get(v, key));
}

bool tkr_json_number(const json_t *v, const char *key, double *out)
{
    const json_t *n = json_object_get(v, key);
    if (!json_is_number(n))
        return false;
    *out = json_number_value(n);
    return isfinite(*out);
}
