#!/usr/bin/env bash
# soak.sh BUILD [SECONDS [CLIENTS]] - a server under steady load (soak.py); `make soak` runs ten minutes with 32 clients.
set -u
. "$(dirname "$0")/server.sh" tests/tinkc_serve "${1:-}"

start_server --set max_ephemeral 8
python3 "$here/soak.py" "$url" "$pid" "${2:-600}" "${3:-32}"
rc=$?
du -sh "$work/store" | cut -f 1 | sed 's/^/store: /'
kill "$pid" 2> /dev/null
wait "$pid" || rc=1
clean_up $rc
exit $rc
