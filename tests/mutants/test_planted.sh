#!/usr/bin/env bash
# Which faults tools/mutate.py plants, and which it does not.
exec python3 tests/mutants/planted_test.py
