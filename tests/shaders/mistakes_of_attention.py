"""Mistakes in the kernels of attention and of its cache, each with the test that must fail of it.

EVERYWHERE, BY_CHANCE and HIDDEN say who shows them, as in test_planted_mistakes.py.
"""

from tests.shaders import test_attention, test_attention_half, test_attention_rows, test_kv_store
from tests.shaders.planting import LOW_FIRST, Mistake, no_barrier
from vkprefill.vulkan.device import Device


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


def kv_store(device: Device) -> None:
    test_kv_store.test_append(device, 63, 193, 1, 36, "f16")
    test_kv_store.test_append(device, 65, 256, 2, 64, "f16")


def middles(device: Device) -> None:
    test_kv_store.test_halves_are_the_nearest(device)


PACKED_BY_DRIVER = "return uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw));"
EVERYWHERE = (
    (no_barrier("attention_f32", "attention.comp", 0), maximum),
    (no_barrier("attention_f16", "attention.comp", 2), attention),
    (no_barrier("attention_f16", "attention.comp", 3), attention),
    (no_barrier("attention_f16", "attention.comp", 4), attention),
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
)
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
)
