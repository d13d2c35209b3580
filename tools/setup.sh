#!/usr/bin/env bash
# Sets up .venv/ with everything that the engine and its tests need. Run by `make setup`; safe to run again: a step whose
# inputs have not changed is skipped. PYTHON=/path/to/python chooses the Python (3.10 or newer).
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=$PWD/.venv
STATE=$VENV/.setup    # a file per finished step: the key it was run with

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

# run_logged NAME COMMAND...: its output goes to a log; on failure shows the log's end and stops.
run_logged() {
    local name=$1 log status
    shift
    mkdir -p build
    log=$PWD/build/setup-$name.log
    set +e
    (set -e; "$@") >"$log" 2>&1
    status=$?
    set -e
    if [ $status -ne 0 ]; then
        tail -n 25 "$log" >&2
        fail "step '$name' failed; its log is $log"
    fi
}

# step NAME KEY DESCRIPTION COMMAND...: runs the command unless it was last run with the same key.
step() {
    local name=$1 key=$2 description=$3
    shift 3
    if [ "$(cat "$STATE/$name" 2>/dev/null)" = "$key" ]; then return; fi
    say "$description"
    rm -f "$STATE/$name"
    run_logged "$name" "$@"
    printf '%s' "$key" >"$STATE/$name"
}

# hash_of FILE...: one hash over the contents of files and folders.
hash_of() { find "$@" -type f -not -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16; }

find_python() {
    local python
    for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python3.10}; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            # Of an activated virtual environment (.venv itself, for one) the Python that it was made with.
            "$python" -c 'import os, sys; print(os.path.realpath(sys._base_executable))'
            return
        fi
    done
    fail "no Python of version 3.10 or newer found (${PYTHON:-python3, python3.10 to python3.14}); set PYTHON=/path/to/it"
}

# ---- what the system must have: each need is tested for itself, so that no package manager is asked when all is there

has_header() { printf '#if !__has_include(<%s>)\n#error missing\n#endif\n' "$1" | c++ -E -x c++ - >/dev/null 2>&1; }
has_python_headers() {
    "$PYTHON" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}
has_json() { compgen -G "/usr/share/vulkan/$1" || compgen -G "/usr/local/share/vulkan/$1" || compgen -G "/etc/vulkan/$1"; }

MISSING=()    # Debian's names of the packages that lack
NEEDS=()      # what they are for, in words
# need PACKAGE WHAT TEST...
need() {
    local package=$1 what=$2
    shift 2
    if ! "$@" >/dev/null 2>&1; then
        MISSING+=("$package")
        NEEDS+=("$what ($package)")
    fi
}

check_system() {
    MISSING=() NEEDS=()
    local version glsl=glslc
    version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if ! apt-cache show glslc >/dev/null 2>&1; then glsl=glslang-tools; fi    # Ubuntu 22.04 has no package glslc
    need "python$version-venv" "venv and pip for Python $version" "$PYTHON" -c 'import venv, ensurepip'
    need "python$version-dev" "C headers of Python $version" has_python_headers
    need g++ "a C++ compiler" command -v c++
    need cmake "CMake" command -v cmake
    need libvulkan-dev "the Vulkan loader with its C++ headers" has_header vulkan/vulkan.hpp
    need libfmt-dev "the fmt library" has_header fmt/core.h
    need "$glsl" "a GLSL compiler, glslc or glslangValidator" sh -c 'command -v glslc || command -v glslangValidator'
    need mesa-vulkan-drivers "a Vulkan driver" has_json 'icd.d/*.json'
    need vulkan-validationlayers "the Vulkan validation layer, for the tests" has_json 'explicit_layer.d/*alidation*.json'
    need spirv-tools "spirv-val, for the tests" command -v spirv-val
}

install_system_packages() {
    check_system
    if [ ${#MISSING[@]} -eq 0 ]; then return; fi
    if ! command -v apt-get >/dev/null; then
        say "missing on this system, please install:"
        printf '  - %s\n' "${NEEDS[@]}"
        fail "then run this again (names in brackets are Debian's packages)"
    fi
    local sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || fail "needs root for: apt-get install ${MISSING[*]}"
        sudo=(sudo)
    fi
    say "refreshing apt's package lists"
    run_logged apt-update "${sudo[@]}" apt-get update -q
    check_system    # package names may be known only now
    say "installing by apt: ${MISSING[*]}"
    run_logged apt-install "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -q --no-install-recommends "${MISSING[@]}"
    check_system
    if [ ${#MISSING[@]} -ne 0 ]; then
        printf '  - %s\n' "${NEEDS[@]}" >&2
        fail "still missing after apt-get install"
    fi
}

# ---- what goes into .venv

make_venv() { "$PYTHON" -m venv --clear "$VENV"; }

install_package() { pip install --verbose --editable '.[test,dev]'; }

PYTHON=$(find_python)
install_system_packages

python_id=$("$PYTHON" -c 'import sys; print(sys.executable, sys.version_info[:3])')
if [ "$(cat "$STATE/venv" 2>/dev/null)" != "$python_id" ]; then
    say "creating .venv with $PYTHON"
    run_logged venv make_venv
    mkdir -p "$STATE"
    printf '%s' "$python_id" >"$STATE/venv"
fi
export PATH=$VENV/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH PYTHONHOME

kp_key=$(hash_of tools/install_kp.sh)
package_key="$kp_key $(hash_of pyproject.toml setup.py native tools/build_native.py)"
step kp "$kp_key" "building kp from its source package (one to two minutes)" tools/install_kp.sh python
step shaders "$(hash_of shaders tools/compile_shaders.py)" "compiling the shaders" python tools/compile_shaders.py
step package "$package_key" "installing vkprefill with its dependencies, building its native modules" install_package
suffix=$(python -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
if [ ! -e "vkprefill/_barrier$suffix" ]; then
    say "the barrier operation could not be built (reason in build/setup-package.log):"
    say "the engine will use one submission per dependency level, with the same results but slower decode"
fi
if [ ! -e "vkprefill/_companion$suffix" ]; then
    say "the native companion could not be built (reason in build/setup-package.log):"
    say "devices will be opened with no feature on, and kernels cannot be timed on them; results are the same"
fi
if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
    say "optional: the tests of the web pages need a browser (apt-get install chromium chromium-driver); they are skipped without"
fi
if ! tools/get_axe.sh >/dev/null 2>&1; then
    say "optional: axe-core could not be fetched; the test of who can use the pages is skipped without"
fi
for shell in bash zsh fish; do
    command -v $shell >/dev/null || say "optional: $shell is not installed; the tests of its completion are skipped without"
done
# Mesa before 23 puts each word that a shader loads into its vector register through memory there (benchmarks/NOTES.md).
has_slow_loads() {
    ! grep -qw avx512f /proc/cpuinfo && dpkg --compare-versions "$(dpkg-query -Wf '${Version}' mesa-vulkan-drivers)" lt-nl 23
}
if has_slow_loads 2>/dev/null; then
    say "optional: without AVX-512, models run on this CPU much faster with Mesa 25 (Debian 12: mesa-vulkan-drivers from bookworm-backports)"
fi
say "done"
