//! Every edge from feedback to path, congestion window and what is sent next. The peer is the test itself: it speaks
//! the wire format by hand, so that each field of each answer is under its control.
//!
//! At the requester, one full packet being `m`:
//!
//! | Feedback | Path | Window | Next | Module |
//! |---|---|---|---|---|
//! | transport ACK | - | frees what it covers | new data; timers start over | `acks` |
//! | transport NAK | - | - | queue pair fails | `acks` |
//! | SACK `cack`, bitmap, trigger | - | frees what is listed | new data | `sacks` |
//! | SACK timestamp | the round-trip time, if it is the last transmission's | grows | | `sacks` |
//! | SACK `m` = SKIP, short queue | SKIP: passed over once, and more often if that goes on | stays | | `sacks` |
//! | SACK `m` = SKIP, long queue | SKIP | halves at most, once a round trip | | `sacks` |
//! | SACK `m` = `ALWAYS_SKIP` | `ASSUMED_BAD`, no drop counted | stays | a probe after 1 ms | `sacks` |
//! | SACK `mpr` | - | the PSN window, if dynamic | up to it | `sacks` |
//! | SACK `rcvd_bytes` behind | judges nothing | frees what is listed | | `sacks` |
//! | SACK penalty, restore | - | cut, restored | | `sacks` |
//! | NACK trimmed | SKIP: passed over four times | less `m` | the packet at once, elsewhere | `nacks` |
//! | NACK trimmed on the last hop | - | less `m` | the packet at once, elsewhere | `nacks` |
//! | NACK of any other code | - | less `m` | the packet at once, elsewhere; retries go on | `nacks` |
//! | RNR NACK, for a message that takes a receive | - | stays | the message after the wait; timers start over | `not_ready` |
//! | NACK `UNEXP_EVENT` | - | - | queue pair fails | `nacks` |
//! | overtaken on its path | `ASSUMED_BAD`, a drop, a backup | less `m` | the packet at once, elsewhere | `losses` |
//! | the same on an only path, or where others lose as much | SKIP, a drop | less `m` | the packet at once | `losses` |
//! | overtaken, and its time over | `ASSUMED_BAD`, a drop, a backup | less `m` | the packet, elsewhere | `losses` |
//! | a loss that was none | probed at once | stays | the rule that was wrong learns | `losses` |
//! | probe answered, SKIP too | GOOD after two in a row, or SKIP | stays | another probe after 1 ms | `probes` |
//! | probe answered `ALWAYS_SKIP`, or not | stays bad | stays | another probe, the wait doubled | `probes` |
//! | port down, here or there | - | less `m` for each packet on it | those packets, on another plane | `planes` |
//! | silence | - | stays | the oldest packet (tail probe), on the path that brought the newest, then elsewhere | `silence` |
//! | only the tail probe answered | suspected, `ASSUMED_BAD` the second time | stays | | `silence` |
//! | retransmission timer | - | stays | the oldest packet, elsewhere; then what its answer shows to be missing | `silence` |
//! | the driver was away | - | stays | what its timers say, 250 us later at the earliest | `away` |
//!
//! Which packets ask for an answer is tested in `asks`, windows that queue pairs share in `shared_cwnd`.
//!
//! At the responder (`answers`):
//!
//! | Packet | Answer |
//! |---|---|
//! | plain | none before 16 KiB, counted as at least 1 KiB each |
//! | asks | SACK; ACK when a message is complete |
//! | CE | SACK, `m` = SKIP |
//! | `rtx` | SACK that shows the oldest gap |
//! | duplicate | SACK |
//! | old | SACK and ACK |
//! | trimmed, on the last hop | NACK `TRIMMED`, `TRIMMED_LASTHOP` |
//! | outside the window | none, or NACK `PSN_OOR_WINDOW` |
//! | reliability probe | SACK, `pr` = 1 |
//!
//! Which way answers take (`reverse`):
//!
//! | Data | Probe | Answers |
//! |---|---|---|
//! | comes in | of a random entropy value, after the refresh time, one at most | on the last one answered |
//! | none | none | |
//! | goes out too, and SACKs come | none | on those that SACKs show to work |
//!
//! Which window its SACKs grant, if it is dynamic (`window`):
//!
//! | State | Window |
//! |---|---|
//! | just connected | what was negotiated |
//! | receives more in a second than the least window | an equal share of the budget, up to what was negotiated |
//! | receives less | the least |
//! | the application takes neither completions nor events | the least |
//! | any | what was granted once is accepted |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod acks;
mod answers;
mod asks;
mod driver_stall;
mod gathers;
mod holds;
mod losses;
mod modify;
mod nacks;
mod not_ready;
mod planes;
mod probes;
mod receiver;
mod repeats;
mod reverse;
mod sacks;
mod sender;
mod shared_cwnd;
mod silence;
mod turns;
mod window;

#[path = "../support/mod.rs"]
mod support;
