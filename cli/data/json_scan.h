/* json_scan.h - JSON passed over at full speed: what is where, and whether it is JSON at all.
 *
 * For files of gigabytes whose lines must be checked and are mostly not needed as values. Strings
 * come as raw spans between their quotes. After a fault every call answers "nothing".
 */
#ifndef CLI_JSON_SCAN_H
#define CLI_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>

typedef struct cli_scan {
    const char *begin, *at, *end;
    const char *fault; /* what is wrong at `at`; NULL = nothing */
    int depth;
    bool first;
} cli_scan;

typedef struct cli_span {
    const char *data;
    size_t len;
} cli_span;

void cli_scan_open(cli_scan *, const char *text, size_t len);
/* '{' '[' '"' 't' 'f' 'n', '0' for a number, or 0 at a fault. */
char cli_scan_peek(cli_scan *);
bool cli_scan_object(cli_scan *);
bool cli_scan_array(cli_scan *);
bool cli_scan_key(cli_scan *, cli_span *key);
bool cli_scan_item(cli_scan *);
bool cli_scan_string(cli_scan *, cli_span *out);
bool cli_scan_skip(cli_scan *);
/* Only white space is left. */
bool cli_scan_close(cli_scan *);

bool cli_span_is(cli_span, const char *text);

#endif
