//! A deployment as the rules see it.

use crate::lint::model::{Implementation, ParsedDeployment, Process, ProcessRole};
use crate::lint::settings::{ProcessView, SettingReader};

/// A deployment with parsed flags and effective settings.
pub(super) struct DeploymentView<'s> {
    pub deployment: &'s ParsedDeployment,
    /// One per process of `deployment`, in the same order.
    pub member: Vec<ProcessView<'s>>,
}

impl<'s> DeploymentView<'s> {
    /// Parses flags and settings of all processes.
    pub(super) fn new(deployment: &'s ParsedDeployment) -> DeploymentView<'s> {
        let member = deployment.processes.iter().map(|process| ProcessView::new(deployment, process)).collect();
        DeploymentView { deployment, member }
    }

    /// All masters, of both implementations.
    pub(super) fn masters(&self) -> impl Iterator<Item = &ProcessView<'s>> {
        self.member.iter().filter(|member| member.process.role == ProcessRole::Master)
    }

    /// Upstream masters. mcctl's masters have other rules for HA and snapshots, and reject flags
    /// for SSD, which `unsupported` reports.
    pub(super) fn upstream_masters(&self) -> impl Iterator<Item = &ProcessView<'s>> {
        self.masters().filter(|member| member.process.implementation == Implementation::Upstream)
    }

    /// The Mooncake release of a process, from the command line or its image tag.
    pub(super) fn release(&self, member: &ProcessView<'_>) -> Option<String> {
        self.deployment.release_of(member.process)
    }

    /// Clients that use the store, or may use it.
    pub(super) fn clients(&self) -> impl Iterator<Item = &ProcessView<'s>> {
        self.member.iter().filter(|member| member.process.role.is_client() && member.uses_mooncake() != Some(false))
    }

    /// Everything that sets a store client: its programs, connectors of engines, settings files,
    /// and variables without a program. A rule about a value applies to all of them.
    pub(super) fn readers(&self) -> impl Iterator<Item = (&ProcessView<'s>, SettingReader)> {
        let all = self.member.iter().filter_map(|member| Some((member, member.reader()?)));
        all.filter(|(member, reader)| *reader == SettingReader::Variables || member.uses_mooncake() != Some(false))
    }

    /// Clients, and connectors of engines.
    pub(super) fn store_users(&self) -> impl Iterator<Item = &ProcessView<'s>> {
        self.readers().filter(|(_, reader)| *reader != SettingReader::Variables).map(|(member, _)| member)
    }

    /// SGLang servers in any mode.
    pub(super) fn sglang(&self) -> impl Iterator<Item = &ProcessView<'s>> {
        self.member.iter().filter(|member| member.process.role.is_sglang())
    }

    /// Other processes in the network namespace of `process`.
    pub(super) fn same_network(&self, process: &Process) -> impl Iterator<Item = &ProcessView<'s>> {
        self.member
            .iter()
            .filter(|member| member.process.network == process.network && !std::ptr::eq(member.process, process))
    }
}
