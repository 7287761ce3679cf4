#!/bin/sh
# The simulator beside htsim: both have the same flows over the same fabric, each on one core, in turn. htsim is what
# https://github.com/ultraethernet/uet-htsim has under htsim/sim; build its `htsim_uec` and name it here. Needs python3.
set -eu
name=htsim.sh
. "$(dirname "$0")/common/checks.sh"

usage() {
    cat <<'EOF'
usage: benches/htsim.sh --htsim PROGRAM [--rounds N]

  --htsim PROGRAM  the program htsim_uec
  --rounds N       rounds, each with every scenario once in both [default: 3]
EOF
}

htsim= rounds=3
read_options 'htsim rounds' '' "$@"
shift $taken
need_counts "$rounds"
need_tools 'apt-get install python3 installs it' python3
[ -n "$htsim" ] || fail 2 "--htsim is missing: the path of htsim_uec, which is built from uet-htsim"
[ -x "$htsim" ] || fail 2 "--htsim $htsim: there is no such program"
htsim=$(realpath "$htsim")
need_spindrift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

python3 - "$htsim" "$spindrift" "$work" "$rounds" <<'EOF'
import json, os, re, statistics, sys, time

htsim, spindrift, work, rounds = sys.argv[1], os.path.abspath(sys.argv[2]), sys.argv[3], int(sys.argv[4])
os.chdir(work)  # htsim leaves a file where it runs.
SIZE = 2_000_000
# Name, T0 switches, hosts of each, T1 switches, flows, what of it spindrift calls.
SCENARIOS = [
    ("permutation of 128", 8, 16, 16, [(n, (n + 64) % 128) for n in range(128)], 'kind = "permutation"'),
    ("permutation of 1,024", 32, 32, 32, [(n, (n + 512) % 1024) for n in range(1024)], 'kind = "permutation"'),
    ("127 to one", 8, 16, 16, [(n, 0) for n in range(1, 128)], 'kind = "write"\nfrom = "h2-h128"\nto = "h1"'),
]


def write(name, text):
    with open(f"{work}/{name}", "w") as file:
        file.write(text)
    return f"{work}/{name}"


def run(*command):
    """Runs a program; returns its output, seconds and KiB of memory at most."""
    began = time.monotonic()
    reader, writer = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, writer, 1), (os.POSIX_SPAWN_CLOSE, reader)]
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
    os.close(writer)
    with open(reader, errors="replace") as pipe:
        output = pipe.read()
    _, status, usage = os.wait4(pid, 0)
    if status != 0:
        sys.exit(f"htsim.sh: failed: {' '.join(command)}\n{output[-2000:]}")
    return output, time.monotonic() - began, usage.ru_maxrss


def of_htsim(t0, hosts, t1, flows):
    tiers = [
        f"Tier 0\nDownlink_speed_Gbps 100\nRadix_Down {hosts}\nRadix_Up {t1}\nDownlink_Latency_ns 1000\nSwitch_Latency_ns 0\n",
        f"Tier 1\nDownlink_speed_Gbps 100\nRadix_Down {t0}\nDownlink_Latency_ns 1000\nSwitch_Latency_ns 0\n",
    ]
    topology = write("htsim.topo", f"Nodes {t0 * hosts}\nTiers 2\nPodsize {t0 * hosts}\n\n" + "\n".join(tiers))
    lines = [f"{a}->{b} id {n} start 0 size {SIZE}" for n, (a, b) in enumerate(flows, 1)]
    matrix = write("htsim.cm", f"Nodes {t0 * hosts}\nConnections {len(flows)}\n" + "\n".join(lines) + "\n")
    settings = "-sender_cc_only -load_balancing_algo bitmap -paths 128 -linkspeed 100000 -mtu 4096 -end 100000".split()
    output, seconds, memory = run(htsim, "-tm", matrix, "-topo", topology, "-o", f"{work}/htsim.log", *settings)
    times = [float(at) for at in re.findall(r"^Flow .* finished at ([0-9.]+) ", output, re.M)]
    if len(times) != len(flows):
        sys.exit(f"htsim.sh: {len(times)} of {len(flows)} flows of htsim were done")
    return seconds, memory, times


def of_spindrift(t0, hosts, t1, flows, workload):
    plan = write("plan.toml", f"""
[plan]
title = "beside htsim"
duration = "100ms"

[fabric]
t0 = {t0}
t1 = {t1}
hosts_per_t0 = {hosts}
host_rate = "100G"

[[workload]]
{workload}
size = "{SIZE}"
count = 1
""")
    output, seconds, memory = run(spindrift, "sim", plan, "--output", f"{work}/out", "--json")
    variant = json.loads(output)["variants"][0]
    if not variant["done"]:
        sys.exit("htsim.sh: not all flows of spindrift were done")
    with open(f"{work}/out/messages.csv") as rows:
        times = [int(row.split(",")[-1]) / 1e3 for row in list(rows)[1:]]
    return seconds, memory, times, variant["packets"]["hops"]


def middle(values):
    return statistics.median(values)


print("| scenario | simulator | seconds | MB | flow, µs: mean, 99 %, longest |")
print("|---|---|---|---|---|")
ratios = []
for name, t0, hosts, t1, flows, workload in SCENARIOS:
    theirs, ours = [], []
    for _ in range(rounds):
        theirs.append(of_htsim(t0, hosts, t1, flows))
        ours.append(of_spindrift(t0, hosts, t1, flows, workload))
    for who, runs in (("htsim", theirs), ("spindrift", ours)):
        seconds, memory, times = middle([run[0] for run in runs]), max(run[1] for run in runs), sorted(runs[0][2])
        spread = f"{seconds:.2f} [{min(run[0] for run in runs):.2f} to {max(run[0] for run in runs):.2f}]"
        tail = times[min(len(times) - 1, len(times) * 99 // 100)]
        print(f"| {name} | {who} | {spread} | {memory / 1024:.0f} | {statistics.mean(times):.0f}, {tail:.0f}, {times[-1]:.0f} |")
    ratio = middle([them[0] / us[0] for them, us in zip(theirs, ours)])
    rate = middle([us[3] / us[0] for us in ours]) / 1e6
    ratios.append(f"{name}: spindrift is {ratio:.2f} times as fast, {rate:.2f} million packet-hops/s, start-up included")
print()
print("\n".join(ratios))
EOF
