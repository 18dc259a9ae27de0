/* curl_lib.c - opens libcurl once and checks that its version and features are sufficient.
 *
 * May touch: base/dl.h, base/leave.h, a lock and a table of its own. Must not: make any transfer.
 */
#include "net/curl_lib.h"

#include <pthread.h>
#include <stddef.h>
#include "base/dl.h"
#include "base/leave.h"
#include "base/platform.h"

#define SYMBOL(name)                                                                               \
    {                                                                                              \
        "curl_" #name, offsetof(tkc_curl, name)                                                    \
    }

static const tkc_dl_symbol symbols[] = {
    SYMBOL(global_init),         SYMBOL(version_info),
    SYMBOL(easy_init),           SYMBOL(easy_cleanup),
    SYMBOL(easy_reset),          SYMBOL(easy_setopt),
    SYMBOL(easy_getinfo),        SYMBOL(easy_pause),
    SYMBOL(easy_strerror),       SYMBOL(multi_init),
    SYMBOL(multi_cleanup),       SYMBOL(multi_setopt),
    SYMBOL(multi_add_handle),    SYMBOL(multi_remove_handle),
    SYMBOL(multi_socket_action), SYMBOL(multi_perform),
    SYMBOL(multi_poll),          SYMBOL(multi_info_read),
    SYMBOL(multi_strerror),      SYMBOL(slist_append),
    SYMBOL(slist_free_all),      { NULL, 0 },
};

/* 7.67.0 is the first version with CURLMOPT_MAX_CONCURRENT_STREAMS. */
enum { OLDEST_VERSION = 0x074300 };

static struct {
    pthread_mutex_t lock;
    bool ready;
    tkc_curl table;
} library = { .lock = PTHREAD_MUTEX_INITIALIZER };

bool tkc_curl_check(const tkc_curl *curl, tinkc_error *err)
{
    const curl_version_info_data *info = curl->version_info(CURLVERSION_NOW);
    if (info->version_num < OLDEST_VERSION)
        return tkc_fail(err, TINKC_E_UNSUPPORTED, "libcurl %s is too old, 7.67 is needed",
                        info->version);
    if (!(info->features & CURL_VERSION_ASYNCHDNS))
        return tkc_fail(err, TINKC_E_UNSUPPORTED,
                        "libcurl %s was built without asynchronous name resolution", info->version);
    if (!(info->features & CURL_VERSION_SSL))
        return tkc_fail(err, TINKC_E_UNSUPPORTED, "libcurl %s was built without TLS",
                        info->version);
    return true;
}

/* libcurl loads about two dozen libraries, including two TLS libraries. Loading them all at once
 * costs a small program 10 MB of resident memory at its first request. Loading the largest one by
 * one and releasing the pages that were only read after each step costs 6 MB (docs/http.md). */
static bool start_library(tkc_curl *table, tinkc_error *err)
{
    static const char *const largest[] = { "libcrypto.so.3", "libgnutls.so.30", NULL };
    static const char *const names[] = { "libcurl.so.4", "libcurl-gnutls.so.4", NULL };
    tkc_dl_mark before;
    tkc_dl_mark_now(&before);
    for (const char *const *name = largest; *name; name++) {
        tkc_dl_open(*name);
        tkc_dl_give_back(&before);
    }
    if (!tkc_dl_load(names, symbols, table, err) || !tkc_curl_check(table, err))
        return false;
    tkc_dl_give_back(&before);
    if (table->global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return tkc_fail(err, TINKC_E_UNSUPPORTED, "libcurl does not start");
    tkc_leave_watch(
        NULL); /* now: libcurl and its TLS library have registered their exit handlers */
    tkc_dl_give_back(&before);
    return true;
}

const tkc_curl *tkc_curl_get(tinkc_error *err)
{
    pthread_mutex_lock(&library.lock);
    if (!library.ready)
        library.ready = start_library(&library.table, err);
    const tkc_curl *curl = library.ready ? &library.table : NULL;
    pthread_mutex_unlock(&library.lock);
    return curl;
}
