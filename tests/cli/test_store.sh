#!/usr/bin/env bash
# The local store: models given as folders, many commands at once, and who takes over when a process ends.
set -eu
tinkc=$(cd "$1" && pwd)/tinkc root=$PWD
[ -x "$tinkc" ] || { echo "skipped: $tinkc was not built"; exit 77; }
work=$(mktemp -d)
export HOME=$work XDG_DATA_HOME=$work/data XDG_CONFIG_HOME=$work/config
unset TINKER_API_KEY TINKER_BASE_URL TINKC_SHARE_STORE
cleanup() {
    status=$?
    for pid in $(jobs -p); do kill "$pid" 2> /dev/null || true; done
    wait
    rm -rf "$work"
    exit $status
}
trap cleanup EXIT
cd "$work"
fail() { echo "$1"; [ $# -lt 2 ] || cat "$2"; exit 1; }
says() { # TEXT FILE
    grep -qF -- "$1" "$2" || fail "'$1' is not said in:" "$2"
}
until_() { # SECONDS COMMAND...
    for _ in $(seq $(($1 * 10))); do "${@:2}" > /dev/null 2>&1 && return 0; sleep 0.1; done
    fail "waited $1 s in vain for: ${*:2}" train.out
}
lines_in() { [ "$(wc -l < "$1")" -ge "$2" ]; }
trains_on() { # NAME: three more steps
    local now=0
    [ ! -e "$1/metrics.jsonl" ] || now=$(wc -l < "$1/metrics.jsonl")
    until_ 300 lines_in "$1/metrics.jsonl" $((now + 3))
}
stops() { # NAME: the training ends in good order when asked to, and each step was done once
    local code=0
    kill -INT "$trainer"
    wait "$trainer" || code=$?
    [ $code = 130 ] || fail "the training ended with $code" train.out
    sed 's/.*"step": *\([0-9]*\).*/\1/' "$1/metrics.jsonl" > done
    seq 0 $(($(wc -l < done) - 1)) | cmp - done || fail "steps are missing or were done twice" done
}
for i in 1 2 3 4; do
    echo '{"messages":[{"role":"user","content":"hi '$i'"},{"role":"assistant","content":"hello there"}]}'
done > d.jsonl
steps() { # NAME STEPS [OPTION...]
    "$tinkc" train sft d.jsonl --batch-size 4 --epochs "$2" --lora-rank 4 --save-every 0 --log-dir "$1" "${@:3}"
}
begin_training() { # NAME: beside this script, until it is stopped
    "$tinkc" train sft d.jsonl --batch-size 4 --epochs 100000 --lora-rank 4 --save-every 0 --log-dir "$1" > train.out 2>&1 &
    trainer=$!
    trains_on "$1"
}
ends_alone() { # no process is left behind
    "$tinkc" doctor --json | grep -q 'no command uses the store now' || fail "a process still has the store"
}

a_folder_called_nano() { # beside the user is not the shipped model, and does not clash with it
    mkdir -p beside && cp -r "$root/models/nano" beside/nano
    for share in 1 0; do
        (cd beside && TINKC_SHARE_STORE=$share "$tinkc" sample --temperature 0 "What is 7 + 5?") > out 2>&1 || fail "beside a folder called nano" out
        says 12 out
    done
}

folders_are_models() {
    cp -r "$root/models/nano" mine
    steps run 2 -m ./mine > out 2>&1 || fail "training a folder's model" out
    says "the default for hidden size 384" out
    talk=$(sed -n 's/^to talk *tinkc //p' out)
    (cd / && "$tinkc" sample -m "$work/run" --max-tokens 4 hi) > out 2>&1 || fail "sampling the run" out
    mkdir -p elsewhere # a folder called run would come first
    (cd elsewhere && "$tinkc" sample -m run --max-tokens 4 hi) > out 2>&1 || fail "sampling the run by its name" out
    echo hi | "$tinkc" $talk --max-tokens 4 > out 2>&1 || fail "the command that training printed: $talk" out
    echo hi | "$tinkc" chat -m run --max-tokens 4 > out 2>&1 || fail "chatting with the run" out
    "$tinkc" logprobs -m run --text hello > out 2>&1 || fail "scoring with the run" out
    "$tinkc" checkpoint list -f id > out 2>&1 && lines_in out 2 || fail "listing checkpoints" out
    mv mine moved
    ! "$tinkc" sample -m run --max-tokens 4 hi > out 2>&1 || fail "a model that is gone was sampled" out
    says "$work/mine, which no longer exists" out
    says "tinkc model add" out
    "$tinkc" model add "$work/mine" ./moved > out 2>&1 || fail "model add" out
    "$tinkc" sample -m run --max-tokens 4 hi > out 2>&1 || fail "sampling from the new place" out
    mv moved mine
    TINKC_SHARE_STORE=0 "$tinkc" sample -m run --max-tokens 4 hi > out 2>&1 || fail "sampling from the old place again" out
    mv mine moved
}

commands_share_the_store() {
    begin_training long
    for i in 1 2 3; do "$tinkc" sample --temperature 0 "What is $i + 5?" > "answer.$i" 2>&1 & pids[i]=$!; done
    for i in 1 2 3; do wait "${pids[i]}" || fail "sampling beside a training" "answer.$i"; done
    "$tinkc" run list -f id > out 2>&1 || fail "run list beside a training" out
    "$tinkc" doctor --json > doctor.json || true
    says "train sft d.jsonl" doctor.json
    ! TINKC_SHARE_STORE=0 "$tinkc" run list > out 2>&1 || fail "without sharing the store is not free" out
    says "another process has it open" out
    trains_on long
    stops long
    ends_alone
}

another_takes_over() {
    "$tinkc" serve --port 0 --ready-fd 3 3> url > serve.out 2>&1 &
    server=$!
    until_ 300 test -s url
    begin_training over
    kill "$server" && wait "$server" || fail "the server did not stop in good order" serve.out
    trains_on over
    host=$("$tinkc" doctor --json | sed -n 's/.*process \([0-9]*\) serves it.*/\1/p')
    [ -n "$host" ] && [ "$host" != "$server" ] || fail "nobody took over" train.out
    kill -9 "$host"
    trains_on over
    stops over
    ends_alone
}

errors_are_true() {
    refused() { # TEXT ARGUMENT...
        ! "$tinkc" "${@:2}" > out 2>&1 || fail "accepted: ${*:2}" out
        says "$1" out
    }
    refused "there is no such folder: ./nodir" sample -m ./nodir hi
    refused "neither a model nor a log directory" sample -m /tmp hi
    touch some.gguf && mkdir peft && echo '{}' > peft/adapter_config.json
    refused "some.gguf: not a GGUF file" sample -m some.gguf hi
    refused "there is no such file: none.gguf" sample -m none.gguf hi
    refused "peft is a PEFT adapter, not a model" sample -m ./peft hi
    mkdir huge odd
    cp moved/*.json huge/ && rm -f huge/model.safetensors.index.json && truncate -s 7T huge/model.safetensors
    refused "7.0 TB (7696581394432 bytes)" sample -m ./huge hi
    cp moved/* odd/ 2> /dev/null || true
    tr '\n' ' ' < moved/config.json | sed 's/"architectures": *\[[^]]*\]/"architectures": ["OtherForCausalLM"]/' > odd/config.json
    refused "architecture 'OtherForCausalLM' is not supported; supported are LlamaForCausalLM" sample -m ./odd hi
    "$tinkc" sample --temperature 0 --max-tokens 100000 "What is 7 + 5?" > out 2> note || fail "sampling" note
    says "lowered from 100000 to" note
    refused "nosuch" run info nosuch
    ! grep -qi "http 4" out || fail "an HTTP status without HTTP" out
}

a_folder_called_nano
folders_are_models
commands_share_the_store
another_takes_over
errors_are_true
echo "store: shared, handed over, and models found again"
