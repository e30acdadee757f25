//! The records of the metadata service, as a part of the state.

use std::time::Duration;

use super::follow::Followed;
use super::*;
use crate::apply::{ApplyError, StandbyState};
use crate::record::DataFormat;
use mcctl_metadata::records::{MetadataTable, PlannedWrite, WriteOutcome};

const RPC: &[u8] = b"mooncake/rpc_meta/n";
const RAM: &[u8] = b"mooncake/ram/n";

fn owned_by(port: u16) -> Vec<u8> {
    format!("{{\"ip_or_host_name\":\"127.0.0.1\",\"rpc_port\":{port}}}").into_bytes()
}

impl Followed {
    fn write<'a>(&mut self, plan: impl FnOnce(&mut MetadataTable) -> PlannedWrite<'a> + Send + 'a) {
        self.master.state.change_metadata(Box::new(|table| {
            let planned = plan(table);
            assert_eq!(planned.outcome, WriteOutcome::Updated);
            planned.changes
        }));
        self.follow();
    }
}

fn records(state: &MasterState) -> Vec<(Vec<u8>, Vec<u8>)> {
    let records = state.metadata().lock().image().into_records();
    records.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// A master with the records of a name that has changed owners.
fn with_records() -> Followed {
    let mut f = Followed::of(MIB);
    let [first, second] = [owned_by(1), owned_by(2)];
    f.write(|table| table.plan_put(RPC, &first));
    f.write(|table| table.plan_put(RAM, b"of the first owner"));
    f.write(|table| table.plan_take_over(RPC, &first, &second));
    f.write(|table| table.plan_put(b"other", b"value"));
    f
}

fn expected() -> Vec<(Vec<u8>, Vec<u8>)> {
    vec![(RPC.to_vec(), owned_by(2)), (b"other".to_vec(), b"value".to_vec())]
}

#[test]
fn a_standby_and_a_restarted_master_have_the_records() {
    let f = with_records();
    assert_eq!(records(&f.standby.state), expected());
    assert_eq!(f.standby.digest(), f.master.state.digest());
    assert_eq!(records(&f.restart().state), expected());
}

#[test]
fn a_snapshot_has_the_records_at_its_beginning_in_their_order() {
    for format in [DataFormat::V1, DataFormat::V3] {
        let mut f = with_records();
        let many: Vec<(Vec<u8>, Vec<u8>)> = (0..300u32).map(|n| (n.to_be_bytes().to_vec(), vec![7; 1000])).collect();
        for (key, value) in &many {
            f.write(|table| table.plan_put(key, value));
        }
        let before = records(&f.master.state);
        assert_eq!(f.master.state.begin_snapshot(f.master.now, format), Some(f.log.len() as u64));
        f.write(|table| table.plan_put(b"other", b"later"));
        let mut standby = StandbyState::new(f.master.state.policy().clone());
        let summary = loop {
            match f.master.state.snapshot_slice().expect("in progress") {
                crate::SnapshotStep::More => {}
                crate::SnapshotStep::Chunk(chunk) => {
                    standby.apply_payload(f.master.now, Duration::ZERO, &chunk).expect("applied");
                }
                crate::SnapshotStep::Done(summary) => break summary,
            }
        };
        assert_eq!(records(&standby.state), before);
        assert_eq!(standby.snapshot_digest(), summary.digest);
        assert_ne!(f.master.state.digest(), summary.digest);
    }
}

#[test]
fn a_copy_that_drops_its_objects_keeps_the_records() {
    let f = with_records();
    let hold = Duration::from_secs(1);
    let (emptied, _) = Box::new(f.standby).without_objects(f.master.now, hold).expect("valid");
    assert_eq!(records(&emptied.state), expected());
}

#[test]
fn a_removal_of_a_record_that_does_not_exist_is_damage() {
    let mut standby = StandbyState::new(StorePolicy::default());
    let removal = standby.apply_payload(Mono::ZERO, Duration::ZERO, b"\x03\x1a\x01k");
    assert_eq!(removal, Err(ApplyError::NoMetadataRecord));
    assert_eq!(standby.apply_payload(Mono::ZERO, Duration::ZERO, b"\x03\x19\x01k\x01v"), Ok(1));
    let digest = standby.digest();
    assert_ne!(digest, 0);
    assert!(standby.apply_payload(Mono::ZERO, Duration::ZERO, b"\x03\x1a\x01k").is_ok());
    assert_eq!(standby.digest(), 0, "as before there was a record");
}

#[test]
fn a_write_that_changes_nothing_waits_for_earlier_changes() {
    let mut f = with_records();
    f.master.state.change_metadata(Box::new(|table| table.plan_put(b"other", b"value").changes));
    assert!(f.master.state.close_change(|_| ()).is_none());
    assert!(f.master.state.take_repeated().is_some());
}
