// What the page shows. Facts of heads are plain JSON; weights lie at the end of the page, one compressed block for each
// example and layer, and a block is decoded when it is first looked at.
const report = JSON.parse(document.getElementById("report").textContent);
const ENTRIES_KEPT = 2e7;
const blocks = new Map();
const parsed = new Promise((done) => {
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", done);
  else done();
});

// The non-zero weights of one layer: entries start[r] to start[r + 1] are those of row r = head · queries + query.
class Weights {
  constructor(shape, start, column, weight) {
    [this.heads, this.queries, this.keys] = shape;
    Object.assign(this, { start, column, weight });
  }

  row(head, query) {
    const row = head * this.queries + query;
    return [this.start[row], this.start[row + 1]];
  }

  // The first entry of a row whose key is at least `key`.
  from(head, query, key) {
    let [low, high] = this.row(head, query);
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.column[middle] < key) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  at(head, query, key) {
    const entry = this.from(head, query, key);
    return entry < this.row(head, query)[1] && this.column[entry] === key ? this.weight[entry] : 0;
  }
}

async function unpack(element) {
  const text = atob(element.textContent);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function decode(example, layer) {
  await parsed;
  const { shape, entries } = report.examples[example].blocks[layer];
  const element = document.getElementById(`w${example}-${layer}`);
  const [planes, scale] = [element.dataset.planes.split(" ").map(Number), Number(element.dataset.scale)];
  const bytes = await unpack(element);
  let place = 0;
  // Numbers lie as planes: all lowest bytes, then all second bytes, … as that compresses best.
  const numbers = (length, count) => {
    const out = new Uint32Array(length);
    for (let plane = 0; plane < count; plane++, place += length) {
      for (let i = 0; i < length; i++) out[i] |= bytes[place + i] << (8 * plane);
    }
    return out;
  };
  const counts = numbers(shape[0] * shape[1], planes[0]);
  const column = numbers(entries, planes[1]); // each as its distance from the one before in its row
  const [levels, weight] = [numbers(entries, 2), new Float32Array(entries)];
  for (let i = 0; i < entries; i++) weight[i] = levels[i] > report.levels ? NaN : (levels[i] * scale) / report.levels;
  const start = new Uint32Array(counts.length + 1);
  for (let row = 0; row < counts.length; row++) {
    start[row + 1] = start[row] + counts[row];
    for (let i = start[row] + 1; i < start[row + 1]; i++) column[i] += column[i - 1];
  }
  return new Weights(shape, start, column, weight);
}

// A promise of the weights; those used last are kept.
function weightsOf(example, layer) {
  const name = `${example} ${layer}`;
  const found = blocks.get(name) ?? {
    entries: report.examples[example].blocks[layer].entries,
    weights: decode(example, layer),
  };
  blocks.delete(name);
  blocks.set(name, found);
  let total = 0;
  for (const [old, { entries }] of [...blocks].reverse()) {
    total += entries;
    if (total > ENTRIES_KEPT && old !== name) blocks.delete(old);
  }
  return found.weights;
}
