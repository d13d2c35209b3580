"""Trains one of the demo's two models from random weights on the CPU.

    python train.py draft --steps 1200
    python train.py target --steps 1400 --batch-scale 0.5

Muon for the hidden matrices, AdamW for embeddings, output head and vectors. Sequences grow from 128 to 2,048 tokens
with the share of the steps that is done, or as soon as the first tokens of the answers are right. The loss is

      cross entropy of answer tokens, the first token of a value counted three times
    + text * cross entropy of the other tokens
    + attention * -log(attention mass on the fact asked for), in two heads of every attention layer, for the rows from
      the name in the question to the end of the answer: one head for the value (among document keys only, and, with
      less weight, among all keys), one for the words before it
    + probe * cross entropy of a linear probe that reads "the last name mentioned" before the first attention layer.

The probe is dropped after training. Why it is there: README.md.
"""

import argparse
import time
from pathlib import Path

import fused
import torch
import torch.nn.functional as F
from model import CONFIGS, Model
from samples import ANSWER, ANSWER_START, PADDING, Batch, SampleMaker
from torch import Tensor
from vocabulary import load_tokenizer
from weights import load_model

# share of the steps from which on -> tokens of a sequence, sequences of a batch
CURRICULUM = [(0.0, 128, 32), (0.25, 256, 16), (0.50, 512, 8), (0.70, 1024, 4), (0.92, 2048, 2)]
PROMOTION_ACCURACY, PROMOTION_STEPS = 0.9, 40  # the next length comes early above this accuracy, after this many steps
WARMUP_STEPS, DECAY_START, LAST_RATE = 30, 0.4, 0.03
MUON_RATE, ADAM_RATE = 0.02, 3e-3
LOG_STEPS, SAVE_SECONDS = 25, 60
MASKED = -1e9


def orthogonalise(gradient: Tensor) -> Tensor:
    """Newton-Schulz iteration of Muon (Jordan 2024): all singular values near 1."""
    x = gradient.bfloat16()
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.T if tall else x).float()


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr: float, momentum: float = 0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                average = self.state[weight].setdefault("average", torch.zeros_like(weight))
                average.lerp_(weight.grad, 1 - group["momentum"])
                update = orthogonalise(weight.grad.lerp(average, group["momentum"]))
                weight.add_(update, alpha=-group["lr"] * max(1, weight.shape[0] / weight.shape[1]) ** 0.5)


def make_optimizers(model: Model, probe: torch.nn.Linear) -> list[torch.optim.Optimizer]:
    matrices, others = [], list(probe.parameters())
    for name, weight in model.named_parameters():
        hidden = weight.ndim == 2 and min(weight.shape) > 8 and "conv1d" not in name
        (matrices if hidden and name not in ("token_embd.weight", "output.weight") else others).append(weight)
    return [
        Muon(matrices, MUON_RATE),
        torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def attention_loss(scores: Tensor, rows: Tensor, starts_answer: Tensor) -> Tensor:
    """Mean of the supervised terms in one attention layer; scores [2, N, T], rows [N, 7] as in samples.Batch."""
    keys = torch.arange(scores.shape[-1])[None]
    document_end = rows[:, 6:7]
    weight = 1.0 + 3.0 * starts_answer
    terms = []
    for head, factor, document_only in ((0, 1.0, True), (0, 0.3, False), (1, 0.3, True)):
        row_scores = scores[head].masked_fill(keys >= document_end, MASKED) if document_only else scores[head]
        first, last = rows[:, 2 + 2 * head, None], rows[:, 3 + 2 * head, None]
        inside = row_scores.masked_fill((keys < first) | (keys > last), MASKED)
        missing = row_scores.logsumexp(-1) - inside.logsumexp(-1)  # -log(mass)
        terms.append(factor * (missing * weight).sum() / weight.sum())
    return torch.stack(terms)


def losses(model: Model, probe: torch.nn.Linear, batch: Batch) -> tuple[dict[str, Tensor], float]:
    """The loss's terms by name, and the share of first answer tokens that are right."""
    token_ids, next_kind, positions, rows, last_names = map(
        torch.from_numpy, (batch.token_ids, batch.next_kind, batch.positions, batch.rows, batch.last_names)
    )
    sequences, queries = rows[:, 0], rows[:, 1]
    result = fused.forward(model, token_ids[:, :-1], positions, supervised=(sequences, queries))

    used = next_kind != PADDING
    kinds, targets = next_kind[used], token_ids[:, 1:][used]
    logits = F.linear(result.hidden[used], model.output.weight.bfloat16())
    cross_entropy = F.cross_entropy(logits.float(), targets, reduction="none")
    answers, starts = kinds >= ANSWER, kinds == ANSWER_START
    weight = answers.float() + 2.0 * starts

    starts_answer = next_kind[sequences, queries] == ANSWER_START
    attention = torch.cat([attention_loss(scores, rows, starts_answer) for scores in result.scores]).mean()
    probed = F.linear(result.attention_inputs[0][last_names[:, 0], last_names[:, 1]], probe.weight.bfloat16())
    terms = {
        "answer": (cross_entropy * weight).sum() / weight.sum(),
        "text": cross_entropy[~answers].mean(),
        "attention": attention,
        "probe": F.cross_entropy(probed.float(), last_names[:, 2]),
    }
    right = (logits[starts].argmax(-1) == targets[starts]).float().mean().item()
    return terms, right


def learning_rate_scale(step: int, done: float) -> float:
    """Linear warm-up, constant, linear decay."""
    decay = 1 if done < DECAY_START else max(LAST_RATE, (1 - done) / (1 - DECAY_START))
    return min(1, (step + 1) / WARMUP_STEPS) * decay


@torch.no_grad()
def grow(model: Model, draft: Path) -> None:
    """Start with a trained draft's weights: its last layer, attention, becomes the last; its others are first."""
    last = CONFIGS["draft"].num_layers - 1
    weights = load_model("draft", draft).state_dict()
    renamed = {name.replace(f"blk.{last}.", f"blk.{model.config.num_layers - 1}."): w for name, w in weights.items()}
    model.load_state_dict(renamed, strict=False)


def train(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tokenizer = load_tokenizer()
    maker = SampleMaker(tokenizer, 1000 + args.seed)
    model = Model(CONFIGS[args.model], tokenizer.get_vocab_size())
    if args.init:
        model.load_state_dict(torch.load(args.init))
    if args.grow:
        grow(model, args.grow)
    print("parameters:", sum(weight.numel() for weight in model.parameters()), flush=True)
    probe = torch.nn.Linear(model.config.hidden_size, tokenizer.get_vocab_size(), bias=False)
    optimizers = make_optimizers(model, probe)
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    vectors = optimizers[1].param_groups[0]["params"]
    factors = {"answer": 1.0, "text": args.text, "attention": args.attention, "probe": args.probe}

    start_time = save_time = time.monotonic()
    stage, promoted_at, num_tokens, averages = args.stage, 0, 0, {}
    for step in range(args.steps):
        done = args.start + (1 - args.start) * step / args.steps
        stage = max(stage, max(i for i, (share, *_) in enumerate(CURRICULUM) if done >= share))
        solved = averages.get("first", 0) > PROMOTION_ACCURACY and step - promoted_at > PROMOTION_STEPS
        if solved and stage + 1 < len(CURRICULUM):
            stage, promoted_at = stage + 1, step
        _, length, num_sequences = CURRICULUM[stage]
        batch = maker.batch(max(1, int(num_sequences * args.batch_scale)), length)
        scale = learning_rate_scale(step, done)
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * scale
            optimizer.zero_grad(set_to_none=True)

        terms, right = losses(model, probe, batch)
        sum(factors[name] * term for name, term in terms.items()).backward()
        torch.nn.utils.clip_grad_norm_(vectors, 1.0)
        for optimizer in optimizers:
            optimizer.step()

        num_tokens += batch.token_ids.size
        for name, value in [*((name, term.item()) for name, term in terms.items()), ("first", right)]:
            averages[name] = averages.get(name, value) * 0.95 + value * 0.05
        if (step + 1) % LOG_STEPS == 0 or step + 1 == args.steps:
            shown = " ".join(f"{name} {value:.3f}" for name, value in averages.items())
            seconds = time.monotonic() - start_time
            print(
                f"{seconds:7.1f} s  step {step + 1}  length {length}  {num_tokens / 1e6:.2f} M tokens  {shown}",
                flush=True,
            )
        if time.monotonic() - save_time > SAVE_SECONDS:
            torch.save(model.state_dict(), args.output)
            save_time = time.monotonic()
    torch.save(model.state_dict(), args.output)
    print("saved", args.output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=CONFIGS)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--output", type=Path, help="checkpoint (default: MODEL.pt in this folder)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch-scale", type=float, default=1, help="factor for the sequences of a batch")
    parser.add_argument("--text", type=float, default=0.1, help="factor of the text loss")
    parser.add_argument("--attention", type=float, default=1.0, help="factor of the attention loss")
    parser.add_argument("--probe", type=float, default=0.5, help="factor of the probe loss")
    parser.add_argument("--init", type=Path, help="checkpoint to go on from")
    parser.add_argument("--grow", type=Path, help="a trained draft to start with, .gguf or .pt")
    parser.add_argument("--start", type=float, default=0.0, help="share of the schedule that is done already")
    parser.add_argument("--stage", type=int, default=0, help="first length, as an index into the curriculum")
    args = parser.parse_args()
    args.output = args.output or Path(__file__).resolve().parent / f"{args.model}.pt"
    train(args)


if __name__ == "__main__":
    main()
