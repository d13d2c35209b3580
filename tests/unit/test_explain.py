"""explain's pure part: the heat scale, pieces of text, markers, escaping. No device, no model."""

import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import vkprefill
from vkprefill.display import visible
from vkprefill.explain import layer_map
from vkprefill.explain.explanation import (
    HEAT_LEVELS,
    HEAT_RANGE,
    TERMINAL_HEAT,
    Explanation,
    _queries,
    coloured_text,
    heat_levels,
    marked_text,
    pieces,
    summary,
)
from vkprefill.explain.layer_map import ATTENTION, DELTA_NET, MOST_COLUMNS, LayerMap, levels
from vkprefill.explain.page import STYLE, page
from vkprefill.specprefill import guards
from vkprefill.specprefill.plan import SpecPrefillReport
from vkprefill.specprefill.protection import Protected
from vkprefill.specprefill.selection import Selection
from vkprefill.specprefill.settings import SpecPrefillConfig


def explanation(tokens, kept, *, special=(), importance=None, status=guards.ACTIVE, chunk=2, **names):
    """Of tokens (bytes), the positions kept and those of special tokens."""
    total = len(tokens)
    importance = np.linspace(0.01, 1, total, dtype=np.float32) if importance is None else np.float32(importance)
    kept = np.array(sorted(kept), np.int32)
    mask = np.isin(np.arange(total), kept)
    changes = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    bounds = np.unique([*range(0, total, chunk), total]).astype(np.int32)
    scores = np.add.reduceat(importance, bounds[:-1]) / np.diff(bounds)
    selection = Selection(
        kept,
        tuple(zip(changes[::2].tolist(), changes[1::2].tolist(), strict=True)),
        kept[:0],
        bounds,
        scores.astype(np.float32),
    )
    report = SpecPrefillReport(status, "a reason", total, settings=SpecPrefillConfig().as_dict())
    times = {"score": 1500.0, "lookahead": 20.0, "select": 0.25}
    flags = [t in special for t in range(total)]
    return Explanation(list(range(total)), list(tokens), flags, importance, selection, report, times, **names)


class Outline(HTMLParser):
    """Tags, and the text inside and outside of <del> within the prompt."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.titles = [], [], []
        self.kept = self.dropped = ""
        self._depth, self._in_del, self._skip = 0, False, False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if attributes.get("id") == "prompt":
            self._depth = 1
        elif self._depth:
            self._depth += 1
            self._in_del |= tag == "del"
            self._skip = attributes.get("class") == "gap"
            if "title" in attributes:
                self.titles.append(attributes["title"])

    def handle_endtag(self, tag):
        if self._depth:
            self._depth -= 1
            self._skip = False
            if tag == "del":
                self._in_del = False

    def handle_data(self, data):
        if not self._depth or self._skip:
            return
        if self._in_del:
            self.dropped += data
        else:
            self.kept += data


def test_the_chat_page_has_the_same_scale():
    """Its script has the numbers again; colours and levels are one file for both pages."""
    web = Path(vkprefill.__file__).parent / "web"
    style = (web / "heat.css").read_text()
    assert f"\nexport const LEVELS = {HEAT_LEVELS};" in (web / "heat_scale.js").read_text()
    for name, values in (("heat_scale.js", HEAT_RANGE), ("layer_map.js", layer_map.HEAT_RANGE)):
        script = (web / name).read_text()
        assert re.search(r"^const RANGE = (\d+);", script, re.M)[1] == str(values)
    levels = re.findall(r"^\.h(\d+) { --level: ([\d.]+); }", style, re.M)
    assert levels == [(str(level), f"{level / (HEAT_LEVELS - 1):.3f}") for level in range(HEAT_LEVELS)]
    assert style in STYLE and len(TERMINAL_HEAT) == HEAT_LEVELS


def test_heat_is_logarithmic_below_its_top():
    importance = np.float32([1 / HEAT_RANGE / 2, 1 / HEAT_RANGE, HEAT_RANGE**-0.5, 1, 1])
    assert heat_levels(importance).tolist() == [0, 0, HEAT_LEVELS // 2, HEAT_LEVELS - 1, HEAT_LEVELS - 1]
    assert len(TERMINAL_HEAT) == HEAT_LEVELS


def test_one_outlier_does_not_cool_all_the_others():
    importance = np.full(1000, 0.01, np.float32)
    importance[0] = 1000
    assert heat_levels(importance).min() == HEAT_LEVELS - 1


@pytest.mark.parametrize("values", [[0.0], [0.0, 0.0, 0.0], [0.0] * 500 + [1.0]])
def test_heat_of_zeros(values):
    levels = heat_levels(np.float32(values))
    assert levels[0] == 0
    assert levels.min() >= 0 and levels.max() < HEAT_LEVELS


def test_pieces_are_the_tokens_in_order():
    found = pieces(explanation([b"a", b" b", b" c"], [0, 2]))
    assert [(p.text, p.start, p.end, p.kept) for p in found] == [
        ("a", 0, 1, True),
        (" b", 1, 2, False),
        (" c", 2, 3, True),
    ]


def test_a_character_of_several_tokens_is_one_piece():
    raw = "日".encode()
    found = pieces(explanation([b"x", raw[:1], raw[1:], b"y"], [0, 1, 2], importance=[1, 2, 3, 4]))
    assert [(p.text, p.start, p.end) for p in found] == [("x", 0, 1), ("日", 1, 3), ("y", 3, 4)]
    assert found[1].importance == 3


def test_a_character_cut_by_a_border_shows_so():
    raw = "é".encode()
    assert marked_text(explanation([raw[:1], raw[1:]], [0])) == "\ufffd[-\ufffd-]"


def test_bytes_that_are_no_character_do_not_reach_into_special_tokens():
    found = pieces(explanation([b"\xe6", b"<|end|>", b"\x97\xa5"], [0, 1, 2], special=[1]))
    assert [(p.text, p.special) for p in found] == [("\ufffd", False), ("<|end|>", True), ("\ufffd\ufffd", False)]


def test_dropped_stretches_are_marked_once():
    tokens = [b"keep", b" drop", b" drop", b" keep", b" drop"]
    assert marked_text(explanation(tokens, [0, 3])) == "keep[- drop drop-] keep[- drop-]"
    assert marked_text(explanation(tokens, range(5))) == "keep drop drop keep drop"


def test_control_characters_are_shown_and_do_nothing():
    assert visible("a\x1b[31mb\r\n\t\x00\x7f") == "a\u241b[31mb\u240d\n\t\u2400\u2421"
    assert visible("\u202eabc\x9b") == "<U+202E>abc<U+009B>"
    assert visible("naïve 日本 👩‍💻\u00a0") == "naïve 日本 👩‍💻\u00a0"


def test_terminal_text_has_a_style_for_kept_dropped_and_special():
    text = coloured_text(
        explanation([b"cold", b" hot", b" gone", b"<|x|>"], [0, 1, 3], special=[3], importance=[0, 1, 1, 0])
    )
    assert text.plain == "cold hot gone<|x|>"
    styles = {text.plain[s.start : s.end]: s.style for s in text.spans}
    assert styles[" hot"].bgcolor is not None and not styles[" hot"].strike
    assert styles[" gone"].strike and styles[" gone"].bgcolor is None
    assert styles["<|x|>"].bold and styles["<|x|>"].underline
    assert "cold" not in styles or not styles["cold"].bgcolor


def test_terminal_text_holds_no_escape_codes_of_the_prompt():
    assert "\x1b" not in coloured_text(explanation([b"\x1b]0;title\x07", b"x"], [0, 1])).plain


def test_summary_is_one_line_with_counts_settings_and_times():
    line = summary(explanation([b"a"] * 10, range(4), queries="lookahead 8"))
    assert "\n" not in line
    assert "active: a reason; kept 4 of 10 tokens (40%)" in line
    assert "mass 0.85, max_keep 2000, chunks of 32, lookahead 8" in line
    assert "scoring 1.50 s, look-ahead 20 ms, selection 0.2 ms" in line


@pytest.mark.parametrize(
    ("settings", "by_draft", "said"),
    [
        ({}, True, "lookahead 8"),
        ({"lookahead": 0}, True, "query of the last token"),
        ({"score_layers": (3,)}, True, "queries of the last 32 tokens"),
        ({"tail_queries": 5}, True, "queries of the last 5 tokens"),
        ({}, False, "queries of the last 32 tokens"),
        ({"tail_queries": 500}, False, "queries of the last 100 tokens"),
    ],
)
def test_whose_rows_counted(settings, by_draft, said):
    draft = SimpleNamespace(config=SimpleNamespace(attention_layers=(3, 7), num_hidden_layers=8))
    config = SpecPrefillConfig(**{"score_depth": 1.0, **settings})
    assert _queries(config, draft if by_draft else None, Protected(), 100) == said


def test_times_of_what_was_not_done_are_not_told():
    found = explanation([b"a"] * 10, range(4), queries="queries of the last 32 tokens")
    found.times_ms["lookahead"] = 0.0
    assert summary(found).endswith("chunks of 32, queries of the last 32 tokens; scoring 1.50 s, selection 0.2 ms")


def test_a_skipped_prefill_is_said_to_be_one():
    skipped = explanation([b"a"] * 10, range(4), status=guards.SKIPPED_BREAK_EVEN)
    assert "scoring would keep 4 of 10" in summary(skipped)
    assert "4 of 10 tokens would be kept" in page(skipped)
    assert "Below is what scoring would choose" in page(skipped)


def test_dict_reads_back_as_the_same_float32():
    importance = np.float32([1 / 3, 1e-9, 0.1, 5])
    found = explanation([b"a", b"\xff", b"c", b"d"], [0, 3], importance=importance).as_dict()
    assert np.float32(found["importance"]).tolist() == importance.tolist()
    assert found["tokens"] == ["a", "\ufffd", "c", "d"]
    assert found["kept_ranges"] == [[0, 1], [3, 4]] and found["kept_n"] == 2
    assert len(found["chunk_scores"]) == len(found["chunk_bounds"]) - 1


def test_page_shows_kept_and_dropped_text():
    outline = Outline(page(explanation([b"one", b" two", b" three", b" four"], [0, 3])))
    assert outline.kept == "one four"
    assert outline.dropped == " two three"
    assert outline.titles[1].startswith("token 1, importance 0.34")


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        "</div></main><script>alert(1)</script>",
        '" onmouseover="alert(1)',
        "' autofocus onfocus=alert(1) '",
        "<!-- ",
        "&lt;b&gt;&amp;",
        "<img src=x onerror=alert(1)>",
        "</style><style>*{display:none}",
    ],
)
def test_page_escapes_all_text(hostile):
    raw = hostile.encode()
    tokens = [b"start ", raw, raw[: len(raw) // 2], raw[len(raw) // 2 :], b" end"]
    text = page(explanation(tokens, [0, 1, 4], target=hostile, draft=hostile, device=hostile))
    plain = page(explanation([b"x"] * 5, [0, 1, 4]))
    outline = Outline(text)
    assert outline.tags == Outline(plain).tags
    assert outline.kept == f"start {hostile} end" and outline.dropped == hostile


def test_page_needs_no_other_file_or_host():
    text = page(explanation([b"x"] * 8, [0, 1]))
    assert not re.search(r"https?:|//|\burl\(|@import|<link|<img|\bsrc=", re.sub(r"sha256-[^']*", "", text))
    assert "default-src 'none'" in text


def test_page_marks_special_tokens_apart_from_the_same_text():
    text = page(explanation([b"<|im_end|>", b"<|im_end|>"], [0, 1], special=[0]))
    assert text.count('special"') == 1


def test_chart_has_a_bar_for_each_chunk_that_leads_into_the_prompt():
    text = page(explanation([b"x"] * 9, [0, 1, 4]))
    outline = Outline(text)
    targets = re.findall(r'href="#(t\d+)"', text)
    assert targets == ["t0", "t2", "t4", "t6", "t8"]
    assert set(targets) <= set(outline.ids)
    assert len(outline.ids) == len(set(outline.ids))
    assert text.count('class="on"') == 1  # tokens 4 and 5: only the first of them is kept


def test_page_of_one_token_and_of_zero_scores():
    assert "1 of 1 tokens kept" in page(explanation([b"x"], [0], importance=[0.0]))


# -- the map of layers -------------------------------------------------------------------------------------------------


def test_few_tokens_with_weight_do_not_heat_what_has_none():
    """Rows of delta-net layers are 0 but for the last tokens."""
    weights = np.zeros(1000, np.float32)
    weights[-5:] = 1e-9, 0.0009, 0.033, 0.5, 1
    assert levels(weights).tolist() == [*[0] * 997, HEAT_LEVELS // 2, HEAT_LEVELS - 1, HEAT_LEVELS - 1]
    assert not levels(np.zeros(3, np.float32)).any()


def test_a_strip_for_each_layer():
    """Of a long prompt with the greatest weight of neighbours."""
    total = 2 * MOST_COLUMNS + 1
    weights = np.zeros((2, total), np.float32)
    weights[0, 4], weights[1, -1] = 0.25, 2
    shown = page(explanation([b"x"] * total, range(total)), LayerMap((DELTA_NET, ATTENTION), weights))
    assert re.findall(r"<th scope=\"row\">(\d \w+ ?\w*)</th>", shown) == ["0 delta net", "1 attention"]
    assert re.findall(r"<title>(layer .*?)</title>", shown) == [
        "layer 0, tokens 3 to 5: 0.25",
        f"layer 1, token {total - 1}: 2",
    ]
    assert "layer by layer" not in page(explanation([b"x"], [0]))
