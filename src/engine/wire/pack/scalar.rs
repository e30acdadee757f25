//! Integers, booleans, ids and error codes.

use crate::pack::{DecodeError, PayloadReader, PayloadWriter, TypeLiteral, Wire};
use mcctl_base::{ClientId, ErrorCode, SegmentId, TaskId};

macro_rules! integer {
    ($($ty:ty = $code:literal),*) => {$(
        impl<'a> Wire<'a> for $ty {
            fn literal(out: &mut TypeLiteral) {
                out.byte($code);
            }
            #[inline]
            fn put(&self, out: &mut PayloadWriter<'_>) {
                out.bytes(&self.to_le_bytes());
            }
            #[inline]
            fn get(from: &mut PayloadReader<'a>) -> Result<Self, DecodeError> {
                Ok(<$ty>::from_le_bytes(from.array()?))
            }
        }
    )*};
}

integer!(i32 = 0x01, u32 = 0x02, i64 = 0x03, u64 = 0x04, i8 = 0x05, u8 = 0x06, i16 = 0x07, u16 = 0x08);

impl<'a> Wire<'a> for bool {
    fn literal(out: &mut TypeLiteral) {
        out.byte(0x0b);
    }
    #[inline]
    fn put(&self, out: &mut PayloadWriter<'_>) {
        out.bytes(&[u8::from(*self)]);
    }
    #[inline]
    fn get(from: &mut PayloadReader<'a>) -> Result<bool, DecodeError> {
        let [byte] = from.array()?;
        Ok(byte != 0)
    }
}

impl<'a> Wire<'a> for () {
    fn literal(out: &mut TypeLiteral) {
        out.byte(0xfa);
    }
    #[inline]
    fn put(&self, _out: &mut PayloadWriter<'_>) {}
    #[inline]
    fn get(_from: &mut PayloadReader<'a>) -> Result<(), DecodeError> {
        Ok(())
    }
}

impl<'a> Wire<'a> for ErrorCode {
    fn literal(out: &mut TypeLiteral) {
        i32::literal(out);
    }
    #[inline]
    fn put(&self, out: &mut PayloadWriter<'_>) {
        self.0.put(out);
    }
    #[inline]
    fn get(from: &mut PayloadReader<'a>) -> Result<ErrorCode, DecodeError> {
        i32::get(from).map(ErrorCode)
    }
}

macro_rules! uuid {
    ($($name:ident),*) => {$(
        impl<'a> Wire<'a> for $name {
            /// Two `u64` values. The type is trivially serializable, so the literal also contains
            /// its packing and alignment (8 and 8).
            fn literal(out: &mut TypeLiteral) {
                out.open_struct();
                u64::literal(out);
                u64::literal(out);
                out.size(8);
                out.size(8);
                out.close();
            }
            #[inline]
            fn put(&self, out: &mut PayloadWriter<'_>) {
                self.0.put(out);
                self.1.put(out);
            }
            #[inline]
            fn get(from: &mut PayloadReader<'a>) -> Result<$name, DecodeError> {
                Ok($name(u64::get(from)?, u64::get(from)?))
            }
        }
    )*};
}

uuid!(ClientId, SegmentId, TaskId);
