// What the server is doing for an answer, from its progress events: words, how far it is, how long it may take.

import { count, duration, percent, plural } from "./text.js";

const WORDS = {
  score: "Finding what matters in the prompt",
  prefill: "Reading the prompt",
  check: "Reading the whole prompt, to check the answer",
};
const SURE_MS = 2000; // before a stage has run for so long, nothing is said of how long it may take

export class Stages {
  #stage = null;
  #from = null; // { done, ms } at the stage's begin

  // progress: an event's `prompt_progress` -> { what, detail, done, total }; done and total are null where there is no
  // bar.
  words({ stage, processed: done, total, time_ms: ms, queue_position: before, turns, share }) {
    if (stage !== this.#stage) this.#from = { done, ms };
    this.#stage = stage;
    if (stage === "queue") return { what: queue(before), detail: waited(ms), done: null, total: null };
    const detail = [`${count(done)} of ${count(total)} tokens`, this.#left(done, total, ms), shared(turns, share)]
      .filter(Boolean)
      .join(", ");
    return { what: WORDS[stage] ?? "The server works on it", detail, done, total };
  }

  #left(done, total, ms) {
    const { done: first, ms: begun } = this.#from;
    if (!(ms - begun > SURE_MS) || !(done > first) || done >= total) return "";
    return `about ${duration(1e3 * Math.ceil(((total - done) * (ms - begun)) / (done - first) / 1e3)).replace(/\.\d+/, "")} left`;
  }
}

function queue(before) {
  if (!(before > 0)) return "This message is next";
  return before === 1 ? "One other message is before this one" : `${count(before)} other messages are before this one`;
}

const waited = (ms) => (ms > SURE_MS ? `waiting for ${duration(ms).replace(/\.\d+/, "")}` : "");

// Where the server works on several answers in turns.
function shared(turns, share) {
  if (!(turns > 1)) return "";
  const had = share > 0 && share < 1 ? ` (${percent(share, 1)} of the time so far)` : "";
  return `in turns with ${plural(turns - 1, "other answer")}${had}`;
}
