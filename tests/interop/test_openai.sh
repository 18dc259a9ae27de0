#!/usr/bin/env bash
# The openai package against `tinkc serve --chat-apis`, in an environment below the build folder.
# Exits 77 where it cannot be installed.
set -u
. "$(dirname "$0")/server.sh" tinkc "${1:-}"

need_packages openai "openai" openai

work=$(mktemp -d)
"$build/tinkc" serve --chat-apis --port 0 --store "$work/store" --ready-fd 3 "nano=$model" 3> "$work/url" 2> "$work/log" &
pid=$!
await "$work/url" http || exit 1
timeout 3000 "$venv/bin/python" "$here/openai_client.py" "$(cat "$work/url")"
rc=$?
kill "$pid" 2> /dev/null
wait "$pid" 2> /dev/null
clean_up $rc
exit $rc
