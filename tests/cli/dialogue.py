"""Talks to a program on a terminal, step by step, and shows all that came of it.

    dialogue.py PROGRAM [ARGUMENT...] < STEPS

A step is a line WAIT<TAB>DO: once the program has written the text WAIT since the step before, DO is typed (escapes as in Python), or,
where it begins with SIG, that signal is sent. Nothing depends on time: a program that never writes the text is waited for.
"""
import os, pty, signal, sys

pid, screen = pty.fork()
if pid == 0:
    os.execvpe(sys.argv[1], sys.argv[1:], dict(os.environ, TERM=os.environ.get("TYPED_AS", "dumb")))
seen, at = b"", 0


def more():
    """Whether the program wrote more before it ended."""
    global seen
    try:
        data = os.read(screen, 65536)
    except OSError:  # it has ended
        data = b""
    seen += data
    return bool(data)


for step in sys.stdin.read().splitlines():
    wait, _, do = step.partition("\t")
    while wait.encode() not in seen[at:] and more():
        pass
    at = seen.index(wait.encode(), at) + len(wait.encode()) if wait.encode() in seen[at:] else len(seen)
    if do.startswith("SIG"):
        os.kill(pid, getattr(signal, do))
    else:
        os.write(screen, do.encode().decode("unicode_escape").encode())
while more():
    pass
status = os.waitpid(pid, 0)[1]
print(seen.decode(errors="backslashreplace").replace("\r\n", "\n").replace("\x1b", "ESC"))
print(f"[{os.waitstatus_to_exitcode(status)}]")
