#!/usr/bin/env bash
# eval, env check, train dpo, distill and sweep as a user runs them, on the engine with the shipped model: they do
# what they say, resume to the same numbers, and refuse what cannot be used by file and line.
set -u
build=$(realpath "$1"); tinkc=$build/tinkc
[ -x "$tinkc" ] || { echo "skipped: tinkc was not built"; exit 77; }
command -v python3 > /dev/null || { echo "skipped: python3 is not installed"; exit 77; }
source=$PWD; TINKC_NANO=$(realpath models/nano); export TINKC_NANO
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
export HOME=$work; unset TINKER_API_KEY TINKER_BASE_URL
cd "$work" || exit 1
fail() { echo "FAILED: $*"; tail -n 5 err 2> /dev/null; exit 1; }
run() { "$tinkc" "$@" > out 2> err || fail "exit $?: $*"; }
refuse() { # exit code, words, arguments
    local code=$1 words=$2; shift 2
    "$tinkc" "$@" > out 2> err; local got=$?
    [ $got = "$code" ] || fail "exit $got instead of $code: $*"
    grep -qF -- "$words" err || grep -qF -- "$words" out || fail "no \"$words\" from: $*"
}
rows() { # file, key: the values of a metric, one a line
    python3 -c 'import json,sys; [print(json.loads(l)[sys.argv[2]]) for l in open(sys.argv[1] + "/metrics.jsonl") if sys.argv[2] in json.loads(l)]' "$1" "$2" > values; cat values
}
same() { # two runs have the same metrics, times aside
    python3 - "$1" "$2" <<'PY' || fail "$1 and $2 differ"
import json, sys
def rows(path):
    return [{k: v for k, v in json.loads(l).items() if not k.startswith("time/")} for l in open(path + "/metrics.jsonl")]
a, b = rows(sys.argv[1]), rows(sys.argv[2])
assert a == b and len(a) > 2, [(x, y) for x, y in zip(a, b) if x != y][:1] or (len(a), len(b))
PY
}
kill_at() { # steps, arguments: killed outright once so many are in metrics.jsonl, then resumed
    local steps=$1; shift
    "$tinkc" "$@" --log-dir part > out 2> err & local p=$!
    while kill -0 $p 2> /dev/null && [ "$(cat part/metrics.jsonl 2> /dev/null | wc -l)" -lt "$steps" ]; do sleep 0.01; done
    kill -KILL $p 2> /dev/null; wait $p 2> /dev/null
    run train resume part
}
for i in 1 2 3 4 5 6 7 8; do
    a=$((i * 7 + 10)) b=$((i * 5 + 12)) s=$((i * 12 + 22))
    echo "{\"id\": $i, \"prompt\": \"What is $a + $b?\", \"answer\": \"$s\"}" >> sums.jsonl
    echo "{\"prompt\": \"What is $a + $b?\", \"chosen\": \"$a + $b = $s\", \"rejected\": \"$s\"}" >> pairs.jsonl
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"What is $a + $b?\"}, {\"role\": \"assistant\", \"content\": \"$a + $b = $s\"}]}" >> chats.jsonl
done

# ---- environments ----
for env in "python3 $source/examples/guess_env.py" "python3 $source/examples/calculator_env.py"; do
    run env check "$env"; grep -q FAILED out && fail "$env"
done
refuse 12 'did not answer within 500 ms' env check 'sleep 100' --timeout-each 0.5
refuse 12 'nothing to answer' env check cat
refuse 12 'ended with status 127: ' env check no-such-command-here
refuse 12 'unknown id' env check 'while read l; do echo "{\"id\": 9}"; done'
small="--local -q --group-size 2 --groups-per-batch 2 --max-tokens 8 --lora-rank 8 --seed 1 --max-steps 2 --lr 1e-3"
echo '{"level": 1}' > rows.jsonl
run train rl rows.jsonl $small --env-cmd "python3 $source/examples/guess_env.py" --epochs 4 --log-dir guess
[ "$(rows guess env/all/turns_per_episode | head -n 1 | cut -c 1)" -ge 1 ] || fail "turns"
rows guess env/all/guesses | grep -q . || fail "the environment's metric"
refuse 10 'limit of turns' train rl rows.jsonl $small --env-cmd "python3 $source/examples/guess_env.py" --max-turns 2 --log-dir endless

# ---- evaluation ----
eval="eval run sums.jsonl --local -q --grader number --max-tokens 16 --temperature 1"
run $eval -n 4 --save-dir e1 --json
python3 - <<'PY' || fail "result.json"
import json
r = json.load(open("e1/sums/result.json"))
assert r["num_examples"] == 8 and r["num_errors"] == 0 and set(r["pass_at_k"]) == {"1", "2", "4"}, r
assert r["interval_95"][0] <= r["score"] <= r["interval_95"][1] and abs(r["pass_at_k"]["1"] - r["score"]) < 1e-9, r
lines = [json.loads(l) for l in open("e1/sums/trajectories.jsonl")]
assert len(lines) == 32 and lines[0]["turns"][0]["role"] == "user" and lines[0]["example_id"] in "12345678", lines[0]
PY
# Cut off in the middle of a line: only what is missing is asked again, and the answers are those of an undisturbed run. So are more answers later.
answers() { python3 -c 'import json, sys
for l in open(sys.argv[1]):
    try: r = json.loads(l)
    except ValueError: continue
    print(r["example_id"], r["sample"], r["text"], r["reward"])' "$1/sums/trajectories.jsonl" | LC_ALL=C sort; }
answers e1 > answers1
mkdir -p e2/sums; cp e1/sums/settings.json e2/sums; head -c 3000 e1/sums/trajectories.jsonl > e2/sums/trajectories.jsonl
run $eval -n 4 --save-dir e2; answers e2 | cmp - answers1 || fail "a continued evaluation has other answers"
run $eval -n 2 --save-dir e6; run $eval -n 4 --save-dir e6; answers e6 | cmp - answers1 || fail "more answers are not the missing ones"
python3 -c 'import json; a, b, c = [json.load(open(f"{d}/sums/result.json")) for d in ("e1", "e2", "e6")]; assert all(a[k] == b[k] == c[k] for k in a if k != "time_seconds"), (a, b, c)' || fail "resumed evaluation"
# A failed answer that is asked again counts once.
{ sed 's/"error":null/"error":"lost"/; q' e1/sums/trajectories.jsonl; cat e1/sums/trajectories.jsonl; } > e2/sums/trajectories.jsonl
run eval show e2 --json; python3 -c 'import json; r = json.load(open("out")); assert r["num_errors"] == 0 and set(r["pass_at_k"]) == {"1", "2", "4"}, r' || fail "a failed answer is counted beside its repetition"
printf '{"id": 1, "prompt": "a", "answer": "1"}\n{"id": "1", "prompt": "b", "answer": "2"}\n' > twins.jsonl
refuse 6 'twins.jsonl:2: id "1" is also that of twins.jsonl:1' eval run twins.jsonl --local -q --grader number
# Comparing counts every answer of an example.
for r in "0 0 1" "1 1 0"; do mkdir -p "c$r"; n=0; for v in $r; do echo "{\"example_id\": \"x\", \"sample\": $((n++)), \"text\": \"t\", \"reward\": $v}"; done > "c$r/trajectories.jsonl"; done
run eval compare "c0 0 1" "c1 1 0" --json; python3 -c 'import json; c = json.load(open("out")); assert abs(c["difference"] - 1 / 3) < 1e-9 and c["only_second"] == 1, c' || fail "compare looks at one answer only"
refuse 5 "other settings" $eval --grader exact --save-dir e1
mkdir -p e7/sums; ln -s ../../precious e7/sums/trajectories.jsonl
refuse 5 "is a link that leads out of the folder" $eval --save-dir e7
run eval run sums.jsonl --local -q --grader exact --max-tokens 16 --temperature 0 --save-dir e3
run eval compare e1 e3 --json; python3 -c 'import json; c = json.load(open("out")); assert c["common"] == 8 == c["both"] + c["only_first"] + c["only_second"] + c["neither"]' || fail compare
run eval show e1 --wrong
refuse 12 "below --min-score" eval run sums.jsonl --local -q --grader exact --max-tokens 2 --temperature 0 --save-dir e4 --min-score 0.99
printf '{"doc_id": 1, "target": "42", "filtered_resps": ["42"], "exact_match": 1.0}\n' > samples_x.jsonl
run eval show samples_x.jsonl
echo '{"prompt": "What is 2 + 3?", "choices": ["7", "5"], "answer": 1}' > choice.jsonl
run eval run choice.jsonl --local -q --multiple-choice --save-dir e5; grep -q 1.0000 out || fail "multiple choice"
echo '{"prompt": "What is 2 + 3?", "choices": ["7", "5"], "answer": "x"}' > choice2.jsonl
refuse 6 "choice2.jsonl:1: the answer is none of the choices" eval run choice2.jsonl --local -q --multiple-choice
refuse 3 "holds no evaluation" eval show nowhere

# ---- preferences ----
dpo="train dpo pairs.jsonl --local -q --batch-size 2 --lr 1e-3 --lora-rank 8 --seed 1 --save-every 2 --test-size 2 --eval-every 2"
run $dpo --log-dir whole; grep -q "step" err && fail "-q is not quiet"
run ${dpo/ -q/} --log-dir lines --max-steps 3; [ "$(grep -c "^step [13]/3  dpo_loss " err)" = 2 ] || fail "no lines of progress in a pipe"
[ "$(rows whole dpo_loss | head -n 1 | cut -c 1-6)" = 0.6931 ] || fail "the first loss is log 2"
[ "$(rows whole margin | head -n 1)" = 0.0 ] || fail "the reference is not the start"
kill_at 2 $dpo; same whole part; rm -rf part
printf '{"prompt": "a", "chosen": "x", "rejected": "x"}\n{"prompt": "a"}\n' > bad.jsonl
refuse 6 "bad.jsonl:1: chosen and rejected are equal" train dpo bad.jsonl --local -q
refuse 6 "bad.jsonl:2: needs \"chosen\"" train dpo bad.jsonl --local -q
for loss in ipo "dpo --length-normalized"; do run train dpo pairs.jsonl --local -q --batch-size 4 --lora-rank 8 --loss $loss --log-dir "d-${loss%% *}"; done
echo '{"prompt": "What is 1 + 1?", "completion": "2", "label": true}' > thumbs.jsonl
echo '{"prompt": "What is 1 + 2?", "completion": "4", "label": false}' >> thumbs.jsonl
for i in 3 4 5 6 7 8; do echo "{\"prompt\": \"What is $i + $i?\", \"completion\": \"$i + $i = $((2 * i))\", \"label\": $([ $((i % 2)) = 0 ] && echo true || echo false)}" >> thumbs.jsonl; done
run train dpo thumbs.jsonl --local -q --lora-rank 8 --loss kto --batch-size 4 --epochs 8 --lr 3e-3 --seed 1 --log-dir d-kto
python3 - <<'PY' || fail "the KL of KTO"
import json
rows = [json.loads(l) for l in open("d-kto/metrics.jsonl")]
assert rows[0]["kl"] == 0 and abs(rows[0]["dpo_loss"] - 0.5) < 1e-6, rows[0]  # the policy is the reference
assert all(r["kl"] >= 0 for r in rows if "kl" in r) and any(r["kl"] > 0 for r in rows if "kl" in r), [r.get("kl") for r in rows]
PY
head -n 1 thumbs.jsonl > thumb.jsonl; refuse 6 "at least two answers" train dpo thumb.jsonl --local -q --loss kto

# ---- distillation ----
distill="train distill sums.jsonl --local -q --teacher whole --group-size 2 --groups-per-batch 2 --max-tokens 8 --lora-rank 8 --seed 1 --lr 1e-3 --save-every 2 --max-steps 4"
run $distill --log-dir dist; rows dist teacher_kl | grep -q . || fail "teacher_kl"
kill_at 3 $distill; same dist part; rm -rf part
echo "Answer with the word banana." > context
run train distill sums.jsonl --local -q --teacher nano --context context --group-size 2 --groups-per-batch 2 --max-tokens 8 --lora-rank 8 --max-steps 1 --log-dir ctx
python3 -c 'import json; r = json.loads(open("ctx/metrics.jsonl").readline()); assert r["teacher_kl"] != 0' || fail "the context changes nothing"
run train distill chats.jsonl --local -q --teacher whole --off-policy --targets 4 --batch-size 4 --lora-rank 8 --seed 1 --log-dir off
rows off train/loss | grep -q . || fail "off-policy loss"
"$tinkc" train distill sums.jsonl --local -q --teacher "$work/other" --group-size 2 --groups-per-batch 2 > out 2> err && fail "a teacher that is not there"
# Two entries of the vocabulary change places: the sizes agree and most texts do too, the tokens do not.
cp -rL "$TINKC_NANO" other; chmod -R u+w other; rm -f other/*.cache
python3 - other/tokenizer.json <<'PY'
import json, sys
t = json.load(open(sys.argv[1])); v = t["model"]["vocab"]
a, b = [k for k in v if v[k] in (250, 251)]
v[a], v[b] = v[b], v[a]
json.dump(t, open(sys.argv[1], "w"))
PY
refuse 6 "other has another tokenizer than nano" train distill sums.jsonl --local -q -m nano --teacher "$work/other" --group-size 2 --groups-per-batch 2 --log-dir tok
refuse 6 "other has another tokenizer than nano" train rl sums.jsonl --local -q -m nano --grader number --kl-coef 0.1 --kl-reference "$work/other" --log-dir tok
[ ! -s tok/metrics.jsonl ] || fail "trained with another tokenizer"

# ---- config.toml: the same settings give the same run ----
run train dpo --local -q --config whole/config.toml --log-dir again; same whole again
cmp -s whole/config.toml again/config.toml || fail "config.toml is not written back as it was"
echo 'nosuch = 1' >> again/config.toml
refuse 2 "again/config.toml:$(wc -l < again/config.toml): train dpo has no setting nosuch" train dpo --local -q --config again/config.toml
refuse 2 "settings of another recipe" train rl --local -q --config whole/config.toml

# ---- sweep ----
run train sweep --local --grid lr=1e-3,1e-2 --grid lora-rank=4,8 --log-dir sweep --json -- sft chats.jsonl --batch-size 4 --max-steps 2
python3 - <<'PY' || fail "the sweep's table"
import json
runs = json.load(open("out"))["runs"]
assert len(runs) == 4 and all(r["status"] == "done" for r in runs), runs
assert [r["metric"] for r in runs] == sorted(r["metric"] for r in runs), runs
PY
refuse 10 "lr=x: failed: --lr: 'x' is not a number above 0 (sweep2/lr=x.log)" train sweep --local --grid lr=x --log-dir sweep2 -- sft chats.jsonl
refuse 2 "has no option --nosuch" train sweep --local --grid nosuch=1 -- sft chats.jsonl
echo "recipes: all as they should be"
