//! The messages of the exchange, how they are framed and checked, and what can go wrong.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use spindrift::verbs::negotiate::{Negotiated, Refusal, RemoteMr, negotiate, plain_up_to};

use super::offer::Offer;

/// Version of the exchange's own messages.
pub const EXCHANGE_VERSION: u32 = 1;
/// Longest message in bytes.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Longest [`Offer::app`] in bytes.
pub const MAX_APP_BYTES: usize = 4096;
/// Most queue pairs and most memory regions in an offer.
pub const MAX_OFFERED: usize = 1024;
/// Longest reason of an abort in characters.
pub(super) const MAX_REASON: usize = 1000;
/// Names the protocol, so that a stranger's bytes are told apart at once.
pub(super) const PROTOCOL: &str = "spindrift-exchange";
/// Length of a message, in front of it, in bytes.
pub(super) const PREFIX_LEN: usize = 4;

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The TCP connection could not be made, or broke.
    #[error("set-up connection to {peer}: {error}; is the peer running, and reachable at this address?")]
    Io {
        /// The other end.
        peer: String,
        /// What the system said.
        error: io::Error,
    },
    /// The peer sent nothing, or took nothing, for too long.
    #[error("the peer did not answer within {timeout:?}; it may be stuck, or the timeout too short")]
    Timeout {
        /// The limit for one message.
        timeout: Duration,
    },
    /// The peer closed the connection.
    #[error("the peer closed the set-up connection; look at its output for the reason")]
    Closed,
    /// The peer's bytes are not a message of this protocol.
    #[error("the peer does not speak this protocol: {0}")]
    Malformed(String),
    /// The peer's first bytes are those of another protocol.
    #[error(
        "the other end speaks {speaker}, not the set-up protocol of Spindrift; connect to the TCP port of a Spindrift peer"
    )]
    Foreign {
        /// What it speaks, or how it begins.
        speaker: String,
    },
    /// A message is longer than the protocol allows.
    #[error(
        "a set-up message of {len} bytes exceeds the limit of {max}; offer fewer queue pairs or less data"
    )]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// This side refused the peer.
    #[error("incompatible peer: {0}")]
    Refused(Refusal),
    /// The peer refused this side.
    #[error("the peer refused: {0}")]
    RefusedByPeer(Refusal),
    /// The peer ended early, and said why ([`Channel::abort`](super::Channel::abort)).
    #[error("the peer gave up: {reason}")]
    Aborted {
        /// The peer's words, without control characters.
        reason: String,
    },
    /// The wait was cancelled ([`Listener::accept`](super::Listener::accept), [`Channel::cancel_with`](super::Channel::cancel_with)).
    #[error("cancelled while waiting for a peer")]
    Cancelled,
}

/// What peers tell each other.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub(super) enum Message {
    Offer {
        protocol: String,
        /// The version that the offer is written in.
        version: u32,
        /// Every version that the sender speaks; only that one if absent.
        #[serde(default)]
        versions: Vec<u32>,
        offer: serde_json::Value,
        #[serde(flatten)]
        more: BTreeMap<String, serde_json::Value>,
    },
    Ready,
    Refuse {
        refusal: Refusal,
    },
    App {
        app: serde_json::Value,
    },
    Abort {
        reason: String,
    },
}

/// Bytes that a message of which so much has arrived lacks: as far as is known, and none of the next one.
pub(super) fn missing(partial: &[u8], max: usize) -> Result<usize, ExchangeError> {
    let Some(&prefix) = partial.first_chunk::<PREFIX_LEN>() else { return Ok(PREFIX_LEN - partial.len()) };
    let len = u32::from_be_bytes(prefix) as usize;
    if len > max {
        return Err(ExchangeError::TooLong { len, max });
    }
    Ok(PREFIX_LEN + len - partial.len())
}

/// What a peer should hear about an error, if it may be listening.
pub(super) fn complaint(error: &ExchangeError) -> Option<Refusal> {
    match error {
        ExchangeError::Timeout { timeout } => Some(Refusal::new(
            "set-up offer",
            format!("a limit of {timeout:?}"),
            "sent no whole offer by then",
            "see why the peer is slow, or raise the time-out",
        )),
        ExchangeError::Malformed(what) => {
            let fix = "both sides must be Spindrift's set-up exchange";
            Some(Refusal::new("set-up message", PROTOCOL, what, fix))
        }
        ExchangeError::Foreign { speaker } => Some(Refusal::new(
            "set-up protocol",
            PROTOCOL,
            speaker,
            "connect to this port with a Spindrift peer",
        )),
        ExchangeError::TooLong { len, max } => Some(too_long(*len, *max)),
        _ => None,
    }
}

/// The error quotes the peer.
pub(super) fn unreadable(error: &serde_json::Error) -> ExchangeError {
    ExchangeError::Malformed(plain_up_to(&error.to_string(), MAX_REASON))
}

/// The application's data in a message.
pub(super) fn of_application<T: DeserializeOwned>(message: Message) -> Result<T, ExchangeError> {
    match message {
        Message::App { app } => serde_json::from_value(app).map_err(|error| unreadable(&error)),
        other => Err(unexpected(other)),
    }
}

/// The application's data as a message.
pub(super) fn framed_value<T: Serialize>(value: &T) -> Result<Vec<u8>, ExchangeError> {
    let app = serde_json::to_value(value).map_err(|error| ExchangeError::Malformed(error.to_string()))?;
    frame(&Message::App { app })
}

/// A message with its length in front.
pub(super) fn frame(message: &Message) -> Result<Vec<u8>, ExchangeError> {
    let body = serde_json::to_vec(message).map_err(|error| ExchangeError::Malformed(error.to_string()))?;
    if body.len() > MAX_MESSAGE_BYTES {
        return Err(ExchangeError::TooLong { len: body.len(), max: MAX_MESSAGE_BYTES });
    }
    let mut framed = (body.len() as u32).to_be_bytes().to_vec();
    framed.extend_from_slice(&body);
    Ok(framed)
}

pub(super) fn too_long(len: usize, max: usize) -> Refusal {
    let fix = "offer fewer queue pairs or less data";
    Refusal::new("bytes of the offer", format!("at most {max}"), len, fix)
}

/// Both offers together: counts, sizes and each pair of queue pairs.
pub(super) fn fit(ours: &Offer, theirs: &Offer) -> Result<Vec<Negotiated>, Refusal> {
    check_sizes(theirs)?;
    if ours.qps.len() != theirs.qps.len() {
        let (ours, theirs) = (ours.qps.len(), theirs.qps.len());
        return Err(Refusal::new("number of queue pairs", ours, theirs, "offer as many on both sides"));
    }
    ours.qps.iter().zip(&theirs.qps).map(|(our, their)| negotiate(our, their)).collect()
}

pub(super) fn check_sizes(offer: &Offer) -> Result<(), Refusal> {
    let limits = [
        ("number of queue pairs", offer.qps.len(), MAX_OFFERED),
        ("number of memory regions", offer.memory.len(), MAX_OFFERED),
        ("bytes of application data", offer.app.len(), MAX_APP_BYTES),
    ];
    for (field, len, max) in limits {
        if len > max {
            return Err(Refusal::new(field, format!("at most {max}"), len, "offer less"));
        }
    }
    for (at, RemoteMr { addr, len, .. }) in offer.memory.iter().enumerate() {
        if addr.checked_add(*len).is_none() {
            let (field, theirs) = (format!("memory[{at}]"), format!("{len} bytes from {addr:#x} on"));
            let fix = "the offer is out of range, mend the peer's settings";
            return Err(Refusal::new(field, "memory that ends below 2^64", theirs, fix));
        }
    }
    Ok(())
}

pub(super) fn unexpected(message: Message) -> ExchangeError {
    match message {
        Message::Refuse { refusal } => ExchangeError::RefusedByPeer(refusal.cleaned().mirrored()),
        Message::Abort { reason } => ExchangeError::Aborted { reason: plain_up_to(&reason, MAX_REASON) },
        Message::Offer { .. } => ExchangeError::Malformed("an offer out of turn".to_owned()),
        Message::Ready => ExchangeError::Malformed("\"ready\" out of turn".to_owned()),
        Message::App { .. } => ExchangeError::Malformed("application data out of turn".to_owned()),
    }
}

pub(super) fn io_error(peer: &str, error: io::Error) -> ExchangeError {
    ExchangeError::Io { peer: peer.to_owned(), error }
}
