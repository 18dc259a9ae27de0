#!/usr/bin/env bash
# Vocabularies of pieces (SentencePiece): GGUF files with scores and tokenizer.json with byte_fallback, encoded and decoded by sentencepiece,
# Hugging Face tokenizers and us. Exits 77 where there is no package index.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:-build}" && pwd)
. "$here/packages.sh"
need_packages pieces "gguf, sentencepiece, tokenizers, tiktoken" gguf sentencepiece tokenizers tiktoken protobuf
models=$build/venv-pieces/mistral_common
if [ ! -e "$models" ]; then # without what it requires: only its files are read
    work=$(mktemp -d "$build/venv-pieces/download-XXXXXX")
    timeout 400 "$venv/bin/pip" download -q --no-deps --disable-pip-version-check -d "$work" mistral-common==1.13.1 > "$work/log" 2>&1 &&
        python3 -m zipfile -e "$work"/*.whl "$work" && mv "$work/mistral_common" "$models"
    rm -rf "$work"
fi
[ -e "$models" ] || { echo "skipped: mistral-common cannot be downloaded (no package index?)"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
timeout 900 "$venv/bin/python" "$here/piece_tokenizers.py" "$build/libtinkc.so" "$models/data" "$work"
