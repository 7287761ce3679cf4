//! An agent's parts together.

use spindrift_srv6::Fabric;

use crate::prober::ProbeSettingsError;
use crate::record::RecordError;
use crate::share::SharePolicy;
use crate::{
    Change, LocateSettings, LocateSettingsError, Locator, Outcome, Plan, PlanError, Probe, ProbeSettings,
    Prober, Recorder, Refused, Report, View,
};

/// How an agent works.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AgentSettings {
    /// How links are shared with other agents. All agents of a fabric must agree.
    pub share: SharePolicy,
    /// How it probes.
    pub probe: ProbeSettings,
    /// When it accuses a component.
    pub locate: LocateSettings,
}

/// An agent cannot start.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AgentError {
    /// There is no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// It cannot probe like this.
    #[error(transparent)]
    Probe(#[from] ProbeSettingsError),
    /// It cannot keep records like this.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// It cannot locate faults like this.
    #[error(transparent)]
    Locate(#[from] LocateSettingsError),
}

/// The prober of a host, its records, and the faults that it knows of.
#[derive(Debug)]
pub struct Agent {
    share: SharePolicy,
    plan: Plan,
    prober: Prober,
    recorder: Recorder,
    locator: Locator,
}

impl Agent {
    /// An agent on `host` that starts now, among those of the `live` hosts, or of all hosts. `seed` must be from a cryptographic source.
    ///
    /// # Errors
    /// If the host or a setting is wrong, by name.
    pub fn new(
        fabric: &Fabric,
        host: u16,
        live: Option<&[u16]>,
        settings: AgentSettings,
        (seed, now_ns): ([u8; 32], u64),
    ) -> Result<Self, AgentError> {
        settings.locate.check()?;
        let plan = Plan::new(fabric, host, live, settings.share)?;
        let prober = Prober::new(&plan, settings.probe, seed, now_ns)?;
        let recorder = Recorder::new(&plan, settings.probe.timeout_ns, now_ns)?;
        Ok(Self { share: settings.share, plan, prober, recorder, locator: Locator::new(settings.locate) })
    }

    /// Shares the links among the agents of the `live` hosts from now on; `None` for those of all hosts. Links that stay keep their records, and
    /// probes in flight over the others count as neither lost nor returned. Returns whether anything changed; the numbers of paths
    /// are other ones then.
    ///
    /// # Errors
    /// If the own host is not among them, or the settings do not fit the new plan: nothing has changed.
    pub fn replan(&mut self, fabric: &Fabric, live: Option<&[u16]>, now_ns: u64) -> Result<bool, AgentError> {
        let plan = Plan::new(fabric, self.plan.host(), live, self.share)?;
        if plan == self.plan {
            return Ok(false);
        }
        let recorder = self.recorder.replanned(&self.plan, &plan)?;
        self.prober.replan(&self.plan, &plan, now_ns)?;
        (self.plan, self.recorder) = (plan, recorder);
        Ok(true)
    }

    /// What it probes.
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// When it probes, and what it counts.
    pub const fn prober(&self) -> &Prober {
        &self.prober
    }

    /// What it knows about its links.
    pub const fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The faults that it knows of.
    pub const fn locator(&self) -> &Locator {
        &self.locator
    }

    /// The next probe that is due, if one is: see [`Prober::poll`].
    pub fn poll(&mut self, now_ns: u64) -> Option<Probe> {
        self.prober.poll(now_ns)
    }

    /// A packet came in at the agent's address: see [`Prober::on_return`].
    ///
    /// # Errors
    /// Why it is not the return of a probe in flight.
    pub fn on_return(&mut self, now_ns: u64, plane: u8, payload: &[u8]) -> Result<Outcome, Refused> {
        let outcome = self.prober.on_return(now_ns, plane, payload)?;
        self.recorder.record(&outcome);
        Ok(outcome)
    }

    /// A probe was not sent, since the host's own queue was full: see [`Prober::on_unsent`].
    pub fn on_unsent(&mut self, probe: &Probe) {
        self.prober.on_unsent(probe.payload.seq);
    }

    /// Counts the next probe whose time is over; `false` if there is none. Call it again until then.
    pub fn on_timeout(&mut self, now_ns: u64) -> bool {
        let Some(outcome) = self.prober.on_timeout(now_ns) else { return false };
        self.recorder.record(&outcome);
        true
    }

    /// When to call [`on_timeout`](Self::on_timeout) and [`poll`](Self::poll) next.
    pub fn next_timeout(&self) -> u64 {
        self.prober.next_timeout()
    }

    /// What it has to report as of now.
    pub fn report(&self, now_ns: u64) -> Report {
        self.recorder.report(now_ns)
    }

    /// Judges the reports of other agents together with its own. Without others, pass an empty view.
    pub fn locate(&mut self, now_ns: u64, fabric: &Fabric, mut others: View) -> Vec<Change> {
        others.insert(&self.report(now_ns));
        self.locator.update(now_ns, fabric, &others)
    }
}
