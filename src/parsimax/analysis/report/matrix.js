// One head, tokens × tokens. The box scrolls over the whole map, but only the part in sight is drawn.
const [LABELLED, LARGEST, MARGIN, LABEL_LETTERS] = [10, 48, 140, 18];
const open = { facts: null, weights: null, queries: [], keys: [], zoom: 1, cell: null, cursor: null, sentences: [] };
const style = (element, sizes) => Object.entries(sizes).forEach(([name, size]) => (element.style[name] = `${size}px`));
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

// Sizes of cells and margins in CSS pixels: at zoom 1 everything fits, and names are written where they have room.
function measure() {
  const stage = find("stage");
  const { queries, keys } = open.weights;
  const [across, down] = [
    stage.clientWidth,
    Math.max(320, Math.min(innerHeight - stage.offsetTop - 24, 1.15 * stage.clientWidth)),
  ];
  const uneven = queries === keys ? 1 : 4;
  const place = (left, top) => {
    const [w, h] = [(across - left - 3) / keys, (down - top - 3) / queries];
    const [width, height] = [Math.min(w, h * uneven, LARGEST), Math.min(h, w * uneven, LARGEST)];
    return {
      left,
      top,
      width: width * open.zoom,
      height: height * open.zoom,
      most: Math.max(1, (1.5 * LARGEST) / Math.max(width, height)),
    };
  };
  const context = find("map").getContext("2d");
  context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const longest = (names) => Math.ceil(names.reduce((most, name) => Math.max(most, context.measureText(name).width), 0));
  const widest = (names) => Math.min(MARGIN, 14 + longest(names));
  const named = place(widest(open.rowNames), widest(open.columnNames));
  const [rows, columns] = [named.height >= LABELLED, named.width >= LABELLED];
  const flat = columns && longest(open.columnNames) + 6 <= named.width; // short names need not be turned
  return { ...place(rows ? named.left : 44, columns && !flat ? named.top : 26), rows, columns, flat, across, down };
}

function layout() {
  if (!open.weights || find("head").hidden) return;
  open.size = measure();
  const { left, top, width, height, across, down, columns, flat } = open.size;
  find("matrix").dataset.columns = flat ? "flat" : columns ? "turned" : "numbered";
  const whole = { width: left + width * open.weights.keys, height: top + height * open.weights.queries };
  style(find("space"), whole);
  style(find("matrix"), { width: Math.min(across, whole.width + 3), height: Math.min(down, whole.height + 3) });
  drawMap();
}

// Draw inside a rectangle only.
function inside(context, left, top, width, height, draw) {
  context.save();
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
  draw();
  context.restore();
}

function drawMap() {
  const [box, canvas, context] = [find("matrix"), find("map"), find("map").getContext("2d")];
  const { left, top, width, height } = open.size;
  const { scrollLeft, scrollTop, clientWidth: across, clientHeight: down } = box;
  Object.assign(canvas, { width: Math.round(across * devicePixelRatio), height: Math.round(down * devicePixelRatio) });
  style(canvas, { width: across, height: down });
  context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  const part = {
    left: Math.floor(scrollLeft / width),
    top: Math.floor(scrollTop / height),
    right: Math.min(open.weights.keys, Math.ceil((scrollLeft + across - left) / width)),
    bottom: Math.min(open.weights.queries, Math.ceil((scrollTop + down - top) / height)),
  };
  const [x, y] = [left + part.left * width - scrollLeft, top + part.top * height - scrollTop];
  inside(context, left, top, across, down, () => drawCells(context, part, x, y));
  drawNames(context, part, x, y, across, down);
  placeMarks();
}

function drawCells(context, part, x, y) {
  const { width, height } = open.size;
  const [across, down] = [part.right - part.left, part.bottom - part.top];
  const resolution = (cells, size) => clamp(Math.floor(cells * size * devicePixelRatio), 1, cells);
  const picture = image(open.weights, open.facts.head, part, resolution(across, width), resolution(down, height));
  const small = new OffscreenCanvas(picture.width, picture.height);
  small.getContext("2d").putImageData(picture, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, x, y, across * width, down * height);
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--panel");
  if (width >= 7) for (let i = 1; i < across; i++) context.fillRect(x + i * width - 0.5, y, 1, down * height);
  if (height >= 7) for (let i = 1; i < down; i++) context.fillRect(x, y + i * height - 0.5, across * width, 1);
}

// Names beside each row and column, or numbers at even steps where names have no room.
function drawNames(context, part, x, y, across, down) {
  const { left, top, width, height, rows, columns, flat } = open.size;
  const steps = [1, 10, 100, 1e3, 1e4, 1e5].flatMap((ten) => [ten, 2 * ten, 5 * ten]);
  const axis = (names, first, last, size, write) => {
    const step = names ? 1 : steps.find((cells) => cells * size >= 44);
    for (let i = Math.ceil(first / step) * step; i < last; i += step) {
      write(names ? names[i] : String(i), (i - first + 0.5) * size);
    }
  };
  const small = (rows && height < 15) || (columns && width < 15);
  context.font = `${small ? 10 : 12}px ${getComputedStyle(document.body).fontFamily}`;
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--quiet");
  context.textBaseline = "middle";
  inside(context, 0, rows ? top : top - 6, left, down, () => {
    context.textAlign = "right";
    const write = (name, at) => context.fillText(name, left - 7, y + at, left - 9);
    axis(rows && open.rowNames, part.top, part.bottom, height, write);
  });
  inside(context, columns ? left : left - 6, 0, across, top, () => {
    const turned = columns && !flat;
    context.textAlign = turned ? "left" : "center";
    axis(columns && open.columnNames, part.left, part.right, width, (name, at) => {
      context.save();
      context.translate(x + at, turned ? top - 7 : top / 2);
      if (turned) context.rotate(-Math.PI / 2);
      context.fillText(name, 0, 0, turned ? top - 9 : 99);
      context.restore();
    });
  });
}

// Frames around the row, the column and the cell that are shown.
function placeMarks() {
  const marks = ["mark-row", "mark-column", "mark-cell"].map(find);
  marks.forEach((mark) => (mark.hidden = true));
  if (!open.cell) return;
  const { left, top, width, height } = open.size;
  const { scrollLeft, scrollTop } = find("matrix");
  const { query, key } = open.cell;
  const [x, y] = [left + key * width - scrollLeft, top + query * height - scrollTop];
  const [row, column] = [query !== undefined && y > top - height, key !== undefined && x > left - width];
  const put = (mark, box) => style(mark, box) || (mark.hidden = false);
  if (row)
    put(marks[0], {
      left: 0,
      top: y,
      width: left + width * open.weights.keys - scrollLeft,
      height: Math.max(height, 2),
    });
  if (column)
    put(marks[1], {
      left: x,
      top: 0,
      width: Math.max(width, 2),
      height: top + height * open.weights.queries - scrollTop,
    });
  if (row && column) put(marks[2], { left: x, top: y, width: Math.max(width, 3), height: Math.max(height, 3) });
}

// The cell under the pointer; where cells are smaller than a pixel, the one with the largest weight there.
function cellAt(event) {
  const [box, { weights, size, facts }] = [find("matrix"), open];
  const frame = box.getBoundingClientRect();
  const [x, y] = [
    event.clientX - frame.left - box.clientLeft - size.left,
    event.clientY - frame.top - box.clientTop - size.top,
  ];
  const [key, query] = [Math.floor((x + box.scrollLeft) / size.width), Math.floor((y + box.scrollTop) / size.height)];
  if (x < 0 || y < 0 || key >= weights.keys || query >= weights.queries) return null;
  let [best, cell] = [weights.at(facts.head, query, key), { query, key }];
  for (let q = query; q < Math.min(weights.queries, query + 1 / size.height); q++) {
    const end = weights.row(facts.head, q)[1];
    for (let i = weights.from(facts.head, q, key); i < end && weights.column[i] < key + 1 / size.width; i++) {
      if (weights.weight[i] > best) [best, cell] = [weights.weight[i], { query: q, key: weights.column[i] }];
    }
  }
  return cell;
}

const named = (tokens, i) => [make("bdi", {}, shown(tokens[i])), make("small", {}, ` ${i}`)];

// The non-zero weights of a query as [key, weight], or of a key alone as [query, weight].
function weightsAround({ query, key }) {
  const { weights, facts } = open;
  const found = [];
  if (query === undefined) {
    for (let q = 0; q < weights.queries; q++) found.push([q, weights.at(facts.head, q, key)]);
    return found.filter(([, weight]) => weight !== 0);
  }
  const [begin, end] = weights.row(facts.head, query);
  for (let i = begin; i < end; i++) found.push([weights.column[i], weights.weight[i]]);
  return found;
}

// Show a cell: its weight beside it, and its row in the sentence. A query or a key alone shows all its weights.
function show(cell, x, y) {
  open.cell = cell;
  placeMarks();
  document.querySelectorAll(".token.chosen").forEach((item) => item.classList.remove("chosen"));
  open.sentences.forEach((each) => colourTokens(each, []));
  if (!cell) return hideTip();
  const { weights, queries, keys } = open;
  const { query, key } = cell;
  const [first, last] = [open.sentences[0], open.sentences.at(-1)];
  const found = weightsAround(cell);
  const byKey = query === undefined;
  const chosen = byKey ? last.items[key] : first.items[query];
  colourTokens(byKey ? first : last, found);
  chosen.classList.add("chosen");
  const count = byKey
    ? `gets weight from ${found.length} of ${weights.queries}`
    : `attends to ${found.length} of ${weights.keys}`;
  if (!byKey && key !== undefined) {
    reveal(first.line, chosen);
    const weight = make("b", {}, weightText(weights.at(open.facts.head, query, key)));
    return tip([[...named(queries, query), " → ", ...named(keys, key)], [weight], [make("small", {}, count)]], x, y);
  }
  const [own, other] = byKey ? [named(keys, key), queries] : [named(queries, query), keys];
  const top = [...found].sort((a, b) => b[1] - a[1]).slice(0, 5);
  tip([[...own, ` ${count}`], ...top.map(([i, weight]) => [`${weightText(weight)}  `, ...named(other, i)])], x, y);
}

// The cell that the keyboard or a click has chosen, scrolled into sight.
function choose(query, key) {
  const [box, { left, top, width, height }] = [find("matrix"), open.size];
  open.cursor = { query: clamp(query, 0, open.weights.queries - 1), key: clamp(key, 0, open.weights.keys - 1) };
  const [x, y] = [open.cursor.key * width, open.cursor.query * height];
  box.scrollLeft = clamp(box.scrollLeft, x + left + width - box.clientWidth, x);
  box.scrollTop = clamp(box.scrollTop, y + top + height - box.clientHeight, y);
  const frame = box.getBoundingClientRect();
  show(open.cursor, frame.left + left + x + width - box.scrollLeft, frame.top + top + y + height - box.scrollTop);
}

// Zoom so that what is under the pointer, or in the middle, stays there; a factor of 0 fits all.
function zoom(factor, event) {
  const [box, before] = [find("matrix"), open.size];
  const frame = box.getBoundingClientRect();
  const [x, y] = event
    ? [event.clientX - frame.left, event.clientY - frame.top]
    : [box.clientWidth / 2, box.clientHeight / 2];
  const key = (box.scrollLeft + x - before.left) / before.width;
  const query = (box.scrollTop + y - before.top) / before.height;
  open.zoom = clamp(open.zoom * factor, 1, before.most);
  show(null);
  layout();
  const { left, top, width, height } = open.size;
  Object.assign(box, { scrollLeft: key * width + left - x, scrollTop: query * height + top - y });
}

function moveByKey(event) {
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const zooms = { "+": 2, "=": 2, "-": 0.5, 0: 0 };
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key in steps) {
    const { query, key } = open.cursor ?? { query: -steps[event.key][0], key: -steps[event.key][1] };
    choose(query + steps[event.key][0], key + steps[event.key][1]);
  } else if (event.key in zooms) zoom(zooms[event.key]);
  else return;
  event.preventDefault();
}

function startMatrix() {
  const box = find("matrix");
  const on = (element, name, act, options) =>
    element.addEventListener(name, (event) => open.weights && act(event), options);
  on(box, "scroll", drawMap);
  on(box, "keydown", moveByKey);
  on(box, "pointerleave", () => show(null));
  on(box, "pointermove", (event) => {
    const cell = cellAt(event);
    if (cell?.query !== open.cell?.query || cell?.key !== open.cell?.key) show(cell, event.clientX, event.clientY);
  });
  on(box, "click", (event) => {
    const cell = cellAt(event);
    if (cell) choose(cell.query, cell.key);
  });
  on(
    box,
    "wheel",
    (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoom(event.deltaY < 0 ? 1.5 : 1 / 1.5, event);
    },
    { passive: false },
  );
  on(find("zoom-in"), "click", () => zoom(2));
  on(find("zoom-out"), "click", () => zoom(0.5));
  on(find("zoom-fit"), "click", () => zoom(0));
  new ResizeObserver(layout).observe(find("stage"));
}
