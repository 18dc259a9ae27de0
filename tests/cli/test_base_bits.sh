#!/usr/bin/env bash
# Models in fewer bits, at the door: what is trained on packed weights stays with them, what cannot be had is refused, and what
# `tinkc quantize` writes is a model like any other.
set -u
build=$(realpath "$1"); tinkc=$build/tinkc
[ -x "$tinkc" ] || { echo "skipped: tinkc was not built"; exit 77; }
TINKC_NANO=$(realpath models/nano); export TINKC_NANO
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
export HOME=$work MALLOC_PERTURB_=85; unset TINKER_API_KEY TINKER_BASE_URL XDG_CACHE_HOME XDG_DATA_HOME XDG_CONFIG_HOME
cd "$work" || exit 1
fail() { echo "FAILED: $*"; cat out; exit 1; }
# says CODE 'WORDS' ARGUMENTS: the exit code, and words of the output; lacks: words that are not in the last output.
says() {
    local code=$1 words=$2 got; shift 2
    "$tinkc" "$@" > out 2>&1 < /dev/null; got=$?
    [ $got = "$code" ] || fail "exit $got instead of $code: $*"
    grep -qF -- "$words" out || fail "no \"$words\" from: $*"
}
also() { grep -qF -- "$1" out || fail "no \"$1\""; }
lacks() { ! grep -qF -- "$1" out || fail "\"$1\" is there"; }
# The score of a text, for comparisons.
score() { "$tinkc" logprobs --text "The capital of France is Paris." --sum -q "$@" 2>> out || fail "$*"; }
same() { [ "$1" = "$2" ] || fail "$3: $1 and $2"; }
differ() { [ "$1" != "$2" ] || fail "$3: $1 twice"; }
echo '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}' > d.jsonl
cp -r "$TINKC_NANO" own
plain=$(score -m nano)

# Bits and memory are said; a packed model is one of its own, which its name says wherever it stands.
says 0 '4.5 bits for each number of the layers' sample -m own --base-bits 4 --max-tokens 2 Hi
also 'MB instead of'
four=$(score -m own --base-bits 4); eight=$(score -m own --base-bits 8)
differ "$plain" "$four" "4 bits are the whole model"; differ "$four" "$eight" "8 bits are 4"
same "$four" "$(score -m ./own#4bit)" "by option and by name"
same "$four" "$(score -m nano#4bit)" "a folder and the same model by its name"
same "$plain" "$(score -m own)" "the whole model, afterwards"

# A run keeps its base.
says 0 'saved' train sft d.jsonl -m own --base-bits 4 --max-steps 2 --lora-rank 4 --log-dir run
grep -q '"model_name": "'"$work"'/own#4bit"' run/config.json || fail "config.json does not name the base"
says 0 '4.5 bits' sample -m run --max-tokens 2 Hi
says 0 '4.5 bits' sample -m run --base-bits 4 --max-tokens 2 Hi
says 2 'a run keeps the base that it was trained on' sample -m run --base-bits 8 --max-tokens 2 Hi
says 0 'as stored, is the base from here on' export run --to merged -o merged

# The setting does what the option does.
says 2 "'5' is not 4 or 8" config set base_bits 5
says 0 '' config set base_bits 8
same "$eight" "$(score -m own)" "base_bits"
same "$four" "$(score -m own --base-bits 4)" "the option wins"
says 0 '' config unset base_bits

# What is written is a model.
says 0 'Loss' quantize own own-nf4 --check d.jsonl
also '4.5 for each number of the layers'
same "$four" "$(score -m own-nf4)" "in the cache and in a folder"
says 0 '8.5 for each' quantize own own.gguf --bits 8
score -m own.gguf > /dev/null
says 5 'already exists' quantize own own-nf4
for packed in own-nf4 own.gguf; do
    says 13 'its weights are packed already' sample -m ./$packed --base-bits 4 Hi
done

# A server packs what it offers, and keeps the names that its clients know.
mkfifo ready
"$tinkc" serve own --base-bits 4 --port 0 --store st --ready-fd 3 3> ready > serve.out 2>&1 &
server=$!; trap 'kill $server 2> /dev/null; rm -rf "$work"' EXIT
read -r url < ready
same "$four" "$(TINKER_BASE_URL=$url TINKER_API_KEY=tml-local score -m own)" "by a server"
kill $server; wait $server
grep -qF '4.5 bits for each number of the layers' serve.out || fail "the server does not say what it costs"

# --dtype reaches the engine, and the one that is asked for.
same "$(score -m nano --dtype f32)" "$(TINKC_DTYPE=f32 score -m nano)" "f32"
same "$(score -m nano --dtype bf16)" "$(TINKC_DTYPE=bf16 score -m nano)" "bf16"
differ "$(score -m nano --dtype bf16)" "$(score -m nano --dtype f32)" "bf16 is f32"
says 2 'is not one of auto|f32|bf16' sample -m nano --dtype f16 Hi
echo "base_bits: all as it should be"
