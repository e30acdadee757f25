//! Describes what a command line would send, for tests that compare two command lines.

use std::fmt::Write;

use crate::commands::bench::env;
use crate::commands::bench::multi_turn::Args;
use crate::commands::cli::error::Failure;
use crate::commands::cli::runtime;
use crate::engine::load::session::SessionStep;
use crate::engine::load::{ModelAnswer, Pace, Turn};

/// Number of conversations to describe.
const CONVERSATIONS: u32 = 12;
/// Number of send times to describe.
const INSTANTS: usize = 5;

impl Args {
    /// Returns the targets, bodies, send times and phases as text. Sends nothing.
    ///
    /// # Errors
    /// The command line is invalid.
    pub(in crate::commands::bench) fn dry_run(mut self) -> Result<String, Failure> {
        self.resolve_flags()?;
        self.validate(false)?;
        let mut measurement = self.measurement()?;
        let side = &mut measurement.sides[0];
        let mut text = format!("{} wait {:?}\n", side.target.url(), self.endpoint.ready_check_timeout_sec);
        let header = |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = side.target.headers.iter();
        headers.for_each(|(name, value)| {
            writeln!(text, "{name}: {}", header(value)).expect("writing to a string cannot fail")
        });
        let timeout = side.server.as_ref().and_then(|server| server.flush_timeout());
        let scripts = side.workload.scripts();
        writeln!(text, "flush within {timeout:?}; {scripts:?}").expect("writing to a string cannot fail");
        for (conversation, script) in (0..CONVERSATIONS).zip(&scripts) {
            for index in 0..script.turns {
                let turn = Turn { conversation, index };
                let encoded = side.target.encode(&side.workload.request(turn));
                let body = String::from_utf8_lossy(&encoded.body).into_owned();
                // The key contains a run ID that is different in every run.
                let key = encoded.routing_key.as_ref().map(|_| "with a routing key");
                writeln!(text, "{body} {key:?}").expect("writing to a string cannot fail");
                side.workload.on_response(
                    turn,
                    &ModelAnswer { text: " x".to_owned(), output_ids: vec![1], ..ModelAnswer::default() },
                );
            }
        }
        let planned = runtime::block_on(0, async { Ok(measurement.plan(&env()).await) })?;
        let schedule = planned.expect("a single run has no invalid plan").session.schedule;
        let pass = schedule.iter().find_map(|(_, step)| match step {
            SessionStep::Pass(plan) => Some(plan.clone()),
            SessionStep::Control(_) => None,
        });
        let plan = pass.expect("a measured pass");
        let rules = plan.rules;
        let pace = match plan.pace.clone() {
            Pace::Requests(instants) => format!("{:?}", instants.take(INSTANTS).collect::<Vec<_>>()),
            other => format!("{other:?}"),
        };
        writeln!(text, "{rules:?} {pace}").expect("writing to a string cannot fail");
        for (_, step) in schedule {
            match step {
                SessionStep::Pass(plan) => writeln!(text, "pass {}", plan.name),
                SessionStep::Control(control) => writeln!(text, "{control:?}"),
            }
            .expect("writing to a string cannot fail");
        }
        Ok(text)
    }
}
