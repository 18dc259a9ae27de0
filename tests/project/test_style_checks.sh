#!/usr/bin/env bash
# The scripts that keep the style notice what they are for: each is given a small tree with one fault.
set -eu
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
tools=$PWD/tools
status=0

# expect NAME WORD COMMAND...: the command fails and says WORD.
expect() {
    local name=$1 word=$2 code=0
    shift 2
    "$@" > "$tree/.out" 2>&1 || code=$?
    if [ "$code" = 0 ] || ! grep -q -- "$word" "$tree/.out"; then
        echo "$name: ended with $code and said:"
        cat "$tree/.out"
        status=1
    fi
}

mkdir -p "$tree/src/a" "$tree/src/b" "$tree/models/x" "$tree/models/y"
touch "$tree/src/a/one.c" "$tree/src/b/two.c" "$tree/models/x/config.json" "$tree/models/y/config.json"
"$tools/check-names" "$tree" > /dev/null || { echo "check-names: refuses a good tree"; status=1; }
touch "$tree/src/b/one.c"
expect check-names "src/a/one.c, src/b/one.c" "$tools/check-names" "$tree"
rm "$tree/src/b/one.c"

for text in '/* waits for whoever comes */' 'const char *m = "the file is no archive";' '/* the search\n * goes on */'; do
    printf "$text\n" > "$tree/src/a/one.c"
    expect check-words "src/a/one.c:[12]: " "$tools/check-words" "$tree"
done
printf 'int told; /* there is no such file */\n' > "$tree/src/a/one.c"
"$tools/check-words" "$tree" > /dev/null || { echo "check-words: refuses a good tree"; status=1; }
echo "The server lets go of it." > "$tree/page.md"
expect check-words "page.md:1: \"lets go of\"" "$tools/check-words" "$tree"

[ $status = 0 ] && echo "style checks: each notices its fault"
exit $status
