/* curl_lib.h - libcurl as a table of functions, opened on first use.
 *
 * Only src/net/http*.c and fetch.c include this; nothing else in the library knows that curl
 * exists.
 */
#ifndef TKC_NET_CURL_LIB_H
#define TKC_NET_CURL_LIB_H

#include <curl/curl.h>
#include "base/err.h"

typedef struct tkc_curl {
    CURLcode (*global_init)(long flags);
    curl_version_info_data *(*version_info)(CURLversion);

    CURL *(*easy_init)(void);
    void (*easy_cleanup)(CURL *);
    void (*easy_reset)(CURL *);
    CURLcode (*easy_setopt)(CURL *, CURLoption, ...);
    CURLcode (*easy_getinfo)(CURL *, CURLINFO, ...);
    CURLcode (*easy_pause)(CURL *, int what);
    const char *(*easy_strerror)(CURLcode);

    CURLM *(*multi_init)(void);
    CURLMcode (*multi_cleanup)(CURLM *);
    CURLMcode (*multi_setopt)(CURLM *, CURLMoption, ...);
    CURLMcode (*multi_add_handle)(CURLM *, CURL *);
    CURLMcode (*multi_remove_handle)(CURLM *, CURL *);
    CURLMcode (*multi_perform)(CURLM *, int *running);
    CURLMcode (*multi_poll)(CURLM *, struct curl_waitfd[], unsigned n, int timeout_ms, int *ready);
    CURLMcode (*multi_socket_action)(CURLM *, curl_socket_t, int events, int *running);
    CURLMsg *(*multi_info_read)(CURLM *, int *left);
    const char *(*multi_strerror)(CURLMcode);

    struct curl_slist *(*slist_append)(struct curl_slist *, const char *);
    void (*slist_free_all)(struct curl_slist *);
} tkc_curl;

/* One table per process; the first call opens and initialises libcurl. NULL if libcurl is missing,
 * too old, or resolves names on the calling thread. Any thread. Errors: UNSUPPORTED. */
const tkc_curl *tkc_curl_get(tinkc_error *err);

/* Is its version and what it was built with sufficient? One that resolves names synchronously would
 * block all requests of a client during each lookup. Errors: UNSUPPORTED. */
bool tkc_curl_check(const tkc_curl *, tinkc_error *err);

#endif
