//! The flags of `castnet group create` and `castnet job create`, which refusals name.

use castnet_console::flags::Flags;
use castnet_proto::convert::Violation;

/// Those of both commands.
pub(super) const FLAGS: Flags = Flags {
    alike: &[
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
    ],
    others: &[
        ("members.connection", "connection"),
        ("modes", "mode-at"),
        ("on-member-stall.after-ms", "member-stall-ms"),
        ("rate-limit", "rate"),
        ("rate-limit.burst-bytes", "burst"),
        ("repair.slots", "repair-slots"),
        ("window-packets", "window"),
    ],
};

/// Whether it is the fabric that a request is refused for: where its hosts are, or what switches have.
pub(super) fn are_of_fabric(violations: &[Violation]) -> bool {
    let parts = ["members", "ranks[", "modes", "topology"];
    let is_of_fabric = |v: &Violation| parts.iter().any(|part| v.field.starts_with(part));
    violations.iter().any(is_of_fabric)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn each_flag_is_one_of_a_command() {
        let cli = crate::cli::Cli::command();
        let has = |noun: &str, flag: &str| {
            let noun = cli.find_subcommand(noun).expect("a command");
            let create = noun.find_subcommand("create").expect("a command");
            create.get_arguments().any(|arg| arg.get_long() == Some(flag))
        };
        let others = FLAGS.others.iter().map(|(_, flag)| *flag);
        for flag in FLAGS.alike.iter().copied().chain(others) {
            assert!(has("group", flag) || has("job", flag), "--{flag}");
        }
    }
}
