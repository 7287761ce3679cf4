//! A secret that requests have to show, from a file that its owner alone can read.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Fewer bytes can be guessed.
pub const MIN_LEN: usize = 16;
/// What is longer is no token.
const MAX_LEN: usize = 4_096;

/// A token cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file is missing, or may not be read.
    #[error("{0}: {1}")]
    Read(PathBuf, io::Error),
    /// Others than its owner can read or write it.
    #[error("{0}: others can read or change it (mode {1:03o}); run `chmod 600 {0}`")]
    Open(PathBuf, u32),
    /// Somebody else can change it.
    #[error("{0}: it belongs to user {1}; only root and the user of the agent may own it")]
    Owner(PathBuf, u32),
    /// Its length is wrong.
    #[error("{0}: a token has {MIN_LEN} to {MAX_LEN} bytes, not {1}; `openssl rand -hex 32` makes one")]
    Len(PathBuf, usize),
    /// It has a letter that no header can carry.
    #[error("{0}: a token has ASCII letters, digits and signs alone, in one line")]
    Letters(PathBuf),
}

/// See the [module documentation](self).
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token")
    }
}

impl Token {
    /// The token in a file. Blanks and line ends around it do not count.
    ///
    /// # Errors
    /// The file cannot be read, can be read by others, or has no token in it.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let failed = |error| TokenError::Read(path.to_owned(), error);
        let file = File::open(path).map_err(failed)?;
        // Of the file that is open: the name may lead to another one a moment later.
        let about = file.metadata().map_err(failed)?;
        let own = rustix::process::geteuid().as_raw();
        if about.mode() & 0o077 != 0 {
            return Err(TokenError::Open(path.to_owned(), about.mode() & 0o777));
        }
        if about.uid() != 0 && about.uid() != own {
            return Err(TokenError::Owner(path.to_owned(), about.uid()));
        }
        let mut text = String::new();
        file.take(2 * MAX_LEN as u64).read_to_string(&mut text).map_err(failed)?;
        let text = text.trim();
        if !(MIN_LEN..=MAX_LEN).contains(&text.len()) {
            return Err(TokenError::Len(path.to_owned(), text.len()));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::Letters(path.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }

    /// What an `Authorization` header has to be.
    pub fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Whether an `Authorization` header has the token. How long that takes says nothing about the token but its length.
    pub fn is_in(&self, header: &[u8]) -> bool {
        let Some((kind, shown)) = header.split_at_checked(7) else { return false };
        let shown = shown.trim_ascii();
        let differs = shown
            .iter()
            .zip(self.0.as_bytes())
            .fold(0, |differs, (a, b)| std::hint::black_box(differs | (a ^ b)));
        kind.eq_ignore_ascii_case(b"Bearer ") && shown.len() == self.0.len() && differs == 0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A file of this test alone.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str, text: &[u8], mode: u32) -> Self {
            let path = std::env::temp_dir().join(format!("spindrift-token-{name}-{}", std::process::id()));
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_token_comes_from_a_file_of_its_owner_alone() {
        let file = Scratch::new("good", b"0123456789abcdef\n", 0o600);
        let token = Token::read(&file.0).unwrap();
        assert_eq!(
            (token.header().as_str(), format!("{token:?}").as_str()),
            ("Bearer 0123456789abcdef", "Token")
        );
        for mode in [0o640, 0o620, 0o604, 0o602, 0o610, 0o601] {
            let file = Scratch::new("open", b"0123456789abcdef", mode);
            let error = Token::read(&file.0).unwrap_err().to_string();
            assert!(error.contains(&format!("(mode {mode:03o}); run `chmod 600 ")), "{error}");
        }
        for (text, expected) in [
            (&b"0123456789abcde\n"[..], "16 to 4096 bytes, not 15"),
            (b"", "not 0"),
            (&[b'a'; 5_000], "not 5000"),
            (b"0123456789 abcdef", "ASCII letters"),
            (b"0123456789\nabcdef", "ASCII letters"),
            ("0123456789abcdé".as_bytes(), "ASCII letters"),
            (b"0123456789abcde\xff", "UTF-8"),
        ] {
            let file = Scratch::new("bad", text, 0o600);
            let error = Token::read(&file.0).unwrap_err().to_string();
            assert!(error.contains(expected) && error.starts_with(file.0.to_str().unwrap()), "{error}");
        }
        assert!(matches!(Token::read(Path::new("/nowhere/token")), Err(TokenError::Read(..))));
    }

    #[test]
    fn a_header_has_the_whole_token() {
        let token = Token("0123456789abcdef".to_owned());
        for header in ["Bearer 0123456789abcdef", "bearer 0123456789abcdef", "Bearer  0123456789abcdef "] {
            assert!(token.is_in(header.as_bytes()), "{header}");
        }
        for header in [
            "",
            "Bearer",
            "Bearer ",
            "0123456789abcdef",
            "Basic  0123456789abcdef",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdeg",
            "Bearer 1123456789abcdef",
            "Bearer 0123456789abcdef0",
            "Bearer 0123456789ABCDEF",
        ] {
            assert!(!token.is_in(header.as_bytes()), "{header}");
        }
    }
}
