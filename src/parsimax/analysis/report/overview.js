// All heads as small maps. A map is drawn when it comes into sight, and again when the example or the theme changes.
const heads = report.layers.flatMap((layer, i) =>
  layer.heads.map((facts, head) => ({ ...facts, layer: i, head, key: `${i}.${head}` })),
);
const orders = {
  layer: () => 0,
  sparsest: (a, b) => a.density - b.density,
  densest: (a, b) => b.density - a.density,
  highest: (a, b) => (b.alpha ?? -Infinity) - (a.alpha ?? -Infinity) || 0,
  lowest: (a, b) => (a.alpha ?? Infinity) - (b.alpha ?? Infinity) || 0,
  role: (a, b) => (b.strength ?? -1) - (a.strength ?? -1),
};
const observer = new IntersectionObserver(
  (seen) => seen.forEach(({ isIntersecting, target }) => isIntersecting && drawCard(target)),
  { rootMargin: "200px" },
);
let shownHeads = heads;

async function drawCard(button) {
  const { layer, head } = heads[button.dataset.index];
  const wanted = `${state.example} ${state.theme} ${devicePixelRatio}`;
  if (button.dataset.drawn === wanted) return;
  const example = state.example;
  const weights = await weightsOf(example, layer);
  if (example !== state.example || !button.isConnected) return;
  const canvas = button.querySelector("canvas");
  if (!canvas.clientWidth) return; // hidden meanwhile; the observer calls again
  if (heads.length === 1 && weights.queries) canvas.style.aspectRatio = clamp(weights.keys / weights.queries, 0.8, 8);
  thumbnail(canvas, weights, head);
  button.dataset.drawn = wanted;
}

// Ask the observer afresh about every card: it answers for those in sight.
function redrawCards() {
  observer.disconnect();
  document.querySelectorAll(".card").forEach((card) => observer.observe(card));
}

function describe(facts) {
  const parts = [`Layer ${facts.layer}, head ${facts.head}`, `density ${percent(facts.density)}`];
  if (facts.alpha !== null) parts.push(`alpha ${number(facts.alpha)}`);
  parts.push(`mean support ${number(facts.support, 1)}`);
  if (facts.role) parts.push(`${facts.role}, strength ${number(facts.strength)}`);
  return parts.join("; ");
}

function card(facts, mixed) {
  const bar = make("i", { class: "bar" }, make("i"));
  bar.firstChild.style.width = `${100 * (facts.strength ?? 0)}%`;
  return make(
    "button",
    { type: "button", class: "card", "data-index": heads.indexOf(facts), tabindex: -1, "aria-label": describe(facts) },
    make("canvas", { width: 1, height: 1 }),
    make("span", {}, make("b", {}, `${mixed ? `L${facts.layer} ` : ""}H${facts.head}`), ` ${percent(facts.density)}`),
    ...(facts.alpha === null ? [] : [make("span", { class: "quiet" }, `α ${number(facts.alpha)}`)]),
    make("span", { class: "quiet" }, make("span", {}, facts.role ?? "–")),
    bar,
  );
}

function layerHeading(layer, i) {
  const densities = layer.heads.map((head) => head.density).filter((density) => density !== null);
  const mean = densities.length ? densities.reduce((sum, density) => sum + density, 0) / densities.length : null;
  const diversity = layer.diversity === null ? "" : `diversity ${number(layer.diversity)}`;
  const facts = [layer.kind, layer.mapping, `mean density ${percent(mean)}`, diversity].filter(Boolean).join(" · ");
  return make("h3", {}, `Layer ${i} `, make("code", {}, shown(layer.name, 80)), make("small", {}, ` ${facts}`));
}

// Cards in the order and of the role that is chosen; by layer, each layer is a group of its own.
function renderHeads() {
  const [sort, role] = [find("sort").value, find("role").value];
  shownHeads = heads.filter((facts) => !role || (facts.role ?? "none") === role).sort(orders[sort]);
  const mixed = sort !== "layer";
  const row = (list) =>
    make(
      "div",
      { class: mixed ? "cards mixed" : heads.length === 1 ? "cards single" : "cards" },
      ...list.map((facts) => card(facts, mixed)),
    );
  const groups = mixed
    ? [[null, shownHeads]]
    : report.layers.map((layer, i) => [layerHeading(layer, i), shownHeads.filter((facts) => facts.layer === i)]);
  find("heads").replaceChildren(
    ...groups
      .filter(([, list]) => list.length)
      .map(([title, list]) => make("section", {}, ...(title ? [title] : []), row(list))),
  );
  find("count").textContent =
    shownHeads.length === heads.length ? `${heads.length} heads` : `${shownHeads.length} of ${heads.length} heads`;
  document.querySelector(".card")?.setAttribute("tabindex", 0);
  redrawCards();
}

// One card can be reached by Tab; arrows go from it to its neighbours as they are seen.
function focusCard(target) {
  document.querySelectorAll('.card[tabindex="0"]').forEach((each) => each.setAttribute("tabindex", -1));
  target.setAttribute("tabindex", 0);
  target.focus();
}

function neighbour(from, key) {
  const all = [...document.querySelectorAll(".card")];
  const at = all.indexOf(from);
  const place = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 }[key];
  if (place !== undefined) return all[place];
  if (key !== "ArrowUp" && key !== "ArrowDown") return undefined;
  const here = from.getBoundingClientRect();
  const side = key === "ArrowDown" ? 1 : -1;
  const distance = ({ x, y }) =>
    side * (y - here.y) < 1 ? Infinity : 1e4 * Math.abs(y - here.y) + Math.abs(x - here.x);
  const ways = all.map((each) => distance(each.getBoundingClientRect()));
  const best = Math.min(...ways);
  return best < Infinity ? all[ways.indexOf(best)] : undefined;
}

function startOverview() {
  find("heads").style.setProperty("--heads", Math.max(...report.layers.map((layer) => layer.heads.length)));
  const counts = new Map();
  for (const { role } of heads) counts.set(role ?? "none", (counts.get(role ?? "none") ?? 0) + 1);
  find("role").append(
    make("option", { value: "" }, "all roles"),
    ...[...counts]
      .sort()
      .map(([role, count]) => make("option", { value: role }, `${role === "none" ? "no role" : role} (${count})`)),
  );
  find("sort").addEventListener("change", renderHeads);
  find("role").addEventListener("change", renderHeads);
  find("heads").addEventListener("click", ({ target }) => {
    const button = target.closest(".card");
    if (button) openHead(heads[button.dataset.index]);
  });
  find("heads").addEventListener("keydown", (event) => {
    const next = event.target.matches(".card") && !event.ctrlKey && !event.altKey && neighbour(event.target, event.key);
    if (!next) return;
    event.preventDefault();
    focusCard(next);
  });
}
