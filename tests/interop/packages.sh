# packages.sh - Python packages for the tests of this folder, each set in an environment of its own below the build folder; sourced.
# shellcheck shell=bash
#
# Versions are those of pins.txt, dependencies included, so that a release of somebody else's changes no result here.
# TINKC_NEWEST=1 (`make interop-newest`) takes the newest releases instead, in environments beside the pinned ones.
pins=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/pins.txt

# A new environment with these packages; by uv where it is there, which takes seconds. A busy machine may take long.
install_packages() { # FOLDER ARGUMENT...
    if command -v uv > /dev/null; then
        uv venv -q --seed "$1" && timeout 1800 uv pip install -q --python "$1/bin/python" "${@:2}"
    else
        python3 -m venv "$1" &&
            timeout 1800 "$1/bin/pip" install -q --no-compile --retries 3 --timeout 30 --disable-pip-version-check "${@:2}"
    fi
}

# packages NAME MODULES REQUIREMENT...: sets venv, the environment, in which `import MODULES` works. False where it cannot be made.
# Several tests share an environment and may start at once; one that was made of other versions is made again.
packages() {
    local modules=$2 constraint=(-c "$pins") made_of
    venv=$build/venv-$1
    shift 2
    made_of="$* $(cksum < "$pins")"
    if [ -n "${TINKC_NEWEST:-}" ]; then venv=$venv-newest constraint=() made_of="$* $(date +%F)"; fi
    (
        flock 9
        [ "$(cat "$venv/made-of" 2> /dev/null)" = "$made_of" ] && "$venv/bin/python" -c "import $modules" 2> /dev/null && exit 0
        rm -rf "$venv"
        install_packages "$venv" "${constraint[@]}" "$@" > "$venv.log" 2>&1 && echo "$made_of" > "$venv/made-of"
    ) 9> "$venv.lock"
}

# The same, but ends the test (exit 77) where there is no package index.
need_packages() { # NAME MODULES REQUIREMENT...
    packages "$@" || { echo "skipped: ${*:3} cannot be installed (no package index?)"; exit 77; }
}
