// Pictures on canvases: maps, tiers, and strips over time.
import { DOWN, HEALTHY, HIGH, LOW, MEDIUM, TRACE, UNKNOWN, drawShape } from "./levels.js";

const LEFT = 30, TOP = 16;
// Cells of many rows are low, so that a map fits on a screen.
const HIGHEST = 560;
// Links that get a mark or a line of their own; more would hide each other.
const MOST_MARKS = 600, MOST_LINES = 3000, MOST_SHAPES = 24;

// Makes a canvas this large in CSS pixels, and returns its context, in CSS pixels. The style sheet may say how wide it is.
export function sized(canvas, width, height, isStyled = false) {
  const scale = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.height = `${height}px`;
    if (!isStyled) canvas.style.width = `${width}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

function rgb(color) {
  const value = parseInt(color.slice(1), 16);
  return [value >> 16, value >> 8 & 255, value & 255];
}

function ink(color, colors) {
  // Dark on bright, and bright on dark.
  const [r, g, b] = rgb(color);
  const bright = 0.3 * r + 0.59 * g + 0.11 * b > 128;
  const text = rgb(colors.text)[0] > 128;
  return bright === text ? colors.back : colors.text;
}

// Where the cells of a map are.
export function geometry(map, width) {
  const room = Math.max(40, width - LEFT - 2);
  const cell = Math.max(0.5, Math.min(26, room / map.columns));
  const size = cell >= 2 ? Math.floor(cell) : Math.floor(cell * 2) / 2;
  const tall = Math.max(1, Math.min(size, 26, Math.floor(HIGHEST / map.rows)));
  return { left: LEFT, top: TOP, cell: Math.max(size, 1), tall, width, height: TOP + tall * map.rows + 4 };
}

function labels(context, map, shape, colors) {
  context.fillStyle = colors.quiet;
  context.font = "11px system-ui, sans-serif";
  const step = (size, count) => [1, 2, 4, 8, 16, 32, 64, 128].find((step) => step * size >= 8 + 7 * String(count - 1).length) ?? 256;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (let row = 0; row < map.rows; row += step(shape.tall * 1.6, map.rows)) {
    context.fillText(String(row), shape.left - 5, shape.top + (row + 0.5) * shape.tall);
  }
  context.textAlign = "center";
  for (let column = 0; column < map.columns; column += step(shape.cell, map.columns)) {
    context.fillText(String(column), shape.left + (column + 0.5) * shape.cell, shape.top / 2);
  }
}

// Many cells at once: one pixel each, made larger.
function paint(context, map, shape, levels, colors) {
  const image = new ImageData(map.columns, map.rows);
  const pixels = new Uint32Array(image.data.buffer);
  const palette = colors.levels.map((color) => {
    const [r, g, b] = rgb(color);
    return (255 << 24 | b << 16 | g << 8 | r) >>> 0;
  });
  for (let row = 0, at = 0; row < map.rows; row++) {
    for (let column = 0; column < map.columns; column++, at++) {
      const number = map.number(row, column);
      if (number >= 0) pixels[at] = palette[levels[number]];
    }
  }
  const small = new OffscreenCanvas(map.columns, map.rows);
  small.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, shape.left, shape.top, shape.cell * map.columns, shape.tall * map.rows);
}

// The cells of a map that lose packets, the worst first.
export function losing(map, levels) {
  const found = [];
  for (let row = 0; row < map.rows; row++) {
    for (let column = 0; column < map.columns; column++) {
      const number = map.number(row, column);
      if (number >= 0 && levels[number] > HEALTHY) found.push([row, column, levels[number]]);
    }
  }
  return found.sort((a, b) => b[2] - a[2]);
}

export function drawMap(canvas, map, levels, { width, cursor, chosen, colors, denied, perPlane }) {
  const shape = geometry(map, width);
  const context = sized(canvas, width, shape.height);
  labels(context, map, shape, colors);
  paint(context, map, shape, levels, colors);
  const middle = ([row, column]) =>
    [shape.left + (column + 0.5) * shape.cell, shape.top + (row + 0.5) * shape.tall];
  if (Math.min(shape.cell, shape.tall) >= 9) {
    // Lines between cells, and a shape in each that is not healthy.
    context.strokeStyle = colors.back;
    context.lineWidth = 1;
    context.beginPath();
    for (let column = 0; column <= map.columns; column++) {
      const x = shape.left + column * shape.cell;
      context.moveTo(x, shape.top);
      context.lineTo(x, shape.top + shape.tall * map.rows);
    }
    for (let row = 0; row <= map.rows; row++) {
      const y = shape.top + row * shape.tall;
      context.moveTo(shape.left, y);
      context.lineTo(shape.left + shape.cell * map.columns, y);
    }
    context.stroke();
    context.lineWidth = 1.6;
    for (let row = 0; row < map.rows; row++) {
      for (let column = 0; column < map.columns; column++) {
        const number = map.number(row, column);
        if (number < 0 || levels[number] === HEALTHY) continue;
        context.strokeStyle = ink(colors.levels[levels[number]], colors);
        drawShape(context, levels[number], ...middle([row, column]), Math.min(shape.cell, shape.tall) * 0.28);
      }
    }
  } else {
    // Cells too small for a shape: a larger mark on each that loses more than a trace.
    for (const [row, column, level] of losing(map, levels).slice(0, MOST_MARKS).reverse()) {
      if (level <= TRACE) continue;
      const [x, y] = middle([row, column]);
      context.fillStyle = colors.levels[level];
      context.fillRect(x - 4.5, y - 4.5, 9, 9);
      context.lineWidth = 1.4;
      context.strokeStyle = ink(colors.levels[level], colors);
      drawShape(context, level, x, y, 3);
      context.lineWidth = 0.8;
      context.strokeStyle = colors.mark;
      context.strokeRect(x - 4.5, y - 4.5, 9, 9);
    }
  }
  for (const number of [...denied.keys()].slice(0, MOST_MARKS)) {
    const place = map.place(number % perPlane);
    if (!place || map.number(...place) !== number) continue;
    drawDenied(context, ...middle(place), Math.max(shape.cell, 9), Math.max(shape.tall, 9), colors);
  }
  for (const [place, color, thick] of [[chosen, colors.mark, 2.5], [cursor, colors.focus, 2.5]]) {
    if (!place) continue;
    const [x, y] = middle(place), [w, h] = [Math.max(shape.cell, 9), Math.max(shape.tall, 9)];
    context.lineWidth = thick;
    context.strokeStyle = color;
    context.strokeRect(x - w / 2 - 1, y - h / 2 - 1, w + 2, h + 2);
  }
  return shape;
}

// The mark of what is denied: a dashed frame with a filled corner, around a point.
export function drawDenied(context, x, y, width, height, colors) {
  const [left, top] = [x - width / 2 + 1, y - height / 2 + 1], corner = Math.min(width, height) * 0.4;
  context.setLineDash([3, 2]);
  context.lineWidth = 1.4;
  context.strokeStyle = colors.mark;
  context.strokeRect(left, top, width - 2, height - 2);
  context.setLineDash([]);
  context.fillStyle = colors.mark;
  context.beginPath();
  context.moveTo(left, top);
  context.lineTo(left + corner, top);
  context.lineTo(left, top + corner);
  context.closePath();
  context.fill();
}

const DASHES = { [UNKNOWN]: [1, 4], [HEALTHY]: [], [TRACE]: [8, 2], [LOW]: [6, 3], [MEDIUM]: [4, 3], [HIGH]: [2, 2], [DOWN]: [] };

// The planes of nodes from the top tier to the hosts, and their links. Returns the lines that were drawn.
export function drawTiers(canvas, fabric, plane, levels, { width, chosen, colors, denied }) {
  const tiers = fabric.tiers(plane), gap = 74;
  const height = 30 + gap * (tiers.length - 1) + 20;
  const context = sized(canvas, width, height);
  const places = new Map();
  const [left, right] = [58, width - 12];
  tiers.forEach((names, tier) => {
    const y = height - 26 - tier * gap;
    names.forEach((name, at) => places.set(name, [left + (at + 0.5) * (right - left) / names.length, y]));
    context.fillStyle = colors.quiet;
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText(tier === 0 ? "Hosts" : `T${tier - 1}`, 2, y);
  });
  const from = plane * fabric.perPlane, to = from + fabric.perPlane;
  let shown = [];
  let marks = 0;
  for (let number = from; number < to; number++) {
    if (fabric.perPlane <= MOST_LINES || levels[number] > HEALTHY || number === chosen || denied.has(number)) shown.push(number);
  }
  if (fabric.perPlane > MOST_LINES) {
    bands(context, fabric, [left, right, height - 26, gap], colors);
    shown = shown.sort((a, b) => levels[b] - levels[a]).slice(0, MOST_LINES);
  }
  // Some of many lines have a mark, spread evenly.
  const apart = Math.ceil(shown.filter((number) => levels[number] > LOW).length / MOST_SHAPES);
  const lines = [];
  for (const number of shown.sort((a, b) => levels[a] - levels[b])) {
    const [lower, upper] = fabric.ends(number);
    const [a, b] = [places.get(lower), places.get(upper)];
    const level = levels[number];
    // The link of a dumbbell joins two nodes of a tier.
    const bend = a[1] === b[1] ? gap * 0.6 : 0;
    lines.push([number, a, b]);
    const line = (dashes, thick, color) => {
      context.setLineDash(dashes);
      context.lineWidth = thick;
      context.strokeStyle = color;
      context.beginPath();
      context.moveTo(...a);
      context.quadraticCurveTo((a[0] + b[0]) / 2, (a[1] + b[1]) / 2 - bend, ...b);
      context.stroke();
    };
    if (number === chosen) {
      line([], 8, colors.mark);
      line([], 5, colors.back);
    }
    line(DASHES[level], level > LOW ? 2.4 : level > HEALTHY ? 1.8 : 1, level === UNKNOWN ? colors.quiet : level === HEALTHY ? colors.wire : colors.levels[level]);
    if (level > LOW && marks++ % apart === 0) {
      context.setLineDash([]);
      context.lineWidth = 1.8;
      context.strokeStyle = colors.mark;
      drawShape(context, level, a[0] + (b[0] - a[0]) * 0.35, a[1] + (b[1] - a[1]) * 0.35 - bend / 2, 4);
    }
    if (denied.has(number)) {
      const [x, y] = [a[0] + (b[0] - a[0]) * 0.6, a[1] + (b[1] - a[1]) * 0.6 - bend / 2];
      context.fillStyle = colors.back;
      context.fillRect(x - 6, y - 6, 12, 12);
      drawDenied(context, x, y, 12, 12, colors);
    }
  }
  context.setLineDash([]);
  nodes(context, tiers, places, [left, right], colors);
  return lines;
}

// Where there are too many healthy links for a line each.
function bands(context, fabric, [left, right, bottom, gap], colors) {
  context.fillStyle = colors.levels[HEALTHY];
  const tiers = fabric.tiers(0).length;
  context.globalAlpha = 0.6;
  for (let tier = 1; tier < tiers; tier++) context.fillRect(left, bottom - gap * tier + 14, right - left, gap - 28);
  context.globalAlpha = 1;
}

function nodes(context, tiers, places, [left, right], colors) {
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (const [tier, names] of tiers.entries()) {
    const room = (right - left) / names.length, step = Math.ceil(26 / room);
    // A box with the number in it, or where there is no room for it, a bar and a few numbers above.
    const boxes = tier > 0 && room >= 26;
    const [wide, tall] = boxes ? [22, 16] : [Math.max(1, Math.min(10, room - 1)), 8];
    names.forEach((name, at) => {
      const [x, y] = places.get(name);
      context.fillStyle = colors.text;
      context.fillRect(x - wide / 2, y - tall / 2, wide, tall);
      if (boxes) {
        context.fillStyle = colors.back;
        context.fillText(String(at), x, y + 0.5);
      } else if (tier > 0 && at % step === 0) {
        context.lineWidth = 4;
        context.strokeStyle = colors.back;
        context.strokeText(String(at), x, y - 11);
        context.fillStyle = colors.quiet;
        context.fillText(String(at), x, y - 11);
      } else if (tier === 0 && at % step === 0 && context.measureText(name).width < room * step) {
        context.fillStyle = colors.quiet;
        context.fillText(name, x, y + 15);
      }
    });
  }
}

// The link whose line is nearest to a point, no further than ten pixels; -1 if none is.
export function nearest(lines, x, y) {
  let [best, found] = [10, -1];
  for (const [number, a, b] of lines) {
    const [dx, dy] = [b[0] - a[0], b[1] - a[1]];
    const along = Math.max(0, Math.min(1, ((x - a[0]) * dx + (y - a[1]) * dy) / (dx * dx + dy * dy || 1)));
    const far = Math.hypot(x - a[0] - along * dx, y - a[1] - along * dy);
    if (far < best) [best, found] = [far, number];
  }
  return found;
}

// The levels of one link over the frames of the history.
export function drawStrip(canvas, frames, levels, colors, shown) {
  const width = canvas.clientWidth || 300, height = 40;
  const context = sized(canvas, width, height, true);
  if (frames.length === 0) return;
  const [first, last] = span(frames);
  const x = (time) => (time - first) / (last - first) * width;
  frames.forEach((frame, at) => {
    const level = levels[at];
    // Height says the level as well.
    const tall = level === UNKNOWN ? 4 : 6 + (height - 6) * level / DOWN;
    const [from, to] = [Math.floor(x(frame.time - frame.seconds)), Math.ceil(x(frame.time))];
    context.fillStyle = colors.levels[level];
    context.fillRect(from, height - tall, to - from, tall);
  });
  cursor(context, shown === undefined ? width - 1 : x(shown), height, colors);
}

function span(frames) {
  const first = frames[0].time - frames[0].seconds;
  return [first, Math.max(frames[frames.length - 1].time, first + 1)];
}

function cursor(context, x, height, colors) {
  context.fillStyle = colors.focus;
  context.fillRect(Math.max(0, x - 1), 0, 2, height);
}

// How many links lose packets over time, on a logarithmic scale, and the times of faults below.
export function drawAxis(canvas, frames, episodes, colors, shown) {
  const width = canvas.clientWidth || 600, height = 72, base = height - 22;
  const context = sized(canvas, width, height, true);
  if (frames.length === 0) return;
  const [first, last] = span(frames);
  const x = (time) => (time - first) / (last - first) * width;
  const tall = (count) => Math.min(base - 4, count === 0 ? 0 : 6 + Math.log2(count) * 4);
  for (const frame of frames) {
    const from = Math.floor(x(frame.time - frame.seconds)), wide = Math.ceil(x(frame.time)) - from;
    let bad = 0;
    for (let level = DOWN; level > TRACE; level--) {
      const before = tall(bad);
      bad += frame.tally[level];
      context.fillStyle = colors.levels[level];
      context.fillRect(from, base - tall(bad), wide, tall(bad) - before);
    }
    context.fillStyle = frame.tally[UNKNOWN] > 0 ? colors.line : colors.levels[HEALTHY];
    context.fillRect(from, base, wide, 3);
  }
  context.fillStyle = colors.mark;
  for (const episode of episodes) {
    const [from, to] = [x(Math.max(first, episode.finding.since)), x(episode.until ?? last)];
    if (to >= 0) context.fillRect(from, base + 5, Math.max(2, to - from), 3);
  }
  context.fillStyle = colors.quiet;
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "bottom";
  const count = Math.max(1, Math.floor(width / 110));
  for (let at = 0; at <= count; at++) {
    context.textAlign = at === 0 ? "left" : at === count ? "right" : "center";
    const time = new Date((first + (last - first) * at / count) * 1000);
    context.fillText(time.toISOString().slice(11, last - first < 1800 ? 19 : 16), at === 0 ? 2 : width * at / count - (at === count ? 2 : 0), height - 1);
  }
  cursor(context, shown === undefined ? width - 1 : x(shown), height, colors);
}
