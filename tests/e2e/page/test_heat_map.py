"""The map of a prompt by itself: pieces of text, states, scales."""


def shown(page, report: dict[str, object]) -> list:
    code = """const { heatMap } = await import("/heat_map.js");
    const nodes = heatMap(args[0], args[0].importance);
    return nodes.map((node) => [node.className, node.textContent, node.childElementCount]);"""
    return page.call(code, report)


def test_cut_characters_and_long_prompts(page):
    """A character of several tokens is one piece, also cut by a border; a very long prompt has fewer pieces."""
    tokens = ["\x1b", [0xF0, 0x9F], [0x98, 0x80], "a\u202e", [0xC3], [0xA9], "<|im_end|>"]
    report = {
        "tokens": tokens,
        "importance": [0.1] * 7,
        "cached_n": 1,
        "cached_ranges": [[0, 1]],
        "kept_ranges": [[1, 5]],
    }
    assert shown(page, report) == [
        ["cached", "\u241b", 1],
        ["kept", "\U0001f600a<U+202E>\ufffd", 3],
        ["dropped", " [2 dropped] \ufffd<|im_end|>", 3],
    ]
    holes = {
        "tokens": list("abc"),
        "importance": None,
        "cached_n": 2,
        "cached_ranges": [[1, 2]],
        "kept_ranges": [[2, 3]],
    }
    assert [name for name, *_ in shown(page, holes)] == ["dropped before", "cached", "kept"]
    long = {
        "tokens": ["a "] * 30000,
        "importance": None,
        "cached_n": 0,
        "cached_ranges": [],
        "kept_ranges": [[0, 30000]],
    }
    assert shown(page, long) == [["kept", "a " * 30000, 1]]


def test_scales(page):
    """By size: a thirtieth of the greatest is cold. By rank: the first hundredth is hot."""
    code = "const { bySize, byRank } = await import('/heat_scale.js'); return [bySize(args[0]), byRank(args[0])]"
    importance = [1.0, 1.0, 30**-0.5, 1 / 30, 0.0]
    by_size, by_rank = page.call(code, importance)
    assert [round(value, 6) for value in by_size["heat"]] == [1, 1, 0.5, 0, 0]
    assert by_rank["heat"][0] == by_rank["heat"][1] > by_rank["heat"][2] > by_rank["heat"][3] == by_rank["heat"][4] == 0
    many = [1 + i / 1e6 for i in range(1000)]
    _, ranks = page.call(code, many)
    assert sum(value == 1 for value in ranks["heat"]) == 10 and ranks["heat"][0] == 0
    assert page.call(code, [0.0, 0.0])[1]["heat"] == [0, 0]
