#!/usr/bin/env bash
# What people meet on their first day, on the engine with the shipped model: misspelt names, broken data, plans that find
# what the run would refuse, defaults that fit LoRA, and what a run shows of itself.
set -u
build=$(realpath "$1"); tinkc=$build/tinkc
[ -x "$tinkc" ] || { echo "skipped: tinkc was not built"; exit 77; }
command -v python3 > /dev/null || { echo "skipped: python3 is not installed"; exit 77; }
TINKC_NANO=$(realpath models/nano); export TINKC_NANO
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
export HOME=$work HF_HUB_OFFLINE=0 HF_ENDPOINT=http://127.0.0.1:9; unset TINKER_API_KEY TINKER_BASE_URL
cd "$work" || exit 1
fail() { echo "FAILED: $*"; cat out; exit 1; }
# says CODE 'WORDS' ARGUMENTS: the exit code, and words of the output; lacks: words that are not in the last output.
says() {
    local code=$1 words=$2 got; shift 2
    "$tinkc" "$@" > out 2>&1 < /dev/null; got=$?
    [ $got = "$code" ] || fail "exit $got instead of $code: $*"
    grep -qF -- "$words" out || fail "no \"$words\" from: $*"
}
lacks() { ! grep -qF -- "$1" out || fail "\"$1\" is there"; }
also() { grep -qF -- "$1" out || fail "no \"$1\""; }
for i in 1 2 3 4; do
    echo "{\"prompt\": \"What is $i + 5?\", \"answer\": \"$((i + 5))\"}" >> sums.jsonl
    echo "{\"prompt\": \"What is $i + 5?\", \"chosen\": \"$((i + 5))\", \"rejected\": \"No.\"}" >> pairs.jsonl
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi $i\"}, {\"role\": \"assistant\", \"content\": \"$i\"}]}" >> chats.jsonl
done
for i in $(seq 25); do echo "nothing $i" >> broken.jsonl; done
cp -r "$TINKC_NANO" other
sed -i 's/<|im_start|>/<|other_one|>/g' other/tokenizer.json
small="--group-size 2 --max-tokens 4 --lora-rank 4 --seed 1"

# A misspelt model is not looked for on a hub: there is none at this address.
says 3 'did you mean nano?' sample -m nanoo hi
says 3 'did you mean nano?' train sft sums.jsonl -m nanoo
says 3 'did you mean Qwen/Qwen3-8B?' sample -m qwen/qwen3-8b hi
says 3 'name a folder, a log directory or ORG/NAME' sample -m something hi

# Of many bad lines the first 20, and how many there are.
says 6 'broken.jsonl: 25 lines cannot be used' train sft broken.jsonl
also '... and 5 more'; also 'broken.jsonl:20:'; lacks 'broken.jsonl:21:'
says 6 '25 lines cannot be used' train sft broken.jsonl --json
python3 -c 'import json; assert len(json.load(open("out"))["error"]["problems"]) == 20' || fail "problems"

# A plan counts what the run does, and refuses what the run would.
says 0 'steps      1 of 4 prompts, 4 answers each' train distill sums.jsonl --teacher nano --dry-run
says 0 'steps      3 of 4 prompts, 2 answers each' train distill sums.jsonl --teacher nano --dry-run --group-size 2 --epochs 3
says 3 'did you mean nano?' train distill sums.jsonl --teacher nanoo --dry-run
says 3 'there is no such folder: ./nowhere' train distill sums.jsonl --teacher ./nowhere --dry-run
says 6 'has another tokenizer than nano' train distill sums.jsonl --teacher ./other --dry-run
says 2 '2 teachers for 1 files' train distill sums.jsonl --teacher nano --teacher nano --dry-run

says 2 '--targets must be from 1 to 128' train distill chats.jsonl --off-policy --teacher nano --targets 129 --dry-run

# Learning rates that fit LoRA: shares of what sft takes for the model.
says 0 'rate 0.0002; 0.2 x the default for nano' train rl sums.jsonl --grader number --dry-run
says 0 'rate 0.0001; 0.1 x the default for nano' train dpo pairs.jsonl --dry-run
says 0 'rate 0.5' train dpo pairs.jsonl --dry-run --lr 0.5
lacks default

# An answer with nothing in it is pointed out.
says 0 'warning: the answer is empty (2 tokens)' sample --temperature 0 --stop 12 'What is 7 + 5?'
says 0 '' sample --temperature 0 'What is 7 + 5?'
lacks empty

# A run shows what it is judged by; a resumed one says from where.
says 0 'KL ' train distill sums.jsonl --teacher nano $small --log-dir distilled
lacks reward
says 0 'teacher_kl' logs show distilled
says 0 'reward ' train rl sums.jsonl --grader number --groups-per-batch 2 --max-steps 1 $small --log-dir rl
says 0 'optim/kl_sample_train_v1' logs show rl
also optim/entropy
says 0 'resumed    after step 1 of 2, from tinker://' train resume rl --max-steps 2
also 'rate 0.0002'

# The KL to a teacher that is the student itself is 0, whatever the loss.
says 0 'teacher_kl' train distill chats.jsonl --off-policy --teacher nano --targets 128 --lora-rank 4 --seed 1 --log-dir off
python3 -c 'import json; r = json.loads(open("off/metrics.jsonl").readline()); assert abs(r["teacher_kl"]) < 0.01 < r["train/loss"], r' || fail "KL"

# A folder says what it is without a service.
says 0 'qwen3' model info other
also 14,163,328; also '27.0 MB'; also 'Memory, each token of a sequence'; also 'Runs Here'
python3 - << 'P'
import json
config = json.load(open("other/config.json"))
config["model_type"], config["architectures"] = "mystery", ["Mystery"]
json.dump(config, open("other/config.json", "w"))
P
says 0 'No: ' model info other
also mystery
echo "first day: as it should be"
