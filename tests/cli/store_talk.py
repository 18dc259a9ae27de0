"""Speaks with the process that has a store open, over its control socket; for transcripts.

    store_talk.py STORE < LINES

A line is the name of a connection, which is opened when it is named first, and what to do with it:
    A use 1 chat    sends "use 1 chat" and a line end, and prints the line that comes back
    A +sta          sends "sta", and waits for nothing
    A +use 1\\n      likewise, with a line end
    A *9000         sends 9000 letters
    A <             prints one more line that comes back
    A ?             waits until the other side closes
    A -             closes it
    ! COMMAND       runs a command of the shell meanwhile
"""
import json, os, re, socket, subprocess, sys

SECONDS = 120  # longer than any answer takes
store, open_ones = sys.argv[1], {}


def plain(line):
    """Numbers of processes and times read N; other lines are as they came."""
    if line.startswith("{"):
        status = json.loads(line)
        return json.dumps({k: v if k == "users" else type(v).__name__ for k, v in status.items()})
    return re.sub(r"^(tinkc-store \d+) \S+ \d+$", r"\1 VERSION PID", line)


def connection(name):
    if name not in open_ones:
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(SECONDS)
        s.connect(f"{store}/control.sock")
        open_ones[name] = s, s.makefile("r")
        print(f"{name}: {plain(open_ones[name][1].readline().rstrip(chr(10)))}")
    return open_ones[name]


for words in sys.stdin.read().splitlines():
    name, _, what = words.partition(" ")
    if name == "!":
        sys.stdout.flush()
        subprocess.run(["bash", "-c", what], stdin=subprocess.DEVNULL)
        continue
    s, lines = connection(name)
    if what == "-":
        lines.close()
        s.close()
        del open_ones[name]
    elif what == "<":
        print(f"{name}: {plain(lines.readline().rstrip(chr(10)))}")
    elif what == "?":
        print(f"{name}: {lines.read()!r}")
    elif what.startswith("*"):
        s.sendall(b"x" * int(what[1:]))
    elif what.startswith("+"):
        s.sendall(what[1:].replace("\\n", "\n").encode())
    else:
        s.sendall(what.replace("\\t", "\t").encode() + b"\n")
        print(f"{name}: {plain(lines.readline().rstrip(chr(10)))}")
