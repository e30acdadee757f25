//! A file on a simulated disk: the bytes that processes see, and those that survive a power loss.

use std::collections::BTreeMap;

use mcctl_base::Rng;

/// Size of a sector in bytes. Each is kept, lost or torn separately.
const SECTOR: usize = 512;

/// A file without its name.
pub(super) struct SimulatedInode {
    /// The bytes that processes see.
    live: Vec<u8>,
    /// The bytes that a power loss does not change.
    durable: Vec<u8>,
    /// Writes that the next sync makes durable: offset and bytes.
    writes: Vec<(usize, Vec<u8>)>,
}

impl SimulatedInode {
    /// An empty file, or one of zeros. Nothing of it is durable.
    pub(super) fn new(size: usize) -> SimulatedInode {
        SimulatedInode { live: vec![0; size], durable: Vec::new(), writes: Vec::new() }
    }

    /// The bytes that processes see.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.live
    }

    /// Replaces the bytes, in memory and on the disk.
    pub(super) fn replace(&mut self, bytes: Vec<u8>) {
        *self = SimulatedInode { live: bytes.clone(), durable: bytes, writes: Vec::new() };
    }

    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        overwrite(&mut self.live, offset, bytes);
        self.writes.push((offset, bytes.to_vec()));
    }

    pub(super) fn sync(&mut self) {
        self.durable.resize(self.live.len(), 0);
        for (offset, bytes) in std::mem::take(&mut self.writes) {
            overwrite(&mut self.durable, offset, &bytes);
        }
    }

    /// A sync that the disk reports an error for. As on Linux, processes still see what was
    /// written, and a later sync does not write it.
    pub(super) fn fail_sync(&mut self) {
        self.writes.clear();
    }

    /// Chooses which parts of the unsynced writes are durable: for each sector one of its versions,
    /// or parts of two. The file has its old size or its new one.
    pub(super) fn lose_power(&mut self, rng: &mut Rng) {
        let writes = std::mem::take(&mut self.writes);
        let mut result = self.durable.clone();
        if rng.below(2) == 0 {
            result.resize(self.live.len(), 0);
        }
        let mut touched: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, (offset, bytes)) in writes.iter().enumerate().filter(|(_, (_, bytes))| !bytes.is_empty()) {
            for sector in offset / SECTOR..=(offset + bytes.len() - 1) / SECTOR {
                touched.entry(sector).or_default().push(index);
            }
        }
        for (sector, indexes) in touched {
            let mut version = || {
                let mut bytes = sector_of(&self.durable, sector);
                for index in indexes.iter().take(rng.below(indexes.len() + 1)) {
                    let (offset, written) = &writes[*index];
                    let begin = sector * SECTOR;
                    for (at, byte) in bytes.iter_mut().enumerate() {
                        if let Some(new) = (begin + at).checked_sub(*offset).and_then(|at| written.get(at)) {
                            *byte = *new;
                        }
                    }
                }
                bytes
            };
            let mut chosen = version();
            let other = version();
            if rng.below(4) == 0 {
                let split = rng.below(SECTOR);
                chosen[split..].copy_from_slice(&other[split..]);
            }
            let begin = (sector * SECTOR).min(result.len());
            let end = (begin + SECTOR).min(result.len());
            result[begin..end].copy_from_slice(&chosen[..end - begin]);
        }
        self.live.clone_from(&result);
        self.durable = result;
    }
}

fn overwrite(bytes: &mut Vec<u8>, offset: usize, new: &[u8]) {
    let end = offset + new.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(new);
}

/// The bytes of a sector. Those after the end of the file are zeros.
fn sector_of(bytes: &[u8], sector: usize) -> [u8; SECTOR] {
    let begin = (sector * SECTOR).min(bytes.len());
    let end = (begin + SECTOR).min(bytes.len());
    let mut out = [0; SECTOR];
    out[..end - begin].copy_from_slice(&bytes[begin..end]);
    out
}
