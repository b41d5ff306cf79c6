// The server's API: one function per route, and every failure as one sentence.

export class ApiError extends Error {}

/** Talks to the server that served the page. `key()` gives the API key, or "". */
export class Api {
  constructor(key) {
    this.key = key;
  }

  async models() {
    return (await (await this.request("/v1/models")).json()).data;
  }

  async memories(user, after) {
    const query = new URLSearchParams({ user, limit: 100, ...(after && { after }) });
    return (await this.request(`/v1/memories?${query}`)).json();
  }

  /** What is known of one memory; undefined where there is none. */
  async memory(user, memory) {
    const response = await this.request(path(user, memory), {}, [404]);
    return response.ok ? response.json() : undefined;
  }

  fork(user, memory, to) {
    return this.request(`${path(user, memory)}/fork`, json({ to }));
  }

  reset(user, memory) {
    return this.request(`${path(user, memory)}/reset`, { method: "POST" });
  }

  remove(user, memory) {
    return this.request(path(user, memory), { method: "DELETE" });
  }

  async export(user, memory) {
    return (await this.request(`${path(user, memory)}/export`)).blob();
  }

  import(user, memory, file) {
    const headers = { "Content-Type": "application/octet-stream" };
    return this.request(`${path(user, memory)}/import`, { method: "PUT", headers, body: file });
  }

  /** Yield the chunks of a streamed completion: of a chat, where there are messages, or of a text. */
  async *complete(body, signal) {
    const route = body.messages ? "/v1/chat/completions" : "/v1/completions";
    const response = await this.request(route, { ...json({ ...body, stream: true }), signal });
    try {
      for await (const chunk of events(response.body)) {
        if (chunk.error) throw new ApiError(chunk.error.message);
        yield chunk;
      }
    } catch (error) {
      if (error instanceof ApiError || error.name === "AbortError") throw error;
      throw new ApiError("The connection broke off before the answer was complete. Send the message again.");
    }
  }

  async request(url, options = {}, expected = []) {
    const headers = { ...options.headers, ...(this.key() && { Authorization: `Bearer ${this.key()}` }) };
    let response;
    try {
      response = await fetch(url, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The server cannot be reached. Check that it is running, and try again.");
    }
    if (!response.ok && !expected.includes(response.status)) throw new ApiError(await sentence(response));
    return response;
  }
}

function path(user, memory) {
  return `/v1/memories/${encodeURIComponent(user)}/${encodeURIComponent(memory)}`;
}

function json(body) {
  return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
}

/** What went wrong and what to do. */
async function sentence(response) {
  const seconds = Number(response.headers.get("Retry-After"));
  const later = seconds > 0 ? `Try again in ${seconds} ${seconds === 1 ? "second" : "seconds"}.` : "Try again later.";
  const { message: said = "", code } = await response.json().then(({ error }) => error, () => ({}));
  if (code === "store_failed") return said;
  switch (response.status) {
    case 401:
      return "The server asks for an API key, and this is not one it knows. Enter yours under Settings.";
    case 409:
      return `Another request got there first${said && `: ${said}`}. Try again.`;
    case 429:
      return `There are too many requests. ${later}`;
    case 503:
      return `The server is busy or shutting down. ${later}`;
    default:
      return said || `The server answered with status ${response.status}.`;
  }
}

/** Read server-sent events up to `[DONE]`; a stream that ends before it is broken. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the stream ended early");
    pending += value.replaceAll("\r", "");
    const blocks = pending.split("\n\n");
    pending = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n").filter((line) => line.startsWith("data:"));
      const data = lines.map((line) => line.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}
