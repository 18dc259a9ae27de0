#!/usr/bin/env bash
# tools/test-summary counts what ran and lets no failure and no unlisted skip pass.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
echo "interop.net # needs a network" > "$dir/allowed"
report() { # NAME STATUS [OUTPUT]
    printf '<testsuite><testcase name="%s" status="%s"><system-out>%s</system-out></testcase></testsuite>' \
        "${1#again-}" "$2" "${3:-}" > "$dir/$1.xml"
}
expect() { # STATUS LAST_LINE REPORT...
    status=0
    out=$(tools/test-summary --allow "$dir/allowed" "${@:3}") || status=$?
    [ "$status" = "$1" ] && [ "${out##*$'\n'}" = "$2" ] || { echo "wanted $1: $2, got $status: $out"; exit 1; }
}
report one run "[       OK ] first
[       OK ] second"
report two run "[       OK ] third
[  SKIPPED ] fourth"
report three fail "no cmocka here"
report four fail "[       OK ] fifth
[  FAILED  ] sixth"
report interop.net notrun
report other.net notrun
expect 0 "4 passed, 0 failed, 1 skipped" "$dir/one.xml" "$dir/interop.net.xml" "$dir/one.xml"
expect 1 "3 passed, 0 failed, 1 skipped" "$dir/one.xml" "$dir/two.xml"
expect 1 "2 passed, 1 failed, 0 skipped" "$dir/one.xml" "$dir/three.xml"
expect 1 "3 passed, 1 failed, 0 skipped" "$dir/one.xml" "$dir/four.xml"
expect 1 "2 passed, 0 failed, 1 skipped" "$dir/one.xml" "$dir/other.net.xml"
expect 1 "0 passed, 0 failed, 1 skipped" "$dir/interop.net.xml"

# A second run, alone, turns a failure into an unstable test: up to two of them, and never after a sanitizer's report.
report again-three run
report again-four fail
expect 0 "2 passed, 0 failed, 0 skipped, 1 unstable" "$dir/one.xml" "$dir/three.xml" "$dir/again-three.xml"
expect 1 "3 passed, 1 failed, 0 skipped" "$dir/one.xml" "$dir/four.xml" "$dir/again-four.xml"
for n in five six; do
    report $n fail
    report again-$n run
done
expect 0 "2 passed, 0 failed, 0 skipped, 2 unstable" "$dir"/{one,three,five}.xml
expect 1 "2 passed, 0 failed, 0 skipped, 3 unstable" "$dir"/{one,three,five,six}.xml
for found in "ERROR: AddressSanitizer: heap" "WARNING: ThreadSanitizer: data race" "ERROR: LeakSanitizer: leaks" \
    "file.c:3:4: runtime error: overflow"; do
    report three fail "$found"
    expect 1 "2 passed, 1 failed, 0 skipped" "$dir/one.xml" "$dir/three.xml" "$dir/again-three.xml"
done
echo "summary: failures and unlisted skips are seen"
