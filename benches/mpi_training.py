#!/usr/bin/env python3
"""An MPI job that trains, as it is, while a NIC dies.

Four hosts (network namespaces) run `tools/spindrift/tests/programs/train.c` over OpenMPI and UCX: each rank computes a gradient, all add
theirs up over a ring, and all take the same step. Each host has two NICs, and a third network for what mpirun itself sends. The first
NIC of one host dies after a third of the time of the first case, and is repaired after two thirds. Cases:

  no-failure     `spindrift run`, and nothing dies; always measured, because it tells when the NIC is to die
  links-down     its link goes down; the second NIC takes over
  silent         it carries nothing more, but its link stays up; the second NIC takes over
  tcp            UCX over TCP on the first NIC, and nothing dies
  tcp-links-down the same, and its link goes down

The weights at the end must be the same in all cases, to the bit. Needs root, iproute2, mpirun, mpicc and UCX. What is made here is
removed at the end, also after a signal or an error.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from training import Failed, begin, plot, run, stall

USAGE = """\
usage: benches/mpi_training.py [--only "silent,tcp"] [--steps N] [--plot FILE] [--json FILE]

  --only LIST      cases, see above, separated by commas [default: all]
  --steps N        steps of the job [default: 6000]
  --plot FILE      a picture of the loss (SVG)
  --json FILE      the progress of each case, an object on each line

The environment variable SPINDRIFT names the command [default: target/release/spindrift]; its library lies beside it. The exit status is
0 if every case came to its end with the same weights.
"""

CASES = ["no-failure", "links-down", "silent", "tcp", "tcp-links-down"]
HOSTS = 4
# The networks: of the first NICs, of the second ones, and of mpirun.
NETWORKS = "abm"
# Longer than any case takes, times the one without a failure.
PATIENCE = 20
PROGRAM = "tools/spindrift/tests/programs/train.c"


class Network:
    """Hosts and a switch, each a network namespace, for as long as they are needed."""

    def __init__(self):
        self.switch = f"sdmpi-sw-{os.getpid()}"
        self.hosts = [f"sdmpi-h{number}-{os.getpid()}" for number in range(HOSTS)]

    def ip(self, namespace, words):
        run("ip", "-n", namespace, *words.split())

    def address(self, network, host):
        return f"10.79.{NETWORKS.index(network)}.{host + 1}"

    def __enter__(self):
        try:
            for namespace in [self.switch, *self.hosts]:
                run("ip", "netns", "add", namespace)
                self.ip(namespace, "link set lo up")
            for network in NETWORKS:
                self.ip(self.switch, f"link add br{network} type bridge")
                self.ip(self.switch, f"link set br{network} up")
                for number, host in enumerate(self.hosts):
                    port = f"{network}{number}"
                    run("ip", "link", "add", f"n{network}", "netns", host, "type", "veth", "peer", "name", port, "netns", self.switch)
                    self.ip(self.switch, f"link set {port} master br{network} up")
                    self.ip(host, f"address add {self.address(network, number)}/24 dev n{network}")
                    self.ip(host, f"link set n{network} up")
            self.ip(self.switch, f"address add {self.address('m', HOSTS)}/24 dev brm")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for namespace in [self.switch, *self.hosts]:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)

    def set_nic(self, works, silent):
        """The first NIC of the second host, at its port of the switch."""
        if silent:
            self.ip(self.switch, "link set a1 master bra" if works else "link set a1 nomaster")
        else:
            self.ip(self.switch, f"link set a1 {'up' if works else 'down'}")


def command(network, arguments, case, program, file):
    """mpirun with a rank on each host. The first one writes its progress to a file: mpirun passes output on with delays of seconds."""
    words = ["ip", "netns", "exec", network.switch, "mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "pml", "ucx"]
    if case.startswith("tcp"):
        words += ["--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any"]
        of_ucx = ["UCX_TLS=tcp,self", "UCX_NET_DEVICES=na"]
    else:
        of_ucx = ["UCX_TLS=rc_v,ud_v,self", "UCX_NET_DEVICES=spindrift0:1"]
    for number, host in enumerate(network.hosts):
        words += [":"] if number > 0 else []
        words += ["-np", "1", "ip", "netns", "exec", host, "env", *of_ucx]
        if not case.startswith("tcp"):
            planes = f"{network.address('a', number)}+{network.address('b', number)}"
            words += [arguments.spindrift, "run", "-q", "--control-dir", "none", "--planes", planes, "--"]
        words += [program, str(arguments.steps), file]
    return words


def measure(network, arguments, case, program, whole):
    """Progress of a case: seconds, step and loss of each step; and the weights at the end. `whole` is the time without a failure."""
    plan = [] if whole is None or case in ("no-failure", "tcp") else [(whole / 3, False), (2 * whole / 3, True)]
    environment = {**os.environ, "PMIX_MCA_ptl_tcp_if_include": "brm", "PMIX_MCA_ptl_tcp_remote_connections": "1"}
    # The ranks and their commands end with mpirun.
    path = f"{program}-{case}.log"
    with open(path, "w", encoding="utf-8"):
        pass
    job = subprocess.Popen(command(network, arguments, case, program, path), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, text=True, env=environment)
    log = open(path, encoding="utf-8")
    text, begin, progress, weights = "", None, [], None
    give_up = time.time() + PATIENCE * (whole or 60)
    try:
        while weights is None:
            time.sleep(0.01)
            now = time.time()
            ended = job.poll() is not None
            text += log.read()
            *lines, text = text.split("\n")
            for words in map(str.split, lines):
                if words[0] == "weights":
                    weights = " ".join(words[1:])
                else:
                    begin = begin or float(words[0])
                    progress.append((float(words[0]) - begin, int(words[1]), float(words[2])))
            if plan and begin and now - begin >= plan[0][0]:
                network.set_nic(plan.pop(0)[1], case == "silent")
            if weights is None and (ended or now > give_up):
                if not ended:
                    raise Failed(f"{case}: no end in sight after {progress[-1:]}")
                raise Failed(f"{case}: {job.stderr.read().strip() or 'it ended'}")
        job.communicate(timeout=60)
    finally:
        log.close()
        if job.poll() is None:
            job.send_signal(signal.SIGTERM)
            job.communicate()
        if case not in ("no-failure", "tcp"):
            network.set_nic(True, case == "silent")
    return progress, weights


def smooth(progress, span=100):
    """The loss over time, as a mean of some steps."""
    points = []
    for at in range(0, len(progress), span):
        some = progress[at : at + span]
        mean = sum(loss for _, _, loss in some) / len(some)
        points += [(some[0][0], mean), (some[-1][0], mean)]
    return points


def main():
    parser = argparse.ArgumentParser(usage=USAGE, add_help=True)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--plot")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    arguments.spindrift = os.path.abspath(os.environ.get("SPINDRIFT", "target/release/spindrift"))
    library = os.path.join(os.path.dirname(arguments.spindrift), "libspindrift_ibverbs.so")
    for file in (arguments.spindrift, library):
        if not os.access(file, os.X_OK):
            sys.exit(f"mpi_training.py: {file} is missing: cargo build --release -p spindrift-cli -p spindrift-capi")
    chosen = begin("mpi_training.py", arguments, CASES)
    results, wrong = {}, False
    try:
        with tempfile.TemporaryDirectory(prefix="spindrift-mpi-") as folder, Network() as network:
            program = os.path.join(folder, "train")
            run("mpicc", "-O2", "-o", program, PROGRAM, "-lm")
            print(f"{HOSTS} hosts, {arguments.steps} steps\n")
            print(f"{'case':<16} {'seconds':>8} {'to no failure':>14} {'longest stall, s':>17}  weights", flush=True)
            whole = None
            for case in chosen:
                progress, weights = measure(network, arguments, case, program, whole)
                results[case] = (progress, weights)
                seconds = progress[-1][0]
                whole = whole or seconds
                same = weights == results["no-failure"][1]
                wrong |= not same
                print(f"{case:<16} {seconds:>8.1f} {seconds / whole:>14.2f} {stall(progress):>17.2f}"
                      f"  {weights if same else weights + ' WRONG'}", flush=True)
                if arguments.json:
                    with open(arguments.json, "a", encoding="utf-8") as file:
                        json.dump({"case": case, "progress": progress, "weights": weights}, file)
                        file.write("\n")
    except Failed as failed:
        sys.exit(f"mpi_training.py: {failed}")
    if arguments.plot:
        curves = {case: [smooth(progress)] for case, (progress, _) in results.items()}
        plot(arguments.plot, "Loss of an MPI training job while a NIC dies", "loss", curves)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
