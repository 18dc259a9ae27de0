#!/usr/bin/env bash
# Damaged requests of every kind against our server (hostile.py). Exits 77 where Python or the model
# is not at hand.
set -u
build=${1:-build}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
model=$root/models/nano
[ -f "$model/config.json" ] || model=$root/../shared/models/nano
[ -f "$model/config.json" ] || { echo "skipped: models/nano is not here"; exit 77; }
[ -x "$build/tests/tinkc_serve" ] || { echo "skipped: $build/tests/tinkc_serve is not built"; exit 77; }
command -v python3 > /dev/null || { echo "skipped: no python3"; exit 77; }

work=$(mktemp -d)
"$build/tests/tinkc_serve" --model "$model" --name nano --store "$work/store" --set long_poll_s 5 > "$work/out" 2> "$work/log" &
pid=$!
for _ in $(seq 100); do grep -q ready "$work/out" && break; sleep 0.1; done
timeout 300 python3 "$here/hostile.py" "$(sed -n 's/^ready //p' "$work/out")"
rc=$?
kill "$pid" 2> /dev/null
wait "$pid" || rc=1 # it ends in good order, and a sanitizer has found nothing
[ $rc = 0 ] || { echo "--- server's log"; tail -30 "$work/log"; }
rm -rf "$work"
exit $rc
