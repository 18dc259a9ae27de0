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
