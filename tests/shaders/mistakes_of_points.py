"""Mistakes in the kernels that record and edit at points, each with the test that must fail of it.

EVERYWHERE, BY_CHANCE and HIDDEN say who shows them, as in test_planted_mistakes.py.
"""

from tests.shaders import test_points
from tests.shaders.planting import Mistake
from vkprefill.vulkan.device import Device


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


KEPT_ROWS, HEAD_AT = "(KEPT != 0u ? step[KEPT_ROW] : 0u)", "(i / W) * head_stride"
EVERYWHERE = tuple(
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
