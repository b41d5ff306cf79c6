// The numbers and charts of the memory that is open.

import { chart } from "./charts.js";
import { bytes, element, measured, share, whole } from "./dom.js";

/**
 * Show one memory.
 * @param {{tokens: number, bytes: number} | undefined} info what the server lists, undefined for a new one
 * @param {object[]} answers the `memory` object of each answer, with `surprise`, the mean over its tokens
 */
export function showMemory(info, answers) {
  const last = answers.at(-1);
  const now = { ...info, ...last };
  const rows = [
    ["Tokens read", now.damaged ? "unknown" : now.tokens === undefined ? "none yet" : whole(now.tokens)],
    ["State", now.bytes === undefined ? "–" : bytes(now.bytes)],
    ["Memory norm", last ? measured(last.norm) : "–"],
    ["Last answer", ""],
    ...counts(last),
  ];
  document.getElementById("numbers").replaceChildren(
    ...rows.map(([name, value]) =>
      element("div", value === "" ? { class: "heading" } : {}, element("dt", {}, name), element("dd", {}, value)),
    ),
  );
  const drawn = [
    curve("Memory norm", answers, "norm"),
    curve("State size", answers, "bytes", bytes),
    curve("Mean surprise", answers, "surprise"),
  ];
  const none = element("p", { class: "hint" }, "Charts begin with the first answer.");
  document.getElementById("charts").replaceChildren(...(last ? drawn : [none]));
}

/** What an answer wrote. Each memory layer decides about each token, so the counts are over both. */
function counts(last) {
  const total = last ? last.written + last.skipped + last.dropped : 0;
  const rows = ["written", "skipped", "dropped"].map((what) => [
    what[0].toUpperCase() + what.slice(1),
    last ? `${whole(last[what])} · ${share(last[what], total)}` : "–",
  ]);
  return [...rows, ["Forgotten", Number.isFinite(last?.forgotten) ? share(last.forgotten, 1) : "–"]];
}

function curve(title, answers, field, format) {
  const points = answers.map((answer, i) => ({ x: i, y: answer[field] })).filter(({ y }) => Number.isFinite(y));
  return chart(title, points, { format, along: points.length === 1 ? "1 answer" : `${points.length} answers` });
}
