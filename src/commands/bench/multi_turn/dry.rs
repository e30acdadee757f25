//! What a command line would send, as text: for tests that compare two command lines.

use std::fmt::Write;

use crate::commands::bench::multi_turn::Args;
use crate::commands::error::Failure;
use crate::engine::load::session::Step;
use crate::engine::load::{Answer, Pace, Turn};

/// Conversations that are written out.
const CONVERSATIONS: u32 = 12;
/// Planned instants that are.
const INSTANTS: usize = 5;

impl Args {
    /// Where requests go, their bodies, when they are sent, and what is done before and after them. Nothing is sent.
    ///
    /// # Errors
    /// The command line is wrong.
    pub(in crate::commands::bench) fn dry(mut self) -> Result<String, Failure> {
        self.settle()?;
        self.look_over(false)?;
        let (mut side, recorded) = self.side("A", None, self.seed())?;
        let mut text = format!("{} wait {:?}\n", side.target.url(), self.endpoint.ready_check_timeout_sec);
        let header = |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = side.target.headers.iter();
        headers.for_each(|(name, value)| writeln!(text, "{name}: {}", header(value)).expect("memory takes all"));
        let timeout = side.server.as_ref().and_then(|server| server.flush_timeout());
        let scripts = side.workload.scripts();
        writeln!(text, "flush within {timeout:?}; {scripts:?}").expect("memory takes all");
        for (conversation, script) in (0..CONVERSATIONS).zip(&scripts) {
            for index in 0..script.turns {
                let turn = Turn { conversation, index };
                let asking = side.target.asking(&side.workload.ask(turn));
                let body = String::from_utf8_lossy(&asking.body).into_owned();
                // A key names the run, which is another one each time.
                let key = asking.routing_key.as_ref().map(|_| "with a routing key");
                writeln!(text, "{body} {key:?}").expect("memory takes all");
                side.workload.heard(turn, &Answer { text: " x".to_owned(), output_ids: vec![1], ..Answer::default() });
            }
        }
        let mut plan = self.plan("run", 0, 0..scripts.len() as u32, &self.load);
        if recorded {
            plan.pace = Pace::Recorded;
        }
        let rules = plan.rules;
        let pace = match plan.pace.clone() {
            Pace::Requests(instants) => format!("{:?}", instants.take(INSTANTS).collect::<Vec<_>>()),
            other => format!("{other:?}"),
        };
        writeln!(text, "{rules:?} {pace}").expect("memory takes all");
        for (_, step) in self.profiled(self.phases.schedule(0, plan)?) {
            match step {
                Step::Pass(plan) => writeln!(text, "pass {}", plan.name),
                Step::Control(control) => writeln!(text, "{control:?}"),
            }
            .expect("memory takes all");
        }
        Ok(text)
    }
}
