#!/usr/bin/env bash
# tools/test-summary counts what ran and lets no failure and no unlisted skip pass.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
echo "interop.net # needs a network" > "$dir/allowed"
report() { # NAME STATUS [OUTPUT]
    printf '<testsuite><testcase name="%s" status="%s"><system-out>%s</system-out></testcase></testsuite>' \
        "$1" "$2" "${3:-}" > "$dir/$1.xml"
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
echo "summary: failures and unlisted skips are seen"
