// Markdown -> nodes: marked reads it, DOMPurify lets through what is listed here. Raw HTML in it stays text, images
// become links.

import { Marked } from "./vendor/marked.js";
import DOMPurify from "./vendor/purify.js";
import { copyButton, element, unturned } from "./text.js";

const OWN_LEVELS = 3; // of headings: the page, the conversation, the answer
const HARMLESS = /&lt;(\/?)(br|sub|sup|kbd|u|mark|small)\s*\/?&gt;/gi; // tags that models write, without attributes
const ALLOWED = {
  ALLOWED_TAGS: [
    ..."p br hr h1 h2 h3 h4 h5 h6 ul ol li blockquote pre code em strong del a span div".split(" "),
    ..."table thead tbody tr th td sub sup kbd u mark small".split(" "),
  ],
  ALLOWED_ATTR: ["href", "title", "align", "start", "class"],
  ADD_URI_SAFE_ATTR: ["align", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const escape = (text) =>
  text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");

// Formulas stay as they are written: Markdown would take their underscores, stars and backslashes for marks.
const MATHS = [
  ["mathsBlock", "block", /^ {0,3}(\$\$[\s\S]+?\$\$|\\\[[\s\S]+?\\\])[ \t]*(?:\n|$)/, /^ {0,3}(?:\$\$|\\\[)/m],
  [
    "maths",
    "inline",
    /^(\$\$[^\n]+?\$\$|\\\([\s\S]+?\\\)|\\\[[\s\S]+?\\\]|\$(?![\s$])(?:\\.|[^$\\\n])*?[^\s\\$]\$(?!\d))/,
    /\$|\\[([]/,
  ],
].map(([name, level, whole, begin]) => ({
  name,
  level,
  start: (source) => source.search(begin),
  tokenizer(source) {
    const found = whole.exec(source);
    return found ? { type: name, raw: found[0], text: found[1] } : undefined;
  },
  renderer: ({ text }) =>
    level === "block" ? `<div class="maths">${escape(text)}</div>` : `<span class="maths">${escape(text)}</span>`,
}));

const marked = new Marked({
  gfm: true,
  breaks: false,
  extensions: MATHS,
  renderer: {
    html({ text, block }) {
      const shown = escape(text).replace(HARMLESS, "<$1$2>");
      return block ? `<p class="raw">${shown.trim()}</p>` : shown;
    },
    image({ href, text, tokens }) {
      return this.link({ href, title: null, tokens: tokens ?? [{ type: "text", raw: text, text: text || href }] });
    },
    checkbox: ({ checked }) => (checked ? "\u2611 " : "\u2610 "),
    code({ text, lang }) {
      const language = /^[\w+#.-]+/.exec(lang ?? "")?.[0] ?? "";
      return `<pre><code class="language-${escape(language)}">${escape(text)}\n</code></pre>\n`;
    },
  },
});

// Nodes of some HTML that marked made. outline: { level } of the heading before it, changed to that of its last one.
function nodes(source, outline) {
  const fragment = DOMPurify.sanitize(source, ALLOWED);
  for (const link of fragment.querySelectorAll("a"))
    Object.assign(link, { target: "_blank", rel: "noopener noreferrer nofollow" });
  for (const node of fragment.querySelectorAll("[class]")) {
    if (!["maths", "raw"].includes(node.className) && node.tagName !== "CODE") node.removeAttribute("class");
  }
  for (const heading of fragment.querySelectorAll("h1, h2, h3, h4, h5, h6"))
    heading.replaceWith(lowered(heading, outline));
  for (const table of fragment.querySelectorAll("table"))
    wrap(table, element("div", { className: "table", tabIndex: 0, role: "group", ariaLabel: "Table" }));
  for (const pre of fragment.querySelectorAll("pre")) framed(pre);
  return fragment;
}

function wrap(node, around) {
  node.replaceWith(around);
  around.append(node);
}

// The page's own headings are above those of an answer, and no level is left out on the way down.
function lowered(heading, outline) {
  const level = Number(heading.tagName[1]);
  outline.level = Math.min(level + OWN_LEVELS, outline.level + 1, 6);
  return element(`h${outline.level}`, { className: `of-${level}` }, ...heading.childNodes);
}

// A block of code with its language and a button that copies it.
function framed(pre) {
  const code = pre.querySelector("code") ?? pre;
  const language = /language-(\S+)/.exec(code.className)?.[1] ?? "";
  code.removeAttribute("class");
  const head = element(
    "div",
    { className: "code-head" },
    element("span", {}, language || "text"),
    copyButton(() => code.textContent.replace(/\n$/, "")),
  );
  wrap(pre, element("div", { className: "code" }, head));
  Object.assign(pre, { tabIndex: 0, ariaLabel: `Code${language ? ` in ${language}` : ""}` });
  pre.setAttribute("role", "group");
}

// A node that shows Markdown as it grows: blocks that did not change stay as they are, and with them what is selected
// there.
export class MarkdownView {
  #blocks = []; // { raw, nodes, level }: level of the last heading up to here

  constructor(node) {
    this.node = node;
  }

  // ended: nothing more comes; what stands at the end may have said where links of earlier blocks lead.
  show(text, ended = false) {
    const tokens = marked.lexer(unturned(text));
    const blocks = tokens.filter((token) => token.type !== "space");
    let same = 0;
    const whole = ended && Object.keys(tokens.links).length > 0;
    while (!whole && same < blocks.length && same < this.#blocks.length && this.#blocks[same].raw === blocks[same].raw)
      same++;
    for (const { nodes: old } of this.#blocks.splice(same)) for (const node of old) node.remove();
    const outline = { level: this.#blocks.at(-1)?.level ?? OWN_LEVELS };
    for (const token of blocks.slice(same)) {
      const fragment = nodes(marked.parser([token]), outline);
      this.#blocks.push({ raw: token.raw, nodes: [...fragment.childNodes], ...outline });
      this.node.append(fragment);
    }
  }
}
