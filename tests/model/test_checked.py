"""Checked answers: sparse ones that are wrong become the dense one, by whatever way the check goes."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import vkprefill
from tests.model.sparse_requests import GREEDY, PROMPTS
from vkprefill import GenerationResult, SamplingConfig, Session, SpecDecodeConfig, SpecPrefillConfig
from vkprefill.engine.model import Model
from vkprefill.generation.options import AnswerOptions
from vkprefill.generation.parts import collect
from vkprefill.generation.prompt import encode_prompt
from vkprefill.specprefill import guards
from vkprefill.specprefill.plan import CHECK_STATUSES
from vkprefill.specprefill.self_scorer import SelfScorer

LIMIT = 24  # tokens of an answer: more than two runs of rows verify
CHUNK = 8
SAMPLINGS = [
    GREEDY,
    SamplingConfig(temperature=0.0, presence_penalty=1.5),
    SamplingConfig(temperature=0.7, top_k=20, top_p=0.9, presence_penalty=1.0, seed=3),
    SamplingConfig(temperature=0.5, top_k=0, min_p=0.05, presence_penalty=-0.5, seed=4),
]
DECODE = [SpecDecodeConfig("none"), SpecDecodeConfig("ngram"), SpecDecodeConfig("draft-mtp", adaptive=False)]


def on(**settings: object) -> SpecPrefillConfig:
    return SpecPrefillConfig(**{"check": "on", **settings})


@pytest.fixture(scope="module")
def model(load_model) -> Iterator[Model]:
    """A random one with a block for drafts; prompts take several runs."""
    made = load_model("mtp-b-q4km", kv_type="f32", max_context=1024, prefill_chunk=32)
    made.logits([1])
    yield made


@pytest.fixture(autouse=True)
def _nothing_is_left(model):
    before = model.device.allocated.total(), len(model.runner.pool.free_pages)
    yield
    assert (model.device.allocated.total(), len(model.runner.pool.free_pages)) == before


class Planted:
    """A prompt, and ranges of it that make a wrong answer."""

    def __init__(self, seed: int, dropped: int | None = None) -> None:
        """dropped: chunks left out, at random; None: all but four."""
        rng = np.random.default_rng(seed)
        self.ids = rng.integers(0, 256, int(rng.integers(90, 150))).tolist()
        chunks = rng.permutation(len(self.ids) // CHUNK)
        kept = np.sort(chunks[:4] if dropped is None else chunks[dropped:])
        last = len(self.ids) // CHUNK * CHUNK
        self.kept_ranges = [[int(c) * CHUNK, int(c + 1) * CHUNK] for c in kept] + [[last, len(self.ids)]] * (
            last < len(self.ids)
        )

    def options(self, **options: object) -> dict[str, object]:
        return {"max_tokens": LIMIT, "kept_ranges": self.kept_ranges, **options}


def same_answer(found: GenerationResult, wanted: GenerationResult) -> None:
    assert (found.token_ids, found.text, found.finish_reason) == (wanted.token_ids, wanted.text, wanted.finish_reason)
    assert found.timings.predicted_n == wanted.timings.predicted_n


def check_fits(found: GenerationResult, wrong: Sequence[int], right: Sequence[int]) -> None:
    """The report of a check of the whole sparse answer `wrong` against `right`."""
    check = found.specprefill.check
    agreed = next(
        (i for i, (a, b) in enumerate(zip(wrong, right, strict=False)) if a != b), min(len(wrong), len(right))
    )
    assert check["status"] == "revised" and check["agreed_n"] == check["first_difference"] == agreed
    assert check["dense_ms"] > 0 and (check["verify_ms"] > 0) == (agreed > 0)


PLANTED = [n for n in range(23) if n not in (10, 17, 20)]  # of those three, what is left is enough for the answer


@pytest.mark.parametrize("number", PLANTED)
def test_planted_wrong_answers(model, number):
    """Greedy and sampled, with every kind of drafts, whether a little or most of the prompt is missing: verified after
    the answer, so that all of it is compared.
    """
    planted = Planted(number, dropped=(None, 3, 5)[number % 3])
    sampling, decode = SAMPLINGS[number % 4], DECODE[number % 3]
    options = planted.options(sampling=sampling, decode=decode)
    wrong = vkprefill.generate(model, planted.ids, **options)
    right = vkprefill.generate(model, planted.ids, sampling=sampling, decode=DECODE[0], max_tokens=LIMIT)
    assert wrong.token_ids != right.token_ids, "else the case is none"
    found = vkprefill.generate(model, planted.ids, spec=on(check_share=0), **options)
    same_answer(found, right)
    check_fits(found, wrong.token_ids, right.token_ids)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("number", [4, 8, 9, 15])
def test_streams(model, number, share):
    """What was shown up to the first difference stays, the rest is replaced once; wherever in the answer that is."""
    planted, sampling = Planted(number, dropped=(None, 3, 5)[number % 3]), SAMPLINGS[number % 4]
    right = vkprefill.generate(model, planted.ids, sampling=sampling, max_tokens=LIMIT)
    spec = on(check="wait", on_mismatch="revise", check_share=share)
    parts = list(vkprefill.stream_generate(model, planted.ids, spec=spec, **planted.options(sampling=sampling)))
    same_answer(collect(iter(parts)), right)
    assert [bool(p.finish_reason) for p in parts] == [False] * (len(parts) - 1) + [True]
    revisions = [i for i, p in enumerate(parts) if p.revised_from is not None]
    check = parts[-1].specprefill.check
    assert len(revisions) == (check["status"] == "revised") and check["status"] in ("revised", "equal")
    for at in revisions:
        shown = "".join(p.text for p in parts[:at])
        assert parts[at].revised_from <= len(shown) and right.text.startswith(shown[: parts[at].revised_from])
        whole = model.tokenizer.decode(right.token_ids[: check["agreed_n"]])
        assert parts[at].revised_from >= len(whole.rstrip("\ufffd")), "from the last whole character on"
    if share == 1:
        assert check["agreed_n"] <= 1, "before the second token"


@pytest.mark.parametrize("number", [2, 4, 8, 9, 15, 18])
def test_stop_texts(model, number):
    """Inside of what agrees, after it, and only in the sparse answer: the check goes on where that had ended."""
    planted, sampling = Planted(number, dropped=(None, 3, 5)[number % 3]), SAMPLINGS[number % 4]
    plain = {"sampling": sampling, "max_tokens": LIMIT}
    right = vkprefill.generate(model, planted.ids, **plain).text
    wrong = vkprefill.generate(model, planted.ids, **planted.options(sampling=sampling)).text
    stops = [right[1:3], right[len(right) // 2 :][:3], wrong[len(wrong) // 2 :][:2], wrong[-2:]]
    for stop in filter(None, stops):
        wanted = vkprefill.generate(model, planted.ids, stop=[stop], **plain)
        options = planted.options(sampling=sampling, spec=on(check_share=0))
        found = vkprefill.generate(model, planted.ids, stop=[stop], **options)
        same_answer(found, wanted)
        assert stop not in found.text


@pytest.mark.parametrize("stop", ["a", ("",), ["x", 3]])
def test_bad_stop_texts(model, stop):
    with pytest.raises(vkprefill.RequestError, match="^stop: found"):
        vkprefill.generate(model, [1, 2], stop=stop)


# -- what a check ends in ----------------------------------------------------------------------------------------------


def checked(model: Model, planted: Planted, *, whole: bool = True, **settings: object) -> GenerationResult:
    options = planted.options(sampling=GREEDY, spec=on(**settings), whole=whole)
    return collect(vkprefill.stream_generate(model, planted.ids, **options))


@pytest.fixture(scope="module")
def wrong_later(model) -> tuple[Planted, GenerationResult, GenerationResult]:
    """A prompt whose sparse answer has a wrong token in the middle, the dense and the sparse answer."""
    planted = Planted(4, dropped=3)
    right = vkprefill.generate(model, planted.ids, sampling=GREEDY, max_tokens=LIMIT)
    return planted, right, vkprefill.generate(model, planted.ids, **planted.options(sampling=GREEDY))


def test_off_unless_asked_for(model, wrong_later):
    planted, _, wrong = wrong_later
    assert wrong.specprefill.check["status"] == "off" == CHECK_STATUSES[0]
    for share in (0.0, 1.0):
        found = checked(model, planted, check="off", check_share=share)
        assert found.token_ids == wrong.token_ids and found.specprefill.check["reason"] == "not asked for"


def test_equal_where_nothing_is_left_out(model, wrong_later):
    planted, right, _ = wrong_later
    for kept_ranges in (None, [[0, len(planted.ids)]]):
        found = vkprefill.generate(
            model, planted.ids, **planted.options(sampling=GREEDY, spec=on()) | {"kept_ranges": kept_ranges}
        )
        same_answer(found, right)
        check = found.specprefill.check
        assert check["status"] == "equal" and check["agreed_n"] == len(right.token_ids)
        assert check["first_difference"] is None and check["dense_ms"] == check["verify_ms"] == 0


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_equal_where_what_is_left_out_did_not_matter(model, share):
    planted = Planted(17, dropped=5)
    sampling = SAMPLINGS[1]
    right = vkprefill.generate(model, planted.ids, sampling=sampling, max_tokens=LIMIT)
    found = vkprefill.generate(model, planted.ids, **planted.options(sampling=sampling, spec=on(check_share=share)))
    same_answer(found, right)
    check = found.specprefill.check
    assert (
        found.specprefill.status == guards.ACTIVE and check["status"] == "equal" and check["first_difference"] is None
    )
    assert check["agreed_n"] == (len(right.token_ids) if share == 0 else 1 if share == 1 else check["agreed_n"])


def wrong_at_first(model: Model) -> tuple[Planted, GenerationResult]:
    """A prompt whose sparse answer is wrong from its first token on, and that answer."""
    planted = Planted(0)
    return planted, vkprefill.generate(model, planted.ids, **planted.options(sampling=GREEDY))


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_reported_only(model, wrong_later, share, whole):
    """After the answer, or before its second token: it stays as it is."""
    planted, right, wrong = wrong_later
    if share:
        planted, wrong = wrong_at_first(model)
    found = checked(model, planted, check="wait", on_mismatch="report", check_share=share, whole=whole)
    same_answer(found, wrong)
    check = found.specprefill.check
    assert check["status"] == "differs" and check["first_difference"] == check["agreed_n"] == (0 if share else 13)
    if not share:
        assert wrong.token_ids[:13] == right.token_ids[:13] and wrong.token_ids[13] != right.token_ids[13]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_stopped(model, wrong_later, share):
    planted, wrong = wrong_at_first(model) if share else wrong_later[::2]
    found = checked(model, planted, check="wait", on_mismatch="stop", check_share=share)
    assert found.finish_reason == "check" and found.specprefill.check["status"] == "differs"
    assert found.token_ids == (wrong.token_ids[:1] if share else wrong.token_ids)


def test_auto_is_revise_for_whole_answers_only(model, wrong_later):
    planted, right, wrong = wrong_later
    same_answer(checked(model, planted), right)
    streamed = checked(model, planted, check="wait", check_share=0, whole=False)
    same_answer(streamed, wrong)
    assert streamed.specprefill.check["status"] == "differs"


def test_pending_where_a_stream_ends_before(model, wrong_later):
    planted, right, wrong = wrong_later
    found = checked(model, planted, check_share=0, whole=False)
    same_answer(found, wrong)
    check = found.specprefill.check
    assert check["status"] == "pending" and check["agreed_n"] == 0 and "dense prefill" in check["reason"]
    same_answer(checked(model, planted, check_share=0, whole=True), right)


def test_no_room_for_a_second_cache(load_model):
    """Two pages: one for what is kept, none for a prompt of two; or a context that the whole prompt is longer than."""
    small = load_model("mtp-b-q4km", kv_type="f32", max_context=512, prefill_chunk=32)
    for length in (400, 600):
        ids = np.random.default_rng(5).integers(0, 256, length).tolist()
        options = {"kept_ranges": [[0, 40], [length - 20, length]], "max_tokens": 4, "sampling": GREEDY}
        found = vkprefill.generate(small, ids, spec=on(), **options)
        check = found.specprefill.check
        assert check["status"] == "off" and ("room" if length == 400 else "the whole prompt has 600") in check["reason"]
        same_answer(found, vkprefill.generate(small, ids, **options))
        with pytest.raises(vkprefill.RequestError, match="^check: "):
            vkprefill.generate(small, ids, spec=on(check="wait"), **options)
    assert len(small.runner.pool.free_pages) == 2


@pytest.mark.parametrize("make", [vkprefill.generate, Session], ids=["generate", "session"])
def test_no_room_is_known_before_the_prompt_is_scored(load_model, monkeypatch, make):
    """Two pages: a prompt of two has none for the early layers that score."""
    small = load_model("mtp-b-q4km", kv_type="f32", max_context=512, prefill_chunk=32)
    spec = on(check="wait", scorer="self", break_even=False, tool_guard=False)
    ids = np.random.default_rng(5).integers(0, 256, 400).tolist()

    def answer(length: int) -> str:
        if make is Session:
            session = Session(small, None, spec)
            try:
                options = AnswerOptions(4, GREEDY)
                return list(session.stream_ids(ids[:length], options))[-1].specprefill.check["status"]
            finally:
                session.close()
        return make(small, ids[:length], spec=spec, max_tokens=4, sampling=GREEDY).specprefill.check["status"]

    assert answer(200) in ("equal", "revised")
    monkeypatch.setattr(SelfScorer, "score_in_slices", lambda *_, **__: pytest.fail("scored"))
    with pytest.raises(vkprefill.RequestError, match="^check: no room for a second cache: memory for 1024 tokens"):
        answer(400)
    assert len(small.runner.pool.free_pages) == 2


def test_the_room_ends_meanwhile(load_model):
    """Three pages, of which the answer wants a second one while the prompt has two: the answer goes first."""
    small = load_model("mtp-b-q4km", kv_type="f32", max_context=768, prefill_chunk=32)
    ids = np.random.default_rng(6).integers(0, 256, 300).tolist()
    options = {"kept_ranges": [[0, 225], [290, 300]], "max_tokens": 40, "sampling": GREEDY}
    alone = vkprefill.generate(small, ids, **options)
    assert alone.timings.predicted_n > 30, "else the case is none"
    spec = on(on_mismatch="report", check_share=0.02)
    found = collect(vkprefill.stream_generate(small, ids, spec=spec, **options))
    assert found.token_ids == alone.token_ids
    assert len(small.runner.pool.free_pages) == 3


# -- given up ----------------------------------------------------------------------------------------------------------


def test_left_after_every_part(model, wrong_later):
    """Nothing is left (see the fixture), and the next answer is right."""
    planted, right, _ = wrong_later
    spec = on(check="wait", on_mismatch="revise", check_share=0.3)
    for count in range(1, LIMIT + 2):
        parts = vkprefill.stream_generate(model, planted.ids, spec=spec, **planted.options(sampling=GREEDY))
        taken = [part for part, _ in zip(parts, range(count), strict=False)]
        parts.close()
        assert taken
    same_answer(vkprefill.generate(model, planted.ids, spec=spec, **planted.options(sampling=GREEDY)), right)


@pytest.mark.parametrize("error", [KeyboardInterrupt, vkprefill.OutOfMemoryError])
@pytest.mark.parametrize("what", ["prefill", "run_rows"])
def test_cut_off_at_every_run(model, wrong_later, monkeypatch, what, error):
    """Interrupts end the answer. Where the dense side lacks memory the sparse answer goes on."""
    planted, _, _ = wrong_later
    options = planted.options(sampling=GREEDY, spec=on(check_share=0.5), decode=DECODE[0], max_tokens=16)
    right = vkprefill.generate(model, planted.ids, sampling=GREEDY, max_tokens=16)
    real, calls = getattr(model.runner, what), []

    def counted(*args: object, **options: object) -> object:
        calls.append(args)
        if len(calls) == failing:
            raise error("cut off")
        return real(*args, **options)

    monkeypatch.setattr(model.runner, what, counted)
    failing, outcomes = 1, []
    while True:
        calls.clear()
        try:
            found = vkprefill.generate(model, planted.ids, **options)
            outcomes.append(found.specprefill.check["status"])
        except error:
            outcomes.append("failed")
        assert len(model.runner.pool.free_pages) == 4
        if len(calls) < failing:
            break
        failing += 1
    assert outcomes[-1] in ("revised", "equal") and "failed" in outcomes[:-1]
    lacks_memory = error is vkprefill.OutOfMemoryError and what == "prefill"  # rows are fewer then
    assert ("off" in outcomes) == lacks_memory
    same_answer(found, right)


def test_the_built_in_pair(built_in):
    """Text and a question, of which random parts are read: right answers, and the way to them is told."""
    rng, statuses = np.random.default_rng(1), set()
    for number in range(3):
        ids = encode_prompt(built_in, PROMPTS[number]["user"]).token_ids
        starts = np.sort(rng.permutation(len(ids) // 32 - 1)[:3]) * 32
        kept = [[int(s), int(s) + 32] for s in starts] + [[len(ids) - 16, len(ids)]]
        found = vkprefill.generate(built_in, ids, sampling=GREEDY, kept_ranges=kept, spec=on())
        assert found.text == vkprefill.generate(built_in, ids, sampling=GREEDY).text
        statuses.add(found.specprefill.check["status"])
    assert statuses <= {"equal", "revised"} and "revised" in statuses
