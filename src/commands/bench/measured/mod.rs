//! What was measured: the servers with their model, version, hardware, settings and cache sizes,
//! and the host of the load generator. Part of every benchmark report as text, HTML (both from
//! [`MeasuredSystem::section`]) and JSON.
//!
//! [`MeasuredSystem::query`] queries the servers before the run. It must not be called while
//! requests are measured.

mod client;
mod server;

use serde::Serialize;

use crate::commands::bench::env;
use crate::commands::bench::multi_turn::Identity;
use crate::commands::cli::error::Failure;
use crate::commands::cli::runtime;
use crate::commands::cli::table::{ReportSection, ReportTable};
use crate::engine::load::LoadCaveat;
use crate::engine::load::server::{ServerClient, ServerDescription};

pub(in crate::commands::bench) use client::ClientHost;
pub(in crate::commands::bench) use server::MeasuredServer;

/// Title of the section.
pub(in crate::commands::bench) const TITLE: &str = "What was measured";

/// An endpoint to describe.
pub(in crate::commands::bench) struct QueriedServer<'a> {
    /// Name in the report, such as `A`.
    pub label: &'a str,
    /// URL, without a user name and password, or the path to a recorded run.
    pub target: String,
    /// Client for the server's management routes; `None` if they must not be used.
    pub client: Option<&'a ServerClient>,
}

/// The servers and the load generator of a run.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct MeasuredSystem {
    /// The servers, in order of their labels.
    pub servers: Vec<MeasuredServer>,
    /// The host of the load generator.
    pub client: ClientHost,
}

impl MeasuredSystem {
    /// Queries each server for its description. Servers that share a label are described once. A
    /// server that does not respond is described only by its label and target.
    ///
    /// # Errors
    /// The runtime cannot be started.
    pub(super) fn query(queried: &[QueriedServer<'_>]) -> Result<MeasuredSystem, Failure> {
        let servers = runtime::block_on(0, async {
            let mut servers: Vec<MeasuredServer> = Vec::new();
            for one in queried {
                if servers.iter().any(|known| known.label == one.label) {
                    continue;
                }
                let description = match one.client {
                    Some(client) => client.describe(&env()).await,
                    None => ServerDescription::default(),
                };
                let label = one.label.to_owned();
                let target = one.target.clone();
                servers.push(MeasuredServer { label, target, queried: one.client.is_some(), description });
            }
            Ok(servers)
        })?;
        Ok(MeasuredSystem { servers, client: ClientHost::of_this_host() })
    }

    /// Returns a system of servers that are already described.
    pub(super) fn of(servers: Vec<MeasuredServer>) -> MeasuredSystem {
        MeasuredSystem { servers, client: ClientHost::of_this_host() }
    }

    /// Returns caveats about what the first server has in common with no other: a model or a page
    /// size of its own is a difference that the verdict does not mention.
    pub(super) fn differences(&self) -> impl Iterator<Item = LoadCaveat> + '_ {
        let of = |what: &'static str, value: fn(&ServerDescription) -> Option<String>| {
            let mut known = self.servers.iter().filter_map(|server| Some((&server.label, value(&server.description)?)));
            let (first, of_first) = known.next()?;
            let (other, of_other) = known.find(|(_, of_other)| *of_other != of_first)?;
            Some(LoadCaveat::ServersDiffer {
                what,
                names: [first.clone(), other.clone()],
                values: [of_first, of_other],
            })
        };
        let page_size = |found: &ServerDescription| found.page_size.map(|tokens| format!("{tokens} tokens"));
        [of("model", |found| found.model.clone()), of("page size", page_size)].into_iter().flatten()
    }

    /// Returns the names of the models, without duplicates.
    pub(super) fn models(&self) -> Vec<&str> {
        let mut models: Vec<&str> = Vec::new();
        for model in self.servers.iter().filter_map(|server| server.description.model.as_deref()) {
            if !models.contains(&model) {
                models.push(model);
            }
        }
        models
    }

    /// Returns the report section. `run` identifies the run.
    pub(super) fn section(&self, run: &Identity) -> ReportSection {
        let mut section = ReportSection::new(TITLE);
        let mut head = vec![""];
        head.extend(self.servers.iter().map(|server| server.label.as_str()));
        let mut table = ReportTable::new(TITLE, &head);
        for column in 1..head.len() {
            table = table.text_column(column);
        }
        for (name, value) in server::ROWS {
            let values: Vec<String> = self.servers.iter().map(value).collect();
            if values.iter().any(|value| !value.is_empty() && value != server::NOT_KNOWN) {
                let values = values.into_iter().map(|value| if value.is_empty() { "-".to_owned() } else { value });
                table.row(std::iter::once(name.to_owned()).chain(values));
            }
        }
        for server in self.servers.iter().filter(|server| !server.queried) {
            let label = &server.label;
            table
                .notes
                .push(format!("{label}: settings are not known, because the server's management routes were not used"));
        }
        section.tables.push(table);
        section.tables.push(self.run_table(run));
        section
    }

    fn run_table(&self, run: &Identity) -> ReportTable {
        let mut table = ReportTable::new("", &["run", ""]).text_column(1);
        table.row(["load generator", &self.client.text(run.processors)]);
        table.row(["mcctl", &format!("{}, started {}, seed {}", run.version, run.started, run.seed)]);
        table.row(["command", &run.line()]);
        table
    }
}
