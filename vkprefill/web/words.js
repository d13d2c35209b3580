// What went wrong, in words for people: { what, help, said }, said being the server's own text where it adds something.

import { ServerError } from "./api.js";
import { element, visible } from "./text.js";

const NO_SERVER = "The server cannot be reached.";

const BY_STATUS = {
  401: ["This server asks for an API key.", "Enter it in the settings, then try again."],
  403: [
    "The server does not answer pages from this address.",
    "Open the page by the address that the server was started with.",
  ],
  408: ["The message did not reach the server in time.", "Try again."],
  413: ["This is more text than the server takes in one message.", "Leave out a file, or send a shorter part of it."],
  500: ["The model failed on this message.", "Try again; the server's log says more."],
  504: [
    "The answer took longer than the server allows.",
    "Ask for a shorter answer, or start the server with a longer --timeout.",
  ],
};

export function inWords(error) {
  if (!(error instanceof ServerError))
    return { what: "The page itself made a mistake.", help: "Reload it and try again.", said: error.message };
  const { status, code, message: said } = error;
  if (error.lost)
    return {
      what: "The connection to the server was lost before the answer was complete.",
      help: "What there is of it is kept.",
      said: "",
    };
  if (status === 0) return { what: NO_SERVER, help: "Your message is kept. Try again when the server runs.", said: "" };
  if (code === "context_length_exceeded") {
    return {
      what: "This conversation is longer than the model can read.",
      help: "Start a new one, or send a shorter text.",
      said,
    };
  }
  if (status === 503) return { ...busy(said, code), said };
  if (status === 400)
    return { what: "The server cannot do what the settings or the message ask for.", help: "It says why:", said };
  const [what, help] = BY_STATUS[status] ?? [
    "The server refused this message.",
    "Try again; the server's log says more.",
  ];
  return { what, help, said: status === 401 ? "" : said };
}

function busy(said, code) {
  if (/stopping/.test(said)) return { what: "The server is being stopped.", help: "Try again when it runs again." };
  if (code === "loading") return { what: "The model is still being loaded.", help: "Try again in a moment." };
  if (/memory/.test(said))
    return {
      what: "The device has not enough memory for this message.",
      help: "Start a new conversation, or send a shorter text.",
    };
  return { what: "The server has too much to do at the moment.", help: "Try again in a moment." };
}

export function problemBox({ what, help, said }) {
  const node = element("div", { className: "error", role: "alert" }, element("strong", {}, what), ` ${help}`);
  if (said) node.append(element("p", { className: "said-by-server", dir: "auto" }, visible(said)));
  return node;
}
