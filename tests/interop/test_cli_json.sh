#!/usr/bin/env bash
# `tinkc` prints the JSON of the Python command, byte for byte: release 0.25.0 and the newest.
# Exits 77 where neither can be installed.
set -u
. "$(dirname "$0")/server.sh" tinkc "${1:-}"

try() { # NAME
    HF_HUB_OFFLINE=1 PYTHONWARNINGS=ignore timeout 3000 "$build/venv-$1/bin/python" "$here/cli_json.py" "$build/tinkc" "$model"
}
with_each_sdk try
