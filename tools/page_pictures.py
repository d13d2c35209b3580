"""The pictures of the chat page in docs/pictures/: python -m tools.page_pictures. Needs chromium and chromium-driver.

The built-in pair answers the page's own example; what shows Markdown is imported, PICTURED below.
"""

import time
from pathlib import Path

from tests.e2e.conftest import ROOT
from tests.e2e.page.browser import Page, exported, started_browser, take_in
from tests.e2e.server_process import ServerProcess

FOLDER = ROOT / "docs" / "pictures"
DAY_MS = 86_400_000
MOST_BYTES = 150_000  # of a picture
DESKTOP = {"width": 1216, "height": 640, "deviceScaleFactor": 1, "mobile": False}
PICTURED = """**Merge sort** is the better choice for all but short lists.

| | bubble sort | merge sort |
|---|:--:|:--:|
| comparisons | $n^2 / 2$ | $n \\log_2 n$ |
| memory beside the list | none | a copy |
| keeps the order of equals | yes | yes |

1. Split the list in two halves.
2. Sort each of them in the same way.
3. Merge them:

```python
def merge(a, b):
    merged = []
    while a and b:
        merged.append((a if a[0] <= b[0] else b).pop(0))
    return merged + a + b
```

> Lists that are *nearly* sorted are another matter: see [Timsort](https://en.wikipedia.org/wiki/Timsort).
"""
TALKS = (
    ("What does a heat pump do in winter?", "It takes heat from the air outside."),
    ("A letter to the landlord", "Dear Sir or Madam,"),
    ("Compare bubble sort with merge sort: code and a table.", PICTURED),
)


def talks() -> str:
    """As the page exports them."""
    conversations, now = [], int(1000 * time.time())
    for age, (user, content) in enumerate(reversed(TALKS)):
        turn = {
            "id": "1",
            "parent": None,
            "user": user,
            "files": [],
            "content": content,
            "reasoning": "",
            "state": "done",
        }
        title = user.split(":")[0]
        conversations.append({"title": title, "leaf": "1", "used": now - age * DAY_MS, "turns": [turn]})
    return exported(*conversations)


def save(page: Page, name: str) -> None:
    path: Path = FOLDER / f"{name}.png"
    page.driver.save_screenshot(str(path))
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {size:,} bytes")
    if size > MOST_BYTES:
        raise SystemExit(f"Error: {path}: found {size} bytes, wanted at most {MOST_BYTES}")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    sparse = ("--specprefill-min-tokens", 0, "--no-specprefill-break-even")
    with ServerProcess(*sparse) as server, started_browser() as driver:
        page = Page(driver, server.url)
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", DESKTOP)
        take_in(page, talks())
        page.until(lambda: len(page.all("#conversations .open")) == len(TALKS))
        page.js("document.getElementById('toast').classList.remove('shown')")
        page.id("example").click()
        page.until(lambda: page.id("message").get_attribute("value"))
        page.id("send").click()
        page.until(lambda: page.all(".figures") and page.idle())
        page.all("#prompt .kept .h7")[0].click()
        save(page, "page-light")
        page.press("Close")
        page.all("#conversations .open")[1].click()
        page.until(lambda: page.all("article table"))
        page.js("document.getElementById('log').scrollTop = 0")
        page.dark()
        save(page, "page-dark")
        page.phone()
        page.js("document.getElementById('log').scrollTop = 0")
        save(page, "page-phone-dark")
        page.dark(False)
        page.id("open-reading").click()
        save(page, "page-phone-light")


if __name__ == "__main__":
    main()
