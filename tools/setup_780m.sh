#!/usr/bin/env bash
# Puts what the emulated Radeon 780M needs into build/780m/: the newest Mesa driver with the libraries it needs, from
# Debian's unstable release (sid), unpacked and not installed; the headers of libdrm; the emulator, built. Run by
# `make setup-780m`, as root or as anybody; safe to run again: what is current is not done again, and a download that broke
# off goes on where it was. Wants a Debian system (apt, and Debian's keyring, which every package is checked with) on x86-64.
#   DEBIAN_MIRROR=URL    where Debian is fetched from, otherwise where this system's apt fetches it
#   DEBIAN_KEYRING=FILE  the keys that sid's lists must be signed with, otherwise those of package debian-archive-keyring
set -euo pipefail
cd "$(dirname "$0")/.."

MESA=26.2.6-1    # of package mesa-vulkan-drivers; where Debian no longer has it, the newest is taken
FOLDER=$PWD/build/780m
ROOT=$FOLDER/root
LIBRARIES=$ROOT/usr/lib/x86_64-linux-gnu
APT=$FOLDER/apt
STATE=$FOLDER/state    # a file per finished step: the key it was run with
LOG=$FOLDER/setup.log

say() { printf 'setup-780m: %s\n' "$*"; }
fail() { printf 'setup-780m: error: %s\n' "$*" >&2; exit 1; }

# step NAME KEY DESCRIPTION COMMAND...: runs the command unless it was last run with the same key. Its output goes to the log.
step() {
    local name=$1 key=$2 description=$3 status
    shift 3
    if [ "$(cat "$STATE/$name" 2>/dev/null)" = "$key" ]; then return; fi
    say "$description"
    rm -f "$STATE/$name"
    set +e
    (set -e; "$@") >>"$LOG" 2>&1
    status=$?
    set -e
    if [ $status -ne 0 ]; then fail "$(reason "$name")"; fi
    printf '%s' "$key" >"$STATE/$name"
}

# reason STEP: why it failed, in a line.
reason() {
    if [ "$1" = lists ] && grep -q 'NO_PUBKEY\|not signed\|KEYEXPIRED\|EXPKEYSIG' "$LOG"; then
        echo "$KEYRING has no valid key for Debian's unstable release; install a newer debian-archive-keyring," \
            "or set DEBIAN_KEYRING (log: $LOG)"
    elif [ "$1" = lists ] || [ "$1" = packages ]; then
        echo "Debian's packages could not be fetched from $MIRROR (log: $LOG): $(grep '^[EW]: ' "$LOG" | tail -n 1)"
    else
        echo "step '$1' failed (log: $LOG): $(grep -m 1 'error' "$LOG" || tail -n 1 "$LOG")"
    fi
}

# ---- the packages

find_keyring() {
    local file
    local usual=/usr/share/keyrings/debian-archive-keyring
    for file in ${DEBIAN_KEYRING:-$usual.pgp $usual.gpg}; do
        if [ -r "$file" ]; then echo "$file"; return; fi
    done
    fail "no keyring of Debian's found (${DEBIAN_KEYRING:-package debian-archive-keyring}): packages could not be checked"
}

find_mirror() {
    local uri=${DEBIAN_MIRROR:-}
    if [ -z "$uri" ]; then
        uri=$(apt-get indextargets --format '$(REPO_URI)' 'Component: main' | grep -m 1 '/debian/\?$' || true)
    fi
    [ -n "$uri" ] || fail "this system's apt knows no mirror of Debian; set DEBIAN_MIRROR to the URL of one"
    echo "${uri%/}"
}

# Lists, caches and a record of installed packages (none) of their own; nothing of the system's sources, preferences or hooks.
configure_apt() {
    mkdir -p "$APT/lists/partial" "$APT/archives/partial"
    : >"$APT/status"
    echo "deb [arch=amd64 signed-by=$KEYRING] $MIRROR sid main" >"$APT/sources.list"
    cat >"$APT/apt.conf" <<END
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Architectures;
#clear DPkg::Post-Invoke;
#clear DPkg::Pre-Invoke;
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Default-Release "";
APT::Install-Recommends "false";
APT::Get::AllowUnauthenticated "false";
APT::Sandbox::User "";
APT::Update::Error-Mode "any";
Acquire::AllowInsecureRepositories "false";
Acquire::Languages "none";
Acquire::Retries "3";
Dir::Etc::sourcelist "$APT/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::Cache "$APT";
Dir::Cache::archives "$APT/archives";
Dir::State::lists "$APT/lists";
Dir::State::status "$APT/status";
Dir::State::extended_states "$APT/extended_states";
END
}

apt_get() { DEBIAN_FRONTEND=noninteractive apt-get -c "$APT/apt.conf" -q -y "$@"; }

fetch_lists() { apt_get update; }

# The driver with all it depends on; of libdrm's development package only that one, for its headers.
fetch_packages() {
    local version=
    if apt-cache -c "$APT/apt.conf" madison mesa-vulkan-drivers | grep -qF " $MESA "; then version="=$MESA"; fi
    apt_get autoclean    # what an earlier run fetched and Debian no longer has
    apt_get --download-only install "mesa-vulkan-drivers$version" libvulkan1
    (cd "$APT/archives" && apt_get download libdrm-dev)
}

unpack() {
    local archive
    rm -rf "$ROOT" "$ROOT.partial" "$FOLDER/include"
    for archive in "$APT/archives"/*.deb; do
        dpkg-deb -x "$archive" "$ROOT.partial"
    done
    mkdir -p "$FOLDER/include"
    cp -r "$ROOT.partial/usr/include/"{libdrm,xf86drm.h,xf86drmMode.h} "$FOLDER/include/"
    rm -rf "$ROOT.partial/usr/share/doc" "$ROOT.partial/usr/include"
    mv "$ROOT.partial" "$ROOT"
    record_packages >"$FOLDER/packages.txt"
}

# A line for Mesa's version and how it was chosen, then name, version and hash of each package.
record_packages() {
    local archive name version
    version=$(dpkg-deb -f "$APT"/archives/mesa-vulkan-drivers_*.deb Version)
    if [ "$version" = "$MESA" ]; then echo "mesa $version, as pinned"; else echo "mesa $version, pinned was $MESA"; fi
    for archive in "$APT/archives"/*.deb; do
        name=$(dpkg-deb -f "$archive" Package)
        echo "$name $(dpkg-deb -f "$archive" Version) $(sha256sum "$archive" | cut -d' ' -f1)"
    done
}

# ---- what is made of them

write_icd() {
    cat >"$FOLDER/radeon.json" <<END
{"file_format_version": "1.0.0", "ICD": {"library_path": "$LIBRARIES/libvulkan_radeon.so", "api_version": "1.4.0"}}
END
}

# A virtual environment with .venv's packages whose python runs on the emulated GPU, and so do the processes it starts.
make_environment() {
    mkdir -p "$FOLDER/venv/bin"
    cp "$PWD/.venv/pyvenv.cfg" "$FOLDER/venv/pyvenv.cfg"
    ln -sfn "$PWD/.venv/lib" "$FOLDER/venv/lib"
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$PWD/tools/run_780m.sh" >"$FOLDER/venv/bin/python"
    chmod +x "$FOLDER/venv/bin/python"
}

build_emulator() {
    tools/emu780m/build.sh "$FOLDER/include" "$FOLDER/emu780m.so.new"
    mv "$FOLDER/emu780m.so.new" "$FOLDER/emu780m.so"
}

hash_of() { find "$@" -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16; }

[ "$(uname -sm)" = "Linux x86_64" ] || fail "the emulator runs on Linux on x86-64 only, this is $(uname -sm)"
for tool in apt-get apt-cache dpkg-deb g++; do
    command -v $tool >/dev/null || fail "$tool not found: Debian's packages are fetched and unpacked with apt and dpkg"
done
[ -x .venv/bin/python ] || fail ".venv is missing; run make setup first"
mkdir -p "$STATE"
: >"$LOG"

KEYRING=$(find_keyring)
MIRROR=$(find_mirror)
packages="$MESA $(sha256sum <<<"$(declare -f fetch_packages unpack)" | cut -c1-16)"
if [ "$(cat "$STATE/unpack" 2>/dev/null)" != "$packages" ]; then
    configure_apt
    rm -f "$STATE/lists"
    step lists "$packages" "fetching the package lists of Debian's unstable release" fetch_lists
    step packages "$packages" "fetching Mesa's driver and what it needs (about 80 MB)" fetch_packages
    step unpack "$packages" "unpacking into build/780m/root" unpack
fi
write_icd
make_environment
step emulator "$(hash_of tools/emu780m "$FOLDER/include")" "building the emulator" build_emulator
say "done: $(head -n 1 "$FOLDER/packages.txt")"
