"""Accuracy on prompts that training never saw: full, and pruned by the draft's attention, at random, or to both ends.

    python evaluate.py --lengths 512,1024 --prompts 100

Prints one JSON object per length: for each case the shares of right answers [all, single questions, two-needle
questions]. An answer is right if every token of it, with the end of the turn, is the argmax after the right ones before
it: the same as greedy decoding. Dropped tokens are not fed; kept ones have their original positions. Answers are judged
with bfloat16 products.
"""

import argparse
import json
import time
from pathlib import Path

import fused
import numpy as np
import torch
import torch.nn.functional as F
from model import Model, Session
from samples import CHUNK, Prompt, SampleMaker
from vocabulary import load_tokenizer
from weights import load_model

DATA = Path(__file__).resolve().parents[2] / "vkprefill" / "data"
PAIR_SHARE = 0.2  # two-needle questions among the prompts
ALWAYS_KEPT = 24  # the last tokens of the prompt; the chunks that hold them are kept
BATCH_TOKENS = 16384


def chunk_scores(draft: Model, token_ids: list[int], lookahead: int, pool: int, turn_end: int) -> np.ndarray:
    """Attention per chunk: max over heads and layers, mean over the last prompt row and `lookahead` greedy steps."""
    length, session, importance = len(token_ids), Session(draft), []
    logits, rows = session.step(token_ids, list(range(length)))
    for position in range(length, length + lookahead + 1):
        attention = torch.cat([row[0, :, :length] for row in rows])
        if pool:
            attention = F.avg_pool1d(attention[None], pool, 1, pool // 2, count_include_pad=False)[0]
        importance.append(attention.max(0).values)
        token = int(logits.argmax())
        if token == turn_end or len(importance) > lookahead:
            break
        logits, rows = session.step([token], [position])
    return np.array([part.mean().item() for part in torch.stack(importance).mean(0).split(CHUNK)])


def kept_tokens(length: int, keep: float, way: str, scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Indices of the kept tokens; the chunks at the prompt's end are always kept and count in the budget."""
    num_chunks = -(-length // CHUNK)
    forced = range((length - ALWAYS_KEPT) // CHUNK, num_chunks)
    free = [c for c in range(num_chunks) if c not in forced]
    budget = max(0, max(1, int(np.ceil(keep * num_chunks))) - len(forced))
    if way == "draft":
        picked = sorted(free, key=lambda c: -scores[c])[:budget]
    elif way == "random":
        picked = rng.permutation(free)[:budget].tolist()
    else:  # "ends"
        last = budget // 2
        picked = free[: budget - last] + free[len(free) - last :]
    chunks = sorted({*forced, *picked})
    return np.concatenate([np.arange(c * CHUNK, min(length, (c + 1) * CHUNK)) for c in chunks])


@torch.no_grad()
def right_answers(model: Model, prompts: list[Prompt], kept: list[np.ndarray]) -> np.ndarray:
    """bool [prompts]; several prompts at once, padded at the right."""
    right = np.zeros(len(prompts), bool)
    waiting = sorted(range(len(prompts)), key=lambda i: -len(kept[i]))
    while waiting:
        size = max(1, BATCH_TOKENS // (len(kept[waiting[-1]]) + 32))
        group, waiting = waiting[-size:], waiting[:-size]
        length = max(len(kept[i]) + len(prompts[i].answer_ids) for i in group)
        token_ids, positions = np.zeros((2, len(group), length), np.int64)
        for row, i in enumerate(group):
            prompt, indices = prompts[i], kept[i]
            count, answer = len(indices), prompt.answer_ids
            token_ids[row, : count + len(answer)] = [*np.array(prompt.token_ids)[indices], *answer]
            positions[row] = [*indices, *(indices[-1] + 1 + np.arange(length - count))]
        hidden = fused.forward(model, torch.from_numpy(token_ids), torch.from_numpy(positions)).hidden
        for row, i in enumerate(group):
            first, answer = len(kept[i]) - 1, prompts[i].answer_ids
            logits = F.linear(hidden[row, first : first + len(answer)].float(), model.output.weight)
            right[i] = logits.argmax(-1).tolist() == answer
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="512,1024,2048,4096", help="tokens of the prompts")
    parser.add_argument("--prompts", type=int, default=100, help="per length")
    parser.add_argument("--keep", default="0.1,0.2,0.3,0.5", help="shares of the chunks that are kept")
    parser.add_argument("--lookahead", type=int, default=8, help="draft steps after the prompt that add query rows")
    parser.add_argument("--pool", type=int, default=13, help="smoothing window in tokens, 0 for none")
    parser.add_argument("--target", type=Path, default=DATA / "target.gguf", help=".gguf or .pt")
    parser.add_argument("--draft", type=Path, default=DATA / "draft.gguf", help=".gguf or .pt")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    target, draft = load_model("target", args.target), load_model("draft", args.draft)

    for length in map(int, args.lengths.split(",")):
        start = time.monotonic()
        maker, rng = SampleMaker(load_tokenizer(), 777000 + length), np.random.default_rng(length)
        is_pair = np.arange(args.prompts) < PAIR_SHARE * args.prompts
        prompts = [maker.prompt(length, pair=bool(pair)) for pair in is_pair]
        whole = [np.arange(len(prompt.token_ids)) for prompt in prompts]
        record = {"tokens": length, "prompts": args.prompts, "facts": prompts[-1].num_facts}

        def note(case: str, right: np.ndarray, record=record, is_pair=is_pair):
            record[case] = [
                round(float(part.mean()), 3) for part in (right, right[~is_pair], right[is_pair]) if part.size
            ]

        note("target, full", right_answers(target, prompts, whole))
        note("draft, full", right_answers(draft, prompts, whole))
        scores = [chunk_scores(draft, p.token_ids, args.lookahead, args.pool, maker.turn_end) for p in prompts]
        for keep in map(float, args.keep.split(",")):
            for way in ("draft", "random", "ends"):
                kept = [
                    kept_tokens(len(prompt.token_ids), keep, way, score, rng)
                    for prompt, score in zip(prompts, scores, strict=True)
                ]
                note(f"{way} {keep:.0%}", right_answers(target, prompts, kept))
        record["seconds"] = round(time.monotonic() - start, 1)
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
