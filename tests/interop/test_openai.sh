#!/usr/bin/env bash
# The openai package against `tinkc serve --openai`, in an environment below the build folder.
# Exits 77 where it cannot be installed or where the model is not at hand.
set -u
build=${1:-build}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
model=$root/models/nano
[ -f "$model/config.json" ] || model=$root/../shared/models/nano
[ -f "$model/config.json" ] || { echo "skipped: models/nano is not here"; exit 77; }
[ -x "$build/tinkc" ] || { echo "skipped: $build/tinkc is not built"; exit 77; }
command -v python3 > /dev/null || { echo "skipped: no python3"; exit 77; }

venv=$build/venv-openai
if ! "$venv/bin/python" -c 'import openai' 2> /dev/null; then
    rm -rf "$venv"
    if ! python3 -m venv "$venv" > /dev/null 2>&1 ||
        ! timeout 300 "$venv/bin/pip" install -q --disable-pip-version-check openai > "$venv.log" 2>&1; then
        echo "skipped: openai cannot be installed (no package index?)"
        exit 77
    fi
fi

work=$(mktemp -d)
"$build/tinkc" serve --openai --port 0 --store "$work/store" --ready-fd 3 "nano=$model" 3> "$work/url" 2> "$work/log" &
pid=$!
for _ in $(seq 100); do [ -s "$work/url" ] && break; sleep 0.1; done
timeout 120 "$venv/bin/python" "$here/openai_client.py" "$(cat "$work/url")"
rc=$?
kill "$pid" 2> /dev/null
wait "$pid" 2> /dev/null
[ $rc = 0 ] || { echo "--- server's log"; tail -30 "$work/log"; }
rm -rf "$work"
exit $rc
