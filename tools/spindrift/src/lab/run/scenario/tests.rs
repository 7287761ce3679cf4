use std::fs;

use super::*;
use crate::config::{assert_documented, keys_of};
use crate::driver::LOOPBACK;

/// A scenario of the lab with two planes, with these lines in its sections.
fn read(scenario: &str, rest: &str) -> Result<Scenario, String> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("spindrift-scenario-{}-{number}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("lab.toml"), include_str!("../../../../../../configs/lab/two-plane.toml")).unwrap();
    let path = folder.join("test.toml");
    fs::write(&path, format!("[scenario]\n{scenario}{rest}")).unwrap();
    let read = Scenario::read(&path).map_err(|error| format!("{error:#}"));
    fs::remove_dir_all(folder).unwrap();
    read
}

const GOOD: &str = "title = \"T\"\ntopology = \"lab.toml\"\nduration = \"2s\"\n";
const FLOW: &str = "[[flow]]\nfrom = \"h1\"\nto = \"h3\"\n";

#[test]
fn a_scenario_is_read_whole() {
    let text = format!(
        "{FLOW}both = true\nstart = \"500ms\"\noptions = [\"-x\"]\nudp_options = [\"-u\"]\nclient_options = [\"-y\"]\nserver_options = [\"-z\"]\n\
         [[flow]]\nfrom = \"h2\"\nto = \"h1\"\n\
         [[fault]]\nat = \"500ms\"\nwhere = \"h1:p0-t0-0\"\naction = \"down\"\n"
    );
    let read =
        read(&format!("{GOOD}link_rate = \"1.5Gbit,mark=1ms\"\nswitch = \"xdp-generic\"\n"), &text).unwrap();
    assert_eq!((read.name.as_str(), read.title.as_str()), ("test", "T"));
    assert_eq!((read.duration, read.switch), (Duration::from_secs(2), SwitchKind::XdpGeneric));
    assert_eq!(read.link_rate.map(|fault| fault.to_string()).as_deref(), Some("rate=1500Mbit,mark=1ms"));
    let flow = |from, to, start, back, options: [&[&str]; 4]| {
        let [options, udp_options, client_options, server_options] =
            options.map(|list| list.iter().map(|&text| text.to_owned()).collect());
        let start = Duration::from_millis(start);
        let (operation, standby) = (FlowOperation::Write, PlaneSet(0));
        let fallback = FallbackName::Seamless;
        Flow {
            operation,
            from,
            to,
            standby,
            fallback,
            start,
            back,
            follow_agents: true,
            options,
            udp_options,
            client_options,
            server_options,
        }
    };
    let all = [&["-x"] as &[_], &["-u"], &["-y"], &["-z"]];
    let [there, back] = [flow(0, 2, 500, false, all), flow(2, 0, 500, true, all)];
    assert_eq!(read.flows, [there, back, flow(1, 0, 0, false, [&[]; 4])]);
    assert_eq!(read.port, UDP);
    assert_eq!(read.flows.first().map(|flow| flow.name(&read.fabric)).as_deref(), Some("h1-h3"));
    assert_eq!(read.entries.len(), 1);
}

/// On all hosts, if none is named. The policy is beside the scenario.
#[test]
fn agents_are_on_all_hosts_or_on_those_that_are_named() {
    assert_eq!(read(GOOD, FLOW).unwrap().agents, None);
    let all = read(GOOD, &format!("[agents]\n{FLOW}")).unwrap();
    let want = Agents { hosts: vec![0, 1, 2, 3], policy: None, options: Vec::new() };
    assert_eq!((all.agents, all.flows[0].follow_agents), (Some(want), true));
    let policy = std::env::temp_dir().join(format!("spindrift-agents-{}.toml", std::process::id()));
    fs::write(&policy, "deny_loss = 0.5\n").unwrap();
    let table = format!("[agents]\nhosts = [\"h3\"]\noptions = [\"-x\"]\npolicy = {policy:?}\n");
    let some = read(GOOD, &format!("{table}{FLOW}follow_agents = false\n")).unwrap();
    fs::remove_file(&policy).unwrap();
    let want = Agents { hosts: vec![2], policy: Some(policy), options: vec!["-x".to_owned()] };
    assert_eq!((some.agents, some.flows[0].follow_agents), (Some(want), false));
}

/// The host that reads is the client. Both sides of any flow have the same planes that stand by.
#[test]
fn payload_goes_from_one_host_to_the_other_whoever_asks_for_it() {
    for (operation, sides, hosts, command) in [
        ("write", ["client", "server"], (0, 2), "write-bw"),
        ("send", ["client", "server"], (0, 2), "send-bw"),
        ("read", ["server", "client"], (2, 0), "read-bw"),
    ] {
        let lines = format!("{FLOW}operation = \"{operation}\"\nstandby = [1]\nfallback = \"shift\"\n");
        let flow = read(GOOD, &lines).unwrap().flows.remove(0);
        assert_eq!(flow.fallback, FallbackName::Shift);
        assert_eq!((flow.from, flow.to, flow.standby), (0, 2, PlaneSet(0b10)));
        assert_eq!(([flow.sender(), flow.receiver()], flow.client_and_server()), (sides, hosts));
        assert_eq!(flow.operation.command(), command);
    }
}

/// The former name of its section does the same.
#[test]
fn the_former_name_is_accepted() {
    let read = |text: &str| {
        let file = TomlFile::of("s.toml", text).renamed("scenario", "experiment");
        file.parse::<File>().map(|read| (read.scenario.title, file.place("scenario.title")))
    };
    let text = "[scenario]\ntitle = \"T\"\n";
    let read_now = read(text).unwrap();
    assert_eq!(read_now.1.as_deref(), Some("s.toml: line 2, column 9: scenario.title"));
    assert_eq!(read(&text.replace("scenario", "experiment")).unwrap(), read_now);
    let both = read(&format!("{text}[experiment]\n")).unwrap_err().to_string();
    assert!(both.contains("duplicate field `scenario`"), "{both}");
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let fault = |lines: &str| format!("{FLOW}[[fault]]\nwhere = \"h1\"\naction = \"down\"\n{lines}");
    for (scenario, rest, parts) in [
        (GOOD, String::new(), &["no [[flow]]"] as &[&str]),
        ("topology = \"lab.toml\"\nduration = \"2s\"\n", FLOW.to_owned(), &["`title` is missing", "line 1"]),
        ("title = \"T\"\nduration = \"2s\"\n", FLOW.to_owned(), &["`topology` is missing"]),
        ("title = \"T\"\ntopology = \"lab.toml\"\n", FLOW.to_owned(), &["`duration` is missing"]),
        (
            "title = \"T\"\ntopology = \"no.toml\"\nduration = \"2s\"\n",
            FLOW.to_owned(),
            &["line 3, column 12: scenario.topology", "no.toml"],
        ),
        (
            "title = \"T\"\ntopology = \"lab.toml\"\nduration = \"soon\"\n",
            FLOW.to_owned(),
            &["line 4, column 12: scenario.duration", "`soon`"],
        ),
        (
            "title = \"T\"\ntopology = \"lab.toml\"\nduration = \"999ms\"\n",
            FLOW.to_owned(),
            &["scenario.duration", "1s or more"],
        ),
        (
            &format!("{GOOD}link_rate = \"fast\"\n"),
            FLOW.to_owned(),
            &["line 5, column 13", "link_rate", "fast"],
        ),
        (&format!("{GOOD}link_rate = \"5M,dir=up\"\n"), FLOW.to_owned(), &["link_rate", "5M,dir=up"]),
        (&format!("{GOOD}speed = 1\n"), FLOW.to_owned(), &["unknown field `speed`", "line 5"]),
        (GOOD, FLOW.replace("h3", "h9"), &["line 7, column 6: flow.0.to", "no host \"h9\""]),
        (GOOD, FLOW.replace("h3", "h1"), &["flow.0.to", "another host"]),
        (GOOD, "[[flow]]\nto = \"h1\"\n".to_owned(), &["line 5, column 1: flow.0", "`from` is missing"]),
        (GOOD, format!("{FLOW}operation = \"fly\"\n"), &["line 8, column 13", "`fly`", "`send`"]),
        (GOOD, format!("{FLOW}standby = [2]\n"), &["line 8, column 11: flow.0.standby", "no plane 2"]),
        (GOOD, format!("{FLOW}standby = [0, 1]\n"), &["flow.0.standby", "at least one plane"]),
        (GOOD, format!("{FLOW}fallback = \"shift\"\n"), &["flow.0.fallback", "needs planes that stand by"]),
        (GOOD, format!("{FLOW}fallback = \"soft\"\n"), &["fallback", "soft", "shift"]),
        (GOOD, format!("{FLOW}start = \"x\"\n"), &["line 8, column 9: flow.0.start", "`x`"]),
        (GOOD, format!("{FLOW}start = \"1501ms\"\n"), &["flow.0.start", "2s"]),
        (GOOD, fault("at = \"499ms\"\n"), &["line 11, column 6: fault.0.at", "500ms"]),
        (GOOD, fault(""), &["line 8, column 1: fault.0", "500ms"]),
        (GOOD, fault("at = \"2s\"\n"), &["fault.0.at", "the end at 2s"]),
        (GOOD, fault("at = \"1s\"\n").replace("\"h1\"\naction", "\"h7\"\naction"), &["fault.0.where", "h7"]),
    ] {
        let error = read(scenario, &rest).unwrap_err();
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
    }
}

#[test]
fn what_is_wrong_with_agents_is_named_with_its_place() {
    for (scenario, rest, parts) in [
        (
            GOOD,
            format!("{FLOW}follow_agents = false\n"),
            &["line 8", "flow.0.follow_agents", "no policy"] as &[&str],
        ),
        (
            GOOD,
            format!("[agents]\n{FLOW}follow_agents = true\n"),
            &["line 9", "flow.0.follow_agents", "no policy"],
        ),
        (GOOD, format!("[agents]\nhosts = []\n{FLOW}"), &["line 6", "agents.hosts", "name a host"]),
        (GOOD, format!("[agents]\nhosts = [\"h1\", \"h9\"]\n{FLOW}"), &["agents.hosts", "no host \"h9\""]),
        (
            GOOD,
            format!("[agents]\nhosts = [\"h2\", \"h1\", \"h2\"]\n{FLOW}"),
            &["agents.hosts", "h2 is named twice"],
        ),
        (GOOD, format!("[agents]\npolicy = \"no.toml\"\n{FLOW}"), &["line 6", "agents.policy", "no.toml"]),
        (
            GOOD,
            format!("[agents]\npolicy = \"lab.toml\"\n{FLOW}"),
            &["agents.policy", "lab.toml", "unknown field"],
        ),
        (GOOD, format!("[agents]\nnames = 1\n{FLOW}"), &["unknown field `names`", "line 6"]),
    ] {
        let error = read(scenario, &rest).unwrap_err();
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
    }
}

/// Ports past the kernel have one process for each host, and switches that can limit what it sends.
#[test]
fn ports_past_the_kernel_need_hosts_of_their_own() {
    let with = |section: &str, rest: &str, kind| -> Result<Vec<String>, String> {
        let mut read = read(&format!("{GOOD}{section}"), &format!("{FLOW}{rest}"))?;
        read.use_ports(kind).map_err(|error| format!("{error:#}"))?;
        assert_eq!(read.port, kind.or(driver::find("af_xdp")).unwrap());
        Ok(read.flows.iter().map(|flow| flow.name(&read.fabric)).collect())
    };
    let names = |names: &[&str]| Ok(names.iter().map(|&name| name.to_owned()).collect());
    let refused = |result: Result<Vec<String>, String>, parts: &[&str]| {
        let error = result.unwrap_err();
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
    };
    let (af_xdp, loopback) = (driver::find("af_xdp"), Some(LOOPBACK));
    let another = "[[flow]]\nfrom = \"h2\"\nto = \"h4\"\n";
    let shared = "[[flow]]\nfrom = \"h3\"\nto = \"h4\"\n";
    let fault = |place: &str, action: &str| {
        format!("[[fault]]\nat = \"1s\"\nwhere = \"{place}\"\naction = \"{action}\"\n")
    };
    refused(with("", "", loopback), &["--port: loopback ports stay within one process", "udp", "af_xdp"]);
    refused(with("port = \"loopback\"\n", "", None), &["line 5, column 8: scenario.port: loopback"]);
    refused(with("port = \"fast\"\n", "", None), &["line 5", "`fast`", "`af_xdp`"]);
    let both = format!("both = true\n{another}");
    let udp = Some(UDP);
    assert_eq!(with("port = \"af_xdp\"\n", &both, udp), names(&["h1-h3", "h3-h1", "h2-h4"]));
    assert_eq!(with("link_rate = \"5M\"\n", shared, udp), names(&["h1-h3", "h3-h4"]));
    if af_xdp.is_some_and(|driver| driver.backend.is_none()) {
        return refused(with("", "", af_xdp), &["--port af_xdp: this build has no such ports"]);
    }
    assert_eq!(with("port = \"af_xdp\"\n", &both, None), names(&["h1-h3", "h2-h4"]));
    refused(with("", shared, af_xdp), &["--port af_xdp: ", "h3 has two flows", "--port udp"]);
    refused(
        with("port = \"af_xdp\"\n", &another.replace("h4", "h1"), None),
        &["line 5, column 8: scenario.port af_xdp", "h1 has two"],
    );
    assert_eq!(with("link_rate = \"5M\"\n", "", af_xdp), names(&["h1-h3"]));
    let slow = |place, action| with("", &fault(place, action), af_xdp);
    refused(slow("h1", "rate=5M"), &["rate=5Mbit of h1", "--switch xdp"]);
    refused(slow("p0-t0-0", "rate=5M,dir=up"), &["rate=5Mbit,dir=up of p0-t0-0"]);
    for (place, action) in [
        ("h1", "rate=5M,dir=down"),
        ("h1", "blackhole"),
        ("p0-t0-0:p0-t1-0", "rate=5M"),
        ("p0-t1-1", "rate=5M"),
    ] {
        assert_eq!(slow(place, action), names(&["h1-h3"]), "{place} {action}");
    }
    let held = with("link_rate = \"5M\"\nswitch = \"xdp\"\n", &fault("h1", "rate=2M"), af_xdp);
    assert_eq!(held, names(&["h1-h3"]));
}

/// Each scenario that is given can be read, and says in its first line what it is after.
#[test]
fn the_scenarios_of_the_repository_are_good() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/lab/scenarios");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            continue;
        }
        let read = Scenario::read(&path).unwrap();
        assert!(read.duration <= Duration::from_mins(1), "{}", read.name);
        assert!(fs::read_to_string(&path).unwrap().starts_with("# After "), "{}", read.name);
        count += 1;
    }
    assert!(count > 0);
}

/// The tables of `docs/cli.md` have each key.
#[test]
fn every_key_is_documented() {
    assert_documented("### Scenarios", "[scenario]", keys_of::<ScenarioTable>());
    assert_documented("### Scenarios", "[agents]", keys_of::<AgentsTable>());
    assert_documented("### Scenarios", "[[flow]]", keys_of::<FlowTable>());
}
