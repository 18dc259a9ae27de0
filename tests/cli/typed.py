"""Types the lines of standard input into a program whose own standard input is a terminal.

    typed.py [-e] PROGRAM [ARGUMENT...] < LINES

All is typed at once; the terminal keeps it until the program reads it. What the program writes goes to standard output.
The terminal is a dumb one, or what TYPED_AS names. With -e the program's standard error is the terminal, too, and is copied to
standard output when it has ended.
"""
import concurrent.futures, os, pty, subprocess, sys, termios


def written(terminal):
    """What is written to the other end, until nobody holds it any more."""
    out = b""
    while True:
        try:
            more = os.read(terminal, 65536)
        except OSError:
            return out
        if not more:
            return out
        out += more


ours, theirs = pty.openpty()
errors = sys.argv[1] == "-e"
how = termios.tcgetattr(theirs)
how[0] &= ~termios.ICRNL  # a carriage return arrives as one
if errors:
    how[3] &= ~termios.ECHO
termios.tcsetattr(theirs, termios.TCSANOW, how)
os.write(ours, sys.stdin.read().encode())
pool = concurrent.futures.ThreadPoolExecutor(1)  # the terminal holds little that nobody has read
shown = pool.submit(written, ours) if errors else None
p = subprocess.run(sys.argv[1 + errors:], stdin=theirs, stderr=theirs if errors else None, env=dict(os.environ, TERM=os.environ.get("TYPED_AS", "dumb")))
if errors:
    os.close(theirs)
    sys.stdout.write(shown.result().decode().replace("\r\n", "\n"))
sys.exit(p.returncode)
