#!/usr/bin/env bash
# Every function that docs/parity.md names is exported, and no row is without an answer.
set -eu
exported=$(nm -D --defined-only "$1/libtinkc.so" | awk '{ sub(/@.*/, "", $3); print $3 }')
bad=0 n=0
for name in $(grep -oE '`tinkc_[a-z0-9_]+`' docs/parity.md | tr -d '`' | sort -u); do
    case $name in tinkc_error | tinkc_future | tinkc_array | tinkc_tensor | tinkc_sampling | tinkc_adam | \
        tinkc_lora_options | tinkc_retry_options | tinkc_loss_fn | tinkc_transport) continue ;; esac
    n=$((n + 1))
    grep -qx "$name" <<< "$exported" || { echo "docs/parity.md names $name, which is not exported"; bad=1; }
done
rows=$(grep -cE '^\| A[0-9]+ ' docs/parity.md)
! grep -nE '^\| A[0-9]+ .*\| *\??? *\|$' docs/parity.md || bad=1
[ "$rows" -ge 478 ] || { echo "only $rows rows"; bad=1; }
[ $bad = 0 ] && echo "parity: $rows rows, $n functions, all exported"
exit $bad
