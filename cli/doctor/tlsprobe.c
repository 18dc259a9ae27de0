/* tlsprobe.c - OpenSSL, opened with dlopen so that only `tinkc doctor` pays. The library's own
 * calls go through libcurl, which does not say which version it speaks. Must not: send any request.
 */
#include "cli/doctor/tlsprobe.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/platform.h"

/* ---- OpenSSL's own names, as <openssl/ssl.h> has them ---- */

typedef struct ssl_context ssl_context;
typedef struct ssl_connection ssl_connection;
enum { SET_SERVER_NAME = 55, NAME_IS_HOST = 0, VERIFIED = 0 };

static struct {
    const void *(*client_method)(void);
    ssl_context *(*context_new)(const void *);
    void (*context_free)(ssl_context *);
    int (*default_paths)(ssl_context *);
    ssl_connection *(*connection_new)(ssl_context *);
    void (*connection_free)(ssl_connection *);
    long (*control)(ssl_connection *, int, long, void *);
    int (*set_host)(ssl_connection *, const char *);
    int (*set_fd)(ssl_connection *, int);
    int (*connect)(ssl_connection *);
    const char *(*version)(const ssl_connection *);
    long (*verified)(const ssl_connection *);
    const char *(*verify_text)(long);
} lib;

static bool load(void *library, const char *name, void *slot)
{
    void *found = library ? dlsym(library, name) : NULL;
    memcpy(slot, &found, sizeof found);
    return found != NULL;
}

static bool open_library(void)
{
    void *ssl = tkc_library_open("libssl.so.3");
    void *crypto = tkc_library_open("libcrypto.so.3");
    return load(ssl, "TLS_client_method", (void *)&lib.client_method) &&
           load(ssl, "SSL_CTX_new", (void *)&lib.context_new) &&
           load(ssl, "SSL_CTX_free", (void *)&lib.context_free) &&
           load(ssl, "SSL_CTX_set_default_verify_paths", (void *)&lib.default_paths) &&
           load(ssl, "SSL_new", (void *)&lib.connection_new) &&
           load(ssl, "SSL_free", (void *)&lib.connection_free) &&
           load(ssl, "SSL_ctrl", (void *)&lib.control) &&
           load(ssl, "SSL_set1_host", (void *)&lib.set_host) &&
           load(ssl, "SSL_set_fd", (void *)&lib.set_fd) &&
           load(ssl, "SSL_connect", (void *)&lib.connect) &&
           load(ssl, "SSL_get_version", (void *)&lib.version) &&
           load(ssl, "SSL_get_verify_result", (void *)&lib.verified) &&
           load(crypto, "X509_verify_cert_error_string", (void *)&lib.verify_text);
}

static void wait_at_most(int fd, int seconds)
{
    struct timeval most = { .tv_sec = seconds };
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
}

/* The chain is looked at after the handshake, so that a version is known also where it is not
 * trusted. */
static void shake_hands(ssl_connection *c, int fd, const char *host, cli_tls *out)
{
    char name[256];
    (void)snprintf(name, sizeof name, "%s", host);
    (void)lib.control(c, SET_SERVER_NAME, NAME_IS_HOST, name);
    (void)lib.set_host(c, name);
    if (lib.set_fd(c, fd) != 1 || lib.connect(c) != 1) {
        (void)snprintf(out->fault, sizeof out->fault, "the TLS handshake failed");
        return;
    }
    (void)snprintf(out->version, sizeof out->version, "%s", lib.version(c));
    long result = lib.verified(c);
    if (result != VERIFIED)
        (void)snprintf(out->fault, sizeof out->fault, "%s", lib.verify_text(result));
}

bool cli_tls_probe(int fd, const char *host, int seconds, cli_tls *out)
{
    *out = (cli_tls){ 0 };
    if (!open_library())
        return false;
    ssl_context *context = lib.context_new(lib.client_method());
    if (!context)
        return false;
    (void)lib.default_paths(context);
    ssl_connection *c = lib.connection_new(context);
    if (c) {
        wait_at_most(fd, seconds);
        shake_hands(c, fd, host, out);
        lib.connection_free(c);
    }
    lib.context_free(context);
    return c != NULL;
}
