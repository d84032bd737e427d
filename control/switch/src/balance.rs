//! Automatic moves of groups between workers: `--balance`, and `[balance]` in files.

use std::str::FromStr;
use std::time::Duration;

use castnet_console::units::{Ratio, Span};
use castnet_toml_reader::Value;
use castnet_worker::Balance;

/// A shorter interval does not measure load.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Configuration of automatic moves. Fields that are `None` have their defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BalanceRule {
    enabled: Option<bool>,
    interval: Option<Duration>,
    threshold: Option<f64>,
}

impl FromStr for BalanceRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self {
                enabled: Some(false),
                ..Self::default()
            });
        }
        let span: Span = text
            .parse()
            .map_err(|_| format!("'{text}' is neither off nor a time such as 1s"))?;
        Ok(Self {
            enabled: Some(true),
            interval: Some(interval(span)?),
            threshold: None,
        })
    }
}

fn interval(Span(span): Span) -> Result<Duration, String> {
    if span < INTERVAL_MIN {
        return Err(format!("{} is too often: at least 10ms", Span(span)));
    }
    Ok(span)
}

fn threshold(Ratio(share): Ratio) -> Result<f64, String> {
    if share <= 0.0 {
        return Err("a worker would always be overloaded: above 0, up to 1".to_owned());
    }
    Ok(share)
}

impl BalanceRule {
    /// The set fields of `self`, the others from `other`.
    pub fn or(self, other: Self) -> Self {
        Self {
            enabled: self.enabled.or(other.enabled),
            interval: self.interval.or(other.interval),
            threshold: self.threshold.or(other.threshold),
        }
    }

    pub(crate) fn read(value: Value<'_>) -> Option<Self> {
        let t = value.table("a table: [balance]")?;
        Some(Self {
            enabled: t.get("enabled", Value::flag),
            interval: t.get("interval", |v| v.accept(interval(v.number_or_text()?))),
            threshold: t.get("threshold", |v| v.accept(threshold(v.number_or_text()?))),
        })
    }

    /// As the type of the dataplane; `None` if moves are off.
    pub fn balance(self) -> Option<Balance> {
        let default = Balance::default();
        self.enabled.unwrap_or(true).then(|| Balance {
            interval: self.interval.unwrap_or(default.interval),
            threshold: self.threshold.unwrap_or(default.threshold),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_on_off_or_every_so_often() {
        let rule = |text: &str| text.parse::<BalanceRule>();
        assert_eq!(BalanceRule::default().balance(), Some(Balance::default()));
        assert_eq!(rule("off").unwrap().balance(), None);
        let every = |text: &str| rule(text).unwrap().balance().unwrap().interval;
        assert_eq!(every("500ms"), Duration::from_millis(500));
        assert_eq!(every("2"), Duration::from_secs(2));
        for bad in ["", "on", "1ms", "0"] {
            assert!(rule(bad).is_err(), "{bad}");
        }
        let file = BalanceRule {
            enabled: Some(false),
            threshold: Some(0.5),
            ..BalanceRule::default()
        };
        let both = rule("1s").unwrap().or(file).balance().unwrap();
        assert_eq!((both.interval, both.threshold), (Duration::from_secs(1), 0.5));
    }
}
