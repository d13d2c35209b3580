"""A headless browser and the chat page in it, for tests and for the pictures of the documents."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from tests.e2e.conftest import PATIENCE_S, ROOT

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
CHROMEDRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --window-size=1440,900"
).split()
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
AXE = ROOT / "build" / "axe-core" / "axe.min.js"  # fetched by make setup

# In place of the server: the bodies of requests go to window.sent, answers come from window.answer(chunk),
# window.end(), window.lose() (the connection) of the latest request, or window.refusal. Other paths are the server's.
SCRIPTED = """
window.sent = [];
const real = window.fetch;
window.fetch = async (path, options) => {
  if (!String(path).endsWith("/completions")) return real(path, options);
  window.sent.push(JSON.parse(options.body));
  const { status, error } = window.refusal ?? {};
  if (status) return new Response(JSON.stringify({ error }), { status });
  const stream = new ReadableStream({ start(controller) {
    const bytes = (text) => controller.enqueue(new TextEncoder().encode(text));
    const parts = (data) => [`data: ${data.slice(0, 5)}`, `${data.slice(5)}\\n`, "\\n"];
    const send = (data) => parts(data).forEach(bytes);
    window.answer = (chunk) => send(JSON.stringify({ choices: [], ...chunk }));
    window.end = () => { send("[DONE]"); controller.close(); };
    window.lose = () => controller.close();
    options.signal.addEventListener("abort", () => controller.error(new DOMException("stopped", "AbortError")));
  } });
  return new Response(stream, { status: 200 });
};
"""
# Nothing that an earlier page kept. The page is left before, so that its database is closed.
FORGET = """
const done = arguments[0];
localStorage.clear();
sessionStorage.clear();
const request = indexedDB.deleteDatabase("vkprefill");
request.onsuccess = request.onblocked = request.onerror = () => done(true);
"""


@contextmanager
def started_browser() -> Iterator[object]:
    """A webdriver with a profile of its own."""
    from selenium import webdriver

    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in (*FLAGS, f"--user-data-dir={profile}/profile"):
            options.add_argument(flag)
        options.add_experimental_option("prefs", {"download.default_directory": profile})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(CHROMEDRIVER))
        driver.set_script_timeout(PATIENCE_S)
        driver.downloads = Path(profile)
        try:
            yield driver
        finally:
            driver.quit()


def violations(driver) -> list[str]:
    driver.execute_script(AXE.read_text(encoding="utf-8"))
    found = driver.execute_async_script("axe.run().then(({ violations }) => arguments[0](violations))")
    return [f"{one['id']}: {node['html'][:200]} {node['failureSummary']}" for one in found for node in one["nodes"]]


class Page:
    """A tab with the page in it, as a person finds it who was never there."""

    def __init__(self, driver, url: str) -> None:
        self.driver, self.url = driver, url
        for log in ("browser", "performance"):
            driver.get_log(log)  # of an earlier page
        driver.get(f"{url}/icon.svg")
        driver.execute_async_script(FORGET)
        self.load(url)

    def load(self, url: str | None = None) -> None:
        """Another time."""
        self.driver.get(url) if url else self.driver.refresh()
        self.until(lambda: self.js("return document.body.dataset.ready"))

    def id(self, name: str):
        return self.driver.find_element("id", name)

    def all(self, selector: str) -> list:
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        """As they are shown, all at one time."""
        return self.js(
            "return [...document.querySelectorAll(arguments[0])].map((node) => node.innerText.trim())", selector
        )

    def escape(self) -> None:
        """The key, where the keyboard is."""
        self.driver.switch_to.active_element.send_keys("\ue00c")

    def js(self, code: str, *args: object):
        return self.driver.execute_script(code, *args)

    def call(self, code: str, *args: object):
        """What a promise in an async body comes to."""
        wrapped = "const done = arguments[arguments.length - 1]; (async (...args) => { CODE })(...arguments).then(done)"
        return self.driver.execute_async_script(wrapped.replace("CODE", code), *args)

    def until(self, condition, timeout_s: float = PATIENCE_S) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, timeout_s, 0.05).until(lambda _: condition())

    def focused(self) -> str:
        return self.js("return document.activeElement.id")

    def press(self, label: str, within: str = "") -> None:
        """The last button that can be seen and has this name."""
        [*_, found] = [
            one for one in self.all(f"{within} button") if one.is_displayed() and one.accessible_name == label
        ]
        found.click()

    def open_panel(self) -> None:
        """Of the last answer: what was read; it comes when the browser's store has answered."""
        self.press("What was read")
        self.until(lambda: self.id("panel").is_displayed())

    def type(self, text: str) -> None:
        """Long texts at once, as if pasted."""
        self.js(
            "const box = document.getElementById('message'); box.value = arguments[0]; "
            "box.dispatchEvent(new Event('input'))",
            text,
        )

    def send(self, text: str) -> None:
        self.type(text)
        self.id("send").click()

    def idle(self) -> bool:
        return self.id("send").is_displayed()

    def ask(self, text: str) -> dict[str, str]:
        """Send, wait for the end; what stands there then."""
        before = len(self.all(".figures"))
        self.send(text)
        self.until(lambda: len(self.all(".figures")) > before and self.idle())
        return self.last()

    def last(self) -> dict[str, str]:
        figures = self.all(".figures")[-1]
        return {
            "answer": self.texts(".answer > .text")[-1].strip(),
            "status": figures.find_element("css selector", ".status").get_attribute("title"),
            "text": figures.get_attribute("textContent"),
        }

    # ---- with SCRIPTED

    def begin(self, text: str) -> dict[str, object]:
        """Send to the script; the request's body."""
        number = self.js("return sent.length")
        self.send(text)
        return self.request(number)

    def request(self, number: int) -> dict[str, object]:
        self.until(lambda: self.js("return sent.length") > number)
        return self.js("return sent[arguments[0]]", number)

    def say(self, content: str = "", reasoning: str = "") -> None:
        delta = {"content": content} if content else {"reasoning_content": reasoning}
        self.js("answer({ choices: [{ delta: arguments[0] }] })", delta)

    def end(self) -> None:
        self.js("end()")
        self.until(self.idle)

    def answered(self, text: str, answer: str) -> dict[str, object]:
        body = self.begin(text)
        self.say(answer)
        self.end()
        return body

    # ---- what may not be

    def errors(self) -> list[str]:
        """Of the console, but that a picture shown by itself has no favicon."""
        found = [entry for entry in self.driver.get_log("browser") if entry["level"] not in ("INFO", "DEBUG")]
        return [entry["message"] for entry in found if "/favicon.ico" not in entry["message"]]

    def hosts(self) -> set[str]:
        """Of all requests so far."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return {urlsplit(url).netloc for url in urls if urlsplit(url).scheme in ("http", "https", "ws")}

    def overflows(self) -> bool:
        return self.js("return document.documentElement.scrollWidth > innerWidth")

    # ---- how it looks

    def phone(self) -> None:
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)

    def dark(self, on: bool = True) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def as_before(self) -> None:
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.dark(False)


def exported(*conversations: dict[str, object]) -> str:
    """A file as the page exports it."""
    return json.dumps({"format": "vkprefill conversations", "version": 1, "conversations": conversations})


def take_in(page: Page, text: str) -> None:
    """Import a file."""
    page.js(
        """const data = new DataTransfer();
        data.items.add(new File([arguments[0]], "conversations.json"));
        const input = document.getElementById("import-file");
        input.files = data.files;
        input.dispatchEvent(new Event("change"));""",
        text,
    )
