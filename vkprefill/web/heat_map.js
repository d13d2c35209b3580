// The prompt of an answer, token by token: coloured by importance, dropped parts greyed. The same look as `vkprefill explain --html`.

import { element, visible } from "./text.js";

const LEVELS = 8;
const RANGE = 30; // the colours span importance from a thirtieth of the greatest upwards, on a logarithmic scale
const MOST_BARS = 240; // of the overview
const MOST_SPANS = 20000; // longer prompts: neighbours of one colour become one
const SPECIAL = /^<(\|[^|<>]+\||\/?think|\/?tool_call)>$/;

// report: the object `specprefill` of an answer, with tokens and importance.
export function heatMap(report) {
  const levels = report.importance ? heatLevels(report.importance) : null;
  let found = pieces(report, levels);
  if (found.length > MOST_SPANS) found = merged(found);
  const nodes = [];
  let group = null;
  for (const piece of found) {
    if (group === null || group.state !== piece.state) {
      group = { state: piece.state, node: null };
      group.node = element(piece.state === "dropped" ? "del" : "span", { className: piece.state });
      nodes.push(group.node);
    }
    group.node.append(span(piece));
  }
  for (const node of nodes) {
    if (node.tagName !== "DEL") continue;
    const dropped = [...node.children].reduce((sum, token) => sum + Number(token.dataset.count), 0);
    node.prepend(element("b", { className: "gap" }, ` [${dropped} dropped] `));
  }
  return nodes;
}

// { low, top }: importance of the lowest colour and of the highest. The top is the 99th percentile: a few tokens may have far more than all others.
export function heatScale(importance) {
  const sorted = Float64Array.from(importance).sort();
  const at = (sorted.length - 1) * 0.99;
  const below = Math.floor(at);
  const above = Math.min(below + 1, sorted.length - 1);
  const percentile = sorted[below] + (at - below) * (sorted[above] - sorted[below]);
  const top = percentile > 0 ? percentile : sorted[sorted.length - 1];
  return { low: top / RANGE, top };
}

// 0 to 1 for each token: importance on a logarithmic scale.
function heat(importance) {
  const { low } = heatScale(importance);
  if (!(low > 0)) return importance.map(() => 0);
  return importance.map((value) => Math.min(Math.log(Math.max(value, low) / low) / Math.log(RANGE), 1));
}

const heatLevels = (importance) => heat(importance).map((value) => Math.min(Math.floor(LEVELS * value), LEVELS - 1));

// "cached", "kept" or "dropped" for each token, by this prompt or by an earlier one that it goes on from.
function tokenStates({ tokens, cached_ranges: cached, kept_ranges: kept }) {
  const states = tokens.map(() => "dropped");
  for (const [start, end] of cached) states.fill("cached", start, end);
  for (const [start, end] of kept) states.fill("kept", start, end);
  return states;
}

// The whole prompt at a glance, in an SVG element: bars as high as the greatest importance in their part, coloured where tokens are kept.
export function overview(svg, report) {
  const total = report.tokens.length;
  const size = Math.max(1, Math.ceil(total / MOST_BARS));
  const heights = report.importance ? heat(report.importance) : null;
  const states = tokenStates(report);
  svg.setAttribute("viewBox", `0 0 ${total} 1`);
  svg.replaceChildren();
  for (let start = 0; start < total; start += size) {
    const end = Math.min(start + size, total);
    const state = states.slice(start, end).includes("kept") ? "kept" : states[start];
    const height = 0.08 + 0.92 * (heights ? heights.slice(start, end).reduce((a, b) => Math.max(a, b), 0) : 0);
    const bar = document.createElementNS(svg.namespaceURI, "rect");
    const place = { x: start, y: 1 - height, width: end - start, height, class: state };
    for (const [name, value] of Object.entries(place)) bar.setAttribute(name, value);
    svg.append(bar);
  }
}

function span(piece) {
  const { start, end, text, level, special, importance } = piece;
  const name = end === start + 1 ? `token ${start}` : `tokens ${start} to ${end - 1}`;
  const value = importance === null ? "" : `, importance ${importance.toPrecision(3)}`;
  const colour = level === null || piece.state === "cached" ? "" : `h${level}`;
  const node = element("span", { className: `${colour}${special ? " special" : ""}`, title: `${name}${value}` }, text);
  node.dataset.start = start;
  node.dataset.count = end - start;
  return node;
}

// Whole characters of the prompt and the tokens that they are made of: one as a rule, several where a character is cut between them.
function pieces(report, levels) {
  const { tokens, importance } = report;
  const states = tokenStates(report);
  const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  const lenient = new TextDecoder("utf-8", { ignoreBOM: true });
  const found = [];
  let start = 0;
  let bytes = [];
  const add = (end, text) => {
    const tokensOf = (values) => values.slice(start, end).reduce((a, b) => Math.max(a, b), 0);
    found.push({
      text: visible(text),
      start,
      end,
      state: states[start],
      special: end === start + 1 && SPECIAL.test(text),
      importance: importance ? tokensOf(importance) : null,
      level: levels ? tokensOf(levels) : null,
    });
    start = end;
    bytes = [];
  };
  tokens.forEach((token, t) => {
    if (typeof token === "string") {
      if (bytes.length) add(t, lenient.decode(Uint8Array.from(bytes)));
      add(t + 1, token);
      return;
    }
    bytes.push(...token);
    try {
      add(t + 1, strict.decode(Uint8Array.from(bytes)));
    } catch {
      if (t + 1 === tokens.length || states[t + 1] !== states[t]) add(t + 1, lenient.decode(Uint8Array.from(bytes)));
    }
  });
  return found;
}

function merged(found) {
  const joined = [];
  for (const piece of found) {
    const last = joined.at(-1);
    if (last && last.state === piece.state && last.level === piece.level && !last.special && !piece.special) {
      last.text += piece.text;
      last.end = piece.end;
      last.importance = piece.importance === null ? null : Math.max(last.importance, piece.importance);
    } else {
      joined.push({ ...piece });
    }
  }
  return joined;
}

// Arrow keys and taps in `prompt` show the numbers of a token in `line`. Returns { show(t), forget() }.
export function tokenKeys(prompt, line) {
  let at = null;
  const spans = () => [...prompt.querySelectorAll("span[title]")];
  const shown = (token) => token.getClientRects().length > 0;
  const state = (token) => token.parentElement.className;
  const show = (token) => {
    at?.classList.remove("at");
    at = token ?? null;
    line.hidden = at === null;
    if (at === null) return;
    at.classList.add("at");
    at.scrollIntoView({ block: "nearest" });
    line.textContent = `${at.title}, ${state(at)}`;
  };
  const step = (all, from, by) => {
    let i = from + by;
    while (all[i] && !shown(all[i])) i += by;
    if (all[i]) show(all[i]);
  };
  const jump = (all, from, by) => {
    const group = state(all[Math.max(from, 0)]);
    let i = Math.max(from, 0);
    while (all[i + by] && (state(all[i]) === group || !shown(all[i]))) i += by;
    if (shown(all[i])) show(all[i]);
  };
  const keys = {
    ArrowRight: (all, i) => step(all, i, 1),
    ArrowLeft: (all, i) => step(all, i, -1),
    ArrowDown: (all, i) => jump(all, i, 1),
    ArrowUp: (all, i) => jump(all, i, -1),
    Home: (all) => step(all, -1, 1),
    End: (all) => step(all, all.length, -1),
  };
  prompt.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const all = spans();
    if (all.length) keys[event.key](all, at ? all.indexOf(at) : -1);
  });
  prompt.addEventListener("click", (event) => {
    const token = event.target.closest("span[title]");
    if (token) show(token);
  });
  return {
    show: (t) => show(spans().findLast((token) => shown(token) && Number(token.dataset.start) <= t)),
    forget: () => show(null),
  };
}
