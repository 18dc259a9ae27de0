#!/usr/bin/env bash
# Each of the 51 rows of docs/pitfalls.md names tests or files that exist.
set -eu
bad=0
[ "$(grep -cE '^\| C[0-9]{2} ' docs/pitfalls.md)" = 51 ] || { echo "not 51 rows"; bad=1; }
for name in $(grep -E '^\| C[0-9]{2} ' docs/pitfalls.md | sed 's/.*| \(`.*`\) |$/\1/' | tr -d '`,'); do
    case $name in
    */*) [ -e "$name" ] || { echo "no file $name"; bad=1; } ;;
    *) grep -rqE "(^static void|test|WITH).*\b$name\b" tests || { echo "no test $name"; bad=1; } ;;
    esac
done
[ $bad = 0 ] && echo "pitfalls: every row is shown by something that exists"
exit $bad
