#!/usr/bin/env bash
# The examples in C run on the engine and do what they say. Every file in examples/ is below 150 lines and is run by some test;
# those in other languages have tests of their own (test_example_*.sh).
set -eu
at=$1/examples model=models/nano
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset TINKER_API_KEY TINKER_BASE_URL
. tests/support/await.sh
fail() { echo "FAILED: $*"; [ ! -e "$work/out" ] || cat "$work/out"; exit 1; }
run() { echo "== $*"; "$@" > "$work/out" 2>&1 || fail "$* left with $?"; cat "$work/out"; }
says() { grep -qE -- "$1" "$work/out" || fail "no line matches: $1"; }

for file in examples/*; do
    [ -f "$file" ] || continue # folders have tests of their own: interop.python_package, project.example_elixir
    [ "$(wc -l < "$file")" -lt 150 ] || fail "$file has $(wc -l < "$file") lines; an example has fewer than 150"
    name=$(basename "$file")
    case $name in *.c) name=${name%.c}\\b ;; *) name=${name//./\\.} ;; esac
    grep -qE "(/|run |at/)$name" tests/project/test_example*.sh tests/cli/test_recipes.sh || fail "no test runs $file"
done
[ -e $model/config.json ] || fail "$model is missing"

# hello is the README's program, grpo the guide's, word for word; what the README changes for the hosted service is so.
diff <(sed -n '/^```c/,/^```/p' README.md | sed '1d;$d') <(tail -n +2 examples/hello.c) || fail "the README's program differs"
diff <(sed -n '/^```c/,/^```/p' docs/guide/reinforcement-learning.md | sed '1d;$d') examples/grpo.c || fail "the guide's program differs"
sed -n '/^```diff/,/^```/p' README.md | grep '^[-+]' > "$work/changes"
[ "$(grep -c '^+' "$work/changes")" -ge 3 ] || fail "the README does not say what changes for the hosted service"
while IFS= read -r line; do
    case $line in +*) file=examples/hello_hosted.c ;; *) file=examples/hello.c ;; esac
    grep -qF -- "${line#?}" $file || fail "$file does not have the README's line: ${line#?}"
done < "$work/changes"

run "$at/hello"
[ "$(cat "$work/out")" = 12 ] || fail "hello does not answer"
run "$at/sft"
awk '/^step/ { loss[$2] = $4 } END { exit !(loss[15] < loss[0] / 5) }' "$work/out" || fail "the loss does not fall"
says '^Arr, it be '
run "$at/dpo"
says '^step 0  dpo_loss 0.6931' # nothing has moved before the first step: equal odds, ln 2
awk '/^step/ { m[$2] = $6 } END { exit !(m[4] > m[0] + 0.1) }' "$work/out" || fail "the margin does not grow"
run "$at/grpo"
awk '{ r[NR] = $4 } END { exit !(r[7] + r[8] > r[1] + r[2] + 0.2) }' "$work/out" || fail "grpo does not learn"
run "$at/custom_loss" # fails by itself where a gradient is wrong
awk '/^step/ { l[$2] = $4 } END { exit !(l[4] < l[0]) }' "$work/out" || fail "the loss of one's own does not fall"
run "$at/event_loop"
says '^100 samples, 0 failed, 1600 tokens$'
printf 'What is 7 + 5?\nSpell cat.\n' > "$work/lines"
run "$at/stream_chat" < "$work/lines"
[ "$(cat "$work/out")" = $'12\nc-a-t' ] || fail "the conversation went otherwise"
run "$at/tool_calls"
says '^tool   2961$'
run "$at/two_tenants"
says '^red has 1 checkpoint, blue has 0$'
says '^blue cannot use it: TINKC_E_'
run "$at/checkpoints" "$work/kept"
says '^fetched adapter_model.safetensors  [0-9a-f]{64}$'
tail -n 1 "$work/out" | grep -q 'weights/000010 .*expires never' || fail "what is left"

# hello_hosted, at a server on this machine: the tokenizer comes from the hub's cache.
[ -x "$1/tinkc" ] || { echo "examples: all but hello_hosted, because the command was not built"; exit 0; }
export HF_HOME=$work/hf HF_HUB_OFFLINE=1 HOME=$work XDG_DATA_HOME=$work/data XDG_CONFIG_HOME=$work/config
cached=$HF_HOME/hub/models--demo--nano
mkdir -p "$cached/refs" "$cached/snapshots/0123456789abcdef0123456789abcdef01234567"
printf 0123456789abcdef0123456789abcdef01234567 > "$cached/refs/main"
cp $model/*.json $model/*.safetensors "$cached/snapshots/0123456789abcdef0123456789abcdef01234567/"
"$1/tinkc" serve demo/nano --port 0 2> "$work/server" &
server=$!
trap 'kill $server; wait $server || true; rm -rf "$work"' EXIT
await "$work/server" TINKER_BASE_URL= || fail "no server"
url=$(sed -n 's/.*TINKER_BASE_URL=//p' "$work/server")
export TINKER_BASE_URL=$url TINKER_API_KEY=tml-local
run "$at/hello_hosted" demo/nano
says '12'
echo "examples: all run"
