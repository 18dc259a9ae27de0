#!/usr/bin/env bash
# examples/hello.rs: the library from Rust, with declarations by hand.
set -eu
build=$(cd "$1" && pwd)
nm "$build/libtinkc.so" 2> /dev/null | grep -q '__asan_\|__tsan_' && { echo "skipped: a sanitizer's build"; exit 77; }
command -v rustc > /dev/null || { echo "skipped: rustc is not installed (package rustc)"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rustc --edition 2021 -D warnings -L "$build" -o "$work/hello" examples/hello.rs
[ "$(LD_LIBRARY_PATH=$build "$work/hello")" = 12 ] || { echo "hello.rs does not answer"; exit 1; }
! out=$(LD_LIBRARY_PATH=$build "$work/hello" /nowhere 2>&1) || { echo "an error does not arrive"; exit 1; }
grep -q nowhere <<< "$out"
echo "Rust: examples/hello.rs answers, and reports errors"
