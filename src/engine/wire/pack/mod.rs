//! struct_pack: the encoding of every RPC body.
//!
//! A message is `u32 head`, then, when the head's lowest bit is set, a `u8` of flags (and what they announce: a total length,
//! the NUL-terminated *type literal*), then the payload. The head is the MD5 of the type literal, so both sides check that they
//! mean the same type. All lengths in one message have the same width, 1, 2, 4 or 8 bytes, the smallest that holds the largest.

mod container;
mod error;
mod literal;
mod message;
mod reader;
mod scalar;
mod text;

pub use container::{Expected, Map};
pub use error::{DecodeError, Fault};
pub use literal::{Literal, TypeInfo, md5_u32};
pub use message::{carries_literal, decode, encode, open};
pub use reader::{Packer, Reader, Width};
pub use text::{Text, TextBuf};

/// A value with a struct_pack encoding. `'a` is the life of the bytes that it may borrow from.
pub trait Wire<'a>: Sized {
    /// Write the type's literal, from which its hash is made.
    fn literal(out: &mut Literal);
    /// The largest string length or element count anywhere inside, which decides the width of all of them.
    fn longest(&self) -> usize {
        0
    }
    /// Append the payload.
    fn put(&self, out: &mut Packer<'_>);
    /// Read the payload.
    ///
    /// # Errors
    /// The bytes end early, or a value is impossible.
    fn get(from: &mut Reader<'a>) -> Result<Self, DecodeError>;
}

/// Define a struct whose wire form is its fields in the order written, and say so in one place.
macro_rules! wire_struct {
    ($(#[$doc:meta])* pub struct $name:ident $(<$life:lifetime>)? { $($(#[$fdoc:meta])* pub $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name $(<$life>)? { $($(#[$fdoc])* pub $field: $ty),* }

        $crate::engine::wire::pack::wire_fields!($name $(<$life>)? { $($field: $ty),* });
    };
}

/// The `Wire` implementation of a struct from its fields in wire order.
macro_rules! wire_fields {
    ($name:ident { $($field:ident : $ty:ty),* }) => {
        $crate::engine::wire::pack::wire_fields!(@impl 'a, $name, { $($field: $ty),* });
    };
    ($name:ident <$life:lifetime> { $($field:ident : $ty:ty),* }) => {
        $crate::engine::wire::pack::wire_fields!(@impl $life, $name<$life>, { $($field: $ty),* });
    };
    (@impl $life:lifetime, $self:ty, { $($field:ident : $ty:ty),* }) => {
        impl<$life> $crate::engine::wire::pack::Wire<$life> for $self {
            fn literal(out: &mut $crate::engine::wire::pack::Literal) {
                out.open_struct();
                $(<$ty as $crate::engine::wire::pack::Wire<$life>>::literal(out);)*
                out.close();
            }
            fn longest(&self) -> usize {
                let longest = 0;
                $(let longest = longest.max($crate::engine::wire::pack::Wire::longest(&self.$field));)*
                longest
            }
            fn put(&self, out: &mut $crate::engine::wire::pack::Packer<'_>) {
                $($crate::engine::wire::pack::Wire::put(&self.$field, out);)*
            }
            fn get(
                from: &mut $crate::engine::wire::pack::Reader<$life>,
            ) -> Result<Self, $crate::engine::wire::pack::DecodeError> {
                Ok(Self { $($field: $crate::engine::wire::pack::Wire::get(from).map_err(|e: $crate::engine::wire::pack::DecodeError| e.within(stringify!($field)))?),* })
            }
        }
    };
}

/// Define a number whose values have names, but may have others: a struct around the integer.
macro_rules! wire_number {
    ($(#[$doc:meta])* pub struct $name:ident($int:ty) { $($(#[$vdoc:meta])* $value:ident = $number:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$vdoc])* pub const $value: $name = $name($number);)*

            /// Upstream's name of the value, if it is one we know.
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

        impl<'a> $crate::engine::wire::pack::Wire<'a> for $name {
            fn literal(out: &mut $crate::engine::wire::pack::Literal) {
                <$int as $crate::engine::wire::pack::Wire>::literal(out);
            }
            fn put(&self, out: &mut $crate::engine::wire::pack::Packer<'_>) {
                self.0.put(out);
            }
            fn get(
                from: &mut $crate::engine::wire::pack::Reader<'a>,
            ) -> Result<Self, $crate::engine::wire::pack::DecodeError> {
                <$int as $crate::engine::wire::pack::Wire>::get(from).map($name)
            }
        }
    };
}

pub(crate) use {wire_fields, wire_number, wire_struct};

#[cfg(test)]
mod tests;
