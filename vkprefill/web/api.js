// The server's API: JSON, and answers as a stream of events. The key is kept for this tab only.

const KEY = "vkprefill-api-key";

export const apiKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY)),
};

// status: of HTTP, 0 where there was no answer; code: OpenAI's; lost: the connection ended in the middle.
export class ServerError extends Error {
  constructor(message, { status = 0, code = null, lost = false } = {}) {
    super(message);
    Object.assign(this, { status, code, lost });
  }
}

function headers() {
  const key = apiKey.get();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function request(path, options = {}) {
  try {
    return await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("no answer");
  }
}

async function errorOf(response) {
  let told = {};
  try {
    told = (await response.json()).error ?? {};
  } catch {
    // not the server's own answer
  }
  return new ServerError(told.message ?? "", { status: response.status, code: told.code });
}

export async function getJson(path) {
  const response = await request(path);
  if (!response.ok) throw await errorOf(response);
  return response.json();
}

// { ready, stage }: whether the model is loaded, and what the server is doing if not.
export async function health() {
  const response = await request("/health");
  const body = await response.json();
  return { ready: response.ok, stage: body.stage ?? body.status };
}

// The chunks of a streamed chat answer. Throws ServerError, also for an error in the middle; AbortError when stopped.
export async function* streamChat(body, signal) {
  const response = await request("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  if (!response.ok) throw await errorOf(response);
  for await (const data of eventData(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error)
      throw new ServerError(chunk.error.message, { status: statusOf(chunk.error), code: chunk.error.code });
    yield chunk;
  }
  throw new ServerError("the stream ended early", { lost: true });
}

// An error inside a stream has a type in place of a status.
const statusOf = ({ type }) =>
  ({ invalid_request_error: 400, unavailable_error: 503, timeout_error: 504 })[type] ?? 500;

// The data of each server-sent event.
async function* eventData(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let searched = 0; // up to here there is no end of an event
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      for (let end; (end = text.indexOf("\n\n", searched)) >= 0; searched = 0) {
        const event = text.slice(0, end);
        text = text.slice(end + 2);
        if (event.startsWith("data: ")) yield event.slice(6);
      }
      searched = Math.max(0, text.length - 1);
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("the connection broke", { lost: true });
  } finally {
    reader.cancel().catch(() => {});
  }
}
