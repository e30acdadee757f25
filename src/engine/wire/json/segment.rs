//! The segment descriptor: a process's registered memory and how to reach it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::json::{BUFFERS_MAX, DEVICES_MAX, DocumentError, JsonCursor, parse};

/// A process's registered memory and how to reach it. Its key in the metadata service is
/// `ram/<name>`. With `P2PHANDSHAKE`, the handshake port returns it in response to a metadata
/// request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentDescriptor {
    /// The segment's name: the process's `local_server_name`, or its address with `P2PHANDSHAKE`.
    pub name: String,
    /// `tcp`, `rdma`, or an upstream protocol that is not supported. Initiators use this value to
    /// choose their transport.
    pub protocol: String,
    /// Registered memory, in registration order.
    pub buffers: Vec<RegionDescriptor>,
    /// TCP data plane port. Zero or undefined unless `protocol` is `tcp`.
    pub tcp_data_port: u64,
    /// TCP data plane host (since 0.3.13). Empty means the host in the `rpc_meta` record.
    pub tcp_data_host: String,
    /// TCP data plane framing version. 1 if the field is missing (before 0.3.12).
    pub tcp_proto_version: u64,
    /// RDMA server name, if it differs from `name` (`MC_RDMA_BIND_ADDRESS`).
    pub rdma_server_name: String,
    /// Time of creation as text. Never compared.
    pub timestamp: String,
    /// RDMA devices. Each buffer's keys are in the same order.
    pub devices: Vec<DeviceDescriptor>,
    /// RDMA devices ordered by proximity to each memory location.
    pub priority_matrix: Option<PriorityMatrix>,
    /// Where a process on the same host can map the memory. Only nodes and clients of this project
    /// write and read it.
    pub shared_memory: Option<SharedMemoryDescriptor>,
}

/// Where a process on the same host can map a segment's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedMemoryDescriptor {
    /// Address of a Unix socket. An abstract name begins with `@`.
    pub socket: String,
    /// Random bytes. A server at that address that accepts them is the one that wrote the
    /// descriptor: another host may use the same address.
    pub token: [u8; SHARED_MEMORY_TOKEN_BYTES],
}

/// Length of [`SharedMemoryDescriptor::token`] in bytes.
pub const SHARED_MEMORY_TOKEN_BYTES: usize = 16;
/// The field with the [`SharedMemoryDescriptor`]. Upstream ignores unknown fields.
const SHARED_MEMORY: &str = "mcctl_shared_memory";
/// Maximum length of a socket's address, with its `@`. The kernel's limit is 107 bytes.
const SOCKET_BYTES_MAX: usize = 108;

/// Maps a location to device names: the preferred devices, and the other usable ones.
pub type PriorityMatrix = BTreeMap<String, [Vec<String>; 2]>;

/// A registered memory region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionDescriptor {
    /// For tcp, the segment's name. For rdma, the location, such as `cpu:0`.
    pub name: String,
    /// Virtual address in the owner's process.
    pub address: u64,
    pub length: u64,
    /// Remote keys (rkeys), one per device.
    pub rkey: Vec<u32>,
    /// Local keys (lkeys), one per device.
    pub lkey: Vec<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceDescriptor {
    /// Device name, such as `mlx5_0`.
    pub name: String,
    /// Local identifier (LID); 0 on Ethernet.
    pub lid: u16,
    /// 16 hexadecimal bytes separated by `:`.
    pub gid: String,
}

impl RegionDescriptor {
    /// Returns true if `[address, address + length)` is within this region.
    pub fn covers(&self, address: u64, length: u64) -> bool {
        address >= self.address && length <= self.length && address - self.address <= self.length - length
    }
}

const DOCUMENT: &str = "the segment descriptor";

impl SegmentDescriptor {
    /// Returns the buffer that contains all of `[address, address + length)`.
    pub fn buffer(&self, address: u64, length: u64) -> Option<&RegionDescriptor> {
        self.buffers.iter().find(|b| b.covers(address, length))
    }

    /// Encodes the descriptor without a newline, with the fields that 0.3.13 writes for this
    /// protocol.
    pub fn to_json(&self) -> String {
        let rdma = self.protocol == "rdma";
        let buffer = |b: &RegionDescriptor| match rdma {
            true => json!({ "addr": b.address, "length": b.length, "lkey": b.lkey, "name": b.name, "rkey": b.rkey }),
            false => json!({ "addr": b.address, "length": b.length, "name": b.name }),
        };
        let mut document = Map::new();
        let mut set = |name: &str, value: Value| document.insert(name.to_owned(), value);
        set("buffers", self.buffers.iter().map(buffer).collect());
        set("name", json!(self.name));
        set("protocol", json!(self.protocol));
        set("tcp_data_port", json!(self.tcp_data_port));
        set("tcp_proto_version", json!(self.tcp_proto_version));
        set("timestamp", json!(self.timestamp));
        if !self.tcp_data_host.is_empty() {
            set("tcp_data_host", json!(self.tcp_data_host));
        }
        if !rdma || !self.rdma_server_name.is_empty() {
            set("rdma_server_name", json!(self.rdma_server_name));
        }
        if rdma {
            let device = |d: &DeviceDescriptor| json!({ "gid": d.gid, "lid": d.lid, "name": d.name });
            set("devices", self.devices.iter().map(device).collect());
            set("priority_matrix", json!(self.priority_matrix.clone().unwrap_or_default()));
        }
        if let Some(SharedMemoryDescriptor { socket, token }) = &self.shared_memory {
            set(SHARED_MEMORY, json!({ "socket": socket, "token": hex(token) }));
        }
        Value::Object(document).to_string()
    }

    /// Decodes a descriptor. Returns `Ok(None)` for `null`: the peer has no segment yet.
    ///
    /// # Errors
    /// The same as upstream: invalid JSON, no name or protocol, a buffer without name, address or
    /// length, a device without name or GID, or a buffer whose keys do not match the devices. This
    /// function also rejects ports and lengths that are out of range. Unknown fields and a
    /// malformed `priority_matrix` or `mcctl_shared_memory` are ignored.
    pub fn from_json(text: &[u8]) -> Result<Option<SegmentDescriptor>, DocumentError> {
        let value = parse(DOCUMENT, text)?;
        if value.is_null() {
            return Ok(None);
        }
        let root = JsonCursor::root(DOCUMENT, &value)?;
        let protocol = root.member("protocol").some_text()?.to_owned();
        let rdma = protocol == "rdma";
        let devices: Vec<DeviceDescriptor> = if rdma {
            root.member("devices").elements(DEVICES_MAX)?.map(|at| device(&at)).collect::<Result<_, _>>()?
        } else {
            Vec::new()
        };
        let keys = rdma.then_some(devices.len());
        let buffers: Vec<RegionDescriptor> =
            root.member("buffers").elements(BUFFERS_MAX)?.map(|at| buffer(&at, keys)).collect::<Result<_, _>>()?;
        let port = root.member("tcp_data_port");
        let tcp_data_port = if protocol == "tcp" {
            port.number()?.filter(|p| (1..=65_535).contains(p)).ok_or_else(|| port.problem("is not a valid port"))?
        } else {
            0
        };
        let version = root.member("tcp_proto_version").number()?;
        Ok(Some(SegmentDescriptor {
            name: root.member("name").some_text()?.to_owned(),
            buffers,
            tcp_data_port,
            tcp_data_host: root.member("tcp_data_host").text()?.to_owned(),
            tcp_proto_version: version.unwrap_or(1),
            rdma_server_name: root.member("rdma_server_name").text()?.to_owned(),
            timestamp: root.member("timestamp").text()?.to_owned(),
            devices,
            priority_matrix: matrix(root.member("priority_matrix").value),
            shared_memory: shared_memory(root.member(SHARED_MEMORY).value),
            protocol,
        }))
    }
}

/// Decodes a buffer. `keys` is the number of keys per buffer, for protocols with keys.
fn buffer(at: &JsonCursor<'_>, keys: Option<usize>) -> Result<RegionDescriptor, DocumentError> {
    let mut buffer = RegionDescriptor {
        name: at.member("name").some_text()?.to_owned(),
        address: at.member("addr").some_number()?,
        length: at.member("length").some_number()?,
        ..RegionDescriptor::default()
    };
    if buffer.address.checked_add(buffer.length).is_none() {
        return Err(at.problem("extends beyond the address space"));
    }
    if let Some(keys) = keys {
        buffer.rkey = at.member("rkey").numbers(DEVICES_MAX)?;
        buffer.lkey = at.member("lkey").numbers(DEVICES_MAX)?;
        if !buffer.rkey.is_empty() && (buffer.rkey.len() != keys || buffer.lkey.len() != keys) {
            return Err(at.problem("does not have one key per device"));
        }
    }
    Ok(buffer)
}

fn device(at: &JsonCursor<'_>) -> Result<DeviceDescriptor, DocumentError> {
    let lid = at.member("lid");
    Ok(DeviceDescriptor {
        name: at.member("name").some_text()?.to_owned(),
        lid: u16::try_from(lid.number()?.unwrap_or(0)).map_err(|_| lid.problem("is not a 16-bit number"))?,
        gid: at.member("gid").some_text()?.to_owned(),
    })
}

fn matrix(value: &Value) -> Option<PriorityMatrix> {
    let names = |v: &Value| -> Option<Vec<String>> {
        let list = v.as_array().filter(|l| l.len() <= DEVICES_MAX)?;
        list.iter().map(|n| n.as_str().map(str::to_owned)).collect()
    };
    let entry = |(location, lists): (&String, &Value)| match lists.as_array()?.as_slice() {
        [preferred, available] => Some((location.clone(), [names(preferred)?, names(available)?])),
        _ => None,
    };
    value.as_object()?.iter().map(entry).collect()
}

fn shared_memory(value: &Value) -> Option<SharedMemoryDescriptor> {
    let socket = value.get("socket")?.as_str().filter(|text| (1..=SOCKET_BYTES_MAX).contains(&text.len()))?;
    Some(SharedMemoryDescriptor { socket: socket.to_owned(), token: unhex(value.get("token")?.as_str()?)? })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_hex = text.len() == 2 * N && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut bytes = [0; N];
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    is_hex.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Captured descriptors, one per line, each after a comment with its sender.
    const CAPTURED: &str = include_str!("../../../../fixtures/te/segments.txt");

    fn captured() -> impl Iterator<Item = &'static str> {
        CAPTURED.lines().filter(|l| l.starts_with('{'))
    }

    #[test]
    fn every_captured_descriptor_is_decoded() {
        let protocols: Vec<String> = captured()
            .map(|text| {
                SegmentDescriptor::from_json(text.as_bytes())
                    .unwrap_or_else(|e| panic!("{e}: {text}"))
                    .unwrap()
                    .protocol
            })
            .collect();
        assert!(protocols.len() >= 8, "{protocols:?}");
        assert!(protocols.iter().any(|p| p == "tcp") && protocols.iter().any(|p| p == "rdma"));
    }

    #[test]
    fn descriptors_of_0_3_13_round_trip() {
        let mut checked = 0;
        for text in captured().filter(|t| t.contains("tcp_proto_version\":2") || t.contains("\"rdma\"")) {
            let read = SegmentDescriptor::from_json(text.as_bytes()).unwrap().unwrap();
            // 0.3.12 has neither host nor rdma_server_name. 0.3.13 has both with tcp and neither
            // with rdma.
            if (read.protocol == "tcp") == text.contains("tcp_data_host") && text.contains("tcp_proto_version") {
                assert_eq!(read.to_json(), text);
                checked += 1;
            }
        }
        assert!(checked >= 4, "{checked}");
    }

    #[test]
    fn an_old_descriptor_has_protocol_version_1() {
        let old = captured().find(|t| !t.contains("tcp_proto_version")).unwrap();
        let read = SegmentDescriptor::from_json(old.as_bytes()).unwrap().unwrap();
        assert_eq!((read.tcp_proto_version, read.tcp_data_host.as_str()), (1, ""));
    }

    #[test]
    fn null_means_no_descriptor() {
        assert_eq!(SegmentDescriptor::from_json(b"null\n"), Ok(None));
    }

    #[test]
    fn an_invalid_descriptor_is_refused_with_the_field() {
        let cases = [
            (r#"{"name":"a","protocol":""}"#, "protocol"),
            (r#"{"name":"","protocol":"tcp","tcp_data_port":5}"#, "name"),
            (r#"{"name":"a","protocol":"tcp","tcp_data_port":0}"#, "tcp_data_port"),
            (r#"{"name":"a","protocol":"tcp","tcp_data_port":70000}"#, "tcp_data_port"),
            (r#"{"name":"a","protocol":"tcp","tcp_data_port":-5}"#, "tcp_data_port"),
            (r#"{"name":"a","protocol":"tcp","tcp_data_port":5,"buffers":7}"#, "buffers"),
            (
                r#"{"name":"a","protocol":"tcp","tcp_data_port":5,"buffers":[{"addr":1,"length":0,"name":"a"}]}"#,
                "buffers[0].length",
            ),
            (
                r#"{"name":"a","protocol":"tcp","tcp_data_port":5,"buffers":[{"addr":18446744073709551615,"length":2,"name":"a"}]}"#,
                "buffers[0]",
            ),
            (
                r#"{"name":"a","protocol":"rdma","devices":[{"name":"m","gid":"g","lid":0}],"buffers":[{"addr":1,"length":2,"name":"a","rkey":[1,2],"lkey":[1,2]}]}"#,
                "buffers[0]",
            ),
            (r#"{"name":"a","protocol":"rdma","devices":[{"name":"m"}]}"#, "devices[0].gid"),
        ];
        for (text, field) in cases {
            let error = SegmentDescriptor::from_json(text.as_bytes()).unwrap_err();
            assert!(matches!(&error, DocumentError::Field { path, .. } if path == field), "{field}: {error}");
        }
    }

    #[test]
    fn an_unknown_protocol_and_a_malformed_matrix_are_tolerated() {
        let text =
            r#"{"name":"a","protocol":"nvlink","tcp_data_port":123456789,"new_field":{"x":[1]},"priority_matrix":[1]}"#;
        let read = SegmentDescriptor::from_json(text.as_bytes()).unwrap().unwrap();
        assert_eq!((read.protocol.as_str(), read.tcp_data_port, read.priority_matrix), ("nvlink", 0, None));
    }

    #[test]
    fn the_shared_memory_field_is_optional_and_ignored_if_malformed() {
        let read = |field: &str| {
            let text = format!(r#"{{"name":"a","protocol":"tcp","tcp_data_port":5{field}}}"#);
            SegmentDescriptor::from_json(text.as_bytes()).unwrap().unwrap().shared_memory
        };
        let token = "000102030405060708090a0b0c0d0eFF";
        let found = read(&format!(r#","mcctl_shared_memory":{{"socket":"@x","token":"{token}","more":1}}"#)).unwrap();
        assert_eq!((found.socket.as_str(), found.token[1], found.token[15]), ("@x", 1, 255));
        let long = "x".repeat(109);
        for field in [
            String::new(),
            r#","mcctl_shared_memory":7"#.to_owned(),
            r#","mcctl_shared_memory":{"socket":"@x"}"#.to_owned(),
            r#","mcctl_shared_memory":{"socket":"@x","token":"00"}"#.to_owned(),
            format!(r#","mcctl_shared_memory":{{"socket":"","token":"{token}"}}"#),
            format!(r#","mcctl_shared_memory":{{"socket":"{long}","token":"{token}"}}"#),
            format!(r#","mcctl_shared_memory":{{"socket":"@x","token":"{}+1"}}"#, &token[2..]),
            format!(r#","mcctl_shared_memory":{{"socket":"@x","token":"é{}"}}"#, &token[2..]),
        ] {
            assert_eq!(read(&field), None, "{field}");
        }
    }

    proptest! {
        #[test]
        fn a_descriptor_round_trips(
            name in "[ -~é]{1,40}", port in 1u64..65_536, host in "[a-z0-9.:]{0,20}",
            buffers in proptest::collection::vec((1u64..u64::MAX / 2, 1u64..u64::MAX / 2), 0..5),
            shared in proptest::option::of(("[@/][a-z]{1,50}", any::<[u8; 16]>())),
        ) {
            let buffers = buffers.into_iter()
                .map(|(address, length)| RegionDescriptor { name: name.clone(), address, length, ..RegionDescriptor::default() })
                .collect();
            let descriptor = SegmentDescriptor {
                name, protocol: "tcp".into(), buffers, tcp_data_port: port, tcp_data_host: host, tcp_proto_version: 2,
                timestamp: "t".into(), shared_memory: shared.map(|(socket, token)| SharedMemoryDescriptor { socket, token }),
                ..SegmentDescriptor::default()
            };
            let text = descriptor.to_json();
            prop_assert_eq!(SegmentDescriptor::from_json(text.as_bytes()), Ok(Some(descriptor)));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = SegmentDescriptor::from_json(&bytes);
        }

        #[test]
        fn covers_means_containment_without_overflow(address: u64, length: u64, at: u64, size: u64) {
            let buffer = RegionDescriptor { address: at, length: size, ..RegionDescriptor::default() };
            let end = u128::from(address) + u128::from(length);
            let limit = u128::from(at) + u128::from(size);
            prop_assert_eq!(buffer.covers(address, length), address >= at && end <= limit);
        }
    }
}
