// What stands under an answer: the status of speculative prefill, the tokens that were run, the time to the first
// token.

import { count, duration, element, percent } from "./text.js";

const WORDS = {
  disabled: "read whole",
  skipped_tool_guard: "read whole: it defines tools",
  skipped_min_tokens: "read whole: it is short",
  skipped_break_even: "read whole: leaving out would save no time",
  kept_all: "read whole: all of it matters",
  active: "only the important parts were read",
  failed: "read whole: scoring failed",
};
const NEXT = "nothing more left out"; // where an earlier turn left out something, what is new may be read whole

const EARLIER = /; \d+ of the \d+ cached tokens were left out before$/; // of a reason; the page has its own words

const LONG_MS = 100; // shorter waits are not worth a word

const CHECKS = {
  equal: "checked: the same as from the whole prompt",
  revised: "checked and corrected: now the same as from the whole prompt",
  differs: "checked: the whole prompt gives another answer",
  pending: "not yet checked",
};

const PARTS = [
  ["score", "scoring", "score_ms"],
  ["lookahead", "looking ahead", "lookahead_ms"],
  ["select", "choosing", "select_ms"],
  ["prefill", "reading", "sparse_prefill_ms"],
];

// A line that opens to more.
export function figures(report, timings) {
  const { ttft_ms: first, dense_estimate_ms: dense, kept_n: kept, prompt_n: total, cached_n: cached, check } = report;
  const { predicted_per_second: rate } = timings;
  const share = report.status === "active" ? ` (${count(kept)} of ${count(total - cached)} tokens)` : "";
  const short = [
    ` first word after ${duration(first)}`,
    ...(dense && report.status === "active" ? [`instead of about ${duration(dense)}`] : []),
    ...(rate ? [`${rate.toFixed(1)} tokens per second`] : []),
  ].join(", ");
  const checked = CHECKS[check?.status]
    ? [element("span", { className: `check ${check.status}` }, CHECKS[check.status])]
    : [];
  const summary = element(
    "summary",
    {},
    status(report),
    share,
    checked.length ? " " : "",
    ...checked,
    element("span", { className: "times" }, short),
  );
  const more = element("ul", { className: "facts" }, ...facts(report, timings).map((fact) => element("li", {}, fact)));
  return element("details", { className: "figures" }, summary, element("p", {}, why(report)), firstToken(report), more);
}

// How many of the cached tokens an earlier prefill left out.
export function holes({ cached_n: cached, cached_ranges: ranges }) {
  return ranges.reduce((left, [start, end]) => left - (end - start), cached);
}

export function status(report) {
  const words = holes(report) && report.status !== "active" ? NEXT : (WORDS[report.status] ?? report.status);
  return element(
    "span",
    { className: `status ${report.status}`, title: report.status },
    `${words.charAt(0).toUpperCase()}${words.slice(1)}`,
  );
}

// What more there is to say: the server's reason, and what earlier turns left out.
export function why(report) {
  const missing = holes(report);
  const earlier = missing
    ? ` ${count(missing)} of ${count(report.cached_n)} tokens of earlier turns stay left out.`
    : "";
  return `${sentence(report.reason.replace(EARLIER, ""))}${earlier}`;
}

const sentence = (reason) => `${reason.charAt(0).toUpperCase()}${reason.slice(1)}.`;

function facts(report, timings) {
  const { prompt_n: total, cached_n: cached, kept_n: kept } = report;
  const { predicted_n: generated, predicted_per_second: rate, draft_n: drafted, draft_n_accepted: accepted } = timings;
  const share = report.status === "active" ? ` (${percent(kept, total - cached)})` : "";
  return [
    `prompt ${count(total)} tokens`,
    `remembered ${count(cached)}`,
    `read ${count(kept)} of ${count(total - cached)}${share}`,
    `answer ${count(generated)} tokens${rate ? `, ${rate.toFixed(1)} per second` : ""}`,
    ...(timings.wait_ms > LONG_MS ? [`waited for others ${duration(timings.wait_ms)}`] : []),
    ...(drafted ? [`drafts ${count(accepted)} of ${count(drafted)} accepted (${percent(accepted, drafted)})`] : []),
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
  const rows = [element("dt", {}, "first word"), element("dd", {}, duration(report.ttft_ms)), bar(parts)];
  if (dense)
    rows.push(
      element("dt", {}, "read whole"),
      element("dd", {}, `about ${duration(dense)}`),
      bar([["dense", "read whole", dense]]),
    );
  const split = element(
    "ul",
    {},
    ...parts.map(([kind, name, ms]) => element("li", { className: kind }, `${name} ${duration(ms)}`)),
  );
  return element("div", { className: "first" }, element("dl", {}, ...rows), split);
}
