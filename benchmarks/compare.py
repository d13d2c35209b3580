#!/usr/bin/env python3
"""What became faster or slower between two records: python benchmarks/compare.py OLD.json NEW.json

A change counts where the ranges of the repetitions do not meet; a figure measured once is taken to vary by 5 %.
Exit code 0, 1 for a file that is no record, 2 for bad usage.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from vkprefill.benchmark.record import ADDED, FASTER, REMOVED, SAME, SLOWER, Record, changes_table, compare
from vkprefill.errors import VkPrefillError

SAME_WANTED = ("device", "driver", "models")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", metavar="OLD.json")
    parser.add_argument("new", metavar="NEW.json")
    args = parser.parse_args(argv)
    try:
        old, new = Record.read(args.old), Record.read(args.new)
    except VkPrefillError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    for name in SAME_WANTED:
        if old.about.get(name) != new.about.get(name):
            print(f"note: {name} differs: {old.about.get(name)} and {new.about.get(name)}", file=sys.stderr)
    changes = compare(old.figures, new.figures)
    print(changes_table(changes))
    count = Counter(change.verdict for change in changes)
    alone = count[ADDED] + count[REMOVED]
    same = f"{count[SAME]} within the spread, {alone} in one of the two only"
    print(f"\n{count[FASTER]} better, {count[SLOWER]} worse, {same}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
