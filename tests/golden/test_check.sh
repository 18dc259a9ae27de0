#!/usr/bin/env bash
# Runs golden_check on the golden numbers of tests/data, with every kernel set this machine has.
set -eu
build=$1
golden=tests/data/golden
has() { grep -qw "$1" /proc/cpuinfo; }
for isa in ref neon avx2 avx512; do
    case $isa in
    neon) [ "$(uname -m)" = aarch64 ] || continue ;;
    avx2) has avx2 || { echo "left out: avx2 (not on this machine)"; continue; } ;;
    avx512) has avx512f || { echo "left out: avx512 (not on this machine)"; continue; } ;;
    esac
    nano=$golden/nano
    [ $isa != ref ] || nano= # the reference is slow on a model of this size
    TINKC_ENGINE_ISA=$isa "$build/tests/golden_check" --model models/nano \
        $golden/llama3 $golden/llama3_long $golden/qwen2 $golden/qwen3 $golden/sampling.json $nano \
        $golden/qwen3_moe $golden/qwen3_5 $golden/qwen3_5_moe $golden/gpt_oss_mxfp4 $golden/nemotron_h
done
# What is missing or unknown must not pass.
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
expect() {
    status=0
    "$build/tests/golden_check" "$2" > "$dir/log" 2>&1 || status=$?
    [ "$status" = "$1" ] || { cat "$dir/log"; echo "$2: exit status $status, not $1"; exit 1; }
}
mkdir "$dir/empty" "$dir/model"
expect 2 "$dir/empty"
echo '{}' > "$dir/empty/sampling.json"
expect 1 "$dir/empty"
cp $golden/qwen3/* "$dir/model"
chmod -R u+w "$dir/model"
expect 0 "$dir/model"
sed -i 's/"cispo"/"unheard_of"/' "$dir/model/golden.json"
expect 1 "$dir/model" # that loss, and gradients nobody looked at
sed -i 's/"losses"/"gains"/' "$dir/model/golden.json"
expect 2 "$dir/model"
"$build/tests/golden_check" --bf16 --model models/nano $golden/nano
