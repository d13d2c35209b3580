"""Compile every shader for an AMD GPU that need not be there, and print what RADV's compiler made of it.

    python -m tools.amd_compile                        Radeon 780M, the driver of this system
    python -m tools.amd_compile --family navi21 --json
    python -m tools.amd_compile --icd FILE --update    store the table in benchmarks/amd_compile.json
    python -m tools.amd_compile --newest --update      that of newest Mesa (make setup-780m)
    python -m tools.amd_compile --newest --family gfx1150 --update       the Radeon 890M; gfx1151 the 8060S

RADV (Mesa's driver for AMD GPUs) makes a device without hardware when RADV_FORCE_FAMILY names a GPU; its compiler is
the real one. From Mesa 26 on it makes none: the emulated 780M takes its place. What is compiled is what the product
dispatches: the programs of whole models are recorded on a device that only takes notes, with the profile for AMD GPUs,
for each shape of model, weight format and type of cache, and in the environment that Device.open makes. Beside it the
other form of the matmul is compiled, and both in waves of 64.

waves: of one SIMD (hardware has 16 at most). RADV counts a wave of 64 twice; here it is counted once. loops: of the
loops that matter, vector instructions (valu), dual-issue pairs among them (vopd, a pair counted once) and instructions
that read or write shared memory (lds), buffers (vmem), scalars (smem), for each multiply-add and lane; 1 / valu is the
fraction of the single-issue peak that instruction issue allows.
"""

import argparse
import json
import sys
from pathlib import Path

from tools.amd.compiler import FAMILY, compile_all, find_icd
from tools.amd.recording import cases
from tools.amd.table import TABLE, show, store
from vkprefill.vulkan.companion import DOT2
from vkprefill.vulkan.shaders import manifest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--icd", type=Path, help="RADV's ICD file (default: the installed one)")
    parser.add_argument(
        "--family",
        default=FAMILY,
        help=f"GPU family in Mesa's words, or with --newest a chip of the emulator (default: {FAMILY})",
    )
    parser.add_argument("--newest", action="store_true", help="the driver of make setup-780m")
    parser.add_argument("--only", default="", help="only shaders whose name starts so")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.add_argument("--update", action="store_true", help=f"store the table in {TABLE.parent.name}/{TABLE.name}")
    arguments = parser.parse_args()
    if arguments.newest and arguments.icd:
        sys.exit("amd_compile: --newest has a driver of its own, not with --icd")
    icd = None if arguments.newest else arguments.icd or find_icd()
    if icd is None and not arguments.newest:
        sys.exit("amd_compile: RADV is not installed (package mesa-vulkan-drivers); give its ICD file with --icd")
    if arguments.update and arguments.only:
        sys.exit("amd_compile: --update stores whole tables, not with --only")
    if not any(name.startswith(arguments.only) for name in manifest()):
        sys.exit(f"amd_compile: --only: no shader's name starts with {arguments.only!r}")
    wanted = cases(DOT2 if arguments.newest else frozenset())
    chosen = [case for case in wanted if case["shader"].startswith(arguments.only)]
    try:
        table = compile_all(icd, arguments.family, chosen)
    except RuntimeError as error:
        sys.exit(f"amd_compile: {error}")
    print(json.dumps(table, indent=1)) if arguments.json else show(table)
    if arguments.update:
        store(table)
    if any("error" in p for p in table["pipelines"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
