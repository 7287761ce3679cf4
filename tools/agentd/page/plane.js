// A plane: its tiers, and its maps, which the keyboard can be used in.
import { DOWN, HEALTHY, TEXTS, tally, tallyText } from "./levels.js";
import { drawMap, drawTiers, geometry, losing, nearest } from "./draw.js";

export function element(kind, text, attributes = {}) {
  const made = document.createElement(kind);
  if (text) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

export class Plane {
  constructor(fabric, plane, choose) {
    Object.assign(this, { fabric, plane, choose, levels: null, chosen: -1, denied: new Map(), lines: [] });
    this.root = element("article", "", { class: "plane", "aria-label": `Plane ${plane}` });
    this.root.append(element("h3", `Plane ${plane}`));
    this.summary = this.root.appendChild(element("p", "", { class: "quiet" }));
    this.tiers = this.root.appendChild(element("canvas", "", { role: "img" }));
    this.tiers.addEventListener("click", (event) => {
      const number = nearest(this.lines, event.offsetX, event.offsetY);
      if (number >= 0) this.choose(this.fabric.name(number));
    });
    this.maps = fabric.maps(plane).map((map) => this.map(map));
  }

  map(map) {
    const title = this.root.appendChild(element("h4", map.title));
    title.append(element("span", ` rows: ${map.rowKind}, columns: ${map.columnKind}`, { class: "quiet" }));
    const canvas = element("canvas", "", {
      tabindex: "0", role: "application",
      "aria-label": `Plane ${this.plane}, links from ${map.title}. Arrow keys move, Enter shows the link, N and P go to the next and the previous link that loses packets.`,
    });
    const readout = element("p", "", { class: "readout quiet", "aria-live": "polite" });
    this.root.append(canvas, readout);
    const own = { ...map, canvas, readout, cursor: null };
    const at = (event) => {
      const shape = geometry(map, this.width());
      const column = Math.floor((event.offsetX - shape.left) / shape.cell);
      const row = Math.floor((event.offsetY - shape.top) / shape.tall);
      const inside = row >= 0 && row < map.rows && column >= 0 && column < map.columns;
      return inside ? this.snap(own, row, column, shape) : null;
    };
    canvas.addEventListener("mousemove", (event) => this.read(own, at(event) ?? own.cursor));
    canvas.addEventListener("mouseleave", () => this.read(own, own.cursor));
    canvas.addEventListener("click", (event) => {
      const place = at(event);
      if (!place || map.number(...place) < 0) return;
      own.cursor = place;
      this.choose(this.fabric.name(map.number(...place)));
    });
    canvas.addEventListener("keydown", (event) => this.key(own, event));
    canvas.addEventListener("focus", () => this.move(own, own.cursor ?? [0, 0]));
    canvas.addEventListener("blur", () => this.move(own, null));
    return own;
  }

  // Cells of a pixel are hard to hit: the worst one near the pointer is meant.
  snap(map, row, column, shape) {
    const reach = shape.cell >= 9 ? 0 : Math.ceil(4.5 / shape.cell);
    let best = [row, column], worst = this.levels?.[map.number(row, column)] ?? 0;
    for (let y = Math.max(0, row - reach); y <= Math.min(map.rows - 1, row + reach); y++) {
      for (let x = Math.max(0, column - reach); x <= Math.min(map.columns - 1, column + reach); x++) {
        const number = map.number(y, x), level = number < 0 ? 0 : this.levels?.[number] ?? 0;
        if (level > Math.max(worst, HEALTHY)) [best, worst] = [[y, x], level];
      }
    }
    return best;
  }

  read(map, place) {
    const number = place ? map.number(...place) : -1;
    const text = number < 0 || !this.levels ? "" : `${this.fabric.name(number)}: ${TEXTS[this.levels[number]]}${this.denied.has(number) ? "; denied on this host" : ""}`;
    if (map.readout.textContent !== text) map.readout.textContent = text;
  }

  move(map, place) {
    map.cursor = place;
    this.read(map, place);
    this.draw(map);
  }

  key(map, event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const [row, column] = map.cursor ?? [0, 0];
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-16, 0], PageDown: [16, 0] };
    const clamp = (value, most) => Math.max(0, Math.min(most - 1, value));
    if (steps[event.key]) {
      const [down, right] = steps[event.key];
      this.move(map, [clamp(row + down, map.rows), clamp(column + right, map.columns)]);
    } else if (event.key === "Home") this.move(map, [row, 0]);
    else if (event.key === "End") this.move(map, [row, map.columns - 1]);
    else if (event.key === "n" || event.key === "p") this.jump(map, event.key === "n" ? 1 : -1);
    else if (event.key === "Enter" || event.key === " ") {
      const number = map.number(row, column);
      if (number >= 0) this.choose(this.fabric.name(number), true);
    } else return;
    event.preventDefault();
  }

  // To the next link that loses packets, by row and column.
  jump(map, direction) {
    const order = ([row, column]) => row * map.columns + column;
    const here = order(map.cursor ?? [0, 0]);
    const found = losing(map, this.levels).map(([row, column]) => [row, column]).sort((a, b) => order(a) - order(b));
    if (found.length === 0) {
      map.readout.textContent = "No link of this map loses packets.";
      return;
    }
    const next = direction > 0 ? found.find((place) => order(place) > here) ?? found[0]
      : found.findLast((place) => order(place) < here) ?? found[found.length - 1];
    this.move(map, next);
  }

  width() {
    const style = getComputedStyle(this.root);
    return Math.max(200, this.root.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
  }

  draw(map) {
    if (!this.levels) return;
    const place = this.chosen >= 0 && this.fabric.plane(this.chosen) === this.plane ? map.place(this.chosen % this.fabric.perPlane) : null;
    drawMap(map.canvas, map, this.levels, { width: this.width(), cursor: map.cursor, chosen: place, colors: this.colors, denied: this.denied, perPlane: this.fabric.perPlane });
  }

  // Whether all is as it was drawn last.
  isSame(levels, chosen, colors, denied) {
    if ([...this.denied.keys()].join() !== [...denied.keys()].join()) return false;
    const from = this.plane * this.fabric.perPlane, to = from + this.fabric.perPlane;
    if (!this.levels || this.drawn !== `${chosen} ${this.width()} ${JSON.stringify(colors)}`) return false;
    for (let link = from; link < to; link++) if (levels[link] !== this.levels[link]) return false;
    return true;
  }

  show(levels, chosen, colors, allDenied) {
    const denied = new Map([...allDenied].filter(([number]) => this.fabric.plane(number) === this.plane));
    const same = this.isSame(levels, chosen, colors, denied);
    Object.assign(this, { levels, chosen, colors, denied });
    if (same) return;
    this.drawn = `${chosen} ${this.width()} ${JSON.stringify(colors)}`;
    this.root.dataset.drawings = Number(this.root.dataset.drawings ?? 0) + 1;
    const from = this.plane * this.fabric.perPlane;
    const counts = tally(levels, from, from + this.fabric.perPlane);
    const text = `${this.fabric.perPlane.toLocaleString("en")} links: ${tallyText(counts)}.`;
    if (this.summary.textContent !== text) this.summary.textContent = text;
    this.root.classList.toggle("has-down", counts[DOWN] > 0);
    this.tiers.setAttribute("aria-label", `The tiers of plane ${this.plane}. ${text}`);
    this.lines = drawTiers(this.tiers, this.fabric, this.plane, levels, { width: this.width(), chosen, colors, denied });
    for (const map of this.maps) {
      this.draw(map);
      this.read(map, map.cursor);
    }
  }
}
