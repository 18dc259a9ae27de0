#!/usr/bin/env bash
# The official Python SDK against our server: version 0.25.0 and the newest release, each in an
# environment of its own below the build folder. Exits 77 where it cannot be installed or where the
# model is not at hand.
set -u
build=${1:-build}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
model=$root/models/nano
[ -f "$model/config.json" ] || model=$root/../shared/models/nano
[ -f "$model/config.json" ] || { echo "skipped: models/nano is not here"; exit 77; }
[ -x "$build/tests/tinkc_serve" ] || { echo "skipped: $build/tests/tinkc_serve is not built"; exit 77; }
command -v python3 > /dev/null || { echo "skipped: no python3"; exit 77; }

install() { # NAME REQUIREMENT
    local venv=$build/venv-$1
    [ -x "$venv/bin/python" ] && "$venv/bin/python" -c 'import tinker, numpy' 2> /dev/null && return 0
    rm -rf "$venv"
    python3 -m venv "$venv" > /dev/null 2>&1 &&
        timeout 300 "$venv/bin/pip" install -q --disable-pip-version-check "$2" numpy > "$build/venv-$1.log" 2>&1
}

one() { # NAME [SETTING VALUE]
    local venv=$build/venv-$1 work
    work=$(mktemp -d)
    "$build/tests/tinkc_serve" --model "$model" --name nano --store "$work/store" ${2:+--set "$2" "$3"} > "$work/out" 2> "$work/log" &
    local pid=$!
    for _ in $(seq 100); do grep -q ready "$work/out" && break; sleep 0.1; done
    local url
    url=$(sed -n 's/^ready //p' "$work/out")
    TINKER_TELEMETRY=1 timeout 600 "$venv/bin/python" "$here/python_sdk.py" "$url" "$build/interop-$1.json"
    local rc=$?
    if [ $rc = 0 ] && [ -x "$build/tests/interop_client" ]; then
        timeout 120 "$build/tests/interop_client" "$url" "$build/interop-$1.json"
        rc=$?
    fi
    kill "$pid" 2> /dev/null
    wait "$pid" 2> /dev/null
    [ $rc = 0 ] || { echo "--- server's log"; tail -30 "$work/log"; }
    rm -rf "$work"
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
        ran=1
    else
        echo "skipped: $2 cannot be installed (no package index?)"
    fi
done
[ $ran = 1 ] || exit 77
