#!/usr/bin/env bash
# tinkc.hpp: below 400 lines, clean under all warnings with every compiler there is, and examples/wrapper.cpp runs.
set -eu
build=$(cd "$1" && pwd)
nm "$build/libtinkc.so" 2> /dev/null | grep -q '__asan_\|__tsan_' && { echo "skipped: a sanitizer's build"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ "$(wc -l < include/tinkc/tinkc.hpp)" -lt 400 ] || { echo "tinkc.hpp has 400 lines or more"; exit 1; }
for compiler in g++ clang++; do
    command -v $compiler > /dev/null || continue
    echo '#include <tinkc/tinkc.hpp>' > "$work/alone.cpp"
    $compiler -std=c++17 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -Iinclude -fsyntax-only "$work/alone.cpp"
    $compiler -std=c++17 -Wall -Wextra -Wpedantic -Wshadow -Werror -Iinclude examples/wrapper.cpp -o "$work/$compiler" \
        -L"$build" -ltinkc-engine -ltinkc
    out=$(LD_LIBRARY_PATH=$build "$work/$compiler")
    echo "$out"
    grep -q '^8 of 8 sums are right$' <<< "$out" || { echo "$compiler: callbacks were lost"; exit 1; }
    grep -q '^A model that learns from C++.$' <<< "$out" || { echo "$compiler: nothing was learnt"; exit 1; }
    grep -q 'Unknown base model' <<< "$out" || { echo "$compiler: no exception"; exit 1; }
done
# No handle can be copied, and what a callback throws comes out of run().
cat > "$work/rules.cpp" << 'C'
#include <tinkc/sys/mock.h>
#include <tinkc/tinkc.hpp>
static_assert(!std::is_copy_constructible_v<tinkc::client> && std::is_nothrow_move_constructible_v<tinkc::client>);
static_assert(!std::is_copy_constructible_v<tinkc::samples> && std::is_nothrow_move_constructible_v<tinkc::queue>);
int main()
{
    tinkc_mock *mock = tinkc::call(tinkc_mock_new, TINKC_MOCK_SERVICE);
    int caught = 0;
    {
        tinkc_client_options o{};
        o.transport = tinkc_mock_transport(mock);
        tinkc::client client(o);
        tinkc::sampler sampler(client, "mock/nano");
        tinkc::queue first(client), queue(std::move(first));
        auto answers = sampler.sample({ 1, 2, 3 }, tinkc::sampling());
        queue.on_done(answers, [] { throw std::runtime_error("mine"); });
        try {
            while (queue.run(1000) == 0) {}
        } catch (const std::runtime_error &e) {
            caught += std::string(e.what()) == "mine";
        }
        try {
            (void)answers[7];
        } catch (const std::out_of_range &) {
            caught++;
        }
        try {
            tinkc::tokenizer("/nowhere");
        } catch (const tinkc::error &e) {
            caught += e.code() != 0 && !e.retriable() && e.name()[0] != '\0';
        }
    }
    tinkc_mock_free(mock);
    return caught == 3 ? 0 : 1;
}
C
c++ -std=c++17 -Wall -Wextra -Werror -Iinclude "$work/rules.cpp" -o "$work/rules" -L"$build" -ltinkc-engine -ltinkc-mock -ltinkc
LD_LIBRARY_PATH=$build "$work/rules" || { echo "exceptions do not arrive"; exit 1; }
echo "C++: tinkc.hpp has $(wc -l < include/tinkc/tinkc.hpp) lines"
