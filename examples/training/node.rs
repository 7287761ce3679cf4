//! A rank's queue pairs with its two neighbours in the ring, on one NIC or on two.

use std::time::{Duration, Instant};

use spindrift::endpoint::QpInfo;
use spindrift::fallback::{self, FallbackConfig, Nic, QpId};
use spindrift::memory::Region;
use spindrift::path::{PathConfig, PlaneSet};
use spindrift::pmd::udp::{UdpConfig, UdpPort};
use spindrift::verbs::{
    self, Access, Context, ContextConfig, Cq, Pd, Qp, QpConfig, RecvWr, RtsAttr, SendOp, SendWr, Sge, Wc, nic,
};
use spindrift::work::RemoteAddr;
use spindrift_exchange::{Channel, Offer, PeerStore};

use crate::Outcome;

/// How a job survives the death of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It does not: there is one NIC.
    One,
    /// One queue pair has the planes of both NICs.
    Seamless,
    /// A queue pair on each NIC, after the SHIFT paper.
    Shift,
}

/// The addresses of a rank's NICs, by plane.
#[derive(Clone, Debug)]
pub struct Nics {
    pub first: Vec<String>,
    pub second: Vec<String>,
}

/// Requests of each queue pair.
const DEPTH: u32 = 64;
const TIMEOUT: Duration = Duration::from_secs(30);

/// What is sent goes to the next rank, and what is received comes from the one before.
pub struct Node {
    inner: Inner,
    /// Messages that have been sent, and received.
    pub done: [u64; 2],
}

enum Inner {
    Verbs { context: Context, _pd: Pd, cq: Cq, mr: verbs::Mr, qps: [Qp; 2] },
    Shift { context: fallback::Context, mr: fallback::Mr, qps: [QpId; 2], peers: PeerStore },
}

impl Node {
    /// Opens the NICs, with `len` bytes of memory.
    pub fn open(mode: Mode, nics: &Nics, len: usize) -> Outcome<Self> {
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let config = qp_config(mode, nics);
        let inner = if mode == Mode::Shift {
            let (default, backup) = (open(&nics.first)?, open(&nics.second)?);
            let peers = PeerStore::default();
            let hold_ns = config.path.failback_hold_ns;
            let settings = FallbackConfig { hold_ns, ..FallbackConfig::default() };
            let store = Box::new(peers.clone());
            let mut context = fallback::Context::open(&default, &backup, store, 4 * DEPTH, settings)?;
            let mr = context.register(len, access)?;
            let qps = [context.create_qp(&config)?, context.create_qp(&config)?];
            for qp in qps {
                context.init(qp)?;
            }
            Inner::Shift { context, mr, qps, peers }
        } else {
            let second: &[String] = if mode == Mode::Seamless { &nics.second } else { &[] };
            let context = open(&[&nics.first, second].concat())?;
            let pd = context.create_pd()?;
            let cq = context.create_cq(4 * DEPTH)?;
            let mr = pd.register(len, access)?;
            let mut qps = [Qp::create(&pd, &cq, &cq, &config)?, Qp::create(&pd, &cq, &cq, &config)?];
            for qp in &mut qps {
                qp.init()?;
            }
            Inner::Verbs { context, _pd: pd, cq, mr, qps }
        };
        Ok(Self { inner, done: [0; 2] })
    }

    /// Connects a queue pair, 0 with the next rank and 1 with the one before, over the first channel. The key-value store of mode
    /// [`Mode::Shift`] keeps the second one.
    pub fn connect(&mut self, at: usize, channel: &mut Channel, store: Channel) -> Outcome<()> {
        if let Inner::Shift { peers, .. } = &self.inner {
            peers.add(store);
        }
        let offer = Offer { qps: vec![self.info(at)?], memory: Vec::new(), app: String::new() };
        channel.agree(&offer, |theirs, agreed| match (&mut self.inner, &*theirs.qps, agreed) {
            (Inner::Verbs { qps, .. }, _, [agreed]) => qps[at].establish(agreed),
            (Inner::Shift { context, qps, .. }, [peer], _) => context.connect(qps[at], peer),
            _ => Ok(()),
        })?;
        Ok(())
    }

    fn info(&self, at: usize) -> Outcome<QpInfo> {
        Ok(match &self.inner {
            Inner::Verbs { qps, .. } => qps[at].info()?,
            Inner::Shift { context, qps, .. } => context.info(qps[at])?,
        })
    }

    /// Waits until both queue pairs would survive the first NIC.
    pub fn prepare(&mut self) -> Outcome<()> {
        let start = Instant::now();
        while let Inner::Shift { context, qps, .. } = &self.inner
            && !(context.is_prepared(qps[0], Nic::Backup)? && context.is_prepared(qps[1], Nic::Backup)?)
        {
            if start.elapsed() > TIMEOUT {
                return Err("no queue pair could be prepared on the second NIC".into());
            }
            self.poll()?;
        }
        Ok(())
    }

    pub fn region(&self) -> &Region {
        match &self.inner {
            Inner::Verbs { mr, .. } => mr.region(),
            Inner::Shift { mr, .. } => mr.region(),
        }
    }

    fn sge(&self, offset: usize, len: usize) -> Outcome<Sge> {
        Ok(match &self.inner {
            Inner::Verbs { mr, .. } => mr.sge(offset, len as u32)?,
            Inner::Shift { mr, .. } => mr.sge(offset, len as u32)?,
        })
    }

    /// Sends bytes of this rank's memory to the next one.
    pub fn send(&mut self, offset: usize, len: usize) -> Outcome<()> {
        let (local, remote) = (self.sge(offset, len)?, RemoteAddr::default());
        let wr = SendWr { wr_id: 0, op: SendOp::Send, local, remote, signaled: true, fence: false };
        match &mut self.inner {
            Inner::Verbs { qps, .. } => qps[0].post_send(wr)?,
            Inner::Shift { context, qps, .. } => context.post_send(qps[0], wr)?,
        }
        Ok(())
    }

    /// Takes the next message of the rank before into this rank's memory.
    pub fn receive(&mut self, offset: usize, len: usize) -> Outcome<()> {
        let wr = RecvWr { wr_id: 0, local: self.sge(offset, len)? };
        match &mut self.inner {
            Inner::Verbs { qps, .. } => qps[1].post_recv(wr)?,
            Inner::Shift { context, qps, .. } => context.post_recv(qps[1], wr)?,
        }
        Ok(())
    }

    /// Drives the lanes, and takes completions. Returns whether there were any.
    pub fn poll(&mut self) -> Outcome<bool> {
        let mut wcs = [Wc::default(); 16];
        let count = match &mut self.inner {
            Inner::Verbs { context, cq, .. } => {
                context.poll();
                cq.poll(&mut wcs)?
            }
            Inner::Shift { context, .. } => context.poll(&mut wcs),
        };
        for wc in wcs.iter().take(count) {
            if !wc.status.is_success() {
                return Err(format!("a queue pair failed: {}", wc.status).into());
            }
            self.done[usize::from(wc.opcode.is_receive())] += 1;
        }
        Ok(count > 0)
    }
}

/// A context over ports at these addresses.
fn open(addresses: &[String]) -> Outcome<Context> {
    let port = |text: &String| -> Outcome<UdpPort> {
        let local = text.parse().map_err(|error| format!("{text}: {error}"))?;
        Ok(UdpPort::open(&UdpConfig { local, ..UdpConfig::default() })?)
    };
    let ports = nic(addresses.iter().map(port).collect::<Outcome<Vec<_>>>()?);
    let config = ContextConfig::new(&ports);
    Ok(Context::open(ports, config)?)
}

/// A NIC that falls silent is left after 0.4 s, where nothing notices it sooner.
fn qp_config(mode: Mode, nics: &Nics) -> QpConfig {
    let (first, all) = (nics.first.len() as u8, (nics.first.len() + nics.second.len()) as u8);
    let (planes, standby) = match mode {
        Mode::Seamless => (all, PlaneSet(PlaneSet::first(all).0 & !PlaneSet::first(first).0)),
        Mode::One | Mode::Shift => (first, PlaneSet::default()),
    };
    let path = PathConfig { standby, failback_hold_ns: 200_000_000, ..PathConfig::new(planes) };
    let retry = RtsAttr { timeout: 14, linear_retries: 7, exponential_retries: 3, ..RtsAttr::default() };
    QpConfig { max_send_wr: DEPTH, max_recv_wr: DEPTH, path, retry, ..QpConfig::default() }
}
