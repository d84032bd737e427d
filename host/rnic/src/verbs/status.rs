//! Conversion of the device's statuses and events.

use std::ffi::c_uint;

use castnet_endpoint::Status;

use super::sys;

/// Converts IBV_WC_*. A status without an equivalent keeps its number and the library's text.
pub(super) fn status(wc: c_uint, text: impl FnOnce(c_uint) -> Option<&'static str>) -> Status {
    match wc {
        sys::WC_SUCCESS => Status::Success,
        sys::WC_LOC_LEN_ERR => Status::LocalLengthError,
        sys::WC_LOC_PROT_ERR => Status::LocalProtectionError,
        sys::WC_WR_FLUSH_ERR => Status::Flushed,
        sys::WC_REM_INV_REQ_ERR => Status::RemoteInvalidRequest,
        sys::WC_REM_ACCESS_ERR => Status::RemoteAccessError,
        sys::WC_REM_OP_ERR | sys::WC_REM_ABORT_ERR => Status::RemoteOperationalError,
        sys::WC_RETRY_EXC_ERR | sys::WC_RESP_TIMEOUT_ERR => Status::RetryExceeded,
        sys::WC_RNR_RETRY_EXC_ERR => Status::RnrRetryExceeded,
        // IBV_WC_LOC_QP_OP_ERR, _LOC_ACCESS_ERR, _BAD_RESP_ERR, _FATAL_ERR, _GENERAL_ERR and rarer ones.
        code => Status::Device {
            code,
            text: text(code),
        },
    }
}

/// The header's name of a status, for logs. Several names map to one [`Status`].
pub(super) fn wc_name(wc: c_uint) -> String {
    name_of("IBV_WC_", wc, |name| {
        name.ends_with("_ERR") || name == "IBV_WC_SUCCESS"
    })
}

pub(super) fn event_name(event: c_uint) -> String {
    name_of("IBV_EVENT_", event, |_| true)
}

pub(super) fn port_state_name(state: c_uint) -> String {
    name_of("IBV_PORT_", state, |_| true)
}

fn name_of(prefix: &str, value: c_uint, wanted: impl Fn(&str) -> bool) -> String {
    sys::NUMBERS
        .iter()
        .find(|(name, number)| name.starts_with(prefix) && *number == u64::from(value) && wanted(name))
        .map_or_else(|| format!("{prefix}{value}"), |(name, _)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::library::Api;
    use super::*;
    use crate::error::status_text;

    #[test]
    fn every_status_has_its_verbs_number() {
        let pairs = [
            (0, Status::Success),
            (1, Status::LocalLengthError),
            (4, Status::LocalProtectionError),
            (5, Status::Flushed),
            (9, Status::RemoteInvalidRequest),
            (10, Status::RemoteAccessError),
            (11, Status::RemoteOperationalError),
            (12, Status::RetryExceeded),
            (13, Status::RnrRetryExceeded),
        ];
        for (wc, expected) in pairs {
            assert_eq!(status(wc, |_| None), expected, "{}", wc_name(wc));
        }
    }

    #[test]
    fn no_other_number_is_a_success() {
        for wc in (1..64).chain([u32::MAX]) {
            assert_ne!(status(wc, |_| None), Status::Success, "{wc}");
        }
    }

    #[test]
    fn other_statuses_keep_number_and_text() {
        let fatal = status(sys::WC_FATAL_ERR, |code| (code == 19).then_some("fatal error"));
        let expected = Status::Device {
            code: 19,
            text: Some("fatal error"),
        };
        assert_eq!(fatal, expected);
        assert_eq!(status_text(fatal), "fatal error (status 19 of the device)");
        let unknown = status(77, |_| None);
        assert_eq!(unknown, Status::Device { code: 77, text: None });
        assert_eq!(
            status_text(unknown),
            "unknown to the device's library (status 77 of the device)"
        );
    }

    /// Uses the installed library, if there is one.
    #[test]
    fn the_library_describes_its_statuses() {
        let Ok(api) = Api::load("libibverbs.so.1") else {
            castnet_wrap_up::skip(
                "status texts of libibverbs",
                "libibverbs.so.1 is not installed (apt install libibverbs1)",
            );
            return;
        };
        let status = status(sys::WC_LOC_QP_OP_ERR, |code| api.status_text(code));
        let Status::Device {
            code: 2,
            text: Some(text),
        } = status
        else {
            panic!("{status:?}");
        };
        assert!(text.contains("operation error"), "{text}");
    }

    #[test]
    fn names_are_those_of_the_header_and_unknown_numbers_are_shown() {
        assert_eq!(wc_name(12), "IBV_WC_RETRY_EXC_ERR");
        assert_eq!(wc_name(2), "IBV_WC_LOC_QP_OP_ERR");
        assert_eq!(wc_name(0), "IBV_WC_SUCCESS");
        assert_eq!(wc_name(77), "IBV_WC_77");
        assert_eq!(event_name(1), "IBV_EVENT_QP_FATAL");
        assert_eq!(port_state_name(1), "IBV_PORT_DOWN");
    }
}
