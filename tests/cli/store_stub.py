"""Stands in for the process that has a store open, while a command runs; for transcripts.

    store_stub.py STORE COMMAND < ANSWERS

Listens on the store's control socket before the command of the shell starts. A connection gets the first line of ANSWERS that is
left, and so does each line that it sends; a "-" at its end closes the connection, and so do no answers. What was said comes before what
the command wrote. Numbers of processes read N.
"""
import os, re, socket, subprocess, sys, threading

store, command = sys.argv[1:]
answers, said = sys.stdin.read().splitlines(), []
os.makedirs(store, exist_ok=True)
here = os.getcwd()
os.chdir(store)  # the whole path may be too long for a socket
listener = socket.socket(socket.AF_UNIX)
if os.path.exists("control.sock"):
    os.unlink("control.sock")
listener.bind("control.sock")
listener.listen(8)
os.chdir(here)


def answer(s):
    """Whether the connection stays open."""
    text = answers.pop(0).replace("\\t", "\t") if answers else "-"
    if text != "-":
        s.sendall(text.removesuffix(" -").encode() + b"\n")
    return not text.endswith("-")


def serve():
    while True:
        s, _ = listener.accept()
        said.append("(connected)")
        try:
            with s, s.makefile() as lines:
                if answer(s):
                    for line in lines:
                        said.append(re.sub(r"^use \d+", "use N", line.rstrip("\n")))
                        if not answer(s):
                            break
        except OSError:  # the command has left
            pass


threading.Thread(target=serve, daemon=True).start()
out = subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
print("\n".join(said))
print(out.stdout + f"[{out.returncode}]")
