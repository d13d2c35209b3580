// The prompt of an answer, token by token: coloured by importance, dropped parts greyed. The same look as `vkprefill
// explain --html`.

import { levelsOf } from "./heat_scale.js";
import { drawn, element, tokenName, visible } from "./text.js";

const MOST_BARS = 240; // of the overview
const MOST_SPANS = 20000; // longer prompts: neighbours of one colour become one
const SPECIAL = /^<(\|[^|<>]+\||\/?think|\/?tool_call)>$/;

// report: the object `specprefill` of an answer, with tokens and importance; heat: a scale's value for each token, or
// null.
export function heatMap(report, heat) {
  const levels = heat ? levelsOf(heat) : null;
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
    node.prepend(element("b", { className: "gap" }, ` [${dropped} ${node.className}] `));
  }
  return nodes;
}

// "cached", "kept" or "dropped" for each token; "dropped before" by an earlier turn that this prompt goes on from.
function tokenStates({ tokens, cached_n: numCached, cached_ranges: cached, kept_ranges: kept }) {
  const states = tokens.map((_, t) => (t < numCached ? "dropped before" : "dropped"));
  for (const [start, end] of cached) states.fill("cached", start, end);
  for (const [start, end] of kept) states.fill("kept", start, end);
  return states;
}

// The whole prompt at a glance, in an SVG element: bars as high as the greatest heat in their part, coloured where
// tokens are kept.
export function overview(svg, report, heat) {
  const total = report.tokens.length;
  const size = Math.max(1, Math.ceil(total / MOST_BARS));
  const states = tokenStates(report);
  svg.setAttribute("viewBox", `0 0 ${total} 1`);
  svg.replaceChildren();
  for (let start = 0; start < total; start += size) {
    const end = Math.min(start + size, total);
    const state = states.slice(start, end).includes("kept") ? "kept" : states[start];
    const height = 0.08 + 0.92 * (heat ? heat.slice(start, end).reduce((a, b) => Math.max(a, b), 0) : 0);
    svg.append(drawn("rect", { x: start, y: 1 - height, width: end - start, height, class: state }));
  }
}

function span(piece) {
  const { start, end, text, level, special, importance } = piece;
  const value = importance === null ? "" : `, importance ${importance.toPrecision(3)}`;
  const colour = level === null || piece.state === "cached" || piece.state === "dropped before" ? "" : `h${level}`;
  const node = element("span", { className: `${colour}${special ? " special" : ""}`, title: `${tokenName(start, end)}${value}` }, text);
  node.dataset.start = start;
  node.dataset.count = end - start;
  return node;
}

// Whole characters of the prompt and the tokens that they are made of: one as a rule, several where a character is cut
// between them.
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
