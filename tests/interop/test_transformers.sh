#!/usr/bin/env bash
# transformers, PEFT and the cookbook's build_hf_model read our merged models and adapters, and we read PEFT's. Their packages are
# gigabytes, so nothing is installed here: TRANSFORMERS_PYTHON names a Python that has torch, transformers, peft and tinker-cookbook.
# Exits 77 without it.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:-build}" && pwd)
model=$here/../../models/nano
[ -x "$build/tinkc" ] || { echo "skipped: $build/tinkc was not built"; exit 77; }
[ -e "$model/config.json" ] || { echo "skipped: models/nano is not there"; exit 77; }
if [ -z "${TRANSFORMERS_PYTHON:-}" ]; then
    echo "skipped: TRANSFORMERS_PYTHON does not name a Python with torch, transformers, peft and tinker-cookbook"
    exit 77
fi
exec "$TRANSFORMERS_PYTHON" -W ignore "$here/transformers_peer.py" "$build" "$model"
