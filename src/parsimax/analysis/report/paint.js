// Colours. Zero has a colour of its own, outside the scale; the scale begins well away from it, so that the smallest
// weight above zero is seen, and goes by the square root of the weight. The hues are told apart by colour-blind readers.
const SCALES = {
  light: { zero: "#f0eee9", stops: ["#7cc4cf", "#3c9bc0", "#2f6fae", "#31438f", "#220f4d"], nan: "#d1495b" },
  dark: { zero: "#262a32", stops: ["#3a689c", "#2b8f9d", "#45b58a", "#a9d95f", "#fdf3a6"], nan: "#ff6b7a" },
};
let palette = [];
let pixels = new Uint32Array(256);

const channels = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));

function usePalette(theme) {
  const { zero, stops, nan } = SCALES[theme];
  palette = [channels(zero)];
  for (let i = 0; i < 254; i++) {
    const at = (i / 253) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const [a, b] = [channels(stops[low]), channels(stops[low + 1])];
    palette.push(a.map((value, c) => Math.round(value + (b[c] - value) * (at - low))));
  }
  palette.push(channels(nan));
  pixels = Uint32Array.from(palette, ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r);
}

const level = (weight) =>
  weight === 0 ? 0 : Number.isNaN(weight) ? 255 : 1 + Math.floor(Math.sqrt(Math.min(weight, 1)) * 253);
const colour = (weight) => `rgb(${palette[level(weight)].join(" ")})`;

function ink(weight) {
  const [r, g, b] = palette[level(weight)];
  return r * 0.299 + g * 0.587 + b * 0.114 > 140 ? "#111" : "#fff";
}

// A part of a head as an image: a pixel shows the largest weight of its cells, so a single non-zero stays visible.
function image(weights, head, part, width, height) {
  const levels = new Uint8Array(width * height);
  const [across, down] = [width / (part.right - part.left), height / (part.bottom - part.top)];
  for (let query = part.top; query < part.bottom; query++) {
    const line = Math.floor((query - part.top) * down) * width;
    const end = weights.row(head, query)[1];
    for (let i = weights.from(head, query, part.left); i < end && weights.column[i] < part.right; i++) {
      const at = line + Math.floor((weights.column[i] - part.left) * across);
      const found = level(weights.weight[i]);
      if (found > levels[at]) levels[at] = found;
    }
  }
  const result = new ImageData(width, height);
  const out = new Uint32Array(result.data.buffer);
  for (let i = 0; i < out.length; i++) out[i] = pixels[levels[i]];
  return result;
}

function thumbnail(canvas, weights, head) {
  if (!weights.keys || !weights.queries) return Object.assign(canvas, { width: 1, height: 1 });
  const size = Math.max(1, Math.floor(canvas.clientWidth * devicePixelRatio));
  canvas.width = Math.min(weights.keys, size);
  canvas.height = Math.min(weights.queries, size);
  const whole = { left: 0, top: 0, right: weights.keys, bottom: weights.queries };
  canvas.getContext("2d").putImageData(image(weights, head, whole, canvas.width, canvas.height), 0, 0);
}
