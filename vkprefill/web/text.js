// Nodes and words that all of the page uses. Text of models, prompts and people becomes text nodes here, nothing is
// parsed as HTML.

export const $ = (id) => document.getElementById(id);

// A node; attributes: properties where the node has them, attributes otherwise.
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

// A node of an SVG picture.
export function drawn(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export function button(text, onClick, attributes = {}) {
  const node = element("button", { type: "button", ...attributes }, text);
  node.addEventListener("click", onClick);
  return node;
}

const CONTROLS = /[\p{Cc}\p{Zl}\p{Zp}\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu;
const OVERRIDES = /[\u202a-\u202e\u2066-\u2069]/g; // what turns the direction of text after it

const codeOf = (character) => `<U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`;

// Control characters but line ends and tabs, as characters that can be seen and do nothing.
export function visible(text) {
  return text.replace(CONTROLS, (character) => {
    const code = character.codePointAt(0);
    if (character === "\n" || character === "\t") return character;
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "\u2421" : codeOf(character);
  });
}

// The same for those that turn the direction of a line: what is written in Arabic or Hebrew reads right without.
export const unturned = (text) => text.replace(OVERRIDES, codeOf);

export const count = (n) => n.toLocaleString("en");

export const percent = (part, whole) => `${Math.round((100 * part) / Math.max(whole, 1))}\u00a0%`;

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

// What tokens from start up to, and without, end are called.
export const tokenName = (start, end) => (end === start + 1 ? `token ${start}` : `tokens ${start} to ${end - 1}`);

export function duration(ms) {
  if (ms >= 60e3) return `${Math.floor(ms / 60e3)} min ${Math.round((ms % 60e3) / 1e3)} s`;
  if (ms >= 1e3) return `${(ms / 1e3).toFixed(ms >= 10e3 ? 1 : 2)} s`;
  return `${ms.toFixed(ms >= 10 ? 0 : 1)} ms`;
}

// Takes a text to the clipboard, by the older way where the newer one is not allowed, as over plain HTTP.
export async function copy(text) {
  try {
    return await navigator.clipboard.writeText(text);
  } catch {
    // not there, or not allowed
  }
  const focused = document.activeElement;
  const area = element("textarea", { value: text, className: "hidden" });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  focused?.focus();
}

// A button that copies what text() says, and says so.
export function copyButton(text, label = "Copy") {
  const node = button(label, async () => {
    await copy(text());
    node.textContent = "Copied";
    setTimeout(() => (node.textContent = label), 1500);
  });
  return node;
}

// For screen readers, and for nobody else.
export const announce = (text) => ($("announce").textContent = text);
