#!/usr/bin/env bash
# Training files in every form that the help shows, slips in roles, and a progress line that stays.
set -eu
tinkc=$(cd "$1" && pwd)/tinkc
[ -x "$tinkc" ] || { echo "skipped: $tinkc was not built"; exit 77; }
command -v python3 > /dev/null || { echo "skipped: python3 is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOME=$work XDG_DATA_HOME=$work/data XDG_CONFIG_HOME=$work/config
unset TINKER_API_KEY TINKER_BASE_URL
cd "$work"
fail() { echo "$1"; [ $# -lt 2 ] || cat "$2"; exit 1; }

the_help_shows_forms_that_work() {
    "$tinkc" data convert --help | sed -n 's/^  \([a-z]*\) *\({.*}\)$/\1\t\2/p' > forms
    [ "$(wc -l < forms)" -ge 7 ] || fail "forms are missing in the help" forms
    while IFS=$'\t' read -r name line; do
        echo "$line" > one.jsonl
        "$tinkc" data check one.jsonl > out 2>&1 || fail "data check refuses the form $name" out
        "$tinkc" data convert one.jsonl > auto 2> out || fail "convert does not know $name" out
        "$tinkc" data convert one.jsonl --from "$name" | cmp - auto || fail "--from $name gives something else"
        "$tinkc" data preview one.jsonl -m nano > out 2>&1 || fail "preview of $name" out
        grep -q '"assistant"' auto || fail "no answer in $name" auto
    done < forms
    cut -f2 forms > all.jsonl
    "$tinkc" train sft all.jsonl --dry-run > out 2>&1 || fail "training on every form" out
    ! echo '{"foo": 1}' | "$tinkc" data check - > out 2>&1 || fail "an unknown form passed"
    grep -q 'data convert --help' out || fail "no advice" out
}

slips_in_roles_are_flagged() {
    echo '{"messages":[{"role":"usr","content":"a"},{"role":"assistant","content":"b"}]}' > slip.jsonl
    ! "$tinkc" data check slip.jsonl > out 2>&1 || fail "'usr' passed" out
    grep -q "unknown role 'usr'; did you mean user" out || fail "the slip is not named" out
    ! "$tinkc" train sft slip.jsonl --dry-run > out 2>&1 || fail "'usr' is trained" out
    sed 's/usr/narrator/' slip.jsonl > odd.jsonl
    "$tinkc" data check odd.jsonl > out 2>&1 || fail "a role of a model's own is refused" out
    grep -q "warning: message 1: unknown role 'narrator'" out || fail "it is not flagged" out
}

# In a terminal of its own: the line is there from the first step to the last, and times add up.
progress_stays() {
    cat > screen.py << 'P'
import json, os, pty, sys, time
begun = time.monotonic()
pid, fd = pty.fork()
if pid == 0:
    os.environ.update(TERM="xterm", LANG="C.UTF-8")
    os.execv(sys.argv[1], ["tinkc", "train", "sft", "all.jsonl", "--batch-size", "7", "--epochs", "12", "--lora-rank", "4",
                           "--save-every", "0", "--eval-every", "0", "--log-dir", "run"])
out = b""
while True:
    try:
        data = os.read(fd, 65536)
    except OSError:
        break
    if not data:
        break
    out += data
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
wall = time.monotonic() - begun
text = out.decode("utf-8", "replace")
steps = text[text.index("/12"):text.index("step 12: saved")]
rows = [json.loads(line) for line in open("run/metrics.jsonl")]
assert code == 0, text
assert "ETA" in steps and "tok/s" in steps, steps
assert "\r\x1b[K" not in steps[:steps.rindex("step 12/12")], "the line is wiped: %r" % steps
assert "not ready yet" not in text, text
assert len(rows) == 12 and sum(r["time/step"] for r in rows) <= wall, "steps take longer than the command"
P
    python3 screen.py "$tinkc" > out 2>&1 || fail "the progress line" out
}

the_help_shows_forms_that_work
slips_in_roles_are_flagged
progress_stays
echo "data: forms, roles and progress are as they should be"
