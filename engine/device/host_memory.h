/* host_memory.h - how much memory this process may still take: the machine's, or less where a
 * container or a limit of the process allows less. */
#ifndef TKE_DEVICE_HOST_MEMORY_H
#define TKE_DEVICE_HOST_MEMORY_H

#include <stdint.h>

typedef struct tke_host_memory {
    uint64_t total;      /* of the machine, or of the limit that is below it */
    uint64_t available;  /* now: free, or held only for files that could be read again */
    const char *bounded; /* static: "machine", "container", "process": which gives the least */
} tke_host_memory;

/* root: in front of /proc and /sys, "" outside of tests. address_space: the process's limit,
 * UINT64_MAX = none. What cannot be read bounds nothing; if nothing can, all is 0. */
tke_host_memory tke_host_memory_read(const char *root, uint64_t address_space);
tke_host_memory tke_host_memory_now(void);

#endif
