/* mhd.c - loads libmicrohttpd. */
#include "service/http/mhd.h"

#include <pthread.h>
#include <stddef.h>

#include "base/dl.h"
#include "base/str.h"

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
    { "MHD_get_version", offsetof(tke_mhd, version) },
    { NULL, 0 },
};

static bool is_before_0_9_77(const char *version)
{
    tinkc_str rest = tkc_str(version), part;
    int64_t number[3] = { 0 };
    for (int i = 0; i < 3 && tkc_str_cut(&rest, '.', &part); i++)
        if (!tkc_parse_i64(part, &number[i]))
            return false;
    return number[0] == 0 && number[1] == 9 && number[2] < 77;
}

const tke_mhd *tke_mhd_load(tinkc_error *err)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static tke_mhd table;
    static bool loaded;
    static const char *const names[] = { "libmicrohttpd.so.12", "libmicrohttpd.so", NULL };
    pthread_mutex_lock(&once);
    if (!loaded && (loaded = tkc_dl_load(names, symbols, &table, err)))
        table.heads_in_place = is_before_0_9_77(table.version());
    bool ok = loaded;
    pthread_mutex_unlock(&once);
    return ok ? &table : NULL;
}
