// A conversation: messages go out, answers stream in, each token with what it did to the memory.

import { element, mean, measured, share, whole } from "./dom.js";
import { Scale, TracedText, lost } from "./trace.js";

/** What was said in one memory while the page is open. The server keeps the memory, not the text. */
export class Conversation {
  constructor(info) {
    this.scale = new Scale();
    this.answers = []; // the `memory` object of each, with the mean surprise: what the charts show
    this.empty = element("div", { class: "empty" }, ...invitation(info));
    this.element = element("div", { class: "messages" }, this.empty);
  }

  /** Whether anything was said. */
  get begun() {
    return this.element.firstChild !== this.empty;
  }

  /** Forget the numbers that belong to a memory that is gone; the text stays. */
  reset() {
    this.answers = [];
    this.element.append(element("p", { class: "note" }, "The memory was reset: it knows nothing of the text above."));
  }

  add(who) {
    this.empty.remove();
    const text = new TracedText(this.scale, who);
    const footer = element("p", { class: "outcome" });
    const article = element("article", { class: "message", "aria-label": who });
    article.append(element("h3", {}, who), text.element, footer);
    this.element.append(article);
    return { text, footer, article };
  }

  takeBack(...messages) {
    for (const { article } of messages) article.remove();
    if (!this.element.firstChild) this.element.append(this.empty);
  }
}

function invitation(info) {
  const [title, text] = info?.damaged
    ? ["This memory is damaged", "Its file cannot be read. Reset it to start anew, upload a copy, or delete it."]
    : info?.foreign
    ? ["This memory belongs to another model", "Only the model that made it can read it. Reset it to start anew."]
    : info
    ? [
        `This memory has read ${whole(info.tokens)} tokens`,
        "The text itself is not kept, only what the memory made of it. Go on writing, or ask about what it read.",
      ]
    : [
        "Nothing read yet",
        "Write a message below. The model reads it token by token, and its memory learns as it reads. What " +
          "surprises it is coloured; what it writes down is underlined. What it can be told and asked depends on " +
          "its training: the small models of make demo, sent plain text, keep that v belongs to K when they read " +
          "#Kv, and say v after #K (Max tokens 1 shows it best).",
      ];
  return [element("h2", {}, title), element("p", {}, text)];
}

/**
 * Send a message and show the answer as it comes.
 * @returns {Promise<boolean>} whether the answer came to its end; false when it was stopped
 * @throws {ApiError} it failed; what came until then stays, a message that had no answer at all is taken back
 */
export async function converse(api, conversation, content, options, signal) {
  const question = conversation.add("You");
  question.text.setUntraced(content);
  const answer = conversation.add("Model");
  const progress = new Progress(question, answer);
  try {
    const { plain, ...rest } = options;
    const asked = plain ? { prompt: content } : { messages: [{ role: "user", content }] };
    for await (const chunk of api.complete({ ...rest, ...asked, trace: true }, signal)) progress.take(chunk);
    if (progress.memory) conversation.answers.push({ ...progress.memory, ...progress.felt() });
    return true;
  } catch (error) {
    if (error.name === "AbortError") {
      answer.footer.textContent = "stopped";
      return false;
    }
    if (progress.began) answer.footer.textContent = "broken off";
    else conversation.takeBack(question, answer);
    throw error;
  } finally {
    progress.finish();
  }
}

/** Takes the chunks of one answer. */
class Progress {
  constructor(question, answer) {
    Object.assign(this, { question, answer, began: false, content: "", traced: "", seen: [] });
    this.announcer = new Announcer();
    answer.article.classList.add("streaming");
  }

  take({ choices, trace, memory }) {
    const said = choices?.[0]?.delta?.content ?? choices?.[0]?.text ?? "";
    this.began = true;
    this.content += said;
    this.announcer.hear(said);
    for (const token of trace ?? []) this.read(token);
    this.answer.text.setUntraced(this.content.slice(this.traced.length));
    if (memory) this.memory = memory;
  }

  /** A token of the prompt belongs to the question, as the model read it; one it wrote, to the answer. */
  read(token) {
    this.seen.push(token);
    if (token.generated) this.traced += token.text;
    else this.question.text.setUntraced("");
    (token.generated ? this.answer : this.question).text.append([token]);
  }

  /** How the memory took it all; NaN without a trace, which the chart leaves out. */
  felt() {
    const surprise = mean(this.seen.map((token) => token.surprise));
    return { surprise, forgotten: this.seen.length ? lost(this.seen) : NaN };
  }

  finish() {
    this.answer.article.classList.remove("streaming");
    for (const { text } of [this.question, this.answer]) text.finish();
    this.announcer.finish();
    if (this.memory) this.answer.footer.textContent = outcome(this.memory, this.felt());
  }
}

function outcome({ written, skipped, dropped, layers }, { surprise, forgotten }) {
  const over = layers > 1 ? ` · summed over ${layers} layers` : "";
  const felt = Number.isFinite(surprise)
    ? ` · forgotten ${share(forgotten, 1)} · mean surprise ${measured(surprise)}`
    : "";
  return `written ${whole(written)} · skipped ${whole(skipped)} · dropped ${whole(dropped)}${over}${felt}`;
}

/** Hands the answer to screen readers sentence by sentence: token by token they would spell it. */
class Announcer {
  constructor() {
    this.log = document.getElementById("announcer");
    this.log.replaceChildren();
    this.waiting = "";
  }

  hear(text) {
    this.waiting += text;
    if (/[.!?\n]\s*$/.test(this.waiting) || this.waiting.length > 200) this.finish();
  }

  finish() {
    if (this.waiting.trim()) this.log.append(element("p", {}, this.waiting));
    this.waiting = "";
  }
}
