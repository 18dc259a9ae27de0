#!/usr/bin/env bash
# Manual pages, section 3: every exported function has one, what they say is what the headers say, and mandoc and groff
# find nothing wrong with them.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$*"; exit 1; }
tools/write-header-pages include "$work"
man=$work/man3 n=0
for name in $(cat abi/exports.txt); do
    n=$((n + 1))
    page=$(sed -n 's|^\.so man3/||p' "$man/$name.3" 2> /dev/null) || fail "$name has no page"
    [ -n "$page" ] && grep -qE "^\.Nm $name( ,)?\$" "$man/$page" || fail "$name.3 leads nowhere"
    grep -q "$name(" "$man/$page" || fail "$page does not declare $name"
done
for header in $(cd include && find tinkc -name '*.h'); do
    grep -lqx "\.In $header" "$man"/*.3 || fail "$header has no page"
done
# Nothing of the header's own machinery is left, and nothing is lost: a sentence from each end of one.
! grep -nE 'TINKC_API|__cplusplus|TINKC_PIN_SIZE|/\* ----|^\*/' "$man"/*.3 || fail "marks of the header in a page"
grep -q 'Every submitting call returns a future at once' "$man/tinkc-future.3" || fail "the head of future.h is missing"
tail -n 40 "$man/tinkc-train.3" | grep -q 'tinkc_loss_reverse_kl' || fail "the end of train.h is missing"
for page in "$man"/libtinkc.3 "$man"/tinkc-*.3; do
    if command -v mandoc > /dev/null; then
        mandoc -T lint -W warning "$page" || fail "mandoc: $page"
    fi
    if command -v groff > /dev/null; then
        out=$(groff -k -ww -mdoc -T utf8 -z "$page" 2>&1) || fail "groff: $page: $out"
        [ -z "$out" ] || fail "groff: $page: $out"
    fi
done
echo "header pages: $n functions"
