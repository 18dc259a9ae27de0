#!/usr/bin/env bash
# The module for GPUs is found beside the program: however the program was started, and by the process that serves the
# store, too. tests/modules/fake_card.c stands in for it: a card whose driver is missing.
set -eu
build=$1
[ -x "$build/tinkc" ] && [ -f "$build/tests/fake_card.so" ] || { echo "skipped: $build has no tinkc or no fake module"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/bin" "$dir/lib" "$dir/home"
cp "$build/tinkc" "$dir/bin/tinkc"
export HOME=$dir/home XDG_CONFIG_HOME=$dir/home XDG_CACHE_HOME=$dir/home/cache XDG_DATA_HOME=$dir/home/data
unset TINKC_CUDA_MODULE TINKER_API_KEY TINKER_BASE_URL
model=$PWD/models/nano

expect() { # TEXT COMMAND...
    out=$("${@:2}" 2>&1) && { echo "${*:2}: must fail"; exit 1; }
    case $out in
    *"$1"*) ;;
    *) echo "${*:2}: wanted '$1', got: $out"; exit 1 ;;
    esac
}

asks_for_a_card_everywhere() { # TEXT
    expect "$1" "$dir/bin/tinkc" doctor --offline --device cuda
    expect "$1" "$dir/bin/tinkc" sample -m "$model" hello --device cuda
    (cd "$dir" && expect "$1" bin/tinkc doctor --offline --device cuda)
    (PATH=$dir/bin:$PATH && expect "$1" tinkc doctor --offline --device cuda)
    (PATH=$dir/bin:$PATH && expect "$1" tinkc sample -m "$model" hello --device cuda)
}

asks_for_a_card_everywhere "cuda: no module (libtinkc-engine-cuda.so"
cp "$build/tests/fake_card.so" "$dir/lib/libtinkc-engine-cuda.so"
asks_for_a_card_everywhere "cuda: no driver"
mv "$dir/lib/libtinkc-engine-cuda.so" "$dir/bin/"
asks_for_a_card_everywhere "cuda: no driver"

# The real one, where it was built: without a driver it loads all the same, and says what is missing.
if [ -f "$build/libtinkc-engine-cuda.so" ] && ! ldconfig -p | grep -q libcuda.so.1; then
    cp "$build/libtinkc-engine-cuda.so" "$dir/bin/"
    expect "cuda: no driver (libcuda.so.1 was not found)" "$dir/bin/tinkc" doctor --offline --device cuda
fi
echo "module: found beside the program and in ../lib"
