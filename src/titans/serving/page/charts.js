// A line over time. The labels are HTML around the drawing, so that they keep their size when it stretches.

import { element, measured, svg } from "./dom.js";

const WIDTH = 300;
const HEIGHT = 60;
const MARGIN = 4; // room for the stroke

/**
 * Draw a line through points.
 * @param {string} title what is drawn
 * @param {{x: number, y: number}[]} points in order of x
 * @param {{format?: (y: number) => string, along: string, ends?: string[]}} options how to write a value, what is
 *   passed from left to right, and what to write at the two ends
 */
export function chart(title, points, { format = measured, along, ends }) {
  const last = points.at(-1);
  const figure = element(
    "figure",
    { class: "chart" },
    element("figcaption", {}, title, element("strong", {}, last ? format(last.y) : "–")),
  );
  if (!last) return figure;
  const values = points.map(({ y }) => y);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const flat = low === high;
  const sentence = `${title} over ${along}: from ${format(points[0].y)} to ${format(last.y)}`;
  const range = flat ? `, all the time ${format(low)}` : `, lowest ${format(low)}, highest ${format(high)}`;
  figure.append(
    element(
      "div",
      { class: "plot" },
      svg(
        "svg",
        { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": sentence + range },
        svg("path", { class: "grid", d: `M0 ${MARGIN}H${WIDTH}M0 ${HEIGHT - MARGIN}H${WIDTH}` }),
        svg("path", { class: "line", d: line(points, low, high) }),
      ),
      ...(flat ? [] : [high, low].map((y) => element("span", { "aria-hidden": "true" }, format(y)))),
    ),
  );
  if (ends) {
    const labels = ends.map((text) => element("span", {}, text));
    figure.append(element("p", { class: "axis", "aria-hidden": "true" }, ...labels));
  }
  return figure;
}

/** The path through the points; a round cap makes a single point visible. */
function line(points, low, high) {
  const [start, stop] = [points[0].x, points.at(-1).x];
  const across = (x) => (stop > start ? MARGIN + ((x - start) / (stop - start)) * (WIDTH - 2 * MARGIN) : WIDTH / 2);
  const up = (y) => (high > low ? HEIGHT - MARGIN - ((y - low) / (high - low)) * (HEIGHT - 2 * MARGIN) : HEIGHT / 2);
  const places = points.map(({ x, y }) => `${across(x).toFixed(2)} ${up(y).toFixed(2)}`);
  return `M${places.join("L")}${points.length === 1 ? "h0" : ""}`;
}
