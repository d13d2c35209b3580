"""Generation: pieces, ends, limits, sampling settings, and right answers of the built-in model."""

import json
from pathlib import Path

import numpy as np
import pytest

import vkprefill
from vkprefill import SamplingConfig
from vkprefill.generation.generate import Timings, collect
from vkprefill.generation.options import AnswerOptions, Hooks
from vkprefill.generation.prompt import encode_prompt
from vkprefill.generation.sampling import MAX_CANDIDATES, Sampler
from vkprefill.generation.steps import generate_step
from vkprefill.generation.tokens import dense_plan, stream_tokens
from vkprefill.work import without_pauses

GREEDY = SamplingConfig(temperature=0.0)
PROMPTS = [json.loads(line) for line in (Path(__file__).parent.parent / "data" / "demo_prompts.jsonl").open()]
SHORT = PROMPTS[0]


@pytest.mark.parametrize("limit", (1, 2, 30))
def test_pieces_join_to_the_text(tiny, limit):
    parts = list(vkprefill.stream_generate(tiny, "some text", max_tokens=limit, sampling=GREEDY))
    result = collect(iter(parts))
    assert result.text == "".join(part.text for part in parts)
    assert [part.finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1].finish_reason == result.finish_reason
    assert result.text == tiny.tokenizer.decode(result.token_ids, special=False)


def test_stop_and_length(built_in):
    answer = vkprefill.generate(built_in, SHORT["user"])
    assert (answer.text, answer.finish_reason) == (SHORT["answer"], "stop")
    assert answer.timings.predicted_n == len(answer.token_ids) + 1, "the end-of-generation token counts"
    assert answer.timings.prompt_n == SHORT["n_tokens"] and answer.timings.cache_n == 0
    short = vkprefill.generate(built_in, SHORT["user"], max_tokens=1)
    assert (short.token_ids, short.finish_reason) == (answer.token_ids[:1], "length")


def test_right_answers(built_in):
    """Nine of ten of the sample prompts that have up to 2,000 tokens."""
    prompts = [p for p in PROMPTS if p["n_tokens"] <= 2000]
    right = [vkprefill.generate(built_in, p["user"]).text == p["answer"] for p in prompts]
    assert sum(right) >= 0.9 * len(prompts), right


def test_prompt_forms_are_the_same(built_in):
    user = "Which pet does Robert keep?"
    found = encode_prompt(built_in, user)
    text_ids = found.token_ids
    message_ids = encode_prompt(built_in, [{"role": "user", "content": user}]).token_ids
    raw_ids = encode_prompt(built_in, built_in.tokenizer.decode(text_ids), raw=True).token_ids
    assert text_ids == message_ids == raw_ids and found.thinking is False
    assert encode_prompt(built_in, text_ids).token_ids == text_ids
    assert encode_prompt(built_in, np.array(text_ids)).token_ids == text_ids
    with_system = encode_prompt(built_in, user, system_prompt="Be brief.").token_ids
    assert len(with_system) > len(text_ids)


@pytest.mark.parametrize("prompt", ("", [], ()))
@pytest.mark.parametrize("raw", (False, True))
def test_empty_prompt(tiny, built_in, prompt, raw):
    for model in (tiny, built_in):
        with pytest.raises(vkprefill.RequestError, match="prompt: it is empty"):
            vkprefill.generate(model, prompt, raw=raw)


@pytest.mark.parametrize(
    ("prompt", "raw", "reason"),
    [("Hi", True, "raw prompt is taken"), ([1, 2], False, "token ids"), ("Hi", False, "has no chat template")],
)
@pytest.mark.parametrize("options", [{"system_prompt": "Be brief."}, {"template_kwargs": {"enable_thinking": False}}])
def test_what_goes_into_a_template_is_refused_without_one(tiny, monkeypatch, prompt, raw, reason, options):
    if not raw:
        monkeypatch.setattr(tiny, "chat_template", None)
    (name,) = options
    with pytest.raises(vkprefill.RequestError, match=f"^{name}: .*{reason}"):
        vkprefill.generate(tiny, prompt, raw=raw, max_tokens=1, **options)


def test_a_system_prompt_beside_messages_is_refused(tiny):
    with pytest.raises(vkprefill.RequestError, match="^system_prompt: the prompt is messages"):
        vkprefill.generate(tiny, [{"role": "user", "content": "Hi"}], max_tokens=1, system_prompt="Be brief.")


def test_messages_without_template(tiny, monkeypatch):
    monkeypatch.setattr(tiny, "chat_template", None)
    with pytest.raises(vkprefill.RequestError, match="has no chat template"):
        vkprefill.generate(tiny, [{"role": "user", "content": "x"}])


@pytest.mark.parametrize("name", ("messages", "self", "tools", "add_generation_prompt", 5))
def test_template_variables_that_are_taken(tiny, name):
    messages, session = [{"role": "user", "content": "x"}], vkprefill.Session(tiny)
    with pytest.raises(vkprefill.RequestError, match="cannot be set here"):
        vkprefill.generate(tiny, messages, template_kwargs={name: 1})
    with pytest.raises(vkprefill.RequestError, match="cannot be set here"):
        session.generate(messages, template_kwargs={name: 1})
    session.close()


def test_bad_max_tokens(tiny):
    with pytest.raises(vkprefill.RequestError, match="max_tokens"):
        vkprefill.generate(tiny, "x", max_tokens=-1)


def stream(model, token_ids, cache):
    """As stream_generate, to the end of the cache given."""
    options = AnswerOptions(sampling=GREEDY.resolve(model.metadata, False))
    plan = dense_plan(len(token_ids))
    return without_pauses(stream_tokens(model, token_ids, cache, plan, options, Hooks(), Timings()))


def test_answer_fills_the_context(tiny, prompt):
    cache = tiny.new_cache(max_context=40)
    parts = list(stream(tiny, prompt[:30], cache))
    if parts[-1].finish_reason == "length":
        assert len(parts) == 11 and len(cache) == 40, "the last token sampled is not run"
    cache.reset()
    one = list(stream(tiny, prompt[:39], cache))
    assert len(one) <= 2
    cache.reset()
    for length in (40, 41, 300):
        with pytest.raises(
            vkprefill.RequestError,
            match=r"^context: the prompt needs \d+ tokens, the context holds 40, the answer included$",
        ):
            list(stream(tiny, prompt[:length], cache))
    assert len(cache) == 0
    cache.close()


def sampled(model, tokens, count=12, **settings) -> list[int]:
    """The first tokens, end-of-generation tokens among them."""
    cache = model.new_cache()
    sampler = Sampler(SamplingConfig(**settings).resolve(model.metadata, False))
    steps = without_pauses(generate_step(model, tokens, cache, sampler, timings=Timings()))
    token_ids = [next(steps) for _ in range(count)]
    cache.close()
    return token_ids


@pytest.mark.parametrize("settings", ({"top_k": 20}, {"top_k": 0, "top_p": 0.9}, {"min_p": 0.05}))
def test_seeds(tiny, prompt, settings):
    settings = {"temperature": 1.5, "presence_penalty": 0.5, **settings}
    first = sampled(tiny, prompt[:20], seed=7, **settings)
    assert sampled(tiny, prompt[:20], seed=7, **settings) == first
    assert len({tuple(sampled(tiny, prompt[:20], seed=seed, **settings)) for seed in range(4)}) > 1


def test_settings_take_effect(tiny, prompt):
    best = sampled(tiny, prompt[:20], temperature=0.0)
    assert sampled(tiny, prompt[:20], temperature=2.0, top_k=1, presence_penalty=0.0) == best
    assert sampled(tiny, prompt[:20], temperature=2.0, top_k=0, top_p=0.0, presence_penalty=0.0) == best
    assert sampled(tiny, prompt[:20], temperature=2.0, min_p=1.0, presence_penalty=0.0) == best
    assert sampled(tiny, prompt[:20], temperature=1e-6, top_k=0, presence_penalty=0.0) == best
    assert sampled(tiny, prompt[:20], temperature=20.0, top_k=0, top_p=1.0, seed=1) != best


@pytest.mark.parametrize("penalty", (2.0, -2.0, 0.7))
def test_penalty_on_the_device_equals_the_hosts(tiny, prompt, penalty):
    """top_k up to MAX_CANDIDATES is chosen on the device, above it from the whole row on the host."""
    settings = {"temperature": 1.0, "top_p": 1e-9, "presence_penalty": penalty}
    on_device = sampled(tiny, prompt[:20], 30, top_k=MAX_CANDIDATES, **settings)
    assert sampled(tiny, prompt[:20], 30, top_k=MAX_CANDIDATES + 1, **settings) == on_device
    assert sampled(tiny, prompt[:20], 30, temperature=0.0, presence_penalty=penalty) == on_device
    if penalty == 2.0:
        assert on_device != sampled(tiny, prompt[:20], 30, temperature=0.0, presence_penalty=0.0)


def test_interleaved_generations_keep_their_penalties(tiny, prompt):
    settings = {"temperature": 0.0, "presence_penalty": 2.0}
    prompts = prompt[:20], prompt[20:50]
    wanted = [sampled(tiny, tokens, 12, **settings) for tokens in prompts]
    caches = [tiny.new_cache() for _ in prompts]
    config = SamplingConfig(**settings).resolve(tiny.metadata, False)
    steps = [
        without_pauses(generate_step(tiny, tokens, cache, Sampler(config), timings=Timings()))
        for tokens, cache in zip(prompts, caches, strict=True)
    ]
    got = [[], []]
    for _ in range(12):
        for token_ids, step in zip(got, steps, strict=True):
            token_ids.append(next(step))
    assert got == wanted
    for cache in caches:
        cache.close()


def test_characters_are_never_cut(tiny, prompt):
    """A random model makes arbitrary bytes: pieces are whole characters, the text is what all bytes decode to."""
    config = SamplingConfig(temperature=5.0, top_k=0, top_p=1.0, seed=3)
    for seed_tokens in (prompt[:5], prompt[5:9], prompt[9:30]):
        parts = list(vkprefill.stream_generate(tiny, seed_tokens, sampling=config, max_tokens=80))
        result = collect(iter(parts))
        assert result.text == tiny.tokenizer.decode(result.token_ids, special=False)
        assert all(len(part.text.encode()) == len(part.text.encode(errors="replace")) for part in parts)


@pytest.mark.parametrize("text", ("naïve – 漢字 🙂", "\x00", "\r\n\t ", "x" * 300))
def test_any_text_can_be_asked(built_in, text):
    result = vkprefill.generate(built_in, text, max_tokens=3)
    result.text.encode()
    assert 0 <= len(result.token_ids) <= 3


def test_special_tokens_in_a_prompt_stay_text(built_in):
    end = built_in.tokenizer.token_text(built_in.tokenizer.eos_token_id)
    inside = encode_prompt(built_in, f"a{end}b").token_ids
    plain = encode_prompt(built_in, "ab").token_ids
    assert inside.count(built_in.tokenizer.eos_token_id) == plain.count(built_in.tokenizer.eos_token_id)
    raw = encode_prompt(built_in, f"a{end}b", raw=True).token_ids
    assert raw.count(built_in.tokenizer.eos_token_id) == 1


def test_stopping_early_frees_the_cache(tiny):
    free = len(tiny.runner.pool.free_pages)
    stream = vkprefill.stream_generate(tiny, "some text", max_tokens=50, sampling=GREEDY)
    next(stream)
    assert len(tiny.runner.pool.free_pages) == free - 1
    stream.close()
    assert len(tiny.runner.pool.free_pages) == free


def test_result_as_dict(tiny):
    result = vkprefill.generate(tiny, "some text", max_tokens=4, sampling=GREEDY).as_dict()
    assert list(result) == ["text", "token_ids", "finish_reason", "timings", "specprefill"]
    assert list(result["timings"]) == [
        "cache_n",
        "prompt_n",
        "prompt_ms",
        "prompt_per_token_ms",
        "prompt_per_second",
        "predicted_n",
        "predicted_ms",
        "predicted_per_token_ms",
        "predicted_per_second",
        "draft_n",
        "draft_n_accepted",
        "specprefill",
    ]
    json.dumps(result)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": b"hi"}, "prompt: found bytes, wanted text, messages or token ids"),
        ({"prompt": bytearray(b"hi")}, "prompt: found bytearray"),
        ({"prompt": None}, "prompt: found NoneType"),
        ({"prompt": {"role": "user", "content": "hi"}}, "prompt: found dict"),
        ({"draft": "draft.gguf"}, "draft: found str, wanted a loaded model or a SpecPrefill"),
        ({"spec": {"keep_ratio": 0.2}}, "spec: found dict, wanted SpecPrefillConfig"),
        ({"sampling": {"temperature": 0}}, "sampling: found dict, wanted SamplingConfig"),
    ],
)
def test_arguments_of_another_kind(tiny, options, message):
    with pytest.raises(vkprefill.RequestError, match=f"^{message}"):
        vkprefill.generate(tiny, **{"prompt": "hi", **options})
