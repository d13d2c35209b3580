"""The page of `vkprefill serve` in a real browser."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.e2e.conftest import DEMO, PATIENCE_S
from tests.e2e.server_process import ServerProcess

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
CHROMEDRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1280,800"
).split()

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.skipif(CHROMEDRIVER is None, reason="chromedriver (package chromium-driver) is not installed"),
]
webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

HOSTILE = "<img src=x onerror=\"document.title = 'owned'\">"
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}

# In place of the server: the bodies of requests go to window.sent, the answer comes from window.answer(chunk) and
# window.end().
SCRIPTED = """
window.sent = [];
window.fetch = async (path, options) => {
  window.sent.push(JSON.parse(options.body));
  const stream = new ReadableStream({ start(controller) {
    const bytes = (text) => controller.enqueue(new TextEncoder().encode(text));
    const send = (data) => { for (const part of [`data: ${data.slice(0, 5)}`, `${data.slice(5)}\\n`, "\\n"])
    bytes(part); }; window.answer = (chunk) => send(JSON.stringify({ choices: [], ...chunk }));
    window.end = () => { send("[DONE]"); controller.close(); };
    options.signal.addEventListener("abort", () => controller.error(new DOMException("stopped", "AbortError")));
  } });
  return new Response(stream, { status: 200 });
};
"""


class Page:
    """A tab with the page in it."""

    def __init__(self, driver, url: str) -> None:
        self.driver = driver
        for log in ("browser", "performance"):
            driver.get_log(log)  # of an earlier page
        driver.get(url)
        self.until(lambda: " on " in self.id("server").text or "key" in self.id("server").text)

    def id(self, name: str):
        return self.driver.find_element(By.ID, name)

    def all(self, selector: str) -> list:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def js(self, code: str, *args: object):
        return self.driver.execute_script(code, *args)

    def until(self, condition, timeout_s: float = PATIENCE_S) -> None:
        WebDriverWait(self.driver, timeout_s, 0.05).until(lambda _: condition())

    def type(self, text: str) -> None:
        """Long texts at once, as if pasted."""
        self.js("document.getElementById('message').value = arguments[0]", text)

    def send(self, text: str) -> None:
        self.type(text)
        self.id("send").click()

    def ask(self, text: str) -> dict[str, object]:
        """Send, wait for the end; what stands under the answer."""
        before = len(self.all(".figures"))
        self.send(text)
        self.until(lambda: len(self.all(".figures")) > before and self.id("send").is_displayed())
        figures = self.all(".figures")[-1]
        return {
            "answer": self.all(".answer > .text")[-1].text.strip(),
            "status": figures.find_element(By.CSS_SELECTOR, ".status").get_attribute("title"),
            "text": figures.text,
        }

    def counts(self, state: str) -> int:
        """Tokens of the map that are kept, dropped or cached."""
        return sum(int(token.get_attribute("data-count")) for token in self.all(f"#prompt .{state} > span[title]"))

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def hosts(self) -> set[str]:
        """Of all requests so far."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return {urlsplit(url).netloc for url in urls if urlsplit(url).scheme not in ("data", "chrome", "about")}

    def overflows(self) -> bool:
        return self.js("return document.documentElement.scrollWidth > innerWidth")


@pytest.fixture(scope="module")
def driver():
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        started = webdriver.Chrome(options=options, service=webdriver.ChromeService(CHROMEDRIVER))
        started.set_script_timeout(PATIENCE_S)
        yield started
        started.quit()


@pytest.fixture(scope="module")
def server(gpu) -> Iterator[ServerProcess]:
    sparse = ("--specprefill-min-tokens", 0, "--no-specprefill-break-even")
    with ServerProcess(*sparse, "--spec-type", "ngram", "--no-spec-draft-adaptive") as started:
        yield started


@pytest.fixture
def page(driver, server) -> Iterator[Page]:
    """A fresh page. No test may leave an error in the console or ask another host for anything."""
    page = Page(driver, server.url)
    yield page
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert page.errors() == []
    assert page.hosts() == {urlsplit(server.url).netloc}


@pytest.fixture
def scripted(page) -> Page:
    page.js(SCRIPTED)
    return page


def test_answer_with_figures_and_map(page):
    """A long prompt: the answer, the split of the time, and every token of the prompt as kept or dropped."""
    seen = page.ask(DEMO[0]["user"])
    assert seen["answer"] == DEMO[0]["answer"] and seen["status"] == "active"
    for words in ("sparse prefill", "The draft chose", "first token", "scoring", "look-ahead", "prefill", "cached 0"):
        assert words in seen["text"]
    kept, dropped = page.counts("kept"), page.counts("dropped")
    assert 0 < kept < dropped and kept + dropped == DEMO[0]["n_tokens"]
    assert f"kept {kept} of {DEMO[0]['n_tokens']}" in seen["text"]
    assert page.id("panel-title").text.startswith(f"{kept} of {DEMO[0]['n_tokens']} tokens kept")
    text = "".join(token.get_attribute("textContent") for token in page.all("#prompt span[title]"))
    assert DEMO[0]["user"] in text
    assert page.all("#prompt .kept .h7") and len(page.all("#overview .kept")) > 10

    page.id("only").click()
    assert not page.all("#prompt del span")[0].is_displayed() and "dropped]" in page.id("prompt").text


def test_map_by_keyboard(page):
    page.ask(DEMO[0]["user"])
    prompt, line = page.id("prompt"), page.id("token")
    said = []
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_UP, Keys.END):
        prompt.send_keys(key)
        said.append(line.text)
    assert said[0].startswith("token 0, importance ") and said[1].startswith("token 1,")
    states = [text.rsplit(", ", 1)[1] for text in said]
    assert states[2] != states[1] and states[3] == states[1]
    assert said[4].startswith(f"token {DEMO[0]['n_tokens'] - 1},")


def test_switched_off(page):
    page.id("spec").click()
    assert not page.id("keep").is_enabled() and not page.id("automatic").is_enabled()
    seen = page.ask(DEMO[0]["user"])
    assert seen["answer"] == DEMO[0]["answer"] and seen["status"] == "disabled"
    assert not page.all("#prompt del") and page.counts("kept") + page.counts("cached") == DEMO[0]["n_tokens"]
    assert "none dropped" in page.id("panel-title").text and not page.id("scale-box").is_displayed()


def test_several_turns_and_a_new_conversation(page):
    """A question about the text of the turn before; then an empty page."""
    first = page.ask(DEMO[1]["user"])
    assert re.search(r"drafts [1-9]\d* of \d+ accepted \(\d+ %\)", first["text"]), "digits copied out of the text"
    seen = page.ask(DEMO[1]["question"])
    before, holes = page.counts("cached") + page.counts("dropped"), page.counts("dropped")
    assert before > DEMO[1]["n_tokens"] and f"cached {before}" in seen["text"]
    assert holes > 0 and f"{holes} of {before} cached left out before" in seen["text"]
    assert len(page.all("article")) == 2
    page.id("new").click()
    assert not page.all("article") and page.id("welcome").is_displayed() and not page.id("map").is_displayed()
    assert page.driver.switch_to.active_element.get_attribute("id") == "message"


def test_markup_stays_text(page):
    page.ask(f"{HOSTILE} <script>document.title = 'owned'</script> Who is Robert?")
    assert HOSTILE in page.all(".user .text")[0].text
    assert HOSTILE in "".join(token.get_attribute("textContent") for token in page.all("#prompt span[title]"))
    assert not page.all("img") and not page.all("#log script") and "owned" not in page.driver.title


def test_streams_with_reasoning(scripted):
    """Text appears while more is to come; the model's markup stays text, but for paragraphs, code and bold."""
    page = scripted
    page.send("Hello")
    page.until(lambda: page.js("return typeof window.answer") == "function")
    page.js("answer({ prompt_progress: { total: 10, cache: 0, processed: 4, stage: 'score' } })")
    page.until(lambda: "prompt is scored" in page.id("log").text)
    assert page.all("progress")[0].get_attribute("value") == "4"
    page.js("answer({ choices: [{ delta: { reasoning_content: 'Let me see.' } }] })")
    page.until(lambda: "Thinking" in page.id("log").text)
    page.js(
        "answer({ choices: [{ delta: { content: arguments[0] } }] })", f"It is **bold** {HOSTILE}\n\n```html\n<b>a</b>"
    )
    page.until(lambda: "It is bold" in page.id("log").text)
    assert page.all(".answer")[0].get_attribute("aria-busy") == "true" and page.id("stop").is_displayed()
    page.js("answer({ choices: [{ delta: { content: '\\n```' } }] }); end()")
    page.until(lambda: page.id("send").is_displayed())
    assert [node.text for node in page.all(".answer strong, .answer pre")] == ["bold", "<b>a</b>"]
    assert not page.all("img, .answer b") and HOSTILE in page.all(".answer > .text")[0].text
    assert not page.all(".reasoning .text")[0].is_displayed()
    page.all(".reasoning summary")[0].click()
    assert page.all(".reasoning")[0].text == "Reasoning\nLet me see."
    assert (
        page.id("log").get_attribute("role") == "log" and page.all(".answer")[0].get_attribute("aria-busy") == "false"
    )


def test_map_of_cut_characters_and_long_prompts(page):
    """A character of several tokens is one piece, also where it is cut by a border; a very long prompt has fewer
    pieces.
    """
    code = """
const [report, done] = arguments;
import("/heat_map.js").then(({ heatMap }) => done(heatMap(report).map((node) => [node.className, node.textContent,
node.childElementCount])));
"""
    tokens = ["\x1b", [0xF0, 0x9F], [0x98, 0x80], "a\u202e", [0xC3], [0xA9], "<|im_end|>"]
    cached = {"cached_n": 1, "cached_ranges": [[0, 1]]}
    report = {"tokens": tokens, "importance": [0.1] * 7, **cached, "kept_ranges": [[1, 5]]}
    shown = page.driver.execute_async_script(code, report)
    assert shown == [
        ["cached", "\u241b", 1],
        ["kept", "\U0001f600a<U+202E>\ufffd", 3],
        ["dropped", " [2 dropped] \ufffd<|im_end|>", 3],
    ]
    long = {"tokens": ["a "] * 30000, "importance": None, "cached_n": 0, "cached_ranges": []}
    long["kept_ranges"] = [[0, 30000]]
    assert page.driver.execute_async_script(code, long) == [["kept", "a " * 30000, 1]]


def test_options_of_a_request(scripted):
    page = scripted
    page.id("settings").find_element(By.TAG_NAME, "summary").click()
    page.id("system").send_keys("Be brief.")
    page.id("temperature").send_keys("0.5")
    page.id("most").send_keys("7")
    page.id("keep").send_keys(Keys.ARROW_RIGHT)
    assert page.id("kept").text == "35 % of tokens" and page.id("automatic").get_attribute("aria-pressed") == "false"
    for number, text in enumerate(("One", "Two"), 1):
        page.type(text)
        page.id("message").send_keys(Keys.ENTER)
        page.until(lambda n=number: page.js("return sent.length") == n)
        page.js("answer({ choices: [{ delta: { content: 'Yes' } }] }); end()")
        page.until(lambda: page.id("send").is_displayed())
    first, second = page.js("return sent")
    assert first["specprefill"] == {"select_mode": "chunk", "keep_ratio": 0.35, "max_keep": 0}
    assert (first["temperature"], first["max_tokens"], first["stream"]) == (0.5, 7, True)
    assert [m["content"] for m in second["messages"]] == ["Be brief.", "One", "Yes", "Two"]

    page.id("automatic").click()
    page.send("Three")
    page.until(lambda: page.js("return sent.length") == 3)
    assert page.js("return sent[2].specprefill") == {}


def test_who_scores(page, server):
    """The server says who can; the choice is the request's, and only where it is not the server's own."""
    scorer = page.id("scorer")
    assert scorer.is_displayed() and scorer.accessible_name == "scored by"
    options = [(one.get_attribute("value"), one.text) for one in scorer.find_elements(By.TAG_NAME, "option")]
    assert options == [("auto", "automatic"), ("draft", "the draft model"), ("self", "the model itself")]
    assert scorer.get_attribute("value") == "auto"
    page.id("check").click()
    scorer.send_keys("the model")
    seen = page.ask(DEMO[2]["user"])
    assert seen["answer"] == DEMO[2]["answer"] and seen["status"] == "active" and "Layer 3 chose" in seen["text"]
    page.js(SCRIPTED)
    page.send("Hello")
    page.until(lambda: page.js("return sent.length") == 1)
    assert page.js("return sent[0].specprefill") == {"scorer": "self", "check": "on", "on_mismatch": "revise"}
    page.id("stop").click()
    page.id("spec").click()
    assert not scorer.is_enabled()


def test_where_nobody_else_can_score(driver, gpu):
    """A server whose model scores itself has nothing to choose from."""
    with ServerProcess("--specprefill-scorer", "self") as server:
        page = Page(driver, server.url)
        assert page.id("spec").is_enabled() and not page.id("scorer").is_displayed()
        page.js(SCRIPTED)
        page.send("Hello")
        page.until(lambda: page.js("return sent.length") == 1)
        assert page.js("return sent[0].specprefill") == {}
        page.id("stop").click()


def test_revised_answers(scripted):
    """What a check finds wrong is replaced, by code points, and what was there can be looked at."""
    page = scripted
    page.id("check").click()
    page.send("Hello")
    page.until(lambda: page.js("return typeof window.answer") == "function")
    assert page.js("return sent[0].specprefill") == {"check": "on", "on_mismatch": "revise"}
    page.js("answer({ choices: [{ delta: { content: arguments[0] } }] })", f"\U0001f600 It is {HOSTILE}")
    page.until(lambda: "It is" in page.id("log").text)
    page.js("answer({ prompt_progress: { total: 10, cache: 0, processed: 4, stage: 'check' } })")
    page.until(lambda: "to check the answer" in page.id("log").text)
    page.js("answer({ choices: [], revised_from: 8, text: 'a pigeon' })")
    page.js("answer({ choices: [{ delta: { content: '.' } }] }); end()")
    page.until(lambda: page.id("send").is_displayed())
    assert page.all(".answer > .text")[0].text == "\U0001f600 It is a pigeon."
    page.all(".answer > .revision summary")[0].click()
    assert HOSTILE in page.all(".answer > .revision")[0].text and not page.all("img")
    page.send("And then?")
    page.until(lambda: page.js("return sent.length") == 2)
    assert [m["content"] for m in page.js("return sent[1].messages")][1] == "\U0001f600 It is a pigeon."


def test_stop_keeps_what_there_is(scripted):
    page = scripted
    page.send("Hello")
    page.until(lambda: page.js("return typeof window.answer") == "function")
    page.js("answer({ choices: [{ delta: { content: 'Half' } }] })")
    page.until(lambda: "Half" in page.id("log").text)
    page.id("stop").click()
    page.until(lambda: "Stopped." in page.id("log").text)
    assert page.id("send").is_displayed() and page.driver.switch_to.active_element.get_attribute("id") == "message"
    page.send("On")
    page.until(lambda: page.js("return sent.length") == 2)
    assert [m["content"] for m in page.js("return sent[1].messages")] == ["Hello", "Half", "On"]


def test_stop_ends_the_servers_work(page, server):
    left = server.num_left()
    with server.engine_paused():
        page.send(DEMO[10]["user"])
        server.wait_for(lambda: server.metric("requests_processing") == 1)
        page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
        page.until(lambda: "Stopped" in page.id("log").text)
    server.wait_for(lambda: server.num_left() == left + 1)
    assert page.all(".actions button")[-1].text == "Try again"


def test_phone(page):
    """390 pixels: nothing sticks out, chat and prompt are two views."""
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    page.ask(DEMO[0]["user"])
    assert not page.overflows() and not page.id("panel").is_displayed()
    page.all(".actions button")[-1].click()
    assert page.id("prompt").is_displayed() and not page.id("chat").is_displayed() and not page.overflows()
    page.id("view-chat").click()
    page.id("settings").find_element(By.TAG_NAME, "summary").click()
    assert page.id("chat").is_displayed() and not page.overflows()


def test_errors_keys_and_no_draft(driver, gpu):
    """A server with a key and without a draft: the page asks for the key, shows the server's errors and why there is no
    switch.
    """
    with ServerProcess("--api-key", "secret", "--no-specprefill", wait=False) as server:
        server.wait_until_ready()
        page = Page(driver, server.url)
        assert "missing API key" in page.id("server").text and page.id("key").is_displayed()
        page.send("Hello")
        page.until(lambda: page.all(".error"))
        assert "wrong or missing API key" in page.all(".error")[0].text
        page.id("key").send_keys("secret", Keys.TAB)
        page.until(lambda: " on " in page.id("server").text)
        assert page.js(
            "return [JSON.stringify(sessionStorage).includes('secret'), localStorage.length, document.cookie]"
        ) == [True, 0, ""]
        assert not page.id("spec").is_enabled() and not page.id("scorer").is_displayed()
        assert "without a draft model" in page.id("no-draft").text
        page.id("most").send_keys("2")
        assert page.ask("Hello")["status"] == "disabled" and "Cut off" in page.id("log").text
        page.id("temperature").send_keys("-1")
        page.send("Hello")
        page.until(lambda: len(page.all(".error")) == 2)
        assert page.all(".error")[1].text.startswith("temperature: found -1")
        assert all("Failed to load resource" in error for error in page.errors())
        page.js("sessionStorage.clear()")


def test_labels(page):
    """Everything that can be used has a name, and the keyboard reaches it in the order of reading."""
    page.id("settings").find_element(By.TAG_NAME, "summary").click()
    for control in page.all("button, input, textarea, [role='log'], section, aside, form"):
        assert control.accessible_name or not control.is_displayed(), control.get_attribute("outerHTML")
    page.js("document.getElementById('new').focus()")
    reached = ["new"]
    for _ in range(17):
        page.driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(page.js("return document.activeElement.id"))
    wanted = [
        "new",
        "log",
        "example",
        "spec",
        "keep",
        "automatic",
        "scorer",
        "message",
        "send",
        "system",
        "temperature",
        "most",
        "key",
    ]
    assert [name for name in reached if name in wanted][: len(wanted)] == wanted
    outline = page.js(
        "document.getElementById('spec').focus(); return getComputedStyle(document.activeElement).outlineStyle"
    )
    assert outline == "solid"
