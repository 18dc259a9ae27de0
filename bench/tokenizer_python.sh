#!/usr/bin/env bash
# tokenizer_python.sh [BUILD [MODEL_DIR]]: the tokenizer of the Python package beside tokenizers and tiktoken, all from Python, in the
# same run; a table in Markdown. Texts are made of what this machine has (bench/tokenizer.sh).
set -eu
build=$(cd "${1:-build}" && pwd)
model=${2:-../shared/data/tokenizers/llama3}
[ -d "$model" ] || model=models/nano # without the large one, the model that comes with the repository
venv=$build/venv-tokenizers
if ! "$venv/bin/python" -c "import tokenizers, tiktoken, numpy" 2> /dev/null; then
    python3 -m venv "$venv" > /dev/null && "$venv/bin/pip" install -q tokenizers tiktoken numpy || { echo "no packages to compare with"; exit 1; }
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for f in "$model"/*; do
    case $f in *.zst) zstd -dqf "$f" -o "$dir/$(basename "${f%.zst}")" ;; *.json | *.model) cp "$f" "$dir" ;; esac
done
TINKC_PROGRAM=$build/tinkc TINKC_LIBRARY=$build/libtinkc.so PYTHONPATH=python/src "$venv/bin/python" bench/tokenizer_python.py "$dir" "$(basename "$model")"
