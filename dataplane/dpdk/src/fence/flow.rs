//! Flow rules of a device, which direct frames by destination address to a receive queue.

use std::ffi::c_char;
use std::net::Ipv4Addr;
use std::ptr::NonNull;

use castnet_dpdk_sys as sys;

use super::device::Device;
use super::eal;
use crate::flow::{Form, RuleDriver};

/// Closing the device removes the rule.
#[derive(Debug)]
pub(crate) struct Rule(NonNull<sys::rte_flow>);

// SAFETY: DPDK's flow functions lock the device if its driver does not (`RTE_ETH_DEV_FLOW_OPS_THREAD_SAFE`),
// so any thread may call them. This side reads nothing through the pointer.
unsafe impl Send for Rule {}

const MESSAGE_MAX: usize = 160;

impl RuleDriver for Device {
    type Rule = Rule;

    fn create(&self, address: Ipv4Addr, queue: usize, form: Form) -> Result<Rule, String> {
        let mut why = [0; MESSAGE_MAX];
        let narrow = (form == Form::Narrow).into();
        let port = self.probed.port;
        // SAFETY: the device exists and runs. DPDK writes at most the length of `why`, zero-terminated.
        let rule = unsafe {
            sys::cn_flow_create(
                port,
                address.to_bits(),
                queue as u16,
                narrow,
                why.as_mut_ptr(),
                MESSAGE_MAX,
            )
        };
        NonNull::new(rule).map(Rule).ok_or_else(|| {
            let reason = eal::reason(-1).text;
            let rule = flow_text(address, queue, form);
            match eal::text(why.as_ptr()) {
                message if message.is_empty() => format!("{reason}: {rule}"),
                message => format!("{message} ({reason}): {rule}"),
            }
        })
    }

    fn destroy(&self, rule: &Rule) -> bool {
        // SAFETY: the device exists and has this rule. The owner of the rule destroys it once.
        unsafe { sys::cn_flow_destroy(self.probed.port, rule.0.as_ptr()) == 0 }
    }
}

/// In testpmd's syntax, as the device would receive it.
pub(crate) fn flow_text(address: Ipv4Addr, queue: usize, form: Form) -> String {
    const TEXT_MAX: usize = 256;
    let mut out: [c_char; TEXT_MAX] = [0; TEXT_MAX];
    let narrow = (form == Form::Narrow).into();
    // SAFETY: at most the length of the array is written, zero-terminated.
    unsafe {
        sys::cn_flow_text(
            address.to_bits(),
            queue as u16,
            narrow,
            out.as_mut_ptr(),
            TEXT_MAX,
        )
    };
    eal::text(out.as_ptr())
}
