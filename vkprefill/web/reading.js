// How much of a long prompt the model reads: the choices of speculative prefill in plain words, and the request's field
// they make. server: /props, null until the model is loaded; its `specprefill` is null where nobody can say what
// matters.

import { kept } from "./settings.js";
import { $, count, element } from "./text.js";

const SCORERS = {
  auto: "whom the server chooses",
  draft: "the small draft model",
  self: "the model's own first layers",
};
const ALL = "all";
const AUTO = "auto";
const SHARE = "share";

const amount = () => document.querySelector("input[name=amount]:checked").value;

// The server's settings are those that are shown first, unless the person chose others before.
export function takeOver({ specprefill: settings, specprefill_scorers: scorers }) {
  $("scorer").replaceChildren(...scorers.map((name) => element("option", { value: name }, SCORERS[name] ?? name)));
  if (!settings) return;
  const before = kept.get().reading ?? {};
  $(`amount-${[ALL, AUTO, SHARE].includes(before.amount) ? before.amount : AUTO}`).checked = true;
  $("scorer").value = scorers.includes(before.scorer) ? before.scorer : settings.scorer;
  $("keep").value = String(before.keep ?? Math.round(100 * settings.keep_ratio));
  $("always").checked = before.always ?? false;
  $("check").checked = before.check ?? settings.check !== "off";
}

export function showReading(server) {
  const settings = server?.specprefill ?? null;
  const some = settings !== null && amount() !== ALL;
  for (const node of document.querySelectorAll("input[name=amount]")) node.disabled = settings === null;
  for (const id of ["keep", "scorer", "always", "check"]) $(id).disabled = !some;
  $("scorer").parentElement.hidden = $("scorer").length < 2 || settings === null;
  $("always").parentElement.hidden = settings !== null && settings.min_tokens === 0 && !settings.break_even;
  $("no-draft").hidden = server === null || settings !== null;
  $("share-text").textContent = `${$("keep").value} %`;
  $("keep").setAttribute("aria-valuetext", `the most important ${$("keep").value} %`);
  $("auto-text").textContent = settings ? automatic(settings) : "";
  $("always-text").textContent = settings?.min_tokens ? ` (below ${count(settings.min_tokens)} tokens)` : "";
  const words = { [ALL]: "everything", [AUTO]: "what matters", [SHARE]: `the most important ${$("keep").value} %` };
  $("reading-words").textContent = settings ? words[amount()] : "everything";
}

// show: called after each change that shows.
export function onReading(show) {
  for (const node of document.querySelectorAll("input[name=amount]"))
    node.addEventListener("change", () => changed(show));
  $("keep").addEventListener("input", () => {
    $(`amount-${SHARE}`).checked = true;
    changed(show);
  });
  for (const id of ["scorer", "always", "check"]) $(id).addEventListener("change", () => changed(show));
}

function changed(show) {
  const [always, check] = ["always", "check"].map((id) => $(id).checked);
  kept.set({ reading: { amount: amount(), keep: $("keep").value, scorer: $("scorer").value, always, check } });
  show();
}

function automatic(settings) {
  const mass = settings.select_mode === "mass" && settings.keep_ratio < 1;
  const share = mass
    ? `the parts that hold ${Math.round(100 * settings.cumulative_mass)} % of the importance`
    : `the most important ${Math.round(100 * settings.keep_ratio)} %`;
  const most = settings.max_keep === "auto" ? (mass ? 2000 : 0) : settings.max_keep;
  return most ? `${share}, at most ${count(most)} tokens` : share;
}

// Whatever the prompt's length, as for the example.
export function readAlways() {
  if (amount() === ALL) $(`amount-${AUTO}`).checked = true;
  $("always").checked = true;
}

// The request's field `specprefill`.
export function specprefill(server) {
  if (!server?.specprefill) return {};
  if (amount() === ALL) return { specprefill: false };
  const share =
    amount() === AUTO ? {} : { select_mode: "chunk", keep_ratio: Number($("keep").value) / 100, max_keep: 0 };
  const guards = $("always").checked ? { min_tokens: 0, break_even_safety: 0 } : {};
  const scorer = $("scorer").value === server.specprefill.scorer ? {} : { scorer: $("scorer").value };
  return { specprefill: { ...share, ...guards, ...scorer, ...checking(server.specprefill) } };
}

// The page can replace text, so unless the server says otherwise a wrong answer is revised.
function checking({ check, on_mismatch: mismatch }) {
  if (!$("check").checked) return check === "off" ? {} : { check: "off" };
  return { check: check === "off" ? "on" : check, on_mismatch: mismatch === "auto" ? "revise" : mismatch };
}
