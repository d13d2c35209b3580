// Where a message is written: its text and files, kept with the conversation until they are sent.

import { FileList, takeDrops } from "./files.js";
import { $ } from "./text.js";

const UNSENT = "vkprefill-unsent";
const KEEP_MS = 300; // after the last key

export class Composer {
  #timer = null;
  #touch = matchMedia("(pointer: coarse)");

  // on: { send(text, files) -> whether it was taken, unsent(text, files) -> id of the conversation, null for a new one;
  // complain(sentence), editLast() }
  constructor(on) {
    this.on = on;
    this.message = $("message");
    this.list = new FileList($("files"), () => this.#changed(), on.complain);
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.message.addEventListener("input", () => this.#changed());
    this.message.addEventListener("keydown", (event) => this.#key(event));
    $("attach").addEventListener("click", () => $("pick").click());
    $("pick").addEventListener("change", async () => {
      await this.list.add([...$("pick").files]);
      $("pick").value = "";
      this.message.focus();
    });
    takeDrops($("drop-here"), (files) => this.list.add(files));
    if (this.#touch.matches) $("hint").hidden = true;
  }

  get empty() {
    return !this.message.value.trim() && this.list.files.length === 0;
  }

  send() {
    if (this.empty || !this.on.send(this.message.value.trim(), this.list.files)) return;
    this.fill("", []);
    this.flush();
  }

  // What was written when the page was left, for the conversation of this id.
  take(id) {
    const { of, text = "", files = [] } = JSON.parse(sessionStorage.getItem(UNSENT) ?? "{}");
    if (of === id && (text || files.length)) this.fill(text, files);
  }

  fill(text, files) {
    this.message.value = text;
    this.list.files = files;
  }

  #key(event) {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey && !this.#touch.matches) {
      event.preventDefault();
      this.send();
    } else if (event.key === "ArrowUp" && this.empty && this.on.editLast()) {
      event.preventDefault();
    }
  }

  #changed() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.flush(), KEEP_MS);
  }

  // Keeps what is not sent now: with its conversation, and in the tab's memory, which is written at once.
  flush() {
    clearTimeout(this.#timer);
    const [text, { files }] = [this.message.value, this.list];
    const of = this.on.unsent(text, files);
    try {
      sessionStorage.setItem(UNSENT, JSON.stringify({ of, text, files }));
    } catch {
      sessionStorage.removeItem(UNSENT); // large files
    }
  }
}
