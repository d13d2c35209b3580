"""Makes tests/data/demo_prompts.jsonl: 20 sample prompts of 500 to 4,000 tokens with the expected answers.

    python make_prompts.py OUTPUT.jsonl

One JSON object a line. Fields: id, n_tokens, n_facts, question, answer, prompt (with the chat template), user (the
user's message alone), fact_token_spans (tokens [start, end) of the sentences that hold the answer).
"""

import json
import sys

from samples import SampleMaker
from vocabulary import load_tokenizer

NUM_PROMPTS, SHORTEST, LONGEST, SEED = 20, 500, 4000, 31337
BEFORE, AFTER = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"


def main() -> None:
    tokenizer = load_tokenizer()
    maker = SampleMaker(tokenizer, SEED)
    with open(sys.argv[1], "w") as f:
        for i in range(NUM_PROMPTS):
            length = SHORTEST + (LONGEST - SHORTEST) * i // (NUM_PROMPTS - 1)
            prompt = maker.prompt(length, pair=i % 5 == 4)
            text = tokenizer.decode(prompt.token_ids, skip_special_tokens=False)
            if tokenizer.encode(text).ids != prompt.token_ids:
                raise ValueError(f"prompt {i} is encoded differently as a whole than in pieces")
            record = {
                "id": i,
                "n_tokens": len(prompt.token_ids),
                "n_facts": prompt.num_facts,
                "question": prompt.question,
                "answer": prompt.answer,
                "prompt": text,
                "user": text.removeprefix(BEFORE).removesuffix(AFTER),
                "fact_token_spans": [[span.start, span.end] for span in prompt.spans],
            }
            f.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
