#!/usr/bin/env bash
# `tinkc` prints the JSON of the Python command, byte for byte: release 0.25.0 and the newest.
# Exits 77 where neither can be installed.
set -u
. "$(dirname "$0")/server.sh" tinkc "${1:-}"

ran=0
for which in "0.25:tinker==0.25.0" "newest:tinker"; do
    if install "${which%%:*}" "${which#*:}"; then
        echo "=== ${which#*:}"
        HF_HUB_OFFLINE=1 PYTHONWARNINGS=ignore timeout 600 "$build/venv-${which%%:*}/bin/python" \
            "$here/cli_json.py" "$build/tinkc" "$model" || exit 1
        ran=1
    else
        echo "skipped: ${which#*:} cannot be installed (no package index?)"
    fi
done
[ $ran = 1 ] || exit 77
