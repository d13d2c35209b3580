"""Text that is taken back on a terminal: what a terminal shows afterwards, by a small one of our own."""

import re

import pytest
from rich.cells import cell_len

from vkprefill.cli.retype import taken_back

PIECES = re.compile(r"\x1b\[(\d*)([AJ])|(.)", re.DOTALL)


class Screen:
    """Rows of cells, as many as are written; a cursor that waits behind the last column until the next character."""

    def __init__(self, width: int) -> None:
        self.width, self.rows, self.row, self.column = width, [[]], 0, 0

    def write(self, text: str) -> None:
        for number, command, character in PIECES.findall(text):
            if command == "A":
                self.row -= int(number)
                self.column = min(self.column, self.width - 1)
            elif command == "J":
                del self.rows[self.row + 1 :], self.rows[self.row][self.column :]
            elif character == "\r":
                self.column = 0
            elif character == "\n":
                self._down()
            elif character == "\t":
                self._fill(min((self.column // 8 + 1) * 8, self.width - 1))
            else:
                self._put(character)

    def _down(self) -> None:
        self.row, self.column = self.row + 1, 0
        if self.row == len(self.rows):
            self.rows.append([])

    def _fill(self, end: int) -> None:
        cells = self.rows[self.row]
        cells += [" "] * (end - len(cells))
        self.column = end

    def _put(self, character: str) -> None:
        cells = cell_len(character)
        if self.column + cells > self.width:
            self._down()
        self._fill(self.column)
        self.rows[self.row][self.column : self.column + cells] = [character] + [""] * (cells - 1)
        self.column += cells

    def shown(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.rows]


def plain(text: str, width: int) -> list[str]:
    screen = Screen(width)
    screen.write(text)
    return screen.shown()


TEXTS = [
    "one two three",
    "one\ntwo\n\nthree\n",
    "a" * 20,
    "a" * 30 + "\n" + "b" * 10 + "\n",
    "tab\tand\ttab\nnext",
    "日本語のテキスト、幅は二つ",
    "e\u0301 wide 日本 \U0001f600 end",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("width", [7, 10, 20, 80])
def test_what_stays_and_what_follows(text, width):
    for stays in range(len(text) + 1):
        screen = Screen(width)
        screen.write(text)
        screen.write(taken_back(text, stays, width, 100))
        assert screen.shown() == plain(text[:stays], width), (stays, "taken back")
        screen.write("something else\nand more")
        assert screen.shown() == plain(text[:stays] + "something else\nand more", width), (stays, "gone on with")


def test_what_was_scrolled_away_begins_anew():
    text = "\n".join(f"line {number}" for number in range(30))
    assert taken_back(text, 3, 80, 24) == "\n\nlin"
    assert taken_back(text, len(text) - 1, 80, 24) == "\r\x1b[Jline 2"
    assert taken_back("", 0, 80, 24) == "\r\x1b[J"
