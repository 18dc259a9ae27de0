/* redact.c - masks credentials in text that leaves: logs, errors, telemetry. Keeps no state. */
#include <assert.h>
#include <string.h>

#include "base/log.h"
#include "base/str.h"

/* What begins a secret; `keep` bytes of the match stay readable. */
static const struct {
    const char *text;
    size_t keep;
    size_t least; /* fewer bytes than this are not a secret: "eyJ" in prose */
} marks[] = {
    { "tml-", 4, 1 },
    { "eyJ", 3, 8 },
    { "hf_", 3, 8 },
    { "Bearer ", 7, 1 },
    { "bearer ", 7, 1 },
    { "api_key=", 8, 1 },
    { "token=", 6, 1 },
    { "X-Amz-Signature=", 16, 1 },
    { "X-Goog-Signature=", 17, 1 },
    { "Signature=", 10, 1 },
    { "sig=", 4, 1 },
};

static bool secret_byte(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.' || c == '%' || c == '+' || c == '/' || c == '=' || c == '~';
}

/* Headers whose value has no mark of its own; a proxy's page of errors may show them. */
static const char *const names[] = { "Client-Secret", "client-secret", "client_secret",
                                     "Authorization", "authorization" };

static size_t end_of_run(tinkc_str s, size_t from, const char *bytes)
{
    while (from < s.len && s.data[from] && strchr(bytes, s.data[from]))
        from++;
    return from;
}

static size_t end_of_secret(tinkc_str s, size_t from)
{
    while (from < s.len && secret_byte(s.data[from]))
        from++;
    return from;
}

/* NAME: VALUE, NAME=VALUE, "NAME": "VALUE", NAME: Basic VALUE; a word after NAME is too short. */
static size_t named_secret_at(tinkc_str s, size_t *keep)
{
    static const char scheme[] = "Basic ";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!tkc_starts_with(s, names[i]))
            continue;
        size_t value = end_of_run(s, strlen(names[i]), ":=\"'\\ ");
        bool basic = tkc_starts_with(tkc_strn(s.data + value, s.len - value), scheme);
        *keep = value + (basic ? sizeof scheme - 1 : 0);
        size_t n = end_of_secret(s, *keep) - *keep;
        return n >= (basic ? 6 : 16) ? n : 0;
    }
    return 0;
}

/* How many bytes to redact after a mark at the start of `s`; 0 = no mark or no secret. */
static size_t secret_at(tinkc_str s, size_t *keep)
{
    for (size_t m = 0; m < sizeof marks / sizeof *marks; m++) {
        if (!tkc_starts_with(s, marks[m].text))
            continue;
        size_t n = end_of_secret(s, marks[m].keep);
        if (n - marks[m].keep < marks[m].least)
            continue;
        *keep = marks[m].keep;
        return n - marks[m].keep;
    }
    return 0;
}

void tkc_redact(char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        size_t keep = 0;
        size_t n = secret_at(tkc_strn(text + i, len - i), &keep);
        if (n == 0)
            n = named_secret_at(tkc_strn(text + i, len - i), &keep);
        if (n == 0)
            continue;
        assert(keep + n <= len - i);
        memset(text + i + keep, '*', n);
        i += keep + n - 1;
    }
}
