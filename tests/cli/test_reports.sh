#!/usr/bin/env bash
# What a run leaves for people and for other tools: samples, TensorBoard, Weights & Biases, a report.
set -eu
build=$1
[ -x "$build/tinkc" ] || { echo "skipped: $build/tinkc was not built"; exit 77; }
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
export HOME=$work XDG_DATA_HOME=$work/data XDG_CONFIG_HOME=$work/config
unset TINKER_API_KEY TINKER_BASE_URL TINKER_CREDENTIAL_CMD XDG_STATE_HOME XDG_CACHE_HOME || true
tinkc() { "$build/tinkc" --no-config --local -q "$@"; }
fail() { echo "FAILED: $*"; exit 1; }
code_of() { local code=0; "$@" > "$work/out" 2> "$work/err" || code=$?; echo $code; }
train() { tinkc train sft "$work/d.jsonl" --batch-size 4 --lora-rank 4 --seed 1 --save-every 6 "$@"; }

"$build/tools/pirate" lesson 64 1 > "$work/d.jsonl"
train --max-steps 10 --log-dir "$work/plain"
with=(--log-dir "$work/run" --tensorboard --wandb --sample-prompt "What is 3 plus 4?" --sample-prompt Hello --sample-every 4 --sample-tokens 8)
train --max-steps 10 "${with[@]}"

# Looking at a run does not change it.
same() { python3 - "$1" "$2" <<'PY'
import json, sys
a, b = ([(r["step"], r.get("train_mean_nll")) for r in map(json.loads, open(p + "/metrics.jsonl"))] for p in sys.argv[1:])
sys.exit(a != b)
PY
}
same "$work/plain" "$work/run" || fail "samples and exports changed the training"

steps() { python3 -c 'import json,sys; print(*[r["step"] for r in map(json.loads, open(sys.argv[1])) if r["prompt"] == "Hello"])' "$work/run/samples.jsonl"; }
[ "$(steps)" = "0 4 8 10" ] || fail "samples at steps $(steps)"
ls "$work"/run/tensorboard/events.out.tfevents.*.tinkc > /dev/null || fail "no event file"
ls "$work"/run/wandb/offline-run-*/run-*.wandb > /dev/null || fail "no offline run"

# As if it had been killed after the checkpoint at step 6: no sample stays twice.
grep -v '"name":"final"' "$work/run/checkpoints.jsonl" > "$work/kept" && mv "$work/kept" "$work/run/checkpoints.jsonl"
train --max-steps 10 --resume "${with[@]}"
[ "$(steps)" = "0 4 8 10" ] || fail "after resuming, samples at steps $(steps)"
[ "$(ls "$work/run/wandb" | grep -c offline-run)" = 1 ] || fail "a resumed run left several offline runs"
same "$work/plain" "$work/run" || fail "a resumed run differs"

# The report.
"$build/tinkc" logs report "$work/run" "$work/plain" -o "$work/report.html" || fail "report"
grep -q '"name":"plain"' "$work/report.html" && grep -q "What is 3 plus 4" "$work/report.html" ||
    fail "the report lacks a run or a sample"
[ "$("$build/tinkc" logs report "$work/run" -o - | head -c 15)" = "<!doctype html>" ] || fail "report to standard output"
mkdir "$work/empty"
[ "$(code_of "$build/tinkc" logs report "$work/empty")" = 3 ] && grep -q "no run in it" "$work/err" || fail "report of nothing: $(cat "$work/err")"
[ "$(code_of "$build/tinkc" logs report "$work/nowhere")" = 3 ] || fail "report of no folder"

# The page's command.
[ "$(code_of "$build/tinkc" ui "$work/nowhere")" = 3 ] || fail "ui of no folder"
[ "$(code_of "$build/tinkc" ui "$work/d.jsonl")" = 3 ] && grep -q "not a folder" "$work/err" || fail "ui of a file"
[ "$(code_of "$build/tinkc" ui "$work" --host 0.0.0.0)" = 2 ] && grep -q "needs keys" "$work/err" || fail "ui for everybody: $(cat "$work/err")"

# Starting over leaves nothing of the old run.
train --max-steps 2 --log-dir "$work/run" --if-exists delete
[ ! -e "$work/run/samples.jsonl" ] && [ ! -e "$work/run/tensorboard" ] && [ ! -e "$work/run/wandb" ] || fail "the old run's files are still there"
echo "reports: ok"
