#!/usr/bin/env bash
# Damaged requests of every kind against our server (hostile.py). Exits 77 where Python
# is not installed.
set -u
. "$(dirname "$0")/server.sh" tests/tinkc_serve "${1:-}"

start_server --set long_poll_s 5
timeout 800 python3 "$here/hostile.py" "$url"
rc=$?
kill "$pid" 2> /dev/null
wait "$pid" || rc=1 # it ends in good order, and a sanitizer has found nothing
clean_up $rc
exit $rc
