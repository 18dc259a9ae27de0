#!/usr/bin/env bash
# A part of `make torture`: every seventh allocation fails.
exec "$1/tests/torture" 1 100000 7
