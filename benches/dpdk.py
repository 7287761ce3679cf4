#!/usr/bin/env python3
"""What DPDK ports reach over shared memory (`net_memif`), beside what the device can do at best.

Both ends are processes with an EAL of their own, the server pinned to the first processor and the client to the second, without huge
pages. Every round runs each command once, so that what disturbs the machine meets all alike; the figures are medians over
the rounds, and each ratio is taken within its round. Needs a build with DPDK ports, dpdk-testpmd and taskset, and root for
DPDK's files; what is made here is removed at the end, also after a signal or an error.
"""

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

USAGE = """\
usage: benches/dpdk.py [--only "large small testpmd latency"] [--rounds N] [--seconds N] [--iters N] [--device ARGS]
                       [--cores "0 1"] [--realtime] [--json FILE] [-- OPTIONS]

  --only LIST      comparisons, see below [default: "large small testpmd latency"]
  --rounds N       rounds, each with every command once [default: 5]
  --seconds N      seconds of each run [default: 2]
  --iters N        round trips of each run of write-lat [default: 50000]
  --device ARGS    arguments of both devices, beside role and socket [default: bsize=10240]
  --cores LIST     processors of server and client [default: "0 1"]
  --realtime       runs at real-time priority, for machines with other load: an end of the transport yields its processor
                   when it has nothing to do, and would get it back late; the pump never does
  --json FILE      the figures of each round, an object on each line, as they come
  --               what follows goes to write-bw and write-lat on both ends, such as --no-icrc

  large            write-bw with 64 KiB at an MTU of 4096, beside the raw pump with CRC and copy
  small            write-bw with 64 bytes, packets each second, beside the pump with and without CRC and copy
  testpmd          the pump beside dpdk-testpmd (txonly to rxonly) with frames of the same lengths, in buffers that are as
                   long as the device's, as testpmd is fastest so
  latency          write-lat with 2 bytes beside `loopback --latency`, over a ring in the memory of one process

The environment variable SPINDRIFT names the command [default: target/dist/spindrift]. Goals apply to the medians. The exit
status is 0 if every run could be measured, whatever it showed.
"""

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
COMPARISONS = ["large", "small", "testpmd", "latency"]
TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Payload of the pump's packets, and what is around it: MRC with the iCRC, UDP, IPv6, Ethernet.
LARGE, SMALL = 4096, 64
HEADERS = 44 + 8 + 40 + 14
ADDRESSES = ["fd00::1", "fd00::2"]
# A TCP port that nobody else is likely to use.
PORT = "18631"
# How long an end may take to be there, and how long to end.
PATIENCE = 30


class RunFailed(Exception):
    """A run that cannot be measured, and why."""


def fail(status, message):
    print(f"dpdk.py: {message}", file=sys.stderr)
    sys.exit(status)


def leave(*_):
    """Ends the script by a signal, once: what follows is the removal of all there is."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(130)


class Ends:
    """The processes of a run."""

    count = 0

    def __init__(self, options):
        Ends.count += 1
        self.options, self.processes = options, []
        self.socket = f"spindrift-bench-{os.getpid()}-{Ends.count}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def device(self, side):
        role = ["server", "client"][side]
        return f"net_memif0,role={role},{self.options.device},socket-abstract=yes,socket={self.socket}"

    def start(self, side, command):
        """Starts a command on the processor of its side."""
        files = [os.path.join(self.options.folder, f"{side}.{name}") for name in ("out", "err")]
        full = [*self.options.priority, "taskset", "-c", self.options.cores[side], *map(str, command)]
        with open(files[0], "w") as out, open(files[1], "w") as err:
            process = subprocess.Popen(full, stdin=subprocess.PIPE, stdout=out, stderr=err, start_new_session=True)
        process.called, process.files = os.path.basename(command[0]), files
        self.processes.append(process)
        return process

    def await_server(self, server, said=""):
        """Until the server has its device, or has said so much: that of `write-bw` has none before its client comes."""
        end = time.time() + PATIENCE
        while True:
            if said:
                ready = said in text_of(server)[1]
            else:
                with open("/proc/net/unix") as file:
                    ready = f"@{self.socket}" in file.read()
            if ready:
                return
            if server.poll() is not None:
                raise RunFailed(f"{server.called} ended: {text_of(server)[1].strip()}")
            if time.time() > end:
                raise RunFailed(f"{server.called} is not ready after {PATIENCE} s")
            time.sleep(0.02)

    def finish(self, process):
        """What it printed, once it has ended well."""
        try:
            process.wait(self.options.seconds + PATIENCE)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"{process.called} does not end") from None
        out, err = text_of(process)
        if process.returncode:
            raise RunFailed(f"{process.called} failed: {err.strip() or out.strip()}")
        return out


def text_of(process):
    """What a process has written to standard output and standard error."""
    texts = []
    for path in process.files:
        with open(path) as file:
            texts.append(file.read())
    return texts


def transport(options, command, arguments):
    """The row of a client of `write-bw` or `write-lat`."""
    with Ends(options) as ends:

        def end(side):
            device = ["--port", f"dpdk:{ends.device(side)}", "--device-addresses", ADDRESSES[side], "--device-mtu", "9000"]
            return [options.spindrift, command, "--json", "-p", PORT, *device, *options.rest]

        server = ends.start(0, end(0))
        ends.await_server(server, "waiting for a client")
        client = ends.start(1, [*end(1), *arguments, "127.0.0.1"])
        row = json.loads(ends.finish(client))["rows"][0]
        ends.finish(server)
    return row


def pump(options, payload, crc_copy=False):
    """What the receiver of the pump counted."""
    with Ends(options) as ends:

        def end(side):
            device = ["--local", ends.device(side), "--device-address", ADDRESSES[side], "--device-mtu", "9000"]
            size = ["-s", payload, "-D", f"{options.seconds}s", *(["--crc-copy"] if crc_copy else [])]
            return [options.spindrift, "pump", "dpdk", "--json", *device, *size]

        server = ends.start(0, end(0))
        ends.await_server(server)
        client = ends.start(1, [*end(1), ADDRESSES[0]])
        ends.finish(client)
        received = json.loads(ends.finish(server))["received"]
    if received["errors"]:
        raise RunFailed(f"the pump counted {received['errors']} errors")
    return received


def testpmd(options, frame):
    """Millions of packets each second that arrive at testpmd, as it shows them each second."""
    with Ends(options) as ends:
        buffers = int(dict(part.split("=") for part in options.device.split(",")).get("bsize", 2048)) + 128

        def end(side, mode):
            core = options.cores[side]
            eal = ["--no-huge", "-m", "512", "--no-pci", "--no-shconf", "--no-telemetry", "--file-prefix", f"{ends.socket}-{side}"]
            # The first thread prints, the second one forwards.
            lcores = ["--lcores", f"0@{core},1@{core}", "--vdev", ends.device(side)]
            usual = ["--auto-start", f"--mbuf-size={buffers}", "--total-num-mbufs=4096", f"--forward-mode={mode}"]
            return ["dpdk-testpmd", *eal, *lcores, "--", *usual]

        try:
            server = ends.start(0, [*end(0, "rxonly"), "--stats-period", "1"])
            ends.await_server(server)
            client = ends.start(1, [*end(1, "txonly"), f"--txpkts={frame}"])
            time.sleep(options.seconds + 2.5)
            rates = [int(rate) for rate in re.findall(r"Rx-pps:\s+(\d+)", text_of(server)[0])]
            for process in server, client:
                process.send_signal(signal.SIGINT)
                process.stdin.close()
                # One end after the other.
                time.sleep(0.5)
        finally:
            for side in range(2):
                shutil.rmtree(f"/var/run/dpdk/{ends.socket}-{side}", ignore_errors=True)
    # The first and the last second in which packets came are not whole.
    whole = [rate for rate in rates if rate][1:]
    if not whole:
        raise RunFailed(f"testpmd received nothing for a whole second: {rates}")
    return statistics.median(whole) / 1e6


def large(options):
    ours = transport(options, "write-bw", ["-s", "64K", "-D", f"{options.seconds}s"])["bandwidth_gbps"]
    crc_copy = pump(options, LARGE, True)["bandwidth_gbps"]
    plain = pump(options, LARGE)["bandwidth_gbps"]
    yield "write-bw, 64 KiB", "Gb/s", ours
    yield "pump, 4096 B, CRC and copy", "Gb/s", crc_copy
    yield "pump, 4096 B", "Gb/s", plain
    yield "write-bw / pump with CRC and copy", 0.9, ours / crc_copy
    yield "write-bw / pump", None, ours / plain


def small(options):
    ours = transport(options, "write-bw", ["-s", SMALL, "-D", f"{options.seconds}s"])["message_rate_mpps"]
    crc_copy = pump(options, SMALL, True)["packet_rate_mpps"]
    plain = pump(options, SMALL)["packet_rate_mpps"]
    yield "write-bw, 64 B", "Mpps", ours
    yield "pump, 64 B, CRC and copy", "Mpps", crc_copy
    yield "pump, 64 B", "Mpps", plain
    yield "write-bw / pump with CRC and copy", 0.7, ours / crc_copy
    yield "write-bw / pump", None, ours / plain


def beside_testpmd(options):
    for payload in LARGE, SMALL:
        ours = pump(options, payload)["packet_rate_mpps"]
        theirs = testpmd(options, payload + HEADERS)
        yield f"pump, {payload} B", "Mpps", ours
        yield f"testpmd, {payload} B", "Mpps", theirs
        yield f"pump / testpmd, {payload} B", 0.9, ours / theirs


def latency(options):
    ours = transport(options, "write-lat", ["-s", "2", "-n", options.iters])["typical_us"]
    command = [*options.priority, options.spindrift, "loopback", "--latency", "--json", "--size", "2", "-n", str(options.iters)]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    if done.returncode:
        raise RunFailed(f"loopback failed: {done.stderr.strip()}")
    ring = json.loads(done.stdout)["latency_rows"][0]["typical_us"]
    yield "write-lat, 2 B", "us", ours
    yield "loopback --latency, 2 B", "us", ring
    yield "write-lat / loopback", -1.5, ours / ring


RUNS = {"large": large, "small": small, "testpmd": beside_testpmd, "latency": latency}


def read_options():
    words, rest = sys.argv[1:], []
    if "--" in words:
        at = words.index("--")
        words, rest = words[:at], words[at + 1 :]
    if "-h" in words or "--help" in words:
        print(USAGE, end="")
        sys.exit(0)

    def wrong(message):
        print(f"dpdk.py: {message}", file=sys.stderr)
        print(USAGE, end="", file=sys.stderr)
        sys.exit(2)

    def count(text):
        if not text.isdecimal() or not int(text):
            raise argparse.ArgumentTypeError(f"'{text}' is no count from 1")
        return int(text)

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error = wrong
    parser.add_argument("--only", default=" ".join(COMPARISONS))
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--seconds", type=count, default=2)
    parser.add_argument("--iters", type=count, default=50000)
    parser.add_argument("--device", default="bsize=10240")
    parser.add_argument("--cores", default="0 1")
    parser.add_argument("--realtime", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args(words)
    options.priority = ["chrt", "--rr", "1"] if options.realtime else []
    options.rest, options.only, options.cores = rest, options.only.split(), options.cores.split()
    for comparison in options.only:
        if comparison not in COMPARISONS:
            wrong(f"there is no comparison '{comparison}'")
    if len(options.cores) != 2 or not all(core.isdecimal() for core in options.cores):
        wrong(f"--cores '{' '.join(options.cores)}': give two processors")
    if not re.fullmatch(r"[\w-]+=[\w-]+(,[\w-]+=[\w-]+)*", options.device):
        wrong(f"--device '{options.device}': give arguments of net_memif, as in bsize=10240,rsize=9")
    return options


def check_machine(options):
    tools = {"taskset": "apt-get install util-linux"} | ({"dpdk-testpmd": "tools/setup.sh --tests"} if "testpmd" in options.only else {})
    for tool, how in tools.items():
        if not shutil.which(tool):
            fail(1, f"{tool} is missing; {how} installs it")
    if os.geteuid():
        fail(1, "DPDK keeps files below /var/run, which needs root; run it with sudo")
    missing = [core for core in options.cores if int(core) not in os.sched_getaffinity(0)]
    if missing:
        fail(1, f"there is no processor {missing[0]}; give two with --cores")
    options.spindrift = os.environ.get("SPINDRIFT", os.path.join(TOP, "target/dist/spindrift"))
    build = "cargo build --profile dist -p spindrift-cli --features dpdk"
    if not os.access(options.spindrift, os.X_OK):
        fail(1, f"{options.spindrift} is missing; {build} builds it")
    probe = [options.spindrift, "pump", "dpdk", "--local", "net_null0", "--device-address", "fd00::1", "--size", "0"]
    if "no such ports" in subprocess.run(probe, capture_output=True, text=True).stderr:
        fail(1, f"{options.spindrift} has no DPDK ports; {build} builds it with them")


def processor():
    with open("/proc/cpuinfo") as file:
        names = re.findall(r"^model name\s*: (.*)", file.read(), re.M)
    return f"{names[0] if names else 'unknown processor'}, {os.cpu_count()} processors"


def measure(options):
    """Runs each comparison in each round. Figures and failures of each."""
    found, failures = {name: {} for name in options.only}, {name: [] for name in options.only}
    try:
        record = open(options.json, "w") if options.json else None
    except OSError as error:
        fail(1, error)
    for number in range(1, options.rounds + 1):
        for name in options.only:
            if sys.stderr.isatty():
                print(f"\r\033[Kround {number}: {name}", end="", file=sys.stderr, flush=True)
            line = {"round": number, "comparison": name, "error": None}
            try:
                got = list(RUNS[name](options))
                for figure, kind, value in got:
                    found[name].setdefault(figure, (kind, []))[1].append(value)
                line["figures"] = {figure: value for figure, _, value in got}
            except (RunFailed, OSError, ValueError, KeyError, ZeroDivisionError) as error:
                failures[name].append(str(error))
                line["error"] = str(error)
                print(f"dpdk.py: {name}, round {number}: {error}", file=sys.stderr)
            if record:
                print(json.dumps(line), file=record, flush=True)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return found, failures


def report(options, found, failures):
    row = "{:<10}{:<36}{:<31}{:<15}{}"
    print(row.format("", "figure", "median [least to most]", "goal", "met"))
    for name, figures in found.items():
        for figure, (kind, values) in figures.items():
            middle = statistics.median(values)
            unit = f" {kind}" if isinstance(kind, str) else ""
            spread = f"{middle:.2f}{unit} [{min(values):.2f} to {max(values):.2f}]"
            goal, verdict = "-", "-"
            if isinstance(kind, float):
                is_met = middle >= kind if kind > 0 else middle <= -kind
                goal = f"at least {kind}" if kind > 0 else f"at most {-kind}"
                verdict = "yes" if is_met else "no"
            print(row.format(name, figure, spread, goal, verdict))
        if failures[name]:
            print(row.format(name, "failed", f"{len(failures[name])} of {options.rounds} rounds", "-", failures[name][0]))


def main():
    options = read_options()
    check_machine(options)
    for each in SIGNALS:
        # As under nohup.
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, leave)
    print(processor())
    how = ", at real-time priority" if options.realtime else ""
    print(f"net_memif with {options.device}, {options.rounds} rounds of {options.seconds} s{how}", flush=True)
    with tempfile.TemporaryDirectory(prefix="dpdk-") as options.folder:
        found, failures = measure(options)
    report(options, found, failures)
    sys.exit(1 if any(failures.values()) else 0)


if __name__ == "__main__":
    main()
