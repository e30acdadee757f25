//! SGLang's radix tree for device and host. Nodes hold whole pages and are evicted leaf by leaf in
//! LRU order.
//!
//! Source: `sglang/srt/mem_cache/unified_cache/unified_tree_core.py` and `components/full.py`, with
//! the `lru` policy and write-through.

use std::collections::{BTreeSet, HashMap};

/// Index of a node.
pub type NodeId = usize;
/// The root, which has no pages and is never removed.
pub const ROOT: NodeId = 0;
/// Clock increment. It exceeds the length of any path, because the nodes on a path get decreasing
/// times from the leaf to the root.
const TICK: u64 = 1 << 24;

#[derive(Clone, Debug, Default)]
struct TreeNode {
    key: Vec<u64>,
    parent: NodeId,
    /// First page -> node.
    children: HashMap<u64, NodeId>,
    /// Number of children on the device.
    device_children: u32,
    device: bool,
    host: bool,
    touched: u64,
    /// Number of requests that use the node or one of its descendants.
    locks: u32,
    /// Whether a prefetch from storage depends on the node.
    host_lock: bool,
    /// The time under which the node is listed as an evictable leaf, for the device and for the
    /// host.
    listed: [Option<u64>; 2],
}

/// The cached prefix of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixMatch {
    pub device: u64,
    /// The pages that follow the device pages and are only on the host.
    pub host: u64,
    /// The last node on the device.
    pub device_node: NodeId,
    pub node: NodeId,
}

/// The tree, and the free pages in both tiers.
#[derive(Clone, Debug)]
pub struct CacheTree {
    nodes: Vec<TreeNode>,
    unused: Vec<NodeId>,
    clock: u64,
    /// Evictable leaves ordered by last use, for the device and for the host.
    leaves: [BTreeSet<(u64, NodeId)>; 2],
    /// Free pages on the device.
    pub device_free: u64,
    /// Free pages on the host.
    pub host_free: u64,
    /// Pages on the device that no request uses.
    evictable: u64,
}

const DEVICE: usize = 0;
const HOST: usize = 1;

impl CacheTree {
    /// Creates an empty tree with these capacities in pages.
    pub fn new(device: u64, host: u64) -> CacheTree {
        CacheTree {
            nodes: vec![TreeNode::default()],
            unused: Vec::new(),
            clock: 0,
            leaves: Default::default(),
            device_free: device,
            host_free: host,
            evictable: 0,
        }
    }

    /// Pages available to a request: free plus evictable pages.
    pub fn reachable(&self) -> u64 {
        self.device_free + self.evictable
    }

    /// Whether the node is the root or is on the host.
    pub fn anchors_fetch(&self, id: NodeId) -> bool {
        id == ROOT || self.nodes[id].host
    }

    /// Locks or unlocks the node's host copy.
    pub fn lock_host(&mut self, id: NodeId, locked: bool) {
        if id != ROOT {
            self.nodes[id].host_lock = locked;
            self.list(id);
        }
    }

    /// Finds the longest cached prefix of `pages` and marks its nodes as used, the last node as the
    /// most recent.
    pub fn find(&mut self, pages: &[u64]) -> PrefixMatch {
        let mut found = PrefixMatch { device: 0, host: 0, device_node: ROOT, node: ROOT };
        let mut rest = pages;
        while let Some(child) = self.child(found.node, rest) {
            let common = common(&self.nodes[child].key, rest);
            let node = if common < self.nodes[child].key.len() { self.split(child, common) } else { child };
            let is_whole = node == child;
            if self.nodes[node].device {
                found.device += common as u64;
                found.device_node = node;
            } else {
                found.host += common as u64;
            }
            found.node = node;
            rest = &rest[common..];
            if !is_whole {
                break;
            }
        }
        let mut age = self.tick();
        let mut node = found.node;
        while node != ROOT {
            self.nodes[node].touched = age;
            self.list(node);
            age -= 1;
            node = self.nodes[node].parent;
        }
        found
    }

    /// Inserts prefetched pages on the host, below `node`.
    pub fn insert_fetched(&mut self, node: NodeId, pages: &[u64]) {
        self.touch(node);
        self.add(node, pages, false);
    }

    /// Inserts a request's pages, which are on the device. Nodes beyond the first `known` pages are
    /// copied to the host, and `written` is called for each copied node. From page `own` on, the
    /// request's own copies of pages that the tree already contains are released.
    pub fn insert(&mut self, pages: &[u64], known: u64, own: u64, written: &mut impl FnMut(&[u64])) -> NodeId {
        let mut node = ROOT;
        let mut at = 0u64;
        let mut rest = pages;
        while let Some(child) = self.child(node, rest) {
            self.touch(child);
            let common = common(&self.nodes[child].key, rest);
            node = if common < self.nodes[child].key.len() { self.split(child, common) } else { child };
            let end = at + common as u64;
            if self.nodes[node].device {
                // The request computed the same pages again, so its own copies are released.
                self.device_free += end.saturating_sub(own.max(at));
            } else {
                self.set_device(node, true);
            }
            if end > known && !self.nodes[node].host {
                self.copy(node, written);
            }
            at = end;
            rest = &rest[common..];
        }
        if !rest.is_empty() {
            node = self.add(node, rest, true);
            if pages.len() as u64 > known {
                self.copy(node, written);
            }
        }
        node
    }

    /// Loads the host pages up to `node` to the device: all of them or none. Returns whether they
    /// were loaded.
    pub fn load_back(&mut self, node: NodeId) -> bool {
        let mut coming = Vec::new();
        let mut up = node;
        while up != ROOT && !self.nodes[up].device {
            coming.push(up);
            up = self.nodes[up].parent;
        }
        let pages: u64 = coming.iter().map(|id| self.nodes[*id].key.len() as u64).sum();
        self.lock(node);
        self.make_room(pages);
        self.unlock(node);
        if self.device_free < pages {
            return false;
        }
        self.device_free -= pages;
        for id in coming.into_iter().rev() {
            self.set_device(id, true);
        }
        true
    }

    /// Evicts from the device until `pages` pages are free or nothing more can be evicted. Pages
    /// without a host copy are lost.
    pub fn make_room(&mut self, pages: u64) {
        while self.device_free < pages {
            let Some(&(_, leaf)) = self.leaves[DEVICE].first() else { return };
            self.device_free += self.nodes[leaf].key.len() as u64;
            self.set_device(leaf, false);
            if !self.nodes[leaf].host {
                self.remove(leaf);
            }
        }
    }

    /// Evicts at least `pages` pages from the host if possible. Returns the number of evicted
    /// pages.
    pub fn evict_host(&mut self, pages: u64) -> u64 {
        let mut freed = 0;
        while freed < pages {
            let Some(&(_, leaf)) = self.leaves[HOST].first() else { break };
            freed += self.nodes[leaf].key.len() as u64;
            self.remove(leaf);
        }
        self.host_free += freed;
        freed
    }

    /// Locks the path to `node`.
    pub fn lock(&mut self, node: NodeId) {
        self.change_locks(node, 1);
    }

    /// Unlocks a path that [`CacheTree::lock`] locked.
    pub fn unlock(&mut self, node: NodeId) {
        self.change_locks(node, -1);
    }

    fn change_locks(&mut self, mut node: NodeId, by: i32) {
        while node != ROOT {
            let is_free = |node: &TreeNode| if node.device && node.locks == 0 { node.key.len() as u64 } else { 0 };
            let before = is_free(&self.nodes[node]);
            self.nodes[node].locks = self.nodes[node].locks.saturating_add_signed(by);
            self.evictable = self.evictable + is_free(&self.nodes[node]) - before;
            self.list(node);
            node = self.nodes[node].parent;
        }
    }

    /// Copies `node` to the host, after its ancestors that have no copy yet. Stops if the host has
    /// no free space.
    fn copy(&mut self, node: NodeId, written: &mut impl FnMut(&[u64])) {
        let mut chain = vec![node];
        let mut up = self.nodes[node].parent;
        while up != ROOT && !self.nodes[up].host {
            chain.push(up);
            up = self.nodes[up].parent;
        }
        for id in chain.into_iter().rev() {
            let pages = self.nodes[id].key.len() as u64;
            let missing = pages.saturating_sub(self.host_free);
            if missing > 0 && self.evict_host(missing) < missing {
                return;
            }
            self.host_free -= pages;
            self.nodes[id].host = true;
            self.list(id);
            written(&self.nodes[id].key);
        }
    }

    fn child(&self, node: NodeId, rest: &[u64]) -> Option<NodeId> {
        self.nodes[node].children.get(rest.first()?).copied()
    }

    /// Splits a node after `pages` pages. The new node holds the first part; the rest is marked as
    /// just used.
    fn split(&mut self, child: NodeId, pages: usize) -> NodeId {
        let tail = self.nodes[child].key.split_off(pages);
        let head = std::mem::replace(&mut self.nodes[child].key, tail);
        let touched = self.tick();
        let old = &self.nodes[child];
        let first = head[0];
        let parent = old.parent;
        let node = TreeNode {
            key: head,
            parent,
            children: HashMap::from([(old.key[0], child)]),
            device_children: u32::from(old.device),
            device: old.device,
            host: old.host,
            touched,
            locks: old.locks,
            host_lock: old.host_lock,
            listed: [None; 2],
        };
        let id = self.place(node);
        self.nodes[parent].children.insert(first, id);
        self.nodes[child].parent = id;
        self.touch(child);
        self.list(id);
        id
    }

    fn add(&mut self, parent: NodeId, pages: &[u64], is_device: bool) -> NodeId {
        let touched = self.tick();
        let node = TreeNode { key: pages.to_vec(), parent, touched, host: !is_device, ..TreeNode::default() };
        let id = self.place(node);
        self.nodes[parent].children.insert(pages[0], id);
        if is_device {
            self.set_device(id, true)
        } else {
            self.list(id)
        }
        self.list(parent);
        id
    }

    fn place(&mut self, node: TreeNode) -> NodeId {
        match self.unused.pop() {
            Some(id) => {
                self.nodes[id] = node;
                id
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        }
    }

    fn remove(&mut self, id: NodeId) {
        let parent = self.nodes[id].parent;
        let first = self.nodes[id].key[0];
        self.nodes[parent].children.remove(&first);
        let gone = std::mem::take(&mut self.nodes[id]);
        for (side, listed) in gone.listed.into_iter().enumerate() {
            if let Some(age) = listed {
                self.leaves[side].remove(&(age, id));
            }
        }
        self.unused.push(id);
        self.list(parent);
    }

    fn set_device(&mut self, id: NodeId, device: bool) {
        let parent = self.nodes[id].parent;
        let pages = if self.nodes[id].locks == 0 { self.nodes[id].key.len() as u64 } else { 0 };
        self.nodes[id].device = device;
        if device {
            self.nodes[parent].device_children += 1;
            self.evictable += pages;
        } else {
            self.nodes[parent].device_children -= 1;
            self.evictable -= pages;
        }
        self.list(id);
        self.list(parent);
    }

    /// Updates the node's entry in the list of evictable leaves.
    fn list(&mut self, id: NodeId) {
        if id == ROOT {
            return;
        }
        let node = &mut self.nodes[id];
        let is_leaf = [
            node.device && node.locks == 0 && node.device_children == 0,
            !node.device && node.host && node.children.is_empty() && node.locks == 0 && !node.host_lock,
        ];
        for side in [DEVICE, HOST] {
            let age = is_leaf[side].then_some(node.touched);
            if node.listed[side] == age {
                continue;
            }
            if let Some(before) = node.listed[side] {
                self.leaves[side].remove(&(before, id));
            }
            if let Some(age) = age {
                self.leaves[side].insert((age, id));
            }
            node.listed[side] = age;
        }
    }

    fn touch(&mut self, id: NodeId) {
        let now = self.tick();
        self.nodes[id].touched = now;
        self.list(id);
    }

    fn tick(&mut self) -> u64 {
        self.clock += TICK;
        self.clock
    }

    /// Verifies all counters against the nodes. For tests, also of other crates.
    ///
    /// # Panics
    /// A counter or a link between nodes is wrong.
    pub fn check(&self, device: u64, host: u64) {
        let mut all: Vec<(NodeId, &TreeNode)> = self.nodes.iter().enumerate().skip(1).collect();
        all.retain(|(id, _)| !self.unused.contains(id));
        let sum = |keep: &dyn Fn(&TreeNode) -> bool| -> u64 {
            all.iter().filter(|(_, node)| keep(node)).map(|(_, node)| node.key.len() as u64).sum()
        };
        assert_eq!(self.device_free + sum(&|node| node.device), device);
        assert_eq!(self.host_free + sum(&|node| node.host), host);
        assert_eq!(self.evictable, sum(&|node| node.device && node.locks == 0));
        for (id, node) in &all {
            let parent = &self.nodes[node.parent];
            assert_eq!(parent.children.get(&node.key[0]), Some(id));
            // A tier contains whole prefixes: if a node is in a tier, so is its parent.
            assert!(node.parent == ROOT || ((!node.device || parent.device) && (!node.host || parent.host)));
            assert!(node.device || node.host, "a node must be in a tier");
            assert_eq!(node.locks, 0);
            let children = node.children.values().filter(|child| self.nodes[**child].device).count();
            assert_eq!(node.device_children as usize, children);
        }
        let listed = |side: usize| all.iter().filter(|(_, node)| node.listed[side].is_some()).count();
        assert_eq!((listed(DEVICE), listed(HOST)), (self.leaves[DEVICE].len(), self.leaves[HOST].len()));
    }
}

/// Length of the common prefix.
fn common(a: &[u64], b: &[u64]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
