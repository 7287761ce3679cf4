//! Who listens to the reports.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Mutex, Once};

use tracing::field::{Field, Visit};
use tracing::subscriber::set_global_default;
use tracing::{Level, Metadata, Subscriber, span};

#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) level: Level,
    pub(crate) target: &'static str,
    fields: BTreeMap<&'static str, String>,
}

impl Report {
    pub(crate) fn get(&self, field: &str) -> &str {
        self.fields.get(field).map_or("", String::as_str)
    }

    pub(crate) fn text(&self) -> &str {
        self.get("message")
    }
}

impl Visit for Report {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }
}

thread_local! {
    /// The reports that came on this thread, in whose tests somebody listens.
    static SEEN: RefCell<Vec<Report>> = const { RefCell::new(Vec::new()) };
}

/// The reports of threads whose names begin with this, which are lanes.
const LANE: &str = "spindrift-";
static OF_LANES: Mutex<Vec<Report>> = Mutex::new(Vec::new());

/// The reports of lanes with threads of their own since the last call.
pub(crate) fn take_of_lanes() -> Vec<Report> {
    std::mem::take(&mut OF_LANES.lock().unwrap())
}

/// The reports since the last call.
pub(crate) fn take() -> Vec<Report> {
    SEEN.take()
}

/// Hears all threads; each test reads its own.
struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("spindrift::")
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        let mut report = Report { level, target, fields: BTreeMap::new() };
        event.record(&mut report);
        if std::thread::current().name().is_some_and(|name| name.starts_with(LANE)) {
            OF_LANES.lock().unwrap().push(report);
        } else {
            SEEN.with_borrow_mut(|seen| seen.push(report));
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        panic!("the transport has no spans");
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Starts to listen; the first thing that every test does.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| set_global_default(Listener).unwrap());
    take();
}

pub(crate) fn with_text<'a>(reports: &'a [Report], text: &str) -> Vec<&'a Report> {
    reports.iter().filter(|report| report.text() == text).collect()
}
