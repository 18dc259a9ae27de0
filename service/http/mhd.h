/* mhd.h - libmicrohttpd, opened on first use: only the functions that we call. */
#ifndef TKE_SERVER_MHD_H
#define TKE_SERVER_MHD_H

#include <microhttpd.h>

#include "base/err.h"

typedef struct tke_mhd {
    struct MHD_Daemon *(*start)(unsigned int flags, uint16_t port, MHD_AcceptPolicyCallback apc,
                                void *apc_cls, MHD_AccessHandlerCallback dh, void *dh_cls, ...);
    void (*stop)(struct MHD_Daemon *);
    struct MHD_Response *(*from_buffer)(size_t size, void *buffer, enum MHD_ResponseMemoryMode);
    struct MHD_Response *(*from_callback)(uint64_t size, size_t block_size,
                                          MHD_ContentReaderCallback reader, void *cls,
                                          MHD_ContentReaderFreeCallback end);
    enum MHD_Result (*add_header)(struct MHD_Response *, const char *name, const char *value);
    enum MHD_Result (*queue)(struct MHD_Connection *, unsigned int status, struct MHD_Response *);
    void (*destroy)(struct MHD_Response *);
    void (*suspend)(struct MHD_Connection *);
    void (*resume)(struct MHD_Connection *);
    int (*values)(struct MHD_Connection *, enum MHD_ValueKind, MHD_KeyValueIterator, void *cls);
    const union MHD_ConnectionInfo *(*info)(struct MHD_Connection *, enum MHD_ConnectionInfoType,
                                            ...);
    const char *(*version)(void);
    /* Names and values of a head are handed out where they were received, each line's CR LF overwritten
     * by two NULs and a single LF or CR by one. So since 0.9.0; from 0.9.77 on the library refuses lines
     * that end otherwise itself. */
    bool heads_in_place;
} tke_mhd;

/* The table, or NULL (UNSUPPORTED) if the library is not installed. Any thread. */
const tke_mhd *tke_mhd_load(tinkc_error *err);

#endif
