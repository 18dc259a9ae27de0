#!/usr/bin/env bash
# The Python package on the programs of the build folder, with the standard library alone. What needs packages of others is in
# tests/interop/test_python_package.sh.
set -eu
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
nm "$build/libtinkc.so" 2> /dev/null | grep -q '__asan_\|__tsan_' && { echo "skipped: a sanitizer's build"; exit 77; }
[ -x "$build/tinkc" ] && [ -e "$build/libtinkc.so" ] || { echo "skipped: $build/tinkc is not built"; exit 77; }
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "skipped: Python 3.10 or later is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TINKC_PROGRAM=$build/tinkc TINKC_LIBRARY=$build/libtinkc.so TINKC_NANO=$root/models/nano PYTHONPATH=$root/python/src
export HOME=$work XDG_CACHE_HOME=$work/cache HF_HOME=$work/hf PYTHONDONTWRITEBYTECODE=1
unset TINKER_BASE_URL TINKER_API_KEY
cd "$root/tests/python"
python3 -W error::ResourceWarning -m unittest -q test_serve test_tokenizer test_wheel
