/* tlsprobe.h - what a TLS handshake with a server settles on; for `tinkc doctor` alone. */
#ifndef CLI_TLSPROBE_H
#define CLI_TLSPROBE_H

#include <stdbool.h>

typedef struct cli_tls {
    char version[16]; /* "TLSv1.3"; "" = no handshake came about */
    char fault[160]; /* why its chain is not trusted, or why there was no handshake; "" = nothing */
} cli_tls;

/* Greets over a connected socket, waiting no longer than `seconds` for each answer. False if
 * OpenSSL is not installed: then nothing is known. */
bool cli_tls_probe(int fd, const char *host, int seconds, cli_tls *out);

#endif
