use std::collections::BTreeSet;

use super::*;
use crate::{Dropped, End, F3216, Node, Segments, Shape};

/// Two planes; two hosts at the first T0 switch, two at the second, and five T1 switches.
fn fabric() -> Fabric {
    let places = [("a", 0, 0), ("b", 0, 1), ("c", 1, 3), ("d", 1, 0)];
    let hosts = places.map(|(name, t0, downlink)| FabricHost { name: name.to_owned(), t0, downlink });
    Fabric::new(Shape { planes: 2, t0: 2, t1: 5, ..Shape::default() }, hosts.to_vec()).unwrap()
}

fn net(text: &str) -> Ipv6Net {
    text.parse().unwrap()
}

/// A field with a number in its low bits, and the plane where the scheme of the fabric has it.
fn usid(init: u32) -> TemplateField {
    TemplateField { plane: 0x3e00, ..TemplateField::new(Field::fixed(16, init)) }
}

/// From the first T0 switch to all hosts of the second one, over T1 switches 0 to 2.
fn template() -> Template {
    let uplink = Field { width: 16, init: 0x8000, min: 0, max: 2, mask: 3 };
    let fields = vec![
        TemplateField::new(Field::fixed(32, 0xfcbb_bb00)),
        usid(0x4000),
        TemplateField { field: uplink, ..usid(0) },
        usid(0x4001),
        TemplateField { downlink: 0x1ff, ..usid(0xc000) },
    ];
    Template {
        from: Vec::new(),
        to: net("fd5d:7072:0:1::/64"),
        planes: Vec::new(),
        format: F3216::FORMAT.to_vec(),
        fields,
    }
}

/// The T1 switches that the paths of a plane pass, all of which arrive.
fn over(fabric: &Fabric, from: u16, to: u16, plane: u8) -> Vec<u16> {
    let (paths, mut walker, mut seen) =
        (fabric.paths(from, to, plane).unwrap(), fabric.walker(), BTreeSet::new());
    for number in 0..paths.count() {
        let walk = walker.walk(from, to, plane, paths.nth(number).unwrap()).unwrap();
        assert_eq!(walk.end, End::Delivered(fabric.address(to, plane).unwrap()), "{walk:?}");
        seen.extend(walk.hops.iter().filter_map(|hop| match hop.node {
            Node::T1 { plane: of, number } if of == plane => Some(number),
            _ => None,
        }));
    }
    seen.into_iter().collect()
}

const ALL: [u16; 5] = [0, 1, 2, 3, 4];

#[test]
fn a_template_takes_the_place_of_the_paths_to_its_prefix() {
    let plain = fabric();
    let fabric = plain.clone().with_templates(vec![template()]).unwrap();
    for plane in 0..2 {
        for from in 0..2 {
            assert_eq!(over(&fabric, from, 2, plane), [0, 1, 2]);
            assert_eq!(over(&fabric, from, 3, plane), [0, 1, 2]);
            assert_eq!(over(&fabric, 2, from, plane), ALL);
            assert_eq!(fabric.paths(2, from, plane), plain.paths(2, from, plane));
        }
    }
    let text = |ev| fabric.paths(0, 2, 1).unwrap().expand(ev).destination().to_string();
    assert_eq!(
        (&*text(0), &*text(0x8000_0000)),
        ("fcbb:bb00:4200:8200:4201:c203::", "fcbb:bb00:4200:8202:4201:c203::")
    );
}

#[test]
fn hosts_planes_and_the_longest_prefix_decide() {
    let only = |max, of: fn(&mut Template)| {
        let mut template = template();
        template.fields[2].field.max = max;
        of(&mut template);
        template
    };
    let nothing: fn(&mut Template) = |_| ();
    // What is for one host alone comes first or last: its prefix is the longer one.
    let to_d: fn(&mut Template) = |template| template.to = net("fd5d:7072:0:1::1/128");
    for templates in [[only(2, nothing), only(1, to_d)], [only(1, to_d), only(2, nothing)]] {
        let fabric = fabric().with_templates(templates.to_vec()).unwrap();
        let seen = [(2, 0), (2, 1), (3, 0), (3, 1)].map(|(to, plane)| over(&fabric, 0, to, plane));
        assert_eq!(seen, [vec![0, 1, 2], vec![0, 1, 2], vec![0, 1], vec![0, 1, 2]]);
    }
    // The same prefix, for other hosts and other planes.
    let templates = vec![
        only(0, |template| (template.from, template.planes) = (vec![0], vec![0])),
        only(1, |template| (template.from, template.planes) = (vec![0], vec![1])),
        only(2, |template| (template.from, template.planes) = (vec![1], vec![1])),
    ];
    let fabric = fabric().with_templates(templates).unwrap();
    let seen = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(from, plane)| over(&fabric, from, 2, plane));
    assert_eq!(seen, [vec![0], vec![0, 1], ALL.to_vec(), vec![0, 1, 2]]);
}

/// The rest of a path that one address cannot hold is in a routing header, which the walk takes along.
#[test]
fn long_paths_have_a_routing_header() {
    let mut template = template();
    template.format = [F3216::FORMAT, F3216::FORMAT].concat();
    // Up, down, up and down again: the last two uSIDs lie in the second address.
    let block = template.fields[0];
    template.fields.splice(3.., [usid(0x4001), usid(0x8003), usid(0x4000), usid(0x8004)]);
    template.fields.extend([block, usid(0x4001), TemplateField { downlink: 0x1ff, ..usid(0xc000) }]);
    let fabric = fabric().with_templates(vec![template]).unwrap();
    let path = fabric.paths(0, 2, 0).unwrap().expand(0x4000_0000);
    let addresses = ["fcbb:bb00:4000:8001:4001:8003:4000:8004", "fcbb:bb00:4001:c003::"];
    assert_eq!(path, Segments::new(&addresses.map(|text| text.parse().unwrap())).unwrap());
    assert_eq!(over(&fabric, 0, 2, 0), ALL);
    assert_eq!(over(&fabric, 1, 2, 1), ALL);
    let walk = fabric.walker().walk(0, 2, 0, 0).unwrap();
    assert_eq!(walk.hops.len(), 9, "{walk:?}");
}

/// It is sent as it is written; the switch that has no way to go on drops it.
#[test]
fn a_mistake_leads_where_it_leads() {
    let mut template = template();
    template.fields[3] = usid(0x4007);
    let fabric = fabric().with_templates(vec![template]).unwrap();
    let walk = fabric.walker().walk(0, 2, 1, 0).unwrap();
    let at = walk.hops.last().unwrap();
    assert_eq!(at.node, Node::T1 { plane: 1, number: 0 });
    assert_eq!(walk.end, End::Dropped(Dropped::NoRoute("fcbb:bb00:4207:c203::".parse().unwrap())));
}

#[test]
fn what_is_wrong_is_named() {
    let refused = |change: &dyn Fn(&mut Template), expected: &str| {
        let mut other = template();
        other.to = net("fd5d:7072::/64");
        let mut wrong = template();
        change(&mut wrong);
        let error = fabric().with_templates(vec![other, wrong]).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    let field = |at: usize, change: fn(&mut TemplateField), expected: &str| {
        refused(
            &|template| change(&mut template.fields[at]),
            &format!("template 2: field {}: {expected}", at + 1),
        );
    };
    refused(
        &|template| template.from = vec![3, 4],
        "from of template 2: there is no host 4, the last one is 3",
    );
    refused(
        &|template| template.to = net("fd5d:7072:0:1::1/64"),
        "to of template 2: fd5d:7072:0:1::1/64 has bits behind the prefix; fd5d:7072:0:1::/64 has none",
    );
    refused(
        &|template| template.planes = vec![0, 2],
        "planes of template 2: there is no plane 2, the last one is 1",
    );
    refused(&|template| template.fields.clear(), "fields of template 2: there are none");
    refused(
        &|template| template.format = vec![32, 16],
        "template 2: the format has 48 bits, addresses take 128, 256, 384, 512 or 640",
    );
    refused(
        &|template| template.to = net("fd5d:7072::/64"),
        "to of template 2: template 1 leads to fd5d:7072::/64 as well, on one of these planes and from one of these hosts",
    );
    field(1, |field| field.plane = 0x1_0000, "plane: 0x10000 has more than 16 bits");
    field(2, |field| field.plane = 0x6, "plane: another number takes bits of 0x6, too: 0x2");
    field(4, |field| field.downlink = 0x3ff, "downlink: another number takes bits of 0x3ff, too: 0x200");
    // The largest port there is number 3.
    field(4, |field| field.downlink = 1, "downlink: 0x1 has room for 1 bits, too few for the number 3");
    field(2, |field| field.field.max = 4, "max: 4 has more bits than the mask takes, which are 2");
    field(0, |field| field.field.width = 33, "width: 33 bits given, 1 to 32 fit");
    // As many paths as may be, and one more.
    let wide = |mask, max| {
        move |template: &mut Template| {
            template.fields[2].plane = 0;
            template.fields[1].field.mask = 1;
            template.fields[1].field.max = u32::from(mask == 0xffff);
            template.fields[2].field = Field { width: 16, init: 0, min: 0, max, mask };
        }
    };
    refused(
        &wide(0xffff, 0x8000),
        "fields of template 2: masks and limits allow 65538 paths, at most 65536 may be",
    );
    for (mask, max) in [(0xffff, 0x7fff), (0x7fff, 0x7fff)] {
        let mut most = template();
        wide(mask, max)(&mut most);
        fabric().with_templates(vec![most]).unwrap();
    }
    // Room for the largest plane is needed only where planes have it.
    let mut narrow = template();
    narrow.fields.iter_mut().for_each(|field| field.plane &= 0x200);
    assert_eq!(over(&fabric().with_templates(vec![narrow.clone()]).unwrap(), 0, 2, 1), [0, 1, 2]);
    let wider = Fabric::new(Shape { planes: 3, ..*fabric().shape() }, fabric().hosts().to_vec()).unwrap();
    let error = wider.clone().with_templates(vec![narrow.clone()]).unwrap_err().to_string();
    assert_eq!(error, "template 1: field 2: plane: 0x200 has room for 1 bits, too few for the number 2");
    narrow.planes = vec![1, 0];
    wider.with_templates(vec![narrow]).unwrap();
}
