// Text of the page: numbers, tokens, sentences. Tokens enter it as text nodes only, never as HTML.
const find = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`);
const number = (value, digits = 2) => (value === null ? "–" : value.toFixed(digits));

function weightText(weight) {
  if (weight === 0) return "exactly 0";
  if (Number.isNaN(weight)) return "not a number";
  return weight < 1.5 / report.levels ? "above 0, below 0.00003" : weight.toFixed(weight < 0.001 ? 5 : 4);
}

// A token as it can be seen: what has no glyph, or would turn the text around it, is spelled out.
function shown(token, most = 40) {
  const text = token
    .slice(0, 4 * most)
    .replace(/[\u0000-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(
      /[\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
      (c) => `‹${c.charCodeAt(0).toString(16)}›`,
    )
    .replace(/^\s+$/, (spaces) => "␣".repeat(spaces.length));
  const letters = [...text];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : text || "∅";
}

// A sentence as a row of tokens; `enter(i)` is called when the pointer comes to one, `pick(i)` at a click.
function sentence(label, tokens, { enter, leave, pick } = {}) {
  const items = tokens.map((token, i) => make("bdi", { class: "token", "data-index": i }, shown(token)));
  const line = make(
    "p",
    { class: "tokens", tabindex: 0, role: "group", "aria-label": `${label}: ${tokens.length} tokens` },
    ...items,
  );
  const index = (event) => event.target.dataset?.index;
  line.addEventListener(
    "pointerover",
    (event) => enter && index(event) !== undefined && enter(Number(index(event)), event),
  );
  line.addEventListener("pointerleave", () => leave?.());
  line.addEventListener("click", (event) => pick && index(event) !== undefined && pick(Number(index(event)), event));
  const box = make("div", { class: "sentence" }, make("h3", {}, label, make("small", {}, ` ${tokens.length}`)), line);
  return { box, line, items };
}

// Colour the tokens of a sentence by their weights, a list of [index, weight], and take the colours of the last time away.
function colourTokens(sentence, weighted) {
  for (const i of sentence.coloured ?? []) {
    sentence.items[i].removeAttribute("style");
    sentence.items[i].removeAttribute("title");
  }
  for (const [i, weight] of weighted) {
    Object.assign(sentence.items[i].style, { backgroundColor: colour(weight), color: ink(weight) });
    sentence.items[i].title = weightText(weight);
  }
  sentence.coloured = weighted.map(([i]) => i);
}

// Scroll a token into sight inside its own box, leaving the page where it is.
function reveal(line, item) {
  const [box, at] = [line.getBoundingClientRect(), item.getBoundingClientRect()];
  if (at.top < box.top || at.bottom > box.bottom) line.scrollTop += (at.top + at.bottom - box.top - box.bottom) / 2;
}

function tip(lines, x, y) {
  const box = find("tip");
  box.replaceChildren(...lines.map((line) => make("div", {}, ...line)));
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const left = x + 16 + width > innerWidth ? x - 16 - width : x + 16;
  const top = y + 18 + height > innerHeight ? y - 12 - height : y + 18;
  Object.assign(box.style, { left: `${Math.max(4, left)}px`, top: `${Math.max(4, top)}px` });
}

const hideTip = () => (find("tip").hidden = true);
