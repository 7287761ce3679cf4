// The fabric: which link has which number, and the maps of each plane. The agent counts links in the same order.

export class Fabric {
  constructor(layout) {
    Object.assign(this, layout);
    this.middle = this.hosts.length + this.t0 * this.t1;
    this.across = this.middle + this.pods * this.t1 * this.t2;
    this.perPlane = this.across + (this.dumbbell ? 1 : 0);
    this.places = new Map(this.hosts.map((host, number) => [host.name, number]));
    // The hosts of each T0 switch.
    this.below = Array.from({ length: this.t0 }, () => []);
    this.orderOf = this.hosts.map((host, number) => this.below[host.t0].push(number) - 1);
  }

  plane(number) {
    return Math.floor(number / this.perPlane);
  }

  // The names of the two ends.
  ends(number) {
    const plane = this.plane(number), place = number % this.perPlane;
    if (place < this.hosts.length) return [this.hosts[place].name, `p${plane}-t0-${this.hosts[place].t0}`];
    if (place < this.middle) {
      const at = place - this.hosts.length, lower = Math.floor(at / this.t1);
      const pod = Math.floor(lower / (this.t0 / this.pods));
      return [`p${plane}-t0-${lower}`, `p${plane}-t1-${pod * this.t1 + at % this.t1}`];
    }
    if (place < this.across) {
      const at = place - this.middle, lower = Math.floor(at / this.t2);
      return [`p${plane}-t1-${lower}`, `p${plane}-t2-${lower % this.t1 * this.t2 + at % this.t2}`];
    }
    return [`p${plane}-t0-0`, `p${plane}-t0-1`];
  }

  name(number) {
    return this.ends(number).join(":");
  }

  // The number of a link; -1 if there is none.
  number(name) {
    const [lower, upper] = name.split(":");
    const parse = (node) => /^p(\d+)-t([012])-(\d+)$/.exec(node ?? "")?.slice(1).map(Number);
    const top = parse(upper), from = parse(lower);
    if (!top) return -1;
    let place = this.across;
    if (!from) place = this.places.get(lower) ?? -1;
    else if (top[1] === 1) place = this.hosts.length + from[2] * this.t1 + top[2] % this.t1;
    else if (top[1] === 2) place = this.middle + from[2] * this.t2 + top[2] % this.t2;
    const number = top[0] * this.perPlane + place;
    return place >= 0 && number < this.links && this.name(number) === `${lower}:${upper}` ? number : -1;
  }

  // The links of a switch or a host.
  linksOf(node) {
    if (this.known?.node === node) return this.known.links;
    const found = [];
    const plane = /^p(\d+)-t[012]-\d+$/.exec(node)?.[1];
    const from = plane === undefined ? 0 : Number(plane) * this.perPlane;
    const to = plane === undefined ? this.links : Math.min(this.links, from + this.perPlane);
    for (let number = from; number < to; number++) if (this.ends(number).includes(node)) found.push(number);
    this.known = { node, links: found };
    return found;
  }

  // The maps of a plane: tables in which each cell is a link, or nothing.
  maps(plane) {
    const start = plane * this.perPlane, maps = [];
    const most = Math.max(...this.below.map((hosts) => hosts.length));
    if (this.t1 > 0) {
      const one = this.pods === 1;
      maps.push({
        title: "T0 to T1", rowKind: "T0", columnKind: one ? "T1" : "uplink", rows: this.t0, columns: this.t1,
        number: (row, column) => start + this.hosts.length + row * this.t1 + column,
        place: (place) => place >= this.hosts.length && place < this.middle
          ? [Math.floor((place - this.hosts.length) / this.t1), (place - this.hosts.length) % this.t1] : null,
      });
    }
    if (this.t2 > 0) {
      maps.push({
        title: "T1 to T2", rowKind: "T1", columnKind: "uplink", rows: this.pods * this.t1, columns: this.t2,
        number: (row, column) => start + this.middle + row * this.t2 + column,
        place: (place) => place >= this.middle && place < this.across
          ? [Math.floor((place - this.middle) / this.t2), (place - this.middle) % this.t2] : null,
      });
    }
    if (this.dumbbell) {
      maps.push({
        title: "T0 to T0", rowKind: "T0", columnKind: "T0", rows: 1, columns: 1,
        number: () => start + this.across,
        place: (place) => place === this.across ? [0, 0] : null,
      });
    }
    maps.push({
      title: "Hosts to T0", rowKind: "hosts", columnKind: "T0", rows: most, columns: this.t0,
      number: (row, column) => {
        const host = this.below[column][row];
        return host === undefined ? -1 : start + host;
      },
      place: (place) => place < this.hosts.length ? [this.orderOf[place], this.hosts[place].t0] : null,
    });
    return maps;
  }

  // The switches of each tier of a plane, the lowest first, with the hosts before them.
  tiers(plane) {
    const row = (tier, count) => Array.from({ length: count }, (_, number) => `p${plane}-t${tier}-${number}`);
    const tiers = [this.hosts.map((host) => host.name), row(0, this.t0)];
    if (this.t1 > 0) tiers.push(row(1, this.pods * this.t1));
    if (this.t2 > 0) tiers.push(row(2, this.t1 * this.t2));
    return tiers;
  }
}
