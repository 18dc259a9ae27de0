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

# The same for all of them at once: a release's packages are fetched while another's are tested. What each says comes in order.
with_all_sdks() { # FUNCTION
    local which i code ran=0 bad=0 pids=() folder
    folder=$(mktemp -d)
    for which in $sdks; do
        (
            packages "${which%%:*}" "tinker, numpy" "${which#*:}" numpy ||
                { echo "skipped: ${which#*:} cannot be installed (no package index?)"; exit 77; }
            echo "=== tinker $("$venv/bin/python" -c 'from tinker._version import __version__; print(__version__)')"
            "$1" "${which%%:*}" || exit 1
        ) > "$folder/${#pids[@]}" 2>&1 &
        pids+=($!)
    done
    for i in "${!pids[@]}"; do
        wait "${pids[$i]}"
        code=$?
        cat "$folder/$i"
        case $code in 0) ran=1 ;; 77) ;; *) bad=1 ;; esac
    done
    rm -rf "$folder"
    [ $bad = 0 ] || exit 1
    [ $ran = 1 ] || exit 77
}
