"""Renders one chat template, as a process of its own: a template is a program that came with a file.

The process limits its own memory, and its parent kills it when it takes too long: a template that runs forever does
no more harm than that. It reads JSON lines: first {"source": template, "max_chars": int, "max_bytes": int}, then one
context (a dict of variables) per line; each context is answered by {"text": rendering} or {"error": message}. It
imports jinja2 and the standard library only, to start quickly.

The environment is the one of Hugging Face's transformers (utils/chat_template_utils.py), so templates render the same.
"""

import json
import re
import sys
from datetime import datetime

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

# What evaluating a template's expressions may raise: its own errors, and Python's on values of the wrong type or size.
RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)

ESCAPED = re.compile("[^\x00-\x7f\ue000-\uf8ff]")


class OutputTooLong(ValueError):
    """A rendering exceeds its bound."""


class GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` ... `{% endgeneration %}` marks what a model wrote, for training; here it only renders."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: jinja2.runtime.Macro) -> str:
        return caller()


def raise_exception(message: object) -> None:
    """The function by which templates refuse messages."""
    raise jinja2.TemplateError(str(message))


def tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of jinja2's own filter. Private-use characters, our markers, are never escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return ESCAPED.sub(lambda match: json.dumps(match[0])[1:-1], text) if ensure_ascii else text


def strftime_now(format: str) -> str:
    """The local time, as the template wants it written."""
    return datetime.now().strftime(format)


def compile_template(source: str) -> jinja2.Template:
    """Compile in the sandbox; raises one of RENDER_ERRORS."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return environment.from_string(source)


def render(template: jinja2.Template, context: dict[str, object], max_chars: int) -> str:
    """Render at most `max_chars` characters; raises one of RENDER_ERRORS."""
    pieces, num_chars = [], 0
    for piece in template.generate(context):
        num_chars += len(piece)
        if num_chars > max_chars:
            raise OutputTooLong(f"the rendering is longer than {max_chars} characters")
        pieces.append(piece)
    return "".join(pieces)


def message_of(error: BaseException) -> str:
    """One line for a person: what the template says, or what went wrong in it."""
    if isinstance(error, MemoryError):
        return "rendering needs too much memory"
    text = " ".join(str(error).split()) or type(error).__name__
    return f"line {error.lineno}: {text}" if isinstance(error, jinja2.TemplateSyntaxError) else text


def limit_memory(max_bytes: int) -> None:
    """Cap the address space of this process, where the system can."""
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))


def main() -> None:
    setup = json.loads(sys.stdin.readline())
    limit_memory(setup["max_bytes"])
    template = None
    for line in sys.stdin:
        try:
            template = template or compile_template(setup["source"])
            reply = {"text": render(template, json.loads(line), setup["max_chars"])}
        except RENDER_ERRORS as error:
            reply = {"error": message_of(error)}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
