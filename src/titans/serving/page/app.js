// The page: what is open, what runs, and who is told.

import { Api, ApiError } from "./api.js";
import { Conversation, converse } from "./chat.js";
import { takeName } from "./dialog.js";
import { element } from "./dom.js";
import { showMemory } from "./memory.js";
import { MemoryList } from "./memory_list.js";
import { legend } from "./trace.js";

const $ = (id) => document.getElementById(id);
const NARROW = matchMedia("(max-width: 60rem)");

const api = new Api(() => $("key").value.trim());
const memories = new MemoryList(api, { open, changed, attempt });
const conversations = new Map(); // "user/memory" -> Conversation; "/" is in no name
let running = null; // {controller, ended} of the answer that is being generated

// What is open

function key(memory) {
  return `${memories.user}/${memory}`;
}

function open() {
  const name = key(memories.memory);
  if (!conversations.get(name)?.begun) conversations.set(name, new Conversation(memories.current));
  $("conversation").replaceChildren(conversations.get(name).element);
  $("where-user").textContent = memories.user;
  $("where-memory").textContent = memories.memory;
  document.title = `${memories.memory} – Titans`;
  update();
}

/** A memory is no longer what it was. */
function changed(what, memory) {
  const conversation = conversations.get(key(memory));
  if (what === "reset" && conversation?.begun) conversation.reset();
  else conversations.delete(key(memory));
  if (what === "reset") open();
}

function update() {
  showMemory(memories.current, conversations.get(key(memories.memory))?.answers ?? []);
}

// Errors

/** Do something with the server: stop what is generated first, and say in one sentence what fails. */
async function attempt(work) {
  await stop();
  fail(null);
  try {
    await work();
  } catch (error) {
    fail(error);
  }
}

function fail(error) {
  $("error").hidden = !error;
  $("error").querySelector("p").textContent = error?.message ?? "";
  if (error && !(error instanceof ApiError)) console.error(error); // a mistake of ours: keep the trace
}

// Chat

async function send() {
  const content = isPlain() ? $("message").value : $("message").value.trim();
  if (!content.trim() || running || !$("composer").reportValidity()) return;
  fail(null);
  $("message").value = "";
  const controller = new AbortController();
  running = { controller, ended: answer(content, controller.signal) };
  await running.ended;
}

async function answer(content, signal) {
  const conversation = conversations.get(key(memories.memory));
  const options = {
    model: $("model").value,
    plain: isPlain(),
    user: memories.user,
    memory: memories.memory,
    temperature: $("temperature").valueAsNumber,
    max_tokens: $("max-tokens").valueAsNumber,
    ...($("write").value && { write: $("write").value }),
  };
  showRunning(true);
  const follow = following();
  try {
    await converse(api, conversation, content, options, signal);
    await memories.refresh();
  } catch (error) {
    fail(error);
    $("message").value ||= content; // nothing typed is lost
  } finally {
    follow.disconnect();
    running = null;
    showRunning(false);
    update();
  }
}

/** Whether the model goes on from the text as it is; else it answers a message of a chat. */
function isPlain() {
  return $("form").value === "plain";
}

/** Stop the answer that is being generated, and wait until it has ended. */
async function stop() {
  running?.controller.abort();
  await running?.ended;
}

function showRunning(isRunning) {
  const focused = document.activeElement;
  $("send").hidden = isRunning;
  $("stop").hidden = !isRunning;
  if (focused === $("send") || focused === $("stop")) $("message").focus(); // the button in focus is gone
}

/** Keep the end of the answer in view while it grows, unless the reader has scrolled away. */
function following() {
  const scroller = NARROW.matches ? document.documentElement : $("conversation");
  scroller.scrollTop = scroller.scrollHeight;
  let height = scroller.scrollHeight;
  const observer = new MutationObserver(() => {
    if (scroller.scrollTop + scroller.clientHeight > height - 80) scroller.scrollTop = scroller.scrollHeight;
    height = scroller.scrollHeight;
  });
  observer.observe($("conversation"), { childList: true, subtree: true, characterData: true });
  return observer;
}

// Controls

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("dialog").open) stop();
});
$("stop").addEventListener("click", stop);
$("error").querySelector("button").addEventListener("click", () => {
  fail(null);
  $("message").focus();
});
$("user").addEventListener("change", () => {
  if ($("user").reportValidity()) attempt(() => memories.openUser($("user").value));
});
$("key").addEventListener("change", () => {
  sessionStorage.setItem("key", $("key").value.trim());
  attempt(connect);
});

// Start

async function connect() {
  const models = await api.models();
  if (!models.some((model) => model.chat_template)) $("form").value = "plain";
  $("model").replaceChildren(...models.map(({ id }) => element("option", { value: id }, id)));
  await memories.openUser($("user").value);
}

$("key").value = sessionStorage.getItem("key") ?? ""; // gone when the tab is closed
takeName($("user"));
$("user").value ||= "default";
$("legend").append(legend());
for (const fold of document.querySelectorAll("details")) fold.open = !NARROW.matches;
open();
attempt(connect);
