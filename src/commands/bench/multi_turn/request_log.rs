//! Logs every completed request (`--print-requests`).

use crate::commands::bench::multi_turn::progress::Screen;
use crate::engine::load::TimedRequest;
use crate::engine::load::session::{Observer, PassId};
use crate::engine::load::target::ExchangeOutcome;

/// Observer that logs completed requests.
pub(super) struct RequestLogger {
    screen: Screen,
    is_enabled: bool,
}

impl RequestLogger {
    /// Returns an observer that logs to `screen` if `is_enabled`.
    pub(super) fn new(screen: Screen, is_enabled: bool) -> RequestLogger {
        RequestLogger { screen, is_enabled }
    }
}

impl Observer for RequestLogger {
    fn record(&mut self, pass: &PassId, record: &TimedRequest) {
        if !self.is_enabled {
            return;
        }
        let exchange = &record.exchange;
        let answer = &record.exchange.answer;
        let ms = |from: std::time::Duration, to: std::time::Duration| to.saturating_sub(from).as_secs_f64() * 1e3;
        let ttft =
            exchange.first_token.map_or(String::new(), |first| format!(" ttft_ms={:.1}", ms(exchange.begun, first)));
        let failed = if exchange.outcome == ExchangeOutcome::Ok {
            String::new()
        } else {
            format!(" error={:?}", exchange.outcome.message())
        };
        self.screen.warn(&format!(
            "request pass={} conversation={} turn={} planned_s={:.3} sent_s={:.3} ended_s={:.3} outcome={:?}{ttft} e2e_ms={:.1} prompt_tokens={} \
             completion_tokens={} cached_tokens={}{failed}",
            pass.name,
            record.turn.conversation,
            record.turn.index,
            record.planned.as_secs_f64(),
            exchange.sent().as_secs_f64(),
            exchange.end.as_secs_f64(),
            exchange.outcome.kind(),
            ms(exchange.begun, exchange.end),
            answer.prompt_tokens.unwrap_or(0),
            answer.completion_tokens.unwrap_or(exchange.arrived),
            answer.cached_in_all(),
        ));
    }
}
