// The chat page: turns of a conversation, the options of speculative prefill, the prompt of an answer.

import { ServerError, apiKey, getJson, health, streamChat } from "./api.js";
import { figures, holes, sentence, status } from "./figures.js";
import { heatMap, heatScale, overview, tokenKeys } from "./heat_map.js";
import { layerMap } from "./layer_map.js";
import { onOptions, showOptions, specprefill, takeOver } from "./options.js";
import { count, element, markdown, percent, visible } from "./text.js";

const LONG_MESSAGE = 700; // characters that are shown before "Show all"
const AT_END = 60; // pixels: nearer to the end than this, the log follows the answer
const POLL_MS = 1000;

const $ = (id) => document.getElementById(id);
const log = $("log");
const message = $("message");
const touch = matchMedia("(pointer: coarse)");

let server = null; // /props, null until the model is loaded
let turns = []; // { user, content, reasoning, report, body, node } in order; body: of its request
let running = null; // the AbortController of the answer in work

// ---- the server

async function connect() {
  try {
    for (;;) {
      const { ready, stage } = await health();
      if (ready) break;
      say(stage);
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
    server = await getJson("/props");
  } catch (error) {
    server = null;
    say(error.message);
    if (error.status === 401) askForKey();
    showOptions(server);
    return;
  }
  const { model_alias: model, device } = server;
  say(`${model} on ${device}`);
  document.title = `${model} - vkprefill`;
  $("temperature").placeholder = String(server.default_generation_settings.params.temperature);
  takeOver(server);
  showOptions(server);
}

function say(text) {
  $("server").textContent = text;
  $("server").title = text;
}

function askForKey() {
  $("settings").open = true;
  $("key").focus();
}

// ---- the request

function requestBody(turn) {
  const system = $("system").value.trim();
  const messages = system ? [{ role: "system", content: system }] : [];
  for (const { user, content, reasoning } of turns.filter((one) => one.content && one !== turn)) {
    messages.push({ role: "user", content: user });
    messages.push({ role: "assistant", content, ...(reasoning ? { reasoning_content: reasoning } : {}) });
  }
  messages.push({ role: "user", content: turn.user });
  const number = (id, name) => ($(id).value === "" ? {} : { [name]: Number($(id).value) });
  return {
    messages,
    return_progress: true,
    specprefill_details: true,
    ...specprefill(server),
    ...number("temperature", "temperature"),
    ...number("most", "max_tokens"),
  };
}

// ---- turns

async function send(text) {
  const turn = { user: text, content: "", reasoning: "", report: null, body: null, node: null };
  const view = turnView(turn);
  turns.push(turn);
  $("welcome").hidden = true;
  log.append(turn.node);
  log.scrollTop = log.scrollHeight;
  const controller = new AbortController();
  setRunning(controller);
  view.stage("Waiting for the server");
  try {
    turn.body = requestBody(turn);
    for await (const chunk of streamChat(turn.body, controller.signal)) take(chunk, turn, view);
    announce("Answer complete.");
  } catch (error) {
    if (error.name === "AbortError") view.end(turn.content ? "Stopped." : "Stopped before an answer; the next message goes on without this one.");
    else fail(error, view);
    if (turns.includes(turn)) view.offerRetry(() => retry(turn));
  } finally {
    view.finish();
    if (running === controller) setRunning(null);
  }
}

function take(chunk, turn, view) {
  if (chunk.prompt_progress) {
    const { stage, processed, total, queue_position: before } = chunk.prompt_progress;
    if (stage === "queue") view.stage(before === 1 ? "One request is before this one" : `${before} requests are before this one`);
    else if (stage === "check") view.checking(processed, total);
    else view.stage(stage === "score" ? "The prompt is scored" : "The model reads the prompt", processed, total);
  }
  const delta = chunk.choices[0]?.delta ?? {};
  turn.reasoning += delta.reasoning_content ?? "";
  turn.content += delta.content ?? "";
  if (delta.content || delta.reasoning_content) view.update();
  if (chunk.revised_from !== undefined) revise(chunk, turn, view);
  if (chunk.specprefill) {
    turn.report = chunk.specprefill;
    view.figures(chunk);
    showPrompt(turn);
  }
}

// A check found the answer wrong from a character on, which counts as Python's do: a code point each.
function revise(chunk, turn, view) {
  const characters = [...turn.content];
  const wrong = characters.slice(chunk.revised_from).join("");
  turn.content = characters.slice(0, chunk.revised_from).join("") + chunk.text;
  turn.reasoning = chunk.reasoning_content ?? turn.reasoning;
  view.update();
  view.revised(wrong);
  announce("The answer was revised.");
}

function fail(error, view) {
  if (!(error instanceof ServerError)) console.error(error);
  view.end(error.message, "error");
  if (error.status === 401) askForKey();
}

function retry(turn) {
  if (running) return;
  turns = turns.filter((one) => one !== turn);
  turn.node.remove();
  message.focus();
  send(turn.user);
}

function setRunning(controller) {
  const focused = [$("send"), $("stop")].includes(document.activeElement);
  running = controller;
  $("send").hidden = controller !== null;
  $("stop").hidden = controller === null;
  if (focused) (controller ? $("stop") : message).focus();
}

function announce(text) {
  $("announce").textContent = text;
}

// The nodes of a turn and what changes them.
function turnView(turn) {
  const text = element("div", { className: "text", dir: "auto" });
  const thoughts = element("div", { className: "text", dir: "auto" });
  const summary = element("summary", {}, "Thinking");
  const reasoning = element("details", { className: "reasoning", hidden: true }, summary, thoughts);
  const stageText = element("span");
  const bar = element("progress", { ariaLabel: "Prompt" });
  const stage = element("p", { className: "stage soft" }, stageText, bar);
  const before = element("del");
  const revision = element("details", { className: "revision soft", hidden: true }, element("summary", {}, "Revised after the check; shown before"), before);
  const answer = element("div", { className: "answer", ariaBusy: "true" }, element("h3", { className: "hidden" }, "Answer"), reasoning, text, revision, stage);
  turn.node = element("article", {}, userMessage(turn.user), answer);
  let drawn = true;
  const follow = (change) => {
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < AT_END;
    change();
    if (atEnd) log.scrollTop = log.scrollHeight;
  };
  const draw = () => {
    if (drawn) return;
    drawn = true;
    follow(() => {
      reasoning.hidden = !turn.reasoning;
      summary.textContent = turn.content ? "Reasoning" : "Thinking";
      thoughts.textContent = turn.reasoning;
      text.replaceChildren(...markdown(turn.content));
    });
  };
  return {
    stage(what, done = null, total = null) {
      if (stageText.textContent !== what) announce(`${what}.`);
      stageText.textContent = what;
      bar.hidden = total === null;
      if (total !== null) Object.assign(bar, { max: total, value: done, title: `${count(done)} of ${count(total)} tokens` });
    },
    checking(done, total) {
      this.stage("The model reads the whole prompt, to check the answer", done, total);
      stage.hidden = done === total;
    },
    revised(wrong) {
      follow(() => {
        revision.hidden = false;
        before.textContent = visible(wrong);
      });
    },
    update() {
      stage.hidden = true;
      if (drawn) requestAnimationFrame(draw);
      drawn = false;
    },
    figures(chunk) {
      const show = element("button", { type: "button" }, "Show prompt");
      show.addEventListener("click", () => {
        showPrompt(turn);
        setView("prompt");
        $("panel-title").focus();
      });
      const cut = chunk.choices[0]?.finish_reason === "length" ? [element("p", { className: "soft" }, "Cut off: the limit of tokens was reached.")] : [];
      follow(() => answer.append(...cut, figures(chunk.specprefill, chunk.timings), element("p", { className: "actions" }, show)));
    },
    end(why, kind = "soft") {
      follow(() => answer.append(element("p", { className: kind, role: kind === "error" ? "alert" : "note" }, why)));
    },
    offerRetry(again) {
      const button = element("button", { type: "button" }, "Try again");
      button.addEventListener("click", again);
      follow(() => answer.append(element("p", { className: "actions" }, button)));
    },
    finish() {
      stage.remove();
      draw();
      if (turn.reasoning) summary.textContent = "Reasoning";
      answer.ariaBusy = "false";
    },
  };
}

function userMessage(text) {
  const body = element("div", { className: "text", dir: "auto" }, text);
  const node = element("div", { className: "user" }, element("h3", { className: "hidden" }, "You"), body);
  if (text.length <= LONG_MESSAGE) return node;
  const button = element("button", { type: "button", ariaExpanded: "false" });
  const show = (all) => {
    body.classList.toggle("cut", !all);
    button.ariaExpanded = String(all);
    button.textContent = all ? "Show less" : `Show all ${count(text.length)} characters`;
  };
  button.addEventListener("click", () => show(body.classList.contains("cut")));
  show(false);
  node.append(button);
  return node;
}

// ---- the prompt of an answer

const tokenAt = tokenKeys($("prompt"), $("token"));
$("overview").addEventListener("click", (event) => {
  const { left, width } = $("overview").getBoundingClientRect();
  tokenAt.show(Math.floor(((event.clientX - left) / width) * $("overview").viewBox.baseVal.width));
});
const layers = layerMap($("layers"), tokenAt.show);

function showPrompt(turn) {
  const { report } = turn;
  const { prompt_n: total, cached_n: cached, kept_n: kept, importance } = report;
  const fresh = total - cached;
  tokenAt.forget();
  $("panel-title").textContent =
    report.status === "active" ? `${count(kept)} of ${count(fresh)} ${cached ? "new " : ""}tokens kept (${percent(kept, fresh)})` : `${count(fresh)} ${cached ? "new " : ""}tokens, none dropped`;
  const unscored = importance ? "" : " It was not scored, so nothing is coloured.";
  $("panel-note").replaceChildren(status(report), ` ${sentence(report.reason)}${unscored}`);
  $("map").hidden = false;
  $("scale-box").hidden = !importance;
  $("legend-dropped").hidden = kept === fresh && !holes(report);
  $("legend-cached").hidden = cached === 0;
  if (importance) {
    const { low, top } = heatScale(importance);
    $("low").textContent = `importance \u2264 ${Number(low.toPrecision(2))}`;
    $("top").textContent = `\u2265 ${Number(top.toPrecision(2))}`;
  }
  $("prompt").setAttribute("aria-label", `The prompt: ${$("panel-title").textContent}`);
  $("prompt").replaceChildren(...heatMap(report));
  $("prompt").scrollTop = 0;
  overview($("overview"), report);
  layers.of(turn.body);
}

function clearPrompt() {
  tokenAt.forget();
  layers.forget();
  $("map").hidden = true;
  $("prompt").replaceChildren();
  $("panel-title").textContent = "Prompt";
  $("panel-note").textContent = "After an answer, the prompt appears here.";
}

function setView(view) {
  document.body.classList.toggle("show-prompt", view === "prompt");
  for (const name of ["chat", "prompt"]) $(`view-${name}`).setAttribute("aria-pressed", String(name === view));
}

// ---- events

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = message.value;
  if (running || !text.trim()) return;
  message.value = "";
  send(text);
});
message.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || touch.matches) return;
  event.preventDefault();
  $("composer").requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", () => {
  running?.abort();
  for (const turn of turns) turn.node.remove();
  turns = [];
  $("welcome").hidden = false;
  clearPrompt();
  setView("chat");
  message.focus();
  announce("New conversation.");
});
$("example").addEventListener("click", async () => {
  message.value = await (await fetch("example.txt")).text();
  if (server?.specprefill) $("spec").checked = $("always").checked = true;
  showOptions(server);
  message.focus();
  message.scrollTop = message.scrollHeight;
});
onOptions(() => showOptions(server));
$("key").addEventListener("change", () => {
  apiKey.set($("key").value.trim());
  connect();
});
$("view-chat").addEventListener("click", () => setView("chat"));
$("view-prompt").addEventListener("click", () => setView("prompt"));
$("only").addEventListener("change", () => $("prompt").classList.add("kept-only"));
$("whole").addEventListener("change", () => $("prompt").classList.remove("kept-only"));

for (let level = 0; level < 8; level++) document.querySelector(".scale").append(element("i", { className: `h${level}` }));
$("panel-title").tabIndex = -1;
$("key").value = apiKey.get();
if (touch.matches) $("hint").hidden = true;
showOptions(server);
connect();
