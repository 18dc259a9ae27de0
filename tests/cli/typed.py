"""Types the lines of standard input into a program whose own standard input is a terminal.

    typed.py PROGRAM [ARGUMENT...] < LINES

All is typed at once; the terminal keeps it until the program reads it. What the program writes goes to standard output.
"""
import os, pty, subprocess, sys

ours, theirs = pty.openpty()
os.write(ours, sys.stdin.read().encode())
p = subprocess.run(sys.argv[1:], stdin=theirs, env=dict(os.environ, TERM="dumb"))
sys.exit(p.returncode)
