#!/usr/bin/env bash
# Damaged and hostile requests of every kind against our server (hostile.py): two minutes where the server has AddressSanitizer,
# a quarter of a minute elsewhere; HOSTILE_S sets another time. Exits 77 where Python is not installed.
set -u
. "$(dirname "$0")/server.sh" tests/tinkc_serve "${1:-}"

if grep -q __asan_init "$build/tests/tinkc_serve"; then seconds=120; else seconds=15; fi
start_server --set long_poll_s 5 --set max_body_bytes 134217728
timeout 3000 python3 "$here/hostile.py" "$url" "${HOSTILE_S:-$seconds}"
rc=$?
kill "$pid" 2> /dev/null
wait "$pid" || rc=1 # it ends in good order, and a sanitizer has found nothing
clean_up $rc
exit $rc
