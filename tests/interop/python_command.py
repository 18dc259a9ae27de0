"""Runs the Python command, `tinker`, without loading its modules each time.

Loading them takes most of a command's second. A fork server loads them once; each command then runs its real entry point in a
process of its own, with its own arguments, environment, folder and output, and ends as the program would.
"""
import multiprocessing, os, subprocess, sys

COMMANDS = ("auth", "billing", "checkpoint", "model", "run", "session", "version")
PRELOAD = ["tinker", "tinker.cli.__main__", *(f"tinker.cli.commands.{c}" for c in COMMANDS)]  # a release may lack some
starting = multiprocessing.get_context("forkserver")
starting.set_forkserver_preload(PRELOAD)


def _in_child(program, args, env, cwd, out, err):
    for path, fd in (out, 1), (err, 2):
        to = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(to, fd)
        os.close(to)
    os.environ.clear()
    os.environ.update(env)
    if cwd:
        os.chdir(cwd)
    sys.argv = [program, *args]
    from tinker.cli.__main__ import cli
    sys.exit(cli())


def run(program, args, env, cwd, scratch, seconds=120):
    """As subprocess.run of `program` with its output captured; scratch: a folder for that output."""
    names = [os.path.join(scratch, f"command.{kind}") for kind in ("out", "err")]
    p = starting.Process(target=_in_child, args=(program, args, env, cwd, *names))
    p.start()
    p.join(seconds)
    if p.exitcode is None:
        p.kill()
        raise subprocess.TimeoutExpired(program, seconds)
    texts = [open(name, encoding="utf-8").read() for name in names]
    return subprocess.CompletedProcess([program, *args], p.exitcode, *texts)
