#!/usr/bin/env bash
# Runs golden_check on the golden numbers beside the checkout, with every kernel set this machine has.
set -eu
build=$1
golden=../shared/golden
if [ ! -d "$golden" ]; then
    echo "skipped: no golden numbers in $golden"
    exit 77
fi
has() { grep -qw "$1" /proc/cpuinfo; }
for isa in ref avx2 avx512; do
    case $isa in
    avx2) has avx2 || { echo "skipped: avx2 (not on this machine)"; continue; } ;;
    avx512) has avx512f || { echo "skipped: avx512 (not on this machine)"; continue; } ;;
    esac
    nano=$golden/nano
    [ $isa != ref ] || nano= # the reference is slow on a model of this size
    TINKC_ENGINE_ISA=$isa "$build/tests/golden_check" --model models/nano \
        $golden/llama3 $golden/qwen2 $golden/qwen3 $golden/sampling.json $nano
done
"$build/tests/golden_check" --bf16 --model models/nano $golden/nano
