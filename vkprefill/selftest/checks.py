"""All checks that a device can run, in an order in which what others rest on comes first."""

from __future__ import annotations

import numpy as np

from vkprefill.engine import kernels
from vkprefill.engine.kernels.points import ADD, SCALE, SET
from vkprefill.engine.kernels.rows import NO_ROW
from vkprefill.engine.points import Rows
from vkprefill.engine.sizes import MAX_CANDIDATES
from vkprefill.rounding import ceil_div, round_up
from vkprefill.selftest import attention, delta_net, delta_rows, drafts, elementwise, experts, products, reference
from vkprefill.selftest.trial import EXACT, FUNCTIONS, Check, Trial
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.profiles import SHUFFLE_SUBGROUPS
from vkprefill.vulkan.shaders import manifest

ROWS, VOCAB, CANDIDATES, PENALTY, WIDTH = 3, 5000, 20, 0.75, 260


def all_checks(device: Device) -> list[Check]:
    return [
        *elementwise.checks(),
        *delta_net.checks(device),
        *delta_rows.checks(device),
        *attention.checks(device),
        Check("best tokens", _top_k),
        Check("rows moved", _move_rows),
        Check("points read and changed", _points),
        *products.checks(device),
        *experts.checks(device),
        *drafts.checks(),
    ]


def not_here(device: Device) -> dict[str, str]:
    """Kernels that the device cannot run, with the reason."""
    reasons = {}
    for name, entry in manifest().items():
        lacking = set(entry["features"]) - device.abilities.features
        if lacking:
            reasons[name] = f"needs {', '.join(sorted(lacking))}"
        elif "_shuffle" in name and device.info.subgroup_size not in SHUFFLE_SUBGROUPS:
            sizes = ", ".join(map(str, SHUFFLE_SUBGROUPS))
            reasons[name] = f"needs subgroups of {sizes}; here they have {device.info.subgroup_size}"
    return reasons


def _move_rows(trial: Trial) -> None:
    x, y = trial.normal(9, WIDTH), trial.normal(6, WIDTH)
    pairs = np.array([[8, 0], [0, 5], [NO_ROW, 2], [8, 3]], np.uint32)
    p, found = trial.program(len(pairs)), trial.put(y)
    kernels.move_rows(p, trial.put(pairs), trial.put(x), found)
    p.run()
    trial.compare(p, found, np.stack([x[8], y[1], y[2], x[8], y[4], x[0]]), EXACT)


def _points(trial: Trial) -> None:
    """Each second part of a head: read, then changed three times, then a row added to all."""
    heads, width = 3, 20
    x, values = trial.normal(4, 2 * heads * width), trial.normal(2, heads * width)
    p, found, taken = trial.program(4), trial.put(x), trial.output(3, heads * width)
    point = Rows(found, heads, width, 2 * heads * width, 2 * width)
    kernels.record_rows(p, trial.put(np.array([2, NO_ROW, 0, 1], np.uint32)), point, taken)
    rows = trial.put(np.array([1, NO_ROW, NO_ROW, 0], np.uint32))
    wanted = x.reshape(4, heads, 2, width).copy()
    added = values.reshape(2, heads, width)
    for op in (ADD, SCALE):
        kernels.edit_rows(p, rows, trial.put(values), point, op)
        for token, row in ((0, 1), (3, 0)):
            part = wanted[token, :, 0]
            wanted[token, :, 0] = part + added[row] if op == ADD else part * added[row]
    last = trial.put(np.array([NO_ROW, 0, NO_ROW, NO_ROW], np.uint32))
    kernels.edit_rows(p, last, trial.put(values), point, SET)
    wanted[1, :, 0] = added[0]
    kernels.add_rows(p, trial.put(x), found)
    p.run()
    trial.compare(p, taken, x.reshape(4, heads, 2, width)[[2, 3, 0], :, 0].reshape(3, -1), EXACT)
    trial.compare(p, found, wanted.reshape(4, -1) + x, FUNCTIONS)


def _top_k(trial: Trial) -> None:
    """Rows of logits of tokens that run together: in row r, tokens 1 to r are seen too. All may be candidates, then
    some.
    """
    logits = np.round(trial.normal(ROWS, VOCAB), 2).astype(np.float32)  # many are equal
    seen, ids = trial.rng.choice(VOCAB, 500, replace=False), trial.rng.choice(VOCAB, ROWS).astype(np.uint32)
    penalty = int(np.float32(PENALTY).view(np.uint32))
    for some in (False, True):
        allowed = trial.rng.random((ROWS, VOCAB)) < (0.5 if some else 1)
        mask = np.concatenate([np.array([some], np.uint32), _bits(allowed).reshape(-1)])
        p = trial.program(ROWS, PENALTY=penalty, NUM_CANDIDATES=CANDIDATES)
        candidates, block_best = trial.words(ROWS, MAX_CANDIDATES, 2), trial.words(ROWS, ceil_div(VOCAB, 64), 2)
        marked = trial.put(_bits(np.isin(np.arange(VOCAB), seen)))
        kernels.top_k(p, trial.put(logits), marked, trial.put(ids), trial.put(mask), block_best, candidates)
        p.run()
        best = [
            reference.best_tokens(row, CANDIDATES, np.union1d(seen, ids[1 : r + 1]), PENALTY, allowed[r])
            for r, row in enumerate(logits)
        ]
        found = candidates.read()[:, :CANDIDATES]
        trial.compare(p, found[..., 1], np.stack([ids for ids, _ in best]), EXACT)
        values = np.ascontiguousarray(found[..., 0]).view(np.float32)
        trial.compare(p, values, np.stack([values for _, values in best]), EXACT)


def _bits(marks: np.ndarray) -> np.ndarray:
    """bool [.., V] -> uint32 [.., V / 32]"""
    room = round_up(marks.shape[-1], 32) - marks.shape[-1]
    whole = np.concatenate([marks, np.zeros((*marks.shape[:-1], room), bool)], axis=-1)
    return np.packbits(whole, axis=-1, bitorder="little").view(np.uint32)
