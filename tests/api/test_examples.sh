#!/usr/bin/env bash
# The examples run on the mock: sft with a loss that falls, checkpoints with something to list.
set -eu
out=$("$1/examples/sft" --mock)
echo "$out"
first=$(echo "$out" | awk '/^step  0/ { print $4 }')
last=$(echo "$out" | awk '/^step 19/ { print $4 }')
awk -v a="$first" -v b="$last" 'BEGIN { exit !(b < a / 2) }' || { echo "the loss does not fall"; exit 1; }
[ "$(echo "$out" | grep -c tokens)" = 4 ] || { echo "no four samples"; exit 1; }

# checkpoints lists the run and the checkpoint that it made.
out=$("$1/examples/checkpoints" --mock)
echo "$out"
[ "$(echo "$out" | grep -c train:0)" = 2 ] || { echo "no run and no checkpoint"; exit 1; }
unset TINKER_API_KEY
out=$("$1/examples/event_loop")
echo "$out"
[ "$out" = "100 samples, 0 failed, 1600 tokens" ] || { echo "the event loop lost something"; exit 1; }
out=$("$1/examples/dpo")
echo "$out"
# Nothing has moved before the first step: equal odds, ln 2.
echo "$out" | grep -q '^step 0  dpo_loss 0.6931' || { echo "the first loss is not ln 2"; exit 1; }

# hello is the README's program, word for word, and answers.
if [ -e models/nano/config.json ]; then
    diff <(sed -n '/^```c/,/^```/p' README.md | sed '1d;$d') <(tail -n +2 examples/hello.c) || { echo "the README's program differs"; exit 1; }
    # So is the guide's program, and it learns.
    diff <(sed -n '/^```c/,/^```/p' docs/guide/reinforcement-learning.md | sed '1d;$d') examples/grpo.c || { echo "the guide's program differs"; exit 1; }
    out=$("$1/examples/grpo")
    echo "$out"
    awk '{ r[NR] = $4 } END { exit !(r[7] + r[8] > r[1] + r[2] + 0.2) }' <<< "$out" || { echo "grpo does not learn"; exit 1; }
    [ "$("$1/examples/hello")" = 12 ] || { echo "hello does not answer"; exit 1; }
fi
