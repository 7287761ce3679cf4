//! A reader for the pictures' SVG that accepts only well-formed XML.

use std::collections::BTreeMap;

/// An element with its own text.
#[derive(Debug)]
pub(crate) struct Element {
    pub(crate) name: String,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) text: String,
}

impl Element {
    pub(crate) fn number(&self, attribute: &str) -> f64 {
        let text = self.attributes.get(attribute).unwrap_or_else(|| panic!("{attribute}: {self:?}"));
        let number: f64 = text.parse().unwrap_or_else(|_| panic!("{attribute}: {self:?}"));
        assert!(number.is_finite(), "{self:?}");
        number
    }
}

/// The elements of a document in the order of their first tags.
pub(crate) fn parse(document: &str) -> Vec<Element> {
    assert!(document.chars().all(|char| char >= ' ' || char == '\n'), "control characters");
    let mut elements: Vec<Element> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut rest = document;
    while let Some((text, tail)) = rest.split_once('<') {
        match open.last() {
            Some(&element) => elements[element].text += &unescape(text),
            None => assert!(text.trim().is_empty(), "text outside the root: {text}"),
        }
        let (tag, tail) = tail.split_once('>').expect("a tag ends");
        rest = tail;
        if let Some(name) = tag.strip_prefix('/') {
            let element = open.pop().expect("an end has a beginning");
            assert_eq!(elements[element].name, name);
            continue;
        }
        assert!(!open.is_empty() || elements.is_empty(), "one root");
        let (tag, is_empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        assert!(!name.is_empty() && name.chars().all(|char| char.is_ascii_alphanumeric()), "{tag}");
        if !is_empty {
            open.push(elements.len());
        }
        let attributes = parse_attributes(attributes);
        elements.push(Element { name: name.to_owned(), attributes, text: String::new() });
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "all elements end: {rest}");
    elements
}

fn parse_attributes(mut rest: &str) -> BTreeMap<String, String> {
    let mut attributes = BTreeMap::new();
    while !rest.is_empty() {
        let (name, tail) = rest.split_once("=\"").expect("an attribute has a value");
        let (value, tail) = tail.split_once('"').expect("a value ends");
        assert!(name.chars().all(|char| char.is_ascii_alphanumeric() || char == '-'), "{name}");
        assert!(attributes.insert(name.to_owned(), unescape(value)).is_none(), "{name} is there twice");
        rest = tail.strip_prefix(' ').unwrap_or(tail);
    }
    attributes
}

fn unescape(text: &str) -> String {
    let mut parts = text.split('&');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (entity, tail) = part.split_once(';').expect("an entity ends");
        plain.push(match entity {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "#39" => '\'',
            _ => panic!("unknown entity {entity}"),
        });
        plain.push_str(tail);
    }
    plain
}

#[test]
fn only_well_formed_documents_are_accepted() {
    let elements = parse("<a b=\"1\"><c d=\"&lt;\" e=\"2.5\"/>x &amp; y</a>\n");
    assert_eq!((elements[0].text.as_str(), elements[1].attributes["d"].as_str()), ("x & y", "<"));
    assert!((elements[1].number("e") - 2.5).abs() < 1e-9);
    for wrong in [
        "<a>",
        "<a></b>",
        "<a/><b/>",
        "<a>&x;</a>",
        "<a>a & b</a>",
        "<a b=\"1\" b=\"2\"/>",
        "<a b=1/>",
        "x<a/>",
    ] {
        assert!(std::panic::catch_unwind(|| parse(wrong)).is_err(), "{wrong}");
    }
}
