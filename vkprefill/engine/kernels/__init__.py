"""One function for each shader: check shapes, choose constants and grid, append a dispatch to a program.

Each works on the program's `num_rows` tokens at most (the step buffer says how many are in use) and allocates nothing.
Shapes are written with the letters of ARCHITECTURE.md. A file for each family of shaders, as in shaders/.
"""

from vkprefill.engine.kernels.attention import attention, attention_gate, half_queries, head_norm_rope, kv_store
from vkprefill.engine.kernels.delta_net import DeltaHeads, causal_conv, delta_gates, delta_rule, gated_norm
from vkprefill.engine.kernels.delta_pattern import DeltaKeys, delta_pattern
from vkprefill.engine.kernels.delta_rows import DeltaVectors, commit, delta_inputs, delta_rows
from vkprefill.engine.kernels.drafts import keep_row, last_accepted, matvec_rows, mtp_input, next_draft
from vkprefill.engine.kernels.elementwise import rms_norm, swiglu
from vkprefill.engine.kernels.experts import (
    RowTiles,
    add_experts,
    expert_linear,
    gather_rows,
    group_rows,
    linear_by_id,
    route,
)
from vkprefill.engine.kernels.matrix import embedding, linear
from vkprefill.engine.kernels.points import add_rows, edit_rows, record_rows
from vkprefill.engine.kernels.rows import move_rows
from vkprefill.engine.kernels.sampling import top_k
from vkprefill.engine.kernels.scoring import attention_rows, importance, importance_sum

__all__ = [
    "DeltaHeads",
    "DeltaKeys",
    "DeltaVectors",
    "RowTiles",
    "add_experts",
    "add_rows",
    "attention",
    "attention_gate",
    "attention_rows",
    "causal_conv",
    "commit",
    "delta_gates",
    "delta_inputs",
    "delta_pattern",
    "delta_rows",
    "delta_rule",
    "edit_rows",
    "embedding",
    "expert_linear",
    "gated_norm",
    "gather_rows",
    "group_rows",
    "half_queries",
    "head_norm_rope",
    "importance",
    "importance_sum",
    "keep_row",
    "kv_store",
    "last_accepted",
    "linear",
    "linear_by_id",
    "matvec_rows",
    "move_rows",
    "mtp_input",
    "next_draft",
    "record_rows",
    "rms_norm",
    "route",
    "swiglu",
    "top_k",
]
