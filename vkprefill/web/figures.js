// What stands under an answer: the status of speculative prefill, the tokens that were run, the time to the first token.

import { count, duration, element, percent } from "./text.js";

const WORDS = {
  disabled: "dense, speculative prefill off",
  skipped_tool_guard: "dense, the prompt defines tools",
  skipped_min_tokens: "dense, few new tokens",
  skipped_break_even: "dense, scoring would not pay",
  kept_all: "dense, all kept",
  active: "sparse prefill",
  failed: "dense, scoring failed",
};

// Where the cached beginning is a pruned one, no answer is dense.
const WORDS_OF_THE_REST = {
  ...Object.fromEntries(Object.entries(WORDS).map(([name, words]) => [name, words.replace("dense", "nothing new dropped")])),
  active: "sparse prefill",
};

const CHECKS = {
  equal: "checked: the dense answer",
  revised: "checked and revised: the dense answer",
  differs: "checked: the dense answer is another",
  pending: "not yet checked",
};

const PARTS = [
  ["score", "scoring", "score_ms"],
  ["lookahead", "look-ahead", "lookahead_ms"],
  ["select", "selection", "select_ms"],
  ["prefill", "prefill", "sparse_prefill_ms"],
];

export function figures(report, timings) {
  return element(
    "div",
    { className: "figures" },
    element("p", {}, status(report), ` ${sentence(report.reason)}`),
    firstToken(report),
    element("ul", { className: "facts" }, ...facts(report, timings).map((fact) => element("li", {}, fact))),
  );
}

// How many of the cached tokens an earlier prefill left out.
export function holes({ cached_n: cached, cached_ranges: ranges }) {
  return ranges.reduce((left, [start, end]) => left - (end - start), cached);
}

export function status(report) {
  const missing = holes(report);
  const earlier = missing ? `, ${count(missing)} of ${count(report.cached_n)} cached left out before` : "";
  const words = (missing ? WORDS_OF_THE_REST : WORDS)[report.status] + earlier;
  return element("span", { className: `status ${report.status}`, title: report.status }, words);
}

export function sentence(reason) {
  return `${reason.charAt(0).toUpperCase()}${reason.slice(1)}.`;
}

function facts(report, timings) {
  const { prompt_n: total, cached_n: cached, kept_n: kept, check } = report;
  const { predicted_n: generated, predicted_per_second: rate, draft_n: drafted, draft_n_accepted: accepted } = timings;
  const share = report.status === "active" ? ` (${percent(kept, total - cached)})` : "";
  return [
    `prompt ${count(total)} tokens`,
    `cached ${count(cached)}`,
    `kept ${count(kept)} of ${count(total - cached)}${share}`,
    `answer ${count(generated)} tokens${rate ? `, ${rate.toFixed(1)} per second` : ""}`,
    ...(drafted ? [`drafts ${count(accepted)} of ${count(drafted)} accepted (${percent(accepted, drafted)})`] : []),
    ...(CHECKS[check?.status] ? [CHECKS[check.status]] : []),
  ];
}

// A bar of the parts of the time to the first token, and one of a dense prefill's estimate in the same scale.
function firstToken(report) {
  const parts = PARTS.map(([kind, name, field]) => [kind, name, report[field]]).filter(([, , ms]) => ms > 0);
  const rest = report.ttft_ms - parts.reduce((sum, [, , ms]) => sum + ms, 0);
  if (rest > report.ttft_ms / 200) parts.push(["rest", "other", rest]);
  const dense = report.dense_estimate_ms;
  const longest = Math.max(report.ttft_ms, dense ?? 0);
  const bar = (pieces) => {
    const line = element("div", { className: "bar", ariaHidden: "true" });
    for (const [kind, name, ms] of pieces) {
      const piece = element("i", { className: kind, title: `${name} ${duration(ms)}` });
      piece.style.width = `${(100 * ms) / longest}%`;
      line.append(piece);
    }
    return line;
  };
  const rows = [element("dt", {}, "first token"), element("dd", {}, duration(report.ttft_ms)), bar(parts)];
  if (dense) rows.push(element("dt", {}, "dense"), element("dd", {}, `about ${duration(dense)}`), bar([["dense", "dense", dense]]));
  const split = element("ul", {}, ...parts.map(([kind, name, ms]) => element("li", { className: kind }, `${name} ${duration(ms)}`)));
  return element("div", { className: "first" }, element("dl", {}, ...rows), split);
}
