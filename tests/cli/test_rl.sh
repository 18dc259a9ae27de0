#!/usr/bin/env bash
# An RL run that is killed again and again, anywhere, and resumed each time ends with the weights of a run that
# was left alone, to the last bit, and trains on no rollout twice. Then: graders, environments and data that
# break the rules are named, nothing is trained on them, and the run can be resumed.
set -u
source=$PWD; build=$(realpath "$1"); tinkc=$build/tinkc
[ -x "$tinkc" ] || { echo "skipped: tinkc was not built"; exit 77; }
command -v python3 > /dev/null || { echo "skipped: python3 is not installed"; exit 77; }
TINKC_NANO=$(realpath models/nano); export TINKC_NANO
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
export HOME=$work; unset TINKER_API_KEY TINKER_BASE_URL
cd "$work" || exit 1
. "$source/tests/support/await.sh"
fail() { echo "FAILED: $*"; [ -f err ] && tail -n 5 err; exit 1; }
for i in 1 2 3 4 5 6 7 8; do echo "{\"prompt\": \"What is $i$i + 1$i?\", \"answer\": \"$i$i + 1$i = $((i * 11 + 10 + i))\"}"; done > sums.jsonl
common="--local -q --group-size 3 --groups-per-batch 2 --max-tokens 12 --lora-rank 8 --lr 1e-3 --seed 1 --save-every 2"

# ---- killed ten times; three times in the slow builds with sanitizers ----
most=10
case $build in */asan | */tsan) most=3 ;; esac
rl="train rl sums.jsonl $common --grader exact --max-steps 8 --epochs 9 --test-size 2 --eval-every 3 --max-steps-off-policy 1"
"$tinkc" $rl --log-dir whole 2> err || fail "the whole run"
marks() { { cat part/metrics.jsonl part/checkpoints.jsonl 2> /dev/null; ls part 2> /dev/null | grep iteration_; } | wc -l; }
kills=0; RANDOM=7
"$tinkc" $rl --log-dir part 2> err & p=$!
while [ $kills -lt $most ]; do
    target=$(($(marks) + 1 + RANDOM % 2))
    while kill -0 $p 2> /dev/null && [ "$(marks)" -lt $target ]; do sleep 0.01; done
    kill -KILL $p 2> /dev/null || break
    wait $p 2> /dev/null
    kills=$((kills + 1))
    "$tinkc" train resume part -q 2> err & p=$!
done
wait $p || fail "the last resume"
for run in whole part; do
    path=$(python3 -c 'import json,sys; print([json.loads(l)["sampler_path"] for l in open(sys.argv[1] + "/checkpoints.jsonl") if "final" in l][-1])' $run)
    "$tinkc" checkpoint download "$path" -o "$run-weights" --local -q > /dev/null 2> err || fail "download of $run"
done
find whole-weights part-weights -name '*.safetensors' | sort > files
[ "$(wc -l < files)" -ge 2 ] || fail "weights: $(cat files)"
cmp "$(head -n 1 files)" "$(tail -n 1 files)" || fail "the weights differ after $kills kills"
python3 - <<'PY' || fail "the metrics differ"
import json
def rows(path):
    return [{k: v for k, v in json.loads(l).items() if not k.startswith("time/")} for l in open(path + "/metrics.jsonl")]
whole, part = rows("whole"), rows("part")
assert [r["step"] for r in part] == list(range(9)), [r["step"] for r in part]
assert whole == part, [(a, b) for a, b in zip(whole, part) if a != b][:1]
assert whole[0]["sampling_client/step_max"] == 0 and whole[5]["sampling_client/step_max"] == 4
assert "test/env/all/correct" in whole[3] and whole[3]["env/all/total_episodes"] == 6
PY
echo "killed $kills times: same weights"
"$tinkc" train resume part -q 2> err && "$tinkc" train resume part 2>&1 | grep -q "nothing is left" || fail "a run that is done"

# ---- what is refused before anything is sent ----
refuse() { # exit code, words, arguments
    local code=$1 words=$2; shift 2
    "$tinkc" "$@" > out 2> err; local got=$?
    [ $got = "$code" ] || fail "exit $got instead of $code: $*"
    grep -qF -- "$words" err || fail "no \"$words\" from: $*"
}
printf '{"prompt": "a"}\n{"prompt": "b", "answer": "c"}\nnot json\n{"answer": "x"}\n{"prompt": [1], "answer": 2}\n' > bad.jsonl
refuse 6 "bad.jsonl:1: the row has no answer" train rl bad.jsonl $common --grader exact
refuse 6 "bad.jsonl:3: not a JSON object" train rl bad.jsonl $common --grader exact
refuse 6 "bad.jsonl:4: the row has no prompt" train rl bad.jsonl $common --grader exact
refuse 6 "bad.jsonl:5: the prompt is neither" train rl bad.jsonl $common --grader exact
refuse 2 "no grader was given" train rl sums.jsonl $common
refuse 2 "no grader is called exakt" train rl sums.jsonl $common --grader exakt
refuse 2 "is not NAME=NUMBER" train rl sums.jsonl $common --grader exact --loss-config clip
refuse 13 "does not accept --loss ppo" train rl sums.jsonl $common --grader exact --loss ppo --loss-config nosuch=1 --log-dir x1
[ ! -e bad ] && [ ! -e x1/metrics.jsonl ] || [ ! -s x1/metrics.jsonl ] || fail "a refused run trained"
cost() { # words, arguments: what --dry-run says of the cost
    local words=$1; shift
    "$tinkc" train rl sums.jsonl --group-size 2 --groups-per-batch 2 --max-tokens 9 --grader exact --dry-run "$@" > out 2> err < prices || fail "--dry-run $*"
    grep -qF -- "$words" err || fail "no \"$words\" from --dry-run $*"
}
echo "nano 1 2 3" > prices
cost "cost       at most \$0.0" --local --prices prices
cost "cost       none: it runs on this machine" --local
mkdir hub-model; cp "$TINKC_NANO"/tokenizer* hub-model/
python3 "$source/tests/support/client/hub_server.py" Qwen/Qwen3-8B=hub-model Qwen/Qwen3-4B=hub-model > hub & hub=$!
await hub http || fail "no hub"
HF_ENDPOINT=$(grep -o 'http://[^ ]*' hub | head -n 1); export HF_ENDPOINT TINKER_API_KEY=tml-test
cost "by the prices of 2026-10-07; --prices FILE gives newer ones" -m Qwen/Qwen3-8B
cost "no price of Qwen/Qwen3-4B is known: write MODEL PREFILL SAMPLE TRAIN" -m Qwen/Qwen3-4B
cost "prices has no line for Qwen/Qwen3-8B" -m Qwen/Qwen3-8B --prices prices
kill $hub; wait $hub 2> /dev/null; unset HF_ENDPOINT TINKER_API_KEY
printf 'nano 1 2\n' > prices2; refuse 2 "prices2:1: not a line of prices" train rl sums.jsonl $common --grader exact --dry-run --prices prices2

# ---- graders that break the rules ----
grade() { # what it does with a line, words in the log, its time
    rm -rf g; local status
    "$tinkc" train rl sums.jsonl --local --group-size 2 --groups-per-batch 1 --max-tokens 3 --lora-rank 8 --seed 1 --max-steps 1 \
        --reward-procs 1 --reward-timeout "${3:-600s}" --log-dir g --reward-cmd "$1" > out 2> err; status=$?
    [ $status != 0 ] || fail "trained with: $1"
    grep -qF -- "$2" err || fail "no \"$2\" with: $1"
    grep -q "sums.jsonl:[0-9]" err || grep -q "times in a row" err || fail "no line is named with: $1"
    [ ! -s g/metrics.jsonl ] || fail "trained with: $1"
}
grade 'exit 3' 'ended with status 3'
grade 'while read l; do echo garbage; done' 'not a JSON object'
grade 'while read l; do echo "{\"id\": 77777, \"reward\": 1}"; done' 'unknown id'
grade 'sleep 100' 'did not answer within 1000 ms' 1s
cat > grader.py <<'PY'
import json, sys
for line in sys.stdin:
    r = json.loads(line)
    reply = {"id": r["id"], "reward": float(len(r["text"]) % 3), "metrics": {"length": len(r["text"])}}
    if sys.argv[1] == "nan": reply["reward"] = float("nan")
    if sys.argv[1] == "text": reply["reward"] = "good"
    if sys.argv[1] == "error": reply = {"id": r["id"], "error": "no opinion"}
    print(json.dumps(reply), flush=True)
    if sys.argv[1] == "twice": print(json.dumps(reply), flush=True)
    print("graded", r["id"], file=sys.stderr, flush=True)
PY
grade 'python3 grader.py nan' 'not a JSON object'
grade 'python3 grader.py text' 'no finite number under "reward"'
grade 'python3 grader.py error' 'no opinion'
# The run that failed is taken up again once the grader is fixed.
cp grader.py fixed.py; sed -i 's/sys.argv\[1\] == "error"/False/' grader.py
"$tinkc" train resume g -q 2> err || fail "resume after the grader was fixed"
grep -q '"env/all/length"' g/metrics.jsonl || fail "the grader's own metric"
grep -q "graded" g/logs.log || fail "the grader's standard error is not in the log"
rm -rf g; "$tinkc" train rl sums.jsonl $common --max-steps 1 --log-dir g --reward-procs 1 --reward-cmd 'python3 grader.py twice' 2> err || fail "twice"
grep -q "has its answer already" g/logs.log || fail "a second answer is not named"
echo "graders that break the rules are named"

# ---- a grader at a URL, which sees no credential; a model that grades; the losses ----
cat > serve.py <<'PY'
import http.server, json
class Grader(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        r = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        secret = any(k.lower() in ("authorization", "x-api-key") for k in self.headers)
        body = json.dumps({"id": r["id"], "error": "a credential came"} if secret else {"id": r["id"], "reward": r["id"] % 2}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Grader)
print(server.server_port, flush=True)
server.serve_forever()
PY
python3 serve.py > port & web=$!
await port "" || fail "no grader"
tiny="train rl sums.jsonl --local -q --group-size 2 --groups-per-batch 2 --max-tokens 4 --lora-rank 8 --seed 1 --max-steps 1"
broken=""
for service in "" local: "http://127.0.0.1:$(cat port)"; do # the grader is asked the same way, whatever service the user has
    TINKER_BASE_URL=$service TINKER_CREDENTIAL_CMD=false "$tinkc" $tiny --reward-url "http://127.0.0.1:$(cat port)/grade" --log-dir "url${#service}" 2> err ||
        broken="TINKER_BASE_URL=$service: $(tail -n 2 err)"
done
kill $web; wait $web 2> /dev/null
[ -z "$broken" ] || fail "--reward-url, $broken"
refuse 2 "must begin with http" $tiny --reward-url ftp://x
refuse 10 "http://127.0.0.1:9/ did not answer within 300 ms" $tiny --reward-url http://127.0.0.1:9/ --reward-timeout 0.3s --log-dir deaf
echo "Is it kind?" > rubric
refuse 10 "no single number from 0 to 10" $tiny --grader rubric --grader-model nano --rubric rubric --log-dir rub
for loss in ppo cispo dro gspo; do "$tinkc" $tiny --grader number --loss $loss --log-dir "l-$loss" 2> err || fail "--loss $loss"; done
echo "rewards by URL and by rubric, every loss"

# ---- a service without the loss, as SkyRL answers (HTTP 422): said before anything is sampled ----
cat > proxy.py <<'PY'
import http.client, http.server, json, sys
def relay(handler):
    body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    print(handler.command, handler.path, file=log, flush=True)
    if handler.path.startswith("/api/v1/forward"):
        status, kind, data = 422, "application/json", json.dumps({"detail": [{"type": "literal_error", "loc": ["body", "loss_fn"],
            "msg": "Input should be 'cross_entropy', 'importance_sampling', 'ppo', 'cispo'", "input": "dro"}]}).encode()
    else:
        link = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
        link.request(handler.command, handler.path, body, {k: v for k, v in handler.headers.items() if k.lower() not in ("host", "connection")})
        answer = link.getresponse()
        status, kind, data = answer.status, answer.getheader("Content-Type", "application/json"), answer.read()
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)
class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    do_GET = do_POST = do_DELETE = do_PUT = relay
    def log_message(self, *_): pass
log = open("proxied", "w")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
print(server.server_port, flush=True)
server.serve_forever()
PY
"$tinkc" serve --port 0 --ready-fd 3 3> ready > served 2>&1 & serve=$!
await ready http || fail "serve: $(cat served)"
python3 proxy.py "$(grep -o '[0-9]*$' ready)" > proxy-port & proxy=$!
await proxy-port "" || fail "no proxy"
export TINKER_API_KEY=tml-dummy
"$tinkc" train rl sums.jsonl -q -m nano --base-url "http://127.0.0.1:$(cat proxy-port)" --group-size 2 --groups-per-batch 2 --max-tokens 4 --lora-rank 8 --max-steps 1 \
    --grader number --loss dro --log-dir sky > out 2> err; status=$?
kill $proxy $serve; wait $proxy $serve 2> /dev/null; unset TINKER_API_KEY
[ $status != 0 ] || fail "trained with a loss that the service lacks"
grep -q "does not accept --loss dro" err || fail "the missing loss is not named"
grep -q "forward" proxied || fail "the loss was not tried: $(cat proxied)"
! grep -q "sample\b" proxied || fail "sampled before the loss was known to work"
[ ! -s sky/metrics.jsonl ] || fail "a step was recorded"
echo "a loss that the service lacks is named before the first step"
