//! The only check that opens devices: it registers test memory the same way a store does.

use std::sync::Arc;

use crate::find;
use crate::host::HostFacts;
use mcctl_base::ByteSize;
use mcctl_base::check::{Check, CheckStatus, Severity};
use mcctl_sys::verbs::{self, AccessFlags, MemoryRegion, ProtectionDomain, RdmaDevice, VerbsUnavailable};
use mcctl_sys::{Memory, MemoryError, MemoryPolicy, MemorySource};

/// Bytes that are always registered: one page.
const PAGE: u64 = 4096;

/// Why a test registration failed, and how to fix it.
struct RegistrationError {
    found: String,
    next: String,
}

impl From<VerbsUnavailable> for RegistrationError {
    fn from(absent: VerbsUnavailable) -> RegistrationError {
        RegistrationError { found: absent.to_string(), next: absent.remedy() }
    }
}

pub(super) fn registration(facts: &HostFacts, check: &Check) -> CheckStatus {
    if !facts.tree.is_this_host() {
        return CheckStatus::Skipped("devices of another host cannot be opened".to_owned());
    }
    if facts.host.devices.is_empty() {
        return CheckStatus::Skipped("no RDMA device on this host".to_owned());
    }
    let severity = facts.intent.over_rdma(Severity::Error);
    let registration_finding = |registration_finding: RegistrationError| {
        let finding = "memory cannot be registered with the RDMA devices: no store can use them";
        find(check, severity, finding, registration_finding.found, registration_finding.next)
    };
    // Unreachable devices have their own checks.
    let names: Vec<&String> = facts.choice.listed.iter().collect();
    if let Err(absent) = verbs::devices() {
        return CheckStatus::Found(vec![registration_finding(absent.into())]);
    }
    if names.is_empty() {
        return CheckStatus::Skipped("no accessible device has an active port".to_owned());
    }
    let memory = match test_memory(facts) {
        Ok(memory) => memory,
        Err(error) => {
            let next = "use a smaller --mr-test-size, or check the huge pages".to_owned();
            return CheckStatus::Found(vec![registration_finding(RegistrationError {
                found: error.to_string(),
                next,
            })]);
        }
    };
    let mut found = Vec::new();
    let mut passed = Vec::new();
    for name in names {
        match register(name, &memory) {
            Ok(text) => passed.push(text),
            Err(error) => found.push(registration_finding(error)),
        }
    }
    if found.is_empty() { CheckStatus::Passed(passed.join("; ")) } else { CheckStatus::Found(found) }
}

/// Memory of the requested size, from the type of pages that the environment selects.
fn test_memory(facts: &HostFacts) -> Result<Vec<Arc<Memory>>, MemoryError> {
    let (policy, _) = MemoryPolicy::from_env(&|name| facts.intent.environment.get(name).cloned());
    let source = MemorySource::new(policy);
    let sizes = [Some(PAGE), facts.intent.mr_test_size];
    sizes.into_iter().flatten().map(|bytes| source.buffer(bytes).map(Arc::new)).collect()
}

/// Registers each block in `memory` with the device `name`, and deregisters it again.
fn register(name: &str, memory: &[Arc<Memory>]) -> Result<String, RegistrationError> {
    let device = RdmaDevice::open(name)?;
    let domain = ProtectionDomain::new(&device).map_err(VerbsUnavailable::Failed)?;
    let most = device.attributes().max_mr_size;
    for memory in memory {
        // A store splits regions larger than the device's maximum in the same way.
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
    Ok(format!("{name} registered {}", ByteSize(largest)))
}
