#!/usr/bin/env bash
# A day's work on the engine inside the program: check data, train, stop by SIGINT, resume, sample,
# export, delete. No network, no key.
set -eu
build=$1
[ -x "$build/tinkc" ] || { echo "skipped: $build/tinkc was not built"; exit 77; }
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
export HOME=$work XDG_DATA_HOME=$work/data XDG_CONFIG_HOME=$work/config
unset TINKER_API_KEY TINKER_BASE_URL TINKER_CREDENTIAL_CMD XDG_STATE_HOME XDG_CACHE_HOME || true
tinkc() { "$build/tinkc" --local "$@"; }
. tests/support/await.sh
fail() { echo "FAILED: $*"; exit 1; }
json() { python3 -c "import json,sys; v=json.load(sys.stdin); print($1)"; }

"$build/tools/pirate" lesson 160 1 > "$work/d.jsonl"
tinkc data check "$work/d.jsonl" -m models/nano || fail "data check"

# Stopped in the middle: exit 130, a checkpoint, a word on how to continue. Where the training was over before the signal
# came, because nobody let this script run, it is done again.
train_and_stop() {
    rm -rf "$work/run"
    "$build/tinkc" --local train sft "$work/d.jsonl" --epochs 4 --batch-size 8 --lora-rank 8 --seed 1 --save-every 0 --log-dir "$work/run" \
        --json > "$work/events.jsonl" 2> "$work/stderr" &
    pid=$!
    await "$work/events.jsonl" '"event":"step"' 3 || fail "training does not begin: $(cat "$work/stderr")"
    kill -INT $pid 2> /dev/null || true
    code=0; wait $pid || code=$?
}
for _ in 1 2 3 4 5 6; do
    train_and_stop
    [ $code = 0 ] || break
done
[ $code = 130 ] || fail "SIGINT ended with $code: $(cat "$work/stderr")"
grep -q "tinkc train resume" "$work/stderr" || fail "no word on how to resume"
stopped=$(tail -n 1 "$work/run/checkpoints.jsonl" | json 'v["epoch"] * 20 + v["batch"]')
[ "$stopped" -ge 3 ] && [ "$stopped" -lt 80 ] || fail "stopped at step $stopped"

# Resumed at exactly the next batch, to the end.
tinkc train resume "$work/run" --json > "$work/events2.jsonl" 2> "$work/stderr" || fail "resume: $(cat "$work/stderr")"
first=$(grep -m 1 '"event":"step"' "$work/events2.jsonl" | json 'v["step"]')
[ "$first" = "$stopped" ] || fail "resumed at $first instead of $stopped"
tail -n 1 "$work/run/checkpoints.jsonl" | grep -q '"final":true' || fail "no final checkpoint"
steps=$(python3 - "$work/run/metrics.jsonl" <<'PY'
import json, sys
rows = [json.loads(l) for l in open(sys.argv[1])]
steps = [r["step"] for r in rows if "train_mean_nll" in r]
assert steps == list(range(80)), steps
assert rows[-1]["train_mean_nll"] < rows[0]["train_mean_nll"] / 2, (rows[0], rows[-1])
print(len(steps))
PY
) || fail "metrics"

# What it learnt, asked in three ways.
tinkc sample -m "$work/run" --temperature 0 --max-tokens 24 "What is 7 + 5?" > "$work/answer"
grep -q "Arr" "$work/answer" || fail "the answer: $(cat "$work/answer")"
tinkc sample -m "$work/run" --temperature 0 --max-tokens 24 --json "What is 7 + 5?" | json 'v["sequences"][0]["text"]' | grep -q Arr || fail "json answer"
echo "What is 7 + 5?" | tinkc chat -m "$work/run" --temperature 0 --max-tokens 24 | grep -q Arr || fail "chat through a pipe"
tinkc logprobs -m "$work/run" --text "hello" --json | json 'len(v["tokens"]) > 0' | grep -q True || fail "logprobs"
tinkc logs show "$work/run" --json | json 'v["status"]' | grep -q completed || fail "logs show"
tinkc logs plot "$work/run" > /dev/null || fail "logs plot"

# Export, upload, search, list, delete.
tinkc checkpoint export "$work/run" -o "$work/adapter" --base nano || fail "export"
[ -s "$work/adapter/adapter_model.safetensors" ] && [ -s "$work/adapter/adapter_config.json" ] || fail "export made no adapter"
run=$(tinkc run list -f id | head -n 1)
uploaded=$(tinkc checkpoint upload "$work/adapter" -m nano --json | json 'v["path"]') || fail "upload"
found=$(tinkc checkpoint search --base-model nano --json | json '" ".join(c["tinker_path"] for c in v["checkpoints"])')
[ "${found%% *}" = "$uploaded" ] && [ "$(wc -w <<< "$found")" -gt 1 ] || fail "search: $found, uploaded $uploaded"
[ "$(tinkc checkpoint search --base-model nobody --json | json 'v["shown_count"]')" = 0 ] || fail "search of another model"
[ "$(tinkc checkpoint search --type external --json | json 'v["shown_count"]')" = 0 ] || fail "search of another kind"
tinkc sample -m "$uploaded" --temperature 0 --max-tokens 24 "What is 7 + 5?" > "$work/uploaded" || fail "sample of an upload"
cmp -s "$work/uploaded" "$work/answer" || fail "the upload answers otherwise: $(cat "$work/uploaded")"
n=$(tinkc checkpoint list --run-id "$run" --limit 0 --json | json 'v["shown_count"]')
[ "$n" -ge 2 ] || fail "$n checkpoints of $run"
tinkc checkpoint delete --run-id "$run" -y --json | json 'v["deleted_count"]' | grep -qx "$n" || fail "delete"
[ "$(tinkc checkpoint list --run-id "$run" --json | json 'v["shown_count"]')" = 0 ] || fail "they are still there"
echo "a day's work: 80 steps in two sittings, sampled, exported, deleted"
