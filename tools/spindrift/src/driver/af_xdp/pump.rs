//! `spindrift pump af_xdp`: the upper limit of `AF_XDP` rings. Every build has its options.

use std::net::Ipv6Addr;

use anyhow::Result;
use clap::Args;

use crate::bench::pin::WaitName;
use crate::config::XdpModeName;
use crate::place::Place;
use crate::pump::{Common, PumpCommand};

/// Raw pump over `AF_XDP` rings, which bypass the kernel's network stack
#[derive(Args, Debug)]
pub(super) struct AfXdpPumpArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Interface, or its address [default: for a sender, the interface of the route to the receiver]
    #[arg(long, value_name = "ADDR|IF", required_unless_present = "remote")]
    pub(super) local: Option<Place>,
    /// Send in an outer IPv6 header to this address, such as the first destination that `spindrift path --ev` prints
    #[arg(long, value_name = "ADDR", requires = "remote")]
    pub(super) carrier: Option<Ipv6Addr>,
    /// What an idle receiver does
    #[arg(long, value_enum, default_value_t, conflicts_with = "remote")]
    pub(super) wait: WaitName,
    /// Where the XDP program runs
    #[arg(long, value_enum, default_value_t)]
    pub(super) xdp_mode: XdpModeName,
}

impl PumpCommand for AfXdpPumpArgs {
    fn common(&self) -> &Common {
        &self.common
    }

    fn run(&self) -> Result<()> {
        super::built::pump(self)
    }
}
