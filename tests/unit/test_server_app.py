"""The routes with a scripted engine: no GPU, no socket. Streams have a file of their own."""

from types import SimpleNamespace

import pytest

from tests.unit.scripted_server import BEGUN, CALL, HELLO, REPORT, TOOLS, events, joined
from vkprefill.server.api_error import ApiError
from vkprefill.server.http import app as app_module
from vkprefill.server.http.access import Access  # noqa: E402
from vkprefill.server.http.keys import Keys  # noqa: E402
from vkprefill.server.http.model_info import _scorers
from vkprefill.server.http.wire import MAX_BODY_BYTES
from vkprefill.server.protocol.requests import Defaults
from vkprefill.specprefill.settings import SpecPrefillConfig


@pytest.mark.parametrize(
    ("pieces", "fields", "want", "reason"),
    [
        (["Hello", " there"], {}, {"content": "Hello there"}, "stop"),
        (["<th", "ink>\nwhy\n", "</think>\n\nso"], {}, {"reasoning_content": "why", "content": "so"}, "stop"),
        (
            ["I add.\n", CALL[:30], CALL[30:]],
            {"tools": TOOLS},
            {"content": "I add.", "tool_calls": [("add", '{"a": 1}')]},
            "tool_calls",
        ),
        ([CALL], {"tools": TOOLS, "logprobs": True}, {"tool_calls": [("add", '{"a": 1}')]}, "tool_calls"),
        (
            ["a", "b"],
            {"logprobs": True, "return_progress": True, "stream_options": {"include_usage": True}},
            {"content": "ab"},
            "stop",
        ),
    ],
)
def test_stream_and_whole_answer_are_the_same(send, engine, pieces, fields, want, reason):
    engine.pieces = pieces
    whole = send("POST", "/v1/chat/completions", json={"messages": HELLO, **fields}).json()
    streamed = joined(events(send("POST", "/v1/chat/completions", json={"messages": HELLO, "stream": True, **fields})))
    (choice,) = whole["choices"]
    message = {key: value for key, value in choice["message"].items() if value is not None}
    for one in (message, streamed["message"]):
        if "tool_calls" in one:
            one["tool_calls"] = [
                (call["function"]["name"], call["function"]["arguments"]) for call in one["tool_calls"]
            ]
        assert one == {"role": "assistant", **want}
    for key in ("timings", "specprefill", "usage", "model"):
        assert whole[key] == streamed[key]
    assert whole["timings"]["specprefill"] == "active" and whole["specprefill"] == REPORT
    assert whole["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert choice["finish_reason"] == streamed["finish_reason"] == reason
    assert (choice["logprobs"] or {}).get("content") == streamed.get("logprobs")


def test_completions(send, engine):
    whole = send("POST", "/v1/completions", json={"prompt": "Hi", "logprobs": 1}).json()
    (choice,) = whole["choices"]
    assert (
        whole["object"] == "text_completion" and choice["text"] == "Hello there" and choice["finish_reason"] == "stop"
    )
    assert choice["logprobs"]["tokens"] == ["Hello", " there"] and choice["logprobs"]["text_offset"] == [0, 5]
    chunks = events(send("POST", "/v1/completions", json={"prompt": "Hi", "stream": True}))
    assert (
        "".join(c["choices"][0]["text"] for c in chunks) == "Hello there"
        and chunks[-1]["specprefill"] == whole["specprefill"]
    )


def test_what_the_engine_is_asked(send, engine, prompts):
    long = "Be brief. " * 30
    body = {
        "messages": [{"role": "system", "content": long}, *HELLO],
        "stop": "x",
        "seed": 5,
        "max_tokens": 3,
        "cache_prompt": False,
        "specprefill": {"kept_ranges": [[0, 9]]},
    }
    send("POST", "/v1/chat/completions", json=body)
    send(
        "POST",
        "/v1/chat/completions",
        json={**body, "specprefill": False, "messages": [body["messages"][0], {"role": "user", "content": "No"}]},
    )
    first, second = engine.jobs
    shared = next(n for n, (a, b) in enumerate(zip(first.token_ids, second.token_ids, strict=False)) if a != b)
    options, sparse = first.options, first.options.sparse
    assert options.mark_at[0] == second.options.mark_at[0] == shared > 100 and len(options.mark_at) == 2
    assert sparse.protected.fixed[0] == (0, shared) and sparse.kept_ranges == [[0, 9]]
    assert sparse.enabled and not second.options.sparse.enabled
    assert not options.cache_prompt
    found = options.stop, options.sampling.seed, options.max_tokens, sparse.facts.roles
    assert found == (("x",), 5, 3, ("system", "user"))
    assert prompts.tokenizer.decode(first.token_ids[: options.mark_at[1]]).endswith("Hello<|im_end|>\n")


@pytest.mark.parametrize("status", [400, 503])
def test_errors_before_the_answer(send, engine, status):
    engine.error = ApiError(status, "why", retry_after=7 if status == 503 else None)
    for stream in (False, True):
        response = send("POST", "/v1/chat/completions", json={"messages": HELLO, "stream": stream})
        assert response.status_code == status and response.json()["error"]["message"] == "why"
        assert response.headers.get("retry-after") == ("7" if status == 503 else None)


@pytest.mark.parametrize(
    ("method", "path", "kwargs", "status", "message"),
    [
        ("GET", "/nope", {}, 404, "no such path: /nope"),
        ("GET", "/v1/models/gpt-4", {}, 404, "model: this server has demo"),
        ("GET", "/v1/chat/completions", {}, 405, "GET is not for this path"),
        ("POST", "/v1/models", {"json": {}}, 405, "POST is not for this path"),
        ("POST", "/v1/chat/completions", {"content": b"{"}, 400, "body: not JSON"),
        ("POST", "/v1/chat/completions", {"content": b'{"messages": "\xff"}'}, 400, "body: byte 14 is not UTF-8"),
        ("POST", "/v1/chat/completions", {"content": b" " * (MAX_BODY_BYTES + 1)}, 413, "body: larger than"),
        (
            "POST",
            "/v1/chat/completions",
            {"content": rb'{"messages": [{"role": "user", "content": "a \ud800"}]}'},
            400,
            "text: lone surrogate U+D800",
        ),
        ("POST", "/v1/completions", {"json": {"prompt": ""}}, 400, "prompt: it is empty"),
        (
            "POST",
            "/v1/completions",
            {"json": {"prompt": [99999]}},
            400,
            "prompt: found token id 99999, wanted 0 to 1535",
        ),
        (
            "POST",
            "/v1/completions",
            {"json": {"prompt": [1] * 512, "specprefill": False}},
            400,
            "context: the prompt needs 512 tokens, the context holds 512, the answer included",
        ),
        ("POST", "/v1/completions", {"json": {"prompt": [1] * 32768}}, 400, "context: the prompt needs 32768 tokens"),
        ("POST", "/tokenize", {"json": {"content": 5}}, 400, "content: found 5, wanted text"),
        ("POST", "/tokenize", {"json": {}}, 400, "content: missing"),
        ("POST", "/detokenize", {"json": {"tokens": ["a"]}}, 400, "tokens[0]: found 'a', wanted a whole number"),
        (
            "POST",
            "/detokenize",
            {"json": {"tokens": [-1]}},
            400,
            "tokens[0]: found -1, wanted",
        ),
        ("POST", "/detokenize", {"json": {"tokens": [99999]}}, 400, "token id 99999 is out of range"),
        ("POST", "/apply-template", {"json": {"messages": []}}, 400, "messages: it is empty"),
    ],
)
def test_errors(send, method, path, kwargs, status, message):
    response = send(method, path, **kwargs)
    assert response.status_code == status and response.json()["error"]["message"].startswith(message)
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    fields = {"/tokenize": "content", "/detokenize": "tokens", "/v1/completions": "prompt"}
    if status == 400 and not message.startswith("body"):
        assert error["param"].split("[")[0] == fields.get(path, "messages"), "the field that holds the text"


def test_an_error_of_our_own_is_500_and_tells_nothing(send, engine):
    engine.run = None
    response = send("POST", "/v1/chat/completions", json={"messages": HELLO})
    assert (
        response.status_code == 500
        and response.json()["error"]["message"] == "internal error; the server's log has more"
    )


def test_text_endpoints(send):
    ids = send("POST", "/tokenize", json={"content": "Hello <|im_end|>"}).json()["tokens"]
    assert send("POST", "/detokenize", json={"tokens": ids}).json()["content"] == "Hello <|im_end|>"
    assert len(
        send("POST", "/tokenize", json={"content": "Hello <|im_end|>", "parse_special": False}).json()["tokens"]
    ) > len(ids)
    pieces = send("POST", "/tokenize", json={"content": "\u00e9", "with_pieces": True}).json()["tokens"]
    assert pieces == [{"id": pieces[0]["id"], "piece": [0xC3]}, {"id": pieces[1]["id"], "piece": [0xA9]}]
    prompt = send("POST", "/apply-template", json={"messages": HELLO}).json()["prompt"]
    assert prompt == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


def test_health(send, engine):
    assert send("GET", "/health").json()["status"] == "ok"
    engine.ready = None
    response = send("GET", "/health")
    assert (
        response.status_code == 503
        and response.json()["stage"] == "loading weights 40 %"
        and response.json()["error"]["message"] == engine.stage
    )
    engine.lost = True
    assert send("GET", "/health").json()["status"] == "device lost"


def test_tokens_in_vllms_words(send):
    """lm-eval asks so where it is given no tokenizer."""
    info = send("GET", "/tokenizer_info").json()
    assert info["eos_token"] == "<|im_end|>" and "im_start" in info["chat_template"]
    asked = {"prompt": f"Hello{info['eos_token']}", "add_special_tokens": False}
    ids = send("POST", "/tokenize", json=asked).json()["tokens"]
    assert ids == send("POST", "/tokenize", json={"content": asked["prompt"]}).json()["tokens"]
    assert send("POST", "/detokenize", json={"tokens": ids}).json()["prompt"] == asked["prompt"]
    assert send("POST", "/tokenize", json={"prompt": "x", "content": "x"}).status_code == 400


def test_models_and_props(send):
    (model,) = send("GET", "/v1/models").json()["data"]
    assert model["id"] == "demo" and model["meta"]["n_ctx_train"] == 32768 and model["meta"]["n_ctx"] == 512
    assert send("GET", "/v1/models/demo").json() == model
    props = send("GET", "/props").json()
    assert (
        props["default_generation_settings"]["params"]["temperature"] == 0
        and props["specprefill"]["min_tokens"] == 8192
    )
    params = props["default_generation_settings"]["params"]
    assert (params["speculative.types"], params["speculative.n_max"], params["speculative.p_min"]) == ("auto", 3, 0.0)
    assert "im_start" in props["chat_template"] and props["model_path"] == "target.gguf"
    assert (props["device"], props["precision"]) == ("a device", "full")
    assert props["specprefill_scorers"] == ["auto", "draft", "self"]


@pytest.mark.parametrize(
    ("spec", "layers", "scorers"),
    [
        (SpecPrefillConfig(), (3, 7), ["auto", "draft", "self"]),
        (SpecPrefillConfig(), (7,), ["auto", "draft"]),
        (SpecPrefillConfig(scorer="self"), (3, 7), ["self"]),
        (None, (3, 7), ["self"]),
        (None, (7,), []),
    ],
)
def test_who_may_score(spec, layers, scorers):
    """What /props says: the draft where there is one, the model where a layer comes after one of attention."""
    assert _scorers(Defaults(spec=spec), SimpleNamespace(num_hidden_layers=8, attention_layers=layers)) == scorers


def test_metrics(send):
    send("POST", "/v1/chat/completions", json={"messages": HELLO})
    send("POST", "/v1/chat/completions", json={})
    text = send("GET", "/metrics").text
    for line in (
        "vkprefill:prompt_tokens_total 3",
        "vkprefill:tokens_predicted_total 5",
        "vkprefill:cached_tokens_total 4",
        'vkprefill:specprefill_requests_total{status="active"} 1',
        'vkprefill:specprefill_requests_total{status="failed"} 0',
        "vkprefill:specprefill_skipped_tokens_total 3",
        'vkprefill:requests_total{code="200"} 1',
        'vkprefill:requests_total{code="400"} 1',
        'vkprefill:device_memory_bytes{kind="weights"} 5',
        "vkprefill:requests_processing 0",
    ):
        assert f"\n{line}\n" in text


def test_api_key(send):
    options = {"access": Access(keys=Keys("s3cret"))}
    for path in ("/v1/models", "/props", "/metrics", "/nope"):
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "s3cret"},
            {"Authorization": b"Bearer \xff"},
        ):
            response = send("GET", path, options=options, headers=headers)
            assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
    assert send("GET", "/v1/models", options=options, headers={"Authorization": "Bearer s3cret"}).status_code == 200
    assert send("GET", "/v1/models", options=options, headers={"Authorization": "bearer s3cret"}).status_code == 200
    for path in ("/health", "/", "/openapi.json"):
        assert send("GET", path, options=options).status_code == 200


def test_cors(send):
    origin = {"Origin": "http://page.example"}
    assert "access-control-allow-origin" not in send("GET", "/v1/models", headers=origin).headers
    options = {"access": Access(origins=frozenset({"http://page.example"}), keys=Keys("k"))}
    asked = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    assert (
        send("OPTIONS", "/v1/chat/completions", options=options, headers=asked).headers["access-control-allow-origin"]
        == "http://page.example"
    )
    assert (
        "access-control-allow-origin"
        not in send("GET", "/health", options=options, headers={"Origin": "http://other.example"}).headers
    )


def test_page(send, monkeypatch, tmp_path):
    monkeypatch.setattr(app_module, "files", lambda _: tmp_path)
    assert send("GET", "/").text.startswith("vkprefill serves")
    (tmp_path / "web").mkdir()
    for name in ("index.html", "app.js", "style.css"):
        (tmp_path / "web" / name).write_text(name)
    (tmp_path / "web" / "vendor").mkdir()
    (tmp_path / "web" / "vendor" / "lib.js").write_text("lib")
    kinds = {
        "/": "text/html",
        "/app.js": "text/javascript",
        "/style.css": "text/css",
        "/vendor/lib.js": "text/javascript",
    }
    for path, kind in kinds.items():
        response = send("GET", path)
        assert (
            response.headers["content-type"].startswith(kind)
            and "default-src 'none'" in response.headers["content-security-policy"]
        )
        assert response.headers["x-content-type-options"] == "nosniff"
    for path in ("/../vkprefill/errors.py", "/%2e%2e/vkprefill/errors.py", "/web/app.js", "//etc/passwd"):
        assert send("GET", path).status_code == 404


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "pieces", "want"),
    [
        ({"messages": BEGUN}, ["\n am", " here."], {"content": "\n am here."}),
        ({"messages": BEGUN}, ["<think> is a tag"], {"content": "<think> is a tag"}),
        ({"reasoning_format": "none"}, ["<think>\nwhy\n</think>\n\nso"], {"content": "<think>\nwhy\n</think>\n\nso"}),
    ],
)
def test_forms_of_an_answer(send, engine, fields, pieces, want, stream):
    engine.pieces = pieces
    response = send("POST", "/v1/chat/completions", json={"messages": HELLO, **fields, "stream": stream})
    message = joined(events(response))["message"] if stream else response.json()["choices"][0]["message"]
    assert {key: value for key, value in message.items() if value is not None} == {"role": "assistant", **want}


def test_an_answer_that_goes_on_is_asked_for_with_its_beginning(send, engine, prompts):
    send("POST", "/v1/chat/completions", json={"messages": BEGUN})
    text = prompts.tokenizer.decode(engine.jobs[0].token_ids)
    assert text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nI"
    assert send("POST", "/apply-template", json={"messages": BEGUN}).json()["prompt"] == text
    closed = send("POST", "/apply-template", json={"messages": BEGUN, "add_generation_prompt": False})
    assert closed.json()["prompt"] == text + "<|im_end|>\n"
