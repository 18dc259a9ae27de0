#!/usr/bin/env bash
# A few rounds of kill -9 while three clients train, save and sample; see tests/programs/crash_test.c.
# More by hand: build/tests/crash_test build/tests/tinkc_serve models/nano 200 journal
set -u
build=${1:-build}
root=$(cd "$(dirname "$0")/../.." && pwd)
model=$root/models/nano
rounds=4
case $build in */tsan) rounds=1 ;; esac # each takes ten times as long there
for durability in journal snapshot checkpoint; do
    "$build/tests/crash_test" "$build/tests/tinkc_serve" "$model" "${TINKC_CRASH_ROUNDS:-$rounds}" $durability 7 || exit 1
done
