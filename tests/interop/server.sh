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

# The Python SDK and numpy in an environment of their own, $build/venv-NAME. False where they cannot be had.
install() { # NAME REQUIREMENT; several tests share an environment and may start at once
    local venv=$build/venv-$1
    (
        flock 9
        [ -x "$venv/bin/python" ] && "$venv/bin/python" -c 'import tinker, numpy' 2> /dev/null && exit 0
        rm -rf "$venv"
        python3 -m venv "$venv" > /dev/null 2>&1 &&
            timeout 300 "$venv/bin/pip" install -q --disable-pip-version-check "$2" numpy > "$build/venv-$1.log" 2>&1
    ) 9> "$venv.lock"
}

# Runs FUNCTION NAME for SDK 0.25.0 and for the newest release, each in $build/venv-NAME. Exits 1 when one fails, 77 where
# neither can be installed. TINKC_SDKS names others ("NAME:REQUIREMENT ...").
with_each_sdk() { # FUNCTION
    local which ran=0
    for which in ${TINKC_SDKS:-"0.25:tinker==0.25.0" "newest:tinker"}; do
        if install "${which%%:*}" "${which#*:}"; then
            echo "=== ${which#*:} $("$build/venv-${which%%:*}/bin/pip" list 2> /dev/null | sed -n 's/^tinker  *//p')"
            "$1" "${which%%:*}" || exit 1
            ran=1
        else
            echo "skipped: ${which#*:} cannot be installed (no package index?)"
        fi
    done
    [ $ran = 1 ] || exit 77
}
