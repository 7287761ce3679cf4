// The page: asks the agent, and shows what it answers.
import { HEALTHY, TEXTS, UNKNOWN, colors, drawShape, readFrame, tally } from "./levels.js";
import { Fabric } from "./fabric.js";
import { Plane, element } from "./plane.js";
import { Time, clock, duration } from "./time.js";
import { episodeText, showLink, showNode } from "./details.js";
import { deniedItems, deniedLinks, deniedText, followedText } from "./denied.js";
import { drawDenied, sized } from "./draw.js";

const PERIOD = 1000, HISTORY_PERIOD = 10000, PATIENCE = 5000;
// No link is denied.
const NONE = new Map();
// Frames of the past that are kept here.
const KEPT = 40;

const get = (id) => document.getElementById(id);
const state = {
  fabric: null, layout: "", planes: [], plane: "all", summary: null, live: null, past: new Map(), frame: null,
  name: null, link: null, failed: null, refused: null, timer: 0, busy: false, historyAt: 0,
  // The links that are denied now, and of what they were made.
  denied: { of: "", links: new Map() },
};
const time = new Time(() => changed());

async function ask(path, binary = false) {
  // The token stays in this tab.
  const token = sessionStorage.getItem("token");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const reply = await fetch(path, { headers, signal: AbortSignal.timeout(PATIENCE) });
  state.refused = reply.status === 401 ? (token ? "This is not the agent's token." : "The agent asks for its token.") : null;
  if (!reply.ok) throw new Error((await reply.json().catch(() => ({}))).error ?? `the agent answers ${reply.status} to ${path}`);
  return binary ? reply.arrayBuffer() : reply.json();
}

function say(id, text) {
  // A text that has not changed is not read out again.
  if (get(id).textContent !== text) get(id).textContent = text;
}

// The agent's answers for now.
async function refresh() {
  const [summary, frame] = await Promise.all([ask("/api/v1/summary"), ask("/api/v1/links", true)]);
  // The time is that of this clock: the agent's may differ.
  Object.assign(state, { summary, live: readFrame(frame), failed: null, seen: Date.now() / 1000 });
  if (Date.now() - state.historyAt >= HISTORY_PERIOD || time.frames.length === 0) {
    time.set(await ask("/api/v1/history"));
    state.historyAt = Date.now();
  }
  await refreshLink();
}

async function refreshLink() {
  const name = state.name;
  if (!name?.includes(":")) return;
  const link = await ask(`/api/v1/link/${encodeURIComponent(name)}`);
  if (state.name === name) state.link = link;
}

async function load() {
  const layout = await ask("/api/v1/fabric");
  const text = JSON.stringify(layout);
  if (text === state.layout) return;
  Object.assign(state, { layout: text, fabric: new Fabric(layout), past: new Map(), live: null });
  choices();
  make();
}

function choices() {
  const root = get("choice");
  root.querySelectorAll("label").forEach((label) => label.remove());
  const values = ["all", ...Array.from({ length: state.fabric.planes }, (_, plane) => String(plane))];
  if (!values.includes(state.plane)) state.plane = "all";
  for (const value of values) {
    const label = root.appendChild(element("label"));
    const input = label.appendChild(element("input", "", { type: "radio", name: "plane", value }));
    input.checked = value === state.plane;
    input.addEventListener("change", () => {
      state.plane = value;
      keep();
      make();
      draw();
    });
    label.append(value === "all" ? "All" : value);
  }
}

function make() {
  const { fabric, plane } = state;
  const shown = plane === "all" ? [...Array(fabric.planes).keys()] : [Number(plane)];
  state.planes = shown.map((number) => new Plane(fabric, number, choose));
  const root = get("planes");
  root.replaceChildren(...state.planes.map((plane) => plane.root));
  root.classList.toggle("one", shown.length === 1);
}

// Chooses a link or a node. From the keyboard, the focus goes with it.
async function choose(name, focus = false) {
  Object.assign(state, { name, link: null });
  keep();
  draw();
  if (focus) get("details").focus();
  else if (matchMedia("(max-width: 60rem)").matches) get("details").scrollIntoView({ block: "nearest" });
  await refreshLink().catch((error) => get("details").replaceChildren(element("h3", name), element("p", error.message)));
  draw();
}

// What is chosen is in the address, so that it can be kept and sent.
function keep() {
  const parts = new URLSearchParams();
  if (state.plane !== "all") parts.set("plane", state.plane);
  if (state.name) parts.set("of", state.name);
  history.replaceState(null, "", parts.size > 0 ? `#${parts}` : location.pathname);
}

function restore() {
  const parts = new URLSearchParams(location.hash.slice(1));
  state.plane = parts.get("plane") ?? "all";
  state.name = parts.get("of");
}

// Another time is shown.
async function changed() {
  const frame = time.frame();
  if (!frame) {
    state.frame = null;
    draw();
    return;
  }
  try {
    if (!state.past.has(frame.id)) {
      state.past.set(frame.id, readFrame(await ask(`/api/v1/history/${frame.id}`, true)));
      if (state.past.size > KEPT) state.past.delete(state.past.keys().next().value);
    }
    if (time.id !== frame.id) return;
    state.frame = state.past.get(frame.id);
  } catch (error) {
    state.frame = null;
    say("shown", `This time cannot be shown: ${error.message}`);
    return;
  }
  draw();
}

function condition() {
  const { summary, failed } = state;
  const bad = failed !== null || (summary?.findings.length ?? 0) > 0;
  get("condition").classList.toggle("bad", bad);
  document.body.classList.toggle("stale", failed !== null);
  const { refused } = state;
  get("access").hidden = refused === null;
  if (refused !== null) return refused;
  if (failed !== null) {
    const last = summary ? ` What is shown is as of ${clock(summary.time)}.` : "";
    return `The agent does not reply.${last} The page tries again every second.`;
  }
  if (!summary || !state.live) return "Waiting for the agent.";
  const counts = tally(state.live.levels);
  if (counts[UNKNOWN] === state.live.levels.length) return "No data yet: too few probes have come back or been lost so far.";
  const count = summary.findings.length;
  const now = count === 0 ? "No component is at fault" : `${count} ${count === 1 ? "fault is" : "faults are"} known`;
  return time.id === null ? `${now}.` : `${now} now. What is shown is earlier.`;
}

function notes() {
  const { summary } = state;
  const found = [];
  if (summary?.store?.error) found.push(`The store cannot be reached, so only this agent's own links are known: ${summary.store.error}`);
  if (summary?.send_error) found.push(`The kernel does not take all probes: ${summary.send_error}`);
  const text = found.join("\n");
  if (get("notes").dataset.text === text) return;
  get("notes").dataset.text = text;
  get("notes").replaceChildren(...found.map((line) => element("li", line)));
}

function faults() {
  const live = time.id === null;
  const shown = live ? (state.summary?.findings ?? []).map((finding) => ({ finding, until: null })) : time.faults();
  const items = shown.slice(0, 50).map((episode) => {
    const item = element("li", "", { class: "fault" });
    const [what, when] = episodeText(episode);
    item.append(element("b", `${what} ${when}: `));
    episode.finding.components.forEach((part, at) => {
      if (at > 0) item.append(" or ");
      const button = element("button", `${part.kind} ${part.name}`, { type: "button", class: "link" });
      button.addEventListener("click", () => choose(part.name, true));
      item.append(button);
    });
    item.append(element("p", episode.finding.text));
    return item;
  });
  if (shown.length > 50) items.push(element("li", `and ${shown.length - 50} more`));
  if (items.length === 0) items.push(element("li", live ? "Nothing, as far as is known." : "Nothing at this time.", { class: "none" }));
  const text = items.map((item) => item.textContent).join("\n");
  if (get("faults").dataset.text === text) return;
  // The focus stays where it is.
  const focused = [...get("faults").querySelectorAll("button")].indexOf(document.activeElement);
  get("faults").dataset.text = text;
  get("faults").replaceChildren(...items);
  if (focused >= 0) get("faults").querySelectorAll("button")[focused]?.focus();
}

// What this host avoids now, whatever time is shown.
function denials() {
  const { summary, fabric } = state, deny = summary.deny;
  get("denial").hidden = !deny;
  const of = `${state.layout} ${summary.host} ${(deny?.denied ?? []).map((entry) => entry.component).join()}`;
  if (state.denied.of !== of) state.denied = { of, links: deniedLinks(fabric, deny, summary.host) };
  if (!deny) return;
  say("followed", followedText(deny));
  const root = get("denied");
  const items = deniedItems(fabric, deny, { host: summary.host, now: summary.time, choose });
  const text = items.map((item) => item.textContent).join("\n");
  if (root.dataset.text === text) return;
  const focused = [...root.querySelectorAll("button")].indexOf(document.activeElement);
  root.dataset.text = text;
  root.replaceChildren(...items);
  if (focused >= 0) root.querySelectorAll("button")[focused]?.focus();
}

function legend(palette) {
  const items = TEXTS.map((text, level) => {
    const item = element("li"), canvas = element("canvas", "", { "aria-hidden": "true" });
    item.append(canvas, text);
    const context = sized(canvas, 18, 18);
    context.fillStyle = palette.levels[level];
    context.fillRect(0, 0, 18, 18);
    context.lineWidth = 1.6;
    context.strokeStyle = level === UNKNOWN || level > HEALTHY ? contrast(palette, level) : palette.levels[level];
    drawShape(context, level, 9, 9, 5);
    return item;
  });
  const denied = element("li"), canvas = element("canvas", "", { "aria-hidden": "true" });
  denied.append(canvas, "denied on this host");
  const context = sized(canvas, 18, 18);
  context.fillStyle = palette.levels[HEALTHY];
  context.fillRect(0, 0, 18, 18);
  drawDenied(context, 9, 9, 18, 18, palette);
  get("legend").replaceChildren(...items, denied);
}

function contrast(palette, level) {
  const value = parseInt(palette.levels[level].slice(1), 16);
  const bright = 0.3 * (value >> 16) + 0.59 * (value >> 8 & 255) + 0.11 * (value & 255) > 128;
  return bright ? "#000000" : "#ffffff";
}

function details(levels, palette) {
  const root = get("details");
  if (!state.name) return;
  // What has the focus keeps it, and the place that was scrolled to stays.
  const focused = [...root.querySelectorAll("button")].indexOf(document.activeElement), top = root.scrollTop;
  if (!state.name.includes(":")) showNode(root, state.fabric, state.name, levels, time.episodes, choose);
  else if (state.link) {
    const entry = state.denied.links.get(state.fabric.number(state.name));
    const denied = entry ? `Denied on this host with the ${entry.component}, ${deniedText(entry, state.summary.time)}.` : null;
    showLink(root, state.link, { frames: time.frames, palette, shown: time.frame()?.time, denied });
  }
  root.scrollTop = top;
  if (focused >= 0) root.querySelectorAll("button")[focused]?.focus();
}

function draw() {
  const { fabric, summary } = state;
  say("condition", condition());
  notes();
  if (!fabric || !state.live) return;
  const began = performance.now();
  const palette = colors(), levels = (state.frame ?? state.live).levels;
  const chosen = state.name?.includes(":") ? fabric.number(state.name) : -1;
  faults();
  say("host", summary.host || "this host");
  say("version", `Version ${summary.version}, running for ${duration(summary.time - summary.started)}; ${summary.probes.sent.toLocaleString("en")} probes sent${summary.store && !summary.store.error ? `; ${summary.store.agents} agents report` : ""}.`);
  denials();
  // The list is that of now.
  const denied = time.id === null ? state.denied.links : NONE;
  for (const plane of state.planes) plane.show(levels, chosen, palette, denied);
  time.draw(palette);
  details(levels, palette);
  // How long drawing took, for tests and for the curious.
  document.body.dataset.drawMs = (performance.now() - began).toFixed(1);
}

async function round() {
  if (state.busy) return;
  state.busy = true;
  if (!document.hidden) {
    try {
      if (!state.fabric || state.failed !== null) await load();
      await refresh();
      time.show();
    } catch (error) {
      state.failed = error.message;
    }
    draw();
    document.body.dataset.rounds = Number(document.body.dataset.rounds ?? 0) + 1;
  }
  state.busy = false;
  state.timer = setTimeout(round, PERIOD);
}

function enter() {
  const token = get("token").value.trim();
  if (!/^[\x21-\x7e]+$/.test(token)) return;
  sessionStorage.setItem("token", token);
  get("token").value = "";
  clearTimeout(state.timer);
  round();
}

get("enter").addEventListener("click", enter);
get("token").addEventListener("keydown", (event) => {
  if (event.key === "Enter") enter();
});

restore();
legend(colors());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  legend(colors());
  draw();
});
let width = 0;
new ResizeObserver(() => {
  if (width === get("planes").clientWidth) return;
  width = get("planes").clientWidth;
  draw();
}).observe(get("planes"));
addEventListener("hashchange", () => {
  restore();
  if (state.fabric) {
    choices();
    make();
    if (state.name) choose(state.name);
    else draw();
  }
});
round();
