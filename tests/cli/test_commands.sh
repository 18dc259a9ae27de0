#!/usr/bin/env bash
# Runs the black-box tests of the command line against a scripted server.
[ -x "$1/tinkc" ] || { echo "skipped: $1/tinkc was not built"; exit 77; }
command -v python3 > /dev/null || { echo "skipped: python3 is not installed"; exit 77; }
exec python3 tests/cli/cli_test.py "$1"
