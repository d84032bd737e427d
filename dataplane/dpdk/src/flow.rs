//! The flow rules of a device: which addresses are directed to the queue of their group's worker.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};

use castnet_port::{FlowTable, Steered};

use crate::fence::device::Device;

/// What a rule matches. Devices differ in what their hardware supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Wide,
    /// The destination address and RoCEv2's UDP port.
    Narrow,
}

pub(crate) trait RuleDriver {
    type Rule;
    /// The driver's message if the device refuses the rule.
    fn create(&self, address: Ipv4Addr, queue: usize, form: Form) -> Result<Self::Rule, String>;

    /// Returns false if the rule still exists.
    fn destroy(&self, rule: &Self::Rule) -> bool;
}

#[derive(Debug)]
pub(crate) struct FlowRules<R> {
    rules: BTreeMap<Ipv4Addr, (usize, R)>,
    /// They are not retried until a rule has been removed.
    refused: BTreeMap<Ipv4Addr, usize>,
    /// The forms to try: after a success only that form, after a failure of all forms none.
    forms: &'static [Form],
    /// Of the latest refusal.
    reason: String,
}

impl<R> Default for FlowRules<R> {
    fn default() -> Self {
        Self {
            rules: BTreeMap::new(),
            refused: BTreeMap::new(),
            forms: &[Form::Wide, Form::Narrow],
            reason: String::new(),
        }
    }
}

impl<R> FlowRules<R> {
    /// Changes the device's rules to `wanted`, pairs of address and queue, with as few changes as possible.
    pub(crate) fn steer(
        &mut self,
        device: &impl RuleDriver<Rule = R>,
        wanted: impl IntoIterator<Item = (Ipv4Addr, usize)>,
    ) -> Steered {
        let wanted: BTreeMap<_, _> = wanted.into_iter().collect();
        let before = self.rules.len();
        // Two rules for one address would conflict, so the old one is removed first. Meanwhile frames arrive
        // at any queue and workers hand them over.
        self.rules
            .retain(|address, (queue, rule)| wanted.get(address) == Some(queue) || !device.destroy(rule));
        if self.rules.len() < before {
            self.refused.clear();
        }
        self.refused
            .retain(|address, queue| wanted.get(address) == Some(queue));
        for (&address, &queue) in &wanted {
            if self.rules.contains_key(&address) || self.refused.contains_key(&address) {
                continue;
            }
            match self.create(device, address, queue) {
                Some(rule) => drop(self.rules.insert(address, (queue, rule))),
                None => drop(self.refused.insert(address, queue)),
            }
        }
        let right =
            |(address, queue): (&Ipv4Addr, &usize)| self.rules.get(address).is_some_and(|r| r.0 == *queue);
        let refused = wanted.iter().filter(|w| !right(*w)).count();
        let reason = if refused == 0 {
            String::new()
        } else {
            self.reason.clone()
        };
        Steered {
            rules: self.rules.len(),
            refused,
            reason,
        }
    }

    fn create(&mut self, device: &impl RuleDriver<Rule = R>, address: Ipv4Addr, queue: usize) -> Option<R> {
        for (n, form) in self.forms.iter().enumerate() {
            match device.create(address, queue, *form) {
                Ok(rule) => {
                    self.forms = &self.forms[n..=n];
                    return Some(rule);
                }
                Err(reason) => self.reason = reason,
            }
        }
        if self.rules.is_empty() && self.forms.len() > 1 {
            self.forms = &[];
        }
        None
    }
}

/// Owned by control. It does not keep the device open.
#[derive(Debug)]
pub(crate) struct DeviceFlowTable(pub(crate) Weak<Device>);

impl FlowTable for DeviceFlowTable {
    fn steer(&self, wanted: &[(Ipv4Addr, usize)]) -> Steered {
        let Some(device) = self.0.upgrade() else {
            return Steered::default();
        };
        let queues = device.rx_queues;
        let mut flows = device.flows.lock().unwrap_or_else(PoisonError::into_inner);
        // If a thread has several queues, the one with the thread's own index is used.
        let steered = flows.steer(
            &*device,
            wanted.iter().copied().filter(|(_, queue)| *queue < queues),
        );
        device.rules.store(steered.rules, Ordering::Relaxed);
        steered
    }
}

impl DeviceFlowTable {
    /// `None` if there is only one queue.
    pub(crate) fn of(device: &Arc<Device>) -> Option<Arc<dyn FlowTable>> {
        (device.rx_queues > 1).then(|| Arc::new(Self(Arc::downgrade(device))) as _)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use proptest::prelude::*;

    use super::*;
    use crate::fence::flow::flow_text;

    /// A device with capacity for a number of rules of one form. It counts the requests.
    struct Fake {
        capacity: usize,
        form: Option<Form>,
        sticks: bool,
        has: RefCell<BTreeMap<Ipv4Addr, usize>>,
        asked: Cell<usize>,
    }

    impl Fake {
        fn new(capacity: usize, form: Option<Form>) -> Self {
            Self {
                capacity,
                form,
                sticks: false,
                has: RefCell::default(),
                asked: Cell::new(0),
            }
        }
    }

    impl RuleDriver for Fake {
        type Rule = Ipv4Addr;

        fn create(&self, address: Ipv4Addr, queue: usize, form: Form) -> Result<Ipv4Addr, String> {
            self.asked.set(self.asked.get() + 1);
            let mut has = self.has.borrow_mut();
            if Some(form) != self.form {
                return Err("not this form".to_owned());
            }
            if has.len() == self.capacity {
                return Err("full".to_owned());
            }
            assert_eq!(has.insert(address, queue), None, "a second rule for {address}");
            Ok(address)
        }

        fn destroy(&self, rule: &Ipv4Addr) -> bool {
            assert!(self.has.borrow().contains_key(rule), "no rule for {rule}");
            !self.sticks && self.has.borrow_mut().remove(rule).is_some()
        }
    }

    fn address(n: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 200, 0, n)
    }

    fn wanted() -> impl Strategy<Value = Vec<BTreeMap<u8, usize>>> {
        proptest::collection::vec(
            proptest::collection::btree_map(0..12_u8, 0..3_usize, 0..12),
            1..12,
        )
    }

    proptest! {
        /// The model removes all rules each time and creates those that are wanted.
        #[test]
        fn a_device_gets_the_wanted_rules(steps in wanted(), narrow: bool, capacity in 0..14_usize) {
            let form = if narrow { Form::Narrow } else { Form::Wide };
            let device = Fake::new(capacity, Some(form));
            let mut flows = FlowRules::default();
            for step in &steps {
                let twin: BTreeMap<_, _> = step.iter().map(|(n, queue)| (address(*n), *queue)).collect();
                let steered = flows.steer(&device, twin.clone());
                let has = device.has.borrow();
                prop_assert!(has.iter().all(|(address, queue)| twin.get(address) == Some(queue)));
                prop_assert_eq!(has.len(), steered.rules);
                prop_assert_eq!(has.len() + steered.refused, twin.len());
                // As many as fit. Refused rules are retried only after a rule has been removed.
                prop_assert!(capacity > twin.len() || has.len() <= capacity);
                prop_assert!(capacity < 12 || *has == twin);
                prop_assert_eq!(steered.refused == 0, steered.reason.is_empty());
                drop(has);
                let asked = device.asked.get();
                prop_assert_eq!(flows.steer(&device, twin), steered);
                prop_assert_eq!(device.asked.get(), asked, "nothing changed, so the device is not called");
            }
        }
    }

    #[test]
    fn a_device_that_takes_no_rule_is_not_retried() {
        let device = Fake::new(9, None);
        let mut flows = FlowRules::default();
        let steered = flows.steer(&device, [(address(1), 1), (address(2), 0)]);
        assert_eq!(
            (steered.rules, steered.refused, steered.reason.as_str()),
            (0, 2, "not this form")
        );
        assert_eq!(device.asked.get(), 2, "both forms of the first rule");
        flows.steer(&device, []);
        flows.steer(&device, [(address(3), 1)]);
        assert_eq!(device.asked.get(), 2);
    }

    #[test]
    fn a_rule_that_cannot_be_removed_is_not_duplicated() {
        let mut device = Fake::new(9, Some(Form::Wide));
        let mut flows = FlowRules::default();
        flows.steer(&device, [(address(1), 1)]);
        device.sticks = true;
        let steered = flows.steer(&device, [(address(1), 2)]);
        assert_eq!(
            (steered.rules, steered.refused),
            (1, 1),
            "the old rule selects the wrong queue"
        );
        device.sticks = false;
        let steered = flows.steer(&device, [(address(1), 2)]);
        assert_eq!((steered.rules, steered.refused), (1, 0));
        assert_eq!(device.has.borrow()[&address(1)], 2);
    }

    #[test]
    fn a_rule_has_the_address_and_the_queue() {
        assert_eq!(
            flow_text(address(7), 3, Form::Wide),
            "ingress pattern eth / ipv4 dst is 10.200.0.7 / end actions queue index 3 / end"
        );
        assert_eq!(
            flow_text(address(7), 0, Form::Narrow),
            "ingress pattern eth / ipv4 proto is 17 dst is 10.200.0.7 / udp dst is 4791 / end actions queue index 0 / end"
        );
    }
}
