//! Tests of the encoding: every record, cut off, with unknown tags and flags.

use super::buffer::RecordBuffer;
use super::codec::{RecordError, RecordProblem};
use super::*;

const CLIENT: ClientId = ClientId(u64::MAX - 1, 7);
static REPLICAS: [ReplicaRecord; 3] = [
    ReplicaRecord { segment: SegmentSlot(0), ticket: 9, offset: 0, id: 1 },
    ReplicaRecord { segment: SegmentSlot(300), ticket: 8, offset: 1 << 44, id: u64::MAX },
    ReplicaRecord { segment: SegmentSlot(u32::MAX), ticket: 7, offset: 127, id: 128 },
];

fn content(replicas: &[ReplicaRecord], pending: PendingPin) -> ObjectContent<'_> {
    let (first, rest) = replicas.split_first().expect("not empty");
    ObjectContent {
        slot: ObjectSlot(70_000),
        key: b"key",
        client: CLIENT,
        size: 1 << 40,
        replicas: ReplicaList::Records { first, rest },
        hard_pin: false,
        group: None,
        pin_ms: None,
        pending,
    }
}

/// Each record at least once, with and without its optional fields.
fn samples() -> Vec<MasterRecord<'static>> {
    let segment = SegmentContent {
        id: SegmentId(1, u64::MAX),
        name: b"host:1",
        base: u64::MAX,
        size: 1 << 45,
        te_endpoint: b"",
        protocol: b"rdma",
        host_id: &[0xff; 200],
    };
    let slot = SegmentSlot(4);
    let object = ObjectSlot(u32::MAX - 1);
    let plain = content(&REPLICAS[..1], PendingPin::Keep);
    let full = ObjectContent { hard_pin: true, group: Some(b"g"), pin_ms: Some(u64::MAX), ..plain };
    let pinned = content(&REPLICAS, PendingPin::Set(300));
    vec![
        MasterRecord::SegmentMounted { slot, client: CLIENT, segment },
        MasterRecord::SegmentClosed { slot, remaining_ms: u64::MAX },
        MasterRecord::SegmentHeld { slot, remaining_ms: 30_000 },
        MasterRecord::SegmentHoldEnded { slot },
        MasterRecord::SegmentRetired { slot },
        MasterRecord::ClientMarked { client: CLIENT, ok: true },
        MasterRecord::ClientMarked { client: CLIENT, ok: false },
        MasterRecord::ClientExpired { client: CLIENT },
        MasterRecord::ObjectStarted(plain),
        MasterRecord::ObjectStarted(full),
        MasterRecord::ObjectStarted(pinned),
        MasterRecord::ObjectStarted(content(&REPLICAS[1..], PendingPin::Clear)),
        MasterRecord::ObjectRewritten { slot: object, client: CLIENT, pending: PendingPin::Keep },
        MasterRecord::ObjectRewritten { slot: object, client: CLIENT, pending: PendingPin::Set(0) },
        MasterRecord::ObjectRewritten { slot: object, client: CLIENT, pending: PendingPin::Clear },
        MasterRecord::ObjectCompleted { slot: object, checksum: None },
        MasterRecord::ObjectCompleted { slot: object, checksum: Some(u64::MAX) },
        MasterRecord::ObjectErased { slot: ObjectSlot(0) },
        MasterRecord::ObjectDiscarded { slot: object, remaining_ms: 600_000 },
        MasterRecord::ReplicasDropped { slot: object, kept: pinned.replicas },
        MasterRecord::DiscardReleased { replica_id: 1 << 40 },
        MasterRecord::ProcessTerms { lease_ms: 10_000, hold_ms: 0, complete: true },
        MasterRecord::HoldEnded,
        MasterRecord::MetadataPut { key: b"mooncake/ram/n", value: b"{}" },
        MasterRecord::MetadataPut { key: b"", value: b"" },
        MasterRecord::MetadataRemoved { key: b"k" },
        MasterRecord::TableSizes { objects: 1 << 31, segments: 3, next_replica: 99 },
        MasterRecord::ObjectSaved { content: plain, writing: true, checksum: None, lease_ms: -5 },
        MasterRecord::ObjectSaved { content: full, writing: false, checksum: Some(6), lease_ms: i64::MAX },
        MasterRecord::DiscardSaved { replica: ReplicaRecord { ticket: 0, ..REPLICAS[1] }, bytes: 5, remaining_ms: 0 },
    ]
}

fn payload(records: &[MasterRecord<'_>]) -> Vec<u8> {
    payload_of(DATA_FORMAT, records)
}

fn payload_of(format: DataFormat, records: &[MasterRecord<'_>]) -> Vec<u8> {
    let mut buffer = RecordBuffer::new(format, 1);
    records.iter().for_each(|record| buffer.add(record));
    buffer.close(|change| change.payload.to_vec()).expect("not empty")
}

fn first_error(payload: &[u8]) -> Option<RecordError> {
    match read_payload(payload) {
        Ok(mut records) => records.find_map(Result::err),
        Err(error) => Some(error),
    }
}

#[test]
fn every_record_round_trips() {
    let samples = samples();
    for format in [DataFormat::V1, DataFormat::V2, DataFormat::V3] {
        let payload = payload_of(format, &samples);
        let read: Result<Vec<MasterRecord<'_>>, RecordError> = read_payload(&payload).expect("known format").collect();
        assert_eq!(read.as_deref(), Ok(&samples[..]));
        let again = payload_of(format, &read.expect("checked"));
        assert_eq!(again, payload, "a decoded record is encoded to the same bytes");
    }
}

/// Directories with format 1 exist, so its bytes must not change.
#[test]
fn the_bytes_of_format_1_are_stable() {
    let replica = ReplicaRecord { segment: SegmentSlot(3), ticket: 0, offset: 200, id: 5 };
    let started = ObjectContent {
        slot: ObjectSlot(300),
        key: b"key",
        client: ClientId(1, 2),
        size: 130,
        replicas: ReplicaList::Records { first: &replica, rest: &[] },
        hard_pin: false,
        group: Some(b"g"),
        pin_ms: None,
        pending: PendingPin::Keep,
    };
    let client = [&1u64.to_le_bytes()[..], &2u64.to_le_bytes()].concat();
    let started_bytes = [&b"\x10\x02\xac\x02\x03key"[..], &client, b"\x82\x01\x01\x03\xc8\x01\x05\x01g"].concat();
    let completed = MasterRecord::ObjectCompleted { slot: ObjectSlot(300), checksum: Some(1) };
    let expected = [&[1][..], &started_bytes, &started_bytes, b"\x12\x40\xac\x02\x01\0\0\0\0\0\0\0"].concat();
    assert_eq!(
        payload(&[MasterRecord::ObjectStarted(started), MasterRecord::ObjectStarted(started), completed]),
        expected
    );
}

#[test]
fn format_2_writes_the_client_of_successive_objects_once() {
    let object = MasterRecord::ObjectStarted(content(&REPLICAS[..1], PendingPin::Keep));
    let lengths = |format| [1, 2, 3].map(|count| payload_of(format, &vec![object; count]).len());
    let [one, two, three] = lengths(DataFormat::V1);
    assert_eq!(lengths(DataFormat::V2), [one, two - 16, three - 32]);

    let payload = payload_of(DataFormat::V2, &[object; 2]);
    let unknown = |position| Some(RecordError { position, problem: RecordProblem::UnknownFlags(0x80) });
    let without_first = [&payload[..1], &payload[one..]].concat();
    assert_eq!(first_error(&without_first), unknown(2));
    let as_format_1 = [&[1][..], &payload[1..]].concat();
    assert_eq!(first_error(&as_format_1), unknown(one + 1));

    let mut buffer = RecordBuffer::new(DataFormat::V2, 1);
    for _ in 0..2 {
        buffer.add(&object);
        assert_eq!(buffer.close(|change| change.payload.len()), Some(one), "each payload can be read alone");
    }
}

/// So a release without these records names the format instead of a damage.
#[test]
fn a_payload_with_records_of_the_metadata_service_has_format_3() {
    let erased = MasterRecord::ObjectErased { slot: ObjectSlot(1) };
    let put = MasterRecord::MetadataPut { key: b"k", value: b"vv" };
    let removed = MasterRecord::MetadataRemoved { key: b"k" };
    for format in [DataFormat::V1, DataFormat::V2, DataFormat::V3] {
        assert_eq!(payload_of(format, &[erased])[0], format.number());
        assert_eq!(payload_of(format, &[put]), b"\x03\x19\x01k\x02vv");
        assert_eq!(payload_of(format, &[erased, removed]), b"\x03\x13\x01\x1a\x01k");
        let mut buffer = RecordBuffer::new(format, 1);
        let first: Vec<u8> = [put, erased]
            .iter()
            .filter_map(|record| {
                buffer.add(record);
                buffer.close(|change| change.payload[0])
            })
            .collect();
        assert_eq!(first, [3, format.number()], "the next payload has the chosen format");
    }
    let as_format_2 = [&[2][..], &payload_of(DataFormat::V2, &[put])[1..]].concat();
    assert_eq!(first_error(&as_format_2), Some(RecordError { position: 1, problem: RecordProblem::UnknownTag(25) }));
}

#[test]
fn a_record_that_is_cut_off_is_refused_at_its_end() {
    for record in samples() {
        let payload = payload(&[record]);
        for len in 2..payload.len() {
            let error = first_error(&payload[..len]).expect("cut off");
            assert_eq!(error.problem, RecordProblem::Short, "{record:?} cut to {len} bytes");
            assert!(error.position <= len);
        }
    }
    assert_eq!(first_error(&[]), Some(RecordError { position: 0, problem: RecordProblem::Short }));
}

#[test]
fn unknown_formats_records_and_flags_are_refused_with_their_position() {
    let error = |position, problem| Some(RecordError { position, problem });
    assert_eq!(first_error(&[4]), error(0, RecordProblem::UnknownFormat(4)));
    let mut bytes = payload(&[MasterRecord::SegmentRetired { slot: SegmentSlot(5) }]);
    bytes.push(0);
    assert_eq!(first_error(&bytes), error(3, RecordProblem::UnknownTag(0)), "bytes after the last record");
    let mut bytes = payload(&[MasterRecord::ObjectCompleted { slot: ObjectSlot(5), checksum: None }]);
    bytes[2] = 1;
    assert_eq!(first_error(&bytes), error(2, RecordProblem::UnknownFlags(1)));
    let mut bytes = payload(&[MasterRecord::ClientMarked { client: CLIENT, ok: true }]);
    *bytes.last_mut().expect("not empty") = 2;
    assert_eq!(first_error(&bytes), error(18, RecordProblem::UnknownFlags(2)));
}

#[test]
fn an_object_without_replicas_is_refused() {
    let mut bytes = payload(&[MasterRecord::ReplicasDropped {
        slot: ObjectSlot(1),
        kept: ReplicaList::Records { first: &REPLICAS[0], rest: &[] },
    }]);
    bytes[3] = 0;
    assert_eq!(first_error(&bytes), Some(RecordError { position: 3, problem: RecordProblem::NoReplica }));
}

#[test]
fn a_put_of_a_70_byte_key_is_recorded_in_at_most_110_bytes() {
    let key = [b'k'; 70];
    let replica = ReplicaRecord { segment: SegmentSlot(100), ticket: 0, offset: 1 << 38, id: 10_000_000 };
    let started = ObjectContent {
        slot: ObjectSlot(1_000_000),
        key: &key,
        size: 1 << 20,
        replicas: ReplicaList::Records { first: &replica, rest: &[] },
        ..content(&REPLICAS, PendingPin::Keep)
    };
    let completed = MasterRecord::ObjectCompleted { slot: started.slot, checksum: None };
    assert_eq!(payload(&[MasterRecord::ObjectStarted(started)]).len(), 108);
    assert_eq!(payload(&[completed]).len(), 6);
}

#[test]
fn changes_are_numbered_and_changes_of_segments_need_a_sync() {
    let mut buffer = RecordBuffer::new(DATA_FORMAT, 41);
    assert_eq!((buffer.close(|_| ()), buffer.sequence(), buffer.is_empty()), (None, 41, true));
    buffer.add(&MasterRecord::ObjectErased { slot: ObjectSlot(3) });
    buffer.add(&MasterRecord::SegmentRetired { slot: SegmentSlot(3) });
    assert_eq!(buffer.close(|change| (change.sequence, change.needs_sync, change.payload.len())), Some((41, true, 5)));
    buffer.add(&MasterRecord::ObjectErased { slot: ObjectSlot(4) });
    assert_eq!(buffer.close(|change| (change.sequence, change.needs_sync)), Some((42, false)));
    assert!(buffer.is_empty());
}

#[test]
fn a_recorded_duration_is_rounded_up() {
    let now = Mono(10_000_000);
    let ms = |until| remaining_ms(now, Mono(until));
    assert_eq!((ms(10_000_001), ms(11_000_000), ms(11_000_001), ms(9_000_000)), (1, 1, 2, 0));
}
