#!/usr/bin/env bash
# test_page.sh [BUILD]: the page in a real browser. Screenshots are left in BUILD/ui.
set -eu
build=$(realpath "${1:-build}")
here=$(dirname "$(realpath "$0")")
if ! command -v chromium > /dev/null && ! command -v google-chrome > /dev/null; then
    echo "SKIPPED: no browser is installed (tools/install-packages installs chromium)"
    exit 77
fi
[ -x "$build/tinkc" ] || { echo "SKIPPED: the command is not built"; exit 77; }
exec python3 "$here/page_test.py" "$build"
