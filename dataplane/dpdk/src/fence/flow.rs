//! Rules of a device: frames to an address go to a receive queue.

use std::ffi::c_char;
use std::net::Ipv4Addr;
use std::ptr::NonNull;

use castnet_dpdk_sys as sys;

use super::device::Device;
use super::eal;
use crate::flow::{Form, Rules};

/// A rule that a device has. It goes with the device, if nobody takes it away before.
#[derive(Debug)]
pub(crate) struct Rule(NonNull<sys::rte_flow>);

// SAFETY: DPDK's functions for rules lock the device where its driver does not (`RTE_ETH_DEV_FLOW_OPS_THREAD_SAFE`), so any
// thread may call them; nothing is read through the pointer on this side.
unsafe impl Send for Rule {}

/// Bytes of a driver's explanation.
const WORDS: usize = 160;

impl Rules for Device {
    type Rule = Rule;

    fn create(&self, address: Ipv4Addr, queue: usize, form: Form) -> Result<Rule, String> {
        let mut why = [0; WORDS];
        let narrow = (form == Form::Narrow).into();
        let port = self.port();
        // SAFETY: the device is there and runs; DPDK writes at most as many bytes of `why` as it has, and ends them in a zero.
        let rule = unsafe {
            sys::cn_flow_create(
                port,
                address.to_bits(),
                queue as u16,
                narrow,
                why.as_mut_ptr(),
                WORDS,
            )
        };
        NonNull::new(rule).map(Rule).ok_or_else(|| {
            let reason = eal::reason(-1).text;
            let rule = words(address, queue, form);
            match eal::text(why.as_ptr()) {
                said if said.is_empty() => format!("{reason}: {rule}"),
                said => format!("{said} ({reason}): {rule}"),
            }
        })
    }

    fn destroy(&self, rule: &Rule) -> bool {
        // SAFETY: the device is there and has this rule, as who holds it calls this once.
        unsafe { sys::cn_flow_destroy(self.port(), rule.0.as_ptr()) == 0 }
    }
}

/// A rule in the words of testpmd, as a device would be given it.
pub(crate) fn words(address: Ipv4Addr, queue: usize, form: Form) -> String {
    const ROOM: usize = 256;
    let mut out: [c_char; ROOM] = [0; ROOM];
    let narrow = (form == Form::Narrow).into();
    // SAFETY: as many bytes are written as there are, and they end in a zero.
    unsafe { sys::cn_flow_text(address.to_bits(), queue as u16, narrow, out.as_mut_ptr(), ROOM) };
    eal::text(out.as_ptr())
}
