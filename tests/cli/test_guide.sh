#!/usr/bin/env bash
# The commands of README and docs/guide run from an installed copy (tools/walk-guide); links lead somewhere; options exist.
set -eu
tinkc=$(cd "$1" && pwd)/tinkc root=$PWD
[ -x "$tinkc" ] || { echo "skipped: $tinkc was not built"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOME=$work XDG_DATA_HOME=$work/data XDG_CONFIG_HOME=$work/config
unset TINKER_API_KEY TINKER_BASE_URL
mkdir "$work/bin" && ln -s "$tinkc" "$work/bin/tinkc"
export PATH=$work/bin:$PATH
(cd "$root" && tools/walk-guide "${tinkc%/*}") > "$work/walked" 2>&1 || { grep -A9 -E "FAILED|Error" "$work/walked"; exit 1; }
cd "$work"
fail() { echo "$1"; [ $# -lt 2 ] || cat "$2"; exit 1; }
for page in "$root"/docs/guide/*.md; do
    for link in $(grep -o '](\([^)#h][^)]*\))' "$page" | sed 's/](//; s/)//'); do
        [ -e "$root/docs/guide/${link%%#*}" ] || fail "$page: $link is not there"
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
# Functions and types that the guide names are in the headers; messages that it explains are in the sources.
for name in $(grep -ohE '\btinkc_[a-z0-9_]+\b|\bTINKC_[A-Z0-9_]+\b' "$root"/docs/guide/*.md | sort -u); do
    case $name in tinkc_version) ;; TINKC_NANO | TINKC_CUDA_MODULE | TINKC_SHARE_STORE | tinkc_nif) continue ;; esac
    grep -rqw "$name" "$root/include" || fail "the guide names $name, which no header has"
done
python3 - "$root" << 'P' || fail "messages.md"
import pathlib, re, sys
root = pathlib.Path(sys.argv[1])
text = "".join(p.read_text() for d in ("cli", "src", "engine", "service", "recipes", "include") for p in (root / d).rglob("*.[ch]"))
text = re.sub(r'"\s*\n\s*"', "", text)  # texts that are broken over lines
rows = re.findall(r"^\| `([^`]+)` \|", (root / "docs/guide/messages.md").read_text(), re.M)
lost = [row for row in rows for part in re.split(r"\bX\b", row) if len(part.strip()) > 3 and part.strip() not in text]
print(f"{len(rows)} messages; not in the sources: {lost}")
sys.exit(bool(lost) or len(rows) < 35)
P
echo "guide: its commands run, its links lead somewhere"
