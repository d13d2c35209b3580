"""Structured answers, tools and the other protocols by client libraries as people use them, against a running server.

For environments of their own, which `make test-clients` makes: python python_clients.py URL PACKAGE runs what concerns
the package and prints a line for each check.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

URL, PACKAGE = sys.argv[1:]
os.environ |= {"OPENAI_BASE_URL": f"{URL}/v1", "OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none"}
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no look for a newer one in the network
QUESTION = "Name a town and how many people live in it."
CHECKS: list[tuple[str, str, Callable[[], None]]] = []  # package, what it does, how


class Town(BaseModel):
    """A town."""

    name: str = Field(max_length=12)
    size: int = Field(ge=0, le=9999)


class Place(BaseModel):
    kind: Literal["town", "river"]
    old: bool


def check(package: str) -> Callable[[Callable[[], None]], None]:
    return lambda work: CHECKS.append((package, work.__name__.replace("_", " "), work))


@check("openai")
def parse() -> None:
    import openai

    answer = openai.OpenAI().chat.completions.parse(
        model="demo", messages=[{"role": "user", "content": QUESTION}], response_format=Town, max_tokens=200
    )
    assert isinstance(answer.choices[0].message.parsed, Town)


@check("openai")
def parse_tools() -> None:
    import openai

    answer = openai.OpenAI().chat.completions.parse(
        model="demo",
        messages=[{"role": "user", "content": QUESTION}],
        tools=[openai.pydantic_function_tool(Town)],
        tool_choice="required",
        max_tokens=200,
    )
    assert isinstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, Town)


@check("openai")
def responses() -> None:
    import openai

    client = openai.OpenAI()
    first = client.responses.parse(model="demo", input=QUESTION, text_format=Town, max_output_tokens=200)
    assert isinstance(first.output_parsed, Town)
    with client.responses.stream(
        model="demo", input="And another.", previous_response_id=first.id, max_output_tokens=20, temperature=0
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        last = stream.get_final_response()
    assert text == last.output_text and last.usage.input_tokens > first.usage.input_tokens
    tool = {"type": "function", "name": "town", "parameters": Town.model_json_schema(), "strict": False}
    call = client.responses.create(model="demo", input=QUESTION, tools=[tool], tool_choice="required").output[0]
    assert call.type == "function_call" and Town.model_validate_json(call.arguments)


@check("anthropic")
def messages() -> None:
    import anthropic

    client = anthropic.Anthropic(base_url=URL)
    asked = {"model": "demo", "max_tokens": 100, "messages": [{"role": "user", "content": QUESTION}]}
    tool = {"name": "town", "description": "a town", "input_schema": Town.model_json_schema()}
    use = client.messages.create(**asked, tools=[tool], tool_choice={"type": "any"}).content[0]
    assert use.type == "tool_use" and Town.model_validate(use.input)
    with client.messages.stream(**asked, tools=[tool], tool_choice={"type": "tool", "name": "town"}) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use" and Town.model_validate(final.content[0].input)
    with client.messages.stream(**asked, system="Be short.") as stream:
        text = "".join(stream.text_stream)
    assert text == stream.get_final_text()
    asked.pop("max_tokens")
    assert client.messages.count_tokens(**asked).input_tokens > 5


@check("anthropic")
def messages_parse() -> None:
    """Their client leaves bounds of texts and numbers out of schemas."""
    import anthropic

    client = anthropic.Anthropic(base_url=URL)
    asked = {"model": "demo", "max_tokens": 50, "messages": [{"role": "user", "content": QUESTION}]}
    assert isinstance(client.messages.parse(**asked, output_format=Place).parsed_output, Place)


def with_structured_output(method: str) -> None:
    import openai
    from langchain_core.exceptions import OutputParserException
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="demo", max_tokens=200, temperature=0).with_structured_output(Town, method=method)
    question = f"{QUESTION} Answer in JSON."
    if method == "json_mode":  # asks for an object of whatever fields, which the built-in model may never end
        try:
            model.invoke(question)
        except openai.LengthFinishReasonError as cut:
            assert cut.completion.choices[0].message.content.startswith("{")
        except OutputParserException as other:
            assert json.loads(other.llm_output) is not None
        return
    assert isinstance(model.invoke(question), Town)


for one in ("json_schema", "function_calling", "json_mode"):
    CHECKS.append(("langchain-openai", f"with_structured_output, {one}", partial(with_structured_output, one)))


@check("instructor")
def instructor_modes() -> None:
    import instructor
    import openai

    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(openai.OpenAI(), mode=mode)
        found = client.chat.completions.create(
            model="demo", response_model=Town, messages=[{"role": "user", "content": QUESTION}], max_tokens=200
        )
        assert isinstance(found, Town)


@check("pydantic-ai-slim[openai]")
def pydantic_ai() -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel

    found = Agent(OpenAIChatModel("demo"), output_type=Town, model_settings={"max_tokens": 200}).run_sync(QUESTION)
    assert isinstance(found.output, Town)


@check("llm")
def llm_schema() -> None:
    """By the command, as in a shell."""
    with tempfile.TemporaryDirectory() as folder:
        model = {"model_id": "demo", "model_name": "demo", "api_base": f"{URL}/v1", "supports_schema": True}
        Path(folder, "extra-openai-models.yaml").write_text(json.dumps([model]))  # JSON is YAML
        command = [Path(sys.executable).with_name("llm"), "-m", "demo", "--key", "none", "-o", "max_tokens", "200"]
        schema = json.dumps(Town.model_json_schema())
        for more in ([], ["--no-stream"]):
            done = subprocess.run(
                [*command, *more, "--schema", schema, QUESTION],
                env={**os.environ, "LLM_USER_PATH": folder},
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert Town.model_validate_json(done.stdout)


@check("litellm")
def completion() -> None:
    import litellm

    litellm.suppress_debug_info = True
    common = {"api_base": f"{URL}/v1", "api_key": "none", "max_tokens": 200, "temperature": 0}
    asked = {**common, "model": "openai/demo", "messages": [{"role": "user", "content": QUESTION}]}
    parsed = litellm.completion(**asked, response_format=Town).choices[0].message.content
    assert Town.model_validate_json(parsed)
    tool = {"type": "function", "function": {"name": "town", "parameters": Town.model_json_schema()}}
    (call,) = (
        litellm.completion(**asked, tools=[tool], tool_choice="required", parallel_tool_calls=False)
        .choices[0]
        .message.tool_calls
    )
    assert call.function.name == "town" and Town.model_validate_json(call.function.arguments)
    asked["max_tokens"] = 12
    whole = litellm.completion(**asked)
    chunks = litellm.completion(**asked, stream=True, stream_options={"include_usage": True})
    streamed = litellm.stream_chunk_builder(list(chunks))
    assert whole.choices[0].message.content == streamed.choices[0].message.content
    assert whole.usage.completion_tokens == streamed.usage.completion_tokens > 0
    text = litellm.text_completion(
        **common | {"max_tokens": 5}, model="text-completion-openai/demo", prompt="The river"
    )
    assert text.choices[0].text


@check("litellm")
def anthropic_messages() -> None:
    """Anthropic's API, as litellm speaks it."""
    import litellm

    asked = {"model": "anthropic/demo", "api_base": URL, "api_key": "none", "max_tokens": 12, "temperature": 0}
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": QUESTION}]
    whole = litellm.completion(**asked, messages=messages)
    streamed = litellm.stream_chunk_builder(list(litellm.completion(**asked, messages=messages, stream=True)))
    assert whole.choices[0].message.content == streamed.choices[0].message.content
    assert whole.choices[0].finish_reason == streamed.choices[0].finish_reason


@check("lm-eval[api]")
def local_completions() -> None:
    import lm_eval_client

    lm_eval_client.completions(URL)


@check("lm-eval[api]")
def local_chat_completions() -> None:
    import lm_eval_client

    lm_eval_client.chat(URL)


def main() -> int:
    failed = 0
    for package, what, work in CHECKS:
        if package != PACKAGE:
            continue
        version = importlib.metadata.version(package.partition("[")[0])
        name = f"{package} {version}, {what}"
        try:
            work()
            print(f"passed: {name}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED: {name}\n{traceback.format_exc()}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
