#!/usr/bin/env bash
# Our recipes and the Python SDK with the cookbook's formulas (numpy) agree: sft, rl, dpo and distill, 20 steps each
# against the same server. Exits 77 where the SDK cannot be installed.
set -u
. "$(dirname "$0")/server.sh" tests/tinkc_serve "${1:-}"
[ -x "$build/tinkc" ] || { echo "skipped: tinkc was not built"; exit 77; }
need_packages 0.25 "tinker, numpy" tinker==0.25.0 numpy
build=$(realpath "$build") venv=$(realpath -s "$venv")
start_server
export HOME=$work TINKC_NANO=$model TINKER_BASE_URL=$url TINKER_API_KEY=tml-agree
tinkc=$(realpath "$build/tinkc")
(cd "$work" && TINKER_TELEMETRY=0 timeout 3000 "$venv/bin/python" "$here/recipes_agree.py" "$tinkc" "$url")
rc=$?
kill "$pid" 2> /dev/null
wait "$pid" 2> /dev/null
clean_up $rc
exit $rc
