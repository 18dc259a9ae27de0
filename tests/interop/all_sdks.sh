#!/usr/bin/env bash
# all_sdks.sh [BUILD]: the vendor's behaviours with every minor release of the Python SDK from 0.25 to the newest, each in an
# environment of its own. By hand and weekly: it takes a quarter of an hour and a package index. Prints the table of
# docs/server.md; exits 1 if a release fails, 77 where the list of releases cannot be had. TINKC_RELEASES="0.33.1 0.38.0" runs these alone.
set -u
. "$(dirname "$0")/server.sh" tinkc "${1:-}"

# The newest patch of each minor release, oldest first.
releases() {
    python3 -m pip index versions tinker 2> /dev/null | sed -n 's/^Available versions: //p' | tr -d ' ' | tr ',' '\n' |
        awk -F. '$1 > 0 || $2 >= 25' | sort -t. -k1,1n -k2,2n -k3,3nr | awk -F. '!seen[$1 "." $2]++'
}

list=${TINKC_RELEASES:-$(releases)}
[ -n "$list" ] || { echo "skipped: no list of releases (no package index?)"; exit 77; }
failed=0
echo "| SDK | behaviours |"
echo "|---|---|"
for release in $list; do
    if ! packages "${release%.*}" "tinker, numpy" "tinker==$release" numpy; then
        echo "| $release | cannot be installed |"
        failed=1
        continue
    fi
    log=$build/behaviours-$release.log
    HF_HUB_OFFLINE=1 PYTHONWARNINGS=ignore timeout 1200 "$venv/bin/python" "$here/vendor_behaviours.py" "$build/tinkc" "$model" > "$log" 2>&1 ||
        failed=1
    echo "| $release | $(sed -n 's/^\([0-9]* of [0-9]*\)$/\1/p' "$log" | tail -1)$(sed -n 's/^FAILED: \([a-z_0-9]*\).*/, not `\1`/p' "$log" | tr -d '\n') |"
    [ -n "${TINKC_KEEP_SDKS:-}" ] || rm -rf "$venv"
done
exit $failed
