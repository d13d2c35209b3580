"""Would the kernels' tests notice a mistake in a shader? Each one here must fail the tests beside it.

Mesa's driver for the CPU cannot show all of them: it rounds halves as they should be, runs the subgroups of a workgroup
in their order, each of eight invocations, and reads nothing past a buffer's end. What it misses (HIDDEN) must be seen
on the emulated GPU (make test-780m), which runs the waves of a workgroup in random orders and counts what lies outside.
"""

import os
from collections.abc import Callable
from unittest import mock

import pytest

from tests.emulated import Dispatches, faults, is_emulated
from tests.shaders import (
    test_attention,
    test_attention_half,
    test_attention_rows,
    test_delta_pattern,
    test_delta_rows,
    test_delta_rule,
    test_experts,
    test_gated_norm,
    test_half_row,
    test_kv_store,
    test_matmul,
    test_matmul_half,
    test_matvec,
    test_points,
    test_rms_norm,
    test_top_k,
)
from tests.shaders.planting import Mistake, planted
from tools.compile_shaders import SHADERS
from vkprefill.vulkan.device import Device

Test = Callable[[Device], None]
ORDERS = range(1, 9)  # of waves, on the emulated GPU
LAVAPIPE = "llvmpipe"  # how the device of Mesa's driver for the CPU is named


def attention(device: Device) -> None:
    """Workgroups of 64, several tiles of keys."""
    test_attention.test_tiles_of_every_profile(device, "nvidia", 9, 250, 4, 1, 256)
    test_attention.test_tiles_of_every_profile(device, "nvidia", 7, 300, 3, 3, 64)


def in_splits(device: Device) -> None:
    """Of one tile each and of several; the last ones empty."""
    for cache_len in (63, 511, 4500):
        test_attention.test_one_token_in_splits(device, cache_len, "f16")


def of_half_queries(device: Device) -> None:
    """Several tiles of keys; the instruction's form where the device has it."""
    test_attention_half.test_sizes(device, (65, 191, 4, 2, 32), "amd")
    test_attention_half.test_sizes(device, (127, 130, 1, 1, 256), "amd")
    test_attention_half.test_many_small_probabilities_count(device, 14)


def half_queries(device: Device) -> None:
    test_attention_half.test_half_queries_are_the_nearest(device, 65, 5, 36, 34)


def maximum(device: Device) -> None:
    test_attention.test_scores_far_from_zero(device, "nvidia", 40)


def rows(device: Device) -> None:
    for peak in (100, None):
        test_attention_rows.test_scores_far_from_zero(device, test_attention_rows.WIDE, peak)


def rms_norm(device: Device) -> None:
    test_rms_norm.test_rows(device, test_attention_rows.WIDE, 63, 1028)


def hybrid(device: Device) -> None:
    test_matmul.test_tiles_of_every_profile(device, "amd", "F16")


def of_halves(device: Device) -> None:
    test_matmul_half.test_sums_bit_for_bit(device)


def half_row(device: Device) -> None:
    test_half_row.test_bit_for_bit(device, "amd", 3, 1028)


def gated_norm(device: Device) -> None:
    test_gated_norm.test_as_halves(device, 63, 3, 32)


def wide_heads(device: Device) -> None:
    """Several subgroups for each."""
    test_gated_norm.test_as_halves(device, 3, 2, 512)


def matvec(device: Device) -> None:
    test_matvec.test_tiles_of_every_profile(device, "amd", "F16")


def of_a_grid(device: Device) -> None:
    test_matvec.test_tiles_of_every_profile(device, "amd", "IQ2_S")


def few_rows(device: Device) -> None:
    for weight_type in ("Q4_K", "Q4_1"):
        test_matvec.test_tiles_of_every_profile(device, "amd", weight_type)


def counts(device: Device) -> None:
    test_matvec.test_every_number_of_rows(device, "amd", 3)


def top_k(device: Device) -> None:
    test_top_k.test_sizes(device, "amd", 4097, 20)


def penalties(device: Device) -> None:
    test_top_k.test_rows_have_the_penalties_of_tokens_before_them(device, "amd", 8, 8, 97, 33)


def masks(device: Device) -> None:
    test_top_k.test_only_allowed_tokens_are_candidates(device, "amd", 65, 64, 0.5)


def delta_rule(device: Device) -> None:
    test_delta_rule.test_tiles_of_every_profile(device, "amd", 32)


def delta_rows(device: Device) -> None:
    test_delta_rows.test_tiles_of_every_profile(device, "amd", 16)


def delta_pattern(device: Device) -> None:
    test_delta_pattern.test_segments(device)


def recorded_points(device: Device) -> None:
    """Parts of heads, and of rows; among rows that are kept, too."""
    for place in test_points.PLACES[1:]:
        test_points.test_record_rows(device, "amd", 5, 7, 3, place)


def edited_points(device: Device) -> None:
    for op in (test_points.ADD, test_points.SCALE, test_points.SET):
        for place in test_points.PLACES[1:]:
            test_points.test_edit_rows(device, "amd", op, 5, 7, 3, place)


def added_rows(device: Device) -> None:
    test_points.test_add_rows(device, "amd", 7, 3, 260)


def delta_inputs(device: Device) -> None:
    test_delta_rows.test_inputs(device, test_delta_rows.Shape(1, 3, 32), 2, 2)


def commit_conv(device: Device) -> None:
    test_delta_rows.test_commit_of_all_layers(device, "amd", 2)


def kv_store(device: Device) -> None:
    test_kv_store.test_append(device, 63, 193, 1, 36, "f16")
    test_kv_store.test_append(device, 65, 256, 2, 64, "f16")


def middles(device: Device) -> None:
    test_kv_store.test_halves_are_the_nearest(device)


def equal_logits(device: Device) -> None:
    test_experts.test_equal_logits_far_from_zero(device)


def places(device: Device) -> None:
    """With experts of several waves."""
    test_experts.test_places_and_tiles(device, 130, 100, 3)


def sum_of_experts(device: Device) -> None:
    test_experts.test_sum(device, "amd", 5, 3, 36, True)


def grouped_rows(device: Device) -> None:
    test_experts.test_products_of_grouped_rows(device, "amd", "Q8_0")


def by_id(device: Device) -> None:
    test_experts.test_products_by_id(device, "amd", "Q8_0")


def no_barrier(shader: str, file: str, place: int) -> Mistake:
    return Mistake(f"barrier {place + 1} of {file} removed", file, shader, "barrier();", ";", place)


LOW_FIRST, HIGH_FIRST = "fma(pa.y, pb.y, fma(pa.x, pb.x, sum))", "fma(pa.x, pb.x, fma(pa.y, pb.y, sum))"
IN_ORDER = "fma(a[t][k], weights[q * TN + c][k], acc[o])"
BY_NUMBER_OF_ROWS = IN_ORDER.replace("[k]", "[TM > 4u ? 3u - k : k]")
# What every driver shows.
EVERYWHERE = (
    *(
        (Mistake(title, "delta_pattern.comp", "delta_pattern", right, wrong), delta_pattern)
        for title, right, wrong in (
            ("no key is taken away", "left[i] - p * key[i]", "left[i]"),
            ("each segment begins anew", "begins ? q", "true ? q"),
            ("tokens counted from the segment on", "min(visible > first ? visible - first : 0u, N)", "min(visible, N)"),
            ("value heads in groups", "k_head = h % Hk * WORDS", "k_head = h / (Hv / Hk) * WORDS"),
        )
    ),
    (no_barrier("attention_f32", "attention.comp", 0), maximum),
    (no_barrier("attention_f16", "attention.comp", 2), attention),
    (no_barrier("attention_f16", "attention.comp", 3), attention),
    (no_barrier("attention_f16", "attention.comp", 4), attention),
    (no_barrier("matmul_hybrid_f16", "matmul_hybrid.comp", 0), hybrid),
    (no_barrier("matmul_hybrid_f16", "matmul_hybrid.comp", 1), hybrid),
    (no_barrier("matvec_f16", "matvec.comp", 0), matvec),
    (no_barrier("top_k", "top_k.comp", 0), top_k),
    (no_barrier("top_k", "top_k.comp", 1), top_k),
    (
        Mistake("a row lowers its successor too", "candidates.glsl", "top_k_blocks", "i <= row", "i <= row + 1u"),
        penalties,
    ),
    (Mistake("a row leaves out its own token", "candidates.glsl", "top_k", "i <= row", "i < row"), penalties),
    (Mistake("the run's first token lowered", "candidates.glsl", "top_k_blocks", "i = 1u", "i = 0u"), penalties),
    (
        Mistake("a row reads the first one's mask", "candidates.glsl", "top_k_blocks", "1u + row * (", "1u + 0u * ("),
        masks,
    ),
    (Mistake("masks of another vocabulary", "candidates.glsl", "top_k", "(V + 31u) / 32u", "V / 32u"), masks),
    (Mistake("lowered twice", "candidates.glsl", "top_k_blocks", "bits |= 1u", "bits += 1u"), penalties),
    (no_barrier("rms_norm", "reduce.glsl", 0), rms_norm),
    (no_barrier("attention_scores_f32", "reduce.glsl", 2), rows),
    (no_barrier("attention_scores_f32", "reduce.glsl", 3), rows),
    (
        Mistake("halves of a key swapped", "kv.glsl", "attention_f16", "unpackHalf2x16(w.x)", "unpackHalf2x16(w.x).yx"),
        attention,
    ),
    *(
        (Mistake(title, file, "attention_half", right, wrong), of_half_queries)
        for title, file, right, wrong in (
            ("probabilities not lifted", "attention.comp", "LIFT = 10.3972077083991796", "LIFT = 0.0"),
            (
                "probabilities not rounded alike",
                "attention.comp",
                "add_product(sum[r], p, ones)",
                "sum[r] + float(p >> 31)",
            ),
            ("keys of a pair swapped", "attention.comp", "i == 0u ? w.xy : w.zw", "i == 1u ? w.xy : w.zw"),
            ("another pair's probability", "attention.comp", "+ j) / 2u + i]", "+ j) / 2u + (i ^ 1u)]"),
            ("high half first", "half_products.glsl", LOW_FIRST, "fma(pa.y, pb.x, fma(pa.x, pb.y, sum))"),
        )
    ),
    (
        Mistake("the rotary's sign", "head_norm_rope.comp", "head_norm_rope_half", "? -b : b", "? b : -b"),
        half_queries,
    ),
    (
        Mistake("queries cut off", "halves.glsl", "head_norm_rope_half", "rounded >> dropped", "kept >> dropped"),
        half_queries,
    ),
    (
        Mistake(
            "slots of a pair swapped",
            "kv.glsl",
            "attention_f16",
            "unpackHalf2x16(w.y)[i]",
            "unpackHalf2x16(w.y)[1u - i]",
        ),
        attention,
    ),
    (
        Mistake("the slot before lost", "kv_store.comp", "kv_store_f16", "? v_cache[at]", "? uvec4(0)"),
        kv_store,
    ),
    (
        Mistake("NaN behind the last slot", "kv_store.comp", "kv_store_f16", ": uvec4(0)", ": uvec4(0x7e00)"),
        kv_store,
    ),
    (
        Mistake("halves swapped", "halves.glsl", "kv_store_f16", "h.xz | h.yw << 16", "h.yw | h.xz << 16"),
        kv_store,
    ),
    (
        Mistake("halves swapped", "quant_f16.glsl", "matvec_f16", "unpackHalf2x16(v)", "unpackHalf2x16(v).yx"),
        matvec,
    ),
    (
        Mistake("rounded toward zero", "halves.glsl", "kv_store_f16", "rounded >> dropped", "kept >> dropped"),
        kv_store,
    ),
    (
        Mistake("ties rounded up", "halves.glsl", "kv_store_f16", "(kept >> dropped & 1u)", "1u"),
        middles,
    ),
    (
        Mistake("a key too few", "attention.comp", "attention_f16", "row_t[r] + 1u, keys)", "row_t[r], keys)"),
        attention,
    ),
    (
        Mistake("a tile left out", "attention.comp", "attention_f16", "+= SPLITS * TILE", "+= (SPLITS + 1u) * TILE"),
        in_splits,
    ),
    (
        Mistake("a split left out", "attention_merge.comp", "attention_merge", "/ TILE + 1u", "/ TILE"),
        in_splits,
    ),
    (
        Mistake("a split not begun", "attention_merge.comp", "attention_merge", "t) / TILE + 1u", "t) / TILE + 2u"),
        in_splits,
    ),
    (
        Mistake(
            "a slot too far", "kv_store.comp", "kv_store_f16", "begin = step[CACHE_LEN]", "begin = step[CACHE_LEN] + 1u"
        ),
        kv_store,
    ),
    (
        Mistake("a row off", "matmul_hybrid.comp", "matmul_hybrid_f16", "+ local] = w", "+ (local ^ 1u)] = w"),
        hybrid,
    ),
    (
        Mistake("a row off", "matmul_hybrid.comp", "matmul_hybrid_half_f16", "+ local] = w", "+ (local ^ 1u)] = w"),
        of_halves,
    ),
    (
        Mistake("high half first", "half_products.glsl", "matmul_hybrid_half_f16", LOW_FIRST, HIGH_FIRST),
        of_halves,
    ),
    (
        Mistake("another's factor", "products.glsl", "matmul_hybrid_half_f16", "factors[t]", "factors[t ^ 1u]"),
        of_halves,
    ),
    (
        Mistake("a power of two off", "half_row.glsl", "attention_gate_half", "254u - power", "255u - power"),
        half_row,
    ),
    (
        Mistake("halves overflow", "half_row.glsl", "attention_gate_half", "268u - exponent", "270u - exponent"),
        half_row,
    ),
    (
        Mistake("other columns", "gated_norm.comp", "gated_norm_half", "silu(z[i])", "silu(z[i ^ 1u])"),
        gated_norm,
    ),
    (Mistake("heads added up", "lanes.glsl", "gated_norm_half", "m < LANES", "m < 2u * LANES"), gated_norm),
    (no_barrier("gated_norm_half", "lanes.glsl", 0), wide_heads),
    (no_barrier("gated_norm_half", "lanes.glsl", 1), wide_heads),
    (
        Mistake("a row off", "matvec.comp", "matvec_f16", "+ lane_x] = acc[i]", "+ (lane_x ^ 1u)] = acc[i]"),
        matvec,
    ),
    (
        Mistake("another row of x", "matvec.comp", "matvec_q4_1", "min(r, num_tokens", "min(r ^ 1u, num_tokens"),
        few_rows,
    ),
    (
        Mistake("rows not in use", "matvec.comp", "matvec_q4_1", "if (r >= num_tokens)", "if (false)"),
        counts,
    ),
    (Mistake("half a sub-block left out", "weights.glsl", "matvec_f16", "(K - column) / 8u", "0u"), matvec),
    (Mistake("columns after the last read", "weights.glsl", "matmul_hybrid_f16", "(K - column) / 8u", "4u"), hybrid),
    (Mistake("rows for the grid", "grid.glsl", "matvec_iq2_s", "w_head", "w_offset"), of_a_grid),
    (Mistake("the other row of a word", "iq2_values.glsl", "matvec_iq2_s", "row & 1u", "~row & 1u"), of_a_grid),
    (Mistake("rest left out", "matvec.comp", "matvec_q4_1", "if (UNIT_SUBS == BATCH) continue", "continue"), few_rows),
    (
        Mistake("batches of other slices", "matvec.comp", "matvec_q4_k", "b += SLICES * BATCH", "b += BATCH"),
        few_rows,
    ),
    (Mistake("first part of a unit again", "matvec.comp", "matvec_q4_k", "sub_first + i", "i"), few_rows),
    (
        Mistake("several rows in another order", "matvec.comp", "matvec_q4_k", IN_ORDER, BY_NUMBER_OF_ROWS),
        few_rows,
    ),
    (
        Mistake("a row off", "delta_rule.comp", "delta_rule", "row0 + r] - mk_mq", "row0 + (r ^ 1u)] - mk_mq"),
        delta_rule,
    ),
)
KEPT_ROWS, HEAD_AT = "(KEPT != 0u ? step[KEPT_ROW] : 0u)", "(i / W) * head_stride"
EVERYWHERE += tuple(
    (Mistake(title, f"{shader}.comp", shader, right, wrong), test)
    for shader, test, title, right, wrong in (
        ("record_rows", recorded_points, "the first rows of those kept", KEPT_ROWS, "0u"),
        ("record_rows", recorded_points, "heads side by side", HEAD_AT, "(i / W) * W"),
        ("record_rows", recorded_points, "the beginning of a row", "x[offset + row", "x[row"),
        ("record_rows", recorded_points, "in the order of the run", "y[rows[t] * (H * W)", "y[t * (H * W)"),
        ("record_rows", recorded_points, "without the last token", "t >= step", "t + 1u >= step"),
        ("edit_rows", edited_points, "the first rows of those kept", KEPT_ROWS, "0u"),
        ("edit_rows", edited_points, "heads side by side", HEAD_AT, "(i / W) * W"),
        ("edit_rows", edited_points, "the beginning of a row", "offset + row", "row"),
        ("edit_rows", edited_points, "another token's values", "values[rows[t] *", "values[(rows[t] ^ 1u) *"),
        ("edit_rows", edited_points, "what is to stay computed with", "if (v == KEEP) return;", ""),
        ("edit_rows", edited_points, "scaled by adding", "was * by", "was + by"),
        ("edit_rows", edited_points, "added instead of set", "by) : v;", "by) : floatBitsToUint(was + by);"),
        ("add_rows", added_rows, "the first row for all", "+= y[t * (D / 4u) + i]", "+= y[i]"),
        ("add_rows", added_rows, "rows after the last", "t < step[NUM_TOKENS]", "t <= step[NUM_TOKENS]"),
        ("add_rows", added_rows, "in place of what was there", "+= y[t * (", "= y[t * ("),
    )
)
FROM_END, OTHER_SHARE = "float(X - expert)", "shares[t * (K + 1u) + K]"
EVERYWHERE += (
    (Mistake("the last of equal logits", "route.comp", "route", FROM_END, "float(expert + 1u)"), equal_logits),
    (Mistake("tiles too long", "group_rows.comp", "group_rows", "min(B, own[o] - r)", "B"), places),
    (
        Mistake("another's share", "add_experts.comp", "add_experts", OTHER_SHARE, OTHER_SHARE[:-4] + "]"),
        sum_of_experts,
    ),
    (
        Mistake("another slab's", "expert_tile.glsl", "matmul_hybrid_experts_q8_0", "expert < experts", "true"),
        grouped_rows,
    ),
    (Mistake("another slab's", "matvec.comp", "matvec_experts_q8_0", "if (expert >= experts) return;", ""), by_id),
    (Mistake("another expert's row", "matvec.comp", "matvec_experts_q8_0", "own_rows != 0u", "own_rows == 0u"), by_id),
)
TOO_LATE = "t == waiting &&", "t == waiting + 1u &&"
TOO_EARLY = "t >= waiting;", "t + 1u >= waiting;"
LAST_BUT_ONE = "step[WAITING] + i", "step[WAITING] + i - 1u"
EVERYWHERE += (
    (Mistake("waiting rows stored too late", "delta_rows.comp", "delta_rows", *TOO_LATE), delta_rows),
    (Mistake("rows of this run wait", "delta_rows.comp", "delta_rows", "KEPT - new_row", "new_row"), delta_rows),
    (Mistake("outputs of a waiting row", "delta_rows.comp", "delta_rows", *TOO_EARLY), delta_rows),
    (Mistake("the first rows kept", "committed.glsl", "delta_inputs", "row - 3u", "i"), delta_inputs),
    (Mistake("a row too early", "committed.glsl", "commit_conv", *LAST_BUT_ONE), commit_conv),
    (Mistake("the first layer's rows", "commit_conv.comp", "commit_conv", "layer * kept_stride", "0u"), commit_conv),
)
LAST_ROW = "return min(n, ((rows + 31u) & ~31u) - 1u)"
PACKED_BY_DRIVER = "return uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw));"
# What the emulated GPU shows, and elsewhere what shared memory held before decides.
BY_CHANCE = (
    (no_barrier("group_rows", "group_rows.comp", 0), places),
    (no_barrier("matvec_iq2_s", "grid.glsl", 0), of_a_grid),
)
# What only the emulated GPU shows.
HIDDEN = (
    (no_barrier("attention_f16", "attention.comp", 1), attention),
    (no_barrier("attention_f16", "attention.comp", 5), attention),
    (no_barrier("attention_scores_f32", "reduce.glsl", 1), rows),
    (
        Mistake("rounded by the driver", "kv.glsl", "kv_store_f16", "return pack_halves(v);", PACKED_BY_DRIVER),
        kv_store,
    ),
    (
        Mistake("all of 8", "reduce.glsl", "attention_scores_f32", "i < gl_NumSubgroups", "i < LOCAL_SIZE / 8u", 1),
        rows,
    ),
    (
        Mistake("another pair", "attention.comp", "attention_dot2", "own, 2u * r + i)", "own, 2u * r + 1u - i)"),
        of_half_queries,
    ),
    (
        Mistake(
            "rounded by the driver",
            "half_products.glsl",
            "attention_dot2",
            "packFloat2x16(f16vec2(v))",
            "packHalf2x16(v)",
        ),
        of_half_queries,
    ),
    (Mistake("rows read past the last", "weights.glsl", "matmul_hybrid_f16", LAST_ROW, "return n"), hybrid),
)


@pytest.fixture(autouse=True)
def known_driver(device) -> None:
    if not is_emulated(device) and LAVAPIPE not in device.info.name:
        pytest.skip("this driver shows other mistakes")


def noticed(device: Device, dispatches: Dispatches, test: Test) -> bool:
    """Whether the test fails, or the emulated GPU finds a fault, in any order of waves."""
    for order in ORDERS if is_emulated(device) else (None,):
        with mock.patch.dict(os.environ, {"EMU_ORDER": str(order)} if order else {}):
            try:
                test(device)
            except AssertionError:
                dispatches.take()
                return True
        if faults(dispatches.take()):
            return True
    return False


def title(value: object) -> str:
    return f"{value.shader}: {value.title}" if isinstance(value, Mistake) else ""


@pytest.mark.parametrize(
    "test", dict.fromkeys(test for _, test in EVERYWHERE + HIDDEN + BY_CHANCE), ids=lambda test: test.__name__
)
def test_right_kernels_pass(device, dispatches, test):
    assert not noticed(device, dispatches, test)


@pytest.mark.parametrize(("mistake", "test"), EVERYWHERE, ids=title)
def test_mistake_is_noticed(device, dispatches, mistake, test):
    with planted(mistake):
        assert noticed(device, dispatches, test)


@pytest.mark.parametrize(("mistake", "test"), HIDDEN, ids=title)
def test_mistake_is_noticed_on_the_emulated_gpu_only(device, dispatches, mistake, test):
    with planted(mistake):
        assert noticed(device, dispatches, test) == is_emulated(device)


@pytest.mark.parametrize(("mistake", "test"), BY_CHANCE, ids=title)
def test_mistake_is_noticed_by_chance_elsewhere(device, dispatches, mistake, test):
    with planted(mistake):
        assert noticed(device, dispatches, test) or not is_emulated(device)


def test_every_barrier_is_removed_once():
    there = {
        (path.name, place)
        for path in SHADERS.rglob("*.*")
        if path.suffix in (".comp", ".glsl")
        for place in range(path.read_text().count("barrier();"))
    }
    removed = {
        (mistake.file, mistake.place) for mistake, _ in EVERYWHERE + HIDDEN + BY_CHANCE if mistake.right == "barrier();"
    }
    assert removed == there
