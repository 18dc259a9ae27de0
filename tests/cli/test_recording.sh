#!/usr/bin/env bash
# tools/record-terminal makes a picture of what a terminal shows: texts, colours, where they stand.
set -eu
command -v tmux > /dev/null || { echo "skipped: no tmux"; exit 77; }
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cat > "$work/session" <<'END'
#! secret=hidden
#: a comment
printf '\e[1;31mred\e[0m <&> \u28ff%s\n' "$secret" | sed s/hidden/done/
END
tools/record-terminal "$work/session" "$work/out.svg" --columns 60 --rows 8 --limit 60
python3 - "$work/out.svg" <<'PY'
import sys, xml.etree.ElementTree as tree
svg = "{http://www.w3.org/2000/svg}"
root = tree.parse(sys.argv[1]).getroot()
spans = [s for s in root.iter(svg + "tspan")]
red = [s for s in spans if s.text == "red"]
assert red and red[0].get("fill") == "#e0605a" and red[0].get("font-weight") == "600" and red[0].get("x") == "0.0", "the colour"
assert any(s.text == "<&>" and float(s.get("x")) == 4 * 8.4 for s in spans), "a text and its place"
assert any(s.text == "\u28ff" for s in spans) and any(s.text == "done" for s in spans), "other characters stand alone"
assert any("# a comment" in s.text for s in spans) and not any("hidden" in s.text and "secret=" in s.text for s in spans), "what was typed, and not what came before"
frames = [g for g in root.iter(svg + "g") if g.get("transform", "").startswith("translate(") and g.find(svg + "rect") is not None]
assert len(frames) > 5, "frames"
PY
echo "recording: ok"
