#!/usr/bin/env bash
# client_cost.sh [BUILD]: what the client costs, with the Python SDK beside it where it can be installed.
# Starts a stub service of ours on loopback; measures, in processes of their own,
#   - 10,000 samples in flight at the same time (Python: 2,000),
#   - a program that makes a client and lists runs, and beside it one that only opens libcurl and
#     makes one GET: nobody who uses libcurl gets below that,
#   - the stripped library.
# Fails if a goal is missed that does not depend on other people's libraries.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
samples=${SAMPLES:-10000}
python_samples=${PYTHON_SAMPLES:-2000}
venv=$build/bench-venv
work=$(mktemp -d)
trap 'exec 3>&-; wait; rm -rf "$work"' EXIT

mkfifo "$work/stdin"
"$build/bench/client_cost" serve < "$work/stdin" > "$work/url" 2> "$work/log" &
exec 3> "$work/stdin"
for _ in $(seq 100); do [ -s "$work/url" ] && break; sleep 0.05; done
url=$(cat "$work/url")

"$build/bench/client_cost" sample "$url" "$samples" | tee "$work/sample"
"$build/bench/client_cost" start "$url" > /dev/null # once for the page cache
"$build/bench/client_cost" start "$url" | tee "$work/start"
"$build/bench/curl_floor" "$url/" > /dev/null
"$build/bench/curl_floor" "$url/" | tee "$work/floor"

have_python=no
if [ "${NO_PYTHON:-}" = 1 ]; then
    echo "The Python SDK is left out, as asked."
elif [ -x "$venv/bin/python" ] && "$venv/bin/python" -c 'import tinker' 2> /dev/null; then
    have_python=yes
elif python3 -m venv "$venv" && "$venv/bin/pip" install -q tinker==0.25.0 > "$work/pip" 2>&1; then
    have_python=yes
else
    echo "The Python SDK cannot be installed here (no package index within reach): no figures beside ours."
fi
if [ $have_python = yes ]; then
    "$venv/bin/python" bench/client_cost.py sample "$url" "$python_samples" 2> /dev/null | tee "$work/python_sample"
    "$venv/bin/python" bench/client_cost.py start "$url" 2> /dev/null | tee "$work/python_start"
fi

strip -o "$work/lib" "$(readlink -f "$build/libtinkc.so")"
size=$(stat -c %s "$work/lib")
python3 - "$work" "$size" "$samples" << 'PY'
import json, pathlib, sys
work, size, samples = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
def read(name):
    path = work / name
    return json.loads(path.read_text()) if path.exists() and path.stat().st_size else None
mine, start, floor, theirs, their_start = map(read, ("sample", "start", "floor", "python_sample", "python_start"))
missed = []
def row(what, value, goal, ok, required=True):
    print(f"{what:<46} {value:>14}   goal {goal:<12} {'met' if ok else 'MISSED'}")
    if required and not ok:
        missed.append(what)
row(f"{samples} samples complete", mine["complete"], samples, mine["complete"] == samples)
row("peak memory meanwhile, MB", mine["peak_mb"], "< 64", mine["peak_mb"] < 64)
if theirs:
    ratio = theirs["cpu_us_each"] / mine["cpu_us_each"]
    row("processor time each, Python / ours", f"{ratio:.1f}", ">= 20", ratio >= 20)
row("make a client and list runs: own ms", start["cpu_ms"], "< 10", start["cpu_ms"] < 10, False)
row("the same: peak memory, MB", start["peak_mb"], "< 10", start["peak_mb"] < 10, False)
print(f"  of which libcurl alone, one GET: {floor['cpu_ms']} ms, {floor['peak_mb']} MB")
row("libtinkc.so stripped, bytes", size, "< 1000000", size < 1000000)
sys.exit(f"missed: {', '.join(missed)}" if missed else 0)
PY
