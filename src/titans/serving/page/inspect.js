// The picture that `titans inspect` writes: the data is in the file.

import { element, mean, measured, share, whole } from "./dom.js";
import { chart } from "./charts.js";
import { Scale, TracedText, fate, legend, lost, visible } from "./trace.js";

const TOP = 20;
const CONTEXT = 9; // characters on each side
const POINTS = 150; // of a curve

const { tokens, lengths, norms, complete, facts } = JSON.parse(document.getElementById("data").textContent);
const totals = norms.map((layers) => Math.hypot(...layers));
const text = new TracedText(new Scale(), "The text");

function put(id, ...children) {
  document.getElementById(id).append(...children);
}

function showFacts() {
  put("facts", Object.entries(facts).map(([name, value]) => `${name} ${value}`).join(" · "));
  document.getElementById("cut").hidden = complete;
  put("cut", `The text is longer: only its first ${whole(tokens.length)} tokens were read.`);
}

/** Each layer decides for itself; a token that half the layers wrote counts half. */
function showFigures() {
  const sum = (name) => tokens.reduce((total, token) => total + token[name], 0);
  const [written, dropped] = [sum("written"), sum("dropped")];
  const all = tokens.length;
  const rows = [
    ["Tokens", whole(all)],
    ["Written", share(written, all)],
    ["Skipped", share(all - written - dropped, all)],
    ["Dropped", share(dropped, all)],
    ["Forgotten", share(lost(tokens), 1)],
    ["Mean surprise", measured(sum("surprise") / all)],
    ["Memory norm", `${measured(totals[0])} → ${measured(totals.at(-1))}`],
  ];
  put("figures", ...rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

function showCharts() {
  const size = Math.ceil(tokens.length / POINTS);
  const surprises = Array.from({ length: Math.ceil(tokens.length / size) }, (_, i) => {
    const bin = tokens.slice(i * size, (i + 1) * size);
    return { x: i * size, y: mean(bin.map(({ surprise }) => surprise)) };
  });
  const along = `${whole(tokens.length)} tokens`;
  const ends = ["first token", along];
  const title = size > 1 ? `Surprise, mean of ${size} tokens` : "Surprise";
  put(
    "charts",
    chart(title, surprises, { along, ends }),
    chart("Memory norm", lengths.map((x, i) => ({ x, y: totals[i] })), { along, ends }),
  );
}

function showTop() {
  const shown = [...text.tokens];
  const order = shown.map((_, i) => i).sort((a, b) => shown[b][1].surprise - shown[a][1].surprise);
  for (const i of order.slice(0, TOP)) {
    const [span, token] = shown[i];
    const texts = (from, to) => visible(shown.slice(Math.max(from, 0), to).map(([, token]) => token.text).join(""));
    const marked = element("mark", { class: span.className }, visible(token.text));
    const [before, after] = [texts(i - CONTEXT, i).slice(-CONTEXT), texts(i + 1, i + 1 + CONTEXT).slice(0, CONTEXT)];
    const button = element(
      "button",
      { type: "button" },
      element("span", { class: "context trace" }, before, marked, after),
      element("span", { class: "hint" }, measured(token.surprise)),
      element("span", { class: "hidden" }, fate(token)),
    );
    button.addEventListener("click", () => text.go(span));
    put("top", element("li", {}, button));
  }
}

function showLayers() {
  const row = (tag, cells) => element("tr", {}, ...cells.map((cell) => element(tag, {}, cell)));
  const name = (i) => `Memory layer ${i + 1}`;
  put(
    "layers",
    row("th", ["", "before", "after"]),
    ...norms[0].map((before, i) => row("td", [name(i), measured(before), measured(norms.at(-1)[i])])),
  );
}

showFacts();
showFigures();
showCharts();
text.append(tokens);
text.finish();
put("text", text.element);
put("legend", legend());
showTop();
showLayers();
