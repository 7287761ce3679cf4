// The time that is shown: now, or a frame of the last hours.
import { LOW, tallyText } from "./levels.js";
import { drawAxis } from "./draw.js";

export function clock(seconds) {
  const text = new Date(seconds * 1000).toISOString();
  const today = new Date().toISOString().slice(0, 10);
  return `${text.startsWith(today) ? "" : `${text.slice(0, 10)} `}${text.slice(11, 19)} UTC`;
}

export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

const get = (id) => document.getElementById(id);

export class Time {
  // `changed` is called when another time is chosen.
  constructor(changed) {
    Object.assign(this, { frames: [], episodes: [], id: null, changed });
    // The slider has the scale of the picture above it, in seconds. Its last step is now.
    get("slider").addEventListener("input", () => this.at(this.first() + Number(get("slider").value)));
    get("slider").addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 };
      if (!steps[event.key]) return;
      event.preventDefault();
      this.go(this.place() + steps[event.key]);
    });
    get("earlier").addEventListener("click", () => this.go(this.place() - 1));
    get("later").addEventListener("click", () => this.go(this.place() + 1));
    get("live").addEventListener("click", () => this.go(this.frames.length));
    get("earlier-fault").addEventListener("click", () => this.go(this.lossBefore()));
    get("later-fault").addEventListener("click", () => this.go(this.lossAfter()));
    get("axis").addEventListener("click", (event) => {
      const share = event.offsetX / get("axis").clientWidth;
      this.at(this.first() + share * (this.last() - this.first()));
    });
  }

  set({ frames, episodes }) {
    Object.assign(this, { frames, episodes });
    // The frame that was shown may have become part of a longer one.
    if (this.id !== null && !this.frame()) {
      const later = frames.findIndex((frame) => frame.id > this.id);
      this.id = frames[Math.max(0, later)]?.id ?? null;
      this.changed();
    }
    this.show();
  }

  first() {
    return this.frames.length > 0 ? this.frames[0].time - this.frames[0].seconds : 0;
  }

  last() {
    return this.frames.at(-1)?.time ?? 0;
  }

  // Shows the frame of a time, and what comes after all of them is now.
  at(time) {
    const at = this.frames.findIndex((frame) => frame.time > time);
    this.go(at < 0 ? this.frames.length : at);
  }

  frame() {
    return this.frames.find((frame) => frame.id === this.id);
  }

  // The place of what is shown; that of now comes after all frames.
  place() {
    const at = this.frames.findIndex((frame) => frame.id === this.id);
    return at < 0 ? this.frames.length : at;
  }

  go(place) {
    if (place === null) return;
    this.id = this.frames[Math.max(0, place)]?.id ?? null;
    this.changed();
    this.show();
  }

  hasLoss(at) {
    const frame = this.frames[at];
    return frame !== undefined && frame.tally.slice(LOW).some((count) => count > 0);
  }

  // The nearest frame before in which links begin to lose packets.
  lossBefore() {
    for (let at = this.place() - 1; at >= 0; at--) if (this.hasLoss(at) && !this.hasLoss(at - 1)) return at;
    return null;
  }

  lossAfter() {
    for (let at = this.place() + 1; at < this.frames.length; at++) if (this.hasLoss(at) && !this.hasLoss(at - 1)) return at;
    return null;
  }

  // The faults at the time that is shown.
  faults() {
    const frame = this.frame();
    if (!frame) return [];
    const ended = (episode) => episode.until !== null && episode.until <= frame.time - frame.seconds;
    return this.episodes.filter((episode) => episode.finding.since < frame.time && !ended(episode));
  }

  text() {
    const frame = this.frame();
    if (!frame) return "Now.";
    return `${clock(frame.time - frame.seconds)} and the ${frame.seconds} s after it: ${tallyText(frame.tally)}.`;
  }

  show() {
    const slider = get("slider"), place = this.place(), live = this.id === null;
    const frame = this.frame();
    slider.max = Math.ceil(this.last() - this.first());
    slider.value = frame ? Math.floor(frame.time - frame.seconds / 2 - this.first()) : slider.max;
    slider.setAttribute("aria-valuetext", this.text());
    slider.disabled = this.frames.length === 0;
    get("earlier").disabled = place === 0;
    get("later").disabled = live;
    get("earlier-fault").disabled = this.lossBefore() === null;
    get("later-fault").disabled = this.lossAfter() === null;
    get("live").setAttribute("aria-pressed", String(live));
    const count = this.frames.length;
    const kept = count === 0 ? " The history begins ten seconds after the agent does."
      : live ? ` The history begins at ${clock(this.first())}.` : "";
    get("shown").textContent = this.text() + kept;
  }

  draw(colors) {
    drawAxis(get("axis"), this.frames, this.episodes, colors, this.frame()?.time);
  }
}
