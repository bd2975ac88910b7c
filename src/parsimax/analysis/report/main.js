// The state of the page, which its address keeps after the #: the example, and the head that is open.
const state = { example: 0, theme: "light" };

function describeHead(facts) {
  const layer = report.layers[facts.layer];
  const block = report.examples[state.example].blocks[facts.layer];
  const here = block.densities[facts.head];
  const rows = [
    ["layer", make("code", {}, shown(layer.name, 80))],
    ["mapping", layer.mapping],
    ["α", number(facts.alpha, 3)],
    ["density", percent(facts.density) + (report.examples.length < 2 ? "" : `; in this example ${percent(here)}`)],
    ["mean support", `${number(facts.support, 1)} tokens a query`],
    ["entropy", `${number(facts.entropy)} nats`],
    ["confidence", number(facts.confidence)],
    ["role", facts.role ?? "none"],
  ];
  const bars = Object.entries(facts.roles).sort((a, b) => b[1] - a[1]);
  const bar = ([name, strength]) => {
    const meter = make("span", { class: "bar" }, make("i"));
    meter.firstChild.style.width = `${100 * Math.max(0, Math.min(1, strength))}%`;
    return make("div", { class: "strength" }, make("span", {}, name), meter, make("span", {}, number(strength)));
  };
  const known = rows.filter(([, value]) => value && value !== "–");
  find("facts").replaceChildren(
    ...known.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
  );
  find("strengths").replaceChildren(...bars.map(bar));
  find("head-name").textContent = `Layer ${facts.layer} · Head ${facts.head}`;
  find("matrix").setAttribute(
    "aria-label",
    `Attention map of ${describe(facts)}; ${block.shape[1]} queries by ${block.shape[2]} keys`,
  );
}

// Draw the open head for the present example.
async function renderHead() {
  const { facts } = open;
  const example = state.example;
  const weights = await weightsOf(example, facts.layer);
  if (open.facts !== facts || state.example !== example) return;
  const { sentences, blocks } = report.examples[example];
  const { rows, columns } = blocks[facts.layer];
  const [queries, keys] = [sentences[rows].tokens, sentences[columns].tokens];
  Object.assign(open, { weights, queries, keys, cell: null, cursor: null });
  const labels = (tokens) => tokens.map((token) => shown(token, LABEL_LETTERS));
  Object.assign(open, { rowNames: labels(open.queries), columnNames: labels(open.keys) });
  const hover = (name) => ({
    enter: (i, event) => show({ [name]: i }, event.clientX, event.clientY),
    leave: () => show(null),
    pick: (i) => (name === "query" ? choose(i, open.cursor?.key ?? 0) : choose(open.cursor?.query ?? 0, i)),
  });
  open.sentences = [sentence(rows === columns ? "Tokens" : "Queries", open.queries, hover("query"))];
  if (rows !== columns) open.sentences.push(sentence("Keys", open.keys, hover("key")));
  find("head-sentences").replaceChildren(...open.sentences.map(({ box }) => box));
  describeHead(facts);
  hideTip();
  const nothing = !weights.queries || !weights.keys;
  find("nothing").hidden = !nothing;
  find("matrix").hidden = nothing;
  if (nothing) open.weights = null;
  layout();
  find("matrix").dataset.drawn = `${example} ${facts.key}`;
}

function renderExample() {
  find("example").value = state.example + 1;
  find("example-number").textContent = `${state.example + 1} of ${report.examples.length}`;
  const { sentences, caption } = report.examples[state.example];
  find("caption").textContent = caption ?? "";
  find("caption").hidden = !caption;
  find("sentences").replaceChildren(
    ...sentences.filter(({ tokens }) => tokens.length).map(({ label, tokens }) => sentence(label, tokens).box),
  );
  redrawCards();
  if (open.facts) renderHead();
}

function setExample(example) {
  state.example = Math.max(0, Math.min(report.examples.length - 1, example));
  renderExample();
}

function renderView() {
  const opened = Boolean(open.facts);
  if (opened === find("overview").hidden && !opened) return;
  if (opened && !find("overview").hidden) open.scroll = scrollY;
  find("overview").hidden = opened;
  find("head").hidden = !opened;
  hideTip();
  find(opened ? "head" : "overview")
    .querySelector(".tools")
    .append(find("legend"));
  if (opened) {
    scrollTo(0, 0);
    find("matrix").focus({ preventScroll: true });
    renderHead();
  } else {
    scrollTo(0, open.scroll ?? 0);
    const index = heads.findIndex(({ key }) => key === open.last);
    const button = document.querySelector(`.card[data-index="${index}"]`);
    if (button) focusCard(button);
    redrawCards();
  }
}

const address = () => `#example=${state.example}${open.facts ? `&head=${open.facts.key}` : ""}`;

function readAddress() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const facts = heads.find(({ key }) => key === wanted.get("head")) ?? null;
  const example = Number.parseInt(wanted.get("example") ?? "0", 10) || 0;
  const changed = facts !== open.facts;
  Object.assign(open, { last: open.facts?.key ?? open.last, facts, weights: null, zoom: changed ? 1 : open.zoom });
  if (example !== state.example) setExample(example);
  renderView();
}

const openHead = (facts) => (location.hash = `#example=${state.example}&head=${facts.key}`);
const closeHead = () => open.facts && (location.hash = `#example=${state.example}`);

function stepHead(step) {
  const list = shownHeads.includes(open.facts) ? shownHeads : heads;
  const next = list[list.indexOf(open.facts) + step];
  if (next) location.replace(`#example=${state.example}&head=${next.key}`);
}

function setTheme(theme) {
  state.theme = theme;
  document.documentElement.dataset.theme = theme;
  find("theme").textContent = theme === "dark" ? "Light" : "Dark";
  find("theme").setAttribute("aria-label", `Use the ${theme === "dark" ? "light" : "dark"} theme`);
  usePalette(theme);
  const scale = find("scale").getContext("2d");
  for (let x = 0; x < 140; x++) {
    scale.fillStyle = colour(((x + 0.5) / 140) ** 2);
    scale.fillRect(x, 0, 1, 1);
  }
  find("zero-swatch").style.backgroundColor = colour(0);
  redrawCards();
  layout();
}

function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = false;
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => chosen || setTheme(dark.matches ? "dark" : "light"));
  find("theme").addEventListener("click", () => {
    chosen = true;
    setTheme(state.theme === "dark" ? "light" : "dark");
  });
  find("summary").textContent = report.summary;
  find("precision").textContent = report.precision;
  for (const [weight, text] of [
    [0, "> 0"],
    [0.1, "0.1"],
    [0.3, "0.3"],
    [1, "1"],
  ]) {
    const tick = make("span", {}, text);
    tick.style.left = `${100 * Math.sqrt(weight)}%`;
    find("scale-ticks").append(tick);
  }
  const slider = find("example");
  slider.max = report.examples.length;
  find("example-control").hidden = report.examples.length < 2;
  const go = (example) => {
    setExample(example);
    location.replace(address());
  };
  slider.addEventListener("input", () => setExample(slider.value - 1));
  slider.addEventListener("change", () => location.replace(address()));
  find("example-back").addEventListener("click", () => go(state.example - 1));
  find("example-on").addEventListener("click", () => go(state.example + 1));
  find("back").addEventListener("click", closeHead);
  find("head-back").addEventListener("click", () => stepHead(-1));
  find("head-on").addEventListener("click", () => stepHead(1));
  document.addEventListener("keydown", (event) => {
    if (!open.facts || event.target.matches("select")) return;
    if (event.key === "Escape") closeHead();
    else if (event.target.matches("input, .tokens")) return; // these have their own use for the keys
    else if (event.key === "PageUp" || event.key === "PageDown") stepHead(event.key === "PageUp" ? -1 : 1);
    else return;
    event.preventDefault();
  });
  startOverview();
  startMatrix();
  renderHeads();
  renderExample();
  addEventListener("hashchange", readAddress);
  addEventListener("resize", redrawCards);
  readAddress();
}

addEventListener("unhandledrejection", ({ reason }) => {
  find("problem").hidden = false;
  find("problem").textContent = `This browser could not read the weights (${reason}). Browsers from 2023 on can.`;
});
start();
