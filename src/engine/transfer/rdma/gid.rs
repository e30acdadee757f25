//! Which rows of a port's GID table to use, in which order.

use crate::engine::topology::gid::{self, Gid};

/// Why there is no row to use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRow {
    /// None is in use.
    #[error("its GID table is empty")]
    Empty,
    /// The row that was asked for is not in use.
    #[error("{variable} asks for GID {index}, which is empty; in use: {used}")]
    Unused {
        /// The variable that asks for it.
        variable: &'static str,
        /// The row.
        index: u32,
        /// Those that are, with what they are.
        used: String,
    },
}

/// Rows of `table` to use: the first, and then those to try in turn where a queue pair cannot be connected with it
/// (`MC_AUTO_GID_MAX_RETRIES`). A row that was asked for is the only one.
///
/// # Errors
/// There is none.
pub fn rows<'a>(table: &'a [Gid], asked: Option<(&'static str, u32)>) -> Result<Vec<&'a Gid>, NoRow> {
    if let Some((variable, index)) = asked {
        let unused = || NoRow::Unused { variable, index, used: in_use(table) };
        return table.iter().find(|row| row.index == index).map(|row| vec![row]).ok_or_else(unused);
    }
    let first = gid::pick(table).ok_or(NoRow::Empty)?.index;
    let mut rows: Vec<&Gid> = table.iter().collect();
    rows.sort_by_key(|row| (row.index != first, row.standing(), row.index));
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
    use crate::engine::topology::GidKind;

    fn row(index: u32, gid: &str, kind: GidKind) -> Gid {
        Gid::new(index, gid.parse().unwrap(), kind, Some("eth0".into())).unwrap()
    }

    fn table() -> [Gid; 4] {
        [
            row(0, "fe80::1", GidKind::RoceV1),
            row(1, "fe80::1", GidKind::RoceV2),
            row(2, "::ffff:192.0.2.1", GidKind::RoceV1),
            row(3, "::ffff:192.0.2.1", GidKind::RoceV2),
        ]
    }

    #[test]
    fn roce_v2_with_ipv4_comes_first_and_the_others_in_mooncakes_order() {
        let indices: Vec<u32> = rows(&table(), None).unwrap().iter().map(|row| row.index).collect();
        assert_eq!(indices, [3, 1, 0, 2]);
        assert_eq!(rows(&[], None), Err(NoRow::Empty));
    }

    #[test]
    fn a_row_that_is_asked_for_is_the_only_one_and_must_be_in_use() {
        let table = table();
        assert_eq!(rows(&table, Some(("MC_GID_INDEX", 2))).unwrap(), [&table[2]]);
        let error = rows(&table[2..], Some(("MC_GID_INDEX", 9))).unwrap_err().to_string();
        let text =
            "MC_GID_INDEX asks for GID 9, which is empty; in use: 2 (RoCE v1, 192.0.2.1), 3 (RoCE v2, 192.0.2.1)";
        assert_eq!(error, text);
    }
}
