//! Selects the replicas to read. No I/O.

use mcctl_wire::types::{BufferDescriptor, ReplicaDescriptor, ReplicaLocation, ReplicaStatus};

/// Returns the readable memory replicas, best first: replicas in this process (which need only a
/// memory copy), then all others. The others are rotated by `salt`, so that many readers of one
/// object do not all read from the same node.
pub fn reading_order<'a>(
    replicas: &'a [ReplicaDescriptor],
    own_endpoints: &[&str],
    salt: u64,
) -> Vec<&'a BufferDescriptor> {
    let readable = |replica: &'a ReplicaDescriptor| match &replica.location {
        ReplicaLocation::Memory(buffer) if replica.status == ReplicaStatus::COMPLETE => Some(buffer),
        _ => None,
    };
    let is_own =
        |buffer: &BufferDescriptor| own_endpoints.iter().any(|own| own.as_bytes() == &buffer.transport_endpoint.0[..]);
    let (mut order, mut far): (Vec<_>, Vec<_>) =
        replicas.iter().filter_map(readable).partition(|buffer| is_own(buffer));
    if !far.is_empty() {
        let start = usize::try_from(salt % far.len() as u64).expect("a remainder is less than the divisor");
        far.rotate_left(start);
    }
    order.append(&mut far);
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_wire::types::DiskDescriptor;

    fn replica(endpoint: &str, status: ReplicaStatus) -> ReplicaDescriptor {
        let location = ReplicaLocation::Memory(BufferDescriptor {
            size: 1,
            buffer_address: 0,
            protocol: "tcp".into(),
            transport_endpoint: endpoint.into(),
        });
        ReplicaDescriptor { id: 1, location, status }
    }

    fn order(replicas: &[ReplicaDescriptor], salt: u64) -> Vec<String> {
        let order = reading_order(replicas, &["here:1", "here"], salt);
        order.iter().map(|b| b.transport_endpoint.to_string()).collect()
    }

    #[test]
    fn the_local_copy_comes_first_and_the_others_rotate() {
        let complete = ReplicaStatus::COMPLETE;
        let replicas = [replica("a:1", complete), replica("b:1", complete), replica("here:1", complete)];
        assert_eq!(order(&replicas, 0), ["here:1", "a:1", "b:1"]);
        assert_eq!(order(&replicas, 1), ["here:1", "b:1", "a:1"]);
    }

    #[test]
    fn unfinished_and_disk_replicas_are_not_read() {
        let disk = ReplicaLocation::Disk(DiskDescriptor { file_path: "f".into(), object_size: 1 });
        let replicas = [
            replica("a:1", ReplicaStatus::PROCESSING),
            ReplicaDescriptor { id: 2, location: disk, status: ReplicaStatus::COMPLETE },
        ];
        assert_eq!(order(&replicas, 5), Vec::<String>::new());
    }
}
