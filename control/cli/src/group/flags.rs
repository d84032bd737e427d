//! The fields that a request is refused for, as the flags of `castnet group create` and `castnet job create` that fill them.

use castnet_proto::convert::Violation;

/// Flags that are called like their fields.
const ALIKE: [&str; 21] = [
    "ack-timeout-us",
    "any-source",
    "description",
    "distribution",
    "lanes",
    "loss-policy",
    "mcst-id",
    "members",
    "message-packets",
    "mode",
    "on-member-loss",
    "on-member-stall",
    "pmtu",
    "ranks",
    "repair",
    "reproducible",
    "source",
    "stall-timeout-ms",
    "start-psn",
    "straggler-policy",
    "va-base",
];

/// Fields and their flags, where these are called otherwise.
const OTHERS: [(&str, &str); 7] = [
    ("members.connection", "connection"),
    ("modes", "mode-at"),
    ("on_member_stall.after_ms", "member-stall-ms"),
    ("rate_limit", "rate"),
    ("rate_limit.burst_bytes", "burst"),
    ("repair.slots", "repair-slots"),
    ("window_packets", "window"),
];

/// What a status says with these violations, with flags in place of fields.
pub(super) fn refusal(violations: &[Violation]) -> String {
    let each = violations.iter().map(|v| named(&v.field, &v.reason));
    each.collect::<Vec<_>>().join("; ")
}

/// `field: reason`, with a flag in place of the field.
pub(super) fn sentence(text: &str) -> String {
    match text.split_once(": ") {
        Some((field, reason)) => named(field, reason),
        None => text.to_owned(),
    }
}

/// Whether it is the fabric that a request is refused for: where its hosts are, or what switches have.
pub(super) fn are_of_fabric(violations: &[Violation]) -> bool {
    let parts = ["members", "ranks[", "modes", "switches.", "topology"];
    let is_of_fabric = |v: &Violation| parts.iter().any(|part| v.field.starts_with(part));
    violations.iter().any(is_of_fabric)
}

fn named(field: &str, reason: &str) -> String {
    let reason = in_flags(reason);
    match flag(field) {
        Some(flag) => format!("--{flag}: {reason}"),
        None if field.is_empty() => reason,
        None => format!("{field}: {reason}"),
    }
}

/// The flag that fills a field, such as `settings.modes[1].switch`, or what the field is in.
fn flag(field: &str) -> Option<&'static str> {
    let field = field.strip_prefix("settings.").unwrap_or(field);
    let without_index = |part: &str| part.split_once(']').map_or(part, |(_, rest)| rest).to_owned();
    let mut path: String = field.split('[').map(without_index).collect();
    loop {
        let other = OTHERS.iter().find(|(field, _)| *field == path);
        let alike = ALIKE.iter().find(|flag| flag.replace('-', "_") == path);
        if let Some(flag) = other.map(|(_, flag)| *flag).or(alike.copied()) {
            return Some(flag);
        }
        let end = path.rfind('.')?;
        path.truncate(end);
    }
}

/// A reason with flags in place of fields. What is in quotes is a name or a value.
fn in_flags(reason: &str) -> String {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || "_.[]".contains(c);
    let word = |text: &str| {
        let field = text
            .trim_end_matches(|c: char| !is_of_word(c))
            .trim_end_matches('.');
        match flag(field) {
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn each_flag_is_one_of_a_command() {
        let cli = crate::cli::Cli::command();
        let long = |noun: &str, flag: &str| {
            let create = cli
                .find_subcommand(noun)
                .and_then(|noun| noun.find_subcommand("create"));
            create.is_some_and(|create| create.get_arguments().any(|arg| arg.get_long() == Some(flag)))
        };
        let others = OTHERS.iter().map(|(_, flag)| flag);
        for flag in ALIKE.iter().chain(others) {
            assert!(long("group", flag) || long("job", flag), "--{flag}");
        }
    }

    #[test]
    fn a_refusal_names_the_flags_that_were_written() {
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
                "repair.slots",
                "3 is no power of two",
                "--repair-slots: 3 is no power of two",
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
            assert_eq!(refusal(&[violation]), says);
            if !field.is_empty() {
                assert_eq!(sentence(&format!("{field}: {reason}")), says);
            }
        }
    }
}
