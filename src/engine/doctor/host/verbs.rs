//! The one check that opens devices: does a trial registration of memory come through, as a store's will have to?

use std::sync::Arc;

use crate::engine::base::ByteSize;
use crate::engine::check::{Check, Severity, Status};
use crate::engine::doctor::find;
use crate::engine::doctor::host::Look;
use crate::engine::sys::verbs::{self, AccessFlags, MemoryRegion, ProtectionDomain, RdmaDevice, VerbsUnavailable};
use crate::engine::sys::{Memory, MemoryError, MemoryPolicy, MemorySource};

/// What is registered in any case, bytes: a page.
const PAGE: u64 = 4096;

/// Why a trial failed: what was found, and what to do.
struct Trouble {
    found: String,
    next: String,
}

impl From<VerbsUnavailable> for Trouble {
    fn from(absent: VerbsUnavailable) -> Trouble {
        Trouble { found: absent.to_string(), next: absent.remedy() }
    }
}

pub(super) fn registration(look: &Look, check: &Check) -> Status {
    if !look.tree.is_this_host() {
        return Status::Skipped("the devices of another host cannot be opened".to_owned());
    }
    if look.host.devices.is_empty() {
        return Status::Skipped("no RDMA device on this host".to_owned());
    }
    let severity = look.intent.over_rdma(Severity::Error);
    let trouble = |trouble: Trouble| {
        let finding = "memory cannot be registered with the RDMA devices: no store can use them";
        find(check, severity, finding, trouble.found, trouble.next)
    };
    // Devices that nothing leads to have their own checks.
    let names: Vec<&String> = look.choice.listed.iter().collect();
    if let Err(absent) = verbs::devices() {
        return Status::Found(vec![trouble(absent.into())]);
    }
    if names.is_empty() {
        return Status::Skipped("no device has an active port and a way to it".to_owned());
    }
    let memory = match trial_memory(look) {
        Ok(memory) => memory,
        Err(error) => {
            let next = "give --trial a size that this host has, or see to the huge pages".to_owned();
            return Status::Found(vec![trouble(Trouble { found: error.to_string(), next })]);
        }
    };
    let mut found = Vec::new();
    let mut passed = Vec::new();
    for name in names {
        match register(name, &memory) {
            Ok(text) => passed.push(text),
            Err(error) => found.push(trouble(error)),
        }
    }
    if found.is_empty() { Status::Passed(passed.join("; ")) } else { Status::Found(found) }
}

/// Memory of the size that was asked for, of the pages that the environment asks for.
fn trial_memory(look: &Look) -> Result<Vec<Arc<Memory>>, MemoryError> {
    let (policy, _) = MemoryPolicy::from_env(&|name| look.intent.environment.get(name).cloned());
    let source = MemorySource::new(policy);
    let sizes = [Some(PAGE), look.intent.trial];
    sizes.into_iter().flatten().map(|bytes| source.buffer(bytes).map(Arc::new)).collect()
}

/// Registers each of `memory`, and lets go of it again: how that went.
fn register(name: &str, memory: &[Arc<Memory>]) -> Result<String, Trouble> {
    let device = RdmaDevice::open(name)?;
    let domain = ProtectionDomain::new(&device).map_err(VerbsUnavailable::Failed)?;
    let most = device.attributes().max_mr_size;
    for memory in memory {
        // a store does the same with what is larger than a device takes at once
        let mut at = 0;
        while at < memory.len() {
            let len = usize::try_from(most).unwrap_or(usize::MAX).clamp(1, memory.len() - at);
            let Ok(slice) = memory.slice(at, len) else { break };
            let rights = AccessFlags { remote: true, relaxed: true };
            MemoryRegion::register(&domain, &slice, rights).map_err(VerbsUnavailable::Failed)?;
            at += len;
        }
    }
    let largest = memory.iter().map(|memory| memory.len() as u64).max().unwrap_or(0);
    Ok(format!("{name} took {}", ByteSize(largest)))
}
