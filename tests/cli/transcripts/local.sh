# Read by transcripts that use the engine inside the program: what differs from run to run or from one processor to
# the next is replaced.
export TINKER_BASE_URL=local: TINKER_API_KEY=
# Log-probabilities to one digit.
round() { sed -E 's/-?[0-9.]+e-[0-9]+/0.0/g; s/(-?[0-9]+\.[0-9])[0-9]+/\1/g; s/-0\.0/0.0/g'; }
# Names of runs, times, speeds and figures of training.
still() {
    sed -E '/^! step [0-9]+.[0-9]+ /d; s/[0-9a-f]{8}-[-0-9a-f]*/ID/g; s/[0-9.]+ ?(s|m[0-9]+s)\b/TIME/g; s/20[0-9-]{8}[T ][0-9:.]+(Z|\+00:00)?/WHEN/g
        s/("[a-z_]*(nll|loss|time|duration)[a-z_\/]*"|"time[^"]*"): ?-?[0-9.e-]+/\1:N/g; s/elapsed_tokens.: [0-9]+/elapsed_tokens: N/g; s/[0-9.]+ KB/N KB/
        s/(loss|reward|nll|KL|kl|lr|margin|accuracy) -?[0-9.e-]+/\1 N/g; s/-?[0-9]+\.[0-9]{7,}(e-?[0-9]+)?/N/g'
}
# What a run has in its folder: whole numbers and names of metrics, checkpoints, settings, files.
rows() {
    python3 -c 'import json, sys
for l in open(sys.argv[1] + "/metrics.jsonl"):
    r = json.loads(l)
    print({k: v for k, v in r.items() if isinstance(v, int) or k in ("learning_rate", "optim/lr", "progress")},
          sorted(k for k in r if not k.startswith("time/")), sorted(k for k in r if k.startswith("time/")))
for l in open(sys.argv[1] + "/checkpoints.jsonl"):
    r = json.loads(l)
    print({k: v for k, v in r.items() if "path" not in k}, sorted(r))
c = json.load(open(sys.argv[1] + "/config.json"))
print(json.dumps({k: v for k, v in c.items() if k != "tinkc"}, sort_keys=True), sorted(c["tinkc"]))' "$1" | still
    ls "$1"
}
# A chat at a terminal: the lines of standard input are typed.
chat() { python3 "$TESTS/typed.py" tinkc chat --temperature 0 "$@" 2>&1; code=$?; echo; [ $code = 0 ] || echo "[$code]"; }
