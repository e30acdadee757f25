//! Tenants: each one has keys of its own.
//!
//! The state, the log and the standbys know an object by one name: its key for the default tenant,
//! otherwise the tenant, a byte 00 and the key. So a key of the default tenant costs nothing more,
//! and neither part may contain the byte 00.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::refusal::MasterRefusal;
use mcctl_wire::Text;
use mcctl_wire::types::{ObjectMeta, Tenant};

/// Separates the tenant from the key.
const SEPARATOR: u8 = 0;
/// Maximum number of tenants in the metrics.
pub(crate) const TENANTS_MAX: usize = 1000;
/// Maximum length of a tenant's name, in bytes.
const TENANT_BYTES_MAX: usize = 255;
/// A key that no object has.
const NO_KEY: &[u8] = b"";

/// The keys of one tenant. `None`: the default tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TenantKeys<'a>(Option<&'a [u8]>);

impl<'a> TenantKeys<'a> {
    /// The keys of the default tenant.
    pub(crate) const DEFAULT: TenantKeys<'static> = TenantKeys(None);

    /// The keys of `tenant`; an empty name is the default tenant.
    ///
    /// # Errors
    /// `BadTenant` for a name that is too long, starts with `_`, contains a control byte, or is not
    /// UTF-8. Upstream refuses `_` and control bytes.
    pub(crate) fn of(tenant: Tenant<'a>) -> Result<TenantKeys<'a>, MasterRefusal> {
        let Tenant(Text(name)) = tenant;
        if name.is_empty() || tenant == Tenant::DEFAULT {
            return Ok(TenantKeys::DEFAULT);
        }
        let is_valid = name.len() <= TENANT_BYTES_MAX
            && !name.starts_with(b"_")
            && !name.iter().any(u8::is_ascii_control)
            && std::str::from_utf8(name).is_ok();
        if is_valid { Ok(TenantKeys(Some(name))) } else { Err(MasterRefusal::BadTenant) }
    }

    /// The name of an object in the state. A key with a byte 00 has none.
    #[inline]
    pub(crate) fn name<'k>(self, Text(key): Text<'k>) -> Cow<'k, [u8]> {
        match self.0 {
            _ if key.is_empty() || has_separator(key) => Cow::Borrowed(NO_KEY),
            None => Cow::Borrowed(key),
            Some(tenant) => Cow::Owned([tenant, &[SEPARATOR], key].concat()),
        }
    }

    /// The key of the object with this name; `None` if it belongs to another tenant.
    pub(crate) fn key(self, name: &[u8]) -> Option<&[u8]> {
        let (tenant, key) = split(name);
        (tenant == self.0).then_some(key)
    }

    /// Calls `work` with the names of `keys`.
    #[inline]
    pub(crate) fn with_names<R>(self, keys: &[Text<'_>], work: impl FnOnce(&[Text<'_>]) -> R) -> R {
        let is_plain = |key: &Text<'_>| !has_separator(key.0);
        if self.0.is_none() && keys.iter().all(is_plain) {
            return work(keys);
        }
        let names: Vec<Cow<'_, [u8]>> = keys.iter().map(|key| self.name(*key)).collect();
        work(&names.iter().map(|name| Text(name)).collect::<Vec<_>>())
    }

    /// Calls `work` with `objects` under their names.
    #[inline]
    pub(crate) fn with_objects<R>(self, objects: Vec<ObjectMeta<'_>>, work: impl FnOnce(&[ObjectMeta<'_>]) -> R) -> R {
        let is_plain = |object: &ObjectMeta<'_>| !has_separator(object.key.0);
        if self.0.is_none() && objects.iter().all(is_plain) {
            return work(&objects);
        }
        let names: Vec<Cow<'_, [u8]>> = objects.iter().map(|object| self.name(object.key)).collect();
        let named = objects.iter().zip(&names);
        let named = named.map(|(object, name)| ObjectMeta { key: Text(name), object_checksum: object.object_checksum });
        work(&named.collect::<Vec<_>>())
    }
}

/// Whether `key` contains the separator. In line, because the call of a general search costs more
/// than the search itself for keys of usual lengths, of which a batch has hundreds.
#[inline]
fn has_separator(key: &[u8]) -> bool {
    const LOW_BITS: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH_BITS: u64 = u64::from_ne_bytes([0x80; 8]);
    let (words, rest) = key.as_chunks::<8>();
    // Subtraction sets the high bit of a byte that is 0, and of one that had it before.
    let zeros = |word: &[u8; 8]| {
        let word = u64::from_ne_bytes(*word);
        word.wrapping_sub(LOW_BITS) & !word & HIGH_BITS
    };
    words.iter().fold(0, |found, word| found | zeros(word)) != 0 || rest.contains(&SEPARATOR)
}

/// The tenant and the key in an object's name. `None`: the default tenant.
pub(crate) fn split(name: &[u8]) -> (Option<&[u8]>, &[u8]) {
    match memchr::memchr(SEPARATOR, name) {
        Some(at) => (Some(&name[..at]), &name[at + 1..]),
        None => (None, name),
    }
}

/// The objects of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantUsage {
    pub keys: u64,
    /// Total size of the objects, each counted once, in bytes.
    pub bytes: u64,
}

/// The objects of each tenant but the default one, also those that are being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TenantUsages(BTreeMap<Box<[u8]>, TenantUsage>);

impl TenantUsages {
    /// Counts an object that was added.
    #[inline]
    pub(crate) fn add(&mut self, name: &[u8], bytes: u64) {
        if let (Some(tenant), _) = split(name) {
            if !self.0.contains_key(tenant) {
                self.0.insert(tenant.into(), TenantUsage::default());
            }
            let usage = self.0.get_mut(tenant).expect("it was inserted");
            usage.keys += 1;
            usage.bytes += bytes;
        }
    }

    /// Counts an object that was removed.
    #[inline]
    pub(crate) fn remove(&mut self, name: &[u8], bytes: u64) {
        if let (Some(tenant), _) = split(name)
            && let Some(usage) = self.0.get_mut(tenant)
        {
            usage.keys -= 1;
            usage.bytes -= bytes;
            if usage.keys == 0 {
                self.0.remove(tenant);
            }
        }
    }

    /// Whether all objects are those of the default tenant.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tenants with objects, in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], TenantUsage)> {
        self.0.iter().map(|(tenant, usage)| (&**tenant, *usage))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_separator_is_found_at_every_place_and_nothing_else_is() {
        for length in 0..40 {
            for other in [1, 0x7f, 0x80, 0x81, 0xff] {
                let mut key = vec![other; length];
                assert!(!has_separator(&key), "{length} {other}");
                for at in 0..length {
                    key[at] = SEPARATOR;
                    assert!(has_separator(&key), "{length} {other} {at}");
                    key[at] = other;
                }
            }
        }
    }

    #[test]
    fn usage_is_counted_by_tenant() {
        let mut usages = TenantUsages::default();
        usages.add(b"k", 1);
        assert!(usages.is_empty());
        for (name, bytes) in [(b"a\0k", 2), (b"a\0l", 3), (b"b\0k", 4)] {
            usages.add(name, bytes);
        }
        usages.remove(b"a\0k", 2);
        usages.remove(b"b\0k", 4);
        assert_eq!(usages.iter().collect::<Vec<_>>(), [(&b"a"[..], TenantUsage { keys: 1, bytes: 3 })]);
    }

    fn keys(name: &str) -> Result<TenantKeys<'_>, MasterRefusal> {
        TenantKeys::of(Tenant::from(name))
    }

    #[test]
    fn a_name_has_a_tenant_and_a_key() {
        let [default, a] = ["default", "a"].map(|name| keys(name).expect("a valid tenant"));
        assert_eq!(keys(""), Ok(default));
        let name = a.name("k".into());
        assert_eq!(&*name, b"a\0k");
        assert_eq!((a.key(&name), default.key(&name), default.key(b"k")), (Some(&b"k"[..]), None, Some(&b"k"[..])));
        assert!(matches!(default.name("k".into()), Cow::Borrowed(b"k")));
        for keys in [default, a] {
            assert_eq!(&*keys.name("a\0k".into()), NO_KEY, "another tenant's object");
            assert_eq!(&*keys.name("".into()), NO_KEY);
        }
    }

    #[test]
    fn invalid_tenants_are_refused() {
        for name in ["_a", "a\0b", "a\nb", &"x".repeat(TENANT_BYTES_MAX + 1)] {
            assert_eq!(keys(name), Err(MasterRefusal::BadTenant), "{name:?}");
        }
        assert!(keys("tenant-1/ä").is_ok());
    }

    #[test]
    fn lists_have_the_names_of_their_tenant() {
        let a = keys("a").expect("a valid tenant");
        let texts = [Text(b"1"), Text(b"x\0y")];
        a.with_names(&texts, |names| assert_eq!(names, [Text(b"a\x001"), Text(b"")]));
        TenantKeys::DEFAULT.with_names(&texts, |names| assert_eq!(names, [Text(b"1"), Text(b"")]));
        let object = ObjectMeta { key: "1".into(), object_checksum: Some(7) };
        a.with_objects(vec![object.clone()], |named| {
            assert_eq!(named, [ObjectMeta { key: Text(b"a\x001"), ..object }]);
        });
    }
}
