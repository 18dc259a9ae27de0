#!/usr/bin/env bash
# An installation somewhere: a stranger's program finds it through pkg-config and through CMake, in C
# and in C++, shared and static, every public header stands alone, and the command has all it needs.
set -eu
build=$(cd "$1" && pwd)
command -v pkg-config > /dev/null || { echo "skipped: pkg-config is not installed"; exit 77; }
nm "$build/libtinkc.so" 2> /dev/null | grep -q '__asan_\|__tsan_' && { echo "skipped: a sanitizer's build"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/usr" > "$work/log" 2>&1 || { tail "$work/log"; exit 1; }
lib=$(dirname "$(find "$work/usr" -name libtinkc.so)")
export PKG_CONFIG_PATH=$lib/pkgconfig LD_LIBRARY_PATH=$lib
strict="-Wall -Wextra -Wpedantic -Werror"

cat > "$work/app.c" << 'C'
#include <stdio.h>
#include <tinkc/sys/mock.h>
#include <tinkc/tinkc.h>

int main(void)
{
    static tinkc_error none;
    static tinkc_client_options plain;
    tinkc_error err = none;
    tinkc_client_options options = plain;
    tinkc_adam adam = TINKC_ADAM_INIT;
    tinkc_sampling sampling = TINKC_SAMPLING_INIT;
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    options.transport = tinkc_mock_transport(mock);
    tinkc_client *client = tinkc_client_new(&options, &err);
    bool ok = tinkc_client_connect(client, 10000, &err) && adam.beta1 > 0 && sampling.top_p > 0;
    printf("%s %s\n", tinkc_version(), ok ? "connected" : err.message);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
    return !ok;
}
C
cp "$work/app.c" "$work/app.cpp"

links_through_pkg_config() {
    # shellcheck disable=SC2046,SC2086
    cc -std=c99 $strict -o "$work/c99" "$work/app.c" $(pkg-config --cflags --libs tinkc-mock) && "$work/c99" &&
        c++ -std=c++11 $strict -o "$work/cxx" "$work/app.cpp" $(pkg-config --cflags --libs tinkc-mock) && "$work/cxx" &&
        cc -o "$work/static" "$work/app.c" $(pkg-config --cflags tinkc-mock) "$lib/libtinkc-mock.a" "$lib/libtinkc.a" \
            $(pkg-config --static --libs tinkc-mock | sed 's/-ltinkc-mock//; s/-ltinkc//') &&
        LD_LIBRARY_PATH= "$work/static"
}

links_through_cmake() {
    mkdir -p "$work/cmake"
    cat > "$work/cmake/CMakeLists.txt" << 'C'
cmake_minimum_required(VERSION 3.16)
project(consumer C CXX)
find_package(tinkc REQUIRED)
add_executable(app ../app.cpp)
target_link_libraries(app PRIVATE tinkc::tinkc tinkc::tinkc-mock)
C
    cmake -S "$work/cmake" -B "$work/cmake/b" -DCMAKE_PREFIX_PATH="$work/usr" > "$work/log" 2>&1 &&
        cmake --build "$work/cmake/b" >> "$work/log" 2>&1 || { tail "$work/log"; return 1; }
    "$work/cmake/b/app"
}

# tinkc::tinkc-engine alone brings the client along.
engine_brings_the_client() {
    mkdir -p "$work/engine"
    cat > "$work/engine/app.c" << 'C'
#include <tinkc/engine.h>
#include <tinkc/tinkc.h>

int main(void)
{
    tinkc_error err = { 0 };
    tinkc_engine *engine = tinkc_engine_new(NULL, &err);
    tinkc_client *client =
        tinkc_client_new(&(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, &err);
    tinkc_client_free(client);
    tinkc_engine_free(engine);
    return err.code != 0;
}
C
    cat > "$work/engine/CMakeLists.txt" << 'C'
cmake_minimum_required(VERSION 3.16)
project(consumer C)
find_package(tinkc REQUIRED)
add_executable(app app.c)
target_link_libraries(app PRIVATE tinkc::tinkc-engine)
C
    cmake -S "$work/engine" -B "$work/engine/b" -DCMAKE_PREFIX_PATH="$work/usr" > "$work/log" 2>&1 &&
        cmake --build "$work/engine/b" >> "$work/log" 2>&1 || { tail "$work/log"; return 1; }
    "$work/engine/b/app"
}

# A staged installation goes without a trace.
goes_without_a_trace() {
    mkdir -p "$work/stage"
    DESTDIR=$work/stage cmake --install "$build" --prefix /opt/x > "$work/log" 2>&1 || { tail "$work/log"; return 1; }
    tools/uninstall "$build" "$work/stage" > /dev/null
    left=$(find "$work/stage" -mindepth 1 | head -5)
    [ -z "$left" ] || { echo "uninstall leaves: $left"; return 1; }
}

every_header_stands_alone() {
    for header in $(cd "$work/usr/include" && find tinkc -name '*.h'); do
        echo "#include <$header>" > "$work/one.c"
        # shellcheck disable=SC2086
        cc -std=c99 $strict -I"$work/usr/include" -fsyntax-only "$work/one.c" &&
            c++ -std=c++11 $strict -I"$work/usr/include" -fsyntax-only -x c++ "$work/one.c" ||
            { echo "$header does not stand alone"; return 1; }
    done
}

# The command with its pages, its completion and its model, from wherever it lies.
command_is_at_home() {
    for file in man/man1/tinkc.1 man/man1/tinkc-train.1 man/man3/libtinkc.3 man/man3/tinkc_sample.3 bash-completion/completions/tinkc \
        zsh/site-functions/_tinkc fish/vendor_completions.d/tinkc.fish; do
        [ -s "$work/usr/share/$file" ] || { echo "share/$file is missing"; return 1; }
    done
    answer=$(cd / && HOME=$work "$work/usr/bin/tinkc" sample --local --temperature 0 "What is 7 + 5?")
    [ "$answer" = 12 ] || { echo "the installed command says: $answer"; return 1; }
}

# The README's program, in a folder of its own, with the compile line that stands below it.
readme_program() {
    mkdir -p "$work/elsewhere"
    sed -n '/^```c/,/^```/p' README.md | sed '1d;$d' > "$work/elsewhere/hello.c"
    line=$(sed -n 's/^    \(cc hello.c .*\)$/\1/p' README.md)
    [ -n "$line" ] || { echo "the README has no compile line"; return 1; }
    (cd "$work/elsewhere" && sh -c "$line") || return 1
    answer=$("$work/elsewhere/hello" "$work/usr/share/tinkc/models/nano")
    [ "$answer" = 12 ] || { echo "the README's program says: $answer"; return 1; }
    cp examples/hello_hosted.c "$work/elsewhere" # its variant for the hosted service needs the client alone
    # shellcheck disable=SC2046,SC2086
    (cd "$work/elsewhere" && cc $strict hello_hosted.c $(pkg-config --cflags --libs tinkc) -o hello_hosted) || return 1
    # shellcheck disable=SC2046,SC2086
    c++ -std=c++17 $strict examples/wrapper.cpp $(pkg-config --cflags --libs tinkc-engine tinkc) -o "$work/elsewhere/wrapper"
}

links_through_pkg_config
readme_program
links_through_cmake
engine_brings_the_client
command_is_at_home
every_header_stands_alone
goes_without_a_trace
echo "install: found and used"
