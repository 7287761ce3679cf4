//! Paths that a file writes out, in place of those that follow from the numbers of a fabric.

use ipnet::Ipv6Net;

use super::{Fabric, FabricError, FabricHost};
use crate::profile::ones;
use crate::{EvProfile, Field, ProfileError};

/// How the paths of some hosts to some destinations are written (MRC paper, section 2.3: a template for each destination prefix, from a file
/// of the node's own).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Template {
    /// Numbers of the hosts that send by it; all hosts where there are none.
    pub from: Vec<u16>,
    /// The addresses that it leads to. Of several templates for an address, that of the longest prefix counts.
    pub to: Ipv6Net,
    /// Its planes; all of them where there are none.
    pub planes: Vec<u8>,
    /// Bits of each place that the fields are laid into: see [`EvProfile::new`].
    pub format: Vec<u8>,
    /// The fields of a path.
    pub fields: Vec<TemplateField>,
}

/// A field of a [`Template`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TemplateField {
    /// The field. What the numbers below take counts for nothing in `init`.
    pub field: Field,
    /// Bits that the number of the plane takes, its lowest bit in the lowest one.
    pub plane: u32,
    /// Bits that the number of the destination's port at its T0 switch takes.
    pub downlink: u32,
}

impl TemplateField {
    /// A field without numbers.
    pub const fn new(field: Field) -> Self {
        Self { field, plane: 0, downlink: 0 }
    }

    /// The field of the paths to this port in this plane.
    fn filled(&self, plane: u8, downlink: u16) -> Field {
        let numbers = spread(plane.into(), self.plane) | spread(downlink.into(), self.downlink);
        Field { init: self.field.init & !(self.plane | self.downlink) | numbers, ..self.field }
    }

    /// The setting that is wrong, and why. The numbers are the largest there are.
    fn check(&self, plane: u8, downlink: u16) -> Result<(), (&'static str, String)> {
        let Field { width, mask, .. } = self.field;
        let numbers =
            [("plane", self.plane, u32::from(plane)), ("downlink", self.downlink, u32::from(downlink))];
        let mut taken = mask;
        for (setting, bits, largest) in numbers {
            let room = bits.count_ones();
            let why = if bits > ones(width.into()) {
                format!("{bits:#x} has more than {width} bits")
            } else if bits & taken != 0 {
                format!("another number takes bits of {bits:#x}, too: {:#x}", bits & taken)
            } else if bits != 0 && largest > ones(room) {
                format!("{bits:#x} has room for {room} bits, too few for the number {largest}")
            } else {
                taken |= bits;
                continue;
            };
            return Err((setting, why));
        }
        Ok(())
    }
}

/// The bits of a number where those of a mask are 1, lowest to lowest.
fn spread(number: u32, mask: u32) -> u32 {
    let places = (0..u32::BITS).filter(|place| mask >> place & 1 == 1);
    places.enumerate().fold(0, |bits, (of_number, place)| bits | (number >> of_number & 1) << place)
}

impl Template {
    fn serves(&self, from: u16) -> bool {
        self.from.is_empty() || self.from.contains(&from)
    }

    fn is_of(&self, plane: u8) -> bool {
        self.planes.is_empty() || self.planes.contains(&plane)
    }

    /// Whether there are packets that both would be for.
    fn vies_with(&self, other: &Self) -> bool {
        let planes = self.planes.is_empty()
            || other.planes.is_empty()
            || self.planes.iter().any(|&plane| other.is_of(plane));
        let hosts =
            self.from.is_empty() || other.from.is_empty() || self.from.iter().any(|&from| other.serves(from));
        self.to == other.to && planes && hosts
    }

    /// The paths to this port in this plane.
    fn paths(&self, plane: u8, downlink: u16) -> Result<EvProfile, ProfileError> {
        let filled: Vec<_> = self.fields.iter().map(|field| field.filled(plane, downlink)).collect();
        EvProfile::new(&self.format, &filled)
    }

    /// The same, or what is wrong with its fields where these are the largest numbers.
    fn checked_paths(&self, plane: u8, downlink: u16) -> Result<EvProfile, ProfileError> {
        for (place, field) in (1..).zip(&self.fields) {
            field.check(plane, downlink).map_err(|(setting, why)| ProfileError::Field {
                place,
                setting,
                why,
            })?;
        }
        self.paths(plane, downlink)
    }
}

impl Fabric {
    /// The most paths of a template from a host to another one in a plane.
    pub const TEMPLATE_PATHS: u64 = 1 << 16;

    /// The fabric with these templates, which take the place of its own paths where they apply.
    ///
    /// # Errors
    /// What cannot be, by the number of the template: [`FabricError::Template`] and [`FabricError::TemplatePaths`].
    pub fn with_templates(mut self, templates: Vec<Template>) -> Result<Self, FabricError> {
        for (number, template) in templates.iter().enumerate() {
            self.check_template(number, template)?;
            if let Some(other) = templates.iter().take(number).position(|other| other.vies_with(template)) {
                let why = format!(
                    "template {} leads to {} as well, on one of these planes and from one of these hosts",
                    other + 1,
                    template.to
                );
                return Err(FabricError::Template { number, setting: "to", why });
            }
        }
        self.templates = templates;
        Ok(self)
    }

    fn check_template(&self, number: usize, template: &Template) -> Result<(), FabricError> {
        let Template { from, to, planes, fields, .. } = template;
        let bad = |setting, why| Err(FabricError::Template { number, setting, why });
        let (hosts, all) = (self.hosts.len(), self.shape.planes);
        if let Some(host) = from.iter().find(|&&host| usize::from(host) >= hosts) {
            return bad("from", format!("there is no host {host}, the last one is {}", hosts - 1));
        }
        if to.trunc() != *to {
            return bad("to", format!("{to} has bits behind the prefix; {} has none", to.trunc()));
        }
        if let Some(plane) = planes.iter().find(|&&plane| plane >= all) {
            return bad("planes", format!("there is no plane {plane}, the last one is {}", all - 1));
        }
        if fields.is_empty() {
            return bad("fields", "there are none".to_owned());
        }
        let last = planes.iter().copied().max().unwrap_or(all - 1);
        let is_reached =
            |host: &&FabricHost| (0..all).any(|plane| to.contains(&self.address_at(host, plane)));
        let downlink = self.hosts.iter().filter(is_reached).map(|host| host.downlink).max().unwrap_or(0);
        let paths = template
            .checked_paths(last, downlink)
            .map_err(|error| FabricError::TemplatePaths { number, error })?;
        let (count, most) = (paths.count(), Self::TEMPLATE_PATHS);
        if count > most {
            return bad("fields", format!("masks and limits allow {count} paths, at most {most} may be"));
        }
        Ok(())
    }

    /// What the templates say of the paths from a host to a port of another, which has this address, in a plane.
    pub(super) fn templated(&self, from: u16, to: &FabricHost, plane: u8) -> Option<EvProfile> {
        let address = self.address_at(to, plane);
        let fits = |template: &&Template| {
            template.serves(from) && template.is_of(plane) && template.to.contains(&address)
        };
        let template = self.templates.iter().filter(fits).max_by_key(|template| template.to.prefix_len())?;
        template.paths(plane, to.downlink).ok()
    }
}

#[cfg(test)]
mod tests;
