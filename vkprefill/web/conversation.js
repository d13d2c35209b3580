// What a conversation is: a tree of turns, of which one path is shown. A turn is a message and its answer; to edit a
// message, or to have it answered anew, makes another turn beside it, and nothing is lost.

export const RUNNING = "running";
export const DONE = "done";
export const STOPPED = "stopped"; // by the person
export const BROKEN = "broken"; // the page was left in the middle
export const FAILED = "failed";
export const CUT = "cut"; // at the limit of tokens

const TITLE = 60; // characters

// Also where the page came over plain HTTP from another machine, and randomUUID is not there.
const newId = () =>
  [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

export function newConversation() {
  const now = Date.now();
  return { id: newId(), title: "", made: now, used: now, leaf: null, unsent: "" };
}

// files: [{ name, text }]; parent: the turn before, or null.
export function newTurn(conversation, parent, user, files) {
  const head = { id: newId(), conversation: conversation.id, parent: parent?.id ?? null, made: Date.now() };
  return {
    ...head,
    user,
    files,
    content: "",
    reasoning: "",
    thoughtMs: null,
    state: RUNNING,
    asked: null,
    problem: null,
    revisions: [],
    report: null,
    timings: null,
  };
}

// The turns that lead to the one named, first to last.
export function path(turns, leaf) {
  const found = [];
  for (let turn = turns.get(leaf); turn; turn = turns.get(turn.parent)) found.unshift(turn);
  return found;
}

// Turns beside one, itself included, in the order of their making.
export const versions = (turns, turn) =>
  [...turns.values()]
    .filter(({ parent }) => parent === turn.parent)
    .sort((a, b) => a.made - b.made || (a.id < b.id ? -1 : 1));

// The end of the newest path that goes through a turn.
export function newestLeaf(turns, turn) {
  for (;;) {
    const next = [...turns.values()].filter(({ parent }) => parent === turn.id);
    if (!next.length) return turn;
    turn = next.reduce((a, b) => (b.made >= a.made ? b : a));
  }
}

// All turns, each after the one that it follows.
export function inOrder(turns) {
  const after = (parent) => turns.filter((turn) => turn.parent === parent).sort((a, b) => a.made - b.made);
  const found = after(null);
  for (const turn of found) found.push(...after(turn.id)); // grows as it goes
  return found;
}

export function titleOf({ user, files }) {
  const line = (user.trim() || files[0]?.name || "").split("\n", 1)[0].trim();
  const characters = [...line];
  return characters.length > TITLE
    ? `${characters
        .slice(0, TITLE - 1)
        .join("")
        .trimEnd()}\u2026`
    : line;
}

// What the model reads of a turn: files first, each in a fence, then what was typed, since a question is best asked at
// the end.
export function userText({ user, files }) {
  const parts = files.map(({ name, text }) => {
    const fence = "`".repeat(Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length)) + 1);
    return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...parts, ...(user ? [user] : [])].join("\n\n");
}

// Messages of a request: turns that have an answer, and the last one. begun: its answer goes on from what there is.
export function messages(before, turn, { system = "", begun = false } = {}) {
  const list = system ? [{ role: "system", content: system }] : [];
  for (const earlier of before.filter(({ content }) => content)) {
    list.push({ role: "user", content: userText(earlier) }, assistant(earlier));
  }
  list.push({ role: "user", content: userText(turn) });
  if (begun) list.push(assistant(turn));
  return list;
}

const assistant = ({ content, reasoning }) => ({
  role: "assistant",
  content,
  ...(reasoning ? { reasoning_content: reasoning } : {}),
});
