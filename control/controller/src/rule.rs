//! A switch's part of a group, whatever the group's kind.

use castnet_rules::GroupRule;

/// The rule for a switch that gets it while data flows: the planned PSN of a multicast group's source is long past.
pub(crate) fn learning(rule: GroupRule) -> GroupRule {
    rule.with_multicast(|rule| rule.start_psn = None)
}
