//! From which of our devices to which of the peer's.
//!
//! By the topology matrices of both: the location of our memory in ours, that of the peer's in the peer's. Devices go by name; a
//! peer's place in its own lists may have shifted. The lots are drawn elsewhere and come in as numbers: a random one, or a counter
//! for taking turns (`MC_PATH_ROUNDROBIN`).

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::engine::transfer::rdma::RdmaSettings;
use crate::engine::wire::json::{PriorityMatrix, SegmentDescriptor};

/// Which devices serve memory at which place, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rails {
    names: Vec<String>,
    by_location: BTreeMap<String, Row>,
    all: Row,
}

/// Devices by their place in the list of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Row {
    preferred: Vec<usize>,
    others: Vec<usize>,
}

impl Rails {
    /// The devices `names` as `matrix` sorts them. What the matrix says of others is ignored.
    pub fn new(names: Vec<String>, matrix: Option<&PriorityMatrix>) -> Rails {
        let numbers = |wanted: &[String]| -> Vec<usize> {
            wanted.iter().filter_map(|name| names.iter().position(|n| n == name)).collect()
        };
        let row =
            |[preferred, others]: &[Vec<String>; 2]| Row { preferred: numbers(preferred), others: numbers(others) };
        let by_location =
            matrix.into_iter().flatten().map(|(location, lists)| (location.clone(), row(lists))).collect();
        let all = Row { preferred: (0..names.len()).collect(), others: Vec::new() };
        Rails { names, by_location, all }
    }

    /// Those of a peer.
    pub fn of(descriptor: &SegmentDescriptor) -> Rails {
        let names = descriptor.devices.iter().map(|device| device.name.clone()).collect();
        Rails::new(names, descriptor.priority_matrix.as_ref())
    }

    /// The devices' names; their places are what [`Route`] speaks of.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    fn place_of(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|n| n == name)
    }

    /// All devices that serve `location`, the one to take at try `attempt` first.
    fn order(&self, location: &str, attempt: u32, draw: u32) -> impl Iterator<Item = usize> + Clone {
        let known = self.by_location.get(location).filter(|row| row.preferred.len() + row.others.len() > 0);
        let row = known.unwrap_or(&self.all);
        let (preferred, others) = (row.preferred.as_slice(), row.others.as_slice());
        let (first, then) = match attempt {
            0 => {
                // The others in turn as well, for when they are all there is.
                let (first, then) = (turn(preferred, draw), turn(others, draw));
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

/// `list` from a place on, and what is before it.
fn turn(list: &[usize], draw: u32) -> (&[usize], &[usize]) {
    let at = if list.is_empty() { 0 } else { draw as usize % list.len() };
    (&list[at..], &list[..at])
}

/// Where the byte at `offset` of a buffer of `length` bytes is, by the buffer's name. `segments:<page>:<n0>,<n1>,...` is a buffer in
/// equal parts on these memory nodes; any other name is the place itself.
pub fn location(name: &str, offset: u64, length: u64) -> Cow<'_, str> {
    let Some((_, nodes)) = name.strip_prefix("segments:").and_then(|rest| rest.split_once(':')) else {
        return Cow::Borrowed(name);
    };
    let parts = nodes.split(',').count();
    let part = usize::try_from(u128::from(offset) * parts as u128 / u128::from(length.max(1))).unwrap_or(usize::MAX);
    let node = nodes.split(',').nth(part.min(parts - 1)).unwrap_or_default();
    Cow::Owned(format!("cpu:{}", node.trim()))
}

/// What a way is wanted for.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Where our bytes are.
    pub here: &'a str,
    /// Where the peer's are.
    pub there: &'a str,
    /// 0 at first, then how often it was tried.
    pub attempt: u32,
    /// Lots for our device and the peer's.
    pub draws: (u32, u32),
}

/// A way: our device and the peer's, by their places in the lists of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Ours.
    pub local: usize,
    /// The peer's.
    pub remote: usize,
}

/// What is known of devices and ways at this moment.
pub trait Ways {
    /// Can our device be used at all?
    fn is_up(&self, local: usize) -> bool;
    /// Did this way work lately, or is it not known?
    fn is_open(&self, route: Route) -> bool;
}

/// Chooses ways from our devices.
#[derive(Clone, Debug)]
pub struct Router {
    rails: Rails,
    same_name: bool,
    peers_of: BTreeMap<String, Vec<String>>,
}

impl Router {
    /// From `rails`, with what `settings` say of affinity.
    pub fn new(rails: Rails, settings: &RdmaSettings) -> Router {
        Router { rails, same_name: settings.same_name, peers_of: settings.peers_of.clone() }
    }

    /// Our devices.
    pub fn rails(&self) -> &Rails {
        &self.rails
    }

    /// The way for `ask` to a peer with the devices `peer`. A way that is not open is only taken where none is; a device that is not
    /// up never. `None`: no device of ours is up, or the peer has none.
    pub fn route(&self, peer: &Rails, ask: Ask<'_>, ways: &dyn Ways) -> Option<Route> {
        let locals = self.rails.order(ask.here, ask.attempt, ask.draws.0).filter(|local| ways.is_up(*local));
        let remotes = peer.order(ask.there, ask.attempt, ask.draws.1);
        let to = |local: usize| {
            let wanted = if ask.attempt == 0 { self.wanted(peer, local, ask.draws.1) } else { None };
            wanted.into_iter().chain(remotes.clone()).map(move |remote| Route { local, remote })
        };
        let open = locals.clone().flat_map(to).find(|route| ways.is_open(*route));
        // All are closed, or there are none: better a bad way than no way.
        open.or_else(|| locals.clone().flat_map(to).next()).or_else(|| self.elsewhere(peer, ask, ways))
    }

    /// The peer's device that the settings want for ours.
    fn wanted(&self, peer: &Rails, local: usize, draw: u32) -> Option<usize> {
        let name = self.rails.names.get(local)?;
        if self.same_name {
            return peer.place_of(name);
        }
        let there: Vec<usize> = self.peers_of.get(name)?.iter().filter_map(|name| peer.place_of(name)).collect();
        turn(&there, draw).0.first().copied()
    }

    /// None of the devices for this place is up: any that is.
    fn elsewhere(&self, peer: &Rails, ask: Ask<'_>, ways: &dyn Ways) -> Option<Route> {
        let (known, asked) = (&self.rails.all.preferred, ask.attempt as usize);
        let local = (0..known.len()).map(|i| known[(i + asked) % known.len()]).find(|local| ways.is_up(*local))?;
        peer.order(ask.there, ask.attempt, ask.draws.1).next().map(|remote| Route { local, remote })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;

    /// Devices that are down, ways that are closed.
    #[derive(Default)]
    struct State {
        down: Vec<usize>,
        closed: Vec<(usize, usize)>,
        asked: RefCell<usize>,
    }

    impl Ways for State {
        fn is_up(&self, local: usize) -> bool {
            !self.down.contains(&local)
        }
        fn is_open(&self, route: Route) -> bool {
            *self.asked.borrow_mut() += 1;
            !self.closed.contains(&(route.local, route.remote))
        }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    /// Four devices, two near each of two nodes.
    fn host() -> Rails {
        let matrix = PriorityMatrix::from([
            ("cpu:0".to_owned(), [names(&["a", "b"]), names(&["c", "d"])]),
            ("cpu:1".to_owned(), [names(&["c", "d"]), names(&["a", "b", "gone"])]),
            ("cuda:0".to_owned(), [names(&[]), names(&["d", "a"])]),
            ("cuda:1".to_owned(), [names(&["gone"]), names(&[])]),
        ]);
        Rails::new(names(&["a", "b", "c", "d"]), Some(&matrix))
    }

    fn ask<'a>(here: &'a str, there: &'a str, attempt: u32, draw: u32) -> Ask<'a> {
        Ask { here, there, attempt, draws: (draw, draw) }
    }

    fn route(settings: &RdmaSettings, ask: Ask<'_>, state: &State) -> Option<(usize, usize)> {
        Router::new(host(), settings).route(&host(), ask, state).map(|route| (route.local, route.remote))
    }

    #[test]
    fn the_first_try_is_by_lot_among_the_preferred_and_each_retry_takes_the_next_of_all() {
        let (settings, state) = (RdmaSettings::default(), State::default());
        let at = |attempt, draw| route(&settings, ask("cpu:1", "cpu:0", attempt, draw), &state).unwrap();
        assert_eq!((at(0, 0), at(0, 1), at(0, 2)), ((2, 0), (3, 1), (2, 0)));
        let retries: Vec<_> = (1..=5).map(|attempt| at(attempt, 7)).collect();
        assert_eq!(retries, [(2, 0), (3, 1), (0, 2), (1, 3), (2, 0)]);
    }

    #[test]
    fn without_preferred_ones_the_lot_is_among_the_others_and_an_unknown_place_has_all() {
        let (settings, state) = (RdmaSettings::default(), State::default());
        let at = |here, draw| route(&settings, ask(here, "cpu:0", 0, draw), &state).unwrap().0;
        assert_eq!((at("cuda:0", 0), at("cuda:0", 1)), (3, 0));
        assert_eq!((0..4).map(|draw| at("*", draw)).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!((at("nowhere", 2), at("cuda:1", 3)), (2, 3));
    }

    #[test]
    fn closed_ways_are_avoided_while_there_is_another_and_devices_that_are_down_always() {
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
        assert_eq!(Router::new(host(), &settings).route(&none, ask("*", "*", 0, 0), &State::default()), None);
    }

    #[test]
    fn the_peers_device_of_the_same_name_or_by_the_list_where_it_is_asked_for() {
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
    fn a_buffer_over_several_nodes_is_where_its_part_is() {
        let name = "segments:4096:0,1,3";
        let at = |offset| location(name, offset, 3000).into_owned();
        assert_eq!([at(0), at(999), at(1000), at(2999), at(9999)], ["cpu:0", "cpu:0", "cpu:1", "cpu:3", "cpu:3"]);
        assert_eq!(location("cpu:1", 5, 10), "cpu:1");
        assert_eq!(location("segments:odd", 5, 10), "segments:odd");
        assert_eq!(location(name, u64::MAX, 0), "cpu:3");
    }

    proptest! {
        #[test]
        fn a_way_is_found_whenever_a_device_is_up_and_it_is_open_if_one_is(
            down in proptest::collection::vec(0usize..4, 0..4), closed in proptest::collection::vec((0usize..4, 0usize..4), 0..20),
            here in 0usize..5, there in 0usize..5, attempt in 0u32..12, draws: (u32, u32), same_name: bool,
        ) {
            let places = ["cpu:0", "cpu:1", "cuda:1", "*", "what"];
            let state = State { down, closed, ..State::default() };
            let settings = RdmaSettings { same_name, ..RdmaSettings::default() };
            let ask = Ask { here: places[here], there: places[there], attempt, draws };
            let found = Router::new(host(), &settings).route(&host(), ask, &state);
            let up = (0..4).any(|local| state.is_up(local));
            prop_assert_eq!(found.is_some(), up);
            if let Some(route) = found {
                prop_assert!(state.is_up(route.local) && route.remote < 4);
                let any_open = (0..4).filter(|l| state.is_up(*l)).any(|local| {
                    (0..4).any(|remote| state.is_open(Route { local, remote }))
                });
                prop_assert_eq!(state.is_open(route), any_open);
            }
            prop_assert!(*state.asked.borrow() < 64);
        }
    }
}
