# server.sh PROGRAM BUILD - what a test against our server begins with; sourced.
# Sets build, here and model; exits 77 where Python or PROGRAM (below the build folder) is missing.
# shellcheck shell=bash
program=$1
build=${2:-build}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
model=$root/models/nano
[ -x "$build/$program" ] || { echo "skipped: $build/$program is not built"; exit 77; }
command -v python3 > /dev/null || { echo "skipped: no python3"; exit 77; }
. "$root/tests/support/await.sh"
. "$here/packages.sh"

# A folder of its own and the test's server on it: start_server [OPTION...] sets work, pid and url.
start_server() {
    work=$(mktemp -d)
    "$build/tests/tinkc_serve" --model "$model" --name nano --store "$work/store" "$@" > "$work/out" 2> "$work/log" &
    pid=$!
    await "$work/out" "ready " || exit 1
    url=$(sed -n 's/^ready //p' "$work/out")
}

# The end of it: shows the log if the test failed (its exit status is given), and cleans up.
clean_up() {
    [ "$1" = 0 ] || { echo "--- server's log"; tail -30 "$work/log"; }
    rm -rf "$work"
}

# The releases of the Python SDK that are tested, "NAME:REQUIREMENT ..." (environments are $build/venv-NAME): the oldest that is
# supported and the newest that is known. TINKC_SDKS names others.
sdks=${TINKC_SDKS:-"0.25:tinker==0.25.0 0.38:tinker==0.38.0"}
[ -z "${TINKC_NEWEST:-}" ] || sdks=sdk:tinker

# Runs FUNCTION NAME for each of them, with venv set. Exits 1 when one fails, 77 where none can be installed.
with_each_sdk() { # FUNCTION
    local which ran=0
    for which in $sdks; do
        if packages "${which%%:*}" "tinker, numpy" "${which#*:}" numpy; then
            echo "=== tinker $("$venv/bin/python" -c 'from tinker._version import __version__; print(__version__)')"
            "$1" "${which%%:*}" || exit 1
            ran=1
        else
            echo "skipped: ${which#*:} cannot be installed (no package index?)"
        fi
    done
    [ $ran = 1 ] || exit 77
}
