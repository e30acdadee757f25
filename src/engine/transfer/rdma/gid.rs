//! Chooses which of a port's GID indices to use, and in which order.

use crate::topology::gid::{self, Gid};

/// Why no GID can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GidError {
    #[error("the GID table is empty")]
    Empty,
    /// The configured GID index is not in use.
    #[error("{variable} selects GID index {index}, which is empty; indices in use: {used}")]
    Unused {
        /// The variable that selects the index.
        variable: &'static str,
        index: u32,
        /// The GIDs in use, with type and address.
        used: String,
    },
}

/// Returns the GIDs in `table` to use: the preferred GID, then the GIDs to try in turn if a queue
/// pair cannot be connected with it (`MC_AUTO_GID_MAX_RETRIES`). If an index is configured, only
/// its GID is returned.
///
/// # Errors
/// Fails if the table is empty or the configured index is not in use.
pub fn rows<'a>(table: &'a [Gid], asked: Option<(&'static str, u32)>) -> Result<Vec<&'a Gid>, GidError> {
    if let Some((variable, index)) = asked {
        let unused = || GidError::Unused { variable, index, used: in_use(table) };
        return table.iter().find(|row| row.index == index).map(|row| vec![row]).ok_or_else(unused);
    }
    let first = gid::pick(table).ok_or(GidError::Empty)?.index;
    let mut rows: Vec<&Gid> = table.iter().collect();
    rows.sort_by_key(|row| (row.index != first, row.rank(), row.index));
    Ok(rows)
}

fn in_use(table: &[Gid]) -> String {
    let row = |row: &Gid| {
        let address = row.ipv4.map_or_else(|| row.gid.to_string(), |ip| ip.to_string());
        format!("{} ({}, {address})", row.index, row.kind.name())
    };
    let rows: Vec<String> = table.iter().map(row).collect();
    if rows.is_empty() { "none".to_owned() } else { rows.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::GidType;

    fn row(index: u32, gid: &str, kind: GidType) -> Gid {
        Gid::new(index, gid.parse().unwrap(), kind, Some("eth0".into())).unwrap()
    }

    fn table() -> [Gid; 4] {
        [
            row(0, "fe80::1", GidType::RoceV1),
            row(1, "fe80::1", GidType::RoceV2),
            row(2, "::ffff:192.0.2.1", GidType::RoceV1),
            row(3, "::ffff:192.0.2.1", GidType::RoceV2),
        ]
    }

    #[test]
    fn roce_v2_with_ipv4_is_preferred_then_mooncakes_order() {
        let indices: Vec<u32> = rows(&table(), None).unwrap().iter().map(|row| row.index).collect();
        assert_eq!(indices, [3, 1, 0, 2]);
        assert_eq!(rows(&[], None), Err(GidError::Empty));
    }

    #[test]
    fn a_configured_gid_index_is_the_only_choice() {
        let table = table();
        assert_eq!(rows(&table, Some(("MC_GID_INDEX", 2))).unwrap(), [&table[2]]);
        let used = "2 (RoCE v1, 192.0.2.1), 3 (RoCE v2, 192.0.2.1)".to_owned();
        let error = rows(&table[2..], Some(("MC_GID_INDEX", 9))).unwrap_err();
        assert_eq!(error, GidError::Unused { variable: "MC_GID_INDEX", index: 9, used });
    }
}
