#!/usr/bin/env bash
# bench/decode_vs_llama.sh [BUILD [FOLDER]] - Qwen3-0.6B in bf16 on two cores: decoding at batch 1 beside what reading
# the weights once a token allows, and prompt tokens a second, both beside llama.cpp's with the same weights.
#
# LLAMA_BENCH=path of llama.cpp's llama-bench (without it that column is left out), THREADS=2, ROUNDS=3.
# Both programs run in turn; the best of the rounds is shown. FOLDER (2.4 GB) is kept, without it a temporary one
# is used. The weights are random: only their shapes matter here.
set -eu
build=$(realpath "${1:-build}"); here=$(dirname "$(realpath "$0")")
threads=${THREADS:-2} rounds=${ROUNDS:-3}
[ -z "${LLAMA_BENCH:-}" ] || [ -x "$LLAMA_BENCH" ] || { echo "LLAMA_BENCH: '$LLAMA_BENCH' is not a program" >&2; exit 2; }
if [ -n "${2:-}" ]; then mkdir -p "$2"; work=$(realpath "$2"); else work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; fi

# As many of the processors we may use as threads, for both programs.
cpus=$(python3 -c 'import os, sys; print(*sorted(os.sched_getaffinity(0))[:int(sys.argv[1])], sep=",")' "$threads")
on() { taskset -c "$cpus" "$@"; }

model=$work/qwen3-0.6b gguf=$work/qwen3-0.6b-bf16.gguf
[ -f "$model/config.json" ] || python3 "$here/../tools/make-random-model" qwen3-0.6b "$model"
if [ -n "${LLAMA_BENCH:-}" ] && [ ! -f "$gguf" ]; then
    # a GGUF file must have a vocabulary; which one does not matter
    cp "$here/../models/nano/tokenizer.json" "$here/../models/nano/tokenizer_config.json" "$model"
    HOME=$work "$build/tinkc" export "$model" --to gguf --type bf16 -o "$gguf.part" > "$work/export.log" || { cat "$work/export.log"; exit 1; }
    mv "$gguf.part" "$gguf"
fi

: > "$work/ours"; : > "$work/theirs"
for _ in $(seq "$rounds"); do
    on "$build/bench/engine_decode" "$model" 0 1 64 1 >> "$work/ours"
    [ -z "${LLAMA_BENCH:-}" ] || on "$LLAMA_BENCH" -m "$gguf" -t "$threads" -ngl 0 -p 512 -n 64 -r 2 -o jsonl >> "$work/theirs"
done

python3 - "$work/ours" "$work/theirs" "$threads" <<'PY'
import datetime, json, re, sys
ours, theirs = open(sys.argv[1]).read(), [json.loads(x) for x in open(sys.argv[2]) if x.startswith("{")]
best = lambda pattern: max(float(x) for x in re.findall(pattern, ours))
reading, size = best(r"reading +([\d.]+) GB/s"), best(r"over ([\d.]+) MB") / 1000
peer = lambda key: max((s for x in theirs if x[key] for s in x["samples_ts"]), default=None)
cpu = next((x.split(":")[1].strip() for x in open("/proc/cpuinfo") if x.startswith("model name")), "processor")
print(f"{datetime.date.today()}, {cpu}, {sys.argv[3]} cores: {reading:.1f} GB/s read, {size:.2f} GB of weights")
print(f"{'':24}{'tinkc':>10}{'llama.cpp':>12}{'ratio':>8}{'bound':>9}{'share':>8}")
for name, mine, other, bound in (
        ("decode, tokens/s", best(r"batch 1 +([\d.]+) tokens/s"), peer("n_gen"), reading / size),
        ("prompt of 512, tokens/s", best(r"prefill +([\d.]+) tokens/s"), peer("n_prompt"), best(r"prefill .*bound +([\d.]+)"))):
    beside = f"{other:12.1f}{mine / other:8.2f}" if other else f"{'-':>12}{'-':>8}"
    print(f"{name:24}{mine:10.1f}{beside}{bound:9.1f}{100 * mine / bound:6.0f} %")
print("bound of decoding: the weights read once a token; of a prompt: useful FLOPs at the rate of an fp32 product of 1024^3")
if not theirs:
    print("llama.cpp: skipped, LLAMA_BENCH does not name its llama-bench")
PY
