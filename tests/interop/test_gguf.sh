#!/usr/bin/env bash
# llama.cpp's gguf package reads our GGUF files, in an environment below the build folder. Exits 77 where
# it cannot be installed or where the model is not at hand.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:-build}" && pwd)
. "$here/packages.sh"
model=$here/../../models/nano
[ -x "$build/tinkc" ] || { echo "skipped: $build/tinkc was not built"; exit 77; }
[ -e "$model/config.json" ] || { echo "skipped: models/nano is not there"; exit 77; }
need_packages gguf "gguf" gguf
exec timeout 3000 "$venv/bin/python" "$here/gguf_reader.py" "$build" "$model"
