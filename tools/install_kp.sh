#!/usr/bin/env bash
# Installs kp 0.9.0 (Kompute's Python package) from its source package:  tools/install_kp.sh [PYTHON]
#
# PYTHON is that of the environment to install into (default: python3). Needs CMake, a C++ compiler, libvulkan-dev and
# libfmt-dev. kp's build would download Vulkan headers, fmt and pybind11; here it takes what is installed. pybind11 comes
# from PyPI and stays installed, because vkprefill's barrier operation must be built with the same.
set -euo pipefail

KP_VERSION=0.9.0
PYBIND11_VERSION=2.13.6

python=$(command -v "${1:-python3}")
if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 14))'; then
    PYBIND11_VERSION=3.0.1    # the first that knows Python 3.14
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
pip() { "$python" -m pip --disable-pip-version-check "$@"; }

pip install "pybind11==$PYBIND11_VERSION"
pip download --no-deps --no-binary kp --dest "$folder" "kp==$KP_VERSION"
tar -xzf "$folder/kp-$KP_VERSION.tar.gz" -C "$folder"
source=$folder/kp-$KP_VERSION

# setup.py lacks a comma, so that CMake would build for the first Python it finds.
sed -i "s/'-DKOMPUTE_OPT_DISABLE_VULKAN_VERSION_CHECK=ON'\$/&,/" "$source/setup.py"
# It asks for numpy 1, which Python 3.13 has no wheels of; built with this pybind11, kp works with numpy 2 as well.
if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 13))' ||
    "$python" -c 'import numpy, sys; sys.exit(numpy.__version__.startswith("1."))' 2>/dev/null; then
    sed -i 's/"numpy<2.0.0"/"numpy"/' "$source/setup.py"
fi

export KOMPUTE_OPT_INSTALL=OFF
export KOMPUTE_OPT_USE_BUILT_IN_VULKAN_HEADER=OFF
export KOMPUTE_OPT_USE_BUILT_IN_FMT=OFF
export KOMPUTE_OPT_USE_BUILT_IN_PYBIND11=OFF
export KOMPUTE_OPT_DISABLE_VULKAN_VERSION_CHECK=ON    # it refuses headers newer than 1.3.300
export KOMPUTE_OPT_DISABLE_VK_DEBUG_LAYERS=ON         # it would switch the validation layer on wherever that is installed
export KOMPUTE_PYTHON_NUM_PARALLEL_THREADS=$(nproc)
pybind11_DIR=$("$python" -m pybind11 --cmakedir) pip install --use-pep517 "$source"    # with metadata, whatever pip is there
"$python" -c 'import kp'
