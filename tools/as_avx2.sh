#!/usr/bin/env bash
# as_avx2.sh COMMAND...: runs it with Mesa's Vulkan driver for the CPU compiling as on a CPU that has AVX2 but no AVX-512:
#   tools/as_avx2.sh .venv/bin/python -m benchmarks.matmul_vs_numpy
# Mesa is told so by its own variable; LLVM, which asks the CPU for its name, by a library that answers with CPU_NAME (default: znver3,
# an EPYC of 2021). Compiled shaders and measured speeds are kept apart from the user's, in build/as_avx2. It is this machine that executes
# the code: what another one takes for it may differ.
set -euo pipefail

FOLDER=$(cd "$(dirname "$0")/.." && pwd)/build/as_avx2
mkdir -p "$FOLDER"
export CPU_NAME=${CPU_NAME:-znver3} GALLIUM_OVERRIDE_CPU_CAPS=avx
export MESA_SHADER_CACHE_DIR=$FOLDER/shaders.$CPU_NAME XDG_CACHE_HOME=$FOLDER/cache.$CPU_NAME

c++ -O2 -shared -fPIC -o "$FOLDER/cpu_name.so" -x c++ - <<'CODE'
#include <cstdlib>
#include <cstring>
struct StringRef { const char* data; size_t length; };  // as LLVM's
StringRef cpu_name() __asm__("_ZN4llvm3sys14getHostCPUNameEv");
StringRef cpu_name() { const char* name = std::getenv("CPU_NAME"); return {name, std::strlen(name)}; }
CODE
LD_PRELOAD=$FOLDER/cpu_name.so exec "$@"
