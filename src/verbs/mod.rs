//! The verbs API.

mod context;
mod cq;
mod error;
pub mod exchange;
mod mr;
mod qp;

pub use context::{Context, ContextConfig, Pd, nic};
pub use cq::{Cq, MAX_CQ_DEPTH};
pub use error::{CqOverrun, PostError, VerbsError};
pub use mr::Mr;
pub use qp::{InlineWr, MAX_INLINE, Qp, QpConfig};

pub use crate::endpoint::{FailReason, QpInfo, QpModify, QpState, RtrAttr, RtsAttr};
pub use crate::engine::{Idle, LaneMode};
pub use crate::memory::{Access, Region};
pub use crate::work::{RecvWr, RemoteAddr, SendOp, SendWr, Sge, Wc, WcOpcode, WcStatus};
