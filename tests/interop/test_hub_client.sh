#!/usr/bin/env bash
# huggingface_hub reads what `tinkc pull` wrote, and its uploads are compared with those of push-hf, in an
# environment below the build folder. Exits 77 where it cannot be installed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:-build}" && pwd)
. "$here/packages.sh"
[ -x "$build/tinkc" ] || { echo "skipped: $build/tinkc was not built"; exit 77; }
need_packages hub "huggingface_hub" huggingface_hub
exec timeout 3000 "$venv/bin/python" "$here/hub_client.py" "$build"
