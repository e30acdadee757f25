//! Existence, sizes and removal.

use mcctl_store::StoreError;
use pyo3::prelude::*;

use crate::arguments::{Key, code, each, error_code, flat, keys};
use crate::interpreter::detached;
use crate::store::{MooncakeDistributedStore, NOT_SET_UP};

#[pymethods]
impl MooncakeDistributedStore {
    /// Returns 1 if the object exists, 0 if not, or a negative code.
    fn is_exist(&self, py: Python<'_>, key: Key) -> i32 {
        let Some(session) = self.session() else { return NOT_SET_UP };
        presence(detached(py, || flat(session.run(async |client| client.exists(&key.0).await))))
    }

    /// Returns 1, 0 or a negative code for each key, like `is_exist`. One request to the master.
    #[pyo3(signature = (keys))]
    fn batch_is_exist(&self, py: Python<'_>, keys: Vec<Key>) -> Vec<i32> {
        let keys = self::keys(keys);
        let Some(session) = self.session() else { return vec![NOT_SET_UP; keys.len()] };
        if keys.is_empty() {
            return Vec::new();
        }
        detached(py, || {
            let results = session.run(async |client| client.batch_exists(&keys).await);
            each(keys.len(), results).into_iter().map(presence).collect()
        })
    }

    /// Returns the object's size in bytes, or a negative code.
    fn get_size(&self, py: Python<'_>, key: Key) -> i64 {
        let Some(session) = self.session() else { return i64::from(NOT_SET_UP) };
        let stat = detached(py, || flat(session.run(async |client| client.stat(&key.0).await)));
        match stat {
            Ok(stat) => i64::try_from(stat.size).unwrap_or(i64::MAX),
            Err(error) => i64::from(error_code(&error)),
        }
    }

    /// Removes an object. Returns 0 or a negative code. An object that is being read is removed
    /// only with `force`.
    #[pyo3(signature = (key, force = false))]
    fn remove(&self, py: Python<'_>, key: Key, force: bool) -> i32 {
        let Some(session) = self.session() else { return NOT_SET_UP };
        code(detached(py, || flat(session.run(async |client| client.remove(&key.0, force).await))))
    }

    /// Removes objects. Returns 0 or a negative code for each.
    #[pyo3(signature = (keys, force = false))]
    fn batch_remove(&self, py: Python<'_>, keys: Vec<Key>, force: bool) -> Vec<i32> {
        let keys = self::keys(keys);
        let Some(session) = self.session() else { return vec![NOT_SET_UP; keys.len()] };
        if keys.is_empty() {
            return Vec::new();
        }
        detached(py, || {
            let results = session.run(async |client| client.batch_remove(&keys, force).await);
            each(keys.len(), results).into_iter().map(code).collect()
        })
    }

    /// Removes every object whose key matches the regular expression. Returns their number, or a
    /// negative code.
    #[pyo3(signature = (regex_pattern, force = false))]
    fn remove_by_regex(&self, py: Python<'_>, regex_pattern: &str, force: bool) -> i64 {
        let Some(session) = self.session() else { return i64::from(NOT_SET_UP) };
        let expression = regex_pattern.to_owned();
        count(detached(py, || flat(session.run(async |client| client.remove_by_regex(&expression, force).await))))
    }

    /// Removes every object. Returns their number, or a negative code. Objects that are being read
    /// remain without `force`.
    #[pyo3(signature = (force = false))]
    fn remove_all(&self, py: Python<'_>, force: bool) -> i64 {
        let Some(session) = self.session() else { return i64::from(NOT_SET_UP) };
        count(detached(py, || flat(session.run(async |client| client.remove_all(force).await))))
    }
}

fn presence(result: Result<bool, StoreError>) -> i32 {
    match result {
        Ok(exists) => i32::from(exists),
        Err(error) => error_code(&error),
    }
}

fn count(result: Result<i64, StoreError>) -> i64 {
    result.unwrap_or_else(|error| i64::from(error_code(&error)))
}
