"""What can be done with a turn: copy, edit, answer again, and go back to what was there before."""

from tests.e2e.page.test_answers import KEYS


def clipboard(page) -> list[str]:
    return page.js("return window.copied")


def watch_clipboard(page) -> None:
    page.js("window.copied = []; navigator.clipboard.writeText = async (text) => { window.copied.push(text); }")


def shown(page) -> list[str]:
    return page.texts(".user > .text") + page.texts(".answer > .text")


def test_copy(scripted):
    page = scripted
    watch_clipboard(page)
    page.answered("What is *it*?", "It is **bold**.\n\n```\nx = 1\n```\n")
    page.press("Copy", ".said")
    page.press("Copy", ".answer > .foot")
    page.press("Copy", ".code-head")
    page.until(lambda: len(clipboard(page)) == 3)
    assert clipboard(page) == ["What is *it*?", "It is **bold**.\n\n```\nx = 1\n```\n", "x = 1"]
    page.until(lambda: page.texts(".said .tools button")[0] == "Copied")


def test_copy_without_a_clipboard(scripted):
    """As over plain HTTP from another machine."""
    page = scripted
    page.js(
        "Object.defineProperty(navigator, 'clipboard', { value: undefined });"
        "document.addEventListener('copy', () => { window.copied = document.activeElement.value; })"
    )
    page.answered("Hello", "World")
    page.press("Copy", ".foot")
    page.until(lambda: clipboard(page) == "World")


def test_answer_again_and_back(scripted):
    page = scripted
    page.answered("Hello", "First")
    page.press("Answer again")
    body = page.request(1)
    assert [m["content"] for m in body["messages"]] == ["Hello"]
    page.say("Second")
    page.end()
    assert shown(page) == ["Hello", "Second"] and "2 / 2" in page.texts(".versions")[0]
    page.answered("More", "Third")
    page.press("Version before")
    assert shown(page) == ["Hello", "First"]
    page.press("Version after")
    assert shown(page) == ["Hello", "More", "Second", "Third"], "with what followed"
    page.load()
    assert shown(page) == ["Hello", "More", "Second", "Third"]


def test_edit(scripted):
    page = scripted
    page.answered("One", "1")
    page.answered("Two", "2")
    page.press("Edit", "article:nth-of-type(1)")
    area = page.all(".edit textarea")[0]
    assert area.get_attribute("value") == "One" and area == page.driver.switch_to.active_element
    area.send_keys(KEYS["escape"])
    assert not page.all(".edit") and shown(page) == ["One", "Two", "1", "2"]
    page.press("Edit", "article:nth-of-type(1)")
    page.all(".edit textarea")[0].send_keys(" more")
    page.press("Send", ".said")
    assert [m["content"] for m in page.request(2)["messages"]] == ["One more"]
    page.say("3")
    page.end()
    assert shown(page) == ["One more", "3"]
    page.press("Version before")
    assert shown(page) == ["One", "Two", "1", "2"]


def test_edit_the_last_by_key(scripted):
    page = scripted
    page.answered("One", "1")
    page.answered("Two", "2")
    page.id("message").send_keys(KEYS["up"])
    assert page.all(".edit textarea")[0].get_attribute("value") == "Two"


def test_nothing_is_changed_while_an_answer_comes(scripted):
    page = scripted
    page.answered("One", "1")
    page.begin("Two")
    names = [one.accessible_name for one in page.all("article button") if one.is_displayed()]
    assert names == ["Copy", "Copy", "Copy"]
    page.type("Three")
    page.id("message").send_keys("\ue007")
    assert page.id("message").get_attribute("value") == "Three" and page.js("return sent.length") == 2
    page.say("2")
    page.end()


def test_long_messages_are_folded(scripted):
    page = scripted
    page.answered("word " * 400, "Yes")
    (text,) = page.all(".user > .text")
    height = text.size["height"]
    page.press("Show all 1,999 characters")
    assert text.size["height"] > height
    page.press("Show less")
    assert text.size["height"] == height
