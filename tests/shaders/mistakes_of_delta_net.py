"""Mistakes in the kernels of the delta net, each with the test that must fail of it.

EVERYWHERE, BY_CHANCE and HIDDEN say who shows them, as in test_planted_mistakes.py.
"""

from tests.shaders import test_delta_pattern, test_delta_rows, test_delta_rule
from tests.shaders.planting import Mistake
from vkprefill.vulkan.device import Device


def delta_rule(device: Device) -> None:
    test_delta_rule.test_tiles_of_every_profile(device, "amd", 32)


def delta_rows(device: Device) -> None:
    test_delta_rows.test_tiles_of_every_profile(device, "amd", 16)


def delta_pattern(device: Device) -> None:
    test_delta_pattern.test_segments(device)


def delta_inputs(device: Device) -> None:
    test_delta_rows.test_inputs(device, test_delta_rows.Shape(1, 3, 32), 2, 2)


def commit_conv(device: Device) -> None:
    test_delta_rows.test_commit_of_all_layers(device, "amd", 2)


TOO_LATE = "t == waiting &&", "t == waiting + 1u &&"
TOO_EARLY = "t >= waiting;", "t + 1u >= waiting;"
LAST_BUT_ONE = "step[WAITING] + i", "step[WAITING] + i - 1u"
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
    (
        Mistake("a row off", "delta_rule.comp", "delta_rule", "row0 + r] - mk_mq", "row0 + (r ^ 1u)] - mk_mq"),
        delta_rule,
    ),
    (Mistake("waiting rows stored too late", "delta_rows.comp", "delta_rows", *TOO_LATE), delta_rows),
    (Mistake("rows of this run wait", "delta_rows.comp", "delta_rows", "KEPT - new_row", "new_row"), delta_rows),
    (Mistake("outputs of a waiting row", "delta_rows.comp", "delta_rows", *TOO_EARLY), delta_rows),
    (Mistake("the first rows kept", "committed.glsl", "delta_inputs", "row - 3u", "i"), delta_inputs),
    (Mistake("a row too early", "committed.glsl", "commit_conv", *LAST_BUT_ONE), commit_conv),
    (Mistake("the first layer's rows", "commit_conv.comp", "commit_conv", "layer * kept_stride", "0u"), commit_conv),
)
