/* proc_memory.h - the part of tkc_host_memory_now that a test can give other files. Linux alone. */
#ifndef TKC_BASE_PROC_MEMORY_H
#define TKC_BASE_PROC_MEMORY_H

#include "base/platform.h"

/* root: in front of /proc and /sys, "" outside of tests. address_space: the process's limit,
 * UINT64_MAX = none. */
tkc_host_memory tkc_host_memory_read(const char *root, uint64_t address_space);

#endif
