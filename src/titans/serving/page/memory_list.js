// The memories of a user: which there are, which is open, and what can be done with them.

import { ask } from "./dialog.js";
import { bytes, element, whole } from "./dom.js";

const FIRST = "main"; // where a user without any memory starts

export class MemoryList {
  /**
   * @param {Api} api the server
   * @param {{open: () => void, changed: (what: string, memory: string) => void, attempt: (work: () => Promise) =>
   *   Promise}} page `open`: another memory is open; `changed`: one was reset or removed or imported; `attempt`
   *   runs work after what is being generated was stopped, and shows its error
   */
  constructor(api, page) {
    Object.assign(this, { api, page, user: "default", memory: FIRST, listed: [], more: false, beyond: undefined });
    this.list = document.getElementById("memories");
    this.file = document.getElementById("file");
    for (const button of document.querySelectorAll("[data-action]")) {
      button.addEventListener("click", () => this[button.dataset.action]());
    }
    this.file.addEventListener("change", () => this.uploadFile());
    document.getElementById("more").addEventListener("click", () => page.attempt(() => this.loadMore()));
  }

  /** What the server knows about the open memory; undefined where nothing was read yet. */
  get current() {
    return [...this.listed, this.beyond].find((known) => known?.memory === this.memory);
  }

  /** Show a user's memories, the one used last open. */
  async openUser(user) {
    this.user = user;
    [this.listed, this.more] = [[], false];
    await this.listNext();
    const latest = this.listed.toSorted((a, b) => ((a.updated ?? "") < (b.updated ?? "") ? 1 : -1))[0];
    await this.open(latest?.memory ?? FIRST);
  }

  async open(memory) {
    this.memory = memory;
    await this.findCurrent();
    this.render();
    this.page.open();
  }

  /** List again as many as were listed. */
  async refresh() {
    const wanted = this.listed.length;
    this.listed = [];
    do await this.listNext();
    while (this.more && this.listed.length < wanted);
    await this.findCurrent();
    this.render();
  }

  async loadMore() {
    await this.listNext();
    this.render();
  }

  async listNext() {
    const { data, has_more } = await this.api.memories(this.user, this.listed.at(-1)?.memory);
    [this.listed, this.more] = [[...this.listed, ...data], has_more];
  }

  /** Ask for the open memory where it may be one of those that are not listed yet. */
  async findCurrent() {
    this.beyond = undefined;
    if (this.more && !this.current) this.beyond = await this.api.memory(this.user, this.memory);
  }

  render() {
    const focused = this.list.contains(document.activeElement) && document.activeElement.dataset.memory;
    const isListed = this.listed.some(({ memory }) => memory === this.memory);
    const first = isListed ? [] : [this.current ?? { memory: this.memory }];
    this.list.replaceChildren(...[...first, ...this.listed].map((info) => this.item(info)));
    this.list.querySelector(`[data-memory="${CSS.escape(focused || "")}"]`)?.focus();
    this.showCurrent();
    document.getElementById("more").hidden = !this.more;
    for (const action of ["fork", "download", "reset", "remove"]) {
      const useless = action === "fork" && (this.current?.damaged || this.current?.foreign);
      document.querySelector(`[data-action="${action}"]`).disabled = !this.current || useless;
    }
  }

  /** Scroll the list, and nothing else, to the open memory where it is out of sight. */
  showCurrent() {
    const { offsetTop: top, offsetHeight: height } = this.list.querySelector("[aria-current]").parentElement;
    const { scrollTop, clientHeight } = this.list;
    if (top < scrollTop || top + height > scrollTop + clientHeight) this.list.scrollTop = top;
  }

  item(info) {
    const { memory } = info;
    const button = element(
      "button",
      { type: "button", "data-memory": memory, ...(memory === this.memory && { "aria-current": "true" }) },
      element("span", { class: "name" }, memory),
      element("span", { class: "hint" }, hint(info)),
    );
    button.addEventListener("click", () => this.page.attempt(() => this.open(memory)));
    return element("li", {}, button);
  }

  async create() {
    const text = "A memory is kept from the first message on.";
    const name = await ask({ title: "New memory", text, yes: "Create", name: this.unused("memory") });
    if (name !== null) await this.page.attempt(() => this.open(name));
  }

  async fork() {
    const text = `The new memory starts with what “${this.memory}” knows; from then on each goes its own way.`;
    const name = await ask({ title: "Fork", text, yes: "Fork", name: this.unused(this.memory) });
    if (name === null) return;
    await this.page.attempt(async () => {
      await this.api.fork(this.user, this.memory, name);
      await this.refresh();
      await this.open(name);
    });
  }

  async reset() {
    const text = `“${this.memory}” forgets everything it has read. This cannot be taken back.`;
    if ((await ask({ title: "Reset the memory?", text, yes: "Reset", danger: true })) === null) return;
    await this.page.attempt(async () => {
      await this.api.reset(this.user, this.memory);
      await this.refresh();
      this.page.changed("reset", this.memory);
    });
  }

  async remove() {
    const text = `“${this.memory}” and all it has learned will be gone. This cannot be taken back.`;
    if ((await ask({ title: "Delete the memory?", text, yes: "Delete", danger: true })) === null) return;
    await this.page.attempt(async () => {
      const gone = this.memory;
      await this.api.remove(this.user, gone);
      this.page.changed("removed", gone);
      await this.openUser(this.user);
    });
  }

  async download() {
    await this.page.attempt(async () => {
      const address = URL.createObjectURL(await this.api.export(this.user, this.memory));
      element("a", { href: address, download: `${this.memory}.safetensors` }).click();
      setTimeout(() => URL.revokeObjectURL(address), 60_000); // the download may not have begun yet
    });
  }

  upload() {
    this.file.value = ""; // so that the same file can be chosen again
    this.file.click();
  }

  async uploadFile() {
    const [file] = this.file.files;
    const text = "The memory starts with what the file holds. A memory of that name is replaced.";
    const proposed = file.name.replace(/\.safetensors$/, "").replaceAll(/[^A-Za-z0-9._@+-]/g, "-");
    const name = await ask({ title: `Upload ${file.name}`, text, yes: "Upload", name: proposed });
    if (name === null) return;
    await this.page.attempt(async () => {
      await this.api.import(this.user, name, file);
      this.page.changed("removed", name); // what was said in a memory of that name is not what it knows now
      await this.refresh();
      await this.open(name);
    });
  }

  /** A name like the given one that no listed memory has. */
  unused(name) {
    const taken = new Set([this.memory, ...this.listed.map(({ memory }) => memory)]);
    const stem = name.replace(/-\d+$/, "");
    let number = 2;
    while (taken.has(`${stem}-${number}`)) number += 1;
    return `${stem}-${number}`;
  }
}

function hint({ tokens, bytes: size, damaged, foreign }) {
  if (damaged) return "damaged";
  if (foreign) return "of another model";
  return tokens === undefined ? "new" : `${whole(tokens)} tokens · ${bytes(size)}`;
}
