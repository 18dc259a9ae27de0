#!/usr/bin/env bash
# bench/cli.sh BUILD - start-up, listing, checking, downloading; the Python command beside it in the same
# run where PyPI can be reached. Prints figures and ratios; asserts nothing.
set -eu
build=$(realpath "${1:-build}"); here=$(dirname "$(realpath "$0")")
work=$(mktemp -d); trap 'kill $server 2> /dev/null || true; rm -rf "$work"' EXIT
export HOME=$work TINKER_API_KEY=tml-bench
# Medians of n runs, in milliseconds, of commands that stand between "--": a run of each in turn, so that what
# else the machine does meets them all alike.
ms() { python3 - "$@" <<'PY'
import subprocess, sys, time
n, commands = int(sys.argv[1]), [[]]
for word in sys.argv[2:]:
    if word == "--":
        commands.append([])
    else:
        commands[-1].append(word)
took = [[] for _ in commands]
for _ in range(n):
    for command, t in zip(commands, took):
        a = time.perf_counter(); subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); t.append(time.perf_counter() - a)
print(*(f"{sorted(t)[n // 2] * 1000:.2f}" for t in took))
PY
}
# Peak memory in KB. A small launcher of our own: what a child is charged begins with its parent's size.
cat > "$work/rss.c" <<'C'
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    struct rusage used = { 0 };
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 1), dup2(null, 2);
        execvp(argv[1], argv + 1);
        _exit(127);
    }
    (void)argc;
    wait4(child, NULL, 0, &used);
    printf("%ld\n", used.ru_maxrss);
}
C
cc -O1 -o "$work/rss" "$work/rss.c"
rss() { "$work/rss" "$@"; }
STUB_ARCHIVE_BYTES=400000000 python3 "$here/../tests/cli/stub.py" > "$work/url" & server=$!
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
# 400 MB from the same server: handed on as they come beside curl into nothing, unpacked onto the disk beside
# curl into a file, and what this disk takes when only a plain writer uses it. The first call makes
# the archive.
if command -v curl > /dev/null; then
    curl -s -o /dev/null "$TINKER_BASE_URL/archive.tar"
    fetch="checkpoint download tinker://run-1/sampler_weights/final"
    tar=$TINKER_BASE_URL/archive.tar
    python3 - $(ms 21 curl -s -o /dev/null "$tar" -- "$build/tinkc" $fetch --archive -) \
        "$(rss "$build/tinkc" $fetch --archive -)" <<'PY'
import sys
null, ours, memory = map(float, sys.argv[1:])
print(f"checkpoint download to stdout: {400 / ours * 1000:.0f} MB/s, {memory:.0f} KB; curl into nothing "
      f"{400 / null * 1000:.0f} MB/s (ratio {null / ours:.2f})")
PY
    python3 - $(ms 7 dd if=/dev/zero of="$work/plain" bs=256k count=1526 -- curl -s -o "$work/a.tar" "$tar" -- \
        "$build/tinkc" $fetch -o "$work/out" --force) "$(rss "$build/tinkc" $fetch -o "$work/out" --force)" <<'PY'
import sys
disk, file, ours, memory = map(float, sys.argv[1:])
print(f"checkpoint download, unpacked: {400 / ours * 1000:.0f} MB/s, {memory:.0f} KB; curl into a file "
      f"{400 / file * 1000:.0f} MB/s (ratio {file / ours:.2f}); a plain writer to this disk {400 / disk * 1000:.0f} MB/s")
PY
else
    echo "skipped: curl is not installed"
fi
strip -o "$work/stripped" "$build/tinkc"
echo "the binary, stripped: $(stat -c %s "$work/stripped") bytes"
