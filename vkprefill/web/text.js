// Text of models and prompts -> nodes. Everything becomes text nodes, nothing is ever parsed as HTML.

export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

const FENCE = /^ {0,3}(```+|~~~+)(.*)$/;

// Markdown's paragraphs, code and bold; all other marks stay as they are.
export function markdown(text) {
  const nodes = [];
  let lines = [];
  let fence = null;
  const flush = () => {
    const block = lines.join("\n");
    const paragraphs = block.split(/\n{2,}/).map((part) => part.replace(/^\n+|\n+$/g, "")).filter((part) => part.trim());
    if (fence) nodes.push(element("pre", { tabIndex: 0 }, element("code", {}, block)));
    else nodes.push(...paragraphs.map((part) => element("p", {}, ...inline(part))));
    lines = [];
  };
  for (const line of text.split("\n")) {
    const mark = FENCE.exec(line);
    const closes = fence && mark && mark[1].startsWith(fence) && !mark[2].trim();
    if (mark && (closes || !fence)) {
      flush();
      fence = closes ? null : mark[1];
    } else {
      lines.push(line);
    }
  }
  flush();
  return nodes;
}

function inline(text) {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((part) => {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) return element("code", {}, part.slice(1, -1));
    if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) return element("strong", {}, part.slice(2, -2));
    return part;
  });
}

// Control characters but line ends and tabs, as characters that can be seen and do nothing.
export function visible(text) {
  return text.replace(/[\p{Cc}\p{Zl}\p{Zp}\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu, (character) => {
    const code = character.codePointAt(0);
    if (character === "\n" || character === "\t") return character;
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "\u2421" : `<U+${code.toString(16).toUpperCase().padStart(4, "0")}>`;
  });
}

export const count = (n) => n.toLocaleString("en");

export function duration(ms) {
  if (ms >= 1e3) return `${(ms / 1e3).toFixed(2)} s`;
  return `${ms.toFixed(ms >= 10 ? 0 : 1)} ms`;
}

export const percent = (part, whole) => `${Math.round((100 * part) / Math.max(whole, 1))} %`;
