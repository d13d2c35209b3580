"""Pictures of documents from real runs: python -m tools.make_pictures      writes docs/pictures

terminal.svg: commands run in a terminal of their own, what they showed and when; waits are cut to a second, bars of
progress, which take themselves back, are left out. heatmap.png: a part of `vkprefill explain`'s page in Chromium.
Those of docs/research.md are made by the commands that stand there.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
COLUMNS = 118
MOST_WAIT = 1.0  # seconds
PROMPT = "\x1b[32m$\x1b[0m "
LONG = "examples/long-prompt.txt"
FIFTH = ("--specprefill-select-mode", "chunk", "--specprefill-keep-ratio", "0.2")
COMMANDS = (
    ("generate", "-f", LONG, *FIFTH),
    ("generate", "-f", LONG, "--no-specprefill"),
)
BROWSER = (
    "--headless --no-sandbox --disable-gpu --hide-scrollbars --allow-file-access-from-files --window-size=900,620"
).split()
# The page from its second heading on.
PART = """<body style="margin: 0; overflow: hidden">
<iframe src="page.html" style="width: 900px; height: 3000px; border: 0; margin-top: -590px"></iframe>"""


@dataclass
class Line:
    """What stands in a line, with its escapes for colours, and when it was last written; seconds."""

    text: str = ""
    at: float = 0.0


class Screen:
    """Of a terminal what bars of progress need: the beginning of the line, the line above, an empty line."""

    PARTS = re.compile(r"(\r?\n|\r|\x1b\[\d*A|\x1b\[2K|\x1b\[\?25[hl])")

    def __init__(self) -> None:
        self.lines = [Line()]
        self.row = 0

    def write(self, text: str, at: float) -> None:
        for part in self.PARTS.split(text):
            if part.endswith("\n"):
                self.row += 1
                if self.row == len(self.lines):
                    self.lines.append(Line())
            elif part.endswith("A") and part.startswith("\x1b["):
                self.row = max(0, self.row - 1)
            elif part == "\x1b[2K":
                self.lines[self.row] = Line()
            elif part and part != "\r" and not part.startswith("\x1b[?"):
                line = self.lines[self.row]
                self.lines[self.row] = Line(line.text + part, at)


def run(command: tuple[str, ...], environment: dict[str, str]) -> list[Line]:
    """What a terminal shows in the end, times from the start of the command on."""
    process, screen = pty.fork()
    if process == 0:
        os.execve(sys.executable, [sys.executable, "-m", "vkprefill", *command], environment)
    shown, start, rest = Screen(), time.monotonic(), b""
    while True:
        select.select([screen], [], [])
        try:
            read = os.read(screen, 65536)
        except OSError:  # the other end is closed
            break
        whole = (rest + read).rpartition(b"\n")
        shown.write((whole[0] + whole[1]).decode(), time.monotonic() - start)
        rest = whole[2]
    shown.write(rest.decode(), time.monotonic() - start)
    _, status = os.waitpid(process, 0)
    if status:
        raise SystemExit(f"{' '.join(command)}: exit status {os.waitstatus_to_exitcode(status)}")
    while shown.lines and not shown.lines[-1].text:
        shown.lines.pop()
    return shown.lines


def terminal() -> str:
    """The SVG: a line is seen from its time on, where the viewer lets things move; elsewhere all are seen."""
    environment = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "LINES": "40",
        "TERM": "xterm-256color",
        "PYTHONPATH": str(ROOT),
    }
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)
    times: list[float] = []
    now = 0.0
    for command in COMMANDS:
        typed = " ".join(f'"{word}"' if " " in word else word for word in command)
        last, lines = 0.0, [Line(f"{PROMPT}vkprefill {typed}"), *run(command, environment), Line()]
        for line in lines:
            now += min(MOST_WAIT, max(0.0, line.at - last))
            last = max(last, line.at)
            wrapped = Text.from_ansi(line.text).wrap(console, COLUMNS)
            times += [now] * max(1, len(wrapped))
            for row in wrapped or [Text()]:
                console.print(row)
    return animated(console.export_svg(title="vkprefill", unique_id="terminal"), times)


def animated(svg: str, times: list[float]) -> str:
    """Each line of rich's SVG, by the clip path it names, shown from its time on."""
    rules = "".join(f".l{n} {{ animation-delay: {at:.2f}s }}\n" for n, at in enumerate(times))
    rules = f"@keyframes show {{ from {{ opacity: 0 }} to {{ opacity: 1 }} }}\n{rules}"
    rules += "[class*=' l'] { animation-name: show; animation-duration: 1ms; animation-fill-mode: both }\n"
    motion = f"@media (prefers-reduced-motion: no-preference) {{\n{rules}}}\n"
    marked = re.sub(r'class="(terminal-r\d+)"([^>]*clip-path="url\(#terminal-line-(\d+)\)")', r'class="\1 l\3"\2', svg)
    fonts = re.compile(r"@font-face \{.*?\}\s*", re.S)  # fetched from elsewhere
    return fonts.sub("", marked).replace("</style>", f"{motion}</style>", 1)


def heat_map(file: Path) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("chromium is not installed")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        command = [sys.executable, "-m", "vkprefill", "explain", "-f", LONG, *FIFTH, "--html", str(page)]
        subprocess.run(command, cwd=ROOT, check=True, stderr=subprocess.DEVNULL)
        part = Path(folder) / "part.html"
        part.write_text(PART)
        subprocess.run([browser, *BROWSER, f"--screenshot={file}", str(part)], check=True, capture_output=True)


def main() -> int:
    os.chdir(ROOT)
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "terminal.svg").write_text(terminal())
    heat_map(PICTURES / "heatmap.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
