// Elements and numbers. Text goes in as text nodes only, so that nothing a model writes can become markup.

/** Make an HTML element; children are elements or strings. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Make an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** 1234567 as "1,234,567". */
export function whole(number) {
  return Math.round(number).toLocaleString("en");
}

/** A measured number with three digits that matter. */
export function measured(number) {
  if (!Number.isFinite(number)) return "–";
  return Math.abs(number) >= 1000 ? whole(number) : String(Number(number.toPrecision(3)));
}

/** A size in bytes, in the unit that reads best. */
export function bytes(size) {
  const unit = size < 1024 ? 0 : size < 1024 ** 2 ? 1 : size < 1024 ** 3 ? 2 : 3;
  return `${measured(size / 1024 ** unit)} ${["B", "KiB", "MiB", "GiB"][unit]}`;
}

/** "30.1 %" of a whole; a dash where there is no whole. */
export function share(part, total) {
  return total > 0 ? `${Number(((100 * part) / total).toFixed(1))} %` : "–";
}

export function mean(numbers) {
  return numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
}
