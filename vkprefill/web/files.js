// Files that are dropped, pasted or picked, read as text. Nothing leaves the browser before the message is sent.

import { icon } from "./icons.js";
import { button, element, plural, visible } from "./text.js";

const MOST_BYTES = 3 * 2 ** 20; // of all files of a message: the server takes 4 MiB, and JSON needs room

// Text of a file; throws an Error with a sentence for people.
async function readText(file) {
  if (file.size > MOST_BYTES)
    throw new Error(
      `${file.name} is too large: ${mebibytes(file.size)}, where a message takes ${mebibytes(MOST_BYTES)}.`,
    );
  let text;
  try {
    const bytes = new Uint8Array(await file.arrayBuffer());
    text = new TextDecoder(encodingOf(bytes), { fatal: true }).decode(bytes);
  } catch {
    throw new Error(`${file.name} cannot be read as text.`);
  }
  if (text.includes("\0")) throw new Error(`${file.name} is no text.`);
  return text.replace(/\r\n?/g, "\n");
}

function encodingOf([first, second]) {
  if (first === 0xff && second === 0xfe) return "utf-16le";
  return first === 0xfe && second === 0xff ? "utf-16be" : "utf-8";
}

const mebibytes = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;

// The files of the message that is being written, in a list. onChange: after each change; complain(sentence).
export class FileList {
  #files = [];

  constructor(list, onChange, complain) {
    Object.assign(this, { list, onChange, complain });
  }

  get files() {
    return this.#files;
  }

  set files(files) {
    this.#files = files;
    this.#show();
  }

  async add(files) {
    const refused = [];
    for (const file of files) {
      try {
        const text = await readText(file);
        const size = [...this.#files, { text }].reduce((sum, one) => sum + one.text.length, 0);
        if (size > MOST_BYTES) throw new Error(`${file.name} is too much for one message beside the other files.`);
        this.#files = [...this.#files, { name: file.name, text }];
      } catch (error) {
        refused.push(error.message);
      }
    }
    this.#show();
    this.onChange();
    if (refused.length) this.complain(refused.join(" "));
  }

  #show() {
    this.list.hidden = this.#files.length === 0;
    this.list.replaceChildren(...this.#files.map((file) => this.#chip(file)));
  }

  #chip(file) {
    const drop = button(
      "",
      () => {
        this.files = this.#files.filter((one) => one !== file);
        this.onChange();
      },
      { className: "bare", ariaLabel: `Remove ${visible(file.name)}` },
    );
    drop.append(icon("close"));
    return element("li", {}, icon("file"), element("span", { dir: "auto" }, visible(file.name)), size(file), drop);
  }
}

const size = ({ text }) => element("span", { className: "soft" }, plural(text.length, "character"));

// A file of a message that was sent: its name, and its text when it is opened.
export function sentFile(file) {
  const head = element(
    "summary",
    {},
    icon("file"),
    element("span", { dir: "auto" }, visible(file.name)),
    " ",
    size(file),
  );
  const node = element("details", { className: "sent-file" }, head);
  node.addEventListener("toggle", () => {
    if (node.open && node.children.length === 1)
      node.append(
        element("pre", { tabIndex: 0, dir: "auto", role: "group", ariaLabel: file.name }, visible(file.text)),
      );
  });
  return node;
}

// Files dropped anywhere on the page, or pasted. over: the node that shows while they hang above it.
export function takeDrops(over, add) {
  const holds = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => {
    if (!holds(event)) return;
    event.preventDefault();
    over.hidden = false;
  });
  addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) over.hidden = true;
  });
  addEventListener("drop", (event) => {
    over.hidden = true;
    if (!holds(event)) return;
    event.preventDefault();
    add([...event.dataTransfer.files]);
  });
  addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    add(files);
  });
}
