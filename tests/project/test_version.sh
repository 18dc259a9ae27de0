#!/usr/bin/env bash
# One version: CMakeLists.txt has it; header, library, command and the newest notes of CHANGELOG.md agree, and what makes a package
# takes it from there. The notes of a release have a date and at most 80 lines.
set -eu
version=$(sed -n 's/^project(tinkc VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
bad=0
wrong() {
    echo "$1, not $version as CMakeLists.txt"
    bad=1
}
header=include/tinkc/version.h
numbers=$(sed -n 's/^#define TINKC_VERSION_\(MAJOR\|MINOR\|PATCH\) \([0-9]*\)$/\2/p' $header | paste -sd.)
text=$(sed -n 's/^#define TINKC_VERSION  *"\(.*\)"/\1/p' $header)
[ "$numbers" = "$version" ] || wrong "$header has the numbers $numbers"
[ "$text" = "$version" ] || wrong "$header has the text $text"
[ -e "$1/libtinkc.so.$version" ] || wrong "the library is $(basename "$1"/libtinkc.so.*.*)"
if [ -x "$1/tinkc" ]; then
    [ "$("$1/tinkc" --version)" = "tinkc $version" ] || wrong "the command says $("$1/tinkc" --version)"
fi

released=$(grep -m1 -E '^## [0-9]' CHANGELOG.md)
grep -qxE "## ${version//./\\.} - 20[0-9]{2}-[01][0-9]-[0-3][0-9]" <<< "$released" || wrong "CHANGELOG.md begins with '$released'"
while read -r lines name; do
    [ "$lines" -le 80 ] || { echo "CHANGELOG.md: the notes of $name have $lines lines, more than 80"; bad=1; }
done < <(awk '/^## /{name = $2} name{n[name]++} END{for (name in n) print n[name], name}' CHANGELOG.md)

for recipe in packaging/conda/recipe.yaml packaging/homebrew/tinkc.rb packaging/debian/changelog.in; do
    grep -q '@VERSION@' $recipe || wrong "$recipe has a version of its own"
done
for project in python/pyproject*.toml; do
    grep -q '^dynamic = \["version"\]' "$project" || wrong "$project has a version of its own"
done
exit $bad
