"""What goes with a message: how much is read, thinking, sampling, the key; and what of it stays."""

import json
from contextlib import contextmanager

import pytest

from tests.e2e.page.browser import SCRIPTED, Page
from tests.e2e.page.test_answers import KEYS
from tests.e2e.server_process import ServerProcess

PROPS = """
const before = window.fetch;
window.fetch = async (path, options) => {
  const response = await before(path, options);
  return path === "/props" ? new Response(JSON.stringify({ ...(await response.json()), ...PROPS })) : response;
};
"""


@contextmanager
def server_that_says(page, **props: object):
    """/props with other values."""
    source = PROPS.replace("PROPS }", f"{json.dumps(props)} }}")
    added = page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})
    try:
        page.load()
        page.js(SCRIPTED)
        yield
    finally:
        page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": added["identifier"]})


def choose(page, *ids: str) -> None:
    page.id("open-reading").click()
    for name in ids:
        page.id(name).click()
    page.escape()


def test_how_much_is_read(scripted):
    page = scripted
    assert page.id("reading-words").text == "what matters"
    assert page.answered("One", "1")["specprefill"] == {}
    page.id("open-reading").click()
    assert page.id("auto-text").text == "the parts that hold 85 % of the importance, at most 2,000 tokens"
    page.id("keep").send_keys(KEYS["right"])
    assert page.id("amount-share").is_selected() and page.id("share-text").text == "35 %"
    assert page.id("keep").get_attribute("aria-valuetext") == "the most important 35 %"
    page.escape()
    assert not page.id("reading").is_displayed() and page.id("reading-words").text == "the most important 35 %"
    share = {"select_mode": "chunk", "keep_ratio": 0.35, "max_keep": 0}
    assert page.answered("Two", "2")["specprefill"] == share
    choose(page, "check")
    page.load()
    assert page.id("reading-words").text == "the most important 35 %", "it stays"
    page.js(SCRIPTED)
    assert page.answered("Three", "3")["specprefill"] == {**share, "check": "on", "on_mismatch": "revise"}
    choose(page, "amount-all")
    assert page.answered("Four", "4")["specprefill"] is False


def test_short_texts(scripted):
    page = scripted
    assert not page.all("#reading #always")[0].is_displayed(), "this server leaves out of every prompt"
    settings = page.call('return (await (await fetch("/props")).json()).specprefill')
    with server_that_says(page, specprefill={**settings, "min_tokens": 8192, "break_even": True}):
        page.id("open-reading").click()
        label = page.id("always").find_element("xpath", "..").text
        assert label == "Also where it saves no time (below 8,192 tokens)"
        page.id("always").click()
        page.escape()
        assert page.answered("One", "1")["specprefill"] == {"min_tokens": 0, "break_even_safety": 0}


def test_a_model_that_scores_itself(scripted):
    page = scripted
    settings = page.call('return (await (await fetch("/props")).json()).specprefill')
    with server_that_says(page, specprefill={**settings, "scorer": "self"}, specprefill_scorers=["self"]):
        page.id("open-reading").click()
        assert page.id("amount-auto").is_enabled() and not page.id("scorer").is_displayed()
        page.escape()
        assert page.answered("One", "1")["specprefill"] == {}


def test_thinking(scripted):
    page = scripted
    assert not page.id("thinking").is_displayed(), "the built-in model's template knows no thinking"
    with server_that_says(page, chat_template="{% if enable_thinking %}"):
        assert page.id("thinking").accessible_name == "Thinking"
        assert "chat_template_kwargs" not in page.answered("One", "1")
        page.id("thinking").send_keys("Answers")
        assert page.answered("Two", "2")["chat_template_kwargs"] == {"enable_thinking": False}
        page.id("thinking").send_keys("Thinks f")
        assert page.answered("Three", "3")["chat_template_kwargs"] == {"enable_thinking": True}


def test_settings(scripted):
    page = scripted
    page.id("open-settings").click()
    page.id("system").send_keys("Be brief.")
    page.id("temperature").send_keys("0.5\ue007")
    page.id("most").send_keys("7\ue007")
    assert page.js("return sent.length") == 0 and page.id("settings").is_displayed(), "Enter sends nothing here"
    facts = page.id("facts").text
    assert "Context" in facts and "Driver" in facts and facts.count("llvmpipe") <= 1
    page.escape()
    for number, text in enumerate(("One", "Two"), 1):
        page.type(text)
        page.id("message").send_keys("\ue007")
        body = page.request(number - 1)
        page.say("Yes")
        page.end()
    assert (body["temperature"], body["max_tokens"], body["stream"]) == (0.5, 7, True)
    assert [m["content"] for m in body["messages"]] == ["Be brief.", "One", "Yes", "Two"]
    page.load()
    page.js(SCRIPTED)
    page.id("open-settings").click()
    assert page.id("system").get_attribute("value") == "Be brief.", "they stay"
    page.id("temperature").clear()
    page.id("temperature").send_keys("9\t")
    assert "a number from 0 to 2" in page.id("temperature-mistake").text
    page.id("close-settings").click()
    assert "temperature" not in page.answered("Three", "Yes")


@pytest.fixture(scope="module")
def locked(gpu):
    with ServerProcess("--api-key", "secret", "--no-specprefill", wait=False) as server:
        server.wait_until_ready()
        yield server


def test_key_and_a_server_that_reads_everything(driver, locked):
    """The page asks for the key and keeps it in this tab; it says why there is nothing to choose."""
    page = Page(driver, locked.url)
    assert "asks for an API key" in page.id("server").text and page.focused() == "key"
    page.escape()
    page.send("Hello")
    page.until(lambda: page.all(".error"))
    assert "asks for an API key" in page.texts(".error")[0] and page.id("key").is_displayed()
    page.id("key").send_keys("secret\ue007")
    page.until(lambda: page.id("server").text == "target")
    page.id("close-settings").click()
    kept = page.js("return [JSON.stringify(sessionStorage), JSON.stringify(localStorage) + document.cookie]")
    assert "secret" in kept[0] and "secret" not in kept[1]
    page.press("Try again")
    page.until(lambda: page.all(".figures"))
    assert page.last()["status"] == "disabled"
    page.id("open-reading").click()
    assert not page.id("amount-auto").is_enabled() and "without a draft model" in page.id("no-draft").text
    assert all("Failed to load resource" in error for error in page.errors())
