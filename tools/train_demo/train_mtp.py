"""Trains a multi-token-prediction block for the built-in target, which stays as it is, on the CPU.

    python train_mtp.py --steps 800
    python add_mtp.py mtp.pt ../../vkprefill/data/target.gguf

The block learns what the target itself says: each row of a chain of drafts has the target's distribution at its place
as its aim. Chains of 4 begin at the tokens of answers, and at some tokens of other text. Their tokens are those of the
text: what is drafted after a wrong token counts for nothing. The loss is, summed over a chain with falling weights,

      cross entropy with the target's distribution in answers
    + text * the same in other text
    + attention * -log(attention mass of one head on the token to be copied).

Rows of the target over all sequences are made first. Muon for matrices, AdamW for vectors, as in train.py.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import fused
import numpy as np
import torch
import torch.nn.functional as F
from grammar import SMALL_TALK
from model import Model
from mtp import MtpBlock, picked
from samples import ANSWER, TEXT, Batch, SampleMaker
from torch import Tensor
from train import Muon
from vocabulary import load_tokenizer
from weights import load_model

TARGET = Path(__file__).resolve().parents[2] / "vkprefill" / "data" / "target.gguf"
# tokens of a sequence, sequences, those of a step, chains in each of them, share of the steps from which on
SETS = [(512, 960, 4, 64, 0.0), (2048, 64, 1, 160, 0.6)]
SMALL_TALK_SHARE = 0.03  # of the sequences of the first set: nothing else
DEPTH_WEIGHTS = (1.0, 0.8, 0.6, 0.5)
DEPTH = len(DEPTH_WEIGHTS)
MUON_RATE, ADAM_RATE, WARMUP_STEPS, DECAY_START, LAST_RATE = 0.02, 3e-3, 20, 0.4, 0.02
LOG_STEPS = 25


@dataclass(frozen=True)
class Sequences:
    """N sequences of T tokens with what the target made of them."""

    token_ids: Tensor  # int64 [N, T]
    next_kind: Tensor  # int64 [N, T], as in samples.py
    positions: Tensor  # int64 [N, T]
    looks: Tensor  # int64 [N, T, 2]: first and last token that a row should look at, -1: none
    hidden: Tensor  # bfloat16 [N, T, D]: the target's rows after its last norm

    def chosen(self, rows: Tensor) -> "Sequences":
        return Sequences(*(part[rows] for part in vars(self).values()))


def small_talk(maker: SampleMaker, length: int) -> Batch:
    """One sequence of greetings and their answers."""
    token_ids: list[int] = []
    while len(token_ids) < length + 1:
        asked, answer = map(maker.encode, maker.rng.choice(SMALL_TALK))
        end = [maker.turn_end, *maker.newline]
        token_ids += [*maker.user, *asked, *end, *maker.assistant, *answer, *end]
    whole = np.array([token_ids[: length + 1]])
    none = np.zeros((0, 7), np.int64)
    return Batch(whole, np.full((1, length), TEXT), np.arange(length)[None], none, none[:, :3])


@torch.no_grad()
def make_sequences(target: Model, maker: SampleMaker, length: int, count: int, num_small_talk: int) -> Sequences:
    made = []
    for number in range(count):
        batch = small_talk(maker, length) if number < num_small_talk else maker.batch(1, length)
        looks = np.full((1, length, 2), -1)
        for _, query, first, last, *_ in batch.rows:
            looks[0, query] = first, last
        arrays = batch.token_ids[:, :-1], batch.next_kind, batch.positions, looks
        token_ids, kinds, positions, looks = map(torch.from_numpy, arrays)
        made.append((token_ids, kinds, positions, looks, fused.forward(target, token_ids, positions).hidden))
    return Sequences(*(torch.cat(parts) for parts in zip(*made, strict=True)))


def kinds_before(kinds: Tensor) -> Tensor:
    """What each token itself is."""
    return F.pad(kinds, (1, 0), value=TEXT)[:, :-1]


def choose_starts(kinds: Tensor, count: int) -> Tensor:
    """[B, count]: where chains begin; first the tokens of answers, then of other text, each in random order."""
    batch, length = kinds.shape
    before = kinds_before(kinds)
    answers = (before >= ANSWER) & (kinds >= ANSWER)
    text = (before == TEXT) & (kinds == TEXT)
    order = torch.rand(batch, length) + 2.0 * answers + 1.0 * text
    order[:, length - DEPTH :] = -1
    return order.topk(count, 1).indices


def used_rows(kinds: Tensor, starts: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """bool [B, Q]: chains that are still inside an answer at their step, and inside other text."""
    whole = torch.stack(
        [kinds_before(kinds).gather(1, starts), *(kinds.gather(1, starts + i) for i in range(step + 1))]
    )
    return (whole >= ANSWER).all(0), (whole == TEXT).all(0)


def losses(block: MtpBlock, target: Model, batch: Sequences, starts: Tensor) -> dict[str, Tensor]:
    terms: dict[str, list[Tensor]] = {"answer": [], "text": [], "attention": []}
    right: list[Tensor] = []
    hidden = batch.hidden.float()
    chains = block.chains(target, batch.token_ids, batch.positions, hidden, starts, DEPTH)
    keys = torch.arange(batch.token_ids.shape[1])
    for step, (rows, looked) in enumerate(chains):
        answers, text = used_rows(batch.next_kind, starts, step)
        aims = picked(hidden, starts + step)
        for name, used in (("answer", answers), ("text", text)):
            aim = F.linear(aims[used], target.output.weight).softmax(-1)
            logits = F.linear(rows[used], target.output.weight)
            entropy = -(aim * logits.log_softmax(-1)).sum() / max(1, len(aim))
            terms[name].append(DEPTH_WEIGHTS[step] * entropy)
            if name == "answer":
                right.append((logits.argmax(-1) == aim.argmax(-1)).sum() / max(1, len(aim)))
        first, last = picked(batch.looks, starts + step)[answers].unbind(-1)
        known = first >= 0
        scores, first, last = looked[answers][known].float(), first[known, None], last[known, None]
        inside = scores.masked_fill((keys < first) | (keys > last), -1e9)
        missing = scores.logsumexp(-1) - inside.logsumexp(-1)  # -log(mass)
        terms["attention"].append(DEPTH_WEIGHTS[step] * missing.sum() / max(1, len(missing)))
    return {name: sum(parts) for name, parts in terms.items()} | {f"right {i + 1}": r for i, r in enumerate(right)}


def rate_at(step: int, steps: int) -> float:
    """Linear warm-up, constant, linear decay."""
    done = step / steps
    decay = 1 if done < DECAY_START else max(LAST_RATE, (1 - done) / (1 - DECAY_START))
    return min(1, (step + 1) / WARMUP_STEPS) * decay


def train(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    target = load_model("target", TARGET).requires_grad_(False)
    maker = SampleMaker(load_tokenizer(), 2000 + args.seed)
    start = time.monotonic()
    sets = [
        make_sequences(target, maker, length, count, int(SMALL_TALK_SHARE * count) if not i else 0)
        for i, (length, count, *_) in enumerate(SETS)
    ]
    print(f"{time.monotonic() - start:7.1f} s  {sum(s.token_ids.numel() for s in sets) / 1e6:.2f} M tokens", flush=True)
    block = MtpBlock(target.config)
    block.start_from(target)
    matrices, vectors = ([w for w in block.parameters() if w.ndim == dims] for dims in (2, 1))
    optimizers = [Muon(matrices, MUON_RATE), torch.optim.AdamW(vectors, ADAM_RATE, (0.9, 0.98), weight_decay=0.0)]
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    factors, averages = {"answer": 1.0, "text": args.text, "attention": args.attention}, {}
    for step in range(args.steps):
        chosen = max(i for i in range(len(SETS)) if step / args.steps >= SETS[i][4] and step % (i + 1) == 0)
        _, count, size, num_chains, _ = SETS[chosen]
        batch = sets[chosen].chosen(torch.randint(0, count, (size,)))
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * rate_at(step, args.steps)
            optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            terms = losses(block, target, batch, choose_starts(batch.next_kind, num_chains))
        sum(factor * terms[name] for name, factor in factors.items()).backward()
        torch.nn.utils.clip_grad_norm_(vectors, 1.0)
        for optimizer in optimizers:
            optimizer.step()
        for name, value in terms.items():
            averages[name] = averages.get(name, value.item()) * 0.95 + value.item() * 0.05
        if (step + 1) % LOG_STEPS == 0 or step + 1 == args.steps:
            shown = " ".join(f"{name} {value:.3f}" for name, value in averages.items())
            seconds = time.monotonic() - start, time.process_time()
            print("{:7.1f} s, of the CPU {:.1f} s".format(*seconds), f" step {step + 1}  {shown}", flush=True)
            torch.save(block.state_dict(), args.output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent / "mtp.pt", help="checkpoint")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--text", type=float, default=0.3, help="factor of the loss of other text")
    parser.add_argument("--attention", type=float, default=1.0, help="factor of the attention loss")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
