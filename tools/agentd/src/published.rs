//! What an agent knows, for other threads: it writes here, and the HTTP interface reads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spindrift_agent::{Report, View};
use spindrift_control::Watch;
use spindrift_srv6::Fabric;

use crate::history::{Episode, Episodes, History};
use crate::layout::Layout;
use crate::runner::Event;
use crate::snapshot::Snapshot;

/// What an agent knows now, and the faults that it told of.
#[derive(Debug, Default)]
pub struct Published {
    snapshot: Mutex<Arc<Snapshot>>,
    report: Mutex<Option<Report>>,
    episodes: Mutex<Episodes>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Published {
    /// The latest.
    pub fn get(&self) -> Arc<Snapshot> {
        Arc::clone(&lock(&self.snapshot))
    }

    /// The faults that were told of, the oldest first.
    pub fn episodes(&self) -> Vec<Episode> {
        lock(&self.episodes).iter().cloned().collect()
    }

    /// Takes the place of what was known before.
    pub fn set(&self, snapshot: Snapshot) {
        *lock(&self.snapshot) = Arc::new(snapshot);
    }

    /// The agent's counts, as other agents get them.
    pub fn report(&self, report: Report) {
        *lock(&self.report) = Some(report);
    }

    /// A fault came, changed or went.
    pub fn note(&self, event: &Event) {
        lock(&self.episodes).note(event);
    }
}

/// Where the HTTP interface gets all from that it shows.
pub struct Source {
    pub(crate) fabric: Fabric,
    pub(crate) layout: Layout,
    pub(crate) published: Arc<Published>,
    pub(crate) history: History,
    others: Box<dyn Fn() -> View + Send + Sync>,
    pub(crate) processes: Watch,
}

impl Source {
    /// An agent of this fabric, and what the others report, if any do.
    pub fn new(
        fabric: Fabric,
        published: Arc<Published>,
        others: impl Fn() -> View + Send + Sync + 'static,
    ) -> Self {
        let layout = Layout::new(&fabric);
        Self {
            fabric,
            layout,
            published,
            history: History::default(),
            others: Box::new(others),
            processes: Watch::all(Vec::new()),
        }
    }

    /// Begins with a history.
    #[must_use]
    pub fn with_history(self, history: History) -> Self {
        Self { history, ..self }
    }

    /// Shows the counters of these processes too.
    #[must_use]
    pub fn with_processes(self, processes: Watch) -> Self {
        Self { processes, ..self }
    }

    /// The reports of all agents; `None` before the first.
    pub(crate) fn view(&self) -> Option<View> {
        let own = lock(&self.published.report).clone()?;
        let mut view = (self.others)();
        view.insert(&own);
        Some(view)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use spindrift_agent::{Count, Path, PathReport, Window};
    use spindrift_srv6::{FabricHost, Node, Shape};

    use super::*;

    #[test]
    fn the_view_has_the_own_report() {
        let host = FabricHost { name: "a".into(), t0: 0, downlink: 0 };
        let fabric = Fabric::new(Shape { planes: 1, t0: 1, t1: 0, ..Shape::default() }, vec![host]).unwrap();
        let published = Arc::new(Published::default());
        let source = Source::new(fabric, Arc::clone(&published), View::default);
        assert_eq!(source.view(), None);
        let top = Node::T0 { plane: 0, number: 0 };
        for lost in [1, 2] {
            let path = PathReport { top, counts: Window::ALL.map(|_| Count { sent: 5, lost }) };
            published.report(Report { host: 0, running_ns: 1, paths: vec![path] });
            let count = source.view().unwrap().count(Path { host: 0, top }, Window::Second);
            assert_eq!(count, Count { sent: 5, lost });
        }
    }
}
