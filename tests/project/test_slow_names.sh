#!/usr/bin/env bash
# A resolver that takes a minute does not hold up the client: limits and cancels work meanwhile.
set -eu
cc=${CC:-cc}
command -v "$cc" > /dev/null || { echo "no C compiler: skipped"; exit 77; }
if ldd "$1/tests/slow_names" | grep -q -e libasan -e libtsan; then
    echo "a sanitizer does not like libraries before its own: skipped"
    exit 77
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cat > "$dir/slow.c" << 'C'
#define _GNU_SOURCE
#include <netdb.h>
#include <unistd.h>
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
    (void)node, (void)service, (void)hints, (void)out;
    sleep(60);
    return EAI_FAIL;
}
C
"$cc" -shared -fPIC -o "$dir/slow.so" "$dir/slow.c"
LD_PRELOAD=$dir/slow.so "$1/tests/slow_names"
