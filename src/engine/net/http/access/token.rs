//! Tokens and their roles. No token appears in `Debug` output or in an error.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};

/// Minimum length of a token in bytes, so that it cannot be found by trying.
pub const TOKEN_BYTES_MIN: usize = 16;
/// Maximum length of a token in bytes.
const TOKEN_BYTES_MAX: usize = 1024;
/// Maximum number of tokens in a table. Each request is compared with all of them.
const TOKENS_MAX: usize = 64;

/// What the owner of a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRole {
    /// Requests that change nothing.
    Read,
    /// Every request that the port has.
    Write,
}

/// A token that a client sends.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretToken(String);

/// The tokens that a server accepts, as digests.
#[derive(Clone, Debug, Default)]
pub struct TokenTable(Vec<(TokenDigest, TokenRole)>);

#[derive(Clone)]
struct TokenDigest([u8; SHA256_OUTPUT_LEN]);

/// A token or a table of tokens is invalid. Lines are counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("line {0} is not 'read TOKEN' or 'write TOKEN'")]
    Line(usize),
    #[error("the token in line {0} is shorter than {TOKEN_BYTES_MIN} bytes")]
    Short(usize),
    #[error("the token in line {0} is longer than {TOKEN_BYTES_MAX} bytes")]
    Long(usize),
    #[error("the token in line {0} contains a character other than letters, digits and -._~+/=")]
    Character(usize),
    #[error("line {0} repeats a token")]
    Repeated(usize),
    #[error("there are more than {TOKENS_MAX} tokens")]
    TooMany,
    #[error("there is no token")]
    Empty,
}

impl SecretToken {
    /// The token in `text`, without the white space around it.
    ///
    /// # Errors
    /// The token is too short or too long, or contains a character that a header cannot contain.
    /// The line is 1.
    pub fn new(text: &str) -> Result<SecretToken, TokenError> {
        SecretToken::in_line(text.trim(), 1)
    }

    /// The token of a client with the file `text`: the only token if the file contains nothing
    /// else, else the first with the role write, else the first. So a client may use the server's
    /// file.
    ///
    /// # Errors
    /// The file contains neither one token nor a table of tokens.
    pub fn from_file(text: &str) -> Result<SecretToken, TokenError> {
        if text.split_whitespace().count() == 1 {
            return SecretToken::new(text);
        }
        let entries = entries(text)?;
        let write = entries.iter().find(|(_, role)| *role == TokenRole::Write);
        write.or(entries.first()).map(|(token, _)| token.clone()).ok_or(TokenError::Empty)
    }

    /// The token itself, for a request.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    fn in_line(text: &str, line: usize) -> Result<SecretToken, TokenError> {
        match text.len() {
            0..TOKEN_BYTES_MIN => return Err(TokenError::Short(line)),
            TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX => {}
            _ => return Err(TokenError::Long(line)),
        }
        if text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte)) {
            Ok(SecretToken(text.to_owned()))
        } else {
            Err(TokenError::Character(line))
        }
    }
}

impl fmt::Debug for SecretToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretToken(***)")
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The tokens in `text`: one `read TOKEN` or `write TOKEN` per line. Empty lines and lines that
/// begin with `#` are ignored.
fn entries(text: &str) -> Result<Vec<(SecretToken, TokenRole)>, TokenError> {
    let mut entries: Vec<(SecretToken, TokenRole)> = Vec::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut words = line.split_whitespace();
        let (role, token) = match (words.next(), words.next(), words.next()) {
            (Some("read"), Some(token), None) => (TokenRole::Read, token),
            (Some("write"), Some(token), None) => (TokenRole::Write, token),
            _ => return Err(TokenError::Line(number)),
        };
        let token = SecretToken::in_line(token, number)?;
        if entries.iter().any(|(other, _)| *other == token) {
            return Err(TokenError::Repeated(number));
        }
        if entries.len() == TOKENS_MAX {
            return Err(TokenError::TooMany);
        }
        entries.push((token, role));
    }
    Ok(entries)
}

impl FromStr for TokenTable {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<TokenTable, TokenError> {
        let entries = entries(text)?;
        if entries.is_empty() {
            return Err(TokenError::Empty);
        }
        Ok(TokenTable(
            entries.iter().map(|(token, role)| (TokenDigest::of(token.reveal().as_bytes()), *role)).collect(),
        ))
    }
}

impl TokenTable {
    /// Whether the table contains no token.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The role of the token in the value of an `Authorization` header: `Bearer TOKEN`, or `Basic`
    /// with the token as the password and any user name. The time that this takes does not depend
    /// on the tokens in the table.
    pub fn role_of(&self, authorization: &str) -> Option<TokenRole> {
        let (scheme, value) = authorization.trim().split_once(' ')?;
        let value = value.trim();
        let found = if scheme.eq_ignore_ascii_case("bearer") {
            TokenDigest::of(value.as_bytes())
        } else if scheme.eq_ignore_ascii_case("basic") {
            let pair = BASE64_STANDARD.decode(value).ok()?;
            let colon = pair.iter().position(|byte| *byte == b':')?;
            TokenDigest::of(&pair[colon + 1..])
        } else {
            return None;
        };
        // All entries are compared, so that the time does not depend on which one is equal.
        self.0.iter().fold(None, |role, (token, own)| if token.equals(&found) { Some(*own) } else { role })
    }
}

impl TokenDigest {
    fn of(token: &[u8]) -> TokenDigest {
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        bytes.copy_from_slice(digest(&SHA256, token).as_ref());
        TokenDigest(bytes)
    }

    /// Compares all bytes. A difference in time would reveal only a part of a digest.
    fn equals(&self, other: &TokenDigest) -> bool {
        let differences = self.0.iter().zip(other.0).fold(0, |all, (one, other)| all | (one ^ other));
        std::hint::black_box(differences) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# rotated monthly\n\nread reader-0123456789abcdef\n  write writer-0123456789abcdef \n";

    #[test]
    fn a_table_has_the_roles_of_its_tokens() {
        let table: TokenTable = FILE.parse().unwrap();
        for (header, role) in [
            ("Bearer reader-0123456789abcdef", Some(TokenRole::Read)),
            ("bearer  writer-0123456789abcdef ", Some(TokenRole::Write)),
            // printf 'any:writer-0123456789abcdef' | base64
            ("Basic YW55OndyaXRlci0wMTIzNDU2Nzg5YWJjZGVm", Some(TokenRole::Write)),
            ("Bearer writer-0123456789abcde", None),
            ("Bearer writer-0123456789abcdef0", None),
            ("Bearer", None),
            ("Bearer ", None),
            ("writer-0123456789abcdef", None),
            ("Digest writer-0123456789abcdef", None),
            ("Basic ???", None),
            ("Basic YW55", None),
            ("", None),
        ] {
            assert_eq!(table.role_of(header), role, "{header}");
        }
        assert_eq!(TokenTable::default().role_of("Bearer "), None);
    }

    #[test]
    fn an_invalid_table_is_refused_with_the_line() {
        for (text, error) in [
            ("", TokenError::Empty),
            ("# nothing", TokenError::Empty),
            ("reader-0123456789abcdef", TokenError::Line(1)),
            ("admin reader-0123456789abcdef", TokenError::Line(1)),
            ("\nread one two", TokenError::Line(2)),
            ("read short", TokenError::Short(1)),
            ("read 0123456789ab\u{e9}cdef", TokenError::Character(1)),
            ("read reader-0123456789abcdef\nwrite reader-0123456789abcdef", TokenError::Repeated(2)),
        ] {
            assert_eq!(text.parse::<TokenTable>().unwrap_err(), error, "{text}");
        }
        let many: String = (0..=TOKENS_MAX).map(|i| format!("read reader-0123456789-{i}\n")).collect();
        assert_eq!(many.parse::<TokenTable>().unwrap_err(), TokenError::TooMany);
        let long = format!("read {}", "x".repeat(TOKEN_BYTES_MAX + 1));
        assert_eq!(long.parse::<TokenTable>().unwrap_err(), TokenError::Long(1));
    }

    #[test]
    fn a_client_uses_a_bare_token_or_the_servers_file() {
        let token = |text: &str| SecretToken::from_file(text).map(|token| token.reveal().to_owned());
        assert_eq!(token("writer-0123456789abcdef\n").as_deref(), Ok("writer-0123456789abcdef"));
        assert_eq!(token(FILE).as_deref(), Ok("writer-0123456789abcdef"));
        assert_eq!(token("read reader-0123456789abcdef").as_deref(), Ok("reader-0123456789abcdef"));
        assert_eq!(token(""), Err(TokenError::Empty));
        assert_eq!(token("short"), Err(TokenError::Short(1)));
    }

    #[test]
    fn debug_output_and_errors_contain_no_token() {
        let token = SecretToken::new("writer-0123456789abcdef").unwrap();
        let table: TokenTable = FILE.parse().unwrap();
        let text = format!("{token:?} {table:?} {}", "read one-two-three-four five".parse::<TokenTable>().unwrap_err());
        for secret in ["reader", "writer", "three"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}
