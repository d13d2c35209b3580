"""Run the product's kernels on the emulated Radeon 780M and print what they did (make setup-780m first).

    python -m tools.amd_execute               about two minutes of a core
    python -m tools.amd_execute --update      store the counts in benchmarks/executed_780m.json
    python -m tools.amd_execute --stored      print those that are stored

Counts are of the machine code that RADV makes, executed wave by wave: tools/amd/executed.py says of which models,
tools/amd/counts.py what the columns are.
"""

import argparse
import sys

from tools.amd.counts import counts_table
from tools.amd.executed import RECORD, execute, load_record, store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--update", action="store_true", help=f"store the counts in {RECORD.parent.name}/{RECORD.name}")
    group.add_argument("--stored", action="store_true", help="print the stored counts, run nothing")
    arguments = parser.parse_args()
    try:
        record = load_record() if arguments.stored else execute()
    except (RuntimeError, OSError) as error:
        sys.exit(f"amd_execute: {error}")
    print(f"{record['device']}, Mesa {record['mesa']}, {record['date']}; instructions and passes in millions")
    for model, rows in record["models"].items():
        print(f"\n{model}\n\n{counts_table(rows)}")
    if arguments.update:
        store(record)


if __name__ == "__main__":
    main()
