#!/usr/bin/env bash
# Runs the black-box tests of pull, models by hub name and push-hf against a hub of our own.
[ -x "$1/tinkc" ] || { echo "skipped: $1/tinkc was not built"; exit 77; }
command -v python3 > /dev/null || { echo "skipped: python3 is not installed"; exit 77; }
exec python3 tests/cli/hub_test.py "$1"
