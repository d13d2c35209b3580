// All conversations: what the list's menu does, export and import, several tabs.

import { inOrder } from "./conversation.js";
import { toast } from "./toast.js";
import { $, unturned } from "./text.js";
import { download, fileName, fromJson, toJson, toMarkdown } from "./transfer.js";

const JSON_TYPE = "application/json";

export class Library {
  #others = new BroadcastChannel("vkprefill");

  // on: { changed(conversations), gone(id), here(id) -> the Answering that works on one, if any }
  constructor(store, on) {
    Object.assign(this, { store, on });
    this.#others.addEventListener("message", () => this.refresh());
    $("export-all").addEventListener("click", () => this.#exportAll());
    $("import").addEventListener("click", () => $("import-file").click());
    $("import-file").addEventListener("change", () => this.#import($("import-file").files[0]));
  }

  async refresh() {
    this.on.changed(await this.store.list());
  }

  // Here and in other tabs.
  async #changed() {
    this.#others.postMessage("changed");
    await this.refresh();
  }

  async keep(conversation) {
    await this.store.put("conversations", conversation);
    await this.#changed();
  }

  async rename(id, title) {
    const conversation = await this.store.get("conversations", id);
    if (conversation) await this.keep({ ...conversation, title });
    else await this.refresh(); // another tab deleted it
  }

  async remove(id) {
    const answering = this.on.here(id);
    answering?.stop();
    await answering?.ended;
    const conversation = await this.store.get("conversations", id);
    if (!conversation) return this.refresh();
    const [turns, details] = await Promise.all(["turns", "details"].map((kind) => this.store.of(kind, id)));
    await this.store.remove(id);
    await this.on.gone(id);
    await this.#changed();
    const back = async () => {
      await this.store.put("turns", ...turns);
      await this.store.put("details", ...details);
      await this.keep(conversation);
    };
    toast(`Deleted: ${unturned(conversation.title)}`, { label: "Undo", run: back });
  }

  async #whole(id) {
    return {
      conversation: await this.store.get("conversations", id),
      turns: inOrder(await this.store.of("turns", id)),
    };
  }

  async exportAs(id, kind) {
    const whole = await this.#whole(id);
    const name = fileName(whole.conversation.title);
    if (kind === "markdown") download(`${name}.md`, toMarkdown(whole), "text/markdown");
    else download(`${name}.json`, toJson([whole]), JSON_TYPE);
  }

  async #exportAll() {
    const all = await Promise.all((await this.store.list()).map(({ id }) => this.#whole(id)));
    if (all.length) download("vkprefill-conversations.json", toJson(all), JSON_TYPE);
    else toast("There is no conversation to export.");
  }

  async #import(file) {
    $("import-file").value = "";
    try {
      const all = fromJson(await file.text());
      for (const { conversation, turns } of all) {
        await this.store.put("turns", ...turns);
        await this.store.put("conversations", conversation);
      }
      await this.#changed();
      toast(all.length === 1 ? "One conversation was imported." : `${all.length} conversations were imported.`);
    } catch (error) {
      toast(error.message);
    }
  }
}
