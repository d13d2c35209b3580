"""The server under load: eight clients at once, a series of sparse prefills, requests made from its description.

Short as they are by default; VKPREFILL_LOAD_S=120 and VKPREFILL_SOAK_REQUESTS=500 are worth a pause.
"""

import contextlib
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import DEMO, PATIENCE_S

pytest.importorskip("uvicorn")

from tests.e2e.server_process import ServerProcess  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("gpu")]

SPARSE = {"specprefill": {"min_tokens": 0, "break_even": False}}
LOAD_S = float(os.environ.get("VKPREFILL_LOAD_S", 10))
SOAK_REQUESTS = int(os.environ.get("VKPREFILL_SOAK_REQUESTS", 40))
NUM_CLIENTS = 8


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def test_eight_clients(record_property):
    """Mixed prompts, streamed or not, some clients leave: right answers, clear refusals, /health answers at once."""
    with ServerProcess("-c", 8192, "--parallel", 4) as server:
        end, lock = time.monotonic() + LOAD_S, threading.Lock()
        statuses, wrong, health, answers = Counter(), [], [], []

        def one_request(client: httpx.Client, rng: random.Random) -> None:
            row = rng.choice(DEMO[:8])
            kind = rng.choice(["dense", "sparse", "stream", "leave", "talk", "bad"])
            body = {
                "messages": user(row["user"]),
                "max_tokens": 8,
                "stream": kind in ("stream", "leave"),
                "specprefill": kind == "sparse",
            }
            if kind == "sparse":
                body |= SPARSE
            elif kind == "talk":
                body["messages"] += [{"role": "assistant", "content": row["answer"]}, *user("And which colour?")]
            elif kind == "bad":
                body["temperature"] = "warm"
            if kind == "leave":
                with client.stream("POST", "/v1/chat/completions", json=body) as response:
                    for _ in zip(range(rng.randrange(3)), response.iter_lines(), strict=False):
                        pass
                return
            start = time.monotonic()
            response = client.post("/v1/chat/completions", json=body)
            with lock:
                statuses[kind, response.status_code] += 1
                if kind != "bad":
                    answers.append(time.monotonic() - start)
            if kind == "dense" and response.json()["choices"][0]["message"]["content"] != row["answer"]:
                wrong.append((row["id"], response.json()["choices"][0]["message"]["content"]))
            if kind == "stream":
                assert response.text.endswith("data: [DONE]\n\n")

        def client_loop(seed: int) -> None:
            with httpx.Client(base_url=server.url, timeout=PATIENCE_S, trust_env=False) as client:
                rng = random.Random(seed)
                while time.monotonic() < end:
                    one_request(client, rng)

        def health_loop() -> None:
            with httpx.Client(base_url=server.url, timeout=PATIENCE_S, trust_env=False) as client:
                while time.monotonic() < end:
                    start = time.monotonic()
                    assert client.get("/health").status_code == 200
                    health.append(time.monotonic() - start)
                    time.sleep(0.05)

        with ThreadPoolExecutor(NUM_CLIENTS + 1) as pool:
            for future in [pool.submit(health_loop), *(pool.submit(client_loop, seed) for seed in range(NUM_CLIENTS))]:
                future.result()
        server.wait_for(server.idle)
        figures = {
            f"health_p{int(share * 100)}_ms": round(percentile(health, share) * 1e3, 1) for share in (0.5, 0.9, 0.99)
        }
        print(f"\n{sum(statuses.values())} answers in {LOAD_S:g} s: {dict(statuses)}; {figures}; wrong: {wrong}")
        record_property("load", figures)
        assert statuses and all(status == (400 if kind == "bad" else 200) for kind, status in statuses)
        assert not wrong, "the prompts' answers are those of single runs"
        assert "Traceback" not in server.stderr
        assert percentile(health, 0.5) < percentile(answers, 0.5) / 2, "/health does not wait for the engine"


def long_prompt(number: int) -> str:
    """More than is protected whole as a short message."""
    return f"Number {number}. {DEMO[number % 2]['user'][-1600:]}"


def short_prompt(number: int) -> str:
    return f"Number {number}."


@pytest.mark.exhaustive
@pytest.mark.parametrize("prompt, status", [(long_prompt, "active"), (short_prompt, "kept_all")])
def test_soak(prompt, status):
    """Hundreds of requests by eight clients, of which four take turns, each with the draft: none goes another way than
    the first ones, and memory is as after those.
    """
    with ServerProcess(
        "-c", 4096, "--parallel", 2, "--specprefill-min-tokens", 0, "--no-specprefill-break-even"
    ) as server:
        statuses, engine = Counter(), server.engine()

        def ask(number: int) -> tuple[int, int, float]:
            """Bytes afterwards: of the server, the engine, the device."""
            body = {"messages": user(prompt(number)), "max_tokens": 4}
            answer = server.client.post("/v1/chat/completions", json=body).json()
            statuses[answer["specprefill"]["status"]] += 1
            device = sum(
                float(line.rsplit(" ", 1)[1])
                for line in server.client.get("/metrics").text.splitlines()
                if line.startswith("vkprefill:device_memory_bytes{")
            )
            return resident_bytes(server.process.pid), resident_bytes(engine), device

        def soak(numbers: range) -> tuple[int, int, float]:
            with ThreadPoolExecutor(NUM_CLIENTS) as pool:
                list(pool.map(ask, numbers))
            return ask(-numbers.stop)  # alone: no state of another one waits

        fifth = SOAK_REQUESTS // 5
        fifths = [soak(range(n, n + fifth)) for n in range(0, 5 * fifth, fifth)]
        print(
            f"\n{SOAK_REQUESTS} requests: {dict(statuses)}, {server.metric('turn_changes_total'):.0f} changes of turns;"
            f" MiB (server, engine, device) after each fifth {[[round(n / 2**20, 1) for n in one] for one in fifths]}"
        )
        settled, last = fifths[0], fifths[-1]
        assert statuses == {status: 5 * fifth + 5}
        assert last[2] <= settled[2]
        assert last[0] < settled[0] + 16 * 2**20 and last[1] < settled[1] + 32 * 2**20


@pytest.mark.parametrize("examples", [10, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_fuzz(examples):
    """Requests made from /openapi.json: answers are those that it describes, none a 500; what it forbids is refused."""
    schemathesis = pytest.importorskip("schemathesis")
    hypothesis = pytest.importorskip("hypothesis")
    with ServerProcess("-c", 1024, "-n", 2, "--no-specprefill-break-even", "--specprefill-min-tokens", 16) as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        checks = schemathesis.checks.CHECKS.get_by_names(
            ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]
            + ["negative_data_rejection"]
        )
        count = Counter()

        for operation in (result.ok() for result in schema.get_all_operations()):
            for mode in schemathesis.GenerationMode:

                @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
                @hypothesis.settings(
                    max_examples=examples,
                    deadline=None,
                    database=None,
                    suppress_health_check=list(hypothesis.HealthCheck),
                    derandomize=True,
                    phases=[hypothesis.Phase.generate],
                )
                def run(case):
                    response = case.call(timeout=PATIENCE_S)
                    count[response.status_code] += 1
                    case.validate_response(response, checks=checks)

                with contextlib.suppress(
                    hypothesis.errors.Unsatisfiable
                ):  # nothing can be wrong in a request without a body
                    run()
        print(f"\nfuzz: {dict(count)}")
        assert server.client.get("/health").status_code == 200 and "Traceback" not in server.stderr
        assert sum(count.values()) > 9 * examples
