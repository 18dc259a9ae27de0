/* mhd.c - loads libmicrohttpd. */
#include "service/http/mhd.h"

#include <pthread.h>
#include <stddef.h>

#include "base/dl.h"

static const tkc_dl_symbol symbols[] = {
    { "MHD_start_daemon", offsetof(tke_mhd, start) },
    { "MHD_stop_daemon", offsetof(tke_mhd, stop) },
    { "MHD_create_response_from_buffer", offsetof(tke_mhd, from_buffer) },
    { "MHD_create_response_from_callback", offsetof(tke_mhd, from_callback) },
    { "MHD_add_response_header", offsetof(tke_mhd, add_header) },
    { "MHD_queue_response", offsetof(tke_mhd, queue) },
    { "MHD_destroy_response", offsetof(tke_mhd, destroy) },
    { "MHD_suspend_connection", offsetof(tke_mhd, suspend) },
    { "MHD_resume_connection", offsetof(tke_mhd, resume) },
    { "MHD_get_connection_info", offsetof(tke_mhd, info) },
    { "MHD_get_connection_values", offsetof(tke_mhd, values) },
    { NULL, 0 },
};

const tke_mhd *tke_mhd_load(tinkc_error *err)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static tke_mhd table;
    static bool loaded;
    static const char *const names[] = { "libmicrohttpd.so.12", "libmicrohttpd.so", NULL };
    pthread_mutex_lock(&once);
    if (!loaded)
        loaded = tkc_dl_load(names, symbols, &table, err);
    bool ok = loaded;
    pthread_mutex_unlock(&once);
    return ok ? &table : NULL;
}
