//! A number for each link of a fabric, in the order of [`Fabric::links`], found without a search.
//!
//! The web page names links by the same rule, so that neither the names of 262,144 links nor their places have to be sent.

use serde::{Deserialize, Serialize};
use spindrift_srv6::{Fabric, Link, Node};

/// The size of a fabric, and the order of its links: plane by plane, those of hosts, of T0 switches, of T1 switches, and that between the two
/// T0 switches of a dumbbell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Planes.
    pub planes: u8,
    /// T0 switches of a plane.
    pub t0: u16,
    /// T1 switches that a T0 switch is joined to.
    pub t1: u16,
    /// Pods.
    pub pods: u16,
    /// T2 switches that a T1 switch is joined to.
    pub t2: u16,
    /// Whether two T0 switches are joined to each other, without a T1 switch.
    pub dumbbell: bool,
    /// The hosts.
    pub hosts: Vec<LayoutHost>,
    /// Links, of all planes.
    pub links: u32,
}

/// A host in a [`Layout`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutHost {
    /// Its name.
    pub name: String,
    /// Number of its T0 switch.
    pub t0: u16,
}

impl Layout {
    /// That of a fabric.
    pub fn new(fabric: &Fabric) -> Self {
        let shape = fabric.shape();
        let hosts = fabric.hosts().iter().map(|host| LayoutHost { name: host.name.clone(), t0: host.t0 });
        let has_third_tier = shape.pods > 1;
        let mut layout = Self {
            planes: shape.planes,
            t0: shape.t0,
            t1: shape.t1,
            pods: shape.pods,
            t2: if has_third_tier { shape.t2 } else { 0 },
            dumbbell: shape.t1 == 0 && shape.t0 == 2,
            hosts: hosts.collect(),
            links: 0,
        };
        layout.links = (layout.of_plane() * usize::from(layout.planes)) as u32;
        layout
    }

    /// Links of a plane.
    fn of_plane(&self) -> usize {
        self.across() + usize::from(self.dumbbell)
    }

    /// The place, in its plane, of the first link of a T1 switch, and of that of a dumbbell.
    fn middle(&self) -> usize {
        self.hosts.len() + usize::from(self.t0) * usize::from(self.t1)
    }

    fn across(&self) -> usize {
        self.middle() + usize::from(self.pods) * usize::from(self.t1) * usize::from(self.t2)
    }

    /// The number of the highest link of an agent's path, and where the path turns that is one link shorter. `None` where the fabric has
    /// no such path.
    pub fn path(&self, host: u16, top: Node) -> Option<(usize, Option<Node>)> {
        let t0 = self.hosts.get(usize::from(host))?.t0;
        let plane = top.plane().filter(|plane| *plane < self.planes)?;
        let pod = t0.checked_div(self.t0.checked_div(self.pods)?)?;
        let own = Node::T0 { plane, number: t0 };
        let (place, below) = match top {
            Node::T0 { number, .. } if number == t0 => (usize::from(host), None),
            Node::T0 { number, .. } if self.dumbbell && number < 2 => (self.across(), Some(own)),
            Node::T1 { number, .. } if number.checked_div(self.t1)? == pod => {
                let up = usize::from(number % self.t1);
                (self.hosts.len() + usize::from(t0) * usize::from(self.t1) + up, Some(own))
            }
            Node::T2 { number, .. } => {
                let of_pod = number.checked_div(self.t2).filter(|t1| *t1 < self.t1)?;
                let below = pod.checked_mul(self.t1)?.checked_add(of_pod)?;
                let place =
                    self.middle() + usize::from(below) * usize::from(self.t2) + usize::from(number % self.t2);
                (place, Some(Node::T1 { plane, number: below }))
            }
            _ => return None,
        };
        Some((usize::from(plane) * self.of_plane() + place, below))
    }

    /// The link of this number.
    pub fn link(&self, number: usize) -> Option<Link> {
        let plane = number.checked_div(self.of_plane())?;
        let plane = u8::try_from(plane).ok().filter(|plane| *plane < self.planes)?;
        let place = number % self.of_plane();
        if let Some(host) = self.hosts.get(place) {
            return Some((Node::Host(place as u16), Node::T0 { plane, number: host.t0 }));
        }
        if place < self.middle() {
            let place = place - self.hosts.len();
            let (lower, up) = (place / usize::from(self.t1), place % usize::from(self.t1));
            let pod = lower / usize::from(self.t0 / self.pods);
            let upper = pod * usize::from(self.t1) + up;
            return Some((
                Node::T0 { plane, number: lower as u16 },
                Node::T1 { plane, number: upper as u16 },
            ));
        }
        if place < self.across() {
            let place = place - self.middle();
            let (lower, up) = (place / usize::from(self.t2), place % usize::from(self.t2));
            let upper = lower % usize::from(self.t1) * usize::from(self.t2) + up;
            return Some((
                Node::T1 { plane, number: lower as u16 },
                Node::T2 { plane, number: upper as u16 },
            ));
        }
        Some((Node::T0 { plane, number: 0 }, Node::T0 { plane, number: 1 }))
    }

    /// The number of a link; `None` where there is none.
    pub fn number(&self, link: Link) -> Option<usize> {
        let place = match link {
            (Node::Host(host), Node::T0 { .. }) => usize::from(host),
            (Node::T0 { number, .. }, Node::T1 { number: upper, .. }) => {
                self.hosts.len()
                    + usize::from(number) * usize::from(self.t1)
                    + usize::from(upper.checked_rem(self.t1)?)
            }
            (Node::T1 { number, .. }, Node::T2 { number: upper, .. }) => {
                self.middle()
                    + usize::from(number) * usize::from(self.t2)
                    + usize::from(upper.checked_rem(self.t2)?)
            }
            _ => self.across(),
        };
        let number = usize::from(link.1.plane()?) * self.of_plane() + place;
        (self.link(number) == Some(link)).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use spindrift_agent::Path;
    use spindrift_srv6::{FabricHost, Shape};

    use super::*;

    fn fabrics() -> Vec<Fabric> {
        let shape = |planes, t0, t1| Shape { planes, t0, t1, ..Shape::default() };
        let shapes = [
            shape(2, 3, 5),
            shape(1, 1, 0),
            shape(3, 2, 0),
            Shape { pods: 2, t2: 3, ..shape(2, 4, 2) },
            Shape { pods: 3, t2: 1, ..shape(2, 3, 4) },
        ];
        let host = |number: u16, t0: u16| FabricHost {
            name: format!("h{number}"),
            t0: number % t0,
            downlink: number / t0,
        };
        let fabric = |shape: Shape| {
            Fabric::new(shape, (0..=2 * shape.t0).map(|number| host(number, shape.t0)).collect()).unwrap()
        };
        shapes.map(fabric).into()
    }

    #[test]
    fn links_have_the_numbers_of_their_places() {
        for fabric in fabrics() {
            let layout = Layout::new(&fabric);
            assert_eq!(fabric.links().count(), layout.links as usize, "{layout:?}");
            for (number, link) in fabric.links().enumerate() {
                assert_eq!(layout.link(number), Some(link), "{layout:?} {number}");
                assert_eq!(layout.number(link), Some(number), "{layout:?} {link:?}");
            }
            assert_eq!(layout.link(layout.links as usize), None);
        }
    }

    /// Reports come from others, who may say anything.
    #[test]
    fn paths_lead_to_their_links_and_others_to_none() {
        for fabric in fabrics() {
            let layout = Layout::new(&fabric);
            for host in 0..=fabric.hosts().len() as u16 {
                let numbers = 0..14;
                let tops = (0..=fabric.shape().planes).flat_map(|plane| {
                    numbers.clone().flat_map(move |number| {
                        [
                            Node::T0 { plane, number },
                            Node::T1 { plane, number },
                            Node::T2 { plane, number },
                            Node::Host(number),
                        ]
                    })
                });
                for top in tops {
                    let way = Path { host, top }.way_up(&fabric);
                    let in_plane = top.plane().is_some_and(|plane| plane < fabric.shape().planes);
                    let expected = way.filter(|_| in_plane).map(|way| {
                        let (&below, upper) = (&way[way.len() - 2], way[way.len() - 1]);
                        let number = layout.number((below.min(upper), below.max(upper))).unwrap();
                        (number, Some(below).filter(|node| !matches!(node, Node::Host(_))))
                    });
                    assert_eq!(layout.path(host, top), expected, "{layout:?} {host} {top:?}");
                }
            }
        }
    }
}
