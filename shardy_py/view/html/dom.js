// Small helpers: elements, numbers with units, colours. Text reaches the page only as text nodes.

const SVG = "http://www.w3.org/2000/svg";

/** An element: attributes by name, `class`, `on` for handlers; children are elements or text. */
function el(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same in SVG. */
function svg(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "on") for (const [name, handler] of Object.entries(value)) made.addEventListener(name, handler);
    else if (value !== null && value !== undefined) made.setAttribute(key, String(value));
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined && child !== false) made.append(child);
  return made;
}

/** Bytes in binary units, as `format_bytes` of the library writes them. */
function bytesText(count) {
  if (count < 1024) return `${count} B`;
  let value = count;
  for (const unit of ["KiB", "MiB", "GiB"]) {
    value /= 1024;
    if (value < 1024) return `${value < 1000 ? short(value, 3) : value.toFixed(0)} ${unit}`;
  }
  return `${short(value / 1024, 4)} TiB`;
}

function short(value, digits) {
  return String(Number(value.toPrecision(digits)));
}

/** Seconds in a unit that suits them. */
function secondsText(seconds) {
  for (const [unit, scale] of [["s", 1], ["ms", 1e-3], ["us", 1e-6]]) if (seconds >= scale * 0.9999) return `${short(seconds / scale, 3)} ${unit}`;
  return seconds > 0 ? `${short(seconds / 1e-9, 3)} ns` : "0 s";
}

/** The end of a text that is too long. */
const tail = (text, most) => (text.length > most ? `…${text.slice(1 - most)}` : text);

/** A text as Python writes it. */
const quoted = (text) => JSON.stringify(text);

const grouped = (n) => String(n).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
const plural = (n, word) => `${grouped(n)} ${word}${n === 1 ? "" : "s"}`;
const baseName = (file) => file.slice(file.lastIndexOf("/") + 1);

// Up to eight: Okabe and Ito's colours. More: cividis. Both can be told apart with any common colour blindness.
const FEW = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#9a9a9a"];
const MANY = [[0, 34, 78], [39, 59, 108], [75, 84, 108], [107, 109, 114], [141, 137, 120], [177, 166, 112], [215, 197, 93], [254, 232, 56]];

/** Colour `i` of `n`, as three numbers. */
function colourOf(i, n) {
  if (n <= FEW.length) return [1, 3, 5].map((at) => parseInt(FEW[i].slice(at, at + 2), 16));
  const at = (i / (n - 1)) * (MANY.length - 1);
  const low = Math.min(Math.floor(at), MANY.length - 2);
  return MANY[low].map((from, c) => Math.round(from + (MANY[low + 1][c] - from) * (at - low)));
}

/** Paints an element; its text becomes black or white, whichever can be read on it. */
function paint(element, rgb) {
  const [r, g, b] = rgb.map((c) => { const s = c / 255; return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4; });
  element.style.background = `rgb(${rgb.join(" ")})`;
  element.style.color = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

/** Devices as ranges: 0–3, 8. */
function ranges(numbers, most) {
  const sorted = [...numbers].sort((a, b) => a - b);
  const parts = [];
  for (let i = 0; i < sorted.length;) {
    let j = i;
    while (j + 1 < sorted.length && sorted[j + 1] === sorted[j] + 1) j++;
    parts.push(i === j ? `${sorted[i]}` : `${sorted[i]}${j === i + 1 ? ", " : "–"}${sorted[j]}`);
    i = j + 1;
  }
  return most && parts.length > most ? `${parts.slice(0, most - 1).join(", ")}, … ${parts[parts.length - 1]}` : parts.join(", ");
}
