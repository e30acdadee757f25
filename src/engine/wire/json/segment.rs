//! The segment descriptor: what a process offers, and where.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::engine::wire::json::{At, BUFFERS_MAX, DEVICES_MAX, DocumentError, parse};

/// A process's registered memory and how to reach it. The key in the metadata service is `ram/<name>`; with `P2PHANDSHAKE` it is
/// what the handshake port answers to a metadata request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentDescriptor {
    /// The segment's name: the process's `local_server_name`, or its address with `P2PHANDSHAKE`.
    pub name: String,
    /// `tcp`, `rdma`, or a word of upstream's that we do not speak; initiators choose their transport by the peer's word.
    pub protocol: String,
    /// Registered memory, in the order of registration.
    pub buffers: Vec<Buffer>,
    /// Port of the TCP data plane. Zero or garbage unless `protocol` is `tcp`.
    pub tcp_data_port: u64,
    /// Host of the TCP data plane (0.3.13 on); empty = the host of the `rpc_meta` record.
    pub tcp_data_host: String,
    /// Version of the TCP data plane's framing. 1 when the field is absent (before 0.3.12).
    pub tcp_proto_version: u64,
    /// RDMA server name, where it differs (`MC_RDMA_BIND_ADDRESS`).
    pub rdma_server_name: String,
    /// When it was written, as text; never compared.
    pub timestamp: String,
    /// RDMA devices. Their order is the index space of the buffers' keys.
    pub devices: Vec<Device>,
    /// Which RDMA devices are near which memory.
    pub priority_matrix: Option<PriorityMatrix>,
}

/// Location to device names: preferred ones, and those that work too.
pub type PriorityMatrix = BTreeMap<String, [Vec<String>; 2]>;

/// A stretch of registered memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    /// tcp: the segment's name; rdma: the location, such as `cpu:0`.
    pub name: String,
    /// Virtual address in the owner's process.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Remote keys, one per device.
    pub rkey: Vec<u32>,
    /// Local keys, one per device.
    pub lkey: Vec<u32>,
}

/// An RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// 16 hex bytes joined by `:`.
    pub gid: String,
}

impl Buffer {
    /// Does `[address, address + length)` lie inside?
    pub fn covers(&self, address: u64, length: u64) -> bool {
        address >= self.address && length <= self.length && address - self.address <= self.length - length
    }
}

const DOCUMENT: &str = "the segment descriptor";

impl SegmentDescriptor {
    /// The buffer that holds all of `[address, address + length)`.
    pub fn buffer(&self, address: u64, length: u64) -> Option<&Buffer> {
        self.buffers.iter().find(|b| b.covers(address, length))
    }

    /// The document, without a newline, with the fields that 0.3.13 writes for this protocol.
    pub fn to_json(&self) -> String {
        let rdma = self.protocol == "rdma";
        let buffer = |b: &Buffer| match rdma {
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
            let device = |d: &Device| json!({ "gid": d.gid, "lid": d.lid, "name": d.name });
            set("devices", self.devices.iter().map(device).collect());
            set("priority_matrix", json!(self.priority_matrix.clone().unwrap_or_default()));
        }
        Value::Object(document).to_string()
    }

    /// Read one. `Ok(None)` for `null`: the peer has no segment (yet).
    ///
    /// # Errors
    /// What upstream refuses: no JSON, no name or protocol, a buffer without name, address or length, a device without name or
    /// gid, keys that do not match the devices; and ports and lengths out of range. Fields that it does not know are ignored, and
    /// so is a malformed `priority_matrix`.
    pub fn from_json(text: &[u8]) -> Result<Option<SegmentDescriptor>, DocumentError> {
        let value = parse(DOCUMENT, text)?;
        if value.is_null() {
            return Ok(None);
        }
        let root = At::root(DOCUMENT, &value)?;
        let protocol = root.member("protocol").some_text()?.to_owned();
        let rdma = protocol == "rdma";
        let devices: Vec<Device> = if rdma {
            root.member("devices").elements(DEVICES_MAX)?.map(|at| device(&at)).collect::<Result<_, _>>()?
        } else {
            Vec::new()
        };
        let keys = rdma.then_some(devices.len());
        let buffers: Vec<Buffer> =
            root.member("buffers").elements(BUFFERS_MAX)?.map(|at| buffer(&at, keys)).collect::<Result<_, _>>()?;
        let port = root.member("tcp_data_port");
        let tcp_data_port = if protocol == "tcp" {
            port.number()?.filter(|p| (1..=65_535).contains(p)).ok_or_else(|| port.problem("is not a port"))?
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
            protocol,
        }))
    }
}

/// `keys` = how many keys each buffer has, for protocols that have any.
fn buffer(at: &At<'_>, keys: Option<usize>) -> Result<Buffer, DocumentError> {
    let mut buffer = Buffer {
        name: at.member("name").some_text()?.to_owned(),
        address: at.member("addr").some_number()?,
        length: at.member("length").some_number()?,
        ..Buffer::default()
    };
    if buffer.address.checked_add(buffer.length).is_none() {
        return Err(at.problem("ends beyond the address space"));
    }
    if let Some(keys) = keys {
        buffer.rkey = at.member("rkey").numbers(DEVICES_MAX)?;
        buffer.lkey = at.member("lkey").numbers(DEVICES_MAX)?;
        if !buffer.rkey.is_empty() && (buffer.rkey.len() != keys || buffer.lkey.len() != keys) {
            return Err(at.problem("has another number of keys than there are devices"));
        }
    }
    Ok(buffer)
}

fn device(at: &At<'_>) -> Result<Device, DocumentError> {
    let lid = at.member("lid");
    Ok(Device {
        name: at.member("name").some_text()?.to_owned(),
        lid: u16::try_from(lid.number()?.unwrap_or(0)).map_err(|_| lid.problem("is not a number of 16 bits"))?,
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every captured descriptor, one per line, after a comment that says who sent it.
    const CAPTURED: &str = include_str!("../../../../fixtures/te/segments.txt");

    fn captured() -> impl Iterator<Item = &'static str> {
        CAPTURED.lines().filter(|l| l.starts_with('{'))
    }

    #[test]
    fn every_captured_descriptor_is_read() {
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
    fn what_release_0_3_13_writes_is_written_byte_for_byte() {
        let mut seen = 0;
        for text in captured().filter(|t| t.contains("tcp_proto_version\":2") || t.contains("\"rdma\"")) {
            let read = SegmentDescriptor::from_json(text.as_bytes()).unwrap().unwrap();
            // 0.3.12 has no host and no rdma_server_name, 0.3.13's tcp has both; its rdma has neither.
            if (read.protocol == "tcp") == text.contains("tcp_data_host") && text.contains("tcp_proto_version") {
                assert_eq!(read.to_json(), text);
                seen += 1;
            }
        }
        assert!(seen >= 4, "{seen}");
    }

    #[test]
    fn an_old_descriptor_speaks_version_1() {
        let old = captured().find(|t| !t.contains("tcp_proto_version")).unwrap();
        let read = SegmentDescriptor::from_json(old.as_bytes()).unwrap().unwrap();
        assert_eq!((read.tcp_proto_version, read.tcp_data_host.as_str()), (1, ""));
    }

    #[test]
    fn null_is_no_descriptor() {
        assert_eq!(SegmentDescriptor::from_json(b"null\n"), Ok(None));
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_the_field() {
        let cases = [
            (r#"{"name":"a","protocol":""}"#, "protocol is missing or empty"),
            (r#"{"name":"","protocol":"tcp","tcp_data_port":5}"#, "name is missing or empty"),
            (r#"{"name":"a","protocol":"tcp","tcp_data_port":0}"#, "tcp_data_port is not a port"),
            (r#"{"name":"a","protocol":"tcp","tcp_data_port":70000}"#, "tcp_data_port is not a port"),
            (r#"{"name":"a","protocol":"tcp","tcp_data_port":-5}"#, "tcp_data_port is not a whole number in range"),
            (r#"{"name":"a","protocol":"tcp","tcp_data_port":5,"buffers":7}"#, "buffers is not an array"),
            (
                r#"{"name":"a","protocol":"tcp","tcp_data_port":5,"buffers":[{"addr":1,"length":0,"name":"a"}]}"#,
                "buffers[0].length is missing or zero",
            ),
            (
                r#"{"name":"a","protocol":"tcp","tcp_data_port":5,"buffers":[{"addr":18446744073709551615,"length":2,"name":"a"}]}"#,
                "buffers[0] ends beyond the address space",
            ),
            (
                r#"{"name":"a","protocol":"rdma","devices":[{"name":"m","gid":"g","lid":0}],"buffers":[{"addr":1,"length":2,"name":"a","rkey":[1,2],"lkey":[1,2]}]}"#,
                "buffers[0] has another number of keys than there are devices",
            ),
            (r#"{"name":"a","protocol":"rdma","devices":[{"name":"m"}]}"#, "devices[0].gid is missing or empty"),
        ];
        for (text, problem) in cases {
            let error = SegmentDescriptor::from_json(text.as_bytes()).unwrap_err().to_string();
            assert_eq!(error, format!("the segment descriptor: {problem}"));
        }
    }

    #[test]
    fn an_unknown_protocol_and_a_malformed_matrix_are_kept_out_of_the_way() {
        let odd =
            r#"{"name":"a","protocol":"nvlink","tcp_data_port":123456789,"new_field":{"x":[1]},"priority_matrix":[1]}"#;
        let read = SegmentDescriptor::from_json(odd.as_bytes()).unwrap().unwrap();
        assert_eq!((read.protocol.as_str(), read.tcp_data_port, read.priority_matrix), ("nvlink", 0, None));
    }

    proptest! {
        #[test]
        fn a_descriptor_reads_back(
            name in "[ -~é]{1,40}", port in 1u64..65_536, host in "[a-z0-9.:]{0,20}",
            buffers in proptest::collection::vec((1u64..u64::MAX / 2, 1u64..u64::MAX / 2), 0..5),
        ) {
            let buffers = buffers.into_iter()
                .map(|(address, length)| Buffer { name: name.clone(), address, length, ..Buffer::default() })
                .collect();
            let descriptor = SegmentDescriptor {
                name, protocol: "tcp".into(), buffers, tcp_data_port: port, tcp_data_host: host, tcp_proto_version: 2,
                timestamp: "t".into(), ..SegmentDescriptor::default()
            };
            let text = descriptor.to_json();
            prop_assert_eq!(SegmentDescriptor::from_json(text.as_bytes()), Ok(Some(descriptor)));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = SegmentDescriptor::from_json(&bytes);
        }

        #[test]
        fn covers_is_containment_without_overflow(address: u64, length: u64, at: u64, size: u64) {
            let buffer = Buffer { address: at, length: size, ..Buffer::default() };
            let (end, limit) = (u128::from(address) + u128::from(length), u128::from(at) + u128::from(size));
            prop_assert_eq!(buffer.covers(address, length), address >= at && end <= limit);
        }
    }
}
