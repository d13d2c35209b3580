// The list of conversations: the newest first, each with a menu.

import { icon } from "./icons.js";
import { place } from "./popup.js";
import { $, button, element, unturned } from "./text.js";

const FILTER_FROM = 8; // conversations; fewer need no search
const DAY_MS = 86_400_000;

export class SideList {
  #conversations = [];
  #shown = null;
  #opener = null; // the button of the open menu

  // on: { open(id), rename(id, title), remove(id), exportAs(id, kind), isRunning(id) }
  constructor(on) {
    this.on = on;
    $("filter").addEventListener("input", () => this.#draw());
    $("menu").addEventListener(
      "toggle",
      ({ newState }) => newState === "closed" && this.#opener?.setAttribute("aria-expanded", "false"),
    );
  }

  show(conversations, shown) {
    this.#conversations = [...conversations].sort((a, b) => b.used - a.used);
    this.#shown = shown;
    this.#draw();
  }

  #draw() {
    const wanted = $("filter").value.trim().toLowerCase();
    $("filter").hidden = this.#conversations.length < FILTER_FROM && !wanted;
    const found = this.#conversations.filter(({ title }) => title.toLowerCase().includes(wanted));
    $("conversations").replaceChildren(...[...grouped(found)].map(([name, group]) => this.#group(name, group)));
    $("none").hidden = found.length > 0;
    $("none").textContent = this.#conversations.length
      ? "No title has that in it."
      : "Conversations will be listed here. They stay in this browser.";
  }

  #group(name, group) {
    return element(
      "li",
      {},
      element("p", { className: "soft when" }, name),
      element("ul", {}, ...group.map((one) => this.#item(one))),
    );
  }

  #item({ id, title }) {
    const shown = id === this.#shown;
    const words = unturned(title) || "Untitled";
    const open = button("", () => this.on.open(id), { className: "open", dir: "auto", title: words });
    open.append(element("span", {}, words));
    if (shown) open.setAttribute("aria-current", "true");
    if (this.on.isRunning(id))
      open.prepend(element("span", { className: "working", role: "img", ariaLabel: "Answering" }));
    const more = button("", () => this.#menu(more, { id, title }), {
      className: "bare more",
      ariaLabel: `More for ${words}`,
      ariaExpanded: "false",
    });
    more.append(icon("more"));
    const node = element("li", { className: shown ? "shown" : "" }, open, more);
    node.dataset.id = id;
    return node;
  }

  #menu(opener, { id, title }) {
    const menu = $("menu");
    const act = (words, what) =>
      button(words, () => {
        menu.hidePopover();
        what();
      });
    this.#opener = opener;
    menu.replaceChildren(
      act("Rename", () => this.#rename(id, title)),
      act("Export as Markdown", () => this.on.exportAs(id, "markdown")),
      act("Export as JSON", () => this.on.exportAs(id, "json")),
      act("Delete", () => this.on.remove(id)),
    );
    menu.showPopover();
    place(menu, opener);
    opener.ariaExpanded = "true";
    menu.firstChild.focus();
  }

  #rename(id, title) {
    const item = $("conversations").querySelector(`[data-id="${id}"]`);
    const field = element("input", {
      type: "text",
      value: title,
      ariaLabel: "Title of the conversation",
      maxLength: 200,
    });
    let over = false;
    const end = (keep) => {
      if (over) return;
      over = true;
      if (keep && field.value.trim()) this.on.rename(id, field.value.trim());
      else this.#draw();
      this.focus(id);
    };
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.stopPropagation();
      event.preventDefault();
      end(event.key === "Enter");
    });
    field.addEventListener("blur", () => end(true));
    item.replaceChildren(field);
    field.select();
    field.focus();
  }

  focus(id) {
    $("conversations").querySelector(`[data-id="${id}"] .open`)?.focus();
  }
}

// By the time of their last message.
function grouped(conversations) {
  const groups = new Map();
  for (const one of conversations) groups.set(when(one.used), [...(groups.get(when(one.used)) ?? []), one]);
  return groups;
}

function when(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (time >= midnight) return "Today";
  if (time >= midnight - DAY_MS) return "Yesterday";
  return time >= midnight - 7 * DAY_MS
    ? "Last seven days"
    : new Date(time).toLocaleDateString("en", { month: "long", year: "numeric" });
}
