// Whether the model thinks before it answers: shown where its template can be told.

import { kept } from "./settings.js";
import { $ } from "./text.js";

const SWITCH = "enable_thinking"; // the template's variable

const can = (server) => Boolean(server?.chat_template?.includes(SWITCH));

export function startThinking() {
  $("thinking").value = kept.get().thinking ?? "";
  $("thinking").addEventListener("change", () => kept.set({ thinking: $("thinking").value }));
}

export function showThinking(server) {
  $("thinking-box").hidden = !can(server);
}

// Fields of a request.
export function thinking(server) {
  const chosen = $("thinking").value;
  return can(server) && chosen ? { chat_template_kwargs: { [SWITCH]: chosen === "on" } } : {};
}
