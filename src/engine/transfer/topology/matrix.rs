//! Mooncake's topology matrix: which devices serve which memory.
//!
//! The rules match release 0.3.13. A NUMA node's memory prefers the devices on that node. A GPU
//! prefers the devices on its node with the fewest [`pci::steps`] (or among all devices, if its
//! node has none).

use std::collections::BTreeMap;

use serde::Serialize;

use crate::topology::device::HostRdmaDevice;
use crate::topology::host::{Gpu, HostTopology};
use crate::topology::pci;

/// Location (`cpu:0`, `cuda:0`) -> preferred devices and other devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Matrix(pub BTreeMap<String, [Vec<String>; 2]>);

impl Matrix {
    /// Computes the matrix for `host` and the devices in `names`.
    pub fn of(host: &HostTopology, names: &[String]) -> Matrix {
        let devices: Vec<&HostRdmaDevice> = host.devices.iter().filter(|d| names.contains(&d.name)).collect();
        let split = |is_preferred: &dyn Fn(&HostRdmaDevice) -> bool| {
            let (near, far): (Vec<&HostRdmaDevice>, Vec<&HostRdmaDevice>) =
                devices.iter().partition(|d| is_preferred(d));
            [near, far].map(|part| part.into_iter().map(|d| d.name.clone()).collect())
        };
        let mut matrix = BTreeMap::new();
        for node in &host.nodes {
            matrix.insert(format!("cpu:{}", node.id), split(&|d| d.numa_node == Some(node.id)));
        }
        for gpu in &host.gpus {
            let Some(location) = &gpu.location else { continue };
            let nearest = nearest(&devices, gpu);
            matrix.insert(location.clone(), split(&|d| nearest.contains(&d.name.as_str())));
        }
        Matrix(matrix)
    }

    /// Parses a JSON matrix, without the devices that are not in `names`.
    ///
    /// # Errors
    /// The text is not a JSON object whose values are pairs of lists.
    pub fn from_json(text: &str, names: &[String]) -> Result<Matrix, serde_json::Error> {
        let mut matrix: BTreeMap<String, [Vec<String>; 2]> = serde_json::from_str(text)?;
        for list in matrix.values_mut().flatten() {
            list.retain(|name| names.contains(name));
        }
        Ok(Matrix(matrix))
    }

    /// Formats the matrix as `transfer_engine_topology_dump` does: with tabs, and non-empty
    /// brackets on separate lines.
    pub fn styled(&self) -> String {
        let list = |names: &[String]| {
            if names.is_empty() {
                return "[]".to_owned();
            }
            let names: Vec<String> =
                names.iter().map(|n| format!("\n\t\t\t{}", serde_json::Value::from(n.as_str()))).collect();
            format!("[{}\n\t\t]", names.join(","))
        };
        let entry = |(location, [near, far]): (&String, &[Vec<String>; 2])| {
            format!("\n\t\"{location}\" : \n\t[\n\t\t{},\n\t\t{}\n\t]", list(near), list(far))
        };
        let entries: Vec<String> = self.0.iter().map(entry).collect();
        if entries.is_empty() { "{}\n".to_owned() } else { format!("{{{}\n}}\n", entries.join(",")) }
    }
}

/// The devices that a GPU prefers. Devices without a PCI path are excluded.
fn nearest<'a>(devices: &[&'a HostRdmaDevice], gpu: &Gpu) -> Vec<&'a str> {
    let steps = |d: &&'a HostRdmaDevice| Some((pci::steps(d.path.as_deref()?, &gpu.path), d.name.as_str()));
    let same_node = |d: &&&'a HostRdmaDevice| gpu.numa_node.is_some() && d.numa_node == gpu.numa_node;
    let candidates: Vec<&'a HostRdmaDevice> = devices.iter().filter(same_node).copied().collect();
    let candidates = if candidates.is_empty() { devices.to_vec() } else { candidates };
    let ranked: Vec<(usize, &str)> = candidates.iter().filter_map(steps).collect();
    let Some(least) = ranked.iter().map(|(steps, _)| *steps).min() else { return Vec::new() };
    ranked.into_iter().filter(|(steps, _)| *steps == least).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_matches_upstream() {
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let mut matrix = Matrix::default();
        assert_eq!(matrix.styled(), "{}\n");
        matrix.0.insert("cpu:0".to_owned(), [Vec::new(), Vec::new()]);
        assert_eq!(matrix.styled(), "{\n\t\"cpu:0\" : \n\t[\n\t\t[],\n\t\t[]\n\t]\n}\n");
        matrix.0.insert("cpu:1".to_owned(), [names(&["a", "b"]), names(&["c"])]);
        assert_eq!(
            matrix.styled(),
            "{\n\t\"cpu:0\" : \n\t[\n\t\t[],\n\t\t[]\n\t],\n\t\"cpu:1\" : \n\t[\n\t\t[\n\t\t\t\"a\",\n\t\t\t\"b\"\n\t\t],\n\t\t[\n\t\t\t\"c\"\n\t\t]\n\t]\n}\n"
        );
    }
}
