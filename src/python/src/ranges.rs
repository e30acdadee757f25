//! Reads of parts of objects: into several buffers, at offsets, and in sessions.

use std::collections::HashSet;
use std::sync::PoisonError;

use mcctl_base::ObjectKey;
use mcctl_store::{ObjectPart, READS_MAX, StoreError};
use mcctl_sys::caller_memory::MemoryUse;
use pyo3::prelude::*;

use crate::arguments::{Key, Natural, bytes_or_code, code, each, keys};
use crate::interpreter::detached;
use crate::objects::INVALID_PARAMS;
use crate::segments::FAILED;
use crate::session::Session;
use crate::store::{MooncakeDistributedStore, NOT_SET_UP};

/// Parts of an object to read: address, length, and offset in the object. `None` for the end means
/// that the parts must cover the object.
struct WantedParts {
    addresses: Vec<Natural>,
    sizes: Vec<Natural>,
    /// Offsets in the object. Without them, the parts follow each other and cover the object.
    offsets: Option<Vec<Natural>>,
}

/// The objects whose read sessions are open.
#[derive(Default)]
pub(crate) struct ReadSessions {
    open: HashSet<ObjectKey>,
}

impl ReadSessions {
    /// Ends all sessions. They hold no resources.
    pub(crate) fn clear(&mut self) {
        self.open.clear();
    }
}

#[pymethods]
impl MooncakeDistributedStore {
    /// Reads each object into several buffers, one after another. The buffers must have the
    /// object's size together. Returns the number of bytes or a negative code for each object.
    #[pyo3(signature = (keys, all_buffer_ptrs, all_sizes, prefer_alloc_in_same_node = false))]
    fn batch_get_into_multi_buffers(
        &self,
        py: Python<'_>,
        keys: Vec<Key>,
        all_buffer_ptrs: Vec<Vec<Natural>>,
        all_sizes: Vec<Vec<Natural>>,
        prefer_alloc_in_same_node: bool,
    ) -> Vec<i64> {
        // Only placement could use it, and a read does not place anything.
        let _ = prefer_alloc_in_same_node;
        let keys = self::keys(keys);
        let Some(session) = self.session() else { return vec![i64::from(NOT_SET_UP); keys.len()] };
        if all_buffer_ptrs.len() != keys.len() || all_sizes.len() != keys.len() {
            return vec![i64::from(INVALID_PARAMS); keys.len()];
        }
        let wanted = all_buffer_ptrs.into_iter().zip(all_sizes);
        let wanted = wanted.map(|(addresses, sizes)| WantedParts { addresses, sizes, offsets: None }).collect();
        detached(py, || session.read_wanted(&keys, wanted))
    }

    /// Reads parts of objects. `all_keys[i]` are the objects for the buffer at `buffer_ptrs[i]`;
    /// for each of them, the other arguments list the offsets in the buffer, the offsets in the
    /// object, and the sizes. Returns the number of bytes or a negative code for each part.
    #[pyo3(signature = (buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes))]
    fn get_into_ranges(
        &self,
        py: Python<'_>,
        buffer_ptrs: Vec<Natural>,
        all_keys: Vec<Vec<Key>>,
        all_dst_offsets: Vec<Vec<Vec<Natural>>>,
        all_src_offsets: Vec<Vec<Vec<Natural>>>,
        all_sizes: Vec<Vec<Vec<Natural>>>,
    ) -> Vec<Vec<Vec<i64>>> {
        let shape: Vec<Vec<usize>> = all_sizes.iter().map(|sizes| sizes.iter().map(Vec::len).collect()).collect();
        let filled = |code: i32| -> Vec<Vec<Vec<i64>>> {
            let lists = |counts: &Vec<usize>| counts.iter().map(|count| vec![i64::from(code); *count]).collect();
            shape.iter().map(lists).collect()
        };
        let Some(session) = self.session() else { return filled(NOT_SET_UP) };
        if all_keys.len() != buffer_ptrs.len() {
            // As in the wheel.
            return Vec::new();
        }
        let keys: Vec<Vec<ObjectKey>> = all_keys.into_iter().map(self::keys).collect();
        let is_like = |lists: &[Vec<Vec<Natural>>]| {
            lists.len() == shape.len()
                && lists.iter().zip(&shape).all(|(list, counts)| {
                    list.len() == counts.len() && list.iter().zip(counts).all(|(parts, count)| parts.len() == *count)
                })
        };
        let keys_fit =
            keys.len() == shape.len() && keys.iter().zip(&shape).all(|(keys, counts)| keys.len() == counts.len());
        if !is_like(&all_dst_offsets) || !is_like(&all_src_offsets) || !keys_fit || buffer_ptrs.len() != shape.len() {
            return filled(INVALID_PARAMS);
        }
        // Each part is a read of its own, so that each has its own result. One lookup and one
        // transfer per node serve them all.
        let mut flat_keys = Vec::new();
        let mut wanted = Vec::new();
        for (buffer, address) in buffer_ptrs.iter().enumerate() {
            for (object, key) in keys[buffer].iter().enumerate() {
                for part in 0..shape[buffer][object] {
                    flat_keys.push(key.clone());
                    wanted.push(WantedParts {
                        addresses: vec![Natural(address.0.wrapping_add(all_dst_offsets[buffer][object][part].0))],
                        sizes: vec![all_sizes[buffer][object][part]],
                        offsets: Some(vec![all_src_offsets[buffer][object][part]]),
                    });
                }
            }
        }
        let mut results = detached(py, || session.read_wanted(&flat_keys, wanted)).into_iter();
        let lists = |counts: &Vec<usize>| counts.iter().map(|count| results.by_ref().take(*count).collect()).collect();
        shape.iter().map(lists).collect()
    }

    /// Begins read sessions. Returns 0 or a negative code for each object.
    fn batch_get_session_start(&self, py: Python<'_>, keys: Vec<Key>) -> Vec<i32> {
        let keys = self::keys(keys);
        let Some(session) = self.session() else { return Vec::new() };
        if keys.is_empty() {
            return Vec::new();
        }
        detached(py, || {
            let found = each(keys.len(), session.run(async |client| client.batch_stat(&keys).await));
            let mut sessions = session.reads.lock().unwrap_or_else(PoisonError::into_inner);
            let started = keys.into_iter().zip(found).map(|(key, found)| {
                if found.is_ok() {
                    sessions.open.insert(key);
                }
                code(found)
            });
            started.collect()
        })
    }

    /// Reads parts of the objects of open read sessions. Returns the number of bytes or a negative
    /// code for each object. Each call looks the objects up again, with one request, so that a
    /// removed object is never read.
    #[pyo3(signature = (keys, all_buffer_ptrs, all_sizes, all_src_offsets))]
    fn batch_get_into_multi_buffer_ranges(
        &self,
        py: Python<'_>,
        keys: Vec<Key>,
        all_buffer_ptrs: Vec<Vec<Natural>>,
        all_sizes: Vec<Vec<Natural>>,
        all_src_offsets: Vec<Vec<Natural>>,
    ) -> Vec<i64> {
        let keys = self::keys(keys);
        let Some(session) = self.session() else { return Vec::new() };
        let mut results = vec![i64::from(INVALID_PARAMS); keys.len()];
        if [all_buffer_ptrs.len(), all_sizes.len(), all_src_offsets.len()].iter().any(|len| *len != keys.len()) {
            return results;
        }
        detached(py, || {
            let open: Vec<usize> = {
                let sessions = session.reads.lock().unwrap_or_else(PoisonError::into_inner);
                (0..keys.len()).filter(|index| sessions.open.contains(&keys[*index])).collect()
            };
            let wanted = open.iter().map(|index| WantedParts {
                addresses: all_buffer_ptrs[*index].clone(),
                sizes: all_sizes[*index].clone(),
                offsets: Some(all_src_offsets[*index].clone()),
            });
            let open_keys: Vec<_> = open.iter().map(|index| keys[*index].clone()).collect();
            let read = session.read_wanted(&open_keys, wanted.collect());
            for (index, result) in open.into_iter().zip(read) {
                results[index] = result;
            }
            results
        })
    }

    /// Ends read sessions. Returns 0.
    fn batch_get_session_end(&self, keys: Vec<Key>) -> i32 {
        let Some(session) = self.session() else { return FAILED };
        let mut sessions = session.reads.lock().unwrap_or_else(PoisonError::into_inner);
        keys.into_iter().for_each(|key| _ = sessions.open.remove(&key.0));
        0
    }
}

impl Session {
    /// Reads parts of objects. Returns the number of bytes or a negative code for each.
    fn read_wanted(&self, keys: &[ObjectKey], wanted: Vec<WantedParts>) -> Vec<i64> {
        if keys.is_empty() {
            return Vec::new();
        }
        let invalid = || StoreError::Refused { what: "arguments", code: mcctl_base::ErrorCode::INVALID_PARAMS };
        let parts: Vec<_> = wanted.iter().map(|wanted| self.parts(wanted)).collect();
        let read = self.worker().map(|worker| {
            let mut results: Vec<_> = keys.iter().map(|key| Err(StoreError::LookupLost { key: key.clone() })).collect();
            let mut left: Vec<usize> = (0..keys.len()).collect();
            for _ in 0..READS_MAX {
                let keys: Vec<ObjectKey> = left.iter().map(|at| keys[*at].clone()).collect();
                let lookup = worker.run(async |client| client.look_up(&keys).await)?;
                let parts = left.iter().zip(&lookup.stats).map(|(at, stat)| {
                    let size = stat.as_ref().map_err(Clone::clone)?.size;
                    let parts = parts[*at].as_ref().ok_or_else(invalid)?;
                    let covers = wanted[*at].offsets.is_some() || ObjectPart::total(parts) as u64 == size;
                    let fits = covers && ObjectPart::all_within(parts, size);
                    fits.then(|| parts.clone()).ok_or_else(invalid)
                });
                let parts = parts.collect();
                let read = worker.run(async |client| client.read_parts(&keys, &lookup, parts).await);
                for (at, result) in left.iter().zip(read) {
                    results[*at] = result;
                }
                left.retain(|at| results[*at].as_ref().is_err_and(StoreError::is_lookup_lost));
                if left.is_empty() {
                    break;
                }
            }
            Ok(results)
        });
        each(keys.len(), read).into_iter().map(bytes_or_code).collect()
    }

    /// Returns the caller's memory for `wanted`; `None` if the arguments do not fit together or the
    /// memory does not exist.
    fn parts(&self, wanted: &WantedParts) -> Option<Vec<ObjectPart>> {
        let WantedParts { addresses, sizes, offsets } = wanted;
        match offsets {
            None => Some(ObjectPart::consecutive(self.slices(addresses, sizes, MemoryUse::Write)?)),
            Some(offsets) => self.parts_at(addresses, sizes, offsets, MemoryUse::Write),
        }
    }

    /// Returns the caller's memory for parts at these `offsets` of an object; `None` if the
    /// arguments do not fit together or the memory does not exist.
    pub(crate) fn parts_at(
        &self,
        addresses: &[Natural],
        sizes: &[Natural],
        offsets: &[Natural],
        usage: MemoryUse,
    ) -> Option<Vec<ObjectPart>> {
        if addresses.len() != sizes.len() || offsets.len() != sizes.len() {
            return None;
        }
        let pieces = addresses.iter().zip(sizes).zip(offsets).filter(|((_, size), _)| size.0 > 0);
        let part = |((address, size), offset): ((&Natural, &Natural), &Natural)| {
            self.slice(*address, *size, usage).map(|local| ObjectPart { offset: offset.0, local })
        };
        pieces.map(part).collect()
    }
}
