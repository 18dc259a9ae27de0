# tools.sh - the Python packages that wheels are made and checked with, in build/wheel/tools; sourced in the repository's root.
# shellcheck shell=bash
# Sets tools and zig_version; exits 77 where there is no package index.
zig_version=0.17.0
tools=$PWD/build/wheel/tools
wanted="ziglang==$zig_version auditwheel==6.8.2 check-wheel-contents twine"
if [ "$(cat "$tools/made-of" 2> /dev/null)" != "$wanted" ]; then
    rm -rf "$tools" && mkdir -p "$tools"
    # shellcheck disable=SC2086
    { python3 -m venv "$tools" && "$tools/bin/pip" install -q --disable-pip-version-check $wanted; } > "$tools.log" 2>&1 ||
        { echo "skipped: $wanted cannot be installed (no package index?)"; exit 77; }
    echo "$wanted" > "$tools/made-of"
fi
