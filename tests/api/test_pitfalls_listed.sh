#!/usr/bin/env bash
# Each of the 51 rows of docs/pitfalls.md names at least one test function, and each name is one that
# exists and is run: in a cmocka program its definition and its place in a list of tests, in a shell
# test its definition and a line that calls it.
set -eu
bad=0

c_test() {
    grep -rqE "^static void $1\(void \*\*" tests --include='*.c' &&
        grep -rqE "(unit_test[a-z_]*|WITH[A-Z_]*|TEST[A-Z_]*)\($1\b" tests --include='*.c'
}
shell_test() {
    grep -rqE "^$1\(\) \{" tests --include='*.sh' && grep -rqxE "$1" tests --include='*.sh'
}

rows=$(grep -E '^\| C[0-9]{2} ' docs/pitfalls.md)
[ "$(wc -l <<< "$rows")" = 51 ] || { echo "not 51 rows"; bad=1; }
while read -r row; do
    names=$(sed 's/.*| \([^|]*\) |$/\1/' <<< "$row" | grep -oE '`[^`]+`' | tr -d '`' || true)
    [ -n "$names" ] || { echo "no test named: $row"; bad=1; }
    for name in $names; do
        c_test "$name" || shell_test "$name" || { echo "no test function $name"; bad=1; }
    done
done <<< "$rows"
[ $bad = 0 ] && echo "pitfalls: every row is shown by tests that exist"
exit $bad
