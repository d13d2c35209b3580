// Beside the conversation: what the model read of a prompt, token by token.

import { holes, status, why } from "./figures.js";
import { heatMap, overview } from "./heat_map.js";
import { LEVELS, byRank, bySize } from "./heat_scale.js";
import { layerMap } from "./layer_map.js";
import { kept } from "./settings.js";
import { $, count, element, percent } from "./text.js";
import { tokenKeys } from "./token_keys.js";

const BESIDE = matchMedia("(min-width: 75.01rem)"); // there is room for it beside the conversation

export class PromptPanel {
  #shown = null; // { turn, details }
  #opener = null;

  // details(turn): a promise of its tokens and importance; asked(turn): the body of the request whose prompt it was.
  constructor(details, asked) {
    Object.assign(this, { details, asked });
    this.tokens = tokenKeys($("prompt"), $("token"));
    this.layers = layerMap($("layers"), this.tokens.show);
    for (let level = 0; level < LEVELS; level++)
      document.querySelector(".scale").append(element("i", { className: `h${level}` }));
    $("overview").addEventListener("click", ({ clientX }) => {
      const { left, width } = $("overview").getBoundingClientRect();
      this.tokens.show(Math.floor(((clientX - left) / width) * $("overview").viewBox.baseVal.width));
    });
    $("only").addEventListener("change", () => $("prompt").classList.add("kept-only"));
    $("whole").addEventListener("change", () => $("prompt").classList.remove("kept-only"));
    $("scale-kind").value = kept.get().scale ?? "size";
    $("scale-kind").addEventListener("change", () => {
      kept.set({ scale: $("scale-kind").value });
      this.#draw();
    });
    $("close-panel").addEventListener("click", () => this.close());
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.defaultPrevented && this.open && !BESIDE.matches) this.close();
    });
  }

  get open() {
    return document.body.classList.contains("show-panel");
  }

  // A new answer: it is shown where the panel is open beside the conversation.
  async offer(turn) {
    if (turn?.report && (this.open || (BESIDE.matches && kept.get().panel !== false))) await this.#show(turn);
    else if (!turn?.report) this.clear();
  }

  // The person asked for it.
  async show(turn, opener = document.activeElement) {
    this.#opener = opener;
    if (BESIDE.matches) kept.set({ panel: true });
    await this.#show(turn);
    $("panel-title").focus();
  }

  async #show(turn) {
    const details = await this.details(turn);
    if (!details) return;
    this.#shown = { turn, report: { ...turn.report, tokens: details.tokens, importance: details.importance } };
    document.body.classList.add("show-panel");
    this.#draw();
    $("prompt").scrollTop = 0;
    this.layers.of(this.asked(turn));
  }

  clear() {
    this.#shown = null;
    this.tokens.forget();
    this.layers.forget();
    document.body.classList.remove("show-panel");
  }

  close() {
    if (BESIDE.matches) kept.set({ panel: false });
    this.clear();
    this.#opener?.focus();
  }

  #draw() {
    if (!this.#shown) return;
    const { report } = this.#shown;
    const { prompt_n: total, cached_n: cached, kept_n: keptNow, importance } = report;
    const fresh = total - cached;
    const news = cached ? "new " : "";
    const scale = importance ? { size: bySize, rank: byRank }[$("scale-kind").value](importance) : null;
    this.tokens.forget();
    $("panel-title").textContent =
      report.status === "active"
        ? `${count(keptNow)} of ${count(fresh)} ${news}tokens were read (${percent(keptNow, fresh)})`
        : `All ${count(fresh)} ${news}tokens were read`;
    $("panel-note").replaceChildren(
      status(report),
      ` ${why(report)}${importance ? "" : " Nothing was scored, so nothing is coloured."}`,
    );
    for (const id of ["scale-box", "scale-label"]) $(id).hidden = !importance;
    $("low").textContent = scale?.low ?? "";
    $("top").textContent = scale?.top ?? "";
    $("legend-dropped").hidden = keptNow === fresh;
    $("legend-before").hidden = !holes(report);
    $("legend-cached").hidden = cached === 0;
    $("prompt").setAttribute("aria-label", `The prompt: ${$("panel-title").textContent}`);
    $("prompt").replaceChildren(...heatMap(report, scale?.heat ?? null));
    overview($("overview"), report, scale?.heat ?? null);
  }
}
