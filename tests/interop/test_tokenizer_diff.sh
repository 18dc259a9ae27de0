#!/usr/bin/env bash
# test_tokenizer_diff.sh BUILD: a short differential run against Hugging Face tokenizers (and tiktoken).
# The packages are installed once, into BUILD/venv-tokenizers; without them the test is skipped.
set -eu
build=$1 data=../shared/data/tokenizers
. "$(dirname "$0")/packages.sh"
need_packages tokenizers "tokenizers, tiktoken" tokenizers tiktoken
models=(tests/data/tokenizer/tiny*/)
if [ -d "$data" ]; then
    models+=("$data/llama3" "$data/qwen3" "$data/qwen3.5" "$data/deepseek-v3.1" "$data/gpt-oss" "$data/gpt2"
             "$data/nemotron3" "$data/o200k_base")
fi
exec "$venv/bin/python" tests/interop/tokenizer_diff.py --lib "$build/libtinkc.so" --mb 0.7 "${models[@]}"
