// The server's API: JSON, and answers as a stream of events. The key is kept for this tab only.

const KEY = "vkprefill-api-key";

export const apiKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY)),
};

export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
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
    throw new ServerError("The server cannot be reached.");
  }
}

async function errorOf(response) {
  let message = "";
  try {
    message = (await response.json()).error.message;
  } catch {
    // not the server's own answer
  }
  return new ServerError(message || `The server answered with status ${response.status}.`, response.status);
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
    if (chunk.error) throw new ServerError(chunk.error.message);
    yield chunk;
  }
  throw new ServerError("The connection ended before the answer was complete.");
}

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
    throw new ServerError("The connection to the server was lost.");
  } finally {
    reader.cancel().catch(() => {});
  }
}
