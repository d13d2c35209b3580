"""Who cannot see well, or has no mouse, or a small screen: axe finds nothing in any state of the page."""

import pytest

from tests.e2e.page.test_files import drop
from tests.e2e.page.test_markdown import WHOLE

REPORT = {
    "status": "active",
    "reason": "the draft chose 2 of 4 new tokens",
    "prompt_n": 6,
    "cached_n": 2,
    "cached_ranges": [[0, 1]],
    "kept_n": 2,
    "kept_ranges": [[2, 3], [4, 5]],
    "tokens": list("abcdef"),
    "importance": [0, 0, 0.1, 0.2, 0.9, 0.01],
    "ttft_ms": 100,
    "dense_estimate_ms": 300,
    "score_ms": 50,
    "check": {"status": "equal"},
}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
def test_axe(scripted, violations, dark, phone):
    page = scripted
    page.dark(dark)
    if phone:
        page.phone()
    assert violations() == [], "empty"
    drop(page, ("notes.txt", b"Notes"))
    page.begin("Hello " * 200)
    page.say(reasoning="Thoughts")
    page.say(WHOLE)
    page.js("answer({ prompt_progress: { stage: 'check', total: 10, processed: 4, time_ms: 1, cache: 0 } })")
    page.until(lambda: page.all("table"))
    assert violations() == [], "in work"
    page.js(
        "answer({ choices: [], specprefill: arguments[0], timings: { predicted_n: 3, predicted_per_second: 9.5 } })",
        REPORT,
    )
    page.end()
    for opened in (".reasoning summary", ".figures summary", ".sent-file summary"):
        page.all(opened)[-1].click()
    page.open_panel()
    assert not page.overflows() and violations() == [], "with the panel"
    page.id("close-panel").click()
    page.press("Answer again")
    page.request(1)
    page.js("answer({ error: { message: 'no', type: 'server_error' } })")
    page.until(lambda: page.all(".error"))
    assert not page.overflows() and violations() == [], "an error, versions"
    page.id("open-reading").click()
    assert not page.overflows() and violations() == [], "how much is read"
    page.escape()
    if phone:
        page.id("open-side").click()
    page.all("#conversations .more")[0].click()
    assert not page.overflows() and violations() == [], "the list's menu"
    page.press("Rename", "#menu")
    assert violations() == [], "a name is changed"
    page.escape()
    if phone:
        page.escape()
    page.id("open-settings").click()
    assert not page.overflows() and violations() == [], "settings"


def test_phone(scripted):
    """390 pixels: the list and the panel lie over the chat, and go by their buttons or Escape."""
    page = scripted
    page.phone()
    page.begin("Hello")
    page.say("x" * 300 + " `" + "y" * 300 + "`")
    page.js(
        "answer({ choices: [], specprefill: arguments[0], timings: { predicted_n: 3, predicted_per_second: 9.5 } })",
        REPORT,
    )
    page.end()
    assert not page.overflows() and not page.id("panel").is_displayed() and not page.id("side").is_displayed()
    page.open_panel()
    assert page.id("prompt").is_displayed() and not page.overflows()
    page.escape()
    assert not page.id("panel").is_displayed()
    page.id("open-side").click()
    assert page.id("side").is_displayed() and not page.overflows()
    page.id("new").click()
    page.until(lambda: page.id("welcome").is_displayed())
    assert not page.id("side").is_displayed()


def test_low_window(scripted):
    """The prompt keeps room for some lines, and the panel scrolls to what is below."""
    page = scripted
    long = {**REPORT, "tokens": ["word " * 200] * 6}
    low = {"width": 1200, "height": 600, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", low)
    page.begin("Hello " * 200)
    page.js("answer({ choices: [], specprefill: arguments[0], timings: { predicted_n: 3 } })", long)
    page.end()
    page.open_panel()
    page.id("layers").find_element("tag name", "summary").click()
    page.request(1)
    layers = {"kinds": ["attention"] * 32, "bounds": [0, 1, 2], "weights": [[0.5, 0.1]] * 32}
    page.js("answer({ layer_map: arguments[0] })", layers)
    page.js("end()")
    page.until(lambda: page.all("#layers table"))
    page.js("document.querySelector('#layers rect').dispatchEvent(new MouseEvent('click', { bubbles: true }))")
    height, above, top, bottom = page.js(
        """const panel = document.getElementById("panel");
        panel.scrollTop = panel.scrollHeight;
        const box = (id) => document.getElementById(id).getBoundingClientRect();
        return [box("prompt").height, box("keys").bottom, box("token").top, box("token").bottom];"""
    )
    assert 100 <= height <= 200, "what is longer scrolls in it"
    assert above <= top and bottom <= 600
    assert not page.overflows()


def test_by_keyboard(scripted):
    """Everything that can be used has a name, and the keyboard reaches it in the order of reading, in plain sight."""
    page = scripted
    page.answered("Hello", "World")
    for control in page.all("button, input, textarea, select, [role], section, aside, form, nav, dialog"):
        assert control.accessible_name or not control.is_displayed() or control.get_attribute("role") == "status"
    page.js("document.getElementById('open-side').focus()")
    reached, outlines = ["open-side"], []
    for _ in range(16):
        page.driver.switch_to.active_element.send_keys("\t")
        reached.append(page.js("return document.activeElement.id || document.activeElement.textContent"))
        if reached[-1] in ("new", "send", "Edit"):
            outlines.append(page.js("return getComputedStyle(document.activeElement).outlineStyle"))
    wanted = [
        "open-side",
        "open-settings",
        "new",
        "Hello",
        "export-all",
        "import",
        "log",
        "Copy",
        "Edit",
        "Copy",
        "Answer again",
    ]
    wanted += ["message", "attach", "open-reading", "send"]
    assert [name for name in reached if name in wanted][: len(wanted)] == wanted
    assert set(outlines) == {"solid"}
