#!/usr/bin/env bash
# Every file that docs/architecture.md cites exists, and every function it cites with parentheses or
# with one of our prefixes is defined somewhere; each walk's functions are in the file named beside them.
set -eu
python3 - << 'P'
import pathlib, re, subprocess, sys
text = pathlib.Path("docs/architecture.md").read_text()
tracked = subprocess.run(["git", "ls-files"], capture_output=True, text=True).stdout.split()
files = tracked or [str(p) for p in pathlib.Path(".").rglob("*.[ch]") if "build" not in p.parts]
names = {pathlib.PurePath(f).name for f in files}
sources = {f: pathlib.Path(f).read_text(errors="replace") for f in files if re.search(r"^(src|engine|service|cli|include|recipes|tests)/.*\.[ch]$", f)}
everything = "\n".join(sources.values())
bad = []
for cited in re.findall(r"`([\w./-]+\.[ch])`", text):
    if ("/" in cited and cited not in files) or ("/" not in cited and cited not in names):
        bad.append(f"no such file: {cited}")
words = set(re.findall(r"`((?:tinkc|tkc|tke|cli)_\w+)`", text))
for word in sorted(words):
    if not re.search(r"\b%s\b" % word, everything):
        bad.append(f"no such name: {word}")
# `function` (`file`): in that file
for word, file in re.findall(r"`(\w+)`\s*\(`([\w./-]+\.[ch])`\)", text):
    if file in sources and not re.search(r"\b%s\b" % word, sources[file]):
        bad.append(f"{word} is not in {file}")
for word, file in re.findall(r"`(\w+)` in `([\w./-]+\.[ch])`", text):
    if file in sources and not re.search(r"\b%s\b" % word, sources[file]):
        bad.append(f"{word} is not in {file}")
terms = re.search(r"## Glossary\n\n.*?\n\n", text, re.S).group(0).count("\n| ") - 1
if not 10 <= terms <= 40:
    bad.append(f"the glossary has {terms} terms, not 10 to 40")
print("\n".join(bad) or f"walks: {len(words)} names and all files are there, {terms} terms")
sys.exit(bool(bad))
P
