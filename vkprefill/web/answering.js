// One answer in work: the stream's chunks into the turn, which is kept as it grows, so that whatever happens to the
// page loses little.

import { ServerError, streamChat } from "./api.js";
import { CUT, DONE, FAILED, RUNNING, STOPPED } from "./conversation.js";
import { Stages } from "./progress.js";
import { inWords } from "./words.js";

const KEEP_MS = 400; // between two writings of a growing answer

export class Answering {
  view = null; // the TurnView that shows it, null while another conversation is shown
  #stop = new AbortController();
  #stages = new Stages();
  #keptAt = 0;
  #thoughtAt = null;
  #left = false;

  // keep(turn), keepDetails(details): write to the store.
  constructor(turn, keep, keepDetails) {
    Object.assign(this, { turn, keep, keepDetails });
    this.base = [...turn.content].length; // of an answer that goes on: characters that were there
    this.now = { what: "Waiting for the server", detail: "" };
  }

  stop() {
    this.#stop.abort();
  }

  async run(body) {
    const { turn } = this;
    turn.state = RUNNING;
    turn.problem = null;
    await this.keep(turn);
    try {
      for await (const chunk of streamChat(body, this.#stop.signal)) await this.#take(chunk);
      if (turn.state === RUNNING) turn.state = DONE;
    } catch (error) {
      if (this.#left) return; // the browser ends the connection as the page goes: nobody stopped it, nothing failed
      if (error.name === "AbortError") turn.state = STOPPED;
      else this.#fail(error);
    }
    this.#thought();
    this.now = null;
    await this.keep(turn);
  }

  #fail(error) {
    if (!(error instanceof ServerError)) console.error(error);
    this.status = error.status;
    this.turn.state = FAILED;
    this.turn.problem = inWords(error);
  }

  // The page goes.
  leave() {
    this.#left = true;
    this.flush();
  }

  // Writes now.
  flush() {
    this.#keptAt = Date.now();
    return this.keep(this.turn);
  }

  async #take(chunk) {
    const { turn } = this;
    if (chunk.prompt_progress) this.#progress(chunk.prompt_progress);
    const { delta = {}, finish_reason: reason } = chunk.choices?.[0] ?? {};
    if (delta.content || delta.reasoning_content) this.#grow(delta);
    if (chunk.revised_from !== undefined) this.#revise(chunk);
    if (reason) turn.state = reason === "length" ? CUT : DONE;
    if (chunk.specprefill) await this.#report(chunk);
    if (Date.now() - this.#keptAt > KEEP_MS) await this.flush();
  }

  #progress(progress) {
    const { stage, processed, total } = progress;
    this.now = stage === "check" && processed === total ? null : this.#stages.words(progress);
    if (this.now) this.view?.working(this.now);
    else this.view?.quiet();
  }

  #grow({ content = "", reasoning_content: reasoning = "" }) {
    const { turn } = this;
    if (reasoning) this.#thoughtAt ??= Date.now();
    if (content) this.#thought();
    turn.reasoning += reasoning ?? "";
    turn.content += content ?? "";
    this.now = null;
    this.view?.quiet();
    this.view?.update();
  }

  #thought() {
    if (this.#thoughtAt === null) return;
    this.turn.thoughtMs = (this.turn.thoughtMs ?? 0) + Date.now() - this.#thoughtAt;
    this.#thoughtAt = null;
  }

  // A check found the answer wrong from a character on, which counts as Python's do: a code point each.
  #revise({ revised_from: from, text, reasoning_content: reasoning }) {
    const { turn } = this;
    const characters = [...turn.content];
    const stays = this.base + from;
    turn.revisions.push(characters.slice(stays).join(""));
    turn.content = characters.slice(0, stays).join("") + text;
    turn.reasoning = reasoning ?? turn.reasoning;
    this.view?.refresh();
  }

  async #report({ specprefill, timings }) {
    const { tokens, importance, ...report } = specprefill;
    const { turn } = this;
    Object.assign(turn, { report, timings });
    if (tokens) await this.keepDetails({ id: turn.id, conversation: turn.conversation, tokens, importance });
  }
}
