#!/usr/bin/env bash
# What a program wrote and a test compares again is little, and is read: 12000 lines at most, in files of less than 200, and no
# command of them has more than 100 characters in a line. The text of a here-document is data.
set -eu
files=$(find tests/cli/transcripts tests/cli/golden tests/data/cli -type f)
bad=0
lines=$(cat $files | wc -l)
[ "$lines" -le 12000 ] || { echo "$lines recorded lines, more than 12000"; bad=1; }
for file in $files; do
    n=$(wc -l < "$file")
    [ "$n" -lt 200 ] || { echo "$file: $n lines, not less than 200"; bad=1; }
done
awk '
    FNR == 1 || !/^[$>] / { end = "" }
    !/^[$>] / { next }
    { line = substr($0, 3) }
    end != "" { if (line == end) end = ""; next }
    length(line) > 100 { print FILENAME ":" FNR ": a command of " length(line) " characters"; bad = 1 }
    { command = before line; before = line ~ /<< *\\$/ ? line : "" }
    match(command, /<< *(\\ *)?.?[A-Z]+/) && before == "" {
        end = substr(command, RSTART, RLENGTH); gsub(/[^A-Z]/, "", end)
    }
    END { exit bad }' tests/cli/transcripts/*.txt || bad=1
[ $bad = 0 ] && echo "recordings: $lines lines in $(wc -w <<< "$files") files"
exit $bad
