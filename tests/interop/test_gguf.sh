#!/usr/bin/env bash
# llama.cpp's gguf package reads our GGUF files, in an environment below the build folder. Exits 77 where
# it cannot be installed or where the model is not at hand.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:-build}" && pwd)
model=$here/../../models/nano
[ -x "$build/tinkc" ] || { echo "skipped: $build/tinkc was not built"; exit 77; }
[ -e "$model/config.json" ] || { echo "skipped: models/nano is not there"; exit 77; }
venv=$build/venv-gguf
if ! "$venv/bin/python" -c 'import gguf' 2> /dev/null; then
    rm -rf "$venv"
    if ! python3 -m venv "$venv" > /dev/null 2>&1 ||
        ! timeout 300 "$venv/bin/pip" install -q --disable-pip-version-check gguf > "$venv.log" 2>&1; then
        echo "skipped: gguf cannot be installed (no package index?)"
        exit 77
    fi
fi
exec timeout 3000 "$venv/bin/python" "$here/gguf_reader.py" "$build" "$model"
