#!/usr/bin/env bash
# huggingface_hub reads what `tinkc pull` wrote, and its uploads are compared with those of push-hf, in an
# environment below the build folder. Exits 77 where it cannot be installed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:-build}" && pwd)
[ -x "$build/tinkc" ] || { echo "skipped: $build/tinkc was not built"; exit 77; }
venv=$build/venv-hub
if ! "$venv/bin/python" -c 'import huggingface_hub' 2> /dev/null; then
    rm -rf "$venv"
    if ! python3 -m venv "$venv" > /dev/null 2>&1 ||
        ! timeout 300 "$venv/bin/pip" install -q --disable-pip-version-check huggingface_hub > "$venv.log" 2>&1; then
        echo "skipped: huggingface_hub cannot be installed (no package index?)"
        exit 77
    fi
fi
exec timeout 3000 "$venv/bin/python" "$here/hub_client.py" "$build"
