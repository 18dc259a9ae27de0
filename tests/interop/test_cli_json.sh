#!/usr/bin/env bash
# `tinkc` prints the JSON of the Python command, byte for byte: both releases that server.sh names.
# Exits 77 where neither can be installed.
set -u
. "$(dirname "$0")/server.sh" tinkc "${1:-}"

try() {
    HF_HUB_OFFLINE=1 PYTHONWARNINGS=ignore timeout 3000 "$venv/bin/python" "$here/cli_json.py" "$build/tinkc" "$model"
}
with_each_sdk try
