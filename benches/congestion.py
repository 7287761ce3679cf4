#!/usr/bin/env python3
"""How the transport shares ordinary Ethernet: drop-tail queues, links of unknown rate, and TCP beside it.

Hosts are network namespaces, each joined by a veth pair to one bridge for each plane; the bridge's port towards the receiver
has the link's rate and queue (`tbf`). Flows are `write-bw` over UDP, and iperf3 for TCP. Packets travel one by one: the
hosts' interfaces do not hand batches of them to the bridge. What is measured lies between two moments, after a warm-up:
payload that arrived (samples of the servers), packets sent again (samples of the clients), TCP's bytes (`ss` at the receiver).
For `marks`, a process beside the queue looks at its length, and a rule of nft marks what arrives while it is long: not every
kernel has a qdisc that marks. Every round runs each case once, so that what disturbs the machine meets all alike; the figures
are medians over the rounds. Needs root, ip, tc, ss, iperf3, ping, and nft for `marks`; what is made here is removed at the end,
also after a signal or an error.
"""

import argparse
import bisect
import json
import os
import re
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

USAGE = """\
usage: benches/congestion.py [--only "alone tcp"] [--rates "10M 1G"] [--rounds N] [--seconds N] [--warm-up N] [--size SIZE]
                             [--mtu 1500|9000] [--queue-ms N] [--queue-kb N] [--wait poll|spin] [--json FILE] [-- OPTIONS]

  --only LIST      scenarios, see below [default: "alone tcp incast far planes marks"]
  --rates LIST     rates of the link; `unlimited`, a veth pair as it is, for `alone` only
                   [default: "10M 100M 200M 1G unlimited"]
  --rounds N       rounds, each with every case once [default: 3]
  --seconds N      seconds that are measured in each run [default: 5]
  --warm-up N      seconds before that, from when all flows move [default: 2]
  --size SIZE      bytes of a message, as write-bw takes them [default: 64K]
  --mtu BYTES      MTU of all interfaces [default: 9000]
  --queue-ms N     queue of the link: so many milliseconds at its rate [default: 10]
  --queue-kb N     but at least so many KB [default: 64]
  --wait HOW       --wait of write-bw on both ends [default: poll]
  --json FILE      the figures of each run, an object on each line, as they come
  --               what follows goes to write-bw on both ends, such as --cc none

  alone            one flow, and a ping beside it; at `unlimited`, beside what iperf3 reaches before it
  tcp              beside 1 and 4 flows of CUBIC and 1 of BBR, with TCP there first and with it there last
  incast           3, 16 and 64 flows to one receiver, each of its own processes; as many flows of CUBIC, for comparison
  far              one flow, and three, with round-trip times of 1, 10 and 100 ms without the queue
  planes           two planes, one with a quarter of the other's rate; two equal ones, of which CUBIC uses one; two
                   behind one link, with CUBIC beside them
  marks            as `alone` and as `tcp` with one flow of CUBIC, with ECN (tcp_ecn=1): the link marks packets while its
                   queue is more than half full

The environment variable SPINDRIFT names the command [default: target/dist/spindrift]. Goals apply to the medians. The exit
status is 0 if every run could be measured, whatever it showed.
"""

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
SCENARIOS = ["alone", "tcp", "incast", "far", "planes", "marks"]
TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Bytes of a data packet beside its payload, as tbf counts them: MRC with the iCRC, UDP, IPv4, Ethernet.
HEADERS = 44 + 8 + 20 + 14
# And of TCP with timestamps: beside the payload, of the MTU and outside of it.
TCP_HEADERS, ETHERNET = 52, 14
TCP_PORT, FIRST_PORT = 5201, 18600
# The word by which the script starts itself to watch a queue, and the group of an interface whose queue is long.
MARK, MARKING = "mark-long-queue", 77
# How long a flow may take to begin.
PATIENCE = 30
# More flows than this take fewer samples and less memory each.
MANY = 4


class RunFailed(Exception):
    """A run that cannot be measured, and why."""


def fail(status, message):
    print(f"congestion.py: {message}", file=sys.stderr)
    sys.exit(status)


def must(command, given=None):
    done = subprocess.run(command, input=given, capture_output=True, text=True, start_new_session=True)
    if done.returncode:
        raise RunFailed(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def number(text, factors):
    got = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Z]?)", text)
    if not got or got[2] not in factors or not float(got[1]):
        raise ValueError(text)
    return float(got[1]) * factors[got[2]]


def rate_of(text):
    """Bits per second; None without a limit."""
    return None if text == "unlimited" else number(text, {"": 1, "K": 1e3, "M": 1e6, "G": 1e9})


def mark_long_queue(interface, threshold):
    """Puts an interface into the group `MARKING` while its queue has more bytes than the threshold. Looks every 0.2 ms."""
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    netlink.bind((0, 0))
    netlink.settimeout(2)
    index = socket.if_nametoindex(interface)
    request, acknowledge, echo, set_link, get_qdisc = 1, 4, 8, 19, 38

    def ask(kind, flags, body):
        netlink.send(struct.pack("=IHHII", 16 + len(body), kind, request | flags, 0, 0) + body)
        answer = netlink.recv(1 << 16)
        if struct.unpack_from("=H", answer, 4)[0] == 2 and struct.unpack_from("=i", answer, 16)[0]:
            raise OSError(-struct.unpack_from("=i", answer, 16)[0], f"netlink message {kind}")
        return answer

    def attribute(data, wanted):
        """What an attribute holds."""
        at = 0
        while at + 4 <= len(data):
            length, kind = struct.unpack_from("=HH", data, at)
            if kind & 0x3FFF == wanted:
                return data[at + 4 : at + length]
            at += max(4, (length + 3) & ~3)
        raise ValueError(f"no attribute {wanted}")

    def queue():
        root = struct.pack("=BxxxiIII", 0, index, 0, 0xFFFFFFFF, 0)
        statistics2, lengths = 7, 3
        answer = ask(get_qdisc, echo, root)
        return struct.unpack_from("=II", attribute(attribute(answer[36:], statistics2), lengths))[1]

    def mark(on):
        group = struct.pack("=HHI", 8, 27, MARKING if on else 0)
        ask(set_link, acknowledge, struct.pack("=BxHiII", 0, 0, index, 0, 0) + group)

    marking = False
    while True:
        long = queue() > threshold
        if long != marking:
            mark(long)
            marking = long
        time.sleep(0.0002)


def rates_between(before, after):
    """Bits per second of each connection of TCP that moved between two looks at all of them."""
    (then, had), (now, has) = before, after
    rates = [8 * (count - had.get(end, 0)) / (now - then) for end, count in has.items()]
    return [rate for rate in rates if rate]


def counts_of(name, lines):
    """A counter of `ss`, of each connection that has it."""
    return [int(n) for n in re.findall(rf"\b{name}:(\d+)", "\n".join(lines))]


class Whole:
    """A part that a signal does not break off: what it asks for is done at the end."""

    depth, asked = 0, False

    def __enter__(self):
        Whole.depth += 1

    def __exit__(self, *_):
        Whole.depth -= 1
        if Whole.asked:
            leave()


def leave(*_):
    """Ends the script by a signal."""
    if Whole.depth:
        Whole.asked = True
        return
    # Once: what follows is the removal of all there is.
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(130)


class Lab:
    """A receiver (host 0) and senders. `links` has the rate of each link, `planes` which of them each plane goes through."""

    # Those that are not closed.
    all = []

    def __init__(self, options, senders, links, planes=None, marks=False):
        Lab.all.append(self)
        self.name = f"spin-{os.getpid()}"
        self.planes = planes or list(range(len(links)))
        self.namespaces, self.processes, self.folder = [], [], None
        with Whole():
            self.folder = tempfile.mkdtemp(prefix="congestion-")
        self.queues = [rate and max(rate * options.queue_ms / 8e3, options.queue_kb * 1e3) for rate in links]
        self.build(options.mtu, senders, links, marks)

    def build(self, mtu, senders, links, marks):
        switch, hosts = f"{self.name}-switch", [self.host(n) for n in range(senders + 1)]
        for namespace in [switch, *hosts]:
            self.namespaces.append(namespace)
            must(["ip", "netns", "add", namespace])
        # Chosen interface indices: a veth made with the default ones can clash with those of its peer's namespace.
        index, pairs, switched = 7700, [], []
        at = {host: ["link set lo up"] for host in hosts}
        for link, rate in enumerate(links):
            switched += [f"link add br{link} mtu {mtu} type bridge", f"link set br{link} up"]
            for n, host in enumerate(hosts):
                port = f"to{n}-{link}"
                pairs.append(
                    f"link add eth{link} index {index} netns {host} mtu {mtu} "
                    f"type veth peer name {port} index {index + 1} netns {switch} mtu {mtu}"
                )
                index += 2
                switched.append(f"link set {port} master br{link} up")
                # Otherwise a queue would take and drop batches of packets as one.
                at[host] += [f"link set eth{link} gso_max_segs 1"] if rate else []
                at[host] += [f"addr add {self.address(n, p)}/24 dev eth{link}" for p, l in enumerate(self.planes) if l == link]
                at[host] += [f"link set eth{link} up"]
        must(["ip", "-batch", "-"], "\n".join(pairs))
        must(["ip", "-n", switch, "-batch", "-"], "\n".join(switched))
        for host, lines in at.items():
            must(["ip", "-n", host, "-batch", "-"], "\n".join(lines))
        for link, rate in enumerate(links):
            if rate:
                # A millisecond at the rate, so that late timers do not cost any of it, or a packet and a little more.
                burst = max(rate / 8e3, mtu + 2048)
                rates = ["rate", f"{rate:.0f}bit", "burst", f"{burst:.0f}b", "limit", f"{self.queues[link]:.0f}b"]
                must(["tc", "-n", switch, "qdisc", "add", "dev", f"to0-{link}", "root", "tbf", *rates])
            if rate and marks:
                # Marks what can be marked while the interface is in this group.
                rule = f"meta oifgroup {MARKING} ip ecn != not-ect ip ecn set ce"
                hook = f"type filter hook egress device to0-{link} priority 0"
                table = f"table netdev marks{link} {{\nchain out {{\n{hook}\n{rule}\n}}\n}}\n"
                must(["ip", "netns", "exec", switch, "nft", "-f", "-"], table)
                mark = [sys.executable, __file__, MARK, f"to0-{link}", f"{self.queues[link] / 2:.0f}"]
                self.start(switch, f"marks of link {link}", mark)
        # So that no flow has to ask for addresses through a full queue.
        for n in range(1, senders + 1):
            for plane in range(len(self.planes)):
                ping = ["ping", "-n", "-q", "-c", "1", "-W", "5", "-I", self.address(n, plane), self.address(0, plane)]
                must(["ip", "netns", "exec", self.host(n), *ping])

    def host(self, n):
        return f"{self.name}-{n}"

    def address(self, n, plane):
        return f"10.77.{plane}.{n + 1}"

    def addresses(self, n):
        return ",".join(self.address(n, plane) for plane in range(len(self.planes)))

    def file(self, name):
        return os.path.join(self.folder, name)

    def start(self, place, name, command):
        """Starts a command at a host, or in a namespace; what it prints goes to files called `name` and `name.err`."""
        with open(self.file(name), "w") as out, open(self.file(f"{name}.err"), "w") as err:
            namespace = place if isinstance(place, str) else self.host(place)
            full = ["ip", "netns", "exec", namespace, *map(str, command)]
            with Whole():
                process = subprocess.Popen(full, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
                process.called = name
                self.processes.append(process)
        return process

    def sockets(self, states, host=0):
        """TCP connections or listeners of a host, a line each."""
        return must(["ip", "netns", "exec", self.host(host), "ss", "-tinHO", *states]).splitlines()

    def tcp_received(self):
        """When, and the bytes that had arrived on each connection of iperf3, by its other end."""
        lines = self.sockets(["state", "established", f"( sport = :{TCP_PORT} )"])
        return time.time(), {line.split()[3]: sum(counts_of("bytes_received", [line])) for line in lines}

    def tcp_sent(self, n):
        """Bytes that connections of iperf3 at a host have sent, and those among them that were sent again."""
        lines = self.sockets(["state", "established", f"( dport = :{TCP_PORT} )"], n)
        return sum(counts_of("bytes_sent", lines)), sum(counts_of("bytes_retrans", lines))

    def check(self):
        """Nothing may have ended."""
        for process in self.processes:
            if process.poll() is not None:
                raise RunFailed(f"{process.called} ended: {self.reason(process)}")

    def reason(self, process):
        for name in process.called, f"{process.called}.err":
            with open(self.file(name)) as file:
                text = file.read().strip()
            try:
                text = json.loads(text).get("error") or ""
            except (ValueError, AttributeError):
                pass
            lines = text.splitlines()
            if lines:
                return next((line for line in lines if "error" in line.lower()), lines[-1])
        return f"exit status {process.returncode}"

    def await_(self, what, true):
        end = time.time() + PATIENCE
        while not true():
            self.check()
            if time.time() > end:
                raise RunFailed(f"{what}: not after {PATIENCE} s")
            time.sleep(0.05)

    def stop(self, processes, how=signal.SIGTERM):
        for process in processes:
            if process.poll() is None:
                process.send_signal(how)
        end = time.time() + 10
        for process in processes:
            try:
                process.wait(max(0.1, end - time.time()))
            except subprocess.TimeoutExpired:
                print(f"congestion.py: {process.called} did not stop; killed", file=sys.stderr)
                process.kill()
                process.wait()

    def close(self):
        self.stop(self.processes)
        for namespace in self.namespaces:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, start_new_session=True)
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        Lab.all.remove(self)


class Samples:
    """Counters over time, from a file of `--samples`."""

    def __init__(self, path):
        self.name = os.path.basename(path)
        with open(path) as file:
            lines = [json.loads(line) for line in file if line.startswith('{"type":"sample"')]
        self.lines = lines
        self.times = [line["unix_ns"] / 1e9 for line in lines]

    def at(self, counter, moment):
        if not self.times or not self.times[0] <= moment <= self.times[-1]:
            late = [f"{time - moment:+.1f} s" for time in self.times[:: max(1, len(self.times) - 1)]]
            raise RunFailed(f"{self.name}: none at a moment that counts, but {' to '.join(late) or 'none at all'} from it")
        after = min(bisect.bisect_right(self.times, moment), len(self.times) - 1)
        before = max(after - 1, 0)
        span = self.times[after] - self.times[before]
        part = (moment - self.times[before]) / span if span else 0
        low, high = self.lines[before][counter], self.lines[after][counter]
        return low + (high - low) * part

    def between(self, counter, since, until):
        return self.at(counter, until) - self.at(counter, since)


def busy():
    """Clock ticks so far in which a processor was busy, and all."""
    with open("/proc/stat") as file:
        ticks = [int(n) for n in file.readline().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


class Run:
    """One measurement, and what it showed: shares are of what the links together can carry beside headers."""

    def __init__(self, lab, options, links, flows=1, hosts=1, tcp=None, tcp_flows=1, tcp_first=False, ecn=False, rtt_ms=0):
        self.lab, self.options, self.flows, self.hosts, self.rtt_ms = lab, options, flows, hosts, rtt_ms
        # The host of TCP and ping.
        self.neighbour = hosts + 1
        self.tcp, self.tcp_flows = tcp, tcp_flows
        self.carries = sum(rate or 0 for rate in links)
        if ecn:
            for n in 0, self.neighbour:
                must(["ip", "netns", "exec", lab.host(n), "sh", "-c", "echo 1 >/proc/sys/net/ipv4/tcp_ecn"])

        self.start_servers()
        if tcp and tcp_first:
            self.start_tcp()
            time.sleep(1)
        self.start_clients()
        if tcp and not tcp_first:
            self.start_tcp()
        ping = ["ping", "-n", "-D", "-i", "0.02", "-I", lab.address(self.neighbour, 0), lab.address(0, 0)]
        lab.start(self.neighbour, "ping", ping)
        time.sleep(options.warm_up)

        lab.check()
        look = lambda: tcp and (lab.tcp_received(), lab.tcp_sent(self.neighbour))
        ticks, tcp_before, since = busy(), look(), time.time()
        time.sleep(options.seconds)
        until, tcp_after, ticks_after = time.time(), look(), busy()
        lab.check()
        self.stop()

        self.busy = (ticks_after[0] - ticks[0]) / max(1, ticks_after[1] - ticks[1])
        self.waits = self.pings(since, until)
        self.count(since, until)
        self.share = self.tcp_share = self.use = 0.0
        if self.carries:
            self.share = self.bps / self.payload() / self.carries if flows else 0.0
            if tcp:
                (received_before, (sent_before, again_before)), (received, (sent, again)) = tcp_before, tcp_after
                self.tcp_again = 100 * (again - again_before) / max(1, sent - sent_before)
                self.tcp_rates = rates_between(received_before, received)
                with_headers = (options.mtu + ETHERNET) / (options.mtu - TCP_HEADERS)
                self.tcp_share = sum(self.tcp_rates) * with_headers / self.carries
            self.use = self.share + self.tcp_share

    def samples(self, side, flow):
        return self.lab.file(f"{side} {flow}.samples")

    def write_bw(self, side, n, flow, more):
        """Starts one side of a flow at host n."""
        interval = "50ms" if self.flows <= MANY else "100ms"
        common = ["write-bw", "--json", "--wait", self.options.wait, "--sample-interval", interval, "-p", FIRST_PORT + flow]
        own = ["--local", self.lab.addresses(n), "--samples", self.samples(side, flow)]
        own += ["--fault", f"delay={self.rtt_ms / 2:g}ms"] if self.rtt_ms else []
        self.lab.start(n, f"{side} {flow}", [self.options.spindrift, *common, *own, *self.options.rest, *more])

    def start_servers(self):
        for flow in range(self.flows):
            self.write_bw("server", 0, flow, [])
        if self.tcp:
            self.lab.start(0, "iperf3 server", ["iperf3", "--server", "--port", TCP_PORT])
        listen = self.flows + (1 if self.tcp else 0)
        self.lab.await_("servers that listen", lambda: len(self.lab.sockets(["state", "listening"])) >= listen)

    def start_clients(self):
        amount = ["-D", 3600, "-s", self.options.size]
        # So that the target memory of many flows stays small; a window is smaller still.
        if self.flows > MANY and not {"-t", "--tx-depth"} & set(self.options.rest):
            amount += ["-t", 16]
        for flow in range(self.flows):
            self.write_bw("client", 1 + flow % self.hosts, flow, [*amount, self.lab.address(0, 0)])
        # Samples reach the file some at a time, within a second or two.
        files = [self.samples(side, flow) for side in ("server", "client") for flow in range(self.flows)]
        self.lab.await_("flows that move", lambda: all(os.path.exists(f) and os.path.getsize(f) for f in files))

    def start_tcp(self):
        lab = self.lab
        place = ["--client", lab.address(0, 0), "--port", TCP_PORT, "--bind", lab.address(self.neighbour, 0)]
        how = ["--time", 3600, "--interval", 0, "--congestion", self.tcp, "--parallel", self.tcp_flows]
        lab.start(self.neighbour, "iperf3", ["iperf3", *place, *how])
        end = time.time() + PATIENCE
        # Its connections and that which controls them. Those that get nowhere are a result, not a failure.
        while len(lab.tcp_received()[1]) <= self.tcp_flows and time.time() < end:
            lab.check()
            time.sleep(0.05)

    def stop(self):
        """Senders first: the servers follow their clients."""
        called = lambda name: [process for process in self.lab.processes if process.called.startswith(name)]
        self.lab.stop(called("ping"), signal.SIGINT)
        self.lab.stop([process for process in called("iperf3") if process.called == "iperf3"])
        self.lab.stop(called("client"))
        end = time.time() + 3
        while any(process.poll() is None for process in called("server")) and time.time() < end:
            time.sleep(0.05)
        self.lab.stop(self.lab.processes)

    def count(self, since, until):
        received = [Samples(self.samples("server", flow)) for flow in range(self.flows)]
        sent = [Samples(self.samples("client", flow)) for flow in range(self.flows)]
        if any(samples.at("qp_errors", until) for samples in [*sent, *received]):
            raise RunFailed("a queue pair failed")

        def total(sides, *counters):
            return sum(samples.between(counter, since, until) for samples in sides for counter in counters)

        self.rates = [8 * total([samples], "rx_placed_bytes") / (until - since) for samples in received]
        self.bps = sum(self.rates)
        self.again = 100 * total(sent, "tx_retransmits", "tx_tail_probes") / max(1, total(sent, "tx_data"))
        self.marked = 100 * total(received, "rx_ecn_marked") / max(1, total(received, "rx_data"))

    def payload(self):
        """The part of a link that payload can have."""
        with open(self.lab.file("client 0")) as file:
            mtu = json.load(file)["settings"]["mtu"]
        return self.options.size / (self.options.size + -(-self.options.size // mtu) * HEADERS)

    def pings(self, since, until):
        """Round-trip times in milliseconds, ascending."""
        with open(self.lab.file("ping")) as file:
            lines = [re.match(r"\[([\d.]+)\].* time=([\d.]+) ms", line) for line in file]
        return sorted(float(line[2]) for line in lines if line and since <= float(line[1]) <= until)

    def fair(self, others):
        """What the flow had, and the mean of so many others, to the part of all that came that each would have had."""
        part = self.use / (others + 1)
        return {TO_FAIR: self.share / part, TCP_TO_FAIR: self.tcp_share / others / part} if part else {}

    def ping_figures(self):
        """Medians and 99 % to the length of the queue."""
        if not self.waits:
            raise RunFailed("no ping came back")
        queue = 8e3 * self.lab.queues[0] / self.carries
        percentiles = {"median": statistics.median(self.waits), "99 %": self.waits[int(0.99 * len(self.waits))]}
        return {name: wait / queue for name, wait in percentiles.items()}


def jain(rates, flows):
    """How equal the rates of so many flows are."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (flows * squares) if squares else 0.0


def at_least(limit):
    return f">= {limit}", lambda value: value >= limit


def below(limit):
    return f"< {limit}", lambda value: value < limit


FAIR = "0.5 to 2", lambda value: 0.5 <= value <= 2
NONE = "-", None
# A figure: name, digits, goal.
LINK, USE = ("share of the link", 3, at_least(0.95)), ("use of the link", 3, NONE)
# One flow that starves another has twice its share, no more, so that of the other counts too.
TO_FAIR, TCP_TO_FAIR = ("to a fair share", 2, FAIR), ("TCP to a fair share", 2, FAIR)


def again(goal):
    return "sent again, %", 2, goal


def alone_figures(run):
    pings = run.ping_figures()
    return {
        LINK: run.share,
        again(below(0.5)): run.again,
        # A queue that is always full lets a ping wait for nearly all of it.
        ("ping to the queue: median", 2, below(0.9)): pings["median"],
        ("99 %", 2, NONE): pings["99 %"],
    }


def alone(options, rate):
    def run(lab):
        return Run(lab, options, [rate])

    if rate:
        yield "1 flow", dict(senders=2, links=[rate]), run, alone_figures
        return

    def beside_iperf3(lab):
        tcp = iperf3_alone(lab, options)
        one = run(lab)
        one.to_tcp = one.bps / tcp
        return one

    def figures(one):
        return {
            ("Gb/s", 2, NONE): one.bps / 1e9,
            ("to iperf3", 2, NONE): one.to_tcp,
            again(below(0.5)): one.again,
            ("ping, ms: median", 2, NONE): statistics.median(one.waits),
        }

    yield "1 flow", dict(senders=2, links=[rate]), beside_iperf3, figures


def iperf3_alone(lab, options):
    """Bits per second of one flow of TCP between the same hosts."""
    server = lab.start(0, "iperf3 server", ["iperf3", "--server", "--port", TCP_PORT])
    lab.await_("iperf3 that listens", lambda: lab.sockets(["state", "listening"]))
    limits = ["--time", 3600, "--interval", 0, "--congestion", "cubic"]
    client = lab.start(1, "iperf3", ["iperf3", "--client", lab.address(0, 0), "--port", TCP_PORT, *limits])
    time.sleep(options.warm_up)
    before = lab.tcp_received()
    time.sleep(options.seconds)
    lab.check()
    after = lab.tcp_received()
    lab.stop([client, server])
    lab.processes.clear()
    return sum(rates_between(before, after))


def beside_tcp(options, rate, kind, others, first, **more):
    order = "TCP first" if first else "TCP last"
    name = f"{others} {'BBR' if kind == 'bbr' else kind.upper()}, {order}"

    def run(lab):
        ecn = bool(more.get("marks"))
        return Run(lab, options, [rate], tcp=kind, tcp_first=first, tcp_flows=others, ecn=ecn)

    def figures(one):
        marked = {("marked, %", 2, NONE): one.marked} if more.get("marks") else {}
        return {**one.fair(others), USE: one.use, again(NONE): one.again, **marked}

    return name, dict(senders=2, links=[rate], **more), run, figures


def tcp(options, rate):
    for kind, others in ("cubic", 1), ("cubic", 4), ("bbr", 1):
        for first in True, False:
            yield beside_tcp(options, rate, kind, others, first)


def incast(options, rate):
    for flows in 3, 16, 64:
        hosts = min(flows, 16)

        def run(lab, flows=flows, hosts=hosts):
            return Run(lab, options, [rate], flows, hosts=hosts)

        def figures(one, flows=flows):
            fairness = "Jain's index", 3, at_least(0.95)
            return {("use of the link", 3, at_least(0.95)): one.share, fairness: jain(one.rates, flows), again(below(2)): one.again}

        yield f"{flows} flows", dict(senders=hosts + 1, links=[rate]), run, figures

        def of_tcp(lab, flows=flows):
            return Run(lab, options, [rate], flows=0, tcp="cubic", tcp_flows=flows)

        def figures_of_tcp(one, flows=flows):
            equal = jain(one.tcp_rates, flows)
            return {USE: one.tcp_share, ("Jain's index", 3, NONE): equal, again(NONE): one.tcp_again}

        yield f"{flows} CUBIC, no other", dict(senders=2, links=[rate]), of_tcp, figures_of_tcp


def far(options, rate):
    for flows in 1, 3:
        for rtt_ms in 1, 10, 100:

            def run(lab, flows=flows, rtt_ms=rtt_ms):
                return Run(lab, options, [rate], flows, hosts=flows, rtt_ms=rtt_ms)

            def figures(one, flows=flows):
                return {LINK: one.share, ("Jain's index", 3, NONE): jain(one.rates, flows), again(below(2)): one.again}

            many = "flow" if flows == 1 else "flows"
            yield f"{flows} {many}, {rtt_ms} ms", dict(senders=flows + 1, links=[rate]), run, figures


def planes(options, rate):
    def unequal(lab):
        return Run(lab, options, [rate, rate / 4])

    def unequal_figures(one):
        return {("share of both links", 3, at_least(0.9)): one.share, again(NONE): one.again}

    yield "rates 4:1", dict(senders=2, links=[rate, rate / 4]), unequal, unequal_figures

    def shared(lab):
        return Run(lab, options, [rate, rate], tcp="cubic", tcp_first=True)

    def shared_figures(one):
        theirs = "TCP's share of its plane", 3, NONE
        return {("use of both links", 3, at_least(0.9)): one.use, theirs: 2 * one.tcp_share, again(NONE): one.again}

    yield "CUBIC on one", dict(senders=2, links=[rate, rate]), shared, shared_figures

    def one_link(lab):
        return Run(lab, options, [rate], tcp="cubic", tcp_first=True)

    def one_link_figures(one):
        return {**one.fair(1), USE: one.use, again(NONE): one.again}

    yield "one link, 1 CUBIC", dict(senders=2, links=[rate], planes=[0, 0]), one_link, one_link_figures


def marks(options, rate):
    def run(lab):
        return Run(lab, options, [rate])

    def figures(one):
        return {**alone_figures(one), ("marked, %", 2, NONE): one.marked}

    yield "1 flow", dict(senders=2, links=[rate], marks=True), run, figures
    for first in True, False:
        yield beside_tcp(options, rate, "cubic", 1, first, marks=True)


def cases(options):
    """Scenario, rate as given, name, how to build the lab, how to run, and the figures of a run."""
    for scenario in SCENARIOS:
        for rate in options.rates if scenario in options.only else []:
            # Nothing but the processors would be shared.
            if rate_of(rate) or scenario == "alone":
                for case in globals()[scenario](options, rate_of(rate)):
                    yield scenario, rate, *case


def read_options():
    words, rest = sys.argv[1:], []
    if "--" in words:
        at = words.index("--")
        words, rest = words[:at], words[at + 1 :]
    if "-h" in words or "--help" in words:
        print(USAGE, end="")
        sys.exit(0)

    def wrong(message):
        print(f"congestion.py: {message}", file=sys.stderr)
        print(USAGE, end="", file=sys.stderr)
        sys.exit(2)

    def reader(what, read):
        def checked(text):
            try:
                value = read(text)
                if 0 < value < float("inf"):
                    return value
            except ValueError:
                pass
            raise argparse.ArgumentTypeError(f"'{text}' is no {what}")

        return checked

    count, positive = reader("count from 1", int), reader("positive number", float)
    size = reader("size", lambda text: int(number(text.upper(), {"": 1, "K": 1 << 10, "M": 1 << 20})))

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error = wrong
    parser.add_argument("--only", default=" ".join(SCENARIOS))
    parser.add_argument("--rates", default="10M 100M 200M 1G unlimited")
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--seconds", type=positive, default=5.0)
    parser.add_argument("--warm-up", type=positive, default=2.0)
    parser.add_argument("--size", type=size, default=1 << 16)
    parser.add_argument("--mtu", type=count, default=9000)
    parser.add_argument("--queue-ms", type=positive, default=10.0)
    parser.add_argument("--queue-kb", type=positive, default=64.0)
    parser.add_argument("--wait", choices=["poll", "spin"], default="poll")
    parser.add_argument("--json")
    options = parser.parse_args(words)
    options.rest, options.only, options.rates = rest, options.only.split(), options.rates.split()
    for scenario in options.only:
        if scenario not in SCENARIOS:
            wrong(f"there is no scenario '{scenario}'")
    for rate in options.rates:
        try:
            rate_of(rate)
        except ValueError:
            wrong(f"'{rate}' is no rate")
    return options


def check_machine(options):
    tools = ["ip", "tc", "ss", "iperf3", "ping"] + (["nft"] if "marks" in options.only else [])
    for tool in tools:
        if not shutil.which(tool):
            fail(1, f"{tool} is missing; tools/setup.sh --tests installs it")
    if os.geteuid():
        fail(1, "namespaces need root; run it with sudo")
    options.spindrift = os.environ.get("SPINDRIFT", os.path.join(TOP, "target/dist/spindrift"))
    if not os.access(options.spindrift, os.X_OK):
        fail(1, f"{options.spindrift} is missing; cargo build --profile dist -p spindrift-cli builds it")


def processor():
    with open("/proc/cpuinfo") as file:
        names = re.findall(r"^model name\s*: (.*)", file.read(), re.M)
    return f"{names[0] if names else 'unknown processor'}, {os.cpu_count()} processors"


def measure(options):
    """Runs every case in each round. Figures and failures by case."""
    found, failures, busy_parts = {}, {}, {}
    try:
        record = open(options.json, "w") if options.json else None
    except OSError as error:
        fail(1, error)
    for number in range(1, options.rounds + 1):
        for scenario, rate, name, layout, run, figures in cases(options):
            case = scenario, rate, name
            found.setdefault(case, {})
            failures.setdefault(case, [])
            if sys.stderr.isatty():
                print(f"\r\033[Kround {number}: {' '.join(case)}", end="", file=sys.stderr, flush=True)
            line = {"round": number, "scenario": scenario, "rate": rate, "case": name, "error": None}
            try:
                one = run(Lab(options, **layout))
                got = figures(one)
                for (figure, digits, goal), value in got.items():
                    found[case].setdefault(figure, (digits, goal, []))[2].append(value)
                busy_parts.setdefault(case, []).append(one.busy)
                line["figures"] = {figure[0]: value for figure, value in got.items()}
                line["busy"], line["flows_bps"] = one.busy, one.rates
            except (RunFailed, OSError, ValueError, KeyError) as error:
                failures[case].append(str(error))
                line["error"] = str(error)
                print(f"congestion.py: {' '.join(case)}, round {number}: {error}", file=sys.stderr)
            finally:
                for lab in list(Lab.all):
                    lab.close()
            if record:
                print(json.dumps(line), file=record, flush=True)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return found, failures, busy_parts


def report(options, found, failures, busy_parts):
    row = "{:<9}{:<11}{:<20}{:<27}{:<31}{:<11}{}"
    print(row.format("scenario", "rate", "case", "figure", "median [least to most]", "goal", "met"))
    for case, figures in found.items():
        for figure, (digits, (goal, met), values) in figures.items():
            middle = statistics.median(values)
            spread = f"{middle:.{digits}f} [{min(values):.{digits}f} to {max(values):.{digits}f}]"
            verdict = "-" if met is None else "yes" if met(middle) else "no"
            print(row.format(*case, figure, spread, goal, verdict))
        if failures[case]:
            print(row.format(*case, "failed", f"{len(failures[case])} of {options.rounds} rounds", "-", failures[case][0]))
        if figures and statistics.median(busy_parts[case]) > 0.9:
            middle = statistics.median(busy_parts[case])
            print(row.format(*case, "processors busy", f"{middle:.2f}: may be the limit", "-", "-"))


def main():
    if sys.argv[1:2] == [MARK]:
        mark_long_queue(sys.argv[2], int(sys.argv[3]))
    options = read_options()
    check_machine(options)
    for each in SIGNALS:
        # As under nohup.
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, leave)
    print(processor())
    queue = f"queue {options.queue_ms:g} ms, at least {options.queue_kb:g} KB"
    print(f"MTU {options.mtu}, {queue}, {options.rounds} rounds of {options.seconds:g} s", flush=True)
    try:
        found, failures, busy_parts = measure(options)
    finally:
        for lab in list(Lab.all):
            lab.close()
    report(options, found, failures, busy_parts)
    sys.exit(1 if any(failures.values()) else 0)


if __name__ == "__main__":
    main()
