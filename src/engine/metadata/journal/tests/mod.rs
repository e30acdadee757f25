//! Tests of a store of records with a journal on a simulated disk.

mod crash;
mod damage;
mod errors;
mod worker;

use std::sync::Arc;

use bytes::Bytes;

use crate::journal::{MetadataJournalError, MetadataJournalOptions, MetadataRestoreReport};
use crate::store::RecordStore;
use mcctl_base::Unix;
use mcctl_journal::{
    DataDir, DataDirOptions, DiskErrorPolicy, ExistingData, JournalError, LogConfig, SimulatedStorage, SyncMode, Uuid,
};

/// Files of 2 KiB, so that a few records fill one.
const SMALL: LogConfig = LogConfig { file_bytes: 2048, buffer_bytes: 64 << 10 };
const AT: Unix = Unix(1_000_000);
const RPC: &[u8] = b"mooncake/rpc_meta/a";
const RAM: &[u8] = b"mooncake/ram/a";

fn options(sync: SyncMode, on_error: DiskErrorPolicy) -> MetadataJournalOptions {
    MetadataJournalOptions { sync, on_error, log: SMALL, ..MetadataJournalOptions::default() }
}

fn open(storage: &SimulatedStorage) -> Result<DataDir, JournalError> {
    let options = DataDirOptions {
        cluster_id: "cluster",
        boot_id: storage.boot_id(),
        new_uuid: Uuid(77),
        existing: ExistingData::Keep,
    };
    DataDir::open(Arc::new(storage.clone()), &options)
}

fn restore(
    storage: &SimulatedStorage,
    options: MetadataJournalOptions,
) -> Result<(RecordStore, MetadataRestoreReport), MetadataJournalError> {
    RecordStore::restored(open(storage)?, options)
}

fn restored(storage: &SimulatedStorage) -> (RecordStore, MetadataRestoreReport) {
    restore(storage, options(SyncMode::Never, DiskErrorPolicy::Stop)).unwrap()
}

fn meta(port: u16) -> Bytes {
    format!("{{\"ip_or_host_name\":\"127.0.0.1\",\"rpc_port\":{port}}}").into()
}

/// Writes `count` records of other names, and stores each.
fn fill(store: &RecordStore, names: std::ops::Range<usize>) -> Result<(), JournalError> {
    for name in names {
        store.put(format!("mooncake/ram/n-{name:04}").as_bytes(), &[7; 60], AT)?;
        store.commit()?;
    }
    Ok(())
}
