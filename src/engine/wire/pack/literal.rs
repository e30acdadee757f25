//! Type literals: the byte string that describes a type, and its hash.

use md5::{Digest, Md5};

use crate::pack::Wire;
use mcctl_base::upstream::Release;

/// A type literal under construction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeLiteral {
    pub(super) bytes: Vec<u8>,
    release: Release,
}

impl TypeLiteral {
    /// Starts a literal in the messages of `release`.
    pub fn new(release: Release) -> TypeLiteral {
        TypeLiteral { bytes: Vec::new(), release }
    }

    /// Whether the literal's release has what was added in `since`.
    pub fn has(&self, since: Release) -> bool {
        self.release >= since
    }

    /// Starts a struct, pair or tuple. Close it with [`TypeLiteral::close`].
    pub fn open_struct(&mut self) {
        self.bytes.push(0xfd);
    }

    /// Starts a variant. Close it with [`TypeLiteral::close`].
    pub fn open_variant(&mut self) {
        self.bytes.push(0x86);
    }

    /// Ends a struct, pair, tuple or variant.
    pub fn close(&mut self) {
        self.bytes.push(0xff);
    }

    /// Appends one of the format's type codes.
    pub fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    /// Appends a size in base-127 digits, least significant first. The last digit is marked.
    pub fn size(&mut self, mut size: usize) {
        loop {
            let digit = u8::try_from(size % 127).expect("a remainder below 127");
            size /= 127;
            if size == 0 {
                return self.bytes.push(digit + 129);
            }
            self.bytes.push(digit + 1);
        }
    }
}

/// Writes the literal of a type.
pub type WriteLiteral = fn(&mut TypeLiteral);

/// A type's literal and hash in the messages of one release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeInfo {
    literal: Vec<u8>,
    hash: u32,
    release: Release,
}

impl TypeInfo {
    /// Returns the info for the type `T`.
    pub fn of<T: for<'a> Wire<'a>>(release: Release) -> TypeInfo {
        TypeInfo::from_parts(release, &[<T as Wire>::literal])
    }

    /// Returns the info for a request with these arguments: a single argument is sent as it is,
    /// several are sent as a tuple. A request without arguments has no body.
    pub fn from_parts(release: Release, parts: &[WriteLiteral]) -> TypeInfo {
        let mut literal = TypeLiteral::new(release);
        if let [one] = parts {
            one(&mut literal);
        } else {
            literal.open_struct();
            for part in parts {
                part(&mut literal);
            }
            literal.close();
        }
        TypeInfo::new(literal)
    }

    /// Returns the one-element tuple that contains this type, which upstream's receivers also
    /// accept for a single argument.
    #[must_use]
    pub fn wrapped(&self) -> TypeInfo {
        let mut literal = TypeLiteral::new(self.release);
        literal.open_struct();
        literal.bytes.extend_from_slice(&self.literal);
        literal.close();
        TypeInfo::new(literal)
    }

    fn new(literal: TypeLiteral) -> TypeInfo {
        TypeInfo { hash: md5_u32(&literal.bytes) & !1, literal: literal.bytes, release: literal.release }
    }

    /// The release whose messages have this type.
    #[inline]
    pub fn release(&self) -> Release {
        self.release
    }

    /// The literal's bytes, without the terminating NUL.
    pub fn literal(&self) -> &[u8] {
        &self.literal
    }

    /// The hash. Its lowest bit is 0; on the wire that bit is set if a flag byte follows.
    pub fn hash(&self) -> u32 {
        self.hash
    }
}

/// Returns the first four bytes of the MD5 digest as a big-endian number: upstream's 32-bit id for
/// a name or literal.
pub fn md5_u32(bytes: &[u8]) -> u32 {
    let digest = Md5::digest(bytes);
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}
