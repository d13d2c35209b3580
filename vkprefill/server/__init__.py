"""The HTTP server: an OpenAI-compatible API in front of one process that owns the GPU.

app (routes) -> api (checks) -> prompts (token ids) -> client (queue) ==pipe==> engine (conversations, model)
answers (JSON, chunks) <- answer_text (reasoning, tool calls) <- client <==pipe== pieces of text
"""
