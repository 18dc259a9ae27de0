# Read by transcripts of doctor: its findings line by line, but for those of the machine, what it wrote beside them, and how it ends.
doctor() {
    command tinkc doctor --json --retry-for 0 "$@" > answer 2> said
    local code=$?
    python3 -c 'import json, re, sys
v = json.load(open("answer"))
print(list(v), [k for k in v["checks"][0]], sum(v["summary"].values()) == len(v["checks"]), [k for k in v["summary"]])
for c in v["checks"]:
    if c["id"].startswith(("machine.", "terminal", "hub.space", "tool.")): continue
    text = re.sub("(token, valid until) .*", "\\1 TIME", c["message"])
    text = re.sub("\\b[0-9]{1,5} (m?s)\\b", "N \\1", re.sub("(:|port )[0-9]{4,5}", "\\1PORT", text))
    print(c["status"], c["id"], text, c["hint"])'
    cat said
    echo "[$code]"
}
