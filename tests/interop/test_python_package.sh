#!/usr/bin/env bash
# The Python package as users have it: a wheel of the programs in the build folder, installed with pip beside the official SDK, pytest and
# numpy; its linters, the pytest plugin, and the loops and the notebook of examples/python. Exits 77 where packages cannot be installed.
set -u
. "$(dirname "$0")/server.sh" tinkc "${1:-}"
build=$(cd "$build" && pwd)
nm "$build/libtinkc.so" 2> /dev/null | grep -q '__asan_\|__tsan_' && { echo "skipped: a sanitizer's build"; exit 77; }
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "skipped: Python 3.11 or later is not installed"; exit 77; }
need_packages python-package "tinker, numpy, pytest, xdist, nbclient, matplotlib" tinker==0.38.0 numpy pytest pytest-xdist nbclient nbformat \
    ipykernel matplotlib ruff mypy
fail() { echo "FAILED: $*"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A wheel like packaging/make-wheel's, for this machine alone.
mkdir -p "$work"/tree/{package,scripts,licences,sboms,data/share/tinkc/models/nano}
cp -r "$root/python/src/tinkc" "$work/tree/package/"
strip -o "$work/tree/package/tinkc/libtinkc.so" "$build/libtinkc.so" && strip -o "$work/tree/scripts/tinkc" "$build/tinkc" || fail "strip"
cp "$model"/*.json "$model"/*.safetensors "$work/tree/data/share/tinkc/models/nano/"
cp "$root/LICENSE" "$work/tree/licences/"
version=$("$build/tinkc" --version | cut -d' ' -f2)
wheel=$(python3 "$root/python/backend.py" "$work/tree" "linux_$(uname -m)" "$version" "$work") || fail "the wheel cannot be written"
again=$(mkdir "$work/again" && python3 "$root/python/backend.py" "$work/tree" "linux_$(uname -m)" "$version" "$work/again")
cmp "$wheel" "$again" || fail "the same files give another wheel"
"$venv/bin/pip" install -q --disable-pip-version-check --no-deps --force-reinstall "$wheel" || fail "pip does not install it"

export HOME=$work XDG_CACHE_HOME=$work/cache HF_HOME=$work/hf PYTHONDONTWRITEBYTECODE=1 PATH=$venv/bin:$PATH TINKC_INSTALLED=tinkc
unset TINKER_BASE_URL TINKER_API_KEY TINKC_PROGRAM TINKC_LIBRARY TINKC_NANO PYTHONPATH
[ "$(tinkc sample --temperature 0 "What is 7 + 5?")" = 12 ] || fail "the command does not answer"
[ "$(python -m tinkc --version)" = "tinkc $version" ] || fail "python -m tinkc is not the command"
python -c "import tinkc; assert tinkc.__version__ == '$version', tinkc.__version__" || fail "the version"
(cd "$root/python" && ruff check -q . && ruff format -q --check . && mypy --strict src) || fail "linters"
# What the package starts by these names is the installed one; two tests replace it.
TINKC_NANO=$model TINKC_PROGRAM=$(command -v tinkc)
export TINKC_NANO TINKC_PROGRAM
(cd "$root/tests/python" && python -m unittest -q test_plugin test_tokenizer.Arrays) || fail "the package's tests"
unset TINKC_NANO TINKC_PROGRAM
awk '/^```python$/ { on = !done; next } /^```$/ { if (on) done = 1; on = 0 } on' "$root/README.md" > "$work/readme.py"
echo '    print(trainer.result().get_info().model_data.model_name)' >> "$work/readme.py"
[ "$(cd "$work" && python readme.py)" = nano ] || fail "the README's lines"
cp -r "$root/examples/python" "$work/example" && cd "$work/example" || fail "the example"
python -m pytest -q -p no:cacheprovider || fail "the example's tests"
# The loops with the oldest SDK that is supported, in the environment of the other tests.
if packages 0.25 "tinker, numpy" tinker==0.25.0 numpy; then
    PYTHONPATH=$work/tree/package TINKC_PROGRAM=$(command -v tinkc) "$venv/bin/python" - << 'P' || fail "the loops with tinker 0.25"
import loops, tinkc
with tinkc.serve() as server:
    chat = [{"role": "user", "content": "What is 1 + 2?"}, {"role": "assistant", "content": "Arr, it be 3!"}]
    losses, _ = loops.supervised(server.client(), tinkc.Tokenizer.from_pretrained("nano"), [chat], steps=5)
    assert losses[-1] < losses[0], losses
P
else
    echo "skipped: tinker 0.25.0 cannot be installed"
fi
