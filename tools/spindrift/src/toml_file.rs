//! A TOML file with the positions of its values.

use std::fs;
use std::path::Path;

use anyhow::{Error, Result};
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};

use crate::usage::usage;

/// A file that was read.
#[derive(Clone, Debug)]
pub(crate) struct TomlFile {
    name: String,
    text: String,
    /// A top-level table and the name that it had before.
    renamed: Option<(&'static str, &'static str)>,
}

impl TomlFile {
    /// Reads a file, which is called a `kind` where it cannot be read.
    pub(crate) fn read(path: &Path, kind: &str) -> Result<Self> {
        let name = path.display().to_string();
        let text = fs::read_to_string(path)
            .map_err(|error| usage(format!("cannot read the {kind} {name}: {error}")))?;
        Ok(Self { name, text, renamed: None })
    }

    /// What is not read from a file, but called like one.
    pub(crate) fn of(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into(), renamed: None }
    }

    /// Finds the values of a top-level table also where the file has the table under its former name.
    pub(crate) fn renamed(mut self, table: &'static str, former: &'static str) -> Self {
        self.renamed = Some((table, former));
        self
    }

    /// What the file says.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        // The parser's message has line, column and the line itself.
        let message = |error: toml::de::Error| format!("{}: {}", self.name, error.to_string().trim_end());
        toml::from_str(&self.text).map_err(|error| usage(message(error)))
    }

    /// What the file is called.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What it says, word for word.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Names a key that is in the file, such as `nic.fault` or `host.2.t0`, with file, line and column.
    pub(crate) fn place(&self, key: &str) -> Option<String> {
        let (line, column) = self.find(key)?;
        Some(format!("{}: line {line}, column {column}: {key}", self.name))
    }

    /// Something is wrong with the value of a key of a table.
    pub(crate) fn wrong(&self, table: &str, key: &str, why: &str) -> Error {
        // A key that is not there has no place; its table has one.
        let place = self.place(&format!("{table}.{key}")).or_else(|| self.place(table));
        usage(format!("{}: {why}", place.unwrap_or_else(|| self.name.clone())))
    }

    /// The value of a key of a table, which must be there.
    pub(crate) fn needed<T>(&self, table: &str, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.wrong(table, key, &format!("`{key}` is missing")))
    }

    /// Line and column of a value.
    fn find(&self, key: &str) -> Option<(usize, usize)> {
        let table = DeTable::parse(&self.text).ok()?;
        let (first, rest) = key.split_once('.').unwrap_or((key, ""));
        let former = self.renamed.filter(|(table, _)| *table == first).map(|(_, former)| former);
        let mut value = table.get_ref().get(first).or_else(|| table.get_ref().get(former?))?;
        for part in rest.split('.').filter(|part| !part.is_empty()) {
            value = match value.get_ref() {
                DeValue::Table(table) => table.get(part)?,
                DeValue::Array(array) => array.get(part.parse::<usize>().ok()?)?,
                _ => return None,
            };
        }
        let before = self.text.get(..value.span().start)?;
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let column = before.get(line_start..)?.chars().count() + 1;
        Some((before.matches('\n').count() + 1, column))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_values_in_tables_and_lists() {
        let text =
            "top = 1\n[a]\nb = \"é\"\n c = { d = 2 }\n[[host]]\nt0 = 1\n[[host]]\nname = \"x\"\nt0 = 22\n";
        let file = TomlFile::of("f.toml", text);
        for (key, at) in [
            ("top", Some((1, 7))),
            ("a.b", Some((3, 5))),
            ("a.c.d", Some((4, 12))),
            ("host.0.t0", Some((6, 6))),
            ("host.1.t0", Some((9, 6))),
            ("host.1.name", Some((8, 8))),
            ("host.2.t0", None),
            ("host.0.name", None),
            ("host.x", None),
            ("a.b.c", None),
            ("z", None),
        ] {
            assert_eq!(file.find(key), at, "{key}");
        }
        assert_eq!(file.place("host.1.t0").as_deref(), Some("f.toml: line 9, column 6: host.1.t0"));
        assert_eq!(file.place("host.7.t0"), None);
        assert_eq!(file.place("new.b"), None);
        assert_eq!(
            file.renamed("new", "a").place("new.b").as_deref(),
            Some("f.toml: line 3, column 5: new.b")
        );
    }
}
