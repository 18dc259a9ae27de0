#!/usr/bin/env bash
# What only shows on a terminal: chat with keys typed, prompts, progress. Uses tmux.
set -eu
build=$1
[ -x "$build/tinkc" ] || { echo "skipped: $build/tinkc was not built"; exit 77; }
command -v tmux > /dev/null || { echo "skipped: tmux is not installed"; exit 77; }
work=$(mktemp -d); socket=tinkc-test-$$
# What still ends may write its last file while we clean up: once more then.
trap 'tmux -L $socket kill-server 2> /dev/null || true; rm -rf "$work" 2> /dev/null || { sleep 1; rm -rf "$work"; }' EXIT
fail() { echo "FAILED: $*"; echo "--- screen"; screen; exit 1; }
screen() { tmux -L $socket capture-pane -p -t 0; }
keys() { tmux -L $socket send-keys -t 0 "$@"; }
# Waits for the shell, which throws away what was typed before it was back, and asks it how the program ended.
left_with() { shows 'ready% *$'; keys 'echo "left with $?"' Enter; shows "left with $1"; }
# Waits until the screen shows a text.
shows() { for _ in $(seq 1200); do screen | grep -qE -- "$1" && return 0; sleep 0.1; done; fail "never saw: $1"; }
# Waits until a text is off the screen: only then can it be seen again.
gone() { for _ in $(seq 1200); do screen | grep -qE -- "$1" || return 0; sleep 0.1; done; fail "still there: $1"; }
# A chat on an empty screen, ready for keys.
chat() { keys "clear" Enter; gone '^>|left with'; keys "tinkc --local chat --temperature 0 $*" Enter; shows '^> *$'; }
start() {
    tmux -L $socket kill-server 2> /dev/null || true
    socket=$socket-x # a server that is ending must not meet the next one
    tmux -L $socket -f /dev/null new-session -d -x 100 -y 30 \
        "env -u TINKER_API_KEY -u TINKER_BASE_URL HOME=$work XDG_DATA_HOME=$work/data LC_ALL=C.UTF-8 PS1='ready% ' PATH=$build:$PATH bash --norc"
    tmux -L $socket pipe-pane -t 0 "cat >> $work/shown"
    shows 'ready% *$'
}
# Whether a text has been on the screen, also for a moment only.
has_shown() { sed 's/\x1b\[[0-9;?]*[A-Za-z]//g' "$work/shown" | tr '\r' '\n' | grep -qE -- "$1" || fail "never was on the screen: $1"; }

start
keys "tinkc --local chat --temperature 0" Enter
shows '/help for commands'
keys "What is 7 + 5?" Enter
shows '^12'
keys "/stats" Enter
shows 'answer tokens'
keys "/undo" Enter
shows '0 messages left'
keys "/nonsense" Enter
shows 'unknown command'
keys C-c
shows 'press again to leave'
keys "Spell cat." Enter
shows 'c-a-t'
keys "/new" Enter
shows 'a new conversation'
keys '"""' Enter
keys "What is" Enter
keys "2 + 3?" Enter
keys '"""' Enter
shows '^(5|2 \+ 3 = 5)$'
keys "/tokens" Enter
shows 'user\\nWhat is\\n2 \+ 3\?<'
# What is pasted is one message, whatever its first and last lines look like.
printf '/a line\nWhat is 4 + 4?\n' > "$work/paste"
keys "/new" Enter
tmux -L $socket load-buffer "$work/paste"
tmux -L $socket paste-buffer -p -t 0
shows '^What is 4 \+ 4\?$'
keys Enter
shows '^(8|4 \+ 4 = 8)$'
keys "/tokens" Enter
shows 'user\\n/a line\\nWhat is 4 \+ 4\?<'
keys C-l
gone 'leave|line' # only then does what is seen come of the keys below
keys Up Up
shows '> /a line'
keys C-c
keys "clear" # the line is gone, and the hint how to leave does not come
shows '> clear$'
gone 'leave'
keys C-u C-l
gone 'clear|leave'
keys C-c
shows 'press again to leave'
keys C-c
left_with 130
chat
pkill -TERM -P "$(tmux -L $socket display-message -p -t 0 '#{pane_pid}')" tinkc
left_with 143
chat
keys C-d
left_with 0
chat "> $work/chat.out"
keys "What is 7 + 5?" Enter C-d
shows 'ready% *$'
grep -qx '12' "$work/chat.out" || fail "stdout is not the answer alone: $(cat "$work/chat.out")"

"$build/tools/pirate" lesson 400 1 > "$work/d.jsonl"
start
keys "tinkc --local train sft $work/d.jsonl --batch-size 8 --lora-rank 8 --save-every 0 --log-dir $work/run" Enter
shows 'to talk    tinkc chat'
has_shown 'step [0-9]+/50  loss [0-9.]+  lr .* tok/s  ETA'
keys "tinkc --local train sft $work/d.jsonl --batch-size 8 --log-dir $work/run" Enter
shows '\[resume, delete, exit\]'
keys "exit" Enter
shows 'cancelled'
keys "clear; tinkc --local checkpoint delete --run-id \$(tinkc --local run list -f id)" Enter
shows 'Are you sure you want to delete [0-9]+ checkpoint'
keys "n" Enter
shows 'Deletion cancelled'
keys "clear; tinkc --local run list" Enter
shows '1 training run$'
shows '───'
echo "terminal: chat, progress and prompts look as they should"
