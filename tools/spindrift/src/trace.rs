//! Every packet on links of a simulated fabric, in a file.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};
use spindrift::time::Time;
use spindrift_fabric::{Packet, PacketEvent};
use spindrift_srv6::{Fabric, Node};

/// From where to where.
type Link = (Node, Node);

/// `if_tsresol` of timestamps in nanoseconds: 10 to the power of -9.
const NANOSECONDS: u8 = 9;

/// A capture with an interface for each link, which is one direction of a cable. A packet is in it once for each link, at the time at
/// which it comes to the end, with a comment if it does not go on from there.
pub(crate) struct Trace {
    path: PathBuf,
    inner: Rc<RefCell<Inner>>,
}

struct Inner {
    out: PcapNgWriter<BufWriter<File>>,
    interfaces: BTreeMap<Link, u32>,
    /// The first error; nothing is written after it.
    failed: Option<PcapError>,
}

impl Trace {
    /// Of these links, each in the direction in which it is named.
    pub(crate) fn create(
        path: &Path,
        fabric: &Fabric,
        links: impl IntoIterator<Item = Link>,
    ) -> Result<Self> {
        let context = || format!("cannot write {}", path.display());
        let file = File::create(path).with_context(context)?;
        let mut out = PcapNgWriter::new(BufWriter::new(file)).with_context(context)?;
        let mut interfaces = BTreeMap::new();
        for (from, to) in links {
            let name = format!("{} > {}", fabric.name(from), fabric.name(to));
            let options = vec![
                InterfaceDescriptionOption::IfName(Cow::Owned(name)),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ];
            let block = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options };
            out.write_pcapng_block(block).with_context(context)?;
            let number = interfaces.len() as u32;
            interfaces.insert((from, to), number);
        }
        let inner = Inner { out, interfaces, failed: None };
        Ok(Self { path: path.to_owned(), inner: Rc::new(RefCell::new(inner)) })
    }

    /// What is to be called with each packet; those of other links are left out.
    pub(crate) fn sink(&self) -> impl FnMut(Time, Link, PacketEvent, &Packet) + 'static {
        let inner = Rc::clone(&self.inner);
        move |at, link, sight, packet| inner.borrow_mut().write(at, link, sight, packet)
    }

    /// Sees to it that all is in the file.
    pub(crate) fn finish(self) -> Result<()> {
        let inner = &mut *self.inner.borrow_mut();
        let flushed = inner.out.get_mut().flush().map_err(PcapError::IoError);
        let result = inner.failed.take().map_or(flushed, Err);
        result.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

impl Inner {
    fn write(&mut self, at: Time, link: Link, sight: PacketEvent, packet: &Packet) {
        let comment = match sight {
            PacketEvent::Sent => return,
            PacketEvent::Arrived => None,
            PacketEvent::Lost => Some("lost on the link"),
            PacketEvent::Dropped => Some("dropped: the link is down or its queue is full"),
            PacketEvent::Discarded => Some("discarded: the node at the end of the link does not take it"),
        };
        let Some(&interface_id) = self.interfaces.get(&link).filter(|_| self.failed.is_none()) else {
            return;
        };
        let mut data = packet.head().to_vec();
        data.extend_from_slice(packet.body().unwrap_or_default());
        let block = EnhancedPacketBlock {
            interface_id,
            timestamp: Duration::from_nanos(at.0),
            original_len: packet.frame_len(),
            data: Cow::Owned(data),
            options: comment.map(|text| EnhancedPacketOption::Comment(text.into())).into_iter().collect(),
        };
        if let Err(error) = self.out.write_pcapng_block(block) {
            self.failed = Some(error);
        }
    }
}
