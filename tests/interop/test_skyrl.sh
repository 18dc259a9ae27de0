#!/usr/bin/env bash
# SkyRL's server (JAX on the processor, the shipped model) against tinkc: list, train, sample, download, resume.
#
#     SKYRL=/path/to/python   a Python that has skyrl[tinker,jax], with uv on its PATH
#     SKYRL=install           makes such an environment below the build folder: gigabytes, because of torch
#
# Exits 77 where neither is given, or where Python 3.12 or the packages cannot be had.
set -u
. "$(dirname "$0")/server.sh" tinkc "${1:-}"

case "${SKYRL:-}" in
"") echo "skipped: SkyRL needs gigabytes of packages; see the head of $0 (SKYRL)"; exit 77 ;;
install)
    python=$build/venv-skyrl/bin/python
    if ! "$python" -c 'import skyrl.tinker.api' 2> /dev/null; then
        # With an older Python release 0.3.0 installs, but pydantic refuses its types when it starts.
        for new in python3 python3.13 python3.12; do
            "$new" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2> /dev/null && break
            new=
        done
        [ -n "$new" ] || { echo "skipped: SkyRL needs Python 3.12"; exit 77; }
        rm -rf "$build/venv-skyrl" # aiohttp: it needs it, and does not say so
        "$new" -m venv "$build/venv-skyrl" &&
            timeout 3000 "$build/venv-skyrl/bin/pip" install -q --disable-pip-version-check uv aiohttp 'skyrl[tinker,jax]' > "$build/venv-skyrl.log" 2>&1 ||
            { echo "skipped: skyrl cannot be installed (no package index?)"; exit 77; }
    fi ;;
*) python=$SKYRL ;;
esac
python=$(realpath -s "$python")
venv=$(dirname "$(dirname "$python")")
work=$(mktemp -d)
export HOME=$work JAX_PLATFORMS=cpu VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH UV_NO_SYNC=1
command -v uv > /dev/null || { echo "skipped: uv is not installed"; rm -rf "$work"; exit 77; }
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
tinkc=$(realpath "$build/tinkc"); pirate=$(realpath "$build/tools/pirate")
cd "$work" || exit 1
# It starts its engine with the flags of the uv that started it.
setsid uv run --no-project --active -m skyrl.tinker.api --host 127.0.0.1 --port "$port" --base-model "$model" --backend jax \
    --backend-config '{"max_lora_adapters": 3, "max_lora_rank": 8}' --checkpoints-base "$work/checkpoints" \
    --database-url "sqlite:///$work/skyrl.db" > "$work/log" 2>&1 &
pid=$!
export TINKER_BASE_URL=http://127.0.0.1:$port TINKER_API_KEY=tml-any TINKER_TELEMETRY=0
failed=0
say() { # NAME COMMAND...: the command must succeed; its output is shown if it does not
    if "${@:2}" > out 2> err; then echo "ok: $1"; else
        echo "FAILED: $1"; tail -n 5 out err; failed=1; fi
}
ready() { for _ in $(seq 1200); do curl -fs "$TINKER_BASE_URL/api/v1/healthz" > /dev/null && return; kill -0 $pid || return; sleep 0.2; done; return 1; }
say "the server starts" ready
[ $failed = 0 ] || { clean_up 1; exit 1; }
say "model list" "$tinkc" model list
"$pirate" lesson 12 1 > d.jsonl
say "train sft" "$tinkc" train sft d.jsonl -m "$model" --log-dir run -q --batch-size 4 --max-steps 2 --lora-rank 8 --seed 1
[ "$(grep -c train_mean_nll run/metrics.jsonl)" = 2 ] && echo "ok: two steps" || { echo "FAILED: not two steps"; failed=1; }
say "run list" "$tinkc" run list
runs=$("$tinkc" run list -f id --limit 0 | wc -l)
run=$("$tinkc" run list -f id --limit 1)
say "checkpoint list" "$tinkc" checkpoint list --run-id "$run"
say "sample from the weights" "$tinkc" sample "hello" -m run --max-tokens 4
sampler=$(sed -n 's/.*"sampler_path": *"\([^"]*\)".*/\1/p' run/checkpoints.jsonl | tail -1)
say "download $sampler" "$tinkc" checkpoint download "$sampler" -o down
say "download by the list's path" "$tinkc" checkpoint download "tinker://$run/sampler_weights/${sampler##*/}" -o listed
find down listed -name 'adapter_model.safetensors' | grep -q . && echo "ok: the adapter is there" ||
    { echo "FAILED: no adapter in the download"; find down listed; failed=1; }
say "resume of the finished run" "$tinkc" train resume run
[ "$("$tinkc" run list -f id --limit 0 | wc -l)" = "$runs" ] && echo "ok: no run was made for it" ||
    { echo "FAILED: resuming a finished run made one"; failed=1; }
kill -- -$pid 2> /dev/null
wait $pid 2> /dev/null
clean_up $failed
exit $failed
