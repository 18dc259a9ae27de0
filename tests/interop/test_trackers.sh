#!/usr/bin/env bash
# What --tensorboard and --wandb write, read by the tensorboard and wandb packages, in an environment
# below the build folder. Exits 77 where they cannot be installed.
set -u
. "$(dirname "$0")/server.sh" tinkc "${1:-}"

need_packages trackers "tensorboard, wandb" tensorboard wandb
work=$(mktemp -d)
timeout 3000 "$venv/bin/python" "$here/trackers_check.py" "$build" "$work"
rc=$?
rm -rf "$work"
exit $rc
