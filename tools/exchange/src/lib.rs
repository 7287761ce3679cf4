//! Out-of-band set-up: how two sides learn each other's queue pairs and memory.
//!
//! MRC has no connection manager, and its specification publishes no exchange format, so this one is Spindrift's
//! own: a TCP connection ([`Listener`], [`Channel`]) over which each side sends an [`Offer`], checks the
//! peer's with [`negotiate`], brings its queue pairs up and says so. An incompatible peer is refused with a reason
//! that both sides see. An application with a channel of its own serialises
//! [`QpInfo`](spindrift::endpoint::QpInfo) and [`RemoteMr`] there, calls [`negotiate`] itself, and does without this crate.

mod channel;
mod clock;
mod format;
mod message;
mod offer;
mod speaker;
mod store;

pub use channel::{Channel, Listener};
pub use message::{EXCHANGE_VERSION, ExchangeError, MAX_APP_BYTES, MAX_MESSAGE_BYTES, MAX_OFFERED};
pub use offer::Offer;
pub use spindrift::verbs::negotiate::{MAX_PORTS, MIN_MTU, Negotiated, Refusal, RemoteMr, negotiate};
pub use store::PeerStore;

#[cfg(test)]
mod tests;
