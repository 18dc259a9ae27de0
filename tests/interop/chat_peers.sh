#!/usr/bin/env bash
# chat_peers.sh [BUILD]: langchain-openai, instructor and litellm against `tinkc serve --chat-apis`, each in an environment of its
# own. By hand: it needs a package index. Exits 1 on a difference, 77 where one cannot be installed.
set -u
. "$(dirname "$0")/server.sh" tinkc "${1:-}"
pins=/dev/null # they need different versions of the openai package, so each has its own pin here alone

work=$(mktemp -d)
"$build/tinkc" serve --chat-apis --port 0 --store "$work/store" --ready-fd 3 "nano=$model" 3> "$work/url" 2> "$work/log" &
pid=$!
await "$work/url" http || exit 1
rc=0
for which in langchain-openai==1.7.3 instructor==1.17.0 litellm==1.106.2; do
    name=${which%%==*}
    if ! packages "$name" "${name//-/_}" "$which"; then
        echo "skipped: $which cannot be installed (no package index?)"
        [ $rc = 1 ] || rc=77
        continue
    fi
    timeout 300 "$venv/bin/python" "$here/chat_peers.py" "$name" "$(cat "$work/url")" || rc=1
done
kill "$pid" 2> /dev/null
wait "$pid" 2> /dev/null
clean_up $rc
exit $rc
