// What the transports of the agent's host avoid: its list, and which links it concerns.
import { element } from "./plane.js";
import { clock, duration } from "./time.js";

// The links that an entry concerns.
function linksOf(fabric, component, host) {
  const plane = /^plane (\d+) of this host$/.exec(component)?.[1];
  if (plane !== undefined) return fabric.linksOf(host).filter((number) => fabric.plane(number) === Number(plane));
  const name = component.slice(component.indexOf(" ") + 1);
  if (!component.startsWith("link ")) return fabric.linksOf(name);
  const number = fabric.number(name);
  return number < 0 ? [] : [number];
}

// The entry of each link that is denied, by the number of the link.
export function deniedLinks(fabric, deny, host) {
  const found = new Map();
  for (const entry of deny?.denied ?? []) for (const number of linksOf(fabric, entry.component, host)) found.set(number, entry);
  return found;
}

export function deniedText(entry, now) {
  return `since ${clock(entry.since)}, for ${duration(Math.max(0, now - entry.since))}`;
}

// Who follows the list.
export function followedText(deny) {
  if (deny.dry_run) return "The policy only says what it would deny (dry run): no process is told.";
  const who = deny.processes === 1 ? "1 process of this host avoids" : `${deny.processes} processes of this host avoid`;
  return deny.denied.length === 0 ? "The policy denies nothing now." : `${who} these while the other paths suffice. In a process they end 10 s after the agent's last message.`;
}

export function deniedItems(fabric, deny, { host, now, choose }) {
  const items = deny.denied.map((entry) => {
    const item = element("li");
    const [first] = linksOf(fabric, entry.component, host);
    const name = entry.component.startsWith("plane ") ? (first === undefined ? "" : fabric.name(first)) : entry.component.slice(entry.component.indexOf(" ") + 1);
    const button = element("button", entry.component, { type: "button", class: "link" });
    button.disabled = name === "";
    button.addEventListener("click", () => choose(name, true));
    item.append(button, ` ${deniedText(entry, now)}`);
    item.append(element("p", entry.reason || "No finding is known that it was denied for."));
    item.append(element("p", `Paths: ${entry.rules.length === 0 ? "none that this host has" : entry.rules.join("; ")}`, { class: "quiet" }));
    return item;
  });
  for (const error of deny.errors) items.push(element("li", `A process cannot be told: ${error}`, { class: "error" }));
  return items;
}
