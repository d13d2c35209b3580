"""The arithmetic of benchmarks/draft_cost.py, by hand: tokens of a round, bytes of single dispatches, speed-ups."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import draft_cost as cost
from benchmarks import rows
from tools.amd.recording import Dispatch
from vkprefill.engine.kept_rows import program_rows
from vkprefill.vulkan.buffer import Buffer

SERIALS = itertools.count()


def buffer(label: str, *shape: int) -> Buffer:
    owner = SimpleNamespace(serial=next(SERIALS))
    return Buffer(label, shape, np.dtype(np.float32), "device", "activations", owner)


def test_tokens_of_a_round():
    """0.5: 1 + 1/2 + 1/4; without drafts one; where all are right n + 1."""
    assert cost.tokens_of_round(0.5, 2) == 1.75
    assert cost.tokens_of_round(0.9, 0) == 1.0
    assert cost.tokens_of_round(1.0, 4) == 5.0
    a, n = 0.7, 3  # the closed form
    assert cost.tokens_of_round(a, n) == pytest.approx((1 - a ** (n + 1)) / (1 - a))
    assert cost.tokens_at_rate(0.77, 2) == pytest.approx(2.54)
    a = 0.6  # accepted of drafted of equal a, n = 2: (a + a^2) / 2
    assert cost.tokens_at_rate((a + a * a) / 2, 2) == pytest.approx(cost.tokens_of_round(a, 2))


def test_speed_up():
    """2.54 tokens for a run of 1.08, two draft rows of 0.13 and 0.03 of feeding: 2.54 / 1.37."""
    assert cost.speed_up(2.54, 1.08, 2 * 0.13, 0.03) == pytest.approx(1.854, abs=5e-4)
    assert cost.speed_up(1.0, 1.0, 0.0, 0.0) == 1.0


def test_rows_run_in_the_program_that_holds_them():
    assert [program_rows(rows) for rows in (1, 2, 3, 4, 5, 8)] == [1, 2, 4, 4, 8, 8]


def test_weights_are_read_once_for_all_rows():
    """256 rows of 2,048 in Q8_0, 68 bytes for 64 weights."""
    d = Dispatch("matvec_q8_0", {"TM": 8}, {"rows": 256, "K": 2048}, (8, 1, 1), (buffer("x", 512, 2048),) * 4)
    found = cost.work_bytes(d, 8, 0)
    assert found.weights == found.bytes == 256 * 2048 * 68 / 64 and found.dispatches == 1


def test_chosen_rows_of_the_head_are_read_one_by_one():
    """1,024 of 256 K rows, in two parts: half of them from each; 2,048 columns of Q8_0."""
    push = {"rows": 2**17, "K": 2048, "N": 2**18}
    found = cost.work_bytes(Dispatch("matvec_rows_q8_0", {}, push, (1024, 1, 1), ()), 1, 0)
    assert found.weights == 512 * 2048 * 68 / 64


def test_logits_count_where_they_do_not_fit_into_l2():
    """248,320 of 4 bytes: two rows are 1.9 MiB, three 2.8."""
    d = Dispatch("top_k_blocks", {}, {}, (1, 1, 1), (buffer("logits", 8, 248320),))
    assert cost.work_bytes(d, 2, 0).bytes == 0
    assert cost.work_bytes(d, 3, 0).results == pytest.approx(3 * 248320 * 4)


def test_keys():
    """2 KV heads of 256, halves: 1,024 tokens and the 4 rows, keys and values; the store writes the 4 alone."""
    c = {"G": 2, "Dh": 256}
    assert cost.work_bytes(Dispatch("attention_f16", c, {}, (), ()), 4, 1024).bytes == 2 * 2 * 2 * 256 * 1028
    assert cost.work_bytes(Dispatch("kv_store_f16", c, {}, (), ()), 4, 1024).keys == 2 * 2 * 2 * 256 * 4


def test_the_state_moves_once_whatever_the_rows():
    """16 heads of 128 by 128: 1 MiB in, 1 out; beside it 6,176 floats for each row that waits and each new one."""
    d = Dispatch("delta_rows", {"Hk": 16, "Hv": 16, "Dk": 128, "Dv": 128}, {}, (), ())
    assert cost.work_bytes(d, 1, 0).states == 2 * 2**20 + 2 * 6176 * 4
    assert cost.work_bytes(d, 8, 0).states == 2 * 2**20 + 16 * 6176 * 4


def test_a_round_is_its_run_its_chain_and_the_feeding():
    """A step of 100 MiB; four rows 104, feeding 3, a chain of two 20: 127 for 2.54 tokens."""
    costs = object.__new__(cost.DraftCosts)
    costs.runs = {1: cost.Work(weights=100.0, seconds=1.0), 4: cost.Work(weights=102.0, states=2.0, seconds=1.1)}
    costs.feeds = {4: cost.Work(weights=3.0, seconds=0.05, dispatches=9)}
    costs.chains = {"cut": [cost.Work(), cost.Work(weights=10.0), cost.Work(weights=20.0, seconds=0.12)]}
    assert costs.round("cut", 2).bytes == 127.0
    assert costs.round("cut", 2).per(2.0).dispatches == 4.5
    assert costs.speed_ups("cut", 2, 2.54) == pytest.approx((2.54 / 1.27, 2.54 / 1.27))
    assert costs.round("cut", 0) == costs.step and costs.speed_ups("cut", 0, 1.0) == (1.0, 1.0)


@pytest.mark.parametrize("shape", cost.TARGET[2])
def test_two_drafts_pay_as_wanted(shape):
    """Of the recorded programs, with the cut head, by bytes and by the bound; and rows cost little more than one."""
    rate, drafts, wanted = cost.TARGET
    costs = cost.DraftCosts(shape)
    found = costs.speed_ups(f"{65536:,} rows", drafts, cost.tokens_at_rate(rate, drafts))
    assert min(found) >= wanted[shape]
    assert costs.runs[8].weights == costs.runs[1].weights and costs.runs[8].dispatches == costs.runs[1].dispatches
    assert costs.chains["whole"][2].bytes > costs.chains[f"{65536:,} rows"][2].bytes


def test_the_table_of_measured_rows():
    """Medians 0.2 and 0.3: two rows cost 1.5 steps, 0.15 a token."""
    assert rows.table({1: [0.1, 0.2, 0.3], 2: [0.3, 0.3, 0.6]}).splitlines()[2:] == [
        "| 1    |        0.200 | 0.100 .. 0.300 | 1.00 |         0.200 |",
        "| 2    |        0.300 | 0.300 .. 0.600 | 1.50 |         0.150 |",
    ]


@pytest.mark.parametrize("shape", cost.SHAPES)
def test_drafts_that_do_not_pay_cost_little(shape):
    """From the first token on, the feeding of the block included: within 2 % of decoding without it."""
    costs = cost.DraftCosts(shape)
    for head, tokens in itertools.product(cost.HEADS, cost.UNPAID_TOKENS):
        rounds, total, plain = cost.unpaid(costs, head, cost.UNPAID_ACCEPTANCE, tokens)
        assert rounds >= 2 and 1 < total.bytes / plain.bytes < 1.02, (head, tokens)
        assert 1 < total.seconds / plain.seconds < 1.02, (head, tokens)


def test_what_pays_is_drafted():
    """Every second token right: as many rounds with drafts as without them there would be tokens for."""
    costs = cost.DraftCosts("4B")
    rounds, total, plain = cost.unpaid(costs, next(iter(cost.HEADS)), 0.5, 1024)
    assert rounds > 400 and plain.seconds / total.seconds > 1.4
