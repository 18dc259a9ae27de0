#!/usr/bin/env bash
# test_tokenizer_diff.sh BUILD: a short differential run against Hugging Face tokenizers (and tiktoken).
# The packages are installed once, into BUILD/venv-tokenizers; without them the test is skipped.
set -eu
build=$1 venv=$1/venv-tokenizers data=../shared/data/tokenizers
if ! "$venv/bin/python" -c "import tokenizers, tiktoken" 2> /dev/null; then
    rm -rf "$venv"
    python3 -m venv "$venv" > /dev/null 2>&1 || { echo "skipped: python3 has no venv"; exit 77; }
    timeout 120 "$venv/bin/pip" install -q --retries 1 --timeout 20 tokenizers tiktoken > "$venv/log" 2>&1 ||
        { echo "skipped: the Python packages tokenizers and tiktoken cannot be installed"; exit 77; }
fi
models=(tests/data/tokenizer/tiny*/)
if [ -d "$data" ]; then
    models+=("$data/llama3" "$data/qwen3" "$data/qwen3.5" "$data/deepseek-v3.1" "$data/gpt-oss" "$data/gpt2"
             "$data/nemotron3" "$data/o200k_base")
fi
exec "$venv/bin/python" tests/interop/tokenizer_diff.py --lib "$build/libtinkc.so" --mb 0.7 "${models[@]}"
