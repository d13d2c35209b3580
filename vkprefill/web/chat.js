// The conversation that is shown, and the answers in work, also those of conversations that are not.

import { Answering } from "./answering.js";
import {
  BROKEN,
  FAILED,
  RUNNING,
  messages,
  newConversation,
  newTurn,
  newestLeaf,
  path,
  titleOf,
  versions,
} from "./conversation.js";
import { $, announce } from "./text.js";
import { TurnView } from "./turn_view.js";

const LEFT = "vkprefill-left";
const AT_END = 60; // pixels: nearer to the end than this, the log follows the answer

export class Chat {
  conversation = newConversation();
  #turns = new Map();
  #views = new Map(); // turn id -> TurnView, of those that are shown
  #working = new Map(); // conversation id -> Answering
  #log = $("log");

  // on: { prompt(), request(), started(conversation), changed(), ended(answering), read(turn), failed(error) }, what the page does
  // about it. prompt(): `system` and other fields that the prompt is made of, kept with the turn; request(): all other
  // fields of a request.
  constructor(store, on) {
    Object.assign(this, { store, on });
    addEventListener("pagehide", () => this.#leave());
    addEventListener("pageshow", ({ persisted }) => persisted && location.reload()); // its answers ended as it went
  }

  get running() {
    return this.#working.get(this.conversation.id) ?? null;
  }

  get path() {
    return path(this.#turns, this.conversation.leaf);
  }

  // The answer in work of any conversation.
  answeringOf(id) {
    return this.#working.get(id);
  }

  // Another conversation, or an empty one.
  async show(conversation) {
    const turns = conversation.leaf === null ? [] : await this.store.of("turns", conversation.id);
    const live = this.#working.get(conversation.id)?.turn;
    this.conversation = conversation;
    this.#turns = new Map(turns.map((turn) => [turn.id, turn]));
    if (live) this.#turns.set(live.id, live);
    for (const turn of this.#turns.values()) if (turn.state === RUNNING && turn !== live) turn.state = BROKEN;
    this.#render();
    this.#log.scrollTop = this.#log.scrollHeight;
  }

  #render() {
    if (this.running) this.running.view = null;
    this.#views.clear();
    this.#log.querySelectorAll("article").forEach((node) => node.remove());
    const shown = this.path;
    $("welcome").hidden = shown.length > 0;
    for (const turn of shown) {
      const beside = versions(this.#turns, turn);
      const view = new TurnView(turn, { at: beside.indexOf(turn), of: beside.length }, this.#verbs, (change) =>
        this.#follow(change),
      );
      this.#views.set(turn.id, view);
      this.#log.append(view.node);
    }
    this.#attach();
    this.on.changed();
  }

  // The answer in work to the view of its turn.
  #attach() {
    const { running } = this;
    document.body.classList.toggle("answering", running !== null);
    if (!running) return;
    running.view = this.#views.get(running.turn.id) ?? null;
    if (running.now) running.view?.working(running.now);
  }

  #follow(change) {
    const log = this.#log;
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < AT_END;
    change();
    if (atEnd) log.scrollTop = log.scrollHeight;
  }

  #verbs = {
    edit: (turn, text) => this.#branch(turn, text),
    again: (turn) => this.#branch(turn, turn.user),
    goOn: (turn) => !this.running && this.#answer(turn, true),
    version: (turn, by) => this.#version(turn, by),
    read: (turn) => this.on.read(turn),
  };

  // The part of a request that its prompt is made of. begun: the answer goes on from what there is.
  askedFor(turn, begun = false) {
    const { system, ...fields } = turn.asked ?? {};
    return { messages: messages(path(this.#turns, turn.parent), turn, { system, begun }), ...fields };
  }

  async send(text, files) {
    if (this.running) return;
    await this.#begin(this.path.at(-1) ?? null, text, files);
  }

  async #branch(turn, text) {
    if (this.running) return;
    await this.#begin(this.#turns.get(turn.parent) ?? null, text, turn.files);
  }

  async #begin(parent, text, files) {
    const { conversation } = this;
    const turn = newTurn(conversation, parent, text, files);
    this.#turns.set(turn.id, turn);
    conversation.leaf = turn.id;
    conversation.title ||= titleOf(turn);
    conversation.used = Date.now();
    await this.#answer(turn, false);
  }

  async #answer(turn, begun) {
    const { conversation } = this;
    if (!begun || !turn.asked) turn.asked = this.on.prompt();
    const answering = new Answering(
      turn,
      (one) => this.keep("turns", one),
      (one) => this.keep("details", one),
    );
    turn.state = RUNNING;
    this.#working.set(conversation.id, answering);
    this.#render();
    answering.view?.refresh();
    answering.view?.working(answering.now);
    this.#log.scrollTop = this.#log.scrollHeight;
    await this.keep("conversations", conversation);
    this.on.started(conversation);
    answering.ended = answering.run({ ...this.askedFor(turn, begun), ...this.on.request() });
    await answering.ended;
    this.#working.delete(conversation.id);
    this.#end(answering);
  }

  #end(answering) {
    const { turn, view } = answering;
    if (turn.conversation === this.conversation.id) {
      document.body.classList.remove("answering");
      this.on.changed();
      view?.refresh();
      announce(turn.state === FAILED ? "" : "Answer complete.");
    }
    this.on.ended(answering);
  }

  async #version(turn, by) {
    const beside = versions(this.#turns, turn);
    const other = beside[beside.indexOf(turn) + by];
    if (!other || this.running) return;
    this.conversation.leaf = newestLeaf(this.#turns, other).id;
    this.#render();
    this.#views.get(other.id).node.scrollIntoView({ block: "nearest" });
    await this.keep("conversations", this.conversation);
  }

  stop() {
    this.running?.stop();
  }

  // Opens the last message for editing; whether there is one.
  editLast() {
    const last = this.path.at(-1);
    if (!last || this.running) return false;
    this.#views.get(last.id).edit();
    return true;
  }

  // Each record is a copy at the time of the call; a disk that is full stops no answer.
  async keep(kind, record) {
    try {
      await this.store.put(kind, record);
    } catch (error) {
      this.on.failed(error);
    }
  }

  // What is written to the database as the page goes may be lost, what is written to the tab's own memory is not.
  #leave() {
    const live = [...this.#working.values()];
    for (const answering of live) answering.leave();
    try {
      sessionStorage.setItem(LEFT, JSON.stringify(live.map(({ turn }) => turn)));
    } catch {
      // too large for it: the last moment before the page went is lost
    }
  }

  // Answers that were in work when the page went. Before anything is shown.
  async takeLeft() {
    const left = JSON.parse(sessionStorage.getItem(LEFT) ?? "[]");
    sessionStorage.removeItem(LEFT);
    for (const turn of left) {
      const before = await this.store.get("turns", turn.id);
      if (before?.state === RUNNING && before.content.length <= turn.content.length) await this.keep("turns", turn);
    }
  }
}
