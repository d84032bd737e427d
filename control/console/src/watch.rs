//! `--watch`: a report at an interval.

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use tokio::time::MissedTickBehavior;

use crate::exit::Outcome;
use crate::output::{Output, Report, clear, write_stdout};
use crate::units::Span;

const EVERY_MIN: Duration = Duration::from_millis(10);

/// Interval and number of reports.
#[derive(Clone, Debug, Args)]
pub struct WatchArgs {
    /// Asks again and again, until Ctrl-C; the time between is 1s unless given, and at least 10ms
    #[arg(short, long, value_name = "EVERY", num_args = 0..=1, default_missing_value = "1s", value_parser = every)]
    watch: Option<Span>,
    /// With --watch: ends after so many times
    #[arg(long, value_name = "N", requires = "watch")]
    count: Option<u64>,
}

fn every(text: &str) -> Result<Span, String> {
    let every: Span = text.parse()?;
    match every.0 >= EVERY_MIN {
        true => Ok(every),
        false => Err(format!("{every} is too short: at least {}", Span(EVERY_MIN))),
    }
}

impl WatchArgs {
    /// `None` for a single report.
    pub fn every(&self) -> Option<Duration> {
        self.watch.map(|every| every.0)
    }

    /// Shows the report of `look` once or at the interval. In JSON, repeated reports are one object a line.
    pub async fn show<R: Report>(
        &self,
        output: Output,
        mut look: impl AsyncFnMut() -> Outcome<R>,
    ) -> Outcome {
        let Some(every) = self.every() else {
            return output.show(&look().await?);
        };
        let clears = !output.is_json() && std::io::stdout().is_terminal();
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut shown = 0;
        while self.count.is_none_or(|most| shown < most) {
            ticks.tick().await;
            let report = look().await?;
            if !output.is_json() {
                match (clears, shown) {
                    (true, _) => clear()?,
                    (false, 0) => {}
                    (false, _) => write_stdout("\n")?,
                }
            }
            output.show_next(&report)?;
            shown += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `--watch 0` asked all switches a hundred times a second.
    #[test]
    fn reports_are_ten_milliseconds_apart_at_least() {
        assert_eq!(every("10ms").map(|every| every.0), Ok(EVERY_MIN));
        for short in ["0", "9ms", "0.0099"] {
            assert!(every(short).is_err_and(|why| why.contains("10")), "{short}");
        }
    }
}
