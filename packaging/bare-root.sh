# bare-root.sh - a bare Debian root to install packages into; sourced by test-deb, first-day and python-day.
# The files that pattern names (default: the Debian packages) are copied into its /tmp; maker is how they are made.
# Sets work, root and top; exits 77 where no root can be made (needs root rights, debootstrap and a mirror:
# DEBIAN_MIRROR, else debootstrap's own).
# shellcheck shell=bash
cd "$(dirname "$0")/.."
top=$PWD
[ "$(id -u)" = 0 ] || { echo "skipped: needs root"; exit 77; }
command -v debootstrap > /dev/null || { echo "skipped: debootstrap is not installed (tools/install-packages --packaging)"; exit 77; }
pattern=${pattern:-build/deb/*.deb} maker=${maker:-make deb}
compgen -G "$pattern" > /dev/null || { echo "skipped: $maker first"; exit 77; }
work=$(mktemp -d)
root=$work/root
clean() {
    for pid in $(jobs -p); do
        kill "$pid" 2> /dev/null || true
        wait "$pid" 2> /dev/null || true
    done
    umount "$root/proc" 2> /dev/null || true
    rm -rf "$work"
}
trap clean EXIT
quietly() { "$@" > "$work/log" 2>&1 || { tail -5 "$work/log"; exit 1; }; }
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"; }
# Made once; remove build/bare-root.tar to make it again.
if [ -s build/bare-root.tar ]; then
    mkdir "$root" && tar -xpf build/bare-root.tar -C "$root"
else
    debootstrap --variant=minbase --include=ca-certificates bookworm "$root" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} > "$work/log" 2>&1 ||
        { tail -3 "$work/log"; echo "skipped: no bare root can be made"; exit 77; }
    tar -cpf build/bare-root.new -C "$root" --exclude='./var/cache/apt/archives/*.deb' --exclude='./proc/*' . && mv build/bare-root.new build/bare-root.tar
fi
mount -t proc proc "$root/proc"
# shellcheck disable=SC2086
cp $pattern "$root/tmp/"
cp /etc/resolv.conf "$root/etc/" 2> /dev/null || true
[ ! -d /etc/apt/apt.conf.d ] || cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
quietly inside apt-get update -qq

# What a removal must not leave: every file but the bookkeeping of packages and the users' own data.
trace() {
    (cd "$root" && find . -xdev \( -path ./proc -o -path ./tmp -o -path ./var/lib -o -path ./var/cache -o -path ./var/log \
        -o -path ./root -o -path ./home -o -path ./etc/ld.so.cache \) -prune -o -print | sort)
}
# The README's program and a CMake project of it in FOLDER of the root.
put_readme_program() { # FOLDER
    mkdir -p "$root$1"
    awk '/^```c$/ { on = !done; next } /^```$/ { if (on) done = 1; on = 0 } on' "$top/README.md" > "$root$1/app.c"
    grep -q 'int main' "$root$1/app.c" || { echo "FAILED: README.md has no program"; exit 1; }
    cat > "$root$1/CMakeLists.txt" << 'C'
cmake_minimum_required(VERSION 3.16)
project(app C)
find_package(tinkc REQUIRED)
add_executable(app app.c)
target_link_libraries(app PRIVATE tinkc::tinkc-engine)
C
}
