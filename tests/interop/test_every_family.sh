#!/usr/bin/env bash
# The official Python SDK trains and samples a tiny model of each family. Exits 77 where it cannot be installed.
set -u
. "$(dirname "$0")/server.sh" tests/tinkc_serve "${1:-}"

shapes="tiny tiny-qwen3-moe tiny-qwen3.5 tiny-qwen3.5-moe tiny-gpt-oss tiny-nemotron-h"

try() { # NAME
    local work pid url models rc
    models=$(mktemp -d)
    set --
    for shape in $shapes; do
        python3 "$root/tools/make-random-model" "$shape" "$models/$shape" || exit 1
        set -- "$@" --model "$models/$shape" --name "$shape"
    done
    start_server "$@"
    # shellcheck disable=SC2086 # one argument for each shape
    HF_HUB_OFFLINE=1 TINKER_TELEMETRY=0 timeout 600 "$venv/bin/python" "$here/every_family.py" "$url" $shapes
    rc=$?
    kill "$pid" 2> /dev/null
    wait "$pid" 2> /dev/null
    clean_up $rc
    rm -rf "$models"
    return $rc
}
sdks=${TINKC_SDKS:-"0.38:tinker==0.38.0"}
with_each_sdk try
