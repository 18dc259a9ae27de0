#!/usr/bin/env bash
# Each of the 51 rows of docs/pitfalls.md names at least one test function, and each name is one that
# exists and is run.
set -eu
bad=0

. tests/support/named_tests.sh

rows=$(grep -E '^\| C[0-9]{2} ' docs/pitfalls.md)
[ "$(wc -l <<< "$rows")" = 51 ] || { echo "not 51 rows"; bad=1; }
while read -r row; do
    names=$(sed 's/.*| \([^|]*\) |$/\1/' <<< "$row" | grep -oE '`[^`]+`' | tr -d '`' || true)
    [ -n "$names" ] || { echo "no test named: $row"; bad=1; }
    for name in $names; do
        is_run "$name" || bad=1
    done
done <<< "$rows"
[ $bad = 0 ] && echo "pitfalls: every row is shown by tests that exist"
exit $bad
