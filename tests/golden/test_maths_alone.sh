#!/usr/bin/env bash
# The engine's maths builds with a C compiler and nothing else, and what comes out can read a model.
set -euo pipefail
out=$1/maths
tools/build-maths "$out"
needed=$(ldd "$out/golden_check" | grep -vE 'linux-vdso|libc\.so|libm\.so|ld-linux' || true)
[ -z "$needed" ] || { echo "golden_check wants more than the C library: $needed"; exit 1; }
"$out/golden_check" tests/data/golden/qwen3 | tail -3
