/* linked_libraries.c - what the static program has in place of a dynamic loader.
 *
 * The linker sends every dlopen, dlsym, dlerror and dlclose of tinkc and of the libraries in it here
 * (--wrap). Libraries that are linked in are found in a table; nothing else is ever opened, because a
 * library of the machine would bring another C library into the process. For the same reason names are
 * looked up in /etc/hosts and by DNS alone, whatever /etc/nsswitch.conf says: only these two parts of
 * glibc's name service are inside the program.
 *
 * With TINKC_LIBC_IS_SHARED (packaging/make-wheel) the C library is the machine's: what is not in the
 * table is opened by its loader, such as the module for GPUs, and names are looked up as it says.
 *
 * Must not: call anything of tinkc.
 */
#include <nss.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "linked_symbols.h"

void *__wrap_dlopen(const char *name, int flags);
void *__wrap_dlsym(void *library, const char *name);
char *__wrap_dlerror(void);
int __wrap_dlclose(void *library);

#ifdef TINKC_LIBC_IS_SHARED
void *__real_dlopen(const char *name, int flags);
void *__real_dlsym(void *library, const char *name);
int __real_dlclose(void *library);
#endif

static const char *const libraries[] = {
    "libcurl.so.4", "libarchive.so.13", "libmicrohttpd.so.12",
    "libedit.so.2", "libssl.so.3",      "libcrypto.so.3",
};

static bool is_linked_in(const void *library)
{
    const char *const *at = library;
    return at >= libraries && at < libraries + sizeof libraries / sizeof *libraries;
}

void *__wrap_dlopen(const char *name, int flags)
{
    for (size_t i = 0; name && i < sizeof libraries / sizeof *libraries; i++)
        if (strcmp(name, libraries[i]) == 0)
            return (void *)&libraries[i];
#ifdef TINKC_LIBC_IS_SHARED
    return __real_dlopen(name, flags);
#else
    (void)flags;
    return NULL;
#endif
}

void *__wrap_dlsym(void *library, const char *name)
{
#ifdef TINKC_LIBC_IS_SHARED
    if (!is_linked_in(library))
        return __real_dlsym(library, name);
#endif
    for (size_t i = 0; is_linked_in(library) && i < sizeof linked_symbols / sizeof *linked_symbols;
         i++)
        if (strcmp(name, linked_symbols[i].name) == 0)
            return linked_symbols[i].at;
    return NULL;
}

#ifndef TINKC_LIBC_IS_SHARED
char *__wrap_dlerror(void)
{
    static char why[] =
        "the static program cannot open libraries; use the packages or a build from source";
    return why;
}
#endif

int __wrap_dlclose(void *library)
{
#ifdef TINKC_LIBC_IS_SHARED
    if (!is_linked_in(library))
        return __real_dlclose(library);
#else
    (void)library;
#endif
    return 0;
}

/* Systems keep their certificates in different places; SSL_CERT_FILE is what libcurl's user, the hub
 * client and OpenSSL itself ask for first. A value that is set stays. */
static void find_certificates(void)
{
    static const char *const bundles[] = {
        "/etc/ssl/certs/ca-certificates.crt", /* Debian, Ubuntu, Arch, Alpine, Gentoo */
        "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", /* Fedora, RHEL */
        "/etc/pki/tls/certs/ca-bundle.crt",                  /* older Fedora and RHEL */
        "/var/lib/ca-certificates/ca-bundle.pem",            /* openSUSE */
        "/etc/ssl/ca-bundle.pem",                            /* older openSUSE */
        "/etc/ssl/cert.pem",                                 /* Alpine, BSD */
    };
    for (size_t i = 0; i < sizeof bundles / sizeof *bundles; i++)
        if (access(bundles[i], R_OK) == 0) {
            (void)setenv("SSL_CERT_FILE", bundles[i], 0);
            return;
        }
}

__attribute__((constructor)) static void before_main(void)
{
#ifndef TINKC_LIBC_IS_SHARED
    static const char *const databases[] = { "services", "protocols", "passwd", "group" };
    (void)__nss_configure_lookup("hosts", "files dns");
    for (size_t i = 0; i < sizeof databases / sizeof *databases; i++)
        (void)__nss_configure_lookup(databases[i], "files");
#endif
    find_certificates();
}
