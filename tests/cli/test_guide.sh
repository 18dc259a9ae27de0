#!/usr/bin/env bash
# The commands of docs/guide that need no network run as they are printed, in order; links lead somewhere; options exist.
set -eu
tinkc=$(cd "$1" && pwd)/tinkc root=$PWD
[ -x "$tinkc" ] || { echo "skipped: $tinkc was not built"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOME=$work XDG_DATA_HOME=$work/data XDG_CONFIG_HOME=$work/config
unset TINKER_API_KEY TINKER_BASE_URL
mkdir "$work/bin" && ln -s "$tinkc" "$work/bin/tinkc"
export PATH=$work/bin:$PATH
cd "$work"
fail() { echo "$1"; [ $# -lt 2 ] || cat "$2"; exit 1; }
sed -n 's/^    \({"[mcipq].*}\)$/\1/p' "$root/docs/guide/your-data.md" > data.jsonl
[ "$(wc -l < data.jsonl)" = 6 ] || fail "rows in your-data.md" data.jsonl
cp data.jsonl other.json
printf '{"prompt": "What is 1 + 1?"}\n{"prompt": "What is 2 + 2?"}\n' > prompts.jsonl
run_page() { # PAGE PATTERN_OF_COMMANDS_TO_LEAVE_OUT
    grep -E '^    tinkc ' "$root/docs/guide/$1" | sed 's/ *#.*//; s/^    //' | grep -vE "$2" > commands
    while read -r command; do
        sh -c "$command" < /dev/null > out 2>&1 || fail "docs/guide/$1: $command" out
    done < commands
}
run_page your-data.md 'none'
tinkc train sft data.jsonl --batch-size 6 --epochs 2 --lora-rank 4 --log-dir first > out 2>&1 || fail "training" out
run_page first-training.md 'train|chat'
run_page sampling.md 'none'
for page in "$root"/docs/guide/*.md; do
    for link in $(grep -o '](\([^)#h][^)]*\))' "$page" | sed 's/](//; s/)//'); do
        [ -e "$root/docs/guide/$link" ] || fail "$page: $link is not there"
    done
    # every long option that a printed tinkc command uses is one of that command
    grep -E '^    (tinkc|ExecStart=/usr/local/bin/tinkc) ' "$page" | sed 's/ *# .*//; s/^ *//; s/ExecStart=[^ ]*tinkc/tinkc/' > commands || true
    while read -r _ noun verb rest; do
        tinkc "$noun" "$verb" --help > help 2> /dev/null || tinkc "$noun" --help > help 2>&1 || fail "$page: no command $noun $verb"
        tinkc help --json > all.json 2> /dev/null || true
        for option in $(echo "$verb $rest" | grep -oE -- '--[a-z-]+' || true); do
            grep -q -- "$option\|\[no-\]${option#--}" help || grep -q "\"${option#--}\"" all.json || fail "$page: $noun $verb has no $option"
        done
    done < commands
done
echo "guide: its commands run, its links lead somewhere"
