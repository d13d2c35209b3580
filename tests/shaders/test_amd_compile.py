"""What RADV's compiler makes of every shader for the Radeon 780M, on a device without hardware.

No CPU driver would tell that a kernel spills or takes minutes to compile on a GPU. `tools/amd/` does the work.
"""

import json
import re

import pytest

from tools.amd import compiler, loops, recording
from tools.amd.table import load_table
from vkprefill.vulkan.device import ask_for_waves_of_32

MAX_SECONDS = 5  # of CPU time for one pipeline
UPDATE = "if that is meant: python -m tools.amd_compile --update (newest Mesa: --newest --update)"


def key(pipeline: dict) -> tuple[str, str]:
    return pipeline["shader"], json.dumps(pipeline["constants"])


def name(pipeline: dict) -> str:
    return f"{pipeline['shader']} {pipeline['constants']}"


@pytest.fixture(scope="module")
def cases() -> list[dict]:
    return recording.cases()


@pytest.fixture(scope="module", params=["installed", "newest"])
def table(cases, request) -> dict:
    """By the driver of this system, and by newest Mesa."""
    icd = compiler.find_icd() if request.param == "installed" else None
    if icd is None and request.param == "installed":
        pytest.skip("RADV is not installed (package mesa-vulkan-drivers)")
    if icd is None and not compiler.PYTHON_780M.exists():
        pytest.skip("the emulated Radeon 780M is not set up (make setup-780m)")
    return compiler.compile_all(icd, compiler.FAMILY, cases)


def test_constants_of_every_shader_are_the_product_s(cases):
    """Those of other shaders are compiled with the constants they declare, which may be smaller than the product's."""
    unknown = [case["shader"] for case in cases if not case["constants"]]
    assert unknown == [], "recording.record() records no program that uses these: extend it"


def test_every_pipeline_compiles_in_time(table, cases):
    assert len(table["pipelines"]) == len(cases)
    assert [(name(p), p["error"]) for p in table["pipelines"] if "error" in p] == []
    assert [(name(p), p["seconds"]) for p in table["pipelines"] if p["seconds"] > MAX_SECONDS] == []


def test_registers_hold_all(table):
    """Arrays in memory are slow, spilled registers too, and on Mesa 26.2 wrong: its scheduler moves a spill's store
    before an earlier load of the same place (benchmarks/NOTES.md, "Spilled vector registers").
    """
    assert [(name(p), p["vgpr_spills"]) for p in table["pipelines"] if p["vgpr_spills"]] == []
    assert [(name(p), p["scratch"]) for p in table["pipelines"] if p["scratch"]] == []


@pytest.mark.parametrize(("chip", "name"), [("gfx1150", "890M"), ("gfx1151", "8060S"), ("gfx1", None)])
def test_other_chips(cases, chip, name):
    """Of the emulator; the forms of half precision with whole shapes of models."""
    if not compiler.PYTHON_780M.exists():
        pytest.skip("the emulated Radeon 780M is not set up (make setup-780m)")
    if name is None:
        with pytest.raises(RuntimeError, match=f"{chip} is not among the chips"):
            compiler.compile_all(None, chip, [])
        return
    some = [c for c in cases if c["shader"] in ("gated_norm_half", "matmul_hybrid_half_q4_k", "attention_half")]
    compiled = compiler.compile_all(None, chip, some)
    assert name in compiled["device"] and compiled["family"] == chip and len(compiled["pipelines"]) == len(some) > 3
    test_registers_hold_all(compiled)


def test_inner_loops_are_found(table):
    """Where the compiler leaves the loops as they are in the source, which those of these kernels ask for."""
    counted = re.compile("attention_(f|half|dot2)|matmul_|matvec_(?!rows_)")
    kernels = [p for p in table["pipelines"] if p["models"] and counted.match(p["shader"])]
    assert kernels
    assert [name(p) for p in kernels if not p.get("loops")] == []


def test_no_worse_than_the_stored_table(table):
    """Registers, spilled scalars and waves; they differ between Mesa versions, so only the same version is compared."""
    stored = [t for t in load_table() if (t["mesa"], t["family"]) == (table["mesa"], table["family"])]
    if not stored:
        pytest.skip(f"no stored table for Mesa {table['mesa']}; python -m tools.amd_compile --update adds one")
    known = {key(p): p for p in stored[0]["pipelines"]}
    found = []
    for p in table["pipelines"]:
        before = known.get(key(p))
        if before is None:
            found.append(f"{name(p)}: not in the stored table")
            continue
        found += [
            f"{name(p)}: {what} {p[what]}, stored {before[what]}"
            for what in ("vgprs", "sgpr_spills")
            if p[what] > before[what]
        ]
        found += [
            f"{name(p)}: {loop} {counts['valu']} vector instructions, stored {before['loops'][loop]['valu']}"
            for loop, counts in p.get("loops", {}).items()
            if counts["valu"] > before.get("loops", {}).get(loop, counts)["valu"]
        ]
        if p["waves"] < before["waves"]:
            found.append(f"{name(p)}: waves {p['waves']}, stored {before['waves']}")
    assert found == [], UPDATE


def test_waves_of_32_beside_what_the_user_asks_for():
    """The product's environment, which the compilations have too; asking twice changes nothing."""
    for before, after in ((None, "cswave32"), ("", "cswave32"), ("sam,nggc", "sam,nggc,cswave32")):
        environment = {} if before is None else {"RADV_PERFTEST": before}
        for _ in range(2):
            ask_for_waves_of_32(environment)
            assert environment == {"RADV_PERFTEST": after}


def test_loop_count():
    """The loop counter on a text of our own: one pass of the outer loop, the inner one four times."""
    assembly = """\
BB0:
\tv_mov_b32_e32 v0, 0                                        ; 7e000280
BB1:
\tv_add_nc_u32_e32 v1, v0, v0                                ; 4a020100
BB2:
\tv_dual_fmac_f32 v1, s1, v2 :: v_dual_fmac_f32 v3, s1, v4   ; c8000000
\tv_fma_f32 v5, s1, v6, v5                                   ; d6130005
\ts_add_u32 s2, s2, 1                                        ; 80028102
\ts_cbranch_scc1 BB2                                         ; bfa20000
BB3:
\ts_cbranch_scc1 BB1                                         ; bfa20000
"""
    found = loops.count_loop(assembly, [4])
    assert found == {"valu": 9, "vopd": 4, "lds": 0, "vmem": 0, "smem": 0, "fma": 12}
    assert loops.count_loop("BB0:\n\ts_endpgm ; bf810000\n", [4]) is None


def test_products_of_halves_count_as_two():
    pair = "\tv_dual_dot2acc_f32_f16 v1, s1, v2 :: v_dual_dot2acc_f32_f16 v3, s1, v4   ; c8000000\n"
    assembly = f"BB0:\n{pair}\tv_dot2acc_f32_f16 v1, s1, v2   ; 04000000\n\ts_cbranch_scc1 BB0   ; bfa20000\n"
    assert loops.count_loop(assembly, []) == {"valu": 2, "vopd": 1, "lds": 0, "vmem": 0, "smem": 0, "fma": 6}


def test_loop_whose_last_block_comes_first():
    """As Mesa 26 lays loops out: BB4 and BB5 lead back to the heads BB1 and BB2, and are jumped back to."""
    assembly = """\
BB0:
\ts_branch BB1                                               ; bfa00000
BB4:
\tv_add_nc_u32_e32 v1, v0, v0                                ; 4a020100
BB1:
\ts_cbranch_scc1 BB6                                         ; bfa20000
BB3:
\ts_branch BB2                                               ; bfa00000
BB5:
\tv_sub_nc_u32_e32 v1, v0, v0                                ; 4c020100
BB2:
\ts_cbranch_scc1 BB4                                         ; bfa20000
BB7:
\tv_fma_f32 v5, s1, v6, v5                                   ; d6130005
\ts_branch BB5                                               ; bfa00000
BB6:
\ts_endpgm                                                   ; bfb00000
"""
    found = loops.Loops(assembly)
    assert [(len(loop), found.own(loop)["valu"], found.own(loop)["fma"]) for loop in found.loops] == [
        (6, 1, 0),
        (3, 2, 1),
    ]
    assert loops.count_loop(assembly, [10])["valu"] == 21


def test_loops_of_attention():
    """Scores of 2 rows by 2 keys, then the softmax, then 2 rows by one word of values: 16 and 32 multiply-adds."""
    pair = "\n\tv_dual_fmac_f32 v1, s1, v2 :: v_dual_fmac_f32 v3, s1, v4   ; c8000000"
    assembly = f"""\
BB1:
\ts_load_b32 s1, s[2:3], null                                 ; f4000001
BB2:
\ts_buffer_load_b128 s[4:7], s[8:11], s1                      ; f4280102
\tbuffer_load_b64 v[2:3], v1, s[4:7], 0 offen                 ; e0540000{8 * pair}
\ts_cbranch_scc0 BB2                                          ; bfa10000
BB3:
\tds_store_b32 v1, v2                                         ; d8340000
\tv_exp_f32_e32 v1, v1                                        ; 7e024b01
BB4:
\tds_load_b128 v[4:7], v1                                     ; dbfc0000
\tv_lshlrev_b32_e32 v1, 4, v0                                 ; 30020084{16 * pair}
\ts_cbranch_scc0 BB4                                          ; bfa10000
BB5:
\ts_cbranch_scc0 BB1                                          ; bfa10000
"""
    tile = {"TQ": 2, "KP": 2, "DV": 1, "KEY_WORDS": 1, "VALUE_KEYS": 4}
    assert loops.inner_loops("attention_f16", tile, assembly) == {
        "qk": {"valu": 0.5, "vopd": 0.5, "lds": 0, "vmem": 0.0625, "smem": 0.0625},
        "pv": {"valu": 0.5312, "vopd": 0.5, "lds": 0.0312, "vmem": 0, "smem": 0},
        "softmax": {"valu": 0.25, "vopd": 0, "lds": 0.25, "vmem": 0, "smem": 0.25},
    }
    assert loops.inner_loops("attention_f16", tile | {"TQ": 8}, assembly) == {}
    half_as_wide = loops.inner_loops("attention_f16", tile | {"TQ": 1, "KEY_WORDS": 2, "VALUE_KEYS": 8}, assembly)
    assert half_as_wide["qk"]["valu"] == 0.5 and half_as_wide["pv"]["valu"] == 0.5312
    assert loops.inner_loops("attention_merge", {}, assembly) == {}


def test_a_pipeline_that_brings_the_compiler_down_is_named(monkeypatch):
    """The cases after it are compiled all the same."""
    answers = {
        "a": {
            "seconds": 0.1,
            "statistics": dict.fromkeys(
                "VGPRs,Spilled SGPRs,Spilled VGPRs,Scratch size,LDS size,Subgroups per SIMD,Code size".split(","), 8
            ),
            "assembly": "",
            "wave": 32,
        }
    }

    def child(icd, family, jobs, *, wave64=False):
        yield {"device": "d", "mesa": "1.2.3"}
        for job in jobs:
            if job == "b":
                yield {"error": "status -11: "}
                return
            yield answers["a"]

    monkeypatch.setattr(compiler, "_run_child", child)
    monkeypatch.setattr(compiler, "_job", lambda case: case["shader"])
    wanted = [{"shader": s, "constants": {}, "models": [], "wave64": i > 3} for i, s in enumerate("ababa")]
    found = compiler.compile_all("icd", "phoenix", wanted)["pipelines"]
    assert [p.get("error", "ok") for p in found] == ["ok", "status -11: ", "ok", "status -11: ", "ok"]
