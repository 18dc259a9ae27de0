#!/usr/bin/env bash
# bench/cli.sh BUILD - start-up, listing, checking, downloading; the Python command beside it in the same
# run where PyPI can be reached. Prints figures and ratios; asserts nothing.
set -eu
build=$(realpath "${1:-build}"); here=$(dirname "$(realpath "$0")")
work=$(mktemp -d); trap 'kill $server 2> /dev/null || true; rm -rf "$work"' EXIT
export HOME=$work TINKER_API_KEY=tml-bench
# Median of n runs, in milliseconds.
ms() { python3 - "$@" <<'PY'
import subprocess, sys, time
n, args = int(sys.argv[1]), sys.argv[2:]
t = []
for _ in range(n):
    a = time.perf_counter(); subprocess.run(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); t.append(time.perf_counter() - a)
print(f"{sorted(t)[n // 2] * 1000:.2f}")
PY
}
rss() { python3 -c "
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)" "$@"; }
python3 "$here/../tests/cli/stub.py" > "$work/url" & server=$!
while [ ! -s "$work/url" ]; do sleep 0.05; done
TINKER_BASE_URL=$(cat "$work/url"); export TINKER_BASE_URL

empty=$(ms 21 /bin/true)
echo "an empty program           $empty ms"
for what in "--help" "version" "run list"; do
    printf 'tinkc %-20s %s ms, %s KB\n' "$what" "$(ms 21 "$build/tinkc" $what)" "$(rss "$build/tinkc" $what)"
done
if python3 -m venv "$work/venv" > /dev/null 2>&1 && "$work/venv/bin/pip" install -q tinker > "$work/pip.log" 2>&1; then
    for what in "--help" "version" "run list"; do
        printf 'tinker %-19s %s ms, %s KB\n' "$what" "$(ms 5 "$work/venv/bin/tinker" $what)" "$(rss "$work/venv/bin/tinker" $what)"
    done
else
    echo "skipped: the Python command (PyPI cannot be reached)"
fi

"$build/tools/pirate" lesson 100000 1 > "$work/a.jsonl"
for _ in 1 2 3 4 5 6 7 8 9 10; do cat "$work/a.jsonl"; done > "$work/d.jsonl"
python3 - "$work/d.jsonl" "$(ms 5 "$build/tinkc" data check "$work/d.jsonl")" <<'PY'
import os, sys
print(f"data check: {os.path.getsize(sys.argv[1]) / 1e6 / (float(sys.argv[2]) / 1000):.0f} MB/s")
PY
strip -o "$work/stripped" "$build/tinkc"
echo "the binary, stripped: $(stat -c %s "$work/stripped") bytes"
