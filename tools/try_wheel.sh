#!/usr/bin/env bash
# Installs a wheel in a bare system and asks the built-in model, as root:
#
#     tools/try_wheel.sh WHEEL [lavapipe|swiftshader] [SUITE]
#
# SUITE is a release of Debian or Ubuntu whose own Python the wheel must be for; by default the wheel's Python says which.
# debootstrap (Ubuntu's keyring too, for Ubuntu's) makes the root once, in build/root-SUITE: a minimal system with Python,
# libvulkan1 and Mesa's drivers, and no compiler. The wheel is installed and run there by a user without rights. Prints
# sizes and times.
set -euo pipefail

# What is mounted here goes when this ends.
if [ "${MOUNTS:-}" != own ]; then MOUNTS=own exec unshare --mount "$0" "$@"; fi

wheel=$(realpath "$1") driver=${2:-lavapipe} suite=${3:-}
cd "$(dirname "$0")/.."
say() { printf 'try_wheel: %s\n' "$*"; }
fail() { say "error: $*" >&2; exit 1; }

if [ -z "$suite" ]; then
    case $wheel in
        *-cp310-*) suite=jammy ;;
        *-cp311-*) suite=bookworm ;;
        *-cp312-*) suite=noble ;;
        *-cp313-*) suite=trixie ;;
        *-cp314-*) suite=resolute ;;
        *) fail "$(basename "$wheel"): for none of the Pythons 3.10 to 3.14" ;;
    esac
fi
base=$PWD/build/root-$suite

make_root() {
    local mirror=http://deb.debian.org/debian system=debian components=main script=sid began=$SECONDS keys
    case $suite in
        jammy | noble | resolute)
            mirror=http://archive.ubuntu.com/ubuntu system=ubuntu components=main,universe script=gutsy
            if [ "$(uname -m)" != x86_64 ]; then mirror=http://ports.ubuntu.com/ubuntu-ports; fi ;;
    esac
    keys=${KEYRING:-/usr/share/keyrings/$system-archive-keyring.gpg}
    if [ -e "/usr/share/debootstrap/scripts/$suite" ]; then script=$suite; fi    # an older debootstrap lacks newer names
    say "making build/root-$suite (its log is build/root-$suite.log)"
    rm -rf "$base"
    mkdir -p build
    {
        debootstrap --variant=minbase --keyring="$keys" --components=$components --include=ca-certificates \
            "$suite" "$base" "$mirror" "/usr/share/debootstrap/scripts/$script" &&
            printf 'deb %s %s %s\n' "$mirror" "$suite" "${components/,/ }" "$mirror" "$suite-updates" "${components/,/ }" \
                >"$base/etc/apt/sources.list" &&
            chroot "$base" apt-get update -q &&
            DEBIAN_FRONTEND=noninteractive chroot "$base" apt-get install -y -q --no-install-recommends \
                python3 python3-venv libvulkan1 mesa-vulkan-drivers
    } >"build/root-$suite.log" 2>&1 || fail "no root: $(tail -n 1 "build/root-$suite.log")"
    cp /etc/ssl/certs/ca-certificates.crt "$base/etc/ssl/certs/"    # this machine's way to the package index
    touch "$base/ready"
    say "made in $((SECONDS - began)) s, $(du -sh "$base" | cut -f 1)"
}

# inside COMMAND...: in the root, as nobody, with nothing of this machine's environment but the way to the package index.
inside() {
    chroot --userspec=65534:65534 "$base" /usr/bin/env -i HOME=/opt/vkprefill PATH=/opt/vkprefill/venv/bin:/usr/bin:/bin \
        LC_ALL=C.UTF-8 PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 \
        ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} ${HTTPS_PROXY:+HTTPS_PROXY="$HTTPS_PROXY"} \
        ${icd:+VK_ICD_FILENAMES=$icd VK_DRIVER_FILES=$icd} "$@"
}

# answered WANTED ARGUMENT...: what `vkprefill generate` says, with its time.
answered() {
    local wanted=$1 answer TIMEFORMAT='%R s, %U CPU-seconds'
    shift
    if ! { time inside vkprefill generate "$@" >build/try_wheel.out 2>build/try_wheel.err; } 2>build/try_wheel.time; then
        fail "$(tail -n 3 build/try_wheel.err)"
    fi
    answer=$(cat build/try_wheel.out)
    say "answer $answer after $(cat build/try_wheel.time)"
    [ "$answer" = "$wanted" ] || fail "wanted $wanted"
}

if [ ! -e "$base/ready" ]; then make_root; fi
mount -t proc proc "$base/proc"
icd=
rm -rf "$base/opt/vkprefill"
mkdir -p "$base/opt/vkprefill"
cp "$wheel" examples/long-prompt.txt "$base/opt/vkprefill"
if [ "$driver" = swiftshader ]; then
    tools/get_swiftshader.sh
    cp build/swiftshader/libvk_swiftshader.so "$base/opt/vkprefill"
    icd=/opt/vkprefill/vk_swiftshader_icd.json
    sed 's|"library_path": "[^"]*/|"library_path": "/opt/vkprefill/|' build/swiftshader/vk_swiftshader_icd.json >"$base$icd"
fi
chown -R 65534:65534 "$base/opt/vkprefill"
if inside sh -c 'command -v cc c++ gcc clang cmake glslc glslangValidator'; then fail "the root has a compiler"; fi

began=$SECONDS
inside python3 -m venv /opt/vkprefill/venv
inside pip install -q "/opt/vkprefill/$(basename "$wheel")"
say "$suite, $(basename "$wheel"): $(du -h "$wheel" | cut -f 1), with what it needs $(du -sh "$base/opt/vkprefill/venv" | cut -f 1), installed in $((SECONDS - began)) s"
inside vkprefill --version
inside vkprefill devices | head -n 2
answered 948 -p "The room number of Vivian is 948. Tell me the room number of Vivian."
if [ "$driver" = lavapipe ]; then answered 948 -f /opt/vkprefill/long-prompt.txt; fi
