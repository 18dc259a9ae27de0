/* newer_libc.h - what tinkc calls and musl 1.2.3 (Debian 12) has not. Included before every file by packaging/make-musl. */
#ifndef PACKAGING_MUSL_NEWER_LIBC_H
#define PACKAGING_MUSL_NEWER_LIBC_H

#include <sys/syscall.h>
#include <unistd.h>

#define RENAME_EXCHANGE 2
#define renameat2(from_at, from, to_at, to, flags) ((int)syscall(SYS_renameat2, from_at, from, to_at, to, flags))

#endif
