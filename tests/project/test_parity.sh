#!/usr/bin/env bash
# Every function that docs/parity.md names is exported, every constant, type and option is declared,
# every command exists, no row is without an answer or has the number of another, and each row that
# says how something behaves is in the table at its end, whose tests exist and are run.
set -eu
. tests/support/named_tests.sh
page=docs/parity.md
exported=$(nm -D --defined-only "$1/libtinkc.so" | awk '{ sub(/@.*/, "", $3); print $3 }')
declared=$(grep -rhoE '[A-Za-z_][A-Za-z0-9_]*' include/tinkc | sort -u)
table=$(sed '/^## Tests of the behaviour/,$d' $page | grep -E '^\| [ANP][0-9]+ ')
bad=0 n=0
for name in $(grep -oE '`tinkc_[a-z0-9_]+`' $page | tr -d '`' | sort -u); do
    case $name in tinkc_error | tinkc_future | tinkc_array | tinkc_tensor | tinkc_sampling | tinkc_adam | \
        tinkc_lora_options | tinkc_retry_options | tinkc_loss_fn | tinkc_loss_graph | tinkc_transport)
        grep -qx "$name" <<< "$declared" || { echo "$page names the type $name, which is not declared"; bad=1; }
        continue ;;
    esac
    n=$((n + 1))
    grep -qx "$name" <<< "$exported" || { echo "$page names $name, which is not exported"; bad=1; }
done
# `TINKC_X`, and `option`, `option` of `tinkc_call`: names in a header.
for name in $(grep -oE '`TINKC_[A-Z0-9_]+`|(`[a-z_]+`, )*`[a-z_]+` of `tinkc_' <<< "$table" | grep -oE '`[A-Za-z0-9_]+`' | tr -d '`' | sort -u); do
    grep -qx "$name" <<< "$declared" || { echo "$page names $name, which no header declares"; bad=1; }
done
rows=$(wc -l <<< "$table")
! grep -nE '\| *\??? *\|$' <<< "$table" || bad=1
[ "$rows" -ge 533 ] || { echo "only $rows rows"; bad=1; }
twice=$(cut -d'|' -f2 <<< "$table" | sort | uniq -d)
[ -z "$twice" ] || { echo "rows with the same number:" "$twice"; bad=1; }

if [ -x "$1/tinkc" ]; then
    while read -r words; do
        # shellcheck disable=SC2086
        "$1/tinkc" help $words > /dev/null 2>&1 || { echo "$page names tinkc $words, which does not exist"; bad=1; }
    done < <(grep -oE '`tinkc [a-z -]+`' <<< "$table" | sed 's/`tinkc \(help \)\?\(.*\)`/\2/')
fi

# "A125, A181 to A195" -> one number a line
listed=$(sed -n '/^## Tests of the behaviour/,$p' $page | grep -E '^\| [AN][0-9]' | cut -d'|' -f2 | tr ',' '\n' |
    awk '$2 == "to" { for (i = substr($1, 2) + 0; i <= substr($3, 2) + 0; i++) printf "A%03d\n", i; next } { print $1 }')
states='never|fails? with|It comes after|every call on|read once|a minute|in the order|fair |sends n|without an error|behind the query|first dimension|`TINKC_E_UNSUPPORTED`|not decoded|`other:`'
for row in $(grep -E "$states" <<< "$table" | cut -d'|' -f2); do
    grep -qx "$row" <<< "$listed" || { echo "row $row says how something behaves, and no test is named for it"; bad=1; }
done
for name in $(sed -n '/^## Tests of the behaviour/,$p' $page | grep -oE '`[a-z0-9_]+`' | tr -d '`' | sort -u); do
    is_run "$name" || bad=1
done
[ $bad = 0 ] && echo "parity: $rows rows, $n functions, all exported; $(wc -l <<< "$listed") rows with tests"
exit $bad
