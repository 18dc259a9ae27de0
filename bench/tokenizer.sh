#!/usr/bin/env bash
# tokenizer.sh [BUILD [MODEL_DIR...]] [-- TEXT...]: encode, decode and load beside Hugging Face tokenizers and
# tiktoken, in the same run, on one thread; prints each figure and the ratio. The Python packages are
# installed into BUILD/venv-tokenizers. Texts: English prose, code, CJK; without any, a mixture is made of what
# this machine has (Python's library, translations).
set -eu
build=${1:-build}; shift || true
models=() texts=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do models+=("$1"); shift; done
[ $# -gt 0 ] && shift
texts=("$@")
venv=$build/venv-tokenizers
if ! "$venv/bin/python" -c "import tokenizers, tiktoken" 2> /dev/null; then
    python3 -m venv "$venv" > /dev/null && "$venv/bin/pip" install -q tokenizers tiktoken || { echo "no packages to compare with"; exit 1; }
fi
[ ${#models[@]} -gt 0 ] || models=(../shared/data/tokenizers/llama3 ../shared/data/tokenizers/qwen3)
[ -d "${models[0]}" ] || models=(models/nano) # without the large ones, the model that comes with the repository
if [ ${#texts[@]} -eq 0 ]; then
    mkdir -p "$build/bench-texts"
    "$venv/bin/python" - "$build/bench-texts" << 'P'
import glob, os, pydoc_data.topics as t, sys
out, lib = sys.argv[1], os.path.dirname(os.__file__)
prose = "\n".join(t.topics.values()); open(out + "/prose.txt", "w").write(prose * (4000000 // len(prose) + 1))
open(out + "/code.txt", "w").write("".join(open(p, errors="replace").read() for p in sorted(glob.glob(lib + "/*.py"))))
cjk = []
for p in glob.glob("/usr/share/locale/*/LC_MESSAGES/*.mo"):
    if p.split("/")[4][:2] in ("zh", "ja"):
        cjk += [c.decode("utf-8", "ignore") for c in open(p, "rb").read().split(b"\0") if max(c, default=0) > 127]
if cjk: open(out + "/cjk.txt", "w").write("\n".join(cjk)[:3000000])
P
    texts=("$build"/bench-texts/*.txt)
fi
for model in "${models[@]}"; do
    dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
    # Uncompressed and writable, so that the compiled form can be written beside it.
    for f in "$model"/*; do
        case $f in *.zst) zstd -dqf "$f" -o "$dir/$(basename "${f%.zst}")" ;; *.json | *.model) cp "$f" "$dir" ;; esac
    done
    rm -f "$dir/tokenizer.pairs.json"
    "$build/bench/tokenizer" "$dir" -t "$(nproc)" "${texts[@]}" > "$dir/ours"
    TOKENIZERS_PARALLELISM=false RAYON_NUM_THREADS=1 "$venv/bin/python" bench/tokenizer_others.py "$dir" "$dir/ours" "$model" "${texts[@]}"
    rm -rf "$dir"
done
