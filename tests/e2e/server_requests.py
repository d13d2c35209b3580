"""Requests to the server that its tests share: bodies, and bytes by hand."""

DENSE = {"specprefill": False}
LONG = {
    "prompt": "The",
    "max_tokens": 400,
    "temperature": 100,
    "top_k": 0,
    "seed": 1,
    "stream": True,
}  # noise, which hardly ever ends
FILLER = "The river was quiet and the bridge was old. "


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def ask(client, messages: list[dict[str, str]], **fields: object):
    ours = ("specprefill", "return_progress", "cache_prompt", "speculative.n_max")
    body = {name: fields.pop(name) for name in ours if name in fields}
    return client.chat.completions.create(
        model="any", messages=messages, extra_body=body, **{"max_tokens": 12, **fields}
    )


def text_of(answer) -> str:
    return answer.choices[0].message.content


def post(body: bytes, headers: str = "", path: str = "/v1/chat/completions") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode()
        + f"{headers or f'Content-Length: {len(body)}'}\r\n\r\n".encode()
        + body
    )
