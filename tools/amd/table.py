"""The tables of compiled pipelines: stored in benchmarks/amd_compile.json, one for each Mesa version and family."""

import json
from pathlib import Path

TABLE = Path(__file__).resolve().parents[2] / "benchmarks" / "amd_compile.json"


def load_table() -> list[dict]:
    """The stored tables, one for each Mesa version and family."""
    return json.loads(TABLE.read_text())["tables"] if TABLE.exists() else []


def store(table: dict) -> None:
    """Put a table in place of the one of the same Mesa version and family."""
    same = (table["mesa"], table["family"])
    tables = [t for t in load_table() if (t["mesa"], t["family"]) != same] + [table]
    rows = []
    for t in sorted(tables, key=lambda t: (t["family"], [int(n) for n in t["mesa"].split(".")])):
        head = ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in t.items() if k != "pipelines")
        rows.append(f'{{{head}, "pipelines": [\n' + ",\n".join(json.dumps(p) for p in t["pipelines"]) + "\n]}")
    TABLE.write_text('{"tables": [\n' + ",\n".join(rows) + "\n]}\n")


def show(table: dict) -> None:
    print(f"{table['device']}, Mesa {table['mesa']}, {table['date']}; spills: SGPRs/VGPRs; LDS and code in bytes")
    print(f"{'shader':20} {'constants':42} wave VGPRs spills   LDS waves  code seconds  valu  vopd")
    for p in table["pipelines"]:
        constants = " ".join(f"{v}" if isinstance(v, int) else f"{v:.0e}" for v in p["constants"].values())
        if "error" in p:
            print(f"{p['shader']:20} {constants:42} {p['error']}")
            continue
        loop = "  ".join(f"{what} {c['valu']:.3f} {c['vopd']:.3f}" for what, c in p.get("loops", {}).items())
        spills = f"{p['sgpr_spills']}/{p['vgpr_spills']}"
        print(
            f"{p['shader']:20} {constants:42} {p['wave']:4} {p['vgprs']:5} {spills:>6} {p['lds']:5} "
            f"{p['waves']:5} {p['code']:5} {p['seconds']:7.3f}  {loop}"
        )
