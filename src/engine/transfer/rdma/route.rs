//! Path selection: which of our devices and which of the peer's to use.
//!
//! Both topology matrices are used: ours with the location of our memory, the peer's with the
//! location of its memory. Devices are matched by name, because positions in a peer's lists may
//! have shifted. Random numbers are passed as arguments. For round-robin selection
//! (`MC_PATH_ROUNDROBIN`), a counter replaces them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::rdma::RdmaSettings;
use mcctl_wire::json::{PriorityMatrix, SegmentDescriptor};

/// The devices that serve memory at each location, in order of preference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rails {
    names: Vec<String>,
    by_location: BTreeMap<String, RailPreference>,
    all: RailPreference,
}

/// Devices, as positions in the list of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RailPreference {
    preferred: Vec<usize>,
    others: Vec<usize>,
}

impl Rails {
    /// Orders the devices in `names` by `matrix`. Names in the matrix that are not in `names` are
    /// ignored.
    pub fn new(names: Vec<String>, matrix: Option<&PriorityMatrix>) -> Rails {
        let numbers = |wanted: &[String]| -> Vec<usize> {
            wanted.iter().filter_map(|name| names.iter().position(|n| n == name)).collect()
        };
        let row = |[preferred, others]: &[Vec<String>; 2]| RailPreference {
            preferred: numbers(preferred),
            others: numbers(others),
        };
        let by_location =
            matrix.into_iter().flatten().map(|(location, lists)| (location.clone(), row(lists))).collect();
        let all = RailPreference { preferred: (0..names.len()).collect(), others: Vec::new() };
        Rails { names, by_location, all }
    }

    /// Builds the table of a peer's devices from its descriptor.
    pub fn of(descriptor: &SegmentDescriptor) -> Rails {
        let names = descriptor.devices.iter().map(|device| device.name.clone()).collect();
        Rails::new(names, descriptor.priority_matrix.as_ref())
    }

    /// Returns the device names. [`RdmaRoute`] contains positions in this list.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    fn index_of(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|n| n == name)
    }

    /// Returns all devices that serve `location`, starting with the one for this `attempt`.
    fn order(&self, location: &str, attempt: u32, draw: u32) -> impl Iterator<Item = usize> + Clone {
        let known = self.by_location.get(location).filter(|row| row.preferred.len() + row.others.len() > 0);
        let row = known.unwrap_or(&self.all);
        let preferred = row.preferred.as_slice();
        let others = row.others.as_slice();
        let (first, then) = match attempt {
            0 => {
                // Rotate the others too, in case there is no preferred device.
                let first = turn(preferred, draw);
                let then = turn(others, draw);
                ([first.0, first.1], [then.0, then.1])
            }
            _ => {
                let skip = (attempt as usize - 1) % (preferred.len() + others.len()).max(1);
                match skip.checked_sub(preferred.len()) {
                    None => ([&preferred[skip..], others], [&preferred[..skip], &[]]),
                    Some(skip) => ([&others[skip..], preferred], [&others[..skip], &[]]),
                }
            }
        };
        first.into_iter().chain(then).flatten().copied()
    }
}

/// Rotates `list` by `draw` positions. Returns the elements from that position on, and the elements
/// before it.
fn turn(list: &[usize], draw: u32) -> (&[usize], &[usize]) {
    let at = if list.is_empty() { 0 } else { draw as usize % list.len() };
    (&list[at..], &list[..at])
}

/// Returns the location of the byte at `offset` in a buffer of `length` bytes, from the buffer's
/// name. `segments:<page>:<n0>,<n1>,...` means that the buffer is split equally across the listed
/// NUMA nodes. Any other name is the location itself.
pub fn location(name: &str, offset: u64, length: u64) -> Cow<'_, str> {
    let Some((_, nodes)) = name.strip_prefix("segments:").and_then(|rest| rest.split_once(':')) else {
        return Cow::Borrowed(name);
    };
    let parts = nodes.split(',').count();
    let part = usize::try_from(u128::from(offset) * parts as u128 / u128::from(length.max(1))).unwrap_or(usize::MAX);
    let node = nodes.split(',').nth(part.min(parts - 1)).unwrap_or_default();
    Cow::Owned(format!("cpu:{}", node.trim()))
}

/// The input of path selection.
#[derive(Clone, Copy, Debug)]
pub struct RouteQuery<'a> {
    /// Location of our bytes.
    pub here: &'a str,
    /// Location of the peer's bytes.
    pub there: &'a str,
    /// 0 for the first attempt.
    pub attempt: u32,
    /// Random numbers for selecting our device and the peer's.
    pub draws: (u32, u32),
}

/// A path: our device and the peer's, as positions in the lists of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RdmaRoute {
    pub local: usize,
    pub remote: usize,
}

/// Current state of devices and paths.
pub trait PathTable {
    /// Whether our device can be used.
    fn is_up(&self, local: usize) -> bool;
    /// Whether this path is usable and not paused.
    fn is_open(&self, route: RdmaRoute) -> bool;
}

/// Selects paths from our devices.
#[derive(Clone, Debug)]
pub struct RdmaRouter {
    rails: Rails,
    same_name: bool,
    peers_of: BTreeMap<String, Vec<String>>,
}

impl RdmaRouter {
    /// Creates a router for the devices in `rails`, with the affinity from `settings`.
    pub fn new(rails: Rails, settings: &RdmaSettings) -> RdmaRouter {
        RdmaRouter { rails, same_name: settings.same_name, peers_of: settings.peers_of.clone() }
    }

    /// Returns our devices, in index order.
    pub fn rails(&self) -> &Rails {
        &self.rails
    }

    /// Selects the path for `ask` to a peer with the devices `peer`. A paused path is used only if
    /// there is no other. A disabled device is never used. Returns `None` if none of our devices is
    /// up or the peer has no device.
    pub fn route(&self, peer: &Rails, ask: RouteQuery<'_>, path_table: &dyn PathTable) -> Option<RdmaRoute> {
        let locals = self.rails.order(ask.here, ask.attempt, ask.draws.0).filter(|local| path_table.is_up(*local));
        let remotes = peer.order(ask.there, ask.attempt, ask.draws.1);
        let to = |local: usize| {
            let wanted = if ask.attempt == 0 { self.wanted(peer, local, ask.draws.1) } else { None };
            wanted.into_iter().chain(remotes.clone()).map(move |remote| RdmaRoute { local, remote })
        };
        let open = locals.clone().flat_map(to).find(|route| path_table.is_open(*route));
        // All paths are paused: a paused path is better than none.
        open.or_else(|| locals.clone().flat_map(to).next()).or_else(|| self.elsewhere(peer, ask, path_table))
    }

    /// Returns the peer's device that the settings assign to ours.
    fn wanted(&self, peer: &Rails, local: usize, draw: u32) -> Option<usize> {
        let name = self.rails.names.get(local)?;
        if self.same_name {
            return peer.index_of(name);
        }
        let there: Vec<usize> = self.peers_of.get(name)?.iter().filter_map(|name| peer.index_of(name)).collect();
        turn(&there, draw).0.first().copied()
    }

    /// Selects a path from any device that is up. Used if no device for this location is up.
    fn elsewhere(&self, peer: &Rails, ask: RouteQuery<'_>, path_table: &dyn PathTable) -> Option<RdmaRoute> {
        let known = &self.rails.all.preferred;
        let attempts = ask.attempt as usize;
        let local =
            (0..known.len()).map(|i| known[(i + attempts) % known.len()]).find(|local| path_table.is_up(*local))?;
        peer.order(ask.there, ask.attempt, ask.draws.1).next().map(|remote| RdmaRoute { local, remote })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;

    /// Disabled devices and paused paths.
    #[derive(Default)]
    struct State {
        down: Vec<usize>,
        closed: Vec<(usize, usize)>,
        attempts: RefCell<usize>,
    }

    impl PathTable for State {
        fn is_up(&self, local: usize) -> bool {
            !self.down.contains(&local)
        }
        fn is_open(&self, route: RdmaRoute) -> bool {
            *self.attempts.borrow_mut() += 1;
            !self.closed.contains(&(route.local, route.remote))
        }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    /// Four devices, two for each of two NUMA nodes.
    fn host() -> Rails {
        let matrix = PriorityMatrix::from([
            ("cpu:0".to_owned(), [names(&["a", "b"]), names(&["c", "d"])]),
            ("cpu:1".to_owned(), [names(&["c", "d"]), names(&["a", "b", "gone"])]),
            ("cuda:0".to_owned(), [names(&[]), names(&["d", "a"])]),
            ("cuda:1".to_owned(), [names(&["gone"]), names(&[])]),
        ]);
        Rails::new(names(&["a", "b", "c", "d"]), Some(&matrix))
    }

    fn ask<'a>(here: &'a str, there: &'a str, attempt: u32, draw: u32) -> RouteQuery<'a> {
        RouteQuery { here, there, attempt, draws: (draw, draw) }
    }

    fn route(settings: &RdmaSettings, ask: RouteQuery<'_>, state: &State) -> Option<(usize, usize)> {
        RdmaRouter::new(host(), settings).route(&host(), ask, state).map(|route| (route.local, route.remote))
    }

    #[test]
    fn first_attempts_use_preferred_devices_and_retries_rotate() {
        let settings = RdmaSettings::default();
        let state = State::default();
        let at = |attempt, draw| route(&settings, ask("cpu:1", "cpu:0", attempt, draw), &state).unwrap();
        assert_eq!((at(0, 0), at(0, 1), at(0, 2)), ((2, 0), (3, 1), (2, 0)));
        let retries: Vec<_> = (1..=5).map(|attempt| at(attempt, 7)).collect();
        assert_eq!(retries, [(2, 0), (3, 1), (0, 2), (1, 3), (2, 0)]);
    }

    #[test]
    fn unknown_locations_use_all_devices() {
        let settings = RdmaSettings::default();
        let state = State::default();
        let at = |here, draw| route(&settings, ask(here, "cpu:0", 0, draw), &state).unwrap().0;
        assert_eq!((at("cuda:0", 0), at("cuda:0", 1)), (3, 0));
        assert_eq!((0..4).map(|draw| at("*", draw)).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!((at("nowhere", 2), at("cuda:1", 3)), (2, 3));
    }

    #[test]
    fn paused_paths_are_last_resort_and_disabled_devices_unused() {
        let settings = RdmaSettings::default();
        let state = State { closed: vec![(0, 0), (0, 1)], ..State::default() };
        assert_eq!(route(&settings, ask("cpu:0", "cpu:0", 0, 0), &state), Some((0, 2)));
        let state = State { down: vec![0, 1], ..State::default() };
        assert_eq!(route(&settings, ask("cpu:0", "cpu:0", 0, 0), &state), Some((2, 0)));
        let all = (0..4).flat_map(|l| (0..4).map(move |r| (l, r))).collect();
        let state = State { down: vec![0], closed: all, ..State::default() };
        assert_eq!(route(&settings, ask("cpu:0", "cpu:0", 0, 0), &state), Some((1, 0)));
        let state = State { down: vec![0, 3], ..State::default() };
        assert_eq!(route(&settings, ask("cuda:0", "cpu:0", 0, 0), &state), Some((1, 0)));
        let state = State { down: vec![0, 1, 2, 3], ..State::default() };
        assert_eq!(route(&settings, ask("cpu:0", "cpu:0", 0, 0), &state), None);
        let none = Rails::new(Vec::new(), None);
        assert_eq!(RdmaRouter::new(host(), &settings).route(&none, ask("*", "*", 0, 0), &State::default()), None);
    }

    #[test]
    fn configured_affinity_selects_the_peers_device() {
        let same = RdmaSettings { same_name: true, ..RdmaSettings::default() };
        let state = State::default();
        assert_eq!(route(&same, ask("cpu:1", "cpu:0", 0, 1), &state), Some((3, 3)));
        assert_eq!(route(&same, ask("cpu:1", "cpu:0", 1, 1), &state), Some((2, 0)));
        let closed = State { closed: vec![(3, 3)], ..State::default() };
        assert_eq!(route(&same, ask("cpu:1", "cpu:0", 0, 1), &closed), Some((3, 1)));
        let peers_of = [("a".to_owned(), names(&["x", "c", "d"]))].into();
        let listed = RdmaSettings { peers_of, ..RdmaSettings::default() };
        assert_eq!(route(&listed, ask("cpu:0", "cpu:0", 0, 0), &state), Some((0, 2)));
        assert_eq!(route(&listed, ask("cpu:0", "cpu:0", 0, 2), &state), Some((0, 2)));
        assert_eq!(route(&listed, ask("cpu:0", "cpu:0", 0, 1), &state), Some((1, 1)));
    }

    #[test]
    fn a_segmented_buffer_has_one_location_per_part() {
        let name = "segments:4096:0,1,3";
        let at = |offset| location(name, offset, 3000).into_owned();
        assert_eq!([at(0), at(999), at(1000), at(2999), at(9999)], ["cpu:0", "cpu:0", "cpu:1", "cpu:3", "cpu:3"]);
        assert_eq!(location("cpu:1", 5, 10), "cpu:1");
        assert_eq!(location("segments:odd", 5, 10), "segments:odd");
        assert_eq!(location(name, u64::MAX, 0), "cpu:3");
    }

    proptest! {
        #[test]
        fn a_path_is_found_if_a_device_is_up_and_open_if_possible(
            down in proptest::collection::vec(0usize..4, 0..4), closed in proptest::collection::vec((0usize..4, 0usize..4), 0..20),
            here in 0usize..5, there in 0usize..5, attempt in 0u32..12, draws: (u32, u32), same_name: bool,
        ) {
            let places = ["cpu:0", "cpu:1", "cuda:1", "*", "what"];
            let state = State { down, closed, ..State::default() };
            let settings = RdmaSettings { same_name, ..RdmaSettings::default() };
            let ask = RouteQuery { here: places[here], there: places[there], attempt, draws };
            let found = RdmaRouter::new(host(), &settings).route(&host(), ask, &state);
            let up = (0..4).any(|local| state.is_up(local));
            prop_assert_eq!(found.is_some(), up);
            if let Some(route) = found {
                prop_assert!(state.is_up(route.local) && route.remote < 4);
                let any_open = (0..4).filter(|l| state.is_up(*l)).any(|local| {
                    (0..4).any(|remote| state.is_open(RdmaRoute { local, remote }))
                });
                prop_assert_eq!(state.is_open(route), any_open);
            }
            prop_assert!(*state.attempts.borrow() < 64);
        }
    }
}
