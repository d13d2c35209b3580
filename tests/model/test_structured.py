"""Answers by a grammar: whole ones are valid, cut ones begin so, and drafts, sparse prompts and checks change none."""

import json

import pytest

import vkprefill
from tests.model.draft_scripts import SAMPLINGS
from tests.model.sparse_requests import GREEDY, PROMPTS
from vkprefill import RequestError, SamplingConfig, Session, SpecDecodeConfig, SpecPrefillConfig
from vkprefill.generation.checked import OFF
from vkprefill.grammar.grammars import of_schema
from vkprefill.grammar.matcher import Matcher

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "kind": {"enum": ["town", "river"]},
        "counts": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "kind", "counts"],
    "additionalProperties": False,
}
NONE, NGRAM = SpecDecodeConfig("none"), SpecDecodeConfig("ngram", adaptive=False, n_max=7)
QUESTION = 'A town. {"name":"A town","kind":"town","counts":[1,2]} Say that again.'


def check(text: str) -> None:
    found = json.loads(text)
    assert list(found) == ["name", "kind", "counts"] and len(found["name"]) <= 10 and len(found["counts"]) <= 3
    assert found["kind"] in ("town", "river") and all(0 <= n <= 99 for n in found["counts"])
    assert json.dumps(found, ensure_ascii=False, separators=(",", ":")) == text or "\\" in text, "not compact"


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_answers_are_valid_and_drafts_change_none(built_in, sampling):
    """Over candidates of the device, and over whole rows of logits."""
    results = [
        vkprefill.generate(
            built_in,
            QUESTION,
            schema=SCHEMA,
            decode=decode,
            max_tokens=200,
            sampling=SamplingConfig(**SAMPLINGS[sampling]),
        )
        for decode in (NONE, NGRAM)
    ]
    assert results[0].finish_reason == "stop"
    check(results[0].text)
    assert results[0].token_ids == results[1].token_ids
    assert results[1].timings.draft_n > 0, "nothing was drafted"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_of_a_block_change_none(load_model, temperature):
    """A random model, whose block never drafts what the grammar allows unless it must."""
    model = load_model("mtp-b-q4km", kv_type="f32", max_context=1024, prefill_chunk=32)
    settings = SamplingConfig(temperature=temperature, top_k=20, seed=2)
    results = [
        vkprefill.generate(model, [1, 2, 3], schema=SCHEMA, decode=decode, max_tokens=200, sampling=settings)
        for decode in (NONE, SpecDecodeConfig("draft-mtp", adaptive=False))
    ]
    check(results[0].text)
    assert results[0].token_ids == results[1].token_ids


def test_an_answer_without_a_grammar_is_what_it_was(built_in):
    before = vkprefill.generate(built_in, QUESTION, max_tokens=12, sampling=GREEDY)
    vkprefill.generate(built_in, QUESTION, schema=SCHEMA, max_tokens=12, sampling=GREEDY)
    assert vkprefill.generate(built_in, QUESTION, max_tokens=12, sampling=GREEDY).token_ids == before.token_ids


def test_an_answer_that_is_cut_is_a_beginning(built_in):
    result = vkprefill.generate(built_in, QUESTION, schema=SCHEMA, max_tokens=7, sampling=GREEDY)
    assert result.finish_reason == "length" and len(result.token_ids) == 7
    matcher = Matcher(built_in.tokenizer, of_schema(SCHEMA), False)
    assert matcher.rows(result.token_ids)[0] == result.token_ids


def test_gbnf_and_the_rest_of_the_interface(built_in):
    result = vkprefill.generate(built_in, "Hello", grammar='root ::= ("yes" | "no") "."', sampling=GREEDY)
    assert result.text in ("yes.", "no.") and result.finish_reason == "stop"
    with pytest.raises(RequestError, match="^grammar: found one beside a schema"):
        vkprefill.generate(built_in, "Hello", grammar="root ::= [a]", schema={})
    session = Session(built_in)
    messages = [{"role": "user", "content": QUESTION}]
    first = session.generate(messages, schema=SCHEMA, max_tokens=200, sampling=GREEDY)
    check(first.text)
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And again."}]
    check(session.generate(messages, schema=json.dumps(SCHEMA), max_tokens=200, sampling=GREEDY).text)
    assert not session.generate(messages, max_tokens=8, sampling=GREEDY).text.startswith("{")
    session.close()


@pytest.mark.parametrize("way", [OFF, "wait"])
def test_over_a_sparse_prompt(built_in, way):
    """A checked answer is the dense one."""
    prompt = PROMPTS[0]["prompt"] if "prompt" in PROMPTS[0] else next(iter(PROMPTS[0].values()))
    spec = SpecPrefillConfig(check=way, min_tokens=0, break_even=False)
    ids = vkprefill.generation.prompt.encode_prompt(built_in, prompt).token_ids
    kept = [[0, 64], [len(ids) - 96, len(ids)]]
    settings = {"schema": SCHEMA, "max_tokens": 200, "sampling": SamplingConfig(temperature=1.0, top_k=20, seed=5)}
    sparse = vkprefill.generate(built_in, prompt, kept_ranges=kept, spec=spec, **settings)
    check(sparse.text)
    assert sparse.specprefill.kept_n < len(ids)
    if way == "wait":
        assert sparse.specprefill.check["status"] in ("equal", "revised")
        assert sparse.token_ids == vkprefill.generate(built_in, prompt, **settings).token_ids


def test_a_grammar_that_no_token_can_follow_is_said(built_in):
    """A regular expression that nothing matches."""
    with pytest.raises(RequestError, match="^(schema|grammar): "):
        vkprefill.generate(built_in, "Hello", schema={"type": "string", "pattern": "^[^\\s\\S]$"})
