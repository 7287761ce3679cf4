// The levels of links: their names, their looks, and how frames hold them.

export const UNKNOWN = 0, HEALTHY = 1, TRACE = 2, LOW = 3, MEDIUM = 4, HIGH = 5, DOWN = 6;

// What a level means, as the legend and the readouts say it.
export const TEXTS = [
  "not probed, or too few probes",
  "healthy: less than 0.1 % lost",
  "0.1 to 0.3 % lost",
  "0.3 to 1 % lost",
  "1 to 10 % lost",
  "10 to 95 % lost",
  "down: at least 95 % lost",
];

// The same, short.
export const SHORT = ["unknown", "healthy", "under 0.3 %", "under 1 %", "under 10 %", "lossy", "down"];

export function colors() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return {
    levels: TEXTS.map((_, level) => of(`--level-${level}`)),
    back: of("--card"), text: of("--text"), quiet: of("--quiet"), line: of("--line"), focus: of("--focus"), mark: of("--mark"), wire: of("--wire"),
  };
}

// A frame as the agent sends it: docs/agent.md describes it.
export function readFrame(buffer) {
  const view = new DataView(buffer);
  if (buffer.byteLength < 24 || view.getUint32(0) !== 0x53504452) throw new Error("what the agent sent is no frame");
  const links = view.getUint32(4, true);
  const frame = { time: view.getFloat64(8, true), seconds: view.getUint32(16, true), levels: new Uint8Array(links) };
  const bytes = new Uint8Array(buffer, 24);
  if (view.getUint8(20) === 1) {
    for (let link = 0; link < links; link++) frame.levels[link] = (bytes[link >> 1] >> (link & 1) * 4) & 15;
    return frame;
  }
  let link = 0;
  for (let at = 0; at < bytes.length;) {
    const level = bytes[at++];
    let length = 0, factor = 1, byte;
    do {
      byte = bytes[at++];
      length += (byte & 127) * factor;
      factor *= 128;
    } while (byte & 128);
    frame.levels.fill(level, link, link + length);
    link += length;
  }
  return frame;
}

export function tally(levels, from = 0, to = levels.length) {
  const counts = new Array(TEXTS.length).fill(0);
  for (let link = from; link < to; link++) counts[levels[link]]++;
  return counts;
}

export function tallyText(counts) {
  const parts = counts.map((count, level) => [count, level]).filter(([count]) => count > 0).reverse();
  return parts.map(([count, level]) => `${count.toLocaleString("en")} ${SHORT[level]}`).join(", ") || "no links";
}

// The shape that stands for a level, beside its colour: a figure of this radius around a point.
export function drawShape(context, level, x, y, radius) {
  context.beginPath();
  if (level === DOWN) {
    context.moveTo(x - radius, y - radius);
    context.lineTo(x + radius, y + radius);
    context.moveTo(x + radius, y - radius);
    context.lineTo(x - radius, y + radius);
  } else if (level === HIGH) {
    context.moveTo(x, y - radius);
    context.lineTo(x + radius, y);
    context.lineTo(x, y + radius);
    context.lineTo(x - radius, y);
    context.closePath();
  } else if (level === MEDIUM) {
    context.moveTo(x - radius, y + radius);
    context.lineTo(x + radius, y - radius);
  } else if (level === LOW) {
    context.moveTo(x - radius, y);
    context.lineTo(x + radius, y);
  } else if (level === TRACE) {
    context.arc(x, y, Math.max(1, radius / 4), 0, 2 * Math.PI);
  } else if (level === UNKNOWN) {
    context.arc(x, y, radius * 0.7, 0, 2 * Math.PI);
  }
  context.stroke();
}
