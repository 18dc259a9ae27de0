#!/usr/bin/env bash
# Failpoints are in one test program, and not in what is installed: the name of their variable is nowhere in it.
set -u
build=${1:-build}
[ -e "$build/tests/test_torture.failpoints" ] || { echo "skipped: the test program was not built"; exit 77; }
has() { grep -q TINKC_FAILPOINT "$1"; }
has "$build/tests/test_torture.failpoints" || { echo "the test program has no failpoints: this test sees nothing"; exit 1; }
n=0
for file in "$build"/tinkc "$build"/libtinkc*.so "$build"/libtinkc*.a; do
    [ -e "$file" ] || continue
    ! has "$file" || { echo "$file has failpoints"; exit 1; }
    n=$((n + 1))
done
[ $n -gt 0 ] || { echo "skipped: nothing was built"; exit 77; }
echo "no failpoints in $n files of the product"
