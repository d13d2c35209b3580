// The nodes of a turn: the message with its files, the answer as it grows, what stands under it, and buttons for what
// can be done.

import { BROKEN, CUT, DONE, FAILED, RUNNING, STOPPED } from "./conversation.js";
import { figures } from "./figures.js";
import { sentFile } from "./files.js";
import { icon } from "./icons.js";
import { MarkdownView } from "./markdown.js";
import { announce, button, copyButton, count, duration, element, unturned, visible } from "./text.js";
import { problemBox } from "./words.js";

const LONG_MESSAGE = 700; // characters that are shown before "Show all"
const LONG_LINES = 12;
const DRAW_MS = 50; // between two drawings of a growing answer, and more where drawing takes long
const NOTES = {
  [STOPPED]: "Stopped.",
  [BROKEN]: "The page was left before this answer was complete.",
  [CUT]: "Cut off: the limit of tokens was reached.",
};

// place: { at, of }: which of the turn's versions this is; verbs: { edit, again, goOn, version, read }, called with the
// turn.
export class TurnView {
  #due = false;
  #drawnMs = 0;

  constructor(turn, place, verbs, follow) {
    Object.assign(this, { turn, verbs, follow });
    this.text = element("div", { className: "text" });
    this.thoughts = element("div", { className: "text" });
    this.summary = element("summary");
    this.reasoning = element("details", { className: "reasoning", hidden: true }, this.summary, this.thoughts);
    this.stageText = element("span");
    this.bar = element("progress", { ariaLabel: "Prompt", hidden: true });
    this.detail = element("span", { className: "soft" });
    this.stage = element("p", { className: "stage", hidden: true }, this.stageText, this.bar, this.detail);
    this.foot = element("div", { className: "foot" });
    this.revisions = element("div");
    this.body = element(
      "div",
      { className: "answer" },
      element("h3", { className: "hidden" }, "Answer"),
      this.reasoning,
      this.text,
      this.revisions,
      this.stage,
      this.foot,
    );
    this.user = element("div", { className: "said" });
    this.node = element("article", {}, this.user, this.body);
    this.markdown = new MarkdownView(this.text);
    this.thinking = new MarkdownView(this.thoughts);
    this.place = place;
    this.#showMessage();
    this.refresh();
  }

  // ---- the message

  #showMessage() {
    const { user, files } = this.turn;
    const body = element("div", { className: "text", dir: "auto" }, unturned(user));
    const bubble = element(
      "div",
      { className: "user" },
      element("h3", { className: "hidden" }, "You"),
      ...files.map(sentFile),
      body,
    );
    body.hidden = !user;
    if (user.length > LONG_MESSAGE || user.split("\n").length > LONG_LINES) bubble.append(foldButton(body, user));
    const tools = element(
      "div",
      { className: "tools" },
      ...this.#versions(),
      copyButton(() => user),
    );
    tools.append(button("Edit", () => this.edit(), { className: "idle-only" }));
    this.user.replaceChildren(bubble, tools);
  }

  #versions() {
    const { at, of } = this.place;
    if (of < 2) return [];
    const step = (by, name, label) => {
      const node = button("", () => this.verbs.version(this.turn, by), {
        className: "bare idle-only",
        ariaLabel: label,
        disabled: at + by < 0 || at + by >= of,
      });
      node.append(icon(name));
      return node;
    };
    const where = element("span", {}, element("span", { className: "hidden" }, "Version "), `${at + 1} / ${of}`);
    return [
      element(
        "span",
        { className: "versions" },
        step(-1, "left", "Version before"),
        where,
        step(1, "right", "Version after"),
      ),
    ];
  }

  edit() {
    const area = element("textarea", { value: this.turn.user, ariaLabel: "Edit the message", rows: 3 });
    const close = () => {
      this.#showMessage();
      this.user.querySelector(".tools .idle-only:last-child").focus();
    };
    const send = () => (area.value.trim() || this.turn.files.length) && this.verbs.edit(this.turn, area.value);
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        send();
      }
    });
    const note = element("span", { className: "soft" }, "What follows stays as another version.");
    const tools = element(
      "div",
      { className: "tools" },
      note,
      button("Cancel", close),
      button("Send", send, { className: "main" }),
    );
    this.user.replaceChildren(element("div", { className: "edit" }, ...this.turn.files.map(sentFile), area), tools);
    area.focus();
  }

  // ---- the answer

  working(words) {
    this.stage.hidden = false;
    if (this.stageText.textContent !== words.what) announce(`${words.what}.`);
    this.stageText.textContent = words.what;
    this.detail.textContent = words.detail ?? "";
    this.bar.hidden = !words.total;
    if (words.total) Object.assign(this.bar, { max: words.total, value: words.done });
  }

  quiet() {
    this.stage.hidden = true;
  }

  // The text grew.
  update() {
    if (this.#due) return;
    this.#due = true;
    setTimeout(() => requestAnimationFrame(() => this.#draw()), Math.max(DRAW_MS, 4 * this.#drawnMs));
  }

  #draw() {
    if (!this.#due) return;
    this.#due = false;
    const begun = performance.now();
    this.follow(() => this.#showTexts(false));
    this.#drawnMs = performance.now() - begun;
  }

  #showTexts(ended) {
    const { reasoning, content, thoughtMs } = this.turn;
    this.reasoning.hidden = !reasoning;
    const busy = this.turn.state === RUNNING && !content;
    this.summary.replaceChildren(
      icon("thought"),
      busy
        ? "Thinking\u2026"
        : thoughtMs >= 1000
          ? `Thought for ${duration(thoughtMs).replace(/\.\d+/, "")}`
          : "Thoughts",
    );
    this.reasoning.classList.toggle("busy", busy);
    this.thinking.show(reasoning, ended);
    this.markdown.show(content, ended);
  }

  // All of it anew, for what began or ended.
  refresh() {
    this.#due = false;
    const running = this.turn.state === RUNNING;
    this.body.ariaBusy = String(running);
    this.follow(() => {
      if (!running) this.quiet();
      this.#showTexts(!running);
      this.#showRevisions();
      this.foot.replaceChildren(...(running ? [] : this.#ending()));
    });
  }

  #showRevisions() {
    const shown = this.turn.revisions.map((wrong) =>
      element(
        "details",
        { className: "revision soft" },
        element("summary", {}, "Corrected after the check; shown before"),
        element("del", { dir: "auto" }, visible(wrong)),
      ),
    );
    this.revisions.replaceChildren(...shown);
  }

  #ending() {
    const { turn, verbs } = this;
    const { state, problem, content, reasoning, report, timings } = turn;
    const nodes = [];
    if (NOTES[state]) nodes.push(element("p", { className: "soft note" }, NOTES[state]));
    if (problem) nodes.push(problemBox(problem));
    const tools = element("div", { className: "tools" });
    if (content) tools.append(copyButton(() => turn.content));
    if (state !== DONE && (content || reasoning))
      tools.append(button("Continue", () => verbs.goOn(turn), { className: "idle-only" }));
    tools.append(
      button(state === FAILED || !content ? "Try again" : "Answer again", () => verbs.again(turn), {
        className: "idle-only",
      }),
    );
    if (report) tools.append(button("What was read", () => verbs.read(turn), { className: "show-prompt" }));
    nodes.push(tools);
    if (report) nodes.push(figures(report, timings));
    return nodes;
  }
}

function foldButton(body, text) {
  const node = button("", () => show(body.classList.contains("cut")), { className: "fold" });
  const show = (all) => {
    body.classList.toggle("cut", !all);
    node.ariaExpanded = String(all);
    node.textContent = all ? "Show less" : `Show all ${count(text.length)} characters`;
  };
  show(false);
  return node;
}
