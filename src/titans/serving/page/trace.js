// Text in which each token shows how much it surprised the memory, and whether it was written.
// Colour says how surprising; lines say written or dropped; a detail on hover or arrow keys says it in words.

import { element, mean, measured } from "./dom.js";

// A token's colour is its rank among all tokens on screen. Half stay plain, so that what stands out is rare.
const LEVELS = [
  { from: 0, label: "lower half" },
  { from: 0.5, label: "top 50 %" },
  { from: 0.7, label: "top 30 %" },
  { from: 0.85, label: "top 15 %" },
  { from: 0.95, label: "top 5 %" },
  { from: 0.99, label: "top 1 %" },
];
const RECOLOUR_AFTER = 120; // milliseconds: a streaming answer shifts every rank, and sorting at each token is waste

/** One scale of surprise for several texts. */
export class Scale {
  constructor() {
    this.entries = []; // {span, token}
    this.sorted = new Float64Array();
    this.timer = null;
  }

  add(span, token) {
    this.entries.push({ span, token });
    this.timer ??= setTimeout(() => this.recolour(), RECOLOUR_AFTER);
  }

  recolour() {
    clearTimeout(this.timer);
    this.timer = null;
    this.sorted = Float64Array.from(this.entries, ({ token }) => token.surprise).sort();
    for (const { span, token } of this.entries) {
      const level = LEVELS.findLastIndex(({ from }) => this.rank(token.surprise) >= from);
      span.dataset.level = Math.max(level, 0);
    }
  }

  /** The share of tokens on screen that surprised less. */
  rank(surprise) {
    let low = 0;
    let high = this.sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.sorted[middle] < surprise) low = middle + 1;
      else high = middle;
    }
    return this.sorted.length ? low / this.sorted.length : 0;
  }
}

/** A text of traced tokens. It is one stop of the Tab key; the arrow keys go from token to token. */
export class TracedText {
  constructor(scale, label) {
    this.scale = scale;
    this.tokens = new Map(); // span -> token, in reading order
    this.pieces = []; // tokens of a character that is not complete
    this.untraced = document.createTextNode("");
    this.element = element("p", {
      class: "trace",
      tabindex: "0",
      role: "group",
      "aria-label": `${label}, arrow keys move from token to token`,
    });
    this.element.append(this.untraced);
    this.element.addEventListener("pointerover", (event) => this.point(event.target));
    this.element.addEventListener("pointerleave", () => this.point(null));
    this.element.addEventListener("blur", () => this.point(null));
    this.element.addEventListener("keydown", (event) => this.move(event));
  }

  /** Add tokens `{text, surprise, written, dropped}`. Those with an empty text belong to the character that follows. */
  append(tokens) {
    for (const token of tokens) {
      this.pieces.push(token);
      if (token.text !== "") this.complete(token.text);
    }
  }

  /** Show what never became a character. */
  finish() {
    if (this.pieces.length) this.complete("\ufffd");
    this.scale.recolour();
  }

  /** Text that is known but that the memory has not read yet comes last, plain. */
  setUntraced(text) {
    this.untraced.data = text;
  }

  complete(text) {
    const token = { text, ...joined(this.pieces) };
    this.pieces = [];
    const marks = [
      token.written >= 1 && "written",
      token.written > 0 && token.written < 1 && "partly",
      token.dropped > 0 && "dropped",
      /^\n+$/.test(text) && "newline",
    ];
    const span = element("span", { class: marks.filter(Boolean).join(" ") }, text);
    this.tokens.set(span, token);
    this.untraced.before(span);
    this.scale.add(span, token);
  }

  move(event) {
    const spans = [...this.tokens.keys()];
    const here = spans.indexOf(this.pointed);
    const there = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: spans.length - 1 }[event.key];
    if (there === undefined || !spans.length) return;
    event.preventDefault();
    this.point(spans[Math.min(Math.max(there, 0), spans.length - 1)]);
    this.pointed.scrollIntoView({ block: "nearest" });
  }

  /** Lead the reader to a token. */
  go(span) {
    this.element.focus({ preventScroll: true });
    span.scrollIntoView({ block: "center" });
    this.point(span);
  }

  /** Tell about one token; null stops. */
  point(span) {
    this.pointed?.classList.remove("pointed");
    this.pointed = this.tokens.has(span) ? span : undefined;
    this.pointed?.classList.add("pointed");
    tell(this.pointed, this.pointed && this.describe(this.tokens.get(span)));
  }

  describe(token) {
    const above = Math.floor(100 * this.scale.rank(token.surprise));
    return `“${visible(token.text)}” surprise ${measured(token.surprise)}, above ${above} % on screen · ${fate(token)}`;
  }
}

/** What the colours and lines mean. */
export function legend() {
  const steps = LEVELS.map(({ label }, level) => element("li", {}, element("span", { "data-level": level }, label)));
  const marks = [
    ["written", "underlined: written to memory"],
    ["partly", "dashed: written by some layers"],
    ["dropped", "struck: dropped as an outlier"],
    ["", "no line: read, not written"],
  ].map(([mark, label]) => element("li", {}, element("span", { class: mark }, label)));
  return element(
    "div",
    { class: "legend" },
    element("p", {}, "Colour: surprise, ranked among the tokens on screen"),
    element("ul", { class: "trace steps" }, ...steps),
    element("ul", { class: "trace marks" }, ...marks),
  );
}

/** Text with line ends and tabs made visible, and blanks where there is nothing else. */
export function visible(text) {
  const marked = text.replaceAll("\n", "↵").replaceAll("\t", "⇥");
  return marked.trim() ? marked : marked.replaceAll(" ", "␣");
}

/** What became of a token. */
export function fate({ written, dropped, forgotten }) {
  const parts = [];
  if (written > 0) parts.push(written < 1 ? `written by ${Math.round(100 * written)} % of layers` : "written");
  if (dropped > 0) parts.push(dropped < 1 ? `dropped by ${Math.round(100 * dropped)} % of layers` : "dropped");
  if (forgotten > 0) parts.push(`made the memory forget ${measured(100 * forgotten)} %`);
  return parts.join(", ") || "skipped";
}

/** Share of what a memory held before these tokens that it has forgotten after them. */
export function lost(tokens) {
  return 1 - tokens.reduce((kept, { forgotten }) => kept * (1 - forgotten), 1);
}

function joined(pieces) {
  const average = (name) => mean(pieces.map((piece) => piece[name]));
  return Object.fromEntries(["surprise", "written", "dropped", "forgotten"].map((name) => [name, average(name)]));
}

let detail; // one for the page, made when first needed

/** Show a sentence beside a token, also to screen readers. */
function tell(span, sentence) {
  detail ??= document.body.appendChild(element("div", { class: "detail", role: "status" }));
  detail.textContent = sentence ?? "";
  if (!span) return;
  const box = span.getClientRects()[0];
  const left = Math.min(box.left, document.documentElement.clientWidth - detail.offsetWidth - 8);
  const above = box.top - detail.offsetHeight - 6;
  detail.style.left = `${Math.max(left, 8)}px`;
  detail.style.top = `${above > 0 ? above : box.bottom + 6}px`;
}
