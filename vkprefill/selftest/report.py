"""An examination as one block of plain text to paste into a report, and as JSON."""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import date

from vkprefill.gguf.quants import LAYOUTS
from vkprefill.selftest import built_in
from vkprefill.selftest.run import Examination, Outcome
from vkprefill.selftest.trial import Finding

MIB, GIB = 2**20, 2**30


def as_text(examined: Examination) -> str:
    lines = [f"vkprefill doctor, {date.today().isoformat()}"]
    if examined.facts:
        lines += facts_lines(examined.facts)
    lines += ["", *selftest_lines(examined), "", verdict(examined)]
    return "\n".join(lines)


def as_json(examined: Examination) -> dict[str, object]:
    kernels = {
        name: {**{k: v for k, v in vars(finding).items() if k != "kernels"}, "ok": finding.ok}
        for name, finding in sorted(worst_by_kernel(examined.outcomes).items())
    }
    for entry in kernels.values():
        if not math.isfinite(entry["error"]):
            entry["error"] = None  # which JSON has no number for
    return {
        "well": examined.well,
        "facts": examined.facts,
        "selftest": {
            "checks": len(examined.checks),
            "seconds": round(examined.seconds, 1),
            "kernels": kernels,
            "answers": answers(examined),
            "failures": failures(examined),
            "not_here": examined.not_here,
        },
    }


def facts_lines(facts: dict) -> list[str]:
    """Versions, machine, device, driver, what is on and why something is not."""
    lines = machine_lines(facts)
    if facts.get("device"):
        lines += device_lines(facts)
    elif "devices" in facts:
        lines.append(f"devices: {'; '.join(facts['devices']) or 'none'}")
        lines += [f"driver's file {line}" for line in facts["drivers"]]
    if facts["variables"]:
        lines.append(f"variables set: {', '.join(facts['variables'])}")
    return lines


def machine_lines(facts: dict) -> list[str]:
    versions, cpu = facts["versions"], facts["processor"]
    commit = f" (commit {facts['commit']})" if facts["commit"] else ""
    packages = ", ".join(f"{name} {versions[name] or 'is not installed'}" for name in ("kp", "numpy", "gguf"))
    vectors = f", {cpu['vectors']}" if cpu["vectors"] else ""
    return [
        f"vkprefill {versions['vkprefill']}{commit}, shaders {facts['shaders']}, {packages}, "
        f"Python {versions['python']}",
        f"machine: {facts['system']}; {cpu['name']}, {cpu['threads']} threads{vectors}; "
        f"{facts['memory_free_bytes'] / GIB:.1f} GiB of memory free",
        f"drivers' files: {', '.join(facts['driver_files']) or 'none'}; barrier operation: {facts['barrier']}",
    ]


def device_lines(facts: dict) -> list[str]:
    device, features = facts["device"], facts["features"]
    others = [name for name in facts["devices"] if name != f"{device['index']}: {device['name']}"]
    sizes = ", ".join(str(device[name]) for name in ("min_subgroup_size", "max_subgroup_size"))
    found = "not asked for" if features["found"] is None else _listed(features["found"])
    return [
        f"device {device['index']}: {device['name']}, type {device['type']}"
        + (f" (others: {'; '.join(others)})" if others else ""),
        f"driver: {device['driver']}, Vulkan {device['api_version']}",
        f"memory: {facts['memory']}; heaps: {'; '.join(map(_heap, device['heaps']))}",
        f"limits: buffer {device['max_buffer_bytes'] / MIB:,.0f} MiB, allocation "
        f"{device['max_allocation_bytes'] / MIB:,.0f} MiB, workgroup {device['max_workgroup_invocations']} "
        f"invocations, shared memory {device['max_shared_bytes'] / 1024:.0f} KiB, subgroups of "
        f"{device['subgroup_size']} (least and most: {sizes})",
        f"features on: {_listed(features['on'])}; of ours its driver has: {found}"
        + (f"; it lacks: {_listed(features['lacking'])}" if features["lacking"] else ""),
        f"companion: {facts['companion']}; timestamps: {'yes' if facts['timestamps'] else 'no'}",
        f"profile {facts['profile']['name']}, form {facts['profile']['form']}; precision auto is "
        f"{facts['precision_auto']}",
    ]


def selftest_lines(examined: Examination) -> list[str]:
    """A line for each family of kernels, then other checks, what the device cannot run, and what failed."""
    worst = worst_by_kernel(examined.outcomes)
    if not examined.checks:
        return ["self-test: not begun", *(f"FAILED: {failure}" for failure in failures(examined))]
    lines = [
        f"self-test: {len(worst)} kernels in {len(examined.outcomes)} of {len(examined.checks)} checks, "
        f"{examined.seconds:.0f} s; error in parts of the output's root mean square"
    ]
    families: dict[str, list[tuple[str, Finding]]] = defaultdict(list)
    for name, finding in sorted(worst.items()):
        family, suffix = split_name(name)
        families[family].append((suffix, finding))
    width = max(map(len, families), default=0)
    for family, members in families.items():
        finding = max((finding for _, finding in members), key=strain)
        suffixes = " ".join(suffix for suffix, _ in members if suffix)
        verdict = "ok    " if all(finding.ok for _, finding in members) else "FAILED"
        lines.append(
            f"  {verdict}  {family.ljust(width)}  {finding.error:.1e} of {finding.limit:.1e}"
            + (f"  {suffixes}" if suffixes else "")
        )
    lines += [
        f"  {'ok    ' if well else 'FAILED'}  {name}: the known answer" for name, well in answers(examined).items()
    ]
    reasons = defaultdict(list)
    for name, reason in examined.not_here.items():
        reasons[split_name(name)[0], reason].append(name)
    lines += [f"  not here: {family} ({len(names)}): {reason}" for (family, reason), names in reasons.items()]
    return lines + [f"FAILED: {failure}" for failure in failures(examined)]


def verdict(examined: Examination) -> str:
    count = len(failures(examined))
    return "result: all well" if examined.well else f"result: {count} failure{'s' * (count != 1)}"


def failures(examined: Examination) -> list[str]:
    """A line for each: the kernels or the check, what was found, what was wanted."""
    lines = []
    for outcome in examined.outcomes:
        for finding in outcome.findings:
            if not finding.ok:
                lines.append(
                    f"{', '.join(finding.kernels)}: error {finding.error:.2g} found, at most {finding.limit:.2g} "
                    f"wanted ({finding.reason}); {finding.where}"
                )
        if outcome.failure:
            lines.append(f"{outcome.check}: {outcome.failure}")
    return lines + ([examined.failure] if examined.failure else [])


def answers(examined: Examination) -> dict[str, bool]:
    """Of checks that look at a model's answer and not at kernels: whether it was the known one."""
    return {outcome.check: outcome.ok for outcome in examined.outcomes if outcome.check == built_in.NAME}


def worst_by_kernel(outcomes: list[Outcome]) -> dict[str, Finding]:
    """The finding of each kernel that comes nearest to its limit, or furthest beyond."""
    worst: dict[str, Finding] = {}
    for outcome in outcomes:
        for finding in outcome.findings:
            for name in finding.kernels:
                worst[name] = max(worst.get(name, finding), finding, key=strain)
    return worst


def strain(finding: Finding) -> float:
    """Error by limit."""
    if finding.limit:
        return finding.error / finding.limit
    return math.inf if finding.error else 0.0


def split_name(kernel: str) -> tuple[str, str]:
    """("matmul_hybrid", "q4_k"): family, and the layout that the kernel reads, if it is for one."""
    for layout in LAYOUTS:
        if kernel.endswith(f"_{layout}"):
            return kernel.removesuffix(f"_{layout}"), layout
    return kernel, ""


def _heap(heap: dict) -> str:
    free = "" if heap["budget_bytes"] is None else f", {heap['budget_bytes'] / GIB:.1f} free"
    return f"{heap['num_bytes'] / GIB:.1f} GiB{free}{', the device' if heap['device_local'] else ''}"


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"
