//! From an entropy value to the addresses of a path.

use std::net::Ipv6Addr;
use std::sync::Arc;

use crate::Segments;

/// One field of a path: a constant, in which bits of the entropy value take the places of some bits.
///
/// The names are those of the OCP API for MRC. Values have at most 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Field {
    /// Bits of the field, 1 to 32.
    pub width: u8,
    /// The field where `mask` is 0. Where it is 1, it counts for nothing.
    pub init: u32,
    /// The least number that the bits taken from the entropy value may be.
    pub min: u32,
    /// The largest.
    pub max: u32,
    /// Bits that come from the entropy value: as many as are 1 here, the first of them for the highest one.
    pub mask: u32,
}

impl Field {
    /// A field that is the same on every path.
    pub const fn fixed(width: u8, value: u32) -> Self {
        Self { width, init: value, min: 0, max: 0, mask: 0 }
    }

    /// A field whose lowest `bits` bits (at most 32) are any that the entropy value has.
    pub const fn low_bits(width: u8, init: u32, bits: u8) -> Self {
        let mask = ones(bits as u32);
        Self { width, init, min: 0, max: mask, mask }
    }

    /// How many numbers the bits taken may be.
    const fn count(&self) -> u64 {
        (self.max - self.min) as u64 + 1
    }

    /// What is wrong with the field at `place` (counted from 1), which has room for `room` bits.
    fn check(&self, place: usize, room: u8) -> Result<(), ProfileError> {
        let bad = |setting, why| Err(ProfileError::Field { place, setting, why });
        let Self { width, init, min, max, mask } = *self;
        if width == 0 || width > 32 || width > room {
            return bad("width", format!("{width} bits given, 1 to {} fit", room.min(32)));
        }
        let widest = ones(u32::from(width));
        if init > widest {
            return bad("init", format!("{init:#x} has more than {width} bits"));
        }
        if mask > widest {
            return bad("mask", format!("{mask:#x} has more than {width} bits"));
        }
        if max > ones(mask.count_ones()) {
            let taken = mask.count_ones();
            return bad("max", format!("{max} has more bits than the mask takes, which are {taken}"));
        }
        if min > max {
            return bad("min", format!("{min} is more than max, which is {max}"));
        }
        Ok(())
    }
}

/// Why a profile cannot be, or an entropy value is none of a profile's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// A place of the format has no bits or more than an address.
    #[error("format place {place}: {width} bits given, a place has 1 to 128")]
    Place {
        /// Counted from 1.
        place: usize,
        /// Its width.
        width: u8,
    },
    /// The format does not fill one to five addresses.
    #[error("the format has {0} bits, addresses take 128, 256, 384, 512 or 640")]
    Format(u32),
    /// There is no place for some fields.
    #[error("{fields} fields given, the format has {places} places")]
    Fields {
        /// Fields given.
        fields: usize,
        /// Places of the format.
        places: usize,
    },
    /// A setting of a field does not fit.
    #[error("field {place}: {setting}: {why}")]
    Field {
        /// Counted from 1.
        place: usize,
        /// Its name in [`Field`].
        setting: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The masks take more bits than an entropy value has.
    #[error("the masks of all fields take {0} bits, an entropy value has 32")]
    Bits(u32),
    /// A field's number is outside its range.
    #[error("entropy value {ev:#010x}: field {place} is {value}, the profile allows {min} to {max}")]
    Range {
        /// The value.
        ev: u32,
        /// Counted from 1.
        place: usize,
        /// The bits that the field takes.
        value: u32,
        /// The least number allowed.
        min: u32,
        /// The largest.
        max: u32,
    },
    /// Bits that no field takes must be 0.
    #[error("entropy value {ev:#010x}: the paths take its first {bits} bits, and the others must be 0")]
    Unused {
        /// The value.
        ev: u32,
        /// Bits taken.
        bits: u32,
    },
}

/// How the paths of one plane are written in addresses: constant bits, and bits of the entropy value.
///
/// The fields are laid side by side into the places of a format, and what they make up are the [`Segments`] of the path.
/// Each field takes as many bits of the entropy value as its mask has, first field first, most significant bit first. A
/// field that is narrower than its place has zeros in front; places without a field are zero. Bits of the entropy value
/// that nobody takes must be zero. (OCP API of MRC, EV format profile, EV profile and their expansion.)
///
/// ```
/// use spindrift_srv6::{EvProfile, F3216, Field};
///
/// // Block, T0, T1, destination T0 with its port: the entropy value chooses one of 16 T1 switches.
/// let fields =
///     [Field::fixed(32, 0xfcbb_bb00), Field::fixed(16, 0xa01), Field::low_bits(16, 0xe000, 4), Field::fixed(16, 0x201)];
/// let paths = EvProfile::new(&F3216::FORMAT, &fields)?;
/// assert_eq!(paths.count(), 16);
/// assert_eq!(paths.nth(5), Some(0x5000_0000));
/// let carrier: F3216 = paths.expand(0x5000_0000).destination().try_into()?;
/// assert_eq!(carrier.to_string(), "fcbb:bb00:a01:e005:201::");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EvProfile(Arc<Compiled>);

#[derive(Debug, PartialEq, Eq, Hash)]
struct Compiled {
    /// The path without the bits of the entropy value.
    base: Segments,
    /// Addresses that vary.
    varying: Box<[Varying]>,
    /// The fields that take bits, with their places counted from 1.
    taking: Box<[(usize, Field)]>,
    bits: u32,
    count: u64,
}

/// An address that varies.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Varying {
    at: usize,
    base: u128,
    runs: Vec<Run>,
}

/// Bits of the entropy value that stay side by side.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Run {
    mask: u32,
    /// The lowest bit in the entropy value, and in the address.
    from: u32,
    to: u32,
}

const EV_BITS: u32 = u32::BITS;
const ADDRESS_BITS: u32 = u128::BITS;

impl EvProfile {
    /// The profile of `fields` in places of these widths.
    ///
    /// # Errors
    /// What does not fit, by name: see [`ProfileError`].
    pub fn new(format: &[u8], fields: &[Field]) -> Result<Self, ProfileError> {
        if let Some((at, &width)) = (1..).zip(format).find(|(_, width)| !(1..=128).contains(*width)) {
            return Err(ProfileError::Place { place: at, width });
        }
        let total: u32 = format.iter().map(|&width| u32::from(width)).sum();
        let addresses = total / ADDRESS_BITS;
        let at_most = Segments::CAPACITY as u32;
        if !total.is_multiple_of(ADDRESS_BITS) || !(1..=at_most).contains(&addresses) {
            return Err(ProfileError::Format(total));
        }
        if fields.len() > format.len() {
            return Err(ProfileError::Fields { fields: fields.len(), places: format.len() });
        }
        for ((place, field), &room) in (1..).zip(fields).zip(format) {
            field.check(place, room)?;
        }
        let bits = fields.iter().map(|field| field.mask.count_ones()).sum();
        if bits > EV_BITS {
            return Err(ProfileError::Bits(bits));
        }
        let (base, varying) = compile(addresses as usize, format, fields);
        let taking: Box<[_]> =
            (1..).zip(fields.iter().copied()).filter(|(_, field)| field.mask != 0).collect();
        let count = taking.iter().map(|(_, field)| field.count()).product();
        Ok(Self(Arc::new(Compiled { base, varying, taking, bits, count })))
    }

    /// Bits that are taken from an entropy value, the highest ones.
    pub fn bits(&self) -> u32 {
        self.0.bits
    }

    /// How many entropy values, and paths, there are: 1 to 2^32.
    pub fn count(&self) -> u64 {
        self.0.count
    }

    /// Addresses of a path, 1 to 5.
    pub fn addresses(&self) -> usize {
        1 + self.0.base.later().len()
    }

    /// The path of an entropy value. Bits that nobody takes are ignored, and so are ranges: see [`check`](Self::check).
    pub fn expand(&self, ev: u32) -> Segments {
        let mut path = self.0.base;
        for (at, address) in self.varying(ev) {
            path.set(at, address);
        }
        path
    }

    /// The path without the bits of the entropy value.
    pub fn base(&self) -> &Segments {
        &self.0.base
    }

    /// Where the path of an entropy value differs from [`base`](Self::base): the number of an address, from 0 for the
    /// destination that the packet leaves with, and the address.
    #[inline]
    pub fn varying(&self, ev: u32) -> impl Iterator<Item = (usize, Ipv6Addr)> + '_ {
        self.0.varying.iter().map(move |varying| {
            let bits = varying.runs.iter().map(|run| u128::from((ev >> run.from) & run.mask) << run.to);
            (varying.at, Ipv6Addr::from_bits(bits.fold(varying.base, |sum, run| sum | run)))
        })
    }

    /// The entropy value with number `n`, in ascending order; `None` from [`count`](Self::count) on.
    pub fn nth(&self, n: u64) -> Option<u32> {
        if n >= self.0.count {
            return None;
        }
        let (mut left, mut ev, mut used) = (n, 0_u64, EV_BITS - self.0.bits);
        for (_, field) in self.0.taking.iter().rev() {
            let value = field.min + (left % field.count()) as u32;
            left /= field.count();
            ev |= u64::from(value) << used;
            used += field.mask.count_ones();
        }
        Some(ev as u32)
    }

    /// Whether `ev` is one of this profile's.
    ///
    /// # Errors
    /// A field that is out of range, or bits that should be 0.
    pub fn check(&self, ev: u32) -> Result<(), ProfileError> {
        let mut left = u64::from(ev) << EV_BITS;
        for &(place, Field { min, max, mask, .. }) in &self.0.taking {
            let value = (left >> (2 * EV_BITS - mask.count_ones())) as u32;
            left <<= mask.count_ones();
            if !(min..=max).contains(&value) {
                return Err(ProfileError::Range { ev, place, value, min, max });
            }
        }
        if left != 0 {
            return Err(ProfileError::Unused { ev, bits: self.0.bits });
        }
        Ok(())
    }
}

impl From<Segments> for EvProfile {
    /// The one path of entropy value 0.
    fn from(base: Segments) -> Self {
        Self(Arc::new(Compiled { base, varying: Box::default(), taking: Box::default(), bits: 0, count: 1 }))
    }
}

/// The lowest `bits` bits (all of them from 32 on).
pub(crate) const fn ones(bits: u32) -> u32 {
    if bits >= EV_BITS { u32::MAX } else { (1 << bits) - 1 }
}

/// What is constant, and what is not. Everything fits.
fn compile(addresses: usize, format: &[u8], fields: &[Field]) -> (Segments, Box<[Varying]>) {
    let mut base = [0_u128; Segments::CAPACITY];
    let mut varying: Vec<Varying> = Vec::new();
    let (mut ev_bit, mut end) = (EV_BITS, 0_usize);
    for (field, &room) in fields.iter().zip(format) {
        end += usize::from(room);
        for bit in (0..u32::from(field.width)).rev() {
            // Counted from the first bit of the first address.
            let place = end - 1 - bit as usize;
            let (at, to) = (place / ADDRESS_BITS as usize, ADDRESS_BITS - 1 - place as u32 % ADDRESS_BITS);
            let taken = (field.mask >> bit) & 1 == 1;
            if !taken && let Some(address) = base.get_mut(at) {
                *address |= u128::from((field.init >> bit) & 1) << to;
            }
            if taken {
                ev_bit -= 1;
                match varying.last_mut() {
                    Some(last) if last.at == at => add_bit(&mut last.runs, ev_bit, to),
                    _ => varying.push(Varying { at, base: 0, runs: vec![Run { mask: 1, from: ev_bit, to }] }),
                }
            }
        }
    }
    for address in &mut varying {
        address.base = base.get(address.at).copied().unwrap_or_default();
    }
    let mut path = Segments::from(Ipv6Addr::UNSPECIFIED);
    for (at, &bits) in base.iter().enumerate().take(addresses) {
        path.set(at, Ipv6Addr::from_bits(bits));
    }
    (path, varying.into())
}

/// Adds the next bit of the entropy value: to the last run if it continues that one in the address, too.
fn add_bit(runs: &mut Vec<Run>, from: u32, to: u32) {
    match runs.last_mut() {
        Some(run) if run.to == to + 1 => *run = Run { mask: run.mask << 1 | 1, from, to },
        _ => runs.push(Run { mask: 1, from, to }),
    }
}

#[cfg(test)]
mod tests;
