#!/usr/bin/env bash
# `tinkc` prints the JSON of the Python command, byte for byte, and docs/parity.md has every name of the SDK: both releases that
# server.sh names.
# Exits 77 where neither can be installed.
set -u
. "$(dirname "$0")/server.sh" tinkc "${1:-}"

try() {
    HF_HUB_OFFLINE=1 timeout 300 "$venv/bin/python" "$here/parity_names.py" "$root" "$build/tinkc" || return 1
    HF_HUB_OFFLINE=1 PYTHONWARNINGS=ignore timeout 3000 "$venv/bin/python" "$here/cli_json.py" "$build/tinkc" "$model"
}
with_all_sdks try
