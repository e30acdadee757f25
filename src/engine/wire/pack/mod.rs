//! struct_pack: the encoding of every RPC body.
//!
//! A message is a `u32` head and the payload. If the head's lowest bit is set, a `u8` flag byte
//! comes between them, followed by the fields that the flags announce: a total length and the
//! NUL-terminated *type literal*. The head is derived from the MD5 digest of the type literal, so
//! that both sides can check that they use the same type. All lengths in a message have the same
//! width: 1, 2, 4 or 8 bytes, the smallest that fits the longest length.
//!
//! A type may have other fields in an older release. [`TypeLiteral`], [`PayloadReader`] and
//! [`PayloadWriter`] therefore know the [`Release`](crate::Release) of their message.

mod container;
mod error;
mod literal;
mod message;
mod reader;
mod scalar;
mod text;

pub use container::{Expected, Map};
pub use error::{DecodeError, DecodeFault};
pub use literal::{TypeInfo, TypeLiteral, WriteLiteral, md5_u32};
pub use message::{carries_literal, decode, encode, open, type_hash};
pub use reader::{LengthWidth, PayloadReader, PayloadWriter};
pub use text::{Text, TextBuf};

/// A value with a struct_pack encoding. `'a` is the lifetime of the bytes that the value may
/// borrow.
pub trait Wire<'a>: Sized {
    /// Writes the type's literal, from which its hash is computed.
    fn literal(out: &mut TypeLiteral);
    /// Returns the largest string length or element count in the value. It determines the width of
    /// all lengths.
    fn longest(&self) -> usize {
        0
    }
    /// Appends the payload of the value.
    fn put(&self, out: &mut PayloadWriter<'_>);
    /// Whether the release of the message has this kind of value. Lists leave out the others.
    #[inline]
    fn is_known(&self, _out: &PayloadWriter<'_>) -> bool {
        true
    }
    /// Reads the payload.
    ///
    /// # Errors
    /// The bytes end early, or a value is invalid.
    fn get(from: &mut PayloadReader<'a>) -> Result<Self, DecodeError>;
}

/// Defines a struct whose wire form is its fields in declaration order. A field with
/// `[since RELEASE]` is not in older messages; when one is read, the field gets its default or the
/// expression after `else`, which may use the fields before it.
macro_rules! wire_struct {
    ($(#[$doc:meta])* pub struct $name:ident $(<$life:lifetime>)? {
        $($(#[$fdoc:meta])* pub $field:ident : $ty:ty $([since $since:ident $(else $absent:expr)?])?),* $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name $(<$life>)? { $($(#[$fdoc])* pub $field: $ty),* }

        $crate::pack::wire_fields!($name $(<$life>)? { $($field: $ty $([since $since $(else $absent)?])?),* });
    };
}

/// Implements `Wire` for a struct from its fields in wire order.
macro_rules! wire_fields {
    ($name:ident { $($fields:tt)* }) => {
        $crate::pack::wire_fields!(@impl 'a, $name, { $($fields)* });
    };
    ($name:ident <$life:lifetime> { $($fields:tt)* }) => {
        $crate::pack::wire_fields!(@impl $life, $name<$life>, { $($fields)* });
    };
    (@impl $life:lifetime, $self:ty, { $($field:ident : $ty:ty $([since $since:ident $(else $absent:expr)?])?),* }) => {
        impl<$life> $crate::pack::Wire<$life> for $self {
            fn literal(out: &mut $crate::pack::TypeLiteral) {
                out.open_struct();
                $($crate::pack::if_present!(out, { <$ty as $crate::pack::Wire<$life>>::literal(out); } $(since $since)?);)*
                out.close();
            }
            fn longest(&self) -> usize {
                let longest = 0;
                $(let longest = longest.max($crate::pack::Wire::longest(&self.$field));)*
                longest
            }
            fn put(&self, out: &mut $crate::pack::PayloadWriter<'_>) {
                $($crate::pack::if_present!(out, { $crate::pack::Wire::put(&self.$field, out); } $(since $since)?);)*
            }
            fn get(
                from: &mut $crate::pack::PayloadReader<$life>,
            ) -> Result<Self, $crate::pack::DecodeError> {
                $(let $field: $ty = $crate::pack::get_present!(from, $field $(since $since $(else $absent)?)?);)*
                Ok(Self { $($field),* })
            }
        }
    };
}

/// Runs a block if the release of `$out` has the part.
macro_rules! if_present {
    ($out:ident, $then:block) => {
        $then
    };
    ($out:ident, $then:block since $since:ident) => {
        if $out.has(mcctl_base::upstream::Release::$since) $then
    };
}

/// Reads a value if the release of `$from` has it. Otherwise, returns its default.
macro_rules! get_present {
    ($from:ident, $name:ident) => {
        $crate::pack::Wire::get($from).map_err(|e: $crate::pack::DecodeError| e.within(stringify!($name)))?
    };
    ($from:ident, $name:ident since $since:ident) => {
        $crate::pack::get_present!($from, $name since $since else Default::default())
    };
    ($from:ident, $name:ident since $since:ident else $absent:expr) => {
        if $from.has(mcctl_base::upstream::Release::$since) { $crate::pack::get_present!($from, $name) } else { $absent }
    };
}

/// Defines an integer type with named values that also accepts other values.
macro_rules! named_number {
    ($(#[$doc:meta])* pub struct $name:ident($int:ty) { $($(#[$vdoc:meta])* $value:ident = $number:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$vdoc])* pub const $value: $name = $name($number);)*

            /// Upstream's name for the value, if it is known.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($value)),)*
                    _ => None,
                }
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{}({:#x})", stringify!($name), self.0),
                }
            }
        }
    };
}

/// A [`named_number`] that is the same in the messages of all releases.
macro_rules! wire_number {
    ($(#[$doc:meta])* pub struct $name:ident($int:ty) { $($values:tt)* }) => {
        $crate::pack::named_number! { $(#[$doc])* pub struct $name($int) { $($values)* } }

        impl<'a> $crate::pack::Wire<'a> for $name {
            fn literal(out: &mut $crate::pack::TypeLiteral) {
                <$int as $crate::pack::Wire>::literal(out);
            }
            fn put(&self, out: &mut $crate::pack::PayloadWriter<'_>) {
                self.0.put(out);
            }
            fn get(
                from: &mut $crate::pack::PayloadReader<'a>,
            ) -> Result<Self, $crate::pack::DecodeError> {
                <$int as $crate::pack::Wire>::get(from).map($name)
            }
        }
    };
}

pub(crate) use {get_present, if_present, named_number, wire_fields, wire_number, wire_struct};

#[cfg(test)]
mod tests;
