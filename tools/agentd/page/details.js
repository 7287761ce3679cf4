// What is known of the link or the switch that was chosen.
import { SHORT, TEXTS, tally, tallyText } from "./levels.js";
import { drawStrip } from "./draw.js";
import { element } from "./plane.js";
import { clock, duration } from "./time.js";

const percent = (loss) => loss.sent === 0 ? "-" : `${(loss.net * 100).toFixed(2)} %`;
const micro = (ns) => `${(ns / 1000).toFixed(1)} us`;

function table(heads, rows) {
  const made = element("table");
  const head = made.appendChild(element("tr"));
  for (const name of heads) head.append(element("th", name, { scope: "col" }));
  for (const row of rows) {
    const line = made.appendChild(element("tr"));
    row.forEach((cell, at) => line.append(at === 0 ? element("th", cell, { scope: "row" }) : element("td", cell)));
  }
  return made;
}

// Where the level of a link changed, the latest first.
function changes(frames, levels) {
  const found = [];
  for (let at = 1; at < levels.length; at++) {
    if (levels[at] !== levels[at - 1]) found.push(`${clock(frames[at].time - frames[at].seconds)}: ${SHORT[levels[at - 1]]}, then ${SHORT[levels[at]]}`);
  }
  return found.reverse();
}

export function episodeText(episode) {
  const { finding, until } = episode;
  const when = until === null ? `since ${clock(finding.since)}`
    : `${clock(finding.since)}, for ${duration(until - finding.since)}`;
  return [finding.fault === "down" ? "Down" : `Loses ${(finding.rate * 100).toFixed(1)} %`, when];
}

function list(title, lines) {
  if (lines.length === 0) return [];
  const made = element("ul");
  for (const line of lines) {
    const item = made.appendChild(element("li"));
    if (typeof line === "string") item.textContent = line;
    else item.append(...line);
  }
  return [element("h4", title), made];
}

const faultLines = (episodes) => episodes.slice().reverse().map((episode) => {
  const [what, when] = episodeText(episode);
  return [element("b", `${what} ${when}. `), document.createTextNode(episode.finding.text)];
});

// A link, as the agent answers for it.
export function showLink(root, link, { frames, palette, shown, denied }) {
  const rows = [["1 s", link.loss_1s], ["10 s", link.loss_10s], ["5 min", link.loss_5min]];
  const known = new Map(link.frames.map((id, at) => [id, link.levels[at]]));
  const levels = frames.map((frame) => known.get(frame.id) ?? 0);
  const strip = element("canvas", "", { role: "img", "aria-label": "The level of the link over the time of the history; its changes are listed below." });
  const parts = [
    element("h3", `Link ${link.name}`),
    element("p", `Plane ${link.plane}. Now ${TEXTS[["unknown", "healthy", "trace", "low", "medium", "high", "down"].indexOf(link.level)]}.`),
    element("p", link.agent_count === 0 ? "No agent that reports probes it."
      : `Probed by ${link.agents.join(", ")}${link.agent_count > link.agents.length ? ` and ${link.agent_count - link.agents.length} more` : ""}.`),
    table(["In the last", "probes", "lost", "loss"], rows.map(([name, loss]) => [name, loss.sent.toLocaleString("en"), loss.lost.toLocaleString("en"), percent(loss)])),
  ];
  if (denied) parts.push(element("p", denied));
  const own = link.own;
  if (own && own.rtt.samples > 0) {
    parts.push(element("p", `Round trip of this agent's probes: median ${micro(own.rtt.p50_ns)}, 99 % within ${micro(own.rtt.p99_ns)}, longest ${micro(own.rtt.max_ns)}.`));
  }
  parts.push(element("h4", "History"), strip);
  if (frames.length === 0) parts.push(element("p", "There is none yet.", { class: "quiet" }));
  parts.push(...list("Explanation", faultLines(link.episodes)));
  if (link.episodes.length === 0) parts.push(element("p", "No fault of this link or its ends is known from the time of the history.", { class: "quiet" }));
  parts.push(...list("Changes of its level", changes(frames, levels).slice(0, 20)));
  const moves = own ? own.transitions.slice().reverse() : [];
  parts.push(...list("This agent's probes", moves.map((move) => `${clock(move.time)}: ${move.up ? "up" : "down"}`)));
  root.replaceChildren(...parts);
  drawStrip(strip, frames, levels, palette, shown);
}

// A switch or a host: its links, from the levels that are shown.
export function showNode(root, fabric, node, levels, episodes, choose) {
  const links = fabric.linksOf(node);
  const counts = tally(links.map((number) => levels[number]));
  const parts = [element("h3", `${/^p\d+-t/.test(node) ? "Switch" : "Host"} ${node}`)];
  parts.push(element("p", links.length === 0 ? "The fabric has no such part." : `${links.length.toLocaleString("en")} links: ${tallyText(counts)}.`));
  parts.push(...list("Explanation", faultLines(episodes.filter((episode) => episode.finding.components.some((part) => part.name === node)))));
  const worst = links.slice().sort((a, b) => levels[b] - levels[a]).slice(0, 12);
  parts.push(...list("Links, the worst first", worst.map((number) => {
    const name = fabric.name(number), button = element("button", name, { type: "button", class: "link" });
    button.addEventListener("click", () => choose(name, true));
    return [button, document.createTextNode(`: ${SHORT[levels[number]]}`)];
  })));
  root.replaceChildren(...parts);
}
