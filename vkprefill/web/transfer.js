// Conversations as files: Markdown to read, JSON to take them to another browser and back. What comes in is checked
// field by field.

import {
  BROKEN,
  CUT,
  DONE,
  FAILED,
  RUNNING,
  STOPPED,
  newConversation,
  newTurn,
  path,
  userText,
} from "./conversation.js";
import { element } from "./text.js";

const FORMAT = "vkprefill conversations";
const VERSION = 1;
const STATES = [DONE, STOPPED, BROKEN, FAILED, CUT];

export function toMarkdown({ conversation, turns }) {
  const shown = path(new Map(turns.map((turn) => [turn.id, turn])), conversation.leaf);
  const parts = shown.flatMap((turn) => ["## You", userText(turn), "## Answer", turn.content || "(no answer)"]);
  return [`# ${conversation.title}`, ...parts].join("\n\n") + "\n";
}

// all: [{ conversation, turns }]
export function toJson(all) {
  const conversations = all.map(({ conversation, turns }) => ({
    ...pick(conversation, ["title", "made", "used", "leaf"]),
    turns: turns.map((turn) => pick(turn, ["id", "parent", "made", "user", "files", "content", "reasoning", "state"])),
  }));
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 1) + "\n";
}

const pick = (record, names) => Object.fromEntries(names.map((name) => [name, record[name]]));

// Text of a file -> [{ conversation, turns }] with ids of their own. Throws an Error with a sentence for people.
export function fromJson(text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error("This is no file of exported conversations: it is not JSON.");
  }
  if (data?.format !== FORMAT || !Array.isArray(data.conversations))
    throw new Error("This is no file of exported conversations.");
  if (data.version !== VERSION) throw new Error("This file was exported by another version of the page.");
  return data.conversations.map(readConversation);
}

function readConversation(given, number) {
  const wrong = () => new Error(`Conversation ${number + 1} of the file is damaged; nothing was imported.`);
  const check = (right) => {
    if (!right) throw wrong();
  };
  const string = (value) => typeof value === "string";
  check(given !== null && typeof given === "object" && string(given.title) && Array.isArray(given.turns));
  const time = (value) => (Number.isFinite(value) ? value : Date.now());
  const conversation = { ...newConversation(), title: given.title, made: time(given.made), used: time(given.used) };
  const known = new Map(); // id in the file -> turn
  for (const turn of given.turns) {
    check(turn !== null && typeof turn === "object" && string(turn.id) && !known.has(turn.id));
    check(["user", "content", "reasoning"].every((name) => string(turn[name])) && Array.isArray(turn.files));
    check(turn.files.every((file) => string(file?.name) && string(file?.text)));
    check(turn.parent === null || known.has(turn.parent));
    const state = turn.state === RUNNING ? BROKEN : turn.state;
    check(STATES.includes(state));
    const files = turn.files.map(({ name, text }) => ({ name, text }));
    const made = newTurn(conversation, known.get(turn.parent), turn.user, files);
    known.set(turn.id, { ...made, made: time(turn.made), content: turn.content, reasoning: turn.reasoning, state });
  }
  check(known.size > 0 && known.has(given.leaf));
  conversation.leaf = known.get(given.leaf).id;
  return { conversation, turns: [...known.values()] };
}

// Has the browser keep a text as a file.
export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export const fileName = (title) =>
  title
    .replace(/[^\p{L}\p{N}]+/gu, "-")
    .replace(/^-|-$/g, "")
    .slice(0, 60) || "conversation";
