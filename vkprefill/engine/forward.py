"""The forward pass as programs: token ids -> hidden states of all layers -> logits and candidates.

Reads like the model's table of contents; nothing runs here, the calls append dispatches.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from vkprefill.engine import kernels
from vkprefill.engine.cache_pool import CachePool
from vkprefill.engine.draft_head import DraftHead
from vkprefill.engine.halves import SHORT_RUN, HalfRows
from vkprefill.engine.layers.attention import attention
from vkprefill.engine.layers.context import LayerContext
from vkprefill.engine.layers.delta_net import delta_net
from vkprefill.engine.layers.feed_forward import feed_forward
from vkprefill.engine.layers.mtp import mtp_block, mtp_fill
from vkprefill.engine.points import InTurn, Watch, announce, wanted, whole_rows
from vkprefill.engine.scratch import Scratch
from vkprefill.engine.step import StepWord
from vkprefill.engine.weights import ModelWeights
from vkprefill.gguf.config import FULL_ATTENTION, ModelConfig
from vkprefill.rounding import ceil_div
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.program import Program

log = logging.getLogger("vkprefill")

# GPU drivers may reset a device that is busy for 2 s; other dispatches reach less of the peak than the product that is
# timed.
SUBMISSION_S = 0.1
MIN_SUBMISSION_FLOP = 1e9

EMBEDDED, NORMALIZED = "hook_embed", "ln_final.hook_normalized"  # points outside the layers


class ForwardPass:
    """Records programs over one model's weights, cache pool and scratch buffers.

    role: comes before the names of its programs, to tell the models of a pair apart; always: what watches all of them.
    """

    role = ""
    always: Watch | None = None

    def __init__(
        self, device: Device, config: ModelConfig, pool: CachePool, scratch: Scratch, weights: ModelWeights
    ) -> None:
        self._device, self._config, self._pool, self._scratch, self._weights = device, config, pool, scratch, weights

    def record_trunk(
        self,
        name: str,
        num_rows: int,
        tap: Callable[[Program, int], None] | None = None,
        last_layer: int | None = None,
        fill_block: bool = True,
        watch: Watch | None = None,
    ) -> Program:
        """Token ids -> hidden states x of all layers, for up to num_rows tokens.

        tap(p, layer): records what reads the queries of a full-attention layer; last_layer: one of those, after whose
        tap all ends; fill_block: keys and values of a multi-token-prediction block too; watch: looks at points.
        """
        p = self._program(name, num_rows, watch)
        self._append_trunk(p, tap, last_layer, fill_block=fill_block)
        return p

    def record_layers(
        self, name: str, num_rows: int, layers: range, tap: Callable[[Program, int], None] | None = None
    ) -> Program:
        """A part of the trunk, x -> x: the first layers take token ids, the last ones end as the trunk does. tap: as
        above.
        """
        p = self._program(name, num_rows)
        if not layers.start:
            self._append_embedding(p)
        for layer in layers:
            self._append_layer(p, layer, tap)
        if layers.stop == self._config.num_hidden_layers and self._weights.mtp:
            self._append_mtp(p, few_rows=False, fill=True)
        p.prefix = ""
        return p

    def record_rows(
        self,
        name: str,
        num_rows: int,
        tap: Callable[[Program, int], None] | None = None,
        late: tuple[int, Buffer] | None = None,
        watch: Watch | None = None,
    ) -> Program:
        """Token ids -> rows after output_norm (h), logits and candidates of each, for up to num_rows rows (at most
        KEPT) that may be taken back: decode. What a row gives does not depend on how many run with it. tap: as above;
        late: after this layer all are told by another step buffer; watch: as above.
        """
        p, s, w = self._program(name, num_rows, watch), self._scratch, self._weights
        self._append_trunk(p, tap, few_rows=True, late=late)
        if w.mtp is None:  # whose input they are too
            kernels.rms_norm(p, s.x, w.output_norm, s.h, eps=self._config.rms_norm_eps)
        announce(p, NORMALIZED, whole_rows(s.h))
        kernels.linear(p, s.h, w.output, s.logits)
        kernels.top_k(p, s.logits, s.seen, s.token_ids, s.allowed, s.block_best, s.candidates)
        return p

    def record_commit(self) -> Program:
        """The rows that wait become part of the undo state, which starts as the live one."""
        p, s, pool = self._program("commit", 1), self._scratch, self._pool
        if pool.offsets:
            places, heads = list(pool.offsets.values()), kernels.DeltaHeads.of(self._config)
            kernels.commit(p, pool.kept.buffer, pool.undo_state, s.delta_out, places, heads)
        if pool.waiting_row:
            row = pool.undo_state.part("waiting row", pool.waiting_row.offset, pool.waiting_row.shape)
            kernels.last_accepted(p, pool.kept.hidden, row)
        return p

    def _append_trunk(
        self,
        p: Program,
        tap: Callable[[Program, int], None] | None = None,
        last_layer: int | None = None,
        *,
        few_rows: bool = False,
        fill_block: bool = True,
        late: tuple[int, Buffer] | None = None,
    ) -> None:
        self._append_embedding(p)
        for layer in range(self._config.num_hidden_layers):
            self._append_layer(p, layer, tap, few_rows=few_rows, rows_only=layer == last_layer)
            if layer == last_layer:
                break
            if late and layer == late[0]:
                p.step = late[1]
        if last_layer is None and self._weights.mtp:
            self._append_mtp(p, few_rows, fill_block)
        p.prefix = ""
        if not few_rows and wanted(p, NORMALIZED):  # which the head works out of the last row alone
            kernels.rms_norm(
                p, self._scratch.x, self._weights.output_norm, self._scratch.h, eps=self._config.rms_norm_eps
            )
            announce(p, NORMALIZED, whole_rows(self._scratch.h))

    def _append_layer(
        self,
        p: Program,
        layer: int,
        tap: Callable[[Program, int], None] | None,
        *,
        few_rows: bool = False,
        rows_only: bool = False,
    ) -> None:
        """rows_only: of a full-attention layer, nothing after the tap."""
        s, c, weights = self._scratch, self._config, self._weights.layers[layer]
        p.prefix = f"L{layer:02d}."
        at = self._context(layer, p, few_rows)
        at.point(p, "hook_resid_pre", s.x)
        kernels.rms_norm(p, s.x, weights.attn_norm, s.h, eps=c.rms_norm_eps, half=at.half)
        if c.layer_types[layer] == FULL_ATTENTION:
            attention(p, at, weights.mixer, tap=tap, rows_only=rows_only)
        else:
            delta_net(p, at, weights.mixer)
        if rows_only:
            return
        at.point(p, "hook_resid_mid", s.x)
        kernels.rms_norm(p, s.x, weights.post_attention_norm, s.h, eps=c.rms_norm_eps, half=at.half)
        feed_forward(p, at, weights.mlp)
        at.point(p, "hook_resid_post", s.x)

    def _append_mtp(self, p: Program, few_rows: bool, fill: bool) -> None:
        """Keys and values of the multi-token-prediction block, if they are wanted, and the row that waits for its next
        token. x stays as it is, for the head.
        """
        s, w, at = self._scratch, self._weights, self._context(self._pool.mtp_layer, p, few_rows)
        p.prefix = f"L{at.index:02d}."
        kernels.rms_norm(p, s.x, w.output_norm, s.h, eps=self._config.rms_norm_eps)
        if fill:
            mtp_fill(p, at, w.mtp, s.h)
        else:
            kernels.keep_row(p, s.h, self._pool.waiting_row)

    def _append_embedding(self, p: Program) -> None:
        kernels.embedding(p, self._scratch.token_ids, self._weights.token_embd, self._scratch.x)
        announce(p, EMBEDDED, whole_rows(self._scratch.x))

    def _context(self, layer: int, p: Program, few_rows: bool = False) -> LayerContext:
        pool, half = self._pool, None if p.watch is not None and p.watch.full else self._half(p.num_rows)
        return LayerContext(layer, self._config, pool, self._scratch, half, pool.page_table, few_rows)

    def record_head(self, watch: Watch | None = None) -> Program:
        """Hidden state of the last token of the run before -> logits [V] and the best candidates."""
        p, s, w = self._program("head", 1, watch), self._scratch, self._weights
        kernels.rms_norm(p, s.x, w.output_norm, s.h, eps=self._config.rms_norm_eps, last_row=True)
        announce(p, NORMALIZED, whole_rows(s.h))
        kernels.linear(p, s.h, w.output, s.logits, one_row=True)
        kernels.top_k(p, s.logits, s.seen, s.token_ids, s.allowed, s.block_best, s.candidates)
        return p

    def record_drafts(self, count: int, head: DraftHead) -> Program:
        """A chain of draft rows, of which each takes the best token and the hidden row of the one before: the best
        candidates of each are in `drafts`. The first one takes token_ids[0] and the row that waits.
        """
        p, s, w, pool = self._program("drafts", 1), self._scratch, self._weights.mtp, self._pool
        at, hidden = self._context(pool.mtp_layer, p), pool.waiting_row
        (vocab,), blocks = s.logits.shape[1:], ceil_div(head.num_logits, 64)
        assert head.num_logits <= vocab
        logits = s.logits.part("draft logits", 0, (1, head.num_logits))
        seen = s.seen.part("seen", 0, (ceil_div(head.num_logits, 32),))  # no penalty is on
        block_best = s.block_best.part("block_best", 0, (1, blocks, 2))
        kernels.last_accepted(p, pool.kept.hidden, pool.waiting_row)
        for row in range(count):
            p.prefix = f"draft {row + 1}."
            mtp_block(p, at, w, hidden)
            hidden = s.mtp_hidden.part("mtp_hidden", 0, w.hnorm.shape)
            kernels.linear(p, s.mtp_hidden, head.first, logits.part("draft logits", 0, (1, head.first.rows)))
            if head.num_ids:
                ids = s.draft_ids.part("draft_ids", 0, (head.num_ids,))
                kernels.matvec_rows(p, s.mtp_hidden, head.whole, ids, logits, y_offset=head.first.rows)
            kernels.top_k(p, logits, seen, s.token_ids, s.allowed, block_best, s.candidates)
            kernels.next_draft(
                p, s.candidates, s.draft_ids, s.token_ids, s.rope, s.drafts, row=row, first_rows=head.first.rows
            )
        return p

    def record_logits(self, logits: Buffer) -> Program:
        """Hidden states of the run before -> logits[rows, V] of its first `rows` tokens."""
        p, s, w = self._program("logits", logits.shape[0]), self._scratch, self._weights
        kernels.rms_norm(p, s.x, w.output_norm, s.h, eps=self._config.rms_norm_eps)
        kernels.linear(p, s.h, w.output, logits)
        return p

    def record_head_rows(self) -> Program:
        """Rows h[SHORT_RUN, D] after the last norm -> logits of each."""
        p, s = self._program("head rows", SHORT_RUN), self._scratch
        kernels.linear(p, s.h, self._weights.output, s.logits)
        return p

    def fit_submissions(self, num_rows: int) -> None:
        """Bound a submission's work by the speed of one large product, so that it takes about SUBMISSION_S whatever the
        GPU.
        """
        p, s, w = self._program("timing", num_rows), self._scratch, self._weights.layers[0].mlp.every_token.ffn_gate
        kernels.linear(p, s.h, w, s.ffn_gate, half=self._half(num_rows))
        s.step.view()[StepWord.NUM_TOKENS] = num_rows
        p.run()  # compiles
        start = time.perf_counter()
        p.run()
        speed = 2.0 * w.rows * w.columns * num_rows / (time.perf_counter() - start)
        bound = max(MIN_SUBMISSION_FLOP, speed * SUBMISSION_S)
        self._device.profile = replace(self._device.profile, submission_flop=bound)
        log.info("timing: %.2f TFLOP/s, a submission takes at most %.0f GFLOP", speed / 1e12, bound / 1e9)

    def _half(self, num_rows: int) -> HalfRows | None:
        """Where a program of so many rows rounds activations to halves; None: its products are float32."""
        return self._scratch.half if num_rows > SHORT_RUN else None

    def _program(self, name: str, num_rows: int, watch: Watch | None = None) -> Program:
        p = self._device.program(self.role + name, step=self._scratch.step, num_rows=num_rows)
        p.watch = InTurn(self.always, watch) if self.always and watch else self.always or watch
        return p
