#!/usr/bin/env bash
# What --tensorboard and --wandb write, read by the tensorboard and wandb packages, in an environment
# below the build folder. Exits 77 where they cannot be installed.
set -u
. "$(dirname "$0")/server.sh" tinkc "${1:-}"

venv=$build/venv-trackers
if ! "$venv/bin/python" -c 'import tensorboard, wandb' 2> /dev/null; then
    rm -rf "$venv"
    if ! python3 -m venv "$venv" > /dev/null 2>&1 ||
        ! timeout 400 "$venv/bin/pip" install -q --disable-pip-version-check tensorboard wandb > "$venv.log" 2>&1; then
        echo "skipped: tensorboard and wandb cannot be installed (no package index?)"
        exit 77
    fi
fi
work=$(mktemp -d)
timeout 3000 "$venv/bin/python" "$here/trackers_check.py" "$build" "$work"
rc=$?
rm -rf "$work"
exit $rc
