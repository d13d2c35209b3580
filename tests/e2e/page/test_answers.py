"""Answers of the built-in model on the page: what was read of a prompt, and how it is shown."""

import re

from tests.e2e.conftest import DEMO
from tests.e2e.page.browser import SCRIPTED

KEYS = {"right": "\ue014", "down": "\ue015", "up": "\ue013", "end": "\ue010", "escape": "\ue00c"}


def counts(page, state: str) -> int:
    """Tokens of the map that are kept, dropped, cached or dropped before."""
    return sum(int(token.get_attribute("data-count")) for token in page.all(f"#prompt .{state} > span[title]"))


def test_what_was_read(page):
    """A long prompt: the answer, the split of the time, and every token of the prompt as kept or dropped."""
    seen = page.ask(DEMO[0]["user"])
    assert seen["answer"] == DEMO[0]["answer"] and seen["status"] == "active"
    total, kept, dropped = DEMO[0]["n_tokens"], counts(page, "kept"), counts(page, "dropped")
    assert 0 < kept < dropped and kept + dropped == total
    for words in (
        "Only the important parts were read",
        f"({kept} of {total} tokens)",
        "first word after",
        "scoring",
        "looking ahead",
        "reading",
    ):
        assert words in seen["text"]
    assert page.id("panel-title").text.startswith(f"{kept} of {total} tokens were read")
    text = "".join(token.get_attribute("textContent") for token in page.all("#prompt span[title]"))
    assert DEMO[0]["user"] in text
    assert page.all("#prompt .kept .h7") and len(page.all("#overview .kept")) > 10

    prompt, line, said = page.id("prompt"), page.id("token"), []
    for key in ("right", "right", "down", "up", "end"):
        prompt.send_keys(KEYS[key])
        said.append(line.text)
    assert said[0].startswith("token 0, importance ") and said[1].startswith("token 1,")
    states = [text.rsplit(", ", 1)[1] for text in said]
    assert states[2] != states[1] and states[3] == states[1]
    assert said[4].startswith(f"token {total - 1},")

    page.id("only").click()
    assert not page.all("#prompt del span")[0].is_displayed() and "dropped]" in prompt.text
    page.id("scale-kind").send_keys("rank")
    assert page.id("top").text == "first 1 %" and 0 < len(page.all("#prompt .h7")) <= total // 50
    page.id("close-panel").click()
    assert not page.id("panel").is_displayed()
    page.open_panel()
    page.until(lambda: page.focused() == "panel-title")


def test_everything_is_read(page):
    page.id("open-reading").click()
    page.id("amount-all").click()
    assert not page.id("keep").is_enabled() and page.id("reading-words").text == "everything"
    page.escape()
    seen = page.ask("Who is Robert?")
    assert seen["status"] == "disabled"
    assert not page.all("#prompt del") and counts(page, "kept") + counts(page, "cached") > 5
    assert page.id("panel-title").text.startswith("All ") and not page.id("scale-box").is_displayed()


def test_a_second_question(page):
    """What the first turn left out stays left out, and is shown so; after a reload all of it is there again."""
    first = page.ask(DEMO[1]["user"])
    assert re.search(r"drafts [1-9]\d* of \d+ accepted \(\d+\u00a0%\)", first["text"]), "digits copied out of the text"
    seen = page.ask(DEMO[1]["question"])
    holes, read = counts(page, "before"), counts(page, "cached")
    assert holes > 0 and read > 0 and holes + read > DEMO[1]["n_tokens"]
    assert f"{holes} of {holes + read} tokens of earlier turns stay left out" in seen["text"]
    assert page.id("legend-before").is_displayed() and len(page.all("article")) == 2
    page.all("#prompt .before > span")[0].click()
    assert page.id("token").text.endswith(", dropped before")
    page.load()
    assert page.last() == seen and len(page.all("article")) == 2
    assert counts(page, "before") == holes and counts(page, "cached") == read


def test_the_model_itself_finds_what_matters(page):
    page.id("open-reading").click()
    scorer = page.id("scorer")
    options = [(one.get_attribute("value"), one.text) for one in scorer.find_elements("tag name", "option")]
    assert options == [
        ("auto", "whom the server chooses"),
        ("draft", "the small draft model"),
        ("self", "the model's own first layers"),
    ]
    assert scorer.get_attribute("value") == "auto" and scorer.accessible_name.startswith("What matters is found by")
    page.id("check").click()
    scorer.send_keys("the model")
    page.escape()
    page.js(SCRIPTED)
    assert page.begin("Hello")["specprefill"] == {"scorer": "self", "check": "on", "on_mismatch": "revise"}
    page.id("stop").click()


def test_stop_ends_the_servers_work(page, server):
    left = server.num_left()
    with server.engine_paused():
        page.send(DEMO[10]["user"])
        server.wait_for(lambda: server.metric("requests_processing") == 1)
        page.escape()
        page.until(lambda: "Stopped" in page.id("log").text)
    server.wait_for(lambda: server.num_left() == left + 1)
    assert page.all(".answer .tools button")[-1].text == "Try again"


def test_a_reload_while_the_prompt_is_read(page, server):
    """Nothing of the answer was there yet: the message stays, and can be sent again."""
    left = server.num_left()
    with server.engine_paused():
        page.send(DEMO[10]["user"])
        server.wait_for(lambda: server.metric("requests_processing") == 1)
        page.load()
        assert DEMO[10]["user"] in page.js("return document.querySelector('.user > .text').textContent")
        assert page.texts(".note") == ["The page was left before this answer was complete."]
        assert [one.accessible_name for one in page.all(".answer .tools button")] == ["Try again"]
    server.wait_for(lambda: server.num_left() == left + 1)
