//! The web page in headless Chromium, and the answers of the interface, over fabrics that are made up. Without Chromium the tests of the page say so and pass, unless
//! `SPINDRIFT_REQUIRE_CHROMIUM` is set. With `SPINDRIFT_PAGE_PICTURES=FOLDER` they leave pictures to look at.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![allow(clippy::print_stderr, reason = "tests that are skipped say so")]

mod browser;
mod made_up;
mod schema;

use browser::Browser;
use made_up::{MadeUp, fabric, fabric_of, finding, now};
use spindrift_agentd::layout::Layout;
use spindrift_agentd::levels;
use spindrift_agentd::runner::Event;
use spindrift_agentd::snapshot::{DeniedReport, DenyReport, Snapshot};
use spindrift_agentd::token::Token;
use spindrift_srv6::Shape;

const ANY: &str = "127.0.0.1:0";
const GRAY: (&str, f64) = ("p1-t0-2:p1-t1-3", 0.03);
const DEAD: (&str, f64) = ("p0-t1-4", 1.0);

fn small() -> MadeUp {
    MadeUp::new(fabric(2, 4, 6, 2))
}

/// The page as people see it: wide and narrow, light and dark.
fn pictures(browser: &mut Browser, name: &str) {
    if std::env::var_os("SPINDRIFT_PAGE_PICTURES").is_none() {
        return;
    }
    for (width, height, kind) in [(1400, 900, "wide"), (390, 844, "narrow")] {
        for scheme in ["light", "dark"] {
            browser.look(width, height, scheme);
            rounds(browser, 2);
            browser.picture(&format!("{name}-{kind}-{scheme}"), true);
        }
    }
    browser.look(1400, 900, "light");
    // As people see it who see no red, no green, or no colours.
    for lack in ["protanopia", "deuteranopia", "achromatopsia"] {
        browser.see_without(lack);
        browser.picture(&format!("{name}-{lack}"), true);
    }
    browser.see_without("none");
}

/// Waits until the page has asked the agent again.
fn rounds(browser: &mut Browser, more: u64) {
    let so_far = browser.eval("Number(document.body.dataset.rounds ?? 0)").as_f64().unwrap();
    browser.until(&format!("Number(document.body.dataset.rounds ?? 0) >= {}", so_far + more as f64));
}

#[test]
fn faults_come_and_go() {
    if !browser::is_there() {
        return;
    }
    let made_up = small();
    let server = made_up.serve(ANY, &[(30, &[])]);
    let mut browser = Browser::start("faults");
    browser.look(1400, 900, "light");
    browser.open(&format!("http://{}/", server.address()));
    // Before the first report.
    browser.shows("#condition", "Waiting for the agent.");
    browser.shows("#condition", "No data yet");
    browser.shows(".plane", "32 links: 32 unknown.");
    pictures(&mut browser, "empty");
    made_up.now(&[], vec![], Some(""));
    browser.shows("#condition", "No component is at fault.");
    browser.shows("#faults", "Nothing, as far as is known.");
    browser.shows(".plane", "32 links: 32 healthy.");
    browser.shows("#version", "8 agents report");
    pictures(&mut browser, "healthy");
    // A gray link: by the keyboard.
    made_up.now(&[GRAY], vec![finding("link", &[GRAY.0], 0.03, made_up.start)], Some(""));
    browser.shows("#condition", "1 fault is known.");
    browser.shows("#faults", "link p1-t0-2:p1-t1-3");
    browser.shows(".plane:nth-child(2)", "32 links: 1 under 10 %, 31 healthy.");
    browser.eval("document.querySelectorAll('.plane')[1].querySelector('canvas[tabindex]').focus()");
    let readout = ".plane:nth-child(2) .readout";
    browser.shows(readout, "p1-t0-0:p1-t1-0: healthy");
    browser.press("ArrowRight");
    browser.shows(readout, "p1-t0-0:p1-t1-1: healthy");
    browser.press("ArrowDown");
    browser.shows(readout, "p1-t0-1:p1-t1-1: healthy");
    browser.press("n");
    browser.shows(readout, "p1-t0-2:p1-t1-3: 1 to 10 % lost");
    browser.press("Enter");
    browser.shows("#details", "Link p1-t0-2:p1-t1-3");
    browser.shows("#details", "Plane 1. Now 1 to 10 % lost.");
    browser.shows("#details", "Probed by h4.");
    browser.until("document.activeElement.id === 'details'");
    pictures(&mut browser, "gray");
    // A dead switch: by a click on its name.
    let dead = finding("switch", &[DEAD.0], 1.0, made_up.start);
    made_up.published.note(&Event::Opened(dead.clone()));
    made_up.now(&[DEAD], vec![dead], Some(""));
    browser.shows("#faults", "switch p0-t1-4");
    browser.click("#faults button", 4.0, 4.0);
    browser.shows("#details", "Switch p0-t1-4");
    browser.shows("#details", "4 links: 4 down.");
    browser.shows("#details", "The switch p0-t1-4 loses 100.00 % of all probes.");
    browser.shows(".plane", "32 links: 4 down, 28 healthy.");
    browser.eval("document.querySelector('.plane canvas[tabindex]').focus()");
    for (key, row) in [("n", 0), ("n", 1), ("n", 2), ("p", 1), ("p", 0), ("p", 3), ("n", 0)] {
        browser.press(key);
        browser.shows(".plane .readout", &format!("p0-t0-{row}:p0-t1-4: down"));
    }
    pictures(&mut browser, "dead-t1");
    // The store is lost: what others see is not known any more.
    made_up.now(&[DEAD], vec![], Some("Connection refused (os error 111)"));
    browser.shows(
        "#notes",
        "The store cannot be reached, so only this agent's own links are known: Connection refused",
    );
    browser.shows(".plane", "32 links: 1 down, 6 healthy, 25 unknown.");
    pictures(&mut browser, "store-lost");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

fn entry(component: &str, reason: &str) -> DeniedReport {
    DeniedReport {
        component: component.to_owned(),
        rules: vec!["plane 1".to_owned()],
        reason: reason.to_owned(),
        since: now() - 200.0,
    }
}

/// Goes to a cell of a map of a plane by the keyboard.
fn readout(browser: &mut Browser, plane: u8, map: u8, keys: &[&str]) {
    let map =
        format!("document.querySelectorAll('.plane')[{plane}].querySelectorAll('canvas[tabindex]')[{map}]");
    browser.eval(&format!("{map}.blur(), {map}.focus()"));
    for key in keys {
        browser.press(key);
    }
}

/// The list, and the marks of the links that it concerns: of a link, of a switch, and of a plane of the host.
#[test]
fn what_is_denied_is_shown() {
    if !browser::is_there() {
        return;
    }
    let made_up = small();
    made_up.now(&[], vec![], Some(""));
    let server = made_up.serve(ANY, &[(30, &[])]);
    let mut browser = Browser::start("denied");
    browser.look(1400, 900, "light");
    browser.open(&format!("http://{}/", server.address()));
    browser.shows("#condition", "No component is at fault.");
    browser.until("document.getElementById('denial').hidden");
    let set = |deny: DenyReport| {
        let known = (*made_up.published.get()).clone();
        made_up.published.set(Snapshot { deny: Some(deny), ..known });
    };
    set(DenyReport { processes: 0, ..DenyReport::default() });
    browser.shows("#followed", "The policy denies nothing now.");
    let denied = vec![
        entry("plane 1 of this host", "The link h0 - p1-t0-0 loses 2 % of all probes."),
        entry("link p0-t0-1:p0-t1-2", ""),
        entry("switch p0-t1-4", "The switch p0-t1-4 is dead."),
    ];
    let errors = vec!["process 7 does not reply".to_owned()];
    set(DenyReport { denied, processes: 2, errors, dry_run: false });
    browser.shows("#followed", "2 processes of this host avoid these while the other paths suffice.");
    browser.shows("#denied", "plane 1 of this host since ");
    browser.shows("#denied", ", for 3 min");
    browser.shows("#denied", "The link h0 - p1-t0-0 loses 2 % of all probes.");
    browser.shows("#denied li:nth-child(2)", "No finding is known that it was denied for.");
    browser.shows("#denied", "Paths: plane 1");
    browser.shows("#denied .error", "A process cannot be told: process 7 does not reply");
    browser.shows("#legend", "denied on this host");
    // In the maps, by the keyboard; and only where it is so.
    readout(&mut browser, 0, 0, &["ArrowDown", "ArrowRight", "ArrowRight"]);
    browser.shows(".plane .readout", "p0-t0-1:p0-t1-2: healthy: less than 0.1 % lost; denied on this host");
    browser.press("ArrowRight");
    browser.until("document.querySelector('.plane .readout').textContent === 'p0-t0-1:p0-t1-3: healthy: less than 0.1 % lost'");
    browser.press("ArrowRight");
    browser.shows(".plane .readout", "p0-t0-1:p0-t1-4: healthy: less than 0.1 % lost; denied on this host");
    readout(&mut browser, 1, 1, &[]);
    browser.shows(
        ".plane:nth-child(2) .readout:last-child",
        "h0:p1-t0-0: healthy: less than 0.1 % lost; denied",
    );
    readout(&mut browser, 0, 1, &[]);
    browser.until("document.querySelectorAll('.plane')[0].querySelectorAll('.readout')[1].textContent === 'h0:p0-t0-0: healthy: less than 0.1 % lost'");
    pictures(&mut browser, "denied");
    // A click on an entry shows the link.
    browser.click("#denied button", 4.0, 4.0);
    browser.shows("#details", "Link h0:p1-t0-0");
    browser.shows("#details", "Denied on this host with the plane 1 of this host, since ");
    // The past has none of these.
    browser.click("#earlier", 8.0, 8.0);
    browser.shows("#shown", "and the 10 s after it");
    browser.until("document.querySelectorAll('.plane')[1].querySelectorAll('.readout')[1].textContent === '' || !document.querySelectorAll('.plane')[1].querySelectorAll('.readout')[1].textContent.includes('denied')");
    // A dry run, and the end.
    browser.click("#live", 8.0, 8.0);
    let denied = vec![entry("link p0-t0-1:p0-t1-2", "")];
    set(DenyReport { dry_run: true, denied, ..DenyReport::default() });
    browser.shows("#followed", "dry run");
    browser.until("document.querySelectorAll('#denied li').length === 1");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn a_click_in_a_map_shows_the_link() {
    if !browser::is_there() {
        return;
    }
    let made_up = small();
    made_up.now(&[], vec![], None);
    let server = made_up.serve(ANY, &[]);
    let mut browser = Browser::start("click");
    browser.look(1400, 900, "light");
    // What is chosen is in the address.
    browser.open(&format!("http://{}/#plane=0&of=h0%3Ap0-t0-0", server.address()));
    browser.shows("#details", "Link h0:p0-t0-0");
    browser.until("document.querySelectorAll('.plane').length === 1");
    rounds(&mut browser, 1);
    // The second row, the third column: cells of 26 pixels, after labels of 30 and 16.
    browser.click(".plane canvas[tabindex]", 30.0 + 2.5 * 26.0, 16.0 + 1.5 * 26.0);
    browser.shows("#details", "Link p0-t0-1:p0-t1-2");
    browser.shows("#details", "No agent that reports probes it.");
    browser.until("location.hash === '#plane=0&of=p0-t0-1%3Ap0-t1-2'");
    browser.click(".plane canvas[tabindex]", 30.0 + 1.5 * 26.0, 16.0 + 0.5 * 26.0);
    browser.shows("#details", "Link p0-t0-0:p0-t1-1");
    browser.shows("#details", "Round trip of this agent's probes: median 11.2 us");
    // The line of a link in the picture of the tiers: of the first host.
    let line = "(() => { const { width, height } = document.querySelector('.plane canvas').getBoundingClientRect(); \
                return [58 + (width - 70) / 16, height - 26]; })()";
    let at = browser.eval(line);
    browser.click(".plane canvas", at[0].as_f64().unwrap(), at[1].as_f64().unwrap());
    browser.shows("#details", "Link h0:p0-t0-0");
    browser.click("#choice input[value=all]", 4.0, 4.0);
    browser.until("document.querySelectorAll('.plane').length === 2");
    // Without a store this agent's links are all there is.
    browser.shows(".plane", "32 links: 7 healthy, 25 unknown.");
    assert_eq!(browser.eval("document.querySelector('#notes').innerText"), "");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn the_past_is_shown() {
    if !browser::is_there() {
        return;
    }
    let made_up = small();
    let at = |frames: u32| made_up.start - f64::from(frames * 10);
    made_up.now(&[], vec![], Some(""));
    made_up.note(finding("switch", &[DEAD.0], 1.0, at(200)), at(150));
    made_up.note(finding("link", &[GRAY.0], 0.03, at(60)), at(40));
    let server = made_up.serve(ANY, &[(400, &[]), (50, &[DEAD]), (90, &[]), (20, &[GRAY]), (40, &[])]);
    let mut browser = Browser::start("past");
    browser.look(1400, 900, "light");
    browser.open(&format!("http://{}/#of=p1-t0-2%3Ap1-t1-3", server.address()));
    browser.shows("#shown", "Now. The history begins at");
    // Until all is where it stays.
    rounds(&mut browser, 1);
    let press = |browser: &mut Browser, id: &str| browser.click(&format!("#{id}"), 8.0, 8.0);
    press(&mut browser, "earlier-fault");
    browser.shows("#shown", "and the 10 s after it: 1 under 10 %, 63 healthy.");
    browser.shows(".plane:nth-child(2)", "32 links: 1 under 10 %, 31 healthy.");
    browser.shows("#faults", "link p1-t0-2:p1-t1-3");
    browser.shows("#details", "Explanation");
    browser.shows("#details", "healthy, then under 10 %");
    browser.shows("#details", "for 3 min. The link p1-t0-2:p1-t1-3 loses");
    pictures(&mut browser, "past");
    press(&mut browser, "earlier-fault");
    browser.shows("#shown", "4 down, 60 healthy.");
    browser.shows("#faults", "switch p0-t1-4");
    browser.shows("#condition", "No component is at fault now. What is shown is earlier.");
    press(&mut browser, "earlier");
    browser.shows("#shown", "after it: 64 healthy.");
    browser.shows("#faults", "Nothing at this time.");
    press(&mut browser, "later-fault");
    browser.shows("#shown", "4 down, 60 healthy.");
    // The slider, by the keyboard: to the beginning, where frames are of a minute.
    browser.eval("document.getElementById('slider').focus()");
    browser.press("Home");
    browser.shows("#shown", "and the 60 s after it: 64 healthy.");
    browser.until("document.getElementById('earlier').disabled");
    browser.press("ArrowRight");
    browser.until("!document.getElementById('earlier').disabled");
    browser.press("End");
    browser.shows("#shown", "Now.");
    browser.press("ArrowLeft");
    browser.shows("#shown", "and the 10 s after it: 64 healthy.");
    press(&mut browser, "live");
    browser.shows("#shown", "Now.");
    browser.shows(".plane:nth-child(2)", "32 links: 32 healthy.");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn an_agent_that_stops_is_noticed_and_its_return_too() {
    if !browser::is_there() {
        return;
    }
    let made_up = small();
    made_up.now(&[GRAY], vec![finding("link", &[GRAY.0], 0.03, made_up.start)], Some(""));
    let server = made_up.serve(ANY, &[(30, &[GRAY])]);
    let address = server.address().to_string();
    let mut browser = Browser::start("stop");
    browser.look(1400, 900, "light");
    browser.open(&format!("http://{address}/"));
    browser.shows("#condition", "1 fault is known.");
    drop(server);
    browser.shows("#condition", "The agent does not reply. What is shown is as of");
    browser.until("document.body.classList.contains('stale')");
    pictures(&mut browser, "stopped");
    // Another topology: the page notices.
    let other = MadeUp::new(fabric(3, 2, 2, 1));
    other.now(&[], vec![], None);
    let _server = other.serve(&address, &[]);
    browser.shows("#condition", "No component is at fault.");
    browser.until(
        "document.querySelectorAll('.plane').length === 3 && !document.body.classList.contains('stale')",
    );
}

/// The page counts links as the agent does, and reads frames of both kinds.
#[test]
fn the_page_and_the_agent_mean_the_same_links() {
    if !browser::is_there() {
        return;
    }
    let shape = |planes, t0, t1| Shape { planes, t0, t1, ..Shape::default() };
    let three = Shape { pods: 2, t2: 3, ..shape(2, 4, 2) };
    let mut browser = Browser::start("names");
    for shape in [shape(2, 3, 5), shape(2, 2, 0), three] {
        let made_up = MadeUp::new(fabric_of(shape, 2));
        let fabric = &made_up.fabric;
        let names: Vec<String> =
            fabric.links().map(|(a, b)| format!("{}:{}", fabric.name(a), fabric.name(b))).collect();
        // Each other link loses a share of its own.
        let faults: Vec<(&str, f64)> =
            names.iter().zip(0_u8..).map(|(name, at)| (name.as_str(), f64::from(at % 3) * 0.05)).collect();
        for faults in [&faults[..], &[]] {
            made_up.now(faults, vec![], Some(""));
            let server = made_up.serve(ANY, &[]);
            browser.open(&format!("http://{}/", server.address()));
            browser.shows("#condition", "No component is at fault.");
            let read = browser.eval(
                "(async () => { const { Fabric } = await import('/page/fabric.js'); \
                 const { readFrame } = await import('/page/levels.js'); \
                 const fabric = new Fabric(await (await fetch('/api/v1/fabric')).json()); \
                 const frame = readFrame(await (await fetch('/api/v1/links')).arrayBuffer()); \
                 const names = [...frame.levels.keys()].map((link) => fabric.name(link)); \
                 return { names, numbers: names.map((name) => fabric.number(name)), levels: [...frame.levels] }; })()",
            );
            let expected = levels::of_links(&Layout::new(fabric), &made_up.view());
            assert_eq!(read["names"], serde_json::json!(names));
            assert_eq!(read["numbers"], serde_json::json!((0..names.len()).collect::<Vec<_>>()));
            assert_eq!(read["levels"], serde_json::json!(expected));
            let kind = schema::get(server.address(), "/api/v1/links").1[20];
            assert_eq!(kind, u8::from(!faults.is_empty()), "one kind and the other");
        }
    }
}

#[test]
fn a_token_is_asked_for() {
    use std::os::unix::fs::PermissionsExt as _;
    if !browser::is_there() {
        return;
    }
    let place = std::env::temp_dir().join(format!("spindrift-page-token-{}", std::process::id()));
    std::fs::write(&place, "a-token-of-the-test").unwrap();
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o600)).unwrap();
    let token = Token::read(&place).unwrap();
    std::fs::remove_file(&place).unwrap();
    let made_up = small();
    made_up.now(&[], vec![], None);
    let server = made_up.serve_with(ANY, &[], Some(token));
    let mut browser = Browser::start("token");
    browser.look(1400, 900, "light");
    browser.open(&format!("http://{}/", server.address()));
    browser.shows("#condition", "The agent asks for its token.");
    pictures(&mut browser, "token");
    browser.eval("document.querySelector('#token').focus()");
    browser.insert("not-the-token-at-all");
    browser.press("Enter");
    browser.shows("#condition", "This is not the agent's token.");
    browser.eval("document.querySelector('#token').focus()");
    browser.insert("a-token-of-the-test");
    browser.press("Enter");
    browser.shows("#condition", "No component is at fault.");
    browser.until("document.querySelector('#access').hidden");
    // It stays for as long as the tab is open.
    browser.eval("location.reload()");
    browser.shows("#condition", "No component is at fault.");
}

/// 4 planes with 256 T0 and 256 T1 switches each.
#[test]
fn a_large_fabric_is_shown() {
    if !browser::is_there() {
        return;
    }
    let made_up = MadeUp::new(fabric(4, 256, 256, 1));
    let faults = [("p1-t0-20:p1-t1-200", 0.5), ("p2-t1-77", 1.0), ("h9:p3-t0-9", 0.02)];
    made_up.now(&faults, vec![finding("switch", &["p2-t1-77"], 1.0, made_up.start)], Some(""));
    let server = made_up.serve(ANY, &[(20, &[]), (10, &faults)]);
    for path in ["links", "link/p1-t0-20:p1-t1-200", "history"] {
        let began = std::time::Instant::now();
        let bytes = schema::get(server.address(), &format!("/api/v1/{path}")).1.len();
        eprintln!("{path}: {bytes} bytes after {:?}", began.elapsed());
    }
    let mut browser = Browser::start("large");
    browser.look(1400, 900, "light");
    browser.open(&format!("http://{}/", server.address()));
    browser.shows(".plane:nth-child(1)", "65,792 links: 65,792 healthy.");
    browser.shows(".plane:nth-child(2)", "65,792 links: 1 lossy, 65,791 healthy.");
    browser.shows(".plane:nth-child(3)", "65,792 links: 256 down, 65,536 healthy.");
    browser.shows(".plane:nth-child(4)", "65,792 links: 1 under 10 %, 65,791 healthy.");
    // A link is found among 65,536.
    browser.eval("document.querySelectorAll('.plane')[1].querySelector('canvas[tabindex]').focus()");
    browser.press("n");
    browser.shows(".plane:nth-child(2) .readout", "p1-t0-20:p1-t1-200: 10 to 95 % lost");
    browser.press("Enter");
    browser.shows("#details", "Link p1-t0-20:p1-t1-200");
    browser.shows("#details", "Probed by h20.");
    // What has not changed is not drawn again, and of what has, the plane alone.
    rounds(&mut browser, 2);
    let drawings = |browser: &mut Browser| {
        let all =
            browser.eval("[...document.querySelectorAll('.plane')].map((plane) => plane.dataset.drawings)");
        all.as_array().unwrap().iter().map(|count| count.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let before = drawings(&mut browser);
    rounds(&mut browser, 2);
    assert_eq!(drawings(&mut browser), before);
    made_up.now(&faults[..2], vec![finding("switch", &["p2-t1-77"], 1.0, made_up.start)], Some(""));
    browser.shows(".plane:nth-child(4)", "65,792 links: 65,792 healthy.");
    let after = drawings(&mut browser);
    assert!(after[..3] == before[..3] && after[3] != before[3], "{before:?} {after:?}");
    made_up.now(&faults, vec![finding("switch", &["p2-t1-77"], 1.0, made_up.start)], Some(""));
    browser.shows(".plane:nth-child(4)", "65,792 links: 1 under 10 %, 65,791 healthy.");
    let sizes = browser.eval(
        "performance.getEntriesByType('resource').filter((entry) => entry.name.includes('/api/')).map((entry) => entry.encodedBodySize)",
    );
    let largest = sizes.as_array().unwrap().iter().filter_map(serde_json::Value::as_u64).max().unwrap();
    assert!(largest < 200_000, "{sizes}");
    eprintln!("drawing took {} ms", browser.eval("document.body.dataset.drawMs"));
    pictures(&mut browser, "large");
    assert_eq!(browser.errors(), Vec::<String>::new());
}
