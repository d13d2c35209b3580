"""Work of several devices, as far as it needs no Ray: who gets which device, results in pieces, what is refused."""

import argparse
import pickle
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from vkprefill import DeviceError, RequestError
from vkprefill.cli.main import main
from vkprefill.cli.ray_options import add_ray_options, places_of
from vkprefill.distributed import places, pool
from vkprefill.distributed.places import Places, device_of


@pytest.mark.parametrize(
    ("actors", "num_items", "num_gpus", "num_machines", "wanted"),
    [
        (None, 9, 1, 1, (1, 1.0)),
        (None, 9, 4, 2, (4, 1.0)),
        (2, 9, 1, 1, (2, 0.5)),
        (3, 9, 2, 1, (3, 0.5)),
        (1, 9, 4, 1, (1, 1.0)),
        (None, 9, 0, 3, (3, 0.0)),
        (2, 9, 0, 3, (2, 0.0)),
        (None, 2, 4, 2, (2, 1.0)),
        (4, 2, 2, 1, (2, 1.0)),
        (1_000_000, 3, 1, 1, (3, 1 / 3)),
    ],
)
def test_shares_of_devices(actors, num_items, num_gpus, num_machines, wanted):
    assert Places("auto", actors).shares(num_items, num_gpus, num_machines) == wanted


def test_places_that_cannot_be():
    with pytest.raises(RequestError, match="actors: found 0, wanted at least 1"):
        Places(actors=0)
    with pytest.raises(RequestError, match="the cluster has no GPUs to tell them apart"):
        Places("auto", devices=("0", "1")).shares(9, 0, 2)


@pytest.mark.parametrize("address", ["", "local", "head", "head:", "ray://head:1", "http://head:1", "a b:1", "a\nb:1"])
def test_addresses_that_are_none(address):
    with pytest.raises(RequestError, match="^--ray-address: found '.*', wanted HOST:PORT or auto$"):
        Places(address)
    for good in ("auto", "head:6379", "[::1]:6379", "10.0.0.1:1"):
        assert Places(good).address == good


@pytest.mark.parametrize(
    ("says", "wanted"),
    [
        (bytes.fromhex("000018040000000000"), None),
        (b"HTTP/1.1 400 Bad Request", "no head of a Ray cluster"),
        (b"", "no head of a Ray cluster"),
        (None, "timed out"),
    ],
)
def test_who_listens_at_an_address(says, wanted, monkeypatch):
    """None: nothing, as a server of pages that waits for a request."""
    monkeypatch.setattr(pool, "PATIENCE_S", 0.2 if says is None else 60)

    def answer(server: socket.socket) -> None:
        with server.accept()[0] as link:
            if says is not None:
                link.sendall(says)
            else:
                link.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as threads:
        answered = threads.submit(answer, server)
        with nullcontext() if wanted is None else pytest.raises(OSError, match=wanted):
            pool._knock(f"127.0.0.1:{server.getsockname()[1]}")
        answered.result()
        address = server.getsockname()
    with pytest.raises(OSError, match=f"127.0.0.1:{address[1]}: .*refused"):
        pool._knock(f"127.0.0.1:{address[1]}")


def test_device_of_an_actor(monkeypatch):
    listed = [("discrete", ()), ("cpu", ()), ("integrated", ("storage",)), ("discrete", ())]
    infos = [SimpleNamespace(index=i, type=kind, missing=missing) for i, (kind, missing) in enumerate(listed)]
    monkeypatch.setattr(places, "probe", lambda: infos)
    assert [device_of([n], ("a", "b"), in_cluster=False) for n in "01"] == ["a", "b"]
    assert device_of(["0"], (), in_cluster=False) is None, "the one that is taken without Ray"
    assert [device_of([n], (), in_cluster=True) for n in "012"] == ["0", "3", None]
    assert device_of([], ("a",), in_cluster=True) == "a"
    with pytest.raises(RequestError, match="devices: found 1, and Ray has more GPUs here"):
        device_of(["1"], ("a",), in_cluster=True)


def pieces(number: int, result: object, run: str = "r", size: int = 7) -> list[dict[str, list[object]]]:
    content = pickle.dumps(result)
    cut = [content[i : i + size] for i in range(0, len(content), size)]
    return [{"number": [number], "run": [run], "left": [len(cut) - 1 - i], "piece": [p]} for i, p in enumerate(cut)]


def test_results_of_pieces():
    refused = RequestError("too long")
    first, second = pieces(0, ("text", False)), pieces(1, (refused, False))
    assert len(first) > 1
    found = [*pool._whole(iter([*first, *second]))]
    assert found[0] == "text" and isinstance(found[1], RequestError) and str(found[1]) == "too long"
    with pytest.raises(DeviceError, match="lost"):
        [*pool._whole(iter([*first, *pieces(1, (DeviceError("lost"), True))]))]


@pytest.mark.parametrize("fault", ["twice", "left out", "of two runs"])
def test_pieces_that_do_not_fit(fault):
    first = pieces(0, ("text", False))
    given = {
        "twice": [*first, *first],
        "left out": [*first, *pieces(2, ("text", False))],
        "of two runs": [first[0], *pieces(0, ("text", False), run="s")[1:]],
    }
    with pytest.raises(RequestError, match="Ray: a result came twice or not whole"):
        [*pool._whole(iter(given[fault]))]


def test_a_worker_leaves_alone_what_actors_die_of(monkeypatch):
    """Of Ray, only how actors are asked."""
    deaths = pool.Deaths()
    remote = SimpleNamespace(begin=SimpleNamespace(remote=deaths.begin), finish=SimpleNamespace(remote=deaths.finish))
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda value: value))
    worker = pool.Worker(None, (), False, remote)
    worker._do = str
    for _ in range(pool.MOST_DEATHS):
        assert worker._result(3, 8) == ("8", False), "what is finished is forgotten"
    for died in range(pool.MOST_DEATHS):
        assert deaths.begin(4) == died
    refused, ends = worker._result(4, 8)
    assert not ends and str(refused) == "Ray: 3 actors died of it, one after another"


def options(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device")
    add_ray_options(parser)
    return parser.parse_args(argv)


def test_flags(monkeypatch):
    monkeypatch.setattr("vkprefill.cli.ray_options.require_ray", lambda: None)
    assert places_of(options()) is None
    assert places_of(options("--ray")) == Places()
    assert places_of(options("--ray", "--device", "1")) == Places(devices=("1",))
    assert places_of(options("--ray", "--device", "Maker, Inc.")) == Places(devices=("Maker, Inc.",))
    there = places_of(options("--ray-address", "auto", "--actors", "3", "--devices", "0,Radeon"))
    assert there == Places("auto", 3, ("0", "Radeon"))
    for argv, message in (
        (["--actors", "2"], "--actors: wanted --ray or --ray-address beside it"),
        (["--devices", "0"], "--devices: wanted --ray"),
        (["--ray", "--devices", "0", "--device", "1"], "--devices: wanted without --device"),
        (["--ray", "--devices", "0,,1"], "--devices: found '0,,1'"),
        (["--ray", "--devices", ""], "--devices: found ''"),
    ):
        with pytest.raises(RequestError, match=message):
            places_of(options(*argv))


@pytest.mark.parametrize("command", [["record", "x.jsonl", "--points", "embed", "-o", "out"], ["eval"]])
def test_without_ray_its_extra_is_named(command, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    assert main([*command, "--ray"]) == 1
    error = capsys.readouterr().err
    assert error == "Error: --ray: ray is not installed; run: pip install 'vkprefill[ray]'\n"
