//! Reads one Rust file as tokens and lists what it names: every path, every import, every `unsafe`.
//!
//! Tokens, not lines: comments and strings cannot hide or fake a mention, and grouped imports, renames
//! and `super::` chains are followed to the full path.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, Group, Ident, LexError, Spacing, TokenStream, TokenTree};

/// A module's place below its crate root, `["memory", "view"]` for `src/memory/view.rs`.
pub(crate) type Module = Vec<String>;

/// A path as the file means it: imports followed, `self` and `super` resolved, `core` and `alloc` told
/// as `std`, and paths into the own crate starting with `crate`.
pub(crate) struct Mention {
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
    pub(crate) in_test: bool,
}

/// What one file names.
#[derive(Default)]
pub(crate) struct Source {
    pub(crate) mentions: Vec<Mention>,
    /// Lines with the keyword `unsafe`.
    pub(crate) unsafe_lines: Vec<usize>,
    /// Modules that this file declares under `cfg(test)` and keeps in files of their own.
    pub(crate) test_modules: Vec<Module>,
    /// Imported name to what it stands for.
    pub(crate) imports: BTreeMap<String, Vec<String>>,
}

/// Reads the text of the file that holds `module`.
pub(crate) fn read(module: &[String], text: &str) -> Result<Source, LexError> {
    let mut reader = Reader::default();
    reader.walk(text.parse::<TokenStream>()?, module, false);
    Ok(reader.finish())
}

/// A path as written, and where.
struct Written {
    path: Vec<String>,
    module: Module,
    line: usize,
    in_test: bool,
}

#[derive(Default)]
struct Reader {
    written: Vec<Written>,
    source: Source,
}

impl Reader {
    fn finish(mut self) -> Source {
        let imports = &self.source.imports;
        for w in &self.written {
            let path = resolve(&w.path, &w.module, imports);
            self.source.mentions.push(Mention { path, line: w.line, in_test: w.in_test });
        }
        self.source
    }

    /// Walks the tokens of one module or one bracketed group of it.
    fn walk(&mut self, stream: TokenStream, module: &[String], mut in_test: bool) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let mut item_is_test = false;
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let test = in_test || item_is_test;
            at += match token {
                TokenTree::Punct(p) if p.as_char() == '#' => {
                    let inner = is_punct(tokens.get(at + 1), '!');
                    let skip = if inner { 2 } else { 1 };
                    if let Some(TokenTree::Group(attribute)) = tokens.get(at + skip) {
                        let found = self.attribute(attribute);
                        in_test |= inner && found;
                        item_is_test |= !inner && found;
                        skip + 1
                    } else {
                        1
                    }
                }
                TokenTree::Punct(p) => {
                    item_is_test &= !matches!(p.as_char(), ';' | ',');
                    1
                }
                TokenTree::Ident(word) => self.word(word, &tokens[at..], module, test),
                TokenTree::Group(group) => {
                    self.walk(group.stream(), module, test);
                    1
                }
                TokenTree::Literal(_) => 1,
            };
            item_is_test &= !is_braces(tokens.get(at - 1));
        }
    }

    /// Notes `unsafe` in an attribute and tells whether it is a `cfg` that holds only in tests.
    fn attribute(&mut self, attribute: &Group) -> bool {
        let mut tokens = attribute.stream().into_iter();
        let Some(TokenTree::Ident(name)) = tokens.next() else { return false };
        if name == "unsafe" {
            self.source.unsafe_lines.push(line_of(&name));
        }
        let Some(TokenTree::Group(condition)) = tokens.next() else { return false };
        let words = idents(condition.stream());
        let has = |word: &str| words.iter().any(|w| w == word);
        name == "cfg" && has("test") && !has("not") && !has("any")
    }

    /// Handles the identifier at the head of `tokens`; returns how many tokens it used up.
    fn word(&mut self, word: &Ident, tokens: &[TokenTree], module: &[String], in_test: bool) -> usize {
        match word.to_string().as_str() {
            "use" => self.import(tokens, module, in_test),
            "mod" => self.module(tokens, module, in_test),
            "unsafe" => {
                self.source.unsafe_lines.push(line_of(word));
                1
            }
            "extern" if is_ident(tokens.get(1), "crate") => {
                if let Some(TokenTree::Ident(name)) = tokens.get(2) {
                    self.note(vec![name.to_string(), "*".to_owned()], module, line_of(name), in_test);
                }
                3
            }
            _ => {
                let (path, used) = path_at(tokens);
                let macro_call = is_punct(tokens.get(used), '!')
                    && matches!(tokens.get(used + 1), Some(TokenTree::Group(_)));
                if path.len() > 1 || macro_call {
                    self.note(path, module, line_of(word), in_test);
                }
                used
            }
        }
    }

    fn module(&mut self, tokens: &[TokenTree], module: &[String], in_test: bool) -> usize {
        let Some(TokenTree::Ident(name)) = tokens.get(1) else { return 1 };
        let inner: Module = module.iter().cloned().chain([name.to_string()]).collect();
        if let Some(TokenTree::Group(body)) = tokens.get(2) {
            self.walk(body.stream(), &inner, in_test);
            return 3;
        }
        if in_test {
            self.source.test_modules.push(inner);
        }
        2
    }

    fn import(&mut self, tokens: &[TokenTree], module: &[String], in_test: bool) -> usize {
        let end = tokens.iter().position(|t| is_punct(Some(t), ';')).unwrap_or(tokens.len());
        self.import_tree(&tokens[1..end], &[], module, in_test);
        end
    }

    fn import_tree(&mut self, tokens: &[TokenTree], prefix: &[String], module: &[String], in_test: bool) {
        for leaf in tokens.split(|t| is_punct(Some(t), ',')) {
            let mut path = prefix.to_vec();
            let mut name = None;
            let mut line = 0;
            let mut grouped = false;
            for token in leaf {
                match token {
                    TokenTree::Ident(word) if word == "as" => name = Some(String::new()),
                    TokenTree::Ident(word) if name.is_some() => name = Some(word.to_string()),
                    TokenTree::Ident(word) if word == "self" && !prefix.is_empty() => line = line_of(word),
                    TokenTree::Ident(word) => {
                        path.push(word.to_string());
                        line = line_of(word);
                    }
                    TokenTree::Punct(star) if star.as_char() == '*' => {
                        path.push("*".to_owned());
                        line = star.span().start().line;
                    }
                    TokenTree::Group(group) => {
                        let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                        self.import_tree(&inner, &path, module, in_test);
                        grouped = true;
                    }
                    TokenTree::Punct(_) | TokenTree::Literal(_) => {}
                }
            }
            if grouped || line == 0 {
                continue;
            }
            let name = name.or_else(|| path.last().cloned()).unwrap_or_default();
            let full = resolve(&path, module, &BTreeMap::new());
            self.source.imports.insert(name, full);
            self.note(path, module, line, in_test);
        }
    }

    fn note(&mut self, path: Vec<String>, module: &[String], line: usize, in_test: bool) {
        self.written.push(Written { path, module: module.to_vec(), line, in_test });
    }
}

/// The path that starts with the identifier at the head of `tokens`, and how many tokens it takes.
fn path_at(tokens: &[TokenTree]) -> (Vec<String>, usize) {
    let mut path = Vec::new();
    let mut at = 0;
    while let Some(TokenTree::Ident(word)) = tokens.get(at) {
        path.push(word.to_string());
        at += 1;
        if !is_path_separator(&tokens[at..]) || !matches!(tokens.get(at + 2), Some(TokenTree::Ident(_))) {
            break;
        }
        at += 2;
    }
    (path, at)
}

fn resolve(path: &[String], module: &[String], imports: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut path = path.to_vec();
    // A chain of renames longer than this is not written by anybody.
    for _ in 0..8 {
        let Some(target) = path.first().and_then(|head| imports.get(head)) else { break };
        if path.starts_with(target) {
            break;
        }
        path.splice(0..1, target.iter().cloned());
    }
    match path.first().map(String::as_str) {
        Some("core" | "alloc") => "std".clone_into(&mut path[0]),
        Some("self" | "super") => {
            let own = usize::from(path[0] == "self");
            let up = path.iter().skip(own).take_while(|s| *s == "super").count();
            let base = &module[..module.len().saturating_sub(up)];
            path = ["crate".to_owned()].iter().chain(base).chain(&path[own + up..]).cloned().collect();
        }
        _ => {}
    }
    path
}

fn idents(stream: TokenStream) -> Vec<String> {
    stream
        .into_iter()
        .flat_map(|token| match token {
            TokenTree::Ident(word) => vec![word.to_string()],
            TokenTree::Group(group) => idents(group.stream()),
            TokenTree::Punct(_) | TokenTree::Literal(_) => Vec::new(),
        })
        .collect()
}

fn line_of(word: &Ident) -> usize {
    word.span().start().line
}

fn is_punct(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(p)) if p.as_char() == wanted)
}

fn is_braces(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace)
}

fn is_ident(token: Option<&TokenTree>, wanted: &str) -> bool {
    matches!(token, Some(TokenTree::Ident(word)) if word == wanted)
}

fn is_path_separator(tokens: &[TokenTree]) -> bool {
    matches!(tokens.first(), Some(TokenTree::Punct(p)) if p.as_char() == ':' && p.spacing() == Spacing::Joint)
        && is_punct(tokens.get(1), ':')
}
