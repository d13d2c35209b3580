// The chat page: what belongs to what.

import { getJson, health } from "./api.js";
import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { newConversation } from "./conversation.js";
import { drawIcons } from "./icons.js";
import { Library } from "./library.js";
import { popup } from "./popup.js";
import { PromptPanel } from "./prompt_panel.js";
import { onReading, readAlways, showReading, specprefill, takeOver } from "./reading.js";
import { askForKey, kept, openSettings, sampling, showFacts, startSettings, systemMessage } from "./settings.js";
import { SideList } from "./side_list.js";
import { openStore } from "./store.js";
import { $, announce } from "./text.js";
import { showThinking, startThinking, thinking } from "./thinking.js";
import { toast } from "./toast.js";
import { inWords } from "./words.js";

const POLL_MS = 1000;
const WIDE = matchMedia("(min-width: 62.01rem)"); // the list of conversations stands beside the chat

let server = null; // /props, null until the model is loaded
let conversations = [];
let fresh = newConversation(); // the one that has not begun

drawIcons();
const store = await openStore();

// ---- the server

async function connect() {
  try {
    for (;;) {
      const { ready, stage } = await health();
      if (ready) break;
      say(`Loading the model: ${stage}`);
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
    server = await getJson("/props");
  } catch (error) {
    server = null;
    say(inWords(error).what);
    if (error.status === 401) askForKey();
    show();
    return;
  }
  say(server.model_alias);
  showFacts(server);
  takeOver(server);
  show();
}

function say(text) {
  $("server").textContent = text;
}

function show() {
  showReading(server);
  showThinking(server);
  const { title } = chat.conversation;
  document.title = [title, server?.model_alias, "vkprefill"].filter(Boolean).join(" - ");
  $("title").textContent = title || "New conversation";
}

// ---- conversations

const library = new Library(store, {
  changed(all) {
    conversations = all;
    const shown = all.find(({ id }) => id === chat.conversation.id);
    if (shown) chat.conversation.title = shown.title;
    showList();
    show();
  },
  here: (id) => chat.answeringOf(id),
  gone: (id) => (id === chat.conversation.id ? open(null) : null),
});

const list = new SideList({
  open: (id) => {
    if (!WIDE.matches) showSide(false);
    return open(id);
  },
  rename: (id, title) => library.rename(id, title),
  remove: (id) => library.remove(id),
  exportAs: (id, kind) => library.exportAs(id, kind),
  isRunning: (id) => chat.answeringOf(id) !== undefined,
});

const showList = () => list.show(conversations, chat.conversation.id);

const panel = new PromptPanel(
  ({ id }) => store.get("details", id),
  (turn) => chat.askedFor(turn),
);

const chat = new Chat(store, {
  prompt: () => ({ system: systemMessage(), ...thinking(server) }),
  request: () => ({ return_progress: true, specprefill_details: true, ...specprefill(server), ...sampling() }),
  started({ id }) {
    if (id === chat.conversation.id) location.hash = id;
    library.refresh();
  },
  ended({ turn, status }) {
    library.refresh();
    if (turn.conversation === chat.conversation.id) panel.offer(turn);
    if (status === 401) askForKey();
  },
  changed: showRunning,
  read: (turn) => panel.show(turn),
  failed: () => toast("The browser has no room to keep this conversation. Export it, or delete others."),
});

function showRunning() {
  const running = chat.running !== null;
  const focused = [$("send"), $("stop")].includes(document.activeElement);
  $("send").hidden = running;
  $("stop").hidden = !running;
  if (focused) (running ? $("stop") : $("message")).focus();
}

const composer = new Composer({
  send(text, files) {
    if (chat.running) return false;
    chat.send(text, files);
    return true;
  },
  unsent(text, files) {
    const { conversation } = chat;
    Object.assign(conversation, { unsent: text, files });
    if (conversation.leaf === null) return null;
    chat.keep("conversations", conversation);
    return conversation.id;
  },
  complain: toast,
  editLast: () => chat.editLast(),
});
addEventListener("pagehide", () => composer.flush());

// The conversation of an id; null, or one that is not there: an empty one.
async function open(id) {
  if (!composer.empty || chat.conversation.unsent) composer.flush();
  const found = id ? await store.get("conversations", id) : null;
  if (fresh.leaf !== null) fresh = newConversation();
  await chat.show(found ?? fresh);
  composer.fill(chat.conversation.unsent, chat.conversation.files ?? []);
  if ((location.hash.slice(1) || null) !== (found?.id ?? null)) location.hash = found?.id ?? "";
  await panel.offer(chat.path.findLast(({ report }) => report));
  showList();
  show();
  $("message").focus();
}

// ---- the list beside

function showSide(shown) {
  document.body.classList.toggle("show-side", shown);
  $("open-side").setAttribute("aria-expanded", String(shown));
  $("chat").inert = shown && !WIDE.matches;
  if (WIDE.matches) kept.set({ side: shown });
}

WIDE.addEventListener("change", () => showSide(WIDE.matches && kept.get().side !== false));

// ---- events

$("open-side").addEventListener("click", () => showSide(!document.body.classList.contains("show-side")));
$("shade").addEventListener("click", () => showSide(false));
$("new").addEventListener("click", async () => {
  if (!WIDE.matches) showSide(false);
  await open(null);
  announce("New conversation.");
});
$("stop").addEventListener("click", () => chat.stop());
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || document.querySelector("dialog[open], :popover-open")) return;
  if (!WIDE.matches && document.body.classList.contains("show-side")) showSide(false);
  else chat.stop();
});
$("example").addEventListener("click", async () => {
  composer.fill(await (await fetch("example.txt")).text(), []);
  if (server?.specprefill) readAlways();
  show();
  $("message").focus();
  $("message").scrollTop = $("message").scrollHeight;
});
$("reading-settings").addEventListener("click", openSettings);
addEventListener("hashchange", () => {
  const id = location.hash.slice(1) || null;
  const { id: shown, leaf } = chat.conversation;
  if (id !== (leaf === null ? null : shown)) open(id);
});

popup($("open-reading"), $("reading"));
onReading(show);
startThinking();
startSettings(connect);
showSide(WIDE.matches && kept.get().side !== false);
$("not-kept").hidden = store.lasting;
await chat.takeLeft();
await library.refresh();
await open(location.hash.slice(1) || null);
composer.take(chat.conversation.leaf === null ? null : chat.conversation.id);
await connect();
document.body.dataset.ready = "true";
