#!/usr/bin/env bash
# A run that was stopped, by Ctrl-C or killed outright, and taken up again is the uninterrupted run: the same
# numbers to the last bit in metrics.jsonl, each step once, whatever the killed process left half-written.
set -u
build=$(realpath "$1"); tinkc=$build/tinkc
[ -x "$tinkc" ] || { echo "skipped: tinkc was not built"; exit 77; }
command -v python3 > /dev/null || { echo "skipped: python3 is not installed"; exit 77; }
TINKC_NANO=$(realpath models/nano); export TINKC_NANO
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
export HOME=$work; unset TINKER_API_KEY TINKER_BASE_URL
cd "$work" || exit 1
"$build/tools/pirate" lesson 60 1 > d.jsonl
train="train sft d.jsonl --local -q --batch-size 6 --seed 1 --save-every 3 --eval-every 2 --test-size 6 --max-steps 8 --warmup-steps 4"
steps() { cat "$1/metrics.jsonl" 2> /dev/null | grep -c train_mean_nll; }
stop_at() { # signal, steps; again where the run was over before the signal came
    local try p
    for try in 1 2 3 4 5 6; do
        rm -rf part
        "$tinkc" $train --log-dir part 2> err & p=$!
        while kill -0 $p 2> /dev/null && [ "$(steps part)" -lt "$2" ]; do sleep 0.01; done
        kill -"$1" $p 2> /dev/null
        wait $p 2> /dev/null || return 0
    done
    echo "FAILED: no run could be stopped by $1 ($try times)"
    exit 1
}
same() {
    python3 - "$1" <<'PY' || { echo "FAILED: $1"; exit 1; }
import json, sys
def rows(path):
    out = []
    for line in open(path + "/metrics.jsonl"):
        row = json.loads(line)
        out.append({k: v for k, v in row.items() if not k.startswith("time/")})
    return out
whole, part = rows("whole"), rows("part")
assert [r["step"] for r in whole] == list(range(9)), [r["step"] for r in whole]
rates = [r["learning_rate"] for r in whole[:8]]
assert [round(r / rates[4], 9) for r in rates] == [0, .25, .5, .75, 1, .75, .5, .25], rates
assert "test/nll" in whole[0] and "test/nll" in whole[2] and "test/nll" in whole[8]
assert whole == part, (sys.argv[1], [(a, b) for a, b in zip(whole, part) if a != b][:1], len(whole), len(part))
records = [json.loads(l) for l in open("part/checkpoints.jsonl")]
assert records[-1]["name"] == "final" and records[-1]["final"] is True, records
PY
}
"$tinkc" $train --log-dir whole || { echo "FAILED: the whole run"; exit 1; }
stop_at INT 2; "$tinkc" train resume part -q || exit 1; same "stopped by Ctrl-C"
stop_at KILL 5; printf '{"step": 99, "tr' >> part/metrics.jsonl; printf '{"name": "0000' >> part/checkpoints.jsonl
"$tinkc" train resume part -q || exit 1; same "killed, with torn lines"
stop_at KILL 1; "$tinkc" train resume part -q || exit 1; same "killed before the first checkpoint"
# A finished run has nothing left: no run is made for it, and nothing in its folder changes.
runs() { "$tinkc" run list --local --limit 0 -f id | wc -l; }
before=$(runs); sum=$(cat whole/*.json* | sha256sum)
"$tinkc" train resume whole 2> err || { echo "FAILED: resume of a finished run"; cat err; exit 1; }
grep -q "nothing is left to do: 8 of 8 steps are done" err || { echo "FAILED: not said"; cat err; exit 1; }
[ "$(runs)" = "$before" ] && [ "$before" -ge 4 ] || { echo "FAILED: $before runs became $(runs)"; exit 1; }
[ "$(cat whole/*.json* | sha256sum)" = "$sum" ] || { echo "FAILED: the finished run's files changed"; exit 1; }
echo "resumed runs equal the whole one; finished ones stay as they are"
