#!/usr/bin/env bash
# The functions and tables that "Where a rule lives" (docs/architecture.md) names decide what it says: a fault planted in each of
# them is noticed by the named test. Sources are compiled with the fault into a scratch folder, in front of the library's.
[ -e "$1/build.ninja" ] || { echo "the build is not ninja's: its commands are not known"; exit 77; }
exec python3 tests/project/rules_decided.py "$1"
