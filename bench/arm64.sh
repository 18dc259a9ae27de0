#!/usr/bin/env bash
# bench/arm64.sh [OUT] - the figures that docs/kernels.md lacks: run it on an arm64 machine (Linux, or a Mac) that is otherwise idle.
# Needs a C compiler and nothing else; takes about five minutes. Whether the numbers are right comes first; then the products of one core beside
# the peak of its pipes, training and decoding. OUT (build/maths) keeps the programs; the report is OUT/arm64.txt.
set -eu
cd "$(dirname "$0")/.."
case $(uname -m) in aarch64 | arm64) ;; *) echo "bench/arm64.sh: this machine is $(uname -m)" >&2 && exit 2 ;; esac
out=${1:-build/maths}
tools/build-maths "$out"
{
    date -u && uname -sm && "${CC:-gcc}" --version | head -1
    grep -m1 -E '^(CPU part|Features)' /proc/cpuinfo 2> /dev/null || sysctl -n machdep.cpu.brand_string 2> /dev/null || true
    echo "== right?"
    for precision in "" --bf16; do
        # shellcheck disable=SC2086
        "$out/golden_check" $precision --model models/nano tests/data/golden/nano | grep -c . | sed "s/$/ quantities compared ${precision:-(fp32)}/"
    done
    echo "== peak"
    "$out/arm64_peak"
    echo "== products, one core"
    "$out/engine_gemm" --one-core
    echo "== training, decoding: all cores"
    "$out/engine_train" models/nano
    "$out/engine_decode" models/nano
} 2>&1 | tee "$out/arm64.txt"
