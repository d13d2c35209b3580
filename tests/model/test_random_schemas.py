"""Answers by random schemas: one that ends by itself is valid, one that is cut is a beginning that the grammar takes;
with drafts, over pruned prompts, and at temperature 1 too.
"""

import pytest

import vkprefill
from tests.random_schemas import random_schema, valid
from vkprefill import SamplingConfig, SpecDecodeConfig, SpecPrefillConfig
from vkprefill.grammar.matcher import Matcher

NUM_SCHEMAS = 500
QUICK = range(2)  # of each way, in the default run
MAX_TOKENS = 64
SPEC = SpecPrefillConfig(min_tokens=0, break_even=False)
PROMPT = 'A town by the river. {"a":"red","b":[1,2],"name":null} Say it again as JSON: {"a":"red","b":'
KEPT = [[0, 8], [20, 28]]

# name -> the model (with options of load), how it decodes, at which temperature, over which tokens of the prompt
PLAIN, NGRAM = SpecDecodeConfig("none"), SpecDecodeConfig("ngram", adaptive=False, n_max=7)
BLOCK = SpecDecodeConfig("draft-mtp,ngram", adaptive=False)
BUILT_IN, RANDOM = ("built-in", {"max_context": 4096}), ("mtp-b-q4km", {"kv_type": "f32", "max_context": 1024})
WAYS = {
    "greedy": (BUILT_IN, PLAIN, 0.0, None),
    "drafts, pruned, temperature 1": (BUILT_IN, NGRAM, 1.0, KEPT),
    "a block's drafts, pruned, temperature 1": (RANDOM, BLOCK, 1.0, KEPT),
}


def answer(load_model, way: str, seed: int) -> str:
    """How the answer by a schema ended, after its check."""
    (name, options), decode, temperature, kept = WAYS[way]
    model = load_model(name, **options)
    schema, grammar = random_schema(seed)
    result = vkprefill.generate(
        model,
        model.tokenizer.encode(PROMPT),
        schema=schema,
        spec=SPEC,
        kept_ranges=kept,
        decode=decode,
        max_tokens=MAX_TOKENS,
        sampling=SamplingConfig(temperature=temperature, top_k=0, top_p=1.0, seed=seed),
    )
    if kept is not None:
        assert result.specprefill.kept_n < result.specprefill.prompt_n / 2
    if result.finish_reason == "stop":
        assert valid(schema, result.text), f"{schema}: {result.text}"
    else:
        allowed, _ = Matcher(model.tokenizer, grammar, False).rows(result.token_ids)
        assert result.finish_reason == "length" and allowed == result.token_ids, f"{schema}: {result.text}"
    return result.finish_reason


@pytest.mark.parametrize("seed", QUICK)
@pytest.mark.parametrize("way", WAYS)
def test_a_few(load_model, way, seed):
    answer(load_model, way, seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", WAYS)
def test_all(load_model, way):
    ends = [answer(load_model, way, seed) for seed in range(NUM_SCHEMAS)]
    print(f"\n{way}: {NUM_SCHEMAS} schemas, {ends.count('stop')} answers ended by themselves, the others were cut")
    assert ends.count("stop") > NUM_SCHEMAS / 3
