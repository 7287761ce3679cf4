//! A model of the NICs of one side: reliable connections, whose requests are carried out one step at a time.

use std::collections::{BTreeMap, VecDeque};

use crate::fallback::{Cause, Nic, PairId, RemoteKey, Verbs};
use crate::verbs::PostError;
use crate::work::{GatherWr, ScatterWr, SendOp, SendWr, Wc, WcOpcode, WcStatus};

/// The remote key of a request that needs none.
pub(super) const NO_KEY: u32 = 0xffff_ffff;

/// A request in a send queue.
#[derive(Clone, Debug, Hash)]
pub(super) struct Out {
    pub(super) wr_id: u64,
    pub(super) op: SendOp,
    pub(super) signaled: bool,
    /// The application's number of it, for its own requests.
    pub(super) number: u64,
    pub(super) executed: bool,
}

/// One end of a pair.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct End {
    pub(super) connected: bool,
    pub(super) error: bool,
    /// Its NIC was removed: it takes no requests.
    pub(super) gone: bool,
    pub(super) cause: Option<Cause>,
    pub(super) sends: VecDeque<Out>,
    pub(super) receives: VecDeque<u64>,
    pub(super) completions: VecDeque<Wc>,
}

impl End {
    pub(super) fn flush(&mut self) {
        self.error = true;
        for out in std::mem::take(&mut self.sends) {
            let opcode = out.op.wc_opcode();
            let status = WcStatus::WrFlushError;
            self.completions.push_back(Wc { wr_id: out.wr_id, status, opcode, ..Wc::default() });
        }
        for wr_id in std::mem::take(&mut self.receives) {
            let (status, opcode) = (WcStatus::WrFlushError, WcOpcode::Recv);
            self.completions.push_back(Wc { wr_id, status, opcode, ..Wc::default() });
        }
    }
}

/// The NICs of one side.
#[derive(Clone, Debug, Hash)]
pub(super) struct Nics {
    pub(super) ends: BTreeMap<PairId, End>,
    /// The next pair on each NIC.
    pub(super) next: [u32; 2],
    pub(super) max_send: usize,
    pub(super) max_recv: usize,
    pub(super) store_down: bool,
    /// The keys of this NIC are not known yet.
    pub(super) keys_pending: bool,
}

/// The number in a request's remote key.
pub(super) fn key(number: u64, nic: Nic) -> u32 {
    number as u32 * 2 + nic as u32 + 10
}

impl Verbs for Nics {
    fn check(&self, _: &GatherWr<'_>) -> Result<(), PostError> {
        Ok(())
    }

    fn post_send(&mut self, pair: PairId, wr: SendWr) -> Result<(), PostError> {
        let SendWr { wr_id, op, local, remote, signaled, fence } = wr;
        self.post_gather(pair, GatherWr { wr_id, op, local: &[local], remote, signaled, fence })
    }

    fn post_gather(&mut self, pair: PairId, wr: GatherWr<'_>) -> Result<(), PostError> {
        let (nic, own) = (pair.nic, wr.wr_id >> 63 != 0);
        let end = self.ends.get_mut(&pair).expect("a pair that exists");
        if end.gone {
            return Err(PostError::LaneFailed);
        }
        assert!(
            end.error || pair == PairId::FIRST || end.connected,
            "{pair} takes a send before it is connected"
        );
        assert!(end.error || end.sends.len() < self.max_send, "{pair}: send queue is full");
        if !own && !wr.is_empty() {
            assert_eq!(wr.local[0].lkey, wr.remote.addr as u32 * 2 + nic as u32, "local key of the {nic}");
            if !matches!(wr.op, SendOp::Send | SendOp::SendWithImm(_)) {
                assert_eq!(wr.remote.rkey, key(wr.remote.addr, nic), "remote key of the {nic}");
            }
        }
        let out = Out {
            wr_id: wr.wr_id,
            op: wr.op,
            signaled: wr.signaled,
            number: wr.remote.addr,
            executed: false,
        };
        end.sends.push_back(out);
        if end.error {
            end.flush();
        }
        Ok(())
    }

    fn post_recv(&mut self, pair: PairId, wr: ScatterWr<'_>) -> Result<(), PostError> {
        let end = self.ends.get_mut(&pair).expect("a pair that exists");
        if end.gone {
            return Err(PostError::LaneFailed);
        }
        assert!(end.error || end.receives.len() < self.max_recv, "{pair}: receive queue is full");
        end.receives.push_back(wr.wr_id);
        if end.error {
            end.flush();
        }
        Ok(())
    }

    fn fail(&mut self, pair: PairId) {
        self.ends.get_mut(&pair).expect("a pair that exists").flush();
    }

    fn destroy(&mut self, pair: PairId) {
        let end = self.ends.remove(&pair).expect("a pair that exists");
        assert!(end.error && end.completions.is_empty(), "{pair} is destroyed with completions");
    }

    fn cause(&self, pair: PairId) -> Cause {
        self.ends.get(&pair).and_then(|end| end.cause).expect("a failed pair")
    }

    fn local_key(&self, nic: Nic, lkey: u32) -> Option<u32> {
        Some(lkey + nic as u32)
    }

    fn remote_key(&mut self, nic: Nic, rkey: u32) -> RemoteKey {
        assert_eq!(nic, Nic::Backup, "the default NIC has the application's keys");
        assert_ne!(rkey, NO_KEY, "the key of a request that needs none");
        match (self.store_down, self.keys_pending) {
            (true, _) => RemoteKey::Unreachable,
            (_, true) => RemoteKey::Pending,
            _ => RemoteKey::Known(rkey + nic as u32),
        }
    }
}
