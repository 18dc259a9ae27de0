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

/* How many bytes to redact after a mark at the start of `s`; 0 = no mark or no secret. */
static size_t secret_at(tinkc_str s, size_t *keep)
{
    for (size_t m = 0; m < sizeof marks / sizeof *marks; m++) {
        if (!tkc_starts_with(s, marks[m].text))
            continue;
        size_t n = marks[m].keep;
        while (n < s.len && secret_byte(s.data[n]))
            n++;
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
            continue;
        assert(keep + n <= len - i);
        memset(text + i + keep, '*', n);
        i += keep + n - 1;
    }
}
