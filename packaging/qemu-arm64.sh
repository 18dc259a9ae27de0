# qemu-arm64.sh - registers qemu with the kernel for programs of arm64 (binfmt_misc), so that they start like others; sourced.
# shellcheck shell=bash
qemu_registry=/proc/sys/fs/binfmt_misc qemu_name='' qemu_mounted='' qemu_why=''
register_qemu() { # NAME: false where it cannot: qemu_why says why
    local qemu
    [ "$(id -u)" = 0 ] || { qemu_why="needs root"; return 1; }
    qemu=$(command -v qemu-aarch64-static) || { qemu_why="no qemu-aarch64-static (tools/install-packages --packaging)"; return 1; }
    if [ ! -e $qemu_registry/register ]; then
        mount -t binfmt_misc binfmt_misc $qemu_registry 2> /dev/null || { qemu_why="no binfmt_misc"; return 1; }
        qemu_mounted=1
    fi
    # The first bytes of an ELF file for this processor; F: the kernel opens qemu now, so a root need not hold it.
    echo ":$1:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:$qemu:F" \
        2> /dev/null > $qemu_registry/register || { qemu_why="qemu cannot be registered"; return 1; }
    qemu_name=$1
}
unregister_qemu() {
    [ -z "$qemu_name" ] || echo -1 > "$qemu_registry/$qemu_name" || true
    [ -z "$qemu_mounted" ] || umount $qemu_registry || true
}
