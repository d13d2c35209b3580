// The options of speculative prefill: what is shown of the server's settings, and the request's field they make.
// server: /props, null until the model is loaded; its `specprefill` is null where nobody scores.

import { count, element } from "./text.js";

const SCORERS = { auto: "automatic", draft: "the draft model", self: "the model itself" };

const $ = (id) => document.getElementById(id);

let automatic = true; // how much is kept: the server's settings, or the slider's share

// The server's settings are those that are shown first.
export function takeOver({ specprefill: settings, specprefill_scorers: scorers }) {
  $("scorer").replaceChildren(...scorers.map((name) => element("option", { value: name }, SCORERS[name] ?? name)));
  if (!settings) return;
  $("spec").checked = true;
  $("scorer").value = settings.scorer;
  $("keep").value = String(Math.round(100 * settings.keep_ratio));
  $("check").checked = settings.check !== "off";
}

export function showOptions(server) {
  const settings = server?.specprefill ?? null;
  const on = settings !== null && $("spec").checked;
  $("spec").disabled = settings === null;
  for (const id of ["keep", "automatic", "scorer", "always", "check"]) $(id).disabled = !on;
  $("scorer").parentElement.hidden = $("scorer").length < 2 || settings === null;
  $("always").parentElement.hidden = settings !== null && settings.min_tokens === 0 && !settings.break_even;
  $("no-draft").hidden = server === null || settings !== null;
  $("no-draft").textContent = "The server runs without a draft model: start it with -md FILE, or with --specprefill to have the model score prompts itself.";
  $("automatic").setAttribute("aria-pressed", String(automatic));
  $("keep").classList.toggle("idle", automatic);
  const share = automatic && settings ? automaticShare(settings) : `${$("keep").value} % of the tokens`;
  $("kept").textContent = automatic && share.includes("importance") ? "by importance" : `${$("keep").value} % of tokens`;
  $("automatic").title = settings ? `The server's settings: ${automaticShare(settings)}` : "";
  $("keep").setAttribute("aria-valuetext", automatic ? `automatic: ${share}` : share);
}

// show: called after each change that shows.
export function onOptions(show) {
  $("spec").addEventListener("change", show);
  $("keep").addEventListener("input", () => {
    automatic = false;
    show();
  });
  $("automatic").addEventListener("click", () => {
    automatic = !automatic;
    show();
  });
}

function automaticShare(settings) {
  const mass = settings.select_mode === "mass" && settings.keep_ratio < 1;
  const share = mass ? `${Math.round(100 * settings.cumulative_mass)} % of importance` : `${Math.round(100 * settings.keep_ratio)} % of the tokens`;
  const most = settings.max_keep === "auto" ? (settings.select_mode === "mass" ? 2000 : 0) : settings.max_keep;
  return most ? `${share}, at most ${count(most)} tokens` : share;
}

// The request's field `specprefill`.
export function specprefill(server) {
  if (!server?.specprefill) return {};
  if (!$("spec").checked) return { specprefill: false };
  const share = automatic ? {} : { select_mode: "chunk", keep_ratio: Number($("keep").value) / 100, max_keep: 0 };
  const guards = $("always").checked ? { min_tokens: 0, break_even_safety: 0 } : {};
  const scorer = $("scorer").value === server.specprefill.scorer ? {} : { scorer: $("scorer").value };
  return { specprefill: { ...share, ...guards, ...scorer, ...checking(server.specprefill) } };
}

// The page can replace text, so unless the server says otherwise a wrong answer is revised.
function checking({ check, on_mismatch: mismatch }) {
  if (!$("check").checked) return check === "off" ? {} : { check: "off" };
  return { check: check === "off" ? "on" : check, on_mismatch: mismatch === "auto" ? "revise" : mismatch };
}
