#!/usr/bin/env bash
# run_780m.sh ARGUMENTS...: .venv's Python with the emulated Radeon 780M as its only Vulkan device, after `make setup-780m`:
#   tools/run_780m.sh -m vkprefill devices
#   tools/run_780m.sh -m pytest tests/shaders/test_rms_norm.py
# The same as build/780m/venv/bin/python, so that the processes Python starts run on the emulated device too.
#   EMU_CHIP=gfx1150     another chip of tools/emu780m/device/chips.cpp
#   EMU_LOG=1            a line for each dispatch; 2: the packets too
#   EMU_ORDER=SEED       the waves of a workgroup in random orders between barriers
#   EMU_SO=FILE          another build of the emulator
# The driver's own C library is newer than the system's; hence its loader starts Python, with its libraries before the system's.
set -euo pipefail

HERE=$(cd "$(dirname "$0")/.." && pwd)
FOLDER=$HERE/build/780m
LIBRARIES=$FOLDER/root/usr/lib/x86_64-linux-gnu
EMULATOR=${EMU_SO:-$FOLDER/emu780m.so}

for file in "$LIBRARIES/ld-linux-x86-64.so.2" "$FOLDER/radeon.json" "$EMULATOR"; do
    if [ ! -e "$file" ]; then
        echo "run_780m: error: $file is missing; run make setup-780m" >&2
        exit 1
    fi
done

python=$(readlink -f "$HERE/.venv/bin/python")
export VK_DRIVER_FILES=$FOLDER/radeon.json VK_ICD_FILENAMES=$FOLDER/radeon.json VK_LOADER_LAYERS_DISABLE='~implicit~'
export MESA_SHADER_CACHE_DISABLE=true              # what is executed is what this driver compiles now
export EMU_CHIP=${EMU_CHIP:-gfx1103}
export XDG_CACHE_HOME=${EMU_CACHE:-$FOLDER/cache}  # measured speeds of the emulated device stay out of the user's
unset PYTHONHOME
exec "$LIBRARIES/ld-linux-x86-64.so.2" --argv0 "$FOLDER/venv/bin/python" --preload "$EMULATOR" \
    --library-path "$LIBRARIES:/usr/lib/x86_64-linux-gnu:$(dirname "$python")/../lib" "$python" "$@"
