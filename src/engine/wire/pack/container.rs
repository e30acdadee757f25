//! Lists, maps, optional values, and results.

use crate::engine::base::ErrorCode;
use crate::engine::wire::pack::{DecodeError, Fault, Literal, Packer, Reader, Wire};

/// What a call answers: the value, or upstream's error number.
pub type Expected<T> = Result<T, ErrorCode>;

/// A map, as the pairs in the order they came in (upstream's order is a hash map's).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map<K, V>(pub Vec<(K, V)>);

/// Items of one list that are taken: a batch of that many keys has been seen from nobody, and the answer to a larger one of one-byte
/// keys would take gigabytes.
pub const LIST_ITEMS_MAX: usize = 1 << 20;
/// Elements that are reserved for before any has been read: a count is believed only so far, since an element of one byte on the
/// wire may take hundreds in memory.
const TRUSTED_COUNT: usize = 1024;

impl<'a, T: Wire<'a>> Wire<'a> for Vec<T> {
    fn literal(out: &mut Literal) {
        out.byte(0x84);
        T::literal(out);
    }
    #[inline]
    fn longest(&self) -> usize {
        self.iter().map(T::longest).fold(self.len(), usize::max)
    }
    #[inline]
    fn put(&self, out: &mut Packer<'_>) {
        out.length(self.len());
        for item in self {
            item.put(out);
        }
    }
    #[inline]
    fn get(from: &mut Reader<'a>) -> Result<Vec<T>, DecodeError> {
        let count = from.length()?;
        if count > LIST_ITEMS_MAX {
            return Err(Fault::TooLong { length: count as u64, limit: LIST_ITEMS_MAX as u64 }.into());
        }
        let mut items = Vec::with_capacity(count.min(TRUSTED_COUNT));
        for index in 0..count {
            items.push(T::get(from).map_err(|e| e.at(index))?);
        }
        Ok(items)
    }
}

impl<'a, K: Wire<'a>, V: Wire<'a>> Wire<'a> for Map<K, V> {
    fn literal(out: &mut Literal) {
        out.byte(0x82);
        K::literal(out);
        V::literal(out);
    }
    fn longest(&self) -> usize {
        self.0.iter().map(|(k, v)| k.longest().max(v.longest())).fold(self.0.len(), usize::max)
    }
    fn put(&self, out: &mut Packer<'_>) {
        out.length(self.0.len());
        for (key, value) in &self.0 {
            key.put(out);
            value.put(out);
        }
    }
    fn get(from: &mut Reader<'a>) -> Result<Map<K, V>, DecodeError> {
        let count = from.length()?;
        let mut pairs = Vec::with_capacity(count.min(TRUSTED_COUNT));
        for index in 0..count {
            pairs.push((K::get(from).map_err(|e| e.at(index))?, V::get(from).map_err(|e| e.at(index))?));
        }
        Ok(Map(pairs))
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for Option<T> {
    fn literal(out: &mut Literal) {
        out.byte(0x85);
        T::literal(out);
    }
    fn longest(&self) -> usize {
        self.as_ref().map_or(0, T::longest)
    }
    fn put(&self, out: &mut Packer<'_>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(from: &mut Reader<'a>) -> Result<Option<T>, DecodeError> {
        bool::get(from)?.then(|| T::get(from)).transpose()
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for Expected<T> {
    fn literal(out: &mut Literal) {
        out.byte(0x87);
        T::literal(out);
        ErrorCode::literal(out);
    }
    #[inline]
    fn longest(&self) -> usize {
        self.as_ref().map_or(0, T::longest)
    }
    #[inline]
    fn put(&self, out: &mut Packer<'_>) {
        self.is_ok().put(out);
        match self {
            Ok(value) => value.put(out),
            Err(code) => code.put(out),
        }
    }
    fn get(from: &mut Reader<'a>) -> Result<Expected<T>, DecodeError> {
        Ok(if bool::get(from)? { Ok(T::get(from)?) } else { Err(ErrorCode::get(from)?) })
    }
}
