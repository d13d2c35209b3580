"""Text on a terminal that is taken back: where its characters are, and what brings the cursor there."""

from __future__ import annotations

from rich.cells import cell_len

TAB = 8
UP, CLEAR = "\x1b[{}A", "\x1b[J"


def taken_back(shown: str, stays: int, width: int, height: int) -> str:
    """What to write after `shown`, which began in the first column, so that only its first `stays` characters are left.

    Whole rows are written again, as a cursor behind the last column of a row is at no place of its own. What has been
    scrolled off the screen cannot be: the text begins anew below then.
    """
    rows = _rows(shown, width)
    row = next((i for i in range(len(rows) - 1, -1, -1) if rows[i] < stays), 0)
    up = len(rows) - 1 - row
    if up >= height:
        return "\n\n" + shown[:stays]
    return "\r" + (UP.format(up) if up else "") + CLEAR + shown[rows[row] : stays]


def _rows(text: str, width: int) -> list[int]:
    """Of each row of a terminal that the text takes, the index of its first character; at least one."""
    rows, column = [0], 0
    for index, character in enumerate(text):
        if character == "\n":
            rows.append(index + 1)
            column = 0
            continue
        cells = cell_len(character)
        if character == "\t":
            column = min((column // TAB + 1) * TAB, width - 1)
        elif column + cells > width:
            rows.append(index)
            column = cells
        else:
            column += cells
    return rows
