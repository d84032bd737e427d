//! Who may call what at a switch. Hosts may call nothing.

use castnet_proto::access::{Caller, Denied, Right, Role};
use castnet_proto::v1::ControllerTerm;

/// Refuses a term from who may not change groups: it deposes other controllers. A controller must say which one it is if the call `changes`
/// groups.
pub(crate) fn check_term(who: &Caller, term: Option<&ControllerTerm>, changes: bool) -> Result<(), Denied> {
    if term.is_some() && !Right::Program.roles().contains(&who.role) {
        let rule = "that is for controllers (roles.controllers of the switch) and operators";
        return Err(who.denied("speak for a controller", rule));
    }
    if term.is_none() && changes && who.role == Role::Controller {
        let rule = "a controller names its term (castnet-term-bin) in each call";
        return Err(who.denied("change groups without a term", rule));
    }
    Ok(())
}

/// The right that a method needs. The test below fails if one is missing.
pub(crate) fn right(method: &str) -> Option<Right> {
    Some(match method {
        "InstallGroup" | "InstallGroups" | "RemoveGroup" | "MoveGroup" | "SetMulticastRoutes"
        | "SetSourceGuard" | "RemoveRoute" => Right::Program,
        "SetRoutes" | "AddRoute" => Right::Operate,
        // They show what is in the frames of others.
        "Trace" | "Capture" => Right::Operate,
        "GetCapabilities" | "ListGroups" | "ListRoutes" | "ListPorts" | "ListNeighbours" | "GetCounters"
        | "GetDrops" | "ListFdb" | "WatchEvents" | "GetRuntimeStats" => Right::Read,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_method_needs_a_right_and_the_document_says_who_has_it() {
        let document = include_str!("../../../../docs/security.md");
        let proto = include_str!("../../../../proto/castnet/v1/agent.proto");
        let faults = castnet_proto::access::document_faults(document, "Calls to a switch", proto, right);
        assert_eq!(faults, [""; 0]);
        assert_eq!(right("Reboot"), None);
    }
}
