//! MRC's attributes of a queue pair: what a program has set, when it may, and what follows for the connection.
//!
//! | Attribute | Takes effect | May be set until |
//! |---|---|---|
//! | `MPR_DEST`, `MAX_WIMM_DEST`, `CAP`, the profiles | in the message to the peer at RTR | RTR, with the change itself |
//! | `MPR`, `MAX_WIMM` | when it begins to send | RTS, with the change itself |
//! | `TIMEOUT`, `RETRY_CNT` | at once | any time |
//! | `HINT`, `VENDOR_CFG` | never: they are kept and given back | any time |
//!
//! Each may come earlier. What was not set is what the two libraries agree on.

use core::ffi::c_int;
use std::sync::Arc;

use spindrift::endpoint::QpInfo;
use spindrift::verbs::{RtrAttr, RtsAttr};

use super::abi::{MRC_MAX_VENDOR_CFG_SIZE, attr_mask, mrc_qp_attr, qp_cap};
use super::hint::{Hint, HintBox};
use crate::abi::qp_state;

/// What a program sets with a call.
pub(crate) struct Change {
    attr: mrc_qp_attr,
    mask: c_int,
    hint: Option<Arc<Hint>>,
}

impl Change {
    /// # Safety
    /// Attributes, or null with an empty mask; the hint that the mask names is one of this library, or null.
    pub(super) unsafe fn new(attr: *const mrc_qp_attr, mask: c_int) -> Result<Self, c_int> {
        if mask & !attr_mask::ALL != 0 || (attr.is_null() && mask != 0) {
            return Err(libc::EINVAL);
        }
        let attr = if attr.is_null() {
            NONE
        } else {
            // SAFETY: as the caller promises.
            unsafe { attr.read() }
        };
        let hint = (mask & attr_mask::HINT != 0 && !attr.qp_hint.is_null()).then(|| {
            // SAFETY: as the caller promises.
            Arc::clone(&unsafe { HintBox::of(attr.qp_hint) }.hint)
        });
        Ok(Self { attr, mask, hint })
    }

    const fn has(&self, bits: c_int) -> bool {
        self.mask & bits != 0
    }

    /// Whether each value that the mask names is one of the attribute.
    fn check(&self) -> Result<(), c_int> {
        let attr = &self.attr;
        let fits = (!self.has(attr_mask::MPR) || attr.mpr > 0)
            && (!self.has(attr_mask::MPR_DEST) || attr.mpr_dest > 0)
            && (!self.has(attr_mask::TIMEOUT) || attr.timeout <= RtsAttr::MAX_TIMEOUT)
            && (!self.has(attr_mask::CAP) || attr.cap & !qp_cap::ALL == 0)
            && (!self.has(attr_mask::RETRY_CNT)
                || (attr.linear_cnt <= RtsAttr::MAX_LINEAR && attr.exp_cnt <= RtsAttr::MAX_EXPONENTIAL));
        if fits { Ok(()) } else { Err(libc::EINVAL) }
    }

    /// The profiles that the change names, of entropy values and of congestion control; 0: the device's own, or none.
    pub(crate) const fn profiles(&self) -> (u64, u64) {
        let ev = if self.has(attr_mask::EV_PROFILE_ID) { self.attr.ev_profile_id } else { 0 };
        let cc = if self.has(attr_mask::CC_PROFILE_ID) { self.attr.cc_profile_id } else { 0 };
        (ev, cc)
    }
}

/// Copies the attributes that the mask names.
pub(super) fn copy(to: &mut mrc_qp_attr, from: &mrc_qp_attr, mask: c_int) {
    macro_rules! copy {
        ($($bit:ident: $($field:ident),+;)+) => {
            $(if mask & attr_mask::$bit != 0 {
                $(to.$field = from.$field;)+
            })+
        };
    }
    copy! {
        MPR: mpr;
        MPR_DEST: mpr_dest;
        MAX_WIMM: max_wimm;
        MAX_WIMM_DEST: max_wimm_dest;
        TIMEOUT: timeout;
        EV_PROFILE_ID: ev_profile_id;
        CC_PROFILE_ID: cc_profile_id;
        RETRY_CNT: linear_cnt, exp_cnt;
        HINT: qp_hint;
        CAP: cap;
        VENDOR_CFG: vendor_cfg;
    }
}

/// Attributes of which none is set.
const NONE: mrc_qp_attr = mrc_qp_attr {
    mpr: 0,
    mpr_dest: 0,
    max_wimm: 0,
    max_wimm_dest: 0,
    timeout: 0,
    ev_profile_id: 0,
    cc_profile_id: 0,
    linear_cnt: 0,
    exp_cnt: 0,
    qp_hint: core::ptr::null_mut(),
    cap: 0,
    vendor_cfg: [0; MRC_MAX_VENDOR_CFG_SIZE],
};

/// What a program has set.
#[derive(Clone)]
pub(crate) struct Attributes {
    attr: mrc_qp_attr,
    /// Which of them it has set.
    given: c_int,
    /// A hint that a queue pair has cannot be destroyed.
    hint: Option<Arc<Hint>>,
}

// SAFETY: the address of the hint is given back to the program, and never followed.
unsafe impl Send for Attributes {}

impl Default for Attributes {
    fn default() -> Self {
        Self { attr: NONE, given: 0, hint: None }
    }
}

impl Attributes {
    fn given<T>(&self, bit: c_int, value: T) -> Option<T> {
        (self.given & bit != 0).then_some(value)
    }

    /// Takes a change that goes with a step from one state to the other, or with none.
    pub(crate) fn apply(&mut self, change: &Change, [from, to]: [c_int; 2]) -> Result<(), c_int> {
        const AT_RTR: c_int = attr_mask::MPR_DEST
            | attr_mask::MAX_WIMM_DEST
            | attr_mask::CAP
            | attr_mask::EV_PROFILE_ID
            | attr_mask::CC_PROFILE_ID;
        const AT_RTS: c_int = attr_mask::MPR | attr_mask::MAX_WIMM;
        let (from_reset, ends) = (from == qp_state::RESET, matches!(to, qp_state::RESET | qp_state::ERR));
        let is_sent = matches!(from, qp_state::RTR | qp_state::RTS);
        let late = (is_sent && change.has(AT_RTR)) || (from == qp_state::RTS && change.has(AT_RTS));
        if change.mask != 0 && (late || ends || (from_reset && to != qp_state::INIT)) {
            return Err(libc::EINVAL);
        }
        change.check()?;
        copy(&mut self.attr, &change.attr, change.mask);
        if change.has(attr_mask::HINT) {
            self.hint.clone_from(&change.hint);
        }
        self.given |= change.mask;
        Ok(())
    }

    /// The profiles, of entropy values and of congestion control.
    pub(crate) const fn profiles(&self) -> (u64, u64) {
        (self.attr.ev_profile_id, self.attr.cc_profile_id)
    }

    /// What this side offers to the peer.
    pub(crate) fn offer(&self, info: QpInfo) -> QpInfo {
        QpInfo {
            mpr: self.given(attr_mask::MPR_DEST, self.attr.mpr_dest).unwrap_or(info.mpr),
            max_wimm: self.given(attr_mask::MAX_WIMM_DEST, self.attr.max_wimm_dest).unwrap_or(info.max_wimm),
            dynamic_mpr: info.dynamic_mpr && self.attr.cap & qp_cap::DYNAMIC_MPR != 0,
            ..info
        }
    }

    /// What this side knows of the peer, from the peer and from the program.
    pub(crate) fn receives(&self, rtr: RtrAttr) -> RtrAttr {
        let without = self.attr.cap & qp_cap::TRIM_NACK_DEST_UNSUPPORTED != 0;
        RtrAttr { trim_nack: rtr.trim_nack && !without, ..rtr }
    }

    /// What this side may send to a peer that grants so much.
    pub(crate) fn sends(&self, agreed: RtsAttr, peer: &Grants) -> RtsAttr {
        let mpr = self.given(attr_mask::MPR, self.attr.mpr);
        let max_wimm = self.given(attr_mask::MAX_WIMM, self.attr.max_wimm);
        RtsAttr {
            mpr: mpr.map_or(agreed.mpr, |mpr| mpr.min(peer.mpr)),
            max_wimm: max_wimm.map_or(agreed.max_wimm, |most| most.min(peer.max_wimm)),
            ..self.retry(agreed)
        }
    }

    /// The attributes of retransmission, whose units are those of the wire.
    pub(crate) fn retry(&self, default: RtsAttr) -> RtsAttr {
        let timeout = self.given(attr_mask::TIMEOUT, self.attr.timeout.max(1));
        let retries = self.given(attr_mask::RETRY_CNT, (self.attr.linear_cnt, self.attr.exp_cnt));
        let (linear_retries, exponential_retries) =
            retries.unwrap_or((default.linear_retries, default.exponential_retries));
        let timeout = timeout.unwrap_or(default.timeout);
        RtsAttr { timeout, linear_retries, exponential_retries, ..default }
    }

    /// What a program may query: what it has set, and otherwise what is in force.
    pub(super) fn known(&self, in_force: &mrc_qp_attr) -> mrc_qp_attr {
        let kept = &self.attr;
        mrc_qp_attr {
            ev_profile_id: kept.ev_profile_id,
            cc_profile_id: kept.cc_profile_id,
            qp_hint: kept.qp_hint,
            vendor_cfg: kept.vendor_cfg,
            cap: in_force.cap | kept.cap & !qp_cap::DYNAMIC_MPR,
            ..*in_force
        }
    }

    /// What is in force before there is a connection.
    pub(super) fn wanted(&self, default: &RtsAttr) -> mrc_qp_attr {
        let retry = self.retry(*default);
        mrc_qp_attr {
            mpr: self.given(attr_mask::MPR, self.attr.mpr).unwrap_or(default.mpr),
            mpr_dest: self.given(attr_mask::MPR_DEST, self.attr.mpr_dest).unwrap_or(default.mpr),
            max_wimm: self.given(attr_mask::MAX_WIMM, self.attr.max_wimm).unwrap_or(default.max_wimm),
            max_wimm_dest: self
                .given(attr_mask::MAX_WIMM_DEST, self.attr.max_wimm_dest)
                .unwrap_or(default.max_wimm),
            timeout: retry.timeout,
            linear_cnt: retry.linear_retries,
            exp_cnt: retry.exponential_retries,
            cap: self.attr.cap & qp_cap::DYNAMIC_MPR,
            ..NONE
        }
    }
}

/// What the peer lets this side have in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grants {
    pub(crate) mpr: u8,
    pub(crate) max_wimm: u16,
}
