#!/usr/bin/env bash
# The official Python SDK against our server: version 0.25.0 and the newest release, each in an
# environment of its own below the build folder. Exits 77 where it cannot be installed.
set -u
. "$(dirname "$0")/server.sh" tests/tinkc_serve "${1:-}"

one() { # NAME [SETTING VALUE]
    local venv=$build/venv-$1 work pid url
    start_server ${2:+--set "$2" "$3"}
    HF_HUB_OFFLINE=1 TINKER_TELEMETRY=1 timeout 600 "$venv/bin/python" "$here/python_sdk.py" "$url" "$build/interop-$1.json"
    local rc=$?
    if [ $rc = 0 ] && [ -x "$build/tests/interop_client" ]; then
        timeout 600 "$build/tests/interop_client" "$url" "$build/interop-$1.json"
        rc=$?
    fi
    kill "$pid" 2> /dev/null
    wait "$pid" 2> /dev/null
    clean_up $rc
    return $rc
}

ran=0
for which in ${TINKC_SDKS:-"0.25:tinker==0.25.0" "newest:tinker"}; do
    set -- "${which%%:*}" "${which#*:}"
    if install "$1" "$2"; then
        echo "=== tinker from venv-$1: $("$build/venv-$1/bin/pip" list 2> /dev/null | sed -n 's/^tinker  *//p')"
        one "$1" || exit 1
        if [ "$1" = 0.25 ]; then # over the SDK's second transport too
            one "$1" use_pyqwest on || exit 1
        fi
        if [ "$1" = newest ]; then # and with its one poll for all samples
            one "$1" use_retrieve_futures on || exit 1
        fi
        ran=1
    else
        echo "skipped: $2 cannot be installed (no package index?)"
    fi
done
[ $ran = 1 ] || exit 77
