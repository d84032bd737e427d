//! The fields that a request is refused for, as the flags of a command that fill them.

use castnet_proto::convert::Violation;

/// Fields and the flags that fill them, these without their dashes.
#[derive(Clone, Debug)]
pub struct Flags(Vec<(String, String)>);

impl Flags {
    /// The flags of `commands` that are not hidden. Their ids are the paths of fields.
    pub fn of(commands: impl IntoIterator<Item = clap::Command>) -> Self {
        let mut flags = Vec::new();
        for command in commands {
            let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
            let pair = |arg: &clap::Arg| Some((arg.get_id().to_string(), arg.get_long()?.to_owned()));
            flags.extend(shown.filter_map(pair));
        }
        Self(flags)
    }

    /// What a status says with these violations, with flags in place of fields.
    pub fn refusal(&self, violations: &[Violation]) -> String {
        let each = violations.iter().map(|v| self.named(&v.field, &v.reason));
        each.collect::<Vec<_>>().join("; ")
    }

    /// `field: reason`, with a flag in place of the field.
    pub fn sentence(&self, text: &str) -> String {
        match text.split_once(": ") {
            Some((field, reason)) => self.named(field, reason),
            None => text.to_owned(),
        }
    }

    fn named(&self, field: &str, reason: &str) -> String {
        let reason = self.in_flags(reason);
        match self.flag(field) {
            Some(flag) => format!("--{flag}: {reason}"),
            None if field.is_empty() => reason,
            None => format!("{field}: {reason}"),
        }
    }

    /// The flag that fills a field, such as `settings.modes[1].switch`, or what the field is in.
    fn flag(&self, field: &str) -> Option<&str> {
        let field = field.strip_prefix("settings.").unwrap_or(field);
        let parts = field.split('[');
        let parts = parts.map(|part| part.split_once(']').map_or(part, |(_, rest)| rest));
        let mut path: String = parts.collect();
        loop {
            if let Some((_, flag)) = self.0.iter().find(|(field, _)| *field == path) {
                return Some(flag);
            }
            let end = path.rfind('.')?;
            path.truncate(end);
        }
    }

    /// A reason with flags in place of fields. What is in quotes is a name or a value.
    fn in_flags(&self, reason: &str) -> String {
        let is_of_word = |c: char| c.is_ascii_alphanumeric() || "_.[]".contains(c);
        let word = |text: &str| {
            let field = text
                .trim_end_matches(|c: char| !is_of_word(c))
                .trim_end_matches('.');
            match self.flag(field) {
                Some(flag) if field.contains('[') => text.replacen(field, &format!("another of --{flag}"), 1),
                Some(flag) if field.contains('_') => text.replacen(field, &format!("--{flag}"), 1),
                _ => text.to_owned(),
            }
        };
        let part = |(i, text): (usize, &str)| match i % 2 {
            0 => text
                .split_inclusive(|c: char| !is_of_word(c))
                .map(word)
                .collect::<String>(),
            _ => text.to_owned(),
        };
        let parts: Vec<String> = reason.split('"').enumerate().map(part).collect();
        parts.join("\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_flags_that_were_written() {
        let args = [
            ("any_source", "any-source"),
            ("lanes", "lanes"),
            ("members", "members"),
            ("members.connection", "connection"),
            ("message_packets", "message-packets"),
            ("modes", "mode-at"),
            ("on_member_stall.after_ms", "member-stall-ms"),
            ("rate_limit", "rate"),
            ("rate_limit.burst_bytes", "burst"),
            ("start_psn", "start-psn"),
            ("window_packets", "window"),
        ];
        let args = args.map(|(id, long)| clap::Arg::new(id).long(long));
        let hidden = clap::Arg::new("tenant").long("tenant").hide(true);
        let positional = clap::Arg::new("name");
        let command = clap::Command::new("create").args(args).args([hidden, positional]);
        let flags = Flags::of([command]);
        for (field, reason, says) in [
            (
                "members[1].host",
                "there is no host \"h9\"",
                "--members: there is no host \"h9\"",
            ),
            (
                "members[2].connection.qpn",
                "0x1 is reserved",
                "--connection: 0x1 is reserved",
            ),
            (
                "settings.window_packets",
                "is small: raise message_packets.",
                "--window: is small: raise --message-packets.",
            ),
            (
                "settings.modes[1].switch",
                "\"l\" is the name of settings.modes[0] too",
                "--mode-at: \"l\" is the name of another of --mode-at too",
            ),
            ("rate_limit.burst_bytes", "is 1", "--burst: is 1"),
            ("rate_limit.bits_per_second", "is 0", "--rate: is 0"),
            (
                "on_member_stall.after_ms",
                "is long",
                "--member-stall-ms: is long",
            ),
            (
                "lanes",
                "is not possible with any_source: why",
                "--lanes: is not possible with --any-source: why",
            ),
            // What no flag is for stays, as names do.
            (
                "name",
                "there is a group \"start_psn\" (active)",
                "name: there is a group \"start_psn\" (active)",
            ),
            (
                "tenant",
                "has no more host_groups",
                "tenant: has no more host_groups",
            ),
            (
                "switches.leaf1",
                "needs 10.5 bytes",
                "switches.leaf1: needs 10.5 bytes",
            ),
            ("", "the controller is stopping", "the controller is stopping"),
        ] {
            let violation = Violation {
                field: field.to_owned(),
                reason: reason.to_owned(),
            };
            assert_eq!(flags.refusal(&[violation]), says);
            if !field.is_empty() {
                assert_eq!(flags.sentence(&format!("{field}: {reason}")), says);
            }
        }
    }
}
