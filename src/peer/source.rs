//! The source of a packet, with each field read only when needed.

use std::net::IpAddr;

use spindrift_pmd::DatagramMeta;

use crate::wire::stack;

/// The source of a packet.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) meta: &'a DatagramMeta,
    pub(crate) port: u8,
    /// The Ethernet address, when the port shows it.
    mac: Option<[u8; 6]>,
}

impl<'a> Source<'a> {
    /// The source of a datagram that arrived in `frame`, which is empty if the port does not show it.
    pub(crate) fn new(meta: &'a DatagramMeta, port: u8, frame: &[u8]) -> Self {
        Self { meta, port, mac: frame.get(6..12).and_then(|mac| mac.try_into().ok()) }
    }

    /// The source Ethernet address; zero if the port does not show it.
    pub(crate) fn mac(&self) -> [u8; 6] {
        self.mac.unwrap_or_default()
    }

    #[inline]
    pub(crate) fn origin(&self) -> Origin<&Self> {
        Origin { meta: self, port: self.port }
    }
}

/// The same, with each field read when needed. Moving all fields costs more per data packet than reading the ones that
/// matter.
#[derive(Clone, Copy)]
pub(crate) struct Origin<M> {
    pub(crate) meta: M,
    pub(crate) port: u8,
}

impl<M: Meta> Origin<M> {
    /// Calls `f` with all fields read.
    pub(crate) fn read<R>(self, f: impl FnOnce(&Source<'_>) -> R) -> R {
        f(&Source { meta: &self.meta.read(), port: self.port, mac: self.meta.mac() })
    }
}

/// Addresses and markings of a packet.
pub(crate) trait Meta: Copy {
    fn src(self) -> IpAddr;
    fn dst(self) -> IpAddr;
    fn src_port(self) -> u16;
    fn dst_port(self) -> u16;
    fn flow_label(self) -> u32;
    fn traffic_class(self) -> u8;
    fn read(self) -> DatagramMeta;
    /// The sender's Ethernet address, if the packet arrived as an Ethernet frame.
    fn mac(self) -> Option<[u8; 6]>;

    /// Congestion experienced (RFC 3168): a switch marked the packet.
    #[inline]
    fn is_marked(self) -> bool {
        self.traffic_class() & 0b11 == 0b11
    }
}

macro_rules! meta_by_methods {
    ($($name:ident: $type:ty),*) => {
        impl Meta for stack::V6<'_> {
            $(
                #[inline]
                fn $name(self) -> $type {
                    stack::V6::$name(self).into()
                }
            )*

            fn read(self) -> DatagramMeta {
                stack::V6::read(self)
            }

            #[inline]
            fn mac(self) -> Option<[u8; 6]> {
                Some(self.src_mac())
            }
        }

        impl Meta for &Source<'_> {
            $(
                #[inline]
                fn $name(self) -> $type {
                    self.meta.$name
                }
            )*

            fn read(self) -> DatagramMeta {
                *self.meta
            }

            #[inline]
            fn mac(self) -> Option<[u8; 6]> {
                self.mac
            }
        }
    };
}

meta_by_methods!(src: IpAddr, dst: IpAddr, src_port: u16, dst_port: u16, flow_label: u32, traffic_class: u8);
