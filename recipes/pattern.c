/* pattern.c - PCRE2 behind four functions. Patterns and texts are hostile: steps are bounded. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "recipes/pattern.h"

#include <pcre2.h>
#include <string.h>

enum { MOST_STEPS = 1000000 };

tkr_pattern *tkr_pattern_new(const char *text, tinkc_error *err)
{
    int code;
    PCRE2_SIZE at;
    if (tkc_failed(err))
        return NULL;
    pcre2_code *p = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                                  PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
    if (!p) {
        unsigned char why[160] = "";
        pcre2_get_error_message(code, why, sizeof why);
        tkc_fail(err, TINKC_E_ARGUMENT, "regular expression: %s at byte %zu of %.80s",
                 (const char *)why, (size_t)at, text);
    }
    return (tkr_pattern *)p;
}

bool tkr_pattern_matches(const tkr_pattern *pattern, const char *text, tinkc_error *err)
{
    const pcre2_code *p = (const pcre2_code *)pattern;
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(p, NULL);
    pcre2_match_context *how = pcre2_match_context_create(NULL);
    int found = PCRE2_ERROR_NOMATCH;
    if (!data || !how) {
        tkc_fail_memory(err);
    } else {
        pcre2_set_match_limit(how, MOST_STEPS);
        pcre2_set_depth_limit(how, MOST_STEPS);
        found = pcre2_match(p, (PCRE2_SPTR)text, strlen(text), 0, 0, data, how);
    }
    pcre2_match_data_free(data);
    pcre2_match_context_free(how);
    return found >= 0;
}

void tkr_pattern_free(tkr_pattern *p)
{
    pcre2_code_free((pcre2_code *)p);
}

bool tkr_pattern_found(const char *pattern, const char *text, tinkc_error *err)
{
    tkr_pattern *p = tkr_pattern_new(pattern, err);
    bool found = p && tkr_pattern_matches(p, text, err);
    tkr_pattern_free(p);
    return found;
}
