#!/usr/bin/env bash
# The behaviours of the vendor's public end-to-end suite, each by a test of ours, with both releases of
# the SDK that server.sh names. Exits 77 where neither can be installed.
set -u
. "$(dirname "$0")/server.sh" tinkc "${1:-}"
command -v openssl > /dev/null || { echo "skipped: no openssl to make a certificate with"; exit 77; }

try() {
    HF_HUB_OFFLINE=1 PYTHONWARNINGS=ignore timeout 3000 "$venv/bin/python" "$here/vendor_behaviours.py" "$build/tinkc" "$model"
}
with_each_sdk try
