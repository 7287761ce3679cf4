#!/usr/bin/env python3
"""A training job while a NIC dies, after figure 10 of the SHIFT paper.

Four hosts of a lab of network namespaces run `examples/training`: each computes a gradient, all add theirs up over a ring, and all take
the same step. Each host has two NICs of two ports. The first NIC of one host dies after a third of the time, and is repaired after two
thirds. Cases:

  no-failure       nothing dies; always measured, because it tells when the NIC is to die
  restart          there is one NIC: the job ends with an error, and is started again from its last checkpoint once the NIC is repaired
  seamless         the second NIC takes over, with one queue pair over both (`--mode seamless`)
  seamless-busy    the same, while other traffic fills the second NIC
  shift            the second NIC takes over, with a queue pair on each (`--mode shift`)
  shift-busy       the same, while other traffic fills the second NIC
  flapping         shift, and the NIC is repaired after two seconds already, twice in a row

Each case ends after so many steps. The weights at the end must be the same in all cases, to the bit. Needs root, ip, tc and nft. What is
made here is removed at the end, also after a signal or an error.
"""

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

USAGE = """\
usage: benches/training.py [--only "shift,restart"] [--steps N] [--every N] [--rate RATE] [--plot FILE] [--json FILE]

  --only LIST      cases, see above, separated by commas [default: all]
  --steps N        steps of the job [default: 1200]
  --every N        steps between two checkpoints [default: 150]
  --rate RATE      rate of each link [default: 40M]
  --plot FILE      a picture of the progress (SVG)
  --json FILE      the progress of each case, an object on each line

The environment variables SPINDRIFT and TRAINING name the programs [default: target/release/spindrift and
target/release/examples/training]. The exit status is 0 if every case came to its end with the same weights.
"""

HOSTS = 4
LAB = "training"
# The NIC that dies: both of its links.
LINKS = ["h1:p0-t0-0", "h1:p1-t0-0"]
CASES = ["no-failure", "restart", "seamless", "seamless-busy", "shift", "shift-busy", "flapping"]
# Longer than any case takes, times the one without a failure.
PATIENCE = 20


class Failed(Exception):
    """Something that ends the measurement."""


def run(*command):
    """Runs a command to its end."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class Lab:
    """The lab, for as long as it is needed."""

    def __init__(self, spindrift, rate):
        self.spindrift, self.rate = spindrift, rate

    def command(self, *words):
        return run(self.spindrift, "lab", *words, "--name", LAB)

    def __enter__(self):
        self.command("up", "configs/lab/two-nics.toml")
        try:
            links = json.loads(self.command("status", "--json"))["links"]
            hosts = [f"h{number + 1}" for number in range(HOSTS)]
            for link in links:
                if link["lower"]["node"] in hosts:
                    self.command("fault", f"{link['lower']['node']}:{link['upper']['node']}", f"rate={self.rate}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.command("down")

    def start(self, host, *command):
        """Starts a command on a host, by its number from 0."""
        words = [self.spindrift, "lab", "exec", "--name", LAB, f"h{host + 1}", "--", *command]
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def addresses(self, host):
        """The addresses of a host, by plane."""
        shown = run(self.spindrift, "lab", "exec", "--name", LAB, f"h{host + 1}", "--", "ip", "-json", "-6", "address")
        found = {}
        for interface in json.loads(shown):
            for address in interface.get("addr_info", []):
                if address["scope"] == "global" and interface["ifname"].startswith("eth"):
                    found[int(interface["ifname"].removeprefix("eth"))] = address["local"]
        return [found[plane] for plane in sorted(found)]

    def set_nic(self, works):
        for link in LINKS:
            if works:
                # The rate is a fault too, and stays.
                self.command("heal", link)
                self.command("fault", link, f"rate={self.rate}")
            else:
                self.command("fault", link, "down")


class Job:
    """The processes of the job. Rank 0, which tells its progress, is not the host whose NIC dies."""

    def __init__(self, lab, addresses, training, mode, steps, every, folder):
        # The ring begins at the second host.
        order = [*range(1, HOSTS), 0]
        hosts = [addresses[host][0] if mode == "one" else addresses[host][2] for host in order]
        self.processes = []
        for rank, host in enumerate(order):
            first, second = addresses[host][:2], addresses[host][2:]
            options = ["--mode", mode, "--nic", ",".join(first), "--steps", str(steps)]
            if mode != "one":
                options += ["--second", ",".join(second)]
            options += ["--checkpoint", os.path.join(folder, "checkpoint"), "--every", str(every)]
            self.processes.append(lab.start(host, training, *options, str(rank), *hosts))
        os.set_blocking(self.processes[0].stdout.fileno(), False)
        self.text = ""

    def progress(self):
        """Lines of rank 0 that are whole."""
        try:
            while more := os.read(self.processes[0].stdout.fileno(), 1 << 16):
                self.text += more.decode()
        except BlockingIOError:
            pass
        *lines, self.text = self.text.split("\n")
        return [line.split() for line in lines]

    def has_ended(self):
        """Whether all have come to their end, or one has failed."""
        statuses = [process.poll() for process in self.processes]
        return all(status is not None for status in statuses) or any(statuses)

    def stop(self):
        """Ends what still runs; returns the first rank's error, if there is one."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        errors = [process.communicate()[1].strip() for process in self.processes[1:]]
        errors.append(self.processes[0].stderr.read().strip())
        self.processes[0].wait()
        return next((error for error in errors if error), None)


class Traffic:
    """Other traffic over the second NICs of two hosts, in both directions of the one that fails over."""

    def __init__(self, lab, addresses, spindrift):
        self.processes = []
        for port, (server, client) in [("18700", (0, 1)), ("18701", (1, 0))]:
            of = [",".join(addresses[host][2:]) for host in (server, client)]
            common = ["write-bw", "--wait", "poll", "-p", port, "-s", "16K", "-t", "16", "--exponential-retries", "25"]
            udp = str(int(port) + 100)
            self.processes.append(lab.start(server, spindrift, *common, "--udp-port", udp, "--local", of[0]))
            time.sleep(0.5)
            client_options = ["--udp-port", str(int(udp) + 10), "--local", of[1], "-D", "10m", addresses[server][2]]
            self.processes.append(lab.start(client, spindrift, *common, *client_options))

    def stop(self):
        for process in self.processes:
            process.send_signal(signal.SIGINT)
        for process in self.processes:
            process.communicate()


def measure(lab, addresses, arguments, case, whole):
    """Progress of a case: pairs of seconds and steps; and the weights at the end. `whole` is the time without a failure."""
    mode = {"no-failure": "seamless", "restart": "one", "flapping": "shift"}.get(case, case.split("-")[0])
    folder = tempfile.mkdtemp(prefix="spindrift-training-")
    busy = Traffic(lab, addresses, arguments.spindrift) if "busy" in case else None
    # When the NIC changes, in seconds, and to what.
    plan = [] if whole is None else [(whole / 3, False), (2 * whole / 3, True)]
    if case == "flapping":
        plan = [(whole / 3, False), (whole / 3 + 2, True), (whole / 3 + 4, False), (whole / 3 + 6, True)]
    if case == "no-failure":
        plan = []
    job, progress, weights, failures = None, [], None, []

    def start():
        return Job(lab, addresses, arguments.training, mode, arguments.steps, arguments.every, folder)

    try:
        job, begin = start(), None
        give_up = time.time() + PATIENCE * (whole or 60)
        while weights is None:
            time.sleep(0.02)
            now = time.time()
            ended = job is not None and job.has_ended()
            for words in job.progress() if job else []:
                if words[0] == "weights":
                    weights = words[1]
                else:
                    begin = begin or float(words[0])
                    progress.append((float(words[0]) - begin, int(words[1]), float(words[2])))
            if plan and begin and now - begin >= plan[0][0]:
                lab.set_nic(plan.pop(0)[1])
            if job is None and not plan:
                job = start()
            elif ended and weights is None:
                error = job.stop()
                job = None
                failures.append(error or "it ended")
                if mode != "one" or len(failures) > 1:
                    raise Failed(f"{case}: {failures[-1]}")
            if now > give_up:
                raise Failed(f"{case}: no end in sight after {progress[-1:]}")
    finally:
        if job:
            job.stop()
        if busy:
            busy.stop()
        shutil.rmtree(folder)
        lab.set_nic(True)
    return progress, weights, failures


def lost(progress):
    """Steps that were computed more than once."""
    best = again = 0
    for _, step, _ in progress:
        if step <= best:
            again += 1
        best = max(best, step)
    return again


def stall(progress):
    """The longest time between two steps."""
    return max((later[0] - earlier[0] for earlier, later in zip(progress, progress[1:])), default=0.0)


def pieces(progress):
    """Steps over time: a new line where the job was started again."""
    lines = []
    for at, (seconds, step, _) in enumerate(progress):
        if at == 0 or step <= progress[at - 1][1]:
            lines.append([])
        lines[-1].append((seconds, step))
    return lines


def thin(line, span):
    """A point in each span of time, and the last one before a gap."""
    kept = []
    for at, point in enumerate(line):
        is_last = at + 1 == len(line) or line[at + 1][0] - point[0] > 10 * span
        if not kept or point[0] - kept[-1][0] > span or is_last:
            kept.append(point)
    return kept


def plot(path, title, unit, curves):
    """Values over time: some lines for each case."""
    colours = ["#000000", "#d55e00", "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#cc79a7"]
    dashes = ["", "6 3", "", "6 3", "", "6 3", "2 2"]
    width, height, left, top, right, bottom = 900, 460, 70, 40, 190, 50
    points = [point for lines in curves.values() for line in lines for point in line]
    end, most = max(seconds for seconds, _ in points), max(value for _, value in points)
    # Some five lines, at numbers that are easy to read.
    between = next(unit * ten for ten in (0.01, 0.1, 1, 10, 100, 1000, 10000) for unit in (1, 2, 2.5, 5) if most / (unit * ten) <= 6)
    count = math.ceil(most / between - 1e-9)
    most = count * between

    def x(seconds):
        return left + (width - left - right) * seconds / end

    def y(value):
        return height - bottom - (height - top - bottom) * value / most

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
           f'<text x="{left}" y="22" font-size="15">{title}</text>']
    for part in range(count + 1):
        value = part * between
        out.append(f'<line x1="{left}" y1="{y(value):.1f}" x2="{width - right}" y2="{y(value):.1f}" stroke="#dddddd"/>')
        out.append(f'<text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    every = next(each for each in (1, 2, 5, 10, 20, 50, 100, 1000) if end / each <= 8)
    for seconds in range(0, int(end) + 1, every):
        out.append(f'<text x="{x(seconds):.1f}" y="{height - bottom + 18}" text-anchor="middle">{seconds}</text>')
    out.append(f'<text x="{(left + width - right) / 2}" y="{height - 10}" text-anchor="middle">seconds</text>')
    out.append(f'<text transform="translate(16 {height / 2}) rotate(-90)" text-anchor="middle">{unit}</text>')
    for number, (case, lines) in enumerate(curves.items()):
        style = f'fill="none" stroke="{colours[number % 7]}" stroke-width="2" stroke-dasharray="{dashes[number % 7]}"'
        for line in lines:
            coordinates = " ".join(f"{x(seconds):.1f},{y(value):.1f}" for seconds, value in thin(line, end / 600))
            out.append(f'<polyline points="{coordinates}" {style}/>')
        at = top + 20 * number + 10
        out.append(f'<line x1="{width - right + 12}" y1="{at}" x2="{width - right + 42}" y2="{at}" {style}/>')
        out.append(f'<text x="{width - right + 50}" y="{at + 4}">{case}</text>')
    out.append("</svg>\n")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out))


def interrupted(number, _):
    raise Failed(f"interrupted by {signal.Signals(number).name}")


def begin(name, arguments, cases):
    """The cases to measure, the one without a failure first. From here on a signal ends the measurement in order."""
    if arguments.steps < 1:
        sys.exit(f"{name}: --steps {arguments.steps}: at least 1")
    wanted = [case.strip() for case in arguments.only.split(",")]
    for case in wanted:
        if case not in cases:
            sys.exit(f"{name}: --only: there is no case '{case}'; choose from: {', '.join(cases)}")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    return ["no-failure", *(case for case in wanted if case != "no-failure")]


def main():
    parser = argparse.ArgumentParser(usage=USAGE, add_help=True)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--every", type=int, default=150)
    parser.add_argument("--rate", default="40M")
    parser.add_argument("--plot")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    arguments.spindrift = os.path.abspath(os.environ.get("SPINDRIFT", "target/release/spindrift"))
    arguments.training = os.path.abspath(os.environ.get("TRAINING", "target/release/examples/training"))
    for program in (arguments.spindrift, arguments.training):
        if not os.access(program, os.X_OK):
            sys.exit(f"training.py: {program} is missing: cargo build --release -p spindrift-cli && cargo build --release --example training")
    chosen = begin("training.py", arguments, CASES)
    results, wrong = {}, False
    try:
        with Lab(arguments.spindrift, arguments.rate) as lab:
            addresses = [lab.addresses(host) for host in range(HOSTS)]
            print(f"{HOSTS} hosts, {arguments.steps} steps, a checkpoint every {arguments.every}, links of {arguments.rate}\n")
            print(f"{'case':<16} {'seconds':>8} {'to no failure':>14} {'longest stall, s':>17} {'steps repeated':>15}  weights", flush=True)
            # The first case tells when the NIC is to die.
            whole = None
            for case in chosen:
                progress, weights, failures = measure(lab, addresses, arguments, case, whole)
                results[case] = (progress, weights, failures)
                seconds = progress[-1][0]
                whole = whole or seconds
                same = weights == results["no-failure"][1]
                wrong |= not same
                print(f"{case:<16} {seconds:>8.1f} {seconds / whole:>14.2f} {stall(progress):>17.2f} {lost(progress):>15}"
                      f"  {weights if same else weights + ' WRONG'}", flush=True)
                if arguments.json:
                    with open(arguments.json, "a", encoding="utf-8") as file:
                        json.dump({"case": case, "progress": progress, "weights": weights, "failures": failures}, file)
                        file.write("\n")
    except Failed as failed:
        sys.exit(f"training.py: {failed}")
    if arguments.plot:
        curves = {case: pieces(progress) for case, (progress, _, _) in results.items()}
        plot(arguments.plot, "Progress of a training job while a NIC dies", "steps", curves)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
