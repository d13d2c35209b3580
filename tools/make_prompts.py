"""Makes tests/data/more_prompts.jsonl: 30 prompts beside the 20 of demo_prompts.jsonl, for comparing greedy answers.

    python -m tools.make_prompts OUTPUT.jsonl

Tasks of `vkprefill eval` at other lengths, code, conversations, and what the built-in pair was not trained for. One
JSON object a line: name, messages (the user's and the assistant's; where the assistant's is the last, it is gone on
with), answer (null where none is right).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from vkprefill.cli.common import DEMO_TARGET, demo_path
from vkprefill.evaluation.task import Task
from vkprefill.evaluation.tasks import make_tasks
from vkprefill.gguf.file import open_gguf
from vkprefill.text.tokenizer import Tokenizer

SEED = 4242
TASKS = {  # kind -> tokens
    "single": (100, 450),
    "several": (150, 800, 3500),
    "distractors": (128, 600, 1500, 2600),
    "code": (120, 250, 900, 2200),
}
TURNS = ((2, 150), (3, 150), (4, 200), (2, 600))  # (questions, tokens of the text before each)
GREETING = [("user", "Hello!"), ("assistant", "Hello! Ask me about the text.")]
# The answer's beginning, after which the pair goes on for ever, and mostly repeats itself.
BEGUN = ("The market was", "Last week the", "The access code of Anna is 1234. The room number of", "def open(table):\n")
AWKWARD = {
    "greeting": "Hello!",
    "one letter": "a",
    "question without a text": "What is the access code of Maria?",
    "white space": "  The old\t\tmarket \n\n\n stood  near  the bridge.\n \nWhich pet does Anna keep?",
    "other scripts": "Größe: 3 × 4 µm, naïve café, ¿qué? 你好，世界 🙂 Привет. What is the pet of Ивáн?",
    "numbers": " ".join(str(n * n) for n in range(200)),
    "one sentence again and again": "The pet of Anna is a goat. " * 40 + "What is the pet of Anna?",
}


def prompts() -> Iterator[tuple[str, list[tuple[str, str]], str | None]]:
    """(name, (role, content) of each message, the right answer)."""
    tokenizer = Tokenizer.from_metadata(open_gguf(demo_path(DEMO_TARGET)).metadata)

    def task(kind: str, length: int, seed: int = SEED) -> Task:
        return make_tasks(tokenizer.encode, length, [kind], 1, seed)[0]

    for kind, lengths in TASKS.items():
        for length in lengths:
            made = task(kind, length)
            answer = made.answers[0] if kind != "code" else None
            yield f"{kind}, {length} tokens", [("user", made.prompt)], answer
    for i, (count, length) in enumerate(TURNS):
        made = [task("single", length, SEED + 10 * i + n) for n in range(count)]
        turns = [turn for t in made for turn in (("user", t.prompt), ("assistant", t.answers[0]))]
        yield f"{count} turns of {length} tokens", turns[:-1], made[-1].answers[0]
    text = task("single", 300)
    yield "after a greeting", [*GREETING, ("user", text.prompt)], text.answers[0]
    without_question = text.prompt.rsplit("\n", 1)[0]
    yield "text without a question", [("user", without_question)], None
    for begun in BEGUN:
        yield f"begun: {begun.strip()}", [("user", without_question), ("assistant", begun)], None
    for name, content in AWKWARD.items():
        yield name, [("user", content)], None


def main() -> None:
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        for name, messages, answer in prompts():
            content = [{"role": role, "content": text} for role, text in messages]
            file.write(json.dumps({"name": name, "messages": content, "answer": answer}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
