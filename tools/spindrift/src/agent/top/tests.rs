//! Screens, compared with files (`SPINDRIFT_BLESS=1` writes them anew), and what keys do.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use spindrift_agentd::snapshot::{
    DeniedReport, DenyReport, FindingReport, Link, Loss, Part, Probes, Rtt, Snapshot, Store, Transition,
};
use spindrift_control::counters::{PlaneCounters, RttTotals};
use spindrift_control::{CountersReport, Seen};

use super::app::{App, Health, Key, News, Overlay, Sort, View, is_denied, name};
use super::draw::{Colours, draw};
use super::processes::processes;

/// 2026-11-30, 20:00 UTC.
const NOW: f64 = 1_796_068_800.0;

fn link(lower: &str, upper: &str, plane: u8) -> Link {
    let none = Loss { sent: 1_000, lost: 0, net: 0.0 };
    Link {
        lower: lower.to_owned(),
        upper: upper.to_owned(),
        plane,
        state: "up".to_owned(),
        loss_1s: none,
        loss_10s: none,
        loss_5min: none,
        rtt: Rtt { samples: 9, p50_ns: 11_200, p99_ns: 15_300, p999_ns: 20_000, max_ns: 31_000 },
        ..Link::default()
    }
}

/// An agent of a host with two planes of two T1 switches each.
fn healthy() -> Snapshot {
    let mut links = Vec::new();
    for plane in 0..2_u8 {
        let t0 = format!("p{plane}-t0-0");
        links.push(link("h1", &t0, plane));
        links.extend((0..2).map(|t1| link(&t0, &format!("p{plane}-t1-{t1}"), plane)));
    }
    Snapshot {
        host: "h1".to_owned(),
        time: NOW,
        started: NOW - 7_260.0,
        probes: Probes { sent: 123_456, returned: 123_450, lost: 6, ..Probes::default() },
        store: Some(Store { agents: 5, error: None }),
        links,
        ..Snapshot::default()
    }
}

/// The same while one link loses 2 %, another is down, and a policy denies a plane.
fn faulty() -> Snapshot {
    let mut known = healthy();
    let gray = &mut known.links[4];
    gray.loss_10s = Loss { sent: 1_000, lost: 20, net: 0.02 };
    gray.loss_5min = Loss { sent: 30_000, lost: 240, net: 0.008 };
    gray.rtt.p99_ns = 99_000;
    let down = &mut known.links[2];
    "down".clone_into(&mut down.state);
    let all = Loss { sent: 1_000, lost: 1_000, net: 1.0 };
    (down.loss_1s, down.loss_10s, down.flaps) = (all, all, 3);
    down.transitions = vec![Transition { time: NOW - 60.0, up: false }];
    let part = |kind: &str, name: &str| Part { kind: kind.to_owned(), name: name.to_owned() };
    let finding = |components: Vec<Part>, rate, text: &str| FindingReport {
        components,
        fault: if rate < 0.95 { "lossy" } else { "down" }.to_owned(),
        rate,
        since: NOW - 60.0,
        text: text.to_owned(),
        ..FindingReport::default()
    };
    known.findings = vec![
        finding(
            vec![part("link", "p0-t0-0:p0-t1-1")],
            1.0,
            "The link p0-t0-0 - p0-t1-1 forwards nothing. In the last 50 ms, 50 of 50 probes over it were lost (1 path of 1 agent).",
        ),
        finding(
            vec![part("link", "p1-t0-0:p1-t1-0"), part("switch", "p1-t1-0")],
            0.02,
            "One of these loses 2 % of all probes, and the probes cannot tell which: the link p1-t0-0 - p1-t1-0, the switch p1-t1-0.",
        ),
    ];
    let denied = vec![DeniedReport {
        component: "plane 1 of this host".to_owned(),
        rules: vec!["plane 1".to_owned()],
        since: NOW - 30.0,
        ..DeniedReport::default()
    }];
    known.deny = Some(DenyReport { denied, processes: 2, ..DenyReport::default() });
    known
}

fn counters(process: u32, program: &str, values: [u64; 4]) -> CountersReport {
    let [sent, placed, data, repeated] = values;
    let map = |pairs: &[(&str, u64)]| -> BTreeMap<String, u64> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    };
    let mut report = CountersReport {
        process,
        program: program.to_owned(),
        transport: map(&[
            ("tx_data_bytes", sent),
            ("rx_placed_bytes", placed),
            ("tx_data", data),
            ("tx_retransmits", repeated),
            ("tx_tail_probes", 0),
            ("timeouts", 2),
        ]),
        planes: vec![PlaneCounters { up: true, ..PlaneCounters::default() }; 2],
        deny_rules: 1,
        ..CountersReport::default()
    };
    report.queue_pairs.states = map(&[("RTS", 4), ("ERROR", 0)]);
    report.queue_pairs.rtt = RttTotals { queue_pairs: 4, p50_ns: 20_500, ..RttTotals::default() };
    report
}

fn seen(contexts: Vec<CountersReport>) -> Seen {
    Seen { contexts, ..Seen::default() }
}

fn app(known: Snapshot) -> App {
    let mut app = App::new("127.0.0.1:9467".to_owned());
    app.tick(Duration::from_secs(5));
    app.update(News::Status(Ok(Box::new(known))));
    app
}

fn terminal(app: &App, (width, height): (u16, u16), colours: Colours) -> TestBackend {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, app, colours)).unwrap();
    terminal.backend().clone()
}

/// The letters of a screen.
fn screen(app: &App, size: (u16, u16)) -> String {
    let buffer = terminal(app, size, Colours::None).buffer().clone();
    let mut text = String::new();
    for y in 0..size.1 {
        let line: String = (0..size.0).map(|x| buffer[(x, y)].symbol()).collect();
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn press(app: &mut App, keys: &str) {
    for letter in keys.chars() {
        app.press(Key::Char(letter), 5);
    }
}

#[test]
fn screens_are_as_they_were() {
    let wide = (100, 16);
    let mut screens = vec![
        ("healthy", screen(&app(healthy()), wide)),
        ("faulty", screen(&app(faulty()), wide)),
        ("narrow", screen(&app(faulty()), (60, 12))),
        ("tiny", screen(&app(faulty()), (40, 5))),
        ("nothing", screen(&App::new("127.0.0.1:9467".to_owned()), wide)),
    ];
    let mut gone = app(faulty());
    gone.tick(Duration::from_secs(17));
    gone.update(News::Status(Err("no agent replies at 127.0.0.1:9467".to_owned())));
    screens.push(("gone", screen(&gone, wide)));
    let mut paused = app(healthy());
    press(&mut paused, "p/p1-");
    screens.push(("paused", screen(&paused, (60, 12))));
    let mut views = app(faulty());
    for (key, file) in [('2', "findings"), ('3', "denied"), ('?', "help")] {
        press(&mut views, &key.to_string());
        screens.push((file, screen(&views, (100, 28))));
    }
    let mut explained = app(faulty());
    explained.press(Key::Enter, 5);
    screens.push(("explained", screen(&explained, wide)));
    let mut running = app(faulty());
    press(&mut running, "4");
    let contexts = [[0, 0, 0, 0], [250_000_000, 1_000_000, 1_000, 25]];
    for (second, values) in (5..).zip(contexts) {
        running.tick(Duration::from_secs(second));
        let idle = counters(8, "ib_write_bw", [0; 4]);
        let silent = vec![99];
        running.update(News::Processes(Seen { silent, ..seen(vec![counters(7, "write-bw", values), idle]) }));
    }
    screens.push(("processes", screen(&running, (120, 10))));
    for (file, screen) in screens {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/agent/top/screens/{file}.txt"));
        if std::env::var_os("SPINDRIFT_BLESS").is_some() {
            std::fs::write(&path, &screen).unwrap();
        }
        assert_eq!(screen, std::fs::read_to_string(path).unwrap(), "{file}");
    }
}

/// Nothing is told by colours alone, and `NO_COLOR` takes them away.
#[test]
fn colours_are_an_addition() {
    let colours_of = |colours| {
        let buffer = terminal(&app(faulty()), (100, 16), colours).buffer().clone();
        let mut found: Vec<_> = buffer.content().iter().map(|cell| cell.fg).collect();
        found.retain(|colour| *colour != Color::Reset);
        found.dedup();
        found
    };
    assert_eq!(colours_of(Colours::Some), [Color::Red, Color::Yellow, Color::Magenta]);
    assert_eq!(colours_of(Colours::None), []);
    let of = |value: Option<&str>| Colours::of(value.map(OsStr::new));
    assert_eq!([of(None), of(Some("")), of(Some("1"))], [Colours::Some, Colours::Some, Colours::None]);
    let marks = [Health::Down, Health::Lossy, Health::Trace, Health::Denied, Health::Unknown, Health::Fine];
    let marks: std::collections::BTreeSet<_> = marks.map(Health::mark).into();
    assert_eq!(marks.len(), 6);
}

/// Every size is drawn.
#[test]
fn no_terminal_is_too_small_or_too_large() {
    let mut app = app(faulty());
    for view in ["1", "2", "3", "4", "?"] {
        press(&mut app, view);
        for (width, height) in [(0, 0), (1, 1), (49, 9), (50, 8), (50, 9), (80, 24), (300, 100)] {
            screen(&app, (width, height));
        }
    }
}

#[test]
fn health_is_that_of_the_link() {
    let app = app(faulty());
    let of = |name_of: &str| {
        let known = app.known.as_ref().unwrap();
        app.health(known.links.iter().find(|link| name(link) == name_of).unwrap())
    };
    let all = ["p0-t0-0:p0-t1-1", "p1-t0-0:p1-t1-0", "h1:p1-t0-0", "h1:p0-t0-0", "p1-t0-0:p1-t1-1"];
    assert_eq!(all.map(of), [Health::Down, Health::Lossy, Health::Denied, Health::Fine, Health::Fine]);
    let mut link = link("h1", "p0-t0-0", 0);
    link.loss_10s.net = 0.001;
    assert_eq!(app.health(&link), Health::Trace);
    "unknown".clone_into(&mut link.state);
    link.loss_10s.net = 0.0;
    assert_eq!(app.health(&link), Health::Unknown);
}

#[test]
fn a_deny_list_concerns_links() {
    let link = link("p0-t0-0", "p0-t1-3", 0);
    let own = self::link("h1", "p0-t0-0", 0);
    let denies = |component: &str, link: &Link| {
        let entry = DeniedReport { component: component.to_owned(), ..DeniedReport::default() };
        is_denied(link, &entry, "h1")
    };
    for (component, expected) in [
        ("link p0-t0-0:p0-t1-3", [true, false]),
        ("link p0-t0-0:p0-t1-33", [false, false]),
        ("switch p0-t1-3", [true, false]),
        ("switch p0-t0-0", [true, true]),
        ("plane 0 of this host", [false, true]),
        ("plane 1 of this host", [false, false]),
    ] {
        assert_eq!([denies(component, &link), denies(component, &own)], expected, "{component}");
    }
}

fn shown(app: &App) -> Vec<String> {
    app.links().into_iter().map(name).collect()
}

#[test]
fn links_are_ordered_and_filtered() {
    let mut app = app(faulty());
    assert_eq!(shown(&app)[..3], ["p0-t0-0:p0-t1-1", "p1-t0-0:p1-t1-0", "h1:p0-t0-0"]);
    let mut orders = Vec::new();
    for _ in 0..7 {
        press(&mut app, "s");
        orders.push((app.sort, shown(&app)[0].clone()));
    }
    let (down, gray, host) = ("p0-t0-0:p0-t1-1", "p1-t0-0:p1-t1-0", "h1:p0-t0-0");
    let expected = [
        (Sort::Loss5min, gray),
        (Sort::Loss1s, down),
        (Sort::RttP50, host),
        (Sort::RttP99, gray),
        (Sort::Flaps, down),
        (Sort::Name, host),
        (Sort::Loss10s, down),
    ];
    assert_eq!(orders, expected.map(|(sort, name)| (sort, name.to_owned())));
    press(&mut app, "r");
    assert_eq!(shown(&app)[5], down);
    press(&mut app, "r/P1-q");
    assert_eq!((shown(&app).len(), app.quit), (0, false), "a letter of the filter");
    app.press(Key::Backspace, 5);
    assert_eq!(shown(&app), [gray, "h1:p1-t0-0", "p1-t0-0:p1-t1-1"]);
    app.press(Key::Enter, 5);
    assert_eq!((&*app.filter, app.typed.as_ref()), ("P1-", None));
    press(&mut app, "/zzz");
    app.press(Key::Escape, 5);
    assert_eq!(shown(&app).len(), 3, "as before");
    app.press(Key::Escape, 5);
    assert_eq!(shown(&app).len(), 6);
    press(&mut app, "q");
    assert!(app.quit);
}

/// What is selected is a link, wherever it goes; but the first row is the worst link, whichever that is.
#[test]
fn a_selection_follows_its_link() {
    let mut app = app(faulty());
    assert_eq!(app.row(), 0);
    app.press(Key::Down, 5);
    let gray = &shown(&app)[app.row()];
    assert_eq!(gray, "p1-t0-0:p1-t1-0");
    app.update(News::Status(Ok(Box::new(healthy()))));
    assert_eq!(shown(&app)[app.row()], "p1-t0-0:p1-t1-0");
    app.press(Key::Home, 5);
    app.update(News::Status(Ok(Box::new(faulty()))));
    assert_eq!(shown(&app)[app.row()], "p0-t0-0:p0-t1-1");
    for (key, row) in [
        (Key::End, 5),
        (Key::Down, 5),
        (Key::PageUp, 0),
        (Key::Up, 0),
        (Key::PageDown, 5),
        (Key::Char('k'), 4),
    ] {
        app.press(key, 5);
        assert_eq!(app.row(), row, "{key:?}");
    }
    // Of the links that are left.
    press(&mut app, "/p0");
    app.press(Key::Enter, 5);
    assert!(app.row() < 3);
}

#[test]
fn a_component_is_explained_from_each_view() {
    let mut app = app(faulty());
    let explained = |app: &mut App| {
        app.press(Key::Enter, 5);
        let overlay = std::mem::take(&mut app.overlay);
        let Overlay::Explain { component, from: 0 } = overlay else { panic!("{overlay:?}") };
        component
    };
    assert_eq!(explained(&mut app), "p0-t0-0:p0-t1-1");
    press(&mut app, "2j");
    assert_eq!(explained(&mut app), "p1-t0-0:p1-t1-0");
    press(&mut app, "3");
    assert_eq!(explained(&mut app), "h1:p1-t0-0");
    press(&mut app, "4");
    app.press(Key::Enter, 5);
    assert_eq!(app.overlay, Overlay::None);
    // It is scrolled, but not away.
    press(&mut app, "1");
    app.press(Key::Enter, 5);
    let count = app.explanation("p0-t0-0:p0-t1-1").len();
    app.press(Key::End, 5);
    app.press(Key::Down, 5);
    let at = |from| Overlay::Explain { component: "p0-t0-0:p0-t1-1".to_owned(), from };
    assert_eq!(app.overlay, at(count - 1));
    app.press(Key::Up, 5);
    assert_eq!(app.overlay, at(count - 2));
    press(&mut app, "q");
    assert_eq!((&app.overlay, app.quit), (&Overlay::None, false));
}

#[test]
fn what_is_paused_stays() {
    let mut app = app(healthy());
    press(&mut app, "p");
    app.tick(Duration::from_secs(9));
    app.update(News::Status(Ok(Box::new(faulty()))));
    app.update(News::Processes(seen(vec![counters(7, "a", [0; 4])])));
    assert_eq!((app.known.as_ref(), app.processes.len(), app.age().as_secs()), (Some(&healthy()), 0, 4));
    press(&mut app, " ");
    app.update(News::Status(Ok(Box::new(faulty()))));
    assert_eq!((app.known.as_ref(), app.age().as_secs()), (Some(&faulty()), 0));
}

#[test]
fn an_agent_that_is_gone_comes_back() {
    let mut app = app(healthy());
    app.tick(Duration::from_secs(20));
    app.update(News::Status(Err("gone".to_owned())));
    assert_eq!((app.error.as_deref(), app.age().as_secs()), (Some("gone"), 15));
    assert_eq!(app.known, Some(healthy()), "what was known stays");
    app.update(News::Status(Ok(Box::new(healthy()))));
    assert_eq!((app.error.as_deref(), app.age().as_secs()), (None, 0));
}

#[test]
fn rates_are_those_between_two_looks() {
    let before = seen(vec![counters(7, "a", [1_000, 0, 100, 10]), counters(8, "b", [5_000, 0, 0, 0])]);
    // The second process has the number of another one that has ended, and the third is new.
    let now = seen(vec![
        counters(7, "a", [251_000, 500, 300, 14]),
        counters(8, "b", [10, 0, 0, 0]),
        counters(9, "c", [1, 1, 1, 1]),
    ]);
    let rows = processes(&now, Some((&before, Duration::from_secs(2))));
    assert_eq!(
        (rows[0].sent_bps, rows[0].placed_bps, rows[0].retransmitted),
        (Some(1e6), Some(2e3), Some(0.02))
    );
    assert_eq!((rows[1].sent_bps, rows[1].placed_bps), (None, Some(0.0)));
    assert_eq!((rows[2].sent_bps, rows[2].retransmitted), (None, None));
    assert_eq!(processes(&now, Some((&before, Duration::ZERO)))[0].sent_bps, None);
    assert_eq!(processes(&now, None)[0].connected, 4);
    assert_eq!(View::ALL.map(|(_, key, _)| key), ['1', '2', '3', '4']);
}
