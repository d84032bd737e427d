//! The flags of `castnet group create` and `castnet job create`, which refusals name.

use castnet_console::flags::Flags;
use castnet_proto::convert::Violation;
use clap::{Args, Command};

use super::create::Create;
use crate::job::CreateJob;

/// Those of both commands.
pub(super) fn flags() -> Flags {
    Flags::of([
        Create::augment_args(Command::new("group")),
        CreateJob::augment_args(Command::new("job")),
    ])
}

/// Whether it is the fabric that a request is refused for: where its hosts are, or what switches have.
pub(super) fn are_of_fabric(violations: &[Violation]) -> bool {
    let parts = ["members", "ranks[", "modes", "topology"];
    let is_of_fabric = |v: &Violation| parts.iter().any(|part| v.field.starts_with(part));
    violations.iter().any(is_of_fabric)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_other_names_than_their_flags_are_named_by_these() {
        for (field, named) in [
            ("members[1].connection.qpn", "--connection"),
            ("on_member_stall.after_ms", "--member-stall-ms"),
            ("on_member_stall.then", "--on-member-stall"),
            ("rate_limit.bits_per_second", "--rate"),
            ("rate_limit.burst_bytes", "--burst"),
            ("repair.slots", "--repair-slots"),
            ("settings.modes[1].switch", "--mode-at"),
            ("settings.rate_limit.burst_bytes", "--burst"),
            ("settings.window_packets", "--window"),
            ("settings.ack_timeout_us", "--ack-timeout-us"),
            ("name", "name"),
            ("rules", "rules"),
        ] {
            let sentence = flags().sentence(&format!("{field}: is wrong"));
            assert_eq!(sentence, format!("{named}: is wrong"));
        }
    }
}
