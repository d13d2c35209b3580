#!/usr/bin/env bash
# One run for a GPU that the project has not seen: what it is and whether its kernels are right (vkprefill doctor), the tests of kernels
# and models on it, then the speed of the built-in model and of the 0.8B and 4B shapes (random weights, made in build/models). Records:
# benchmarks/NAME-doctor.txt, benchmarks/NAME-*.json, NAME from the device unless given.
#
#   tools/check_gpu.sh [NAME]        or: make check-gpu
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python

device=$($python -c '
from vkprefill.errors import DeviceError
from vkprefill.vulkan.probe import choose
try:
    device = choose(None)
    print("" if device.type == "cpu" else device.name)
except DeviceError as error:
    raise SystemExit(f"check_gpu: {error} (vkprefill doctor says more)")')
if [ -z "$device" ]; then
    echo "check_gpu: no Vulkan device here but the CPU, for which there are make test and vkprefill bench" >&2
    exit 1
fi
name=${1:-$(echo "$device" | tr -cs '[:alnum:]\n' - | sed 's/-*$//')}
echo "check_gpu: $device, records benchmarks/$name-*"

status=0
$python -m vkprefill doctor | tee "benchmarks/$name-doctor.txt" || status=$?
$python -m pytest -q tests/shaders tests/model || status=$?

$python -m vkprefill bench -p 512,2048 -n 32 -d 0,512 --start --kernels --json "benchmarks/$name-built-in.json"
mkdir -p build/models
for shape in 0.8B 4B; do
    model=build/models/$shape.gguf
    if [ ! -f "$model" ]; then
        $python -m tools.make_model "$model.part" --shape $shape --mix q4_k_m --real-vocab
        mv "$model.part" "$model"
    fi
    $python -m vkprefill bench -m "$model" -p 64,512,2048 -n 32 -d 0,4096 --start --kernels \
        --json "benchmarks/$name-$shape.json"
done
exit $status  # of the self-test and the tests
