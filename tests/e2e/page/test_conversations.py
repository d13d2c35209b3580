"""Conversations are kept in the browser: found again, renamed, deleted, taken elsewhere."""

import json

from tests.e2e.page.browser import SCRIPTED, exported, take_in
from tests.e2e.page.test_answers import KEYS
from tests.e2e.page.test_turns import shown

HOSTILE = "<img src=x onerror=\"document.title = 'owned'\">"


def titles(page) -> list[str]:
    return page.texts("#conversations .open")


def menu(page, number: int, verb: str) -> None:
    page.all("#conversations .more")[number].click()
    page.press(verb, "#menu")


def downloaded(page, action) -> str:
    """Text of the file that an action has the browser keep."""
    page.js(
        "window.files = []; const make = URL.createObjectURL;"
        "URL.createObjectURL = (blob) => (files.push(blob), make(blob))"
    )
    action()
    page.until(lambda: page.js("return files.length"))
    return page.call("return files[0].text()")


def test_list(scripted):
    page = scripted
    assert "will be listed here" in page.id("none").text
    page.answered("What is the first?\nNot the title", "1")
    page.id("new").click()
    page.until(lambda: page.id("welcome").is_displayed())
    assert page.focused() == "message" and not page.all("article")
    page.answered("The second", "2")
    assert titles(page) == ["The second", "What is the first?"]
    assert page.all("#conversations .open")[0].get_attribute("aria-current") == "true"
    page.all("#conversations .open")[1].click()
    page.until(lambda: shown(page) == ["What is the first?\nNot the title", "1"])
    assert page.driver.title.startswith("What is the first? - ")
    page.driver.back()
    page.until(lambda: shown(page) == ["The second", "2"])
    page.load()
    assert shown(page) == ["The second", "2"] and titles(page) == ["The second", "What is the first?"]


def test_rename(scripted):
    page = scripted
    page.answered("Hello", "1")
    menu(page, 0, "Rename")
    field = page.driver.switch_to.active_element
    assert field.get_attribute("value") == "Hello"
    field.send_keys("Not kept", KEYS["escape"])
    assert titles(page) == ["Hello"]
    menu(page, 0, "Rename")
    page.driver.switch_to.active_element.send_keys(HOSTILE, "\ue007")
    page.until(lambda: titles(page) == [HOSTILE])
    page.load()
    assert titles(page) == [HOSTILE] and HOSTILE in page.driver.title and not page.all("img")
    assert page.id("title").get_attribute("textContent") == HOSTILE
    page.js(SCRIPTED)
    page.answered("More", "2")
    assert titles(page) == [HOSTILE], "the name stays when it goes on"


def test_delete_and_undo(scripted):
    page = scripted
    page.answered("Hello", "1")
    menu(page, 0, "Delete")
    page.until(lambda: page.id("toast").is_displayed())
    assert titles(page) == [] and page.id("welcome").is_displayed() and page.id("toast").text == "Deleted: Hello\nUndo"
    page.press("Undo", "#toast")
    page.until(lambda: titles(page) == ["Hello"])
    page.all("#conversations .open")[0].click()
    page.until(lambda: shown(page) == ["Hello", "1"])
    menu(page, 0, "Delete")
    page.until(lambda: titles(page) == [])
    page.load()
    assert titles(page) == []


def test_delete_while_it_is_answered(scripted):
    page = scripted
    page.begin("Hello")
    page.say("Half")
    page.until(lambda: page.texts(".answer > .text") == ["Half"] and len(page.all("#conversations .working")) == 1)
    menu(page, 0, "Delete")
    page.until(lambda: titles(page) == [])
    page.load()
    assert titles(page) == []
    left = """const { openStore } = await import("/store.js");
    const { database } = await openStore();
    const request = database.transaction("turns").objectStore("turns").count();
    return new Promise((resolve) => (request.onsuccess = () => resolve(request.result)));"""
    assert page.call(left) == 0


def test_another_one_while_an_answer_comes(scripted):
    """It goes on, is marked in the list, and is there when one comes back; the other can be asked meanwhile."""
    page = scripted
    page.begin("Slow")
    page.say("One")
    page.until(lambda: "One" in page.id("log").text)
    page.js("window.slow = { answer: window.answer, end: window.end }")
    page.id("new").click()
    page.until(lambda: page.id("welcome").is_displayed())
    assert page.idle() and len(page.all("#conversations .working")) == 1
    page.answered("Quick", "2")
    page.js("slow.answer({ choices: [{ delta: { content: ' two' } }] })")
    page.all("#conversations .open")[1].click()
    page.until(lambda: shown(page) == ["Slow", "One two"])
    assert not page.idle()
    page.js("slow.answer({ choices: [{ delta: { content: ' three' } }] }); slow.end()")
    page.until(page.idle)
    assert shown(page) == ["Slow", "One two three"] and not page.all("#conversations .working")


def test_export_and_import(scripted):
    page = scripted
    page.answered("Hello", "It is **bold**.")
    page.press("Answer again")
    page.request(1)
    page.say("Another")
    page.end()
    markdown = downloaded(page, lambda: menu(page, 0, "Export as Markdown"))
    assert markdown == "# Hello\n\n## You\n\nHello\n\n## Answer\n\nAnother\n"
    text = downloaded(page, lambda: menu(page, 0, "Export as JSON"))
    everything = downloaded(page, page.id("export-all").click)
    assert text == everything and json.loads(text)["format"] == "vkprefill conversations"
    take_in(page, text)
    page.until(lambda: titles(page) == ["Hello", "Hello"])
    page.all("#conversations .open:not([aria-current])")[0].click()
    page.until(lambda: len(page.all("article")) == 1)
    page.press("Version before")
    assert shown(page) == ["Hello", "It is bold."]


def test_export_of_what_was_imported(scripted):
    """Turns that are of one moment keep their order."""
    page = scripted
    turn = {"content": "y", "reasoning": "", "files": [], "state": "done"}
    turns = [{"id": str(n), "parent": str(n - 1) if n else None, "user": f"turn {n}", **turn} for n in range(9)]
    take_in(page, exported({"title": "One", "leaf": "8", "turns": turns}))
    page.until(lambda: titles(page) == ["One"])
    text = downloaded(page, page.id("export-all").click)
    assert [one["user"] for one in json.loads(text)["conversations"][0]["turns"]] == [f"turn {n}" for n in range(9)]
    take_in(page, text)
    page.until(lambda: titles(page) == ["One", "One"])


def test_damaged_files_change_nothing(scripted):
    page = scripted
    page.answered("Hello", "1")
    text = downloaded(page, page.id("export-all").click)
    good = json.loads(text)
    bad = [
        "not JSON",
        "[]",
        "null",
        json.dumps({**good, "version": 2}),
        json.dumps({**good, "conversations": [*good["conversations"], {"title": 1}]}),
    ]
    turn = good["conversations"][0]["turns"][0]
    for change in ({"state": "<b>"}, {"parent": "none"}, {"files": [{"name": 1}]}, {"content": None}):
        conversation = {**good["conversations"][0], "turns": [{**turn, **change}]}
        bad.append(json.dumps({**good, "conversations": [conversation]}))
    bad.append(json.dumps({**good, "conversations": [{**good["conversations"][0], "leaf": "none"}]}))
    for one in bad:
        page.js("document.getElementById('toast').textContent = ''")
        take_in(page, one)
        page.until(lambda: page.id("toast").text)
        assert any(words in page.id("toast").text for words in ("no file of", "another version", "is damaged")), one
    assert titles(page) == ["Hello"]


def test_what_is_not_sent_is_kept(scripted):
    page = scripted
    page.type("for a new one")
    page.load()
    assert page.id("message").get_attribute("value") == "for a new one"
    page.js(SCRIPTED)
    page.answered("Hello", "1")
    page.type("for the first")
    page.id("new").click()
    page.until(lambda: page.id("welcome").is_displayed())
    assert page.id("message").get_attribute("value") == ""
    page.all("#conversations .open")[0].click()
    page.until(lambda: page.id("message").get_attribute("value") == "for the first")


def test_find(scripted):
    page = scripted
    turn = {"id": "a", "parent": None, "user": "x", "content": "y", "reasoning": "", "files": [], "state": "done"}
    take_in(page, exported(*({"title": f"Number {number}", "leaf": "a", "turns": [turn]} for number in range(9))))
    page.until(lambda: len(titles(page)) == 9)
    page.id("filter").send_keys("number 4")
    assert titles(page) == ["Number 4"]
    page.id("filter").send_keys("x")
    assert titles(page) == [] and page.id("none").text == "No title has that in it."


def test_a_browser_that_keeps_nothing(driver, server):
    """Private windows of some browsers: it works, and says so."""
    from tests.e2e.page.browser import Page

    script = "Object.defineProperty(window, 'indexedDB', { value: { open() { throw new Error('no'); } } });"
    page = Page(driver, server.url)
    added = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
    try:
        page.load()
        page.js(SCRIPTED)
        assert page.id("not-kept").is_displayed()
        page.answered("Hello", "1")
        page.id("new").click()
        page.answered("Other", "2")
        page.all("#conversations .open")[1].click()
        page.until(lambda: shown(page) == ["Hello", "1"])
    finally:
        driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": added["identifier"]})
