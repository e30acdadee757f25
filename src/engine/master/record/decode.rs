//! The decoding of the records. The decoded records borrow keys, names and replicas from the
//! payload.

use crate::eviction::index::PendingPin;
use crate::object::ReplicaRecord;
use crate::record::codec::{RecordError, RecordProblem, RecordReader};
use crate::record::encode::{flag, optional, tag};
use crate::record::{DataFormat, MasterRecord, ObjectContent, ReplicaList, SegmentContent};
use crate::slots::{ObjectSlot, SegmentSlot};
use mcctl_base::ClientId;

/// Iterates over the records of a payload. The iteration ends after the first error.
///
/// # Errors
/// The payload is empty, or its format is unknown.
pub(crate) fn read_payload(
    payload: &[u8],
) -> Result<impl Iterator<Item = Result<MasterRecord<'_>, RecordError>>, RecordError> {
    let mut reader = RecordReader::new(payload);
    let begin = reader;
    let number = reader.byte()?;
    let format = DataFormat::from_number(number).ok_or_else(|| begin.error(RecordProblem::UnknownFormat(number)))?;
    let mut decoder = RecordDecoder { format, last_client: None };
    let mut failed = false;
    Ok(std::iter::from_fn(move || {
        if failed || reader.is_at_end() {
            return None;
        }
        let record = decoder.record(&mut reader);
        failed = record.is_err();
        Some(record)
    }))
}

/// Decodes the records of a payload in order.
struct RecordDecoder {
    format: DataFormat,
    /// The client of the last object.
    last_client: Option<ClientId>,
}

impl RecordDecoder {
    fn record<'a>(&mut self, input: &mut RecordReader<'a>) -> Result<MasterRecord<'a>, RecordError> {
        let begin = *input;
        Ok(match input.byte()? {
            tag::SEGMENT_MOUNTED => MasterRecord::SegmentMounted {
                slot: segment_slot(input)?,
                client: input.client()?,
                segment: SegmentContent {
                    id: input.segment()?,
                    name: input.bytes()?,
                    base: input.number()?,
                    size: input.number()?,
                    te_endpoint: input.bytes()?,
                    protocol: input.bytes()?,
                    host_id: input.bytes()?,
                },
            },
            tag::SEGMENT_CLOSED => {
                MasterRecord::SegmentClosed { slot: segment_slot(input)?, remaining_ms: input.number()? }
            }
            tag::SEGMENT_HELD => {
                MasterRecord::SegmentHeld { slot: segment_slot(input)?, remaining_ms: input.number()? }
            }
            tag::SEGMENT_HOLD_ENDED => MasterRecord::SegmentHoldEnded { slot: segment_slot(input)? },
            tag::SEGMENT_RETIRED => MasterRecord::SegmentRetired { slot: segment_slot(input)? },
            tag::CLIENT_MARKED => MasterRecord::ClientMarked { client: input.client()?, ok: boolean(input)? },
            tag::CLIENT_EXPIRED => MasterRecord::ClientExpired { client: input.client()? },
            tag::OBJECT_STARTED => MasterRecord::ObjectStarted(self.object(input, 0)?.0),
            tag::OBJECT_REWRITTEN => {
                let flags = flags(input, flag::PENDING_SET | flag::PENDING_CLEAR)?;
                MasterRecord::ObjectRewritten {
                    slot: object_slot(input)?,
                    client: input.client()?,
                    pending: pending(input, flags)?,
                }
            }
            tag::OBJECT_COMPLETED => {
                let flags = flags(input, flag::CHECKSUM)?;
                MasterRecord::ObjectCompleted { slot: object_slot(input)?, checksum: checksum(input, flags)? }
            }
            tag::OBJECT_ERASED => MasterRecord::ObjectErased { slot: object_slot(input)? },
            tag::OBJECT_DISCARDED => {
                MasterRecord::ObjectDiscarded { slot: object_slot(input)?, remaining_ms: input.number()? }
            }
            tag::REPLICAS_DROPPED => {
                MasterRecord::ReplicasDropped { slot: object_slot(input)?, kept: replicas(input)? }
            }
            tag::DISCARD_RELEASED => MasterRecord::DiscardReleased { replica_id: input.number()? },
            tag::PROCESS_TERMS => MasterRecord::ProcessTerms {
                lease_ms: input.number()?,
                hold_ms: input.number()?,
                complete: boolean(input)?,
            },
            tag::HOLD_ENDED => MasterRecord::HoldEnded,
            tag::METADATA_PUT if self.format >= DataFormat::V3 => {
                MasterRecord::MetadataPut { key: input.bytes()?, value: input.bytes()? }
            }
            tag::METADATA_REMOVED if self.format >= DataFormat::V3 => {
                MasterRecord::MetadataRemoved { key: input.bytes()? }
            }
            tag::TABLE_SIZES => MasterRecord::TableSizes {
                objects: input.number32()?,
                segments: input.number32()?,
                next_replica: input.number()?,
            },
            tag::OBJECT_SAVED => {
                let (content, flags) = self.object(input, flag::WRITING | flag::CHECKSUM)?;
                MasterRecord::ObjectSaved {
                    content,
                    writing: flags & flag::WRITING != 0,
                    checksum: checksum(input, flags)?,
                    lease_ms: input.signed()?,
                }
            }
            tag::DISCARD_SAVED => MasterRecord::DiscardSaved {
                replica: replica(input)?,
                bytes: input.number()?,
                remaining_ms: input.number()?,
            },
            other => return Err(begin.error(RecordProblem::UnknownTag(other))),
        })
    }

    /// Reads an object and its flags. `more_flags` are the flags that belong to other fields of the
    /// record.
    fn object<'a>(
        &mut self,
        input: &mut RecordReader<'a>,
        more_flags: u8,
    ) -> Result<(ObjectContent<'a>, u8), RecordError> {
        let own = flag::HARD_PIN | flag::GROUP | flag::PIN | flag::PENDING_SET | flag::PENDING_CLEAR;
        let begin = *input;
        let same_client = optional(flag::SAME_CLIENT, self.format >= DataFormat::V2);
        let flags = flags(input, own | more_flags | same_client)?;
        let slot = object_slot(input)?;
        let key = input.bytes()?;
        let client = match (flags & flag::SAME_CLIENT != 0, self.last_client) {
            (false, _) => input.client()?,
            (true, Some(client)) => client,
            (true, None) => return Err(begin.error(RecordProblem::UnknownFlags(flags))),
        };
        self.last_client = Some(client);
        let content = ObjectContent {
            slot,
            key,
            client,
            size: input.number()?,
            replicas: replicas(input)?,
            hard_pin: flags & flag::HARD_PIN != 0,
            group: (flags & flag::GROUP != 0).then(|| input.bytes()).transpose()?,
            pin_ms: (flags & flag::PIN != 0).then(|| input.number()).transpose()?,
            pending: pending(input, flags)?,
        };
        Ok((content, flags))
    }
}

fn boolean(input: &mut RecordReader<'_>) -> Result<bool, RecordError> {
    let begin = *input;
    match input.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(begin.error(RecordProblem::UnknownFlags(other))),
    }
}

fn object_slot(input: &mut RecordReader<'_>) -> Result<ObjectSlot, RecordError> {
    input.number32().map(ObjectSlot)
}

fn segment_slot(input: &mut RecordReader<'_>) -> Result<SegmentSlot, RecordError> {
    input.number32().map(SegmentSlot)
}

/// Reads flags, of which only `known` may be set.
fn flags(input: &mut RecordReader<'_>, known: u8) -> Result<u8, RecordError> {
    let begin = *input;
    let flags = input.byte()?;
    let both = flag::PENDING_SET | flag::PENDING_CLEAR;
    if flags & !known != 0 || flags & both == both {
        return Err(begin.error(RecordProblem::UnknownFlags(flags)));
    }
    Ok(flags)
}

fn pending(input: &mut RecordReader<'_>, flags: u8) -> Result<PendingPin, RecordError> {
    Ok(if flags & flag::PENDING_SET != 0 {
        PendingPin::Set(input.number()?)
    } else if flags & flag::PENDING_CLEAR != 0 {
        PendingPin::Clear
    } else {
        PendingPin::Keep
    })
}

fn checksum(input: &mut RecordReader<'_>, flags: u8) -> Result<Option<u64>, RecordError> {
    (flags & flag::CHECKSUM != 0).then(|| input.fixed()).transpose()
}

fn replicas<'a>(input: &mut RecordReader<'a>) -> Result<ReplicaList<'a>, RecordError> {
    let before = *input;
    let Some(more) = input.number32()?.checked_sub(1) else {
        return Err(before.error(RecordProblem::NoReplica));
    };
    let first = replica(input)?;
    let begin = input.position();
    for _ in 0..more {
        replica(input)?;
    }
    Ok(ReplicaList::Encoded { first, more, bytes: input.since(begin) })
}

/// Reads one replica. Its ticket is 0.
pub(super) fn replica(input: &mut RecordReader<'_>) -> Result<ReplicaRecord, RecordError> {
    Ok(ReplicaRecord { segment: segment_slot(input)?, offset: input.number()?, id: input.number()?, ticket: 0 })
}
