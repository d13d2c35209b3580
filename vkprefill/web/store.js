// Conversations in the browser (IndexedDB): their heads, their turns, and the tokens of long prompts apart, read when
// they are looked at. Where the browser keeps nothing (some private windows) all stays in memory, and `store.lasting`
// says so.

const NAME = "vkprefill";
const VERSION = 1;

const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

function open() {
  const request = indexedDB.open(NAME, VERSION);
  request.onupgradeneeded = () => {
    const database = request.result;
    database.createObjectStore("conversations", { keyPath: "id" });
    for (const name of ["turns", "details"]) {
      database.createObjectStore(name, { keyPath: "id" }).createIndex("conversation", "conversation");
    }
  };
  return done(request);
}

class Kept {
  lasting = true;

  constructor(database) {
    this.database = database;
  }

  // Runs requests in one transaction: all of them are kept, or none.
  async #all(names, mode, work) {
    const transaction = this.database.transaction(names, mode);
    const ended = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
    const result = await work((name) => transaction.objectStore(name));
    await ended;
    return result;
  }

  list() {
    return this.#all(["conversations"], "readonly", (in_) => done(in_("conversations").getAll()));
  }

  get(kind, id) {
    return this.#all([kind], "readonly", (in_) => done(in_(kind).get(id)));
  }

  of(kind, conversation) {
    return this.#all([kind], "readonly", (in_) => done(in_(kind).index("conversation").getAll(conversation)));
  }

  put(kind, ...records) {
    return this.#all([kind], "readwrite", async (in_) => {
      for (const record of records) in_(kind).put(record);
    });
  }

  remove(conversation) {
    return this.#all(["conversations", "turns", "details"], "readwrite", async (in_) => {
      in_("conversations").delete(conversation);
      for (const kind of ["turns", "details"]) {
        for (const key of await done(in_(kind).index("conversation").getAllKeys(conversation))) in_(kind).delete(key);
      }
    });
  }
}

class InMemory {
  lasting = false;
  #kinds = { conversations: new Map(), turns: new Map(), details: new Map() };

  async list() {
    return structuredClone([...this.#kinds.conversations.values()]);
  }

  async get(kind, id) {
    return structuredClone(this.#kinds[kind].get(id));
  }

  async of(kind, conversation) {
    return structuredClone([...this.#kinds[kind].values()].filter((record) => record.conversation === conversation));
  }

  async put(kind, ...records) {
    for (const record of records) this.#kinds[kind].set(record.id, structuredClone(record));
  }

  async remove(conversation) {
    this.#kinds.conversations.delete(conversation);
    for (const kind of ["turns", "details"]) {
      for (const { id } of await this.of(kind, conversation)) this.#kinds[kind].delete(id);
    }
  }
}

export async function openStore() {
  try {
    const store = new Kept(await open());
    await store.list();
    return store;
  } catch (error) {
    console.info(`conversations are not kept: ${error.message}`);
    return new InMemory();
  }
}
