#!/usr/bin/env bash
# The library builds without the tokenizer: the same functions, none of its dependencies, and who
# calls one gets an error that says so. Both halves of the build matrix are looked at: $1 has it, the other is made here.
set -eu
with=$1/libtinkc.so
[ -e "$with" ] || { echo "skipped: $with was not built"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

exports() {
    nm -D --defined-only "$1" | awk '{ sub(/@.*/, "", $3); print $3 }' | grep '^tinkc_' | sort
}
needs() {
    readelf -d "$1" | grep NEEDED
}

c30_c47_the_core_builds_without_the_tokenizer() {
    # shellcheck disable=SC2086
    cmake -S . -B "$work/build" -G Ninja ${TINKC_CMAKE_ARGS:-} -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG=-O0 \
        -DTINKC_TOKENIZER=OFF -DTINKC_ENGINE=OFF -DTINKC_CLI=OFF -DTINKC_TESTS=OFF > "$work/log" 2>&1 &&
        nice ninja -C "$work/build" >> "$work/log" 2>&1 || { tail -20 "$work/log"; return 1; }
    without=$work/build/libtinkc.so
    diff <(exports "$with") <(exports "$without") || { echo "the two export different functions"; return 1; }
    needs "$without" | grep -E 'pcre2|utf8proc' && { echo "it still needs the tokenizer's libraries"; return 1; }
    return 0
}

c30_c47_and_says_so_to_those_who_call_it() {
    cat > "$work/p.c" << 'C'
#include <string.h>
#include <tinkc/tinkc.h>
int main(void)
{
    tinkc_error err = { 0 };
    if (tinkc_tokenizer_open("/tmp", NULL, &err) || err.code != TINKC_E_UNSUPPORTED)
        return 1;
    return strstr(err.message, "without the tokenizer") ? 0 : 2;
}
C
    ${CC:-cc} -Iinclude -o "$work/p" "$work/p.c" -L"$work/build" -ltinkc &&
        LD_LIBRARY_PATH=$work/build "$work/p" || { echo "a call does not say that it is missing"; return 1; }
}

c30_c47_the_core_builds_without_the_tokenizer
c30_c47_and_says_so_to_those_who_call_it
echo "tokenizer: can be left out"
