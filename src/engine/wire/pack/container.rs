//! Lists, maps, optional values and results.

use crate::pack::{DecodeError, DecodeFault, PayloadReader, PayloadWriter, TypeLiteral, Wire};
use mcctl_base::ErrorCode;

/// The result of a call: the value, or upstream's error code.
pub type Expected<T> = Result<T, ErrorCode>;

/// A map as pairs in the order received (in upstream, hash map order).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map<K, V>(pub Vec<(K, V)>);

/// Maximum number of items in a list. No known client sends a batch this large, and the response to
/// a larger batch of one-byte keys would need gigabytes.
pub(super) const LIST_ITEMS_MAX: usize = 1 << 20;
/// Maximum number of elements for which memory is reserved before the first is read. An element
/// that takes one byte on the wire may take hundreds in memory, so a larger count is not trusted.
const TRUSTED_COUNT: usize = 1024;

impl<'a, T: Wire<'a>> Wire<'a> for Vec<T> {
    fn literal(out: &mut TypeLiteral) {
        out.byte(0x84);
        T::literal(out);
    }
    #[inline]
    fn longest(&self) -> usize {
        self.iter().map(T::longest).fold(self.len(), usize::max)
    }
    #[inline]
    fn put(&self, out: &mut PayloadWriter<'_>) {
        let count = self.iter().filter(|item| item.is_known(out)).count();
        out.length(count);
        for item in self {
            if count == self.len() || item.is_known(out) {
                item.put(out);
            }
        }
    }
    #[inline]
    fn get(from: &mut PayloadReader<'a>) -> Result<Vec<T>, DecodeError> {
        let count = from.length()?;
        if count > LIST_ITEMS_MAX {
            return Err(DecodeFault::TooLong { length: count as u64, limit: LIST_ITEMS_MAX as u64 }.into());
        }
        let mut items = Vec::with_capacity(count.min(TRUSTED_COUNT));
        for index in 0..count {
            items.push(T::get(from).map_err(|e| e.at(index))?);
        }
        Ok(items)
    }
}

impl<'a, K: Wire<'a>, V: Wire<'a>> Wire<'a> for Map<K, V> {
    fn literal(out: &mut TypeLiteral) {
        out.byte(0x82);
        K::literal(out);
        V::literal(out);
    }
    fn longest(&self) -> usize {
        self.0.iter().map(|(k, v)| k.longest().max(v.longest())).fold(self.0.len(), usize::max)
    }
    fn put(&self, out: &mut PayloadWriter<'_>) {
        out.length(self.0.len());
        for (key, value) in &self.0 {
            key.put(out);
            value.put(out);
        }
    }
    fn get(from: &mut PayloadReader<'a>) -> Result<Map<K, V>, DecodeError> {
        let count = from.length()?;
        let mut pairs = Vec::with_capacity(count.min(TRUSTED_COUNT));
        for index in 0..count {
            pairs.push((K::get(from).map_err(|e| e.at(index))?, V::get(from).map_err(|e| e.at(index))?));
        }
        Ok(Map(pairs))
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for Option<T> {
    fn literal(out: &mut TypeLiteral) {
        out.byte(0x85);
        T::literal(out);
    }
    fn longest(&self) -> usize {
        self.as_ref().map_or(0, T::longest)
    }
    fn put(&self, out: &mut PayloadWriter<'_>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(from: &mut PayloadReader<'a>) -> Result<Option<T>, DecodeError> {
        bool::get(from)?.then(|| T::get(from)).transpose()
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for Expected<T> {
    fn literal(out: &mut TypeLiteral) {
        out.byte(0x87);
        T::literal(out);
        ErrorCode::literal(out);
    }
    #[inline]
    fn longest(&self) -> usize {
        self.as_ref().map_or(0, T::longest)
    }
    #[inline]
    fn put(&self, out: &mut PayloadWriter<'_>) {
        self.is_ok().put(out);
        match self {
            Ok(value) => value.put(out),
            Err(code) => code.put(out),
        }
    }
    fn get(from: &mut PayloadReader<'a>) -> Result<Expected<T>, DecodeError> {
        Ok(if bool::get(from)? { Ok(T::get(from)?) } else { Err(ErrorCode::get(from)?) })
    }
}
