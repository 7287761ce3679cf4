//! Reading an offer that came as JSON: which versions it is in, and that it has all fields of ours and no others.
//!
//! serde alone could read it, but could not say where it fails: an incompatible peer should learn which field is wrong, and what it sent there.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use spindrift::verbs::negotiate::{Refusal, bounded};

use super::offer::Offer;

/// Versions of the exchange that this code speaks, oldest first.
pub(super) const VERSIONS: [u32; 1] = [super::EXCHANGE_VERSION];
/// Most versions of a peer that are looked at.
const VERSIONS_MAX: usize = 64;

const SHARE_A_VERSION: &str = "use versions of the software that share one";
const MEND: &str = "the offer is malformed, mend the peer's software";

/// What the peer speaks, as far as it matters here.
#[derive(Debug)]
pub(super) struct Spoken {
    versions: Vec<u32>,
    agreed: u32,
}

impl Spoken {
    /// Of an offer in `version`, from a peer that speaks `versions` too: the newest that both speak.
    pub(super) fn agree(version: u32, versions: &[u32]) -> Result<Self, Refusal> {
        let mut versions: Vec<u32> = versions.iter().take(VERSIONS_MAX).copied().collect();
        if !versions.contains(&version) {
            versions.push(version);
        }
        if let Some(&agreed) = VERSIONS.iter().rev().find(|ours| versions.contains(ours)) {
            return Ok(Self { versions, agreed });
        }
        let list =
            |numbers: &[u32]| numbers.iter().take(8).map(u32::to_string).collect::<Vec<_>>().join(", ");
        Err(Refusal::new("set-up version", list(&VERSIONS), list(&versions), SHARE_A_VERSION))
    }

    /// The peer may use fields that we do not know. By listing one of our versions it says that the offer means
    /// the same without them.
    fn is_newer(&self) -> bool {
        let ours = VERSIONS.iter().max();
        self.versions.iter().max() > ours
    }

    /// Reads the offer.
    pub(super) fn read(&self, offer: Value) -> Result<Offer, Refusal> {
        let mut offer = self.object("offer", offer, OFFER)?;
        for (name, fields) in [("qps", QP_INFO), ("memory", REMOTE_MR)] {
            let Some(Value::Array(items)) = offer.get_mut(name) else { continue };
            for (at, item) in items.iter_mut().enumerate() {
                let place = format!("{name}[{at}]");
                let mut object = self.object(&place, item.take(), fields)?;
                if name == "qps" {
                    self.read_qp(&place, &mut object)?;
                }
                *item = Value::Object(object);
            }
        }
        serde_json::from_value(Value::Object(offer))
            .map_err(|error| Refusal::new("offer", "a well-formed offer", bounded(&error.to_string()), MEND))
    }

    fn read_qp(&self, place: &str, qp: &mut Map<String, Value>) -> Result<(), Refusal> {
        if let Some(Value::Array(ports)) = qp.get_mut("ports") {
            for (at, port) in ports.iter_mut().enumerate() {
                *port =
                    Value::Object(self.object(&format!("{place}.ports[{at}]"), port.take(), PORT_ADDR)?);
            }
        }
        // Queue pairs are of the versions that the offer is of.
        let theirs = qp.get("version").and_then(Value::as_u64).unwrap_or_default();
        if !self.versions.iter().any(|&version| u64::from(version) == theirs) {
            let field = format!("{place}.version");
            return Err(Refusal::new(field, self.agreed, theirs, SHARE_A_VERSION));
        }
        qp.insert("version".to_owned(), self.agreed.into());
        Ok(())
    }

    /// Checks the fields of an object, and takes those away that a newer peer has besides.
    fn object(&self, place: &str, value: Value, fields: &[Field]) -> Result<Map<String, Value>, Refusal> {
        let Value::Object(mut object) = value else {
            return Err(Refusal::new(place, "an object", brief(&value), MEND));
        };
        for field in fields {
            let named = |what| Refusal::new(format!("{place}.{}", field.name), field.what, what, MEND);
            match object.get(field.name) {
                None if field.optional => {}
                None => return Err(named("nothing".to_owned())),
                Some(value) if (field.fits)(value) => {}
                Some(value) => return Err(named(brief(value))),
            }
        }
        let known = |name: &str| fields.iter().any(|field| field.name == name);
        if self.is_newer() {
            object.retain(|name, _| known(name));
        } else if let Some((name, value)) = object.iter().find(|(name, _)| !known(name)) {
            let field = format!("{place}.{}", bounded(name));
            let ours = format!("no such field in version {}", self.agreed);
            return Err(Refusal::new(
                field,
                ours,
                brief(value),
                "list the versions spoken, so that it may be left out",
            ));
        }
        Ok(object)
    }
}

/// Fields of a message that are none of version 1's, refused or ignored as those of an offer are.
pub(super) fn check_envelope(spoken: &Spoken, more: &BTreeMap<String, Value>) -> Result<(), Refusal> {
    let more = more.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    spoken.object("message", Value::Object(more), &[]).map(drop)
}

/// A field: its name, what may stand there, and whether it may be absent.
struct Field {
    name: &'static str,
    what: &'static str,
    fits: fn(&Value) -> bool,
    optional: bool,
}

const fn field<T: DeserializeOwned>(name: &'static str, what: &'static str) -> Field {
    Field { name, what, fits: fits::<T>, optional: false }
}

fn fits<T: DeserializeOwned>(value: &Value) -> bool {
    T::deserialize(value).is_ok()
}

const U32: &str = "an integer of 32 bits";
const U16: &str = "an integer of 16 bits";
const FLAG: &str = "true or false";

const OFFER: &[Field] = &[
    field::<Vec<Value>>("qps", "a list"),
    field::<Vec<Value>>("memory", "a list"),
    field::<String>("app", "text"),
];

const QP_INFO: &[Field] = &[
    field::<u32>("version", U32),
    field::<u32>("qpn", U32),
    field::<u32>("psn", U32),
    field::<u16>("msn", U16),
    field::<u8>("mpr", "an integer of 8 bits"),
    field::<u16>("max_wimm", U16),
    field::<u32>("mtu", U32),
    field::<bool>("trim_nack", FLAG),
    field::<bool>("dynamic_mpr", FLAG),
    field::<bool>("icrc", FLAG),
    field::<u16>("udp_port", U16),
    field::<String>("entropy", "text"),
    field::<Vec<Value>>("ports", "a list"),
    Field { optional: true, ..field::<Vec<u32>>("plane_ids", "a list of integers of 32 bits") },
    Field { optional: true, ..field::<Vec<String>>("extensions", "a list of texts") },
    Field { optional: true, ..field::<u8>("max_rd_atomic", "an integer of 8 bits") },
];

const PORT_ADDR: &[Field] =
    &[field::<IpAddr>("ip", "an IP address"), field::<[u8; 6]>("mac", "a list of 6 bytes")];

const REMOTE_MR: &[Field] = &[
    field::<u64>("addr", "an integer of 64 bits"),
    field::<u32>("rkey", U32),
    field::<u64>("len", "an integer of 64 bits"),
];

/// A value as text, cut short; of lists and objects only what they are.
fn brief(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(fields) => format!("an object of {} fields", fields.len()),
        Value::String(text) => format!("{:?}", bounded(text)),
        other => other.to_string(),
    }
}
