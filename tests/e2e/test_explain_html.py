"""The page of `explain --html` in a real browser: what it shows, that its script runs and that a prompt's does not."""

import json
import re
import shutil
import struct
import subprocess
import zlib

import pytest

from tests.e2e.conftest import PATIENCE_S

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --allow-file-access-from-files"
).split()

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

FACT = "Robert keeps a pet pigeon."
FILLER = "The office and the bridge were kept behind the market. A warm wind came from the market. "
HOSTILE = "<script>document.title = 'owned'</script><b id=owned>&amp;"
PROMPT = f"{FILLER * 9}{FACT} {HOSTILE} {FILLER * 9}\nWhich pet does Robert keep?"

# Opens the page in a frame, presses keys in it, and writes what it says about the token into its own document.
KEYS = """<iframe src="page.html" width="800" height="600"></iframe><pre id="said"></pre><script>
const frame = document.querySelector("iframe");
frame.onload = () => {
  const page = frame.contentDocument, prompt = page.getElementById("prompt"), said = [];
  for (const key of ["ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp", "End", "Home"]) {
    prompt.dispatchEvent(new frame.contentWindow.KeyboardEvent("keydown", { key, bubbles: true }));
    said.push(page.getElementById("token").textContent);
  }
  page.getElementById("only").click();
  said.push([...prompt.querySelectorAll("del span")].every((token) => token.getClientRects().length === 0));
  said.push(page.documentElement.scrollWidth <= frame.contentWindow.innerWidth);
  said.push(page.title);
  document.getElementById("said").textContent = JSON.stringify(said);
};
</script>"""


@pytest.fixture(scope="module")
def folder(cli, gpu, tmp_path_factory):
    """With page.html and page.json, of the built-in models."""
    path = tmp_path_factory.mktemp("page")
    done = cli("explain", "-p", PROMPT, "--no-specprefill-break-even", "--json", "--html", path / "page.html")
    assert done.code == 0, done.err
    (path / "page.json").write_text(done.out)
    return path


def chromium(tmp_path, page, *flags):
    """Stdout of a run with a profile of its own."""
    done = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *flags, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def png_pixels(path):
    """(width, height, {colour: count}) of an 8-bit PNG. Chromium writes no interlaced ones."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    assert depth == 8
    size, at, packed = {2: 3, 6: 4}[kind], 8, b""
    while at < len(data):
        length, name = struct.unpack(">I4s", data[at : at + 8])
        packed += data[at + 8 : at + 8 + length] if name == b"IDAT" else b""
        at += 12 + length
    raw, stride = zlib.decompress(packed), width * size
    previous, colours = bytearray(stride), {}
    for y in range(height):
        method, line = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1 : (y + 1) * (stride + 1)])
        for x in range(stride) if method else ():
            left, above = line[x - size] if x >= size else 0, previous[x]
            corner = previous[x - size] if x >= size else 0
            line[x] = (line[x] + _predicted(method, left, above, corner)) & 255
        for x in range(0, stride, size):
            colour = bytes(line[x : x + 3])
            colours[colour] = colours.get(colour, 0) + 1
        previous = line
    return width, height, colours


def _predicted(method, left, above, corner):
    """PNG's filters 1 to 4: sub, up, average, Paeth."""
    if method < 4:
        return (left, above, (left + above) // 2)[method - 1]
    guess = left + above - corner
    distances = (abs(guess - left), abs(guess - above), abs(guess - corner))
    return (left, above, corner)[distances.index(min(distances))]


def test_dom_shows_kept_and_dropped_text(folder, tmp_path):
    dom = chromium(tmp_path, folder / "page.html", "--dump-dom")
    found = json.loads((folder / "page.json").read_text())
    kept, total = found["kept_n"], len(found["token_ids"])
    assert f"<h1>{kept} of {total} tokens kept" in dom
    prompt = dom.split('id="prompt"', 1)[1].split("</div>", 1)[0]
    tokens = len(re.findall("<span[ >]", prompt))
    dropped = sum(len(re.findall("<span[ >]", part)) for part in re.findall("<del>(.*?)</del>", prompt, re.DOTALL))
    assert 0 < dropped < tokens
    assert total - tokens < 10  # a character of several tokens is one element
    assert abs(total - kept - dropped) < 10
    assert prompt.count("<del>") == len(gaps(found))


def gaps(found):
    """The dropped stretches, as [start, end) pairs."""
    edges = [0, *[edge for pair in found["kept_ranges"] for edge in pair], len(found["token_ids"])]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]


def test_the_prompt_is_text_only(folder, tmp_path):
    dom = chromium(tmp_path, folder / "page.html", "--dump-dom")
    assert 'id="owned"' not in dom and "<title>owned" not in dom
    assert dom.count("<script>") == 1
    assert "&lt;" in dom.split('id="prompt"', 1)[1]


def test_keys_walk_through_tokens(folder, tmp_path):
    (folder / "keys.html").write_text(KEYS)
    dom = chromium(tmp_path, folder / "keys.html", "--dump-dom", "--virtual-time-budget=5000")
    said = json.loads(dom.split('<pre id="said">', 1)[1].split("</pre>", 1)[0].replace("&amp;", "&"))
    found = json.loads((folder / "page.json").read_text())
    first_gap = gaps(found)[0][0]
    first, second, down, up, end, home, hidden, narrow, title = said
    assert first.startswith("token 0, importance ") and first.endswith(", kept")
    assert second.startswith("token 1, ")
    assert down.startswith(f"token {first_gap}, ") and down.endswith(", dropped")
    assert up.startswith(f"token {first_gap - 1}, ") and up.endswith(", kept")
    assert end.startswith(f"token {len(found['token_ids']) - 1}, ")
    assert home == first
    assert hidden, "kept text only: dropped tokens are still shown"
    assert narrow, "the page is wider than its window"
    assert title.endswith("vkprefill explain")


@pytest.mark.parametrize("width", [500, 1280])
def test_screenshot_is_not_blank(folder, tmp_path, width):
    picture = tmp_path / "page.png"
    chromium(tmp_path, folder / "page.html", f"--screenshot={picture}", f"--window-size={width},900")
    found_width, height, colours = png_pixels(picture)
    assert (found_width, height) == (width, 900)
    background = max(colours.values())
    assert background < 0.98 * width * height and len(colours) > 50
    warm = sum(count for (red, green, blue), count in colours.items() if red > 180 and red - blue > 60)
    assert warm > 500, "neither bars nor heat"


def test_phone_width_needs_no_sideways_scrolling(folder, tmp_path):
    (folder / "keys.html").write_text(KEYS.replace('width="800"', 'width="390"'))
    dom = chromium(tmp_path, folder / "keys.html", "--dump-dom", "--virtual-time-budget=5000")
    assert json.loads(dom.split('<pre id="said">', 1)[1].split("</pre>", 1)[0].replace("&amp;", "&"))[-2] is True


def test_axe_finds_nothing(folder, driver, violations):
    driver.get((folder / "page.html").as_uri())
    assert violations() == []
