#!/usr/bin/env bash
# The official Python SDK against our server: both releases that server.sh names. Exits 77 where neither can be installed.
set -u
. "$(dirname "$0")/server.sh" tests/tinkc_serve "${1:-}"

one() { # NAME [SETTING VALUE]
    local work pid url
    start_server ${2:+--set "$2" "$3"}
    HF_HUB_OFFLINE=1 TINKER_TELEMETRY=1 timeout 3000 "$venv/bin/python" "$here/python_sdk.py" "$url" "$build/interop-$1.json"
    local rc=$?
    if [ $rc = 0 ] && [ -x "$build/tests/interop_client" ]; then
        timeout 3000 "$build/tests/interop_client" "$url" "$build/interop-$1.json"
        rc=$?
    fi
    kill "$pid" 2> /dev/null
    wait "$pid" 2> /dev/null
    clean_up $rc
    return $rc
}

try() { # NAME
    one "$1" || return 1
    case $1 in
    0.25) one "$1" use_pyqwest on ;;            # over the SDK's second transport too
    *) one "$1" use_retrieve_futures on ;; # and with its one poll for all samples
    esac
}
with_each_sdk try
