//! The interface of controllers, as OCP's Multipath Reliable Connection project defines it (`mrc_ctl.h`, API version 1.0.1): profiles of
//! entropy values and of congestion control, ports, and events. A controller sets them for all processes of a host that use a device, before
//! they begin and while they run.
//!
//! | Module | What it holds |
//! |---|---|
//! | `abi` | what `mrc_ctl.h` declares |
//! | `state` | the profiles and their rules |
//! | `store` | the file that keeps them |
//! | `bus` | how processes that use one device reach each other |
//! | `managed` | state and bus of a device in use |
//! | `usage` | queue pairs that use profiles |
//! | `events` | queues of events |
//! | `calls`, `arrays` | the functions |

pub(crate) mod abi;
pub(crate) mod arrays;
pub(crate) mod bus;
pub(crate) mod calls;
pub(crate) mod events;
pub(crate) mod managed;
pub(crate) mod state;
pub(crate) mod store;
pub(crate) mod usage;
