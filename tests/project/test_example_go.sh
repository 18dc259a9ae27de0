#!/usr/bin/env bash
# examples/hello.go: the library from Go, through cgo.
set -eu
build=$(cd "$1" && pwd) source=$PWD
nm "$build/libtinkc.so" 2> /dev/null | grep -q '__asan_\|__tsan_' && { echo "skipped: a sanitizer's build"; exit 77; }
command -v go > /dev/null || { echo "skipped: go is not installed (package golang-go)"; exit 77; }
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cp examples/hello.go "$work"
[ -z "$(gofmt -l "$work/hello.go")" ] || { echo "examples/hello.go: run gofmt"; exit 1; }
export GOCACHE=${GOCACHE:-$build/gocache} GOPATH=$work/path GO111MODULE=off GOTOOLCHAIN=local CGO_ENABLED=1
export CGO_CFLAGS="-I$source/include" CGO_LDFLAGS="-L$build -ltinkc-engine -ltinkc"
(cd "$work" && go build -o hello hello.go)
out=$(LD_LIBRARY_PATH=$build "$work/hello" models/nano)
echo "$out"
[ "$out" = "8 of 8 sums are right" ]
