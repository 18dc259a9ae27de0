#!/usr/bin/env bash
# examples/elixir: the library from Elixir through a NIF: trains, samples, and reports errors as values.
set -eu
build=$(cd "$1" && pwd)
nm "$build/libtinkc.so" 2> /dev/null | grep -q '__asan_\|__tsan_' && { echo "skipped: a sanitizer's build"; exit 77; }
command -v elixir > /dev/null || { echo "skipped: elixir is not installed"; exit 77; }
erlang=$(erl -noshell -eval 'io:put_chars(code:root_dir()), halt().')
[ -e "$erlang/usr/include/erl_nif.h" ] || { echo "skipped: erlang-dev is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc -Wall -Wextra -Werror -shared -fPIC -I"$erlang/usr/include" -Iinclude examples/elixir/tinkc_nif.c -o "$work/tinkc_nif.so" \
    -L"$build" -ltinkc-engine -ltinkc -Wl,-rpath,"$build"
HOME=$work timeout 300 elixir examples/elixir/tinkc.exs "$work/tinkc_nif" "$PWD/models/nano" > "$work/out" 2>&1 || { cat "$work/out"; exit 1; }
cat "$work/out"
grep -q '^a model that is not there: .*/nowhere' "$work/out" # an error of the library is a value, not a crash
grep -q '^before: 5$' "$work/out"
[ "$(grep -c '^after: Arr, it be' "$work/out")" = 2 ]
awk '/^loss:/ { exit !($4 < $2 / 5) }' "$work/out"
