// The dialog of settings: what goes with each message, the key, the server's facts. All but the key stays in this
// browser.

import { apiKey } from "./api.js";
import { $, count, element } from "./text.js";

const KEPT = "vkprefill-settings";
const FIELDS = ["system", "temperature", "most"];

export const kept = {
  get: () => {
    try {
      return JSON.parse(localStorage.getItem(KEPT)) ?? {};
    } catch {
      return {};
    }
  },
  set: (values) => localStorage.setItem(KEPT, JSON.stringify({ ...kept.get(), ...values })),
};

// onKey: called when another key was entered.
export function startSettings(onKey) {
  const values = kept.get();
  for (const name of FIELDS) {
    $(name).value = values[name] ?? "";
    $(name).addEventListener("input", () => kept.set({ [name]: $(name).value }));
    $(name).addEventListener("change", () => showMistakes());
  }
  $("key").value = apiKey.get();
  $("key").addEventListener("change", () => {
    apiKey.set($("key").value.trim());
    onKey();
  });
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    $("key").blur();
  });
  $("open-settings").addEventListener("click", openSettings);
  $("close-settings").addEventListener("click", () => $("settings").close());
  showMistakes();
}

export function openSettings() {
  if (!$("settings").open) $("settings").showModal();
}

export function askForKey() {
  openSettings();
  $("key").focus();
}

// What a field holds that the server would refuse, beside the field.
function showMistakes() {
  for (const name of ["temperature", "most"]) {
    const node = $(name);
    const { min, max } = node;
    const wanted = max ? `a number from ${min} to ${max}` : `a whole number, at least ${min}`;
    node.setAttribute("aria-invalid", String(!node.validity.valid));
    $(`${name}-mistake`).textContent = node.validity.valid
      ? ""
      : `This has to be ${wanted}; it is left out until it is.`;
  }
}

export const systemMessage = () => $("system").value.trim();

// Fields of a request.
export function sampling() {
  const number = (id, name) => ($(id).value === "" || !$(id).validity.valid ? {} : { [name]: Number($(id).value) });
  return { ...number("temperature", "temperature"), ...number("most", "max_tokens") };
}

// server: /props
export function showFacts(server) {
  const { params, n_ctx: context } = server.default_generation_settings;
  $("temperature").placeholder = `the model's own: ${params.temperature}`;
  $("most").placeholder = params.n_predict > 0 ? `the server's: ${count(params.n_predict)}` : "no limit";
  const [device, driver] = deviceAndDriver(server.device);
  const facts = {
    Model: server.model_path,
    Context: `${count(context)} tokens`,
    Device: device,
    Driver: driver,
    Server: server.build_info,
  };
  const rows = Object.entries(facts).filter(([, value]) => value);
  $("facts").replaceChildren(...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

// "NAME (DRIVER)" -> both; brackets may be nested, and a driver that repeats the name says only what is new.
function deviceAndDriver(text) {
  let depth = 0;
  for (let at = text.length - 1; at > 0 && text.endsWith(")"); at--) {
    depth += { ")": 1, "(": -1 }[text[at]] ?? 0;
    if (depth > 0) continue;
    const driver = text.slice(at + 1, -1);
    const name = text.slice(0, at).trim();
    const first = name.split(" ")[0];
    return [name, driver.startsWith(`${first} `) ? driver.slice(first.length + 1) : driver];
  }
  return [text, ""];
}
