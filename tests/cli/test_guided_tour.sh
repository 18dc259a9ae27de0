#!/usr/bin/env bash
# A tour of every command: runs those of tests/cli/transcripts and compares all that they write.
[ -x "$1/tinkc" ] || { echo "skipped: $1/tinkc was not built"; exit 77; }
command -v python3 > /dev/null || { echo "skipped: python3 is not installed"; exit 77; }
[ -f models/nano/config.json ] || { echo "skipped: models/nano is not here"; exit 77; }
exec python3 tests/cli/transcript_test.py "$1"
