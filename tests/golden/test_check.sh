#!/usr/bin/env bash
# Runs golden_check on the golden numbers beside the checkout, with every kernel set this machine has.
set -eu
build=$1
golden=../shared/golden
if [ ! -d "$golden" ]; then
    echo "skipped: no golden numbers in $golden"
    exit 77
fi
for isa in ref avx2 avx512; do
    if [ $isa != ref ] && ! grep -qw "$( [ $isa = avx2 ] && echo avx2 || echo avx512f )" /proc/cpuinfo; then
        echo "skipped: $isa (not on this machine)"
        continue
    fi
    TINKC_ENGINE_ISA=$isa "$build/tests/golden_check" --model models/nano \
        $golden/llama3 $golden/qwen2 $golden/qwen3 $golden/nano $golden/sampling.json
done
"$build/tests/golden_check" --bf16 --model models/nano $golden/nano
