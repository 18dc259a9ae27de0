#!/usr/bin/env bash
# examples/asyncio_queue.py: the library from Python through cffi, with asyncio on the queue's descriptor.
set -eu
build=$(cd "$1" && pwd)
nm "$build/libtinkc.so" 2> /dev/null | grep -q '__asan_\|__tsan_' && { echo "skipped: a sanitizer's build"; exit 77; }
for python in python3 /usr/bin/python3 none; do
    [ $python != none ] || { echo "skipped: python3-cffi is not installed"; exit 77; }
    $python -c 'import cffi' 2> /dev/null && break
done
out=$($python examples/asyncio_queue.py "$build")
echo "$out"
grep -q '^8 of 8 sums are right$' <<< "$out"
